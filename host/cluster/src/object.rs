//! Objects as the API server sends them, taken apart for the cache.
//!
//! **Decoding never fails**: an object that cannot be kept is an error value of its own and no end of a watch.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, DynamicResourceScope};
use operetta_core::{
    cache::Cached,
    name::{FieldManager, NameError},
    resource::ObjectKey,
};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// What is kept of an object.
#[derive(Debug, Clone)]
pub struct Entry {
    /// As plugins see it.
    pub cached: Arc<Cached>,
    /// The managed fields of our own managers, as a JSON array; none where they own nothing.
    pub owned: Option<Box<str>>,
}

impl Entry {
    /// Takes an object apart. Lists leave the kind of their items out, hence the argument.
    ///
    /// # Errors
    /// The object has no usable name.
    pub fn of(mut object: Value, api_version: &str, kind: &str) -> Result<(ObjectKey, Self), NameError> {
        if let Some(fields) = object.as_object_mut() {
            fields.entry("apiVersion").or_insert_with(|| api_version.into());
            fields.entry("kind").or_insert_with(|| kind.into());
        }
        let owned =
            object.pointer("/metadata/managedFields").and_then(Value::as_array).and_then(|entries| own_fields(entries));
        let (key, cached) = Cached::of(object)?;
        Ok((key, Self { cached: Arc::new(cached), owned }))
    }
}

/// Of all managed fields those that plugins own by server-side apply.
fn own_fields(entries: &[Value]) -> Option<Box<str>> {
    let text = |entry: &Value, field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let own: Vec<_> = entries
        .iter()
        .filter(|entry| FieldManager::is_plugin(&text(entry, "manager")) && text(entry, "operation") == "Apply")
        .collect();
    (!own.is_empty()).then(|| serde_json::to_string(&own).unwrap_or_default().into())
}

/// Whether an object that a delete or an update answered with is still there. It is not, once its deletion began and neither a finalizer nor a grace period holds it.
pub fn still_there(object: &Value) -> bool {
    let metadata = object.get("metadata");
    let field = |name: &str| metadata.and_then(|m| m.get(name)).filter(|v| !v.is_null());
    let held = field("finalizers").and_then(Value::as_array).is_some_and(|f| !f.is_empty());
    let grace = field("deletionGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|s| s > 0);
    field("deletionTimestamp").is_none() || held || grace
}

/// An object on its way from kube's watcher: its JSON, and the little metadata that the watcher looks at.
#[derive(Debug, Clone)]
pub struct Watched {
    /// The whole object.
    pub object: Value,
    meta: ObjectMeta,
}

impl<'de> Deserialize<'de> for Watched {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let meta = ObjectMeta {
            name: text("/metadata/name"),
            namespace: text("/metadata/namespace"),
            resource_version: text("/metadata/resourceVersion"),
            ..ObjectMeta::default()
        };
        Ok(Self { object, meta })
    }
}

impl kube::Resource for Watched {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(dt: &ApiResource) -> Cow<'_, str> {
        dt.kind.as_str().into()
    }
    fn group(dt: &ApiResource) -> Cow<'_, str> {
        dt.group.as_str().into()
    }
    fn version(dt: &ApiResource) -> Cow<'_, str> {
        dt.version.as_str().into()
    }
    fn plural(dt: &ApiResource) -> Cow<'_, str> {
        dt.plural.as_str().into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

#[cfg(test)]
mod tests;
