//! Whether an apply would change anything.

use operetta_cluster::ownership::changes_nothing as says_so;
use operetta_core::name::{ControllerName, FieldManager, PluginName};
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct Question {
    body: Value,
    /// Entries of managed fields.
    owned: Value,
    live: Value,
    subresource: Option<String>,
}

/// Where the answer is that nothing changes, applying it by the rules changes nothing; and every other body, and every other live object, has another answer.
pub fn changes_nothing(data: &[u8]) {
    let Ok(Question { body, owned, live, subresource }) = serde_json::from_slice(data) else { return };
    let manager = FieldManager::of(&PluginName::parse("p").unwrap(), &ControllerName::parse("c").unwrap());
    let owned = owned.to_string();
    let says = |body: &Value, live: &Value| says_so(body, &manager, subresource.as_deref(), &owned, live);
    if !says(&body, &live) {
        return;
    }
    let entries: Vec<Value> = serde_json::from_str(&owned).expect("it was understood");
    let ours = entries.iter().find(|entry| {
        entry["manager"] == manager.as_str()
            && entry["operation"] == "Apply"
            && entry["subresource"].as_str().unwrap_or_default() == subresource.as_deref().unwrap_or_default()
    });
    let fields = &ours.expect("what nobody applied changes something")["fieldsV1"];
    let mut named = body.clone();
    for field in ["apiVersion", "kind"] {
        named.as_object_mut().expect("a body is a map").remove(field);
    }
    assert!(same(&applied(&live, &named, fields), &live), "{body} by {fields} changes {live}");

    for changed in changes(&body) {
        assert!(
            !says(&changed, &live),
            "the body {body}\nchanges nothing, and neither does\n{changed}\nby {fields} of\n{live}"
        );
    }
}

/// What the object is after an apply: fields that are named have the body's values, those that were owned and are named no more are gone.
fn applied(live: &Value, body: &Value, fields: &Value) -> Value {
    match (live, body) {
        (Value::Object(live), Value::Object(body))
            if fields.as_object().is_some_and(|f| !f.is_empty()) || fields.is_null() =>
        {
            let mut after = live.clone();
            for (name, value) in body {
                let child = fields.get(format!("f:{name}")).unwrap_or(&Value::Null);
                let before = live.get(name).unwrap_or(&Value::Null);
                after.insert(name.clone(), applied(before, value, child));
            }
            for owned in fields.as_object().into_iter().flat_map(Map::keys).filter_map(|f| f.strip_prefix("f:")) {
                if !body.contains_key(owned) {
                    after.remove(owned);
                }
            }
            Value::Object(after)
        }
        (Value::Array(live), Value::Array(body)) if fields.as_object().is_some_and(|f| !f.is_empty()) => {
            let mut after = live.clone();
            for (member, child) in fields.as_object().into_iter().flatten().filter(|(member, _)| *member != ".") {
                let is = |item: &Value| is_member(item, member);
                let mine: Vec<_> =
                    body.iter().filter(|item| is(item) || is_member(&defaulted(item, member), member)).collect();
                assert_eq!(mine.len(), 1, "{member} of {body:?}");
                let place = after.iter().position(is).expect("an item that is not there would be added");
                after[place] = applied(&after[place], mine[0], child);
            }
            Value::Array(after)
        }
        _ => body.clone(),
    }
}

fn is_member(item: &Value, member: &str) -> bool {
    if let Some(value) = member.strip_prefix("v:") {
        return serde_json::from_str::<Value>(value).is_ok_and(|value| same(&value, item));
    }
    let keys: Map<String, Value> =
        member.strip_prefix("k:").and_then(|k| serde_json::from_str(k).ok()).unwrap_or_default();
    !keys.is_empty() && keys.iter().all(|(key, value)| item.get(key).is_some_and(|v| same(v, value)))
}

/// With the keys that it leaves out, which the API server fills in.
fn defaulted(item: &Value, member: &str) -> Value {
    let keys: Map<String, Value> =
        member.strip_prefix("k:").and_then(|k| serde_json::from_str(k).ok()).unwrap_or_default();
    let mut item = item.clone();
    if let Some(fields) = item.as_object_mut() {
        for (key, value) in keys {
            fields.entry(key).or_insert(value);
        }
    }
    item
}

/// Equal, whatever a number is written as.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| same(a, b))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len() && one.iter().all(|(name, value)| other.get(name).is_some_and(|v| same(value, v)))
        }
        _ => one == other,
    }
}

/// The value with one thing changed, in every place.
fn changes(value: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let with = |value: Value| {
                    let mut fields = fields.clone();
                    fields.insert(name.clone(), value);
                    Value::Object(fields)
                };
                all.extend(changes(value).into_iter().map(with));
            }
            all.push(Value::Object(fields.clone().into_iter().chain([("fuzzAdded".to_owned(), 1.into())]).collect()));
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                let with = |item: Value| {
                    let mut items = items.clone();
                    items[at] = item;
                    Value::Array(items)
                };
                all.extend(changes(item).into_iter().map(with));
                let mut fewer = items.clone();
                fewer.remove(at);
                all.push(Value::Array(fewer));
            }
            all.push(Value::Array(items.iter().cloned().chain(["fuzz-added".into()]).collect()));
        }
        Value::String(text) => all.push(format!("{text}x").into()),
        Value::Bool(yes) => all.push((!yes).into()),
        Value::Number(_) => all.push("a number".into()),
        Value::Null => all.push("a text".into()),
    }
    all
}
