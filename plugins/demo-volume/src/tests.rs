//! The plugin against the fake host. The tests play the storage.

use crate::{DemoVolume, DemoVolumeSpec, DemoVolumeStatus, plugin};
use expect_test::expect_file;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use operetta_sdk::{
    Error, Failure, Outcome,
    testing::{Cut, Ended, FakeHost, every_cut},
};
use serde_json::{Value, json};
use std::time::Duration;

const GROW: &str = "json persistentvolumeclaims default/data";

fn data(size: i32) -> FakeHost {
    let fake = FakeHost::new(plugin);
    fake.put(&DemoVolume::new("data", DemoVolumeSpec { name: "my data".to_owned(), size }));
    fake
}

fn status(fake: &FakeHost) -> DemoVolumeStatus {
    fake.object::<DemoVolume>("data").unwrap().status.unwrap_or_default()
}

fn reason(fake: &FakeHost) -> String {
    status(fake).conditions[0].reason.clone()
}

fn message(fake: &FakeHost) -> String {
    status(fake).conditions[0].message.clone()
}

fn claim(fake: &FakeHost) -> Value {
    serde_json::to_value(fake.object::<PersistentVolumeClaim>("data").unwrap()).unwrap()
}

fn requested(fake: &FakeHost) -> Value {
    claim(fake)["spec"]["resources"]["requests"].clone()
}

/// The storage gives the claim a volume of this size.
fn bind(fake: &FakeHost, capacity: &str) {
    fake.edit::<PersistentVolumeClaim>("data", |claim| {
        claim["status"] = json!({"phase": "Bound", "capacity": {"storage": capacity}});
    });
}

fn resize(fake: &FakeHost, size: i32) {
    fake.edit::<DemoVolume>("data", |object| object["spec"]["size"] = json!(size));
}

async fn live(fake: &FakeHost) -> Outcome {
    fake.settle::<DemoVolume>("data").await.unwrap()
}

#[tokio::test]
async fn the_claim_is_as_promised() {
    let fake = data(5);
    live(&fake).await;
    let claim = claim(&fake);
    assert_eq!(claim["spec"]["accessModes"], json!(["ReadWriteOnce"]));
    assert_eq!(requested(&fake), json!({"storage": "5Gi"}));
    let owner = &claim["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["controller"]), (&json!("DemoVolume"), &json!(true)));
    assert_eq!((status(&fake).name.as_str(), reason(&fake).as_str()), ("my data", "Pending"));
    assert_eq!(
        fake.take_writes(),
        ["create persistentvolumeclaims default/data", "apply demovolumes/status default/data"]
    );
    bind(&fake, "5Gi");
    live(&fake).await;
    assert_eq!((fake.take_writes().len(), reason(&fake).as_str()), (1, "Bound"));
    assert_eq!(live(&fake).await, Outcome::AwaitChange);
    assert_eq!(fake.take_writes(), [""; 0], "as desired");
    fake.edit::<DemoVolume>("data", |object| object["spec"]["name"] = json!("our data"));
    live(&fake).await;
    assert_eq!(fake.take_writes(), ["apply demovolumes/status default/data"]);
    assert_eq!(status(&fake).name, "our data");
    fake.remove::<DemoVolume>("data");
    assert_eq!(fake.objects::<PersistentVolumeClaim>().len(), 0);
    assert_eq!(fake.reconcile::<DemoVolume>("data").await, Ended::Well(Outcome::AwaitChange));
}

#[tokio::test]
async fn a_claim_that_is_written_otherwise_is_the_same() {
    let fake = data(5);
    live(&fake).await;
    fake.edit::<PersistentVolumeClaim>("data", |claim| {
        claim["spec"]["resources"]["requests"]["storage"] = json!("5120Mi");
    });
    bind(&fake, "6Gi");
    fake.take_writes();
    live(&fake).await;
    assert_eq!((fake.take_writes().len(), reason(&fake).as_str()), (1, "Bound"));
    assert_eq!(requested(&fake), json!({"storage": "5120Mi"}));
}

#[tokio::test]
async fn somebody_elses_claim_is_never_touched() {
    let fake = data(5);
    let theirs = json!({"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}});
    fake.put(&serde_json::from_value::<PersistentVolumeClaim>(theirs).unwrap());
    let before = claim(&fake);
    assert_eq!(live(&fake).await, Outcome::RequeueAfter(Duration::from_secs(10)));
    assert_eq!(claim(&fake), before);
    assert_eq!((status(&fake).name.as_str(), reason(&fake).as_str()), ("my data", "NameTaken"));
    assert_eq!(fake.take_events().len(), 1);
    fake.remove::<PersistentVolumeClaim>("data");
    live(&fake).await;
    assert_eq!((reason(&fake).as_str(), requested(&fake)), ("Pending", json!({"storage": "5Gi"})));
}

#[tokio::test]
async fn a_claim_that_is_terminating_is_waited_for() {
    let fake = data(5);
    live(&fake).await;
    fake.edit::<PersistentVolumeClaim>("data", |claim| {
        claim["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
    });
    fake.remove::<PersistentVolumeClaim>("data");
    live(&fake).await;
    assert_eq!(reason(&fake), "Terminating");
    fake.edit::<PersistentVolumeClaim>("data", |claim| claim["metadata"]["finalizers"] = json!([]));
    live(&fake).await;
    assert_eq!(reason(&fake), "Pending");
}

#[tokio::test]
async fn a_larger_size_makes_the_claim_grow_and_the_storage_is_waited_for() {
    let fake = data(5);
    live(&fake).await;
    bind(&fake, "5Gi");
    live(&fake).await;
    fake.take_writes();
    resize(&fake, 8);
    live(&fake).await;
    assert_eq!(fake.take_writes(), [GROW, "apply demovolumes/status default/data"]);
    assert_eq!((requested(&fake), reason(&fake).as_str()), (json!({"storage": "8Gi"}), "Growing"));
    fake.edit::<PersistentVolumeClaim>("data", |claim| {
        let waits = json!({"type": "FileSystemResizePending", "status": "True", "message": "waits for a pod"});
        claim["status"]["conditions"] = json!([waits, {"type": "Resizing", "status": "False"}]);
    });
    live(&fake).await;
    assert_eq!(message(&fake), "claim data grows to 8Gi: FileSystemResizePending: waits for a pod");
    bind(&fake, "8Gi");
    live(&fake).await;
    assert_eq!(reason(&fake), "Bound");
    assert_eq!(status(&fake).conditions[0].observed_generation, Some(2));
}

#[tokio::test]
async fn a_growth_that_the_api_server_refuses_is_a_condition_and_tried_again_later() {
    let fake = data(5);
    live(&fake).await;
    bind(&fake, "5Gi");
    live(&fake).await;
    fake.take_events();
    for error in [Error::Forbidden("the storage class says no".to_owned()), Error::Invalid("unbound".to_owned())] {
        fake.refuse(GROW, error.clone());
        resize(&fake, 8);
        assert_eq!(live(&fake).await, Outcome::RequeueAfter(Duration::from_mins(5)));
        assert_eq!((requested(&fake), reason(&fake).as_str()), (json!({"storage": "5Gi"}), "ResizeRefused"));
        assert_eq!(message(&fake), format!("the API server does not let claim data grow to 8Gi: {error}"));
        live(&fake).await;
    }
    assert_eq!(fake.take_events().len(), 1, "said once");
    fake.refuse_nothing();
    live(&fake).await;
    assert_eq!((requested(&fake), reason(&fake).as_str()), (json!({"storage": "8Gi"}), "Growing"));
}

#[tokio::test]
async fn a_smaller_size_is_refused() {
    let fake = data(5);
    live(&fake).await;
    bind(&fake, "5Gi");
    live(&fake).await;
    fake.take_writes();
    resize(&fake, 3);
    assert_eq!(live(&fake).await, Outcome::AwaitChange);
    assert_eq!(fake.take_writes(), ["apply demovolumes/status default/data"]);
    assert_eq!((requested(&fake), reason(&fake).as_str()), (json!({"storage": "5Gi"}), "ShrinkRefused"));
    assert_eq!(message(&fake), "claim data asks for 5Gi and cannot shrink to 3Gi; set a size of 5Gi or more");
    resize(&fake, 5);
    live(&fake).await;
    assert_eq!(reason(&fake), "Bound");
}

#[tokio::test]
async fn a_claim_that_cannot_be_made_says_why() {
    let fake = data(5);
    let create = "create persistentvolumeclaims default/data";
    fake.refuse(create, Error::Forbidden("exceeded quota".to_owned()));
    let Ended::Badly(Failure::Retryable(message)) = fake.reconcile::<DemoVolume>("data").await else { panic!() };
    assert_eq!(message, "claim data cannot be made: forbidden: exceeded quota");
    assert_eq!((status(&fake).name.as_str(), reason(&fake).as_str()), ("my data", "Forbidden"));
    fake.refuse(create, Error::Invalid("no such thing".to_owned()));
    let Err(Failure::Terminal(_)) = fake.settle::<DemoVolume>("data").await else { panic!() };
    assert_eq!(reason(&fake), "Invalid");
    fake.refuse_nothing();
    live(&fake).await;
    assert_eq!(reason(&fake), "Pending");
}

#[tokio::test]
async fn whatever_is_cut_the_end_is_the_same_and_one_claim_was_made() {
    let cuts = every_cut(async |cut: Cut| {
        let fake = data(5);
        fake.cut(cut);
        live(&fake).await;
        bind(&fake, "5Gi");
        live(&fake).await;
        resize(&fake, 8);
        live(&fake).await;
        bind(&fake, "8Gi");
        live(&fake).await;
        resize(&fake, 3);
        live(&fake).await;
        let made = fake.take_writes().iter().filter(|write| write.starts_with("create")).count();
        assert_eq!((made, requested(&fake)), (1, json!({"storage": "8Gi"})), "{cut:?}");
        assert_eq!((status(&fake).name.as_str(), reason(&fake).as_str()), ("my data", "ShrinkRefused"), "{cut:?}");
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
