//! Whether a server-side apply would change anything, from what the API server itself says of ownership (`metadata.managedFields`) and from the live object.
//!
//! The answer is yes or "perhaps". **A doubt is never a no-op**: a request too many costs a millisecond, one too few leaves the world as it should not be. An apply changes
//! nothing when, for our manager and subresource,
//!
//! - the fields that its body names are exactly those that we own by apply (a field that the body dropped would be removed),
//! - each of them has in the live object the value that the body gives (numbers numerically), and
//! - items of lists stand in the same order.
//!
//! Fields are written as the API server writes them (structured-merge-diff's `fieldsV1`): `f:NAME` a field, `k:{...}` an item of a list by its keys, `v:...` an item of a
//! set by its value, `{}` a whole value that is owned at once, and `.` the container itself, which follows from the rest.

pub mod claims;

use operetta_core::name::FieldManager;
use serde_json::{Map, Value};

/// Metadata that the API server never counts among owned fields, and which an apply does not change.
const STRIPPED: [&str; 9] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];

/// Whether applying `body` as `manager` to `subresource` of `live` would certainly change nothing. `owned` are our managers' entries of managed fields, a JSON array.
pub fn changes_nothing(
    body: &Value,
    manager: &FieldManager,
    subresource: Option<&str>,
    owned: &str,
    live: &Value,
) -> bool {
    let Ok(Value::Array(entries)) = serde_json::from_str(owned) else { return false };
    let text = |entry: &Value, field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut ours = entries.iter().filter(|entry| {
        text(entry, "manager") == manager.as_str()
            && text(entry, "operation") == "Apply"
            && text(entry, "subresource") == subresource.unwrap_or_default()
    });
    // After a change of API version there may be two entries for a while.
    let (Some(entry), None) = (ours.next(), ours.next()) else { return false };
    let (Some(body), Some(Value::Object(fields))) = (body.as_object(), entry.get("fieldsV1")) else { return false };
    body.get("apiVersion").is_some_and(|version| entry.get("apiVersion") == Some(version))
        && body.get("kind") == live.get("kind")
        && identity_agrees(body, live)
        && top(body, fields, live)
}

/// What the body says about the object's identity must be so; a wish for another uid or version is a precondition that fails.
fn identity_agrees(body: &Map<String, Value>, live: &Value) -> bool {
    let Some(metadata) = body.get("metadata") else { return true };
    let Some(metadata) = metadata.as_object() else { return false };
    STRIPPED.iter().all(|name| match metadata.get(*name) {
        None => true,
        Some(Value::Null) => *name == "creationTimestamp",
        Some(value) => *name != "managedFields" && live.pointer(&format!("/metadata/{name}")) == Some(value),
    })
}

fn top(body: &Map<String, Value>, fields: &Map<String, Value>, live: &Value) -> bool {
    let mut named: Map<String, Value> = body.clone();
    named.remove("apiVersion");
    named.remove("kind");
    if let Some(metadata) = named.get_mut("metadata").and_then(Value::as_object_mut) {
        for name in STRIPPED {
            metadata.remove(name);
        }
        if metadata.is_empty() {
            named.remove("metadata");
        }
    }
    if named.is_empty() {
        // Owning nothing is no entry at all; something else is meant.
        return false;
    }
    live.as_object().is_some_and(|live| map(&named, fields, live))
}

/// A map whose fields are owned one by one.
fn map(body: &Map<String, Value>, fields: &Map<String, Value>, live: &Map<String, Value>) -> bool {
    let members = fields.iter().filter(|(name, _)| *name != ".");
    members.clone().count() == body.len()
        && members.into_iter().all(|(name, child)| {
            let Some(name) = name.strip_prefix("f:") else { return false };
            matches!((body.get(name), live.get(name)), (Some(body), Some(live)) if value(body, child, live))
        })
}

fn value(body: &Value, fields: &Value, live: &Value) -> bool {
    let Some(fields) = fields.as_object() else { return false };
    if fields.is_empty() {
        // A leaf, or a list or map that is owned at once.
        return !body.is_null() && equal(body, live);
    }
    match (body, live) {
        // Of an empty container nothing is owned but itself, which would be a leaf.
        (Value::Object(body), Value::Object(live)) => !body.is_empty() && map(body, fields, live),
        (Value::Array(body), Value::Array(live)) => list(body, fields, live),
        _ => false,
    }
}

/// A list whose items are owned one by one, by key or by value.
fn list(body: &[Value], fields: &Map<String, Value>, live: &[Value]) -> bool {
    let members: Vec<_> = fields.iter().filter(|(name, _)| *name != ".").collect();
    if members.len() != body.len() {
        return false;
    }
    let mut taken = vec![false; body.len()];
    // Where in the live list the body's items stand.
    let mut places = vec![0; body.len()];
    for (member, child) in members {
        let Some((mine, place)) = item(member, child, body, live) else { return false };
        match (taken.get_mut(mine), places.get_mut(mine)) {
            (Some(taken), Some(slot)) if !*taken => {
                *taken = true;
                *slot = place;
            }
            _ => return false,
        }
    }
    places.is_sorted()
}

/// Where the owned item stands in the body and in the live list, if both hold it once and alike.
fn item(member: &str, child: &Value, body: &[Value], live: &[Value]) -> Option<(usize, usize)> {
    if let Some(wanted) = member.strip_prefix("v:") {
        let wanted: Value = serde_json::from_str(wanted).ok()?;
        let same = |item: &Value| equal(item, &wanted);
        return Some((only(body, same)?, only(live, same)?));
    }
    let keys: Map<String, Value> = serde_json::from_str(member.strip_prefix("k:")?).ok()?;
    if keys.is_empty() {
        return None;
    }
    // A key field that the body leaves out, as a port's protocol, has its default; then it is among the keys, but not among the owned fields. What is owned at once names all.
    let child_fields = child.as_object()?;
    let named = |key: &str| child_fields.is_empty() || child_fields.contains_key(&format!("f:{key}"));
    let mine = |item: &Value| {
        keys.iter().all(|(key, wanted)| item.get(key).map_or(!named(key), |value| named(key) && equal(value, wanted)))
    };
    let theirs = |item: &Value| keys.iter().all(|(key, wanted)| item.get(key).is_some_and(|v| equal(v, wanted)));
    let (here, there) = (only(body, mine)?, only(live, theirs)?);
    // An item may be owned at once, as an owner reference is.
    value(body.get(here)?, child, live.get(there)?).then_some((here, there))
}

fn only(list: &[Value], wanted: impl Fn(&Value) -> bool) -> Option<usize> {
    let mut found = list.iter().enumerate().filter(|(_, item)| wanted(item)).map(|(at, _)| at);
    found.next().filter(|_| found.next().is_none())
}

/// Equal, with numbers compared as numbers: 1 is 1.0.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            // Beyond 2^53 two integers may be the same float.
            let exact = |n: f64| n.abs() < 9_007_199_254_740_992.0;
            a == b || matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if exact(a) && a.total_cmp(&b).is_eq())
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests;
