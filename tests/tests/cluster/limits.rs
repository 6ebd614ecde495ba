//! What one plugin may take of the host, on a real API server: one that hangs in every place that it gets, beside a neighbour that comes later.

use anyhow::ensure;
use operetta_tests::{
    eventually,
    host::Launch,
    kinds::{act, mischiefs, text, volumes},
};
use serde_json::json;

use crate::shared::{SOON, built, installed, namespace, plug, run, shared};

const PLUGIN: &str = "hostile";
const NEIGHBOUR: &str = "demo-volume";

#[tokio::test]
async fn a_plugin_that_hangs_leaves_places_for_a_neighbour_and_takes_no_more_than_it_may() {
    let namespace = namespace().await;
    installed();
    let launch = Launch::new(built(), shared().kubeconfig()).namespace(namespace.name());
    let host = launch.arguments(["--max-concurrent-reconciles", "8"]).start(run()).await.unwrap();
    // More than the host has, and far longer than this test takes.
    plug(&host, PLUGIN, |document| document.limit("concurrency", 1000).limit("deadlineSeconds", 3600)).await;
    let mischiefs = mischiefs(&namespace.client(), namespace.name());
    for number in 0..20 {
        mischiefs.apply(&format!("wait-{number}"), &act("wait")).await.unwrap();
    }
    let running = async || {
        let metrics = host.metrics().await?;
        anyhow::Ok(metrics.sum("controller_runtime_active_workers", &[("plugin", PLUGIN)]))
    };
    eventually("it hangs in six of eight places", SOON, async || {
        let running = running().await?;
        ensure!((running - 6.0).abs() < 0.5, "in {running}");
        Ok(())
    })
    .await
    .unwrap();

    plug(&host, NEIGHBOUR, |document| document).await;
    let volumes = volumes(&namespace.client(), namespace.name());
    for number in 0..10 {
        let name = format!("volume-{number}");
        volumes.apply(&name, &json!({"name": name, "size": 1})).await.unwrap();
    }
    eventually("the neighbour reconciles", SOON, async || {
        for number in 0..10 {
            let name = format!("volume-{number}");
            ensure!(text(&volumes.get(&name).await?, "/status/name") == name, "{name} was not looked after");
        }
        Ok(())
    })
    .await
    .unwrap();
    assert!((running().await.unwrap() - 6.0).abs() < 0.5, "it took places of its neighbour's");
    let metrics = host.metrics().await.unwrap();
    assert!(metrics.failures(NEIGHBOUR) < 0.5, "the neighbour failed");
}
