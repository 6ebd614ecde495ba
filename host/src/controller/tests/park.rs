//! Who is parked, who is not, and how it comes back.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_controller_of_which_nothing_but_traps_comes_is_parked_and_comes_back_by_itself() {
    let scene = scene();
    for name in ["a", "b", "c"] {
        scene.world.apply(&things(), name);
    }
    let (neighbour_of, healed) = (scene.shared.plugin.clone(), Arc::new(AtomicBool::new(false)));
    let now = healed.clone();
    scene.runs.act(move |_, effects| {
        let traps = effects.caller().plugin == neighbour_of && !now.load(Ordering::SeqCst);
        async move { if traps { Err(Failure::Trap("unreachable\nat f".into())) } else { done() } }
    });
    let parked = || {
        let text = scene.shared.metrics.encode().unwrap();
        text.contains("operetta_plugin_parked{controller=\"demo/main\",plugin=\"demo\"} 1")
    };
    let controller = scene.start().await;
    let neighbour = shared("neighbour", version(&scene.world, scene.runs.code("1"), 16), &scene.places);
    let _neighbour = Controller::start(neighbour, spec(), watches(&scene.world, &spec()).await, None);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(parked());
    let why = scene.shared.vitals.why_parked().unwrap();
    assert!(
        why.starts_with("controller main is parked: the host had to stop its last ") && !why.contains("at f"),
        "{why}"
    );
    let of = |plugin: &str| scene.runs.all().iter().filter(|run| run.plugin == plugin).count();
    // However often they are woken.
    scene.runs.clear();
    for round in 0..300 {
        for name in ["a", "b", "c"] {
            scene.world.apply(&things(), name);
        }
        let before = Instant::now();
        scene
            .runs
            .until("the neighbour's turn", |runs| {
                runs.iter().filter(|run| run.plugin == "neighbour").count() >= 3 * (round + 1)
            })
            .await;
        assert!(before.elapsed() < Duration::from_millis(10), "the neighbour keeps its speed");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!((1..=5).contains(&of("demo")), "{}", of("demo"));

    scene.runs.clear();
    healed.store(true, Ordering::SeqCst);
    let before = Instant::now();
    scene.runs.until("all of them", |runs| runs.iter().filter(|run| run.plugin == "demo").count() >= 3).await;
    assert!(before.elapsed() <= Duration::from_secs(331), "{:?}", before.elapsed());
    assert!(!parked());
    assert_eq!(scene.shared.vitals.why_parked(), None);
    controller.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_nobody_answers_is_not_parked_and_goes_on_as_soon_as_somebody_does() {
    let scene = scene();
    for name in ["a", "b", "c"] {
        scene.world.apply(&things(), name);
    }
    let answered = Arc::new(AtomicBool::new(false));
    let now = answered.clone();
    scene.runs.act(move |_, _| {
        let answered = now.load(Ordering::SeqCst);
        async move { if answered { done() } else { Err(Failure::Unanswered(Duration::from_secs(30))) } }
    });
    let _controller = scene.start().await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(scene.runs.all().len() > 20, "each object waits for itself: {}", scene.runs.all().len());
    assert_eq!((scene.shared.vitals.why_parked(), scene.shared.vitals.trapping()), (None, None));
    scene.runs.clear();
    answered.store(true, Ordering::SeqCst);
    let before = Instant::now();
    for name in ["a", "b", "c"] {
        scene.world.apply(&things(), name);
    }
    scene.runs.count(3).await;
    assert!(before.elapsed() < Duration::from_millis(10), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_person_and_other_code_have_a_parked_controller_try_at_once() {
    let scene = scene();
    for name in ["a", "b", "asked"] {
        scene.world.apply(&things(), name);
    }
    scene.runs.act(|_, _| async { Err(Failure::Cpu(Duration::from_secs(2))) });
    let controller = scene.start().await;
    eventually("it is parked", || scene.shared.vitals.why_parked().is_some()).await;
    tokio::time::sleep(Duration::from_mins(20)).await;
    scene.runs.clear();
    let before = Instant::now();
    annotate(&scene, "asked", RECONCILE_REQUESTED, "2026-01-01T00:00:00Z");
    assert_eq!(scene.runs.count(1).await[0].key, key("asked"));
    assert!(before.elapsed() < Duration::from_millis(10), "{:?}", before.elapsed());

    scene.runs.clear();
    scene.runs.act(|_, _| async { done() });
    scene.shared.exchange(version(&scene.world, scene.runs.code("2"), 16));
    controller.look_at_all();
    assert_eq!(scene.shared.vitals.why_parked(), None, "what was before says nothing any more");
    assert!(scene.runs.count(3).await.iter().all(|run| run.version == "2"));
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_finds_no_memory_among_all_guests_is_tried_again_and_parks_nobody() {
    let scene = scene();
    for name in ["a", "b", "c"] {
        scene.world.apply(&things(), name);
    }
    scene.runs.act(|_, _| async { Err(Failure::NoRoom { wanted: 1, held: 0, free: 0, total: 1 }) });
    let _controller = scene.start().await;
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(scene.shared.vitals.why_parked(), None);
    // Each by its own backoff, which is five minutes at last.
    assert!(scene.runs.all().len() >= 60, "{}", scene.runs.all().len());
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_poison_slows_nobody_but_itself() {
    let scene = scene();
    for name in ["poison", "a", "b"] {
        scene.world.apply(&things(), name);
    }
    scene.runs.act(|request, _| async move {
        if request.key == key("poison") { Err(Failure::Trap("unreachable".into())) } else { done() }
    });
    let _controller = scene.start().await;
    // Long enough that nothing but the one that traps ran for an hour.
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(scene.shared.vitals.why_parked(), None);
    let before = Instant::now();
    scene.runs.clear();
    scene.world.apply(&things(), "a");
    scene.runs.until("its turn", |runs| runs.iter().any(|run| run.key == key("a"))).await;
    assert!(before.elapsed() < Duration::from_millis(10), "{:?}", before.elapsed());
}
