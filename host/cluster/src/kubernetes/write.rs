//! Writes, each noted in the caches that will see it.

use std::sync::Arc;

use http::{Method, Request};
use operetta_core::{
    cache::{Cached, KindInfo, Meta},
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
/// The parts to which the API server answers with the whole object.
const WHOLE: [&str; 5] = ["approval", "ephemeralcontainers", "finalize", "resize", "status"];

/// What a write is about.
#[derive(Clone, Copy)]
pub(super) struct Aim<'a> {
    pub what: &'a str,
    pub resource: &'a Resource,
    pub kind: &'a KindInfo,
    pub key: &'a ObjectKey,
    pub subresource: Option<&'a Subresource>,
}

/// What an answer to a write is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    /// The object that was written.
    Object,
    /// A part of it, with the version of the whole.
    Part,
    /// Who knows.
    Else,
}

impl Aim<'_> {
    /// Whether the answer is to be the whole object.
    pub(super) fn is_whole(&self) -> bool {
        self.subresource.is_none_or(|part| WHOLE.contains(&part.as_str()))
    }

    /// **Not all that the API server hands on is its own word**: behind `proxy` answers a pod, or whoever has it, and what is said there of an object must not reach the caches that others read.
    fn answered(&self, answer: &Value) -> About {
        let text = |pointer: &str| answer.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let is_this = text("/metadata/name") == self.key.name.as_str()
            && text("/metadata/namespace") == self.key.namespace.as_ref().map_or("", Namespace::as_str)
            && !text("/metadata/uid").is_empty();
        let said = (text("/apiVersion"), text("/kind"));
        if is_this && self.is_whole() && said == (self.resource.api_version().as_str(), self.kind.kind.as_str()) {
            About::Object
        } else if is_this && body::is_scale(self.subresource) && said == body::SCALE {
            About::Part
        } else {
            About::Else
        }
    }
}

/// How a write says what it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Replace,
    Merge,
    Json,
}

impl How {
    fn request(self, url: &Url, body: Vec<u8>) -> Result<Request<Vec<u8>>, Fault> {
        match self {
            Self::Replace => url.request(Method::PUT, Some(JSON), body),
            Self::Merge => url.request(Method::PATCH, Some("application/merge-patch+json"), body),
            Self::Json => url.request(Method::PATCH, Some("application/json-patch+json"), body),
        }
    }
}

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
        let object = body::object(&what, object, resource, &kind, namespace, None, None)?;
        let name = object.pointer("/metadata/name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = name.map(str::to_owned);
        let url = Url::of(resource, namespace).query("fieldManager", caller.field_manager().as_str());
        let request = url.request(Method::POST, Some(JSON), bytes(object));
        let Some(name) = name else {
            // With a generated name there is nothing to note before the answer.
            let answer = self.ask(request).await.map_err(|fault| self.explain(&what, resource, fault))?;
            let (key, entry) = decode(&what, answer, resource, &kind)?;
            if key.namespace.as_ref() == namespace {
                for informer in self.informers.seeing(&self.actor, resource, &key) {
                    informer.write_answered(&key, entry.clone());
                }
            }
            return Ok(Written { now: entry.cached, before: None, sent: true, made: true });
        };
        let key = ObjectKey::parse(namespace.map(Namespace::as_str), &name)
            .map_err(|error| ApiError::Invalid(format!("{what}: {error}")))?;
        self.write(Aim { what: &what, resource, kind: &kind, key: &key, subresource: None }, request).await
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
        let object = body::object(&what, object, resource, &kind, key.namespace.as_ref(), Some(key), subresource)?;
        let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        // To the API server, which reads a number, none at all is zero.
        if version.is_none_or(|version| version.trim_start_matches('0').is_empty()) {
            return Err(ApiError::Invalid(format!(
                "{what}: the object lacks metadata.resourceVersion, without which a replace would overwrite what others wrote; read it first"
            )));
        }
        let aim = Aim { what: &what, resource, kind: &kind, key, subresource };
        self.change(caller, aim, How::Replace, bytes(object)).await
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
        let patch = bytes(body::merge(&what, patch, resource, &kind, key, subresource)?);
        self.change(caller, Aim { what: &what, resource, kind: &kind, key, subresource }, How::Merge, patch).await
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
        let patch = body::json_patch(&what, patch)?.to_string().into_bytes();
        self.change(caller, Aim { what: &what, resource, kind: &kind, key, subresource }, How::Json, patch).await
    }

    async fn change(&self, caller: &Caller, aim: Aim<'_>, how: How, body: Vec<u8>) -> Result<Written, ApiError> {
        let manager = caller.field_manager();
        self.leave_to_others(&manager, aim, how, &body).await?;
        let url = url(aim.resource, aim.key, aim.subresource, &manager);
        self.write(aim, how.request(&url, body)).await
    }

    /// Sends a write of one object and notes its answer. An object that its write ended (the last finalizer went) is answered, and from then on gone.
    pub(super) async fn write(
        &self,
        aim: Aim<'_>,
        request: Result<Request<Vec<u8>>, Fault>,
    ) -> Result<Written, ApiError> {
        let done = self.try_write(aim, request).await;
        done.map(|(written, _)| written).map_err(|fault| self.explain(aim.what, aim.resource, fault))
    }

    /// Answers also what plugins own of the object by apply, as [`Entry::owned`].
    pub(super) async fn try_write(
        &self,
        aim: Aim<'_>,
        request: Result<Request<Vec<u8>>, Fault>,
    ) -> Result<(Written, Option<Arc<str>>), Fault> {
        let Aim { resource, kind, key, .. } = aim;
        let before = match self.informers.covering(&self.actor, resource, &key.into()).map(|i| i.get(key)) {
            Some(Reading::Known(entry)) => Some(entry.cached),
            _ => None,
        };
        let mut under_way = UnderWay::begin(key, self.informers.seeing(&self.actor, resource, key));
        let answer = self.ask_to_write(request).await.and_then(|(object, made)| {
            let (there, about) = (still_there(&object), aim.answered(&object));
            let (_, entry) = Entry::of(object, &resource.api_version(), &kind.kind)
                .map_err(|error| Fault::Garbled(error.to_string()))?;
            Ok(match about {
                About::Object => (entry, Some(there), made),
                // It says nothing of what the object is now.
                About::Part => (Entry { owned: None, ..entry }, None, false),
                // Nor of its version, by which changes are told whose they are.
                About::Else => {
                    let cached = Cached { json: Arc::clone(&entry.cached.json), meta: Meta::default() };
                    (Entry { cached: Arc::new(cached), owned: None }, None, false)
                }
            })
        });
        match answer {
            Ok((entry, there, made)) => {
                under_way.end(|informer| match there {
                    Some(true) => informer.write_answered(key, entry.clone()),
                    Some(false) => informer.write_removed(key, entry.cached.meta.uid.clone()),
                    None => informer.write_ends(key, true),
                });
                let before = before.filter(|_| there.is_some());
                Ok((Written { now: entry.cached, before, sent: true, made }, entry.owned))
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

/// What is sent. Of the tree, which takes some sixteen times as much, nothing is left while an answer is awaited.
pub(super) fn bytes(object: Value) -> Vec<u8> {
    object.to_string().into_bytes()
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
