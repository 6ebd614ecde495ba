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

#[test]
fn of_an_object_without_room_no_more_is_kept_than_routes_ask_for() {
    let owner = |name: &str, controls: bool| json!({"apiVersion": "x.example.com/v1", "kind": "Thing", "name": name, "uid": "u", "controller": controls});
    let many = |first: Value| {
        let mut all = Map::from_iter([("a".to_owned(), first)]);
        all.extend((0..10_000).map(|n| (format!("other-{n}"), json!("v"))));
        all
    };
    let (labels, mut annotations) = (many(json!("thor")), many(json!("x".repeat(100_000))));
    annotations.insert("operetta.dev/paused".into(), json!("why not ".repeat(1_000)));
    annotations.insert("operetta.dev/reconcile-requested-at".into(), json!("x".repeat(100_000)));
    let mut owners: Vec<_> = (0..1_000).map(|n| owner(&format!("other-{n}"), false)).collect();
    owners.push(owner("thor", true));
    let metadata = json!({
        "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "labels": labels, "annotations": annotations,
        "ownerReferences": owners, "finalizers": vec!["x.example.com/f"; 1_000],
    });
    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": "x".repeat(100_000)});
    let (_, whole) = Entry::of(object, "v1", "Pod").unwrap();
    let outline = whole.outline();
    let (meta, json) = (&outline.cached.meta, &outline.cached.json);
    assert!(json.len() < 3 * OUTLINE, "{}", json.len());
    assert!(json.contains(r#""a":"thor""#) && json.contains(r#""kind":"Pod""#) && json.contains(r#""name":"a""#));
    assert!(meta.is_paused() && meta.requested().is_some_and(|when| when.len() == LONGEST_NAME));
    assert_eq!((meta.owners.len(), meta.finalizers.len(), meta.told.len()), (1, 0, 2));
    // Whether anything changed is seen as ever.
    let of = |meta: &Meta| (meta.uid.clone(), meta.resource_version.clone(), meta.labels, meta.annotations);
    assert_eq!(of(meta), of(&whole.cached.meta));
    assert_eq!(meta.controller(), whole.cached.meta.controller());
    // What is usual is kept as it is.
    let (_, usual) =
        Entry::of(json!({"metadata": {"name": "a", "labels": {"a": "b"}, "annotations": {"c": "d"}}}), "v1", "Pod")
            .unwrap();
    let kept = usual.outline().cached.value();
    assert_eq!(
        (&kept["metadata"]["labels"], &kept["metadata"]["annotations"]),
        (&json!({"a": "b"}), &json!({"c": "d"}))
    );
    // Nobody pushes out what a person says to the host, not even with more of its kind.
    let mut said: Map<String, Value> = (0..1_000).map(|n| (format!("operetta.dev/a-{n}"), json!("x"))).collect();
    said.insert("operetta.dev/paused".into(), json!("\u{e4}".repeat(200)));
    let (_, full) = Entry::of(json!({"metadata": {"name": "a", "annotations": said}}), "v1", "Pod").unwrap();
    let kept = full.outline().cached.meta.clone();
    assert!(kept.is_paused() && kept.told.len() < 1_000);
    let long = json!({"metadata": {"name": "a", "ownerReferences": [owner(&"x".repeat(254), true)]}});
    assert!(Entry::of(long, "v1", "Pod").unwrap().1.outline().cached.meta.controller().is_none());
}
