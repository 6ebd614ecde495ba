//! The plugin against the fake host.

use crate::{FINALIZER, Memcached, MemcachedSpec, plugin};
#[cfg(not(feature = "next"))]
use expect_test::expect_file;
use k8s_openapi::api::apps::v1::Deployment;
use operetta_sdk::{
    Failure, Outcome,
    testing::{Cut, Ended, FakeHost, every_cut},
};
use serde_json::{Value, json};
use std::time::Duration;

fn cache(size: i32) -> FakeHost {
    let fake = FakeHost::new(plugin);
    fake.put(&Memcached::new("cache", MemcachedSpec { size, container_port: 11211 }));
    fake
}

async fn live(fake: &FakeHost) {
    fake.settle::<Memcached>("cache").await.unwrap();
}

fn deployment(fake: &FakeHost) -> Value {
    serde_json::to_value(fake.object::<Deployment>("cache").unwrap()).unwrap()
}

/// Status, reason and message.
fn condition(fake: &FakeHost, kind: &str) -> (String, String, String) {
    let conditions = fake.object::<Memcached>("cache").unwrap().status.unwrap().conditions;
    let found = conditions.into_iter().find(|condition| condition.type_ == kind).unwrap();
    (found.status, found.reason, found.message)
}

/// What the Deployment's own controller would say.
fn roll_out(fake: &FakeHost) {
    fake.edit::<Deployment>("cache", |deployment| {
        let wanted = deployment["spec"]["replicas"].clone();
        deployment["status"] = json!({
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": wanted, "updatedReplicas": wanted, "availableReplicas": wanted,
        });
    });
}

#[tokio::test]
async fn the_deployment_and_the_conditions_are_as_promised() {
    let fake = cache(2);
    assert_eq!(fake.reconcile::<Memcached>("cache").await, Ended::Well(Outcome::RequeueAfter(Duration::from_mins(1))));
    assert_eq!(
        fake.take_writes(),
        ["apply memcacheds/status default/cache", "json memcacheds default/cache", "apply deployments default/cache"]
    );
    let (status, reason, _) = condition(&fake, "Available");
    assert_eq!((status.as_str(), reason.as_str()), ("Unknown", "Reconciling"));
    let made = deployment(&fake);
    let template = &made["spec"]["template"];
    assert_eq!(made["spec"]["replicas"], 2);
    assert_eq!(made["metadata"]["ownerReferences"][0]["controller"], true);
    assert_eq!(made["metadata"]["labels"]["app.kubernetes.io/version"], "1.4.36-alpine");
    assert_eq!(
        made["spec"]["selector"]["matchLabels"],
        json!({"app.kubernetes.io/name": "memcached", "app.kubernetes.io/instance": "cache"})
    );
    assert_eq!(
        template["spec"],
        json!({
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "memcached",
                "image": "memcached:1.4.36-alpine",
                "imagePullPolicy": "IfNotPresent",
                "command": ["memcached", "-m=64", "-o", "modern", "-v"],
                "ports": [{"containerPort": 11211, "name": "memcached", "protocol": "TCP"}],
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 1001, "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                },
            }],
        })
    );

    live(&fake).await;
    let (status, reason, message) = condition(&fake, "Available");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Reconciling"));
    let promised = "Deployment for custom resource (cache) with 2 replicas created successfully";
    assert!(message.starts_with(promised), "{message}");
    assert_eq!(message == promised, cfg!(not(feature = "next")), "the next version says who it is");
    assert_eq!(condition(&fake, "Progressing").1, "RollingOut");
    roll_out(&fake);
    live(&fake).await;
    assert_eq!(condition(&fake, "Progressing").1, "RolledOut");
    fake.take_writes();
    live(&fake).await;
    assert_eq!(fake.take_writes(), [""; 0], "as desired");
}

#[tokio::test]
async fn replicas_go_back_and_what_others_wrote_stays() {
    let fake = cache(1);
    live(&fake).await;
    fake.edit::<Deployment>("cache", |deployment| {
        deployment["spec"]["replicas"] = json!(5);
        deployment["spec"]["revisionHistoryLimit"] = json!(10);
        let containers = deployment["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap();
        containers[0]["terminationMessagePath"] = json!("/dev/termination-log");
        containers.push(json!({"name": "sidecar", "image": "proxy"}));
    });
    fake.take_writes();
    live(&fake).await;
    assert_eq!(fake.take_writes(), ["apply deployments default/cache"]);
    let made = deployment(&fake);
    assert_eq!((&made["spec"]["replicas"], &made["spec"]["revisionHistoryLimit"]), (&json!(1), &json!(10)));
    let containers = &made["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["terminationMessagePath"], "/dev/termination-log");
    assert_eq!(containers[1]["name"], "sidecar");

    fake.edit::<Memcached>("cache", |object| object["spec"]["size"] = json!(3));
    live(&fake).await;
    assert_eq!(deployment(&fake)["spec"]["replicas"], 3);
    assert!(condition(&fake, "Available").2.contains("with 3 replicas"));

    fake.remove::<Deployment>("cache");
    live(&fake).await;
    assert_eq!(deployment(&fake)["spec"]["replicas"], 3);
}

#[tokio::test]
async fn the_end_is_announced_once_and_the_deployment_goes_with_its_owner() {
    let fake = cache(1);
    live(&fake).await;
    fake.edit::<Memcached>("cache", |object| object["metadata"]["finalizers"] = json!([FINALIZER, "example.com/hold"]));
    fake.remove::<Memcached>("cache");
    live(&fake).await;
    let (status, reason, _) = condition(&fake, "Degraded");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Finalizing"));
    let events = fake.take_events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].reason, "Deleting");
    assert_eq!(events[0].message, "Custom Resource cache is being deleted from the namespace default");
    fake.edit::<Memcached>("cache", |object| object["metadata"]["finalizers"] = json!([]));
    assert_eq!(fake.objects::<Deployment>().len(), 0);
}

#[tokio::test]
async fn somebody_elses_deployment_is_never_touched() {
    let fake = cache(1);
    let theirs = json!({"metadata": {"name": "cache"}, "spec": {"replicas": 7, "selector": {}, "template": {}}});
    fake.put(&serde_json::from_value::<Deployment>(theirs).unwrap());
    let before = deployment(&fake);
    live(&fake).await;
    assert_eq!(deployment(&fake), before);
    let (status, reason, message) = condition(&fake, "Available");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "Reconciling"));
    assert!(message.contains("somebody else"), "{message}");
}

#[tokio::test]
async fn another_image_is_a_setting() {
    let fake = cache(1);
    fake.set("image", "mirror.example:5000/memcached@sha256:0123");
    live(&fake).await;
    let made = deployment(&fake);
    assert_eq!(made["spec"]["template"]["spec"]["containers"][0]["image"], "mirror.example:5000/memcached@sha256:0123");
    assert_eq!(made["metadata"]["labels"]["app.kubernetes.io/version"], Value::Null);
}

#[tokio::test]
async fn a_deployment_that_cannot_be_made_is_told_in_the_condition() {
    let fake = cache(1);
    live(&fake).await;
    fake.edit::<Memcached>("cache", |object| object["spec"]["size"] = json!(2));
    // The first call of the next reconcile reads the Deployment, the second applies it.
    let calls = fake.calls();
    fake.cut(Cut { call: calls + 1, fault: operetta_sdk::testing::Fault::Refused });
    let Ended::Badly(Failure::Retryable(message)) = fake.reconcile::<Memcached>("cache").await else { panic!() };
    assert!(message.starts_with("Failed to update the size for the custom resource (cache): unavailable"), "{message}");
    assert_eq!(condition(&fake, "Available"), ("False".to_owned(), "Resizing".to_owned(), message));
    live(&fake).await;
    assert_eq!(condition(&fake, "Available").0, "True");
}

#[tokio::test]
async fn whatever_is_cut_there_is_one_deployment_as_described() {
    let cuts = every_cut(async |cut: Cut| {
        let fake = cache(1);
        fake.cut(cut);
        for size in [1, 3] {
            fake.edit::<Memcached>("cache", |object| object["spec"]["size"] = json!(size));
            live(&fake).await;
            roll_out(&fake);
            live(&fake).await;
            assert_eq!(fake.objects::<Deployment>().len(), 1);
            assert_eq!(deployment(&fake)["spec"]["replicas"], size);
            assert_eq!(condition(&fake, "Available").0, "True", "{cut:?}");
            assert_eq!(condition(&fake, "Progressing").1, "RolledOut", "{cut:?}");
        }
        fake.remove::<Memcached>("cache");
        live(&fake).await;
        assert_eq!((fake.objects::<Memcached>().len(), fake.objects::<Deployment>().len()), (0, 0), "{cut:?}");
        fake
    })
    .await;
    assert!(cuts > 50, "{cuts}");
}

#[cfg(not(feature = "next"))]
#[test]
fn the_manifest_is_what_is_committed() {
    let manifest = serde_json::to_string_pretty(&plugin().manifest()).unwrap();
    expect_file!["../manifest.json"].assert_eq(&manifest);
}
