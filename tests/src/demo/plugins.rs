//! The part of the story about plugins: one replaced by another version under load, and a stranger that is contained.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    pods::MEMCACHED,
    stage::{SOON, Stage},
    tell::{Teller, shown},
};
use crate::{
    eventually,
    host::{self, Document},
    kinds::{condition, memcacheds, mischiefs, pet, pets, text},
};

const MEMCACHED_PLUGIN: &str = "memcached";
const NEXT: &str = "memcached-next";
/// What the next version writes on its Deployments.
const LOOKED_AFTER: &str = "cache.example.com/operator-version";
const STRANGER: &str = "hostile";
/// What it is asked to do.
const DEEDS: &str = "tests/guests/hostile/mischief.yaml";
/// How soon new code takes over, promised.
const PROMISED: Duration = Duration::from_secs(2);
/// How many characters of an error fit on a line.
const WIDTH: usize = 80;

/// The next version takes over while somebody keeps scaling by hand.
pub async fn replace(stage: &mut Stage, tell: &Teller) -> Result<()> {
    let objects = memcacheds(&stage.client, stage.namespace());
    let deployments = Api::<Deployment>::namespaced(stage.client.clone(), stage.namespace());
    let next = stage.built().component(NEXT)?;
    let (code, typed) = (next.code()?, stage.typed(&next.wasm));
    let before = stage.host.metrics().await?;
    tell.says("meanwhile somebody keeps scaling the Deployment by hand, ten times a second");
    let load = async {
        for replicas in (2..5).cycle() {
            let scale = Patch::Merge(json!({"spec": {"replicas": replicas}}));
            deployments.patch_scale(MEMCACHED, &PatchParams::default(), &scale).await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    let swap = async {
        // Some reconciles of the old version first.
        tokio::time::sleep(Duration::from_secs(1)).await;
        tell.types(&format!("cp {typed} $PLUGINS/memcached.wasm"));
        let start = Instant::now();
        stage.host.plugins().copy_wasm(MEMCACHED_PLUGIN, &code)?;
        let version = eventually("the next version looks after the Deployment", SOON, async || {
            let version = deployments.get(MEMCACHED).await?.annotations().get(LOOKED_AFTER).cloned();
            version.ok_or_else(|| anyhow::anyhow!("the Deployment has no annotation {LOOKED_AFTER}"))
        })
        .await?;
        let took = start.elapsed();
        tell.took(&format!("version {version} has taken over, and annotates its Deployments"), took);
        ensure!(took < PROMISED, "it took {}, over {}", shown(took), shown(PROMISED));
        // And some of the new one.
        tokio::time::sleep(Duration::from_secs(1)).await;
        anyhow::Ok(())
    };
    tokio::select! {
        ended = load => ended?,
        swapped = swap => swapped?,
    }
    let message = eventually("its words are in the status", SOON, async || {
        let object = objects.get(MEMCACHED).await?;
        let message = condition(&object, "Available").and_then(|c| c.get("message")).and_then(Value::as_str);
        let message = message.unwrap_or_default().to_owned();
        ensure!(message.contains("0.2.0"), "Available says {message:?}");
        Ok(message)
    })
    .await?;
    tell.says(&format!("Available: {message}"));
    let after = stage.host.metrics().await?;
    let reconciles = after.reconciles(MEMCACHED_PLUGIN) - before.reconciles(MEMCACHED_PLUGIN);
    let failures = after.failures(MEMCACHED_PLUGIN) - before.failures(MEMCACHED_PLUGIN);
    tell.says(&format!("{reconciles} reconciles meanwhile, {failures} of them failed"));
    ensure!(failures < 0.5, "{failures} reconciles failed");
    Ok(())
}

/// A plugin that nobody trusts tries this and that.
pub async fn contain(stage: &mut Stage, tell: &Teller) -> Result<()> {
    let stranger = stage.built().component(STRANGER)?.clone();
    let typed = stage.typed(&stranger.wasm);
    tell.types(&format!("operetta install {typed} && cp {typed} {} $PLUGINS/", stage.typed(&stranger.document)));
    host::install(stage.built(), stage.kubeconfig(), &[&stranger.wasm])?;
    let mark = stage.host.log().mark();
    // Its budget: one second of CPU time, 32 MiB.
    let document = Document::of(&stranger)?.limit("cpuSeconds", 1).limit("memoryMiB", 32);
    stage.host.plugins().put(STRANGER, &stranger.code()?, &document)?;
    stage.host.says(STRANGER, "plugin ready", mark, SOON).await?;

    let mischiefs = mischiefs(&stage.client, stage.namespace());
    let deeds = [
        ("steal", "it writes a Secret", "Error"),
        ("loop", "it never ends", "CPUExceeded"),
        ("hoard", "it takes all memory", "MemoryExceeded"),
        ("panic", "it crashes", "Trap"),
    ];
    let before = stage.host.metrics().await?.failures("petstore");
    tell.types(&stage.kubectl(&format!("apply -f {DEEDS}")));
    for deed in stage.read(DEEDS)? {
        let name = deed.pointer("/metadata/name").and_then(Value::as_str).context("a deed has a name")?;
        mischiefs.apply(name, deed.get("spec").context("a deed has a spec")?).await?;
    }
    let start = Instant::now();
    let pets = pets(&stage.client, stage.namespace());
    pets.apply("rex", &pet("Rex", "dog")).await?;
    eventually("a neighbour works", SOON, async || {
        ensure!(!text(&pets.get("rex").await?, "/status/id").is_empty(), "Rex has no id yet");
        Ok(())
    })
    .await?;
    tell.took("in the midst of it a pet moves in next door", start.elapsed());
    for (deed, what, reason) in deeds {
        let failed = |line: &host::Line| {
            line.plugin() == STRANGER && line.message() == "reconcile failed" && line.text("object.name") == deed
        };
        let line = stage.logged(deed, mark, failed).await?;
        ensure!(line.text("reason") == reason, "{deed} ended as {}: {}", line.text("reason"), line.text("error"));
        let error = line.text("error").lines().next().unwrap_or_default();
        tell.says(&format!("{what}: {}", cut(error)));
    }
    let secrets = Api::<Secret>::namespaced(stage.client.clone(), stage.namespace());
    ensure!(secrets.get_opt("loot").await?.is_none(), "the Secret was written");
    let failures = stage.host.metrics().await?.failures("petstore") - before;
    ensure!(failures < 0.5, "{failures} reconciles of the neighbour failed");

    tell.types("rm $PLUGINS/hostile.*");
    let mark = stage.host.log().mark();
    let start = Instant::now();
    stage.host.plugins().remove(STRANGER)?;
    stage.host.says(STRANGER, "plugin removed", mark, SOON).await?;
    tell.took("it is gone", start.elapsed());
    Ok(())
}

/// As much as fits on a line.
fn cut(text: &str) -> String {
    if text.chars().count() <= WIDTH { text.to_owned() } else { text.chars().take(WIDTH).chain(['…']).collect() }
}
