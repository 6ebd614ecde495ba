//! The story, part by part. Each part does something as a person would, and waits until it has come true.

use std::{fmt::Display, time::Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Secret},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    stage::{NAMESPACE, SOON, Stage},
    voice::{command, failed, ok, quote, title},
};
use crate::{
    eventually,
    host::{Document, Line},
    kinds::{Objects, act, immortals, memcacheds, mischiefs, pet, pets, state, text},
};

/// Tells all of it; answers how many parts did not come true.
pub async fn tell(stage: &mut Stage) -> usize {
    let mut wrong = 0;
    macro_rules! part {
        ($title:literal, $part:path) => {
            title($title);
            if let Err(error) = $part(stage).await {
                failed(&error);
                wrong += 1;
            }
        };
    }
    part!("1. Pets get their ids from the pet store", ids);
    part!("2. Thor becomes Thorbert", rename);
    part!("3. Both are deleted, and leave the store", leave);
    part!("4. An immortal container", immortal);
    part!("5. Memcached, scaled by hand, goes back", scaled);
    part!("6. An operator is replaced while it runs", replaced);
    part!("7. A stranger comes, and is contained", stranger);
    wrong
}

/// Waits until it is so, and says so with the time it took.
async fn until<T>(what: impl Display, started: Instant, condition: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let answer = eventually(&what.to_string(), SOON, condition).await?;
    ok(&what.to_string(), started.elapsed());
    Ok(answer)
}

async fn field(objects: &Objects, name: &str, pointer: &str) -> Result<String> {
    let object = objects.get(name).await.with_context(|| format!("get {name}"))?;
    let value = text(&object, pointer).to_owned();
    ensure!(!value.is_empty(), "{name} has no {pointer} yet");
    Ok(value)
}

async fn ids(stage: &mut Stage) -> Result<()> {
    let pets = pets(&stage.client, NAMESPACE);
    command("kubectl apply -f config/samples/petstore_v1alpha1_pet.yaml");
    let started = Instant::now();
    pets.apply("thor", &pet("Thor", "dog")).await?;
    pets.apply("tron", &pet("Tron", "cat")).await?;
    let ids = eventually("both have ids", SOON, async || {
        Ok([field(&pets, "thor", "/status/id").await?, field(&pets, "tron", "/status/id").await?])
    })
    .await?;
    ok(&format!("thor has the id {}, tron {}", ids[0], ids[1]), started.elapsed());
    let started = Instant::now();
    until("the store, asked over gRPC, knows both under these ids", started, async || {
        let known: Vec<_> = stage.store.pets().await?.into_iter().map(|pet| pet.id).collect();
        ensure!(ids.iter().all(|id| known.contains(id)) && known.len() == 2, "it knows {known:?}");
        Ok(())
    })
    .await
}

async fn rename(stage: &mut Stage) -> Result<()> {
    command(r#"kubectl patch pet thor --type merge -p '{"spec":{"name":"Thorbert"}}'"#);
    let started = Instant::now();
    pets(&stage.client, NAMESPACE).merge("thor", &json!({"spec": {"name": "Thorbert"}})).await?;
    until("the store says Thorbert and Tron", started, async || {
        let names = stage.store.names().await?;
        ensure!(names == ["Thorbert", "Tron"], "it says {names:?}");
        Ok(())
    })
    .await
}

async fn leave(stage: &mut Stage) -> Result<()> {
    let pets = pets(&stage.client, NAMESPACE);
    command("kubectl delete pets thor tron");
    let started = Instant::now();
    pets.remove("thor").await?;
    pets.remove("tron").await?;
    until("the store is empty, and only then both are gone from the cluster", started, async || {
        let names = stage.store.names().await?;
        ensure!(names.is_empty(), "the store still has {names:?}");
        let left = pets.list(&kube::api::ListParams::default()).await?.items.len();
        ensure!(left == 0, "{left} of them still there");
        Ok(())
    })
    .await
}

async fn immortal(stage: &mut Stage) -> Result<()> {
    let objects = immortals(&stage.client, NAMESPACE);
    let pods = Api::<Pod>::namespaced(stage.client.clone(), NAMESPACE);
    let running = async |not: &str| {
        let pod = pods.get("phoenix-immortalpod").await.context("get the pod")?;
        let uid = pod.uid().unwrap_or_default();
        ensure!(uid != not, "it is still the same pod");
        let phase = pod.status.and_then(|s| s.phase).unwrap_or_default();
        ensure!(phase == "Running", "the pod is {phase}");
        Ok(uid)
    };
    command("kubectl apply -f config/samples/immortalcontainer_v1alpha1_immortalcontainer.yaml");
    let started = Instant::now();
    objects.apply("phoenix", &json!({"image": "nginx:latest"})).await?;
    let first = until("phoenix-immortalpod runs", started, async || running("").await).await?;
    command("kubectl delete pod phoenix-immortalpod");
    let started = Instant::now();
    pods.delete("phoenix-immortalpod", &DeleteParams::default().grace_period(0)).await?;
    until("it is back, another pod of the same name", started, async || running(&first).await).await?;
    until("status.startTimes says 2", started, async || {
        let object = objects.get("phoenix").await?;
        let starts = object.data.pointer("/status/startTimes").and_then(Value::as_i64);
        ensure!(starts == Some(2), "it says {starts:?}");
        Ok(())
    })
    .await
}

/// Waits until the Deployment has so many replicas, all of them available.
async fn replicas(stage: &Stage, what: &str, wanted: i32, started: Instant) -> Result<()> {
    let deployments = Api::<Deployment>::namespaced(stage.client.clone(), NAMESPACE);
    until(what, started, async || {
        let deployment = deployments.get("cache").await.context("get the Deployment")?;
        let desired = deployment.spec.and_then(|s| s.replicas);
        let available = deployment.status.and_then(|s| s.available_replicas).unwrap_or_default();
        ensure!(desired == Some(wanted) && available == wanted, "{desired:?} replicas, {available} available");
        Ok(())
    })
    .await
}

async fn scaled(stage: &mut Stage) -> Result<()> {
    let objects = memcacheds(&stage.client, NAMESPACE);
    command("kubectl apply -f - <<< '{…, \"kind\": \"Memcached\", \"metadata\": {\"name\": \"cache\"}, \"spec\": {\"size\": 2, \"containerPort\": 11211}}'");
    let started = Instant::now();
    objects.apply("cache", &json!({"size": 2, "containerPort": 11211})).await?;
    replicas(stage, "its Deployment has 2 replicas", 2, started).await?;
    until("the condition Available is True", started, async || {
        let state = state(&objects.get("cache").await?, "Available");
        ensure!(state.starts_with("True"), "it is {state}");
        Ok(())
    })
    .await?;
    command("kubectl scale deployment cache --replicas 5");
    let deployments = Api::<Deployment>::namespaced(stage.client.clone(), NAMESPACE);
    let started = Instant::now();
    let scale = json!({"spec": {"replicas": 5}});
    let scaled = deployments.patch("cache", &PatchParams::default(), &Patch::Merge(scale)).await?;
    ensure!(scaled.spec.and_then(|s| s.replicas) == Some(5), "the API server did not scale it");
    replicas(stage, "the API server said 5; now it is 2 again", 2, started).await
}

async fn replaced(stage: &mut Stage) -> Result<()> {
    let objects = memcacheds(&stage.client, NAMESPACE);
    let before = objects.get("cache").await?;
    let pods = async || {
        let pods = Api::<Pod>::namespaced(stage.client.clone(), NAMESPACE);
        let all = pods.list(&kube::api::ListParams::default().labels("app.kubernetes.io/instance=cache")).await?;
        anyhow::Ok(all.iter().filter_map(kube::ResourceExt::uid).collect::<std::collections::BTreeSet<_>>())
    };
    let pods_before = pods().await?;
    quote(&message(&before, "Available"));
    let next = stage.built.component("memcached-next")?;
    command(&format!("cp memcached-0.2.0.wasm {}", stage.host.plugins().wasm("memcached").display()));
    let mark = stage.host.log().mark();
    let started = Instant::now();
    stage.host.plugins().copy_wasm("memcached", &next.code()?)?;
    stage.host.says("memcached", "plugin exchanged", mark, SOON).await?;
    ok("the new code has taken over", started.elapsed());
    let now = until("and every Memcached was reconciled by it", started, async || {
        let object = objects.get("cache").await?;
        let text = message(&object, "Available");
        ensure!(text.contains("0.2.0"), "it still says {text:?}");
        Ok(text)
    })
    .await?;
    quote(&now);
    ensure!(pods_before == pods().await?, "pods were restarted");
    ok("no pod was restarted, no reconcile failed", started.elapsed());
    let errors = failures(stage, mark, "memcached")?;
    ensure!(errors.is_empty(), "reconciles failed: {errors:?}");
    Ok(())
}

fn message(object: &kube::api::DynamicObject, kind: &str) -> String {
    let condition = crate::kinds::condition(object, kind).and_then(|c| c.get("message")).and_then(Value::as_str);
    condition.unwrap_or_default().to_owned()
}

/// Reconciles of a plugin that failed since the mark.
fn failures(stage: &Stage, mark: crate::host::Mark, plugin: &str) -> Result<Vec<String>> {
    let lines = stage.host.log().after(mark)?;
    let failed = lines.iter().filter(|line| line.message() == "reconcile failed" && line.plugin() == plugin);
    Ok(failed.map(ToString::to_string).collect())
}

async fn stranger(stage: &mut Stage) -> Result<()> {
    let objects = mischiefs(&stage.client, NAMESPACE);
    stage.install("hostile")?;
    command(&format!("cp hostile.wasm hostile.yaml {}/", stage.host.plugins().path().display()));
    let component = stage.built.component("hostile")?;
    let document = Document::of(component)?.limit("cpuSeconds", 1).limit("memoryMiB", 16);
    let mark = stage.host.log().mark();
    let started = Instant::now();
    stage.host.plugins().put("hostile", &component.code()?, &document)?;
    stage.host.says("hostile", "plugin ready", mark, SOON).await?;
    ok("an operator runs that nobody trusts", started.elapsed());

    for (name, mischief, what, word) in [
        ("thief", "steal", "it writes a Secret: denied, with the rule that it lacks", "not granted"),
        ("spinner", "loop", "it loops for ever: stopped by its CPU budget", "CPU"),
        ("hoarder", "hoard", "it takes all memory: stopped at its limit", "memory"),
        ("crasher", "panic", "it crashes: the end of that one call", "trapped"),
    ] {
        command(&format!("kubectl apply -f - <<< '{{…, \"kind\": \"Mischief\", \"metadata\": {{\"name\": \"{name}\"}}, \"spec\": {{\"act\": \"{mischief}\"}}}}'"));
        let mark = stage.host.log().mark();
        let started = Instant::now();
        objects.apply(name, &act(mischief)).await?;
        let fits = |line: &Line| {
            line.message() == "reconcile failed" && line.plugin() == "hostile" && line.text("error").contains(word)
        };
        let line = stage.host.log().until(what, mark, SOON, fits).await?;
        ok(what, started.elapsed());
        quote(line.text("error").lines().next().unwrap_or_default());
    }
    let secrets = Api::<Secret>::namespaced(stage.client.clone(), NAMESPACE);
    if secrets.get_opt("loot").await?.is_some() {
        bail!("the Secret was written");
    }

    // All of that goes on while the others work.
    let started = Instant::now();
    let pets = pets(&stage.client, NAMESPACE);
    pets.apply("thor", &pet("Thor", "dog")).await?;
    until("meanwhile its neighbours work as ever: thor has an id again", started, async || {
        field(&pets, "thor", "/status/id").await
    })
    .await?;
    pets.remove("thor").await?;
    command(&format!("rm {}/hostile.*", stage.host.plugins().path().display()));
    let mark = stage.host.log().mark();
    let started = Instant::now();
    stage.host.plugins().remove("hostile")?;
    stage.host.says("hostile", "plugin removed", mark, SOON).await?;
    ok("it is gone", started.elapsed());
    stage.host.ensure_runs()
}
