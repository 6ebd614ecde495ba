//! The life of one plugin: what lies in the directory under its name is made to run, and to run on whatever follows.
//!
//! **An exchange is a transaction**: everything that can fail (reading the document, loading the code, grants, watches) comes before the switch, and until the switch
//! the version before runs on. After it nothing can fail. What comes before may be given up at any point, as for a newer file; the switch itself never waits.

mod claims;
pub(crate) mod confine;
mod leave;
pub(crate) mod needs;
mod prepare;
mod problem;
mod switch;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use operetta_api::{DeletionPolicy, PluginSpec};
use operetta_core::{
    backoff::Backoff,
    cache::{Informers, Scope},
    effect::{Policy, Ports},
    grant::{Closed, Grants},
    manifest::Manifest,
    name::{Actor, ControllerName, Digest, Namespace, PluginName, ServiceAccount},
    port::{ApiError, Kubernetes},
    reconcile::Reconciler,
    share::Places,
};
use tokio::{sync::watch, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::claims::Claim;
pub use self::{
    claims::Claims,
    leave::explain,
    problem::{Meanwhile, Phase, Problem, Reason},
};
use crate::{
    catalog::{Entry, Object},
    controller::{Controller, Extents, Mode, Shared, Watches},
    credentials::Vault,
    plugin_objects::Objects,
    telemetry::{Metrics, PluginMetrics},
    vitals::Vitals,
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

/// Makes code of bytes.
#[async_trait]
pub trait Loader: Send + Sync {
    /// Verifies, compiles and describes.
    async fn load(&self, wasm: Bytes) -> Result<Code, Problem>;
}

/// Gives a plugin its port to the API server.
#[async_trait]
pub trait Identities: Send + Sync {
    /// The API server as this plugin's account.
    ///
    /// # Errors
    /// `Forbidden` where the plugin may not act as that account; the API server cannot be asked.
    async fn port(&self, actor: &Actor, scope: &Scope) -> Result<Arc<dyn Kubernetes>, ApiError>;
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
    /// Where the host itself is.
    pub namespace: Namespace,
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
    /// The Plugins of the cluster.
    pub objects: Arc<dyn Objects>,
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
    /// The Plugin of the cluster that this is about, and which of its specs; none for files.
    pub object: Option<Object>,
    /// The version and digest that run, with full caches.
    pub running: Option<(String, Digest)>,
    /// The version and digest that took over last, with the account that it acts as and where it works; its caches may still be filling.
    pub switched: Option<Switched>,
    /// The version and digest that were loaded last, whether they run or not.
    pub candidate: Option<(String, Digest)>,
    /// What is wrong with what is asked for now.
    pub problem: Option<Problem>,
    /// It stands still because the document says so; what was held when it began to.
    pub suspended: Option<String>,
    /// It is to go.
    pub leaving: Option<Leaving>,
    /// Whether it is known how the first files fare: the plugin runs with full caches, or does not and says why, or is gone again.
    pub settled: bool,
}

impl Status {
    /// Whether what is asked for runs, with full caches.
    pub fn is_ready(&self) -> bool {
        let switched = self.switched.as_ref().map(|s| (&s.version, &s.digest));
        self.problem.is_none()
            && switched.is_some()
            && switched == self.running.as_ref().map(|(v, d)| (v, d))
            && !self.is_arriving()
    }

    fn is_arriving(&self) -> bool {
        self.switched.as_ref().is_some_and(|switched| switched.arriving)
    }

    /// Why what is asked for does not run.
    pub fn trouble(&self) -> Option<String> {
        let suspended = self.suspended.as_ref().map(|_| "suspended: spec.suspend is true".to_owned());
        self.problem.as_ref().map(ToString::to_string).or(suspended)
    }
}

/// A version after the switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switched {
    /// What it calls itself.
    pub version: String,
    /// Of its component.
    pub digest: Digest,
    /// As whom it acts.
    pub account: ServiceAccount,
    /// Where it works.
    pub scope: Scope,
    /// Its caches are filling.
    pub arriving: bool,
    /// What it does while something is wrong with what is asked for.
    pub meanwhile: Meanwhile,
}

/// A plugin that is to go as soon as nothing is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving {
    /// What becomes of what is held.
    pub policy: DeletionPolicy,
    /// Its Plugin; none for files.
    pub object: Option<Object>,
}

/// One plugin of the host, from the first sight of it to the end of the host.
pub struct Plugin {
    host: Arc<Host>,
    name: PluginName,
    metrics: PluginMetrics,
    vitals: Arc<Vitals>,
    running: Option<Running>,
    status: watch::Sender<Status>,
    /// The last component that could not be loaded, so that it is not tried again while only its document changes.
    broken: Option<(Digest, Problem)>,
    /// The bytes of a component that was loaded and does not run yet.
    fetched: Option<(Digest, Bytes)>,
    /// The version that was loaded last.
    candidate: Option<(String, Digest)>,
    /// It stands still because the document says so; what was held when it began to.
    suspended: Option<String>,
    /// The incarnation of its Plugin that the host no longer keeps.
    let_go: Option<String>,
    /// Told when a kind becomes free.
    freed: watch::Receiver<()>,
}

struct Running {
    code: Code,
    spec: PluginSpec,
    mode: Mode,
    /// The incarnation of the Plugin whose document it is; none for a file.
    owner: Option<String>,
    account: ServiceAccount,
    scope: Scope,
    extents: Extents,
    shared: Arc<Shared>,
    /// What a document took away that is not in force.
    withdrawn: Withdrawn,
    controllers: HashMap<ControllerName, Controller>,
    claim: Claim,
    /// What is to be said when all caches are filled.
    arriving: Option<Arriving>,
}

struct Arriving {
    exchanged: bool,
    since: Instant,
}

/// What a document that is not in force leaves of what runs.
#[derive(Clone, Default, PartialEq)]
struct Withdrawn {
    /// What it grants, where it is something else.
    grants: Option<Arc<Grants>>,
    /// Where, where it is not everywhere that the other one says.
    scope: Option<Scope>,
    /// There is none at all, and so nothing is left.
    all: bool,
    /// The account was refused, and nobody asked for it since: what the cluster itself refuses is all that is left.
    cluster_only: bool,
}

/// What is asked for.
enum Step {
    /// Nothing: all is as it should be, or it cannot be used.
    Stay,
    /// This version, ready to run.
    Exchange(Box<Prepared>),
    /// The same, in another mode.
    Keep(Mode),
    /// The same, which may do nothing more: its account is refused.
    Close,
    /// No reconciles for now.
    Suspend,
    /// An end.
    Remove,
}

/// All that a version needs to run. Dropping it gives everything back.
struct Prepared {
    code: Code,
    spec: PluginSpec,
    mode: Mode,
    owner: Option<String>,
    account: ServiceAccount,
    scope: Scope,
    extents: Extents,
    policy: Policy,
    ports: Ports,
    claim: Claim,
    watches: HashMap<ControllerName, Watches>,
    since: Instant,
}

/// Why to look again at what is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wake {
    /// Something may be different by now.
    Look,
    /// Nothing is held any more.
    Emptied,
}

impl Running {
    /// Why nothing is allowed any more, where that is so.
    fn closed(&self) -> Option<Closed> {
        self.shared.version.load().policy.grants.closed
    }

    /// What is left of it where what is asked for is not taken.
    fn meanwhile(&self) -> Meanwhile {
        if self.closed().is_some() || self.withdrawn.all {
            Meanwhile::Rests
        } else if self.withdrawn != Withdrawn::default() {
            Meanwhile::Narrowed
        } else {
            Meanwhile::RunsOn
        }
    }

    /// Leaves it no more than this does, from its next effect on.
    fn narrow(&mut self, withdrawn: Withdrawn) {
        let Withdrawn { grants, scope, all, cluster_only } = withdrawn.clone();
        let own = || Grants { within: None, closed: None, ..self.shared.version.load().policy.grants.clone() };
        let left = if all {
            Some(Arc::default())
        } else if cluster_only {
            let granted = grants.map_or_else(own, Arc::unwrap_or_clone);
            Some(Arc::new(Grants { channels: BTreeSet::new(), databases: BTreeSet::new(), ..granted }))
        } else {
            grants
        };
        self.shared.narrow(left, scope);
        self.withdrawn = withdrawn;
    }

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
        let (metrics, freed) = (host.metrics.plugin(&name), host.claims.freed());
        Self {
            host,
            name,
            metrics,
            vitals: Arc::default(),
            running: None,
            status,
            broken: None,
            fetched: None,
            candidate: None,
            suspended: None,
            let_go: None,
            freed,
        }
    }

    /// What it does while it runs.
    pub fn vitals(&self) -> Arc<Vitals> {
        self.vitals.clone()
    }

    /// Follows what is asked for until the host stops; then lets the reconciles in flight end.
    pub async fn follow(mut self, mut entries: watch::Receiver<Entry>, stop: CancellationToken) {
        let retry = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30), jitter: 0.1 };
        let mut failures = 0;
        loop {
            let entry = entries.borrow_and_update().clone();
            self.freed.mark_unchanged();
            // Before anything that takes its time.
            self.withdraw(&entry);
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
            self.take(next).await;
            failures = if problem.is_some() { failures + 1 } else { 0 };
            self.tell(&entry, problem.as_ref(), failures);
            let lost = self.running.as_ref().is_some_and(Running::has_lost_watches);
            let again = (lost || problem.as_ref().is_some_and(|problem| problem.passing))
                .then(|| retry.delay(failures.max(1), rand::random()));
            let taken = problem.is_some_and(|problem| problem.reason == Reason::KindTaken);
            let leaving = self.leaving(&entry);
            let wake = tokio::select! {
                wake = self.wait(again, taken, leaving.as_ref()) => wake,
                changed = entries.changed() => {
                    failures = 0;
                    if changed.is_err() {
                        break;
                    }
                    continue;
                }
                () = stop.cancelled() => break,
            };
            if wake == Wake::Emptied
                && let Err(problem) = self.finish(leaving.and_then(|leaving| leaving.object).as_ref()).await
            {
                tracing::warn!(plugin = %self.name, error = problem.message, "the Plugin cannot be let go; tried again");
            }
        }
        let census = self.vitals.census();
        if census.held > 0 && self.leaving(&entries.borrow().clone()).is_some() {
            tracing::warn!(plugin = %self.name, held = %census, "the host stops before the plugin could go; start it again to look after them");
        }
        self.stop().await;
    }

    /// Waits until it is time to look again at what is asked for. Cancel-safe.
    async fn wait(&mut self, again: Option<Duration>, taken: bool, leaving: Option<&Leaving>) -> Wake {
        let timer = async {
            match again {
                Some(delay) => tokio::time::sleep(delay).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(timer);
        let releasing = leaving.is_some_and(|leaving| leaving.policy == DeletionPolicy::Release);
        let mut freed = self.freed.clone();
        loop {
            let running = self.running.as_ref();
            tokio::select! {
                () = &mut timer => return Wake::Look,
                // An error means that the host stops.
                Ok(()) = freed.changed(), if taken => return Wake::Look,
                () = Running::arrived(running) => {}
                () = Running::lost_watches(running), if again.is_none() => return Wake::Look,
                () = Running::emptied(running, || self.vitals.raise_alarm()), if leaving.is_some() => return Wake::Emptied,
                () = Running::release(running, &self.name, |error| {
                    tracing::warn!(plugin = %self.name, error, "an object cannot be let go; tried again");
                }), if releasing => {}
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
            if let Some(switched) = &mut status.switched {
                switched.arriving = false;
            }
            status.settled = true;
        });
    }

    /// Says how it fares: what is wrong in the log, all of it in the status.
    fn tell(&self, entry: &Entry, problem: Option<&Problem>, failures: u32) {
        let leaving = self.leaving(entry);
        if let Some(problem) = problem {
            self.metrics.load_failed();
            self.log(problem, failures);
        }
        if let Some(leaving) = &leaving
            && self.status.borrow().leaving.as_ref() != Some(leaving)
        {
            let held = explain(leaving.policy, &self.vitals.census(), leaving.object.is_none());
            tracing::warn!(plugin = %self.name, policy = ?leaving.policy, held, "the plugin is to go when nothing is held any more");
        }
        let running = self.running.as_ref();
        let switched = running.map(|running| Switched {
            version: running.code.manifest.version.clone(),
            digest: running.code.digest,
            account: running.account.clone(),
            scope: running.scope.clone(),
            arriving: running.arriving.is_some(),
            meanwhile: running.meanwhile(),
        });
        self.status.send_modify(|status| {
            let object = match entry {
                Entry::Present { object, .. } => object.clone(),
                Entry::Incomplete(_) | Entry::WithoutDocument(_) | Entry::Gone => None,
            };
            let idle = running.is_none();
            *status = Status {
                object,
                running: status.running.take().filter(|_| !idle),
                switched,
                candidate: self.candidate.clone(),
                problem: problem.cloned(),
                suspended: self.suspended.clone(),
                leaving,
                // What runs and has not arrived yet is not settled.
                settled: status.settled || problem.is_some() || idle,
            };
        });
    }

    fn log(&self, problem: &Problem, failures: u32) {
        let known = self.status.borrow().problem.as_ref().is_some_and(|known| known.to_string() == problem.to_string());
        if !known {
            let running = self
                .running
                .as_ref()
                .map(|r| format!("version {} ({}) {}", r.code.manifest.version, r.code.digest.short(), r.meanwhile()));
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
    }
}

#[cfg(test)]
mod tests;
