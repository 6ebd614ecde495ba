//! What a plugin is told of a request that failed, and what the administrator alone.
//!
//! What the API server answers to the plugin's account is the plugin's, as it is any client's with that account. **What is about the host is not**: where the API server is and how the host gets
//! there, which other plugins an account names, as whom the host itself asks and what it lacks.

use operetta_core::{aside::ELSEWHERE, name::ServiceAccount, port::ApiError};

use super::PluginKubernetes;
use crate::request::Fault;

impl PluginKubernetes {
    /// As the contract's errors; `what` names the operation and the object.
    pub(super) fn tell(&self, what: &str, fault: Fault) -> ApiError {
        let less = match &fault {
            Fault::Lost(_) => "no answer from the API server",
            Fault::Unreachable(_) => "the API server cannot be reached",
            Fault::NoClient(_) => "the host cannot act as the plugin's service account",
            Fault::Answer { code: 401 | 403, message, .. } if names_another(message, &self.actor.account) => {
                "the host itself may not do this as the plugin's service account"
            }
            // The contract's error has no words for it.
            Fault::Busy(wait) => {
                self.aside.say(&format!("{what}: {wait}"));
                return fault.into_api_error(what);
            }
            _ => return fault.into_api_error(what),
        };
        let error = fault.into_api_error(what);
        self.aside.say(&error.to_string());
        error.reworded(format!("{what}: {less}; {ELSEWHERE}"))
    }
}

/// Whether a refusal names somebody else as the one who asked: the host, where it may not act as the account or asks for itself.
fn names_another(message: &str, account: &ServiceAccount) -> bool {
    let own = format!("{}\"", account.user());
    message.split("User \"").skip(1).any(|rest| !rest.starts_with(&own))
}
