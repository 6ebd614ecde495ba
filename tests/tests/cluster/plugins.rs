//! Plugins of the cluster: from a component on a disk to a row in `kubectl get plugins`, and out again.
//!
//! Plugins are cluster-scoped, so each test has names and a label of its own, and a host that runs only what has that label.

use std::{path::Path, process::Command};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret},
    events::v1::Event,
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use operetta_tests::{
    control_plane::Cluster,
    eventually,
    host::{Document, Host, Launch},
    kinds::{Objects, act, mischiefs, pet, pets, text, volumes},
    petstore::PetStore,
    variant::hostile_version,
};
use serde_json::{Value, json};

use crate::{
    cli::operetta,
    shared::{ACCOUNTS, SOON, TestNamespace, account_of, built, installed, namespace, plug, requests_of, run, shared},
};

/// A plugin of one test, under a name of its own.
pub struct Stage {
    pub namespace: TestNamespace,
    /// Where the host itself is, which is no place for plugins.
    pub beside: TestNamespace,
    name: String,
    plugins: Api<DynamicObject>,
    pub host: Host,
}

fn plugin_kind() -> ApiResource {
    ApiResource {
        group: "operetta.dev".into(),
        version: "v1alpha1".into(),
        api_version: "operetta.dev/v1alpha1".into(),
        kind: "Plugin".into(),
        plural: "plugins".into(),
    }
}

/// kubectl, as a person would type it; one of the cluster's own version where the cluster is ours.
fn kubectl(arguments: &[&str]) -> anyhow::Result<String> {
    let program = match shared() {
        Cluster::Own(own) => own.access().kubectl.clone(),
        Cluster::Users(_) => "kubectl".into(),
    };
    let output = Command::new(program).arg("--kubeconfig").arg(shared().kubeconfig()).args(arguments).output()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "kubectl {arguments:?}: {out}{err}");
    Ok(out.into_owned())
}

impl Stage {
    pub async fn new(component: &str) -> Self {
        let beside = namespace().await;
        let launch = Launch::new(built(), shared().kubeconfig()).host_namespace(beside.name());
        Self::of(launch, beside, component).await
    }

    /// With a host that runs the Plugins of this stage alone, and an account with the rights of a shipped component.
    async fn of(launch: Launch, beside: TestNamespace, component: &str) -> Self {
        let namespace = namespace().await;
        let client = namespace.client();
        installed();
        // The kind itself, which any of these tests may be the first to apply.
        let crd = serde_json::to_value(operetta_api::crd()).unwrap();
        let crds = ApiResource::erase::<
            k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
        >(&());
        let crds: Api<DynamicObject> = Api::all_with(client.clone(), &crds);
        crds.patch("plugins.operetta.dev", &PatchParams::apply("test").force(), &Patch::Apply(crd)).await.unwrap();
        let plugins: Api<DynamicObject> = Api::all_with(client, &plugin_kind());
        eventually("the kind is served", SOON, async || {
            plugins.list(&ListParams::default().limit(1)).await.context("list").map(drop)
        })
        .await
        .unwrap();
        let host = launch
            .namespace(namespace.name())
            .plugins(&format!("test={}", namespace.name()))
            .start(run())
            .await
            .unwrap();
        let name = format!("p-{}", namespace.name());
        let stage = Self { namespace, beside, name, plugins, host };
        account_of(&stage.namespace.client(), &stage.name, component).await;
        stage
    }

    /// A ConfigMap with a component, or a part of one.
    async fn put(&self, name: &str, part: &[u8]) {
        Self::put_into(&self.beside.api(), name, part).await;
    }

    /// ConfigMaps with a component, as a source names them.
    pub async fn put_component(&self, name: &str, component: &str) -> Value {
        let parts = operetta::package::pack(&installed().component(component).unwrap().code().unwrap()).unwrap();
        for (number, part) in parts.iter().enumerate() {
            self.put(&format!("{name}-{number}"), part).await;
        }
        json!({"configMap": {"name": name, "chunks": parts.len()}})
    }

    async fn put_into(maps: &Api<ConfigMap>, name: &str, part: &[u8]) {
        let map: ConfigMap = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        }))
        .unwrap();
        let data = [("component".to_owned(), k8s_openapi::ByteString(part.to_vec()))];
        let map = ConfigMap { binary_data: Some(data.into()), ..map };
        maps.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(map)).await.unwrap();
    }

    /// The spec of a shipped component's document.
    pub fn spec(component: &str, source: &Value, edit: impl FnOnce(Document) -> Document) -> Value {
        let document = edit(Document::of(installed().component(component).unwrap()).unwrap());
        let document: Value = serde_json::from_str(&document.to_text()).unwrap();
        let mut spec = document["spec"].clone();
        spec["source"] = source.clone();
        spec
    }

    pub async fn apply(&self, spec: &Value) {
        let plugin = json!({
            "apiVersion": "operetta.dev/v1alpha1", "kind": "Plugin",
            "metadata": {"name": self.name, "labels": {"test": self.namespace.name()}}, "spec": spec,
        });
        self.plugins.patch(&self.name, &PatchParams::apply("test").force(), &Patch::Apply(plugin)).await.unwrap();
    }

    /// Waits for a condition of the current spec, and answers its message.
    pub async fn says(&self, type_: &str, status: &str, reason: &str) -> String {
        eventually(&format!("{type_} is {status} for {reason}"), SOON, async || {
            let plugin = self.plugins.get(&self.name).await?;
            let conditions =
                plugin.data.pointer("/status/conditions").and_then(Value::as_array).context("no status")?;
            let condition = conditions.iter().find(|c| c["type"] == type_).context("no such condition")?;
            ensure!(
                condition["observedGeneration"] == json!(plugin.metadata.generation),
                "of an older spec: {condition}"
            );
            ensure!(condition["status"] == status && condition["reason"] == reason, "{condition}");
            Ok(condition["message"].as_str().unwrap_or_default().to_owned())
        })
        .await
        .unwrap()
    }

    /// Waits for an event about the Plugin.
    async fn event(&self, reason: &str) {
        let events: Api<Event> = Api::namespaced(self.namespace.client(), "default");
        eventually(&format!("an event {reason}"), SOON, async || {
            let all = events.list(&ListParams::default()).await?;
            let of = |event: &&Event| event.regarding.as_ref().and_then(|r| r.name.as_ref()) == Some(&self.name);
            let reasons: Vec<_> = all.iter().filter(of).filter_map(|event| event.reason.clone()).collect();
            ensure!(reasons.iter().any(|r| r == reason), "there are {reasons:?}");
            Ok(())
        })
        .await
        .unwrap();
    }

    pub async fn metric(&self, name: &str) -> f64 {
        self.host.metrics().await.unwrap().sum(name, &[("plugin", &self.name)])
    }

    async fn gone(&self) {
        eventually("the Plugin is gone", SOON, async || {
            let plugin = self.plugins.get_opt(&self.name).await?;
            ensure!(plugin.is_none(), "{:?}", plugin.map(|p| p.data["status"]["conditions"].clone()));
            Ok(())
        })
        .await
        .unwrap();
    }

    fn mischiefs(&self) -> Objects {
        mischiefs(&self.namespace.client(), self.namespace.name())
    }

    async fn looked_after(&self, version: &str) {
        eventually(&format!("version {version} looks after it"), SOON, async || {
            let object = self.mischiefs().get("one").await?;
            ensure!(text(&object, "/status/version") == version, "{:?} does", text(&object, "/status/version"));
            Ok(())
        })
        .await
        .unwrap();
    }
}

/// A stage on which the hostile plugin runs.
async fn hostile_stage() -> Stage {
    let stage = Stage::new("hostile").await;
    let source = stage.put_component("code", "hostile").await;
    stage.apply(&Stage::spec("hostile", &source, |document| document)).await;
    stage
}

fn hostile() -> Vec<u8> {
    installed().component("hostile").unwrap().code().unwrap()
}

fn digest(wasm: &[u8]) -> String {
    operetta_core::name::Digest::of(wasm).to_string()
}

/// A Plugin comes, is wrong twice in the same way, and goes; whatever rights the host has. The ConfigMaps are of the host's namespace.
pub async fn story(launch: Launch, maps: Api<ConfigMap>) {
    // Such a Plugin is held itself, so that it cannot go before its objects.
    const WITH_FINALIZER: &str = "memcached";
    let stage = Stage::of(launch, namespace().await, WITH_FINALIZER).await;
    let names = ["good", "absent"].map(|name| format!("{name}-{}", stage.name));
    let parts = operetta::package::pack(&installed().component(WITH_FINALIZER).unwrap().code().unwrap()).unwrap();
    let [good, absent] = names.each_ref().map(|name| json!({"configMap": {"name": name, "chunks": parts.len()}}));
    for (number, part) in parts.iter().enumerate() {
        Stage::put_into(&maps, &format!("{}-{number}", names[0]), part).await;
    }
    for _ in 0..2 {
        stage.apply(&Stage::spec(WITH_FINALIZER, &absent, |document| document)).await;
        stage.says("Loaded", "False", "ConfigMapMissing").await;
        stage.apply(&Stage::spec(WITH_FINALIZER, &good, |document| document)).await;
        stage.says("Ready", "True", "Running").await;
    }
    stage.plugins.delete(&stage.name, &DeleteParams::default()).await.unwrap();
    stage.gone().await;
}

#[tokio::test]
async fn a_plugin_of_the_cluster_lives_from_its_chunks_and_says_how_it_fares() {
    let stage = Stage::new("hostile").await;
    let (one, two) = (hostile(), hostile_version(&hostile(), "1.1.0").unwrap());
    let source = |chunks: usize| json!({"configMap": {"name": "code", "chunks": chunks}});
    let parts: Vec<_> = one.chunks(one.len().div_ceil(3)).collect();
    stage.mischiefs().apply("one", &act("behave")).await.unwrap();

    // Two of three parts: said, and tried again until the third is there.
    stage.put("code-0", parts[0]).await;
    stage.put("code-1", parts[1]).await;
    stage.apply(&Stage::spec("hostile", &source(3), |document| document)).await;
    let said = stage.says("Loaded", "False", "ConfigMapMissing").await;
    assert!(said.contains("code-2") && said.contains("nothing runs"), "{said}");
    stage.put("code-2", parts[2]).await;
    kubectl(&["wait", "--for=condition=Ready", "--timeout=60s", &format!("plugin/{}", stage.name)]).unwrap();
    stage.looked_after("1.0.0").await;

    let columns = kubectl(&["get", "plugin", &stage.name]).unwrap();
    eprintln!("{columns}");
    let header: Vec<_> = columns.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["NAME", "VERSION", "DIGEST", "READY", "REASON", "OBJECTS", "RECONCILES", "AGE"]);
    let short: String = digest(&one).trim_start_matches("sha256:").chars().take(12).collect();
    let row: Vec<_> = columns.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(&row[..5], &[stage.name.as_str(), "1.0.0", &short, "True", "Running"]);
    eventually("the counts are told", SOON, async || {
        let plugin = stage.plugins.get(&stage.name).await?;
        let status = &plugin.data["status"];
        ensure!(status["objects"] == 1 && status["reconciles"].as_i64() >= Some(1), "{status}");
        ensure!(status["namespaces"] == json!([stage.namespace.name()]), "{status}");
        Ok(())
    })
    .await
    .unwrap();

    // The wrong digest: what runs goes on, and nobody who waits takes the old truth for the new one.
    let pinned = |wasm: &[u8], chunks| {
        let mut spec = Stage::spec("hostile", &source(chunks), |document| document);
        spec["digest"] = digest(wasm).into();
        spec
    };
    stage.apply(&pinned(&two, 3)).await;
    let said = stage.says("Ready", "False", "DigestMismatch").await;
    assert!(said.contains("version 1.0.0") && said.contains("runs on"), "{said}");
    let waited = kubectl(&["wait", "--for=condition=Ready", "--timeout=1s", &format!("plugin/{}", stage.name)]);
    assert!(waited.is_err(), "{waited:?}");
    for (number, part) in two.chunks(two.len().div_ceil(3)).enumerate() {
        stage.put(&format!("code-{number}"), part).await;
    }
    stage.says("Ready", "True", "Running").await;
    stage.looked_after("1.1.0").await;

    // A grant that is taken away and given back, without a load.
    let mut denied = pinned(&two, 3);
    denied["grants"]["rules"] = json!([]);
    stage.apply(&denied).await;
    let said = stage.says("Granted", "False", "NotGranted").await;
    assert!(said.contains("- apiGroups:") && said.contains("verbs: [\"list\"]"), "{said}");
    stage.apply(&pinned(&two, 3)).await;
    stage.says("Granted", "True", "Granted").await;

    let mut suspended = pinned(&two, 3);
    suspended["suspend"] = true.into();
    stage.apply(&suspended).await;
    stage.says("Ready", "False", "Suspended").await;
    stage.apply(&pinned(&two, 3)).await;
    stage.says("Ready", "True", "Running").await;

    for reason in ["ConfigMapMissing", "Loaded", "DigestMismatch", "Exchanged", "NotGranted", "Suspended"] {
        stage.event(reason).await;
    }

    // It holds nothing, so that it goes at once.
    stage.plugins.delete(&stage.name, &DeleteParams::default()).await.unwrap();
    stage.gone().await;
    stage.host.says(&stage.name, "plugin removed", operetta_tests::host::Log::start(), SOON).await.unwrap();
}

#[tokio::test]
async fn a_plugin_keeps_away_from_the_host() {
    let stage = Stage::new("hostile").await;
    let source = stage.put_component("code", "hostile").await;
    let spec = || Stage::spec("hostile", &source, |document| document);
    let mut beside = spec();
    beside["serviceAccount"] = json!({"name": stage.name, "namespace": stage.beside.name()});
    stage.apply(&beside).await;
    let said = stage.says("Granted", "False", "NotGranted").await;
    assert!(said.contains("whose accounts are not for plugins"), "{said}");
    let mut pods = spec();
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["*"], "namespaces": [stage.beside.name()]});
    pods["grants"]["rules"].as_array_mut().unwrap().push(rule);
    stage.apply(&pods).await;
    let said = stage.says("Granted", "False", "NotGranted").await;
    assert!(said.contains(&format!("lets it create pods in the namespace {}", stage.beside.name())), "{said}");
    stage.apply(&spec()).await;
    stage.says("Ready", "True", "Running").await;
    stage.plugins.delete(&stage.name, &DeleteParams::default()).await.unwrap();
    stage.gone().await;
}

#[tokio::test]
async fn a_plugin_that_traps_on_all_that_it_sees_is_parked_beside_a_neighbour_and_comes_back() {
    let stage = hostile_stage().await;
    for name in ["one", "two"] {
        stage.mischiefs().apply(name, &act("panic")).await.unwrap();
    }
    let said = stage.says("Degraded", "True", "Parked").await;
    eprintln!("{said}");
    for part in ["controller mischief is parked: the host had to stop", "of 2 objects", "operetta reconcile KIND/NAME"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    stage.says("Ready", "False", "Parked").await;
    stage.event("Parked").await;
    assert!((stage.metric("operetta_plugin_parked").await - 1.0).abs() < 0.5);

    plug(&stage.host, "demo-volume", |document| document).await;
    let volumes = volumes(&stage.namespace.client(), stage.namespace.name());
    volumes.apply("volume", &json!({"name": "volume", "size": 1})).await.unwrap();
    eventually("the neighbour reconciles", SOON, async || {
        ensure!(text(&volumes.get("volume").await?, "/status/name") == "volume", "not yet");
        Ok(())
    })
    .await
    .unwrap();

    // The cause is gone, and a person who knows does not wait for the next try.
    for name in ["two", "one"] {
        stage.mischiefs().merge(name, &json!({"spec": {"act": "behave"}})).await.unwrap();
    }
    let asked =
        ["annotate", "mischief/one", "operetta.dev/reconcile-requested-at=now", "--namespace", stage.namespace.name()];
    kubectl(&asked).unwrap();
    stage.looked_after("1.0.0").await;
    stage.says("Degraded", "False", "AsExpected").await;
    stage.says("Ready", "True", "Running").await;
    stage.event("Recovered").await;
    assert!(stage.metric("operetta_plugin_parked").await < 0.5);
}

#[tokio::test]
async fn a_plugin_whose_own_writes_wake_it_is_slowed_and_the_field_is_named() {
    let stage = hostile_stage().await;
    stage.says("Ready", "True", "Running").await;
    stage.mischiefs().apply("one", &act("flap")).await.unwrap();
    let said = stage.says("Degraded", "True", "Looping").await;
    eprintln!("{said}");
    let field = format!(".spec.milliseconds of mischiefs.v1.hostile.example.com {}/one", stage.namespace.name());
    assert!(said.starts_with(&format!("{field} flaps between 3 and 4")), "{said}");
    stage.event("Looping").await;
    // At the object, too, for those who see nothing else: once, though it published an event of its own with each lap.
    let events: Api<Event> = stage.namespace.api();
    let warnings = async || {
        let all = events.list(&ListParams::default()).await?;
        anyhow::Ok(all.items.into_iter().filter(|e| e.type_.as_deref() == Some("Warning")).collect::<Vec<_>>())
    };
    eventually("an event at the object", SOON, async || {
        ensure!(!warnings().await?.is_empty(), "there is none");
        Ok(())
    })
    .await
    .unwrap();
    assert!((stage.metric("operetta_write_loops_total").await - 1.0).abs() < 0.5);
    assert!((stage.metric("operetta_looping_objects").await - 1.0).abs() < 0.5);
    // Thirty changes to find it, and then one after a second, two, four and so on.
    let changes = stage.mischiefs().get("one").await.unwrap().metadata.generation;
    assert!((30..40).contains(&changes.unwrap()), "{changes:?}");
    eventually("it goes on, slower", SOON, async || {
        let now = stage.mischiefs().get("one").await?.metadata.generation;
        ensure!(now >= changes.map(|changes| changes + 2), "{now:?}");
        Ok(())
    })
    .await
    .unwrap();
    let [event] = <[Event; 1]>::try_from(warnings().await.unwrap()).unwrap();
    assert_eq!((event.reason.as_deref(), &event.series), (Some("Looping"), &None));
    let regarding = event.regarding.unwrap();
    assert_eq!((regarding.kind.as_deref(), regarding.name.as_deref()), (Some("Mischief"), Some("one")));
    let note = event.note.unwrap();
    eprintln!("{note}");
    assert!(note.starts_with(&format!("{field} changes again and again: ")) && !note.contains(" 3 "), "{note}");
    // By the plugin's own rights, as the audit log has it.
    if let Some(audit) = shared().audit_log() {
        audit.settle(&stage.namespace.client()).await.unwrap();
        let filter = requests_of(&stage.name, &stage.namespace).resource("events");
        let made = audit.requests(&filter.name(event.metadata.name.as_deref().unwrap()).verb("create")).unwrap();
        assert_eq!(made.len(), 1, "{made:#?}");
    }
    // Somebody's order does not wait.
    stage.mischiefs().merge("one", &json!({"spec": {"act": "behave"}})).await.unwrap();
    stage.looked_after("1.0.0").await;
}

#[tokio::test]
async fn two_objects_whose_reconciles_wake_each_other_are_slowed_and_both_are_named() {
    let stage = hostile_stage().await;
    stage.says("Ready", "True", "Running").await;
    for name in ["one", "two"] {
        stage.mischiefs().apply(name, &act("volley")).await.unwrap();
    }
    let said = stage.says("Degraded", "True", "Looping").await;
    eprintln!("{said}");
    let of = format!("mischiefs.v1.hostile.example.com {}/", stage.namespace.name());
    assert!(said.starts_with(&format!(".spec.milliseconds of {of}")), "{said}");
    assert!(said.contains(&format!(", woken by what it writes for {}/", stage.namespace.name())), "{said}");
    eventually("both are found", SOON, async || {
        let looping = stage.metric("operetta_looping_objects").await;
        ensure!(looping > 1.5, "{looping}");
        Ok(())
    })
    .await
    .unwrap();
    // Some forty changes of each to find it; at their own pace they would be thousands by the time that a person has read it.
    let changes = async || {
        let mut changes = 0;
        for name in ["one", "two"] {
            changes += stage.mischiefs().get(name).await.unwrap().metadata.generation.unwrap();
        }
        changes
    };
    let found = changes().await;
    assert!((60..300).contains(&found), "{found}");
    eventually("it goes on, slower", SOON, async || {
        let now = changes().await;
        ensure!(now >= found + 2, "{now}");
        Ok(())
    })
    .await
    .unwrap();
    // Somebody's order does not wait.
    for name in ["two", "one"] {
        stage.mischiefs().merge(name, &json!({"spec": {"act": "behave"}})).await.unwrap();
    }
    stage.looked_after("1.0.0").await;
}

#[tokio::test]
async fn a_plugin_rests_while_its_account_does_not_name_it() {
    let stage = hostile_stage().await;
    stage.mischiefs().apply("one", &act("behave")).await.unwrap();
    stage.looked_after("1.0.0").await;
    let account = ["annotate", "serviceaccount", &stage.name, "--namespace", ACCOUNTS];
    kubectl(&[&account[..], &["operetta.dev/plugin-"]].concat()).unwrap();
    let said = stage.says("Granted", "False", "Forbidden").await;
    let typed = format!("kubectl {} operetta.dev/plugin={}", account.join(" "), stage.name);
    assert!(said.contains(&typed) && said.ends_with("reconciles nothing until then"), "{said}");
    stage.says("Ready", "False", "Forbidden").await;
    kubectl(&typed.split(' ').skip(1).collect::<Vec<_>>()).unwrap();
    stage.says("Ready", "True", "Running").await;
    stage.plugins.delete(&stage.name, &DeleteParams::default()).await.unwrap();
    stage.gone().await;
}

#[tokio::test]
async fn a_plugin_whose_finalizers_are_held_goes_as_its_policy_says() {
    let stage = Stage::new("petstore").await;
    let store = PetStore::start(run(), built()).await.unwrap();
    let pets = pets(&stage.namespace.client(), stage.namespace.name());
    let source = stage.put_component("pets", "petstore").await;
    let spec = |policy: &str| {
        let endpoint = store.endpoint();
        let mut spec = Stage::spec("petstore", &source, |document| document.endpoint("petstore", &endpoint));
        spec["deletionPolicy"] = policy.into();
        spec
    };
    let has_id = async |name: &str| {
        eventually("the pet has its id", SOON, async || {
            ensure!(!text(&pets.get(name).await?, "/status/id").is_empty(), "no id yet");
            Ok(())
        })
        .await
        .unwrap();
    };
    let pet_is_gone = async |name: &str| {
        eventually("the pet is gone", SOON, async || {
            ensure!(pets.get_opt(name).await?.is_none(), "it is there");
            Ok(())
        })
        .await
        .unwrap();
    };
    stage.apply(&spec("Refuse")).await;
    stage.says("Ready", "True", "Running").await;
    for name in ["thor", "tron"] {
        pets.apply(name, &pet(name, "dog")).await.unwrap();
        has_id(name).await;
    }
    stage.says("FinalizersHeld", "True", "InUse").await;

    // Refuse: it stays and works on.
    stage.plugins.delete(&stage.name, &DeleteParams::default()).await.unwrap();
    let said = stage.says("FinalizersHeld", "True", "DeletionRefused").await;
    assert!(said.contains("2 pets.petstore.example.com hold the finalizer petstore.example.com/finalizer"), "{said}");
    assert!(
        kubectl(&["get", "plugins"])
            .unwrap()
            .lines()
            .any(|row| row.contains(&stage.name) && row.contains("DeletionRefused"))
    );
    pets.apply("late", &pet("late", "cat")).await.unwrap();
    has_id("late").await;

    // Drain: only what is being deleted.
    stage.apply(&spec("Drain")).await;
    stage.says("Ready", "False", "Draining").await;
    pets.apply("never", &pet("never", "cat")).await.unwrap();
    pets.remove("thor").await.unwrap();
    pet_is_gone("thor").await;
    assert!(pets.get("never").await.unwrap().finalizers().is_empty(), "it looks after new objects");
    let said = stage.says("FinalizersHeld", "True", "Draining").await;
    assert!(said.contains("deletionPolicy to Release"), "{said}");

    // Release: the rest is let go, and the objects stay.
    stage.apply(&spec("Release")).await;
    stage.gone().await;
    for name in ["tron", "late"] {
        assert!(pets.get(name).await.unwrap().finalizers().is_empty(), "{name} is still held");
        pets.remove(name).await.unwrap();
        pet_is_gone(name).await;
    }
}

#[tokio::test]
async fn one_line_puts_a_component_into_the_cluster_and_the_second_plugin_of_a_kind_waits() {
    let mut stage = Stage::new("hostile").await;
    // The CRDs that a component brings belong to the plugin of its own name.
    let second = std::mem::replace(&mut stage.name, "hostile".to_owned());
    let wasm = &installed().component("hostile").unwrap().wasm;
    let (here, beside) = (stage.namespace.name().to_owned(), stage.beside.name().to_owned());
    let said = publish(wasm, &beside);
    assert!(said.contains("plugin.operetta.dev/hostile created"), "{said}");
    let label = json!({"metadata": {"labels": {"test": here}}});
    stage.plugins.patch("hostile", &PatchParams::default(), &Patch::Merge(&label)).await.unwrap();
    stage.says("Ready", "True", "Running").await;
    // Again, and nothing is different.
    publish(wasm, &beside);
    let maps: Api<ConfigMap> = stage.beside.api();
    let all = maps.list(&ListParams::default().labels("operetta.dev/plugin=hostile")).await.unwrap();
    assert!(
        !all.items.is_empty() && all.iter().all(|map| map.owner_references().len() == 1),
        "they go with the Plugin"
    );

    stage.name = second;
    let source = stage.put_component("second", "hostile").await;
    stage.apply(&Stage::spec("hostile", &source, |document| document)).await;
    let said = stage.says("Ready", "False", "KindTaken").await;
    assert!(said.contains("reconciled by the plugin hostile already"), "{said}");
    stage.plugins.delete("hostile", &DeleteParams::default()).await.unwrap();
    stage.says("Ready", "True", "Running").await;
    stage.plugins.delete(&stage.name, &DeleteParams::default()).await.unwrap();
    stage.gone().await;
}

fn publish(wasm: &Path, host_namespace: &str) -> String {
    let mut command = Command::new(built().host());
    command.arg("install").arg(wasm).args(["--plugin", "--host-namespace", host_namespace]);
    command.arg("--kubeconfig").arg(shared().kubeconfig()).arg("--state-dir").arg(built().state_dir());
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    out.into_owned()
}

/// `operetta can-i` about the plugin of a stage: how it ended, and what it said.
fn can_i(stage: &Stage, request: &[&str]) -> (Option<i32>, String) {
    let home = tempfile::tempdir().unwrap();
    let kubeconfig = shared().kubeconfig().to_str().unwrap();
    let output = operetta(home.path(), &[&["can-i", &stage.name], request, &["--kubeconfig", kubeconfig]].concat());
    let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), said)
}

#[tokio::test]
async fn what_a_plugin_is_denied_is_told_everywhere_and_granted_while_it_runs() {
    let stage = Stage::new("hostile").await;
    let here = stage.namespace.name().to_owned();
    stage.put("code", &hostile()).await;
    let mut spec = Stage::spec("hostile", &json!({"configMap": {"name": "code"}}), |document| document);
    spec["digest"] = digest(&hostile()).into();
    stage.apply(&spec).await;
    stage.says("Ready", "True", "Running").await;
    stage.mischiefs().apply("thief", &act("steal")).await.unwrap();
    stage.mischiefs().apply("caller", &act("call")).await.unwrap();
    let rule =
        format!("- apiGroups: [\"\"]\n  resources: [\"secrets\"]\n  verbs: [\"create\"]\n  namespaces: [{here:?}]");
    eventually("the condition names both", SOON, async || {
        let said = stage.says("Granted", "False", "Denied").await;
        ensure!(said.contains(&rule) && said.contains("- name: \"elsewhere\""), "{said}");
        Ok(())
    })
    .await
    .unwrap();
    let metrics = stage.host.metrics().await.unwrap();
    for grant in ["rules", "channels"] {
        let denials = metrics.sum("operetta_denials_total", &[("plugin", &stage.name), ("grant", grant)]);
        assert!(denials > 0.5, "denials for want of {grant} are counted");
    }
    let events: Api<Event> = Api::namespaced(stage.namespace.client(), "default");
    eventually("an event says so", SOON, async || {
        let all = events.list(&ListParams::default()).await?;
        let of = |event: &&Event| event.regarding.as_ref().and_then(|r| r.name.as_ref()) == Some(&stage.name);
        let notes: Vec<_> = all.iter().filter(of).filter_map(|event| event.note.clone()).collect();
        ensure!(notes.iter().any(|note| note.contains(&rule)), "{notes:?}");
        Ok(())
    })
    .await
    .unwrap();
    let create = ["create", "secret", "-n", &here];
    let (code, said) = can_i(&stage, &create);
    assert_eq!(code, Some(6), "{said}");
    let indented = rule.replace('\n', "\n    ");
    assert!(said.starts_with("no\n  document  does not grant it") && said.contains(&indented), "{said}");
    assert!(said.contains(&format!("does not let service account {ACCOUNTS}/{} do it", stage.name)), "{said}");
    assert_eq!(can_i(&stage, &["channel", "elsewhere"]).0, Some(6));

    // No load comes with it: the component is gone, and what runs is known by its digest.
    stage.beside.api::<ConfigMap>().delete("code", &DeleteParams::default()).await.unwrap();
    kubectl(&["create", "role", "thief", "--verb=create", "--resource=secrets", "-n", &here]).unwrap();
    let account = format!("--serviceaccount={ACCOUNTS}:{}", stage.name);
    kubectl(&["create", "rolebinding", "thief", "--role=thief", &account, "-n", &here]).unwrap();
    let (code, said) = can_i(&stage, &create);
    assert!(code == Some(6) && said.contains("cluster   lets service account"), "{said}");
    let rules = spec["grants"]["rules"].as_array_mut().unwrap();
    rules.push(json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"], "namespaces": [here]}));
    spec["grants"]["channels"] = json!([{"name": "elsewhere", "endpoint": "http://127.0.0.1:1"}]);
    stage.apply(&spec).await;
    eventually("the next reconcile may", SOON, async || {
        stage.namespace.api::<Secret>().get("loot").await.context("get it").map(drop)
    })
    .await
    .unwrap();
    stage.says("Granted", "True", "Granted").await;
    let (code, said) = can_i(&stage, &create);
    assert!(code == Some(0) && said.starts_with("yes\n"), "{said}");
    assert_eq!(can_i(&stage, &["channel", "elsewhere"]).0, Some(0));
    // In full, since other tests have kinds of the same name.
    let mischiefs = "mischiefs.hostile.example.com";
    for (request, code) in [
        // As kubectl names kinds; in all namespaces it is not granted.
        (&["create", "Secret", "-A"][..], 6),
        (&["get", mischiefs, "one", "-n", &here], 0),
        // Granted everywhere, which the host's own namespace is no part of: that of this host, or the one that hosts have unless told.
        (&["get", mischiefs, "one", "-n", stage.beside.name()], 0),
        (&["get", mischiefs, "one", "-n", stage.beside.name(), "--host-namespace", stage.beside.name()], 6),
        (&["get", mischiefs, "one", "-n", "operetta-system"], 6),
        (&["patch", &format!("{mischiefs}/status"), "-n", &here], 0),
        (&["patch", "plugin", &stage.name], 6),
        (&["impersonate", "users"], 2),
        (&["get", "nothings"], 5),
        (&["get"], 2),
    ] {
        let (ended, said) = can_i(&stage, request);
        assert_eq!(ended, Some(code), "{request:?}: {said}");
    }
    let (_, said) = can_i(&stage, &["--list"]);
    let row = |words: &[&str]| said.lines().any(|line| line.split_whitespace().eq(words.iter().copied()));
    assert!(row(&["secrets", &here, "*", "create", "yes"]) && row(&["channel", "elsewhere", "call"]), "{said}");
    stage.plugins.delete(&stage.name, &DeleteParams::default()).await.unwrap();
    stage.gone().await;
}
