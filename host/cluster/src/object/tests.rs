//! What is kept of an object.

use serde_json::json;

use super::*;

#[test]
fn of_managed_fields_only_what_plugins_own_by_apply_is_kept_beside_the_object() {
    let managed = |manager: &str, operation: &str| json!({"manager": manager, "operation": operation, "fieldsV1": {"f:spec": {}}});
    let object = json!({"metadata": {"name": "a", "managedFields": [
        managed("kubectl", "Apply"), managed("operetta:p/c", "Apply"), managed("operetta:p/c", "Update"),
    ]}});
    let (_, entry) = Entry::of(object, "v1", "Pod").unwrap();
    let owned: Value = serde_json::from_str(entry.owned.as_deref().unwrap()).unwrap();
    assert_eq!(owned, json!([managed("operetta:p/c", "Apply")]));
    let kept: Value = serde_json::from_str(&entry.cached.json).unwrap();
    assert_eq!(kept, json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}));
}

#[test]
fn anything_that_is_json_is_decoded() {
    for text in ["null", "1", "[]", "{}", r#"{"metadata":5}"#, r#"{"metadata":{"name":5,"resourceVersion":[]}}"#] {
        let watched: Watched = serde_json::from_str(text).unwrap();
        assert!(Entry::of_text(&watched.object, "v1", "Pod").is_err(), "{text}");
    }
    let deep = format!(r#"{{"metadata":{{"name":"deep"}},"spec":{}{}}}"#, "[".repeat(500), "]".repeat(500));
    let watched: Watched = serde_json::from_str(&deep).unwrap();
    let error = Entry::of_text(&watched.object, "v1", "Pod").unwrap_err().to_string();
    assert!(error.contains("the object deep: recursion limit"), "{error}");
}

#[test]
fn an_object_is_gone_once_nothing_holds_it() {
    let of = |more: Value| {
        let mut metadata = json!({"name": "a"});
        metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        still_there(&json!({"metadata": metadata}))
    };
    assert!(of(json!({})));
    assert!(of(json!({"deletionTimestamp": null})));
    assert!(of(json!({"deletionTimestamp": "t", "finalizers": ["a/b"]})));
    assert!(of(json!({"deletionTimestamp": "t", "deletionGracePeriodSeconds": 30})));
    assert!(!of(json!({"deletionTimestamp": "t", "finalizers": [], "deletionGracePeriodSeconds": 0})));
    assert!(!of(json!({"deletionTimestamp": "t"})));
}
