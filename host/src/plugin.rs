//! The life of one plugin: what lies in the directory under its name is made to run, and to run on whatever follows.
//!
//! **An exchange is a transaction**: everything that can fail (reading the document, loading the code, grants, watches) comes before the switch, and until the switch
//! the version before runs on. After it nothing can fail. What comes before may be given up at any point, as for a newer file; the switch itself never waits.

mod claims;
pub(crate) mod needs;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use operetta_api::{Plugin as Document, PluginSpec};
use operetta_core::{
    backoff::Backoff,
    cache::{Informers, Scope},
    effect::{Policy, Ports},
    manifest::Manifest,
    name::{ControllerName, Digest, PluginName, ServiceAccount},
    port::{ApiError, Kubernetes, Level, Log},
    reconcile::Reconciler,
    share::Places,
};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::claims::Claims;
use self::claims::{Claim, kind_of};
use crate::{
    channels::GrpcChannels,
    controller::{Controller, Shared, Version, Watches},
    credentials::Vault,
    databases::DatabasePools,
    directory::Entry,
    telemetry::{Metrics, PluginMetrics},
};

/// A component, loaded.
#[derive(Clone)]
pub struct Code {
    /// Of its bytes.
    pub digest: Digest,
    /// What it says of itself.
    pub manifest: Arc<Manifest>,
    /// It, ready to run.
    pub reconciler: Arc<dyn Reconciler>,
}

/// A step on the way to a running plugin; the same words stand in errors, logs and docs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Finding both files and reading the document.
    Fetch,
    /// Checking the component without running it.
    Verify,
    /// Making machine code of it.
    Compile,
    /// Asking it for its manifest.
    Describe,
    /// Comparing what it needs with what it was granted.
    Grant,
    /// Starting its watches.
    Start,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fetch => "fetch",
            Self::Verify => "verify",
            Self::Compile => "compile",
            Self::Describe => "describe",
            Self::Grant => "grant",
            Self::Start => "start",
        })
    }
}

/// Why a plugin does not run as it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// In which step.
    pub phase: Phase,
    /// What is wrong and what to do.
    pub message: String,
    /// Whether the same files may work later, so that trying again makes sense.
    pub passing: bool,
}

impl Problem {
    /// It stays until a file changes.
    pub fn lasting(phase: Phase, message: &impl ToString) -> Self {
        Self { phase, message: message.to_string(), passing: false }
    }

    /// It may pass by itself.
    pub fn passing(phase: Phase, message: &impl ToString) -> Self {
        Self { phase, message: message.to_string(), passing: true }
    }
}

/// Makes code of bytes.
#[async_trait]
pub trait Loader: Send + Sync {
    /// Verifies, compiles and describes.
    async fn load(&self, wasm: Bytes) -> Result<Code, Problem>;
}

/// Gives a plugin its port to the API server.
#[async_trait]
pub trait Identities: Send + Sync {
    /// The API server as this account.
    async fn port(
        &self,
        plugin: &PluginName,
        account: &ServiceAccount,
        scope: &Scope,
    ) -> Result<Arc<dyn Kubernetes>, ApiError>;
}

/// What all plugins of a host share.
pub struct Host {
    /// Makes code of bytes.
    pub loader: Arc<dyn Loader>,
    /// Ports to the API server.
    pub identities: Arc<dyn Identities>,
    /// The shared watches.
    pub informers: Arc<dyn Informers>,
    /// Which plugin may reconcile which kind.
    pub claims: Arc<Claims>,
    /// Where the host works at most.
    pub scope: Scope,
    /// In which reconciles run.
    pub places: Arc<Places>,
    /// Where the credentials of channels and databases are.
    pub vault: Arc<dyn Vault>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Controllers whose last reconciles are ending.
    pub leaving: TaskTracker,
    /// The last version of each plugin that ran.
    pub last_good: Arc<dyn LastGood>,
}

/// Remembers the last component of each plugin that ran, so that a broken file does not stop a plugin over a restart of the host. May take its time, as a file system does.
pub trait LastGood: Send + Sync {
    /// It ran.
    fn keep(&self, plugin: &PluginName, digest: &Digest, wasm: &[u8]);
    /// What ran last.
    fn recall(&self, plugin: &PluginName) -> Option<Bytes>;
    /// It was removed.
    fn forget(&self, plugin: &PluginName);
}

/// How a plugin fares.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// The version and digest that run.
    pub running: Option<(String, Digest)>,
    /// What is wrong with the files as they are now.
    pub problem: Option<String>,
    /// Whether it is known how the first files fare: the plugin runs with full caches, or does not and says why, or is gone again.
    pub settled: bool,
}

/// One plugin of the host, from the first sight of its files to the end of the host.
pub struct Plugin {
    host: Arc<Host>,
    name: PluginName,
    metrics: PluginMetrics,
    running: Option<Running>,
    status: watch::Sender<Status>,
    /// The last component that could not be loaded, so that it is not tried again while only its document changes.
    broken: Option<(Digest, Problem)>,
}

struct Running {
    code: Code,
    spec: PluginSpec,
    account: ServiceAccount,
    scope: Scope,
    shared: Arc<Shared>,
    controllers: HashMap<ControllerName, Controller>,
    claim: Claim,
    /// What is to be said when all caches are filled.
    arriving: Option<Arriving>,
}

struct Arriving {
    exchanged: bool,
    since: Instant,
}

/// What the files ask for.
enum Step {
    /// Nothing: all is as they say, or they cannot be used.
    Stay,
    /// This version, ready to run.
    Exchange(Box<Prepared>),
    /// No reconciles for now.
    Suspend,
    /// An end.
    Remove,
}

/// All that a version needs to run. Dropping it gives everything back.
struct Prepared {
    code: Code,
    spec: PluginSpec,
    account: ServiceAccount,
    scope: Scope,
    policy: Policy,
    ports: Ports,
    claim: Claim,
    watches: HashMap<ControllerName, Watches>,
    since: Instant,
}

impl Running {
    fn has_lost_watches(&self) -> bool {
        self.controllers.values().any(Controller::is_lost)
    }

    /// Waits until all caches are filled and that is still to be said.
    async fn arrived(running: Option<&Self>) {
        match running {
            Some(Self { controllers, arriving: Some(_), .. }) => {
                futures::future::join_all(controllers.values().map(Controller::synced)).await;
            }
            _ => std::future::pending().await,
        }
    }

    /// Waits until a watch is ended from outside, as when the account loses its right.
    async fn lost_watches(running: Option<&Self>) {
        match running {
            Some(running) if !running.controllers.is_empty() => {
                let lost = running.controllers.values().map(|controller| Box::pin(controller.lost()));
                futures::future::select_all(lost).await;
            }
            _ => std::future::pending().await,
        }
    }
}

impl Plugin {
    /// Nothing runs yet.
    pub fn new(host: Arc<Host>, name: PluginName, status: watch::Sender<Status>) -> Self {
        let metrics = host.metrics.plugin(&name);
        Self { host, name, metrics, running: None, status, broken: None }
    }

    /// Follows what the directory holds until the host stops; then lets the reconciles in flight end.
    pub async fn follow(mut self, mut entries: watch::Receiver<Entry>, stop: CancellationToken) {
        let retry = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30), jitter: 0.1 };
        let mut failures = 0;
        loop {
            let entry = entries.borrow_and_update().clone();
            let (next, problem) = tokio::select! {
                found = self.prepare(&entry) => found,
                // A newer file makes the work on this one pointless.
                changed = entries.changed() => {
                    failures = 0;
                    if changed.is_err() {
                        break;
                    }
                    continue;
                }
                () = stop.cancelled() => break,
            };
            let idle = self.take(next, &entry).await;
            failures = if problem.is_some() { failures + 1 } else { 0 };
            match &problem {
                Some(problem) => self.tell(problem, failures),
                None => self.status.send_modify(|status| status.problem = idle),
            }
            let lost = self.running.as_ref().is_some_and(Running::has_lost_watches);
            let again = (lost || problem.is_some_and(|problem| problem.passing))
                .then(|| retry.delay(failures.max(1), rand::random()));
            tokio::select! {
                () = self.wait(again) => {}
                changed = entries.changed() => {
                    failures = 0;
                    if changed.is_err() {
                        break;
                    }
                }
                () = stop.cancelled() => break,
            }
        }
        self.stop().await;
    }

    /// Waits until it is time to look at the same files again: after a problem that may pass, or when a watch is ended from outside. Cancel-safe.
    async fn wait(&mut self, again: Option<Duration>) {
        let timer = async {
            match again {
                Some(delay) => tokio::time::sleep(delay).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(timer);
        loop {
            let running = self.running.as_ref();
            tokio::select! {
                () = &mut timer => return,
                () = Running::arrived(running) => {}
                () = Running::lost_watches(running), if again.is_none() => return,
            }
            self.announce();
        }
    }

    /// Says that the plugin runs, now that its caches are filled.
    fn announce(&mut self) {
        let Some(running) = &mut self.running else { return };
        let Some(Arriving { exchanged, since }) = running.arriving.take() else { return };
        let (version, digest) = (&running.code.manifest.version, running.code.digest);
        let what = if exchanged { "plugin exchanged" } else { "plugin ready" };
        tracing::info!(plugin = %self.name, version, %digest, account = %running.account, took = ?since.elapsed(), "{what}");
        self.status.send_modify(|status| {
            status.running = Some((version.clone(), digest));
            status.settled = true;
        });
    }

    fn tell(&self, problem: &Problem, failures: u32) {
        self.metrics.load_failed();
        let text = format!("{}: {}", problem.phase, problem.message);
        let known = self.status.borrow().problem.as_ref() == Some(&text);
        if !known {
            let running = self
                .running
                .as_ref()
                .map(|r| format!("version {} ({}) runs on", r.code.manifest.version, r.code.digest.short()));
            tracing::error!(
                plugin = %self.name,
                phase = %problem.phase,
                error = problem.message,
                retry = problem.passing,
                "{}",
                running.unwrap_or_else(|| "the plugin does not run".into())
            );
        } else if failures.is_multiple_of(10) {
            tracing::warn!(plugin = %self.name, phase = %problem.phase, failures, "still the same problem");
        }
        self.status.send_modify(|status| {
            status.problem = Some(text);
            status.settled = true;
        });
    }

    /// Does everything that can fail or takes time, and changes nothing that runs. Cancel-safe.
    ///
    /// Where the component cannot be used, its document still holds for the code that runs already, so that a grant can be withdrawn whatever lies beside it; and where
    /// nothing runs yet, what ran before the host was restarted is better than nothing.
    async fn prepare(&mut self, entry: &Entry) -> (Step, Option<Problem>) {
        let since = Instant::now();
        let (wasm, yaml) = match entry {
            Entry::Present { wasm, yaml } => (wasm, yaml),
            Entry::Incomplete(why) => return (Step::Stay, Some(Problem::lasting(Phase::Fetch, &why))),
            Entry::Gone => return (Step::Remove, None),
        };
        let document = match operetta_api::parse(&self.name, yaml) {
            Ok(document) => document,
            Err(error) => {
                return (Step::Stay, Some(Problem::lasting(Phase::Fetch, &format!("{}.yaml: {error}", self.name))));
            }
        };
        if document.spec.suspend {
            return (Step::Suspend, None);
        }
        let problem = match self.code(wasm, &document).await {
            Ok(code) => match self.version(code, &document.spec, since).await {
                Ok(step) => return (step, None),
                Err(problem) => return (Step::Stay, Some(problem)),
            },
            Err(problem) => problem,
        };
        let Some(code) = self.older(wasm, &document).await else { return (Step::Stay, Some(problem)) };
        match self.version(code, &document.spec, since).await {
            Ok(step) => (step, Some(problem)),
            Err(other) => {
                let message =
                    format!("{}; and the version before it: {}: {}", problem.message, other.phase, other.message);
                (Step::Stay, Some(Problem { message, passing: problem.passing || other.passing, ..problem }))
            }
        }
    }

    /// The code of a component, loaded unless it runs already or is known to be broken.
    async fn code(&mut self, wasm: &Bytes, document: &Document) -> Result<Code, Problem> {
        let digest = Digest::of(wasm);
        if let Some(pinned) = document.spec.digest
            && pinned != digest
        {
            let text = format!(
                "{}.wasm is {digest} and the document pins {pinned}; correct spec.digest or the file",
                self.name
            );
            return Err(Problem::lasting(Phase::Verify, &text));
        }
        if let Some(running) = &self.running
            && running.code.digest == digest
        {
            return Ok(running.code.clone());
        }
        if let Some((broken, problem)) = &self.broken
            && *broken == digest
            && !problem.passing
        {
            return Err(problem.clone());
        }
        let loaded = self.host.loader.load(wasm.clone()).await;
        loaded.map_err(|problem| {
            let problem = Problem { message: format!("{}.wasm: {}", self.name, problem.message), ..problem };
            self.broken = Some((digest, problem.clone()));
            problem
        })
    }

    /// The code that runs, or ran last, if the document admits it.
    async fn older(&self, wasm: &Bytes, document: &Document) -> Option<Code> {
        let admitted = |digest: Digest| document.spec.digest.is_none_or(|pinned| pinned == digest);
        if let Some(running) = &self.running {
            return admitted(running.code.digest).then(|| running.code.clone());
        }
        let (last_good, plugin) = (self.host.last_good.clone(), self.name.clone());
        let before = tokio::task::spawn_blocking(move || last_good.recall(&plugin)).await.ok()??;
        if before == *wasm || !admitted(Digest::of(&before)) {
            return None;
        }
        self.host.loader.load(before).await.ok()
    }

    /// All that this version needs, unless it runs so already.
    async fn version(&self, code: Code, spec: &PluginSpec, since: Instant) -> Result<Step, Problem> {
        if let Some(running) = &self.running
            && running.code.digest == code.digest
            && running.spec == *spec
            && !running.has_lost_watches()
        {
            return Ok(Step::Stay);
        }
        if let Some(source) = &spec.source
            && source.file != format!("{}.wasm", self.name)
        {
            let text = format!(
                "spec.source.file of {0}.yaml is {1:?}, and in a plugin directory it can only be {0}.wasm; correct it or leave it out",
                self.name, source.file
            );
            return Err(Problem::lasting(Phase::Fetch, &text));
        }
        let account = spec.account(&self.name).map_err(|e| Problem::lasting(Phase::Grant, &e))?;
        let scope = self.host.scope.intersection(&spec.scope());
        let policy = spec.policy();
        needs::check(&self.name, &code.manifest, &policy.grants, &scope)?;
        let vault = &self.host.vault;
        let channels = GrpcChannels::open(&spec.grants.channels, policy.limits.message, vault).await?;
        let variable = |name: &str| std::env::var(name).ok();
        let databases = DatabasePools::open(&spec.grants.databases, &policy.limits, variable, vault).await?;
        let claim =
            self.host.claims.take(&self.name, &code.manifest).map_err(|e| Problem::passing(Phase::Start, &e))?;
        // What the cluster refuses today it may allow tomorrow, when somebody has made the account or its rights.
        let port = self.host.identities.port(&self.name, &account, &scope).await;
        let port = port.map_err(|e| Problem::passing(Phase::Grant, &e))?;
        let watches = self.watches(&code.manifest, &account, &scope).await;
        let watches = watches.map_err(|e| Problem::passing(Phase::Start, &e))?;
        let ports = self.ports(port, channels, databases);
        let spec = spec.clone();
        Ok(Step::Exchange(Box::new(Prepared { code, spec, account, scope, policy, ports, claim, watches, since })))
    }

    /// The watches of those controllers whose watches are not running yet, each complete or none at all.
    async fn watches(
        &self,
        manifest: &Manifest,
        account: &ServiceAccount,
        scope: &Scope,
    ) -> Result<HashMap<ControllerName, Watches>, ApiError> {
        let mut watches = HashMap::new();
        for spec in &manifest.controllers {
            let kept = self.running.as_ref().is_some_and(|running| {
                running.account == *account
                    && running.scope == *scope
                    && running.controllers.get(&spec.name).is_some_and(|c| c.spec() == spec && !c.is_lost())
            });
            if !kept {
                let started = Watches::start(&*self.host.informers, account, scope, spec).await?;
                watches.insert(spec.name.clone(), started);
            }
        }
        Ok(watches)
    }

    /// Makes it so, and answers why nothing runs where that is wanted. Fails never, and waits only for reconciles in flight and for the last good version to be kept.
    async fn take(&mut self, step: Step, entry: &Entry) -> Option<String> {
        match step {
            Step::Stay => {}
            Step::Exchange(prepared) => {
                let digest = prepared.code.digest;
                self.exchange(*prepared);
                // The code that runs may be an older one than lies there; it is kept already then.
                if let Entry::Present { wasm, .. } = entry {
                    let (last_good, plugin, wasm) = (self.host.last_good.clone(), self.name.clone(), wasm.clone());
                    let kept = move || {
                        if Digest::of(&wasm) == digest {
                            last_good.keep(&plugin, &digest, &wasm);
                        }
                    };
                    let _ = tokio::task::spawn_blocking(kept).await;
                }
            }
            Step::Suspend => {
                self.stop().await;
                self.status.send_modify(|status| status.settled = true);
                tracing::info!(plugin = %self.name, "plugin is suspended");
                return Some("suspended: spec.suspend is true".into());
            }
            Step::Remove => {
                self.stop().await;
                self.broken = None;
                let (last_good, plugin) = (self.host.last_good.clone(), self.name.clone());
                let _ = tokio::task::spawn_blocking(move || last_good.forget(&plugin)).await;
                self.status.send_modify(|status| status.settled = true);
                tracing::info!(plugin = %self.name, "plugin removed");
            }
        }
        None
    }

    /// The switch.
    fn exchange(&mut self, prepared: Prepared) {
        let Prepared { code, spec, account, scope, policy, ports, claim, mut watches, since } = prepared;
        let before = self.running.take();
        let exchanged = before.is_some();
        // A document that leaves the code and its concurrency alone leaves the reconciles in flight counted.
        let share = before.as_ref().filter(|before| {
            before.code.digest == code.digest && before.spec.limits.limits().concurrency == policy.limits.concurrency
        });
        let share = share.map(|before| before.shared.version.load().own_share.clone());
        let version = Version {
            reconciler: code.reconciler.clone(),
            ports,
            scope: scope.clone(),
            own_share: share.unwrap_or_else(|| Arc::new(Semaphore::new(policy.limits.concurrency))),
        };
        let was = before.as_ref().map(|b| (b.code.manifest.version.clone(), b.code.digest.short()));
        let (shared, mut old, old_claim) = match before {
            Some(before) => {
                before.shared.exchange(policy, version);
                (before.shared, before.controllers, Some(before.claim))
            }
            None => (self.shared(policy, version), HashMap::new(), None),
        };
        let mut controllers = HashMap::new();
        // What looks after another kind is another controller, whatever its name.
        let stays = |controller: &Controller| {
            code.manifest
                .controller(&controller.spec().name)
                .is_some_and(|spec| spec.primary == controller.spec().primary)
        };
        let leaving: Vec<_> = old.extract_if(|_, controller| !stays(controller)).map(|(_, leaving)| leaving).collect();
        for spec in &code.manifest.controllers {
            let controller = match (old.remove(&spec.name), watches.remove(&spec.name)) {
                (Some(kept), None) => {
                    kept.look_at_all();
                    kept
                }
                (Some(mut kept), Some(watches)) => {
                    kept.watch(spec.clone(), watches);
                    kept
                }
                (None, Some(watches)) => {
                    let before = leaving.iter().find(|gone| kind_of(&gone.spec().primary) == kind_of(&spec.primary));
                    Controller::start(shared.clone(), spec.clone(), watches, before)
                }
                // Cannot be: what is not kept has new watches.
                (None, None) => continue,
            };
            controllers.insert(spec.name.clone(), controller);
        }
        self.host.leaving.spawn(async move {
            futures::future::join_all(leaving.into_iter().map(Controller::stop)).await;
            // Nobody else may reconcile its kinds before.
            drop(old_claim);
        });
        self.metrics.loaded(&code.manifest.version, &code.digest.short(), was);
        let arriving = Some(Arriving { exchanged, since });
        self.running = Some(Running { code, spec, account, scope, shared, controllers, claim, arriving });
    }

    fn shared(&self, policy: Policy, version: Version) -> Arc<Shared> {
        Arc::new(Shared {
            plugin: self.name.clone(),
            version: ArcSwap::from_pointee(version),
            policy: Arc::new(ArcSwap::from_pointee(policy)),
            tenant: self.host.places.join(&self.name),
            metrics: self.host.metrics.clone(),
        })
    }

    fn ports(&self, kubernetes: Arc<dyn Kubernetes>, channels: GrpcChannels, databases: DatabasePools) -> Ports {
        let (metrics, plugin) = (self.metrics.clone(), self.name.clone());
        let limits = self.metrics.clone();
        Ports {
            kubernetes,
            channels: Arc::new(channels),
            databases: Arc::new(databases),
            log: Arc::new(NoLog),
            denials: Arc::new(move |denial| {
                metrics.denied();
                tracing::warn!(%plugin, what = denial.what, rule = denial.yaml, "denied: not granted to the plugin");
            }),
            exceeded: Arc::new(move |limit| limits.exceeded(limit)),
            rates: Arc::default(),
        }
    }

    /// Waits for the reconciles in flight; then the kinds are free for other plugins.
    async fn stop(&mut self) {
        let Some(running) = self.running.take() else { return };
        futures::future::join_all(running.controllers.into_values().map(Controller::stop)).await;
        self.metrics.unloaded(&running.code.manifest.version, &running.code.digest.short());
        self.status.send_modify(|status| status.running = None);
    }
}

/// Takes the place of a log where there is no reconcile to speak of.
struct NoLog;

impl Log for NoLog {
    fn enabled(&self, _: Level) -> bool {
        false
    }
    fn write(&self, _: Level, _: &str, _: &str, _: &[(String, String)]) {}
}

#[cfg(test)]
mod tests;
