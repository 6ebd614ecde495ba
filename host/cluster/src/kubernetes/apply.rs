//! Server-side apply: not sent where it would change nothing, without force at first, with force where no other plugin is in the way.
//!
//! **What a plugin applied stays its own**: where another plugin set it since by other means than an apply (for which the host may have seen no reason to refuse it, see [`super::others`]),
//! the next apply takes it back. Another plugin's apply, and what another plugin set that this one never applied, is a conflict.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    sync::{Arc, MutexGuard, PoisonError},
};

use http::Method;
use kube::core::Status;
use operetta_core::{
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
use crate::{
    informer::Reading,
    object::Entry,
    ownership::{changes_nothing, claims::each_applied},
    request::Fault,
};

const APPLY: &str = "application/apply-patch+yaml";
/// Applies remembered for one plugin; beyond, all are forgotten, which costs a request each.
const MOST: usize = 20_000;
/// The same of all their fields.
const MOST_FIELDS: usize = 1_000_000;

/// What an apply is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    controller: ControllerName,
    resource: Resource,
    key: ObjectKey,
    subresource: Option<Subresource>,
}

impl Target {
    /// As managed fields name it.
    fn part(&self) -> &str {
        self.subresource.as_ref().map_or("", Subresource::as_str)
    }
}

/// The last apply to a target: the same body on the same version of the same object changes nothing, whatever the API server made of it (defaults within a value that is owned
/// at once, quantities that it writes otherwise, fields that its schema drops).
#[derive(Debug, Clone)]
pub struct Applied {
    body: u64,
    uid: String,
    version: String,
    /// Which fields became the manager's own, in order.
    fields: Box<[u64]>,
}

impl Applied {
    fn of(body: &str, object: &Cached, owned: Option<&str>, manager: &FieldManager, part: &str) -> Self {
        let mut fields = Vec::new();
        each_applied(owned.unwrap_or_default(), manager, part, |field| fields.push(hash(field)));
        fields.sort_unstable();
        let meta = &object.meta;
        let (uid, version) = (meta.uid.clone(), meta.resource_version.clone());
        Self { body: hash(body), uid, version, fields: fields.into() }
    }

    /// Whether it was this, on this version.
    fn is(&self, body: &str, object: &Cached) -> bool {
        self.uid == object.meta.uid && self.version == object.meta.resource_version && self.body == hash(body)
    }

    fn has(&self, field: &str) -> bool {
        self.fields.binary_search(&hash(field)).is_ok()
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// The last applies of a plugin.
#[derive(Debug, Default)]
pub struct Memory {
    targets: HashMap<Target, Applied>,
    /// Of all of them.
    fields: usize,
}

impl Memory {
    fn keep(&mut self, target: Target, applied: Applied) {
        let before = self.targets.remove(&target).map_or(0, |applied| applied.fields.len());
        self.fields = self.fields.saturating_sub(before);
        if self.targets.len() >= MOST || self.fields.saturating_add(applied.fields.len()) > MOST_FIELDS {
            *self = Self::default();
        }
        self.fields = self.fields.saturating_add(applied.fields.len());
        self.targets.insert(target, applied);
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
        let (written, owned) = self.send_apply(aim, body::yaml(object), &manager, &target).await?;
        if aim.is_whole() {
            let applied = Applied::of(text, &written.now, owned.as_deref(), &manager, target.part());
            self.applies().keep(target, applied);
        }
        Ok(written)
    }

    fn applies(&self) -> MutexGuard<'_, Memory> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_applied(&self, target: &Target, text: &str, object: &Value, manager: &FieldManager, entry: &Entry) -> bool {
        if self.applies().targets.get(target).is_some_and(|last| last.is(text, &entry.cached)) {
            return true;
        }
        let subresource = target.subresource.as_ref().map(Subresource::as_str);
        let Some(owned) = entry.owned.as_deref() else { return false };
        let is_so = changes_nothing(object, manager, subresource, owned, &entry.cached.value());
        if is_so {
            // As if this had been the one that made it so: what it owns is to stay its own, and is not to be looked for again.
            let applied = Applied::of(text, &entry.cached, Some(owned), manager, target.part());
            self.applies().keep(target.clone(), applied);
        }
        is_so
    }

    async fn send_apply(
        &self,
        aim: Aim<'_>,
        body: Vec<u8>,
        manager: &FieldManager,
        target: &Target,
    ) -> Result<(Written, Option<Arc<str>>), ApiError> {
        let what = aim.what;
        let url = url(aim.resource, aim.key, aim.subresource, manager);
        let polite = url.clone().query("force", "false").request(Method::PATCH, Some(APPLY), body.clone());
        let conflicts = match self.try_write(aim, polite).await {
            Ok(done) => return Ok(done),
            Err(Fault::Answer { code: 409, status, .. }) if !conflicts(&status).is_empty() => conflicts(&status),
            Err(fault) => return Err(self.explain(what, aim.resource, fault)),
        };
        let (body, before) = self.own_again(aim, &conflicts, manager, target, body)?;
        let forced = url.query("force", "true").request(Method::PATCH, Some(APPLY), body);
        let done = self.try_write(aim, forced).await.map_err(|fault| self.explain(what, aim.resource, fault))?;
        if let Some((other, fields)) = before {
            self.aside.say(&format!(
                "{what}: {other} had set {fields}, which {manager} applied before, and which is its own again; let one of the two plugins own it"
            ));
        }
        Ok(done)
    }

    /// The body that may be sent with force, and what it takes back from which other plugin.
    fn own_again(
        &self,
        aim: Aim<'_>,
        conflicts: &[Conflict],
        manager: &FieldManager,
        target: &Target,
        body: Vec<u8>,
    ) -> Result<(Vec<u8>, Option<Fields>), ApiError> {
        let last = self.applies().targets.get(target).cloned();
        // Of another incarnation nothing was applied.
        let is_same = |last: &Applied| match self.informers.covering(&self.actor, aim.resource, &aim.key.into()) {
            Some(informer) => match informer.get(aim.key) {
                Reading::Known(entry) => entry.cached.meta.uid == last.uid,
                _ => true,
            },
            None => true,
        };
        let last = last.filter(|last| !last.uid.is_empty()).filter(is_same);
        let is_own =
            |conflict: &&Conflict| conflict.is_update && last.as_ref().is_some_and(|last| last.has(&conflict.field));
        let others = || conflicts.iter().filter(move |conflict| conflict.is_of_another(manager));
        if let Some((owner, fields)) = first_of(others().filter(|conflict| !is_own(conflict))) {
            return Err(self.is_anothers(aim.what, &owner, &fields, manager));
        }
        let taken = first_of(others());
        match (taken, last) {
            // Only of the incarnation that it was applied to; the API server compares.
            (Some(taken), Some(last)) => Ok((body::of_incarnation(&body, &last.uid), Some(taken))),
            _ => Ok((body, None)),
        }
    }
}

/// A manager, and fields of its own.
type Fields = (String, String);

/// A field that an apply wants otherwise.
#[derive(Debug, PartialEq, Eq)]
struct Conflict {
    manager: String,
    field: String,
    /// Its manager set it otherwise than by an apply.
    is_update: bool,
}

impl Conflict {
    fn is_of_another(&self, manager: &FieldManager) -> bool {
        FieldManager::is_plugin(&self.manager) && self.manager != manager.as_str()
    }
}

/// Who owns which fields that the apply wants otherwise.
fn conflicts(status: &Status) -> Vec<Conflict> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes
        .filter(|cause| cause.reason == "FieldManagerConflict")
        .map(|cause| {
            // The manager is quoted as Go does, and so is a subresource: `conflict with "kubectl" using apps/v1 at ...`. Of who applied it, no version is told.
            let manager = cause.message.split('"').nth(1).unwrap_or_default().to_owned();
            let rest = cause.message.rsplit('"').next().unwrap_or_default();
            Conflict { manager, field: cause.field.clone(), is_update: rest.starts_with(" using ") }
        })
        .collect()
}

/// The first manager of these, and all of its fields.
fn first_of<'a>(conflicts: impl Iterator<Item = &'a Conflict>) -> Option<Fields> {
    let all: Vec<_> = conflicts.collect();
    let Conflict { manager, .. } = all.first()?;
    let fields: Vec<_> = all.iter().filter(|c| c.manager == *manager).map(|c| c.field.as_str()).collect();
    Some((manager.clone(), fields.join(", ")))
}

#[cfg(test)]
mod tests;
