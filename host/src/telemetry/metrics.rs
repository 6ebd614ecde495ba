//! Metrics, under controller-runtime's names where it has one, so that dashboards and alerts made for it work unchanged.

mod series;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use operetta_cluster::informer::CacheBudget;
use operetta_core::{
    effect::{Meter, Policy, Rates},
    limit::Limit,
    looping::Guard,
    name::PluginName,
    park::Gate,
    port::Caller,
    queue::WorkQueue,
    reconcile::{Failure, Outcome},
    resource::ObjectKey,
};
use operetta_sandbox::GuestBudget;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text},
    metrics::{
        MetricType,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};
use tokio::time::Instant;

use self::series::{Forget, OfPlugin, PluginSeries};
use super::{cache::Caches, guests::Guests, process::Process};
use crate::paused::Paused;

/// Whose reconcile.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct Whose {
    /// `PLUGIN/CONTROLLER`, since a controller's name is unique within its plugin only.
    controller: String,
    plugin: String,
}

impl Whose {
    fn of(caller: &Caller) -> Self {
        let Caller { plugin, controller } = caller;
        Self { controller: format!("{plugin}/{controller}"), plugin: plugin.to_string() }
    }
}

/// Whose queue. The work queue of client-go calls it `name`, and controller-runtime adds `controller`, which is the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Queue {
    controller: String,
    name: String,
    plugin: String,
}

impl Queue {
    fn of(whose: &Whose) -> Self {
        let Whose { controller, plugin } = whose.clone();
        Self { name: controller.clone(), controller, plugin }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhoseResult {
    controller: String,
    plugin: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhoseReason {
    controller: String,
    plugin: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Which {
    plugin: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhichGrant {
    plugin: String,
    grant: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhichLimit {
    plugin: String,
    limit: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Loaded {
    plugin: String,
    version: String,
    digest: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lease {
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    code: String,
    host: String,
    method: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhichAnswer {
    code: String,
    method: String,
    plugin: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LoadResult {
    plugin: String,
    result: &'static str,
}

macro_rules! labels_of_plugins {
    ($($labels:ident)*) => {
        $(impl OfPlugin for $labels {
            fn plugin(&self) -> &str {
                &self.plugin
            }
        })*
    };
}

labels_of_plugins!(Whose Queue WhoseResult WhoseReason WhichGrant WhichLimit Loaded WhichAnswer LoadResult);

/// The last requests of a plugin that was removed may still be answered, and be counted, for some time.
const STRAGGLERS: Duration = Duration::from_mins(10);

/// controller-runtime's buckets reach from 5 ms to 60 s; a sandboxed reconcile that reads from the cache takes well under one.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.5, 15))
}

/// All metrics of the host.
pub struct Metrics {
    registry: Registry,
    reconciles: PluginSeries<WhoseResult, Counter>,
    errors: PluginSeries<Whose, Counter>,
    terminal: PluginSeries<Whose, Counter>,
    panics: PluginSeries<Whose, Counter>,
    timeouts: PluginSeries<Whose, Counter>,
    times: PluginSeries<Whose, Histogram>,
    waited: PluginSeries<Queue, Histogram>,
    worked: PluginSeries<Queue, Histogram>,
    failures: PluginSeries<WhoseReason, Counter>,
    denials: PluginSeries<WhichGrant, Counter>,
    exceeded: PluginSeries<WhichLimit, Counter>,
    cpu: PluginSeries<Whose, Counter<f64, AtomicU64>>,
    memory: PluginSeries<Whose, Gauge>,
    memory_peak: PluginSeries<Whose, Gauge>,
    loops: PluginSeries<Whose, Counter>,
    loads: PluginSeries<LoadResult, Counter>,
    loaded: PluginSeries<Loaded, Gauge>,
    leader: Family<Lease, Gauge>,
    answers: Family<Answer, Counter>,
    asked: PluginSeries<WhichAnswer, Counter>,
    controllers: Arc<Controllers>,
    meters: Arc<Meters>,
    /// Plugins that were removed, and when.
    gone: Mutex<HashMap<String, Instant>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::of(Arc::default(), Arc::default())
    }
}

impl Metrics {
    /// With these caches and what guests hold among them.
    pub fn of(caches: Arc<CacheBudget>, guests: Arc<GuestBudget>) -> Self {
        let mut registry = Registry::default();
        macro_rules! register {
            ($name:literal, $help:literal, $family:expr) => {{
                let family = $family;
                registry.register($name, $help, family.clone());
                family
            }};
        }
        macro_rules! of_plugin {
            ($($args:tt)*) => {
                PluginSeries::of(register!($($args)*))
            };
        }
        let controllers = Arc::new(Controllers::default());
        registry.register_collector(Box::new(controllers.clone()));
        let meters = Arc::new(Meters::default());
        registry.register_collector(Box::new(meters.clone()));
        registry.register_collector(Box::new(Process::new()));
        registry.register_collector(Box::new(Caches(caches)));
        registry.register_collector(Box::new(Guests(guests)));
        Self {
            reconciles: of_plugin!(
                "controller_runtime_reconcile",
                "Reconciles by result: success, error, requeue_after",
                Family::default()
            ),
            errors: of_plugin!("controller_runtime_reconcile_errors", "Reconciles that failed", Family::default()),
            terminal: of_plugin!(
                "controller_runtime_terminal_reconcile_errors",
                "Reconciles that failed and are not tried again until the object changes",
                Family::default()
            ),
            panics: of_plugin!("controller_runtime_reconcile_panics", "Reconciles that trapped", Family::default()),
            timeouts: of_plugin!(
                "controller_runtime_reconcile_timeouts",
                "Reconciles that took longer than their deadline",
                Family::default()
            ),
            times: of_plugin!(
                "controller_runtime_reconcile_time_seconds",
                "Time of a reconcile",
                Family::new_with_constructor(seconds as fn() -> Histogram)
            ),
            waited: of_plugin!(
                "workqueue_queue_duration_seconds",
                "How long a key was ready before it ran",
                Family::new_with_constructor(seconds as fn() -> Histogram)
            ),
            worked: of_plugin!(
                "workqueue_work_duration_seconds",
                "How long a key was worked on",
                Family::new_with_constructor(seconds as fn() -> Histogram)
            ),
            failures: of_plugin!(
                "operetta_reconcile_failures",
                "Reconciles that failed, by reason: Error, TerminalError, Trap, DeadlineExceeded, CPUExceeded, MemoryExceeded, GuestMemoryExhausted, TablesExceeded, StackExceeded, LimitExceeded, HostError",
                Family::default()
            ),
            denials: of_plugin!(
                "operetta_denials",
                "Effects that were not granted, by the kind of grant that they lack: rules, channels, databases, events, or none where nothing would allow them",
                Family::default()
            ),
            exceeded: of_plugin!(
                "operetta_limit_exceeded",
                "Limits that were met, by limit; what each is for, the Plugin document says",
                Family::default()
            ),
            cpu: of_plugin!(
                "operetta_reconcile_cpu_seconds",
                "CPU time of reconciles, host calls included",
                Family::default()
            ),
            memory: of_plugin!(
                "operetta_reconcile_memory_bytes",
                "Linear memory of the last reconcile",
                Family::default()
            ),
            memory_peak: of_plugin!(
                "operetta_reconcile_memory_peak_bytes",
                "The most linear memory that a reconcile had since the controller runs",
                Family::default()
            ),
            loops: of_plugin!(
                "operetta_write_loops",
                "Loops that were found: of writes that wake their own controller, or that somebody undoes",
                Family::default()
            ),
            loads: of_plugin!(
                "operetta_plugin_loads",
                "Loads of a plugin by result: success, error",
                Family::default()
            ),
            loaded: of_plugin!("operetta_plugin_info", "The plugins that run", Family::default()),
            leader: register!(
                "leader_election_master_status",
                "Whether this host holds the lease: 1, or 0 while another one does",
                Family::default()
            ),
            answers: register!(
                "rest_client_requests",
                "Requests to the API server, by method and HTTP status; <error> where no answer came",
                Family::default()
            ),
            asked: of_plugin!(
                "operetta_plugin_api_requests",
                "Requests to the API server as a plugin's account, watches and questions about its rights among them, by method and HTTP status; <error> where no answer came",
                Family::default()
            ),
            controllers,
            meters,
            gone: Mutex::default(),
            registry,
        }
    }
}

impl Metrics {
    /// In the text format of `OpenMetrics`.
    ///
    /// # Errors
    /// Never in practice: writing to a string does not fail.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        self.sweep();
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// For one controller, for as long as somebody holds the answer.
    pub fn controller(self: &Arc<Self>, caller: &Caller, seen: Seen) -> Arc<ControllerMetrics> {
        let metrics = Arc::new(ControllerMetrics {
            all: self.clone(),
            whose: Whose::of(caller),
            seen,
            runs: AtomicU64::new(0),
            running: Mutex::default(),
        });
        self.is_back(&metrics.whose.plugin);
        metrics.begin_with_zero();
        let mut controllers = self.controllers.lock();
        // Nobody may ever ask for those that are gone.
        controllers.retain(|controller| controller.strong_count() > 0);
        controllers.push(Arc::downgrade(&metrics));
        drop(controllers);
        metrics
    }

    fn gone(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_back(&self, plugin: &str) {
        self.gone().remove(plugin);
    }

    /// Takes the series of plugins that were removed, and of what is still counted of them afterwards.
    fn sweep(&self) {
        let mut gone = self.gone();
        for plugin in gone.keys() {
            for series in self.of_plugins() {
                series.forget(plugin);
            }
            self.meters.lock().remove(plugin);
        }
        gone.retain(|_, since| since.elapsed() < STRAGGLERS);
    }

    fn of_plugins(&self) -> [&dyn Forget; 18] {
        [
            &self.reconciles,
            &self.errors,
            &self.terminal,
            &self.panics,
            &self.timeouts,
            &self.times,
            &self.waited,
            &self.worked,
            &self.failures,
            &self.denials,
            &self.exceeded,
            &self.cpu,
            &self.memory,
            &self.memory_peak,
            &self.loops,
            &self.loads,
            &self.loaded,
            &self.asked,
        ]
    }

    /// What one reconcile used.
    pub fn used(&self, caller: &Caller, cpu: Duration, memory: usize) {
        let whose = Whose::of(caller);
        self.cpu.get_or_create(&whose).inc_by(cpu.as_secs_f64());
        let memory = i64::try_from(memory).unwrap_or(i64::MAX);
        self.memory.get_or_create(&whose).set(memory);
        self.memory_peak.get_or_create(&whose).inner().fetch_max(memory, Ordering::Relaxed);
    }

    fn exceeded(&self, plugin: &str, limit: Limit) {
        self.exceeded.get_or_create(&WhichLimit { plugin: plugin.to_owned(), limit: limit.label() }).inc();
    }

    /// This host holds the lease from now on, or no longer.
    pub fn leads(&self, lease: &str, leads: bool) {
        self.leader.get_or_create(&Lease { name: lease.to_owned() }).set(leads.into());
    }

    /// The API server at `host` answered a request, made for this plugin or for the host itself, with this HTTP status, or not at all.
    pub fn answered(&self, host: &str, method: &str, code: Option<u16>, plugin: Option<&PluginName>) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        if let Some(plugin) = plugin {
            let asked = WhichAnswer { code: code.clone(), method: method.to_owned(), plugin: plugin.to_string() };
            self.asked.get_or_create(&asked).inc();
        }
        self.answers.get_or_create(&Answer { code, host: host.to_owned(), method: method.to_owned() }).inc();
    }

    /// For one plugin.
    pub fn plugin(self: &Arc<Self>, plugin: &PluginName) -> PluginMetrics {
        PluginMetrics { all: self.clone(), plugin: plugin.to_string() }
    }
}

/// The metrics of one plugin.
#[derive(Clone)]
pub struct PluginMetrics {
    all: Arc<Metrics>,
    plugin: String,
}

impl PluginMetrics {
    /// What is counted over all its reconciles, until it is removed.
    pub fn rates(&self) -> Arc<Rates> {
        self.all.is_back(&self.plugin);
        self.all.meters.lock().entry(self.plugin.clone()).or_default().clone()
    }

    /// An effect lacked a grant of this kind.
    pub fn denied(&self, grant: &'static str) {
        self.all.denials.get_or_create(&WhichGrant { plugin: self.plugin.clone(), grant }).inc();
    }

    /// A limit was met.
    pub fn exceeded(&self, limit: Limit) {
        self.all.exceeded(&self.plugin, limit);
    }

    /// A load failed.
    pub fn load_failed(&self) {
        self.all.is_back(&self.plugin);
        self.all.loads.get_or_create(&LoadResult { plugin: self.plugin.clone(), result: "error" }).inc();
    }

    /// This version runs from now on.
    pub fn loaded(&self, version: &str, digest: &str, before: Option<(String, String)>) {
        self.all.is_back(&self.plugin);
        self.all.loads.get_or_create(&LoadResult { plugin: self.plugin.clone(), result: "success" }).inc();
        if let Some((version, digest)) = before {
            self.unloaded(&version, &digest);
        }
        self.all.loaded.get_or_create(&self.label(version, digest)).set(1);
    }

    /// It runs no more.
    pub fn unloaded(&self, version: &str, digest: &str) {
        self.all.loaded.remove(&self.label(version, digest));
    }

    /// It was removed, and its series go. One that is exchanged or suspended keeps them.
    pub fn removed(&self) {
        self.all.gone().insert(self.plugin.clone(), Instant::now());
        self.all.sweep();
    }

    fn label(&self, version: &str, digest: &str) -> Loaded {
        Loaded { plugin: self.plugin.clone(), version: version.to_owned(), digest: digest.to_owned() }
    }
}

/// What is read of one controller when somebody asks.
pub struct Seen {
    /// What waits.
    pub queue: Arc<WorkQueue<ObjectKey>>,
    /// What it may use.
    pub policy: Arc<ArcSwap<Policy>>,
    /// What a person has paused.
    pub paused: Arc<Paused>,
    /// Whether it is parked.
    pub gate: Arc<Gate<ObjectKey>>,
    /// What loops.
    pub guard: Arc<Guard>,
}

/// The metrics of one controller.
pub struct ControllerMetrics {
    all: Arc<Metrics>,
    whose: Whose,
    seen: Seen,
    /// Numbers the reconciles.
    runs: AtomicU64,
    /// When those that run now began.
    running: Mutex<BTreeMap<u64, Instant>>,
}

impl ControllerMetrics {
    /// Each series begins at once, as with controller-runtime, so that a rate over the first failure is more than nothing.
    fn begin_with_zero(&self) {
        let all = &self.all;
        for family in [&all.errors, &all.terminal, &all.panics, &all.timeouts, &all.loops] {
            drop(family.get_or_create(&self.whose));
        }
        for result in ["success", "error", "requeue_after"] {
            drop(all.reconciles.get_or_create(&self.with_result(result)));
        }
    }

    fn with_result(&self, result: &'static str) -> WhoseResult {
        let Whose { controller, plugin } = self.whose.clone();
        WhoseResult { controller, plugin, result }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Instant>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A limit of the plugin was met.
    pub fn exceeded(&self, limit: Limit) {
        self.all.exceeded(&self.whose.plugin, limit);
    }

    /// A key loops.
    pub fn found_loop(&self) {
        self.all.loops.get_or_create(&self.whose).inc();
    }

    /// A reconcile begins, after its key waited so long. It runs until the answer is dropped.
    pub fn begin(&self, waited: Duration) -> Counted<'_> {
        self.all.waited.get_or_create(&Queue::of(&self.whose)).observe(waited.as_secs_f64());
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(run, Instant::now());
        Counted { metrics: self, run }
    }
}

impl Drop for ControllerMetrics {
    fn drop(&mut self) {
        // The counters stay until the plugin is removed, since a controller may come back; what was true only while it ran goes.
        self.all.memory.remove(&self.whose);
        self.all.memory_peak.remove(&self.whose);
    }
}

/// A reconcile that runs.
pub struct Counted<'a> {
    metrics: &'a ControllerMetrics,
    run: u64,
}

impl Counted<'_> {
    /// It ended.
    pub fn end(self, result: &Result<Outcome, Failure>, took: Duration) {
        let Self { metrics, .. } = &self;
        let (all, whose) = (&metrics.all, &metrics.whose);
        all.times.get_or_create(whose).observe(took.as_secs_f64());
        all.worked.get_or_create(&Queue::of(whose)).observe(took.as_secs_f64());
        let result = match result {
            Ok(Outcome::AwaitChange) => "success",
            Ok(Outcome::RequeueAfter(_)) => "requeue_after",
            Err(failure) => {
                all.errors.get_or_create(whose).inc();
                let counter = match failure {
                    Failure::Terminal(_) => Some(&all.terminal),
                    Failure::Trap(_) => Some(&all.panics),
                    Failure::Deadline(_) | Failure::Unanswered(_) => Some(&all.timeouts),
                    _ => None,
                };
                if let Some(counter) = counter {
                    counter.get_or_create(whose).inc();
                }
                if let Some(limit) = failure.limit() {
                    metrics.exceeded(limit);
                }
                let Whose { controller, plugin } = whose.clone();
                all.failures.get_or_create(&WhoseReason { controller, plugin, reason: failure.reason() }).inc();
                "error"
            }
        };
        all.reconciles.get_or_create(&metrics.with_result(result)).inc();
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.metrics.lock().remove(&self.run);
    }
}

/// The controllers at work, read when somebody asks. Of one whose kind was exchanged, the old one may still end its reconciles beside the new one; they count together.
#[derive(Default)]
struct Controllers(Mutex<Vec<Weak<ControllerMetrics>>>);

impl std::fmt::Debug for Controllers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Controllers")
    }
}

/// One controller as it is now.
#[derive(Default, Clone, Copy)]
struct Snapshot {
    depth: i64,
    adds: u64,
    retries: u64,
    running: i64,
    at_most: i64,
    paused: i64,
    parked: i64,
    looping: i64,
    unfinished: f64,
    longest: f64,
}

impl Controllers {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<ControllerMetrics>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn snapshots(&self) -> BTreeMap<Whose, Snapshot> {
        let mut controllers = self.lock();
        controllers.retain(|controller| controller.strong_count() > 0);
        let controllers: Vec<_> = controllers.iter().filter_map(Weak::upgrade).collect();
        let mut snapshots = BTreeMap::<_, Snapshot>::new();
        let whole = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for controller in controllers {
            let snapshot = snapshots.entry(controller.whose.clone()).or_default();
            let (adds, retries) = controller.seen.queue.totals();
            snapshot.depth += whole(controller.seen.queue.depth().ready);
            snapshot.adds += adds;
            snapshot.retries += retries;
            snapshot.paused += whole(controller.seen.paused.count());
            snapshot.looping += whole(controller.seen.guard.loops().len());
            snapshot.parked = snapshot.parked.max(controller.seen.gate.is_parked().into());
            snapshot.at_most = whole(controller.seen.policy.load().limits.concurrency);
            for began in controller.lock().values() {
                let age = began.elapsed().as_secs_f64();
                snapshot.running += 1;
                snapshot.unfinished += age;
                snapshot.longest = snapshot.longest.max(age);
            }
        }
        snapshots
    }
}

impl Collector for Controllers {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let snapshots = self.snapshots();
        let mut family = |name: &str, help, series: &dyn Fn(&Snapshot) -> Box<dyn EncodeMetric>, of_queue: bool| {
            let Some(any) = snapshots.values().next() else { return Ok(()) };
            let mut family = encoder.encode_descriptor(name, help, None, series(any).metric_type())?;
            for (whose, snapshot) in &snapshots {
                let (queue, metric) = (Queue::of(whose), series(snapshot));
                metric.encode(if of_queue { family.encode_family(&queue)? } else { family.encode_family(whose)? })?;
            }
            Ok::<_, std::fmt::Error>(())
        };
        family("workqueue_depth", "Keys that are ready and wait", &|s| Box::new(ConstGauge::new(s.depth)), true)?;
        family("workqueue_adds", "Events that reached the queue", &|s| Box::new(ConstCounter::new(s.adds)), true)?;
        family(
            "workqueue_retries",
            "Keys put back after a failure",
            &|s| Box::new(ConstCounter::new(s.retries)),
            true,
        )?;
        family(
            "workqueue_unfinished_work_seconds",
            "How long the reconciles that run now have run together",
            &|s| Box::new(ConstGauge::new(s.unfinished)),
            true,
        )?;
        family(
            "workqueue_longest_running_processor_seconds",
            "How long the oldest of the reconciles that run now has run",
            &|s| Box::new(ConstGauge::new(s.longest)),
            true,
        )?;
        family(
            "controller_runtime_active_workers",
            "Reconciles that run now",
            &|s| Box::new(ConstGauge::new(s.running)),
            false,
        )?;
        family(
            "controller_runtime_max_concurrent_reconciles",
            "Reconciles of the plugin that may run at once",
            &|s| Box::new(ConstGauge::new(s.at_most)),
            false,
        )?;
        family(
            "operetta_paused_objects",
            "Objects that a person has paused",
            &|s| Box::new(ConstGauge::new(s.paused)),
            false,
        )?;
        family(
            "operetta_plugin_parked",
            "Whether nothing but traps came of the controller, so that it is only tried now and then: 1, or 0",
            &|s| Box::new(ConstGauge::new(s.parked)),
            false,
        )?;
        family(
            "operetta_looping_objects",
            "Objects for which the controller is slowed, since its own writes wake it again and again or somebody undoes them",
            &|s| Box::new(ConstGauge::new(s.looping)),
            false,
        )
    }
}

/// What each plugin used, read when somebody asks.
#[derive(Debug, Default)]
struct Meters(Mutex<BTreeMap<String, Arc<Rates>>>);

impl Meters {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Rates>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhichCall {
    plugin: String,
    verb: &'static str,
    result: &'static str,
}

impl Collector for Meters {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let meters = self.lock().clone();
        let calls: Vec<_> = meters
            .iter()
            .flat_map(|(plugin, rates)| {
                rates.meter.calls().map(|(call, ending, count)| {
                    (WhichCall { plugin: plugin.clone(), verb: call.label(), result: ending.label() }, count)
                })
            })
            .collect();
        if !calls.is_empty() {
            let (name, help) = (
                "operetta_plugin_requests",
                "Effects that plugins asked for, by verb (those of RBAC, publish, grpc, sql) and result; a cache may have answered",
            );
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (labels, count) in calls {
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        if meters.is_empty() {
            return Ok(());
        }
        let mut family = |name, help, unit, count: fn(&Meter) -> u64| {
            let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
            for (plugin, rates) in &meters {
                let labels = Which { plugin: plugin.clone() };
                ConstCounter::new(count(&rates.meter)).encode(family.encode_family(&labels)?)?;
            }
            Ok(())
        };
        let bytes = Some(&Unit::Bytes);
        family("operetta_plugin_transmit", "Bytes of the arguments of a plugin's host calls", bytes, |m| m.bytes().0)?;
        family("operetta_plugin_receive", "Bytes of the answers to a plugin's host calls", bytes, |m| m.bytes().1)?;
        let help = "Host calls of a plugin, as limits.hostCalls counts them";
        family("operetta_plugin_host_calls", help, None, Meter::host_calls)
    }
}

#[cfg(test)]
mod tests;
