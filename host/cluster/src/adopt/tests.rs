//! Whose fields an object's managed fields say they are, before and after.

use operetta_core::name::{ControllerName, PluginName};

use super::*;
use crate::{
    kinds::Kinds,
    testing::{FakeApi, Sent},
};

fn entry(manager: &str, operation: &str, subresource: &str, fields: Value) -> Value {
    let mut entry = json!({"manager": manager, "operation": operation, "apiVersion": "x.example.com/v1", "fieldsType": "FieldsV1",
        "time": "2026-01-01T00:00:00Z", "fieldsV1": fields});
    if !subresource.is_empty() {
        entry["subresource"] = subresource.into();
    }
    entry
}

fn thing(owner: &str, entries: Value) -> Value {
    json!({"metadata": {"name": "a", "namespace": "n", "resourceVersion": "7", "managedFields": entries, "ownerReferences": [
        {"apiVersion": "y.example.com/v2", "kind": owner, "name": "o", "uid": "1", "controller": true}]}})
}

fn heir() -> FieldManager {
    FieldManager::of(&PluginName::parse("p").unwrap(), &ControllerName::parse("c").unwrap())
}

fn listed() -> Value {
    json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": "x.example.com"}, "versions": [{"version": "v1",
        "resources": [{"resource": "things", "scope": "Namespaced", "responseKind": {"kind": "Thing"}}]}]}]})
}

/// Answers a list of things with these, and a patch as told.
async fn api(
    objects: Value,
    patched: impl Fn(&Sent) -> (u16, Value) + Send + Sync + 'static,
) -> (std::sync::Arc<FakeApi>, Kind) {
    let api = FakeApi::new(move |sent| match (sent.method.as_str(), sent.path.as_str()) {
        (_, "/api") => Some((200, json!({"kind": "APIGroupDiscoveryList", "items": []}))),
        (_, "/apis") => Some((200, listed())),
        ("PATCH", _) => Some(patched(sent)),
        ("GET", path) if path.ends_with("/a") => Some((200, objects[0].clone())),
        ("GET", _) => Some((200, json!({"items": objects}))),
        _ => None,
    });
    let kind = Kinds::read(&api.client()).await.unwrap().named("things").unwrap().clone();
    (api, kind)
}

fn patches(api: &FakeApi) -> Vec<Value> {
    let sent = api.sent();
    sent.iter().filter(|sent| sent.method == "PATCH").map(|sent| serde_json::from_str(&sent.body).unwrap()).collect()
}

fn old() -> Vec<String> {
    vec!["old".to_owned()]
}

#[tokio::test]
async fn what_the_old_manager_owns_becomes_the_plugins_and_nothing_else_changes() {
    let entries = json!([
        entry("old", "Update", "", json!({"f:spec": {"f:size": {}, "f:list": {".": {}, "v:1": {}}}})),
        entry("old", "Update", "status", json!({"f:status": {}})),
        entry("other", "Update", "", json!({"f:spec": {"f:theirs": {}}})),
        entry("operetta:p/c", "Apply", "", json!({"f:spec": {"f:size": {}, "f:list": {}}})),
        entry("old", "Apply", "", json!({"f:metadata": {"f:labels": {"f:b": {}}}})),
    ]);
    let (api, kind) = api(json!([thing("Owner", entries.clone())]), |_| (200, json!({}))).await;
    let heir = heir();
    let adoption =
        Adoption { kind: &kind, controlled_by: Some(("y.example.com", "Owner")), subresource: None, heir: &heir };
    let client = api.client();
    let expected = [Adopted { key: ObjectKey::parse(Some("n"), "a").unwrap(), fields: 3 }];
    assert_eq!(adopt(&client, &adoption, None, &old(), false).await.unwrap(), expected);
    assert!(patches(&api).is_empty(), "only told what would be");
    assert_eq!(adopt(&client, &adoption, None, &old(), true).await.unwrap(), expected);
    let patch = patches(&api).remove(0);
    let united = json!({
        "f:spec": {"f:size": {}, "f:list": {".": {}, "v:1": {}}},
        "f:metadata": {"f:labels": {"f:b": {}}},
    });
    let after = json!([entries[1], entries[2], entry("operetta:p/c", "Apply", "", united)]);
    assert_eq!(
        patch,
        json!([
            {"op": "replace", "path": "/metadata/managedFields", "value": after},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        ])
    );
    let owners = owners(&client, &adoption, None).await.unwrap();
    assert_eq!(owners, [("old".to_owned(), (3, 1)), ("other".to_owned(), (1, 1))].into());
}

#[tokio::test]
async fn of_a_primary_only_the_status_changes_hands() {
    let entries = json!([
        entry("old", "Update", "", json!({"f:metadata": {"f:finalizers": {".": {}, "v:\"x\"": {}}}})),
        entry("old", "Update", "status", json!({"f:status": {"f:phase": {}}})),
    ]);
    let (api, kind) = api(json!([thing("Owner", entries.clone())]), |_| (200, json!({}))).await;
    let heir = heir();
    let adoption = Adoption { kind: &kind, controlled_by: None, subresource: Some("status"), heir: &heir };
    adopt(&api.client(), &adoption, None, &old(), true).await.unwrap();
    let mut after = entry("operetta:p/c", "Apply", "", json!({"f:status": {"f:phase": {}}}));
    after["subresource"] = "status".into();
    assert_eq!(patches(&api)[0][0]["value"], json!([entries[0], after]));
}

#[tokio::test]
async fn objects_of_somebody_else_and_those_without_an_old_manager_are_left_alone() {
    let entries = json!([entry("old", "Update", "", json!({"f:spec": {}}))]);
    let theirs =
        json!([thing("Another", entries), thing("Owner", json!([entry("x", "Update", "", json!({"f:a": {}}))]))]);
    let (api, kind) = api(theirs, |_| (200, json!({}))).await;
    let heir = heir();
    let adoption =
        Adoption { kind: &kind, controlled_by: Some(("y.example.com", "Owner")), subresource: None, heir: &heir };
    assert!(adopt(&api.client(), &adoption, None, &old(), true).await.unwrap().is_empty());
    assert!(patches(&api).is_empty());
}

#[tokio::test]
async fn one_that_changes_meanwhile_is_looked_at_anew_but_not_for_ever() {
    let entries = json!([entry("old", "Update", "", json!({"f:spec": {}}))]);
    let conflict = || (409, json!({"kind": "Status", "reason": "Conflict", "message": "changed", "code": 409}));
    let (api, kind) = api(json!([thing("Owner", entries)]), move |_| conflict()).await;
    let heir = heir();
    let adoption = Adoption { kind: &kind, controlled_by: None, subresource: None, heir: &heir };
    let error = adopt(&api.client(), &adoption, None, &old(), true).await.unwrap_err().to_string();
    assert!(
        error.contains("things.v1.x.example.com n/a changes all the time") && error.contains("Scale it down"),
        "{error}"
    );
    assert_eq!(patches(&api).len(), ATTEMPTS);
}

#[tokio::test]
async fn fields_of_another_version_are_refused_with_a_way_out() {
    let mut foreign = entry("old", "Update", "", json!({"f:spec": {}}));
    foreign["apiVersion"] = "x.example.com/v1beta1".into();
    let (api, kind) = api(json!([thing("Owner", json!([foreign]))]), |_| (200, json!({}))).await;
    let heir = heir();
    let adoption = Adoption { kind: &kind, controlled_by: None, subresource: None, heir: &heir };
    let error = adopt(&api.client(), &adoption, None, &old(), true).await.unwrap_err().to_string();
    assert!(error.contains("owned by old as x.example.com/v1beta1") && error.contains("write it once"), "{error}");
    assert!(patches(&api).is_empty());
}
