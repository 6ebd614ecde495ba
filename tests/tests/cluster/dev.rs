//! `operetta dev`, as somebody uses it who edits a plugin: what is saved takes over, what does not compile does not.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use operetta_tests::{child::Child, eventually};
use rustix::process::Signal;
use serde_json::json;

use crate::{
    new::{CARGO, Project, kept, target},
    shared::{SOON, TestNamespace, built, namespace, run, shared},
};

/// The first build of a machine takes minutes.
const BUILT: Duration = Duration::from_mins(10);
/// The line of the project's sources that decides what is kept.
const LINE: &str = "let message = object.spec.message.clone();";

/// The editor of a person, and what they see.
struct Desk {
    project: Project,
    namespace: TestNamespace,
    sources: String,
    log: std::path::PathBuf,
}

impl Desk {
    fn save(&self, line: &str) {
        fs::write(self.project.root.join("src/lib.rs"), self.sources.replace(LINE, line)).unwrap();
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the message of this object is kept as this text.
    async fn keeps(&self, name: &str, text: &str, within: Duration) {
        let seen = eventually("the operator keeps the message", within, async || {
            let kept = kept(&self.namespace, name).await?;
            ensure!(kept == text, "it keeps {kept:?} for {text:?}");
            Ok(())
        });
        let seen: Result<()> = seen.await;
        seen.unwrap_or_else(|error| panic!("{error:#}\n{}", self.said()));
    }

    /// Waits until something new is said that contains these words, and answers where that ends.
    async fn says(&self, after: usize, words: &str) -> usize {
        eventually(&format!("it says {words:?}"), BUILT, async || {
            let said = self.said();
            let at = said.get(after..).unwrap_or_default().find(words);
            at.map(|at| after + at + words.len()).ok_or_else(|| anyhow::anyhow!("it said:\n{said}"))
        })
        .await
        .unwrap()
    }
}

#[tokio::test]
async fn what_is_saved_takes_over_and_what_does_not_compile_leaves_the_version_before() {
    let _alone = CARGO.lock().await;
    let namespace = namespace().await;
    let project = Project::lay("crier", "Cry");
    let home = run().directory("dev").unwrap();
    let (log, state) = (home.join("log"), home.join("state"));
    let sources = fs::read_to_string(project.root.join("src/lib.rs")).unwrap();
    assert!(sources.contains(LINE));
    let desk = Desk { project, namespace, sources, log };
    let (project, namespace) = (&desk.project, &desk.namespace);
    let mut command = Command::new(built().host());
    command.arg("dev").arg(&project.root).arg("--kubeconfig").arg(shared().kubeconfig());
    command.args(["--namespace", namespace.name(), "--state-dir"]).arg(&state).env("CARGO_TARGET_DIR", target());
    let mut dev = Child::start(run(), "dev", &desk.log, &mut command).unwrap();

    // It builds, installs and runs.
    let mut at = desk.says(0, " runs, ").await;
    let objects = project.objects(namespace);
    objects.apply("loud", &json!({"message": "Hear ye"})).await.unwrap();
    desk.keeps("loud", "Hear ye", SOON).await;
    desk.says(0, &format!("{}/loud reconciled in ", namespace.name())).await;
    desk.says(0, &format!("{}/loud INFO kept the message config_map=loud-message", namespace.name())).await;

    // A line is changed and saved.
    let saved = Instant::now();
    desk.save("let message = object.spec.message.to_uppercase();");
    at = desk.says(at, "] target(s) in").await;
    let compiled = Instant::now();
    desk.keeps("loud", "HEAR YE", BUILT).await;
    eprintln!("saved, built after {:?}, reconciled by the new code {:?} later", compiled - saved, compiled.elapsed());
    at = desk.says(at, " runs, ").await;

    // What does not compile is shown as cargo shows it, and the version before goes on.
    desk.save("let message = object.spec.message.to_uppercas();");
    at = desk.says(at, "error[E0599]").await;
    at = desk.says(at, "not built; the version before runs on").await;
    objects.apply("loud", &json!({"message": "Still here"})).await.unwrap();
    desk.keeps("loud", "STILL HERE", SOON).await;
    desk.save("let message = object.spec.message.to_lowercase();");
    desk.keeps("loud", "still here", BUILT).await;
    at = desk.says(at, " runs, ").await;

    // A new field of the kind is in the cluster before the new code runs.
    let sources = desk.sources.replace(
        "    pub message: String,",
        "    pub message: String,\n    /// How often.\n    pub times: Option<u8>,",
    );
    fs::write(project.root.join("src/lib.rs"), sources).unwrap();
    at = desk.says(at, &format!("cries.{} configured", project.group)).await;
    desk.says(at, " runs, ").await;
    let crds = Api::<CustomResourceDefinition>::all(namespace.client());
    let crd = serde_json::to_value(crds.get(&format!("cries.{}", project.group)).await.unwrap()).unwrap();
    let field = crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/times");
    assert!(field.is_some(), "{crd:#}");

    // One at a time works on a folder, and Ctrl-C ends it in order.
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    dev.signal(Signal::INT).unwrap();
    let status = dev.ended(SOON).await.unwrap();
    assert!(status.success(), "it ended with {status}:\n{}", desk.said());
}
