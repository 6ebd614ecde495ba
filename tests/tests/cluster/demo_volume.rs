//! DemoVolume on a real API server: its claim is made once and only ever grows, as far as the API server lets it.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use operetta_tests::{
    eventually,
    host::{Host, Launch},
    kinds::{Objects, state, text, volumes},
};
use serde_json::{Value, json};

use crate::shared::{
    SOON, TestNamespace, launch, namespace, plug, position, reconciled, reconciles, run, settled, writes_since,
};

const PLUGIN: &str = "demo-volume";
/// The garbage collector learns of kinds only twice a minute, so that the first deletion of a new kind takes its time.
const COLLECTED: Duration = Duration::from_secs(90);

struct Scene {
    namespace: TestNamespace,
    host: Host,
    volumes: Objects,
    claims: Api<PersistentVolumeClaim>,
}

async fn scene(launch: Launch) -> Scene {
    let namespace = namespace().await;
    let host = launch.namespace(namespace.name()).start(run()).await.unwrap();
    let volumes = volumes(&namespace.client(), namespace.name());
    let claims = namespace.api();
    Scene { namespace, host, volumes, claims }
}

fn spec(size: i32) -> Value {
    json!({"name": "my volume", "size": size})
}

fn requested(claim: &PersistentVolumeClaim) -> Option<&str> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage").map(|quantity| quantity.0.as_str())
}

impl Scene {
    /// Waits for a condition `Ready`, and returns its message.
    async fn is(&self, name: &str, wanted: &str) -> String {
        eventually(&format!("{name} is {wanted}"), SOON, async || {
            let object = self.volumes.get(name).await?;
            let ready = state(&object, "Ready");
            ensure!(ready == wanted, "Ready is {ready}");
            ensure!(text(&object, "/status/name") == text(&object, "/spec/name"), "status.name is another");
            Ok(text(&object, "/status/conditions/0/message").to_owned())
        })
        .await
        .unwrap()
    }

    async fn claim(&self, name: &str) -> PersistentVolumeClaim {
        self.claims.get(name).await.unwrap()
    }
}

#[tokio::test]
async fn the_claim_is_made_once_and_what_cannot_grow_says_so() {
    story(launch()).await;
}

/// What its users were promised, whatever rights the host has.
pub async fn story(launch: Launch) {
    let scene = scene(launch).await;
    plug(&scene.host, PLUGIN, |document| document).await;
    scene.volumes.apply("data", &spec(5)).await.unwrap();
    scene.is("data", "False/Pending").await;
    let claim = scene.claim("data").await;
    assert_eq!(requested(&claim), Some("5Gi"));
    assert_eq!(claim.spec.as_ref().unwrap().access_modes, Some(vec!["ReadWriteOnce".to_owned()]));
    let owner = &claim.owner_references()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str(), owner.controller), ("DemoVolume", "data", Some(true)));

    settled(&scene.host, PLUGIN).await;
    let before = position(&scene.namespace).await;
    for touch in 0..3 {
        let seen = reconciles(&scene.host, PLUGIN).await;
        let label = json!({"metadata": {"labels": {"touched": touch.to_string()}}});
        scene.claims.patch("data", &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
        reconciled(&scene.host, PLUGIN, seen, 1.0).await;
    }
    let writes = writes_since(before, PLUGIN, &scene.namespace).await;
    assert!(writes.is_empty(), "as desired means no write: {writes:#?}");

    // The API server lets only a claim grow that is bound.
    scene.volumes.merge("data", &json!({"spec": {"size": 8}})).await.unwrap();
    let message = scene.is("data", "False/ResizeRefused").await;
    assert!(message.contains("does not let claim data grow to 8Gi") && message.contains("immutable"), "{message}");
    assert_eq!(requested(&scene.claim("data").await), Some("5Gi"));
    scene.volumes.merge("data", &json!({"spec": {"size": 3}})).await.unwrap();
    scene.is("data", "False/ShrinkRefused").await;
    scene.volumes.merge("data", &json!({"spec": {"size": 5, "name": "our volume"}})).await.unwrap();
    scene.is("data", "False/Pending").await;
    assert_eq!(scene.claim("data").await.uid(), claim.uid());

    scene.volumes.remove("data").await.unwrap();
    eventually("the claim goes with its owner", COLLECTED, async || {
        ensure!(scene.claims.get_opt("data").await?.is_none(), "it is still there");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_claim_that_is_bound_grows_with_its_object() {
    let scene = scene(launch()).await;
    let unique = scene.namespace.name().to_owned();
    let classes = Api::<StorageClass>::all(scene.namespace.client());
    let disks = Api::<PersistentVolume>::all(scene.namespace.client());
    let class: StorageClass = serde_json::from_value(json!({
        "metadata": {"name": unique}, "provisioner": "example.com/none", "allowVolumeExpansion": true,
    }))
    .unwrap();
    classes.create(&PostParams::default(), &class).await.unwrap();
    let disk: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": unique},
        "spec": {
            "storageClassName": unique, "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/nowhere"},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": unique, "name": "data"},
        },
    }))
    .unwrap();
    disks.create(&PostParams::default(), &disk).await.unwrap();

    // What an operator left that ran before us.
    let object = scene.volumes.apply("data", &spec(1)).await.unwrap();
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "data", "ownerReferences": [{
            "apiVersion": "demo.operetta.dev/v1", "kind": "DemoVolume", "name": "data", "uid": object.uid(), "controller": true,
        }]},
        "spec": {
            "storageClassName": unique, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        },
    }))
    .unwrap();
    let claim = scene.claims.create(&PostParams::default(), &claim).await.unwrap();
    plug(&scene.host, PLUGIN, |document| document).await;
    scene.is("data", "True/Bound").await;

    scene.volumes.merge("data", &json!({"spec": {"size": 2}})).await.unwrap();
    scene.is("data", "False/Growing").await;
    let growing = scene.claim("data").await;
    assert_eq!((requested(&growing), growing.uid()), (Some("2Gi"), claim.uid()));
    // The storage says how far it is.
    let pending = json!({"status": {"conditions": [
        {"type": "FileSystemResizePending", "status": "True", "message": "waits for a pod"},
    ]}});
    scene.claims.patch_status("data", &PatchParams::default(), &Patch::Merge(pending)).await.unwrap();
    eventually("the condition says what the storage says", SOON, async || {
        let message = scene.is("data", "False/Growing").await;
        ensure!(message.ends_with("FileSystemResizePending: waits for a pod"), "{message}");
        Ok(())
    })
    .await
    .unwrap();
    let grown = json!({"status": {"capacity": {"storage": "2Gi"}, "conditions": null}});
    scene.claims.patch_status("data", &PatchParams::default(), &Patch::Merge(grown)).await.unwrap();
    scene.is("data", "True/Bound").await;
    scene.volumes.merge("data", &json!({"spec": {"size": 1}})).await.unwrap();
    scene.is("data", "False/ShrinkRefused").await;

    disks.delete(&unique, &DeleteParams::default()).await.unwrap();
    classes.delete(&unique, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_claim_of_somebody_else_is_never_touched() {
    let scene = scene(launch()).await;
    plug(&scene.host, PLUGIN, |document| document).await;
    let theirs: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }))
    .unwrap();
    let theirs = scene.claims.create(&PostParams::default(), &theirs).await.unwrap();
    scene.volumes.apply("data", &spec(5)).await.unwrap();
    scene.is("data", "False/NameTaken").await;
    let found = scene.claim("data").await;
    assert_eq!((found.uid(), requested(&found)), (theirs.uid(), Some("1Gi")));
    assert!(found.owner_references().is_empty());

    scene.claims.delete("data", &DeleteParams::default()).await.unwrap();
    eventually("a claim of its own follows", SOON, async || {
        let found = scene.claims.get_opt("data").await?.context("no claim")?;
        ensure!(requested(&found) == Some("5Gi"), "it asks for {:?}", requested(&found));
        Ok(())
    })
    .await
    .unwrap();
}
