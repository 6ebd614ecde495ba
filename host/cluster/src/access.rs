//! What an account may read, asked of the API server as that account.
//!
//! A shared cache must not widen anyone's access. **A yes holds for at most 30 s** ([`BELIEVED_FOR`], and [`LOOK_AGAIN_AFTER`] for those who watch); **a no is never remembered**,
//! so that new RBAC works at once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use operetta_core::{
    cache::Extent,
    grant::Verb,
    name::{Actor, Namespace, ObjectName, ServiceAccount},
    port::ApiError,
    resource::Resource,
};
use tokio::time::Instant;

use crate::{identity::Identity, review::Question};

/// How long a yes is believed when somebody asks anew.
const BELIEVED_FOR: Duration = Duration::from_secs(10);

/// Between two looks at the rights of those who watch. Whoever came on a yes that was believed, or whose account was, has 30 s at most.
pub const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(20);

/// Whose right to list and watch is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The account's; that it was said a moment ago will do.
    Account,
    /// The account's, whatever was said before.
    AccountAnew,
    /// The host's under the account's name: the API server constrains what it may do as others.
    Host,
}

/// What an account may do: a verb, with how much of which kind.
type Right = (Actor, Verb, Resource, Extent);

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

/// Answers whether an account may list and watch, and the host as that account.
pub struct Access {
    identity: Arc<dyn Identity>,
    allowed: Mutex<HashMap<Right, Instant>>,
}

impl Access {
    /// Asks as the accounts that `identity` gives.
    pub fn new(identity: Arc<dyn Identity>) -> Self {
        Self { identity, allowed: Mutex::default() }
    }

    /// Checks that this much of a kind may be listed and watched.
    pub async fn check(
        &self,
        whose: Whose,
        actor: &Actor,
        resource: &Resource,
        extent: &Extent,
    ) -> Result<(), Refusal> {
        for verb in [Verb::List, Verb::Watch] {
            let asked = Asked { verb, resource, extent };
            match whose {
                Whose::Account => self.check_account(actor, &asked, false).await?,
                Whose::AccountAnew => self.check_account(actor, &asked, true).await?,
                Whose::Host => self.identity.check_host(actor, &asked).await?,
            }
        }
        Ok(())
    }

    async fn check_account(&self, actor: &Actor, asked: &Asked<'_>, anew: bool) -> Result<(), Refusal> {
        // The account may be gone, or no longer the plugin's, and RBAC would not know.
        let client = self.identity.client(actor).await.map_err(|error| match error {
            ApiError::Forbidden(why) => Refusal::Lacks(why),
            error => Refusal::Unasked(error),
        })?;
        let known = (actor.clone(), asked.verb, asked.resource.clone(), asked.extent.clone());
        let now = Instant::now();
        {
            let mut allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
            allowed.retain(|_, at| at.elapsed() < BELIEVED_FOR);
            if anew {
                allowed.remove(&known);
            } else if allowed.contains_key(&known) {
                return Ok(());
            }
        }
        let what = format!("cannot ask what service account {} may do", actor.account);
        let may = asked.question(asked.verb.as_str()).ask(&client, None).await;
        if may.map_err(|fault| Refusal::Unasked(fault.into_api_error(&what)))? {
            self.allowed.lock().unwrap_or_else(PoisonError::into_inner).insert(known, now);
            return Ok(());
        }
        Err(Refusal::Lacks(missing(&actor.account, asked)))
    }
}

/// What is asked for: a verb on so much of a kind.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// What to do.
    pub verb: Verb,
    /// With which kind.
    pub resource: &'a Resource,
    /// With how much of it.
    pub extent: &'a Extent,
}

impl Asked<'_> {
    /// As an access review asks about it.
    pub(crate) fn question<'a>(&'a self, verb: &'a str) -> Question<'a> {
        Question {
            verb,
            group: self.resource.group(),
            resource: self.resource.resource(),
            namespace: self.extent.namespace.as_ref().map_or("", Namespace::as_str),
            name: self.extent.name.as_ref().map_or("", ObjectName::as_str),
            ..Question::default()
        }
    }

    /// Which kind of role grants it.
    pub(crate) fn role(&self) -> &'static str {
        if self.extent.namespace.is_some() { "Role" } else { "ClusterRole" }
    }

    /// The rule that grants these verbs, ready to paste.
    pub(crate) fn rule(&self, verbs: &str) -> String {
        let names = self.extent.name.as_ref();
        let names = names.map(|name| format!(" resourceNames: [{:?}],", name.as_str())).unwrap_or_default();
        format!(
            "{{apiGroups: [{:?}], resources: [{:?}],{names} verbs: [{verbs}]}}",
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
        write!(f, "{}", self.extent)
    }
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
