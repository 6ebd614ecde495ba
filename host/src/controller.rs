//! One controller at work: its watches fill a work queue, and each key that comes out of it is reconciled.
//!
//! What reconciles is asked for anew before each run, so that new code takes over between two reconciles. Knows neither wasmtime nor kube: it sees the ports of the core.

mod holders;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use futures::{
    FutureExt as _, StreamExt as _,
    stream::{BoxStream, SelectAll},
};
use operetta_core::{
    cache::{Cached, Change, Extent, Informers, KindInfo, Scope, Subscription},
    effect::{Effects, Policy, Ports},
    grant::{Access, Closed, Grants, Verb},
    limit::Limit,
    looping::{Chain, Errand, Guard, Happened, Loop, Step},
    manifest,
    name::{Actor, PluginName},
    park::{End, Gate, News, Pass},
    port::{ApiError, Caller, Event, Severity},
    queue::{Job, Next, Priority, WorkQueue},
    reconcile::{Cause, Failure, Outcome, Reconciler, Request},
    resource::{ObjectKey, Resource},
    route::{Reading, Router, Source, sources},
    share::Tenant,
};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

pub use self::holders::{Holder, Holders};
use crate::{
    paused::Paused,
    telemetry::{ControllerMetrics, Metrics, PluginMetrics, ReconcileLog, Seen},
    vitals::Vitals,
};

/// A plugin that asks to be called again at once is called again after this time: as long as the first retry waits, so that it cannot spin.
const SOONEST: Duration = Duration::from_millis(50);

/// After so many bytes were parsed for one event, others have their turn.
const MUCH: usize = 64 << 10;

/// What is said of a loop.
const LOOPS: &str = "the plugin's own writes wake the controller again and again, or somebody undoes them: it is slowed for this object";

/// What the controllers of one plugin share.
pub struct Shared {
    /// The plugin.
    pub plugin: PluginName,
    /// What runs now; exchanged between two reconciles.
    pub version: ArcSwap<Version>,
    /// What it may do; exchanged even during one.
    pub policy: Arc<ArcSwap<Policy>>,
    /// Its places among those of all plugins.
    pub tenant: Tenant,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What its Plugin's status tells.
    pub vitals: Arc<Vitals>,
    /// What they wrote lately, by which each knows what wakes it.
    pub chain: Arc<Chain>,
}

impl Shared {
    /// Lets reconciles do only what these grants allow as well, from their next effect on, and only in these namespaces.
    pub fn narrow(&self, grants: Option<Arc<Grants>>, scope: Option<Scope>) {
        self.change(|policy| {
            policy.grants.within = grants;
            policy.bounds.narrow(scope);
        });
    }

    /// Lets reconciles do nothing more, those under way among them; or again what the policy says.
    pub fn close(&self, why: Option<Closed>) {
        self.change(|policy| policy.grants.closed = why);
    }

    fn change(&self, change: impl FnOnce(&mut Policy)) {
        let version = self.version.load_full();
        let mut policy = Policy::clone(&version.policy);
        change(&mut policy);
        let policy = Arc::new(policy);
        self.policy.store(policy.clone());
        self.version.store(Arc::new(Version { policy, ..Version::clone(&version) }));
    }

    /// From now on this runs. What waits for a place under the version before goes on under this one.
    pub fn exchange(&self, version: Version) {
        // The policy first, so that it holds for what begins under the old version meanwhile, too.
        self.policy.store(version.policy.clone());
        let share = version.own_share.clone();
        let before = self.version.swap(Arc::new(version));
        if !Arc::ptr_eq(&before.own_share, &share) {
            before.own_share.close();
        }
    }
}

/// Whose turn comes at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Every key's.
    #[default]
    Run,
    /// Only of objects that are being deleted: the plugin is to go.
    Drain,
    /// Nobody's.
    Rest,
}

impl Mode {
    /// So many places for reconciles.
    pub fn share(self, concurrency: usize) -> Arc<Semaphore> {
        Arc::new(Semaphore::new(if self == Self::Rest { 0 } else { concurrency }))
    }
}

/// What runs when a key's turn comes. A reconcile in flight ends with the version that it began with.
#[derive(Clone)]
pub struct Version {
    /// Whose turn comes.
    pub mode: Mode,
    /// The code.
    pub reconciler: Arc<dyn Reconciler>,
    /// Its ways out; the log is exchanged for one that names the object.
    pub ports: Ports,
    /// What it may do by its own document, which is about what these ports reach.
    pub policy: Arc<Policy>,
    /// Where it works; a key from elsewhere, left by a version that worked there too, is let go.
    pub scope: Scope,
    /// How many reconciles of the plugin run at once.
    pub own_share: Arc<Semaphore>,
}

/// How much of each kind is watched.
pub type Extents = BTreeMap<Resource, Vec<Extent>>;

/// The watches of one controller, started; see [`Watches::start`].
pub struct Watches {
    subscriptions: Vec<(Watched, Subscription)>,
}

/// A kind, and what it means to the controller.
struct Watched {
    resource: Resource,
    roles: Vec<Source>,
}

impl Watches {
    /// Subscribes to as much of each kind of the controller as it is given.
    ///
    /// # Errors
    /// A kind may not be watched by this account, or the API server cannot be asked.
    pub async fn start(
        informers: &dyn Informers,
        actor: &Actor,
        extents: &Extents,
        spec: &manifest::Controller,
    ) -> Result<Self, ApiError> {
        let mut subscriptions = Vec::new();
        for (resource, roles) in sources(spec) {
            let extents = extents.get(&resource).map(Vec::as_slice).unwrap_or_default();
            let subscription = informers.subscribe(actor, &resource, extents).await?;
            subscriptions.push((Watched { resource, roles }, subscription));
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
    caches: watch::Receiver<Caches>,
    holders: Arc<Holders>,
    gate: Arc<Gate<ObjectKey>>,
    guard: Arc<Guard>,
    vitals: Arc<Vitals>,
    span: tracing::Span,
}

/// How far the watches of a controller have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caches {
    /// Not all that exists is known yet.
    Filling,
    /// All of it is.
    Synced,
    /// One of them was ended from outside, so that changes are missed.
    Lost,
}

enum Command {
    /// These watches take the place of those before.
    Watch(manifest::Controller, Watches, watch::Sender<Caches>),
    /// Other code took over.
    LookAtAll,
}

impl Controller {
    /// Starts it. It reconciles nothing until `before`, which is leaving and looked after the same objects, has ended.
    pub fn start(shared: Arc<Shared>, spec: manifest::Controller, watches: Watches, before: Option<&Self>) -> Self {
        let queue = Arc::new(WorkQueue::new(operetta_core::backoff::Backoff::default()));
        let caller = Caller { plugin: shared.plugin.clone(), controller: spec.name.clone() };
        let paused = Arc::new(Paused::default());
        let gate = Arc::new(Gate::default());
        let guard = Arc::new(Guard::new(spec.name.clone(), shared.chain.clone()));
        let seen = Seen {
            queue: queue.clone(),
            policy: shared.policy.clone(),
            paused: paused.clone(),
            gate: gate.clone(),
            guard: guard.clone(),
        };
        let metrics = shared.metrics.controller(&caller, seen);
        let (commands, inbox) = mpsc::unbounded_channel();
        let (tell, caches) = watch::channel(Caches::Filling);
        let stop = CancellationToken::new();
        let running = TaskTracker::new();
        let span = tracing::info_span!("controller", plugin = %shared.plugin, controller = %spec.name);

        let (holders, vitals) = (Arc::new(Holders::default()), shared.vitals.clone());
        let tools = Tools {
            queue: queue.clone(),
            paused: paused.clone(),
            holders: holders.clone(),
            gate: gate.clone(),
            guard: guard.clone(),
            metrics: shared.metrics.plugin(&shared.plugin),
        };
        let listener = Listener::new(tools, &spec, watches, tell);
        tokio::spawn(stop.clone().run_until_cancelled_owned(listener.run(inbox)).instrument(span.clone()));
        let primary = spec.primary.clone();
        let dispatcher = Dispatcher {
            caller,
            shared,
            primary,
            queue: queue.clone(),
            paused,
            holders: holders.clone(),
            gate: gate.clone(),
            guard: guard.clone(),
            running: running.clone(),
            metrics,
            told: ArcSwapOption::default(),
        };
        let before = before.map(|before| before.running.clone());
        let work = async move {
            if let Some(before) = before {
                before.wait().await;
            }
            dispatcher.run().await;
        };
        running.spawn(stop.clone().run_until_cancelled_owned(work).instrument(span.clone()));
        Self { spec, queue, commands, stop, running, caches, holders, gate, guard, vitals, span }
    }

    /// What the manifest says of it.
    pub fn spec(&self) -> &manifest::Controller {
        &self.spec
    }

    /// Which objects hold what only this controller removes.
    pub fn holders(&self) -> &Arc<Holders> {
        &self.holders
    }

    /// Which of its keys loop.
    pub fn guard(&self) -> &Arc<Guard> {
        &self.guard
    }

    /// Other code or another policy took over.
    fn begin_anew(&self) {
        if let Some(news) = self.gate.begin_anew() {
            self.vitals.parked(&self.spec.name, &news);
            self.span
                .in_scope(|| tracing::info!("controller is no longer parked: other code or another policy took over"));
        }
        self.guard.begin_anew();
        self.queue.release();
    }

    /// Whether all objects that existed when its watches began are known.
    pub fn is_synced(&self) -> bool {
        *self.caches.borrow() == Caches::Synced
    }

    /// Waits until all objects that existed when its watches began are known; for ever if they are lost before.
    pub async fn synced(&self) {
        self.reach(Caches::Synced).await;
    }

    /// Waits until a watch is ended from outside, as when the account loses its right; it needs new ones then.
    pub async fn lost(&self) {
        self.reach(Caches::Lost).await;
    }

    /// Whether a watch was ended from outside.
    pub fn is_lost(&self) -> bool {
        *self.caches.borrow() == Caches::Lost
    }

    async fn reach(&self, state: Caches) {
        if self.caches.clone().wait_for(|caches| *caches == state).await.is_err() {
            // The listener has ended with the controller, and nothing more will be known.
            std::future::pending::<()>().await;
        }
    }

    /// From now on these watches fill the queue, which stays; keys in flight are not touched. When they are synced, everything is reconciled once.
    pub fn watch(&mut self, spec: manifest::Controller, watches: Watches) {
        self.spec = spec.clone();
        self.begin_anew();
        let (tell, caches) = watch::channel(Caches::Filling);
        self.caches = caches;
        let _ = self.commands.send(Command::Watch(spec, watches, tell));
    }

    /// Reconciles everything once, after what happens meanwhile; also what waits to be called again or to be tried again, since other code took over.
    pub fn look_at_all(&self) {
        self.begin_anew();
        let _ = self.commands.send(Command::LookAtAll);
    }

    /// Takes no more keys and waits until the reconciles in flight have ended, each at its deadline at the latest.
    pub async fn stop(self) {
        self.stop.cancel();
        self.running.close();
        self.running.wait().await;
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

/// What is subscribed to, and a change of it; or none at its end.
type Told = (Arc<Watched>, Option<Change>);

/// What a controller's listener tells of what it hears.
struct Tools {
    queue: Arc<WorkQueue<ObjectKey>>,
    paused: Arc<Paused>,
    holders: Arc<Holders>,
    gate: Arc<Gate<ObjectKey>>,
    guard: Arc<Guard>,
    metrics: PluginMetrics,
}

/// Turns changes into keys.
struct Listener {
    tools: Tools,
    spec: manifest::Controller,
    router: Router,
    /// That not all references are followed was said.
    told_cut: bool,
    changes: SelectAll<BoxStream<'static, Told>>,
    /// What keeps the subscriptions.
    _guards: Vec<Box<dyn std::any::Any + Send + Sync>>,
    kind: watch::Receiver<Option<KindInfo>>,
    primaries: BTreeSet<ObjectKey>,
    /// Primaries that may have gone while nobody listened: looked at once, with those that exist, when all is known.
    vanished: BTreeSet<ObjectKey>,
    /// Why everything is reconciled when all is known.
    cause: Cause,
    resync: Duration,
    /// How many subscriptions have yet to tell all that exists.
    missing: usize,
    caches: watch::Sender<Caches>,
}

impl Listener {
    fn new(tools: Tools, spec: &manifest::Controller, watches: Watches, caches: watch::Sender<Caches>) -> Self {
        tools.holders.clear();
        let mut kind = watch::channel(None).1;
        let mut changes = SelectAll::new();
        let mut guards = Vec::new();
        for (watched, subscription) in watches.subscriptions {
            if watched.roles.contains(&Source::Primary) {
                kind = subscription.kind;
            }
            let watched = Arc::new(watched);
            let told = subscription.changes.map(Some);
            let end = futures::stream::once(std::future::ready(None));
            changes.push(told.chain(end).map(move |change| (watched.clone(), change)).boxed());
            guards.push(subscription.guard);
        }
        Self {
            tools,
            spec: spec.clone(),
            router: Router::new(spec),
            told_cut: false,
            changes,
            missing: guards.len(),
            _guards: guards,
            kind,
            primaries: BTreeSet::new(),
            vanished: BTreeSet::new(),
            cause: Cause::Changed,
            resync: Duration::from_secs(spec.resync_seconds.into()),
            caches,
        }
    }

    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Command>) {
        let period = |length| tokio::time::interval_at(tokio::time::Instant::now() + length, length);
        let mut resync = period(self.resync);
        loop {
            tokio::select! {
                Some((watched, change)) = self.changes.next() => match change {
                    Some(Change::Synced) => self.told_all(),
                    // Before all is known there is no need: everything is reconciled then. Something did happen, so that what waits for its time does not wait for it.
                    Some(Change::Missed) if self.missing == 0 => self.look_at_all(Priority::Initial, Cause::Resync),
                    Some(Change::Missed) => {}
                    Some(change) => {
                        if self.heed(&watched, &change) > MUCH {
                            tokio::task::yield_now().await;
                        }
                    }
                    None => {
                        self.caches.send_replace(Caches::Lost);
                    }
                },
                command = inbox.recv() => match command {
                    // As above.
                    Some(Command::LookAtAll) if self.missing == 0 => {
                        self.look_at_all(Priority::Initial, Cause::Resync);
                    }
                    Some(Command::LookAtAll) => {}
                    Some(Command::Watch(spec, watches, caches)) => {
                        let mut vanished = self.vanished;
                        vanished.append(&mut self.primaries);
                        self = Self::new(self.tools, &spec, watches, caches);
                        (self.vanished, self.cause) = (vanished, Cause::Resync);
                        resync = period(self.resync);
                    }
                    None => return,
                },
                _ = resync.tick() => self.look_at_all(Priority::Resync, Cause::Resync),
            }
        }
    }

    /// One more subscription has told all that exists. What was found is reconciled only when the last one has: a reconcile before that may have looked at an owned object
    /// whose next change came too early to be told as a change.
    fn told_all(&mut self) {
        self.missing = self.missing.saturating_sub(1);
        if self.missing > 0 {
            return;
        }
        self.tools.paused.retain(&self.primaries);
        for key in std::mem::take(&mut self.vanished) {
            self.tools.queue.add(key, Priority::Initial, self.cause);
        }
        self.look_at_all(Priority::Initial, self.cause);
        tracing::debug!(primaries = self.primaries.len(), "caches are synced");
        self.caches.send_if_modified(|caches| {
            let filling = *caches == Caches::Filling;
            if filling {
                *caches = Caches::Synced;
            }
            filling
        });
    }

    /// Answers how many bytes had to be parsed for it.
    fn heed(&mut self, Watched { resource, roles }: &Watched, change: &Change) -> usize {
        let Change::Object { key, old, new, initial } = change else { return 0 };
        let found_early = *initial && self.missing > 0;
        let mut priority = if *initial { Priority::Initial } else { Priority::Live };
        if roles.contains(&Source::Primary)
            && let (Some(old), Some(new)) = (old, new)
            && old.meta.requested() != new.meta.requested()
        {
            priority = Priority::Asked;
            self.tools.gate.try_now();
        }
        let kind = self.kind.borrow().clone();
        let reading = Reading::of(key, old.as_deref(), new.as_deref());
        for role in roles {
            if *role == Source::Primary {
                self.tools.paused.note(key, new.as_deref());
                if new.is_some() {
                    self.primaries.insert(key.clone());
                } else if self.primaries.remove(key) && found_early {
                    self.vanished.insert(key.clone());
                }
                self.tools.holders.count_objects(self.primaries.len());
                self.tools.holders.update(&self.spec, key, new.as_deref());
            }
            // The router is asked in any case: it keeps who refers to what.
            for woken in self.router.route(role, &reading, kind.as_ref()) {
                if !found_early {
                    let order = is_order(role, old.as_deref(), new.as_deref());
                    let [was, now] = [old, new].map(|object| object.as_ref().map(|object| &object.meta));
                    let what = Happened { resource, key, was, now };
                    // Who asks for something else does not wait for what loops.
                    let asked = self.tools.guard.heard(&woken, &what, order);
                    let priority = if asked { Priority::Asked } else { priority };
                    self.tools.queue.add(woken, priority, Cause::Changed);
                }
            }
        }
        if let Some(cut) = self.router.take_cut() {
            self.tools.metrics.exceeded(Limit::References);
            // Of one of many, since the others would say the same.
            if !std::mem::replace(&mut self.told_cut, true) {
                tracing::warn!("{cut}");
            }
        }
        reading.parsed()
    }

    fn look_at_all(&self, priority: Priority, cause: Cause) {
        for key in &self.primaries {
            self.tools.queue.add(key.clone(), priority, cause);
        }
    }
}

/// Whether this may be somebody's order: a new spec, or what is watched and not owned.
fn is_order(role: &Source, old: Option<&Cached>, new: Option<&Cached>) -> bool {
    match role {
        Source::Owned => false,
        Source::Watched(_) => true,
        Source::Primary => match (old, new) {
            (Some(old), Some(new)) => {
                let of = |object: &Cached| {
                    let meta = &object.meta;
                    (meta.generation, meta.labels, meta.annotations, meta.deleting)
                };
                of(old) != of(new)
            }
            _ => true,
        },
    }
}

/// Takes keys whose turn it is and runs them.
struct Dispatcher {
    shared: Arc<Shared>,
    caller: Caller,
    primary: Resource,
    queue: Arc<WorkQueue<ObjectKey>>,
    paused: Arc<Paused>,
    holders: Arc<Holders>,
    gate: Arc<Gate<ObjectKey>>,
    guard: Arc<Guard>,
    running: TaskTracker,
    metrics: Arc<ControllerMetrics>,
    /// The policy of which it was told that it hides objects.
    told: ArcSwapOption<Policy>,
}

impl Dispatcher {
    async fn run(self) {
        let dispatcher = Arc::new(self);
        let shared = &dispatcher.shared;
        loop {
            dispatcher.queue.ready().await;
            let pass = dispatcher.gate.pass().await;
            // The places first and the key last, so that what is most urgent goes when there is room.
            let (own_share, mode) = {
                let version = shared.version.load();
                (version.own_share.clone(), version.mode)
            };
            if own_share.available_permits() == 0 && mode != Mode::Rest {
                dispatcher.metrics.exceeded(Limit::Concurrency);
                tracing::debug!(
                    "keys wait for reconciles that run; limits.concurrency in the Plugin document sets how many run at once"
                );
            }
            // An error means that another version took over, with a share of its own.
            let Ok(own) = own_share.acquire_owned().await else { continue };
            let all = shared.tenant.place().await;
            let Some(job) = dispatcher.queue.try_next() else { continue };
            let run = dispatcher.clone().reconcile(job, pass);
            dispatcher.running.spawn(async move {
                run.await;
                drop((own, all));
            });
        }
    }

    async fn reconcile(self: Arc<Self>, job: Job<ObjectKey>, pass: Pass<ObjectKey>) {
        let version = self.shared.version.load_full();
        // Whatever woke it; when a person lets it go on, or the plugin is not to go after all, that wakes it again.
        let drained = version.mode == Mode::Drain && !self.holders.is_leaving(&job.key);
        if self.paused.contains(&job.key) || drained || !self.may_see(&version, &job.key) {
            self.queue.done(&job.key, Next::Await);
            return;
        }
        let id = format!("{:016x}", rand::random::<u64>());
        let span = tracing::info_span!(
            "reconcile",
            plugin = %self.caller.plugin,
            controller = %self.caller.controller,
            object.namespace = job.key.namespace.as_ref().map(tracing::field::display),
            object.name = %job.key.name,
            reconcile_id = id,
        );
        let errand = self.guard.begin(&job.key);
        let started = Instant::now();
        let counted = self.metrics.begin(job.waited);
        // A panic of the host must not keep the key: one that is never given back would never run again.
        let run = AssertUnwindSafe(self.run_one(&version, &job, id, errand)).catch_unwind().instrument(span.clone());
        let (result, steps) = run
            .await
            .unwrap_or_else(|panic| (Err(Failure::Host(format!("it panicked: {}", told(&*panic)))), Vec::new()));
        let took = started.elapsed();
        counted.end(&result, took);
        self.shared.vitals.reconciled(&self.caller.controller, &job.key, &result);
        let next = match &result {
            Ok(Outcome::AwaitChange) | Err(Failure::Terminal(_)) => Next::Await,
            Ok(Outcome::RequeueAfter(delay)) => Next::After((*delay).max(SOONEST)),
            Err(_) => Next::Retry,
        };
        let verdict = self.guard.ended(&job.key, &steps);
        let delay = match verdict.hold {
            Some(least) => self.queue.hold(&job.key, next, least),
            None => self.queue.done(&job.key, next),
        };
        let _entered = span.entered();
        if let Some(what) = verdict.found {
            self.metrics.found_loop();
            self.shared.vitals.raise_alarm();
            let Loop { what, told } = what;
            tracing::warn!(what, "{LOOPS}");
            let told = self.clone().tell_loop(version, job.key.clone(), told).in_current_span();
            // Without the places of a reconcile, since it waits for the API server.
            self.running.spawn(told);
        }
        let end = match &result {
            Err(failure) if failure.is_guests_end() => End::Stopped(failure.first_line()),
            // Whoever owes the answer may owe it to each of them, and parking would outlast that.
            Err(Failure::Host(_) | Failure::NoRoom { .. } | Failure::Unanswered(_)) => End::Unknown,
            Ok(_) | Err(_) => End::Returned,
        };
        if let Some(news) = self.gate.ended(pass, &job.key, end) {
            self.shared.vitals.parked(&self.caller.controller, &news);
            match news {
                News::Parked(why) => tracing::error!(%why, "controller parked: nothing but traps came of it"),
                News::Back => tracing::info!("controller is no longer parked: a reconcile ended"),
            }
        }
        match result {
            Ok(outcome) => tracing::debug!(?outcome, ?took, cause = ?job.cause, "reconciled"),
            Err(failure) => {
                let retry =
                    delay.map_or_else(|| "when the object changes".to_owned(), |delay| format!("in {delay:.1?}"));
                tracing::error!(reason = failure.reason(), error = %failure, ?took, attempt = job.attempt, retry, "reconcile failed");
            }
        }
    }

    /// Whether the object is the plugin's to see: it is handed over whole, which takes the rules that a watch of it does. What is not is let go without a word to the plugin, and looked at when all is
    /// looked at because it is granted again. What went meanwhile is not told then, as nothing is that goes while a plugin does not run: whoever has to know of it declares a finalizer.
    ///
    /// Beyond what the document in force grants nobody expects anything. What a document takes away that is not in force, since something is wrong with it, is told, once.
    fn may_see(&self, version: &Version, key: &ObjectKey) -> bool {
        let (namespace, name) = (key.namespace.as_ref(), Some(&key.name));
        let now = self.shared.policy.load_full();
        if !(version.scope.contains(namespace) && now.bounds.contains(namespace)) {
            return false;
        }
        let lacking = |policy: &Policy| {
            let access = |verb| Access { verb, resource: &self.primary, subresource: None, namespace, name };
            [Verb::List, Verb::Watch].into_iter().find_map(|verb| policy.grants.check(&access(verb)).err())
        };
        let earlier = Some(&version.policy).filter(|policy| !Arc::ptr_eq(policy, &now));
        let Some(denial) = lacking(&now).or_else(|| lacking(earlier?)) else { return true };
        tracing::debug!(plugin = %self.caller.plugin, controller = %self.caller.controller, %key, lacking = denial.what, "not the plugin's to see");
        if now.grants.within.is_some() {
            let told = self.told.swap(Some(now.clone()));
            if !told.is_some_and(|told| Arc::ptr_eq(&told, &now)) {
                (version.ports.denials)(&denial);
            }
        }
        false
    }

    /// Tells those who see the object, as far as the plugin's rights reach.
    async fn tell_loop(self: Arc<Self>, version: Arc<Version>, key: ObjectKey, told: String) {
        let (began, now) = (version.policy.clone(), self.shared.policy.clone());
        let effects = Effects::since(began, self.caller.clone(), now, version.ports.clone());
        let event = Event {
            resource: self.primary.clone(),
            key,
            severity: Severity::Warning,
            reason: "Looping".to_owned(),
            action: "SlowDown".to_owned(),
            message: format!("{told}: {LOOPS}"),
        };
        match effects.announce(event).await {
            Ok(true) => {}
            Ok(false) => tracing::debug!("no event says so at the object, since the plugin may publish none"),
            Err(error) => tracing::warn!(%error, "no event says so at the object"),
        }
    }

    /// Answers what its writes did, too.
    async fn run_one(
        &self,
        version: &Version,
        job: &Job<ObjectKey>,
        id: String,
        errand: Errand,
    ) -> (Result<Outcome, Failure>, Vec<Step>) {
        let object = match version.ports.kubernetes.get(&self.caller, &self.primary, &job.key, false).await {
            Ok(object) => Some(Arc::clone(&object.json)),
            Err(ApiError::NotFound(_)) => None,
            Err(error) => {
                let failure = Failure::Host(format!("reading {} {}: {error}", self.primary, job.key));
                return (Err(failure), Vec::new());
            }
        };
        // What was taken away while it was read is not handed over.
        if !self.may_see(version, &job.key) {
            return (Ok(Outcome::AwaitChange), Vec::new());
        }
        let ports = Ports { log: Arc::new(ReconcileLog::new(&self.caller, &job.key, id)), ..version.ports.clone() };
        let (began, now) = (version.policy.clone(), self.shared.policy.clone());
        let effects = Arc::new(Effects::since(began, self.caller.clone(), now, ports).on(errand));
        let request = Request {
            controller: self.caller.controller.clone(),
            key: job.key.clone(),
            object,
            attempt: job.attempt,
            cause: job.cause,
        };
        let result = version.reconciler.reconcile(request, effects.clone()).await;
        (effects.concluded(result), effects.steps())
    }
}

/// What a panic says.
fn told(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
}

#[cfg(test)]
mod tests;
