//! Plugins of the cluster: where their components come from, and how those go whose finalizers objects hold.

use operetta_api::ConfigMapSource;

use super::*;
use crate::{catalog::Object, package, report::Reporter};

const FINALIZER: &str = "x.example.com/finalizer";

/// With a finalizer that the plugin takes off objects that are being deleted.
fn holding(version: &str) -> Bytes {
    component(version, |manifest| manifest["controllers"][0]["finalizers"] = json!([FINALIZER]))
}

fn object(generation: i64, deleting: bool) -> Object {
    Object { uid: "u1".into(), generation, deleting, shadows: false }
}

fn of_object(wasm: Wasm, spec: &Value, object: Object) -> Entry {
    let document =
        json!({"apiVersion": "operetta.dev/v1alpha1", "kind": "Plugin", "metadata": {"name": "demo"}, "spec": spec});
    Entry::Present { wasm, yaml: document.to_string(), object: Some(object) }
}

fn file(wasm: &Bytes) -> Wasm {
    Wasm::File { name: "demo.wasm".into(), bytes: wasm.clone() }
}

fn in_maps(chunks: Option<u32>) -> Wasm {
    Wasm::ConfigMap(ConfigMapSource { name: "demo".parse().unwrap(), chunks })
}

impl Stage {
    /// A plugin of the cluster, with who tells its Plugin of it.
    fn plug_object(&self, entry: Entry) -> Seat {
        let (entries, follow) = watch::channel(entry);
        let (tell, status) = watch::channel(Status::default());
        let name = plugin_name("demo");
        let plugin = Plugin::new(self.host.clone(), name.clone(), tell);
        let reporter = Reporter::new(self.shelf.clone(), name.clone(), plugin.vitals());
        tokio::spawn(reporter.follow(status.clone()));
        let task = tokio::spawn(plugin.follow(follow, self.stop.clone()));
        Seat { name, entries, status, task }
    }

    fn hold(&self, name: &str, deleting: bool) {
        let mut metadata = json!({"finalizers": [FINALIZER, "other/one"]});
        if deleting {
            metadata["deletionTimestamp"] = "2024-01-01T00:00:00Z".into();
        }
        self.world.apply_with(&things(), "n", name, metadata);
    }

    async fn says(&self, type_: &str, status: &str, reason: &str) -> String {
        let is = || self.shelf.condition("demo", type_).filter(|(s, r, _)| s == status && r == reason);
        let what = format!("{type_}={status}/{reason}, not {:?}", self.shelf.condition("demo", type_));
        eventually(&what, || is().is_some()).await;
        is().unwrap().2
    }
}

#[tokio::test(start_paused = true)]
async fn a_component_in_config_maps_runs_when_they_come_and_a_wrong_one_leaves_the_version_before_running() {
    let stage = Stage::new();
    let mut seat = stage.plug_object(of_object(in_maps(Some(1)), &granted(), object(1, false)));
    seat.problem("there is no ConfigMap operetta-system/demo-0").await;
    let said = stage.says("Loaded", "False", "ConfigMapMissing").await;
    assert!(said.contains("nothing runs"), "{said}");
    let parts = package::pack(&version("1")).unwrap();
    stage.shelf.maps.lock().unwrap().insert("demo-0".into(), parts.into_iter().next().unwrap().into());
    seat.runs("1").await;
    assert!(stage.says("Ready", "True", "Running").await.starts_with("version 1 ("));
    stage.says("Loaded", "True", "Loaded").await;
    stage.says("Granted", "True", "Granted").await;

    // Another digest than the one pinned.
    let mut pinned = granted_and(&json!({"digest": Digest::of(&version("2")).to_string()}));
    seat.entries.send_replace(of_object(in_maps(Some(1)), &pinned, object(2, false)));
    seat.problem("pins").await;
    let said = stage.says("Loaded", "False", "DigestMismatch").await;
    assert!(said.ends_with("runs on"), "{said}");
    stage.says("Ready", "False", "DigestMismatch").await;
    let status = stage.shelf.statuses.lock().unwrap()["demo"].clone();
    assert_eq!((status.version.as_deref(), status.observed_generation), (Some("1"), Some(2)));
    assert!(status.conditions.iter().all(|c| c.observed_generation == Some(2)));
    stage.shelf.maps.lock().unwrap().insert("demo-0".into(), version("2"));
    seat.runs("2").await;
    stage.says("Ready", "True", "Running").await;

    // What is pinned and runs already is not read again, so that grants change whatever lies there.
    stage.shelf.maps.lock().unwrap().clear();
    pinned["settings"] = json!({"colour": "red"});
    let loads = stage.components.loads();
    seat.entries.send_replace(of_object(in_maps(Some(1)), &pinned, object(3, false)));
    seat.until("the third generation", |status| status.object.as_ref().is_some_and(|o| o.generation == 3)).await;
    seat.runs("2").await;
    assert_eq!(stage.components.loads(), loads);
    assert!(!stage.shelf.holds("u1"), "it has no finalizers");
    let events = stage.shelf.events.lock().unwrap().iter().map(|(reason, _)| reason.clone()).collect::<Vec<_>>();
    assert_eq!(events, ["ConfigMapMissing", "Loaded", "DigestMismatch", "Exchanged"]);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_is_refused_to_go_works_on_until_nothing_is_held() {
    let stage = Stage::new();
    stage.hold("a", false);
    let mut seat = stage.plug_object(of_object(file(&holding("1")), &granted(), object(1, false)));
    seat.runs("1").await;
    assert!(stage.shelf.holds("u1"));
    stage.says("FinalizersHeld", "True", "InUse").await;

    seat.entries.send_replace(of_object(file(&holding("1")), &granted(), object(2, true)));
    let said = stage.says("FinalizersHeld", "True", "DeletionRefused").await;
    assert!(
        said.starts_with("1 things.x.example.com holds the finalizer x.example.com/finalizer: the Plugin stays"),
        "{said}"
    );
    stage.says("Ready", "True", "DeletionRefused").await;
    stage.runs.clear();
    stage.world.apply(&things(), "b");
    stage.runs.count(1).await;
    assert!(stage.shelf.holds("u1"));

    stage.world.delete(&things(), "a");
    eventually("it is let go", || !stage.shelf.holds("u1")).await;
    assert_eq!(stage.world.watches(), []);
    // Until the API server says that it is gone, it is not started again.
    tokio::time::sleep(SOON).await;
    assert_eq!(stage.world.watches(), []);
    seat.entries.send_replace(Entry::Gone);
    seat.until("the end", |status| status.object.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_was_deleted_ends_whatever_file_of_its_name_is_left() {
    let why = "demo.wasm has no demo.yaml beside it".to_owned();
    for left in [Entry::WithoutDocument(why.clone()), Entry::Incomplete(why.clone())] {
        let stage = Stage::new();
        let mut seat = stage.plug_object(of_object(file(&version("1")), &granted(), object(1, false)));
        seat.runs("1").await;
        seat.entries.send_replace(left);
        let status = seat.problem("demo.wasm has no demo.yaml").await;
        assert!(status.running.is_none() && status.switched.is_none(), "{status:?}");
        stage.world.has_watches(0).await;
        assert!(stage.memory.0.lock().unwrap().is_empty(), "it was removed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_drains_looks_only_after_what_is_being_deleted() {
    let stage = Stage::new();
    stage.hold("stays", false);
    stage.hold("goes", false);
    let mut seat = stage.plug_object(of_object(file(&holding("1")), &granted(), object(1, false)));
    seat.runs("1").await;
    stage.runs.count(2).await;
    stage.runs.clear();
    let drain = granted_and(&json!({"deletionPolicy": "Drain"}));
    seat.entries.send_replace(of_object(file(&holding("1")), &drain, object(2, true)));
    let said = stage.says("FinalizersHeld", "True", "Draining").await;
    assert!(said.contains("2 things.x.example.com hold") && said.contains("(0 are)"), "{said}");
    stage.says("Ready", "False", "Draining").await;
    stage.hold("stays", false);
    stage.world.apply(&things(), "new");
    stage.hold("goes", true);
    let runs = stage.runs.count(1).await;
    assert_eq!(runs.iter().map(|run| run.key.clone()).collect::<Vec<_>>(), [key("goes")]);
    stage.world.delete(&things(), "goes");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(stage.shelf.holds("u1") && stage.runs.all().iter().all(|run| run.key == key("goes")));

    // To keep it after all, nothing can be done; to let the rest go, it is said.
    let release = granted_and(&json!({"deletionPolicy": "Release"}));
    seat.entries.send_replace(of_object(file(&holding("1")), &release, object(3, true)));
    eventually("it is let go", || !stage.shelf.holds("u1")).await;
    assert_eq!(stage.world.finalizers(&things(), "stays"), json!(["other/one"]));
    assert!(stage.runs.all().iter().all(|run| run.key == key("goes")), "the plugin's own clean-up is not asked for");
}

#[tokio::test(start_paused = true)]
async fn how_a_plugin_is_to_go_says_nothing_before_it_goes() {
    for policy in ["Refuse", "Drain", "Release"] {
        let stage = Stage::new();
        let spec = granted_and(&json!({"deletionPolicy": policy}));
        let mut seat = stage.plug_object(of_object(file(&holding("1")), &spec, object(1, false)));
        seat.runs("1").await;
        stage.world.apply(&things(), "a");
        assert_eq!(stage.runs.count(1).await[0].key, key("a"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspended_plugin_can_be_deleted_and_what_it_holds_is_counted_first() {
    let stage = Stage::new();
    stage.hold("a", false);
    let mut seat = stage.plug_object(of_object(file(&holding("1")), &granted(), object(1, false)));
    seat.runs("1").await;
    let suspended = granted_and(&json!({"suspend": true}));
    seat.entries.send_replace(of_object(file(&holding("1")), &suspended, object(2, false)));
    assert!(stage.says("FinalizersHeld", "Unknown", "Suspended").await.contains("1 things.x.example.com holds"));
    stage.says("Ready", "False", "Suspended").await;
    stage.runs.clear();
    seat.entries.send_replace(of_object(file(&holding("1")), &suspended, object(3, true)));
    stage.says("FinalizersHeld", "True", "DeletionRefused").await;
    stage.world.apply(&things(), "b");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(stage.runs.all(), [], "it stands still");
    stage.world.delete(&things(), "a");
    eventually("it is let go", || !stage.shelf.holds("u1")).await;
}

#[tokio::test(start_paused = true)]
async fn removed_files_drain_what_is_held_and_files_that_come_back_end_that() {
    let stage = Stage::new();
    stage.hold("a", false);
    let mut seat = stage.plug("demo", &holding("1"), &granted());
    seat.runs("1").await;
    stage.runs.count(1).await;
    seat.entries.send_replace(Entry::Gone);
    seat.until("it drains", |status| status.leaving.is_some()).await;
    stage.runs.clear();
    stage.world.apply(&things(), "b");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(stage.runs.all(), []);
    seat.put(&holding("1"), &granted());
    seat.until("it stays", |status| status.leaving.is_none()).await;
    stage.runs.until("b", |runs| runs.iter().any(|run| run.key == key("b"))).await;

    seat.entries.send_replace(Entry::Gone);
    seat.until("it drains again", |status| status.leaving.is_some()).await;
    stage.hold("a", true);
    stage.world.delete(&things(), "a");
    seat.until("the end", |status| status.running.is_none()).await;
    assert_eq!(stage.world.watches(), []);
    assert!(stage.memory.0.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_version_that_drops_a_finalizer_or_a_kind_that_is_held_is_refused_until_it_is_not() {
    let stage = Stage::new();
    stage.hold("a", false);
    let mut seat = stage.plug("demo", &holding("1"), &granted());
    seat.runs("1").await;
    let other_kind = component("3", for_parts);
    for (wasm, lost) in [(version("2"), "that finalizer"), (other_kind.clone(), "that kind")] {
        seat.put(&wasm, &granted());
        let status = seat.problem(lost).await;
        let said = status.problem.unwrap().message;
        assert!(said.starts_with("1 things.x.example.com hold the finalizer x.example.com/finalizer"), "{said}");
        assert_eq!(status.running.unwrap().0, "1");
    }
    stage.world.delete(&things(), "a");
    seat.runs("3").await;
}

#[tokio::test(start_paused = true)]
async fn the_second_plugin_of_a_kind_takes_over_at_once_when_the_first_goes() {
    let stage = Stage::new();
    let mut first = stage.plug("first", &version("1"), &granted());
    first.runs("1").await;
    let mut second = stage.plug("second", &version("2"), &granted());
    second.problem("is reconciled by the plugin first already").await;
    // Long enough that the next regular try is half a minute away.
    tokio::time::sleep(Duration::from_mins(10)).await;
    let gone = Instant::now();
    first.entries.send_replace(Entry::Gone);
    second.runs("2").await;
    assert!(gone.elapsed() < Duration::from_secs(1), "{:?}", gone.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_is_denied_and_what_traps_is_told_and_forgotten_with_the_next_spec() {
    let stage = Stage::new();
    stage.runs.act(|request, effects| async move {
        let _ = effects.list(&parts(), &ListOptions::default()).await;
        if request.key == key("bad") {
            Err(Failure::Trap("unreachable\nat f".into()))
        } else {
            Ok(Outcome::AwaitChange)
        }
    });
    let narrow =
        json!({"grants": {"rules": [{"apiGroups": ["x.example.com"], "resources": ["things"], "verbs": ["*"]}]}});
    let mut seat = stage.plug_object(of_object(file(&version("1")), &narrow, object(1, false)));
    seat.runs("1").await;
    stage.world.apply(&things(), "good");
    let said = stage.says("Granted", "False", "Denied").await;
    assert!(
        said.contains("list parts of group x.example.com") && said.contains("spec.grants.rules:\n- apiGroups:"),
        "{said}"
    );
    stage.says("Ready", "True", "Running").await;
    let metrics = stage.host.metrics.encode().unwrap();
    let line = "operetta_plugin_requests_total{plugin=\"demo\",verb=\"list\",result=\"denied\"} ";
    assert!(metrics.lines().any(|l| l.starts_with(line)), "{metrics}");
    stage.world.apply(&things(), "bad");
    let said = stage.says("Degraded", "True", "Trapping").await;
    assert!(said.contains("n/bad") && said.contains("unreachable") && !said.contains("at f"), "{said}");
    stage.runs.act(|_, _| async { Ok(Outcome::AwaitChange) });
    stage.says("Degraded", "False", "AsExpected").await;
    seat.entries.send_replace(of_object(file(&version("1")), &granted(), object(2, false)));
    stage.says("Granted", "True", "Granted").await;
    assert_eq!(stage.components.loads(), 1, "the code is not loaded again");
}

#[tokio::test(start_paused = true)]
async fn a_plugin_of_which_nothing_but_traps_comes_is_told_as_parked_with_the_way_out() {
    let stage = Stage::new();
    stage.runs.act(|_, _| async { Err(Failure::Deadline(std::time::Duration::from_secs(30))) });
    let mut seat = stage.plug_object(of_object(file(&version("1")), &granted(), object(1, false)));
    seat.runs("1").await;
    for name in ["a", "b"] {
        stage.world.apply(&things(), name);
    }
    let said = stage.says("Degraded", "True", "Parked").await;
    for part in ["controller main is parked", "of 2 objects", "limits.deadlineSeconds", "operetta reconcile KIND/NAME"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    stage.says("Ready", "False", "Parked").await;
    let event = |reason: &str| stage.shelf.events.lock().unwrap().iter().filter(|(r, _)| r == reason).count();
    assert_eq!(event("Parked"), 1);
    // Another document is the way out, and tells nothing of the one before.
    stage.runs.act(|_, _| async { Ok(Outcome::AwaitChange) });
    let mut more = granted();
    more["limits"] = json!({"deadlineSeconds": 60});
    seat.entries.send_replace(of_object(file(&version("1")), &more, object(2, false)));
    stage.says("Degraded", "False", "AsExpected").await;
    stage.says("Ready", "True", "Running").await;
    assert_eq!(event("Recovered"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_status_is_written_when_it_changes_and_counts_are_written_seldom() {
    let stage = Stage::new();
    let mut seat = stage.plug_object(of_object(file(&version("1")), &granted(), object(1, false)));
    seat.runs("1").await;
    stage.says("Ready", "True", "Running").await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    let writes = || stage.shelf.writes.load(std::sync::atomic::Ordering::SeqCst);
    let before = writes();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(writes(), before, "nothing happened");
    let since = Instant::now();
    for number in 0..1_000 {
        stage.world.apply(&things(), &format!("t{}", number % 10));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let most = usize::try_from(since.elapsed().as_secs() / 10).unwrap() + 1;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(writes() - before <= most + 2, "{} writes", writes() - before);
    let status = stage.shelf.statuses.lock().unwrap()["demo"].clone();
    assert_eq!((status.objects, status.errors), (Some(10), Some(0)));
    assert_eq!(status.reconciles, i64::try_from(stage.runs.all().len()).ok());
}

#[tokio::test(start_paused = true)]
async fn a_plugin_of_files_is_told_of_nowhere() {
    let stage = Stage::new();
    let Entry::Present { wasm, yaml, .. } = entry("demo", &version("1"), &granted()) else { unreachable!() };
    let mut seat = stage.plug_object(Entry::Present { wasm, yaml, object: None });
    seat.runs("1").await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(stage.shelf.writes.load(std::sync::atomic::Ordering::SeqCst), 0);
}
