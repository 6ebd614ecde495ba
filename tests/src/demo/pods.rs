//! The part of the story about pods: one that is immortal, and replicas that go back.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    stage::{SOON, Stage},
    tell::Teller,
};
use crate::{
    eventually,
    kinds::{Objects, condition, immortals, memcacheds, state, text},
};

/// What the sample of the Memcached is called.
pub const MEMCACHED: &str = "memcached-sample";

/// An immortal pod is deleted and comes back.
pub async fn kill(stage: &mut Stage, tell: &Teller) -> Result<()> {
    let objects = immortals(&stage.client, stage.namespace());
    let pods = Api::<Pod>::namespaced(stage.client.clone(), stage.namespace());
    let start = Instant::now();
    let (name, _) =
        stage.apply(tell, &objects, "config/samples/immortalcontainer_v1alpha1_immortalcontainer.yaml").await?;
    let first = started(&objects, &pods, &name, 1).await?;
    tell.took(&format!("{first} runs, startTimes is 1"), start.elapsed());

    tell.types(&stage.kubectl(&format!("delete pod {first}")));
    let start = Instant::now();
    pods.delete(&first, &DeleteParams::default()).await?;
    let second = started(&objects, &pods, &name, 2).await?;
    tell.took(&format!("another {second} runs, startTimes is 2"), start.elapsed());
    Ok(())
}

/// Waits until the pod of this start runs, and returns its name.
async fn started(objects: &Objects, pods: &Api<Pod>, name: &str, start: u64) -> Result<String> {
    eventually(&format!("start {start} of {name}"), SOON, async || {
        let object = objects.get(name).await?;
        let times = object.data.pointer("/status/startTimes").and_then(Value::as_u64);
        ensure!(times == Some(start), "startTimes is {times:?}");
        let ready = state(&object, "Ready");
        ensure!(ready == "True/Running", "Ready is {ready}");
        let pod = text(&object, "/status/currentPod").to_owned();
        pods.get(&pod).await.with_context(|| format!("get the pod {pod}"))?;
        Ok(pod)
    })
    .await
}

/// A Deployment that belongs to a Memcached is scaled by hand, and goes back.
pub async fn scale(stage: &mut Stage, tell: &Teller) -> Result<()> {
    let objects = memcacheds(&stage.client, stage.namespace());
    let deployments = Api::<Deployment>::namespaced(stage.client.clone(), stage.namespace());
    let start = Instant::now();
    let (name, spec) = stage.apply(tell, &objects, "config/samples/cache_v1alpha1_memcached.yaml").await?;
    ensure!(name == MEMCACHED, "the sample is called {name}");
    let size = spec.pointer("/size").and_then(Value::as_i64).and_then(|size| i32::try_from(size).ok()).unwrap_or(1);
    let available = async || {
        eventually("the Deployment is as described", SOON, async || {
            let deployment = deployments.get(&name).await?;
            let wanted = deployment.spec.and_then(|spec| spec.replicas);
            let has = deployment.status.and_then(|status| status.available_replicas);
            ensure!((wanted, has) == (Some(size), Some(size)), "{has:?} of {wanted:?} replicas are available");
            let object = objects.get(&name).await?;
            let state = state(&object, "Available");
            ensure!(state == "True/Reconciling", "Available is {state}");
            let condition = condition(&object, "Available").and_then(|c| c.get("message")).and_then(Value::as_str);
            Ok(condition.unwrap_or_default().to_owned())
        })
        .await
    };
    tell.took(&available().await?, start.elapsed());

    tell.types(&stage.kubectl(&format!("scale deployment {name} --replicas=5")));
    let start = Instant::now();
    let five = Patch::Merge(json!({"spec": {"replicas": 5}}));
    deployments.patch_scale(&name, &PatchParams::default(), &five).await?;
    available().await?;
    tell.took(&format!("back to {size}"), start.elapsed());
    Ok(())
}
