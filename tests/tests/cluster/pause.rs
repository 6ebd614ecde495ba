//! What a person says to the host on an object: left alone while it is paused, reconciled when asked for.

use std::process::Command;

use anyhow::ensure;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams};
use operetta_tests::{
    eventually,
    host::{Host, Line},
    kinds::{Objects, act, memcacheds, mischiefs},
};
use serde_json::json;

use crate::shared::{SOON, built, host, namespace, plug, reconciled, reconciles, settled, shared};

/// Types a command, and returns how it ended and what it said.
fn operetta(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(built().host());
    let output = command.args(arguments).arg("--kubeconfig").arg(shared().kubeconfig()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), format!("{out}{err}"))
}

/// How many objects the host says are paused.
async fn paused(host: &Host, count: f64) {
    eventually(&format!("{count} objects are paused"), SOON, async || {
        let now = host.metrics().await?.sum("operetta_paused_objects", &[]);
        ensure!((now - count).abs() < 0.5, "{now} are");
        Ok(())
    })
    .await
    .unwrap();
}

async fn gone(objects: &Objects, name: &str) {
    eventually(&format!("{name} is gone"), SOON, async || {
        ensure!(objects.get_opt(name).await?.is_none(), "it is still there");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_paused_object_is_left_alone_by_everything_until_it_is_resumed() {
    let namespace = namespace().await;
    let host = host(&namespace).await;
    plug(&host, "memcached", |document| document).await;
    let objects = memcacheds(&namespace.client(), namespace.name());
    let deployments = namespace.api::<Deployment>();
    let replicas = async || deployments.get("cache").await.unwrap().spec.unwrap().replicas;
    let becomes = async |size: i32| {
        eventually(&format!("{size} replicas"), SOON, async || {
            let now = deployments.get("cache").await?.spec.and_then(|spec| spec.replicas);
            ensure!(now == Some(size), "{now:?}");
            Ok(())
        })
        .await
        .unwrap();
    };
    objects.apply("cache", &json!({"size": 2, "containerPort": 11211})).await.unwrap();
    becomes(2).await;
    settled(&host, "memcached").await;

    let mark = host.log().mark();
    let said = operetta(&["pause", "memcached/cache", "-n", namespace.name()]);
    assert_eq!(said, (Some(0), "memcached.cache.example.com/cache paused\n".to_owned()));
    paused(&host, 1.0).await;
    let before = reconciles(&host, "memcached").await;
    let scale = Patch::Merge(json!({"spec": {"replicas": 5}}));
    deployments.patch_scale("cache", &PatchParams::default(), &scale).await.unwrap();
    objects.merge("cache", &json!({"spec": {"size": 1}})).await.unwrap();
    let (_, said) = operetta(&["reconcile", "memcached/cache", "-n", namespace.name()]);
    assert!(said.contains("reconcile requested; it is paused"), "{said}");
    // A neighbour is looked after meanwhile: what woke the paused one came before.
    objects.apply("neighbour", &json!({"size": 1, "containerPort": 11211})).await.unwrap();
    eventually("the neighbour has its Deployment", SOON, async || Ok(deployments.get("neighbour").await?))
        .await
        .unwrap();
    assert_eq!(replicas().await, Some(5));

    let said = operetta(&["resume", "memcacheds.cache.example.com", "cache", "-n", namespace.name()]);
    assert_eq!(said, (Some(0), "memcached.cache.example.com/cache resumed\n".to_owned()));
    becomes(1).await;
    paused(&host, 0.0).await;
    reconciled(&host, "memcached", before, 1.0).await;

    // Its deletion waits as well.
    operetta(&["pause", "memcached", "cache", "-n", namespace.name()]);
    paused(&host, 1.0).await;
    settled(&host, "memcached").await;
    objects.remove("cache").await.unwrap();
    objects.remove("neighbour").await.unwrap();
    gone(&objects, "neighbour").await;
    assert!(objects.get("cache").await.unwrap().metadata.deletion_timestamp.is_some());
    operetta(&["resume", "memcached/cache", "-n", namespace.name()]);
    gone(&objects, "cache").await;
    paused(&host, 0.0).await;

    let lines = host.log().after(mark).unwrap();
    let told = |message: &str| {
        let of = |line: &&Line| line.message() == message && line.text("object.name") == "cache";
        lines.iter().filter(of).count()
    };
    assert_eq!((told("object paused"), told("object resumed")), (2, 2), "each is said once");
}

#[tokio::test]
async fn a_person_who_asks_gets_a_reconcile_at_once() {
    let namespace = namespace().await;
    let host = host(&namespace).await;
    plug(&host, "hostile", |document| document).await;
    let objects = mischiefs(&namespace.client(), namespace.name());
    objects.apply("done", &act("behave")).await.unwrap();
    settled(&host, "hostile").await;
    let before = reconciles(&host, "hostile").await;
    // Its controller is woken by new generations only, and an annotation makes none.
    for times in 1..=2 {
        let (code, said) = operetta(&["reconcile", "mischief/done", "-n", namespace.name()]);
        assert_eq!((code, said.as_str()), (Some(0), "mischief.hostile.example.com/done reconcile requested\n"));
        reconciled(&host, "hostile", before, f64::from(times)).await;
    }

    let cases: &[(&[&str], i32, &str)] = &[
        (&["reconcile", "mischief/nobody"], 5, "\"nobody\" not found"),
        (&["reconcile", "cats/tom"], 5, "knows no kind \"cats\""),
        (&["pause", "mischief"], 2, "KIND/NAME"),
        (&["pause", "event/x"], 2, "say which"),
        (&["resume", "mischief/../x"], 2, "name of an object"),
    ];
    for (arguments, code, says) in cases {
        let (ended, said) = operetta(&[arguments, &["-n", namespace.name()][..]].concat());
        assert!(ended == Some(*code) && said.contains(says), "{arguments:?} ended with {ended:?}: {said}");
    }
}
