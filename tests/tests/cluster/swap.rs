//! Plugins come, change and go while a host runs: under load, half copied, broken, and over a restart.

use std::{
    fs::File,
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use kube::{ResourceExt as _, api::ListParams};
use operetta_tests::{
    eventually,
    host::{Document, Host, Log},
    kinds::{Objects, act, mischiefs, pet, pets, text},
    petstore::PetStore,
    variant::hostile_version,
};
use serde_json::json;

use crate::shared::{SOON, built, host, installed, namespace, plug, run};

const PLUGIN: &str = "hostile";

/// The fixture as it was built, which calls itself 1.0.0.
fn code() -> Vec<u8> {
    installed().component(PLUGIN).unwrap().code().unwrap()
}

/// Waits until the objects' status says that this version looked after them.
async fn looked_after(objects: &Objects, version: &str) {
    eventually(&format!("version {version} looked after all"), SOON, async || {
        let all = objects.list(&ListParams::default()).await?;
        let other = all.iter().find(|object| text(object, "/status/version") != version);
        let other = other.map(|object| format!("{} by {:?}", object.name_any(), text(object, "/status/version")));
        ensure!(other.is_none(), "{} was looked after", other.unwrap_or_default());
        Ok(())
    })
    .await
    .unwrap();
}

/// Waits until the log says that this version took over.
async fn exchanged(host: &Host, version: &str) {
    let fits = |line: &operetta_tests::host::Line| {
        line.message() == "plugin exchanged" && line.plugin() == PLUGIN && line.text("version") == version
    };
    host.log().until(&format!("the exchange for {version}"), Log::start(), SOON, fits).await.unwrap();
}

#[tokio::test]
async fn a_plugin_runs_when_it_is_dropped_in_stops_when_it_is_removed_and_neighbours_notice_nothing() {
    let namespace = namespace().await;
    let host = host(&namespace).await;
    let store = PetStore::start(run(), built()).await.unwrap();
    plug(&host, "petstore", |document| document.endpoint("petstore", &store.endpoint())).await;
    let (mischiefs, pets) =
        (mischiefs(&namespace.client(), namespace.name()), pets(&namespace.client(), namespace.name()));
    let neighbour = async |name: &str| {
        pets.apply(name, &pet("Calm", "cat")).await.unwrap();
        eventually("the neighbour works", SOON, async || {
            ensure!(!text(&pets.get(name).await?, "/status/id").is_empty(), "no id yet");
            Ok(())
        })
        .await
        .unwrap();
    };

    mischiefs.apply("before", &act("behave")).await.unwrap();
    neighbour("first").await;
    plug(&host, PLUGIN, |document| document).await;
    looked_after(&mischiefs, "1.0.0").await;
    neighbour("second").await;

    let mark = host.log().mark();
    host.plugins().remove(PLUGIN).unwrap();
    host.says(PLUGIN, "plugin removed", mark, SOON).await.unwrap();
    mischiefs.apply("after", &act("behave")).await.unwrap();
    neighbour("third").await;
    assert_eq!(
        text(&mischiefs.get("after").await.unwrap(), "/status/version"),
        "",
        "a plugin that is gone still works"
    );

    // Back again, as another version: what came meanwhile is found.
    let document = Document::of(installed().component(PLUGIN).unwrap()).unwrap();
    host.plugins().put(PLUGIN, &hostile_version(&code(), "1.1.0").unwrap(), &document).unwrap();
    looked_after(&mischiefs, "1.1.0").await;
    let metrics = host.metrics().await.unwrap();
    assert!(metrics.failures("petstore") + metrics.failures(PLUGIN) < 0.5, "a reconcile failed");
}

#[tokio::test]
async fn a_plugin_is_replaced_under_load_without_a_failed_reconcile() {
    const OBJECTS: usize = 30;
    let namespace = namespace().await;
    let host = host(&namespace).await;
    plug(&host, PLUGIN, |document| document).await;
    let objects = mischiefs(&namespace.client(), namespace.name());
    // Reconciles that take their time, so that some are always under way.
    let spec = |milliseconds: usize| json!({"act": "behave", "milliseconds": milliseconds});
    for number in 0..OBJECTS {
        objects.apply(&format!("busy-{number}"), &spec(20)).await.unwrap();
    }
    looked_after(&objects, "1.0.0").await;

    let (stop, changes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load = {
        let (stop, changes, objects) = (stop.clone(), changes.clone(), objects.clone());
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let number = changes.fetch_add(1, Ordering::Relaxed);
                objects.apply(&format!("busy-{}", number % OBJECTS), &spec(20 + number % 50)).await.unwrap();
            }
        })
    };
    let before = host.metrics().await.unwrap().reconciles(PLUGIN);
    for version in ["2.0.0", "2.0.1", "2.0.2"] {
        let next = hostile_version(&code(), version).unwrap();
        let start = Instant::now();
        // A rename, and a plain copy over the file that lies there.
        if version == "2.0.1" {
            host.plugins().copy_wasm(PLUGIN, &next).unwrap();
        } else {
            host.plugins().put_wasm(PLUGIN, &next).unwrap();
        }
        exchanged(&host, version).await;
        eprintln!("{version} took over {:?} after its file came, compiled anew", start.elapsed());
        assert!(!load.is_finished(), "the load ended too early");
    }
    stop.store(true, Ordering::Relaxed);
    load.await.unwrap();
    looked_after(&objects, "2.0.2").await;
    let metrics = host.metrics().await.unwrap();
    let (reconciles, failures) = (metrics.reconciles(PLUGIN) - before, metrics.failures(PLUGIN));
    eprintln!("{reconciles} reconciles under {} changes, {failures} of them failed", changes.load(Ordering::Relaxed));
    assert!(failures < 0.5, "{failures} reconciles failed");
    assert!(reconciles > 3.0 * OBJECTS as f64, "{reconciles} reconciles are no load");
}

#[tokio::test]
async fn a_file_is_loaded_when_it_is_whole_and_a_copy_that_stalls_harms_nothing() {
    let namespace = namespace().await;
    let host = host(&namespace).await;
    plug(&host, PLUGIN, |document| document).await;
    let objects = mischiefs(&namespace.client(), namespace.name());
    objects.apply("patient", &act("behave")).await.unwrap();
    looked_after(&objects, "1.0.0").await;

    // A slow copy: each part soon after the other, for longer than any one of them is waited for.
    let next = hostile_version(&code(), "3.0.0").unwrap();
    let mark = host.log().mark();
    let mut file = File::create(host.plugins().wasm(PLUGIN)).unwrap();
    for part in next.chunks(next.len() / 12) {
        file.write_all(part).unwrap();
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    drop(file);
    exchanged(&host, "3.0.0").await;
    let errors = host.log().after(mark).unwrap().into_iter().filter(|line| line.level() == "ERROR").count();
    assert_eq!(errors, 0, "half a file was taken for a whole one");

    // A copy that stalls in the middle: said, harmless, and good again when it is complete.
    let next = hostile_version(&code(), "3.0.1").unwrap();
    let mark = host.log().mark();
    let mut file = File::create(host.plugins().wasm(PLUGIN)).unwrap();
    let (first, second) = next.split_at(next.len() / 2);
    file.write_all(first).unwrap();
    let says = |line: &operetta_tests::host::Line| line.plugin() == PLUGIN && line.text("error").contains("cut short");
    let line = host.log().until("what is wrong with it", mark, SOON, says).await.unwrap();
    assert!(line.message().contains("version 3.0.0"), "{line}");
    objects.apply("meanwhile", &act("behave")).await.unwrap();
    looked_after(&objects, "3.0.0").await;
    file.write_all(second).unwrap();
    drop(file);
    exchanged(&host, "3.0.1").await;
    looked_after(&objects, "3.0.1").await;
}

#[tokio::test]
async fn a_broken_replacement_leaves_the_old_version_running_over_a_crash_too() {
    let namespace = namespace().await;
    let mut host = host(&namespace).await;
    plug(&host, PLUGIN, |document| document).await;
    let objects = mischiefs(&namespace.client(), namespace.name());
    objects.apply("first", &act("behave")).await.unwrap();
    looked_after(&objects, "1.0.0").await;

    let mark = host.log().mark();
    host.plugins().put_wasm(PLUGIN, b"no longer a component").unwrap();
    let says = |line: &operetta_tests::host::Line| line.plugin() == PLUGIN && line.text("phase") == "verify";
    let line = host.log().until("what is wrong with it", mark, SOON, says).await.unwrap();
    assert!(line.text("error").starts_with("hostile.wasm: "), "{line}");
    assert!(line.message().starts_with("version 1.0.0") && line.message().ends_with("runs on"), "{line}");
    objects.apply("second", &act("behave")).await.unwrap();
    looked_after(&objects, "1.0.0").await;

    host.kill().unwrap();
    let mark = host.log().mark();
    objects.apply("third", &act("behave")).await.unwrap();
    host.begin(run()).await.unwrap();
    looked_after(&objects, "1.0.0").await;
    host.log().until("what is wrong with it, again", mark, SOON, says).await.unwrap();

    host.plugins().put_wasm(PLUGIN, &hostile_version(&code(), "4.0.0").unwrap()).unwrap();
    looked_after(&objects, "4.0.0").await;
    let failures = host.metrics().await.unwrap().failures(PLUGIN);
    assert!(failures < 0.5, "{failures} reconciles failed");
}

#[tokio::test]
async fn a_changed_document_takes_effect_without_a_restart() {
    let namespace = namespace().await;
    let host = host(&namespace).await;
    let component = installed().component(PLUGIN).unwrap();
    let document = || Document::of(component).unwrap();
    plug(&host, PLUGIN, |document| document.limit("deadlineSeconds", 1)).await;
    let objects = mischiefs(&namespace.client(), namespace.name());
    objects.apply("slow", &json!({"act": "behave", "milliseconds": 2_500})).await.unwrap();
    let failed = host.says(PLUGIN, "reconcile failed", Log::start(), SOON).await.unwrap();
    assert_eq!(failed.text("reason"), "DeadlineExceeded");
    host.plugins().put_document(PLUGIN, &document().limit("deadlineSeconds", 10)).unwrap();
    looked_after(&objects, "1.0.0").await;

    // Suspended and resumed.
    let mark = host.log().mark();
    host.plugins().put_document(PLUGIN, &document().field(&["spec", "suspend"], json!(true))).unwrap();
    host.says(PLUGIN, "plugin is suspended", mark, SOON).await.unwrap();
    objects.apply("later", &act("behave")).await.unwrap();
    let mark = host.log().mark();
    host.plugins().put_document(PLUGIN, &document()).unwrap();
    host.says(PLUGIN, "plugin ready", mark, SOON).await.unwrap();
    looked_after(&objects, "1.0.0").await;
}
