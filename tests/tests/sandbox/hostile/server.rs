//! An API server that lies, and all of the cluster's layer on the way to it.

use std::sync::Arc;

use async_trait::async_trait;
use futures::channel::mpsc::UnboundedReceiver;
use operetta::{channels::GrpcChannels, credentials::Vault, databases::DatabasePools};
use operetta_api::{Channel, Database, Reference};
use operetta_cluster::{
    Cluster,
    client::{self, Target},
    identity::Impersonation,
};
use operetta_core::{
    aside::Aside,
    cache::Scope,
    limit::Limits,
    name::{AccountName, Actor, Namespace, PluginName, ServiceAccount},
    port::{Channels, Kubernetes, database::Databases},
};
use operetta_tests::canned::{Canned, Kind, Write};
use serde_json::{Value, json};

const CONFIG: Kind = Kind { api_version: "v1", kind: "ConfigMap", plural: "configmaps" };
const SECRET: Kind = Kind { api_version: "v1", kind: "Secret", plural: "secrets" };
const NAMESPACE: &str = "default";
/// Where the host itself is said to be.
pub const BESIDE_THE_HOST: &str = "operetta-system";

/// The server, with a ConfigMap `thing`, and others whose names say what it answers of them.
pub struct Server {
    port: Arc<dyn Kubernetes>,
    channels: Arc<dyn Channels>,
    databases: Arc<dyn Databases>,
    writes: UnboundedReceiver<Write>,
    _canned: Canned,
}

/// As whom the plugin under attack acts.
pub fn account() -> Actor {
    let account = ServiceAccount {
        namespace: Namespace::parse("operetta-plugins").unwrap(),
        name: AccountName::parse("demo").unwrap(),
    };
    Actor { plugin: PluginName::parse("demo").unwrap(), account }
}

/// A service and a database called `demo`, where nobody listens.
async fn services() -> (Arc<dyn Channels>, Arc<dyn Databases>) {
    // Ours for a moment, so that it is nobody's.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (vault, aside): (Arc<dyn Vault>, _) = (Arc::new(Empty), Aside::to(|_| {}));
    let endpoint = format!("http://127.0.0.1:{port}");
    let channel: Channel = serde_json::from_value(json!({"name": "demo", "endpoint": endpoint})).unwrap();
    let channels = GrpcChannels::open(&[channel], 1 << 20, &vault, &aside).await.unwrap();
    let variable = |name: &str| {
        Some(match name {
            "DEMO_HOST" => "127.0.0.1".to_owned(),
            "DEMO_PORT" => port.to_string(),
            "DEMO_USER" => "hosts-user".to_owned(),
            _ => "demo".to_owned(),
        })
    };
    let database = Database::from_env("demo".parse().unwrap(), "DEMO");
    let databases = DatabasePools::open(&[database], &Limits::default(), variable, &vault, &aside).await.unwrap();
    (Arc::new(channels), Arc::new(databases))
}

/// No Secret at all.
struct Empty;

#[async_trait]
impl Vault for Empty {
    async fn read(&self, reference: &Reference) -> Result<Vec<u8>, String> {
        Err(reference.to_string())
    }
}

impl Server {
    pub async fn start() -> Self {
        let (canned, writes) = Canned::start(&[CONFIG, SECRET]).unwrap();
        canned.put(&CONFIG, NAMESPACE, "thing", json!({"data": {"a": "1"}}));
        for (namespace, value) in [(NAMESPACE, "of-the-plugin"), (BESIDE_THE_HOST, "of-the-host")] {
            canned.put(&SECRET, namespace, "own", json!({"data": {"a": value}}));
        }
        let refused = |code: u16, reason: &str, message: &str, details: Value| {
            json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message, "details": details}).to_string()
        };
        let conflict = json!({"causes": [{"reason": "FieldManagerConflict", "field": ".data.a",
            "message": "conflict with \"operetta:neighbour/main\" using v1"}]});
        let no = |user: &str, verb: &str| {
            format!(
                "configmaps is forbidden: User \"{user}\" cannot {verb} resource \"configmaps\" in API group \"\" in the namespace \"default\""
            )
        };
        let hosts_no = no("system:serviceaccount:operetta-system:hosts-account", "impersonate-on:serviceaccount:get");
        for (name, code, answer) in [
            ("owned", 409, refused(409, "Conflict", "Apply failed with 1 conflict", conflict)),
            ("impersonated", 403, refused(403, "Forbidden", &hosts_no, json!({}))),
            ("refused", 403, refused(403, "Forbidden", &no(&account().account.user(), "get"), json!({}))),
        ] {
            canned.lie(&CONFIG, NAMESPACE, name, code, &answer);
        }
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
            canned.lie(&CONFIG, NAMESPACE, name, 200, &answer);
        }
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = Some(canned.kubeconfig(folder.path()).unwrap());
        let client = client::connect(&Target { kubeconfig, ..Target::default() }).await.unwrap();
        let port = Cluster::new(client.clone(), Arc::new(Impersonation::new(client)), Arc::default())
            .kubernetes(account(), Scope::All);
        let (channels, databases) = services().await;
        Self { port, channels, databases, writes, _canned: canned }
    }

    /// What a plugin calls.
    pub fn channels(&self) -> Arc<dyn Channels> {
        self.channels.clone()
    }

    /// What it queries.
    pub fn databases(&self) -> Arc<dyn Databases> {
        self.databases.clone()
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
