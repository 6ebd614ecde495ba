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
use kube::Client;
use operetta_core::{
    grant::Verb,
    name::{Actor, Namespace, ServiceAccount},
    port::ApiError,
    resource::Resource,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    identity::Identity,
    request::{Fault, send_json},
};

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

    /// Checks that the account may list and watch a kind, in one namespace or in all, and the host as that account.
    pub async fn check_watch(
        &self,
        actor: &Actor,
        resource: &Resource,
        namespace: Option<&Namespace>,
    ) -> Result<(), Refusal> {
        for verb in [Verb::List, Verb::Watch] {
            self.check(actor, verb, resource, namespace, true).await?;
        }
        self.check_host(actor, resource, namespace).await
    }

    /// Checks that the host may list and watch a kind as that account: the API server constrains what it may do under other names.
    pub async fn check_host(
        &self,
        actor: &Actor,
        resource: &Resource,
        namespace: Option<&Namespace>,
    ) -> Result<(), Refusal> {
        for verb in [Verb::List, Verb::Watch] {
            let asked = Asked { verb, resource, namespace };
            self.identity.check_host(actor, &asked).await?;
        }
        Ok(())
    }

    /// Checks that the account may list and watch a kind, asking the API server whatever was said before.
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
        let attributes = Asked { verb, resource, namespace }.attributes(verb.as_str());
        let what = format!("cannot ask what service account {} may do", actor.account);
        if review(&client, &attributes).await.map_err(|fault| Refusal::Unasked(fault.into_api_error(&what)))? {
            self.allowed.lock().unwrap_or_else(PoisonError::into_inner).insert(question, asked);
            return Ok(());
        }
        Err(Refusal::Lacks(missing(&actor.account, &Asked { verb, resource, namespace })))
    }
}

/// What is asked for: a verb on all objects of a kind, in one namespace or in all.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// What to do.
    pub verb: Verb,
    /// With which kind.
    pub resource: &'a Resource,
    /// Where; none is everywhere.
    pub namespace: Option<&'a Namespace>,
}

impl Asked<'_> {
    /// As an access review asks about it.
    pub(crate) fn attributes(&self, verb: &str) -> Value {
        json!({
            "group": self.resource.group(), "version": self.resource.version(), "resource": self.resource.resource(),
            "verb": verb, "namespace": self.namespace.map_or("", Namespace::as_str),
        })
    }

    /// Which kind of role grants it.
    pub(crate) fn role(&self) -> &'static str {
        if self.namespace.is_some() { "Role" } else { "ClusterRole" }
    }

    /// The rule that grants these verbs, ready to paste.
    pub(crate) fn rule(&self, verbs: &str) -> String {
        format!(
            "{{apiGroups: [{:?}], resources: [{:?}], verbs: [{verbs}]}}",
            self.resource.group(),
            self.resource.resource()
        )
    }
}

impl std::fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.resource.resource())?;
        if !self.resource.group().is_empty() {
            write!(f, " of group {}", self.resource.group())?;
        }
        match self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => f.write_str(" in all namespaces"),
        }
    }
}

/// Asks the API server what the client may do itself.
pub(crate) async fn review(client: &Client, attributes: &Value) -> Result<bool, Fault> {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes},
    });
    let request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(review.to_string().into_bytes())?;
    let answer = send_json(client, request).await?;
    Ok(answer.pointer("/status/allowed").and_then(Value::as_bool) == Some(true))
}

/// What RBAC lacks, ready to paste.
fn missing(account: &ServiceAccount, asked: &Asked<'_>) -> String {
    format!(
        "service account {account} may not {asked}; run `operetta install` for the plugin, or add to a {} of the account: {}",
        asked.role(),
        asked.rule("list, watch")
    )
}

#[cfg(test)]
mod tests;
