//! Server-side apply: not sent where it would change nothing, without force at first, with force where no other plugin is in the way.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash as _, Hasher as _},
    sync::PoisonError,
};

use http::Method;
use kube::core::Status;
use operetta_core::{
    aside::ELSEWHERE,
    cache::Cached,
    name::{ControllerName, FieldManager, Subresource},
    port::{ApiError, Caller, Written},
    resource::{ObjectKey, Resource},
};
use serde_json::Value;

use super::{
    PluginKubernetes, body,
    write::{Aim, describe, url},
};
use crate::{informer::Reading, object::Entry, ownership::changes_nothing, request::Fault};

const APPLY: &str = "application/apply-patch+yaml";
/// Applies remembered for one plugin; beyond, all are forgotten, which costs a request each.
const MOST: usize = 20_000;

/// What an apply is about.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Target {
    controller: ControllerName,
    resource: Resource,
    key: ObjectKey,
    subresource: Option<Subresource>,
}

/// The last apply to a target: the same body on the same version of the same object changes nothing, whatever the API server made of it (defaults within a value that is owned
/// at once, quantities that it writes otherwise, fields that its schema drops).
#[derive(Debug, PartialEq, Eq)]
pub struct Applied {
    body: u64,
    uid: String,
    version: String,
}

impl Applied {
    fn of(body: &str, object: &Cached) -> Self {
        let mut hasher = DefaultHasher::new();
        body.hash(&mut hasher);
        let meta = &object.meta;
        Self { body: hasher.finish(), uid: meta.uid.clone(), version: meta.resource_version.clone() }
    }
}

impl PluginKubernetes {
    pub(super) async fn apply(
        &self,
        caller: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        text: &str,
    ) -> Result<Written, ApiError> {
        let what = describe("apply", resource, key, subresource);
        let kind = self.kind(&what, resource, key.namespace.as_ref()).await?;
        let object = body::object(&what, text, resource, &kind, key.namespace.as_ref(), Some(key), subresource)?;
        let aim = Aim { what: &what, resource, kind: &kind, key, subresource };
        let manager = caller.field_manager();
        let target = Target {
            controller: caller.controller.clone(),
            resource: resource.clone(),
            key: key.clone(),
            subresource: subresource.cloned(),
        };
        let known = self.informers.covering(&self.actor, resource, &key.into()).map(|i| i.settled(key));
        // What a part is, the object does not say.
        if aim.is_whole()
            && let Some(Reading::Known(entry)) = known
            && self.is_applied(&target, text, &object, &manager, &entry)
        {
            return Ok(Written { now: entry.cached, before: None, sent: false, made: false });
        }
        let written = self.send_apply(aim, body::yaml(object), &manager).await?;
        if !aim.is_whole() {
            return Ok(written);
        }
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        if applied.len() >= MOST {
            applied.clear();
        }
        applied.insert(target, Applied::of(text, &written.now));
        Ok(written)
    }

    fn is_applied(&self, target: &Target, text: &str, object: &Value, manager: &FieldManager, entry: &Entry) -> bool {
        let again = {
            let applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
            applied.get(target).is_some_and(|last| *last == Applied::of(text, &entry.cached))
        };
        again
            || entry.owned.as_deref().is_some_and(|owned| {
                let subresource = target.subresource.as_ref().map(Subresource::as_str);
                changes_nothing(object, manager, subresource, owned, &entry.cached.value())
            })
    }

    async fn send_apply(&self, aim: Aim<'_>, body: Vec<u8>, manager: &FieldManager) -> Result<Written, ApiError> {
        let what = aim.what;
        let url = url(aim.resource, aim.key, aim.subresource, manager);
        let polite = url.clone().query("force", "false").request(Method::PATCH, Some(APPLY), body.clone());
        let status = match self.try_write(aim, polite).await {
            Ok((written, _)) => return Ok(written),
            Err(Fault::Answer { code: 409, status, .. }) if !conflicts(&status).is_empty() => status,
            Err(fault) => return Err(self.explain(what, aim.resource, fault)),
        };
        if let Some((owner, fields)) = other_plugin(&conflicts(&status), manager) {
            self.aside.say(&format!(
                "{what}: {owner} owns {fields}, which {manager} would set otherwise; let one of the two plugins own it"
            ));
            // Which plugins there are is no plugin's to know.
            return Err(ApiError::Conflict(format!(
                "{what}: another plugin owns {fields}, which {manager} would set otherwise; {ELSEWHERE}"
            )));
        }
        let forced = url.query("force", "true").request(Method::PATCH, Some(APPLY), body);
        self.write(aim, forced).await
    }
}

/// Who owns which fields that the apply wants otherwise.
fn conflicts(status: &Status) -> Vec<(String, String)> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes
        .filter(|cause| cause.reason == "FieldManagerConflict")
        // The manager is quoted as Go does: `conflict with "kubectl" using apps/v1 at ...`.
        .map(|cause| (cause.message.split('"').nth(1).unwrap_or_default().to_owned(), cause.field.clone()))
        .collect()
}

/// The first plugin in the way, and the fields that it owns.
fn other_plugin(conflicts: &[(String, String)], own: &FieldManager) -> Option<(String, String)> {
    let other: Vec<_> = conflicts.iter().filter(|(m, _)| FieldManager::is_plugin(m) && m != own.as_str()).collect();
    let (manager, _) = other.first()?;
    let fields: Vec<_> = other.iter().filter(|(m, _)| m == manager).map(|(_, field)| field.as_str()).collect();
    Some((manager.clone(), fields.join(", ")))
}

#[cfg(test)]
mod tests;
