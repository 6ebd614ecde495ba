//! Metrics, under controller-runtime's names where it has one, so that dashboards and alerts made for it work unchanged.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak, atomic::AtomicU64},
    time::Duration,
};

use operetta_core::{
    name::{ControllerName, PluginName},
    port::Caller,
    queue::WorkQueue,
    reconcile::{Failure, Outcome},
    resource::ObjectKey,
};
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
    registry::Registry,
};

/// Whose reconcile.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct Whose {
    /// `PLUGIN/CONTROLLER`, since a controller's name is unique within its plugin only.
    controller: String,
    plugin: String,
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
struct Loaded {
    plugin: String,
    version: String,
    digest: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LoadResult {
    plugin: String,
    result: &'static str,
}

/// controller-runtime's buckets reach from 5 ms to 60 s; a sandboxed reconcile that reads from the cache takes well under one.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.5, 15))
}

/// All metrics of the host.
pub struct Metrics {
    registry: Registry,
    reconciles: Family<WhoseResult, Counter>,
    errors: Family<Whose, Counter>,
    terminal: Family<Whose, Counter>,
    times: Family<Whose, Histogram, fn() -> Histogram>,
    active: Family<Whose, Gauge>,
    waited: Family<Whose, Histogram, fn() -> Histogram>,
    failures: Family<WhoseReason, Counter>,
    denials: Family<Which, Counter>,
    cpu: Family<Whose, Counter<f64, AtomicU64>>,
    memory: Family<Whose, Gauge>,
    loads: Family<LoadResult, Counter>,
    loaded: Family<Loaded, Gauge>,
    queues: Arc<Queues>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        macro_rules! register {
            ($name:literal, $help:literal, $family:expr) => {{
                let family = $family;
                registry.register($name, $help, family.clone());
                family
            }};
        }
        let queues = Arc::new(Queues::default());
        registry.register_collector(Box::new(queues.clone()));
        Self {
            reconciles: register!(
                "controller_runtime_reconcile",
                "Reconciles by result: success, error, requeue_after",
                Family::default()
            ),
            errors: register!("controller_runtime_reconcile_errors", "Reconciles that failed", Family::default()),
            terminal: register!(
                "controller_runtime_terminal_reconcile_errors",
                "Reconciles that failed and are not tried again until the object changes",
                Family::default()
            ),
            times: register!(
                "controller_runtime_reconcile_time_seconds",
                "Time of a reconcile",
                Family::new_with_constructor(seconds as fn() -> Histogram)
            ),
            active: register!("controller_runtime_active_workers", "Reconciles that run now", Family::default()),
            waited: register!(
                "workqueue_queue_duration_seconds",
                "How long a key was ready before it ran",
                Family::new_with_constructor(seconds as fn() -> Histogram)
            ),
            failures: register!(
                "operetta_reconcile_failures",
                "Reconciles that failed, by reason: Error, TerminalError, Trap, DeadlineExceeded, CPUExceeded, MemoryExceeded, LimitExceeded, HostError",
                Family::default()
            ),
            denials: register!("operetta_denials", "Effects that were not granted", Family::default()),
            cpu: register!(
                "operetta_reconcile_cpu_seconds",
                "CPU time of reconciles, host calls included",
                Family::default()
            ),
            memory: register!(
                "operetta_reconcile_memory_bytes",
                "Linear memory of the last reconcile",
                Family::default()
            ),
            loads: register!("operetta_plugin_loads", "Loads of a plugin by result: success, error", Family::default()),
            loaded: register!("operetta_plugin_info", "The plugins that run", Family::default()),
            queues,
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
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// For one controller.
    pub fn controller(self: &Arc<Self>, plugin: &PluginName, controller: &ControllerName) -> Arc<ControllerMetrics> {
        let whose = Whose { controller: format!("{plugin}/{controller}"), plugin: plugin.to_string() };
        Arc::new(ControllerMetrics { all: self.clone(), whose })
    }

    /// What one reconcile used.
    pub fn used(&self, caller: &Caller, cpu: Duration, memory: usize) {
        let Caller { plugin, controller } = caller;
        let whose = Whose { controller: format!("{plugin}/{controller}"), plugin: plugin.to_string() };
        self.cpu.get_or_create(&whose).inc_by(cpu.as_secs_f64());
        self.memory.get_or_create(&whose).set(i64::try_from(memory).unwrap_or(i64::MAX));
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
    /// An effect was not granted.
    pub fn denied(&self) {
        self.all.denials.get_or_create(&Which { plugin: self.plugin.clone() }).inc();
    }

    /// A load failed.
    pub fn load_failed(&self) {
        self.all.loads.get_or_create(&LoadResult { plugin: self.plugin.clone(), result: "error" }).inc();
    }

    /// This version runs from now on.
    pub fn loaded(&self, version: &str, digest: &str, before: Option<(String, String)>) {
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

    fn label(&self, version: &str, digest: &str) -> Loaded {
        Loaded { plugin: self.plugin.clone(), version: version.to_owned(), digest: digest.to_owned() }
    }
}

/// The metrics of one controller.
pub struct ControllerMetrics {
    all: Arc<Metrics>,
    whose: Whose,
}

impl ControllerMetrics {
    /// The depth of this queue is told from now on.
    pub fn observe(&self, queue: &Arc<WorkQueue<ObjectKey>>) {
        self.all.queues.lock().insert(self.whose.clone(), Arc::downgrade(queue));
    }

    /// The controller stopped.
    pub fn forget(&self) {
        self.all.queues.lock().remove(&self.whose);
        self.all.active.remove(&self.whose);
    }

    /// A reconcile begins, after its key waited so long.
    pub fn started(&self, waited: Duration) {
        self.all.active.get_or_create(&self.whose).inc();
        self.all.waited.get_or_create(&self.whose).observe(waited.as_secs_f64());
    }

    /// A reconcile ended.
    pub fn ended(&self, result: &Result<Outcome, Failure>, took: Duration) {
        let all = &self.all;
        all.active.get_or_create(&self.whose).dec();
        all.times.get_or_create(&self.whose).observe(took.as_secs_f64());
        let Whose { controller, plugin } = self.whose.clone();
        let result = match result {
            Ok(Outcome::AwaitChange) => "success",
            Ok(Outcome::RequeueAfter(_)) => "requeue_after",
            Err(failure) => {
                all.errors.get_or_create(&self.whose).inc();
                if matches!(failure, Failure::Terminal(_)) {
                    all.terminal.get_or_create(&self.whose).inc();
                }
                let (controller, plugin) = (controller.clone(), plugin.clone());
                all.failures.get_or_create(&WhoseReason { controller, plugin, reason: failure.reason() }).inc();
                "error"
            }
        };
        all.reconciles.get_or_create(&WhoseResult { controller, plugin, result }).inc();
    }
}

/// The queues, read when somebody asks.
#[derive(Default)]
struct Queues(Mutex<BTreeMap<Whose, Weak<WorkQueue<ObjectKey>>>>);

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queues")
    }
}

impl Queues {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Whose, Weak<WorkQueue<ObjectKey>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Queues {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let queues: Vec<_> =
            self.lock().iter().filter_map(|(whose, queue)| Some((whose.clone(), queue.upgrade()?))).collect();
        let mut depth =
            encoder.encode_descriptor("workqueue_depth", "Keys that are ready and wait", None, MetricType::Gauge)?;
        for (whose, queue) in &queues {
            let ready = i64::try_from(queue.depth().ready).unwrap_or(i64::MAX);
            ConstGauge::new(ready).encode(depth.encode_family(whose)?)?;
        }
        let mut adds =
            encoder.encode_descriptor("workqueue_adds", "Events that reached the queue", None, MetricType::Counter)?;
        for (whose, queue) in &queues {
            ConstCounter::new(queue.totals().0).encode(adds.encode_family(whose)?)?;
        }
        let mut retries = encoder.encode_descriptor(
            "workqueue_retries",
            "Keys put back after a failure",
            None,
            MetricType::Counter,
        )?;
        for (whose, queue) in &queues {
            ConstCounter::new(queue.totals().1).encode(retries.encode_family(whose)?)?;
        }
        Ok(())
    }
}
