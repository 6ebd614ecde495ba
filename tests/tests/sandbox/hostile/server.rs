//! An API server that lies, and all of the cluster's layer on the way to it.

use std::sync::Arc;

use futures::channel::mpsc::UnboundedReceiver;
use operetta_cluster::{
    Cluster,
    client::{self, Target},
    identity::Impersonation,
};
use operetta_core::{
    cache::Scope,
    name::{AccountName, Actor, Namespace, PluginName, ServiceAccount},
    port::Kubernetes,
};
use operetta_tests::canned::{Canned, Kind, Write};
use serde_json::json;

const CONFIG: Kind = Kind { api_version: "v1", kind: "ConfigMap", plural: "configmaps" };
const NAMESPACE: &str = "default";

/// The server, with a ConfigMap `thing`, and others whose names say what it answers of them.
pub struct Server {
    port: Arc<dyn Kubernetes>,
    writes: UnboundedReceiver<Write>,
    _canned: Canned,
}

impl Server {
    pub async fn start() -> Self {
        let (canned, writes) = Canned::start(&[CONFIG]).unwrap();
        canned.put(&CONFIG, NAMESPACE, "thing", json!({"data": {"a": "1"}}));
        let answers = [
            ("deep", "[".repeat(100_000)),
            ("no-json", "<html>".to_owned()),
            ("no-object", "[]".to_owned()),
            ("nameless", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}).to_string()),
            (
                "number",
                r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"number"},"data":1e999}"#.to_owned(),
            ),
            ("surrogate", r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"\ud800"}}"#.to_owned()),
        ];
        for (name, answer) in answers {
            canned.lie(&CONFIG, NAMESPACE, name, &answer);
        }
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = Some(canned.kubeconfig(folder.path()).unwrap());
        let client = client::connect(&Target { kubeconfig, ..Target::default() }).await.unwrap();
        let account = ServiceAccount {
            namespace: Namespace::parse("operetta-plugins").unwrap(),
            name: AccountName::parse("demo").unwrap(),
        };
        let actor = Actor { plugin: PluginName::parse("demo").unwrap(), account };
        let port = Cluster::new(client.clone(), Arc::new(Impersonation::new(client))).kubernetes(actor, Scope::All);
        Self { port, writes, _canned: canned }
    }

    /// What a plugin writes to and reads from.
    pub fn port(&self) -> Arc<dyn Kubernetes> {
        self.port.clone()
    }

    /// The writes that reached it since.
    pub fn writes(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.writes.try_recv().ok())
            .map(|write| format!("{} {}", write.path, write.body))
            .collect()
    }
}
