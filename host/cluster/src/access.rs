//! What an account may read, asked of the API server as that account.
//!
//! A shared cache must not widen anyone's access. **A yes holds for at most 30 s** ([`BELIEVED_FOR`], and [`LOOK_AGAIN_AFTER`] for those who watch); **a no is never remembered**,
//! so that new RBAC works at once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::Request;
use operetta_core::{
    grant::Verb,
    name::{Actor, Namespace, ServiceAccount},
    port::ApiError,
    resource::Resource,
};
use serde_json::json;
use tokio::time::Instant;

use crate::{identity::Identity, request::send_json};

/// How long a yes is believed when somebody asks anew.
const BELIEVED_FOR: Duration = Duration::from_secs(10);

/// Between two looks at the rights of those who watch. Whoever came on a yes that was believed, or whose account was, has 30 s at most.
pub const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(20);

/// A question about a right.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    actor: Actor,
    verb: Verb,
    group: String,
    resource: String,
    namespace: Option<Namespace>,
}

/// Why an account is not told of changes.
#[derive(Debug)]
pub enum Refusal {
    /// It has no right to; names the verb that is missing and the rule to add.
    Lacks(String),
    /// The API server could not be asked.
    Unasked(ApiError),
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Lacks(why) => Self::Forbidden(why),
            Refusal::Unasked(error) => error,
        }
    }
}

/// Answers whether an account may list or watch.
pub struct Access {
    identity: Arc<dyn Identity>,
    allowed: Mutex<HashMap<Question, Instant>>,
}

impl Access {
    /// Asks as the accounts that `identity` gives.
    pub fn new(identity: Arc<dyn Identity>) -> Self {
        Self { identity, allowed: Mutex::default() }
    }

    /// Checks that the account may list and watch a kind, in one namespace or in all.
    pub async fn check_watch(
        &self,
        actor: &Actor,
        resource: &Resource,
        namespace: Option<&Namespace>,
    ) -> Result<(), Refusal> {
        for verb in [Verb::List, Verb::Watch] {
            self.check(actor, verb, resource, namespace, true).await?;
        }
        Ok(())
    }

    /// The same, asking the API server whatever was said before.
    pub async fn recheck_watch(
        &self,
        actor: &Actor,
        resource: &Resource,
        namespace: Option<&Namespace>,
    ) -> Result<(), Refusal> {
        for verb in [Verb::List, Verb::Watch] {
            self.check(actor, verb, resource, namespace, false).await?;
        }
        Ok(())
    }

    async fn check(
        &self,
        actor: &Actor,
        verb: Verb,
        resource: &Resource,
        namespace: Option<&Namespace>,
        believe: bool,
    ) -> Result<(), Refusal> {
        // The account may be gone, or no longer the plugin's, and RBAC would not know.
        let client = self.identity.client(actor).await.map_err(|error| match error {
            ApiError::Forbidden(why) => Refusal::Lacks(why),
            error => Refusal::Unasked(error),
        })?;
        let question = Question {
            actor: actor.clone(),
            verb,
            group: resource.group().to_owned(),
            resource: resource.resource().to_owned(),
            namespace: namespace.cloned(),
        };
        let asked = Instant::now();
        {
            let mut allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
            allowed.retain(|_, at| at.elapsed() < BELIEVED_FOR);
            if !believe {
                allowed.remove(&question);
            } else if allowed.contains_key(&question) {
                return Ok(());
            }
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "group": resource.group(), "version": resource.version(), "resource": resource.resource(),
                "verb": verb.as_str(), "namespace": namespace.map_or("", Namespace::as_str),
            }},
        });
        let what = format!("cannot ask what service account {} may do", actor.account);
        let request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(review.to_string().into_bytes())
            .map_err(|e| Refusal::Unasked(ApiError::Invalid(e.to_string())))?;
        let answer =
            send_json(&client, request).await.map_err(|fault| Refusal::Unasked(fault.into_api_error(&what)))?;
        if answer.pointer("/status/allowed").and_then(serde_json::Value::as_bool) == Some(true) {
            self.allowed.lock().unwrap_or_else(PoisonError::into_inner).insert(question, asked);
            return Ok(());
        }
        Err(Refusal::Lacks(missing(&actor.account, verb, resource, namespace)))
    }
}

/// What RBAC lacks, ready to paste.
fn missing(account: &ServiceAccount, verb: Verb, resource: &Resource, namespace: Option<&Namespace>) -> String {
    let (place, role) = match namespace {
        Some(namespace) => (format!("in namespace {namespace}"), "Role"),
        None => ("in all namespaces".to_owned(), "ClusterRole"),
    };
    let group = if resource.group().is_empty() { String::new() } else { format!(" of group {}", resource.group()) };
    format!(
        "service account {account} may not {verb} {}{group} {place}; run `operetta install` for the plugin, or add to a {role} of the account: {{apiGroups: [{:?}], \
         resources: [{:?}], verbs: [list, watch]}}",
        resource.resource(),
        resource.group(),
        resource.resource(),
    )
}

#[cfg(test)]
mod tests;
