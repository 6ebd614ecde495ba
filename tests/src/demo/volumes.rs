//! The part of the story about storage: a claim that is made, grows and does not shrink.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{
    stage::{SOON, Stage},
    tell::Teller,
};
use crate::{
    eventually,
    kinds::{Objects, ready, volumes},
};

const SAMPLE: &str = "config/samples/demo_v1_demovolume.yaml";
/// What the disk and its class are called.
const DISK: &str = "demo-disk";

/// A claim is made, grows as far as the API server lets it, and refuses to shrink.
pub async fn grow(stage: &mut Stage, tell: &Teller) -> Result<()> {
    let objects = volumes(&stage.client, stage.namespace());
    let claims = Api::<PersistentVolumeClaim>::namespaced(stage.client.clone(), stage.namespace());
    // In a user's cluster storage is the cluster's affair, and so is its answer.
    let ours = stage.is_ours();
    if ours {
        tell.says("the demo plays the storage: a disk of 1 GiB, of a class that lets claims grow");
        disk(stage).await?;
    }
    let start = Instant::now();
    let (name, _) = stage.apply(tell, &objects, SAMPLE).await?;
    let made = eventually("the claim is made", SOON, async || {
        let claim = claims.get(&name).await?;
        ensure!(requested(&claim) == Some("1Gi"), "it asks for {:?}", requested(&claim));
        let (state, message) = ready(&objects, &name).await?;
        ensure!(if ours { state == "True/Bound" } else { state != "none" }, "Ready is {state}");
        Ok(message)
    })
    .await?;
    tell.took(&made, start.elapsed());

    let (state, message) =
        resize(stage, tell, &objects, &name, 3, &["False/Growing", "True/Bound", "False/ResizeRefused"]).await?;
    tell.says(&format!("Ready is {state}: {message}"));
    let asks = if state == "False/ResizeRefused" { "1Gi" } else { "3Gi" };
    if ours {
        ensure!(state == "False/Growing", "the claim did not grow");
        // What a driver does once the disk has grown.
        let grown = json!({"status": {"capacity": {"storage": "3Gi"}}});
        let start = Instant::now();
        claims.patch_status(&name, &PatchParams::default(), &Patch::Merge(grown)).await?;
        let message = becomes(&objects, &name, &["True/Bound"]).await?.1;
        tell.took(&format!("the storage has grown the disk: {message}"), start.elapsed());
    }

    if asks == "3Gi" {
        let (state, message) = resize(stage, tell, &objects, &name, 2, &["False/ShrinkRefused"]).await?;
        tell.says(&format!("Ready is {state}: {message}"));
        resize(stage, tell, &objects, &name, 3, &["False/Growing", "True/Bound"]).await?;
    }
    let claim = claims.get(&name).await?;
    ensure!(requested(&claim) == Some(asks), "the claim asks for {:?}", requested(&claim));
    tell.says(&format!("the claim asks for {asks}"));
    Ok(())
}

/// Changes the size and waits for one of these answers, which is returned with its message.
async fn resize(
    stage: &Stage,
    tell: &Teller,
    objects: &Objects,
    name: &str,
    size: u32,
    answers: &[&str],
) -> Result<(String, String)> {
    let patch = json!({"spec": {"size": size}});
    tell.types(&stage.kubectl(&format!("patch demovolume {name} --type=merge --patch='{patch}'")));
    objects.merge(name, &patch).await?;
    becomes(objects, name, answers).await
}

async fn becomes(objects: &Objects, name: &str, answers: &[&str]) -> Result<(String, String)> {
    eventually(&format!("{name} is one of {answers:?}"), SOON, async || {
        let (state, message) = ready(objects, name).await?;
        ensure!(answers.contains(&state.as_str()), "it is {state}");
        Ok((state, message))
    })
    .await
}

fn requested(claim: &PersistentVolumeClaim) -> Option<&str> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage").map(|quantity| quantity.0.as_str())
}

/// A disk for the claim of the sample, of the class that claims get which name none.
async fn disk(stage: &Stage) -> Result<()> {
    let class: StorageClass = serde_json::from_value(json!({
        "metadata": {"name": DISK, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "example.com/none", "allowVolumeExpansion": true,
    }))?;
    let sample = stage.read(SAMPLE)?.into_iter().next().context("a sample holds an object")?;
    let claim = sample.pointer("/metadata/name").and_then(Value::as_str).context("a sample has a name")?;
    let disk: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": DISK},
        "spec": {
            "storageClassName": DISK, "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/nowhere"},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": stage.namespace(), "name": claim,
            },
        },
    }))?;
    Api::<StorageClass>::all(stage.client.clone())
        .create(&PostParams::default(), &class)
        .await
        .context("make a class")?;
    Api::<PersistentVolume>::all(stage.client.clone())
        .create(&PostParams::default(), &disk)
        .await
        .context("make a disk")?;
    Ok(())
}
