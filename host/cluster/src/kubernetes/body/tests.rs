//! What a body may say of its object, and what is sent of it.

use serde_json::json;

use super::*;

/// Of a kind whose objects live in namespaces, or not.
fn kind(namespaced: bool) -> (Resource, KindInfo) {
    let resource = Resource::parse("x.example.com", "v1", "things").unwrap();
    (resource, KindInfo { kind: "Thing".into(), namespaced })
}

fn refused<T: std::fmt::Debug>(result: Result<T, ApiError>, expected: &str) {
    match result {
        Err(ApiError::Invalid(text)) if text.contains(expected) => {}
        other => panic!("{other:?} lacks {expected:?}"),
    }
}

#[test]
fn a_patch_does_not_say_who_owns_what_in_whatever_words() {
    let one = |operation: Value| {
        json_patch("patch", &json!([{"op": "test", "path": "/a", "value": 1}, operation]).to_string())
    };
    for path in ["", "/metadata", "/metadata/managedFields", "/metadata/managedFields/0/manager"] {
        for operation in [
            json!({"op": "add", "path": path, "value": {}}),
            json!({"op": "replace", "path": path, "value": {}}),
            json!({"op": "remove", "path": path}),
            json!({"op": "copy", "from": "/spec", "path": path}),
            json!({"op": "move", "from": "/spec", "path": path}),
            json!({"op": "move", "from": path, "path": "/spec"}),
        ] {
            refused(one(operation), "managedFields is the API server's to write");
        }
        one(json!({"op": "test", "path": path, "value": {}})).unwrap();
        one(json!({"op": "copy", "from": path, "path": "/spec/copy"})).unwrap();
    }
    for path in ["/spec", "/managedFields", "/spec/managedFields", "/metadata/labels", "/metadata/labels/managedFields"]
    {
        let sent = one(json!({"op": "move", "from": path, "path": format!("{path}/more")})).unwrap();
        assert_eq!(sent.0.len(), 2);
    }
    let (resource, kind) = kind(true);
    let key = ObjectKey::parse(Some("n"), "a").unwrap();
    for fields in [json!([]), json!(null)] {
        let patch = json!({"metadata": {"managedFields": fields}}).to_string();
        refused(merge("patch", &patch, &resource, &kind, &key, None), "managedFields is the API server's to write");
    }
}

#[test]
fn a_merge_patch_is_sent_as_it_is_written() {
    let (resource, kind) = kind(true);
    let key = ObjectKey::parse(Some("n"), "a").unwrap();
    for patch in [
        json!({}),
        json!({"metadata": {"labels": {"x": null}}}),
        json!({"metadata": {"name": "a"}}),
        json!({"metadata": {"namespace": "n"}}),
    ] {
        assert_eq!(merge("patch", &patch.to_string(), &resource, &kind, &key, None), Ok(patch));
    }
}

#[test]
fn an_object_of_no_namespace_names_none() {
    let (resource, kind) = kind(false);
    let key = ObjectKey::parse(None, "a").unwrap();
    let read = |metadata: Value| {
        let text = json!({"metadata": metadata}).to_string();
        let whole =
            object("create", &text, &resource, &kind, None, Some(&key), None).map(|object| object["metadata"].clone());
        let patch = merge("patch", &text, &resource, &kind, &key, None).map(|patch| patch["metadata"].clone());
        (whole, patch)
    };
    for metadata in [json!({"name": "a"}), json!({"name": "a", "namespace": ""})] {
        assert_eq!(read(metadata.clone()), (Ok(metadata.clone()), Ok(metadata)));
    }
    for namespace in [json!("n"), json!(null), json!(1)] {
        let (whole, patch) = read(json!({"name": "a", "namespace": namespace}));
        refused(whole, "the object names a namespace, and the call none");
        refused(patch, "the object names a namespace, and the call none");
    }
}

#[test]
fn what_yaml_reads_otherwise_is_escaped() {
    let foreign = "\u{7f}\u{85}\u{9f}\u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}";
    let object = json!({"a\u{85}": format!("\\{foreign}\"é😀\n"), "b": [1, "\u{a0}"]});
    let sent = String::from_utf8(yaml(object.clone())).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&sent).unwrap(), object);
    assert!(!sent.contains(|c: char| foreign.contains(c)), "{sent}");
    assert!(sent.contains(r#""a\u0085":"\\\u007f"#) && sent.contains("\\\"é😀\\n"), "{sent}");
    assert_eq!(yaml(json!({"a": "é"})), r#"{"a":"é"}"#.as_bytes());
}
