//! Which fields a write changed, by the names that people use.

use serde_json::Value;

/// Changes of one write that are looked at, and how deep.
const MOST_CHANGES: usize = 32;
pub(super) const DEEPEST: usize = 24;

/// One field that a write changed.
#[derive(Debug, PartialEq)]
pub(super) struct Change {
    pub path: String,
    pub from: Value,
    pub to: Value,
}

/// What the API server itself changes with each write.
const BOOKKEEPING: [&str; 3] = [".metadata.resourceVersion", ".metadata.generation", ".metadata.managedFields"];

/// Adds what is otherwise now than before.
pub(super) fn differences(path: &str, before: &Value, now: &Value, depth: usize, all: &mut Vec<Change>) {
    if before == now || all.len() >= MOST_CHANGES || BOOKKEEPING.contains(&path) {
        return;
    }
    match (before, now) {
        (Value::Object(before), Value::Object(now)) if depth < DEEPEST => {
            for (name, value) in before {
                let path = format!("{path}.{name}");
                differences(&path, value, now.get(name).unwrap_or(&Value::Null), depth + 1, all);
            }
            for (name, value) in now.iter().filter(|(name, _)| !before.contains_key(*name)) {
                differences(&format!("{path}.{name}"), &Value::Null, value, depth + 1, all);
            }
        }
        (Value::Array(before), Value::Array(now)) if depth < DEEPEST && before.len() == now.len() => {
            for (at, (before, now)) in before.iter().zip(now).enumerate() {
                // As people call the items of Kubernetes' lists.
                let name = ["name", "type"].into_iter().find_map(|field| now.get(field).and_then(Value::as_str));
                let name = name.map_or_else(|| at.to_string(), str::to_owned);
                differences(&format!("{path}[{name}]"), before, now, depth + 1, all);
            }
        }
        _ => all.push(Change { path: path.to_owned(), from: before.clone(), to: now.clone() }),
    }
}
