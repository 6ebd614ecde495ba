//! Which fields a write changed, by the names that people use.

use serde_json::Value;

use super::chain::fingerprint;

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

/// What the API server itself changes of the metadata with each write.
const BOOKKEEPING: [&str; 3] = ["resourceVersion", "generation", "managedFields"];
/// Bytes of a path; of a longer one the rest is a number that tells it apart.
const MOST_PATH: usize = 250;

/// A part of a path, which is put into words only where something differs.
#[derive(Clone, Copy)]
enum Part<'a> {
    Field(&'a str),
    /// As people call the items of Kubernetes' lists.
    Item(&'a str),
    At(usize),
}

/// What is otherwise now than before.
pub(super) fn differences(before: &Value, now: &Value) -> Vec<Change> {
    let mut all = Vec::new();
    compare(&mut Vec::new(), before, now, &mut all);
    all
}

fn compare<'a>(path: &mut Vec<Part<'a>>, before: &'a Value, now: &'a Value, all: &mut Vec<Change>) {
    if all.len() >= MOST_CHANGES || before == now {
        return;
    }
    if let [Part::Field("metadata"), Part::Field(name)] = path.as_slice()
        && BOOKKEEPING.contains(name)
    {
        return;
    }
    let goes_on = path.len() < DEEPEST;
    let mut within = |part, before, now| {
        path.push(part);
        compare(path, before, now, all);
        path.pop();
    };
    match (before, now) {
        (Value::Object(before), Value::Object(now)) if goes_on => {
            for (name, value) in before {
                within(Part::Field(name), value, now.get(name).unwrap_or(&Value::Null));
            }
            for (name, value) in now.iter().filter(|(name, _)| !before.contains_key(*name)) {
                within(Part::Field(name), &Value::Null, value);
            }
        }
        (Value::Array(before), Value::Array(now)) if goes_on && before.len() == now.len() => {
            for (at, (before, now)) in before.iter().zip(now).enumerate() {
                let name = ["name", "type"].into_iter().find_map(|field| now.get(field).and_then(Value::as_str));
                within(name.map_or(Part::At(at), Part::Item), before, now);
            }
        }
        _ => all.push(Change { path: in_words(path), from: before.clone(), to: now.clone() }),
    }
}

fn in_words(path: &[Part<'_>]) -> String {
    let mut text = String::new();
    for part in path {
        match part {
            Part::Field(name) => text.extend([".", name]),
            Part::Item(name) => text.extend(["[", name, "]"]),
            Part::At(at) => text.push_str(&format!("[{at}]")),
        }
    }
    if text.len() > MOST_PATH {
        let rest = fingerprint(&text);
        text.truncate(text.floor_char_boundary(MOST_PATH));
        text.push_str(&format!("… {rest:016x}"));
    }
    text
}
