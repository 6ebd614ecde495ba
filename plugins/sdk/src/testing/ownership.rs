//! Server-side apply: which fields the plugin owns, and what an apply makes of an object.
//!
//! Lists are merged by key where Kubernetes merges them in the kinds that plugins use ([`list_key`]), and are atomic elsewhere; there is no schema.

use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A step into an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// A field of an object.
    Field(String),
    /// The item of a list whose field of this name has this value (as JSON).
    Item(&'static str, String),
}

/// The way to a leaf.
pub(super) type Path = Vec<Step>;

/// The leaves that were applied.
pub(super) type Owned = BTreeSet<Path>;

/// The leaves of what was applied, without what identifies the object.
pub(super) fn leaves(applied: &Value) -> BTreeMap<Path, Value> {
    let mut applied = applied.clone();
    if let Value::Object(object) = &mut applied {
        object.remove("apiVersion");
        object.remove("kind");
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            for field in ["name", "namespace", "uid", "resourceVersion"] {
                metadata.remove(field);
            }
            if metadata.is_empty() {
                object.remove("metadata");
            }
        }
    }
    let mut leaves = BTreeMap::new();
    collect(&applied, &mut Path::new(), &mut leaves);
    leaves
}

fn collect(value: &Value, path: &mut Path, leaves: &mut BTreeMap<Path, Value>) {
    match value {
        Value::Object(fields) if !fields.is_empty() || path.is_empty() => {
            for (name, value) in fields {
                path.push(Step::Field(name.clone()));
                collect(value, path, leaves);
                path.pop();
            }
        }
        Value::Array(items) if list_key(path.last(), items).is_some() => {
            let Some(key) = list_key(path.last(), items) else { return };
            for item in items {
                path.push(Step::Item(key, item[key].to_string()));
                collect(item, path, leaves);
                path.pop();
            }
        }
        leaf => {
            leaves.insert(path.clone(), leaf.clone());
        }
    }
}

/// By which field a list is merged.
fn list_key(list: Option<&Step>, items: &[Value]) -> Option<&'static str> {
    let Some(Step::Field(name)) = list else { return None };
    let key = match name.as_str() {
        "containers" | "initContainers" | "env" | "volumes" => "name",
        "volumeMounts" => "mountPath",
        "conditions" => "type",
        "ownerReferences" => "uid",
        "ports" if items.iter().any(|item| item.get("containerPort").is_some()) => "containerPort",
        "ports" => "port",
        _ => return None,
    };
    (!items.is_empty() && items.iter().all(|item| item.get(key).is_some())).then_some(key)
}

/// Writes a leaf, with everything on the way to it.
pub(super) fn set(object: &mut Value, path: &[Step], leaf: Value) {
    let Some((step, rest)) = path.split_first() else {
        *object = leaf;
        return;
    };
    let next = match step {
        Step::Field(name) => {
            if !object.is_object() {
                *object = Value::Object(Map::new());
            }
            &mut object[name.as_str()]
        }
        Step::Item(key, wanted) => {
            if !object.is_array() {
                *object = Value::Array(Vec::new());
            }
            let Value::Array(items) = object else { return };
            let position = items.iter().position(|item| has(item, key, wanted)).unwrap_or_else(|| {
                // With its key at once: the other leaves must find it before the key's own turn comes.
                let value = serde_json::from_str(wanted).unwrap_or_default();
                items.push(Value::Object(Map::from_iter([((*key).to_owned(), value)])));
                items.len() - 1
            });
            &mut items[position]
        }
    };
    set(next, rest, leaf);
}

/// Removes a leaf, and whatever on the way to it is empty then.
pub(super) fn remove(object: &mut Value, path: &[Step]) {
    let Some((step, rest)) = path.split_first() else { return };
    match (step, object) {
        (Step::Field(name), Value::Object(fields)) => {
            if let Some(next) = fields.get_mut(name) {
                remove(next, rest);
                if rest.is_empty() || is_empty(next) {
                    fields.remove(name);
                }
            }
        }
        (Step::Item(key, wanted), Value::Array(items)) => {
            if let Some(position) = items.iter().position(|item| has(item, key, wanted)) {
                let key_only = matches!(rest, [Step::Field(name)] if name == key);
                // The key stays as long as others own something of the item.
                if !key_only || items[position].as_object().is_some_and(|item| item.len() == 1) {
                    remove(&mut items[position], rest);
                }
                let left = items[position].as_object().map(|item| item.keys().map(String::as_str).collect::<Vec<_>>());
                if left.is_some_and(|left| left.is_empty() || left == [*key]) {
                    items.remove(position);
                }
            }
        }
        _ => {}
    }
}

/// Whether this is the item that a step means.
fn has(item: &Value, key: &str, wanted: &str) -> bool {
    let value = item[key].to_string();
    value == wanted
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

#[cfg(test)]
mod tests {
    use super::{leaves, remove, set};
    use serde_json::{Value, json};

    #[test]
    fn leaves_rebuild_the_object() {
        let object = json!({"spec": {"replicas": 2, "template": {"spec": {"containers": [
            {"name": "a", "image": "x", "ports": [{"containerPort": 1}], "args": ["p", "q"]}, {"name": "b"}]}}}, "data": {}});
        let mut rebuilt = Value::Null;
        for (path, leaf) in leaves(&object) {
            set(&mut rebuilt, &path, leaf);
        }
        assert_eq!(rebuilt, object);
    }

    #[test]
    fn what_others_added_survives_a_removal() {
        let applied = json!({"spec": {"containers": [{"name": "a", "image": "x"}], "size": 1}});
        let mut object =
            json!({"spec": {"containers": [{"name": "a", "image": "x", "stdin": true}, {"name": "b"}], "size": 1}});
        for path in leaves(&applied).keys() {
            remove(&mut object, path);
        }
        assert_eq!(object, json!({"spec": {"containers": [{"name": "a", "stdin": true}, {"name": "b"}]}}));
    }
}
