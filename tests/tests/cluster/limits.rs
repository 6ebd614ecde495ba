//! What one plugin may take of the host and does, on a real API server: one that hangs in every place that it gets, what it burns, and limits that change while it runs.

use anyhow::ensure;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, PostParams};
use operetta_tests::{
    eventually,
    host::Launch,
    kinds::{act, mischiefs, text, volumes, writers},
    postgres::Postgres,
};
use serde_json::{Value, json};

use crate::{
    plugins::Stage,
    shared::{SOON, built, host, installed, namespace, plug, run, shared},
};

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

#[tokio::test]
async fn objects_that_have_no_room_in_the_caches_are_looked_after_all_the_same() {
    let namespace = namespace().await;
    installed();
    let launch = Launch::new(built(), shared().kubeconfig()).namespace(namespace.name());
    let host = launch.arguments(["--cache-mib", "1"]).start(run()).await.unwrap();
    let volumes = volumes(&namespace.client(), namespace.name());
    let names: Vec<_> = (0..8).map(|number| format!("volume-{number}")).collect();
    for name in &names {
        volumes.apply(name, &json!({"name": name, "size": 1})).await.unwrap();
        let remark = json!({"metadata": {"annotations": {"example.com/remark": "x".repeat(200_000)}}});
        volumes.merge(name, &remark).await.unwrap();
    }
    plug(&host, NEIGHBOUR, |document| document).await;
    let looked_after = async |state: Value| {
        eventually("all are looked after", SOON, async || {
            for name in &names {
                ensure!(volumes.get(name).await?.data.pointer("/spec/size") == Some(&state), "{name} was not changed");
                ensure!(text(&volumes.get(name).await?, "/status/name") == *name, "{name} was not looked after");
            }
            Ok(())
        })
        .await
        .unwrap();
    };
    looked_after(json!(1)).await;
    // Half of one MiB has room for two of them.
    let metrics = host.metrics().await.unwrap();
    let held = metrics.sum("operetta_cache_bytes", &[("plugin", NEIGHBOUR)]);
    assert!(held > 300_000.0 && held <= 524_288.0, "it holds {held}");
    assert!((metrics.sum("operetta_cache_limit_bytes", &[]) - 1_048_576.0).abs() < 0.5);
    assert!(
        (metrics.sum("operetta_cache_outlines", &[]) - 6.0).abs() < 0.5,
        "{}",
        metrics.sum("operetta_cache_outlines", &[])
    );
    // A change of any of them wakes it, and it sees the whole object.
    let before = metrics.sum("controller_runtime_reconcile_total", &[("plugin", NEIGHBOUR)]);
    for name in &names {
        volumes.merge(name, &json!({"spec": {"size": 2}})).await.unwrap();
    }
    looked_after(json!(2)).await;
    eventually("each was woken", SOON, async || {
        let metrics = host.metrics().await?;
        let now = metrics.sum("controller_runtime_reconcile_total", &[("plugin", NEIGHBOUR)]);
        ensure!(now >= before + 8.0, "{before} reconciles before, and {now} now");
        ensure!(metrics.failures(NEIGHBOUR) < 0.5, "it failed");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_plugin_that_takes_all_memory_is_told_whose_it_is_and_leaves_some_for_a_neighbour() {
    let namespace = namespace().await;
    installed();
    let launch = Launch::new(built(), shared().kubeconfig()).namespace(namespace.name());
    let host = launch.arguments(["--guest-mib", "48"]).start(run()).await.unwrap();
    // Its own limit is more than half of what all plugins share.
    plug(&host, PLUGIN, |document| document.limit("memoryMiB", 64)).await;
    plug(&host, NEIGHBOUR, |document| document).await;
    let mischiefs = mischiefs(&namespace.client(), namespace.name());
    mischiefs.apply("hoards", &act("hoard")).await.unwrap();
    let told = [("plugin", PLUGIN), ("limit", "guest_memory")];
    eventually("it is told, again and again", SOON, async || {
        let met = host.metrics().await?.sum("operetta_limit_exceeded_total", &told);
        ensure!(met >= 5.0, "{met} times");
        Ok(())
    })
    .await
    .unwrap();
    let volumes = volumes(&namespace.client(), namespace.name());
    volumes.apply("volume", &json!({"name": "volume", "size": 1})).await.unwrap();
    eventually("the neighbour reconciles", SOON, async || {
        ensure!(text(&volumes.get("volume").await?, "/status/name") == "volume", "it was not looked after");
        Ok(())
    })
    .await
    .unwrap();
    let metrics = host.metrics().await.unwrap();
    assert!(metrics.failures(NEIGHBOUR) < 0.5, "the neighbour failed");
    assert!(metrics.sum("operetta_plugin_parked", &[("plugin", PLUGIN)]) < 0.5, "it is parked");
    assert!((metrics.sum("operetta_guest_memory_limit_bytes", &[]) - 50_331_648.0).abs() < 0.5);
    let held = metrics.sum("operetta_guest_memory_bytes", &[]);
    assert!(held <= 50_331_648.0, "they hold {held}");
}

#[tokio::test]
async fn what_a_plugin_burns_is_counted_under_its_name_and_no_other() {
    const CALLS: f64 = 300.0;
    let namespace = namespace().await;
    let host = host(&namespace).await;
    plug(&host, PLUGIN, |document| document.limit("hostCalls", 300)).await;
    plug(&host, NEIGHBOUR, |document| document).await;
    volumes(&namespace.client(), namespace.name()).apply("one", &json!({"name": "one", "size": 1})).await.unwrap();
    let mischiefs = mischiefs(&namespace.client(), namespace.name());
    for (name, mischief) in [("burns", "reread"), ("steals", "steal")] {
        mischiefs.apply(name, &act(mischief)).await.unwrap();
    }
    eventually("all of it is counted", SOON, async || {
        let metrics = host.metrics().await?;
        let of = |plugin: &str, name: &str| metrics.sum(name, &[("plugin", plugin)]);
        for (name, least, neighbours) in [
            ("operetta_reconcile_cpu_seconds_total", 0.001, 1.0),
            ("operetta_reconcile_memory_bytes", 1.0, f64::MAX),
            ("operetta_reconcile_memory_peak_bytes", 65_536.0, f64::MAX),
            ("operetta_plugin_host_calls_total", CALLS, 100.0),
            ("operetta_plugin_requests_total", CALLS, 100.0),
            ("operetta_plugin_api_requests_total", CALLS, 100.0),
            ("operetta_plugin_transmit_bytes_total", 1.0, 100_000.0),
            ("operetta_plugin_receive_bytes_total", CALLS, 100_000.0),
            ("operetta_denials_total", 1.0, 0.0),
            ("operetta_limit_exceeded_total", 1.0, 0.0),
        ] {
            let (burnt, beside) = (of(PLUGIN, name), of(NEIGHBOUR, name));
            ensure!(burnt >= least, "{name} is {burnt}");
            ensure!(beside <= neighbours, "{name} is {beside} for the neighbour");
        }
        let most = of(PLUGIN, "operetta_reconcile_memory_peak_bytes");
        ensure!(most >= of(PLUGIN, "operetta_reconcile_memory_bytes"), "{most} is not the most");
        ensure!(of(NEIGHBOUR, "operetta_plugin_api_requests_total") > 0.0, "the neighbour asked for nothing yet");
        let asked = [("plugin", PLUGIN), ("verb", "create"), ("result", "denied")];
        ensure!(metrics.sum("operetta_plugin_requests_total", &asked) > 0.0, "what was denied was asked for");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn settings_limits_and_databases_change_while_a_plugin_runs_and_nothing_is_loaded_for_it() {
    const WRITER: &str = "postgres-writer";
    let stage = Stage::new(WRITER).await;
    let source = stage.put_component("code", WRITER).await;
    let digest = operetta_core::name::Digest::of(&installed().component(WRITER).unwrap().code().unwrap());
    let (one, two) = tokio::join!(Postgres::start(run()), Postgres::start(run()));
    let servers = [one.unwrap(), two.unwrap()];
    let mut databases = Vec::new();
    for (number, server) in servers.iter().enumerate() {
        server.sql("CREATE TABLE students (id text PRIMARY KEY, name text, age bigint, country text)").await.unwrap();
        let [(_, place), (_, dbname), (_, user), (_, password)] = server.environment();
        let name = format!("rows-{number}");
        let secret = json!({"metadata": {"name": name}, "stringData": {"password": password}});
        let secrets = stage.beside.api::<Secret>();
        secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
        let from = json!({"secretKeyRef": {"name": name, "key": "password"}});
        databases.push(json!({"host": place, "dbname": dbname, "user": user, "passwordFrom": from}));
    }
    let spec = |server: usize, resync: &str, calls: u32| {
        let mut spec = Stage::spec(WRITER, &source, |document| document.setting("resync", resync));
        spec["digest"] = digest.to_string().into();
        spec["limits"] = json!({"hostCalls": calls});
        let granted = &mut spec["grants"]["databases"][0];
        let name = granted["name"].clone();
        *granted = databases[server].clone();
        granted["name"] = name;
        spec
    };
    let writers = writers(&stage.namespace.client(), stage.namespace.name());
    let student = json!({"table": "students", "name": "alex", "age": 23, "country": "canada"});
    writers.apply("alex", &student).await.unwrap();
    let holds = async |server: &Postgres, age: &str| {
        eventually("the row is there", SOON, async || {
            let found = server.sql("SELECT age FROM students").await?;
            ensure!(found == [[age]], "{found:?}");
            Ok(())
        })
        .await
        .unwrap();
    };
    stage.apply(&spec(0, "5m", 10_000)).await;
    stage.says("Ready", "True", "Running").await;
    holds(&servers[0], "23").await;

    // From here on a load would find nothing.
    stage.beside.api::<ConfigMap>().delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    let now = async |spec: Value| {
        stage.apply(&spec).await;
        stage.says("Ready", "True", "Running").await;
    };
    // A setting: it looks again far sooner than before.
    let before = stage.metric("controller_runtime_reconcile_total").await;
    now(spec(0, "100ms", 10_000)).await;
    eventually("it looks again and again", SOON, async || {
        let more = stage.metric("controller_runtime_reconcile_total").await - before;
        ensure!(more >= 5.0, "{more} times");
        Ok(())
    })
    .await
    .unwrap();
    // A limit, tightened and lifted again.
    now(spec(0, "100ms", 1)).await;
    let limited =
        async || stage.host.metrics().await.unwrap().sum("operetta_limit_exceeded_total", &[("limit", "host_calls")]);
    eventually("one call is not enough", SOON, async || {
        ensure!(limited().await > 0.5, "it is");
        Ok(())
    })
    .await
    .unwrap();
    now(spec(0, "100ms", 10_000)).await;
    writers.merge("alex", &json!({"spec": {"age": 24}})).await.unwrap();
    holds(&servers[0], "24").await;
    // Another database under the name that the plugin knows.
    now(spec(1, "100ms", 10_000)).await;
    holds(&servers[1], "24").await;
    writers.merge("alex", &json!({"spec": {"age": 25}})).await.unwrap();
    holds(&servers[1], "25").await;
    assert_eq!(servers[0].sql("SELECT age FROM students").await.unwrap(), [["24"]], "the first one is left alone");
    // The finalizer is held; for the plugin to go, its object goes first.
    writers.remove("alex").await.unwrap();
}
