//! What another plugin applied is its own: a merge, a JSON patch or a replace sets it otherwise no more than an apply does.
//!
//! The API server would let such a write have the field, and the other's next apply would meet a conflict for ever. Who owns what is taken from any cache of the host, and what is there is
//! then read as the plugin's own account: so that a cache which is not the plugin's tells it nothing, and one that is late refuses nothing. Where no cache knows the object, or the
//! account may not read it, the write goes out, and the other takes the field back with its next apply (see [`super::apply`]).

use json_patch::{Patch, PatchOperation};
use operetta_core::{
    aside::ELSEWHERE,
    name::{FieldManager, Subresource},
    port::ApiError,
};
use serde_json::Value;

use super::{
    PluginKubernetes,
    write::{Aim, How},
};
use crate::{
    informer::Reading,
    object::Entry,
    ownership::claims::{Claim, of_others},
};

/// Operations of a JSON patch that are looked into, each of which may move a whole list.
const MOST_OPERATIONS: usize = 1_000;
/// How deep such an operation may reach; so deep is no object that is read.
const DEEPEST: usize = 128;

/// What becomes of an object.
enum Then {
    /// This.
    Known(Value),
    /// Nothing, for the API server will refuse it.
    Refused,
    /// It would take too much to say.
    Unclear,
}

impl PluginKubernetes {
    pub(super) async fn leave_to_others(
        &self,
        manager: &FieldManager,
        aim: Aim<'_>,
        how: How,
        body: &[u8],
    ) -> Result<(), ApiError> {
        let caches = self.informers.seeing(&self.actor, aim.resource, aim.key);
        let known = caches.iter().find_map(|cache| match cache.get(aim.key) {
            Reading::Known(entry) => Some(entry),
            // As it was before a write whose end is open.
            Reading::Live => cache.outline(aim.key),
            Reading::Absent => None,
        });
        if known.is_none_or(|entry| self.taken(aim, how, body, &entry).is_none()) {
            return Ok(());
        }
        let Ok(entry) = self.get_live(aim.what, aim.resource, aim.kind, aim.key).await else { return Ok(()) };
        if how == How::Replace && !is_made_from(body, &entry) {
            // The API server says so itself.
            return Ok(());
        }
        let Some((owner, field)) = self.taken(aim, how, body, &entry) else { return Ok(()) };
        Err(self.is_anothers(aim.what, &owner, &field, manager))
    }

    /// The first other plugin that applied what the write would set otherwise, and the field.
    fn taken(&self, aim: Aim<'_>, how: How, body: &[u8], entry: &Entry) -> Option<(String, String)> {
        let part = match aim.subresource.map(Subresource::as_str) {
            None => "",
            Some("status") => "status",
            // Which fields of the whole it means, only the API server knows.
            Some(_) => return None,
        };
        let claims = of_others(entry.owned.as_deref()?, &self.actor.plugin, part);
        let first = claims.first()?;
        let live = entry.cached.value();
        let then = match then(how, body, &live) {
            Then::Known(then) => then,
            Then::Refused => return None,
            Then::Unclear => return Some((first.manager.clone(), "some of what the patch may change".to_owned())),
        };
        let lost = |claim: &Claim| Some((claim.manager.clone(), claim.first_lost(&live, &then)?));
        claims.iter().find_map(lost)
    }

    /// Tells the administrator whose fields they are, and the plugin that they are another's.
    pub(super) fn is_anothers(&self, what: &str, owner: &str, fields: &str, manager: &FieldManager) -> ApiError {
        self.aside.say(&format!(
            "{what}: {owner} owns {fields}, which {manager} would set otherwise; let one of the two plugins own it"
        ));
        // Which plugins there are is no plugin's to know.
        ApiError::Conflict(format!(
            "{what}: another plugin owns {fields}, which {manager} would set otherwise; {ELSEWHERE}"
        ))
    }
}

/// Whether a replace is of this version, which the API server reads as a number.
fn is_made_from(body: &[u8], there: &Entry) -> bool {
    let object: Value = serde_json::from_slice(body).unwrap_or_default();
    let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
    version.trim_start_matches('0') == there.cached.meta.resource_version.trim_start_matches('0')
}

fn then(how: How, body: &[u8], live: &Value) -> Then {
    match how {
        How::Replace => {
            let Ok(then) = serde_json::from_slice::<Value>(body) else { return Then::Refused };
            Then::Known(then)
        }
        How::Merge => {
            let Ok(patch) = serde_json::from_slice::<Value>(body) else { return Then::Refused };
            let mut then = live.clone();
            json_patch::merge(&mut then, &patch);
            Then::Known(then)
        }
        How::Json => {
            let Ok(patch) = serde_json::from_slice::<Patch>(body) else { return Then::Refused };
            // Copies of copies grow beyond measure, and what is moved into what was moved becomes deeper than can be dropped.
            let is_plain = |operation: &PatchOperation| {
                !matches!(operation, PatchOperation::Copy(_) | PatchOperation::Move(_))
                    && operation.path().tokens().count() <= DEEPEST
            };
            let mut then = live.clone();
            // The API server is of another mind on some patches, such as those that count from the end of a list.
            let is_clear = patch.0.len() <= MOST_OPERATIONS
                && patch.0.iter().all(is_plain)
                && json_patch::patch_unsafe(&mut then, &patch.0).is_ok();
            if is_clear { Then::Known(then) } else { Then::Unclear }
        }
    }
}
