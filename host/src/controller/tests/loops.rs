//! Controllers whose writes wake themselves or each other.

use operetta_core::port::Patch;

use super::*;

/// Which may publish events, too.
fn telling(scene: &Scene, code: &str) -> Version {
    let mut policy = granted();
    policy.grants.events = true;
    Version { policy: Arc::new(policy), ..version(&scene.world, scene.runs.code(code), 16) }
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_its_own_writes_wake_is_slowed_for_that_object_only_and_other_code_begins_anew() {
    let scene = scene();
    scene.world.apply(&things(), "loops");
    scene.world.apply(&things(), "settles");
    scene.shared.exchange(telling(&scene, "1"));
    let turns = Arc::new(AtomicUsize::new(0));
    scene.runs.act(move |request, effects| {
        let turn = turns.fetch_add(1, Ordering::SeqCst).to_string();
        async move {
            if request.key == key("loops") {
                let labels = json!({"metadata": {"labels": {"turn": turn}}}).to_string();
                effects.patch(&things(), &request.key, None, Patch::Merge(labels)).await.unwrap();
            }
            done()
        }
    });
    let controller = scene.start().await;
    eventually("it is found", || !controller.guard().loops().is_empty()).await;
    let runs = scene.runs.all().iter().filter(|run| run.key == key("loops")).count();
    assert!((29..40).contains(&runs), "{runs}");
    let said = controller.guard().loops()[0].1.clone();
    assert!(said.starts_with(".metadata.labels.turn of things.v1.x.example.com n/loops changes"), "{said}");
    scene.runs.clear();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!((5..=20).contains(&scene.runs.all().len()), "{}", scene.runs.all().len());
    let events = scene.world.events();
    let [event] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&event.resource, &event.key, event.reason.as_str()), (&things(), &key("loops"), "Looping"));
    let said = ".metadata.labels.turn of things.v1.x.example.com n/loops changes again and again: ";
    assert!(event.message.starts_with(said), "{event:?}");
    let text = scene.shared.metrics.encode().unwrap();
    assert!(text.contains("operetta_write_loops_total{controller=\"demo/main\",plugin=\"demo\"} 1"), "{text}");

    let before = Instant::now();
    scene.runs.clear();
    scene.world.apply(&things(), "settles");
    assert_eq!(scene.runs.count(1).await[0].key, key("settles"));
    scene.runs.act(|_, _| async { done() });
    scene.shared.exchange(telling(&scene, "2"));
    controller.look_at_all();
    scene.runs.until("both", |runs| runs.iter().filter(|run| run.version == "2").count() >= 2).await;
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    assert_eq!(controller.guard().loops(), []);
}

/// The turn that stands on an object.
async fn turn(effects: &Effects, resource: &Resource, name: &str) -> u64 {
    let object: serde_json::Value =
        serde_json::from_str(&effects.get(resource, &key(name), false).await.unwrap()).unwrap();
    object["metadata"]["labels"]["turn"].as_str().map_or(0, |turn| turn.parse().unwrap())
}

/// One follows the turn of the other's object, and the other goes one further, up to the last. None answers its own writes.
async fn hand_on(request: Request, effects: Arc<Effects>, last: u64) -> Result<Outcome, Failure> {
    let thing = turn(&effects, &things(), "a").await;
    let part = turn(&effects, &parts(), "p").await;
    let write = match request.controller.as_str() {
        "main" if part < thing => Some((parts(), "p", thing)),
        "other" if part == thing && thing < last => Some((things(), "a", thing + 1)),
        _ => None,
    };
    if let Some((resource, name, turn)) = write {
        let labels = json!({"metadata": {"labels": {"turn": turn.to_string(), "thing": "a"}}}).to_string();
        effects.patch(&resource, &key(name), None, Patch::Merge(labels)).await.unwrap();
    }
    done()
}

/// A controller of things that watches parts, and one of parts.
async fn both(scene: &Scene) -> [Controller; 2] {
    let resource = |resource: &str| json!({"group": "x.example.com", "version": "v1", "resource": resource});
    let watch = json!({"resource": resource("parts"), "map": {"label": "thing"}});
    let main = json!({"name": "main", "for": resource("things"), "watches": [watch]});
    let other = json!({"name": "other", "for": resource("parts")});
    let [main, other] = [main, other].map(|spec| serde_json::from_value(spec).unwrap());
    scene.shared.exchange(telling(scene, "1"));
    scene.world.apply_with(&parts(), "n", "p", json!({"labels": {"thing": "a"}}));
    scene.world.apply_with(&things(), "n", "a", json!({"labels": {"turn": "1"}}));
    [scene.start_with(main).await, scene.start_with(other).await]
}

#[tokio::test(start_paused = true)]
async fn two_controllers_of_a_plugin_that_wake_each_other_are_slowed_and_named() {
    let scene = scene();
    scene.runs.act(|request, effects| hand_on(request, effects, u64::MAX));
    let [main, other] = both(&scene).await;
    eventually("both are found", || !main.guard().loops().is_empty() && !other.guard().loops().is_empty()).await;
    let said = main.guard().loops()[0].1.clone();
    assert!(
        said.starts_with(".metadata.labels.turn of parts.v1.x.example.com n/p changes with every reconcile"),
        "{said}"
    );
    assert!(said.ends_with(", woken by what controller other of this plugin writes for n/p"), "{said}");
    let said = other.guard().loops()[0].1.clone();
    assert!(said.ends_with(", woken by what controller main of this plugin writes for n/a"), "{said}");
    // What one writes is no order that the other may not wait with.
    tokio::time::sleep(Duration::from_mins(5)).await;
    scene.runs.clear();
    tokio::time::sleep(Duration::from_mins(10)).await;
    let runs = scene.runs.all().len();
    assert!((5..=60).contains(&runs), "{runs}");
    // At the object nobody learns who else takes part.
    let events = scene.world.events();
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(
        events.iter().all(|event| event.reason == "Looping" && !event.message.contains("woken by what")),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn controllers_that_hand_on_and_come_to_an_end_are_no_loop() {
    let scene = scene();
    scene.runs.act(|request, effects| hand_on(request, effects, 9));
    let [main, other] = both(&scene).await;
    for _ in 0..50 {
        scene.world.apply_with(&things(), "n", "a", json!({"labels": {"thing": "a", "turn": "7"}}));
        scene.world.apply_with(&parts(), "n", "p", json!({"labels": {"thing": "a", "turn": "6"}}));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!((main.guard().loops(), other.guard().loops()), (vec![], vec![]));
}
