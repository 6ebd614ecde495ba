//! The custom resources of the plugins, as whoever applies them sees them: JSON over the wire, without the plugins' Rust types.

use std::ops::Deref;

use anyhow::{Context as _, ensure};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::{Value, json};

/// Under which name tests and demo apply objects; as kubectl does, they are a field manager of their own.
pub const MANAGER: &str = "operetta-tests";

/// The objects of a kind in a namespace.
#[derive(Debug, Clone)]
pub struct Objects {
    api: Api<DynamicObject>,
    api_version: String,
    kind: &'static str,
}

impl Deref for Objects {
    type Target = Api<DynamicObject>;

    fn deref(&self) -> &Self::Target {
        &self.api
    }
}

impl Objects {
    /// A kind by its names.
    pub fn new(client: &Client, namespace: &str, api_version: &str, kind: &'static str, plural: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        let api = Api::namespaced_with(client.clone(), namespace, &resource);
        Self { api, api_version: api_version.to_owned(), kind }
    }

    /// Applies an object with this spec, as `kubectl apply` does.
    ///
    /// # Errors
    /// The API server's.
    pub async fn apply(&self, name: &str, spec: &Value) -> kube::Result<DynamicObject> {
        let (api_version, kind) = (&self.api_version, self.kind);
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec});
        self.api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(object)).await
    }

    /// Changes fields of an object with a merge patch, as `kubectl patch` does.
    ///
    /// # Errors
    /// The API server's.
    pub async fn merge(&self, name: &str, patch: &Value) -> kube::Result<DynamicObject> {
        self.api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
    }

    /// Asks for an object's deletion.
    ///
    /// # Errors
    /// The API server's.
    pub async fn remove(&self, name: &str) -> kube::Result<()> {
        self.api.delete(name, &DeleteParams::background()).await.map(drop)
    }
}

/// `Pet` of the plugin petstore.
pub fn pets(client: &Client, namespace: &str) -> Objects {
    Objects::new(client, namespace, "petstore.example.com/v1alpha1", "Pet", "pets")
}

/// `ImmortalContainer` of the plugin immortal-container.
pub fn immortals(client: &Client, namespace: &str) -> Objects {
    let api_version = "immortalcontainer.flugel.it/v1alpha1";
    Objects::new(client, namespace, api_version, "ImmortalContainer", "immortalcontainers")
}

/// `Memcached` of the plugin memcached.
pub fn memcacheds(client: &Client, namespace: &str) -> Objects {
    Objects::new(client, namespace, "cache.example.com/v1alpha1", "Memcached", "memcacheds")
}

/// `DemoVolume` of the plugin demo-volume.
pub fn volumes(client: &Client, namespace: &str) -> Objects {
    Objects::new(client, namespace, "demo.operetta.dev/v1", "DemoVolume", "demovolumes")
}

/// `PostgresWriter` of the plugin postgres-writer.
pub fn writers(client: &Client, namespace: &str) -> Objects {
    Objects::new(client, namespace, "demo.yash.com/v1", "PostgresWriter", "postgreswriters")
}

/// `Mischief` of the fixture hostile.
pub fn mischiefs(client: &Client, namespace: &str) -> Objects {
    Objects::new(client, namespace, "hostile.example.com/v1", "Mischief", "mischiefs")
}

/// A pet.
pub fn pet(name: &str, kind: &str) -> Value {
    json!({"name": name, "type": kind, "birthday": "2020-02-29T12:00:00Z"})
}

/// A `Mischief` that does this.
pub fn act(act: &str) -> Value {
    json!({"act": act})
}

/// A field's text by a JSON pointer below the object; empty where there is none.
pub fn text<'a>(object: &'a DynamicObject, pointer: &str) -> &'a str {
    object.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A condition of the status.
pub fn condition<'a>(object: &'a DynamicObject, kind: &str) -> Option<&'a Value> {
    let conditions = object.data.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| condition.get("type").and_then(Value::as_str) == Some(kind))
}

/// A condition as `STATUS/REASON`, or `none`.
pub fn state(object: &DynamicObject, kind: &str) -> String {
    let word = |condition: &Value, field: &str| condition.get(field).and_then(Value::as_str).unwrap_or("?").to_owned();
    condition(object, kind).map_or_else(
        || "none".to_owned(),
        |condition| format!("{}/{}", word(condition, "status"), word(condition, "reason")),
    )
}

/// The condition `Ready` of an object as [`state`] shows it, and its message.
///
/// # Errors
/// The API server's; and while the condition speaks of an earlier generation.
pub async fn ready(objects: &Objects, name: &str) -> anyhow::Result<(String, String)> {
    let object = objects.get(name).await?;
    let ready = condition(&object, "Ready").context("it has no condition Ready")?;
    let observed = ready.get("observedGeneration").and_then(Value::as_i64);
    ensure!(observed == object.metadata.generation, "it speaks of generation {observed:?}");
    let message = ready.get("message").and_then(Value::as_str).unwrap_or_default();
    Ok((state(&object, "Ready"), message.to_owned()))
}
