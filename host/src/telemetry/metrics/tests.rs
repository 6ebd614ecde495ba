//! The metrics as a dashboard sees them. `UPDATE_EXPECT=1 cargo test` rewrites the list.
#![allow(clippy::float_cmp, reason = "counters are whole numbers")]

use std::collections::BTreeSet;

use expect_test::expect;
use operetta_core::{
    backoff::Backoff,
    effect::{Call, Ending},
    limit::Exceeded,
    name::ControllerName,
    queue::{Next, Priority},
    reconcile::Cause,
};
use tokio::time::advance;

use super::*;

struct Scene {
    metrics: Arc<Metrics>,
    queue: Arc<WorkQueue<ObjectKey>>,
    controller: Arc<ControllerMetrics>,
}

fn seen(queue: &Arc<WorkQueue<ObjectKey>>) -> Seen {
    let (policy, paused, gate) = Default::default();
    let guard = Arc::new(Guard::new(caller().controller, Arc::default()));
    Seen { queue: queue.clone(), policy, paused, gate, guard }
}

fn caller() -> Caller {
    Caller { plugin: PluginName::parse("demo").unwrap(), controller: ControllerName::parse("main").unwrap() }
}

fn scene() -> Scene {
    let metrics = Arc::new(Metrics::default());
    let queue = Arc::new(WorkQueue::new(Backoff::default()));
    let controller = metrics.controller(&caller(), seen(&queue));
    Scene { metrics, queue, controller }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::parse(Some("n"), name).unwrap()
}

impl Scene {
    fn value(&self, series: &str) -> Option<f64> {
        let text = self.metrics.encode().unwrap();
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// Of the controller's series of this name.
    fn of(&self, name: &str) -> Option<f64> {
        self.value(&format!("{name}{{controller=\"demo/main\",plugin=\"demo\"}}"))
    }

    /// Of its queue's.
    fn of_queue(&self, name: &str) -> Option<f64> {
        self.value(&format!("{name}{{controller=\"demo/main\",name=\"demo/main\",plugin=\"demo\"}}"))
    }
}

/// Name, type and labels of each metric.
fn listed(text: &str) -> String {
    let mut list = BTreeSet::new();
    let mut kind = "";
    for line in text.lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            kind = typed.split_once(' ').unwrap().1;
        }
        if line.starts_with('#') {
            continue;
        }
        let series = line.rsplit_once(' ').unwrap().0;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels: Vec<_> = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0)).collect();
        list.insert(format!("{name} {kind} {}", labels.join(",")).trim_end().to_owned());
    }
    list.into_iter().collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn the_metrics_have_the_names_and_labels_that_dashboards_know() {
    let scene = scene();
    scene.metrics.used(&caller(), Duration::from_millis(3), 1 << 20);
    let result = Err(Failure::Retryable("no".into()));
    scene.controller.begin(Duration::ZERO).end(&result, Duration::from_millis(5));
    let plugin = scene.metrics.plugin(&caller().plugin);
    plugin.loaded("1.0.0", "abc", None);
    plugin.load_failed();
    plugin.denied("rules");
    plugin.exceeded(Limit::Message);
    scene.metrics.leads("host", true);
    scene.metrics.answered("127.0.0.1:6443", "GET", Some(200), Some(&caller().plugin));
    plugin.rates().meter.count(Call::Get, Ending::NotFound);
    expect![[r"
        controller_runtime_active_workers gauge controller,plugin
        controller_runtime_max_concurrent_reconciles gauge controller,plugin
        controller_runtime_reconcile_errors_total counter controller,plugin
        controller_runtime_reconcile_panics_total counter controller,plugin
        controller_runtime_reconcile_time_seconds_bucket histogram le,controller,plugin
        controller_runtime_reconcile_time_seconds_count histogram controller,plugin
        controller_runtime_reconcile_time_seconds_sum histogram controller,plugin
        controller_runtime_reconcile_timeouts_total counter controller,plugin
        controller_runtime_reconcile_total counter controller,plugin,result
        controller_runtime_terminal_reconcile_errors_total counter controller,plugin
        leader_election_master_status gauge name
        operetta_cache_limit_bytes gauge
        operetta_cache_outlines gauge
        operetta_denials_total counter plugin,grant
        operetta_guest_memory_limit_bytes gauge
        operetta_limit_exceeded_total counter plugin,limit
        operetta_looping_objects gauge controller,plugin
        operetta_paused_objects gauge controller,plugin
        operetta_plugin_api_requests_total counter code,method,plugin
        operetta_plugin_host_calls_total counter plugin
        operetta_plugin_info gauge plugin,version,digest
        operetta_plugin_loads_total counter plugin,result
        operetta_plugin_parked gauge controller,plugin
        operetta_plugin_receive_bytes_total counter plugin
        operetta_plugin_requests_total counter plugin,verb,result
        operetta_plugin_transmit_bytes_total counter plugin
        operetta_reconcile_cpu_seconds_total counter controller,plugin
        operetta_reconcile_failures_total counter controller,plugin,reason
        operetta_reconcile_memory_bytes gauge controller,plugin
        operetta_reconcile_memory_peak_bytes gauge controller,plugin
        operetta_write_loops_total counter controller,plugin
        process_cpu_seconds_total counter
        process_max_fds gauge
        process_open_fds gauge
        process_resident_memory_bytes gauge
        process_start_time_seconds gauge
        process_virtual_memory_bytes gauge
        rest_client_requests_total counter code,host,method
        workqueue_adds_total counter controller,name,plugin
        workqueue_depth gauge controller,name,plugin
        workqueue_longest_running_processor_seconds gauge controller,name,plugin
        workqueue_queue_duration_seconds_bucket histogram le,controller,name,plugin
        workqueue_queue_duration_seconds_count histogram controller,name,plugin
        workqueue_queue_duration_seconds_sum histogram controller,name,plugin
        workqueue_retries_total counter controller,name,plugin
        workqueue_unfinished_work_seconds gauge controller,name,plugin
        workqueue_work_duration_seconds_bucket histogram le,controller,name,plugin
        workqueue_work_duration_seconds_count histogram controller,name,plugin
        workqueue_work_duration_seconds_sum histogram controller,name,plugin"]]
    .assert_eq(&listed(&scene.metrics.encode().unwrap()));
}

#[tokio::test]
async fn the_series_of_a_controller_begin_with_zero() {
    let scene = scene();
    for result in ["success", "error", "requeue_after"] {
        let series = format!(
            "controller_runtime_reconcile_total{{controller=\"demo/main\",plugin=\"demo\",result=\"{result}\"}}"
        );
        assert_eq!(scene.value(&series), Some(0.0), "{series}");
    }
    for name in ["reconcile_errors", "terminal_reconcile_errors", "reconcile_panics", "reconcile_timeouts"] {
        assert_eq!(scene.of(&format!("controller_runtime_{name}_total")), Some(0.0), "{name}");
    }
    assert_eq!(scene.of("controller_runtime_max_concurrent_reconciles"), Some(16.0));
}

#[tokio::test]
async fn each_outcome_is_counted_where_it_belongs() {
    let scene = scene();
    let results = [
        Ok(Outcome::AwaitChange),
        Ok(Outcome::RequeueAfter(Duration::from_secs(1))),
        Err(Failure::Terminal(String::new())),
        Err(Failure::Trap(String::new())),
        Err(Failure::Deadline(Duration::from_secs(1))),
        Err(Failure::Retryable(String::new())),
    ];
    for result in &results {
        scene.controller.begin(Duration::ZERO).end(result, Duration::from_millis(1));
    }
    let result = |result: &str| {
        scene.value(&format!(
            "controller_runtime_reconcile_total{{controller=\"demo/main\",plugin=\"demo\",result=\"{result}\"}}"
        ))
    };
    assert_eq!(["success", "requeue_after", "error"].map(result), [Some(1.0), Some(1.0), Some(4.0)]);
    for (name, count) in [
        ("controller_runtime_reconcile_errors_total", 4.0),
        ("controller_runtime_terminal_reconcile_errors_total", 1.0),
        ("controller_runtime_reconcile_panics_total", 1.0),
        ("controller_runtime_reconcile_timeouts_total", 1.0),
        ("controller_runtime_reconcile_time_seconds_count", 6.0),
    ] {
        assert_eq!(scene.of(name), Some(count), "{name}");
    }
    assert_eq!(scene.of_queue("workqueue_work_duration_seconds_count"), Some(6.0));
}

#[tokio::test(start_paused = true)]
async fn a_queue_tells_what_waits_what_runs_and_for_how_long() {
    let scene = scene();
    for name in ["a", "b", "c"] {
        scene.queue.add(key(name), Priority::Live, Cause::Changed);
    }
    let first = scene.queue.try_next().unwrap();
    let one = scene.controller.begin(first.waited);
    advance(Duration::from_secs(2)).await;
    let second = scene.queue.try_next().unwrap();
    let other = scene.controller.begin(second.waited);
    advance(Duration::from_secs(3)).await;
    let told = |names: [&str; 4]| names.map(|name| scene.of_queue(name).unwrap());
    let names = [
        "workqueue_depth",
        "workqueue_adds_total",
        "workqueue_unfinished_work_seconds",
        "workqueue_longest_running_processor_seconds",
    ];
    assert_eq!(told(names), [1.0, 3.0, 8.0, 5.0]);
    assert_eq!(scene.of("controller_runtime_active_workers"), Some(2.0));
    assert_eq!(scene.of_queue("workqueue_queue_duration_seconds_sum"), Some(2.0));
    // One ends, and one is lost without a word.
    one.end(&Err(Failure::Retryable(String::new())), Duration::from_secs(5));
    scene.queue.done(&first.key, Next::Retry);
    drop(other);
    assert_eq!(told(names), [1.0, 3.0, 0.0, 0.0]);
    assert_eq!(scene.of_queue("workqueue_retries_total"), Some(1.0));
    assert_eq!(scene.of("controller_runtime_active_workers"), Some(0.0));
}

#[tokio::test]
async fn a_limit_that_a_reconcile_meets_is_counted_by_its_name() {
    let scene = scene();
    for failure in [
        Failure::Memory { wanted: 2, cap: 1 },
        Failure::NoRoom { wanted: 2, held: 0, free: 1, total: 1 },
        Failure::Tables { wanted: 2, cap: 1 },
        Failure::Deadline(Duration::from_secs(1)),
        Failure::Cpu(Duration::from_secs(1)),
        Failure::Stack(String::new()),
        Failure::Limit(Exceeded { limit: Limit::Handles, what: String::new() }),
    ] {
        scene.controller.begin(Duration::ZERO).end(&Err(failure), Duration::from_millis(1));
    }
    scene.controller.begin(Duration::ZERO).end(&Err(Failure::Trap(String::new())), Duration::from_millis(1));
    let text = scene.metrics.encode().unwrap();
    let counted: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("operetta_limit_exceeded_total{plugin=\"demo\",limit="))
        .collect();
    let expected = ["cpu", "deadline", "guest_memory", "handles", "memory", "stack", "tables"];
    let expected = expected.map(|limit| format!("\"{limit}\"}} 1"));
    assert_eq!(counted, expected.iter().map(String::as_str).collect());
}

#[tokio::test]
async fn what_a_plugin_burns_adds_up_and_the_most_memory_stays_known() {
    let scene = scene();
    for (seconds, memory) in [(1, 1 << 20), (2, 3 << 20), (4, 2 << 20)] {
        scene.metrics.used(&caller(), Duration::from_secs(seconds), memory);
    }
    assert_eq!(scene.of("operetta_reconcile_cpu_seconds_total"), Some(7.0));
    assert_eq!(scene.of("operetta_reconcile_memory_bytes"), Some(2_097_152.0));
    assert_eq!(scene.of("operetta_reconcile_memory_peak_bytes"), Some(3_145_728.0));
    // What the host asks for itself is nobody's.
    scene.metrics.answered("a:1", "GET", Some(200), None);
    scene.metrics.answered("a:1", "GET", Some(200), Some(&caller().plugin));
    scene.metrics.answered("a:1", "GET", None, Some(&caller().plugin));
    let asked = |code: &str| {
        scene.value(&format!("operetta_plugin_api_requests_total{{code=\"{code}\",method=\"GET\",plugin=\"demo\"}}"))
    };
    assert_eq!((asked("200"), asked("<error>")), (Some(1.0), Some(1.0)));
}

#[tokio::test]
async fn a_controller_that_is_gone_leaves_counters_and_no_gauges() {
    let scene = scene();
    scene.metrics.used(&caller(), Duration::from_millis(3), 1 << 20);
    // Its successor, as after an exchange to another kind.
    let queue = Arc::new(WorkQueue::new(Backoff::default()));
    let next = scene.metrics.controller(&caller(), seen(&queue));
    queue.add(key("a"), Priority::Live, Cause::Changed);
    scene.queue.add(key("b"), Priority::Live, Cause::Changed);
    assert_eq!(scene.of_queue("workqueue_depth"), Some(2.0));
    let Scene { metrics, queue: old, controller } = scene;
    drop(controller);
    let scene = Scene { metrics, queue: old, controller: next };
    assert_eq!(scene.of_queue("workqueue_depth"), Some(1.0));
    let Scene { metrics, controller, .. } = scene;
    drop(controller);
    let text = metrics.encode().unwrap();
    assert!(!text.contains("workqueue_depth{") && !text.contains("_bytes{controller"), "{text}");
    assert!(text.contains("controller_runtime_reconcile_total{"));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_is_removed_takes_its_series_along_and_one_that_is_exchanged_keeps_them() {
    let Scene { metrics, controller, .. } = scene();
    let (demo, other) = (caller().plugin, PluginName::parse("other").unwrap());
    let plugin = metrics.plugin(&demo);
    let has = |text: &str| metrics.encode().unwrap().contains(text);
    let use_all = || {
        metrics.used(&caller(), Duration::from_millis(3), 1 << 20);
        metrics.answered("a:1", "GET", Some(200), Some(&demo));
        plugin.denied("rules");
        plugin.exceeded(Limit::Message);
        plugin.rates().meter.count(Call::Get, Ending::Ok);
    };
    plugin.loaded("1", "a", None);
    plugin.loaded("2", "b", Some(("1".into(), "a".into())));
    metrics.plugin(&other).loaded("1", "a", None);
    use_all();
    controller.begin(Duration::ZERO).end(&Err(Failure::Trap(String::new())), Duration::from_millis(5));
    controller.found_loop();
    assert!(has("operetta_plugin_loads_total{plugin=\"demo\",result=\"success\"} 2"), "an exchange goes on counting");
    drop(controller);
    assert!(has("operetta_reconcile_failures_total{controller=\"demo/main\",plugin=\"demo\",reason=\"Trap\"} 1"));

    plugin.removed();
    assert!(!has("plugin=\"demo\""), "{}", metrics.encode().unwrap());
    assert!(has("plugin=\"other\""), "its neighbour's stay");
    // What was under way is counted late.
    metrics.answered("a:1", "GET", Some(200), Some(&demo));
    metrics.used(&caller(), Duration::from_millis(3), 1 << 20);
    assert!(!has("plugin=\"demo\""), "{}", metrics.encode().unwrap());

    // It comes back, and nothing is taken from it.
    plugin.loaded("3", "c", None);
    use_all();
    assert!(has("operetta_plugin_loads_total{plugin=\"demo\",result=\"success\"} 1"));
    assert!(has("operetta_plugin_api_requests_total{code=\"200\",method=\"GET\",plugin=\"demo\"} 1"));
    assert!(has("operetta_plugin_requests_total{plugin=\"demo\",verb=\"get\",result=\"ok\"} 1"));

    plugin.removed();
    advance(STRAGGLERS).await;
    assert!(!has("plugin=\"demo\""));
    assert!(metrics.gone().is_empty(), "its name is not kept for ever either");
}

#[test]
fn the_process_tells_what_every_process_tells() {
    let text = Metrics::default().encode().unwrap();
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
    };
    assert!(value("process_cpu_seconds_total") > 0.0);
    assert!(value("process_start_time_seconds") > 1e9);
    if cfg!(target_os = "linux") {
        assert!(value("process_resident_memory_bytes") > 1e6);
    }
}
