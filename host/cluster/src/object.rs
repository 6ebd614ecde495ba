//! Objects as the API server sends them, taken apart for the cache.
//!
//! **Decoding never fails**: an object that cannot be kept is an error value of its own and no end of a watch.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, DynamicResourceScope};
use operetta_core::{
    annotation::{PAUSED, RECONCILE_REQUESTED},
    cache::{Cached, Meta},
    name::{FieldManager, NameError},
    resource::ObjectKey,
};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json, value::RawValue};

/// Bytes of the longest name that an object can have.
const LONGEST_NAME: usize = 253;
/// Bytes of labels and annotations that are kept of an object for which the caches have no room.
const OUTLINE: usize = 8 << 10;

/// Whether it may be the name of an object; longer texts name none.
fn is_name(text: &str) -> bool {
    text.len() <= LONGEST_NAME
}

/// What is kept of an object.
#[derive(Debug, Clone)]
pub struct Entry {
    /// As plugins see it.
    pub cached: Arc<Cached>,
    /// The managed fields of our own managers, as a JSON array; none where they own nothing.
    pub owned: Option<Arc<str>>,
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

    /// Bytes of its texts.
    pub fn size(&self) -> usize {
        self.cached.json.len().saturating_add(self.owned.as_ref().map_or(0, |owned| owned.len()))
    }

    /// Of the object nothing but that by which changes are told, and no more of it than some KiB: it is charged to nobody.
    pub fn outline(&self) -> Self {
        let object: Value = serde_json::from_str(&self.cached.json).unwrap_or_default();
        let metadata = object.get("metadata");
        let text = |object: Option<&Value>, name: &str| {
            let text = object.and_then(|object| object.get(name)).and_then(Value::as_str);
            text.filter(|text| is_name(text)).map(str::to_owned)
        };
        let meta = &self.cached.meta;
        let owner = meta.controller().filter(|o| [&o.group, &o.kind, &o.name, &o.uid].into_iter().all(|t| is_name(t)));
        let mut room = OUTLINE;
        let mut fits = |key: &str, value: &str| {
            let left = room.checked_sub(key.len().saturating_add(value.len())).filter(|_| is_name(value));
            room = left.unwrap_or(room);
            left.is_some()
        };
        let told = meta.told.iter().filter_map(|(key, value)| {
            // Whether a person paused it, and asks for it, the host has to see in any case.
            let is_asked_for = [PAUSED, RECONCILE_REQUESTED].contains(&key.as_str());
            let cut = if is_asked_for { value.floor_char_boundary(LONGEST_NAME) } else { value.len() };
            let value = value.get(..cut).unwrap_or_default();
            (fits(key, value) || is_asked_for).then(|| (key.clone(), value.to_owned()))
        });
        let told = told.collect();
        let mut kept = |name: &str| -> Map<String, Value> {
            let all = metadata.and_then(|metadata| metadata.get(name)).and_then(Value::as_object);
            let all = all.into_iter().flatten();
            let kept = all.filter(|(key, value)| value.as_str().is_some_and(|value| fits(key, value)));
            kept.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let (labels, annotations) = (kept("labels"), kept("annotations"));
        let outline = json!({
            "apiVersion": text(Some(&object), "apiVersion"), "kind": text(Some(&object), "kind"),
            "metadata": {
                "name": text(metadata, "name"), "namespace": text(metadata, "namespace"),
                "labels": labels, "annotations": annotations,
            },
        });
        let meta = Meta {
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            generation: meta.generation,
            deleting: meta.deleting,
            labels: meta.labels,
            annotations: meta.annotations,
            told,
            owners: owner.cloned().into_iter().collect(),
            // Of those of the past nobody asks.
            finalizers: Box::default(),
        };
        Self { cached: Arc::new(Cached { json: outline.to_string().into(), meta }), owned: None }
    }

    /// The same of its text.
    ///
    /// # Errors
    /// The object has no usable name, or its text is too deep.
    pub fn of_text(object: &RawValue, api_version: &str, kind: &str) -> Result<(ObjectKey, Self), Unreadable> {
        let value = serde_json::from_str(object.get())
            .map_err(|why| Unreadable::Text { name: Called::of(object).name.unwrap_or_default(), why })?;
        Ok(Self::of(value, api_version, kind)?)
    }
}

/// Of all managed fields those that plugins own by server-side apply.
fn own_fields(entries: &[Value]) -> Option<Arc<str>> {
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

/// An object on its way from kube's watcher: its text, and the little metadata that the watcher looks at.
#[derive(Debug, Clone)]
pub struct Watched {
    /// The whole object. Of a long list only one at a time is taken apart, which takes many times the room of its text. (In an event its type has to come first, as API servers write it.)
    pub object: Box<RawValue>,
    meta: ObjectMeta,
}

impl<'de> Deserialize<'de> for Watched {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Box::<RawValue>::deserialize(deserializer)?;
        let Called { name, namespace, resource_version } = Called::of(&object);
        Ok(Self { object, meta: ObjectMeta { name, namespace, resource_version, ..ObjectMeta::default() } })
    }
}

impl Watched {
    /// Of an object whose text cannot be read all that is known of it.
    ///
    /// # Errors
    /// Not even its name is.
    pub fn unreadable(&self) -> Result<(ObjectKey, Entry), NameError> {
        let ObjectMeta { name, namespace, resource_version, .. } = &self.meta;
        let metadata = json!({"name": name, "namespace": namespace, "resourceVersion": resource_version});
        Entry::of(json!({"metadata": metadata}), "", "")
    }

    /// All of it; null where it is too deep.
    pub fn value(&self) -> Value {
        serde_json::from_str(self.object.get()).unwrap_or_default()
    }
}

/// How an object is called.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Called {
    name: Option<String>,
    namespace: Option<String>,
    resource_version: Option<String>,
}

impl Called {
    /// Nothing, where the text says nothing of it.
    fn of(object: &RawValue) -> Self {
        #[derive(Deserialize)]
        struct Object {
            metadata: Called,
        }
        serde_json::from_str(object.get()).map_or_else(|_| Self::default(), |Object { metadata }| metadata)
    }
}

/// A page of a list.
#[derive(Debug, Deserialize)]
pub struct List {
    /// Of the page.
    #[serde(default)]
    pub metadata: ListMetadata,
    /// The objects; as with [`Watched`], one at a time is taken apart.
    #[serde(default)]
    pub items: Option<Vec<Box<RawValue>>>,
}

/// What a page says of its list.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMetadata {
    /// For the next page; empty on the last.
    #[serde(rename = "continue")]
    pub continue_token: String,
    /// Of the collection.
    pub resource_version: String,
}

/// Why an object cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It has no usable name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Its text, such as one that is nested too deep.
    #[error("the object {name}: {why}")]
    Text {
        /// As the text says.
        name: String,
        /// What is wrong with it.
        why: serde_json::Error,
    },
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
