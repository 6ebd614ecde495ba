//! `operetta install` and `operetta uninstall` as a person types them: what they would do, what they refuse, and that nothing is half done.

use std::{fs, path::PathBuf, process::Output};

use k8s_openapi::{
    api::{
        core::v1::ServiceAccount,
        rbac::v1::{ClusterRole, ClusterRoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use operetta_tests::variant::overwrite;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    cli::operetta,
    shared::{built, kubeconfig_of, namespace, shared},
};

/// A plugin of this test alone: the fixture hostile with a group of its own, under a name of its own.
struct Plugin {
    name: String,
    group: String,
    home: TempDir,
    client: Client,
}

impl Plugin {
    async fn new() -> Self {
        let tag = format!("t{}", hex::encode(rand::random::<[u8; 3]>()));
        let (name, group) = (format!("plugin-{tag}"), format!("{tag}.example.com"));
        let home = tempfile::tempdir().unwrap();
        let code = built().component("hostile").unwrap().code().unwrap();
        let code = operetta_sandbox::stamp::bare(&code.clone().into(), code.len()).unwrap();
        let code = overwrite(&code, "hostile.example.com", &group).unwrap();
        fs::write(home.path().join(format!("{name}.wasm")), code).unwrap();
        Self { name, group, home, client: shared().client().await.unwrap() }
    }

    fn wasm(&self) -> String {
        self.file("wasm").to_str().unwrap().to_owned()
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.home.path().join(format!("{}.{ending}", self.name))
    }

    fn crd_name(&self) -> String {
        format!("mischiefs.{}", self.group)
    }

    fn role_name(&self) -> String {
        format!("operetta:{}", self.name)
    }

    /// What the host needs to act as the plugin's account.
    fn host_role_name(&self) -> String {
        format!("operetta:{}:host", self.name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        operetta(self.home.path(), &[arguments, &["--kubeconfig", shared().kubeconfig().to_str().unwrap()]].concat())
    }

    fn said(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a command says that the cluster, or what it knows, refuses.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(5), "{arguments:?}: {said}");
        said
    }

    fn crds(&self) -> Api<CustomResourceDefinition> {
        Api::all(self.client.clone())
    }

    fn roles(&self) -> Api<ClusterRole> {
        Api::all(self.client.clone())
    }

    async fn is_there(&self) -> [bool; 6] {
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), "operetta-plugins");
        let bindings = Api::<ClusterRoleBinding>::all(self.client.clone());
        [
            self.crds().get_opt(&self.crd_name()).await.unwrap().is_some(),
            accounts.get_opt(&self.name).await.unwrap().is_some(),
            self.roles().get_opt(&self.role_name()).await.unwrap().is_some(),
            bindings.get_opt(&self.role_name()).await.unwrap().is_some(),
            self.roles().get_opt(&self.host_role_name()).await.unwrap().is_some(),
            bindings.get_opt(&self.host_role_name()).await.unwrap().is_some(),
        ]
    }

    fn objects(&self, namespace: &str) -> Api<DynamicObject> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(&self.group, "v1", "Mischief"));
        Api::namespaced_with(self.client.clone(), namespace, &kind)
    }

    async fn make_object(&self, namespace: &str, name: &str, finalizer: Option<&str>) {
        let object = json!({
            "apiVersion": format!("{}/v1", self.group), "kind": "Mischief", "spec": {"act": "behave"},
            "metadata": {"name": name, "finalizers": finalizer.into_iter().collect::<Vec<_>>()},
        });
        self.objects(namespace).create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }
}

#[tokio::test]
async fn a_dry_run_shows_line_by_line_what_would_change_and_changes_nothing() {
    let plugin = Plugin::new().await;
    let new = plugin.said(&["install", &plugin.wasm(), "--dry-run"]);
    for says in ["+kind: CustomResourceDefinition\n", "+  name: operetta:plugin-", "created (dry run)"] {
        assert!(new.contains(says), "{new} lacks {says:?}");
    }
    assert_eq!(plugin.is_there().await, [false; 6]);
    plugin.said(&["install", &plugin.wasm()]);
    assert_eq!(plugin.is_there().await, [true; 6]);
    let same = plugin.said(&["install", &plugin.wasm(), "--dry-run"]);
    assert!(!same.contains("@@") && same.lines().all(|line| line.ends_with("unchanged (dry run)")), "{same}");

    // With less granted, and a label that somebody else set, which is none of ours.
    let patch = json!({"metadata": {"labels": {"somebody": "else"}}});
    plugin.roles().patch(&plugin.role_name(), &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let document = operetta(plugin.home.path(), &["generate", "plugin", &plugin.wasm()]).stdout;
    let document = String::from_utf8(document).unwrap();
    assert!(document.contains("      - watch\n"), "{document}");
    fs::write(plugin.file("yaml"), document.replace("      - watch\n", "")).unwrap();
    let less = plugin.said(&["install", &plugin.wasm(), "--dry-run"]);
    let removed: Vec<_> = less.lines().filter(|line| line.starts_with('-') && !line.starts_with("---")).collect();
    assert_eq!(removed, ["-  - watch", "-  - impersonate-on:serviceaccount:watch"], "{less}");
    assert!(!less.contains("-    somebody: else"), "{less}");
    assert!(less.contains(&format!("--- live/clusterrole.rbac.authorization.k8s.io/{}", plugin.role_name())), "{less}");
    assert_eq!(less.matches("--- live/").count(), 2, "{less}");
    let role = plugin.roles().get(&plugin.role_name()).await.unwrap();
    assert!(format!("{:?}", role.rules).contains("watch"), "a dry run wrote");
    let listed: Vec<Value> =
        serde_json::from_str(&plugin.said(&["install", &plugin.wasm(), "--dry-run", "-o", "json"])).unwrap();
    assert!(listed.iter().any(|entry| entry["outcome"] == "configured"), "{listed:?}");
    plugin.said(&["uninstall", &plugin.name]);
}

#[tokio::test]
async fn objects_go_with_their_kind_only_when_a_person_says_so() {
    let (plugin, place) = (Plugin::new().await, namespace().await);
    plugin.said(&["install", &plugin.wasm()]);
    plugin.make_object(place.name(), "free", None).await;
    plugin.make_object(place.name(), "held", Some("example.com/held")).await;
    let said = plugin.refused(&["uninstall", &plugin.name]);
    for says in ["there are 2 objects", "finalizers hold them (1 by example.com/held)", "--delete-objects"] {
        assert!(said.contains(says), "{said} lacks {says:?}");
    }
    let would = plugin.said(&["uninstall", &plugin.name, "--dry-run"]);
    assert!(would.contains(&format!("{} deleted (dry run)", plugin.crd_name())), "{would}");
    assert_eq!(plugin.is_there().await, [true; 6]);

    // What others wrote stays, whatever it carries.
    let theirs = format!("theirs-{}", plugin.name);
    let labels = json!({"operetta.dev/plugin": plugin.name, "app.kubernetes.io/managed-by": "operetta"});
    let role = serde_json::from_value(json!({"metadata": {"name": theirs, "labels": labels}})).unwrap();
    plugin.roles().create(&PostParams::default(), &role).await.unwrap();

    let kept = plugin.said(&["uninstall", &plugin.name, "--keep-crds"]);
    assert!(!kept.contains("customresourcedefinition"), "{kept}");
    assert_eq!(plugin.is_there().await, [true, false, false, false, false, false]);
    assert_eq!(plugin.objects(place.name()).list(&kube::api::ListParams::default()).await.unwrap().items.len(), 2);
    assert!(plugin.roles().get_opt(&theirs).await.unwrap().is_some());

    let free = json!({"metadata": {"finalizers": null}});
    plugin.objects(place.name()).patch("held", &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    plugin.said(&["install", &plugin.wasm(), "--plugin", "--host-namespace", place.name()]);
    let gone = plugin.said(&["uninstall", &plugin.wasm(), "--delete-objects"]);
    assert!(gone.starts_with("customresourcedefinition.apiextensions.k8s.io/"), "kinds first: {gone}");
    assert!(gone.contains(&format!("plugin.operetta.dev/{} deleted", plugin.name)), "{gone}");
    assert_eq!(plugin.is_there().await, [false; 6]);
    assert!(plugin.roles().get_opt(&theirs).await.unwrap().is_some());
    plugin.roles().delete(&theirs, &kube::api::DeleteParams::default()).await.unwrap();
    assert_eq!(plugin.said(&["uninstall", &plugin.name]), "", "there is nothing left");
}

#[tokio::test]
async fn an_account_of_several_plugins_names_them_all_and_stays_with_the_last() {
    let (plugin, other) = (Plugin::new().await, Plugin::new().await);
    for one in [&plugin, &other] {
        let document = operetta(one.home.path(), &["generate", "plugin", &one.wasm()]).stdout;
        let mut document: Value = serde_saphyr::from_str(&String::from_utf8(document).unwrap()).unwrap();
        document["spec"]["serviceAccount"] = json!({"name": plugin.name});
        fs::write(one.file("yaml"), document.to_string()).unwrap();
    }
    let account = format!("serviceaccount/{}", plugin.name);
    let accounts = Api::<ServiceAccount>::namespaced(plugin.client.clone(), "operetta-plugins");
    let named =
        async || accounts.get(&plugin.name).await.unwrap().metadata.annotations.unwrap()["operetta.dev/plugin"].clone();

    plugin.said(&["install", &plugin.wasm(), &other.wasm()]);
    assert_eq!(named().await, format!("{},{}", plugin.name, other.name));
    for one in [&plugin, &other] {
        let again = one.said(&["install", &one.wasm()]);
        assert!(again.contains(&format!("{account} unchanged\n")), "{again}");
    }
    // What a person wrote there stays, too, once it is said that it may be written at all.
    let names = format!("somebody,{}", other.name);
    let patch = json!({"metadata": {"annotations": {"operetta.dev/plugin": names}}});
    accounts.patch(&plugin.name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    assert!(plugin.refused(&["install", &plugin.wasm()]).contains("take them over with --force"));
    plugin.said(&["install", &plugin.wasm(), "--force"]);
    assert_eq!(named().await, format!("{names},{}", plugin.name));

    let gone = plugin.run(&["uninstall", &plugin.name]);
    let (out, err) = (String::from_utf8_lossy(&gone.stdout), String::from_utf8_lossy(&gone.stderr));
    assert!(gone.status.success() && out.contains(&format!("{account} configured\n")), "{out}{err}");
    assert!(err.contains(&format!("{account} stays: somebody, {} may act as it, too", other.name)), "{err}");
    assert_eq!(named().await, names);
    assert_eq!(plugin.is_there().await, [false, true, false, false, false, false]);

    // All that it names goes at once, and the account with the last of them.
    let patch = json!({"metadata": {"annotations": {"operetta.dev/plugin": other.name}}});
    accounts.patch(&plugin.name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    plugin.said(&["install", &plugin.wasm(), "--force"]);
    let would = plugin.said(&["uninstall", &plugin.name, &other.name, "--dry-run"]);
    let both = |suffix: &str| [format!("{account} configured{suffix}\n"), format!("{account} deleted{suffix}\n")];
    assert!(both(" (dry run)").iter().all(|line| would.contains(line)), "{would}");
    let gone = plugin.said(&["uninstall", &plugin.name, &other.name]);
    assert!(both("").iter().all(|line| gone.contains(line)), "{gone}");
    assert_eq!((plugin.is_there().await, other.is_there().await), ([false; 6], [false; 6]));
}

#[tokio::test]
async fn whoever_lacks_rights_is_told_which_before_anything_is_written() {
    let (plugin, place) = (Plugin::new().await, namespace().await);
    let config = kubeconfig_of(&place, "default").await;
    let kubeconfig = plugin.home.path().join("poor.kubeconfig");
    fs::write(&kubeconfig, config.to_string()).unwrap();
    for command in [&["install", &plugin.wasm()][..], &["install", &plugin.wasm(), "--dry-run"]] {
        let output = operetta(plugin.home.path(), &[command, &["--kubeconfig", kubeconfig.to_str().unwrap()]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{said}");
        for says in [
            format!("get customresourcedefinitions.apiextensions.k8s.io {:?}", plugin.crd_name()),
            format!("get serviceaccounts {:?} in namespace operetta-plugins", plugin.name),
            "nothing was changed".to_owned(),
        ] {
            assert!(said.contains(&says), "{said} lacks {says:?}");
        }
    }
    assert_eq!(plugin.is_there().await, [false; 6]);
}

#[tokio::test]
async fn a_crd_that_lacks_a_version_in_which_objects_are_stored_is_refused() {
    let plugin = Plugin::new().await;
    plugin.said(&["install", &plugin.wasm()]);
    let mut crd = plugin.crds().get(&plugin.crd_name()).await.unwrap();
    let mut later = crd.spec.versions[0].clone();
    crd.spec.versions[0].storage = false;
    later.name = "v2".into();
    crd.spec.versions.push(later);
    crd.metadata.managed_fields = None;
    plugin.crds().replace(&plugin.crd_name(), &PostParams::default(), &crd).await.unwrap();
    let said = plugin.refused(&["install", &plugin.wasm(), "--force"]);
    assert!(said.contains("may be stored as v2") && said.contains("served: false"), "{said}");
    let versions = plugin.crds().get(&plugin.crd_name()).await.unwrap().spec.versions;
    assert_eq!(versions.len(), 2, "nothing was written");
    plugin.said(&["uninstall", &plugin.name]);
}
