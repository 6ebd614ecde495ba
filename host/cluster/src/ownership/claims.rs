//! Whether a write that is no apply would set otherwise what another plugin applied, and which fields an apply made a manager's own.

use operetta_core::name::{FieldManager, PluginName};
use serde_json::{Map, Value};

use super::equal;

/// Items of a list times owned items of it that are looked for one by one; beyond, the list is compared as a whole.
const MOST_PAIRS: usize = 40_000;

/// What one manager owns of an object by apply.
#[derive(Debug)]
pub struct Claim {
    /// Its name.
    pub manager: String,
    fields: Map<String, Value>,
}

/// What others than this plugin applied to a part of an object (the empty one is the object itself). `owned` are plugins' entries of managed fields, a JSON array.
pub fn of_others(owned: &str, plugin: &PluginName, part: &str) -> Vec<Claim> {
    let own = format!("{}{plugin}/", FieldManager::PREFIX);
    let mut claims = applied(owned, part);
    claims.retain(|claim| !claim.manager.starts_with(&own));
    claims
}

/// The fields that a manager applied to a part of an object, each told as the API server names it in a conflict.
pub fn each_applied(owned: &str, manager: &FieldManager, part: &str, mut tell: impl FnMut(&str)) {
    for claim in applied(owned, part).iter().filter(|claim| claim.manager == manager.as_str()) {
        each(&claim.fields, &mut String::new(), &mut tell);
    }
}

fn applied(owned: &str, part: &str) -> Vec<Claim> {
    let Ok(Value::Array(entries)) = serde_json::from_str(owned) else { return Vec::new() };
    let claim = |mut entry: Value| {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
        let is_of_part = text("operation") == "Apply" && text("subresource") == part;
        let manager = text("manager").to_owned();
        match entry.get_mut("fieldsV1").map(Value::take) {
            Some(Value::Object(fields)) if is_of_part => Some(Claim { manager, fields }),
            _ => None,
        }
    };
    entries.into_iter().filter_map(claim).collect()
}

fn each(fields: &Map<String, Value>, path: &mut String, tell: &mut dyn FnMut(&str)) {
    for (member, child) in fields.iter().filter(|(member, _)| *member != ".") {
        let length = path.len();
        path.push_str(&shown(member));
        let child = child.as_object().filter(|child| !child.is_empty());
        if child.is_none_or(|child| child.contains_key(".")) {
            tell(path);
        }
        if let Some(child) = child {
            each(child, path, tell);
        }
        path.truncate(length);
    }
}

impl Claim {
    /// What of it is about the object's metadata, if anything.
    pub fn in_metadata(mut self) -> Option<Self> {
        self.fields.retain(|member, _| member == "f:metadata");
        (!self.fields.is_empty()).then_some(self)
    }

    /// The first of its fields that is otherwise in `then` than in `live`, or gone.
    pub fn first_lost(&self, live: &Value, then: &Value) -> Option<String> {
        lost(&self.fields, live, then, &mut String::new())
    }
}

fn lost(fields: &Map<String, Value>, live: &Value, then: &Value, path: &mut String) -> Option<String> {
    let pairs = |list: &Value| list.as_array().map_or(0, |items| items.len().saturating_mul(fields.len()));
    if pairs(live).max(pairs(then)) > MOST_PAIRS {
        return (!equal(live, then)).then(|| path.clone());
    }
    for (member, child) in fields.iter().filter(|(member, _)| *member != ".") {
        // What is not there can be taken from nobody.
        let Some(was) = find(member, live) else { continue };
        let is = find(member, then);
        let length = path.len();
        path.push_str(&shown(member));
        let found = match (child.as_object().filter(|child| !child.is_empty()), is) {
            (_, None) => Some(path.clone()),
            (Some(child), Some(is)) => lost(child, was, is, path),
            // A leaf, or a list or map that is owned at once.
            (None, Some(is)) => (!equal(was, is)).then(|| path.clone()),
        };
        if found.is_some() {
            return found;
        }
        path.truncate(length);
    }
    None
}

/// What a member of managed fields means within a value.
fn find<'a>(member: &str, value: &'a Value) -> Option<&'a Value> {
    if let Some(name) = member.strip_prefix("f:") {
        return value.as_object()?.get(name);
    }
    let items = value.as_array()?;
    if let Some(wanted) = member.strip_prefix("v:") {
        let wanted: Value = serde_json::from_str(wanted).ok()?;
        return items.iter().find(|item| equal(item, &wanted));
    }
    let keys: Map<String, Value> = serde_json::from_str(member.strip_prefix("k:")?).ok()?;
    let is = |item: &&Value| keys.iter().all(|(key, wanted)| item.get(key).is_some_and(|found| equal(found, wanted)));
    // A key that a write leaves out has its default, as a port its protocol.
    let may_be = |item: &&Value| {
        item.is_object() && keys.iter().all(|(key, wanted)| item.get(key).is_none_or(|found| equal(found, wanted)))
    };
    items.iter().find(is).or_else(|| items.iter().find(may_be))
}

/// A member as the API server writes it in the path of a field.
fn shown(member: &str) -> String {
    if let Some(name) = member.strip_prefix("f:") {
        return format!(".{name}");
    }
    if let Some(value) = member.strip_prefix("v:") {
        return format!("[={value}]");
    }
    let keys = member.strip_prefix("k:").and_then(|keys| serde_json::from_str::<Map<String, Value>>(keys).ok());
    match (keys, member.strip_prefix("i:")) {
        (Some(keys), _) => {
            let keys: Vec<_> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        (None, Some(index)) => format!("[{index}]"),
        (None, None) => member.to_owned(),
    }
}

#[cfg(test)]
mod tests;
