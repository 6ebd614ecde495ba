//! Bodies of writes: what they say of the object's identity must agree with the call, and what they leave out of it is filled in.

use operetta_core::{
    cache::KindInfo,
    name::Namespace,
    port::ApiError,
    resource::{ObjectKey, Resource},
};
use serde_json::{Map, Value};

/// Parses an object and checks the identity that it gives: kind, API version, namespace and (where the call names one) name. Whatever of them is missing is filled in.
pub fn object(
    what: &str,
    text: &str,
    resource: &Resource,
    kind: &KindInfo,
    namespace: Option<&Namespace>,
    key: Option<&ObjectKey>,
) -> Result<Value, ApiError> {
    let mut object = parse(what, text)?;
    agree(what, &mut object, "apiVersion", &resource.api_version())?;
    agree(what, &mut object, "kind", &kind.kind)?;
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Some(metadata) = metadata.as_object_mut() else {
        return Err(ApiError::Invalid(format!("{what}: `metadata` of the object is no map")));
    };
    identity(what, metadata, namespace, key, true)?;
    let named = ["name", "generateName"]
        .iter()
        .any(|f| metadata.get(*f).and_then(Value::as_str).is_some_and(|n| !n.is_empty()));
    if !named {
        return Err(ApiError::Invalid(format!(
            "{what}: the object has neither metadata.name nor metadata.generateName"
        )));
    }
    Ok(Value::Object(object))
}

/// Parses a merge patch and checks it: where it names the object at all, it must be this one.
pub fn merge(what: &str, text: &str, resource: &Resource, kind: &KindInfo, key: &ObjectKey) -> Result<Value, ApiError> {
    let mut object = parse(what, text)?;
    for (field, wanted) in [("apiVersion", resource.api_version()), ("kind", kind.kind.clone())] {
        if object.contains_key(field) {
            agree(what, &mut object, field, &wanted)?;
        }
    }
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        identity(what, metadata, key.namespace.as_ref(), Some(key), false)?;
    }
    Ok(Value::Object(object))
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
