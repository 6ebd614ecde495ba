//! The host's own objects in a cluster: as kustomize applies them, as the program does, and how they go.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use operetta_tests::{
    components::Workspace,
    control_plane::supervised::Supervised,
    host::{self},
};

use crate::shared::{ONE_MORE_CONTROL_PLANE, built, program};

/// A cluster of its own, since the host's objects are there once.
struct Scene {
    cluster: Supervised,
    config: PathBuf,
}

impl Scene {
    fn kubeconfig(&self) -> &Path {
        &self.cluster.access().kubeconfig
    }

    fn kubectl(&self, arguments: &[&str]) -> Output {
        let mut kubectl = Command::new(&self.cluster.access().kubectl);
        kubectl.current_dir(&self.config).env("KUBECONFIG", self.kubeconfig()).args(arguments).output().unwrap()
    }

    fn operetta(&self, arguments: &[&str]) -> Output {
        let mut operetta = Command::new(built().host());
        operetta.args(arguments).arg("--kubeconfig").arg(self.kubeconfig()).output().unwrap()
    }

    /// What kubectl finds under these names.
    fn found(&self, arguments: &[&str]) -> String {
        said(&self.kubectl(&[&["get", "--ignore-not-found", "--output", "name"], arguments].concat()))
    }
}

/// What a command that succeeds says.
fn said(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    out.into_owned()
}

const OURS: &[&str] = &[
    "namespace/operetta-system",
    "namespace/operetta-plugins",
    "clusterrole/operetta",
    "clusterrolebinding/operetta",
    "customresourcedefinition/plugins.operetta.dev",
    "validatingadmissionpolicy/plugins.operetta.dev",
    "validatingadmissionpolicybinding/plugins.operetta.dev",
    "validatingadmissionpolicy/pods-beside-the-host.operetta.dev",
];

#[tokio::test]
async fn what_config_holds_is_what_deploy_applies_and_undeploy_removes() {
    let _turn = ONE_MORE_CONTROL_PLANE.lock().await;
    let config = Workspace::locate().unwrap().root().join("config");
    let scene = Scene { cluster: Supervised::start(program()).unwrap(), config };

    let planned = said(&scene.operetta(&["deploy", "--dry-run"]));
    assert!(
        planned.lines().count() > 9 && planned.lines().all(|line| line.ends_with(" created (dry run)")),
        "{planned}"
    );
    assert_eq!(scene.found(OURS), "", "a dry run wrote something");

    let applied = said(&scene.kubectl(&["apply", "--server-side", "--validate=strict", "-k", "default"]));
    assert_eq!(applied.lines().count(), planned.lines().count(), "{applied}{planned}");
    // Two pods that the restricted Pod Security Standard admits and that a (simulated) node runs.
    let rollout = ["rollout", "status", "deployment/operetta", "--namespace=operetta-system", "--timeout=60s"];
    said(&scene.kubectl(&rollout));
    let allowed = ["get", "poddisruptionbudget/operetta", "--namespace=operetta-system"];
    let allowed = said(&scene.kubectl(&[&allowed[..], &["--output=jsonpath={.spec.maxUnavailable}"]].concat()));
    assert_eq!(allowed, "1");

    // The same values by another manager: nothing is new, and nothing in conflict.
    let deployed = said(&scene.operetta(&["deploy"]));
    assert!(!deployed.contains(" created"), "{deployed}");
    let again = said(&scene.operetta(&["deploy"]));
    assert!(again.lines().all(|line| line.ends_with(" unchanged")), "{again}");
    let refused = scene.operetta(&["deploy", "--image", "another:1"]);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(5) && why.contains("--force") && why.contains("kubectl"), "{why}");
    said(&scene.operetta(&["deploy", "--image", "another:1", "--force"]));
    let image = ["get", "deployment/operetta", "--namespace=operetta-system"];
    let image = [&image[..], &["--output=jsonpath={.spec.template.spec.containers[0].image}"]].concat();
    assert_eq!(said(&scene.kubectl(&image)), "another:1");

    // An API server that cannot constrain impersonation gets other rights, and nothing else is different.
    let verbs =
        ["get", "role/operetta-accounts", "--namespace=operetta-plugins", "--output=jsonpath={.rules[*].verbs}"];
    assert_eq!(said(&scene.kubectl(&verbs)), r#"["get"] ["impersonate:serviceaccount"]"#);
    let apply = ["apply", "--server-side", "--validate=strict", "--force-conflicts", "-k", "classic"];
    said(&scene.kubectl(&apply));
    assert_eq!(said(&scene.kubectl(&verbs)), r#"["get","impersonate"]"#);
    said(&scene.operetta(&["deploy", "--impersonation", "classic"]));
    assert_eq!(said(&scene.kubectl(&verbs)), r#"["get","impersonate"]"#);
    said(&scene.operetta(&["deploy", "--force"]));
    assert_eq!(said(&scene.kubectl(&verbs)), r#"["get"] ["impersonate:serviceaccount"]"#);

    // The samples are what the shipped operators' kinds admit.
    host::install(built(), scene.kubeconfig(), &built().installable()).unwrap();
    said(&scene.kubectl(&["apply", "--server-side", "--validate=strict", "--dry-run=server", "-k", "samples"]));

    let plugin = "apiVersion: operetta.dev/v1alpha1\nkind: Plugin\nmetadata: {name: memcached}\nspec: {}\n";
    let file = scene.cluster.access().run_dir.join("plugin.yaml");
    std::fs::write(&file, plugin).unwrap();
    said(&scene.kubectl(&["apply", "--server-side", "-f", file.to_str().unwrap()]));
    let refused = scene.operetta(&["undeploy"]);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(5), "{why}");
    for part in ["Plugin memcached", "ServiceAccount petstore", "operetta uninstall", "--with-plugins"] {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(scene.found(OURS).lines().count(), OURS.len(), "something is gone already");
    let removed = said(&scene.operetta(&["undeploy", "--with-plugins"]));
    assert!(removed.lines().all(|line| line.ends_with(" deleted")), "{removed}");
    assert!(
        removed.starts_with("serviceaccount/") && removed.contains("deployment.apps/operetta deleted"),
        "{removed}"
    );
    assert_eq!(scene.found(OURS), "");
    assert_eq!(said(&scene.operetta(&["undeploy"])), "", "there is nothing left to delete");
}
