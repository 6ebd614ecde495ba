//! What is believed of an answer, and what is sent to parts that are not as the whole.

use super::*;

/// A thing of version 9 that says otherwise of itself.
fn saying(pointer: &str, text: &str) -> Value {
    let mut thing = thing("a", 9);
    *thing.pointer_mut(pointer).unwrap() = text.into();
    thing
}

#[tokio::test(start_paused = true)]
async fn what_is_no_answer_about_the_object_reaches_no_cache() {
    for (part, answer, believed) in [
        ("", thing("a", 9), true),
        ("status", thing("a", 9), true),
        // A pod may answer as the object that it is reached through.
        ("proxy", thing("a", 9), false),
        ("", thing("b", 9), false),
        ("", saying("/metadata/namespace", "m"), false),
        ("", saying("/metadata/uid", ""), false),
        ("", saying("/kind", "Other"), false),
        ("", saying("/apiVersion", "x.example.com/v2"), false),
    ] {
        let (of, shown) = (part.parse().ok(), format!("{part} {answer}"));
        let api = FakeApi::new(move |sent| match sent.method.as_str() {
            "PATCH" => Some((200, answer.clone())),
            "GET" if sent.path.ends_with("/things/a") => Some((200, thing("a", 8))),
            _ => None,
        });
        api.set_things(vec![thing("a", 1), thing("b", 2)]);
        let cluster = api.cluster();
        let _subscription = subscribed(&cluster).await;
        let mut neighbours =
            cluster.informers().subscribe(&actor("q"), &things(), &Scope::All.extents()).await.unwrap();
        while !matches!(neighbours.changes.recv().await.unwrap(), Change::Synced) {}
        let own = cluster.kubernetes(actor("p"), Scope::All);
        let written = own.patch(&caller("p"), &things(), &key("a"), of.as_ref(), Patch::Merge("{}".into())).await;
        assert_eq!(written.unwrap().now.meta.resource_version, if believed { "9" } else { "" }, "{shown}");
        for who in ["p", "q"] {
            let kubernetes = cluster.kubernetes(actor(who), Scope::All);
            let read =
                async |name: &str| size(&kubernetes.get(&caller(who), &things(), &key(name), false).await.unwrap());
            // What is new to the writer the others learn from the watch; where nobody knows, the writer asks.
            let sees = if who == "q" {
                1
            } else if believed {
                9
            } else {
                8
            };
            assert_eq!(read("a").await, sees, "{shown}");
            assert_eq!(read("b").await, 2, "{shown}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_scale_is_sent_as_what_it_is() {
    let metadata = json!({"name": "a", "namespace": "n", "uid": "uid-a", "resourceVersion": "9"});
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": 3}});
    let api = FakeApi::new(move |sent| {
        sent.path.ends_with("/things/a/scale").then(|| {
            let body: Value = serde_json::from_str(&sent.body).unwrap();
            let is_scale = body["kind"] == "Scale" && body["apiVersion"] == "autoscaling/v1";
            if is_scale { (200, scale.clone()) } else { status(400, "BadRequest", "not a Scale", &json!({})) }
        })
    });
    api.set_things(vec![thing("a", 9)]);
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let _subscription = subscribed(&cluster).await;
    let (who, part) = (caller("p"), Subresource::parse("scale").unwrap());
    let patch = async |patch: Patch| kubernetes.patch(&who, &things(), &key("a"), Some(&part), patch).await;
    let replace = async |text: &str| kubernetes.replace(&who, &things(), &key("a"), Some(&part), text.into()).await;
    // The second as the first: of the part the cache knows nothing.
    for _ in 0..2 {
        let written = patch(Patch::Apply(r#"{"spec":{"replicas":3}}"#.into())).await.unwrap();
        assert!(written.sent && written.contains(r#""kind":"Scale""#));
        assert_eq!(written.now.meta.resource_version, "9");
    }
    patch(Patch::Merge(r#"{"apiVersion":"autoscaling/v1","kind":"Scale"}"#.into())).await.unwrap();
    replace(r#"{"metadata":{"resourceVersion":"9"},"spec":{"replicas":3}}"#).await.unwrap();
    invalid(replace(r#"{"kind":"Thing","metadata":{"resourceVersion":"9"}}"#).await, r#"the call says "Scale""#);
    assert_eq!(api.about_things().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_apply_is_sent_so_that_yaml_reads_what_was_said() {
    let api = FakeApi::new(|sent| (sent.method == "PATCH").then(|| (200, thing("a", 5))));
    let kubernetes = api.cluster().kubernetes(actor("p"), Scope::All);
    let body = Patch::Apply(json!({"spec": {"text": "\u{7f}\u{85}"}}).to_string());
    kubernetes.patch(&caller("p"), &things(), &key("a"), None, body).await.unwrap();
    let sent = api.sent().pop().unwrap().body;
    assert!(sent.contains(r#""text":"\u007f\u0085""#), "{sent}");
}
