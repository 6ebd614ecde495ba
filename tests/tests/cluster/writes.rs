//! Writes on a real API server: what is sent and what is not, who owns which field, and that own writes are read back.

use kube::api::{Patch as KubePatch, PatchParams};
use operetta_core::{
    cache::Subscription,
    name::Subresource,
    port::{ApiError, DeleteOptions, Event, Kubernetes, Patch, Severity},
    resource::Resource,
};
use serde_json::{Value, json};

use crate::{
    layer::{Layer, caller, config_maps, layer, told},
    shared::position,
};

fn deployments() -> Resource {
    Resource::parse("apps", "v1", "deployments").unwrap()
}

async fn apply(
    layer: &Layer,
    kubernetes: &dyn Kubernetes,
    plugin: &str,
    resource: &Resource,
    name: &str,
    body: &Value,
) -> Result<Value, ApiError> {
    let body = Patch::Apply(body.to_string());
    let object = kubernetes.patch(&caller(plugin), resource, &layer.key(name), None, body).await?;
    Ok(serde_json::from_str(&object).unwrap())
}

/// Waits until the cache itself holds this version, so that what follows is decided by the informer's object and not by an answer.
async fn seen(subscription: &mut Subscription, object: &Value) {
    let name = object["metadata"]["name"].as_str().unwrap();
    loop {
        if told(subscription, name, true).await.unwrap()["metadata"]["resourceVersion"]
            == object["metadata"]["resourceVersion"]
        {
            return;
        }
    }
}

fn deployment() -> Value {
    json!({
        "metadata": {"labels": {"x": "y"}},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": {"x": "y"}},
            "template": {"metadata": {"labels": {"x": "y"}}, "spec": {
                "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{
                    "name": "c", "image": "i", "command": ["memcached", "-m=64"], "ports": [{"containerPort": 11211, "name": "m"}],
                    "securityContext": {"runAsUser": 1001, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                }],
            }},
        },
    })
}

#[tokio::test]
async fn an_apply_that_changes_nothing_sends_nothing_though_the_server_filled_in_defaults() {
    let layer = layer().await;
    let p = layer.capable("p").await;
    let mut subscription = layer.subscribe(&p, &deployments()).await;
    let kubernetes = layer.kubernetes(&p);
    let owner = layer.apply("", "v1", "ConfigMap", "configmaps", &json!({"metadata": {"name": "owner"}})).await;
    let mut body = deployment();
    body["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid, "controller": true, "blockOwnerDeletion": true,
    }]);
    let applied = apply(&layer, &*kubernetes, "p", &deployments(), "d", &body).await.unwrap();
    assert_eq!(applied["spec"]["strategy"]["type"], "RollingUpdate");
    seen(&mut subscription, &applied).await;
    // The deployment's controller writes its status now and then, which makes the versions differ from the answer's.
    let since = position(&layer.namespace).await;
    for _ in 0..5 {
        apply(&layer, &*kubernetes, "p", &deployments(), "d", &body).await.unwrap();
    }
    // Others' fields make no difference.
    let theirs = json!({"metadata": {"name": "d", "labels": {"theirs": "1"}}, "spec": {"paused": true}});
    layer.apply("apps", "v1", "Deployment", "deployments", &theirs).await;
    while told(&mut subscription, "d", true).await.unwrap()["metadata"]["labels"]["theirs"] != "1" {}
    apply(&layer, &*kubernetes, "p", &deployments(), "d", &body).await.unwrap();
    if let Some(requests) = layer.requests(&p, since).await {
        assert!(requests.iter().all(|r| !r.is_write()), "{requests:#?}");
    }
    // Scaled by hand: goes back.
    let api = layer.api("apps", "v1", "Deployment", "deployments");
    api.patch("d", &PatchParams::default(), &KubePatch::Merge(json!({"spec": {"replicas": 3}}))).await.unwrap();
    while told(&mut subscription, "d", true).await.unwrap()["spec"]["replicas"] != 3 {}
    let again = apply(&layer, &*kubernetes, "p", &deployments(), "d", &body).await.unwrap();
    assert_eq!((&again["spec"]["replicas"], &again["spec"]["paused"]), (&json!(0), &json!(true)));
    // A field that the body no longer names goes.
    body["spec"].as_object_mut().unwrap().remove("replicas");
    let removed = apply(&layer, &*kubernetes, "p", &deployments(), "d", &body).await.unwrap();
    assert_eq!(removed["spec"]["replicas"], 1, "the default again");
}

/// Many shapes of a custom resource: each applied, seen by the informer, and applied again without a request; then each changed into the next, which must arrive.
#[tokio::test]
async fn no_op_and_change_are_told_apart_in_every_shape_that_a_schema_can_have() {
    let layer = layer().await;
    layer.define_things().await;
    let p = layer.account("p").await;
    layer.allow(&p, &[&layer.group()], &["things", "things/status"]).await;
    let mut subscription = layer.subscribe(&p, &layer.things()).await;
    let kubernetes = layer.kubernetes(&p);
    let shapes = [
        json!({"size": 1}),
        json!({"size": 1, "colour": "blue"}),
        json!({"colour": "blue"}),
        json!({"ports": [{"port": 80}]}),
        json!({"ports": [{"port": 80, "protocol": "TCP"}]}),
        json!({"ports": [{"port": 80, "protocol": "UDP"}]}),
        json!({"ports": [{"port": 80}, {"port": 80, "protocol": "UDP", "name": "u"}]}),
        json!({"ports": [{"port": 81}, {"port": 80}]}),
        json!({"ports": [{"port": 80}, {"port": 81}]}),
        json!({"tags": ["b", "a"]}),
        json!({"tags": ["a", "b", "c"]}),
        json!({"tags": ["a"]}),
        json!({"plain": [{"a": "1"}, {"a": "2", "b": "B"}]}),
        json!({"plain": []}),
        json!({"map": {"k": {"x": 1}, "l": {}}}),
        json!({"map": {"k": {"x": 2}}}),
        json!({"free": {"deep": {"list": [1, {"a": 1.5}], "empty": {}}, "text": "x"}}),
        json!({"free": {"deep": {"list": [1, {"a": 1.5}]}}}),
        json!({"ratio": 1}),
        json!({"ratio": 1.5, "size": -3}),
    ];
    let mut sent_again = Vec::new();
    for spec in &shapes {
        let body = json!({"metadata": {"labels": {"app.kubernetes.io/name": "x"}}, "spec": spec});
        let applied = apply(&layer, &*kubernetes, "p", &layer.things(), "t", &body).await.unwrap();
        seen(&mut subscription, &applied).await;
        // Someone else's change makes the version differ from the one that the apply was answered with.
        let annotation = json!({"metadata": {"annotations": {"noise": applied["metadata"]["resourceVersion"]}}});
        let api = layer.api(&layer.group(), "v1", "Thing", "things");
        let noisy = api.patch("t", &PatchParams::default(), &KubePatch::Merge(annotation)).await.unwrap();
        seen(&mut subscription, &json!({"metadata": noisy.metadata})).await;
        let since = position(&layer.namespace).await;
        let again = apply(&layer, &*kubernetes, "p", &layer.things(), "t", &body).await.unwrap();
        assert_eq!(
            json!(noisy.metadata.resource_version),
            again["metadata"]["resourceVersion"],
            "{spec}: nothing has changed"
        );
        if let Some(requests) = layer.requests(&p, since).await
            && requests.iter().any(operetta_tests::control_plane::audit::Request::is_write)
        {
            sent_again.push(spec.to_string());
        }
        for (field, value) in spec.as_object().unwrap() {
            if !["ports", "plain"].contains(&field.as_str()) {
                assert_eq!(&again["spec"][field], value, "{spec}");
            }
        }
    }
    // In doubt a request goes out: the server filled in a default within a list that is owned at once.
    let doubtful: Vec<_> = shapes.iter().filter(|s| s["plain"][0]["a"] == "1").map(ToString::to_string).collect();
    if shared_audit() {
        assert_eq!(sent_again, doubtful);
    }
}

fn shared_audit() -> bool {
    crate::shared::shared().audit_log().is_some()
}

#[tokio::test]
async fn a_status_that_is_as_desired_is_not_written() {
    let layer = layer().await;
    layer.define_things().await;
    let p = layer.account("p").await;
    layer.allow(&p, &[&layer.group()], &["things", "things/status"]).await;
    let mut subscription = layer.subscribe(&p, &layer.things()).await;
    let kubernetes = layer.kubernetes(&p);
    layer
        .apply(&layer.group(), "v1", "Thing", "things", &json!({"metadata": {"name": "t"}, "spec": {"size": 1}}))
        .await;
    told(&mut subscription, "t", true).await;
    let status: Subresource = "status".parse().unwrap();
    let put = async |status_of: Value| {
        let body = Patch::Apply(json!({"status": status_of}).to_string());
        let object =
            kubernetes.patch(&caller("p"), &layer.things(), &layer.key("t"), Some(&status), body).await.unwrap();
        serde_json::from_str::<Value>(&object).unwrap()
    };
    let desired = json!({"id": "7", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let written = put(desired.clone()).await;
    seen(&mut subscription, &written).await;
    let since = position(&layer.namespace).await;
    let again = put(desired.clone()).await;
    assert_eq!(again["status"], desired);
    if let Some(requests) = layer.requests(&p, since).await {
        assert!(requests.iter().all(|r| !r.is_write()), "{requests:#?}");
    }
    assert_eq!(put(json!({"id": "8"})).await["status"], json!({"id": "8"}));
}

#[tokio::test]
async fn a_field_of_kubectl_is_taken_over_and_one_of_another_plugin_is_a_conflict() {
    let layer = layer().await;
    let (p, q) = (layer.capable("p").await, layer.capable("q").await);
    let _subscriptions = (layer.subscribe(&p, &config_maps()).await, layer.subscribe(&q, &config_maps()).await);
    layer
        .apply(
            "",
            "v1",
            "ConfigMap",
            "configmaps",
            &json!({"metadata": {"name": "a"}, "data": {"k": "kubectl", "other": "1"}}),
        )
        .await;
    let body = |value: &str| json!({"data": {"k": value}});
    let kubernetes = layer.kubernetes(&p);
    let taken = apply(&layer, &*kubernetes, "p", &config_maps(), "a", &body("p")).await.unwrap();
    assert_eq!(taken["data"], json!({"k": "p", "other": "1"}));
    let error = apply(&layer, &*layer.kubernetes(&q), "q", &config_maps(), "a", &body("q")).await.unwrap_err();
    let ApiError::Conflict(why) = error else { panic!("{error:?}") };
    assert!(why.contains("another plugin owns .data.k, which operetta:q/c would set otherwise"), "{why}");
    assert!(!why.contains("operetta:p"), "which one that is, no plugin learns: {why}");
    // Agreeing is no conflict.
    apply(&layer, &*layer.kubernetes(&q), "q", &config_maps(), "a", &body("p")).await.unwrap();
    // Nor does a plugin set otherwise by other means what another applied.
    let merge = json!({"data": {"k": "q"}});
    let patch = Patch::Merge(merge.to_string());
    let error =
        layer.kubernetes(&q).patch(&caller("q"), &config_maps(), &layer.key("a"), None, patch).await.unwrap_err();
    let ApiError::Conflict(why) = error else { panic!("{error:?}") };
    assert!(why.contains("another plugin owns .data.k, which operetta:q/c would set otherwise"), "{why}");
    // Where it does all the same, since nobody saw whose it was, who applied it has it again.
    apply(&layer, &*layer.kubernetes(&q), "q", &config_maps(), "a", &json!({"data": {"own": "q"}})).await.unwrap();
    let unseen = PatchParams { field_manager: Some("operetta:q/c".into()), ..PatchParams::default() };
    let api = layer.api("", "v1", "ConfigMap", "configmaps");
    api.patch("a", &unseen, &KubePatch::Merge(merge)).await.unwrap();
    let again = apply(&layer, &*kubernetes, "p", &config_maps(), "a", &body("p2")).await.unwrap();
    assert_eq!(again["data"], json!({"k": "p2", "other": "1", "own": "q"}));
    // What it never applied stays another's.
    api.patch("a", &unseen, &KubePatch::Merge(json!({"data": {"later": "q"}}))).await.unwrap();
    let error =
        apply(&layer, &*kubernetes, "p", &config_maps(), "a", &json!({"data": {"k": "p2", "later": "p"}})).await;
    assert!(matches!(error, Err(ApiError::Conflict(_))), "{error:?}");
    // What one created by other means than apply is no obstacle to its own apply.
    let created = json!({"metadata": {"name": "b"}, "data": {"k": "1"}}).to_string();
    kubernetes.create(&caller("p"), &config_maps(), Some(&layer.here()), created.clone()).await.unwrap();
    let again = kubernetes.create(&caller("p"), &config_maps(), Some(&layer.here()), created).await;
    assert!(matches!(again, Err(ApiError::AlreadyExists(_))), "{again:?}");
    assert_eq!(apply(&layer, &*kubernetes, "p", &config_maps(), "b", &body("2")).await.unwrap()["data"]["k"], "2");
}

#[tokio::test]
async fn own_writes_are_read_back_at_once() {
    let layer = layer().await;
    let p = layer.capable("p").await;
    let _subscription = layer.subscribe(&p, &config_maps()).await;
    let kubernetes = layer.kubernetes(&p);
    let who = caller("p");
    let key = layer.key("a");
    for round in 0..30 {
        let value = round.to_string();
        apply(&layer, &*kubernetes, "p", &config_maps(), "a", &json!({"data": {"k": value}})).await.unwrap();
        let read: Value =
            serde_json::from_str(&kubernetes.get(&who, &config_maps(), &key, false).await.unwrap()).unwrap();
        assert_eq!(read["data"]["k"], value);
        let merge = Patch::Merge(json!({"data": {"m": value}}).to_string());
        kubernetes.patch(&who, &config_maps(), &key, None, merge).await.unwrap();
        let read: Value =
            serde_json::from_str(&kubernetes.get(&who, &config_maps(), &key, false).await.unwrap()).unwrap();
        assert_eq!(read["data"]["m"], value);
        if round % 3 == 0 {
            kubernetes.delete(&who, &config_maps(), &key, &DeleteOptions::default()).await.unwrap();
            let read = kubernetes.get(&who, &config_maps(), &key, false).await;
            assert!(matches!(read, Err(ApiError::NotFound(_))), "{read:?}");
            let gone = kubernetes.delete(&who, &config_maps(), &key, &DeleteOptions::default()).await;
            assert!(matches!(gone, Err(ApiError::NotFound(_))), "{gone:?}");
        }
    }
}

#[tokio::test]
async fn the_last_finalizer_takes_the_object_along() {
    let layer = layer().await;
    let p = layer.capable("p").await;
    let _subscription = layer.subscribe(&p, &config_maps()).await;
    let kubernetes = layer.kubernetes(&p);
    let who = caller("p");
    let key = layer.key("a");
    apply(&layer, &*kubernetes, "p", &config_maps(), "a", &json!({"metadata": {"finalizers": ["example.com/f"]}}))
        .await
        .unwrap();
    kubernetes.delete(&who, &config_maps(), &key, &DeleteOptions::default()).await.unwrap();
    let held = kubernetes.get(&who, &config_maps(), &key, false).await.unwrap().json.clone();
    assert!(held.contains("deletionTimestamp"), "{held}");
    apply(&layer, &*kubernetes, "p", &config_maps(), "a", &json!({"metadata": {"labels": {"x": "y"}}})).await.unwrap();
    let read = kubernetes.get(&who, &config_maps(), &key, false).await;
    assert!(matches!(read, Err(ApiError::NotFound(_))), "{read:?}");
}

#[tokio::test]
async fn errors_of_the_api_server_keep_their_meaning() {
    let layer = layer().await;
    let p = layer.capable("p").await;
    layer.subscribe(&p, &config_maps()).await;
    let kubernetes = layer.kubernetes(&p);
    let who = caller("p");
    let replace =
        |name: &str, version: &str| json!({"metadata": {"name": name, "resourceVersion": version}}).to_string();
    let error = kubernetes.replace(&who, &config_maps(), &layer.key("no"), None, replace("no", "1")).await.unwrap_err();
    assert!(matches!(error, ApiError::NotFound(_)), "{error:?}");
    apply(&layer, &*kubernetes, "p", &config_maps(), "a", &json!({"data": {"k": "v"}})).await.unwrap();
    let error = kubernetes.replace(&who, &config_maps(), &layer.key("a"), None, replace("a", "1")).await.unwrap_err();
    assert!(matches!(error, ApiError::Conflict(_)), "{error:?}");
    let error = apply(&layer, &*kubernetes, "p", &config_maps(), "a", &json!({"data": {"k": 1}})).await.unwrap_err();
    assert!(matches!(error, ApiError::Invalid(_) | ApiError::Unavailable(_)), "{error:?}");
    let options =
        DeleteOptions { uid: Some("00000000-0000-0000-0000-000000000000".into()), ..DeleteOptions::default() };
    let error = kubernetes.delete(&who, &config_maps(), &layer.key("a"), &options).await.unwrap_err();
    assert!(matches!(error, ApiError::Conflict(_)), "{error:?}");
    let pods = Resource::parse("", "v1", "pods").unwrap();
    let error = kubernetes.get(&who, &pods, &layer.key("a"), false).await.unwrap_err();
    assert!(matches!(&error, ApiError::Forbidden(why) if why.contains("cannot get resource")), "{error:?}");
    let nothings = Resource::parse("nothing.example.com", "v1", "nothings").unwrap();
    let error = kubernetes.get(&who, &nothings, &layer.key("a"), false).await.unwrap_err();
    assert!(matches!(&error, ApiError::NotFound(why) if why.contains("CustomResourceDefinition")), "{error:?}");
}

#[tokio::test]
async fn repeated_events_become_one_that_counts() {
    let layer = layer().await;
    let p = layer.capable("p").await;
    let _subscription = layer.subscribe(&p, &config_maps()).await;
    let kubernetes = layer.kubernetes(&p);
    let object = apply(&layer, &*kubernetes, "p", &config_maps(), "a", &json!({"data": {"k": "v"}})).await.unwrap();
    for _ in 0..3 {
        let event = Event {
            resource: config_maps(),
            key: layer.key("a"),
            severity: Severity::Warning,
            reason: "Deleting".into(),
            action: "Delete".into(),
            message: "it goes".into(),
        };
        kubernetes.publish(&caller("p"), event).await.unwrap();
    }
    let events =
        layer.api("events.k8s.io", "v1", "Event", "events").list(&kube::api::ListParams::default()).await.unwrap();
    let events: Vec<_> = events.items.iter().filter(|e| e.data["reason"] == "Deleting").collect();
    assert_eq!(events.len(), 1);
    let event = &events[0].data;
    assert_eq!(
        (&event["series"]["count"], &event["note"], &event["type"]),
        (&json!(3), &json!("it goes"), &json!("Warning"))
    );
    assert_eq!(event["regarding"]["uid"], object["metadata"]["uid"]);
}
