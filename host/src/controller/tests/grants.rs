//! Objects that are handed over, and what the plugin is granted of them.

use std::sync::Mutex;

use serde_json::Value;

use super::*;

/// With one rule on things.
fn grants(verbs: &[&str], more: Value) -> Grants {
    let mut rule = more;
    (rule["apiGroups"], rule["resources"], rule["verbs"]) = (json!(["x.example.com"]), json!(["things"]), json!(verbs));
    Grants { rules: serde_json::from_value(json!([rule])).unwrap(), ..Grants::default() }
}

/// A plugin with an object in each of two namespaces, both of which it has seen, and what it is denied.
async fn two() -> (Scene, Controller, Arc<Mutex<Vec<String>>>) {
    let scene = scene();
    let denied = Arc::new(Mutex::new(Vec::new()));
    let tell = denied.clone();
    let before = version(&scene.world, scene.runs.code("1"), 16);
    let ports =
        Ports { denials: Arc::new(move |denial| tell.lock().unwrap().push(denial.what.clone())), ..before.ports };
    scene.shared.exchange(Version { ports, ..version(&scene.world, scene.runs.code("1"), 16) });
    change_both(&scene);
    let controller = scene.start().await;
    scene.runs.count(2).await;
    (scene, controller, denied)
}

fn change_both(scene: &Scene) {
    scene.world.apply_with(&things(), "m", "b", json!({}));
    scene.world.apply(&things(), "a");
}

/// What is handed over of changes of both.
async fn handed(scene: &Scene) -> Vec<String> {
    scene.runs.clear();
    change_both(scene);
    // Until nobody has anything to do.
    tokio::time::sleep(Duration::from_mins(1)).await;
    let mut keys: Vec<_> = scene.runs.all().iter().map(|run| run.key.to_string()).collect();
    keys.sort();
    keys
}

#[tokio::test(start_paused = true)]
async fn an_object_is_handed_over_as_far_as_a_watch_of_it_is_granted_still() {
    for (left, expected) in [
        (grants(&["list", "watch"], json!({})), &["m/b", "n/a"][..]),
        (grants(&["*"], json!({"namespaces": ["n"]})), &["n/a"]),
        (grants(&["*"], json!({"resourceNames": ["b"]})), &["m/b"]),
        (grants(&["get", "list"], json!({})), &[]),
        (grants(&["get", "watch"], json!({})), &[]),
        (Grants::default(), &[]),
        (Grants { closed: Some(Closed::LostAccount), ..granted().grants }, &[]),
    ] {
        let (scene, controller, denied) = two().await;
        scene.shared.narrow(Some(Arc::new(left)), None);
        assert_eq!(handed(&scene).await, expected);
        assert_eq!(handed(&scene).await, expected);
        let text = scene.shared.metrics.encode().unwrap();
        assert!(text.contains("controller_runtime_reconcile_errors_total{controller=\"demo/main\",plugin=\"demo\"} 0"));
        assert_eq!(denied.lock().unwrap().len(), usize::from(expected.len() < 2), "it is told, and once");
        // All that was out of sight, when it is granted again.
        scene.runs.clear();
        scene.shared.narrow(None, None);
        controller.look_at_all();
        scene.runs.count(2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_document_in_force_does_not_grant_is_let_go_without_a_word() {
    let (scene, controller, denied) = two().await;
    let policy = Policy { grants: grants(&["*"], json!({"namespaces": ["n"]})), ..Policy::default() };
    let now = Version::clone(&scene.shared.version.load());
    scene.shared.exchange(Version { policy: Arc::new(policy), ..now });
    controller.look_at_all();
    assert_eq!(handed(&scene).await, ["n/a"]);
    assert_eq!(*denied.lock().unwrap(), [] as [String; 0], "it is what people want");
}
