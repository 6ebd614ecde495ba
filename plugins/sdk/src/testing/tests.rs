//! The fake behaves as the API server does where plugins depend on it.

use super::{Cut, Ended, FakeHost, Fault, every_cut};
use crate::{ListParams, finalizer, prelude::*};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

const FINALIZER: &str = "example.com/test";

fn config(name: &str, text: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"text": text}})).unwrap()
}

/// Copies a map into one that it owns, and holds it by a finalizer.
async fn copy(ctx: &Context, map: ConfigMap) -> Result<Outcome, Failure> {
    let api = ctx.api::<ConfigMap>();
    finalizer(&api, FINALIZER, map, async |event| {
        if let Event::Apply(map) = event {
            let copy = json!({"metadata": {"ownerReferences": [controller_reference(&map)]}, "data": map.data});
            api.apply(&format!("{}-copy", ctx.request().key.name), &copy).await?;
        }
        Ok(Outcome::AwaitChange)
    })
    .await
}

fn plugin() -> Plugin {
    crate::plugin!().controller(Controller::new("copy", copy).finalizer(FINALIZER))
}

#[tokio::test]
async fn a_settled_object_is_not_written_again() {
    let fake = FakeHost::new(plugin);
    fake.put(&config("a", "one"));
    fake.settle::<ConfigMap>("a").await.unwrap();
    assert_eq!(fake.take_writes(), ["json configmaps default/a", "apply configmaps default/a-copy"]);
    fake.settle::<ConfigMap>("a").await.unwrap();
    assert_eq!(fake.take_writes(), [""; 0]);
}

#[tokio::test]
async fn fields_no_longer_applied_go_and_those_of_others_stay() {
    let fake = FakeHost::new(plugin);
    fake.put(
        &serde_json::from_value::<ConfigMap>(json!({"metadata": {"name": "a"}, "data": {"x": "1", "y": "2"}})).unwrap(),
    );
    fake.settle::<ConfigMap>("a").await.unwrap();
    fake.edit::<ConfigMap>("a-copy", |copy| copy["data"]["theirs"] = json!("3"));
    fake.edit::<ConfigMap>("a", |map| map["data"] = json!({"x": "1"}));
    fake.settle::<ConfigMap>("a").await.unwrap();
    let copy = fake.object::<ConfigMap>("a-copy").unwrap();
    assert_eq!(serde_json::to_value(copy.data).unwrap(), json!({"x": "1", "theirs": "3"}));
}

#[tokio::test]
async fn a_finalizer_holds_an_object_and_the_owned_go_with_it() {
    let fake = FakeHost::new(plugin);
    fake.put(&config("a", "one"));
    fake.settle::<ConfigMap>("a").await.unwrap();
    fake.edit::<ConfigMap>("a", |map| map["metadata"]["finalizers"] = json!([FINALIZER, "example.com/other"]));
    fake.remove::<ConfigMap>("a");
    fake.settle::<ConfigMap>("a").await.unwrap();
    let held = fake.object::<ConfigMap>("a").unwrap();
    assert_eq!(held.metadata.finalizers.unwrap(), ["example.com/other"]);
    fake.edit::<ConfigMap>("a", |map| map["metadata"]["finalizers"] = json!([]));
    assert_eq!(fake.objects::<ConfigMap>().len(), 0);
}

#[tokio::test]
async fn writes_out_of_date_conflict_and_tests_that_fail_are_invalid() {
    async fn reconcile(ctx: &Context, map: ConfigMap) -> Result<Outcome, Failure> {
        let api = ctx.api::<ConfigMap>();
        let mut stale = map.clone();
        api.merge("a", &json!({"data": {"text": "two"}})).await?;
        stale.data = None;
        assert!(matches!(api.replace("a", &stale).await, Err(Error::Conflict(_))));
        let patch = crate::JsonPatch::default().test("/data/text", "one").remove("/data");
        assert!(matches!(api.json_patch("a", patch).await, Err(Error::Invalid(_))));
        assert!(matches!(api.create(&map).await, Err(Error::AlreadyExists(_))));
        assert_eq!(api.list(&ListParams::default().labels("tier=web")).await?.len(), 1);
        assert_eq!(api.list(&ListParams::default().labels("tier!=web").fields("metadata.name=b")).await?.len(), 1);
        assert!(api.get_opt("c").await?.is_none());
        let raw = ctx.dynamic(crate::host::Resource::new("", "v1", "configmaps"), Some("default"));
        assert_eq!(raw.get("a").await?["data"], json!({"text": "two"}));
        Ok(Outcome::AwaitChange)
    }
    let fake = FakeHost::new(|| crate::plugin!().controller(Controller::new("a", reconcile)));
    let labelled: Value = json!({"metadata": {"name": "a", "labels": {"tier": "web"}}, "data": {"text": "one"}});
    fake.put(&serde_json::from_value::<ConfigMap>(labelled).unwrap());
    fake.put(&config("b", "one"));
    assert_eq!(fake.reconcile::<ConfigMap>("a").await, Ended::Well(Outcome::AwaitChange));
}

#[tokio::test]
async fn every_cut_is_tried_and_each_ends_as_it_says() {
    let cuts = every_cut(async |cut: Cut| {
        let fake = FakeHost::new(plugin);
        fake.put(&config("a", "one"));
        fake.cut(cut);
        let ended = fake.reconcile::<ConfigMap>("a").await;
        if fake.was_cut() {
            let crashes = matches!(cut.fault, Fault::CrashBefore | Fault::CrashAfter);
            assert_eq!(ended == Ended::Crashed, crashes, "{cut:?}");
            assert_eq!(matches!(ended, Ended::Badly(_)), !crashes, "{cut:?}");
            let done = matches!(cut.fault, Fault::AnswerLost | Fault::CrashAfter);
            assert_eq!(fake.take_writes().len(), cut.call + usize::from(done), "{cut:?}");
        }
        fake.settle::<ConfigMap>("a").await.unwrap();
        assert_eq!(fake.objects::<ConfigMap>().len(), 2);
        fake
    })
    .await;
    // Two host calls in each pass before the cut, and one more pass after it: the finalizer, the apply, and the apply that changes nothing.
    assert_eq!(cuts, 3 * 4);
}
