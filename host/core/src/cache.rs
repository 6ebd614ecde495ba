//! What the host keeps of an object, and how a change of it is told.
//!
//! An object is held as its JSON text, with the few metadata fields that routing and bounds need beside it, so that a cache costs little more than the text.

pub mod changes;

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use async_trait::async_trait;
use serde_json::Value;

use self::changes::Changes;
use crate::{
    annotation::{PAUSED, PREFIX, RECONCILE_REQUESTED},
    name::{Actor, NameError, Namespace, ObjectName},
    port::ApiError,
    resource::{ObjectKey, Resource},
};

/// An object in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// Its JSON, without managed fields.
    pub json: Arc<str>,
    /// What routing and bounds need.
    pub meta: Meta,
}

/// The metadata that routing and bounds need.
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
    /// What people say to the host on it (see [`crate::annotation`]): keys and values.
    pub told: Box<[(String, String)]>,
    /// Its owners.
    pub owners: Box<[Owner]>,
    /// What must be done before it may go.
    pub finalizers: Box<[String]>,
}

/// An owner reference.
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
    /// Whether it controls the object.
    pub controller: bool,
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
        let text = |field| in_metadata(&object, field).and_then(Value::as_str).unwrap_or_default();
        let key = ObjectKey::parse(Some(text("namespace")).filter(|n| !n.is_empty()), text("name"))?;
        Ok((key, Self { json: object.to_string().into(), meta: Meta::of(&object) }))
    }

    /// From the text of an object, whatever it may be called; of what is no object, nothing but the text is known.
    pub fn read(json: Arc<str>) -> Self {
        let object: Value = serde_json::from_str(&json).unwrap_or_default();
        Self { meta: Meta::of(&object), json }
    }

    /// Parses the text again, for what routing asks seldom.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.json).unwrap_or_default()
    }
}

/// The object's text.
impl std::ops::Deref for Cached {
    type Target = str;
    fn deref(&self) -> &str {
        &self.json
    }
}

impl Meta {
    fn of(object: &Value) -> Self {
        let field = |name| in_metadata(object, name);
        Self {
            uid: text_of(field("uid")),
            resource_version: text_of(field("resourceVersion")),
            generation: field("generation").and_then(Value::as_i64).unwrap_or_default(),
            deleting: field("deletionTimestamp").is_some_and(|t| !t.is_null()),
            labels: fingerprint(field("labels")),
            annotations: fingerprint(field("annotations")),
            told: told_in(field("annotations")),
            owners: owners_in(field("ownerReferences")),
            finalizers: finalizers_in(field("finalizers")),
        }
    }

    fn told(&self, annotation: &str) -> Option<&str> {
        self.told.iter().find(|(key, _)| key == annotation).map(|(_, value)| value.as_str())
    }

    /// Whether a person has paused it.
    pub fn is_paused(&self) -> bool {
        self.told(PAUSED).is_some()
    }

    /// When a person asked for a reconcile, in whatever words: others than before are a new wish.
    pub fn requested(&self) -> Option<&str> {
        self.told(RECONCILE_REQUESTED)
    }

    /// The owner that controls it.
    pub fn controller(&self) -> Option<&Owner> {
        self.owners.iter().find(|owner| owner.controller)
    }
}

/// Each event asks for many of them, for which JSON pointers are too slow.
fn in_metadata<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    object.get("metadata")?.get(field)
}

fn text_of(value: Option<&Value>) -> String {
    value.and_then(Value::as_str).unwrap_or_default().to_owned()
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

fn told_in(annotations: Option<&Value>) -> Box<[(String, String)]> {
    let told = annotations.and_then(Value::as_object).into_iter().flatten().filter(|(key, _)| key.starts_with(PREFIX));
    told.map(|(key, value)| (key.clone(), text_of(Some(value)))).collect()
}

/// The group in what owner references call `apiVersion`; empty for the core group.
pub(crate) fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn owners_in(references: Option<&Value>) -> Box<[Owner]> {
    let owner = |owner: &Value| {
        let text = |field: &str| text_of(owner.get(field));
        let api_version = owner.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        let group = group_of(api_version).to_owned();
        let controller = owner.get("controller").and_then(Value::as_bool) == Some(true);
        Owner { group, kind: text("kind"), name: text("name"), uid: text("uid"), controller }
    };
    references.and_then(Value::as_array).into_iter().flatten().map(owner).collect()
}

fn finalizers_in(finalizers: Option<&Value>) -> Box<[String]> {
    finalizers.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
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
    /// Who listens was so far behind that states were left out which named other objects than those that were told: anything may have to be looked at.
    Missed,
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
    pub changes: Changes,
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
        let owner = cached.meta.controller().unwrap();
        assert_eq!((owner.group.as_str(), owner.kind.as_str(), owner.name.as_str()), ("a.example.com", "Thing", "t"));
        assert_eq!(cached.meta.owners.len(), 2);
    }

    #[test]
    fn what_people_tell_the_host_is_known_of_each_object() {
        let of =
            |annotations: Value| Cached::of(json!({"metadata": {"name": "x", "annotations": annotations}})).unwrap().1;
        let told = of(
            json!({"operetta.dev/paused": "", "operetta.dev/reconcile-requested-at": "now", "operetta.device/a": "b"}),
        );
        assert_eq!((told.meta.told.len(), told.meta.is_paused(), told.meta.requested()), (2, true, Some("now")));
        let other = of(json!({"demo.operetta.dev/paused": ""}));
        assert_eq!((other.meta.told.len(), other.meta.is_paused(), other.meta.requested()), (0, false, None));
        // Presence counts, and the value does not.
        assert!(of(json!({"operetta.dev/paused": null})).meta.is_paused());
        // The same from the text, which may be none.
        assert_eq!(Cached::read(told.json.clone()), told);
        assert_eq!(&*Cached::read("<html>".into()), "<html>");
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
