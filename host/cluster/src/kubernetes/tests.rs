//! Reads and writes of one plugin, against an API server that answers what the test wants.

use operetta_core::cache::{Change, Subscription};
use serde_json::json;

use super::*;
use crate::{
    Cluster,
    request::Wait,
    testing::{FakeApi, Sent, actor, caller, key, namespace, status, thing, things, until},
};

mod answers;
mod events;
mod fields;

async fn subscribed(cluster: &Cluster) -> Subscription {
    let mut subscription = cluster.informers().subscribe(&actor("p"), &things(), &Scope::All.extents()).await.unwrap();
    while !matches!(subscription.changes.recv().await.unwrap(), Change::Synced) {}
    subscription
}

fn size(json: &str) -> Value {
    serde_json::from_str::<Value>(json).unwrap()["spec"]["size"].clone()
}

fn apply(size: u32) -> Patch {
    Patch::Apply(json!({"spec": {"size": size}}).to_string())
}

/// A thing as an apply of `{"spec": {"size": ...}}` left it.
fn applied(name: &str, version: u32) -> Value {
    let mut thing = thing(name, version);
    thing["metadata"]["managedFields"] = json!([{
        "manager": "operetta:p/c", "operation": "Apply", "apiVersion": "x.example.com/v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:size": {}}},
    }]);
    thing
}

#[tokio::test(start_paused = true)]
async fn what_is_subscribed_to_is_read_from_the_cache_and_the_rest_live() {
    let api = FakeApi::new(|sent| (sent.path.ends_with("/things/c")).then(|| (200, thing("c", 3))));
    api.set_things(vec![thing("a", 1), thing("b", 2)]);
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let _subscription = subscribed(&cluster).await;

    assert_eq!(size(&kubernetes.get(&caller("p"), &things(), &key("a"), false).await.unwrap()), 1);
    assert!(matches!(kubernetes.get(&caller("p"), &things(), &key("c"), false).await, Err(ApiError::NotFound(_))));
    assert_eq!(api.about_things(), [] as [&str; 0]);
    assert_eq!(size(&kubernetes.get(&caller("p"), &things(), &key("c"), true).await.unwrap()), 3);
    assert_eq!(api.about_things(), ["GET /apis/x.example.com/v1/namespaces/n/things/c"]);

    // Another plugin's account does not subscribe, so the cache is not for it.
    let other = cluster.kubernetes(actor("q"), Scope::All);
    assert!(other.get(&caller("q"), &things(), &key("a"), false).await.is_err());
    assert_eq!(api.sent().last().unwrap().user.as_deref(), Some("system:serviceaccount:operetta-plugins:q"));
}

#[tokio::test(start_paused = true)]
async fn a_list_is_cached_only_where_the_cache_knows_the_whole_answer() {
    let api = FakeApi::new(|_| None);
    let mut labelled = thing("b", 2);
    labelled["metadata"]["labels"] = json!({"app": "web"});
    api.set_things(vec![thing("a", 1), labelled]);
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let _subscription = subscribed(&cluster).await;
    let before = api.sent().len();
    let list =
        async |options: ListOptions| kubernetes.list(&caller("p"), &things(), &options).await.unwrap().items.len();

    assert_eq!(list(ListOptions::default()).await, 2);
    assert_eq!(
        list(ListOptions { label_selector: LabelSelector::parse("app in (web)").ok(), ..ListOptions::default() }).await,
        1
    );
    assert_eq!(
        list(ListOptions { namespace: Some(namespace("n")), limit: Some(2), ..ListOptions::default() }).await,
        2
    );
    assert_eq!(list(ListOptions { namespace: Some(namespace("other")), ..ListOptions::default() }).await, 0);
    assert_eq!(api.sent().len(), before);

    for options in [
        ListOptions { live: true, ..ListOptions::default() },
        ListOptions { limit: Some(1), ..ListOptions::default() },
        ListOptions { label_selector: LabelSelector::parse("a>1").ok(), ..ListOptions::default() },
        ListOptions { field_selector: FieldSelector::parse("metadata.name=a").ok(), ..ListOptions::default() },
        ListOptions { continue_token: ContinueToken::parse("t/+=").ok(), ..ListOptions::default() },
    ] {
        list(options).await;
    }
    let queries: Vec<_> = api.sent().into_iter().skip(before).map(|s| s.query).collect();
    assert_eq!(
        queries,
        [
            "limit=500",
            "limit=1",
            "limit=500&labelSelector=a%3E1",
            "limit=500&fieldSelector=metadata.name%3Da",
            "limit=500&continue=t%2F%2B%3D"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_is_limited_to_namespaces_reaches_no_other() {
    let api = FakeApi::new(|_| None);
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let limited = cluster.kubernetes(actor("p"), Scope::Namespaces([namespace("n")].into()));
    let elsewhere = ObjectKey::parse(Some("m"), "a").unwrap();
    assert!(matches!(limited.get(&caller("p"), &things(), &elsewhere, false).await, Err(ApiError::Denied(_))));
    assert!(matches!(
        limited.patch(&caller("p"), &things(), &elsewhere, None, apply(1)).await,
        Err(ApiError::Denied(_))
    ));
    let nodes = Resource::parse("", "v1", "nodes").unwrap();
    assert!(matches!(limited.list(&caller("p"), &nodes, &ListOptions::default()).await, Err(ApiError::Denied(_))));
    // A list of everything is one of its namespaces.
    assert_eq!(limited.list(&caller("p"), &things(), &ListOptions::default()).await.unwrap().items.len(), 1);
    let listed: Vec<_> = api.sent().into_iter().filter(|s| s.path.ends_with("/things")).map(|s| s.path).collect();
    assert_eq!(listed, ["/apis/x.example.com/v1/namespaces/n/things"]);
}

fn invalid<T: std::fmt::Debug>(result: Result<T, ApiError>, expected: &str) {
    match result {
        Err(ApiError::Invalid(text)) if text.contains(expected) => {}
        other => panic!("{other:?} lacks {expected:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_is_said_before_anything_is_sent() {
    let api = FakeApi::new(|_| None);
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let nodes = Resource::parse("", "v1", "nodes").unwrap();
    let bare = ObjectKey::parse(None, "a").unwrap();
    let who = caller("p");
    invalid(kubernetes.get(&who, &things(), &bare, false).await, "name the namespace");
    invalid(kubernetes.get(&who, &nodes, &key("a"), false).await, "leave the namespace n out");
    for (body, expected) in [
        ("[]", "no map"),
        ("{", "not JSON"),
        (r#"{"kind":"Pod"}"#, r#"kind "Pod", and the call says "Thing""#),
        (r#"{"apiVersion":"v2"}"#, "apiVersion"),
        (r#"{"metadata":{"name":"b"}}"#, r#"name "b", and the call says "a""#),
        (r#"{"metadata":{"namespace":"m"}}"#, "namespace"),
        (r#"{"metadata":[]}"#, "no map"),
        (r#"{"metadata":{"name":null}}"#, "name"),
    ] {
        invalid(kubernetes.patch(&who, &things(), &key("a"), None, Patch::Apply(body.into())).await, expected);
        if body.contains("metadata\":{") {
            invalid(kubernetes.patch(&who, &things(), &key("a"), None, Patch::Merge(body.into())).await, expected);
        }
    }
    invalid(kubernetes.create(&who, &things(), Some(&namespace("n")), "{}".into()).await, "neither metadata.name");
    invalid(kubernetes.replace(&who, &things(), &key("a"), None, "{}".into()).await, "resourceVersion");
    let zero = r#"{"metadata":{"resourceVersion":"00"}}"#;
    invalid(kubernetes.replace(&who, &things(), &key("a"), None, zero.into()).await, "resourceVersion");
    invalid(kubernetes.patch(&who, &things(), &key("a"), None, Patch::Json("{}".into())).await, "not a JSON patch");
    let (text, status) = ("{}", "status".parse().unwrap());
    invalid(
        kubernetes.replace(&who, &things(), &key("a"), None, text.into()).await,
        "replace things.v1.x.example.com n/a: ",
    );
    invalid(
        kubernetes.replace(&who, &things(), &key("a"), Some(&status), text.into()).await,
        "replace status of things.v1.x.example.com n/a: ",
    );
    let unknown = Resource::parse("x.example.com", "v1", "nothings").unwrap();
    assert!(
        matches!(kubernetes.get(&who, &unknown, &key("a"), false).await, Err(ApiError::NotFound(text)) if text.contains("CustomResourceDefinition"))
    );
    assert_eq!(api.about_things(), [] as [&str; 0]);
}

#[tokio::test(start_paused = true)]
async fn writes_go_out_as_the_account_under_the_managers_name() {
    let api =
        FakeApi::new(|sent| (sent.method != "GET" && sent.path.contains("/things")).then(|| (200, thing("a", 5))));
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let who = caller("p");
    let status: Subresource = "status".parse().unwrap();
    kubernetes.create(&who, &things(), Some(&namespace("n")), r#"{"metadata":{"name":"a"}}"#.into()).await.unwrap();
    kubernetes
        .create(&who, &things(), Some(&namespace("n")), r#"{"metadata":{"generateName":"a-"}}"#.into())
        .await
        .unwrap();
    kubernetes.patch(&who, &things(), &key("a"), Some(&status), apply(1)).await.unwrap();
    kubernetes.patch(&who, &things(), &key("a"), None, Patch::Merge("{}".into())).await.unwrap();
    kubernetes.patch(&who, &things(), &key("a"), None, Patch::Json("[]".into())).await.unwrap();
    kubernetes
        .replace(&who, &things(), &key("a"), None, r#"{"metadata":{"resourceVersion":"4"}}"#.into())
        .await
        .unwrap();
    let options = DeleteOptions { uid: Some("u".into()), grace_period_seconds: Some(0), ..DeleteOptions::default() };
    kubernetes.delete(&who, &things(), &key("a"), &options).await.unwrap();

    let sent: Vec<Sent> = api.sent().into_iter().filter(|s| s.path.contains("/things")).collect();
    let one = "/apis/x.example.com/v1/namespaces/n/things/a";
    let shown: Vec<_> = sent.iter().map(|s| format!("{} {}?{}", s.method, s.path, s.query)).collect();
    let manager = "fieldManager=operetta%3Ap%2Fc";
    assert_eq!(
        shown,
        [
            format!("POST /apis/x.example.com/v1/namespaces/n/things?{manager}"),
            format!("POST /apis/x.example.com/v1/namespaces/n/things?{manager}"),
            format!("PATCH {one}/status?{manager}&force=false"),
            format!("PATCH {one}?{manager}"),
            format!("PATCH {one}?{manager}"),
            format!("PUT {one}?{manager}"),
            format!("DELETE {one}?"),
        ]
    );
    for sent in &sent {
        assert_eq!(sent.user.as_deref(), Some("system:serviceaccount:operetta-plugins:p"));
        assert_eq!(sent.impersonation, ["impersonate-user"]);
    }
    let body: Value = serde_json::from_str(&sent[2].body).unwrap();
    assert_eq!(
        body,
        json!({"apiVersion": "x.example.com/v1", "kind": "Thing", "metadata": {"name": "a", "namespace": "n"}, "spec": {"size": 1}})
    );
    let body: Value = serde_json::from_str(&sent[6].body).unwrap();
    assert_eq!(
        (&body["preconditions"], &body["gracePeriodSeconds"], &body["propagationPolicy"]),
        (&json!({"uid": "u", "resourceVersion": null}), &json!(0), &json!("Background"))
    );
}

#[tokio::test(start_paused = true)]
async fn an_own_write_is_read_back_while_the_informer_is_late() {
    let api = FakeApi::new(|sent| (sent.method == "PATCH").then(|| (200, applied("a", 5))));
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let mut subscription = subscribed(&cluster).await;
    let who = caller("p");
    let written = kubernetes.patch(&who, &things(), &key("a"), None, apply(5)).await.unwrap();
    assert!(!written.contains("managedFields"));
    assert_eq!(written.before.map(|before| before.meta.resource_version.clone()).as_deref(), Some("1"));
    assert_eq!(size(&kubernetes.get(&who, &things(), &key("a"), false).await.unwrap()), 5);
    let page = kubernetes.list(&who, &things(), &ListOptions::default()).await.unwrap();
    assert_eq!(page.items.iter().map(|json| size(json)).collect::<Vec<_>>(), [5]);

    // What comes later but is older does not count; what is newer does.
    api.tell("MODIFIED", &thing("a", 4));
    subscription.changes.recv().await.unwrap();
    assert_eq!(size(&kubernetes.get(&who, &things(), &key("a"), false).await.unwrap()), 5);
    api.tell("MODIFIED", &thing("a", 6));
    subscription.changes.recv().await.unwrap();
    assert_eq!(size(&kubernetes.get(&who, &things(), &key("a"), false).await.unwrap()), 6);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_is_read_back_and_what_finalizers_hold_is_still_there() {
    let api = FakeApi::new(|sent| match (sent.method.as_str(), sent.path.rsplit('/').next()) {
        ("DELETE", Some("a")) => {
            Some((200, json!({"kind": "Status", "status": "Success", "details": {"uid": "uid-a"}})))
        }
        ("DELETE", Some("b")) => {
            let mut held = thing("b", 7);
            held["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            held["metadata"]["finalizers"] = json!(["x/y"]);
            Some((200, held))
        }
        ("PATCH", Some("b")) => {
            let mut ended = thing("b", 8);
            ended["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            Some((200, ended))
        }
        _ => None,
    });
    api.set_things(vec![thing("a", 1), thing("b", 2)]);
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let _subscription = subscribed(&cluster).await;
    let who = caller("p");
    // Which it was, and its version where it is still there.
    for (name, version) in [("a", ""), ("b", "7")] {
        let was = kubernetes.delete(&who, &things(), &key(name), &DeleteOptions::default()).await.unwrap();
        assert_eq!((was.uid.as_str(), was.resource_version.as_str()), (format!("uid-{name}").as_str(), version));
    }
    assert!(matches!(kubernetes.get(&who, &things(), &key("a"), false).await, Err(ApiError::NotFound(_))));
    assert!(kubernetes.get(&who, &things(), &key("b"), false).await.unwrap().contains("deletionTimestamp"));
    // The last finalizer goes, and with it the object, though the API server answers with it once more.
    kubernetes
        .patch(&who, &things(), &key("b"), None, Patch::Merge(r#"{"metadata":{"finalizers":null}}"#.into()))
        .await
        .unwrap();
    assert!(matches!(kubernetes.get(&who, &things(), &key("b"), false).await, Err(ApiError::NotFound(_))));
    assert_eq!(kubernetes.list(&who, &things(), &ListOptions::default()).await.unwrap().items.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn whatever_a_deletion_is_answered_with_the_next_read_knows() {
    let held = |name: &str, finalizers: Value| {
        let mut held = thing(name, 7);
        held["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        held["metadata"]["finalizers"] = finalizers;
        held
    };
    let status = |details: Value| json!({"kind": "Status", "status": "Success", "details": details});
    for (answer, gone, cached) in [
        (status(json!({"uid": "uid-a"})), true),
        (status(json!({})), false),
        (thing("a", 2), true),
        (held("a", json!([])), true),
    ]
    .into_iter()
    .flat_map(|(answer, gone)| [(answer.clone(), gone, vec![]), (answer, gone, vec![thing("a", 1)])])
    {
        let api = FakeApi::new(move |sent| match sent.method.as_str() {
            "DELETE" => Some((200, answer.clone())),
            "GET" if sent.path.ends_with("/things/a") => Some((200, thing("a", 8))),
            _ => None,
        });
        api.set_things(cached);
        let cluster = api.cluster();
        let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
        let _subscription = subscribed(&cluster).await;
        kubernetes.delete(&caller("p"), &things(), &key("a"), &DeleteOptions::default()).await.unwrap();
        let read = kubernetes.get(&caller("p"), &things(), &key("a"), false).await;
        if gone {
            assert!(matches!(read, Err(ApiError::NotFound(_))));
        } else {
            assert_eq!(size(&read.unwrap()), 8, "what became of it is not known, so it is read live");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_about_something_else_is_not_taken_for_the_object() {
    let api = FakeApi::new(|sent| match sent.method.as_str() {
        "PATCH" => Some((200, json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"size": 77}}))),
        "GET" if sent.path.ends_with("/things/a") => Some((200, thing("a", 8))),
        _ => None,
    });
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let _subscription = subscribed(&cluster).await;
    let part: Subresource = "eviction".parse().unwrap();
    kubernetes.patch(&caller("p"), &things(), &key("a"), Some(&part), Patch::Merge("{}".into())).await.unwrap();
    assert_eq!(size(&kubernetes.get(&caller("p"), &things(), &key("a"), false).await.unwrap()), 8);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_makes_the_next_read_live_and_a_refusal_does_not() {
    let answers = Mutex::new(vec![
        (0, json!("connection reset")),
        status(500, "InternalError", "etcd", &json!({})),
        status(422, "Invalid", "no", &json!({})),
    ]);
    let api = FakeApi::new(move |sent| match sent.method.as_str() {
        "PATCH" => Some(answers.lock().unwrap().remove(0)),
        "GET" if sent.path.ends_with("/things/a") => Some((200, thing("a", 8))),
        _ => None,
    });
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let subscription = subscribed(&cluster).await;
    let who = caller("p");
    for reads in [1, 2, 2] {
        kubernetes.patch(&who, &things(), &key("a"), None, Patch::Merge("{}".into())).await.unwrap_err();
        assert_eq!(size(&kubernetes.get(&who, &things(), &key("a"), false).await.unwrap()), 8);
        // What was read live is read back as well, without asking again.
        assert_eq!(size(&kubernetes.get(&who, &things(), &key("a"), false).await.unwrap()), 8);
        assert_eq!(api.about_things().iter().filter(|s| s.starts_with("GET")).count(), reads);
    }
    drop(subscription);
}

#[tokio::test(start_paused = true)]
async fn a_creation_whose_answer_is_lost_makes_the_next_read_live() {
    let api = FakeApi::new(|sent| match sent.method.as_str() {
        "POST" if sent.path.ends_with("/things") && sent.body.contains("generateName") => Some((201, thing("a-1", 9))),
        "POST" if sent.path.ends_with("/things") => Some((0, json!("connection reset"))),
        "GET" if sent.path.ends_with("/things/a") => Some((200, thing("a", 8))),
        _ => None,
    });
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let _subscription = subscribed(&cluster).await;
    let who = caller("p");
    let create = async |metadata: Value| {
        let object = json!({"metadata": metadata}).to_string();
        kubernetes.create(&who, &things(), Some(&namespace("n")), object).await
    };
    assert!(matches!(kubernetes.get(&who, &things(), &key("a"), false).await, Err(ApiError::NotFound(_))));
    create(json!({"name": "a"})).await.unwrap_err();
    assert_eq!(size(&kubernetes.get(&who, &things(), &key("a"), false).await.unwrap()), 8);
    // A name that is empty is one that the API server makes up.
    create(json!({"name": "", "generateName": "a-"})).await.unwrap();
    assert_eq!(size(&kubernetes.get(&who, &things(), &key("a-1"), false).await.unwrap()), 9);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_cancelled_leaves_the_object_uncertain() {
    let api = FakeApi::new(|sent| match sent.method.as_str() {
        "GET" if sent.path.ends_with("/things/a") => Some((200, thing("a", 8))),
        "PATCH" => Some((1, Value::Null)),
        _ => None,
    });
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let _subscription = subscribed(&cluster).await;
    let who = caller("p");
    {
        let (resource, object) = (things(), key("a"));
        let mut write = kubernetes.patch(&who, &resource, &object, None, Patch::Merge("{}".into()));
        let cancelled = tokio::time::timeout(std::time::Duration::from_secs(1), &mut write).await;
        assert!(cancelled.is_err() && api.about_things().iter().any(|s| s.starts_with("PATCH")));
    }
    assert_eq!(size(&kubernetes.get(&who, &things(), &key("a"), false).await.unwrap()), 8);
}

#[tokio::test(start_paused = true)]
async fn an_apply_that_changes_nothing_is_not_sent() {
    let api = FakeApi::new(|sent| (sent.method == "PATCH").then(|| (200, applied("a", 9))));
    api.set_things(vec![applied("a", 3)]);
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let _subscription = subscribed(&cluster).await;
    let who = caller("p");
    assert_eq!(size(&kubernetes.patch(&who, &things(), &key("a"), None, apply(3)).await.unwrap()), 3);
    assert_eq!(api.about_things(), [] as [&str; 0]);
    // Another value goes out; then the same again does not, since its own answer says that it holds.
    kubernetes.patch(&who, &things(), &key("a"), None, apply(9)).await.unwrap();
    kubernetes.patch(&who, &things(), &key("a"), None, apply(9)).await.unwrap();
    assert_eq!(api.about_things().len(), 1);
    // Another controller owns nothing yet.
    let other = Caller { controller: "d".parse().unwrap(), ..who };
    kubernetes.patch(&other, &things(), &key("a"), None, apply(9)).await.unwrap();
    assert_eq!(api.about_things().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_same_body_on_the_same_version_is_not_sent_again_whatever_the_server_made_of_it() {
    // The server writes the size otherwise and says nothing of ownership.
    let api = FakeApi::new(|sent| (sent.method == "PATCH").then(|| (200, thing("a", 9))));
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let mut subscription = subscribed(&cluster).await;
    let who = caller("p");
    for _ in 0..3 {
        kubernetes
            .patch(&who, &things(), &key("a"), None, Patch::Apply(r#"{"spec":{"size":"1000m"}}"#.into()))
            .await
            .unwrap();
    }
    assert_eq!(api.about_things().len(), 1);
    api.tell("MODIFIED", &thing("a", 10));
    subscription.changes.recv().await.unwrap();
    kubernetes
        .patch(&who, &things(), &key("a"), None, Patch::Apply(r#"{"spec":{"size":"1000m"}}"#.into()))
        .await
        .unwrap();
    assert_eq!(api.about_things().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_was_applied_to_one_object_is_remembered_while_others_are_applied() {
    let api = FakeApi::new(|sent| (sent.method == "PATCH").then(|| (200, thing(&sent.path[sent.path.len() - 1..], 9))));
    api.set_things(vec![thing("a", 1), thing("b", 1)]);
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let _subscription = subscribed(&cluster).await;
    for _ in 0..3 {
        for name in ["a", "b"] {
            kubernetes.patch(&caller("p"), &things(), &key(name), None, apply(2)).await.unwrap();
        }
    }
    assert_eq!(api.about_things().len(), 2);
}

fn conflict(managers: &[(&str, &str)]) -> (u16, Value) {
    let causes: Vec<_> = managers
        .iter()
        .map(|(manager, field)| json!({"reason": "FieldManagerConflict", "message": format!("conflict with {manager:?} using v1"), "field": field}))
        .collect();
    status(409, "Conflict", "Apply failed", &json!({"causes": causes}))
}

#[tokio::test(start_paused = true)]
async fn fields_of_people_and_programs_are_taken_over() {
    let api = FakeApi::new(|sent| {
        let own_update = ("operetta:p/c", ".spec.own");
        (sent.method == "PATCH").then(|| {
            if sent.query.contains("force=true") {
                (200, thing("a", 5))
            } else {
                conflict(&[("kubectl-edit", ".spec.size"), own_update])
            }
        })
    });
    let cluster = api.cluster();
    cluster.kubernetes(actor("p"), Scope::All).patch(&caller("p"), &things(), &key("a"), None, apply(5)).await.unwrap();
    assert_eq!(api.about_things().len(), 2);
}

/// The port of plugin `p`, and what the administrator is told of it.
fn overheard(cluster: &Cluster) -> (PluginKubernetes, Arc<Mutex<Vec<String>>>) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = said.clone();
    let aside = Aside::to(move |text| heard.lock().unwrap().push(text.to_owned()));
    let (identity, discovery) = (cluster.identity.clone(), cluster.discovery.clone());
    let own = PluginKubernetes::new(actor("p"), Scope::All, identity, discovery, cluster.informers.clone());
    (PluginKubernetes { aside, ..own }, said)
}

#[tokio::test(start_paused = true)]
async fn fields_of_another_plugin_are_a_conflict_and_only_the_administrator_is_told_whose_they_are() {
    let api = FakeApi::new(|sent| {
        (sent.method == "PATCH").then(|| {
            conflict(&[("kubectl", ".spec.x"), ("operetta:q/web", ".spec.size"), ("operetta:q/web", ".spec.y")])
        })
    });
    let cluster = api.cluster();
    let (kubernetes, said) = overheard(&cluster);
    let error = kubernetes.patch(&caller("p"), &things(), &key("a"), None, apply(5)).await.unwrap_err();
    let ApiError::Conflict(text) = error else { panic!("{error:?}") };
    let fields = "owns .spec.size, .spec.y, which operetta:p/c would set otherwise";
    assert!(text.contains(&format!("another plugin {fields}")) && !text.contains("q/web"), "{text}");
    assert!(said.lock().unwrap()[0].contains(&format!("operetta:q/web {fields}")), "{said:?}");
    assert_eq!(api.about_things().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_about_the_host_is_told_to_the_administrator_and_not_to_the_plugin() {
    let hosts_no = r#"things.x.example.com is forbidden: User "system:serviceaccount:operetta-system:operetta" cannot impersonate-on:serviceaccount:get resource "things" in API group "x.example.com" in the namespace "n""#;
    let own_no = r#"things.x.example.com "a" is forbidden: User "system:serviceaccount:operetta-plugins:p" cannot get resource "things" in API group "x.example.com" in the namespace "n""#;
    let account = |names: &str| (200, json!({"metadata": {"annotations": {"operetta.dev/plugin": names}}}));
    let refused = |message: &str| status(403, "Forbidden", message, &json!({}));
    let lost = (0, json!("connect to 10.11.12.13:6443: unable to read the token file /var/run/secrets/token"));
    for (at, answer, told, hidden) in [
        ("/serviceaccounts/", account("others, more"), "cannot act as the plugin's service account", "others"),
        (
            "/serviceaccounts/",
            refused(&hosts_no.replace("things", "serviceaccounts")),
            "cannot act as",
            "operetta-system",
        ),
        ("/serviceaccounts/", lost.clone(), "cannot act as", "10.11.12.13"),
        ("/apis/x.example.com/v1", refused(hosts_no), "the host itself may not do this", "operetta-system"),
        ("/things/a", refused(hosts_no), "the host itself may not do this", "operetta-system"),
        ("/things/a", lost, "no answer from the API server", "token"),
        ("/things/a", refused(own_no), own_no, ""),
        // Whatever else is quoted in it.
        ("/things/a", refused(&format!("{own_no} {hosts_no}")), "the host itself may not do this", "operetta-system"),
    ] {
        let api = FakeApi::new(move |sent| sent.path.contains(at).then(|| answer.clone()));
        let cluster = api.cluster();
        let (kubernetes, said) = overheard(&cluster);
        let event = Event {
            resource: things(),
            key: key("a"),
            severity: operetta_core::port::Severity::Normal,
            reason: "R".into(),
            action: "A".into(),
            message: "m".into(),
        };
        let get = kubernetes.get(&caller("p"), &things(), &key("a"), true).await.map(drop);
        let put = kubernetes.patch(&caller("p"), &things(), &key("a"), None, apply(5)).await.map(drop);
        let mut answers = vec![get, put];
        if at != "/things/a" {
            answers.push(kubernetes.publish(&caller("p"), event).await);
        }
        for answer in answers {
            let text = answer.unwrap_err().to_string();
            assert!(text.contains(told) && (hidden.is_empty() || !text.contains(hidden)), "{at} {hidden}: {text}");
        }
        let said = said.lock().unwrap();
        assert_eq!(said.iter().any(|text| text.contains(hidden)), !hidden.is_empty(), "{said:?}");
    }
}

#[tokio::test]
async fn where_the_api_server_cannot_be_reached_is_not_the_plugins_to_know() {
    let cluster = FakeApi::new(|_| None).cluster();
    let (kubernetes, said) = overheard(&cluster);
    let error = kubernetes.tell("get", Fault::Unreachable("connect to 10.11.12.13".into()));
    let ApiError::Unreachable(text) = error else { panic!("{error:?}") };
    assert!(text.contains("get: the API server cannot be reached") && !text.contains("10.11.12.13"), "{text}");
    assert!(said.lock().unwrap()[0].contains("10.11.12.13"));
}

#[tokio::test]
async fn why_a_plugin_has_to_wait_is_told_to_the_administrator() {
    let cluster = FakeApi::new(|_| None).cluster();
    let (kubernetes, said) = overheard(&cluster);
    let wait = Wait { why: "32 requests of the plugin are under way".into(), after: None };
    assert_eq!(kubernetes.tell("get", Fault::Busy(wait)), ApiError::TooManyRequests(None));
    assert_eq!(*said.lock().unwrap(), ["get: 32 requests of the plugin are under way"]);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_of_versions_is_not_forced() {
    let api = FakeApi::new(|sent| {
        (sent.method == "PATCH").then(|| status(409, "Conflict", "the object has been modified", &json!({})))
    });
    let cluster = api.cluster();
    let error = cluster
        .kubernetes(actor("p"), Scope::All)
        .patch(&caller("p"), &things(), &key("a"), None, apply(5))
        .await
        .unwrap_err();
    assert!(matches!(error, ApiError::Conflict(_)));
    assert_eq!(api.about_things().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_account_that_does_not_exist_is_forbidden_and_not_not_found() {
    let api = FakeApi::new(|sent| {
        sent.path.contains("/serviceaccounts/").then(|| status(404, "NotFound", "no", &json!({"name": "p"})))
    });
    let cluster = api.cluster();
    let (kubernetes, said) = overheard(&cluster);
    let error = kubernetes.get(&caller("p"), &things(), &key("a"), true).await.unwrap_err();
    let ApiError::Forbidden(text) = error else { panic!("{error:?}") };
    assert!(text.contains("the host cannot act as the plugin's service account"), "{text}");
    let said = &said.lock().unwrap()[0];
    assert!(said.contains("operetta-plugins/p does not exist") && said.contains("operetta install"), "{said}");
    assert_eq!(api.about_things(), [] as [&str; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_vanishes_is_looked_up_again() {
    let api = FakeApi::new(|_| None);
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    assert!(kubernetes.get(&caller("p"), &things(), &key("a"), false).await.is_err());
    api.set_kinds(&[]);
    assert!(kubernetes.get(&caller("p"), &things(), &key("a"), false).await.is_err());
    let mut presence = cluster.discovery().watch(&things());
    until("discovery knows that the kind is gone", || presence.borrow_and_update().is_none()).await;
}
