//! The interface `events`.

use operetta_core::port::{ApiError, Event, Severity};
use wasmtime::component::Accessor;

use super::convert::{self, Answer, Size as _};
use crate::{
    bindings::operetta::operator::{
        events::{self, Host, HostWithStore},
        types,
    },
    state::{Caps, State, begin},
};

/// Characters of a reason or an action, as the API server takes them.
const REASON: usize = 128;
/// Characters of a message, as the API server takes them.
const MESSAGE: usize = 1_024;

impl Host for State {}

impl HostWithStore<State> for Caps {
    async fn publish(
        accessor: &Accessor<State, Self>,
        resource: types::Resource,
        key: types::ObjectKey,
        severity: events::Severity,
        reason: String,
        message: String,
        options: types::Options,
    ) -> Answer<()> {
        let held = resource.size() + key.size() + reason.len() + message.len() + options.size();
        let call = begin(accessor, held)?;
        let answer = async {
            let call = call?;
            let mut action = None;
            convert::options(options, &["action"], |_, value| word("action", &value).map(|()| action = Some(value)))?;
            word("reason", &reason)?;
            if message.chars().count() > MESSAGE {
                return Err(convert::invalid(format!("the message of an event has at most {MESSAGE} characters")));
            }
            let event = Event {
                resource: convert::resource(&resource)?,
                key: convert::key(&key)?,
                severity: match severity {
                    events::Severity::Normal => Severity::Normal,
                    events::Severity::Warning => Severity::Warning,
                },
                action: action.unwrap_or_else(|| reason.clone()),
                reason,
                message,
            };
            call.on_main(call.effects.publish(event)).await
        };
        Ok(answer.await.map_err(types::ApiError::from))
    }
}

fn word(what: &str, text: &str) -> Result<(), ApiError> {
    let form = text.starts_with(|c: char| c.is_ascii_uppercase()) && text.bytes().all(|b| b.is_ascii_alphanumeric());
    if form && text.len() <= REASON {
        return Ok(());
    }
    let shown: String = text.chars().take(80).collect();
    Err(convert::invalid(format!(
        "the {what} of an event is an UpperCamelCase word of at most {REASON} letters and digits, not {shown:?}"
    )))
}
