//! Which keys an event wakes. Routes are declared in the manifest, so routing an event costs no guest call.
//!
//! It is the host's own time and memory that is spent here, and no plugin's budget: so an object is parsed once at most for each event, and no more of it than is asked for, and what is kept
//! of it is bounded.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt, slice,
};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    cache::{Cached, KindInfo},
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

/// Names that one primary may hold at all paths of [`Mapping::Reference`] together.
pub const MOST_REFERENCES: usize = 1_000;

/// Names that all primaries of a controller may hold: some 120 bytes each.
pub const MOST_REFERENCES_IN_ALL: usize = 200_000;

/// Values of one primary that are looked at for names.
const MOST_VALUES: usize = 100_000;

/// A primary holds more names than are followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut(ObjectKey);

/// What that means.
impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} names more objects than are followed ({MOST_REFERENCES} of one object, {MOST_REFERENCES_IN_ALL} of all objects of a controller): changes of the others do not wake it; name fewer, \
             or have the watched objects name it by a label",
            self.0
        )
    }
}

/// A change of one object, of which each state is parsed when a mapping first asks for it, and once however many ask for the same: for its labels and annotations, or for all of it.
#[derive(Debug)]
pub struct Reading<'a> {
    key: &'a ObjectKey,
    old: State<'a>,
    new: State<'a>,
}

#[derive(Debug)]
struct State<'a> {
    object: Option<&'a Cached>,
    value: OnceCell<Value>,
    maps: OnceCell<Maps>,
}

/// Of an object, what mappings by a label or an annotation ask for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Marked {
    metadata: Maps,
}

/// Whatever they hold: a value that is no text is nobody's name.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Maps {
    labels: Value,
    annotations: Value,
}

/// In which of the two a mapping finds its name.
#[derive(Debug, Clone, Copy)]
enum Map {
    Labels,
    Annotations,
}

impl<'a> State<'a> {
    fn of(object: Option<&'a Cached>) -> Self {
        Self { object, value: OnceCell::new(), maps: OnceCell::new() }
    }

    fn value(&self) -> Option<&Value> {
        let object = self.object?;
        Some(self.value.get_or_init(|| object.value()))
    }

    /// Parses nothing but the two maps, since of the whole a tree takes some sixteen times its text.
    fn map(&self, map: Map) -> Option<&Value> {
        let object = self.object?;
        let read = || serde_json::from_str(&object.json).map(|Marked { metadata }| metadata).unwrap_or_default();
        let maps = self.maps.get_or_init(read);
        Some(match map {
            Map::Labels => &maps.labels,
            Map::Annotations => &maps.annotations,
        })
    }

    fn parsed(&self) -> usize {
        let times = usize::from(self.value.get().is_some()) + usize::from(self.maps.get().is_some());
        self.object.map_or(0, |object| object.json.len().saturating_mul(times))
    }
}

impl<'a> Reading<'a> {
    /// Of what was there before and what is there after.
    pub fn of(key: &'a ObjectKey, old: Option<&'a Cached>, new: Option<&'a Cached>) -> Self {
        Self { key, old: State::of(old), new: State::of(new) }
    }

    /// So many bytes had to be parsed.
    pub fn parsed(&self) -> usize {
        self.old.parsed() + self.new.parsed()
    }
}

/// The router of one controller: stateless but for the index behind [`Mapping::Reference`].
#[derive(Debug)]
pub struct Router {
    group: String,
    predicates: BTreeSet<Predicate>,
    references: References,
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
            references: References { paths: paths.collect(), held: 0, cut: None },
        }
    }

    /// The keys of primaries that this change wakes. `primary` is what discovery says of the primary kind; while it is unknown there are no primaries to wake.
    pub fn route(&mut self, source: &Source, change: &Reading<'_>, primary: Option<&KindInfo>) -> BTreeSet<ObjectKey> {
        let Some(primary) = primary else { return BTreeSet::new() };
        let mut woken = self.woken(source, change, primary);
        // A cluster-scoped object has no primary in a namespace, and one in a namespace none without, whatever it says: such a key would be of an object that cannot be.
        woken.retain(|key| key.namespace.is_some() == primary.namespaced);
        woken
    }

    /// The last primary of which not all names are followed, since this was asked before.
    pub fn take_cut(&mut self) -> Option<Cut> {
        self.references.cut.take()
    }

    fn woken(&mut self, source: &Source, change: &Reading<'_>, primary: &KindInfo) -> BTreeSet<ObjectKey> {
        let key = change.key;
        let (old, new) = (change.old.object, change.new.object);
        match source {
            Source::Primary => {
                self.references.update(key, &change.new);
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
            Source::Watched(Mapping::Label(label)) => named_by(change, Map::Labels, label),
            Source::Watched(Mapping::Annotation(annotation)) => named_by(change, Map::Annotations, annotation),
            Source::Watched(Mapping::Reference(path)) => self.references.referrers(path, key),
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
fn named_by(change: &Reading<'_>, map: Map, name: &str) -> BTreeSet<ObjectKey> {
    let named = |state: &State<'_>| {
        let name = state.map(map)?.get(name)?.as_str()?;
        Some(ObjectKey { namespace: change.key.namespace.clone(), name: ObjectName::parse(name).ok()? })
    };
    [&change.old, &change.new].into_iter().filter_map(named).collect()
}

/// From the names that fields of primaries hold to those primaries.
#[derive(Debug)]
struct References {
    paths: BTreeMap<String, ReferenceIndex>,
    /// Names in all of them.
    held: usize,
    cut: Option<Cut>,
}

impl References {
    fn update(&mut self, key: &ObjectKey, new: &State<'_>) {
        if self.paths.is_empty() {
            return;
        }
        for index in self.paths.values_mut() {
            self.held -= index.forget(key);
        }
        let Some(object) = new.value() else { return };
        let names = MOST_REFERENCES.min(MOST_REFERENCES_IN_ALL.saturating_sub(self.held));
        let mut room = Room { names, values: MOST_VALUES, exceeded: false };
        for (path, index) in &mut self.paths {
            let mut found = BTreeSet::new();
            names_at(object, path, &mut room, &mut found);
            self.held += found.len();
            index.learn(key, found);
        }
        if room.exceeded {
            self.cut = Some(Cut(key.clone()));
        }
    }

    fn referrers(&self, path: &str, watched: &ObjectKey) -> BTreeSet<ObjectKey> {
        self.paths.get(path).map(|index| index.referrers(watched)).unwrap_or_default()
    }
}

/// In a namespace, a name and who holds it. Nobody comes before everybody, so that those who hold one name are found in the order.
type Reference = (Option<Namespace>, ObjectName, Option<ObjectName>);

/// What the field at one path holds. Both sides share the texts of names, of which there may be many.
#[derive(Debug, Default)]
struct ReferenceIndex {
    referrers: BTreeSet<Reference>,
    names: HashMap<ObjectKey, Box<[ObjectName]>>,
}

impl ReferenceIndex {
    /// Answers how many names it held.
    fn forget(&mut self, key: &ObjectKey) -> usize {
        let names = self.names.remove(key).unwrap_or_default();
        for name in &names {
            self.referrers.remove(&Self::reference(key, name));
        }
        names.len()
    }

    fn learn(&mut self, key: &ObjectKey, names: BTreeSet<ObjectName>) {
        if !names.is_empty() {
            self.referrers.extend(names.iter().map(|name| Self::reference(key, name)));
            self.names.insert(key.clone(), names.into_iter().collect());
        }
    }

    fn reference(key: &ObjectKey, name: &ObjectName) -> Reference {
        (key.namespace.clone(), name.clone(), Some(key.name.clone()))
    }

    fn referrers(&self, watched: &ObjectKey) -> BTreeSet<ObjectKey> {
        let first: Reference = (watched.namespace.clone(), watched.name.clone(), None);
        self.referrers
            .range(first..)
            .take_while(|(namespace, name, _)| *namespace == watched.namespace && *name == watched.name)
            .filter_map(|(namespace, _, by)| Some(ObjectKey { namespace: namespace.clone(), name: by.clone()? }))
            .collect()
    }
}

/// What may still be taken of one object.
struct Room {
    names: usize,
    values: usize,
    exceeded: bool,
}

/// The names of objects at a dotted path, as far as there is room; a list on the way stands for each of its items. What is no name is nobody's.
fn names_at(value: &Value, path: &str, room: &mut Room, found: &mut BTreeSet<ObjectName>) {
    let (field, rest) = path.split_once('.').map_or((path, None), |(field, rest)| (field, Some(rest)));
    let items = match value.get(field) {
        Some(Value::Array(list)) => list.as_slice(),
        Some(item) => slice::from_ref(item),
        None => &[],
    };
    for item in items {
        room.exceeded |= room.values == 0;
        if room.exceeded {
            return;
        }
        room.values -= 1;
        if let Some(rest) = rest {
            names_at(item, rest, room, found);
        } else if let Some(name) = item.as_str().and_then(|name| ObjectName::parse(name).ok())
            && !found.contains(&name)
        {
            if room.names == 0 {
                room.exceeded = true;
                return;
            }
            room.names -= 1;
            found.insert(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    type Change = (ObjectKey, Option<Arc<Cached>>, Option<Arc<Cached>>);

    fn controller(extra: Value) -> Controller {
        let mut value = json!({"name": "c", "for": {"group": "g.example.com", "version": "v1", "resource": "things"}});
        value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    fn object(value: Value) -> Option<Arc<Cached>> {
        Some(Arc::new(Cached::of(value).unwrap().1))
    }

    fn change(name: &str, old: Option<Arc<Cached>>, new: Option<Arc<Cached>>) -> Change {
        (ObjectKey::parse(Some("n"), name).unwrap(), old, new)
    }

    fn reading((key, old, new): &Change) -> Reading<'_> {
        Reading::of(key, old.as_deref(), new.as_deref())
    }

    fn woken(router: &mut Router, source: &Source, change: &Change) -> Vec<String> {
        let info = KindInfo { kind: "Thing".into(), namespaced: true };
        router.route(source, &reading(change), Some(&info)).iter().map(ToString::to_string).collect()
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
            (key, None, object(json!({"metadata": metadata})))
        };
        let mut router = Router::new(&controller(json!({})));
        let mut wake = |source: &Source, change: &Change, namespaced: bool| {
            let info = KindInfo { kind: "Thing".into(), namespaced };
            router.route(source, &reading(change), Some(&info)).iter().map(ToString::to_string).collect::<Vec<_>>()
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

    fn refers(paths: &[&str]) -> Router {
        let secrets = json!({"group": "", "version": "v1", "resource": "secrets"});
        let watches = paths.iter().map(|path| json!({"resource": secrets, "map": {"reference": path}}));
        Router::new(&controller(json!({"watches": watches.collect::<Value>()})))
    }

    fn thing(name: &str, spec: Value) -> Change {
        change(name, None, object(json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec})))
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("s{n}")).collect()
    }

    /// Whom a secret of this name wakes.
    fn wakes(router: &mut Router, path: &str, secret: &str) -> Vec<String> {
        woken(router, &Source::Watched(Mapping::Reference(path.into())), &change(secret, None, None))
    }

    #[test]
    fn an_object_is_parsed_when_a_mapping_asks_and_once_however_many_ask() {
        let mut router = Router::new(&controller(json!({})));
        let label = |name: &str| Source::Watched(Mapping::Label(name.into()));
        let labelled = |by: &str| object(json!({"metadata": {"name": "x", "labels": {"k": by, "l": by}}}));
        let change = change("x", labelled("a"), labelled("b"));
        let whole: usize = [&change.1, &change.2].map(|object| object.as_ref().unwrap().json.len()).iter().sum();
        let reading = reading(&change);
        let info = KindInfo { kind: "Thing".into(), namespaced: true };
        for source in [Source::Primary, Source::Owned] {
            router.route(&source, &reading, Some(&info));
            assert_eq!(reading.parsed(), 0, "{source:?} needs no more than what is kept beside the text");
        }
        assert_eq!(router.route(&label("k"), &reading, Some(&info)).len(), 2);
        assert_eq!(reading.parsed(), whole);
        let first: *const Value = reading.new.map(Map::Labels).unwrap();
        assert_eq!(router.route(&label("l"), &reading, Some(&info)).len(), 2);
        assert!(std::ptr::eq(first, reading.new.map(Map::Labels).unwrap()));
        assert!(reading.new.value.get().is_none(), "nobody asked for all of it");
        let mut router = refers(&["spec.a"]);
        router.route(&Source::Primary, &reading, Some(&info));
        assert!(reading.old.value.get().is_none());
        assert_eq!(reading.parsed(), whole + change.2.as_ref().unwrap().json.len());
    }

    #[test]
    fn what_is_no_label_names_nobody_and_hides_no_other() {
        let mut router = Router::new(&controller(json!({})));
        let (label, note) =
            (Source::Watched(Mapping::Label("k".into())), Source::Watched(Mapping::Annotation("k".into())));
        for (metadata, labelled, annotated) in [
            (json!({"labels": {"k": "a", "l": 1, "m": {}}, "annotations": {"k": "b"}}), 1, 1),
            (json!({"labels": {"k": 1}, "annotations": {"k": "b", "l": null}}), 0, 1),
            (json!({"labels": null, "annotations": {"k": "b"}}), 0, 1),
            (json!({"labels": "k", "annotations": []}), 0, 0),
            (json!({"annotations": {"l": "b"}}), 0, 0),
        ] {
            let mut whole = json!({"metadata": {"name": "x", "namespace": "n"}});
            whole["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
            let change = change("x", None, object(whole));
            let found = [&label, &note].map(|source| woken(&mut router, source, &change).len());
            assert_eq!(found, [labelled, annotated], "{metadata}");
        }
    }

    #[test]
    fn so_many_names_of_one_object_are_followed_at_all_its_paths_and_no_more() {
        let mut router = refers(&["spec.a", "spec.b"]);
        let refer = |router: &mut Router, a: Vec<String>, b: Vec<String>| {
            woken(router, &Source::Primary, &thing("x", json!({"a": a, "b": b})));
            router.take_cut().map(|cut| cut.to_string())
        };
        // What is no name costs nothing, and neither does a name that comes again.
        let mut noise = vec!["no name of an object/".to_owned(); 5_000];
        noise.extend(names(600));
        noise.extend(names(600));
        assert_eq!(refer(&mut router, noise, names(400)), None);
        assert_eq!(router.references.held, MOST_REFERENCES);
        assert_eq!(wakes(&mut router, "spec.a", "s599"), ["n/x"]);
        assert_eq!(wakes(&mut router, "spec.b", "s399"), ["n/x"]);

        let cut = refer(&mut router, names(600), names(401)).unwrap();
        assert!(cut.starts_with("n/x names more objects than are followed (1000 of one object, 200000"), "{cut}");
        assert_eq!(router.references.held, MOST_REFERENCES);
        assert!(wakes(&mut router, "spec.b", "s400").is_empty());
        assert_eq!(router.take_cut(), None, "it is told once");

        // Nothing stays of what it held.
        assert_eq!(refer(&mut router, names(1), Vec::new()), None);
        assert_eq!(wakes(&mut router, "spec.a", "s0"), ["n/x"]);
        assert!(wakes(&mut router, "spec.a", "s1").is_empty());
        woken(&mut router, &Source::Primary, &change("x", None, None));
        let References { paths, held, .. } = &router.references;
        assert_eq!(*held, 0);
        assert!(paths.values().all(|index| index.referrers.is_empty() && index.names.is_empty()));
    }

    #[test]
    fn all_objects_together_hold_so_many_names_and_no_more() {
        let mut router = refers(&["spec.a"]);
        router.references.held = MOST_REFERENCES_IN_ALL - 1;
        woken(&mut router, &Source::Primary, &thing("x", json!({"a": "s0"})));
        assert_eq!(router.take_cut(), None);
        woken(&mut router, &Source::Primary, &thing("y", json!({"a": "s0"})));
        assert!(router.take_cut().is_some());
        assert_eq!(wakes(&mut router, "spec.a", "s0"), ["n/x"]);
        // The room of one that goes is another's.
        woken(&mut router, &Source::Primary, &change("x", None, None));
        woken(&mut router, &Source::Primary, &thing("y", json!({"a": "s0"})));
        assert_eq!((router.take_cut(), wakes(&mut router, "spec.a", "s0")), (None, vec!["n/y".to_owned()]));
    }

    #[test]
    fn what_holds_no_names_is_not_looked_through_without_end() {
        let paths: Vec<_> = (0..100).map(|n| format!("spec.items.p{n}")).collect();
        let mut router = refers(&paths.iter().map(String::as_str).collect::<Vec<_>>());
        let mut looks = |count: usize| {
            woken(&mut router, &Source::Primary, &thing("x", json!({"items": vec![json!({}); count]})));
            router.take_cut().is_some()
        };
        // Each path passes the spec and the items.
        assert!(!looks(MOST_VALUES / 100 - 1));
        assert!(looks(MOST_VALUES / 100));
    }
}
