//! Bodies of writes: what they say of the object's identity must agree with the call, and what they leave out of it is filled in.

use std::fmt::Write as _;

use json_patch::{Patch, PatchOperation, jsonptr::Pointer};
use operetta_core::{
    cache::KindInfo,
    name::{Namespace, Subresource},
    port::ApiError,
    resource::{ObjectKey, Resource},
};
use serde_json::{Map, Value};

/// Of the metadata, what says which manager owns which field.
const OWNERSHIP: &str = "managedFields";
/// What `scale` of every kind is read and written as.
pub const SCALE: (&str, &str) = ("autoscaling/v1", "Scale");

/// Whether it is the part of a kind that has an API version and kind of its own.
pub fn is_scale(part: Option<&Subresource>) -> bool {
    part.is_some_and(|part| part.as_str() == "scale")
}

/// The API version and the kind that a body has.
fn called(resource: &Resource, kind: &KindInfo, part: Option<&Subresource>) -> (String, String) {
    if is_scale(part) {
        return (SCALE.0.to_owned(), SCALE.1.to_owned());
    }
    (resource.api_version(), kind.kind.clone())
}

/// Parses an object and checks the identity that it gives: kind, API version, namespace and (where the call names one) name. Whatever of them is missing is filled in.
pub fn object(
    what: &str,
    text: &str,
    resource: &Resource,
    kind: &KindInfo,
    namespace: Option<&Namespace>,
    key: Option<&ObjectKey>,
    part: Option<&Subresource>,
) -> Result<Value, ApiError> {
    let mut object = parse(what, text)?;
    let (api_version, kind) = called(resource, kind, part);
    agree(what, &mut object, "apiVersion", &api_version)?;
    agree(what, &mut object, "kind", &kind)?;
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Some(metadata) = metadata.as_object_mut() else {
        return Err(ApiError::Invalid(format!("{what}: `metadata` of the object is no map")));
    };
    identity(what, metadata, namespace, key, true)?;
    // Read live, an object has it; sent back, it would say anew who owns which field.
    metadata.remove(OWNERSHIP);
    let named = ["name", "generateName"]
        .iter()
        .any(|f| metadata.get(*f).and_then(Value::as_str).is_some_and(|n| !n.is_empty()));
    if !named {
        return Err(ApiError::Invalid(format!(
            "{what}: the object has neither metadata.name nor metadata.generateName; kinds that the API server answers and does not keep, such as reviews, are none that a plugin creates"
        )));
    }
    Ok(Value::Object(object))
}

/// Checks a merge patch: where it names the object at all, it must be this one. To be sent is what is returned, since readers of a text that says a key twice may differ.
pub fn merge(
    what: &str,
    text: &str,
    resource: &Resource,
    kind: &KindInfo,
    key: &ObjectKey,
    part: Option<&Subresource>,
) -> Result<Value, ApiError> {
    let mut object = parse(what, text)?;
    let (api_version, kind) = called(resource, kind, part);
    for (field, wanted) in [("apiVersion", api_version), ("kind", kind)] {
        if object.contains_key(field) {
            agree(what, &mut object, field, &wanted)?;
        }
    }
    match object.get_mut("metadata") {
        Some(Value::Object(metadata)) if metadata.contains_key(OWNERSHIP) => Err(owned(what)),
        Some(Value::Object(metadata)) => identity(what, metadata, key.namespace.as_ref(), Some(key), false),
        _ => Ok(()),
    }?;
    Ok(Value::Object(object))
}

/// Checks a JSON patch: it may not say who owns what. To be sent is what is returned, as for [`merge`].
pub fn json_patch(what: &str, text: &str) -> Result<Patch, ApiError> {
    let wrong = |error| ApiError::Invalid(format!("{what}: not a JSON patch: {error}"));
    let patch: Patch = serde_json::from_str(text).map_err(wrong)?;
    let touches = |operation: &PatchOperation| match operation {
        PatchOperation::Test(_) => false,
        PatchOperation::Move(moved) => covers_ownership(&moved.from) || covers_ownership(&moved.path),
        operation => covers_ownership(operation.path()),
    };
    if patch.0.iter().any(touches) { Err(owned(what)) } else { Ok(patch) }
}

/// Whether a path leads to what says who owns what, or into it. A whole object, or all its metadata, has it as well.
pub fn covers_ownership(path: &Pointer) -> bool {
    let mut tokens = path.tokens();
    let mut is = |name: &str| tokens.next().is_none_or(|token| token.decoded() == name);
    is("metadata") && is(OWNERSHIP)
}

/// An object as an apply sends it: the API server reads that as YAML, which within a string takes some characters of JSON for none, or for breaks of a line. Escaped, they are what they are.
pub fn yaml(object: Value) -> Vec<u8> {
    let differs =
        |c: char| matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}');
    let text = object.to_string();
    drop(object);
    if !text.contains(differs) {
        return text.into_bytes();
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if differs(c) {
            // Only strings have such, and none stands behind half an escape.
            let _ = write!(escaped, "\\u{:04x}", u32::from(c));
        } else {
            escaped.push(c);
        }
    }
    escaped.into_bytes()
}

/// What [`yaml`] made of an object, for one incarnation of it alone.
pub fn of_incarnation(body: &[u8], uid: &str) -> Vec<u8> {
    let mut object: Value = serde_json::from_slice(body).unwrap_or_default();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("uid".to_owned(), uid.into());
    }
    yaml(object)
}

fn owned(what: &str) -> ApiError {
    ApiError::Invalid(format!("{what}: metadata.{OWNERSHIP} is the API server's to write; leave it out"))
}

fn parse(what: &str, text: &str) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(ApiError::Invalid(format!("{what}: the object is JSON, but no map"))),
        Err(error) => Err(ApiError::Invalid(format!("{what}: the object is not JSON: {error}"))),
    }
}

fn identity(
    what: &str,
    metadata: &mut Map<String, Value>,
    namespace: Option<&Namespace>,
    key: Option<&ObjectKey>,
    fill: bool,
) -> Result<(), ApiError> {
    match namespace {
        Some(namespace) if fill || metadata.contains_key("namespace") => {
            agree(what, metadata, "namespace", namespace.as_str())?;
        }
        None if metadata.get("namespace").is_some_and(|n| n.as_str() != Some("")) => {
            return Err(ApiError::Invalid(format!("{what}: the object names a namespace, and the call none")));
        }
        _ => {}
    }
    match key {
        Some(key) if fill || metadata.contains_key("name") => agree(what, metadata, "name", key.name.as_str()),
        _ => Ok(()),
    }
}

fn agree(what: &str, map: &mut Map<String, Value>, field: &str, wanted: &str) -> Result<(), ApiError> {
    let found = map.entry(field).or_insert_with(|| wanted.into());
    if found.as_str() == Some(wanted) {
        return Ok(());
    }
    Err(ApiError::Invalid(format!("{what}: the object says {field} {found}, and the call says {wanted:?}")))
}

#[cfg(test)]
mod tests;
