//! What of others a write would take.

use operetta_core::name::ControllerName;
use serde_json::json;

use super::*;

fn owned() -> String {
    let fields = json!({
        "f:metadata": {"f:finalizers": {"v:\"q/f\"": {}}, "f:labels": {"f:x": {}}},
        "f:spec": {
            "f:size": {}, "f:selector": {},
            "f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:name": {}}},
            "f:box": {".": {}},
        },
    });
    let entry = |manager: &str, operation: &str, fields: &Value| json!({"manager": manager, "operation": operation, "fieldsV1": fields});
    let mut status = entry("operetta:q/c", "Apply", &json!({"f:status": {"f:phase": {}}}));
    status["subresource"] = "status".into();
    let own = entry("operetta:p/c", "Apply", &json!({"f:spec": {"f:own": {}}}));
    json!([entry("operetta:q/c", "Apply", &fields), status, own]).to_string()
}

fn live() -> Value {
    json!({
        "metadata": {"finalizers": ["q/f"], "labels": {"x": "1"}},
        "spec": {
            "size": 1, "selector": {"a": "b"}, "own": 1, "free": 1, "box": {"free": 1},
            "ports": [{"port": 80, "protocol": "TCP", "name": "web"}],
        },
        "status": {"phase": "Ready"},
    })
}

fn plugin(name: &str) -> PluginName {
    PluginName::parse(name).unwrap()
}

/// What is lost of the object where `edit` is what a write makes of it.
fn lost_by(edit: fn(&mut Value)) -> Option<String> {
    let mut then = live();
    edit(&mut then);
    let claims = of_others(&owned(), &plugin("p"), "");
    assert_eq!(claims.iter().map(|claim| claim.manager.as_str()).collect::<Vec<_>>(), ["operetta:q/c"]);
    claims.iter().find_map(|claim| claim.first_lost(&live(), &then))
}

#[test]
fn what_others_did_not_apply_is_free() {
    let free: [fn(&mut Value); 9] = [
        |_| {},
        |then| then["spec"]["own"] = 2.into(),
        |then| then["spec"]["free"] = Value::Null,
        |then| then["spec"]["box"] = json!({"more": 1}),
        |then| then["spec"]["size"] = json!(1.0),
        |then| then["metadata"]["finalizers"] = json!(["p/f", "q/f"]),
        |then| then["metadata"]["labels"]["y"] = "2".into(),
        |then| {
            then["spec"]["ports"] = json!([{"port": 81, "name": "x"}, {"port": 80, "name": "web", "targetPort": 8080}])
        },
        |then| then["status"]["phase"] = "of another part".into(),
    ];
    for edit in free {
        assert_eq!(lost_by(edit), None);
    }
}

type Edit = fn(&mut Value);

#[test]
fn what_others_applied_is_lost_where_it_is_otherwise_or_gone() {
    let port = r#".spec.ports[port=80,protocol="TCP"]"#;
    let name = format!("{port}.name");
    let lost: [(&str, Edit); 10] = [
        (".spec.size", |then| then["spec"]["size"] = 2.into()),
        (".spec.size", |then| drop(then["spec"].as_object_mut().unwrap().remove("size"))),
        (".spec.selector", |then| then["spec"]["selector"]["c"] = "d".into()),
        (".spec.box", |then| drop(then["spec"].as_object_mut().unwrap().remove("box"))),
        (".metadata", |then| drop(then.as_object_mut().unwrap().remove("metadata"))),
        (r#".metadata.finalizers[="q/f"]"#, |then| then["metadata"]["finalizers"] = json!(["p/f"])),
        (".metadata.labels.x", |then| then["metadata"]["labels"] = json!({"y": "1"})),
        (port, |then| then["spec"]["ports"] = json!([])),
        (port, |then| then["spec"]["ports"][0]["protocol"] = "UDP".into()),
        (name.as_str(), |then| then["spec"]["ports"][0]["name"] = "x".into()),
    ];
    for (expected, edit) in lost {
        assert_eq!(lost_by(edit).as_deref(), Some(expected));
    }
}

#[test]
fn a_part_and_the_own_controllers_are_told_apart() {
    let claims = of_others(&owned(), &plugin("p"), "status");
    let lost = |then: Value| claims.iter().find_map(|claim| claim.first_lost(&live(), &then));
    assert_eq!(lost(json!({"status": {"phase": "Failed"}})).as_deref(), Some(".status.phase"));
    assert_eq!(lost(json!({"status": {"phase": "Ready"}})), None);
    assert!(of_others(&owned(), &plugin("q"), "status").is_empty());
    assert_eq!(of_others(&owned(), &plugin("q"), "")[0].manager, "operetta:p/c");
    assert!(of_others("{", &plugin("p"), "").is_empty());
}

#[test]
fn a_long_list_is_compared_as_a_whole() {
    let items: Vec<_> = (0..300).collect();
    let fields: Map<String, Value> = items.iter().map(|item| (format!("v:{item}"), json!({}))).collect();
    let claim = Claim { manager: String::new(), fields: json!({"f:l": fields}).as_object().unwrap().clone() };
    let live = json!({"l": items});
    assert_eq!(claim.first_lost(&live, &live), None);
    let more: Vec<_> = (0..301).collect();
    assert_eq!(claim.first_lost(&live, &json!({"l": more})).as_deref(), Some(".l"));
}

#[test]
fn what_was_applied_is_told_as_conflicts_name_it() {
    let manager = FieldManager::of(&plugin("q"), &ControllerName::parse("c").unwrap());
    let told = |part: &str| {
        let mut told = Vec::new();
        each_applied(&owned(), &manager, part, |field| told.push(field.to_owned()));
        told.sort();
        told
    };
    assert_eq!(
        told(""),
        [
            r#".metadata.finalizers[="q/f"]"#,
            ".metadata.labels.x",
            ".spec.box",
            r#".spec.ports[port=80,protocol="TCP"]"#,
            r#".spec.ports[port=80,protocol="TCP"].name"#,
            r#".spec.ports[port=80,protocol="TCP"].port"#,
            ".spec.selector",
            ".spec.size",
        ]
    );
    assert_eq!(told("status"), [".status.phase"]);
}
