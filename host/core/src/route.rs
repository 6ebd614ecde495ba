//! Which keys an event wakes. Routes are declared in the manifest, so routing an event costs no guest call.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use crate::{
    cache::{Cached, Change, KindInfo},
    manifest::{Controller, Mapping, Predicate},
    name::{Namespace, ObjectName},
    resource::{ObjectKey, Resource},
};

/// Where a change comes from, as one controller sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Its primary kind.
    Primary,
    /// A kind that it owns.
    Owned,
    /// A kind that it watches by a mapping.
    Watched(Mapping),
}

/// Each kind of the controller, with every way in which its changes matter; the primary first.
pub fn sources(controller: &Controller) -> Vec<(Resource, Vec<Source>)> {
    let of = |kind: &Resource| {
        let mut sources = Vec::new();
        if *kind == controller.primary {
            sources.push(Source::Primary);
        }
        if controller.owns.contains(kind) {
            sources.push(Source::Owned);
        }
        let watched = controller.watches.iter().filter(|w| w.resource == *kind);
        sources.extend(watched.map(|w| Source::Watched(w.map.clone())));
        sources
    };
    controller.kinds().into_iter().map(|kind| (kind.clone(), of(kind))).collect()
}

/// The router of one controller: stateless but for the index behind [`Mapping::Reference`].
#[derive(Debug)]
pub struct Router {
    group: String,
    predicates: BTreeSet<Predicate>,
    references: HashMap<String, ReferenceIndex>,
}

impl Router {
    /// For a controller.
    pub fn new(controller: &Controller) -> Self {
        let paths = controller.watches.iter().filter_map(|w| match &w.map {
            Mapping::Reference(path) => Some((path.clone(), ReferenceIndex::default())),
            _ => None,
        });
        Self {
            group: controller.primary.group().to_owned(),
            predicates: controller.predicates.clone(),
            references: paths.collect(),
        }
    }

    /// The keys of primaries that this change wakes. `primary` is what discovery says of the primary kind; while it is unknown there are no primaries to wake.
    pub fn route(&mut self, source: &Source, change: &Change, primary: Option<&KindInfo>) -> BTreeSet<ObjectKey> {
        let Change::Object { key, old, new, .. } = change else { return BTreeSet::new() };
        let (old, new) = (old.as_deref(), new.as_deref());
        let Some(primary) = primary else { return BTreeSet::new() };
        let mut woken = self.woken(source, key, old, new, primary);
        // A cluster-scoped object has no primary in a namespace, and one in a namespace none without, whatever it says: such a key would be of an object that cannot be.
        woken.retain(|key| key.namespace.is_some() == primary.namespaced);
        woken
    }

    fn woken(
        &mut self,
        source: &Source,
        key: &ObjectKey,
        old: Option<&Cached>,
        new: Option<&Cached>,
        primary: &KindInfo,
    ) -> BTreeSet<ObjectKey> {
        match source {
            Source::Primary => {
                for (path, index) in &mut self.references {
                    index.update(key, new, path);
                }
                if self.primary_wakes(old, new) { BTreeSet::from([key.clone()]) } else { BTreeSet::new() }
            }
            Source::Owned => [old, new]
                .into_iter()
                .flatten()
                .filter_map(|object| object.meta.controller())
                .filter(|owner| owner.group == self.group && owner.kind == primary.kind)
                .filter_map(|owner| ObjectName::parse(&owner.name).ok())
                .map(|name| ObjectKey { namespace: key.namespace.clone().filter(|_| primary.namespaced), name })
                .collect(),
            Source::Watched(Mapping::Label(label)) => named_by(key, [old, new], "labels", label),
            Source::Watched(Mapping::Annotation(annotation)) => named_by(key, [old, new], "annotations", annotation),
            Source::Watched(Mapping::Reference(path)) => {
                self.references.get(path).map(|index| index.referrers(key)).unwrap_or_default()
            }
        }
    }

    fn primary_wakes(&self, old: Option<&Cached>, new: Option<&Cached>) -> bool {
        let (Some(old), Some(new)) = (old, new) else { return true };
        let (old, new) = (&old.meta, &new.meta);
        // What a person asked for is not the controller's to filter.
        if old.requested() != new.requested() || old.is_paused() && !new.is_paused() {
            return true;
        }
        if old.uid != new.uid || old.deleting != new.deleting || self.predicates.is_empty() {
            return true;
        }
        self.predicates.iter().any(|predicate| match predicate {
            Predicate::Generation => old.generation != new.generation,
            Predicate::Labels => old.labels != new.labels,
            Predicate::Annotations => old.annotations != new.annotations,
        })
    }
}

/// The primaries that the label or annotation of either state names.
fn named_by(key: &ObjectKey, states: [Option<&Cached>; 2], map: &str, name: &str) -> BTreeSet<ObjectKey> {
    let named = |object: &Cached| {
        let value = object.value();
        let name = value.get("metadata")?.get(map)?.get(name)?.as_str()?;
        Some(ObjectKey { namespace: key.namespace.clone(), name: ObjectName::parse(name).ok()? })
    };
    states.into_iter().flatten().filter_map(named).collect()
}

/// From the name that a field of primaries holds to those primaries.
#[derive(Debug, Default)]
struct ReferenceIndex {
    referrers: HashMap<(Option<Namespace>, String), BTreeSet<ObjectName>>,
    values: HashMap<ObjectKey, BTreeSet<String>>,
}

impl ReferenceIndex {
    fn update(&mut self, key: &ObjectKey, new: Option<&Cached>, path: &str) {
        let values = new.map(|object| strings_at(&object.value(), path)).unwrap_or_default();
        for gone in self.values.remove(key).unwrap_or_default() {
            let place = (key.namespace.clone(), gone);
            if let Some(names) = self.referrers.get_mut(&place) {
                names.remove(&key.name);
                if names.is_empty() {
                    self.referrers.remove(&place);
                }
            }
        }
        for value in &values {
            self.referrers.entry((key.namespace.clone(), value.clone())).or_default().insert(key.name.clone());
        }
        if !values.is_empty() {
            self.values.insert(key.clone(), values);
        }
    }

    fn referrers(&self, watched: &ObjectKey) -> BTreeSet<ObjectKey> {
        let names = self.referrers.get(&(watched.namespace.clone(), watched.name.to_string()));
        let key = |name: &ObjectName| ObjectKey { namespace: watched.namespace.clone(), name: name.clone() };
        names.map(|names| names.iter().map(key).collect()).unwrap_or_default()
    }
}

/// The texts at a dotted path; a list on the way stands for each of its items.
fn strings_at(value: &Value, path: &str) -> BTreeSet<String> {
    let mut found = vec![value];
    for part in path.split('.') {
        found = found.into_iter().flat_map(|v| items(v.get(part))).collect();
    }
    found.into_iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn items(value: Option<&Value>) -> Vec<&Value> {
    match value {
        Some(Value::Array(list)) => list.iter().collect(),
        other => other.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn controller(extra: Value) -> Controller {
        let mut value = json!({"name": "c", "for": {"group": "g.example.com", "version": "v1", "resource": "things"}});
        value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    fn object(value: Value) -> Option<Arc<Cached>> {
        Some(Arc::new(Cached::of(value).unwrap().1))
    }

    fn change(name: &str, old: Option<Arc<Cached>>, new: Option<Arc<Cached>>) -> Change {
        Change::Object { key: ObjectKey::parse(Some("n"), name).unwrap(), old, new, initial: false }
    }

    fn woken(router: &mut Router, source: &Source, change: &Change) -> Vec<String> {
        let info = KindInfo { kind: "Thing".into(), namespaced: true };
        router.route(source, change, Some(&info)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn predicates_hold_back_what_they_do_not_name() {
        let thing = |generation: i64, extra: Value| {
            let mut metadata = json!({"name": "a", "namespace": "n", "uid": "u", "generation": generation});
            metadata.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            object(json!({"metadata": metadata}))
        };
        let mut picky = Router::new(&controller(json!({"predicates": ["generation", "labels"]})));
        let mut wakes = |old, new| !woken(&mut picky, &Source::Primary, &change("a", old, new)).is_empty();
        assert!(wakes(None, thing(1, json!({}))));
        assert!(wakes(thing(1, json!({})), None));
        assert!(wakes(thing(1, json!({})), thing(2, json!({}))));
        assert!(wakes(thing(1, json!({})), thing(1, json!({"labels": {"a": "b"}}))));
        assert!(wakes(thing(1, json!({})), thing(1, json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}))));
        assert!(wakes(thing(1, json!({})), thing(1, json!({"uid": "another incarnation"}))));
        assert!(!wakes(thing(1, json!({})), thing(1, json!({"annotations": {"a": "b"}, "resourceVersion": "2"}))));
        let said = |annotations: Value| thing(1, json!({"annotations": annotations}));
        let requested = |at: &str| said(json!({"operetta.dev/reconcile-requested-at": at}));
        assert!(wakes(said(json!({})), requested("1")));
        assert!(wakes(requested("1"), requested("2")));
        assert!(!wakes(requested("1"), requested("1")));
        assert!(!wakes(said(json!({})), said(json!({"operetta.dev/paused": "false"}))), "pausing is no reason to run");
        assert!(wakes(said(json!({"operetta.dev/paused": ""})), said(json!({}))));
        let mut all = Router::new(&controller(json!({})));
        assert_eq!(woken(&mut all, &Source::Primary, &change("a", thing(1, json!({})), thing(1, json!({})))), ["n/a"]);
    }

    #[test]
    fn an_owned_object_wakes_its_owner_before_and_after() {
        let owned = |owner: &str, kind: &str| {
            object(json!({"metadata": {"name": "p", "namespace": "n", "ownerReferences": [
                {"apiVersion": "g.example.com/v1", "kind": kind, "name": owner, "uid": "1", "controller": true}]}}))
        };
        let mut router = Router::new(&controller(json!({})));
        let mut wake = |old, new| woken(&mut router, &Source::Owned, &change("p", old, new));
        assert_eq!(wake(None, owned("a", "Thing")), ["n/a"]);
        assert_eq!(wake(owned("a", "Thing"), None), ["n/a"]);
        assert_eq!(wake(owned("a", "Thing"), owned("b", "Thing")), ["n/a", "n/b"]);
        assert!(wake(None, owned("a", "Another")).is_empty());
        assert!(wake(None, object(json!({"metadata": {"name": "p"}}))).is_empty());
    }

    #[test]
    fn no_key_is_woken_that_the_primary_kind_cannot_have() {
        let says = json!({"labels": {"k": "a"}, "ownerReferences": [
            {"apiVersion": "g.example.com/v1", "kind": "Thing", "name": "a", "uid": "1", "controller": true}]});
        let of = |namespace: Option<&str>| {
            let mut metadata = says.clone();
            metadata
                .as_object_mut()
                .unwrap()
                .extend([("name".into(), "x".into()), ("namespace".into(), namespace.into())]);
            let key = ObjectKey::parse(namespace, "x").unwrap();
            Change::Object { key, old: None, new: object(json!({"metadata": metadata})), initial: false }
        };
        let mut router = Router::new(&controller(json!({})));
        let mut wake = |source: &Source, change: &Change, namespaced: bool| {
            let info = KindInfo { kind: "Thing".into(), namespaced };
            router.route(source, change, Some(&info)).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let label = Source::Watched(Mapping::Label("k".into()));
        for source in [&Source::Owned, &label] {
            assert_eq!(wake(source, &of(Some("n")), true), ["n/a"]);
            assert!(
                wake(source, &of(None), true).is_empty(),
                "{source:?}: a key without namespace of a kind in namespaces"
            );
            assert_eq!(wake(source, &of(None), false), ["a"]);
        }
        assert_eq!(wake(&Source::Owned, &of(Some("n")), false), ["a"], "an owner may be cluster-scoped");
        assert!(wake(&label, &of(Some("n")), false).is_empty(), "a mapping stays in its namespace");
    }

    #[test]
    fn a_reference_wakes_who_refers_now() {
        let mut router = Router::new(&controller(json!({"watches": [
            {"resource": {"group": "", "version": "v1", "resource": "secrets"}, "map": {"reference": "spec.refs.name"}}]})));
        let watched = Source::Watched(Mapping::Reference("spec.refs.name".into()));
        let thing = |name: &str, refs: Value| {
            object(json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"refs": refs}}))
        };
        let secret = change("s", None, object(json!({"metadata": {"name": "s", "namespace": "n"}})));
        assert!(woken(&mut router, &watched, &secret).is_empty());
        woken(&mut router, &Source::Primary, &change("a", None, thing("a", json!([{"name": "s"}, {"name": "t"}]))));
        woken(&mut router, &Source::Primary, &change("b", None, thing("b", json!({"name": "s"}))));
        assert_eq!(woken(&mut router, &watched, &secret), ["n/a", "n/b"]);
        woken(&mut router, &Source::Primary, &change("a", None, thing("a", json!([{"name": "t"}]))));
        woken(&mut router, &Source::Primary, &change("b", None, None));
        assert!(woken(&mut router, &watched, &secret).is_empty());
    }

    #[test]
    fn a_label_or_annotation_names_the_primary() {
        let mut router = Router::new(&controller(json!({})));
        let labelled =
            |name: &str| object(json!({"metadata": {"name": "x", "labels": {"k": name}, "annotations": {"k": "ann"}}}));
        let label = Source::Watched(Mapping::Label("k".into()));
        assert_eq!(woken(&mut router, &label, &change("x", labelled("a"), labelled("b"))), ["n/a", "n/b"]);
        assert_eq!(
            woken(&mut router, &Source::Watched(Mapping::Annotation("k".into())), &change("x", None, labelled("a"))),
            ["n/ann"]
        );
        assert!(woken(&mut router, &label, &change("x", None, labelled("../b"))).is_empty());
    }
}
