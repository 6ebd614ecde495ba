//! What the host keeps of an object, and how a change of it is told.
//!
//! An object is held as its JSON text, with the few metadata fields that routing needs beside it, so that a cache costs little more than the text.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use async_trait::async_trait;
use serde_json::Value;

use crate::{
    annotation::{PAUSED, RECONCILE_REQUESTED},
    name::{Actor, NameError, Namespace, ObjectName},
    port::ApiError,
    resource::{ObjectKey, Resource},
};

/// An object in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// Its JSON, without managed fields.
    pub json: Arc<str>,
    /// What routing needs.
    pub meta: Meta,
}

/// The metadata that routing needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meta {
    /// Which incarnation.
    pub uid: String,
    /// Which version.
    pub resource_version: String,
    /// Of the spec; 0 where the kind has none.
    pub generation: i64,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// Tells whether labels changed.
    pub labels: u64,
    /// Tells whether annotations changed.
    pub annotations: u64,
    /// Whether a person has paused it.
    pub paused: bool,
    /// Tells whether a person asked anew for a reconcile.
    pub requested: u64,
    /// The owner reference with `controller: true`.
    pub controller: Option<Owner>,
    /// What must be done before it may go.
    pub finalizers: Box<[String]>,
}

/// A controlling owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Its group, empty for the core group.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its name, in the same namespace (or cluster-scoped).
    pub name: String,
    /// Its incarnation.
    pub uid: String,
}

impl Cached {
    /// From an object as the API server sent it: takes `metadata.managedFields` out and keeps the rest as text.
    ///
    /// # Errors
    /// The object has no usable name.
    pub fn of(mut object: Value) -> Result<(ObjectKey, Self), NameError> {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let key =
            ObjectKey::parse(Some(text("/metadata/namespace")).filter(|n| !n.is_empty()), text("/metadata/name"))?;
        let annotation = |name: &str| object.pointer("/metadata/annotations").and_then(|all| all.get(name));
        let meta = Meta {
            uid: text("/metadata/uid").to_owned(),
            resource_version: text("/metadata/resourceVersion").to_owned(),
            generation: object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default(),
            deleting: object.pointer("/metadata/deletionTimestamp").is_some_and(|t| !t.is_null()),
            labels: fingerprint(object.pointer("/metadata/labels")),
            annotations: fingerprint(object.pointer("/metadata/annotations")),
            paused: annotation(PAUSED).is_some(),
            requested: fingerprint_of(annotation(RECONCILE_REQUESTED)),
            controller: controller_of(&object),
            finalizers: finalizers_of(&object),
        };
        Ok((key, Self { json: object.to_string().into(), meta }))
    }

    /// Parses the text again, for what routing asks seldom.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.json).unwrap_or_default()
    }
}

fn fingerprint(map: Option<&Value>) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Some(map) = map.and_then(Value::as_object) {
        // In the order of keys, since the server promises none.
        let sorted: BTreeMap<_, _> = map.iter().map(|(k, v)| (k, v.as_str().unwrap_or_default())).collect();
        sorted.hash(&mut hasher);
    }
    hasher.finish()
}

fn fingerprint_of(text: Option<&Value>) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.and_then(Value::as_str).hash(&mut hasher);
    hasher.finish()
}

fn controller_of(object: &Value) -> Option<Owner> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|o| o.get("controller").and_then(Value::as_bool) == Some(true))?;
    let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let api_version = text("apiVersion");
    let group = api_version.split_once('/').map_or("", |(group, _)| group).to_owned();
    Some(Owner { group, kind: text("kind"), name: text("name"), uid: text("uid") })
}

fn finalizers_of(object: &Value) -> Box<[String]> {
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    finalizers.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A change of one object, as an informer tells it.
#[derive(Debug, Clone)]
pub enum Change {
    /// An object came, changed or went.
    Object {
        /// Which.
        key: ObjectKey,
        /// Before; none when it is new to the cache.
        old: Option<Arc<Cached>>,
        /// After; none when it is gone.
        new: Option<Arc<Cached>>,
        /// Found by a list and not told by a watch: less urgent.
        initial: bool,
    },
    /// All objects that existed when the subscription began have been told. Comes once.
    Synced,
}

/// Where a plugin works: the namespaces, or everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All namespaces and cluster-scoped objects.
    All,
    /// These namespaces.
    Namespaces(std::collections::BTreeSet<Namespace>),
}

impl Scope {
    /// What lies in both.
    pub fn intersection(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::All, scope) | (scope, Self::All) => scope.clone(),
            (Self::Namespaces(a), Self::Namespaces(b)) => Self::Namespaces(a & b),
        }
    }

    /// All of a kind that lies within.
    pub fn extents(&self) -> Vec<Extent> {
        let of = |namespace| Extent { namespace, name: None };
        match self {
            Self::All => vec![of(None)],
            Self::Namespaces(set) => set.iter().cloned().map(Some).map(of).collect(),
        }
    }

    /// Whether an object of this namespace lies within.
    pub fn contains(&self, namespace: Option<&Namespace>) -> bool {
        match self {
            Self::All => true,
            Self::Namespaces(set) => namespace.is_some_and(|n| set.contains(n)),
        }
    }
}

/// How much of a kind one watch sees.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// Where; none is everywhere.
    pub namespace: Option<Namespace>,
    /// Only the object of this name (everywhere: the one of each namespace); none is all of them.
    pub name: Option<ObjectName>,
}

impl Extent {
    /// The extents that have all that this one has, itself among them; those of whole kinds first.
    pub fn wider(&self) -> impl Iterator<Item = Self> {
        let names = [None].into_iter().chain(self.name.clone().map(Some));
        names.flat_map(|name| {
            let namespaces = self.namespace.clone().map(Some).into_iter().chain([None]);
            namespaces.map(move |namespace| Self { namespace, name: name.clone() })
        })
    }
}

impl From<&ObjectKey> for Extent {
    fn from(key: &ObjectKey) -> Self {
        Self { namespace: key.namespace.clone(), name: Some(key.name.clone()) }
    }
}

/// As a sentence goes on after the kind: ` named x in namespace n`.
impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, " named {name}")?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => f.write_str(" in all namespaces"),
        }
    }
}

/// What discovery says of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindInfo {
    /// As owner references name it.
    pub kind: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

/// One subscription to the changes of a kind. Dropping it ends it; the informer behind it stops with its last subscription.
pub struct Subscription {
    /// What discovery says of the kind; none while the cluster does not know it.
    pub kind: tokio::sync::watch::Receiver<Option<KindInfo>>,
    /// First all that exists, then [`Change::Synced`], then what changes, in order. Ends when the subscription is revoked.
    pub changes: tokio::sync::mpsc::UnboundedReceiver<Change>,
    /// What keeps the informer running.
    pub guard: Box<dyn std::any::Any + Send + Sync>,
}

/// The shared watch caches.
#[async_trait]
pub trait Informers: Send + Sync {
    /// Subscribes a plugin, as its account, to the changes of what lies in these extents of a kind, which are to have nothing in common. Answers at once where the kind exists; a
    /// kind that does not exist yet is waited for in the background and counts as synced and empty until then, since a CRD may be installed after the plugin.
    ///
    /// # Errors
    /// `Forbidden` where the account may not list and watch one of them, naming what RBAC lacks; `Unavailable` where the API server cannot be asked.
    async fn subscribe(&self, actor: &Actor, resource: &Resource, extents: &[Extent])
    -> Result<Subscription, ApiError>;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn managed_fields_are_not_kept_and_the_controlling_owner_is() {
        let (key, cached) = Cached::of(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7", "managedFields": [{"manager": "x"}],
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "other", "uid": "1"},
                                    {"apiVersion": "a.example.com/v1", "kind": "Thing", "name": "t", "uid": "2", "controller": true}]}
        }))
        .unwrap();
        assert_eq!(key.to_string(), "n/p");
        assert!(!cached.json.contains("managedFields"));
        let owner = cached.meta.controller.unwrap();
        assert_eq!((owner.group.as_str(), owner.kind.as_str(), owner.name.as_str()), ("a.example.com", "Thing", "t"));
    }

    #[test]
    fn an_object_without_a_name_is_an_error_and_nothing_worse() {
        for object in [json!(null), json!([]), json!({"metadata": 1}), json!({"metadata": {"name": "a/b"}})] {
            assert!(Cached::of(object).is_err());
        }
    }

    #[test]
    fn a_scope_within_another_is_what_lies_in_both() {
        let some = |names: &[&str]| Scope::Namespaces(names.iter().map(|name| name.parse().unwrap()).collect());
        let (host, plugin) = (some(&["a", "b"]), some(&["b", "c"]));
        assert_eq!(host.intersection(&plugin), some(&["b"]));
        assert_eq!(host.intersection(&some(&["c"])), some(&[]));
        assert_eq!((host.intersection(&Scope::All), Scope::All.intersection(&host)), (host.clone(), host.clone()));
        assert_eq!(Scope::All.intersection(&Scope::All), Scope::All);
        let extents = |scope: &Scope| scope.extents().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(extents(&host), [" in namespace a", " in namespace b"]);
        assert_eq!(extents(&Scope::All), [" in all namespaces"]);
        assert_eq!(extents(&some(&[])), [""; 0]);
        let within = |scope: &Scope| ["a", "c"].map(|name| scope.contains(Some(&name.parse().unwrap())));
        assert_eq!((within(&host), host.contains(None)), ([true, false], false));
        assert_eq!((within(&Scope::All), Scope::All.contains(None)), ([true, true], true));
    }

    #[test]
    fn an_extent_lies_within_its_namespace_its_name_and_everything() {
        let wider = |namespace, name| {
            let key = ObjectKey::parse(namespace, name).unwrap();
            Extent::from(&key).wider().map(|extent| extent.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            wider(Some("n"), "x"),
            [" in namespace n", " in all namespaces", " named x in namespace n", " named x in all namespaces"]
        );
        assert_eq!(wider(None, "x"), [" in all namespaces", " named x in all namespaces"]);
        let all = Extent { namespace: Some(Namespace::parse("n").unwrap()), name: None };
        assert!(all.wider().all(|extent| extent.name.is_none()), "what is named lies within no part of it");
    }

    #[test]
    fn the_order_of_labels_means_nothing() {
        let of = |json: Value| Cached::of(json).unwrap().1.meta.labels;
        let a = of(json!({"metadata": {"name": "x", "labels": {"a": "1", "b": "2"}}}));
        assert_eq!(a, of(json!({"metadata": {"name": "x", "labels": {"b": "2", "a": "1"}}})));
        assert_ne!(a, of(json!({"metadata": {"name": "x", "labels": {"b": "2", "a": "2"}}})));
    }
}
