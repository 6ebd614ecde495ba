//! ImmortalContainer on a real API server: whatever ends its pod, another one starts, and each start is counted once.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams},
};
use operetta_tests::{
    control_plane::audit::{Position, Request},
    eventually,
    host::{Host, Launch},
    kinds::{Objects, immortals, state, text},
};
use serde_json::json;

use crate::shared::{
    SOON, TestNamespace, launch, namespace, plug, position, reconciled, reconciles, run, settled, writes_since,
};

const PLUGIN: &str = "immortal-container";
/// The garbage collector learns of kinds only twice a minute, so that the first deletion of a new kind takes its time.
const COLLECTED: Duration = Duration::from_secs(90);

struct Scene {
    namespace: TestNamespace,
    host: Host,
    immortals: Objects,
    pods: Api<Pod>,
    /// Where the audit log stood before all this.
    began: Option<Position>,
}

async fn scene(launch: Launch) -> Scene {
    let namespace = namespace().await;
    let began = position(&namespace).await;
    let host = launch.namespace(namespace.name()).start(run()).await.unwrap();
    plug(&host, PLUGIN, |document| document).await;
    let immortals = immortals(&namespace.client(), namespace.name());
    let pods = namespace.api();
    Scene { namespace, host, immortals, pods, began }
}

impl Scene {
    /// Waits until the pod of this start runs and the status says so.
    async fn runs(&self, name: &str, start: u64) -> Pod {
        eventually(&format!("start {start} of {name} runs"), SOON, async || {
            let object = self.immortals.get(name).await?;
            let starts = object.data.pointer("/status/startTimes").and_then(serde_json::Value::as_u64);
            ensure!(starts == Some(start), "startTimes is {starts:?}");
            let ready = state(&object, "Ready");
            ensure!(ready == "True/Running", "Ready is {ready}");
            let pod = text(&object, "/status/currentPod");
            ensure!(pod == format!("{name}-immortalpod"), "currentPod is {pod:?}");
            self.pods.get(pod).await.context("get the pod")
        })
        .await
        .unwrap()
    }

    /// Waits until a start after this one runs, and the status counts the pods that were made, no more and no fewer. Which start it is cannot be foretold: the simulated
    /// node removes pods by name, and so at times the one that follows, too.
    async fn follows(&self, name: &str, last: u64) -> (Pod, u64) {
        eventually(&format!("a start of {name} after start {last} runs"), SOON, async || {
            let object = self.immortals.get(name).await?;
            let starts = object.data.pointer("/status/startTimes").and_then(serde_json::Value::as_u64);
            let starts = starts.filter(|starts| *starts > last).with_context(|| format!("startTimes is {starts:?}"))?;
            let ready = state(&object, "Ready");
            ensure!(ready == "True/Running", "Ready is {ready}");
            let writes = writes_since(self.began, PLUGIN, &self.namespace).await;
            let pods =
                |write: &Request| write.verb == "create" && write.status() == Some(201) && write.uri.contains("/pods");
            let made = writes.iter().filter(|write| pods(write)).count();
            ensure!(self.began.is_none() || made as u64 == starts, "{made} pods were made, and startTimes is {starts}");
            Ok((self.pods.get(&format!("{name}-immortalpod")).await.context("get the pod")?, starts))
        })
        .await
        .unwrap()
    }

    /// Makes the pod's phase what a node would report.
    async fn report(&self, pod: &str, phase: &str, reason: &str) {
        let status = json!({"status": {"phase": phase, "reason": reason}});
        self.pods.patch_status(pod, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }
}

#[tokio::test]
async fn a_pod_that_ends_in_any_way_is_followed_by_another_and_each_start_counts_once() {
    story(launch()).await;
}

/// What its users were promised, whatever rights the host has.
pub async fn story(launch: Launch) {
    let scene = scene(launch).await;
    scene.immortals.apply("duncan", &json!({"image": "highlander:1"})).await.unwrap();
    let pod = scene.runs("duncan", 1).await;
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(pod.labels().get("app").map(String::as_str), Some("duncan"));
    assert_eq!((spec.containers.len(), spec.containers[0].name.as_str()), (1, "acontainer"));
    assert_eq!(spec.containers[0].image.as_deref(), Some("highlander:1"));
    let owner = &pod.owner_references()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.name.as_str(), owner.controller),
        ("ImmortalContainer", "duncan", Some(true))
    );

    let name = pod.name_any();
    scene.pods.delete(&name, &DeleteParams::default()).await.unwrap();
    let (second, starts) = scene.follows("duncan", 1).await;
    assert_ne!(second.uid(), pod.uid());
    scene.pods.evict(&name, &EvictParams::default()).await.unwrap();
    let (_, starts) = scene.follows("duncan", starts).await;
    scene.report(&name, "Succeeded", "Completed").await;
    let (_, starts) = scene.follows("duncan", starts).await;
    scene.report(&name, "Failed", "Evicted").await;
    let (_, starts) = scene.follows("duncan", starts).await;
    // Chaos of the simulated node: the container exits with an error.
    let chaos = json!({"metadata": {"labels": {"pod-container-running-failed.stage.kwok.x-k8s.io": "true"}}});
    scene.pods.patch(&name, &PatchParams::default(), &Patch::Merge(chaos)).await.unwrap();
    let (before_image, starts) = scene.follows("duncan", starts).await;

    scene.immortals.merge("duncan", &json!({"spec": {"image": "highlander:2"}})).await.unwrap();
    eventually("the new image reaches the pod", SOON, async || {
        let pod = scene.pods.get(&name).await?;
        let image = pod.spec.as_ref().and_then(|spec| spec.containers[0].image.clone());
        ensure!(image.as_deref() == Some("highlander:2"), "it runs {image:?}");
        ensure!(pod.uid() == before_image.uid(), "it is another pod");
        Ok(())
    })
    .await
    .unwrap();
    scene.runs("duncan", starts).await;

    settled(&scene.host, PLUGIN).await;
    let before = position(&scene.namespace).await;
    for touch in 0..3 {
        let seen = reconciles(&scene.host, PLUGIN).await;
        let label = json!({"metadata": {"labels": {"touched": touch.to_string()}}});
        scene.pods.patch(&name, &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
        reconciled(&scene.host, PLUGIN, seen, 1.0).await;
    }
    let writes = writes_since(before, PLUGIN, &scene.namespace).await;
    assert!(writes.is_empty(), "as desired means no write: {writes:#?}");

    scene.immortals.remove("duncan").await.unwrap();
    eventually("the pod goes with its owner", COLLECTED, async || {
        ensure!(scene.immortals.get_opt("duncan").await?.is_none(), "the object is still there");
        ensure!(scene.pods.get_opt(&name).await?.is_none(), "the pod is still there");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_start_that_no_host_saw_is_made_when_one_is_back_and_none_counts_twice() {
    let mut scene = scene(launch()).await;
    scene.immortals.apply("connor", &json!({"image": "highlander:1"})).await.unwrap();
    let pod = scene.runs("connor", 1).await;
    scene.host.kill().unwrap();
    scene.pods.delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
    eventually("the pod is gone", SOON, async || {
        ensure!(scene.pods.get_opt(&pod.name_any()).await?.is_none(), "it is still there");
        Ok(())
    })
    .await
    .unwrap();
    scene.host.begin(run()).await.unwrap();
    scene.runs("connor", 2).await;
    scene.host.kill().unwrap();
    scene.host.begin(run()).await.unwrap();
    scene.host.ready(SOON).await.unwrap();
    settled(&scene.host, PLUGIN).await;
    scene.runs("connor", 2).await;
}

#[tokio::test]
async fn a_pod_of_somebody_else_is_never_touched() {
    let scene = scene(launch()).await;
    let theirs: Pod = serde_json::from_value(json!({
        "metadata": {"name": "kurgan-immortalpod"},
        "spec": {"containers": [{"name": "theirs", "image": "theirs"}]},
    }))
    .unwrap();
    let theirs = scene.pods.create(&PostParams::default(), &theirs).await.unwrap();
    scene.immortals.apply("kurgan", &json!({"image": "highlander:1"})).await.unwrap();
    eventually("the condition says who is in the way", SOON, async || {
        let object = scene.immortals.get("kurgan").await?;
        let ready = state(&object, "Ready");
        ensure!(ready == "False/NameTaken", "Ready is {ready}");
        Ok(())
    })
    .await
    .unwrap();
    let found = scene.pods.get("kurgan-immortalpod").await.unwrap();
    assert_eq!(found.uid(), theirs.uid());
    assert!(found.owner_references().is_empty() && found.annotations().is_empty() && found.labels().is_empty());

    scene.pods.delete("kurgan-immortalpod", &DeleteParams::default()).await.unwrap();
    scene.runs("kurgan", 1).await;
}
