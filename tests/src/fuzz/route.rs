//! Objects, on their way through the cache to the keys that they wake.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use operetta_cluster::object::{Entry, still_there};
use operetta_core::{
    cache::{Cached, KindInfo},
    manifest::{Controller, Mapping},
    name::FieldManager,
    resource::{ObjectKey, Resource},
    route::{Reading, Router, Source, sources},
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Story {
    controller: Controller,
    namespaced: bool,
    /// Which of the controller's kinds, and the object; one that says `gone` beside its metadata goes.
    events: Vec<(usize, Value)>,
}

type Store = HashMap<(Resource, ObjectKey), Arc<Cached>>;

/// What the primary kind of every story is called.
const KIND: &str = "Thing";

/// A change wakes those primaries that the mapping says, all of them and nobody else, in the namespace where it happened; and what is kept of an object is the object.
pub fn route(data: &[u8]) {
    let Ok(Story { controller, namespaced, events }) = serde_json::from_slice(data) else { return };
    let kinds = sources(&controller);
    let (mut router, mut store) = (Router::new(&controller), Store::new());
    let primary = KindInfo { kind: KIND.to_owned(), namespaced };
    for (kind, object) in events.into_iter().take(32) {
        let (resource, ways) = &kinds[kind % kinds.len()];
        let gone = object.get("gone").is_some();
        let Some((key, entry)) = kept(object) else { continue };
        if *resource == controller.primary && key.namespace.is_some() != namespaced {
            // The API server has no such object.
            continue;
        }
        let place = (resource.clone(), key.clone());
        let old = if gone { store.remove(&place) } else { store.insert(place, Arc::clone(&entry.cached)) };
        let new = (!gone).then(|| Arc::clone(&entry.cached));
        let change = Reading::of(&key, old.as_deref(), new.as_deref());
        for way in ways {
            let woken = router.route(way, &change, Some(&primary));
            for key in &woken {
                assert_eq!(key.namespace.is_some(), namespaced, "{key} is no key of the primary kind");
            }
            if router.take_cut().is_some() {
                // Not all names are followed from here on.
                return;
            }
            assert!(router.route(way, &change, None).is_empty(), "a kind that nobody knows has objects");
            if *way == Source::Primary {
                assert!(woken.is_empty() || woken == BTreeSet::from([key.clone()]));
                assert!(!woken.is_empty() || old.is_some() && new.is_some(), "a coming or going was lost");
                continue;
            }
            let states = [old.as_ref(), new.as_ref()];
            let names = named(way, &controller, &store, &key, states.into_iter().flatten());
            let expected: BTreeSet<_> = names
                .into_iter()
                .filter_map(|(namespace, name)| ObjectKey::parse(namespace.as_deref(), &name).ok())
                .filter(|key| key.namespace.is_some() == namespaced)
                .collect();
            assert_eq!(woken, expected, "{way:?} of {key}");
        }
    }
}

/// The object as the cache keeps it, which must be the object.
fn kept(mut object: Value) -> Option<(ObjectKey, Entry)> {
    let _ = still_there(&object);
    if let Some(fields) = object.as_object_mut() {
        fields.remove("gone");
    }
    let (key, entry) = Entry::of(object.clone(), "x.example.com/v1", KIND).ok()?;
    if let Some(owned) = &entry.owned {
        let owned: Vec<Value> = serde_json::from_str(owned).expect("managed fields are kept as JSON");
        assert!(!owned.is_empty());
        for entry in owned {
            assert!(FieldManager::is_plugin(entry["manager"].as_str().unwrap_or_default()), "{entry}");
        }
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    let fields = object.as_object_mut().expect("what has a name is a map");
    fields.entry("apiVersion").or_insert("x.example.com/v1".into());
    fields.entry("kind").or_insert(KIND.into());
    assert_eq!(entry.cached.value(), object, "what is kept is not what came");
    Some((key, entry))
}

/// Whom a change wakes, found the slow way.
fn named<'a>(
    way: &Source,
    controller: &Controller,
    store: &Store,
    key: &ObjectKey,
    states: impl Iterator<Item = &'a Arc<Cached>>,
) -> Vec<(Option<String>, String)> {
    let namespace = key.namespace.as_ref().map(ToString::to_string);
    let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).map(str::to_owned);
    match way {
        Source::Primary => Vec::new(),
        Source::Owned => {
            let namespaced = namespace.clone();
            let owners = states.filter_map(|state| {
                let value = state.value();
                let owners = value.pointer("/metadata/ownerReferences")?.as_array()?.clone();
                let owner = owners.into_iter().find(|owner| owner.get("controller") == Some(&Value::Bool(true)))?;
                let group = text(&owner, "apiVersion")?;
                let group = group.split_once('/').map_or("", |(group, _)| group);
                (group == controller.primary.group() && text(&owner, "kind")? == KIND).then(|| text(&owner, "name"))?
            });
            // An owner is in the same namespace or in none.
            owners.flat_map(|name| [(namespaced.clone(), name.clone()), (None, name)]).collect()
        }
        Source::Watched(Mapping::Label(name)) => by_map(states, "labels", name, namespace.as_ref()),
        Source::Watched(Mapping::Annotation(name)) => by_map(states, "annotations", name, namespace.as_ref()),
        Source::Watched(Mapping::Reference(path)) => {
            let primaries = store
                .iter()
                .filter(|((resource, at), _)| *resource == controller.primary && at.namespace == key.namespace);
            let referring = primaries.filter(|(_, primary)| holds(&primary.value(), path, key.name.as_str()));
            referring.map(|((_, at), _)| (namespace.clone(), at.name.to_string())).collect()
        }
    }
}

fn by_map<'a>(
    states: impl Iterator<Item = &'a Arc<Cached>>,
    map: &str,
    name: &str,
    namespace: Option<&String>,
) -> Vec<(Option<String>, String)> {
    let values = states.filter_map(|state| Some(state.value()["metadata"][map].get(name)?.as_str()?.to_owned()));
    values.map(|value| (namespace.cloned(), value)).collect()
}

/// Whether the text stands at the path; a list on the way stands for its items.
fn holds(value: &Value, path: &str, wanted: &str) -> bool {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let items = match value.get(first) {
        Some(Value::Array(items)) => items.iter().collect(),
        other => Vec::from_iter(other),
    };
    items.into_iter().any(|item| match rest {
        Some(rest) => holds(item, rest, wanted),
        None => item.as_str() == Some(wanted),
    })
}
