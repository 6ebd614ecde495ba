//! What all tests of this program share: the cluster, the built programs and components. And what each has of its own: a namespace and a host.

use std::{path::Path, sync::OnceLock, time::Duration};

use anyhow::Context;
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{Namespace, ServiceAccount},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    config::KubeConfigOptions,
};
use operetta_tests::{
    components::{Built, Workspace},
    control_plane::{
        Cluster,
        audit::{Filter, Position, Request},
        run_dir::RunDir,
    },
    eventually,
    host::{self, Document, Host, Launch, Log},
    progress::Progress,
};
use serde_json::{Value, json};

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

/// A control plane takes 600 MB: beside the shared one there is one more at a time.
pub static ONE_MORE_CONTROL_PLANE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Programs, plugins and fixtures, built on first use.
pub fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let workspace = Workspace::locate().expect("a workspace");
        workspace.build(&Progress::stderr()).expect("programs and components")
    })
}

/// Where the hosts and stores of this program live. The next start of a control plane removes it, and whoever it finds on record.
pub fn run() -> &'static RunDir {
    static RUN: OnceLock<RunDir> = OnceLock::new();
    RUN.get_or_init(|| RunDir::create().expect("a directory for this run"))
}

/// CRDs, accounts and rights of all components, installed on first use.
pub fn installed() -> &'static Built {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        host::install(built(), shared().kubeconfig(), &built().installable()).expect("everything is installed");
    });
    built()
}

/// A host as a person starts it, with the rights of the kubeconfig.
pub fn launch() -> Launch {
    Launch::new(installed(), shared().kubeconfig())
}

/// A host that works in this namespace only, with an empty plugin directory.
pub async fn host(namespace: &TestNamespace) -> Host {
    launch().namespace(namespace.name()).start(run()).await.unwrap()
}

/// Puts a component into the host under its own name and waits until it runs.
pub async fn plug(host: &Host, name: &str, edit: impl FnOnce(Document) -> Document) {
    let component = installed().component(name).unwrap();
    let document = edit(Document::of(component).unwrap());
    host.plugins().put(name, &component.code().unwrap(), &document).unwrap();
    host.says(name, "plugin ready", Log::start(), SOON).await.unwrap();
}

/// What a plugin asked the API server for in a namespace.
pub fn requests_of(plugin: &str, namespace: &TestNamespace) -> Filter {
    Filter::all().impersonated(&format!("system:serviceaccount:operetta-plugins:{plugin}")).namespace(namespace.name())
}

/// The writes of a plugin in a namespace since a position; none can be told on a user's cluster.
pub async fn writes_since(position: Option<Position>, plugin: &str, namespace: &TestNamespace) -> Vec<Request> {
    let (Some(position), Some(audit)) = (position, shared().audit_log()) else { return Vec::new() };
    audit.settle(&namespace.client()).await.unwrap();
    audit.requests(&requests_of(plugin, namespace).writes().after(position)).unwrap()
}

/// Where the audit log stands now, where there is one.
pub async fn position(namespace: &TestNamespace) -> Option<Position> {
    match shared().audit_log() {
        Some(audit) => Some(audit.settle(&namespace.client()).await.unwrap()),
        None => None,
    }
}

/// How many reconciles of the plugin have ended.
pub async fn reconciles(host: &Host, plugin: &str) -> f64 {
    host.metrics().await.unwrap().reconciles(plugin)
}

/// Waits until so many more have ended than there were `before` something was done about it.
pub async fn reconciled(host: &Host, plugin: &str, before: f64, more: f64) {
    eventually("the plugin reconciles", SOON, async || {
        let now = host.metrics().await?.reconciles(plugin);
        anyhow::ensure!(now >= before + more, "{} of {more} reconciles", now - before);
        Ok(())
    })
    .await
    .unwrap();
}

/// Waits until no reconcile of the plugin has ended for a while, and none waits.
pub async fn settled(host: &Host, plugin: &str) {
    let mut last = -1.0;
    eventually("the plugin has nothing to do", SOON, async || {
        let metrics = host.metrics().await?;
        let (now, before) = (metrics.reconciles(plugin), last);
        last = now;
        let waiting = metrics.sum("workqueue_depth", &[("plugin", plugin)]);
        let active = metrics.sum("controller_runtime_active_workers", &[("plugin", plugin)]);
        #[allow(clippy::float_cmp, reason = "counters are whole numbers")]
        let same = now == before;
        anyhow::ensure!(same && waiting + active == 0.0, "{now} after {before}, {waiting} wait, {active} run");
        Ok(())
    })
    .await
    .unwrap();
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

/// Where plugins' accounts are.
pub const ACCOUNTS: &str = "operetta-plugins";

/// Makes the account that a plugin acts as unless told otherwise, which names it, with the rights of an installed component.
pub async fn account_of(client: &Client, plugin: &str, component: &str) {
    let params = PatchParams::apply("test").force();
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": plugin, "annotations": {"operetta.dev/plugin": plugin}},
    });
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), ACCOUNTS);
    accounts.patch(plugin, &params, &Patch::Apply(account)).await.unwrap();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": plugin},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": format!("operetta:{component}")},
        "subjects": [{"kind": "ServiceAccount", "name": plugin, "namespace": ACCOUNTS}],
    });
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    bindings.patch(plugin, &params, &Patch::Apply(binding)).await.unwrap();
}

/// A kubeconfig by which a service account of the namespace is a person: with a token of its own.
pub async fn kubeconfig_of(namespace: &TestNamespace, account: &str) -> Value {
    let accounts = namespace.api::<ServiceAccount>();
    let token = accounts.create_token_request(account, &PostParams::default(), &TokenRequest::default()).await.unwrap();
    let text = std::fs::read_to_string(shared().kubeconfig()).unwrap();
    let mut config: Value = serde_saphyr::from_str(&text).unwrap();
    config["users"][0]["user"] = json!({"token": token.status.unwrap().token});
    config
}

/// A client as it.
pub async fn client_of(namespace: &TestNamespace, account: &str) -> Client {
    let kubeconfig = serde_json::from_value(kubeconfig_of(namespace, account).await).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    operetta_cluster::client::build(config).unwrap()
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
