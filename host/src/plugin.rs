//! The life of one plugin: what lies in the directory under its name is made to run, and to run on whatever follows.
//!
//! **An exchange is a transaction**: everything that can fail (reading the document, loading the code, grants, watches) comes before the switch, and until the switch
//! the version before runs on. After it nothing can fail.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use operetta_api::{Plugin as Document, PluginSpec};
use operetta_core::{
    backoff::Backoff,
    cache::{Informers, Scope},
    effect::{Policy, Ports},
    grant::{Access, Grants, Verb},
    manifest::Manifest,
    name::{ControllerName, Digest, Namespace, PluginName, ServiceAccount},
    port::{ApiError, Kubernetes, Level, Log},
    reconcile::Reconciler,
    resource::Resource,
};
use tokio::sync::{Semaphore, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    channels::GrpcChannels,
    controller::{Controller, Shared, Version, Watches},
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
    pub fn lasting(phase: Phase, message: impl ToString) -> Self {
        Self { phase, message: message.to_string(), passing: false }
    }

    /// It may pass by itself.
    pub fn passing(phase: Phase, message: impl ToString) -> Self {
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
    pub claims: Claims,
    /// Where the host works at most.
    pub scope: Scope,
    /// See [`Shared::all_shares`].
    pub all_shares: Arc<Semaphore>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Controllers whose last reconciles are ending.
    pub leaving: TaskTracker,
    /// The last version of each plugin that ran.
    pub last_good: Box<dyn LastGood>,
}

/// Remembers the last component of each plugin that ran, so that a broken file does not stop a plugin over a restart of the host.
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
    /// Whether the first attempt has ended, well or not.
    pub tried: bool,
}

/// One plugin of the host, from the first sight of its files to their removal.
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
}

impl Plugin {
    /// Nothing runs yet.
    pub fn new(host: Arc<Host>, name: PluginName, status: watch::Sender<Status>) -> Self {
        let metrics = host.metrics.plugin(&name);
        Self { host, name, metrics, running: None, status, broken: None }
    }

    /// Follows what the directory holds until the plugin is gone or the host stops; then lets the reconciles in flight end.
    pub async fn follow(mut self, mut entries: watch::Receiver<Entry>, stop: CancellationToken) {
        let retry = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30), jitter: 0.1 };
        let mut failures = 0;
        loop {
            let entry = entries.borrow_and_update().clone();
            if entry == Entry::Gone {
                break;
            }
            let again = tokio::select! {
                // A newer file makes the work on this one pointless, unless it has got as far as the switch, which does not wait.
                result = self.apply(entry) => match result {
                    Ok(()) => {
                        failures = 0;
                        None
                    }
                    Err(problem) => {
                        failures += 1;
                        self.tell(&problem, failures);
                        problem.passing.then(|| retry.delay(failures, rand::random()))
                    }
                },
                () = stop.cancelled() => break,
            };
            self.status.send_modify(|status| status.tried = true);
            let wait = async {
                match again {
                    Some(delay) => tokio::time::sleep(delay).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                changed = entries.changed() => {
                    failures = 0;
                    if changed.is_err() {
                        break;
                    }
                }
                () = stop.cancelled() => break,
            }
        }
        let gone = *entries.borrow() == Entry::Gone;
        self.stop().await;
        if gone {
            self.host.last_good.forget(&self.name);
            tracing::info!(plugin = %self.name, "plugin removed");
        }
    }

    fn tell(&mut self, problem: &Problem, failures: u32) {
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
        self.status.send_modify(|status| status.problem = Some(text));
    }

    async fn apply(&mut self, entry: Entry) -> Result<(), Problem> {
        let (wasm, yaml) = match entry {
            Entry::Present { wasm, yaml } => (wasm, yaml),
            Entry::Incomplete(why) => return Err(Problem::lasting(Phase::Fetch, why)),
            Entry::Gone => return Ok(()),
        };
        let document = operetta_api::parse(&self.name, &yaml)
            .map_err(|e| Problem::lasting(Phase::Fetch, format!("{}.yaml: {e}", self.name)))?;
        let digest = Digest::of(&wasm);
        match self.code(&wasm, digest, &document).await {
            Ok(code) => self.run(code, document, &wasm).await,
            Err(problem) => {
                // Where nothing runs yet, what ran before the host was restarted is better than nothing.
                if self.running.is_none()
                    && let Some(before) = self.host.last_good.recall(&self.name)
                    && Digest::of(&before) != digest
                    && let Ok(code) = self.code(&before, Digest::of(&before), &document).await
                {
                    self.run(code, document, &before).await?;
                }
                Err(problem)
            }
        }
    }

    async fn code(&mut self, wasm: &Bytes, digest: Digest, document: &Document) -> Result<Code, Problem> {
        if let Some(pinned) = document.spec.digest
            && pinned != digest
        {
            let text = format!(
                "{}.wasm is {digest} and the document pins {pinned}; correct spec.digest or the file",
                self.name
            );
            return Err(Problem::lasting(Phase::Verify, text));
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

    /// Makes this version the one that runs.
    async fn run(&mut self, code: Code, document: Document, wasm: &[u8]) -> Result<(), Problem> {
        let spec = document.spec;
        if spec.suspend {
            self.stop().await;
            self.status.send_modify(|status| status.problem = Some("suspended: spec.suspend is true".into()));
            tracing::info!(plugin = %self.name, "plugin is suspended");
            return Ok(());
        }
        if self.running.as_ref().is_some_and(|r| r.code.digest == code.digest && r.spec == spec) {
            self.status.send_modify(|status| status.problem = None);
            return Ok(());
        }
        let started = std::time::Instant::now();
        let account = spec.account(&self.name).map_err(|e| Problem::lasting(Phase::Grant, e))?;
        let scope = self.host.scope.intersection(&spec.scope());
        let policy = spec.policy();
        check_grants(&code.manifest, &policy.grants, &scope)?;
        let channels = GrpcChannels::new(&spec.grants.channels, policy.limits.message)
            .map_err(|e| Problem::lasting(Phase::Grant, format!("{e:#}")))?;
        let claim = self
            .host
            .claims
            .take(&self.name, code.manifest.controllers.iter().map(|c| &c.primary))
            .map_err(|e| Problem::passing(Phase::Start, e))?;
        let port = self
            .host
            .identities
            .port(&self.name, &account, &scope)
            .await
            .map_err(|e| cluster_problem(Phase::Grant, &e))?;
        let mut watches = self.watches(&code.manifest, &account, &scope).await?;

        // From here on nothing fails and nothing waits.
        claim.keep();
        let version = Version {
            reconciler: code.reconciler.clone(),
            ports: self.ports(port, channels),
            own_share: Arc::new(Semaphore::new(policy.limits.concurrency)),
        };
        let before = self.running.take();
        let exchanged = before.is_some();
        let was = before.as_ref().map(|b| (b.code.manifest.version.clone(), b.code.digest));
        let (shared, mut old) = match before {
            Some(before) => {
                before.shared.policy.store(Arc::new(policy));
                before.shared.version.store(Arc::new(version));
                (before.shared, before.controllers)
            }
            None => (self.shared(policy, version), HashMap::new()),
        };
        let mut controllers = HashMap::new();
        for spec in &code.manifest.controllers {
            let kept = old.remove_entry(&spec.name);
            let controller = match (kept, watches.remove(&spec.name)) {
                (Some((_, controller)), None) => controller,
                (Some((_, mut controller)), Some(watches)) if controller.spec().primary == spec.primary => {
                    controller.watch(spec.clone(), watches);
                    controller
                }
                (replaced, Some(watches)) => {
                    old.extend(replaced);
                    let metrics = self.host.metrics.controller(&self.name, &spec.name);
                    Controller::start(shared.clone(), spec.clone(), watches, metrics)
                }
                // Cannot be: what is not kept has new watches.
                (None, None) => continue,
            };
            controllers.insert(spec.name.clone(), controller);
        }
        for (_, gone) in old {
            self.host.leaving.spawn(gone.stop());
        }
        if exchanged {
            controllers.values().for_each(Controller::resync);
        }
        self.metrics.loaded(&code.manifest.version, &code.digest.short(), was.map(|(v, d)| (v, d.short())));
        self.host.last_good.keep(&self.name, &code.digest, wasm);
        self.announce(&code, &account, &controllers, exchanged, started);
        self.running = Some(Running { code, spec, account, scope, shared, controllers });
        Ok(())
    }

    /// Says so when all caches are filled.
    fn announce(
        &self,
        code: &Code,
        account: &ServiceAccount,
        controllers: &HashMap<ControllerName, Controller>,
        exchanged: bool,
        started: std::time::Instant,
    ) {
        self.status.send_modify(|status| status.problem = None);
        let synced: Vec<_> = controllers.values().map(Controller::synced).collect();
        let (status, plugin, account) = (self.status.clone(), self.name.clone(), account.clone());
        let (version, digest) = (code.manifest.version.clone(), code.digest);
        tokio::spawn(async move {
            futures::future::join_all(synced).await;
            let took = started.elapsed();
            let what = if exchanged { "plugin exchanged" } else { "plugin ready" };
            tracing::info!(%plugin, version, %digest, %account, ?took, "{what}");
            status.send_modify(|status| status.running = Some((version, digest)));
        });
    }

    /// The watches of those controllers whose watches are not running yet, each complete or none at all.
    async fn watches(
        &self,
        manifest: &Manifest,
        account: &ServiceAccount,
        scope: &Scope,
    ) -> Result<HashMap<ControllerName, Watches>, Problem> {
        let mut watches = HashMap::new();
        for spec in &manifest.controllers {
            let kept = self.running.as_ref().is_some_and(|running| {
                running.account == *account
                    && running.scope == *scope
                    && running.controllers.get(&spec.name).is_some_and(|c| c.spec() == spec)
            });
            if !kept {
                let started = Watches::start(&*self.host.informers, account, scope, spec).await;
                watches.insert(spec.name.clone(), started.map_err(|e| cluster_problem(Phase::Start, &e))?);
            }
        }
        Ok(watches)
    }

    fn shared(&self, policy: Policy, version: Version) -> Arc<Shared> {
        Arc::new(Shared {
            plugin: self.name.clone(),
            version: ArcSwap::from_pointee(version),
            policy: Arc::new(ArcSwap::from_pointee(policy)),
            all_shares: self.host.all_shares.clone(),
        })
    }

    fn ports(&self, kubernetes: Arc<dyn Kubernetes>, channels: GrpcChannels) -> Ports {
        let (metrics, plugin) = (self.metrics.clone(), self.name.clone());
        Ports {
            kubernetes,
            channels: Arc::new(channels),
            log: Arc::new(NoLog),
            denials: Arc::new(move |denial| {
                metrics.denied();
                tracing::warn!(%plugin, what = denial.what, rule = denial.yaml, "denied: not granted to the plugin");
            }),
        }
    }

    async fn stop(&mut self) {
        let Some(running) = self.running.take() else { return };
        futures::future::join_all(running.controllers.into_values().map(Controller::stop)).await;
        self.host.claims.release(&self.name);
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

/// Each kind that a controller watches must be granted, in each namespace; the missing rules are told all at once.
fn check_grants(manifest: &Manifest, grants: &Grants, scope: &Scope) -> Result<(), Problem> {
    let places: Vec<Option<Namespace>> = match scope {
        Scope::All => vec![None],
        Scope::Namespaces(set) if set.is_empty() => {
            let text =
                "no namespace is left: the host's --namespace and the document's spec.namespaces have none in common";
            return Err(Problem::lasting(Phase::Grant, text));
        }
        Scope::Namespaces(set) => set.iter().cloned().map(Some).collect(),
    };
    let mut missing = BTreeMap::new();
    for controller in &manifest.controllers {
        for resource in controller.kinds() {
            for (namespace, verb) in places.iter().flat_map(|place| [(place, Verb::List), (place, Verb::Watch)]) {
                let access = Access { verb, resource, subresource: None, namespace: namespace.as_ref(), name: None };
                if let Err(denial) = grants.check(&access) {
                    missing.insert(denial.what, denial.yaml);
                }
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let what = missing.keys().cloned().collect::<Vec<_>>().join(", ");
    let yaml = missing.values().cloned().collect::<Vec<_>>().join("\n");
    Err(Problem::lasting(
        Phase::Grant,
        format!(
            "its controllers need what is not granted: {what}; to allow it, add to spec.grants.rules of {}.yaml:\n{yaml}",
            manifest.name
        ),
    ))
}

/// What the cluster refuses today it may allow tomorrow, when somebody has made the account or its rights.
fn cluster_problem(phase: Phase, error: &ApiError) -> Problem {
    Problem::passing(phase, error)
}

/// Which plugin reconciles which kind: one at most, since two would undo each other's work.
#[derive(Default)]
pub struct Claims(Mutex<HashMap<(String, String), PluginName>>);

/// A claim that is given back unless kept.
struct Claim<'a> {
    claims: &'a Claims,
    plugin: &'a PluginName,
    wanted: Vec<(String, String)>,
    fresh: Vec<(String, String)>,
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), PluginName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take<'a>(
        &'a self,
        plugin: &'a PluginName,
        kinds: impl Iterator<Item = &'a Resource>,
    ) -> Result<Claim<'a>, String> {
        // Whatever its version: the objects are the same.
        let wanted: Vec<_> = kinds.map(|kind| (kind.group().to_owned(), kind.resource().to_owned())).collect();
        let mut held = self.lock();
        for kind in &wanted {
            if let Some(other) = held.get(kind)
                && other != plugin
            {
                return Err(format!(
                    "{}.{} is reconciled by the plugin {other} already; remove {other}.wasm and {other}.yaml, or those of {plugin}",
                    kind.1, kind.0
                ));
            }
        }
        let fresh: Vec<_> = wanted.iter().filter(|kind| !held.contains_key(*kind)).cloned().collect();
        held.extend(fresh.iter().map(|kind| (kind.clone(), plugin.clone())));
        drop(held);
        Ok(Claim { claims: self, plugin, wanted, fresh })
    }

    fn release(&self, plugin: &PluginName) {
        self.lock().retain(|_, holder| holder != plugin);
    }
}

impl Claim<'_> {
    /// It stays, and what the plugin held beyond it goes.
    fn keep(mut self) {
        self.fresh.clear();
        self.claims.lock().retain(|kind, holder| holder != self.plugin || self.wanted.contains(kind));
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.lock().retain(|kind, holder| holder != self.plugin || !self.fresh.contains(kind));
    }
}
