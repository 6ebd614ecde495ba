//! Plugins on fakes of the ports, with paused time: how versions come, take over and go.

mod grants;
mod objects;
mod withdrawn;

use std::{
    collections::BTreeMap,
    sync::{Mutex, atomic},
};

use operetta_core::{
    name::Namespace,
    port::ListOptions,
    reconcile::{Cause, Failure, Outcome},
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::timeout};

use super::*;
use crate::catalog::Wasm;
use crate::testing::{
    Cluster, Components, Drawer, Memory, Runs, SOON, Shelf, World, component, eventually, key, parts, plugin_name,
    things,
};

/// A host, its world, and the plugins in it.
struct Stage {
    world: Arc<World>,
    runs: Arc<Runs>,
    components: Arc<Components>,
    memory: Arc<Memory>,
    drawer: Arc<Drawer>,
    shelf: Arc<Shelf>,
    host: Arc<Host>,
    stop: CancellationToken,
}

struct Seat {
    name: PluginName,
    entries: watch::Sender<Entry>,
    status: watch::Receiver<Status>,
    task: JoinHandle<()>,
}

impl Stage {
    fn new() -> Self {
        let (world, runs) = (World::new(), Runs::new());
        let components = Components::new(runs.clone());
        let (memory, drawer) = (Arc::new(Memory::default()), Drawer::new(&[]));
        let shelf = Arc::new(Shelf::default());
        let host = Arc::new(Host {
            loader: components.clone(),
            identities: Arc::new(Cluster(world.clone())),
            informers: Arc::new(Cluster(world.clone())),
            claims: Arc::default(),
            scope: Scope::All,
            namespace: "operetta-system".parse().unwrap(),
            places: Places::new(64),
            vault: drawer.clone(),
            metrics: Arc::default(),
            leaving: TaskTracker::new(),
            last_good: memory.clone(),
            objects: shelf.clone(),
        });
        Self { world, runs, components, memory, drawer, shelf, host, stop: CancellationToken::new() }
    }

    fn plug(&self, name: &str, wasm: &Bytes, spec: &Value) -> Seat {
        let (entries, follow) = watch::channel(entry(name, wasm, spec));
        let (tell, status) = watch::channel(Status::default());
        let name = plugin_name(name);
        let plugin = Plugin::new(self.host.clone(), name.clone(), tell);
        let task = tokio::spawn(plugin.follow(follow, self.stop.clone()));
        Seat { name, entries, status, task }
    }

    fn metric(&self, line: &str) -> bool {
        self.host.metrics.encode().unwrap().lines().any(|l| l == line)
    }
}

impl Seat {
    fn put(&self, wasm: &Bytes, spec: &Value) {
        self.entries.send_replace(entry(self.name.as_str(), wasm, spec));
    }

    async fn until(&mut self, what: &str, so: impl FnMut(&Status) -> bool) -> Status {
        let seen = timeout(SOON, self.status.wait_for(so)).await.map(|seen| seen.unwrap().clone());
        seen.unwrap_or_else(|_| panic!("{what} never came; {:?}", self.status.borrow()))
    }

    async fn runs(&mut self, version: &str) {
        let runs = |status: &Status| status.running.as_ref().is_some_and(|(running, _)| running == version);
        self.until(version, |status| runs(status) && status.trouble().is_none()).await;
    }

    async fn problem(&mut self, text: &str) -> Status {
        self.until(text, |status| status.trouble().is_some_and(|problem| problem.contains(text))).await
    }
}

fn entry(name: &str, wasm: &Bytes, spec: &Value) -> Entry {
    let document =
        json!({"apiVersion": "operetta.dev/v1alpha1", "kind": "Plugin", "metadata": {"name": name}, "spec": spec});
    let wasm = Wasm::File { name: format!("{name}.wasm"), bytes: wasm.clone() };
    Entry::Present { wasm, yaml: document.to_string(), object: None }
}

fn granted() -> Value {
    json!({"grants": {"rules": [{"apiGroups": ["x.example.com"], "resources": ["*"], "verbs": ["*"]}]}})
}

/// With fewer grants, of its own kind.
fn only_things(verbs: &[&str]) -> Value {
    json!({"grants": {"rules": [{"apiGroups": ["x.example.com"], "resources": ["things"], "verbs": verbs}]}})
}

/// With something beside the grants.
fn granted_and(more: &Value) -> Value {
    let mut spec = granted();
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

fn version(version: &str) -> Bytes {
    component(version, |_| {})
}

fn for_parts(manifest: &mut Value) {
    manifest["controllers"][0]["for"]["resource"] = "parts".into();
}

fn broken() -> Bytes {
    Bytes::from_static(b"no component")
}

fn kinds(stage: &Stage) -> Vec<String> {
    stage.world.watches().into_iter().map(|(_, kind, _)| kind).collect()
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_is_dropped_in_runs_and_stops_when_it_is_removed() {
    let stage = Stage::new();
    stage.world.apply(&things(), "a");
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    assert!(seat.status.borrow().settled);
    stage.runs.count(1).await;
    assert_eq!(stage.world.watches(), [("operetta-plugins/demo".into(), "things".into(), Scope::All.extents())]);
    assert!(stage.memory.0.lock().unwrap().contains_key("demo"));
    let digest = Digest::of(&version("1")).short();
    let info = format!("operetta_plugin_info{{plugin=\"demo\",version=\"1\",digest=\"{digest}\"}} 1");
    assert!(stage.metric(&info), "{info}");

    seat.entries.send_replace(Entry::Gone);
    seat.until("the end", |status| status.running.is_none()).await;
    assert_eq!(stage.world.watches(), []);
    let text = stage.host.metrics.encode().unwrap();
    assert!(!text.contains("plugin=\"demo\""), "no series stays: {text}");
    stage.world.apply(&things(), "b");
    tokio::time::sleep(SOON).await;
    assert_eq!(stage.runs.all().len(), 1);
    assert!(stage.memory.0.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_version_takes_over_under_load_and_no_reconcile_fails_or_is_lost() {
    const OBJECTS: usize = 20;
    let stage = Stage::new();
    stage.runs.act(|_, _| async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        Ok(Outcome::AwaitChange)
    });
    let name = |number: usize| format!("t{}", number % OBJECTS);
    (0..OBJECTS).for_each(|number| stage.world.apply(&things(), &name(number)));
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;

    let last_changes = Arc::new(Mutex::new(BTreeMap::new()));
    let load = {
        let (world, last_changes) = (stage.world.clone(), last_changes.clone());
        tokio::spawn(async move {
            for number in 0.. {
                world.apply(&things(), &name(number));
                last_changes.lock().unwrap().insert(key(&name(number)), Instant::now());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    };
    let mut previous = "1".to_owned();
    for next in ["2", "3", "4"] {
        stage.runs.until("load", |runs| runs.iter().filter(|run| run.version == previous).count() > 50).await;
        seat.put(&version(next), &granted());
        seat.runs(next).await;
        let over = Instant::now();
        let all = stage.runs.until("all by the new one", |runs| {
            let keys = runs.iter().filter(|run| run.version == next).map(|run| &run.key);
            keys.collect::<std::collections::BTreeSet<_>>().len() == OBJECTS
        });
        let late = all.await.into_iter().filter(|run| run.version == previous && run.began > over).count();
        assert_eq!(late, 0, "the old code took keys after the exchange");
        previous = next.to_owned();
    }
    load.abort();
    let last_changes = last_changes.lock().unwrap().clone();
    stage
        .runs
        .until("what was changed last", |runs| {
            last_changes.iter().all(|(key, at)| runs.iter().any(|run| run.key == *key && run.began >= *at))
        })
        .await;
    assert!(stage.metric("controller_runtime_reconcile_errors_total{controller=\"demo/main\",plugin=\"demo\"} 0"));
}

#[tokio::test(start_paused = true)]
async fn after_an_exchange_everything_is_reconciled_once_by_the_new_code_without_an_event() {
    let stage = Stage::new();
    stage.world.apply(&things(), "quiet");
    stage.world.apply(&things(), "asked");
    stage.world.apply(&things(), "failing");
    stage.runs.act(|request, _| async move {
        match (request.key.name.as_str(), request.cause) {
            (_, Cause::Resync) | ("quiet", _) => Ok(Outcome::AwaitChange),
            ("asked", _) => Ok(Outcome::RequeueAfter(Duration::from_secs(5_000))),
            _ => Err(Failure::Trap("a bug of version 1".into())),
        }
    });
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    stage.runs.until("12 failures", |runs| runs.len() > 14).await;
    let before = Instant::now();
    seat.put(&version("2"), &granted());
    stage.runs.until("all", |runs| runs.iter().filter(|run| run.version == "2").count() == 3).await;
    assert!(before.elapsed().as_secs() < 1, "{:?}", before.elapsed());
    tokio::time::sleep(Duration::from_secs(4_000)).await;
    assert_eq!(stage.runs.all().iter().filter(|run| run.version == "2").count(), 3);
    assert_eq!(stage.world.watches().len(), 1, "the watches are kept");
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_in_flight_ends_with_the_code_that_began_it_and_is_granted_no_more_than_it_was_then() {
    let stage = Stage::new();
    let gate = Arc::new(watch::Sender::new(false));
    let opened = gate.clone();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tell = seen.clone();
    stage.runs.act(move |request, effects| {
        let (mut open, tell) = (opened.subscribe(), tell.clone());
        async move {
            if request.cause == Cause::Changed {
                for _ in 0..2 {
                    let listed = effects.list(&parts(), &ListOptions::default()).await.unwrap_err();
                    tell.lock().unwrap().push(listed.to_string());
                    open.wait_for(|open| *open).await.unwrap();
                }
            }
            Ok(Outcome::AwaitChange)
        }
    });
    stage.world.apply(&things(), "a");
    let watch_only = json!({"grants": {"rules": [{"apiGroups": ["x.example.com"], "resources": ["things"], "verbs": ["list", "watch"]}]}});
    let mut seat = stage.plug("demo", &version("1"), &watch_only);
    stage.runs.under_way(1).await;
    assert!(seen.lock().unwrap()[0].contains("list parts of group x.example.com in all namespaces is not granted"));
    seat.runs("1").await;
    // Same bytes, other grants: nothing is loaded again.
    let digest = seat.status.borrow().running.clone();
    seat.put(&version("1"), &granted_and(&json!({"settings": {"colour": "red"}})));
    let loads = "operetta_plugin_loads_total{plugin=\"demo\",result=\"success\"} 2";
    eventually("the other document", || stage.metric(loads)).await;
    gate.send_replace(true);
    assert_eq!(stage.runs.count(2).await[0].version, "1");
    assert!(seen.lock().unwrap()[1].contains("list parts of group x.example.com in all namespaces is refused: this"));
    assert_eq!(stage.components.loads(), 1);
    assert_eq!(seat.status.borrow().running, digest);
    stage.world.apply(&things(), "a");
    stage.runs.count(3).await;
    assert!(seen.lock().unwrap()[2].contains("not in this world"), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_broken_replacement_leaves_the_old_one_running_and_says_why() {
    let stage = Stage::new();
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    for (wasm, spec, problem) in [
        (broken(), granted(), "describe: demo.wasm: the manifest is not valid"),
        (component("2", for_parts), only_things(&["*"]), "grant: its controllers need what is not granted"),
        (version("2"), granted_and(&json!({"colour": 1})), "fetch: demo.yaml: unknown field `colour`"),
        (version("2"), granted_and(&json!({"source": {"file": "x.wasm"}})), "it can only be demo.wasm"),
        (
            version("2"),
            granted_and(
                &json!({"grants": {"rules": granted()["grants"]["rules"], "channels": [{"name": "c", "endpoint": "http://"}]}}),
            ),
            "grant: the endpoint \"http://\" of channel c cannot be used",
        ),
    ] {
        stage.runs.clear();
        seat.put(&wasm, &spec);
        let status = seat.problem(problem).await;
        assert_eq!(status.running.unwrap().0, "1");
        stage.world.apply(&things(), "a");
        assert_eq!(stage.runs.count(1).await[0].version, "1", "{problem}");
        assert_eq!(stage.memory.0.lock().unwrap()["demo"], version("1"));
    }
    // The good old files again, and all is well without a load.
    let loads = stage.components.loads();
    seat.put(&version("1"), &granted());
    seat.runs("1").await;
    assert_eq!(stage.components.loads(), loads);
    seat.put(&version("2"), &granted());
    seat.runs("2").await;
}

#[tokio::test(start_paused = true)]
async fn a_problem_that_may_pass_is_tried_again_until_it_has_passed() {
    let stage = Stage::new();
    *stage.components.trouble.lock().unwrap() = Some(Problem::passing(Phase::Compile, &"no process can be started"));
    let mut seat = stage.plug("demo", &version("1"), &granted());
    assert!(seat.problem("compile: demo.wasm: no process can be started").await.settled);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let tries = stage.components.loads();
    assert!((4..10).contains(&tries), "{tries} tries in a minute");
    *stage.components.trouble.lock().unwrap() = None;
    stage.world.refuse(Some(ApiError::Unavailable("the API server is down".into())));
    seat.problem("start: unavailable: the API server is down").await;
    stage.world.refuse(None);
    seat.runs("1").await;
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_missing_is_waited_for_and_the_version_before_runs_on() {
    let stage = Stage::new();
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    let mut spec = granted();
    spec["grants"]["databases"] = json!([{
        "name": "people", "host": "db", "dbname": "people", "user": "writer",
        "passwordFrom": {"secretKeyRef": {"name": "people", "key": "password"}},
    }]);
    seat.put(&version("2"), &spec);
    let status = seat.problem("start: database people: key password of Secret people is missing").await;
    assert_eq!(status.running.unwrap().0, "1");
    stage.drawer.put("people", "password", "hush");
    seat.runs("2").await;
}

#[tokio::test(start_paused = true)]
async fn a_problem_that_lasts_is_not_tried_again() {
    let stage = Stage::new();
    let mut seat = stage.plug("demo", &broken(), &granted());
    seat.problem("describe").await;
    tokio::time::sleep(SOON).await;
    assert_eq!(stage.components.loads(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_suspended_plugin_stands_still_and_goes_on_later() {
    let stage = Stage::new();
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    seat.put(&version("1"), &granted_and(&json!({"suspend": true})));
    let status = seat.problem("suspended: spec.suspend is true").await;
    assert_eq!(status.running, None);
    assert_eq!(stage.world.watches(), []);
    stage.world.apply(&things(), "a");
    seat.put(&version("1"), &granted());
    seat.runs("1").await;
    assert_eq!(stage.runs.count(1).await[0].key, key("a"));
    // From the start: it is not even loaded.
    let loads = stage.components.loads();
    let mut other = stage.plug("other", &version("1"), &json!({"suspend": true}));
    assert!(other.problem("suspended").await.settled);
    assert_eq!(stage.components.loads(), loads);
}

#[tokio::test(start_paused = true)]
async fn only_the_component_that_the_document_pins_runs() {
    let stage = Stage::new();
    let pinned = |wasm: &Bytes| granted_and(&json!({"digest": Digest::of(wasm).to_string()}));
    let mut seat = stage.plug("demo", &version("1"), &pinned(&version("2")));
    let status = seat.problem("the document pins").await;
    assert!(status.problem.unwrap().to_string().starts_with("verify: demo.wasm is sha256:"), "the phase");
    assert_eq!((status.running, stage.components.loads()), (None, 0));
    let mut named = pinned(&version("2"));
    named["source"] = json!({"file": "demo.wasm"});
    seat.put(&version("2"), &named);
    seat.runs("2").await;
    // Neither the new component nor the one that runs is what this document wants: nothing changes.
    let mut elsewhere = pinned(&version("4"));
    elsewhere["namespaces"] = json!(["n"]);
    seat.put(&version("3"), &elsewhere);
    assert_eq!(seat.problem("the document pins").await.running.unwrap().0, "2");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(stage.world.watches()[0].2, Scope::All.extents());
}

#[tokio::test(start_paused = true)]
async fn of_two_plugins_for_one_kind_the_second_starts_when_the_first_has_ended() {
    let stage = Stage::new();
    stage.world.apply(&things(), "a");
    let mut first = stage.plug("first", &version("0"), &granted());
    first.runs("0").await;
    // Also when it was exchanged.
    first.put(&version("1"), &granted());
    first.runs("1").await;
    stage.runs.count(2).await;
    let mut second = stage.plug("second", &version("2"), &granted());
    let status = second.problem("start: things.x.example.com is reconciled by the plugin first already").await;
    assert!(status.settled && status.problem.unwrap().to_string().contains("takes over when first has ended"));
    // One reconcile of the first is still under way when it is removed.
    stage.runs.act(|_, _| async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        Ok(Outcome::AwaitChange)
    });
    stage.world.apply(&things(), "a");
    stage.runs.under_way(1).await;
    first.entries.send_replace(Entry::Gone);
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(second.status.borrow().running, None, "the first is not over yet");
    second.runs("2").await;
    assert_eq!(stage.runs.count(4).await[3].plugin, "second");
    assert_eq!(stage.runs.at_most(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_a_new_version_gave_up_is_free_for_others_and_one_that_it_takes_must_be() {
    let stage = Stage::new();
    let mut first = stage.plug("first", &version("1"), &granted());
    first.runs("1").await;
    let mut second = stage.plug("second", &component("1", for_parts), &granted());
    second.runs("1").await;
    first.put(&component("2", for_parts), &granted());
    assert_eq!(first.problem("parts.x.example.com is reconciled by the plugin second").await.running.unwrap().0, "1");
    second.entries.send_replace(Entry::Gone);
    first.runs("2").await;
    let mut third = stage.plug("third", &version("3"), &granted());
    third.runs("3").await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_was_given_up_is_free_only_when_the_reconciles_in_flight_have_ended() {
    let stage = Stage::new();
    stage.world.apply(&things(), "a");
    stage.runs.act(|_, _| async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        Ok(Outcome::AwaitChange)
    });
    let mut first = stage.plug("first", &version("1"), &granted());
    stage.runs.under_way(1).await;
    first.put(&component("2", for_parts), &granted());
    first.runs("2").await;
    let mut second = stage.plug("second", &version("3"), &granted());
    second.problem("is reconciled by the plugin first").await;
    second.runs("3").await;
    stage.runs.count(2).await;
    assert_eq!(stage.runs.at_most(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_ran_last_runs_after_a_restart_when_the_file_is_broken_now() {
    let stage = Stage::new();
    stage.memory.0.lock().unwrap().insert("demo".into(), version("1"));
    stage.world.apply(&things(), "a");
    let mut seat = stage.plug("demo", &broken(), &granted());
    let status = seat.until("both", |status| status.running.is_some() && status.problem.is_some()).await;
    assert_eq!(status.running.unwrap().0, "1");
    assert!(status.problem.unwrap().to_string().contains("demo.wasm"));
    assert_eq!(stage.runs.count(1).await[0].version, "1");
    assert_eq!(stage.memory.0.lock().unwrap()["demo"], version("1"), "the broken one is not kept");
    seat.put(&version("2"), &granted());
    seat.runs("2").await;
    assert_eq!(stage.memory.0.lock().unwrap()["demo"], version("2"));
}

#[tokio::test(start_paused = true)]
async fn what_ran_last_is_tried_again_too_while_the_cluster_is_away() {
    let stage = Stage::new();
    stage.memory.0.lock().unwrap().insert("demo".into(), version("1"));
    stage.world.refuse(Some(ApiError::Unavailable("down".into())));
    let mut seat = stage.plug("demo", &broken(), &granted());
    let problem =
        seat.problem("; and the version before it: start: unavailable: down").await.problem.unwrap().to_string();
    assert!(problem.starts_with("describe: demo.wasm: "), "{problem}");
    stage.world.refuse(None);
    seat.until("the version before", |status| status.running.is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn what_ran_last_does_not_run_where_the_document_pins_another() {
    let stage = Stage::new();
    stage.memory.0.lock().unwrap().insert("demo".into(), version("1"));
    let mut seat = stage.plug("demo", &broken(), &granted_and(&json!({"digest": Digest::of(&broken()).to_string()})));
    seat.problem("describe").await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(seat.status.borrow().running, None);
}

#[tokio::test(start_paused = true)]
async fn another_scope_or_account_restarts_the_watches_and_nothing_else_does() {
    let stage = Stage::new();
    for name in ["a", "b"] {
        stage.world.apply(&things(), name);
    }
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    stage.runs.count(2).await;
    let n = Scope::Namespaces([Namespace::parse("n").unwrap()].into());
    let cases = [
        (json!({"settings": {"colour": "red"}}), "operetta-plugins/demo", Scope::All, 1),
        (json!({"namespaces": ["n"]}), "operetta-plugins/demo", n.clone(), 2),
        (json!({"namespaces": ["n"], "serviceAccount": {"name": "other", "namespace": "z"}}), "z/other", n, 3),
    ];
    for (more, account, scope, subscriptions) in cases {
        stage.runs.clear();
        seat.put(&version("1"), &granted_and(&more));
        stage.runs.count(2).await;
        seat.runs("1").await;
        assert_eq!(stage.world.watches(), [(account.to_owned(), "things".to_owned(), scope.extents())]);
        assert_eq!(stage.world.subscriptions.load(atomic::Ordering::SeqCst), subscriptions);
    }
    assert_eq!(stage.components.loads(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_version_may_have_other_controllers() {
    let stage = Stage::new();
    stage.world.apply(&things(), "a");
    stage.world.apply(&parts(), "p");
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    stage.runs.count(1).await;
    let both = component("2", |manifest| {
        let mut extra = manifest["controllers"][0].clone();
        (extra["name"], extra["for"]["resource"]) = ("extra".into(), "parts".into());
        manifest["controllers"].as_array_mut().unwrap().push(extra);
    });
    seat.put(&both, &granted());
    seat.runs("2").await;
    let mut keys: Vec<_> = stage.runs.count(3).await[1..].iter().map(|run| run.key.name.to_string()).collect();
    keys.sort();
    assert_eq!(
        (keys, kinds(&stage)),
        (vec!["a".to_owned(), "p".to_owned()], vec!["parts".to_owned(), "things".to_owned()])
    );

    // The same controller for another kind, and the other one gone.
    seat.put(&component("3", for_parts), &granted());
    seat.runs("3").await;
    stage.runs.until("parts", |runs| runs.iter().any(|run| run.version == "3" && run.key == key("p"))).await;
    stage.world.has_watches(1).await;
    assert_eq!(kinds(&stage), ["parts"]);
    stage.runs.clear();
    stage.world.apply(&things(), "a");
    stage.world.apply(&parts(), "p");
    assert_eq!(stage.runs.count(1).await[0].key, key("p"));
    let text = stage.host.metrics.encode().unwrap();
    assert!(text.contains("workqueue_depth{controller=\"demo/main\""), "the new controller's queue is told of");
    assert!(!text.contains("workqueue_depth{controller=\"demo/extra\""), "the old one's no longer");
}

#[tokio::test(start_paused = true)]
async fn a_controller_by_another_name_waits_for_the_reconciles_of_the_one_before() {
    let stage = Stage::new();
    stage.world.apply(&things(), "a");
    stage.runs.act(|_, _| async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok(Outcome::AwaitChange)
    });
    let mut seat = stage.plug("demo", &version("1"), &granted());
    stage.runs.under_way(1).await;
    seat.put(&component("2", |manifest| manifest["controllers"][0]["name"] = "renamed".into()), &granted());
    seat.runs("2").await;
    let runs = stage.runs.count(2).await;
    assert_eq!(runs.iter().map(|run| run.version.as_str()).collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!((runs[1].began - runs[0].began).as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_works_only_where_the_host_does_too() {
    let stage = Stage::new();
    let scope = Scope::Namespaces([Namespace::parse("n").unwrap()].into());
    let Stage { world, runs, components, memory, drawer, shelf, host, stop } = stage;
    let host = Arc::new(Host { scope: scope.clone(), ..Arc::into_inner(host).unwrap() });
    let stage = Stage { world, runs, components, memory, drawer, shelf, host, stop };
    let mut seat = stage.plug("demo", &version("1"), &granted_and(&json!({"namespaces": ["m"]})));
    seat.problem("grant: no namespace is left").await;
    seat.put(&version("1"), &granted());
    seat.runs("1").await;
    assert_eq!(stage.world.watches()[0].2, scope.extents());
}

#[tokio::test(start_paused = true)]
async fn a_plugin_whose_watch_is_refused_later_says_so_and_watches_again_when_it_may() {
    let stage = Stage::new();
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    stage.world.revoke();
    seat.problem("start: forbidden by the cluster: the account may not watch").await;
    stage.world.apply(&things(), "a");
    stage.world.refuse(None);
    assert_eq!(stage.runs.count(1).await[0].key, key("a"));
    seat.runs("1").await;
    assert_eq!(stage.components.loads(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_whose_account_is_taken_away_reconciles_nothing_until_it_is_back() {
    let stage = Stage::new();
    let mut seat = stage.plug("demo", &version("1"), &granted());
    stage.runs.act(|_, _| async { Ok(Outcome::RequeueAfter(Duration::from_secs(5))) });
    stage.world.apply(&things(), "again");
    seat.runs("1").await;
    stage.runs.count(3).await;
    stage.world.banish(true);
    seat.problem("grant: forbidden by the cluster: the account names another plugin").await;
    stage.runs.clear();
    // Not even what needs nothing of the cluster.
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(stage.runs.all(), []);
    stage.world.banish(false);
    seat.runs("1").await;
    stage.runs.count(3).await;
    assert_eq!(stage.components.loads(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_lost_while_the_files_are_broken_is_restarted_too() {
    let stage = Stage::new();
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    seat.put(&broken(), &granted());
    seat.problem("demo.wasm").await;
    stage.world.revoke();
    stage.world.refuse(None);
    stage.world.apply(&things(), "a");
    assert_eq!(stage.runs.count(1).await[0].version, "1");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_lost_while_half_of_the_files_is_missing_is_no_reason_to_spin() {
    let stage = Stage::new();
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    seat.entries.send_replace(Entry::Incomplete("demo.wasm has no demo.yaml beside it".into()));
    seat.problem("no demo.yaml").await;
    stage.world.revoke();
    tokio::time::sleep(Duration::from_mins(10)).await;
    let text = stage.host.metrics.encode().unwrap();
    let tries = text
        .lines()
        .find_map(|line| line.strip_prefix("operetta_plugin_loads_total{plugin=\"demo\",result=\"error\"} "));
    assert!((5..40).contains(&tries.unwrap().parse().unwrap()), "{tries:?} in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_newer_file_ends_the_work_on_an_older_one_and_so_does_a_stop() {
    let stage = Stage::new();
    stage.components.gate.send_replace(false);
    let mut seat = stage.plug("demo", &version("slow-1"), &granted());
    eventually("the first load", || stage.components.loads() == 1).await;
    seat.put(&version("slow-2"), &granted());
    eventually("the second load", || stage.components.loads() == 2).await;
    stage.components.gate.send_replace(true);
    seat.runs("slow-2").await;
    assert!(stage.runs.all().is_empty());

    stage.components.gate.send_replace(false);
    seat.put(&version("slow-3"), &granted());
    stage.stop.cancel();
    timeout(SOON, seat.task).await.unwrap().unwrap();
    assert_eq!(stage.world.watches(), []);
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_the_host_waits_for_reconciles_in_flight() {
    let stage = Stage::new();
    stage.world.apply(&things(), "a");
    stage.runs.act(|_, _| async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok(Outcome::AwaitChange)
    });
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    stage.runs.under_way(1).await;
    stage.stop.cancel();
    timeout(SOON, seat.task).await.unwrap().unwrap();
    assert_eq!(stage.runs.all().len(), 1);
    assert!(stage.memory.0.lock().unwrap().contains_key("demo"), "a stop is no removal");
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_comes_back_while_it_ends_is_not_missed() {
    let stage = Stage::new();
    stage.world.apply(&things(), "a");
    stage.runs.act(|_, _| async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok(Outcome::AwaitChange)
    });
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    stage.runs.under_way(1).await;
    seat.entries.send_replace(Entry::Gone);
    tokio::time::sleep(Duration::from_secs(5)).await;
    seat.put(&version("2"), &granted());
    seat.runs("2").await;
    let runs = stage.runs.count(2).await;
    assert_eq!(runs.iter().map(|run| run.version.as_str()).collect::<Vec<_>>(), ["1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_is_ready_when_its_caches_are_filled_and_never_after_it_was_removed() {
    let stage = Stage::new();
    stage.world.silence(Some(&things()));
    let mut seat = stage.plug("demo", &version("1"), &granted());
    stage.world.has_watches(1).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let status = seat.status.borrow().clone();
    assert!(!status.settled && status.running.is_none() && status.switched.unwrap().arriving);
    seat.entries.send_replace(Entry::Gone);
    let status = seat.until("settled", |status| status.settled).await;
    assert_eq!(status.running, None);
    stage.world.silence(None);
    tokio::time::sleep(SOON).await;
    assert_eq!(seat.status.borrow().running, None);
}

#[tokio::test(start_paused = true)]
async fn an_exchange_is_said_when_the_new_watches_are_filled() {
    let stage = Stage::new();
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    stage.world.silence(Some(&things()));
    seat.put(&version("2"), &granted_and(&json!({"namespaces": ["n"]})));
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(seat.status.borrow().running.as_ref().unwrap().0, "1");
    stage.world.silence(None);
    seat.runs("2").await;
}

#[tokio::test(start_paused = true)]
async fn half_a_plugin_is_a_problem_and_the_version_before_runs_on() {
    let stage = Stage::new();
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    seat.entries.send_replace(Entry::Incomplete("demo.yaml has no demo.wasm beside it".into()));
    assert!(seat.problem("fetch: demo.yaml has no demo.wasm").await.running.is_some());
    stage.world.apply(&things(), "a");
    stage.runs.count(1).await;
}
