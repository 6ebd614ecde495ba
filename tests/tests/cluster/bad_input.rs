//! Everything that can be wrong with what a host is given, tried against one running host: the error names the file, the phase and the next step, and a
//! neighbour goes on.

use std::{fs, io::Write as _};

use anyhow::ensure;
use k8s_openapi::api::core::v1::Secret;
use operetta_tests::{
    eventually,
    host::{Document, Host, Line, Log},
    kinds::{Objects, act, mischiefs, pet, pets, text},
    petstore::PetStore,
    variant::{hostile_make, overwrite},
};
use serde_json::json;

use crate::shared::{SOON, TestNamespace, account_of, built, host, installed, namespace, plug, run, writes_since};

/// A plugin that misbehaves, and one beside it that must not notice.
const PLUGIN: &str = "hostile";
const NEIGHBOUR: &str = "petstore";

/// What is wrong, and what is said about it.
struct Case {
    /// The name of the plugin's files.
    name: &'static str,
    wasm: Option<Vec<u8>>,
    yaml: Option<String>,
    phase: &'static str,
    /// What stands in the error: what is wrong, and what to do.
    says: &'static [&'static str],
}

fn cases() -> Vec<Case> {
    let component = installed().component(PLUGIN).unwrap();
    let code = component.code().unwrap();
    let document = || Document::of(component).unwrap();
    let yaml = |name: &str| Some(document().named(name).to_text());
    let wasm =
        |name: &'static str, wasm: Vec<u8>, phase, says| Case { name, wasm: Some(wasm), yaml: yaml(name), phase, says };
    let text = |name: &'static str, text: String, phase, says| Case {
        name,
        wasm: Some(code.clone()),
        yaml: Some(text),
        phase,
        says,
    };
    let mut flipped = code.clone();
    let middle = flipped.len() / 2;
    flipped[middle..middle + 64].fill(0xff);
    let empty_rules = document().named("no-rules").field(&["spec", "grants", "rules"], json!([]));
    // Of another kind, since this one is taken before anybody asks for the account.
    let free = installed().component("immortal-container").unwrap();
    let nobody =
        Document::of(free).unwrap().named("no-account").field(&["spec", "serviceAccount", "name"], json!("nobody"));
    let pinned = format!("sha256:{}", "0".repeat(64));
    vec![
        wasm(
            "not-wasm",
            b"#!/bin/sh\nexit 1\n".to_vec(),
            "verify",
            &["this is not WebAssembly", "a plugin is a component"],
        ),
        wasm("core-module", b"\0asm\x01\0\0\0".to_vec(), "verify", &["core WebAssembly module", "wasm-component-ld"]),
        wasm(
            "no-world",
            b"\0asm\x0d\0\x01\0".to_vec(),
            "verify",
            &["does not export `manifest`", "build it against the world"],
        ),
        wasm(
            "other-contract",
            overwrite(&code, "@0.1.0", "@0.9.0").unwrap(),
            "verify",
            &["version 0.9.0 of operetta:operator", "build it with the SDK of this host"],
        ),
        wasm("truncated", code[..code.len() / 2].to_vec(), "verify", &["cut short", "copy it again"]),
        wasm("empty", Vec::new(), "verify", &["the file is empty", "copy it again"]),
        wasm("flipped", flipped, "compile", &["not valid", "build it again"]),
        wasm(
            "panics",
            hostile_make(&code, "panic").unwrap(),
            "describe",
            &["crashed", "the manifest panics on purpose", "must not fail"],
        ),
        wasm(
            "loops",
            hostile_make(&code, "loop").unwrap(),
            "describe",
            &["used more than 1s of CPU time", "should return a constant"],
        ),
        wasm(
            "impossible",
            hostile_make(&code, "kind").unwrap(),
            "describe",
            &["\"No Kind\" is no resource", "lower-case letters"],
        ),
        text(
            "unknown-field",
            document().named("unknown-field").field(&["spec", "colour"], json!("red")).to_text(),
            "fetch",
            &["unknown field `colour`", "expected one of"],
        ),
        text(
            "other-name",
            document().named("another").to_text(),
            "fetch",
            &["metadata.name is \"another\"", "make them equal"],
        ),
        text("not-yaml", "spec: [".to_owned(), "fetch", &["not a Plugin document"]),
        text("no-rules", empty_rules.to_text(), "grant", &["not granted", "add to spec.grants.rules of", "mischiefs"]),
        Case {
            wasm: Some(free.code().unwrap()),
            ..text(
                "no-account",
                nobody.to_text(),
                "grant",
                &["operetta-plugins/nobody does not exist", "operetta install", "kubectl create serviceaccount nobody"],
            )
        },
        text(
            "pinned",
            document().named("pinned").field(&["spec", "digest"], json!(pinned)).to_text(),
            "verify",
            &["the document pins sha256:000", "correct spec.digest or the component"],
        ),
        text(
            "twin",
            document().named("twin").field(&["spec", "serviceAccount", "name"], json!("twin")).to_text(),
            "start",
            &[
                "mischiefs.hostile.example.com is reconciled by the plugin hostile already",
                "takes over when hostile has ended",
            ],
        ),
        Case {
            name: "lonely-document",
            wasm: None,
            yaml: yaml("lonely-document"),
            phase: "fetch",
            says: &["has no lonely-document.wasm beside it", "copy the component there"],
        },
        Case {
            name: "lonely-component",
            wasm: Some(code.clone()),
            yaml: None,
            phase: "fetch",
            says: &["has no lonely-component.yaml beside it", "operetta generate plugin"],
        },
    ]
}

struct Scene {
    namespace: TestNamespace,
    host: Host,
    pets: Objects,
    mischiefs: Objects,
    _store: PetStore,
}

impl Scene {
    async fn new() -> Self {
        let namespace = namespace().await;
        let host = host(&namespace).await;
        let store = PetStore::start(run(), built()).await.unwrap();
        plug(&host, NEIGHBOUR, |document| document.endpoint(NEIGHBOUR, &store.endpoint())).await;
        let client = namespace.client();
        let (pets, mischiefs) = (pets(&client, namespace.name()), mischiefs(&client, namespace.name()));
        Self { namespace, host, pets, mischiefs, _store: store }
    }

    /// The neighbour reconciles a new object now.
    async fn neighbour_works(&self, occasion: &str) {
        self.pets.apply(occasion, &pet("Calm", "cat")).await.unwrap();
        eventually(&format!("the neighbour works: {occasion}"), SOON, async || {
            ensure!(!text(&self.pets.get(occasion).await?, "/status/id").is_empty(), "no id yet");
            Ok(())
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn bad_files_are_named_with_phase_and_next_step_and_a_neighbour_goes_on() {
    let mut scene = Scene::new().await;
    plug(&scene.host, PLUGIN, |document| document).await;
    account_of(&scene.namespace.client(), "twin", PLUGIN).await;
    let plugins = scene.host.plugins();
    let cases = cases();
    for Case { name, wasm, yaml, .. } in &cases {
        if let Some(yaml) = yaml {
            fs::write(plugins.yaml(name), yaml).unwrap();
        }
        if let Some(wasm) = wasm {
            fs::write(plugins.wasm(name), wasm).unwrap();
        }
    }
    fs::write(plugins.path().join("Not_A_Name.wasm"), b"").unwrap();
    scene.neighbour_works("while-all-is-bad").await;

    let mut wrong = Vec::new();
    for Case { name, phase, says, .. } in &cases {
        let fits = |line: &Line| {
            let error = line.text("error");
            let file = match *phase {
                "verify" | "compile" | "describe" => error.starts_with(&format!("{name}.wasm")),
                "fetch" => error.contains(&format!("{name}.yaml")) || error.contains(&format!("{name}.wasm")),
                "grant" => error.contains(&format!("{name}.yaml")) || error.contains("service account"),
                // What stands in the way is no file of the plugin.
                _ => true,
            };
            line.plugin() == *name
                && line.text("phase") == *phase
                && says.iter().all(|text| error.contains(text))
                && file
        };
        // Told all at once: one wrong word shall not hide another.
        if let Err(error) = scene.host.log().until(&format!("{name} {phase} {says:?}"), Log::start(), SOON, fits).await
        {
            let said = scene.host.log().after(Log::start()).unwrap().into_iter().filter(|line| line.plugin() == *name);
            let said = said.map(|line| format!("{} {}: {}", line.level(), line.text("phase"), line.text("error")));
            wrong.push(format!(
                "{name}: {}\n  said: {:#?}",
                error.root_cause().to_string().lines().next().unwrap_or_default(),
                said.collect::<Vec<_>>()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let refused = |line: &Line| line.text("file") == "Not_A_Name.wasm" && line.message().contains("rename the file");
    scene.host.log().until("a file name that cannot be", Log::start(), SOON, refused).await.unwrap();

    scene.neighbour_works("after-all-that").await;
    scene.mischiefs.apply("first-claim", &act("behave")).await.unwrap();
    eventually("who claimed the kind first keeps it", SOON, async || {
        ensure!(text(&scene.mischiefs.get("first-claim").await?, "/status/version") == "1.0.0", "not looked after");
        Ok(())
    })
    .await
    .unwrap();
    scene.host.ensure_runs().unwrap();
    assert!(scene.host.metrics().await.unwrap().failures(NEIGHBOUR) < 0.5);

    // What was wrong and is put right works: the kind is free again, and the twin takes it.
    let mark = scene.host.log().mark();
    scene.host.plugins().remove(PLUGIN).unwrap();
    scene.host.says(PLUGIN, "plugin removed", mark, SOON).await.unwrap();
    scene.host.says("twin", "plugin ready", mark, SOON).await.unwrap();
}

#[tokio::test]
async fn a_reconcile_that_misbehaves_is_stopped_told_apart_and_harms_nobody() {
    let mut scene = Scene::new().await;
    let before = crate::shared::position(&scene.namespace).await;
    plug(&scene.host, PLUGIN, |document| {
        document
            .limit("cpuSeconds", 1)
            .limit("deadlineSeconds", 20)
            .limit("memoryMiB", 32)
            .limit("hostCalls", 500)
            .limit("logLines", 20)
    })
    .await;
    let acts: &[(&str, &str, &[&str])] = &[
        ("loop", "CPUExceeded", &["CPU time", "limits.cpuSeconds"]),
        ("wait", "DeadlineExceeded", &["deadline of 20s", "limits.deadlineSeconds"]),
        ("panic", "Trap", &["panicked or aborted"]),
        ("recurse", "Trap", &["recursion"]),
        ("hoard", "MemoryExceeded", &["may hold 33554432", "limits.memoryMiB"]),
        ("steal", "Error", &["denied", "create secrets", "is not granted", "spec.grants.rules"]),
        ("createGarbage", "Error", &["invalid", "JSON"]),
        ("patchGarbage", "Error", &["invalid", "JSON"]),
        ("call", "Error", &["denied", "elsewhere", "spec.grants.channels"]),
        ("pester", "Error", &["more than 500 host calls", "limits.hostCalls"]),
    ];
    for (name, ..) in acts {
        scene.mischiefs.apply(&name.to_lowercase(), &act(name)).await.unwrap();
    }
    scene.mischiefs.apply("chatter", &act("chatter")).await.unwrap();
    for occasion in ["during-one", "during-two", "during-three"] {
        scene.neighbour_works(occasion).await;
    }
    let mut wrong = Vec::new();
    for (name, reason, says) in acts {
        let fits = |line: &Line| {
            let error = line.text("error");
            line.message() == "reconcile failed"
                && line.text("object.name") == name.to_lowercase()
                && line.text("reason") == *reason
                && says.iter().all(|text| error.contains(text))
        };
        if scene.host.log().until(name, Log::start(), SOON, fits).await.is_err() {
            let said = scene.host.log().after(Log::start()).unwrap().into_iter();
            let said = said
                .filter(|line| line.message() == "reconcile failed" && line.text("object.name") == name.to_lowercase());
            let said =
                said.map(|line| format!("{}: {}", line.text("reason"), line.text("error"))).take(3).collect::<Vec<_>>();
            wrong.push(format!("{name} should be {reason} {says:?} and is {said:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let lines = scene.host.log().after(Log::start()).unwrap();
    let said = |name: &str, text: &str| {
        lines.iter().any(|line| line.text("object.name") == name && line.message().contains(text))
    };
    assert!(said("panic", "the reconcile panics on purpose"), "a panic's message is in the log");
    assert!(said("chatter", "logs more than its limit of 20 lines"), "what is cut off is said");
    let chatter: Vec<_> = lines.iter().filter(|line| line.message().contains("chatter")).collect();
    assert!(chatter.iter().all(|line| !line.message().contains(['\u{1b}', '\n'])), "control characters reach the log");
    let denied = |line: &&Line| line.message() == "denied: not granted to the plugin" && line.plugin() == PLUGIN;
    assert!(
        lines.iter().filter(denied).any(|line| line.text("what").contains("create secrets")),
        "a denial is no secret"
    );

    assert!(scene.namespace.api::<Secret>().get_opt("loot").await.unwrap().is_none());
    let writes = writes_since(before, PLUGIN, &scene.namespace).await;
    assert!(
        !writes.iter().any(|request| request.uri.contains("/secrets")),
        "a denied write never leaves the host: {writes:#?}"
    );
    scene.neighbour_works("after-all-that").await;
    scene.host.ensure_runs().unwrap();
    let metrics = scene.host.metrics().await.unwrap();
    assert!(metrics.failures(NEIGHBOUR) < 0.5, "the neighbour failed");
    assert!(metrics.sum("operetta_denials_total", &[("plugin", PLUGIN)]) > 0.5, "denials are counted");
    for limit in ["cpu", "deadline", "memory", "host_calls", "log_lines"] {
        let met = metrics.sum("operetta_limit_exceeded_total", &[("plugin", PLUGIN), ("limit", limit)]);
        assert!(met > 0.5, "the limit {limit} was met and is not counted");
    }
}

#[tokio::test]
async fn a_cache_entry_that_somebody_else_wrote_is_never_run() {
    let namespace = namespace().await;
    let host = host(&namespace).await;
    let compiled = host.state_dir().join("compiled");
    let mut tampered = 0;
    for entry in fs::read_dir(compiled).unwrap() {
        let path = entry.unwrap().path();
        let mut code = fs::read(&path).unwrap();
        let middle = code.len() / 2;
        code[middle] ^= 1;
        fs::File::create(&path).unwrap().write_all(&code).unwrap();
        tampered += 1;
    }
    assert!(tampered > 0, "nothing was compiled before");
    plug(&host, PLUGIN, |document| document).await;
    let says = |line: &Line| line.level() == "WARN" && line.message().contains("a cached component is not used");
    let line = host.log().until("that it was not used", Log::start(), SOON, says).await.unwrap();
    assert!(line.text("reason").contains("MAC"), "{line}");
}
