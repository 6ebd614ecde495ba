//! Grants that are taken away from what runs.

use operetta_core::resource::ObjectKey;

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
    let watch_only = json!({"grants": {"rules": [{"apiGroups": ["x.example.com"], "resources": ["things"], "verbs": ["list", "watch"]}]}});
    seat.put(&broken(), &watch_only);
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
    let mut seat = stage.plug("demo", &version("1"), &granted());
    seat.runs("1").await;
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
    let mut reconciles = 0;
    let mut denied = async || {
        reconciles += 1;
        stage.world.apply(&things(), "a");
        stage.runs.count(reconciles).await;
        matches!(answers.lock().unwrap().pop(), Some(Err(ApiError::Denied(_))))
    };
    assert!(!denied().await);
    let needs = "its controllers need what is not granted";
    for (wasm, spec, problem) in [
        (version("1"), json!({}), needs),
        (version("2"), json!({}), needs),
        (broken(), json!({}), needs),
        // Of a version that is not there yet, so that none may run by it.
        (version("1"), json!({"digest": Digest::of(b"another").to_string()}), "the document pins"),
    ] {
        seat.put(&wasm, &spec);
        seat.problem(problem).await;
        assert!(denied().await);
        seat.put(&version("1"), &granted());
        eventually("the good document holds", || seat.status.borrow().problem.is_none()).await;
        assert!(!denied().await);
    }
}

#[tokio::test(start_paused = true)]
async fn so_is_a_namespace() {
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
    stage.world.apply_with(&things(), "other", "b", json!({}));
    stage.world.apply(&things(), "a");
    stage.runs.until("the one that it still sees", |runs| runs.len() == 3).await;
    assert_eq!(stage.runs.all()[2].key, key("a"));
    assert_eq!(std::mem::take(&mut *answers.lock().unwrap()), [true, false, true]);
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
