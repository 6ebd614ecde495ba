//! What another plugin applied is its own: a merge, a JSON patch or a replace sets it otherwise no more than an apply does.
//!
//! The API server would let such a write have the field, and the other's next apply would meet a conflict for ever. Who owns what is taken from all caches of the host, and what is there is
//! then read as the plugin's own account: so that a cache which is not the plugin's tells it nothing, and one that is late refuses nothing. Where no cache knows the object, or the
//! account may not read it, the write goes out, and the other takes the field back with its next apply (see [`super::apply`]).

use std::slice;

use json_patch::{Patch, PatchOperation, TestOperation, jsonptr::Pointer};
use operetta_core::{
    aside::ELSEWHERE,
    name::{FieldManager, Subresource},
    port::ApiError,
};
use serde_json::Value;

use super::{
    PluginKubernetes,
    body::covers_ownership,
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

/// What a write does to what others applied.
enum Verdict {
    /// Nothing.
    Leaves,
    /// Nothing, as long as the object is this: the API server will refuse it.
    Refused,
    /// It sets it otherwise.
    Takes {
        /// Whose it is.
        owner: String,
        /// The first such field.
        field: String,
    },
}

impl PluginKubernetes {
    pub(super) async fn leave_to_others(
        &self,
        manager: &FieldManager,
        aim: Aim<'_>,
        how: How,
        body: &[u8],
    ) -> Result<(), ApiError> {
        if !self.may_take(aim, how, body) {
            return Ok(());
        }
        let entry = match self.get_live(aim.what, aim.resource, aim.kind, aim.key).await {
            Ok(entry) => entry,
            // There is nothing to lose, or nothing that the plugin is to know.
            Err(ApiError::Forbidden(_) | ApiError::NotFound(_)) => return Ok(()),
            // To go on unlooked would leave a field to whoever makes the API server slow.
            Err(error) => return Err(error),
        };
        if how == How::Replace && !is_made_from(body, &entry) {
            // The API server says so itself.
            return Ok(());
        }
        match self.verdict(aim, how, body, &entry) {
            Verdict::Leaves | Verdict::Refused => Ok(()),
            Verdict::Takes { owner, field } => Err(self.is_anothers(aim.what, &owner, &field, manager)),
        }
    }

    /// Whether any cache of the host says that a write could take what is another's.
    fn may_take(&self, aim: Aim<'_>, how: How, body: &[u8]) -> bool {
        let caches = self.informers.seeing(&self.actor, aim.resource, aim.key);
        // One of them may hold no more than an outline, which says of nobody that it owns anything.
        let mut known = caches.iter().filter_map(|cache| match cache.get(aim.key) {
            Reading::Known(entry) => Some(entry),
            // As it was before a write whose end is open.
            Reading::Live => cache.outline(aim.key),
            Reading::Absent => None,
        });
        // What would be refused on a cache that is late may well be done.
        known.any(|entry| !matches!(self.verdict(aim, how, body, &entry), Verdict::Leaves))
    }

    fn verdict(&self, aim: Aim<'_>, how: How, body: &[u8], entry: &Entry) -> Verdict {
        let Some(owned) = entry.owned.as_deref() else { return Verdict::Leaves };
        let of_others = |part: &str| of_others(owned, &self.actor.plugin, part);
        let claims = match aim.subresource.map(Subresource::as_str) {
            None => of_others(""),
            Some("status") => {
                let mut claims = of_others("status");
                // Of some kinds, such as pods and nodes, a patch of the status may change labels and annotations as well.
                if reaches_metadata(how, body) {
                    claims.extend(of_others("").into_iter().filter_map(Claim::in_metadata));
                }
                claims
            }
            // Which fields of the whole it means, only the API server knows.
            Some(_) => return Verdict::Leaves,
        };
        let Some(first) = claims.first() else { return Verdict::Leaves };
        let live = entry.cached.value();
        let then = match then(how, body, &live) {
            Then::Known(then) => then,
            Then::Refused => return Verdict::Refused,
            Then::Unclear => {
                let field = "some of what the patch may change".to_owned();
                return Verdict::Takes { owner: first.manager.clone(), field };
            }
        };
        let lost = |claim: &Claim| {
            Some(Verdict::Takes { owner: claim.manager.clone(), field: claim.first_lost(&live, &then)? })
        };
        claims.iter().find_map(lost).unwrap_or(Verdict::Leaves)
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
            if patch.0.len() > MOST_OPERATIONS || !patch.0.iter().all(is_plain) {
                return Then::Unclear;
            }
            let mut then = live.clone();
            for operation in &patch.0 {
                match operation {
                    PatchOperation::Test(test) => match tested(&then, test) {
                        Tested::Holds => {}
                        Tested::Fails => return Then::Refused,
                        Tested::Unclear => return Then::Unclear,
                    },
                    // The API server is of another mind on some patches, such as those that count from the end of a list.
                    operation if json_patch::patch_unsafe(&mut then, slice::from_ref(operation)).is_err() => {
                        return Then::Unclear;
                    }
                    _ => {}
                }
            }
            Then::Known(then)
        }
    }
}

/// How a test of a JSON patch ends.
enum Tested {
    Holds,
    Fails,
    Unclear,
}

/// A test that fails refuses the whole patch, so only what certainly fails is said to.
fn tested(object: &Value, test: &TestOperation) -> Tested {
    let is_there = match object.pointer(test.path.as_str()) {
        Some(found) if *found == test.value => return Tested::Holds,
        // To the API server what is not there is null.
        None if test.value.is_null() => return Tested::Holds,
        found => found.is_some(),
    };
    // To the API server these may be numbers that count within a list, some of them from its end.
    let is_odd = |token: &str| {
        token.starts_with(['-', '+'])
            || (token.len() > 1 && token.starts_with('0') && token.bytes().all(|b| b.is_ascii_digit()))
    };
    let may_be_elsewhere = !is_there && test.path.tokens().any(|token| is_odd(&token.decoded()));
    // Who owns what is not kept in what is read.
    if may_be_elsewhere || covers_ownership(&test.path) { Tested::Unclear } else { Tested::Fails }
}

/// Whether a patch of the status may say anything of the object's metadata.
fn reaches_metadata(how: How, body: &[u8]) -> bool {
    let is_in_status = |path: &Pointer| path.first().is_some_and(|token| token.decoded() == "status");
    match how {
        // Which is the whole object, whose metadata the API server of most kinds looks past.
        How::Replace => false,
        How::Merge => {
            let patch: Value = serde_json::from_slice(body).unwrap_or_default();
            patch.get("metadata").is_some()
        }
        How::Json => {
            let patch: Patch = serde_json::from_slice(body).unwrap_or_default();
            !patch.0.iter().all(|operation| match operation {
                PatchOperation::Test(_) => true,
                PatchOperation::Move(moved) => is_in_status(&moved.from) && is_in_status(&moved.path),
                operation => is_in_status(operation.path()),
            })
        }
    }
}
