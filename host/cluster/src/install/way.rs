//! How the host becomes a plugin's account: which rights that takes.
//!
//! Since Kubernetes 1.36 (KEP-5284) impersonation can be constrained: the host needs `impersonate:serviceaccount` on the account and, for each request that it makes as that account,
//! `impersonate-on:serviceaccount:VERB` on what the request is about. So its own rights say what it may do under other names, and that is what the plugins' rules say, no more. Before, there is
//! one verb, `impersonate`, with which the host may do all that the account may.

use kube::Client;
use operetta_core::grant::{Rule, Verb};
use serde_json::{Value, json};

use crate::request::{Fault, is_at_least};

/// The first minor version whose API servers constrain impersonation unless told otherwise.
const CONSTRAINS_SINCE: u32 = 36;
/// How a constrained request's verb begins.
const ON: &str = "impersonate-on:serviceaccount";

/// How the host becomes a plugin's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By impersonation that is constrained to what the plugins' rules say.
    Constrained,
    /// By impersonation without constraints.
    Classic,
}

impl Way {
    /// The narrowest that the API server knows.
    ///
    /// # Errors
    /// It does not say of which version it is.
    pub async fn of(client: &Client) -> Result<Self, Fault> {
        Ok(if is_at_least(client, CONSTRAINS_SINCE).await? { Self::Constrained } else { Self::Classic })
    }

    /// The right to become service accounts: its group and verb.
    pub(crate) fn becoming(self) -> (&'static str, &'static str) {
        match self {
            Self::Constrained => ("authentication.k8s.io", "impersonate:serviceaccount"),
            Self::Classic => ("", "impersonate"),
        }
    }

    /// The verb that the host needs besides to do this under another name; none where it needs nothing more.
    pub(crate) fn acting(self, verb: &str) -> Option<String> {
        (self == Self::Constrained).then(|| format!("{ON}:{verb}"))
    }

    /// What the host must be allowed so that it can act as these rules let the account act. RBAC's `*` is spelled out, since it would let the host act under its own name.
    pub(crate) fn rule(self, rule: &Rule) -> Option<Rule> {
        let all = rule.verbs.iter().any(|verb| verb == "*");
        // Verbs that no request of a plugin has are left out.
        let asked = Verb::ALL.into_iter().map(Verb::as_str);
        let asked = asked.filter(|verb| all || rule.verbs.iter().any(|granted| granted == verb));
        let verbs: Vec<_> = asked.filter_map(|verb| self.acting(verb)).collect();
        (!verbs.is_empty()).then(|| Rule { verbs, ..rule.clone() })
    }

    /// What the host asks of the API server as plugins' accounts whatever their rules say: what they may do.
    pub(crate) fn asking(self) -> Option<Value> {
        let verb = self.acting("create")?;
        Some(json!({"apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews"], "verbs": [verb]}))
    }
}
