//! Controllers on fakes of the ports, with paused time.

mod grants;
mod loops;
mod park;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use operetta_core::{
    annotation::{PAUSED, RECONCILE_REQUESTED},
    name::{AccountName, Actor, Namespace, ServiceAccount},
    port::{Level, Log, database::NoDatabases},
    route::MOST_REFERENCES,
    share::Places,
};
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::{
    channels::GrpcChannels,
    telemetry::Metrics,
    testing::{Cluster, Runs, SOON, World, eventually, key, parts, plugin_name, things},
};

struct Quiet;

impl Log for Quiet {
    fn enabled(&self, _: Level) -> bool {
        false
    }
    fn write(&self, _: Level, _: &str, _: &str, _: &[(String, String)]) {}
}

/// A world, and what the controllers of one plugin share.
struct Scene {
    world: Arc<World>,
    runs: Arc<Runs>,
    shared: Arc<Shared>,
    places: Arc<Places>,
}

/// All of things and parts, and nothing else.
fn granted() -> Policy {
    let rules = json!([{"apiGroups": ["x.example.com"], "resources": ["things", "parts"], "verbs": ["*"]}]);
    Policy {
        grants: Grants { rules: serde_json::from_value(rules).unwrap(), ..Grants::default() },
        ..Policy::default()
    }
}

fn version(world: &Arc<World>, code: Arc<dyn Reconciler>, own_share: usize) -> Version {
    Version {
        mode: Mode::Run,
        reconciler: code,
        ports: Ports {
            kubernetes: Arc::new(Cluster(world.clone())),
            channels: Arc::new(GrpcChannels::default()),
            databases: Arc::new(NoDatabases),
            log: Arc::new(Quiet),
            denials: Arc::new(|_| {}),
            exceeded: Arc::new(|_| {}),
            rates: Arc::default(),
        },
        policy: Arc::new(granted()),
        scope: Scope::All,
        own_share: Arc::new(Semaphore::new(own_share)),
    }
}

fn shared(plugin: &str, version: Version, places: &Arc<Places>) -> Arc<Shared> {
    Arc::new(Shared {
        plugin: plugin_name(plugin),
        policy: Arc::new(ArcSwap::new(version.policy.clone())),
        version: ArcSwap::from_pointee(version),
        tenant: places.join(&plugin_name(plugin)),
        metrics: Arc::new(Metrics::default()),
        vitals: Arc::default(),
        chain: Arc::default(),
    })
}

fn scene() -> Scene {
    scene_of(64)
}

/// With so many places for all plugins.
fn scene_of(places: usize) -> Scene {
    let (world, runs, places) = (World::new(), Runs::new(), Places::new(places));
    let shared = shared("demo", version(&world, runs.code("1"), 16), &places);
    Scene { world, runs, shared, places }
}

fn actor() -> Actor {
    let account =
        ServiceAccount { namespace: Namespace::parse("a").unwrap(), name: AccountName::parse("demo").unwrap() };
    Actor { plugin: "demo".parse().unwrap(), account }
}

fn spec() -> manifest::Controller {
    let resource = |resource: &str| json!({"group": "x.example.com", "version": "v1", "resource": resource});
    serde_json::from_value(json!({"name": "main", "for": resource("things"), "owns": [resource("parts")]})).unwrap()
}

async fn watches(world: &Arc<World>, spec: &manifest::Controller) -> Watches {
    let extents = spec.kinds().into_iter().map(|kind| (kind.clone(), Scope::All.extents())).collect();
    Watches::start(&Cluster(world.clone()), &actor(), &extents, spec).await.unwrap()
}

impl Scene {
    async fn start(&self) -> Controller {
        self.start_with(spec()).await
    }

    async fn start_with(&self, spec: manifest::Controller) -> Controller {
        Controller::start(self.shared.clone(), spec.clone(), watches(&self.world, &spec).await, None)
    }
}

fn done() -> Result<Outcome, Failure> {
    Ok(Outcome::AwaitChange)
}

#[tokio::test(start_paused = true)]
async fn what_exists_what_changes_and_what_goes_is_reconciled() {
    let scene = scene();
    scene.world.apply(&things(), "old");
    let controller = scene.start().await;
    let seen = |runs: &[crate::testing::Run]| -> Vec<_> {
        runs.iter().map(|run| (run.key.to_string(), run.there, run.cause)).collect()
    };
    assert_eq!(seen(&scene.runs.count(1).await), [("n/old".into(), true, Cause::Changed)]);
    scene.world.apply(&things(), "new");
    scene.runs.count(2).await;
    scene.world.delete(&things(), "new");
    assert_eq!(
        seen(&scene.runs.count(3).await)[1..],
        [("n/new".into(), true, Cause::Changed), ("n/new".into(), false, Cause::Changed)]
    );
    tokio::time::timeout(SOON, controller.synced()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_change_during_a_run_makes_the_object_run_again_after_it() {
    let scene = scene();
    scene.world.apply(&things(), "a");
    let gate = Arc::new(Semaphore::new(0));
    let wait = gate.clone();
    scene.runs.act(move |_, _| {
        let wait = wait.clone();
        async move {
            wait.acquire().await.unwrap().forget();
            done()
        }
    });
    let _controller = scene.start().await;
    scene.runs.under_way(1).await;
    // However many: one more run sees them all.
    for _ in 0..3 {
        scene.world.apply(&things(), "a");
    }
    gate.add_permits(10);
    scene.runs.count(2).await;
    // The resync, hours later, is the next.
    let runs = scene.runs.count(3).await;
    assert_eq!(runs[2].cause, Cause::Resync, "{runs:#?}");
    assert_eq!(scene.runs.at_most(), 1);
}

#[tokio::test(start_paused = true)]
async fn failures_wait_longer_each_time_until_a_success_or_a_change() {
    let scene = scene();
    scene.world.apply(&things(), "a");
    scene.runs.act(|request, _| async move {
        if request.attempt < 4 { Err(Failure::Retryable("not yet".into())) } else { done() }
    });
    let _controller = scene.start().await;
    let runs = scene.runs.count(5).await;
    assert_eq!(runs.iter().map(|run| run.attempt).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    let waits: Vec<_> = runs.windows(2).map(|two| (two[1].began - two[0].began).as_millis()).collect();
    for (wait, least) in waits.iter().zip([50, 100, 200, 400]) {
        assert!((least..=least + least / 5).contains(wait), "{waits:?}");
    }
    // A success forgets them.
    scene.world.apply(&things(), "a");
    assert_eq!(scene.runs.count(6).await[5].attempt, 0);
}

#[tokio::test(start_paused = true)]
async fn a_terminal_failure_waits_for_a_change() {
    let scene = scene();
    scene.world.apply(&things(), "a");
    scene.runs.act(|_, _| async { Err(Failure::Terminal("never".into())) });
    let _controller = scene.start().await;
    let first = scene.runs.count(1).await[0].began;
    let second = scene.runs.count(2).await[1].clone();
    assert_eq!((second.cause, second.attempt), (Cause::Resync, 0));
    assert!(second.began - first > Duration::from_secs(35_000));
    scene.world.apply(&things(), "a");
    assert_eq!(scene.runs.count(3).await[2].cause, Cause::Changed);
}

#[tokio::test(start_paused = true)]
async fn an_object_is_looked_at_again_when_its_reconcile_asked_for_it_but_never_at_once() {
    let scene = scene();
    scene.world.apply(&things(), "a");
    let delay = Arc::new(AtomicUsize::new(60_000));
    let asked = delay.clone();
    scene.runs.act(move |_, _| {
        let delay = Duration::from_millis(asked.load(Ordering::SeqCst) as u64);
        async move { Ok(Outcome::RequeueAfter(delay)) }
    });
    let _controller = scene.start().await;
    let runs = scene.runs.count(2).await;
    assert_eq!((runs[1].began - runs[0].began).as_secs(), 60);
    assert_eq!(runs[1].cause, Cause::Requeued);
    delay.store(0, Ordering::SeqCst);
    let runs = scene.runs.count(4).await;
    assert!(runs[3].began - runs[2].began >= SOONEST, "{runs:#?}");
}

#[tokio::test(start_paused = true)]
async fn an_owned_object_wakes_its_owner() {
    let scene = scene();
    scene.world.apply(&things(), "a");
    scene.world.apply(&things(), "b");
    let _controller = scene.start().await;
    scene.runs.count(2).await;
    scene.runs.clear();
    scene.world.apply_owned("part", "b");
    assert_eq!(scene.runs.count(1).await[0].key, key("b"));
    scene.world.delete(&parts(), "part");
    assert_eq!(scene.runs.count(2).await[1].key, key("b"));
}

#[tokio::test(start_paused = true)]
async fn where_changes_were_left_out_every_object_is_looked_at_again() {
    let scene = scene();
    for name in ["a", "b"] {
        scene.world.apply(&things(), name);
    }
    // What they wait for is later than what was left out.
    scene.runs.act(|_, _| async { Ok(Outcome::RequeueAfter(Duration::from_hours(1))) });
    let _controller = scene.start().await;
    scene.runs.count(2).await;
    scene.runs.clear();
    let before = Instant::now();
    scene.world.miss(&parts());
    let mut keys: Vec<_> = scene.runs.count(2).await.into_iter().map(|run| run.key).collect();
    keys.sort();
    assert_eq!(keys, [key("a"), key("b")]);
    assert!(before.elapsed() < Duration::from_secs(10), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn every_object_is_looked_at_again_at_the_resync_period() {
    let scene = scene();
    scene.world.apply(&things(), "a");
    scene.world.apply(&things(), "b");
    let started = Instant::now();
    let _controller = scene.start_with(manifest::Controller { resync_seconds: 60, ..spec() }).await;
    let runs = scene.runs.count(6).await;
    let periods: Vec<_> = runs.iter().map(|run| (run.began - started).as_secs() / 60).collect();
    assert_eq!(periods, [0, 0, 1, 1, 2, 2]);
    assert_eq!(runs[5].cause, Cause::Resync);
    scene.world.delete(&things(), "b");
    let runs = scene.runs.count(9).await;
    assert!(!runs[6].there && runs[7..].iter().all(|run| run.key == key("a")), "{runs:#?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_found_is_reconciled_once_when_all_caches_are_filled_and_not_before() {
    let scene = scene();
    scene.world.apply(&things(), "a");
    scene.world.apply(&things(), "b");
    scene.world.apply_owned("part", "a");
    scene.world.silence(Some(&parts()));
    let controller = scene.start().await;
    assert!(tokio::time::timeout(Duration::from_mins(1), controller.synced()).await.is_err());
    assert_eq!(scene.runs.all(), []);
    scene.world.silence(None);
    tokio::time::timeout(SOON, controller.synced()).await.unwrap();
    let runs = scene.runs.count(4).await;
    assert_eq!(runs.iter().filter(|run| run.cause == Cause::Changed).count(), 2, "{runs:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_change_is_reconciled_at_once_even_while_a_cache_is_filling_and_once_more_after() {
    let scene = scene();
    scene.world.silence(Some(&parts()));
    let _controller = scene.start().await;
    scene.world.apply(&things(), "a");
    scene.runs.count(1).await;
    scene.world.silence(None);
    assert_eq!(scene.runs.count(2).await[1].cause, Cause::Changed);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_vanishes_while_another_cache_is_filling_is_looked_at_too() {
    let scene = scene();
    scene.world.apply(&things(), "a");
    scene.world.silence(Some(&parts()));
    let _controller = scene.start().await;
    // Each time until nobody has anything to do.
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene.world.vanish(&things(), "a");
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene.world.silence(None);
    assert!(!scene.runs.count(1).await[0].there);
}

#[tokio::test(start_paused = true)]
async fn new_watches_lose_nothing_that_happened_between_them_and_the_old_ones() {
    let scene = scene();
    for name in ["stays", "goes", "waits"] {
        scene.world.apply(&things(), name);
    }
    scene.runs.act(|request, _| async move {
        if request.key == key("waits") { Ok(Outcome::RequeueAfter(Duration::from_mins(50))) } else { done() }
    });
    let mut controller = scene.start().await;
    scene.runs.count(3).await;
    scene.runs.clear();
    // Nobody listens when this one goes.
    scene.world.silence(Some(&things()));
    let next = watches(&scene.world, &spec()).await;
    controller.watch(spec(), next);
    scene.world.has_watches(2).await;
    scene.world.delete(&things(), "goes");
    scene.world.apply(&things(), "comes");
    assert_eq!(scene.runs.all(), []);
    scene.world.silence(None);
    tokio::time::timeout(SOON, controller.synced()).await.unwrap();
    let mut seen: Vec<_> = scene.runs.count(4).await.iter().map(|run| (run.key.name.to_string(), run.there)).collect();
    seen.sort();
    assert_eq!(seen, [("comes".into(), true), ("goes".into(), false), ("stays".into(), true), ("waits".into(), true)]);
}

#[tokio::test(start_paused = true)]
async fn when_other_code_took_over_all_is_looked_at_and_what_waits_does_not_wait() {
    let scene = scene();
    scene.world.apply(&things(), "asked");
    scene.world.apply(&things(), "failed");
    scene.runs.act(|request, _| async move {
        match (request.key.name.as_str(), request.cause) {
            (_, Cause::Resync) => done(),
            ("asked", _) => Ok(Outcome::RequeueAfter(Duration::from_mins(50))),
            _ => Err(Failure::Retryable("again and again".into())),
        }
    });
    let controller = scene.start().await;
    // Long enough that the next try of the one that fails is minutes away.
    scene.runs.until("the 12th failure", |runs| runs.last().is_some_and(|run| run.attempt == 12)).await;
    scene.runs.clear();
    let before = Instant::now();
    controller.look_at_all();
    let runs = scene.runs.count(2).await;
    assert!(runs.iter().all(|run| run.cause == Cause::Resync) && before.elapsed().as_secs() < 1, "{runs:#?}");
}

#[tokio::test(start_paused = true)]
async fn stopping_lets_reconciles_in_flight_end_and_takes_no_more() {
    let scene = scene();
    scene.shared.exchange(version(&scene.world, scene.runs.code("1"), 1));
    for name in ["a", "b"] {
        scene.world.apply(&things(), name);
    }
    scene.runs.act(|_, _| async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        done()
    });
    let controller = scene.start().await;
    scene.runs.under_way(1).await;
    let before = Instant::now();
    controller.stop().await;
    assert_eq!(before.elapsed().as_secs(), 20);
    scene.world.apply(&things(), "a");
    tokio::time::sleep(SOON).await;
    assert_eq!(scene.runs.all().len(), 1);
    assert_eq!(scene.world.watches(), []);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_host_gives_the_key_back() {
    let scene = scene();
    scene.world.apply(&things(), "a");
    scene.runs.act(|request, _| async move {
        assert!(request.attempt > 1, "a panic of the host");
        done()
    });
    let _controller = scene.start().await;
    assert_eq!(scene.runs.count(1).await[0].attempt, 2);
    let text = scene.shared.metrics.encode().unwrap();
    for line in [
        "operetta_reconcile_failures_total{controller=\"demo/main\",plugin=\"demo\",reason=\"HostError\"} 2",
        "controller_runtime_active_workers{controller=\"demo/main\",plugin=\"demo\"} 0",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_names_more_than_is_followed_is_counted_and_woken_by_the_rest() {
    let scene = scene();
    let names: Vec<_> = (0..=MOST_REFERENCES).map(|n| format!("p{n}")).collect();
    scene.world.apply_with(&things(), "n", "a", json!({"names": names}));
    let resource = |resource: &str| json!({"group": "x.example.com", "version": "v1", "resource": resource});
    let watch = json!({"resource": resource("parts"), "map": {"reference": "metadata.names"}});
    let spec = json!({"name": "main", "for": resource("things"), "watches": [watch]});
    let _controller = scene.start_with(serde_json::from_value(spec).unwrap()).await;
    scene.runs.count(1).await;
    let text = scene.shared.metrics.encode().unwrap();
    assert!(text.contains("operetta_limit_exceeded_total{plugin=\"demo\",limit=\"references\"} 1"), "{text}");
    scene.runs.clear();
    scene.world.apply(&parts(), "p0");
    assert_eq!(scene.runs.count(1).await[0].key, key("a"));
}

#[tokio::test(start_paused = true)]
async fn no_more_run_at_once_than_the_share_of_the_plugin_and_that_of_all() {
    // Of eight places, two are kept for a plugin that may come.
    for (own, all, expected) in [(3, 64, 3), (16, 8, 6)] {
        let scene = scene_of(all);
        scene.shared.exchange(version(&scene.world, scene.runs.code("1"), own));
        for number in 0..40 {
            scene.world.apply(&things(), &format!("t{number}"));
        }
        scene.runs.act(|_, _| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            done()
        });
        // Two controllers of one plugin share.
        let mut other = spec();
        other.name = operetta_core::name::ControllerName::parse("other").unwrap();
        other.primary = parts();
        other.owns.clear();
        scene.world.apply_owned("p", "t1");
        let (_one, _other) = (scene.start().await, scene.start_with(other).await);
        scene.runs.until("each", |runs| runs.len() >= 41).await;
        assert_eq!(scene.runs.at_most(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_in_one_plugin_does_not_delay_another_beyond_the_next_place_that_is_free() {
    let scene = scene_of(2);
    let flood = shared("flood", version(&scene.world, scene.runs.code("1"), 1_000), &scene.places);
    scene.runs.act(|_, _| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        done()
    });
    for number in 0..500 {
        scene.world.apply(&parts(), &format!("p{number}"));
    }
    let mut flooded = spec();
    flooded.primary = parts();
    flooded.owns.clear();
    let _flooded = Controller::start(flood, flooded.clone(), watches(&scene.world, &flooded).await, None);
    let _controller = scene.start().await;
    scene.runs.count(10).await;
    for round in 0..5 {
        let before = Instant::now();
        scene.world.apply(&things(), &format!("t{round}"));
        let name = format!("t{round}");
        scene.runs.until("the neighbour's turn", |runs| runs.iter().any(|run| run.key == key(&name))).await;
        assert!(before.elapsed() <= Duration::from_secs(2), "{:?}", before.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_hangs_in_all_places_that_it_gets_leaves_one_for_a_neighbour_that_comes_later() {
    let scene = scene_of(8);
    let hangs = shared("hangs", version(&scene.world, scene.runs.code("1"), 1_000), &scene.places);
    scene.runs.act(|request, _| async move {
        if request.key.name.as_str().starts_with('p') {
            tokio::time::sleep(SOON).await;
        }
        done()
    });
    for number in 0..500 {
        scene.world.apply(&parts(), &format!("p{number}"));
    }
    let mut hanging = spec();
    hanging.primary = parts();
    hanging.owns.clear();
    let _hangs = Controller::start(hangs, hanging.clone(), watches(&scene.world, &hanging).await, None);
    scene.runs.under_way(6).await;
    let neighbour = shared("neighbour", version(&scene.world, scene.runs.code("1"), 16), &scene.places);
    let _neighbour = Controller::start(neighbour, spec(), watches(&scene.world, &spec()).await, None);
    let before = Instant::now();
    for number in 0..50 {
        scene.world.apply(&things(), &format!("t{number}"));
    }
    let runs = scene.runs.count(50).await;
    assert!(runs.iter().all(|run| run.key.name.as_str().starts_with('t')), "{runs:#?}");
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn keys_that_wait_for_the_plugins_own_share_are_counted() {
    let scene = scene();
    scene.shared.exchange(version(&scene.world, scene.runs.code("1"), 1));
    scene.runs.act(|_, _| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        done()
    });
    for name in ["a", "b", "c"] {
        scene.world.apply(&things(), name);
    }
    let _controller = scene.start().await;
    scene.runs.count(3).await;
    let text = scene.shared.metrics.encode().unwrap();
    let line = "operetta_limit_exceeded_total{plugin=\"demo\",limit=\"concurrency\"} 2";
    assert!(text.contains(line), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_new_version_does_not_wait_for_places_that_the_old_one_holds() {
    let scene = scene();
    scene.shared.exchange(version(&scene.world, scene.runs.code("1"), 1));
    let old = Arc::new(AtomicBool::new(true));
    let hangs = old.clone();
    scene.runs.act(move |_, _| {
        let hangs = hangs.swap(false, Ordering::SeqCst);
        async move {
            if hangs {
                tokio::time::sleep(Duration::from_secs(30)).await;
            }
            done()
        }
    });
    scene.world.apply(&things(), "a");
    scene.world.apply(&things(), "b");
    let _controller = scene.start().await;
    scene.runs.under_way(1).await;
    let before = Instant::now();
    scene.shared.exchange(version(&scene.world, scene.runs.code("2"), 1));
    let first = scene.runs.count(1).await[0].clone();
    assert_eq!((first.version.as_str(), first.key), ("2", key("b")));
    assert!(before.elapsed().as_secs() < 1);
    assert_eq!(scene.runs.count(2).await[1].version, "1");
}

#[tokio::test(start_paused = true)]
async fn a_key_from_where_the_plugin_no_longer_works_is_let_go() {
    let scene = scene();
    scene.world.apply(&things(), "a");
    scene.world.apply_with(&things(), "m", "b", json!({}));
    scene.runs.act(|_, _| async { Ok(Outcome::RequeueAfter(Duration::from_mins(1))) });
    let _controller = scene.start().await;
    scene.runs.count(2).await;
    scene.runs.clear();
    let narrow = Scope::Namespaces([Namespace::parse("n").unwrap()].into());
    let next = Version { scope: narrow, ..version(&scene.world, scene.runs.code("2"), 1) };
    scene.shared.exchange(next);
    let runs = scene.runs.count(5).await;
    assert!(runs.iter().all(|run| run.key == key("a")), "{runs:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_ended_from_outside_is_noticed_until_there_are_new_ones() {
    let scene = scene();
    scene.world.apply(&things(), "a");
    let mut controller = scene.start().await;
    scene.runs.count(1).await;
    assert!(!controller.is_lost());
    scene.world.revoke();
    tokio::time::timeout(SOON, controller.lost()).await.unwrap();
    scene.world.refuse(None);
    scene.world.apply(&things(), "b");
    controller.watch(spec(), watches(&scene.world, &spec()).await);
    assert!(!controller.is_lost());
    tokio::time::timeout(SOON, controller.synced()).await.unwrap();
    scene.runs.until("what came while nobody listened", |runs| runs.iter().any(|run| run.key == key("b"))).await;
}

/// An object of namespace `n` with this annotation.
fn annotate(scene: &Scene, name: &str, annotation: &str, value: &str) {
    scene.world.apply_with(&things(), "n", name, json!({"annotations": {annotation: value}}));
}

fn predicated() -> manifest::Controller {
    manifest::Controller { predicates: [manifest::Predicate::Generation].into(), ..spec() }
}

#[tokio::test(start_paused = true)]
async fn a_person_who_asks_for_a_reconcile_gets_it_whatever_the_controller_waits_for() {
    let scene = scene();
    scene.runs.act(|request, _| async move {
        match request.key.name.as_str() {
            "fails" => Err(Failure::Retryable("again and again".into())),
            "gave-up" => Err(Failure::Terminal("never".into())),
            "asked" => Ok(Outcome::RequeueAfter(Duration::from_mins(50))),
            _ => done(),
        }
    });
    for name in ["fails", "gave-up", "asked", "done"] {
        scene.world.apply(&things(), name);
    }
    let _controller = scene.start_with(predicated()).await;
    // Long enough that the next try of the one that fails is minutes away.
    scene.runs.until("the 12th failure", |runs| runs.last().is_some_and(|run| run.attempt == 12)).await;
    scene.runs.clear();
    let before = Instant::now();
    for (count, name) in ["fails", "gave-up", "asked", "done"].into_iter().enumerate() {
        annotate(&scene, name, RECONCILE_REQUESTED, "2026-01-01T00:00:00Z");
        let runs = scene.runs.count(count + 1).await;
        assert_eq!((&runs[count].key, runs[count].cause), (&key(name), Cause::Changed));
    }
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_paused_object_is_left_alone_until_it_is_resumed() {
    let scene = scene();
    scene.runs.act(|_, _| async { Ok(Outcome::RequeueAfter(Duration::from_mins(1))) });
    annotate(&scene, "early", PAUSED, "");
    scene.world.apply(&things(), "a");
    scene.world.apply(&things(), "neighbour");
    let mut controller = scene.start_with(predicated()).await;
    scene.runs.count(2).await;
    let paused = || {
        let text = scene.shared.metrics.encode().unwrap();
        let series = "operetta_paused_objects{controller=\"demo/main\",plugin=\"demo\"} ";
        text.lines().find_map(|line| line.strip_prefix(series)).map(str::to_owned).unwrap()
    };
    // Whatever the value says: presence counts.
    annotate(&scene, "a", PAUSED, "false");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(paused(), "2");
    scene.runs.clear();
    // Nothing of this wakes it: its requeue, what it owns, its own deletion, other code, other watches.
    scene.world.apply_owned("part", "a");
    let deleting = json!({"annotations": {PAUSED: "false"}, "deletionTimestamp": "2026-01-01T00:00:00Z"});
    scene.world.apply_with(&things(), "n", "a", deleting);
    controller.look_at_all();
    controller.watch(predicated(), watches(&scene.world, &predicated()).await);
    scene.runs.count(10).await;
    assert!(scene.runs.all().iter().all(|run| run.key == key("neighbour")), "{:#?}", scene.runs.all());
    assert_eq!(paused(), "2");

    let before = Instant::now();
    scene.world.apply_with(&things(), "n", "a", json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
    scene.runs.until("the one that was resumed", |runs| runs.iter().any(|run| run.key == key("a"))).await;
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    // One that is gone is no longer paused.
    scene.world.delete(&things(), "early");
    scene.runs.until("the one that is gone", |runs| runs.iter().any(|run| run.key == key("early"))).await;
    assert_eq!(paused(), "0");
}

#[test]
fn what_a_panic_says_is_kept() {
    assert_eq!(told(&"text"), "text");
    assert_eq!(told(&"owned".to_owned()), "owned");
    assert_eq!(told(&7), "without a word");
}

#[tokio::test(start_paused = true)]
async fn an_object_beside_the_host_is_nobodys_unless_a_rule_names_the_place() {
    let scene = scene();
    scene.world.apply_with(&things(), "host", "a", json!({}));
    scene.world.apply(&things(), "a");
    let with = |namespaces: &[&str]| {
        let rules = json!([{"apiGroups": ["*"], "resources": ["things"], "verbs": ["*"], "namespaces": namespaces}]);
        let rules = serde_json::from_value(rules).unwrap();
        let host_namespace = Some(Namespace::parse("host").unwrap());
        let grants = Grants { rules, host_namespace, ..Grants::default() };
        let policy = Arc::new(Policy { grants, ..Policy::default() });
        scene.shared.exchange(Version { policy, ..version(&scene.world, scene.runs.code("1"), 16) });
    };
    with(&[]);
    let controller = scene.start().await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let runs: Vec<_> = scene.runs.all().into_iter().map(|run| run.key).collect();
    assert_eq!(runs, [key("a")]);
    with(&["n", "host"]);
    controller.look_at_all();
    scene
        .runs
        .until("the other", |runs| runs.iter().any(|run| run.key.namespace == Namespace::parse("host").ok()))
        .await;
}
