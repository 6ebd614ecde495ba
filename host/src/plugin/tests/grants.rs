//! What a document must grant for a plugin to start, and how much of a kind its controllers then watch.

use operetta_core::{cache::Extent, grant::Rule};

use super::*;

/// Its controller owns a kind besides its own.
fn owns_parts(manifest: &mut Value) {
    manifest["controllers"][0]["owns"] = json!([{"group": "x.example.com", "version": "v1", "resource": "parts"}]);
}

#[tokio::test(start_paused = true)]
async fn missing_grants_are_named_all_at_once_as_rules_to_paste() {
    let stage = Stage::new();
    let owner = component("1", |manifest| {
        manifest["name"] = "called-otherwise-by-its-author".into();
        owns_parts(manifest);
    });
    for places in [json!([]), json!(["n", "m"])] {
        let mut seat = stage.plug("demo", &owner, &json!({"namespaces": places}));
        let problem = seat.problem("is not granted").await.problem.unwrap().to_string();
        let (text, yaml) = problem.split_once("demo.yaml:\n").unwrap();
        for missing in ["list things", "watch things", "list parts", "watch parts"] {
            assert!(text.contains(missing), "{missing} is not in {text}");
        }
        let rules: Vec<Rule> = serde_saphyr::from_str(yaml).unwrap();
        seat.put(&owner, &json!({"namespaces": places, "grants": {"rules": rules}}));
        seat.runs("1").await;
        seat.entries.send_replace(Entry::Gone);
        seat.until("the end", |status| status.running.is_none()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_granted_by_name_is_watched_by_name_and_a_change_of_the_names_is_followed() {
    let stage = Stage::new();
    stage.world.apply(&things(), "a");
    let owner = component("1", owns_parts);
    let spec = |names: &[&str]| {
        let rules = json!([
            {"apiGroups": ["x.example.com"], "resources": ["things"], "verbs": ["*"]},
            {"apiGroups": ["x.example.com"], "resources": ["parts"], "verbs": ["list", "watch"], "resourceNames": names},
        ]);
        json!({"namespaces": ["n"], "grants": {"rules": rules}})
    };
    let watched = || stage.world.watches().into_iter().find(|(_, kind, _)| kind == "parts").unwrap().2;
    let named = |names: &[&str]| names.iter().map(|name| Extent::from(&key(name))).collect::<Vec<_>>();

    let mut seat = stage.plug("demo", &owner, &spec(&["p"]));
    seat.runs("1").await;
    stage.runs.count(1).await;
    assert_eq!(watched(), named(&["p"]));
    stage.runs.clear();
    stage.world.apply_owned("q", "a");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(stage.runs.all(), [], "it was woken by what was not granted");
    stage.world.apply_owned("p", "a");
    stage.runs.count(1).await;

    // More names; and no name means all.
    let all = Extent { namespace: Some(Namespace::parse("n").unwrap()), name: None };
    for (names, extents) in [(&["q", "p"][..], named(&["p", "q"])), (&[][..], vec![all])] {
        stage.runs.clear();
        seat.put(&owner, &spec(names));
        stage.runs.count(1).await;
        seat.runs("1").await;
        assert_eq!(watched(), extents);
    }
    seat.put(&owner, &spec(&["none/such"]));
    seat.problem("list parts of group x.example.com in namespace n").await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_of_all_namespaces_watches_a_kind_where_rules_grant_it() {
    let stage = Stage::new();
    stage.world.apply(&things(), "a");
    let owner = component("1", owns_parts);
    let spec = |parts: Value| {
        let mut parts = parts;
        (parts["apiGroups"], parts["resources"], parts["verbs"]) =
            (json!(["x.example.com"]), json!(["parts"]), json!(["*"]));
        let things = json!({"apiGroups": ["x.example.com"], "resources": ["things"], "verbs": ["*"]});
        json!({"grants": {"rules": [things, parts]}})
    };
    let watched = || stage.world.watches().into_iter().find(|(_, kind, _)| kind == "parts").unwrap().2;
    let all_of = |namespace| Extent { namespace: Some(Namespace::parse(namespace).unwrap()), name: None };

    let mut seat = stage.plug("demo", &owner, &spec(json!({"namespaces": ["n", "m"]})));
    seat.runs("1").await;
    stage.runs.count(1).await;
    assert_eq!(watched(), [all_of("m"), all_of("n")]);
    stage.runs.clear();
    stage.world.apply_owned("p", "a");
    stage.runs.count(1).await;

    stage.runs.clear();
    seat.put(&owner, &spec(json!({"namespaces": ["n"], "resourceNames": ["p"]})));
    stage.runs.count(1).await;
    seat.runs("1").await;
    assert_eq!(watched(), [Extent::from(&key("p"))]);

    // Where no rule names a namespace either, the whole kind is what is missing.
    seat.put(&owner, &spec(json!({"resourceNames": ["none/such"]})));
    seat.problem("list parts of group x.example.com in all namespaces").await;
}
