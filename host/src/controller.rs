//! One controller at work: its watches fill a work queue, and each key that comes out of it is reconciled.
//!
//! What reconciles is asked for anew before each run, so that new code takes over between two reconciles. Knows neither wasmtime nor kube: it sees the ports of the core.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use futures::{StreamExt as _, stream::SelectAll};
use operetta_core::{
    cache::{Change, Informers, KindInfo, Scope, Subscription},
    effect::{Effects, Policy, Ports},
    manifest,
    name::{PluginName, ServiceAccount},
    port::{ApiError, Caller},
    queue::{Job, Next, Priority, WorkQueue},
    reconcile::{Cause, Failure, Outcome, Reconciler, Request},
    resource::ObjectKey,
    route::{Router, Source, sources},
};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use crate::telemetry::{ControllerMetrics, ReconcileLog};

/// What the controllers of one plugin share.
pub struct Shared {
    /// The plugin.
    pub plugin: PluginName,
    /// What runs now; exchanged between two reconciles.
    pub version: ArcSwap<Version>,
    /// What it may do; exchanged even during one.
    pub policy: Arc<ArcSwap<Policy>>,
    /// How many reconciles of all plugins run at once. First come, first served, one place at a time, so that no plugin delays another by more than its share.
    pub all_shares: Arc<Semaphore>,
}

/// What runs when a key's turn comes. A reconcile in flight ends with the version that it began with.
pub struct Version {
    /// The code.
    pub reconciler: Arc<dyn Reconciler>,
    /// Its ways out; the log is exchanged for one that names the object.
    pub ports: Ports,
    /// How many reconciles of the plugin run at once.
    pub own_share: Arc<Semaphore>,
}

/// The watches of one controller, started; see [`Watches::start`].
pub struct Watches {
    subscriptions: Vec<(Vec<Source>, Subscription)>,
}

impl Watches {
    /// Subscribes to each kind of the controller.
    ///
    /// # Errors
    /// A kind may not be watched by this account, or the API server cannot be asked.
    pub async fn start(
        informers: &dyn Informers,
        account: &ServiceAccount,
        scope: &Scope,
        spec: &manifest::Controller,
    ) -> Result<Self, ApiError> {
        let mut subscriptions = Vec::new();
        for (resource, roles) in sources(spec) {
            subscriptions.push((roles, informers.subscribe(account, &resource, scope).await?));
        }
        Ok(Self { subscriptions })
    }
}

/// A controller at work. Dropping it stops it hard; [`Controller::stop`] lets reconciles in flight end.
pub struct Controller {
    spec: manifest::Controller,
    queue: Arc<WorkQueue<ObjectKey>>,
    commands: mpsc::UnboundedSender<Command>,
    stop: CancellationToken,
    running: TaskTracker,
    synced: watch::Receiver<bool>,
    metrics: Arc<ControllerMetrics>,
}

enum Command {
    /// These watches take the place of those before.
    Watch(manifest::Controller, Watches),
    /// Every primary is looked at again.
    Resync,
}

impl Controller {
    /// Starts it.
    pub fn start(
        shared: Arc<Shared>,
        spec: manifest::Controller,
        watches: Watches,
        metrics: Arc<ControllerMetrics>,
    ) -> Self {
        let queue = Arc::new(WorkQueue::new(operetta_core::backoff::Backoff::default()));
        metrics.observe(&queue);
        let (commands, inbox) = mpsc::unbounded_channel();
        let (synced_tell, synced) = watch::channel(false);
        let stop = CancellationToken::new();
        let running = TaskTracker::new();
        let span = tracing::info_span!("controller", plugin = %shared.plugin, controller = %spec.name);

        let listener = Listener::new(queue.clone(), &spec, watches, synced_tell);
        tokio::spawn(stop.clone().run_until_cancelled_owned(listener.run(inbox)).instrument(span.clone()));
        let dispatcher = Dispatcher {
            caller: Caller { plugin: shared.plugin.clone(), controller: spec.name.clone() },
            shared,
            spec: spec.clone(),
            queue: queue.clone(),
            running: running.clone(),
            metrics: metrics.clone(),
        };
        running.spawn(stop.clone().run_until_cancelled_owned(dispatcher.run()).instrument(span));
        Self { spec, queue, commands, stop, running, synced, metrics }
    }

    /// What the manifest says of it.
    pub fn spec(&self) -> &manifest::Controller {
        &self.spec
    }

    /// Waits until all objects that existed at the start are known.
    pub fn synced(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut synced = self.synced.clone();
        async move {
            // An error means that the listener has ended, after which nothing more will be known.
            let _ = synced.wait_for(|synced| *synced).await;
        }
    }

    /// From now on these watches fill the queue, which stays; keys in flight are not touched.
    pub fn watch(&mut self, spec: manifest::Controller, watches: Watches) {
        self.spec = spec.clone();
        let _ = self.commands.send(Command::Watch(spec, watches));
    }

    /// Reconciles everything once, at the lowest priority.
    pub fn resync(&self) {
        let _ = self.commands.send(Command::Resync);
    }

    /// Takes no more keys and waits until the reconciles in flight have ended, each at its deadline at the latest.
    pub async fn stop(self) {
        self.stop.cancel();
        self.running.close();
        self.running.wait().await;
        self.metrics.forget();
        let depth = self.queue.depth();
        if depth.ready + depth.delayed > 0 {
            tracing::debug!(controller = %self.spec.name, ready = depth.ready, delayed = depth.delayed, "keys were left when the controller stopped");
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Turns changes into keys.
struct Listener {
    queue: Arc<WorkQueue<ObjectKey>>,
    router: Router,
    changes: SelectAll<futures::stream::BoxStream<'static, (Arc<[Source]>, Change)>>,
    guards: Vec<Box<dyn std::any::Any + Send + Sync>>,
    kind: watch::Receiver<Option<KindInfo>>,
    primaries: HashSet<ObjectKey>,
    resync: Duration,
    /// How many subscriptions have yet to tell all that exists.
    missing: usize,
    synced: watch::Sender<bool>,
}

impl Listener {
    fn new(
        queue: Arc<WorkQueue<ObjectKey>>,
        spec: &manifest::Controller,
        watches: Watches,
        synced: watch::Sender<bool>,
    ) -> Self {
        let mut kind = watch::channel(None).1;
        let mut changes = SelectAll::new();
        let mut guards = Vec::new();
        for (roles, subscription) in watches.subscriptions {
            if roles.contains(&Source::Primary) {
                kind = subscription.kind;
            }
            let roles: Arc<[Source]> = roles.into();
            changes.push(
                UnboundedReceiverStream::new(subscription.changes).map(move |change| (roles.clone(), change)).boxed(),
            );
            guards.push(subscription.guard);
        }
        let resync = Duration::from_secs(spec.resync_seconds.into());
        let missing = guards.len();
        Self {
            queue,
            router: Router::new(spec),
            changes,
            guards,
            kind,
            primaries: HashSet::new(),
            resync,
            missing,
            synced,
        }
    }

    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Command>) {
        let mut resync = tokio::time::interval_at(tokio::time::Instant::now() + self.resync, self.resync);
        loop {
            tokio::select! {
                Some((roles, change)) = self.changes.next() => self.heed(&roles, &change),
                command = inbox.recv() => match command {
                    Some(Command::Resync) => self.resync(),
                    Some(Command::Watch(spec, watches)) => {
                        self = Self::new(self.queue, &spec, watches, self.synced);
                        resync = tokio::time::interval_at(tokio::time::Instant::now() + self.resync, self.resync);
                    }
                    None => return,
                },
                _ = resync.tick() => self.resync(),
            }
        }
    }

    fn heed(&mut self, roles: &[Source], change: &Change) {
        let Change::Object { key, new, initial, .. } = change else {
            self.missing = self.missing.saturating_sub(1);
            if self.missing == 0 {
                tracing::debug!(primaries = self.primaries.len(), watches = self.guards.len(), "caches are synced");
                self.synced.send_replace(true);
            }
            return;
        };
        let kind = self.kind.borrow().clone();
        let priority = if *initial { Priority::Initial } else { Priority::Live };
        for role in roles {
            if *role == Source::Primary {
                if new.is_some() {
                    self.primaries.insert(key.clone());
                } else {
                    self.primaries.remove(key);
                }
            } else if *initial && self.missing > 0 {
                // The primaries that it concerns are initial themselves, or are told later.
                continue;
            }
            for woken in self.router.route(role, change, kind.as_ref()) {
                self.queue.add(woken, priority, Cause::Changed);
            }
        }
    }

    fn resync(&self) {
        for key in &self.primaries {
            self.queue.add(key.clone(), Priority::Resync, Cause::Resync);
        }
    }
}

/// Takes keys whose turn it is and runs them.
struct Dispatcher {
    shared: Arc<Shared>,
    caller: Caller,
    spec: manifest::Controller,
    queue: Arc<WorkQueue<ObjectKey>>,
    running: TaskTracker,
    metrics: Arc<ControllerMetrics>,
}

impl Dispatcher {
    async fn run(self) {
        let dispatcher = Arc::new(self);
        loop {
            dispatcher.queue.ready().await;
            // The places first and the key last, so that what is most urgent goes when there is room.
            let (Ok(own), Ok(all)) = (
                dispatcher.shared.version.load().own_share.clone().acquire_owned().await,
                dispatcher.shared.all_shares.clone().acquire_owned().await,
            ) else {
                return;
            };
            let Some(job) = dispatcher.queue.try_next() else { continue };
            let run = dispatcher.clone().reconcile(job);
            dispatcher.running.spawn(async move {
                run.await;
                drop((own, all));
            });
        }
    }

    async fn reconcile(self: Arc<Self>, job: Job<ObjectKey>) {
        let id = format!("{:016x}", rand::random::<u64>());
        let span = tracing::info_span!(
            "reconcile",
            plugin = %self.caller.plugin,
            controller = %self.caller.controller,
            object.namespace = job.key.namespace.as_ref().map(tracing::field::display),
            object.name = %job.key.name,
            reconcile_id = id,
        );
        // Given back whatever happens, a panic of the host included: a key that is never given back would never run again.
        let mut given = GiveBack { queue: &self.queue, key: &job.key, next: Next::Retry };
        let started = Instant::now();
        self.metrics.started(job.waited);
        let result = self.run_one(&job, id).instrument(span.clone()).await;
        let took = started.elapsed();
        self.metrics.ended(&result, took);
        given.next = match &result {
            Ok(Outcome::AwaitChange) | Err(Failure::Terminal(_)) => Next::Await,
            Ok(Outcome::RequeueAfter(delay)) => Next::After(*delay),
            Err(_) => Next::Retry,
        };
        let next = given.next;
        drop(given);
        let _entered = span.entered();
        match result {
            Ok(outcome) => tracing::debug!(?outcome, ?took, cause = ?job.cause, "reconciled"),
            Err(failure) => {
                let retry = if next == Next::Retry { "with backoff" } else { "when the object changes" };
                tracing::error!(reason = failure.reason(), error = %failure, ?took, attempt = job.attempt, retry, "reconcile failed");
            }
        }
    }

    async fn run_one(&self, job: &Job<ObjectKey>, id: String) -> Result<Outcome, Failure> {
        let version = self.shared.version.load_full();
        let object = match version.ports.kubernetes.get(&self.caller, &self.spec.primary, &job.key, false).await {
            Ok(object) => Some(object),
            Err(ApiError::NotFound(_)) => None,
            Err(error) => return Err(Failure::Host(format!("reading {} {}: {error}", self.spec.primary, job.key))),
        };
        let ports = Ports { log: Arc::new(ReconcileLog::new(&self.caller, &job.key, id)), ..version.ports.clone() };
        let effects = Arc::new(Effects::new(self.caller.clone(), self.shared.policy.clone(), ports));
        let request = Request {
            controller: self.caller.controller.clone(),
            key: job.key.clone(),
            object,
            attempt: job.attempt,
            cause: job.cause,
        };
        version.reconciler.reconcile(request, effects).await
    }
}

struct GiveBack<'a> {
    queue: &'a WorkQueue<ObjectKey>,
    key: &'a ObjectKey,
    next: Next,
}

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        self.queue.done(self.key, self.next);
    }
}
