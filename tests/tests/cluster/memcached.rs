//! Memcached on a real API server, with the real Deployment controller: what others do to the Deployment, and what becomes of it.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Event};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use operetta_tests::{
    eventually,
    host::{Host, Launch},
    kinds::{Objects, condition, memcacheds, state},
};
use serde_json::json;

use crate::shared::{
    SOON, TestNamespace, launch, namespace, plug, position, reconciled, reconciles, run, settled, writes_since,
};

const PLUGIN: &str = "memcached";
/// The garbage collector learns of kinds only twice a minute, so that the first deletion of a new kind takes its time.
const COLLECTED: Duration = Duration::from_secs(90);

struct Scene {
    namespace: TestNamespace,
    host: Host,
    memcacheds: Objects,
    deployments: Api<Deployment>,
}

async fn scene(launch: Launch) -> Scene {
    let namespace = namespace().await;
    let host = launch.namespace(namespace.name()).start(run()).await.unwrap();
    plug(&host, PLUGIN, |document| document).await;
    let memcacheds = memcacheds(&namespace.client(), namespace.name());
    let deployments = namespace.api();
    Scene { namespace, host, memcacheds, deployments }
}

impl Scene {
    /// Waits until the Deployment has rolled out this size and the conditions say so.
    async fn rolled_out(&self, name: &str, size: i32) -> Deployment {
        eventually(&format!("{name} has {size} replicas"), SOON, async || {
            let object = self.memcacheds.get(name).await?;
            let states = ["Available", "Progressing", "Degraded"].map(|kind| state(&object, kind));
            let deployment = self.deployments.get(name).await?;
            let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
            ensure!(replicas == Some(size), "the Deployment wants {replicas:?}");
            ensure!(
                states == ["True/Reconciling", "False/RolledOut", "none"],
                "the conditions are {states:?}; the Deployment's own status is {:?}",
                deployment.status
            );
            let message = condition(&object, "Available").and_then(|c| c["message"].as_str()).unwrap_or_default();
            let expected = format!("Deployment for custom resource ({name}) with {size} replicas created successfully");
            ensure!(message == expected, "Available says {message:?}");
            let available = deployment.status.as_ref().and_then(|status| status.available_replicas);
            ensure!(available == Some(size), "{available:?} are available");
            Ok(deployment)
        })
        .await
        .unwrap()
    }
}

#[tokio::test]
async fn a_deployment_is_made_kept_as_described_and_gone_with_its_owner() {
    story(launch()).await;
}

/// What its users were promised, whatever rights the host has.
pub async fn story(launch: Launch) {
    let scene = scene(launch).await;
    scene.memcacheds.apply("cache", &json!({"size": 2, "containerPort": 11211})).await.unwrap();
    let deployment = scene.rolled_out("cache", 2).await;
    let template = deployment.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    let container = &template.containers[0];
    assert_eq!(container.image.as_deref(), Some("memcached:1.4.36-alpine"));
    assert_eq!(container.command.as_ref().unwrap().join(" "), "memcached -m=64 -o modern -v");
    assert_eq!(container.ports.as_ref().unwrap()[0].container_port, 11211);
    let security = container.security_context.as_ref().unwrap();
    assert_eq!((security.run_as_user, security.allow_privilege_escalation), (Some(1001), Some(false)));
    assert_eq!(deployment.owner_references()[0].controller, Some(true));

    // Scaled by hand.
    let scale = Patch::Merge(json!({"spec": {"replicas": 5}}));
    scene.deployments.patch_scale("cache", &PatchParams::default(), &scale).await.unwrap();
    scene.rolled_out("cache", 2).await;
    // Scaled as it is meant to be.
    scene.memcacheds.merge("cache", &json!({"spec": {"size": 3}})).await.unwrap();
    scene.rolled_out("cache", 3).await;
    let refused = scene.memcacheds.merge("cache", &json!({"spec": {"size": 4}})).await.unwrap_err();
    assert!(refused.to_string().contains("spec.size"), "{refused}");

    // Somebody else's container and annotation.
    let sidecar = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "cache", "annotations": {"injected": "yes"}},
        "spec": {"template": {"spec": {"containers": [{"name": "sidecar", "image": "sidecar:1"}]}}},
    });
    scene.deployments.patch("cache", &PatchParams::apply("injector"), &Patch::Apply(sidecar)).await.unwrap();
    scene.memcacheds.merge("cache", &json!({"spec": {"size": 1}})).await.unwrap();
    let deployment = scene.rolled_out("cache", 1).await;
    let containers = &deployment.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers;
    let mut names: Vec<_> = containers.iter().map(|container| container.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["memcached", "sidecar"], "what others inject stays");
    assert_eq!(deployment.annotations().get("injected").map(String::as_str), Some("yes"));

    settled(&scene.host, PLUGIN).await;
    let before = position(&scene.namespace).await;
    for touch in 0..3 {
        let seen = reconciles(&scene.host, PLUGIN).await;
        let label = Patch::Merge(json!({"metadata": {"labels": {"touched": touch.to_string()}}}));
        scene.deployments.patch("cache", &PatchParams::default(), &label).await.unwrap();
        reconciled(&scene.host, PLUGIN, seen, 1.0).await;
    }
    let writes = writes_since(before, PLUGIN, &scene.namespace).await;
    let writes: Vec<_> = writes.iter().map(ToString::to_string).collect();
    assert!(writes.is_empty(), "as desired means no write: {writes:#?}");

    scene.memcacheds.remove("cache").await.unwrap();
    eventually("an event announces the end", SOON, async || {
        let events = scene.namespace.api::<Event>().list(&ListParams::default()).await?;
        let announced = events.iter().find(|event| event.reason.as_deref() == Some("Deleting"));
        let event = announced.with_context(|| format!("{} events, none of them", events.items.len()))?;
        let message = event.message.as_deref().unwrap_or_default();
        ensure!(event.type_.as_deref() == Some("Warning"), "it is of type {:?}", event.type_);
        ensure!(message.contains("cache") && message.contains(scene.namespace.name()), "it says {message:?}");
        Ok(())
    })
    .await
    .unwrap();
    eventually("object and Deployment are gone", COLLECTED, async || {
        ensure!(scene.memcacheds.get_opt("cache").await?.is_none(), "the object is still there");
        ensure!(scene.deployments.get_opt("cache").await?.is_none(), "the Deployment is still there");
        Ok(())
    })
    .await
    .unwrap();
    let failures = scene.host.metrics().await.unwrap().failures(PLUGIN);
    assert!(failures < 0.5, "{failures} reconciles failed");
}

#[tokio::test]
async fn a_deployment_of_somebody_else_is_never_touched() {
    let scene = scene(launch()).await;
    let theirs = serde_json::from_value(json!({
        "metadata": {"name": "taken"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "theirs"}},
            "template": {
                "metadata": {"labels": {"app": "theirs"}},
                "spec": {"containers": [{"name": "theirs", "image": "theirs"}]},
            },
        },
    }))
    .unwrap();
    scene.deployments.create(&PostParams::default(), &theirs).await.unwrap();
    scene.memcacheds.apply("taken", &json!({"size": 1, "containerPort": 11211})).await.unwrap();
    eventually("the condition says so", SOON, async || {
        let object = scene.memcacheds.get("taken").await?;
        let available = state(&object, "Available");
        ensure!(available == "False/Reconciling", "Available is {available}");
        Ok(())
    })
    .await
    .unwrap();
    let deployment = scene.deployments.get("taken").await.unwrap();
    assert_eq!(deployment.spec.as_ref().unwrap().replicas, Some(0));
    assert!(deployment.owner_references().is_empty());
    assert!(
        deployment.managed_fields().iter().all(|entry| !entry.manager.as_deref().unwrap_or("").contains("operetta"))
    );
}
