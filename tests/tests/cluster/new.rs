//! `operetta new`, by doing what it says: a project is laid down outside of this repository, built, installed, run and tested.

use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Instant,
};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use operetta_tests::{
    components::{Workspace, cargo},
    eventually,
    host::{Log, install},
    kinds::{Objects, state},
};
use serde_json::Value;

use crate::shared::{SOON, TestNamespace, built, host, namespace, shared};

/// Projects share what cargo built for the ones before, and cargo lets only one at a time have it.
pub static CARGO: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A project that `operetta new` laid down.
pub struct Project {
    pub root: PathBuf,
    pub name: &'static str,
    pub group: String,
    pub kind: &'static str,
}

/// Where cargo puts what it builds of all projects, so that only the first one takes long.
pub fn target() -> PathBuf {
    let workspace = Workspace::locate().unwrap();
    workspace.plugin_dir().with_file_name("projects")
}

impl Project {
    /// In a folder that is the same in each run, since cargo knows what it built by where it was, and another for each clone of the repository.
    pub fn lay(name: &'static str, kind: &'static str) -> Self {
        let mut hasher = DefaultHasher::new();
        target().hash(&mut hasher);
        let root = std::env::temp_dir().join(format!("operetta-{:016x}", hasher.finish())).join(name);
        match fs::remove_dir_all(&root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", root.display()),
            _ => {}
        }
        let group = format!("{name}.example.com");
        let mut new = Command::new(built().host());
        new.args(["new", name, "--version", "v1alpha1", "--kind", kind, "--group", &group, "--dir"]).arg(&root);
        let output = new.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The SDK is as old as the program that it came out of: cargo builds it again when that is another one.
        let age = fs::metadata(built().host()).unwrap().modified().unwrap();
        let mut todo = vec![root.join("vendor")];
        while let Some(path) = todo.pop() {
            if path.is_dir() {
                todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else {
                File::options().write(true).open(&path).unwrap().set_modified(age).unwrap();
            }
        }
        Self { root, name, group, kind }
    }

    /// Its kind's objects.
    pub fn objects(&self, namespace: &TestNamespace) -> Objects {
        let plural = format!("{}s", self.kind.to_lowercase()).replace("ys", "ies");
        Objects::new(&namespace.client(), namespace.name(), &format!("{}/v1alpha1", self.group), self.kind, &plural)
    }

    /// What a person types in its folder.
    fn cargo(&self, arguments: &[&str], environment: &[(&str, &Path)]) -> Output {
        let mut command = cargo(&self.root, arguments.iter().copied());
        command.env("CARGO_TARGET_DIR", target()).env_remove("KUBECONFIG").env_remove("OPERETTA_REQUIRE_CLUSTER");
        command.envs(environment.iter().copied()).output().unwrap()
    }
}

impl Drop for Project {
    /// What went wrong can be looked at.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

/// The message that the operator keeps for an object.
pub async fn kept(namespace: &TestNamespace, name: &str) -> anyhow::Result<String> {
    let found = namespace.api::<ConfigMap>().get(&format!("{name}-message")).await?;
    found.data.unwrap_or_default().remove("message").context("no message")
}

fn succeeded(output: &Output) -> String {
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    said
}

#[tokio::test]
async fn a_new_project_is_built_installed_run_and_tested_as_it_is() {
    let _alone = CARGO.lock().await;
    let namespace = namespace().await;
    let mut host = host(&namespace).await;

    // $ operetta new greeter --group greeter.example.com --version v1alpha1 --kind Greeting
    let start = Instant::now();
    let project = Project::lay("greeter", "Greeting");
    // $ cargo build
    succeeded(&project.cargo(&["build"], &[]));
    let wasm = target().join("wasm32-unknown-unknown/debug/greeter.wasm");
    eprintln!("laid down and built in {:?}: {} kB", start.elapsed(), fs::metadata(&wasm).unwrap().len() / 1000);
    // $ operetta install target/wasm32-unknown-unknown/debug/greeter.wasm
    install(built(), shared().kubeconfig(), &[&wasm]).unwrap();
    // $ operetta generate plugin greeter.wasm > greeter.yaml
    let mut generate = Command::new(built().host());
    generate.args(["generate", "plugin", "--state-dir"]).arg(built().state_dir()).arg(&wasm);
    fs::write(host.plugins().yaml(project.name), generate.output().unwrap().stdout).unwrap();
    host.plugins().put_wasm(project.name, &fs::read(&wasm).unwrap()).unwrap();
    host.says(project.name, "plugin ready", Log::start(), SOON).await.unwrap();
    // $ kubectl apply -f config/samples/greeting.yaml
    let sample = fs::read_to_string(project.root.join("config/samples/greeting.yaml")).unwrap();
    let sample: Value = serde_saphyr::from_str(&sample).unwrap();
    let objects = project.objects(&namespace);
    objects.apply("greeting-sample", &sample["spec"]).await.unwrap();
    eventually("the sample is reconciled", SOON, async || {
        let object = objects.get("greeting-sample").await?;
        ensure!(state(&object, "Ready") == "True/Kept", "{object:?}");
        ensure!(kept(&namespace, "greeting-sample").await? == "Hello from greeter!", "another message");
        Ok(())
    })
    .await
    .unwrap();
    eprintln!("from `operetta new` to the reconciled sample: {:?}", start.elapsed());
    host.stop().await.unwrap();

    // $ cargo test, with a cluster to try it on
    let home = tempfile::tempdir().unwrap();
    let program = built().host();
    let cluster: [(&str, &Path); 4] = [
        ("KUBECONFIG", shared().kubeconfig()),
        ("OPERETTA", &program),
        ("OPERETTA_STATE_DIR", home.path()),
        ("OPERETTA_REQUIRE_CLUSTER", Path::new("1")),
    ];
    let said = succeeded(&project.cargo(&["test"], &cluster));
    for test in ["reconcile::the_message_is_kept_in_a_config_map", "cluster::the_sample_is_reconciled"] {
        assert!(said.contains(&format!("test {test} ... ok")), "{said}");
    }
    // Without one: said aloud, or a failure where that is wanted.
    let said = succeeded(&project.cargo(&["test"], &[]));
    assert!(said.contains("SKIPPED the_sample_is_reconciled") && said.contains("2 passed"), "{said}");
    let output = project.cargo(&["test"], &cluster[3..]);
    assert!(!output.status.success(), "a cluster was required, and nobody missed it");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let home = tempfile::tempdir().unwrap();
    let full = home.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("mine"), "mine").unwrap();
    let cases = [
        (["Greeter", "a.example.com", "v1", "Greeting"], "for example greeter"),
        (["match", "a.example.com", "v1", "Greeting"], "a keyword of Rust"),
        (["greeter", "example", "v1", "Greeting"], "for example example.example.com"),
        (["greeter", "apps.k8s.io", "v1", "Greeting"], "a domain of your own"),
        (["greeter", "a.example.com", "1.0", "Greeting"], "write v1, v1beta1 or v1alpha1"),
        (["greeter", "a.example.com", "v1", "greeting"], "for example Greeting"),
        (["full", "a.example.com", "v1", "Greeting"], "full is not empty"),
    ];
    for ([name, group, version, kind], says) in cases {
        let mut command = Command::new(built().host());
        command.current_dir(home.path()).args(["new", name, "--group", group, "--version", version, "--kind", kind]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(says), "{said:?} says nothing of {says:?}");
    }
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["full"]);
    assert_eq!(fs::read_to_string(full.join("mine")).unwrap(), "mine");
}
