//! Typed reads and writes of one kind, in the manner of `kube::Api`.
//!
//! Writes are server-side applies and patches where possible: [`Api::replace`] of a typed object drops every field that the type does not know.

use crate::{
    error::Error,
    host::{Handle, Host, ObjectKey, Options, Patch, Resource},
    kind::Kind,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use std::marker::PhantomData;

/// Which objects of a list, and from where.
#[derive(Clone, Debug, Default)]
pub struct ListParams {
    options: Options,
}

impl ListParams {
    /// Only objects that match a label selector, such as `app=web,tier!=db`.
    pub fn labels(self, selector: &str) -> Self {
        self.with("label-selector", selector)
    }

    /// Only objects that match a field selector, such as `metadata.name=web`.
    pub fn fields(self, selector: &str) -> Self {
        self.with("field-selector", selector)
    }

    /// Ask the API server, never the host's cache.
    pub fn live(self) -> Self {
        self.with("freshness", "live")
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.options.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// How to delete.
#[derive(Clone, Debug, Default)]
pub struct DeleteParams {
    options: Options,
}

impl DeleteParams {
    /// Only if the object still has this uid.
    pub fn uid(mut self, uid: &str) -> Self {
        self.options.push(("uid".to_owned(), uid.to_owned()));
        self
    }

    /// Only if the object still has this resource version.
    pub fn resource_version(mut self, version: &str) -> Self {
        self.options.push(("resource-version".to_owned(), version.to_owned()));
        self
    }

    /// What happens to what it owns: `background` (the default), `foreground` or `orphan`.
    pub fn propagation(mut self, policy: &str) -> Self {
        self.options.push(("propagation".to_owned(), policy.to_owned()));
        self
    }

    /// How long it may take to stop.
    pub fn grace_period_seconds(mut self, seconds: u32) -> Self {
        self.options.push(("grace-period-seconds".to_owned(), seconds.to_string()));
        self
    }
}

/// A JSON patch (RFC 6902) in the making.
#[derive(Clone, Debug, Default)]
pub struct JsonPatch {
    operations: Vec<Value>,
}

impl JsonPatch {
    /// Fails the whole patch (`invalid`) unless the value at `path` is this. Null passes where nothing is.
    pub fn test(self, path: &str, value: impl Into<Value>) -> Self {
        self.with(json!({"op": "test", "path": path, "value": value.into()}))
    }

    /// Sets a field or inserts into a list.
    pub fn add(self, path: &str, value: impl Into<Value>) -> Self {
        self.with(json!({"op": "add", "path": path, "value": value.into()}))
    }

    /// Changes what is there.
    pub fn replace(self, path: &str, value: impl Into<Value>) -> Self {
        self.with(json!({"op": "replace", "path": path, "value": value.into()}))
    }

    /// Removes what is there.
    pub fn remove(self, path: &str) -> Self {
        self.with(json!({"op": "remove", "path": path}))
    }

    fn with(mut self, operation: Value) -> Self {
        self.operations.push(operation);
        self
    }
}

/// Reads and writes objects of one kind in one namespace.
pub struct Api<K> {
    host: Handle,
    resource: Resource,
    /// `apiVersion` and `kind`, where the kind is known at compile time.
    type_meta: Option<(String, String)>,
    namespace: Option<String>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> Api<K> {
    pub(crate) fn typed(host: Handle, namespace: Option<String>) -> Self {
        let type_meta = Some((K::api_version(&()).into_owned(), K::kind(&()).into_owned()));
        Self { host, resource: K::resource(), type_meta, namespace, kind: PhantomData }
    }
}

impl Api<Value> {
    pub(crate) fn dynamic(host: Handle, resource: Resource, namespace: Option<String>) -> Self {
        Self { host, resource, type_meta: None, namespace, kind: PhantomData }
    }
}

impl<K> Api<K> {
    /// The same objects, read as a type that holds only the fields that matter: a component with the whole of `Pod` in it is
    /// half as large again, and each object takes longer to parse.
    pub fn view<V: DeserializeOwned>(self) -> Api<V> {
        let Self { host, resource, type_meta, namespace, .. } = self;
        Api { host, resource, type_meta, namespace, kind: PhantomData }
    }
}

impl<K: DeserializeOwned> Api<K> {
    /// The object of this name.
    pub async fn get(&self, name: &str) -> Result<K, Error> {
        self.read(name, Options::new()).await
    }

    /// The object of this name, asked from the API server and never from the host's cache.
    pub async fn get_live(&self, name: &str) -> Result<K, Error> {
        self.read(name, vec![("freshness".to_owned(), "live".to_owned())]).await
    }

    /// The object of this name, or none.
    pub async fn get_opt(&self, name: &str) -> Result<Option<K>, Error> {
        match self.get(name).await {
            Err(Error::NotFound(_)) => Ok(None),
            other => other.map(Some),
        }
    }

    /// All objects that fit, in no particular order, however many pages they take.
    pub async fn list(&self, params: &ListParams) -> Result<Vec<K>, Error> {
        let mut objects = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let mut options = params.options.clone();
            if let Some(namespace) = &self.namespace {
                options.push(("namespace".to_owned(), namespace.clone()));
            }
            if let Some(token) = next {
                options.push(("continue".to_owned(), token));
            }
            let page = self.host.list(&self.resource, options).await?;
            for item in &page.items {
                objects.push(self.decode(item)?);
            }
            next = page.next;
            if next.is_none() {
                return Ok(objects);
            }
        }
    }

    /// Creates an object. Not idempotent: after [`Error::Unavailable`] or [`Error::Timeout`] read before trying again.
    pub async fn create(&self, object: &impl Serialize) -> Result<K, Error> {
        let object = self.complete(object, None)?;
        let answer = self.host.create(&self.resource, self.namespace.as_deref(), object).await?;
        self.decode(&answer)
    }

    /// Server-side apply: the plugin owns the fields that `object` names, and those it named before and no longer names go. Writes nothing where nothing differs.
    pub async fn apply(&self, name: &str, object: &impl Serialize) -> Result<K, Error> {
        let object = self.complete(object, Some(name))?;
        self.patch(name, None, Patch::Apply(object)).await
    }

    /// Server-side apply of the status subresource; `status` is what stands below `status:`. Writes nothing where nothing differs.
    pub async fn apply_status(&self, name: &str, status: &impl Serialize) -> Result<K, Error> {
        let object = self.complete(&json!({"status": encode(status)?}), Some(name))?;
        self.patch(name, Some("status"), Patch::Apply(object)).await
    }

    /// A merge patch.
    pub async fn merge(&self, name: &str, patch: &impl Serialize) -> Result<K, Error> {
        self.patch(name, None, Patch::Merge(encode(patch)?.to_string())).await
    }

    /// A merge patch of the status subresource; `status` is what stands below `status:`.
    pub async fn merge_status(&self, name: &str, status: &impl Serialize) -> Result<K, Error> {
        let patch = json!({"status": encode(status)?}).to_string();
        self.patch(name, Some("status"), Patch::Merge(patch)).await
    }

    /// A JSON patch; its tests are checked by the API server.
    pub async fn json_patch(&self, name: &str, patch: JsonPatch) -> Result<K, Error> {
        self.patch(name, None, Patch::Json(Value::Array(patch.operations).to_string())).await
    }

    /// Replaces an object, which must carry its `resourceVersion`. Fields that it lacks go: prefer [`Api::apply`].
    pub async fn replace(&self, name: &str, object: &impl Serialize) -> Result<K, Error> {
        let object = self.complete(object, Some(name))?;
        let answer = self.host.replace(&self.resource, &self.key(name), None, object).await?;
        self.decode(&answer)
    }

    /// Deletes an object.
    pub async fn delete(&self, name: &str, params: DeleteParams) -> Result<(), Error> {
        self.host.delete(&self.resource, &self.key(name), params.options).await
    }

    async fn read(&self, name: &str, options: Options) -> Result<K, Error> {
        let answer = self.host.get(&self.resource, &self.key(name), options).await?;
        self.decode(&answer)
    }

    async fn patch(&self, name: &str, subresource: Option<&str>, patch: Patch) -> Result<K, Error> {
        let answer = self.host.patch(&self.resource, &self.key(name), subresource, patch).await?;
        self.decode(&answer)
    }

    fn key(&self, name: &str) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone(), name: name.to_owned() }
    }

    fn decode(&self, json: &str) -> Result<K, Error> {
        serde_json::from_str(json)
            .map_err(|error| Error::Malformed(format!("an object of {} does not fit its type: {error}", self.resource)))
    }

    /// The object with `apiVersion`, `kind`, name and namespace filled in where they are known.
    fn complete(&self, object: &impl Serialize, name: Option<&str>) -> Result<String, Error> {
        let Value::Object(mut object) = encode(object)? else {
            return Err(Error::Malformed(format!("an object of {} must be a JSON object", self.resource)));
        };
        if let Some((api_version, kind)) = &self.type_meta {
            object.insert("apiVersion".to_owned(), Value::String(api_version.clone()));
            object.insert("kind".to_owned(), Value::String(kind.clone()));
        }
        if let Value::Object(metadata) = object.entry("metadata").or_insert_with(|| Value::Object(Map::new())) {
            if let Some(name) = name {
                metadata.insert("name".to_owned(), Value::String(name.to_owned()));
            }
            if let Some(namespace) = &self.namespace {
                metadata.insert("namespace".to_owned(), Value::String(namespace.clone()));
            }
        }
        Ok(Value::Object(object).to_string())
    }
}

fn encode(value: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(value).map_err(|error| Error::Malformed(format!("cannot be written as JSON: {error}")))
}
