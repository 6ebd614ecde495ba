//! Where the story plays: the cluster, the host with its plugin directory, the pet store, and a namespace.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

use super::voice::{command, ok, say, title};
use crate::{
    components::Built,
    control_plane::{Cluster, run_dir::RunDir},
    eventually,
    host::{self, Document, Host, Launch, Log},
    kinds,
    petstore::PetStore,
    progress::Progress,
};

/// How long anything in the story may take: a roll-out on a machine that is busy otherwise.
pub const SOON: Duration = Duration::from_mins(1);
/// Where the story plays.
pub const NAMESPACE: &str = "operetta-demo";
/// The plugins of the story, as they come on.
const CAST: [&str; 3] = ["petstore", "immortal-container", "memcached"];

/// Everything that the story needs. The children come before what they need, since they are dropped in this order.
pub struct Stage {
    /// The host.
    pub host: Host,
    /// The pet store.
    pub store: PetStore,
    /// As the person at the keyboard.
    pub client: Client,
    /// What was built.
    pub built: Built,
    run: Option<RunDir>,
    cluster: Cluster,
}

impl Stage {
    /// Starts everything, and waits until all three plugins run.
    pub async fn set(built: Built, progress: &Progress) -> Result<Self> {
        let program = built.program("control-plane");
        let cluster = tokio::task::spawn_blocking(move || Cluster::open(&program)).await.context("start the cluster")??;
        let step = progress.step("stage");
        let client = cluster.client().await?;
        let run = RunDir::create()?;
        step.done("ready");
        make_namespace(&client).await?;

        title("Installing three operators, with your own rights");
        install(&built, &cluster, &CAST)?;

        title("Running them in one host");
        let store = PetStore::start(&run, &built).await?;
        // As a person would see it.
        let launch = Launch::new(&built, cluster.kubeconfig()).namespace(NAMESPACE).log_level("info");
        let host = launch.start(&run).await?;
        command(&format!("operetta run --plugin-dir {} --namespace {NAMESPACE}", host.plugins().path().display()));
        let stage = Self { host, store, client, built, run: Some(run), cluster };
        for name in CAST {
            let started = std::time::Instant::now();
            command(&format!("cp {name}.wasm {name}.yaml {}/", stage.host.plugins().path().display()));
            stage.plug(name, |document| document.endpoint("petstore", &stage.store.endpoint())).await?;
            ok(&format!("{name} runs"), started.elapsed());
        }
        Ok(stage)
    }

    /// Installs what one more component needs in the cluster.
    pub fn install(&self, name: &str) -> Result<()> {
        install(&self.built, &self.cluster, &[name])
    }

    /// Puts a component into the plugin directory and waits until it runs.
    pub async fn plug(&self, name: &str, edit: impl FnOnce(Document) -> Document) -> Result<()> {
        let component = self.built.component(name)?;
        self.host.plugins().put(name, &component.code()?, &edit(Document::of(component)?))?;
        self.host.says(name, "plugin ready", Log::start(), SOON).await?;
        Ok(())
    }

    /// Leaves something to look at, and says where to look.
    pub async fn epilogue(&self, failed: usize) -> Result<()> {
        kinds::pets(&self.client, NAMESPACE).apply("thor", &kinds::pet("Thor", "dog")).await?;
        kinds::pets(&self.client, NAMESPACE).apply("tron", &kinds::pet("Tron", "cat")).await?;
        title(if failed == 0 { "The whole story came true. Now you" } else { "Not all of the story came true. Look around" });
        let kubectl = match &self.cluster {
            Cluster::Own(own) => own.access().kubectl.display().to_string(),
            Cluster::Users(_) => "kubectl".to_owned(),
        };
        let plugins = self.host.plugins().path().display();
        say(&format!(
            "  export KUBECONFIG={}\n  alias kubectl=\"{kubectl} -n {NAMESPACE}\"\n",
            self.cluster.kubeconfig().display()
        ));
        for line in [
            "kubectl get pets,memcacheds,immortalcontainers,deployments,pods".to_owned(),
            "kubectl patch pet thor --type merge -p '{\"spec\":{\"name\":\"Thorbert\"}}'".to_owned(),
            "kubectl scale deployment cache --replicas 5 && kubectl get deployment cache --watch".to_owned(),
            "kubectl delete pod phoenix-immortalpod --wait=false && kubectl get pods --watch".to_owned(),
            format!("cp {} {plugins}/memcached.wasm", self.built.component("memcached")?.wasm.display()),
            format!("rm {plugins}/petstore.*"),
            format!("curl -s {}", self.host.metrics_url()),
            format!("tail -f {}", self.host.log().path().display()),
        ] {
            say(&format!("  {line}"));
        }
        say("\nCtrl-C stops everything.");
        Ok(())
    }

    /// Leaves nothing behind: ends the host and the store, and removes the namespace where the cluster goes on without us.
    pub async fn clear(mut self) -> Result<()> {
        if matches!(self.cluster, Cluster::Users(_)) {
            for (objects, names) in [
                (kinds::pets(&self.client, NAMESPACE), &["thor", "tron"][..]),
                (kinds::memcacheds(&self.client, NAMESPACE), &["cache"]),
                (kinds::immortals(&self.client, NAMESPACE), &["phoenix"]),
            ] {
                // Finalizers hold the objects as long as their plugins have work to do.
                for name in names {
                    let _ = objects.remove(name).await;
                    eventually("the object goes", SOON, async || {
                        anyhow::ensure!(objects.get_opt(name).await?.is_none(), "{name} is still there");
                        Ok(())
                    })
                    .await?;
                }
            }
            let namespaces = Api::<Namespace>::all(self.client.clone());
            namespaces.delete(NAMESPACE, &DeleteParams::background()).await.context("delete the namespace")?;
        }
        self.host.stop().await?;
        self.store.kill()?;
        self.run.take().map_or(Ok(()), RunDir::remove)
    }
}

fn install(built: &Built, cluster: &Cluster, names: &[&str]) -> Result<()> {
    let files: Vec<_> = names.iter().map(|name| format!("{name}.wasm")).collect();
    command(&format!("operetta install {}", files.join(" ")));
    let components: Result<Vec<_>> = names.iter().map(|name| Ok(built.component(name)?.wasm.as_path())).collect();
    let started = std::time::Instant::now();
    let installed = host::install(built, cluster.kubeconfig(), &components?)?;
    ok(&format!("{} objects: CRDs, service accounts and their RBAC", installed.lines().count()), started.elapsed());
    Ok(())
}

async fn make_namespace(client: &Client) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let namespaces = Api::<Namespace>::all(client.clone());
    let params = PatchParams::apply(kinds::MANAGER).force();
    namespaces.patch(NAMESPACE, &params, &Patch::Apply(namespace)).await.context("make the namespace")?;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE);
    eventually("the namespace has its service account", SOON, async || {
        accounts.get("default").await.context("get the service account").map(drop)
    })
    .await
}
