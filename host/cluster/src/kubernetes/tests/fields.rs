//! Whose a field is, of two plugins that write it.

use super::*;

/// A thing of version 3 whose size this manager applied.
fn applied_by(manager: &str) -> Value {
    let mut thing = applied("a", 3);
    thing["metadata"]["managedFields"][0]["manager"] = manager.into();
    thing
}

/// What another plugin is told of, until it is dropped.
async fn watched_by_another(cluster: &Cluster) -> Subscription {
    let mut theirs = cluster.informers().subscribe(&actor("q"), &things(), &Scope::All.extents()).await.unwrap();
    while !matches!(theirs.changes.recv().await.unwrap(), Change::Synced) {}
    theirs
}

/// The writes that reached the API server.
fn writes(api: &FakeApi) -> usize {
    api.about_things().iter().filter(|sent| !sent.starts_with("GET")).count()
}

fn merge(spec: Value) -> Patch {
    Patch::Merge(json!({"spec": spec}).to_string())
}

fn operation(operation: Value) -> Patch {
    Patch::Json(json!([operation]).to_string())
}

/// Sets the size, where this holds.
fn resized_if(path: &str, value: Value) -> Patch {
    let test = json!({"op": "test", "path": path, "value": value});
    Patch::Json(json!([test, {"op": "replace", "path": "/spec/size", "value": 4}]).to_string())
}

/// A first finalizer, as the SDK adds it.
fn first_finalizer() -> Patch {
    let test = json!({"op": "test", "path": "/metadata/finalizers", "value": null});
    Patch::Json(json!([test, {"op": "add", "path": "/metadata/finalizers", "value": ["p/f"]}]).to_string())
}

#[tokio::test(start_paused = true)]
async fn what_another_plugin_applied_is_set_otherwise_by_no_patch() {
    // Whose account may not read the object learns nothing of it from the cache of another.
    for (manager, may_read) in [("operetta:q/web", true), ("operetta:q/web", false), ("operetta:p/other", true)] {
        let there = applied_by(manager);
        let api = FakeApi::new({
            let there = there.clone();
            move |sent| match sent.method.as_str() {
                "GET" if !sent.path.ends_with("/things/a") => None,
                "GET" if !may_read => Some(status(403, "Forbidden", "no", &json!({}))),
                "GET" | "PATCH" => Some((200, there.clone())),
                _ => None,
            }
        });
        api.set_things(vec![there]);
        let cluster = api.cluster();
        let _theirs = watched_by_another(&cluster).await;
        let (kubernetes, said) = overheard(&cluster);
        for (patch, takes) in [
            (merge(json!({"size": 4})), true),
            (merge(json!({"size": null})), true),
            (merge(json!({"size": 3, "more": 1})), false),
            (operation(json!({"op": "replace", "path": "/spec/size", "value": 4})), true),
            (operation(json!({"op": "remove", "path": "/spec"})), true),
            (operation(json!({"op": "add", "path": "/spec/more", "value": 4})), false),
            // Who can say what it comes to is the API server.
            (operation(json!({"op": "copy", "from": "/spec/size", "path": "/spec/more"})), true),
            (first_finalizer(), false),
            (resized_if("/spec/size", json!(3)), true),
            (resized_if("/spec/more", json!(null)), true),
            // Refused by the API server.
            (resized_if("/spec/size", json!(99)), false),
            (resized_if("/spec/more", json!(99)), false),
            // Whether these hold, too.
            (resized_if("/spec/list/-1", json!(99)), true),
            (resized_if("/metadata/managedFields/0/manager", json!("operetta:q/web")), true),
        ] {
            let (before, shown) = (writes(&api), format!("{manager} {may_read} {patch:?}"));
            let answer = kubernetes.patch(&caller("p"), &things(), &key("a"), None, patch).await;
            if takes && may_read && manager == "operetta:q/web" {
                let Err(ApiError::Conflict(text)) = answer else { panic!("{shown}: {answer:?}") };
                assert!(text.contains("another plugin owns ") && !text.contains("q/web"), "{text}");
                assert_eq!(writes(&api), before, "{shown}");
            } else {
                answer.unwrap();
                assert_eq!(writes(&api), before + 1, "{shown}");
            }
        }
        let told = said.lock().unwrap().iter().any(|text| text.contains("operetta:q/web owns .spec.size"));
        assert_eq!(told, may_read && manager == "operetta:q/web");
        // Of another part nothing was applied.
        let part = Subresource::parse("status").unwrap();
        let patch = merge(json!({"size": 4}));
        kubernetes.patch(&caller("p"), &things(), &key("a"), Some(&part), patch).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_live_read_that_fails_lets_no_write_out() {
    for failure in [status(500, "InternalError", "etcd", &json!({})), (0, json!("connection reset"))] {
        let api = FakeApi::new(move |sent| match sent.method.as_str() {
            "GET" => sent.path.ends_with("/things/a").then(|| failure.clone()),
            "PATCH" => Some((200, thing("a", 4))),
            _ => None,
        });
        api.set_things(vec![applied_by("operetta:q/web")]);
        let cluster = api.cluster();
        let _theirs = watched_by_another(&cluster).await;
        let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
        let patch = merge(json!({"size": 4}));
        let answer = kubernetes.patch(&caller("p"), &things(), &key("a"), None, patch).await;
        assert!(matches!(answer, Err(ApiError::Unavailable(_) | ApiError::Timeout(_))), "{answer:?}");
        assert_eq!(writes(&api), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn any_cache_that_knows_whose_a_field_is_keeps_it() {
    for in_namespace in [false, true] {
        let api = FakeApi::new(move |sent| {
            let list = |item: Value| json!({"kind": "ThingList", "apiVersion": "x.example.com/v1", "metadata": {"resourceVersion": "100"}, "items": [item]});
            match (sent.method.as_str(), sent.path.as_str()) {
                ("GET", path) if path.ends_with("/things/a") => Some((200, applied_by("operetta:q/web"))),
                ("GET", path) if path.ends_with("/things") && !sent.is_watch() => {
                    let knows = path.contains("/namespaces/") == in_namespace;
                    Some((200, list(if knows { applied_by("operetta:q/web") } else { thing("a", 2) })))
                }
                ("PATCH", _) => Some((200, thing("a", 4))),
                _ => None,
            }
        });
        let cluster = api.cluster();
        let _theirs = watched_by_another(&cluster).await;
        let extent = Extent { namespace: Some(namespace("n")), name: None };
        let mut narrow = cluster.informers().subscribe(&actor("r"), &things(), &[extent]).await.unwrap();
        while !matches!(narrow.changes.recv().await.unwrap(), Change::Synced) {}
        let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
        let patch = merge(json!({"size": 4}));
        let answer = kubernetes.patch(&caller("p"), &things(), &key("a"), None, patch).await;
        assert!(matches!(answer, Err(ApiError::Conflict(_))), "{in_namespace}: {answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_label_that_another_plugin_applied_is_set_otherwise_by_no_patch_of_the_status() {
    let there = || {
        let mut there = applied_by("operetta:q/web");
        there["metadata"]["labels"] = json!({"x": "1"});
        there["metadata"]["managedFields"][0]["fieldsV1"] = json!({"f:metadata": {"f:labels": {"f:x": {}}}});
        there
    };
    let api = FakeApi::new(move |sent| match sent.method.as_str() {
        "GET" if !sent.path.ends_with("/things/a") => None,
        "GET" | "PATCH" => Some((200, there())),
        _ => None,
    });
    api.set_things(vec![there()]);
    let cluster = api.cluster();
    let _theirs = watched_by_another(&cluster).await;
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let part = Subresource::parse("status").unwrap();
    let labels = |label: &str| Patch::Merge(json!({"metadata": {"labels": {label: "2"}}, "status": {}}).to_string());
    for (patch, takes) in [
        (labels("x"), true),
        (labels("y"), false),
        (Patch::Merge(json!({"status": {"phase": "Ready"}}).to_string()), false),
        (operation(json!({"op": "replace", "path": "/metadata/labels/x", "value": "2"})), true),
        // What it comes to is not clear, but that it is no label.
        (operation(json!({"op": "remove", "path": "/status/phase"})), false),
    ] {
        let shown = format!("{patch:?}");
        let answer = kubernetes.patch(&caller("p"), &things(), &key("a"), Some(&part), patch).await;
        assert_eq!(matches!(answer, Err(ApiError::Conflict(_))), takes, "{shown}: {answer:?}");
    }
    assert_eq!(writes(&api), 3);
}

#[tokio::test(start_paused = true)]
async fn what_another_plugin_applied_is_set_otherwise_by_no_replace() {
    let api = FakeApi::new(|sent| match sent.method.as_str() {
        "GET" if !sent.path.ends_with("/things/a") => None,
        "GET" | "PUT" => Some((200, applied_by("operetta:q/web"))),
        _ => None,
    });
    api.set_things(vec![applied_by("operetta:q/web")]);
    let cluster = api.cluster();
    let _theirs = watched_by_another(&cluster).await;
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let replace = async |version: &str, size: u32| {
        let object = json!({"metadata": {"resourceVersion": version}, "spec": {"size": size}}).to_string();
        kubernetes.replace(&caller("p"), &things(), &key("a"), None, object).await
    };
    for version in ["3", "03"] {
        let answer = replace(version, 4).await;
        assert!(matches!(&answer, Err(ApiError::Conflict(text)) if text.contains("owns .spec.size")), "{answer:?}");
    }
    assert_eq!(writes(&api), 0);
    replace("3", 3).await.unwrap();
    // Of another version the API server says so itself.
    replace("2", 4).await.unwrap();
    assert_eq!(writes(&api), 2);
}

#[tokio::test(start_paused = true)]
async fn what_a_plugin_applied_it_has_again_after_another_plugin_set_it() {
    let update = r#"conflict with "operetta:q/web" using v1 at 2026-01-01T00:00:00Z"#;
    let scaled = r#"conflict with "operetta:q/web" with subresource "scale" using autoscaling/v1"#;
    let apply_of_another = r#"conflict with "operetta:q/web""#;
    for (message, field, again) in [
        (update, ".spec.size", true),
        (scaled, ".spec.size", true),
        (apply_of_another, ".spec.size", false),
        // It never applied that.
        (update, ".spec.more", false),
    ] {
        let api = FakeApi::new(move |sent| match sent.method.as_str() {
            "PATCH" if sent.query.contains("force=true") => Some((200, applied("a", 7))),
            "PATCH" if sent.body.contains(r#""size":5"#) => Some((200, applied("a", 5))),
            "PATCH" => {
                let cause = json!({"reason": "FieldManagerConflict", "message": message, "field": field});
                Some(status(409, "Conflict", "Apply failed", &json!({"causes": [cause]})))
            }
            _ => None,
        });
        let cluster = api.cluster();
        let (kubernetes, said) = overheard(&cluster);
        kubernetes.patch(&caller("p"), &things(), &key("a"), None, apply(5)).await.unwrap();
        let answer = kubernetes.patch(&caller("p"), &things(), &key("a"), None, apply(6)).await;
        if again {
            answer.unwrap();
            let sent = api.sent().pop().unwrap();
            assert!(sent.query.contains("force=true") && sent.body.contains(r#""uid":"uid-a""#), "{sent:?}");
            assert!(said.lock().unwrap()[0].contains("operetta:q/web had set .spec.size"), "{said:?}");
        } else {
            assert!(matches!(answer, Err(ApiError::Conflict(_))), "{message} {field}: {answer:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_an_object_that_was_made_anew_nothing_was_applied() {
    let api = FakeApi::new(|sent| {
        (sent.method == "PATCH").then(|| {
            let mut before = applied("a", 5);
            before["metadata"]["uid"] = "before".into();
            let is_first = sent.body.contains(r#""size":5"#);
            if is_first { (200, before) } else { conflict(&[("operetta:q/web", ".spec.size")]) }
        })
    });
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let mut subscription = subscribed(&cluster).await;
    kubernetes.patch(&caller("p"), &things(), &key("a"), None, apply(5)).await.unwrap();
    api.tell("ADDED", &thing("a", 8));
    subscription.changes.recv().await.unwrap();
    let answer = kubernetes.patch(&caller("p"), &things(), &key("a"), None, apply(6)).await;
    assert!(matches!(answer, Err(ApiError::Conflict(_))), "{answer:?}");
    assert!(!api.sent().iter().any(|sent| sent.query.contains("force=true")), "{:?}", api.sent());
}
