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
