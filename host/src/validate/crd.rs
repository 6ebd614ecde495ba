//! What an API server would refuse in a CustomResourceDefinition, found without one: names, versions, and schemas that are not structural. Pure.
//!
//! The rules are those of Kubernetes' `apiextensions.k8s.io/v1`; where in doubt nothing is said, since the API server has the last word.

use std::collections::BTreeSet;

use operetta_core::resource::Resource;
use serde_json::Value;

/// Keywords of JSON schema that a structural schema may not have.
const FORBIDDEN: &[&str] = &[
    "$ref",
    "definitions",
    "dependencies",
    "patternProperties",
    "deprecated",
    "discriminator",
    "id",
    "readOnly",
    "writeOnly",
    "xml",
];
/// What belongs beside `allOf`, `anyOf`, `oneOf` and `not`, and not below them.
const OUTSIDE: &[&str] = &["description", "type", "default", "title", "additionalProperties", "nullable"];
/// A schema that is deeper is refused elsewhere.
const MAX_DEPTH: usize = 64;

/// The CRD's definition of this version.
pub(super) fn version<'a>(crd: &'a Value, name: &str) -> Option<&'a Value> {
    let versions = crd.pointer("/spec/versions")?.as_array()?;
    versions.iter().find(|version| version.get("name").and_then(Value::as_str) == Some(name))
}

/// Whether the CRD defines this kind, in whatever version.
pub(super) fn is_of(crd: &Value, kind: &Resource) -> bool {
    let is = |pointer: &str, wanted: &str| crd.pointer(pointer).and_then(Value::as_str) == Some(wanted);
    is("/spec/group", kind.group()) && is("/spec/names/plural", kind.resource())
}

/// All that is wrong, each with where.
pub(super) fn faults(crd: &Value) -> Vec<String> {
    let text = |pointer: &str| crd.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let name = text("/metadata/name");
    let mut faults = Vec::new();
    if !text("/spec/names/kind").starts_with(|c: char| c.is_ascii_uppercase()) {
        faults.push(format!("{name}: spec.names.kind {:?} does not begin with a capital", text("/spec/names/kind")));
    }
    if !["Namespaced", "Cluster"].contains(&text("/spec/scope")) {
        faults.push(format!("{name}: spec.scope {:?} is neither Namespaced nor Cluster", text("/spec/scope")));
    }
    let versions = crd.pointer("/spec/versions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let with = |flag: &str| versions.iter().filter(|v| v.get(flag).and_then(Value::as_bool) == Some(true)).count();
    if with("storage") != 1 {
        faults.push(format!("{name}: {} versions are stored, and one must be (storage: true)", with("storage")));
    }
    if with("served") == 0 {
        faults.push(format!("{name}: no version is served (served: true)"));
    }
    let mut names = BTreeSet::new();
    for version in versions {
        let version_name = version.get("name").and_then(Value::as_str).unwrap_or_default();
        if !names.insert(version_name) {
            faults.push(format!("{name}: two versions are called {version_name:?}"));
        }
        match version.pointer("/schema/openAPIV3Schema") {
            None => faults.push(format!("{name}: version {version_name} has no schema.openAPIV3Schema")),
            Some(schema) => {
                let at = format!("{name} {version_name}:");
                if schema.get("type").and_then(Value::as_str) != Some("object") {
                    faults.push(format!("{at} the schema is not of type object"));
                }
                walk(schema, "", 0, &mut |path, what| {
                    faults.push(format!("{at} {}: {what}", if path.is_empty() { "the schema" } else { path }));
                });
            }
        }
    }
    faults
}

fn walk(schema: &Value, path: &str, depth: usize, wrong: &mut impl FnMut(&str, String)) {
    if depth > MAX_DEPTH {
        wrong(path, "it is nested too deeply".into());
        return;
    }
    let Some(fields) = schema.as_object() else {
        wrong(path, "it is no schema".into());
        return;
    };
    let is = |key: &str| fields.get(key).and_then(Value::as_bool) == Some(true);
    let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default();
    for key in FORBIDDEN.iter().filter(|key| fields.contains_key(**key)) {
        wrong(path, format!("`{key}` is not allowed in a CRD"));
    }
    let any = is("x-kubernetes-int-or-string") || is("x-kubernetes-preserve-unknown-fields");
    if kind.is_empty() && !any {
        wrong(path, "it has no type".into());
    }
    if is("uniqueItems") {
        wrong(path, "`uniqueItems` is not allowed; use x-kubernetes-list-type: set".into());
    }
    if fields.contains_key("properties") && fields.contains_key("additionalProperties") {
        wrong(path, "`properties` and `additionalProperties` exclude each other".into());
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for below in fields.get(key).and_then(Value::as_array).into_iter().flatten() {
            check_below(below, key, path, is("x-kubernetes-int-or-string"), wrong);
        }
    }
    if let Some(below) = fields.get("not") {
        check_below(below, "not", path, false, wrong);
    }
    for (name, property) in fields.get("properties").and_then(Value::as_object).into_iter().flatten() {
        walk(property, &format!("{path}.{name}"), depth + 1, wrong);
    }
    if let Some(values) = fields.get("additionalProperties").filter(|values| values.is_object()) {
        walk(values, &format!("{path}.*"), depth + 1, wrong);
    }
    match fields.get("items") {
        Some(items) => walk(items, &format!("{path}[]"), depth + 1, wrong),
        None if kind == "array" => wrong(path, "an array needs `items`".into()),
        None => {}
    }
    if fields.get("x-kubernetes-list-type").and_then(Value::as_str) == Some("map") {
        check_map(fields, path, wrong);
    }
}

/// Below `anyOf` and the like only values are compared; what a field is stands outside.
fn check_below(below: &Value, key: &str, path: &str, int_or_string: bool, wrong: &mut impl FnMut(&str, String)) {
    for outside in OUTSIDE.iter().filter(|outside| below.get(**outside).is_some()) {
        if !(int_or_string && *outside == "type") {
            wrong(path, format!("`{outside}` stands below `{key}`, and belongs beside it"));
        }
    }
}

/// A list by keys: each item must have them.
fn check_map(list: &serde_json::Map<String, Value>, path: &str, wrong: &mut impl FnMut(&str, String)) {
    let keys = list.get("x-kubernetes-list-map-keys").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if keys.is_empty() {
        wrong(path, "x-kubernetes-list-type is map, and x-kubernetes-list-map-keys names no key".into());
    }
    let Some(items) = list.get("items") else { return };
    for key in keys.iter().filter_map(Value::as_str) {
        let required = items.get("required").and_then(Value::as_array).into_iter().flatten().any(|r| r == key);
        let has_default = items.pointer(&format!("/properties/{key}/default")).is_some();
        if !required && !has_default {
            wrong(path, format!("the key {key} of its items is neither required nor has a default"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn crd(schema: Value) -> Value {
        json!({
            "metadata": {"name": "things.x.example.com"},
            "spec": {
                "group": "x.example.com", "scope": "Namespaced", "names": {"kind": "Thing", "plural": "things"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
            },
        })
    }

    fn field(schema: Value) -> Vec<String> {
        faults(&crd(json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"f": schema}}}})))
    }

    #[test]
    fn what_kubernetes_takes_is_taken() {
        for schema in [
            json!({"type": "string", "enum": ["a"], "nullable": true}),
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"type": "array", "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}},
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}),
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "oneOf": [{"required": ["a"]}]}),
        ] {
            assert_eq!(field(schema.clone()), Vec::<String>::new(), "{schema}");
        }
    }

    #[test]
    fn what_kubernetes_refuses_is_named_with_its_place() {
        for (schema, says) in [
            (json!({}), ".spec.f: it has no type"),
            (json!({"type": "array"}), "needs `items`"),
            (json!({"type": "array", "items": {}}), ".spec.f[]: it has no type"),
            (json!({"$ref": "#/x", "type": "string"}), "`$ref`"),
            (json!({"type": "string", "anyOf": [{"type": "string"}]}), "`type` stands below `anyOf`"),
            (json!({"type": "object", "properties": {}, "additionalProperties": false}), "exclude each other"),
            (json!({"type": "object", "additionalProperties": {}}), ".spec.f.*: it has no type"),
            (json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"}), "names no key"),
            (
                json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}),
                "neither required nor has a default",
            ),
            (json!(7), "no schema"),
        ] {
            let found = field(schema.clone());
            assert!(found.iter().any(|fault| fault.contains(says)), "{schema}: {found:?} lacks {says}");
        }
    }

    #[test]
    fn versions_must_make_sense() {
        let change = |change: fn(&mut Value)| {
            let mut crd = crd(json!({"type": "object"}));
            change(&mut crd);
            faults(&crd).join("\n")
        };
        assert_eq!(change(|_| {}), "");
        assert!(change(|c| c["spec"]["versions"] = json!([])).contains("0 versions are stored"));
        assert!(change(|c| c["spec"]["versions"][0]["served"] = false.into()).contains("no version is served"));
        assert!(change(|c| c["spec"]["versions"][0]["schema"] = json!({})).contains("no schema.openAPIV3Schema"));
        assert!(change(|c| c["spec"]["scope"] = "All".into()).contains("neither Namespaced nor Cluster"));
        assert!(change(|c| c["spec"]["names"]["kind"] = "thing".into()).contains("capital"));
        let twice = change(|c| {
            let version = c["spec"]["versions"][0].clone();
            c["spec"]["versions"].as_array_mut().unwrap().push(version);
        });
        assert!(twice.contains("2 versions are stored") && twice.contains("two versions are called"), "{twice}");
    }

    #[test]
    fn a_schema_without_end_is_given_up() {
        let mut deep = json!({"type": "object"});
        for _ in 0..100 {
            deep = json!({"type": "object", "properties": {"a": deep}});
        }
        assert!(faults(&crd(deep)).iter().any(|fault| fault.contains("nested too deeply")));
    }
}
