//! The cluster that all tests of this program share, and a namespace for each of them.

use std::{path::Path, sync::OnceLock, time::Duration};

use anyhow::Context;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use operetta_tests::{control_plane::Cluster, eventually};
use serde_json::json;

/// What a controller, the scheduler or a simulated node may take under the load of all tests at once on two cores.
pub const SOON: Duration = Duration::from_mins(1);

/// The program that runs a control plane.
pub fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_control-plane"))
}

/// Starts the cluster on first use. It is never dropped: the control plane stops when this process ends and its standard input with it.
pub fn shared() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::open(program()).expect("a cluster to test against"))
}

/// A namespace that belongs to one test.
pub struct TestNamespace {
    name: String,
    client: Client,
}

impl TestNamespace {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A client for the runtime of the test that asked for the namespace.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The kind's objects in this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client(), &self.name)
    }
}

/// Makes a namespace and waits until pods can be created in it.
pub async fn namespace() -> TestNamespace {
    let client = shared().client().await.unwrap();
    let name = format!("test-{}", hex::encode(rand::random::<[u8; 6]>()));
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), &name);
    eventually("the namespace has its service account", SOON, async || {
        accounts.get("default").await.context("get the service account").map(drop)
    })
    .await
    .unwrap();
    TestNamespace { name, client }
}

impl Drop for TestNamespace {
    /// A user's cluster is left as it was; our own ends soon and takes everything along.
    fn drop(&mut self) {
        let Cluster::Users(_) = shared() else { return };
        let name = self.name.clone();
        // The test's runtime is about to end, so the last request has one of its own.
        let delete = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let namespaces = Api::<Namespace>::all(shared().client().await?);
                namespaces.delete(&name, &DeleteParams::background()).await?;
                anyhow::Ok(())
            })
        });
        if let Ok(Err(error)) = delete.join() {
            eprintln!("could not delete the namespace {}: {error:#}", self.name);
        }
    }
}
