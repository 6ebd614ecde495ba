//! The recipe to move a running kubebuilder operator over, typed as the README has it: the objects of the Memcached operator in Go go on under the plugin, and no workload
//! notices. On a control plane of its own, on which nothing of ours was before.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::{Command, Output},
};

use anyhow::{Context, ensure};
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet},
        core::v1::{Pod, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry,
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use operetta_tests::{
    control_plane::{self, supervised::Supervised},
    eventually,
    host::{Document, Launch, Log},
    kinds::{memcacheds, state},
    moving::{self, MANAGER, Operator},
    progress::Progress,
};
use serde_json::json;

use crate::shared::{ONE_MORE_CONTROL_PLANE, SOON, built, program, run, settled};

const NAMESPACE: &str = "default";
const PLUGIN: &str = "memcached";
const HEIR: &str = "operetta:memcached/memcached";
const CRD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/moving/config/crd/cache.example.com_memcacheds.yaml");
/// A label that the operator in Go writes and the plugin does not name.
const DROPPED: &str = "app.kubernetes.io/created-by";

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a command to its end, and returns what it said if it went well.
fn typed(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap();
    if output.status.success() { Ok(said(&output)) } else { Err(said(&output)) }
}

/// What must not change when an operator moves.
#[derive(Debug, PartialEq, Eq)]
struct Workload {
    uid: Option<String>,
    generation: Option<i64>,
    replica_sets: BTreeSet<String>,
    /// Names and uids.
    pods: BTreeMap<String, String>,
}

struct Scene {
    client: Client,
}

impl Scene {
    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn deployment(&self, name: &str) -> Deployment {
        self.api().get(name).await.unwrap()
    }

    async fn workload(&self, name: &str) -> Workload {
        let deployment = self.deployment(name).await;
        let of = ListParams::default().labels(&format!("app.kubernetes.io/instance={name}"));
        let sets = self.api::<ReplicaSet>().list(&of).await.unwrap();
        let pods = self.api::<Pod>().list(&of).await.unwrap();
        Workload {
            uid: deployment.uid(),
            generation: deployment.metadata.generation,
            replica_sets: sets.iter().map(ResourceExt::name_any).collect(),
            pods: pods.iter().map(|pod| (pod.name_any(), pod.uid().unwrap())).collect(),
        }
    }

    /// Waits until so many pods of the Deployment run and the object says so.
    async fn available(&self, name: &str, size: i32) {
        eventually(&format!("{name} has {size} pods"), SOON, async || {
            let available =
                self.api::<Deployment>().get(name).await?.status.and_then(|status| status.available_replicas);
            ensure!(available == Some(size), "{available:?} are available");
            let object = memcacheds(&self.client, NAMESPACE).get(name).await?;
            ensure!(state(&object, "Available") == "True/Reconciling", "Available is {}", state(&object, "Available"));
            Ok(())
        })
        .await
        .unwrap();
    }
}

/// Who owns fields of an object, or of a part of it.
fn managers(entries: &[ManagedFieldsEntry], subresource: Option<&str>) -> BTreeSet<String> {
    let of = entries.iter().filter(|entry| entry.subresource.as_deref() == subresource);
    of.filter_map(|entry| entry.manager.clone()).collect()
}

#[tokio::test]
async fn a_kubebuilder_operator_moves_over_and_no_workload_notices() {
    let _turn = ONE_MORE_CONTROL_PLANE.lock().await;
    let progress = Progress::stderr();
    let go = moving::build(&progress).unwrap();
    let cluster = Supervised::start(program()).unwrap();
    let access = cluster.access();
    let kubectl = |arguments: &[&str]| {
        typed(Command::new(&access.kubectl).arg("--kubeconfig").arg(&access.kubeconfig).args(arguments)).unwrap()
    };
    let wasm = &built().component(PLUGIN).unwrap().wasm;
    let operetta = |arguments: &[&str], file: &Path| {
        let mut command = Command::new(built().host());
        command.args(arguments).arg(file).arg("--kubeconfig").arg(&access.kubeconfig);
        typed(command.arg("--state-dir").arg(built().state_dir()))
    };
    let scene = Scene { client: control_plane::client(&access.kubeconfig).await.unwrap() };
    let accounts = scene.api::<ServiceAccount>();
    eventually("pods can be made", SOON, async || accounts.get("default").await.context("no account yet"))
        .await
        .unwrap();

    // As it was: the operator in Go, its CRD and its objects.
    kubectl(&["apply", "-f", CRD]);
    kubectl(&["wait", "--for=condition=Established", "crd/memcacheds.cache.example.com", "--timeout=60s"]);
    let operator = Operator::start(run(), &go, &access.kubeconfig).unwrap();
    let objects = memcacheds(&scene.client, NAMESPACE);
    objects.apply("one", &json!({"size": 1, "containerPort": 11211})).await.unwrap();
    objects.apply("two", &json!({"size": 2, "containerPort": 11212})).await.unwrap();
    scene.available("one", 1).await;
    scene.available("two", 2).await;
    operator.stop().await.unwrap();
    let before = (scene.workload("one").await, scene.workload("two").await);
    assert_eq!((before.0.pods.len(), before.1.pods.len(), before.1.replica_sets.len()), (1, 2, 1));
    let deployment = scene.deployment("one").await;
    assert_eq!(deployment.labels().get(DROPPED).map(String::as_str), Some("controller-manager"));
    assert!(managers(deployment.managed_fields(), None).contains(MANAGER), "{:?}", deployment.managed_fields());

    // The CRD is kubectl's, and says less than the plugin's.
    let refused = operetta(&["install"], wasm).unwrap_err();
    assert!(refused.contains("memcacheds.cache.example.com") && refused.contains("--force"), "{refused}");
    operetta(&["install", "--force"], wasm).unwrap();
    let owners = operetta(&["adopt"], wasm).unwrap();
    for line in ["fields in 2 deployments.v1.apps", "fields in status of 2 memcacheds.v1alpha1.cache.example.com"] {
        let found = owners.lines().any(|said| said.starts_with(&format!("{MANAGER} owns ")) && said.ends_with(line));
        assert!(found, "no line ends in {line:?}:\n{owners}");
    }
    let tried = operetta(&["adopt", "--dry-run", "--from", MANAGER], wasm).unwrap();
    assert!(tried.contains("deployment.apps/two -n default adopted: ") && tried.contains("(dry run)"), "{tried}");
    assert_eq!(scene.deployment("one").await.managed_fields(), deployment.managed_fields(), "a dry run wrote");
    let adopted = operetta(&["adopt", "--from", MANAGER], wasm).unwrap();
    assert_eq!(adopted.lines().count(), 4, "{adopted}");
    assert_eq!((scene.workload("one").await, scene.workload("two").await), before, "ownership is no change");
    let again = operetta(&["adopt", "--from", MANAGER], wasm).unwrap();
    assert!(again.contains("nothing to hand over"), "{again}");

    let host = Launch::new(built(), &access.kubeconfig).start(run()).await.unwrap();
    let component = built().component(PLUGIN).unwrap();
    host.plugins().put(PLUGIN, &component.code().unwrap(), &Document::of(component).unwrap()).unwrap();
    host.says(PLUGIN, "plugin ready", Log::start(), SOON).await.unwrap();
    for (name, size) in [("one", 1), ("two", 2)] {
        eventually(&format!("what the plugin does not name is gone from {name}"), SOON, async || {
            let deployment = scene.api::<Deployment>().get(name).await?;
            ensure!(!deployment.labels().contains_key(DROPPED), "the label is still there");
            Ok(())
        })
        .await
        .unwrap();
        scene.available(name, size).await;
    }
    settled(&host, PLUGIN).await;
    assert_eq!((scene.workload("one").await, scene.workload("two").await), before, "a workload noticed");
    for name in ["one", "two"] {
        assert_eq!(managers(scene.deployment(name).await.managed_fields(), None), [HEIR.to_owned()].into());
        let object = objects.get(name).await.unwrap();
        assert_eq!(managers(object.managed_fields(), Some("status")), [HEIR.to_owned()].into());
        assert_eq!(object.finalizers(), ["cache.example.com/finalizer"]);
    }

    // From here on the plugin is obeyed, and the finalizer that the operator in Go set is its own.
    objects.merge("one", &json!({"spec": {"size": 3}})).await.unwrap();
    scene.available("one", 3).await;
    let after = scene.workload("one").await;
    assert_eq!((&after.uid, &after.replica_sets), (&before.0.uid, &before.0.replica_sets));
    assert!(before.0.pods.iter().all(|pod| after.pods.get(pod.0) == Some(pod.1)), "the pod of before is gone");
    objects.remove("two").await.unwrap();
    eventually("the object goes", SOON, async || {
        ensure!(objects.get_opt("two").await?.is_none(), "it is still there");
        Ok(())
    })
    .await
    .unwrap();
    let failures = host.metrics().await.unwrap().failures(PLUGIN);
    assert!(failures < 0.5, "{failures} reconciles failed");
}
