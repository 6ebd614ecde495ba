//! The plugin against the fake host. [`live`] plays the kubelet.

use crate::{ImmortalContainer, ImmortalContainerSpec, ImmortalContainerStatus, plan::START, plugin};
use expect_test::expect_file;
use k8s_openapi::api::core::v1::Pod;
use operetta_sdk::{
    Outcome,
    testing::{Cut, Ended, FakeHost, every_cut},
};
use serde_json::json;
use std::time::Duration;

const POD: &str = "phoenix-immortalpod";

fn phoenix() -> FakeHost {
    let fake = FakeHost::new(plugin);
    fake.put(&ImmortalContainer::new("phoenix", ImmortalContainerSpec { image: "nginx:1".to_owned() }));
    fake
}

fn status(fake: &FakeHost) -> ImmortalContainerStatus {
    fake.object::<ImmortalContainer>("phoenix").unwrap().status.unwrap_or_default()
}

fn reason(fake: &FakeHost) -> String {
    status(fake).conditions.first().unwrap().reason.clone()
}

fn phase(fake: &FakeHost, phase: &str) {
    fake.edit::<Pod>(POD, |pod| pod["status"] = json!({"phase": phase}));
}

async fn live(fake: &FakeHost) {
    fake.settle::<ImmortalContainer>("phoenix").await.unwrap();
}

#[tokio::test]
async fn the_pod_is_as_promised() {
    let fake = phoenix();
    live(&fake).await;
    let pod = serde_json::to_value(fake.object::<Pod>(POD).unwrap()).unwrap();
    assert_eq!(pod["metadata"]["labels"], json!({"app": "phoenix"}));
    assert_eq!(pod["metadata"]["annotations"], json!({START: "1"}));
    assert_eq!(pod["spec"]["containers"], json!([{"name": "acontainer", "image": "nginx:1"}]));
    let owner = &pod["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["controller"]), (&json!("ImmortalContainer"), &json!(true)));
    assert_eq!((status(&fake).current_pod.as_deref(), status(&fake).start_times), (Some(POD), 1));
    assert_eq!(
        fake.take_writes(),
        [format!("create pods default/{POD}"), "apply immortalcontainers/status default/phoenix".to_owned()]
    );
    phase(&fake, "Running");
    live(&fake).await;
    assert_eq!((fake.take_writes().len(), reason(&fake).as_str()), (1, "Running"));
    live(&fake).await;
    assert_eq!(fake.take_writes(), [""; 0], "as desired");
}

#[tokio::test]
async fn a_pod_that_is_deleted_or_ends_is_replaced_and_counted() {
    let fake = phoenix();
    live(&fake).await;
    fake.remove::<Pod>(POD);
    live(&fake).await;
    assert_eq!(status(&fake).start_times, 2);
    for (end, starts) in [("Failed", 3), ("Succeeded", 4)] {
        phase(&fake, end);
        live(&fake).await;
        assert_eq!(status(&fake).start_times, starts);
        assert_eq!(reason(&fake), "Pending");
    }
    assert_eq!(fake.take_events().len(), 4, "one for each start");
    fake.remove::<ImmortalContainer>("phoenix");
    assert_eq!(fake.objects::<Pod>().len(), 0);
    assert_eq!(fake.reconcile::<ImmortalContainer>("phoenix").await, Ended::Well(Outcome::AwaitChange));
}

#[tokio::test]
async fn a_pod_that_is_terminating_is_waited_for() {
    let fake = phoenix();
    live(&fake).await;
    fake.edit::<Pod>(POD, |pod| pod["metadata"]["finalizers"] = json!(["example.com/slow"]));
    fake.remove::<Pod>(POD);
    live(&fake).await;
    assert_eq!((reason(&fake).as_str(), status(&fake).start_times), ("Terminating", 1));
    fake.edit::<Pod>(POD, |pod| pod["metadata"]["finalizers"] = json!([]));
    live(&fake).await;
    assert_eq!((reason(&fake).as_str(), status(&fake).start_times), ("Pending", 2));
}

#[tokio::test]
async fn somebody_elses_pod_of_that_name_is_never_touched() {
    let fake = phoenix();
    let theirs = json!({"metadata": {"name": POD, "annotations": {START: "7"}}, "spec": {"containers": []}});
    fake.put(&serde_json::from_value::<Pod>(theirs).unwrap());
    let before = fake.object::<Pod>(POD).unwrap();
    assert_eq!(fake.settle::<ImmortalContainer>("phoenix").await, Ok(Outcome::RequeueAfter(Duration::from_secs(10))));
    assert_eq!(fake.object::<Pod>(POD).unwrap(), before);
    assert_eq!((reason(&fake).as_str(), status(&fake).start_times), ("NameTaken", 0));
    assert_eq!(status(&fake).current_pod, None);
    assert_eq!(fake.take_events().len(), 1);
    fake.remove::<Pod>(POD);
    live(&fake).await;
    assert_eq!((reason(&fake).as_str(), status(&fake).start_times), ("Pending", 1));
}

#[tokio::test]
async fn a_changed_image_reaches_the_pod_without_a_start() {
    let fake = phoenix();
    live(&fake).await;
    // A container that somebody injected stays, and keeps its image.
    fake.edit::<Pod>(POD, |pod| {
        pod["spec"]["containers"] =
            json!([{"name": "sidecar", "image": "proxy"}, {"name": "acontainer", "image": "nginx:1"}]);
    });
    fake.edit::<ImmortalContainer>("phoenix", |object| object["spec"]["image"] = json!("nginx:2"));
    live(&fake).await;
    let pod = serde_json::to_value(fake.object::<Pod>(POD).unwrap()).unwrap();
    assert_eq!(
        pod["spec"]["containers"],
        json!([{"name": "sidecar", "image": "proxy"}, {"name": "acontainer", "image": "nginx:2"}])
    );
    assert_eq!(status(&fake).start_times, 1);
}

#[tokio::test]
async fn whatever_is_cut_each_start_is_counted_once() {
    let cuts = every_cut(async |cut: Cut| {
        let fake = phoenix();
        fake.cut(cut);
        let mut made = 0;
        for end in ["Failed", "Succeeded", "Failed"] {
            live(&fake).await;
            assert_eq!(fake.objects::<Pod>().len(), 1);
            phase(&fake, end);
            live(&fake).await;
        }
        for write in fake.take_writes() {
            made += u64::from(write.starts_with("create pods"));
        }
        assert_eq!((made, status(&fake).start_times), (4, 4), "{cut:?}");
        fake
    })
    .await;
    assert!(cuts > 50, "{cuts}");
}

#[test]
fn the_manifest_is_what_is_committed() {
    let manifest = serde_json::to_string_pretty(&plugin().manifest()).unwrap();
    expect_file!["../manifest.json"].assert_eq(&manifest);
}
