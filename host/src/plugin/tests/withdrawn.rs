//! Grants that are taken away from what runs.

use operetta_core::{
    grant::{Access, Verb},
    port::GrpcCall,
    resource::{ObjectKey, Resource},
};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_document_holds_for_the_code_that_runs_even_beside_a_broken_component() {
    let stage = Stage::new();
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    let loads = || stage.components.loads();
    seat.put(&broken(), &granted());
    seat.problem("demo.wasm").await;
    assert_eq!(loads(), 2);

    // A grant is withdrawn.
    let denied = Arc::new(atomic::AtomicBool::new(false));
    let tell = denied.clone();
    stage.runs.act(move |_, effects| {
        let tell = tell.clone();
        async move {
            let got = effects.get(&things(), &key("a"), false).await;
            tell.store(matches!(got, Err(ApiError::Denied(_))), atomic::Ordering::SeqCst);
            Ok(Outcome::AwaitChange)
        }
    });
    stage.world.apply(&things(), "a");
    stage.runs.count(1).await;
    assert!(!denied.load(atomic::Ordering::SeqCst));
    seat.put(&broken(), &only_things(&["list", "watch"]));
    stage.runs.count(2).await;
    assert!(denied.load(atomic::Ordering::SeqCst));
    assert!(seat.status.borrow().problem.is_some());
    assert_eq!(loads(), 2, "what is known to be broken is not tried again");

    seat.put(&broken(), &granted_and(&json!({"suspend": true})));
    let status = seat.problem("suspended").await;
    assert_eq!(status.running, None);
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_gone_even_where_the_document_that_takes_it_away_is_not_taken() {
    let stage = Stage::new();
    let owner = |version: &str| {
        let parts = json!([{"group": "x.example.com", "version": "v1", "resource": "parts"}]);
        component(version, |manifest| manifest["controllers"][0]["owns"] = parts)
    };
    let mut seat = stage.plug("demo", &owner("1"), &granted());
    seat.runs("1").await;
    let answers = looks(&stage);
    let denied = async || {
        // Whatever is looked at because of another document has been.
        tokio::time::sleep(Duration::from_secs(1)).await;
        stage.runs.clear();
        stage.world.apply(&things(), "a");
        stage.runs.count(1).await;
        matches!(answers.lock().unwrap().pop(), Some(Err(ApiError::Denied(_))))
    };
    assert!(!denied().await);
    let needs = "its controllers need what is not granted";
    let less = only_things(&["list", "watch"]);
    let mut pinned = less.clone();
    pinned["digest"] = Digest::of(b"another").to_string().into();
    for (wasm, spec, problem) in [
        (owner("1"), &less, needs),
        (owner("2"), &less, needs),
        (broken(), &less, needs),
        // Of a version that is not there yet, so that none may run by it.
        (owner("1"), &pinned, "the document pins"),
    ] {
        seat.put(&wasm, spec);
        let status = seat.problem(problem).await;
        assert_eq!(status.switched.unwrap().meanwhile, Meanwhile::Narrowed, "{problem}");
        assert!(denied().await);
        seat.put(&owner("1"), &granted());
        eventually("the good document holds", || seat.status.borrow().problem.is_none()).await;
        assert!(!denied().await);
    }
}

/// What reconciles were answered.
type Answers = Arc<Mutex<Vec<Result<Arc<str>, ApiError>>>>;

/// What reconciles see of `a` from now on, as they look.
fn looks(stage: &Stage) -> Answers {
    let answers = Arc::new(Mutex::new(Vec::new()));
    let tell = answers.clone();
    stage.runs.act(move |_, effects| {
        let tell = tell.clone();
        async move {
            let got = effects.get(&things(), &key("a"), false).await;
            tell.lock().unwrap().push(got);
            Ok(Outcome::AwaitChange)
        }
    });
    answers
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_gone_even_where_the_component_beside_the_document_is_missing() {
    let stage = Stage::new();
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    let answers = looks(&stage);
    let Entry::Present { yaml, .. } = entry("demo", &version("1"), &only_things(&["list", "watch"])) else { panic!() };
    let wasm = Wasm::Missing("demo.yaml has no demo.wasm beside it".into());
    seat.entries.send_replace(Entry::Present { wasm: wasm.clone(), yaml: yaml.clone(), object: None });
    assert!(seat.problem("demo.yaml has no demo.wasm").await.running.is_some());
    stage.world.apply(&things(), "a");
    eventually("it is denied", || matches!(answers.lock().unwrap().last(), Some(Err(ApiError::Denied(_))))).await;

    // Where nothing runs by such a file, what ran once does not come back for it.
    let next = Stage::new();
    next.memory.0.lock().unwrap().insert("demo".into(), version("1"));
    let mut seat = next.plug("demo", &broken(), &granted_and(&json!({"suspend": true})));
    seat.problem("suspended").await;
    seat.entries.send_replace(Entry::Present { wasm, yaml, object: None });
    assert_eq!(seat.problem("demo.yaml has no demo.wasm").await.running, None);
    assert_eq!(next.components.loads(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_object_is_not_handed_over_when_its_kind_is_no_longer_granted_and_comes_back_with_the_grant() {
    let stage = Stage::new();
    stage.world.apply(&things(), "a");
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    stage.runs.count(1).await;
    stage.runs.clear();
    seat.put(&version("1"), &json!({}));
    seat.problem("its controllers need what is not granted").await;
    for _ in 0..10 {
        stage.world.apply(&things(), "a");
        tokio::time::sleep(Duration::from_mins(1)).await;
    }
    assert_eq!(stage.runs.all(), []);
    assert!(stage.metric("operetta_denials_total{plugin=\"demo\",grant=\"rules\"} 1"), "it is told, and once");
    seat.put(&version("1"), &granted());
    assert_eq!(stage.runs.count(1).await[0].key, key("a"));
    seat.runs("1").await;
}

#[tokio::test(start_paused = true)]
async fn objects_that_a_narrower_rule_leaves_out_are_not_handed_over_once_more() {
    let rule = |more: Value| {
        let mut rule = more;
        (rule["apiGroups"], rule["resources"], rule["verbs"]) = (json!(["x.example.com"]), json!(["*"]), json!(["*"]));
        json!({"grants": {"rules": [rule]}})
    };
    for narrower in [json!({"namespaces": ["n"]}), json!({"namespaces": ["n"], "resourceNames": ["a"]})] {
        let stage = Stage::new();
        stage.world.apply(&things(), "a");
        stage.world.apply_with(&things(), "other", "b", json!({}));
        let mut seat = stage.plug("demo", &version("1"), &granted());
        seat.runs("1").await;
        stage.runs.count(2).await;
        stage.runs.clear();
        seat.put(&version("1"), &rule(narrower));
        stage.runs.count(1).await;
        seat.runs("1").await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert!(stage.runs.all().iter().all(|run| run.key == key("a")), "{:#?}", stage.runs.all());
        assert!(!stage.host.metrics.encode().unwrap().contains("operetta_denials_total{"), "nobody asked for it");
        seat.put(&version("1"), &granted());
        stage.runs.until("the other", |runs| runs.iter().any(|run| run.key.name.as_str() == "b")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_gone_before_anything_is_done_about_the_document_that_takes_it_away() {
    let stage = Stage::new();
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    let answers = looks(&stage);
    stage.components.gate.send_replace(false);
    seat.put(&version("slow-2"), &only_things(&["list", "watch"]));
    eventually("the new one is being loaded", || stage.components.loads() == 2).await;
    stage.world.apply(&things(), "a");
    assert_eq!(stage.runs.count(1).await[0].version, "1");
    let got = answers.lock().unwrap().pop();
    assert!(matches!(got, Some(Err(ApiError::Denied(_)))), "{got:?}");
    stage.components.gate.send_replace(true);
    seat.runs("slow-2").await;
}

#[tokio::test(start_paused = true)]
async fn without_a_document_nothing_is_granted_until_there_is_one_again() {
    let stage = Stage::new();
    let holding = component("1", |manifest| manifest["controllers"][0]["finalizers"] = json!(["x.example.com/f"]));
    let mut seat = stage.plug("demo", &holding, &granted());
    seat.runs("1").await;
    let gate = Arc::new(watch::Sender::new(false));
    let (opened, answers) = (gate.clone(), Arc::new(Mutex::new(Vec::new())));
    let tell = answers.clone();
    stage.runs.act(move |_, effects| {
        let (mut open, tell) = (opened.subscribe(), tell.clone());
        async move {
            open.wait_for(|open| *open).await.unwrap();
            let got = effects.get(&things(), &key("a"), false).await;
            tell.lock().unwrap().push(got.is_ok());
            Ok(Outcome::AwaitChange)
        }
    });
    stage.world.apply(&things(), "a");
    stage.runs.under_way(1).await;
    let lonely = || Entry::WithoutDocument("demo.wasm has no demo.yaml beside it".into());
    seat.entries.send_replace(lonely());
    let status = seat.problem("fetch: demo.wasm has no demo.yaml").await;
    assert_eq!(status.switched.unwrap().meanwhile, Meanwhile::Rests);
    gate.send_replace(true);
    stage.runs.count(1).await;
    assert_eq!(*answers.lock().unwrap(), [false]);
    stage.world.apply(&things(), "a");
    // A document that nobody can read is none.
    let unreadable = Entry::Present {
        wasm: Wasm::File { name: "demo.wasm".into(), bytes: holding.clone() },
        yaml: "spec: [".into(),
        object: None,
    };
    seat.entries.send_replace(unreadable);
    let status = seat.problem("not a Plugin document").await;
    assert_eq!(status.switched.unwrap().meanwhile.to_string(), "reconciles nothing until then");
    stage.world.apply(&things(), "a");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(stage.runs.all().len(), 1);
    seat.put(&holding, &granted());
    stage.runs.count(2).await;
    seat.runs("1").await;
    assert_eq!(*answers.lock().unwrap(), [false, true]);

    // When the component goes as well, what is being deleted is looked after by the document before.
    let deleting = json!({"finalizers": ["x.example.com/f"], "deletionTimestamp": "2024-01-01T00:00:00Z"});
    stage.world.apply_with(&things(), "n", "a", json!({"finalizers": ["x.example.com/f"]}));
    stage.runs.count(3).await;
    seat.entries.send_replace(lonely());
    seat.problem("no demo.yaml").await;
    stage.runs.clear();
    seat.entries.send_replace(Entry::Gone);
    seat.until("it drains", |status| status.leaving.is_some()).await;
    stage.world.apply_with(&things(), "n", "a", deleting);
    stage.runs.count(1).await;
    assert_eq!(answers.lock().unwrap().last(), Some(&true));
}

#[tokio::test(start_paused = true)]
async fn whoever_loses_its_account_does_nothing_more_not_even_where_it_has_begun() {
    let stage = Stage::new();
    let gate = Arc::new(watch::Sender::new(false));
    let (opened, answers) = (gate.clone(), Arc::new(Mutex::new(Vec::new())));
    let tell = answers.clone();
    stage.runs.act(move |_, effects| {
        let (mut open, tell) = (opened.subscribe(), tell.clone());
        async move {
            open.wait_for(|open| *open).await.unwrap();
            let got = effects.get(&things(), &key("a"), false).await;
            tell.lock().unwrap().push(got);
            Ok(Outcome::AwaitChange)
        }
    });
    stage.world.apply(&things(), "a");
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    stage.runs.under_way(1).await;
    stage.world.banish(true);
    seat.problem("the account names another plugin").await;
    gate.send_replace(true);
    stage.runs.count(1).await;
    let got = answers.lock().unwrap().pop();
    assert!(
        matches!(&got, Some(Err(ApiError::Denied(why))) if why.contains("may not act as its account any more")),
        "{got:?}"
    );
    stage.world.banish(false);
    seat.runs("1").await;
    stage.runs.count(2).await;
    let got = answers.lock().unwrap().pop();
    assert!(matches!(got, Some(Ok(_))), "{got:?}");
}

/// What a document with these grants takes away from what runs by one with those.
fn taken(runs: Value, now: Value) -> Arc<Grants> {
    let spec = |grants: Value| serde_json::from_value::<PluginSpec>(json!({"grants": grants})).unwrap();
    let host = "operetta-system".parse().unwrap();
    Withdrawn::by(&spec(runs), &spec(now), &host).grants.unwrap()
}

#[test]
fn a_name_that_leads_elsewhere_now_is_withdrawn() {
    let channel = |name: &str, endpoint: &str| json!({"name": name, "endpoint": endpoint});
    let database = |name: &str, user: &str| json!({"name": name, "host": "db", "dbname": "d", "user": user});
    let runs = json!({
        "channels": [channel("stays", "http://a:1"), channel("moved", "http://a:1")],
        "databases": [database("stays", "reader"), database("moved", "writer")],
    });
    let mut now = json!({
        "channels": [channel("moved", "http://b:1"), channel("stays", "http://a:1"), channel("new", "http://a:1")],
        "databases": [database("moved", "reader"), database("stays", "reader")],
    });
    let left = taken(runs.clone(), now.clone());
    assert!(left.check_channel("stays").is_ok() && left.check_database("stays").is_ok());
    assert!(left.check_channel("moved").is_err() && left.check_database("moved").is_err());
    // Another credential is another one, too.
    now["channels"][1]["tokenFrom"] = json!({"secretKeyRef": {"name": "other", "key": "token"}});
    assert!(taken(runs, now).check_channel("stays").is_err());
}

#[test]
fn a_rule_for_all_namespaces_leaves_nothing_of_the_hosts_own_to_what_a_rule_gave_that_named_it() {
    let rules = |namespaces: &[&str]| json!({"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "namespaces": namespaces}]});
    let left = taken(rules(&["operetta-system", "n"]), rules(&[]));
    let resource = Resource::parse("", "v1", "configmaps").unwrap();
    let may = |namespace: &str| {
        let namespace = Namespace::parse(namespace).unwrap();
        let access =
            Access { verb: Verb::Get, resource: &resource, subresource: None, namespace: Some(&namespace), name: None };
        left.allow(&access)
    };
    assert!(may("n") && !may("operetta-system"));
}

#[tokio::test(start_paused = true)]
async fn what_drains_as_an_account_that_was_refused_gets_back_only_what_the_cluster_refuses() {
    const FINALIZER: &str = "x.example.com/f";
    let stage = Stage::new();
    let holding = component("1", |manifest| manifest["controllers"][0]["finalizers"] = json!([FINALIZER]));
    let mut spec = granted();
    spec["grants"]["channels"] = json!([{"name": "shop", "endpoint": "http://127.0.0.1:1"}]);
    let deleting = json!({"finalizers": [FINALIZER], "deletionTimestamp": "2024-01-01T00:00:00Z"});
    stage.world.apply_with(&things(), "n", "a", deleting);
    let mut seat = stage.plug("demo", &holding, &spec);
    seat.runs("1").await;
    stage.runs.count(1).await;
    let answers = Arc::new(Mutex::new(Vec::new()));
    let tell = answers.clone();
    stage.runs.act(move |_, effects| {
        let tell = tell.clone();
        async move {
            let got = effects.get(&things(), &key("a"), false).await.is_ok();
            let call = GrpcCall { path: "/a.B/C".into(), metadata: vec![], deadline: None };
            let denied = effects.unary("shop", call, vec![]).await.is_err_and(|status| status.code == 7);
            tell.lock().unwrap().push((got, denied));
            Ok(Outcome::AwaitChange)
        }
    });
    stage.world.banish(true);
    let status = seat.problem("the account names another plugin").await;
    assert_eq!((status.leaving, answers.lock().unwrap().len()), (None, 0));
    seat.entries.send_replace(Entry::Gone);
    seat.until("it drains", |status| status.leaving.is_some()).await;
    eventually("it is tried", || !answers.lock().unwrap().is_empty()).await;
    assert_eq!(answers.lock().unwrap()[0], (true, true));
}

#[tokio::test(start_paused = true)]
async fn whoever_is_removed_or_suspended_does_nothing_more_not_even_where_it_has_begun() {
    let suspended = granted_and(&json!({"suspend": true}));
    for (end, why) in
        [(Entry::Gone, "the plugin is removed"), (entry("demo", &version("1"), &suspended), "the plugin is suspended")]
    {
        let stage = Stage::new();
        let gate = Arc::new(watch::Sender::new(false));
        let (opened, answers) = (gate.clone(), Arc::new(Mutex::new(Vec::new())));
        let tell = answers.clone();
        stage.runs.act(move |_, effects| {
            let (mut open, tell) = (opened.subscribe(), tell.clone());
            async move {
                open.wait_for(|open| *open).await.unwrap();
                let got = effects.get(&things(), &key("a"), false).await;
                tell.lock().unwrap().push(got);
                Ok(Outcome::AwaitChange)
            }
        });
        stage.world.apply(&things(), "a");
        let mut seat = stage.plug("demo", &version("1"), &granted());
        seat.runs("1").await;
        stage.runs.under_way(1).await;
        seat.entries.send_replace(end);
        // It takes no more keys, and waits for those that it has.
        stage.world.has_watches(0).await;
        gate.send_replace(true);
        seat.until("the end", |status| status.running.is_none()).await;
        let got = answers.lock().unwrap().pop();
        assert!(matches!(&got, Some(Err(ApiError::Denied(said))) if said.contains(why)), "{got:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_stops_lets_what_is_under_way_end_with_all_that_it_was_granted() {
    let stage = Stage::new();
    let gate = Arc::new(watch::Sender::new(false));
    let (opened, answers) = (gate.clone(), Arc::new(Mutex::new(Vec::new())));
    let tell = answers.clone();
    stage.runs.act(move |_, effects| {
        let (mut open, tell) = (opened.subscribe(), tell.clone());
        async move {
            open.wait_for(|open| *open).await.unwrap();
            let got = effects.get(&things(), &key("a"), false).await;
            tell.lock().unwrap().push(got.is_ok());
            Ok(Outcome::AwaitChange)
        }
    });
    stage.world.apply(&things(), "a");
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    stage.runs.under_way(1).await;
    stage.stop.cancel();
    stage.world.has_watches(0).await;
    gate.send_replace(true);
    timeout(SOON, seat.task).await.unwrap().unwrap();
    assert_eq!(*answers.lock().unwrap(), [true]);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_gone_even_where_the_document_that_takes_it_away_is_not_taken() {
    let stage = Stage::new();
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
    stage.world.apply(&things(), "a");
    stage.runs.count(1).await;
    let answers = Arc::new(Mutex::new(Vec::new()));
    let tell = answers.clone();
    stage.runs.act(move |_, effects| {
        let tell = tell.clone();
        async move {
            let other = ObjectKey::parse(Some("other"), "b").unwrap();
            for key in [&other, &key("a")] {
                let got = effects.get(&things(), key, false).await;
                tell.lock().unwrap().push(matches!(got, Err(ApiError::Denied(why)) if why.contains("spec.namespaces")));
            }
            let all = effects.list(&things(), &ListOptions::default()).await;
            tell.lock().unwrap().push(matches!(all, Err(ApiError::Denied(_))));
            Ok(Outcome::AwaitChange)
        }
    });
    stage.world.apply(&things(), "a");
    stage.runs.count(2).await;
    assert_eq!(std::mem::take(&mut *answers.lock().unwrap()), [false, false, false]);
    seat.put(&version("1"), &json!({"namespaces": ["n"]}));
    seat.problem("its controllers need what is not granted").await;
    seat.put(&broken(), &granted_and(&json!({"namespaces": ["n"]})));
    seat.problem("demo.wasm").await;
    // Whatever is looked at because of another document has been.
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.runs.clear();
    answers.lock().unwrap().clear();
    stage.world.apply_with(&things(), "other", "b", json!({}));
    stage.world.apply(&things(), "a");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let seen: Vec<_> = stage.runs.all().into_iter().map(|run| run.key).collect();
    assert_eq!(seen, [key("a")], "the one that it still sees");
    // The older code goes on by the new document, for which a list of everything is one of its namespaces.
    assert_eq!(std::mem::take(&mut *answers.lock().unwrap()), [true, false, false]);
    // And back again.
    seat.put(&broken(), &granted());
    stage
        .runs
        .until("what was out of sight is looked at", |runs| {
            runs.iter().any(|run| run.key.namespace == Namespace::parse("other").ok())
        })
        .await;
    // What such a document adds has to wait, and takes nothing away.
    seat.put(&version("1"), &granted_and(&json!({"namespaces": ["n"]})));
    eventually("the good document holds", || seat.status.borrow().problem.is_none()).await;
    seat.put(&broken(), &granted_and(&json!({"namespaces": ["n", "other"]})));
    seat.problem("demo.wasm").await;
    stage.world.apply(&things(), "a");
    eventually("it sees its namespace, and the list of it", || {
        answers.lock().unwrap().ends_with(&[true, false, false])
    })
    .await;
}
