//! Writes, each noted in the caches that will see it.

use http::{Method, Request};
use operetta_core::{
    cache::{KindInfo, Meta},
    name::{FieldManager, Namespace, Subresource},
    port::{ApiError, Caller, DeleteOptions, Propagation, Written},
    resource::{ObjectKey, Resource},
};
use serde_json::{Value, json};

use super::{PluginKubernetes, body, decode};
use crate::{
    informer::{Reading, View},
    object::{Entry, still_there},
    request::{Fault, Url},
};

const JSON: &str = "application/json";

/// A write under way. Dropped without an end, as when its reconcile is cancelled, it leaves the object uncertain to who wrote.
struct UnderWay<'a> {
    key: &'a ObjectKey,
    informers: Vec<View<'a>>,
    ended: bool,
}

impl<'a> UnderWay<'a> {
    fn begin(key: &'a ObjectKey, informers: Vec<View<'a>>) -> Self {
        for informer in &informers {
            informer.write_begins(key);
        }
        Self { key, informers, ended: false }
    }

    fn end(&mut self, each: impl Fn(&View<'_>)) {
        self.ended = true;
        for informer in &self.informers {
            each(informer);
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.end(|_| {});
            for informer in &self.informers {
                informer.write_ends(self.key, true);
            }
        }
    }
}

impl PluginKubernetes {
    pub(super) async fn create_object(
        &self,
        caller: &Caller,
        resource: &Resource,
        namespace: Option<&Namespace>,
        object: &str,
    ) -> Result<Written, ApiError> {
        let what = format!("create {resource}");
        let kind = self.kind(&what, resource, namespace).await?;
        let object = body::object(&what, object, resource, &kind, namespace, None)?;
        let url = Url::of(resource, namespace).query("fieldManager", caller.field_manager().as_str());
        let request = url.request(Method::POST, Some(JSON), object.to_string().into_bytes());
        let name = object.pointer("/metadata/name").and_then(Value::as_str);
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            // With a generated name there is nothing to note before the answer.
            let answer = self.ask(request).await.map_err(|fault| self.explain(&what, resource, fault))?;
            let (key, entry) = decode(&what, answer, resource, &kind)?;
            for informer in self.informers.seeing(&self.actor, resource, &key) {
                informer.write_answered(&key, entry.clone());
            }
            return Ok(Written { now: entry.cached, before: None, sent: true, made: true });
        };
        let key = ObjectKey::parse(namespace.map(Namespace::as_str), name)
            .map_err(|error| ApiError::Invalid(format!("{what}: {error}")))?;
        self.write(&what, resource, &kind, &key, request).await
    }

    pub(super) async fn replace_object(
        &self,
        caller: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        object: &str,
    ) -> Result<Written, ApiError> {
        let what = describe("replace", resource, key, subresource);
        let kind = self.kind(&what, resource, key.namespace.as_ref()).await?;
        let object = body::object(&what, object, resource, &kind, key.namespace.as_ref(), Some(key))?;
        let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        // To the API server, which reads a number, none at all is zero.
        if version.is_none_or(|version| version.trim_start_matches('0').is_empty()) {
            return Err(ApiError::Invalid(format!(
                "{what}: the object lacks metadata.resourceVersion, without which a replace would overwrite what others wrote; read it first"
            )));
        }
        let url = url(resource, key, subresource, &caller.field_manager());
        let request = url.request(Method::PUT, Some(JSON), object.to_string().into_bytes());
        self.write(&what, resource, &kind, key, request).await
    }

    pub(super) async fn merge(
        &self,
        caller: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        patch: &str,
    ) -> Result<Written, ApiError> {
        let what = describe("patch", resource, key, subresource);
        let kind = self.kind(&what, resource, key.namespace.as_ref()).await?;
        let patch = body::merge(&what, patch, resource, &kind, key)?;
        let url = url(resource, key, subresource, &caller.field_manager());
        let request = url.request(Method::PATCH, Some("application/merge-patch+json"), patch.to_string().into_bytes());
        self.write(&what, resource, &kind, key, request).await
    }

    pub(super) async fn json_patch(
        &self,
        caller: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        patch: &str,
    ) -> Result<Written, ApiError> {
        let what = describe("patch", resource, key, subresource);
        let kind = self.kind(&what, resource, key.namespace.as_ref()).await?;
        let patch = body::json_patch(&what, patch)?;
        let url = url(resource, key, subresource, &caller.field_manager());
        let request = url.request(Method::PATCH, Some("application/json-patch+json"), patch.to_string().into_bytes());
        self.write(&what, resource, &kind, key, request).await
    }

    /// Sends a write of one object and notes its answer. An object that its write ended (the last finalizer went) is answered, and from then on gone.
    pub(super) async fn write(
        &self,
        what: &str,
        resource: &Resource,
        kind: &KindInfo,
        key: &ObjectKey,
        request: Result<Request<Vec<u8>>, Fault>,
    ) -> Result<Written, ApiError> {
        self.try_write(resource, kind, key, request).await.map_err(|fault| self.explain(what, resource, fault))
    }

    pub(super) async fn try_write(
        &self,
        resource: &Resource,
        kind: &KindInfo,
        key: &ObjectKey,
        request: Result<Request<Vec<u8>>, Fault>,
    ) -> Result<Written, Fault> {
        let before = match self.informers.covering(&self.actor, resource, &key.into()).map(|i| i.get(key)) {
            Some(Reading::Known(entry)) => Some(entry.cached),
            _ => None,
        };
        let mut under_way = UnderWay::begin(key, self.informers.seeing(&self.actor, resource, key));
        let answer = self.ask_to_write(request).await.and_then(|(object, made)| {
            let there = still_there(&object);
            // A part such as `scale` answers as itself, with the version of the whole.
            let of_itself = object.get("kind").and_then(Value::as_str).is_some_and(|answered| answered != kind.kind);
            match Entry::of(object, &resource.api_version(), &kind.kind) {
                // An answer about anything else than the object that was written, such as from `pods/eviction`, says nothing of what the object is now.
                Ok((_, entry)) if of_itself || entry.cached.meta.uid.is_empty() => Ok((entry, None, false)),
                Ok((_, entry)) => Ok((entry, Some(there), made)),
                Err(error) => Err(Fault::Garbled(error.to_string())),
            }
        });
        match answer {
            Ok((entry, there, made)) => {
                under_way.end(|informer| match there {
                    Some(true) => informer.write_answered(key, entry.clone()),
                    Some(false) => informer.write_removed(key, entry.cached.meta.uid.clone()),
                    None => informer.write_ends(key, true),
                });
                Ok(Written { now: entry.cached, before: before.filter(|_| there.is_some()), sent: true, made })
            }
            Err(fault) => {
                under_way.end(|informer| informer.write_ends(key, fault.outcome_unknown()));
                Err(fault)
            }
        }
    }

    pub(super) async fn delete_object(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        options: &DeleteOptions,
    ) -> Result<Meta, ApiError> {
        let what = format!("delete {resource} {key}");
        self.kind(&what, resource, key.namespace.as_ref()).await?;
        let body = json!({
            "apiVersion": "v1", "kind": "DeleteOptions",
            "preconditions": {"uid": options.uid, "resourceVersion": options.resource_version},
            "gracePeriodSeconds": options.grace_period_seconds,
            "propagationPolicy": match options.propagation {
                Propagation::Background => "Background",
                Propagation::Foreground => "Foreground",
                Propagation::Orphan => "Orphan",
            },
        });
        let url = Url::of(resource, key.namespace.as_ref()).object(&key.name);
        let request = url.request(Method::DELETE, Some(JSON), body.to_string().into_bytes());
        let mut under_way = UnderWay::begin(key, self.informers.seeing(&self.actor, resource, key));
        match self.ask(request).await {
            Ok(answer) => {
                under_way.end(|informer| note_deletion(informer, key, &answer, resource));
                Ok(deleted(&answer))
            }
            Err(fault) => {
                under_way.end(|informer| informer.write_ends(key, fault.outcome_unknown()));
                Err(self.explain(&what, resource, fault))
            }
        }
    }
}

/// The API server answers a deletion with a Status that names the uid when the object is gone, or with the object as it was or still is.
fn note_deletion(informer: &View<'_>, key: &ObjectKey, answer: &Value, resource: &Resource) {
    let text = |pointer: &str| answer.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    if text("/kind") == "Status" {
        match text("/details/uid") {
            uid if uid.is_empty() => informer.write_ends(key, true),
            uid => informer.write_removed(key, uid),
        }
        return;
    }
    if answer.pointer("/metadata/deletionTimestamp").is_none_or(Value::is_null) || !still_there(answer) {
        informer.write_removed(key, text("/metadata/uid"));
        return;
    }
    match Entry::of(answer.clone(), &resource.api_version(), &text("/kind")) {
        Ok((_, entry)) => informer.write_answered(key, entry),
        Err(_) => informer.write_ends(key, true),
    }
}

/// What the same answer says of the object that it was.
fn deleted(answer: &Value) -> Meta {
    let text = |pointer: &str| answer.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    if text("/kind") == "Status" {
        return Meta { uid: text("/details/uid"), ..Meta::default() };
    }
    Meta { uid: text("/metadata/uid"), resource_version: text("/metadata/resourceVersion"), ..Meta::default() }
}

pub(super) fn describe(verb: &str, resource: &Resource, key: &ObjectKey, subresource: Option<&Subresource>) -> String {
    match subresource {
        Some(subresource) => format!("{verb} {subresource} of {resource} {key}"),
        None => format!("{verb} {resource} {key}"),
    }
}

pub(super) fn url(
    resource: &Resource,
    key: &ObjectKey,
    subresource: Option<&Subresource>,
    manager: &FieldManager,
) -> Url {
    Url::of(resource, key.namespace.as_ref())
        .object(&key.name)
        .subresource(subresource)
        .query("fieldManager", manager.as_str())
}
