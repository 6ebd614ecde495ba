//! The program as a person meets it: what it says without a cluster, how it waits for one, and how it ends.

use std::{
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use anyhow::ensure;
use operetta_tests::{
    eventually,
    host::{Document, Host, Launch, Line, Log},
    kinds::{Objects, act, mischiefs, text},
};
use serde_json::json;

use crate::{
    gate::Gate,
    shared::{SOON, built, host, installed, namespace, plug, run, shared},
};

const PLUGIN: &str = "hostile";

/// Runs the program to its end in an empty home.
pub fn operetta(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(built().host());
    command.args(arguments).env("HOME", home).env("OPERETTA_STATE_DIR", home.join("state"));
    for variable in ["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "RUST_LOG"] {
        command.env_remove(variable);
    }
    command.output().unwrap()
}

#[test]
fn a_command_that_cannot_run_says_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let plugins = home.path().join("plugins");
    std::fs::create_dir(&plugins).unwrap();
    let plugins = plugins.to_str().unwrap();
    let nowhere = ["--metrics-bind-address=0", "--health-probe-bind-address=0"];
    let cases: &[(&[&str], &[&str], i32)] = &[
        (&["run", "--plugin-dir", plugins], &["kubeconfig", "--kubeconfig"], 4),
        (&["run", "--plugin-dir", plugins, "--kubeconfig", "/no/such/file"], &["/no/such/file"], 4),
        (&["run", "--plugin-dir", "/no/such/dir"], &["--plugin-dir /no/such/dir", "create it or name another"], 2),
        (&["run", "--plugin-dir", plugins, "--log-level", "[="], &["--log-level"], 2),
    ];
    for (arguments, says, code) in cases {
        let output = operetta(home.path(), &[arguments, &nowhere[..]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(says.iter().all(|text| last.contains(text)), "{arguments:?} ends with {last:?}, not with {says:?}");
        assert!(!said.contains("panicked"), "{said}");
    }
    let file = home.path().join("thing.wasm");
    std::fs::write(&file, b"not a component").unwrap();
    let output = operetta(home.path(), &["generate", "plugin", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("thing.wasm") && said.contains("not WebAssembly"), "{said}");
    assert_eq!(output.status.code(), Some(3), "a bad plugin");
    assert_eq!(operetta(home.path(), &["generate", "plugin", "/no/such.wasm"]).status.code(), Some(2), "no file");
    assert_eq!(operetta(home.path(), &["instal"]).status.code(), Some(2), "no such command");
}

#[test]
fn a_command_that_ends_gives_up_where_no_api_server_answers() {
    let home = tempfile::tempdir().unwrap();
    let (_gate, kubeconfig) = Gate::before(shared().kubeconfig(), run()).unwrap();
    let wasm = built().component("memcached").unwrap().wasm.clone();
    let arguments =
        ["install", wasm.to_str().unwrap(), "--timeout", "500ms", "--kubeconfig", kubeconfig.to_str().unwrap()];
    let output = operetta(home.path(), &arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("no API server answers at") && said.contains("within 500ms"), "{said}");
}

/// Waits until the fixture looked after the object.
async fn looked_after(objects: &Objects, name: &str) {
    eventually(&format!("{name} was looked after"), SOON, async || {
        ensure!(text(&objects.get(name).await?, "/status/version") == "1.0.0", "not yet");
        Ok(())
    })
    .await
    .unwrap();
}

fn drop_in(host: &Host) {
    let component = installed().component(PLUGIN).unwrap();
    let document = Document::of(component).unwrap();
    host.plugins().put(PLUGIN, &component.code().unwrap(), &document).unwrap();
}

#[tokio::test]
async fn an_api_server_that_is_down_at_the_start_is_waited_for() {
    let namespace = namespace().await;
    installed();
    let (mut gate, kubeconfig) = Gate::before(shared().kubeconfig(), run()).unwrap();
    let objects = mischiefs(&namespace.client(), namespace.name());
    objects.apply("early", &act("behave")).await.unwrap();
    let host = Launch::new(built(), &kubeconfig).namespace(namespace.name()).start(run()).await.unwrap();
    drop_in(&host);
    let waits = |line: &Line| line.message() == "waiting for the API server" && !line.text("error").is_empty();
    host.log().until("that it waits", Log::start(), SOON, waits).await.unwrap();
    assert!(host.ready(Duration::ZERO).await.is_err(), "it is ready without an API server");
    gate.open().await.unwrap();
    looked_after(&objects, "early").await;
    host.ready(SOON).await.unwrap();
}

#[tokio::test]
async fn an_api_server_that_goes_away_is_missed_and_found_again() {
    let namespace = namespace().await;
    installed();
    let (mut gate, kubeconfig) = Gate::before(shared().kubeconfig(), run()).unwrap();
    gate.open().await.unwrap();
    let objects = mischiefs(&namespace.client(), namespace.name());
    let mut host = Launch::new(built(), &kubeconfig).namespace(namespace.name()).start(run()).await.unwrap();
    drop_in(&host);
    objects.apply("before", &act("behave")).await.unwrap();
    looked_after(&objects, "before").await;

    // It refuses connections, as when it is restarted; one reconcile is in the middle.
    objects.apply("amidst", &json!({"act": "behave", "milliseconds": 1_000})).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    gate.shut().await;
    objects.apply("while-shut", &act("behave")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(text(&objects.get("while-shut").await.unwrap(), "/status/version"), "", "the gate is not shut");
    gate.open().await.unwrap();
    looked_after(&objects, "while-shut").await;
    looked_after(&objects, "amidst").await;

    // It takes connections and says nothing, as when it hangs.
    gate.silence(true);
    objects.apply("while-silent", &act("behave")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    gate.silence(false);
    looked_after(&objects, "while-silent").await;
    host.ensure_runs().unwrap();
}

#[tokio::test]
async fn sigterm_lets_a_reconcile_in_flight_end() {
    let namespace = namespace().await;
    let mut host = host(&namespace).await;
    plug(&host, PLUGIN, |document| document).await;
    let objects = mischiefs(&namespace.client(), namespace.name());
    objects.apply("slow", &json!({"act": "behave", "milliseconds": 1_500})).await.unwrap();
    eventually("it has begun", SOON, async || {
        let active = host.metrics().await?.sum("controller_runtime_active_workers", &[("plugin", PLUGIN)]);
        ensure!(active > 0.5, "nothing runs");
        Ok(())
    })
    .await
    .unwrap();
    let status = host.stop().await.unwrap();
    assert!(status.success(), "it ended with {status}");
    assert_eq!(text(&objects.get("slow").await.unwrap(), "/status/version"), "1.0.0", "it was cut off");
    let lines = host.log().after(Log::start()).unwrap();
    assert_eq!(lines.last().unwrap().message(), "stopped");
}
