//! Bodies, managed fields and live objects: which applies change nothing.

use operetta_core::name::{ControllerName, PluginName};
use serde_json::json;

use super::*;

type Edit = fn(&mut Value);

fn manager() -> FieldManager {
    FieldManager::of(&PluginName::parse("p").unwrap(), &ControllerName::parse("c").unwrap())
}

fn entry(manager: &str, operation: &str, subresource: Option<&str>, fields: &Value) -> Value {
    let mut entry = json!({"manager": manager, "operation": operation, "apiVersion": "apps/v1", "fieldsType": "FieldsV1", "fieldsV1": fields});
    if let Some(subresource) = subresource {
        entry["subresource"] = subresource.into();
    }
    entry
}

/// As the API server wrote it for the body below (1.36).
fn deployment_fields() -> Value {
    json!({
        "f:metadata": {"f:finalizers": {"v:\"example.com/a\"": {}}, "f:labels": {"f:x": {}}},
        "f:spec": {
            "f:replicas": {}, "f:selector": {},
            "f:template": {"f:metadata": {"f:labels": {"f:x": {}}}, "f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {
                ".": {}, "f:args": {},
                "f:env": {"k:{\"name\":\"A\"}": {".": {}, "f:name": {}, "f:value": {}}},
                "f:image": {}, "f:name": {},
                "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
            }}}},
        },
    })
}

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "n", "labels": {"x": "y"}, "finalizers": ["example.com/a"]},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"x": "y"}},
            "template": {"metadata": {"labels": {"x": "y"}}, "spec": {"containers": [{
                "name": "c", "image": "i", "args": ["a", "b"], "ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "1"}],
            }]}},
        },
    })
}

/// The same with what the server and others added.
fn live() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": "d", "namespace": "n", "uid": "u", "resourceVersion": "9", "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"x": "y", "theirs": "1"}, "finalizers": ["other/f", "example.com/a"], "annotations": {"a": "b"},
        },
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"x": "y"}}, "strategy": {"type": "RollingUpdate"},
            "template": {"metadata": {"creationTimestamp": null, "labels": {"x": "y"}}, "spec": {"restartPolicy": "Always", "containers": [
                {"name": "sidecar", "image": "s"},
                {
                    "name": "c", "image": "i", "args": ["a", "b"], "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "env": [{"name": "INJECTED", "value": "x"}, {"name": "A", "value": "1"}], "imagePullPolicy": "Always",
                },
            ]}},
        },
        "status": {"replicas": 2},
    })
}

fn noop(body: &Value, owned: &Value, live: &Value) -> bool {
    changes_nothing(body, &manager(), None, &owned.to_string(), live)
}

fn own(fields: Value) -> Value {
    json!([entry("operetta:p/c", "Apply", None, &fields)])
}

#[test]
fn defaults_and_the_fields_of_others_do_not_count() {
    assert!(noop(&deployment(), &own(deployment_fields()), &live()));
}

#[test]
fn each_change_of_the_body_goes_out() {
    let owned = own(deployment_fields());
    let changes: [(&str, Edit); 21] = [
        ("value", |b| b["spec"]["replicas"] = 3.into()),
        ("type of a value", |b| b["spec"]["replicas"] = "2".into()),
        ("null", |b| b["spec"]["replicas"] = Value::Null),
        ("field added", |b| b["spec"]["paused"] = true.into()),
        ("field added with the value that is there", |b| b["spec"]["strategy"] = json!({"type": "RollingUpdate"})),
        ("label added that others own", |b| b["metadata"]["labels"]["theirs"] = "1".into()),
        ("field removed", |b| drop(b["spec"].as_object_mut().unwrap().remove("replicas"))),
        ("label removed", |b| b["metadata"]["labels"] = json!({})),
        ("labels removed", |b| drop(b["metadata"].as_object_mut().unwrap().remove("labels"))),
        ("finalizer removed", |b| b["metadata"]["finalizers"] = json!([])),
        ("finalizer exchanged", |b| b["metadata"]["finalizers"] = json!(["other/f"])),
        ("finalizer twice", |b| b["metadata"]["finalizers"] = json!(["example.com/a", "example.com/a"])),
        ("atomic map", |b| b["spec"]["selector"]["matchLabels"]["z"] = "1".into()),
        ("atomic list in another order", |b| {
            b["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["b", "a"])
        }),
        ("item added", |b| {
            b["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "d"}))
        }),
        ("item exchanged", |b| b["spec"]["template"]["spec"]["containers"][0]["name"] = "sidecar".into()),
        ("items removed", |b| b["spec"]["template"]["spec"]["containers"][0]["env"] = json!([])),
        ("key of an item", |b| b["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] = 81.into()),
        ("defaulted key written out", |b| {
            b["spec"]["template"]["spec"]["containers"][0]["ports"][0]["protocol"] = "TCP".into()
        }),
        ("another version", |b| b["apiVersion"] = "apps/v2".into()),
        ("a status", |b| b["status"] = json!({"replicas": 2})),
    ];
    for (name, change) in changes {
        let mut body = deployment();
        change(&mut body);
        assert!(!noop(&body, &owned, &live()), "{name}");
    }
}

#[test]
fn each_change_of_what_is_owned_by_someone_else_is_put_back() {
    let owned = own(deployment_fields());
    let changes: [(&str, Edit); 8] = [
        ("scaled by hand", |l| l["spec"]["replicas"] = 5.into()),
        ("field gone", |l| drop(l["spec"].as_object_mut().unwrap().remove("replicas"))),
        ("finalizer gone", |l| l["metadata"]["finalizers"] = json!(["other/f"])),
        ("label changed", |l| l["metadata"]["labels"]["x"] = "z".into()),
        ("container gone", |l| drop(l["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().pop())),
        ("port's default changed", |l| {
            l["spec"]["template"]["spec"]["containers"][1]["ports"][0]["protocol"] = "UDP".into()
        }),
        ("atomic map grown", |l| l["spec"]["selector"]["matchLabels"]["z"] = "1".into()),
        ("another kind", |l| l["kind"] = "StatefulSet".into()),
    ];
    for (name, change) in changes {
        let mut live = live();
        change(&mut live);
        assert!(!noop(&deployment(), &owned, &live), "{name}");
    }
}

#[test]
fn only_our_own_apply_to_the_same_subresource_counts() {
    let (body, live) = (deployment(), live());
    let fields = deployment_fields;
    for (name, owned) in [
        ("nothing owned", json!([])),
        ("no list", json!({})),
        ("another plugin", json!([entry("operetta:q/c", "Apply", None, &fields())])),
        ("an update", json!([entry("operetta:p/c", "Update", None, &fields())])),
        ("of the status", json!([entry("operetta:p/c", "Apply", Some("status"), &fields())])),
        (
            "two versions",
            json!([entry("operetta:p/c", "Apply", None, &fields()), entry("operetta:p/c", "Apply", None, &fields())]),
        ),
        ("no fields", json!([entry("operetta:p/c", "Apply", None, &Value::Null)])),
    ] {
        assert!(!noop(&body, &owned, &live), "{name}");
    }
    assert!(!changes_nothing(&body, &manager(), None, "[", &live));
    let among_others =
        json!([entry("operetta:q/c", "Apply", None, &json!({})), entry("operetta:p/c", "Apply", None, &fields())]);
    assert!(noop(&body, &among_others, &live));
}

#[test]
fn a_status_is_compared_with_what_is_owned_of_the_status() {
    let body = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "n"}, "status": {
        "conditions": [{"type": "Available", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}], "replicas": 2,
    }});
    let fields = json!({"f:status": {"f:replicas": {}, "f:conditions": {"k:{\"type\":\"Available\"}": {
        ".": {}, "f:type": {}, "f:status": {}, "f:lastTransitionTime": {},
    }}}});
    let owned = json!([entry("operetta:p/c", "Apply", Some("status"), &fields)]).to_string();
    let mut live = live();
    live["status"]["conditions"] = json!([
        {"type": "Progressing", "status": "True"},
        {"type": "Available", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]);
    assert!(changes_nothing(&body, &manager(), Some("status"), &owned, &live));
    assert!(!changes_nothing(&body, &manager(), None, &owned, &live));
    live["status"]["conditions"][1]["status"] = "False".into();
    assert!(!changes_nothing(&body, &manager(), Some("status"), &owned, &live));
}

#[test]
fn items_that_stand_in_another_order_are_not_taken_for_the_same() {
    let fields = json!({"f:spec": {"f:l": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}}, "k:{\"name\":\"b\"}": {".": {}, "f:name": {}}}}});
    let of = |names: &[&str]| {
        let items: Vec<_> = names.iter().map(|n| json!({"name": n})).collect();
        json!({"apiVersion": "apps/v1", "kind": "X", "spec": {"l": items}})
    };
    assert!(noop(&of(&["a", "b"]), &own(fields.clone()), &of(&["z", "a", "y", "b"])));
    assert!(!noop(&of(&["b", "a"]), &own(fields.clone()), &of(&["a", "b"])));
    assert!(!noop(&of(&["a", "b"]), &own(fields), &of(&["a", "b", "a"])));
}

#[test]
fn an_item_is_matched_by_all_of_its_keys() {
    let fields = json!({"f:spec": {"f:ports": {
        "k:{\"port\":53,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}},
        "k:{\"port\":53,\"protocol\":\"UDP\"}": {".": {}, "f:port": {}, "f:protocol": {}},
    }}});
    let of = |ports: Value| json!({"apiVersion": "apps/v1", "kind": "X", "spec": {"ports": ports}});
    let live = of(json!([{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]));
    assert!(noop(&of(json!([{"port": 53}, {"port": 53, "protocol": "UDP"}])), &own(fields.clone()), &live));
    assert!(!noop(
        &of(json!([{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}])),
        &own(fields.clone()),
        &live
    ));
    assert!(!noop(&of(json!([{"port": 53}, {"port": 53}])), &own(fields.clone()), &live));
    assert!(!noop(&of(json!([{"protocol": "UDP"}, {}])), &own(fields), &live));
}

#[test]
fn an_item_that_is_owned_twice_does_not_stand_for_another() {
    let of = |items: Value| json!({"apiVersion": "apps/v1", "kind": "X", "spec": {"l": items}});
    let twice = own(json!({"f:spec": {"f:l": {"v:1": {}, "v:1.0": {}}}}));
    assert!(!noop(&of(json!([1, 2])), &twice, &of(json!([1, 2]))));
}

#[test]
fn numbers_are_equal_as_numbers() {
    let of = |n: Value| json!({"apiVersion": "apps/v1", "kind": "X", "spec": {"n": n}});
    let fields = || own(json!({"f:spec": {"f:n": {}}}));
    assert!(noop(&of(json!(1)), &fields(), &of(json!(1.0))));
    assert!(noop(&of(json!({"deep": [1.5, 2]})), &fields(), &of(json!({"deep": [1.5, 2.0]}))));
    assert!(noop(&of(json!([[2]])), &fields(), &of(json!([[2.0]]))));
    assert!(!noop(&of(json!(1)), &fields(), &of(json!(1.1))));
    assert!(!noop(&of(json!(9_007_199_254_740_993_i64)), &fields(), &of(json!(9_007_199_254_740_992.0))));
    assert!(!noop(&of(json!("1")), &fields(), &of(json!(1))));
}

#[test]
fn what_the_body_says_of_identity_must_be_so() {
    let owned = own(deployment_fields());
    for (field, value, expected) in [
        ("uid", json!("u"), true),
        ("uid", json!("v"), false),
        ("resourceVersion", json!("9"), true),
        ("resourceVersion", json!("8"), false),
        ("name", json!("e"), false),
        ("creationTimestamp", Value::Null, true),
        ("managedFields", json!([]), false),
        ("generation", json!(3), true),
    ] {
        let mut body = deployment();
        body["metadata"][field] = value.clone();
        assert_eq!(noop(&body, &owned, &live()), expected, "{field} {value}");
    }
}

#[test]
fn an_owned_empty_map_is_a_leaf() {
    let of = |spec: Value| json!({"apiVersion": "apps/v1", "kind": "X", "spec": spec});
    let owned = own(json!({"f:spec": {"f:emptyDir": {}}}));
    assert!(noop(&of(json!({"emptyDir": {}})), &owned, &of(json!({"emptyDir": {}}))));
    assert!(!noop(&of(json!({"emptyDir": {}})), &owned, &of(json!({"emptyDir": {"medium": "Memory"}}))));
    assert!(!noop(&of(json!({})), &own(json!({"f:spec": {}})), &of(json!({"emptyDir": {}}))));
    assert!(!noop(
        &json!({"apiVersion": "apps/v1", "kind": "X", "metadata": {"name": "d"}}),
        &own(json!({})),
        &of(json!({}))
    ));
}

/// An owner reference is an item of a keyed list and owned as a whole.
#[test]
fn an_item_that_is_owned_at_once_is_compared_as_a_whole() {
    let of = |controller: bool| {
        let owner = json!({"apiVersion": "v1", "kind": "Y", "name": "y", "uid": "1", "controller": controller});
        json!({"apiVersion": "apps/v1", "kind": "X", "metadata": {"ownerReferences": [owner]}})
    };
    let owned = own(json!({"f:metadata": {"f:ownerReferences": {"k:{\"uid\":\"1\"}": {}}}}));
    assert!(noop(&of(true), &owned, &of(true)));
    assert!(!noop(&of(true), &owned, &of(false)));
}

/// Whatever stands there, an answer and no panic; and a body that names one field more or less than is owned is never a no-op.
#[test]
fn garbage_is_a_doubt() {
    let shapes = [
        json!(null),
        json!(1),
        json!("x"),
        json!([]),
        json!([1]),
        json!({}),
        json!({"f:spec": 1}),
        json!({"f:spec": {"k:{": {}}}),
        json!({"f:spec": {"k:{}": {}}}),
        json!({"f:spec": {"v:": {}}}),
        json!({"f:spec": {"i:0": {}}}),
        json!({"spec": {}}),
        json!({"f:spec": {"f:a": null}}),
    ];
    let values = [json!(null), json!([{}]), json!([1, 1]), json!({"a": null}), json!({"a": 1})];
    for fields in &shapes {
        for (body, live) in values.iter().flat_map(|b| values.iter().map(move |l| (b, l))) {
            let of = |spec: &Value| json!({"apiVersion": "apps/v1", "kind": "X", "spec": spec});
            assert!(!noop(&of(body), &own(fields.clone()), &of(live)), "{fields} {body} {live}");
        }
    }
}
