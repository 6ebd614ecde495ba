//! The real host as a child process: free ports, directories of its own, its log as data.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use crate::{child::Child, components::Built, control_plane::run_dir::RunDir, eventually};

pub mod log;
pub mod metrics;
pub mod plugin_dir;
pub mod pod;

pub use log::{Line, Log, Mark};
pub use metrics::Metrics;
pub use plugin_dir::{Document, PluginDir};
pub use pod::Pod;

/// A host listens in milliseconds; under the load of all tests at once on two cores it may wait for its turn.
const LISTENS_WITHIN: Duration = Duration::from_secs(30);
/// How long a host that was asked to end may finish its reconciles.
const ENDS_WITHIN: Duration = Duration::from_secs(40);

/// A label that nothing has.
const NO_PLUGIN: &str = "operetta.dev/none";

/// Counts the hosts of this process, for their names.
static STARTED: AtomicUsize = AtomicUsize::new(0);

/// How to start a host.
#[derive(Debug, Clone)]
pub struct Launch {
    program: PathBuf,
    kubeconfig: PathBuf,
    namespaces: Vec<String>,
    plugin_selector: Option<String>,
    host_namespace: Option<String>,
    compiled: Option<PathBuf>,
    log_level: String,
    metrics_address: String,
    environment: Vec<(String, String)>,
    arguments: Vec<String>,
    pod: Option<(PathBuf, SocketAddr)>,
}

impl Launch {
    /// The host of this build, against the cluster of a kubeconfig. What the build has compiled already is not compiled again.
    pub fn new(built: &Built, kubeconfig: &Path) -> Self {
        Self {
            program: built.host(),
            kubeconfig: kubeconfig.to_owned(),
            namespaces: Vec::new(),
            plugin_selector: Some(NO_PLUGIN.to_owned()),
            host_namespace: None,
            compiled: Some(built.state_dir().to_owned()),
            log_level: "info,operetta=debug,plugin=debug".to_owned(),
            metrics_address: "127.0.0.1:0".to_owned(),
            environment: Vec::new(),
            arguments: Vec::new(),
            pod: None,
        }
    }

    /// As in a pod: no kubeconfig, but a service account's credentials and an address in the environment.
    pub fn in_pod(mut self, pod: &Pod) -> Self {
        self.pod = Some((pod.mount().to_owned(), pod.api_server()));
        self
    }

    /// Works in this namespace only; asking again adds.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespaces.push(namespace.to_owned());
        self
    }

    /// Runs the Plugins of the cluster that have these labels, too; none unless told, since they belong to all hosts of a cluster alike.
    pub fn plugins(mut self, labels: &str) -> Self {
        self.plugin_selector = Some(labels.to_owned());
        self
    }

    /// Runs all Plugins of the cluster.
    pub fn all_plugins(mut self) -> Self {
        self.plugin_selector = None;
        self
    }

    /// Takes components from the ConfigMaps of this namespace.
    pub fn host_namespace(mut self, namespace: &str) -> Self {
        self.host_namespace = Some(namespace.to_owned());
        self
    }

    /// Gives it environment variables of its own.
    pub fn environment(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.environment.extend(variables);
        self
    }

    /// Gives it arguments besides those that every host of a test has.
    pub fn arguments<T: Into<String>>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Begins with an empty cache of compiled components.
    pub fn uncompiled(mut self) -> Self {
        self.compiled = None;
        self
    }

    /// Logs at this level or filter.
    pub fn log_level(mut self, filter: &str) -> Self {
        filter.clone_into(&mut self.log_level);
        self
    }

    /// Starts the host with an empty plugin directory and waits until it listens.
    pub async fn start(self, run: &RunDir) -> Result<Host> {
        let name = format!("host-{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let home = run.directory(&name)?;
        let plugins = PluginDir::create(&home.join("plugins"))?;
        let state = home.join("state");
        if let Some(compiled) = &self.compiled {
            copy_compiled(compiled, &state)?;
        }
        let log = Log::new(&home.join("log"));
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut host = Host { launch: self, name, home, plugins, log, child: None, metrics: nowhere, probes: nowhere };
        host.begin(run).await?;
        Ok(host)
    }

    fn command(&self, plugins: &Path, state: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("run");
        match &self.pod {
            None => command.arg("--kubeconfig").arg(&self.kubeconfig),
            Some((mount, address)) => command
                .arg("--service-account-dir")
                .arg(mount)
                .env("KUBERNETES_SERVICE_HOST", address.ip().to_string())
                .env("KUBERNETES_SERVICE_PORT", address.port().to_string()),
        };
        command.arg("--plugin-dir").arg(plugins).arg("--state-dir").arg(state);
        command.args(["--health-probe-bind-address", "127.0.0.1:0", "--log-format", "json"]);
        command.args(["--metrics-bind-address", &self.metrics_address, "--log-level", &self.log_level]);
        command.args(self.plugin_selector.iter().flat_map(|labels| ["--plugin-selector", labels]));
        command.args(self.host_namespace.iter().flat_map(|namespace| ["--host-namespace", namespace]));
        command.args(self.namespaces.iter().flat_map(|namespace| ["--namespace", namespace]));
        command.args(&self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// What the build compiled, for a host's own use. Copied, since a test may tamper with it.
fn copy_compiled(from: &Path, to: &Path) -> Result<()> {
    let copy = |name: &Path| {
        fs::copy(from.join(name), to.join(name)).with_context(|| format!("copy {}", from.join(name).display()))
    };
    fs::create_dir_all(to.join("compiled")).with_context(|| format!("create {}", to.display()))?;
    copy(Path::new("compiled.key"))?;
    for entry in fs::read_dir(from.join("compiled")).with_context(|| format!("read {}", from.display()))? {
        let name = entry.context("read the compiled components")?.file_name();
        // A draft of somebody who compiles right now.
        if !name.to_string_lossy().starts_with('.') {
            copy(&Path::new("compiled").join(name))?;
        }
    }
    Ok(())
}

/// A host at work. It ends with this value.
#[derive(Debug)]
pub struct Host {
    launch: Launch,
    name: String,
    home: PathBuf,
    plugins: PluginDir,
    log: Log,
    child: Option<Child>,
    metrics: SocketAddr,
    probes: SocketAddr,
}

impl Host {
    /// Its plugin directory.
    pub fn plugins(&self) -> &PluginDir {
        &self.plugins
    }

    /// Its log, over all its restarts.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Where it keeps compiled components and last good versions.
    pub fn state_dir(&self) -> PathBuf {
        self.home.join("state")
    }

    /// Where its metrics are.
    pub fn metrics_url(&self) -> String {
        format!("http://{}/metrics", self.metrics)
    }

    /// Its process id.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.child.as_ref().context("the host does not run")?.pid())
    }

    /// CPU time that it has used since its last start.
    pub fn cpu(&self) -> Result<Duration> {
        self.child.as_ref().context("the host does not run")?.cpu()
    }

    /// Bytes of memory that it holds.
    pub fn memory(&self) -> Result<u64> {
        self.child.as_ref().context("the host does not run")?.memory()
    }

    /// Starts it again, with the same directories and what lies there.
    pub async fn begin(&mut self, run: &RunDir) -> Result<()> {
        ensure!(self.child.is_none(), "{} runs already", self.name);
        let mark = self.log.mark();
        let mut command = self.launch.command(self.plugins.path(), &self.state_dir());
        let mut child = Child::start(run, &self.name, self.log.path(), &mut command)?;
        let log = self.log.clone();
        let serving = eventually("the host listens", LISTENS_WITHIN, async || {
            let line = log.after(mark)?.into_iter().find(|line| line.message() == "serving");
            match line {
                Some(line) => Ok(Ok(line)),
                // One that has ended will not listen however long one waits.
                None => match child.ensure_runs() {
                    Ok(()) => anyhow::bail!("no line says so"),
                    Err(ended) => Ok(Err(ended)),
                },
            }
        })
        .await??;
        let address = |field: &str| serving.text(field).parse().with_context(|| format!("read the address of {field}"));
        (self.metrics, self.probes) = (address("metrics")?, address("probes")?);
        self.child = Some(child);
        Ok(())
    }

    /// Waits until every plugin that lay in the directory at the start runs, or has said why not.
    pub async fn ready(&self, within: Duration) -> Result<()> {
        eventually("the host is ready", within, async || metrics::get(self.probes, "/readyz").await.map(drop)).await
    }

    /// Waits until the log says `message` about the plugin, after `mark`.
    pub async fn says(&self, plugin: &str, message: &str, mark: Mark, within: Duration) -> Result<Line> {
        let found = |line: &Line| line.message() == message && line.plugin() == plugin;
        self.log.until(&format!("{message:?} about {plugin}"), mark, within, found).await
    }

    /// Asks it to end and waits for that.
    pub async fn stop(&mut self) -> Result<ExitStatus> {
        let mut child = self.child.take().context("the host does not run")?;
        child.stop(ENDS_WITHIN).await
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        let mut child = self.child.take().context("the host does not run")?;
        child.ended(ENDS_WITHIN).await
    }

    /// What it says of its readiness, once it is ready.
    pub async fn readiness(&self) -> Result<String> {
        metrics::get(self.probes, "/readyz").await
    }

    /// Ends it without warning, as a crash would.
    pub fn kill(&mut self) -> Result<()> {
        self.child.take().context("the host does not run")?.kill()
    }

    /// An error if it has ended by itself.
    pub fn ensure_runs(&mut self) -> Result<()> {
        self.child.as_mut().context("the host does not run")?.ensure_runs()
    }

    /// Its metrics as they are now.
    pub async fn metrics(&self) -> Result<Metrics> {
        metrics::get(self.metrics, "/metrics").await.map(Metrics::parse)
    }
}

/// `operetta install`: CRDs, service accounts and rights of these components, with the rights of the kubeconfig.
pub fn install(built: &Built, kubeconfig: &Path, components: &[&Path]) -> Result<String> {
    let mut command = Command::new(built.host());
    command.arg("install").arg("--kubeconfig").arg(kubeconfig).arg("--state-dir").arg(built.state_dir());
    let output = command.args(components).output().context("run `operetta install`")?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "`operetta install` failed ({}):\n{out}{err}", output.status);
    Ok(out.into_owned())
}
