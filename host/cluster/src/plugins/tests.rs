//! The watch of Plugins against a server that knows the kind or does not.

use super::*;
use crate::testing::FakeApi;

#[test]
fn a_finalizer_is_put_on_and_taken_off_only_as_it_was_seen() {
    let object = |finalizers: Value| json!({"metadata": {"uid": "u", "finalizers": finalizers}});
    let patch = |finalizers: Value, held| finalizer_patch(&object(finalizers), "u", held);
    assert_eq!(patch(json!([FINALIZER]), true), None);
    assert_eq!(patch(json!(["other"]), false), None);
    assert_eq!(patch(Value::Null, true).unwrap()[2]["value"], json!([FINALIZER]));
    assert_eq!(patch(json!(["other"]), true).unwrap()[1]["path"], "/metadata/finalizers/-");
    let removal = patch(json!(["other", FINALIZER]), false).unwrap();
    assert_eq!(removal[0], json!({"op": "test", "path": "/metadata/uid", "value": "u"}));
    assert_eq!(removal[2], json!({"op": "remove", "path": "/metadata/finalizers/1"}));
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_the_kind_has_no_plugins_and_is_not_asked_again_and_again() {
    let api = FakeApi::new(|_| None);
    let cluster = api.cluster();
    let plugins = Plugins::new(&cluster, Namespace::parse("operetta-system").unwrap(), None).unwrap();
    let mut changes = plugins.watch();
    assert_eq!(changes.recv().await, Some(PluginChange::Synced));
    let asked = || api.sent().iter().filter(|s| s.path.starts_with("/apis/operetta.dev/v1alpha1")).count();
    let before = asked();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(asked() - before <= 61, "{} requests", asked() - before);
    assert!(api.sent().iter().all(|s| !s.path.ends_with("/plugins")));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_publishes_without_measure_leaves_the_others_their_events() {
    let api = FakeApi::new(|_| Some((201, json!({}))));
    let plugins = Plugins::new(&api.cluster(), Namespace::parse("operetta-system").unwrap(), None).unwrap();
    let name = |name: &str| PluginName::parse(name).unwrap();
    for name in ["noisy", "quiet"] {
        let metadata = json!({"name": name, "uid": format!("of-{name}"), "resourceVersion": "1"});
        plugins.known().insert(name.to_owned(), json!({"metadata": metadata}));
    }
    let publish =
        async |plugin: &str, note: &str| plugins.publish(&name(plugin), Severity::Warning, "Failed", note).await;
    let published = |plugin: &str| {
        let events = api.sent();
        let of = |sent: &&crate::testing::Sent| sent.method == "POST" && sent.body.contains(&format!("of-{plugin}"));
        events.iter().filter(of).count()
    };
    for number in 0..100 {
        let answer = publish("noisy", &format!("for the {number}th reason")).await;
        assert!(answer.is_ok() || number >= 10, "{answer:?}");
    }
    publish("quiet", "for one").await.unwrap();
    assert!(published("noisy") <= 25, "it has a measure");
    assert_eq!(published("quiet"), 1);
    // And nothing is kept of those that are gone.
    plugins.known().remove("noisy");
    publish("quiet", "for another").await.unwrap();
    assert_eq!(plugins.recorders.lock().unwrap().keys().map(PluginName::as_str).collect::<Vec<_>>(), ["quiet"]);
}
