//! What the story happens on: a cluster with a namespace, a pet store, a database, and a host that runs the plugins. Set up in one place, cleared away in one place.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::{
        core::v1::{Namespace, ServiceAccount},
        rbac::v1::{ClusterRole, ClusterRoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    components::{Built, PLUGINS},
    control_plane::{Cluster, run_dir::RunDir},
    eventually,
    host::{self, Document, Host, Launch, Line, Mark},
    kinds::Objects,
    petstore::PetStore,
    postgres::Postgres,
    progress::Progress,
};

use super::{tell::Teller, typed};

/// Where the story's objects live.
const NAMESPACE: &str = "operetta-demo";
/// What a plugin, a controller or a simulated node may take, with room for a busy machine.
pub const SOON: Duration = Duration::from_mins(1);
/// The label that an installation leaves on what it makes for a plugin, and the namespace that it makes for all.
const INSTALLED: &str = "operetta.dev/plugin";
const ACCOUNTS: &str = "operetta-plugins";

/// Everything that runs.
pub struct Stage {
    /// For the namespace of the story.
    pub client: Client,
    /// The store of the story.
    pub store: PetStore,
    /// The database of the story.
    pub postgres: Postgres,
    /// The host of the story.
    pub host: Host,
    built: Built,
    root: PathBuf,
    kubeconfig: PathBuf,
    /// What the cluster held before us, where it is a user's.
    before: Option<Vec<String>>,
    run: RunDir,
    cluster: Cluster,
}

impl Stage {
    /// Starts store, database and host, installs the plugins and waits until they run.
    pub async fn set_up(cluster: Cluster, built: Built, root: &Path, progress: &Progress) -> Result<Self> {
        let run = RunDir::create()?;
        let client = cluster.client().await?;
        let kubeconfig = with_namespace(&cluster, &run)?;
        let step = progress.step("pet store");
        let store = PetStore::start(&run, &built).await?;
        step.done(&format!("listens on {}", store.address()));

        let step = progress.step("database");
        let postgres = Postgres::start(&run).await?;
        step.done("accepts connections");

        let mut step = progress.step("operators");
        let before = match &cluster {
            Cluster::Own(_) => None,
            Cluster::Users(_) => Some(installed(&client).await?),
        };
        let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        let made = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await;
        made.with_context(|| format!("make the namespace {NAMESPACE}; if an earlier demo left it, delete it"))?;
        step.say("operetta install");
        let plugins = PLUGINS.iter().map(|name| built.component(name)).collect::<Result<Vec<_>>>()?;
        let files: Vec<_> = plugins.iter().map(|component| component.wasm.as_path()).collect();
        host::install(&built, cluster.kubeconfig(), &files)?;
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE);
        eventually("pods can be made", SOON, async || accounts.get("default").await.context("no account yet")).await?;
        step.say("operetta run");
        let host = Launch::new(&built, cluster.kubeconfig()).namespace(NAMESPACE).all_plugins();
        let host = host.environment(postgres.environment()).start(&run).await?;
        for component in &plugins {
            let document = Document::of(component)?.endpoint("petstore", &store.endpoint());
            host.plugins().put(component.name, &component.code()?, &document)?;
        }
        for component in &plugins {
            host.says(component.name, "plugin ready", host::Log::start(), SOON).await?;
        }
        step.done(&format!("{} run", PLUGINS.join(", ")));
        Ok(Self { client, store, postgres, host, built, root: root.to_owned(), kubeconfig, before, run, cluster })
    }

    /// Where the story's objects live.
    #[expect(clippy::unused_self, reason = "where the story plays is the stage's affair")]
    pub fn namespace(&self) -> &'static str {
        NAMESPACE
    }

    /// Everything that was built.
    pub fn built(&self) -> &Built {
        &self.built
    }

    /// The rights of the person at the keyboard.
    pub fn kubeconfig(&self) -> &Path {
        self.cluster.kubeconfig()
    }

    /// The objects of a file of the workspace.
    pub fn read(&self, file: &str) -> Result<Vec<Value>> {
        let path = self.root.join(file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let documents = text.split("\n---").map(|part| part.trim_start_matches('-'));
        let objects = documents.map(|part| serde_saphyr::from_str(part).context("understand a sample"));
        objects.collect()
    }

    /// Applies the one object of a sample, and returns its name and spec.
    pub async fn apply(&self, tell: &Teller, objects: &Objects, sample: &str) -> Result<(String, Value)> {
        tell.types(&self.kubectl(&format!("apply -f {sample}")));
        let sample = self.read(sample)?.into_iter().next().context("a sample holds an object")?;
        let name = sample.pointer("/metadata/name").and_then(Value::as_str).context("a sample has a name")?.to_owned();
        let spec = sample.get("spec").cloned().context("a sample has a spec")?;
        objects.apply(&name, &spec).await?;
        Ok((name, spec))
    }

    /// Whether the cluster is the demo's own, to do with as it likes.
    pub fn is_ours(&self) -> bool {
        matches!(self.cluster, Cluster::Own(_))
    }

    /// A path as one types it.
    pub fn typed(&self, path: &Path) -> String {
        typed(path, &self.root)
    }

    /// The line of kubectl for this.
    pub fn kubectl(&self, rest: &str) -> String {
        match &self.cluster {
            Cluster::Own(_) => format!("kubectl {rest}"),
            Cluster::Users(_) => format!("kubectl -n {NAMESPACE} {rest}"),
        }
    }

    /// The first line of the log about a plugin that fits, after `mark`.
    pub async fn logged(&self, what: &str, mark: Mark, fits: impl Fn(&Line) -> bool) -> Result<Line> {
        self.host.log().until(what, mark, SOON, fits).await
    }

    /// CPU time, memory and reconciles of the host so far.
    pub async fn cost(&self) -> Result<(Duration, u64, f64)> {
        let metrics = self.host.metrics().await?;
        Ok((self.host.cpu()?, self.host.memory()?, metrics.sum("controller_runtime_reconcile_total", &[])))
    }

    /// What to put into a second terminal first.
    pub fn environment(&self) -> Vec<String> {
        let mut lines =
            vec![format!("cd {}", self.root.display()), format!("export KUBECONFIG={}", self.kubeconfig.display())];
        if let Cluster::Own(supervised) = &self.cluster {
            lines.push(format!("alias kubectl={}", supervised.access().kubectl.display()));
        }
        lines.push(format!("export PLUGINS={}", self.host.plugins().path().display()));
        let libpq = self.postgres.libpq().map(|(name, value)| format!("{name}='{value}'"));
        lines.push(format!("export {}", libpq.join(" ")));
        lines.push(format!("alias psql={}", self.postgres.programs().join("psql").display()));
        lines
    }

    /// What to try.
    pub fn suggestions(&self) -> Vec<(&'static str, Vec<String>)> {
        let component = |name: &str| self.built.component(name).map(|c| self.typed(&c.wasm)).unwrap_or_default();
        vec![
            (
                "all that the story left",
                vec![self.kubectl("get pets,immortalcontainers,memcacheds,demovolumes,pvc,deployments,pods")],
            ),
            (
                "pets, and what the store says",
                vec![
                    self.kubectl("apply -f config/samples/petstore_v1alpha1_pet.yaml"),
                    self.kubectl("get pets --watch"),
                    format!("grpcurl -plaintext {} petstore.v1.PetStore/SearchPets", self.store.address()),
                ],
            ),
            (
                "pods that come back, replicas that go back",
                vec![
                    self.kubectl("delete pod phoenix-immortalpod"),
                    self.kubectl("scale deployment memcached-sample --replicas=5"),
                ],
            ),
            (
                "a row that follows its object",
                vec![
                    self.kubectl("apply -f config/samples/demo_v1_postgreswriter.yaml"),
                    "psql -c 'TABLE students'".to_owned(),
                ],
            ),
            (
                "the version of before, live; and one plugin less",
                vec![
                    format!("cp {} $PLUGINS/memcached.wasm", component("memcached")),
                    "rm $PLUGINS/memcached.*".to_owned(),
                ],
            ),
            (
                "what the host says and counts",
                vec![
                    format!("tail -f {}", self.host.log().path().display()),
                    format!("curl -s {} | grep -v '^#'", self.host.metrics_url()),
                ],
            ),
        ]
    }

    /// Waits until something that should run has ended.
    pub async fn broken(&mut self) -> anyhow::Error {
        loop {
            if let Err(error) = self.host.ensure_runs() {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Stops and removes everything. On a user's cluster also what the story made there.
    pub async fn clear(mut self) -> Result<()> {
        if let Some(before) = &self.before {
            // The host first lets go of what its plugins hold.
            remove_namespace(&self.client, NAMESPACE).await?;
            uninstall(&self.client, before).await?;
        }
        let stopped = self.host.stop().await;
        drop(self.host);
        drop(self.store);
        drop(self.postgres);
        self.run.remove()?;
        drop(self.cluster);
        let status = stopped?;
        ensure!(status.success(), "the host ended badly: {status}");
        Ok(())
    }
}

/// A kubeconfig whose lines of kubectl need no `-n`. A user's own is left as it is: it may name files beside it.
fn with_namespace(cluster: &Cluster, run: &RunDir) -> Result<PathBuf> {
    let Cluster::Own(_) = cluster else { return Ok(cluster.kubeconfig().to_owned()) };
    let text = std::fs::read_to_string(cluster.kubeconfig()).context("read the kubeconfig")?;
    let mut config: Value = serde_json::from_str(&text).context("understand the kubeconfig")?;
    if let Some(context) = config.pointer_mut("/contexts/0/context").and_then(Value::as_object_mut) {
        context.insert("namespace".to_owned(), json!(NAMESPACE));
    }
    let path = run.path().join("kubeconfig");
    std::fs::write(&path, config.to_string()).context("write a kubeconfig")?;
    Ok(path)
}

/// Names of everything that installations have left in the cluster.
async fn installed(client: &Client) -> Result<Vec<String>> {
    let all = ListParams::default().labels(INSTALLED);
    let crds = Api::<CustomResourceDefinition>::all(client.clone()).list(&all).await?;
    let roles = Api::<ClusterRole>::all(client.clone()).list(&all).await?;
    let bindings = Api::<ClusterRoleBinding>::all(client.clone()).list(&all).await?;
    let accounts = Api::<Namespace>::all(client.clone()).get_opt(ACCOUNTS).await?;
    let mut names: Vec<_> = crds.iter().map(|crd| format!("crd {}", crd.name_any())).collect();
    names.extend(roles.iter().map(|role| format!("role {}", role.name_any())));
    names.extend(bindings.iter().map(|binding| format!("binding {}", binding.name_any())));
    names.extend(accounts.map(|_| format!("namespace {ACCOUNTS}")));
    Ok(names)
}

/// Removes what installations have left and what was not there before.
async fn uninstall(client: &Client, before: &[String]) -> Result<()> {
    let background = DeleteParams::background();
    for name in installed(client).await?.iter().filter(|name| !before.contains(name)) {
        match name.split_once(' ') {
            Some(("crd", name)) => {
                Api::<CustomResourceDefinition>::all(client.clone()).delete(name, &background).await?;
            }
            Some(("role", name)) => {
                Api::<ClusterRole>::all(client.clone()).delete(name, &background).await?;
            }
            Some(("binding", name)) => {
                Api::<ClusterRoleBinding>::all(client.clone()).delete(name, &background).await?;
            }
            Some((_, name)) => remove_namespace(client, name).await?,
            None => {}
        }
    }
    Ok(())
}

async fn remove_namespace(client: &Client, name: &str) -> Result<()> {
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.delete(name, &DeleteParams::background()).await.with_context(|| format!("delete namespace {name}"))?;
    eventually(&format!("the namespace {name} is gone"), SOON * 2, async || {
        ensure!(namespaces.get_opt(name).await?.is_none(), "it is still there");
        Ok(())
    })
    .await
}
