//! What is written for a plugin, and what is refused.

use std::sync::Arc;

use expect_test::expect;
use operetta_core::name::{AccountName, Namespace};
use serde_json::json;

use super::*;
use crate::testing::{FakeApi, Sent, status};

fn namespace(name: &str) -> Namespace {
    Namespace::parse(name).unwrap()
}

fn crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "pets.petstore.example.com", "labels": {"own": "1"}, "finalizers": ["a/b"]},
        "spec": {
            "group": "petstore.example.com", "scope": "Namespaced", "names": {"plural": "pets", "kind": "Pet"},
            "versions": [{"name": "v1", "served": true, "storage": true}, {"name": "v0", "served": false, "storage": false}],
        },
        "status": {},
    })
}

fn rule(group: &str, resource: &str, namespaces: &[&str]) -> Rule {
    Rule {
        api_groups: vec![group.into()],
        resources: vec![resource.into()],
        verbs: vec!["get".into(), "list".into()],
        namespaces: namespaces.iter().map(|n| namespace(n)).collect(),
        ..Rule::default()
    }
}

fn installation() -> Installation {
    Installation {
        plugin: PluginName::parse("petstore").unwrap(),
        account: ServiceAccount {
            namespace: namespace("operetta-plugins"),
            name: AccountName::parse("petstore").unwrap(),
        },
        crds: vec![crd()],
        rules: vec![rule("petstore.example.com", "pets", &[]), rule("", "secrets", &["a", "b"])],
        events: true,
        scope: Scope::All,
        host: host(),
        way: Way::Classic,
    }
}

fn host() -> ServiceAccount {
    ServiceAccount { namespace: namespace("operetta-system"), name: AccountName::parse("operetta").unwrap() }
}

fn lines(objects: &[Value]) -> String {
    objects.iter().map(|object| object.to_string() + "\n").collect()
}

#[test]
fn what_is_installed() {
    expect![[r#"
        {"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"annotations":{},"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore","own":"1"},"name":"pets.petstore.example.com"},"spec":{"group":"petstore.example.com","names":{"kind":"Pet","plural":"pets"},"scope":"Namespaced","versions":[{"name":"v1","served":true,"storage":true},{"name":"v0","served":false,"storage":false}]}}
        {"apiVersion":"v1","kind":"Namespace","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta"},"name":"operetta-plugins"}}
        {"apiVersion":"v1","automountServiceAccountToken":false,"kind":"ServiceAccount","metadata":{"annotations":{"operetta.dev/plugin":"petstore"},"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"petstore","namespace":"operetta-plugins"}}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"operetta:petstore"},"rules":[{"apiGroups":["petstore.example.com"],"resources":["pets"],"verbs":["get","list"]},{"apiGroups":["","events.k8s.io"],"resources":["events"],"verbs":["create","patch"]}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"operetta:petstore"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"operetta:petstore"},"subjects":[{"kind":"ServiceAccount","name":"petstore","namespace":"operetta-plugins"}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"operetta:petstore","namespace":"a"},"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["get","list"]}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"operetta:petstore","namespace":"a"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"operetta:petstore"},"subjects":[{"kind":"ServiceAccount","name":"petstore","namespace":"operetta-plugins"}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"operetta:petstore","namespace":"b"},"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["get","list"]}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"operetta:petstore","namespace":"b"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"operetta:petstore"},"subjects":[{"kind":"ServiceAccount","name":"petstore","namespace":"operetta-plugins"}]}
    "#]]
    .assert_eq(&lines(&render(&installation()).unwrap()));
}

#[test]
fn a_plugin_that_is_limited_to_namespaces_gets_roles_there_and_nothing_else() {
    let limited = Installation {
        scope: Scope::Namespaces([namespace("a"), namespace("c")].into()),
        crds: vec![],
        ..installation()
    };
    let objects = render(&limited).unwrap();
    let shown: Vec<_> = objects
        .iter()
        .map(|o| {
            let rules: Vec<_> =
                o["rules"].as_array().into_iter().flatten().map(|r| r["resources"][0].as_str().unwrap()).collect();
            format!(
                "{} {} {}",
                o["kind"].as_str().unwrap(),
                o["metadata"]["namespace"].as_str().unwrap_or("-"),
                rules.join(",")
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            "Namespace - ",
            "ServiceAccount operetta-plugins ",
            "Role a pets,secrets,events",
            "RoleBinding a ",
            "Role c pets,events",
            "RoleBinding c ",
        ]
    );
}

#[test]
fn the_hosts_own_rights_are_narrow() {
    expect![[r#"
        {"apiVersion":"v1","kind":"Namespace","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","app.kubernetes.io/name":"operetta","pod-security.kubernetes.io/enforce":"restricted"},"name":"operetta-system"}}
        {"apiVersion":"v1","kind":"Namespace","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","app.kubernetes.io/name":"operetta","pod-security.kubernetes.io/enforce":"restricted"},"name":"operetta-plugins"}}
        {"apiVersion":"v1","kind":"ServiceAccount","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","app.kubernetes.io/name":"operetta"},"name":"operetta","namespace":"operetta-system"}}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","app.kubernetes.io/name":"operetta"},"name":"operetta"},"rules":[{"apiGroups":["apiextensions.k8s.io"],"resources":["customresourcedefinitions"],"verbs":["list","watch"]},{"apiGroups":["operetta.dev"],"resources":["plugins"],"verbs":["list","patch","watch"]},{"apiGroups":["operetta.dev"],"resources":["plugins/status"],"verbs":["patch"]}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","app.kubernetes.io/name":"operetta"},"name":"operetta"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"operetta"},"subjects":[{"kind":"ServiceAccount","name":"operetta","namespace":"operetta-system"}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","app.kubernetes.io/name":"operetta"},"name":"operetta-accounts","namespace":"operetta-plugins"},"rules":[{"apiGroups":[""],"resources":["serviceaccounts"],"verbs":["get","impersonate"]}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","app.kubernetes.io/name":"operetta"},"name":"operetta-accounts","namespace":"operetta-plugins"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"operetta-accounts"},"subjects":[{"kind":"ServiceAccount","name":"operetta","namespace":"operetta-system"}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","app.kubernetes.io/name":"operetta"},"name":"operetta-events","namespace":"default"},"rules":[{"apiGroups":["events.k8s.io"],"resources":["events"],"verbs":["create","patch"]}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","app.kubernetes.io/name":"operetta"},"name":"operetta-events","namespace":"default"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"operetta-events"},"subjects":[{"kind":"ServiceAccount","name":"operetta","namespace":"operetta-system"}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","app.kubernetes.io/name":"operetta"},"name":"operetta","namespace":"operetta-system"},"rules":[{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["create","get","list","update","watch"]},{"apiGroups":["events.k8s.io"],"resources":["events"],"verbs":["create"]},{"apiGroups":[""],"resources":["configmaps","secrets"],"verbs":["get"]}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","app.kubernetes.io/name":"operetta"},"name":"operetta","namespace":"operetta-system"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"operetta"},"subjects":[{"kind":"ServiceAccount","name":"operetta","namespace":"operetta-system"}]}
    "#]]
    .assert_eq(&lines(&host_rbac(&host(), &namespace("operetta-plugins"), Way::Classic)));
    // What is different where the API server constrains impersonation.
    let classic = host_rbac(&host(), &namespace("operetta-plugins"), Way::Classic);
    let constrained = host_rbac(&host(), &namespace("operetta-plugins"), Way::Constrained);
    let different: Vec<_> = constrained.into_iter().filter(|object| !classic.contains(object)).collect();
    expect![[r#"
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","app.kubernetes.io/name":"operetta"},"name":"operetta"},"rules":[{"apiGroups":["apiextensions.k8s.io"],"resources":["customresourcedefinitions"],"verbs":["list","watch"]},{"apiGroups":["operetta.dev"],"resources":["plugins"],"verbs":["list","patch","watch"]},{"apiGroups":["operetta.dev"],"resources":["plugins/status"],"verbs":["patch"]},{"apiGroups":["authorization.k8s.io"],"resources":["selfsubjectaccessreviews"],"verbs":["impersonate-on:serviceaccount:create"]}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","app.kubernetes.io/name":"operetta"},"name":"operetta-accounts","namespace":"operetta-plugins"},"rules":[{"apiGroups":[""],"resources":["serviceaccounts"],"verbs":["get"]},{"apiGroups":["authentication.k8s.io"],"resources":["serviceaccounts"],"verbs":["impersonate:serviceaccount"]}]}
    "#]].assert_eq(&lines(&different));
}

#[test]
fn a_constrained_host_may_do_for_a_plugin_what_its_rules_say() {
    let all = Rule { verbs: vec!["*".into()], ..rule("", "configmaps", &["a"]) };
    let named = Rule { resource_names: vec!["x".into()], ..rule("", "secrets", &["a"]) };
    let rules = vec![rule("petstore.example.com", "pets", &[]), all, named];
    let constrained = Installation { way: Way::Constrained, crds: vec![], rules, events: false, ..installation() };
    let for_the_host = |installation: &Installation| {
        let objects = render(installation).unwrap();
        lines(&objects.into_iter().filter(|o| o["metadata"]["name"] == "operetta:petstore:host").collect::<Vec<_>>())
    };
    expect![[r#"
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"operetta:petstore:host"},"rules":[{"apiGroups":["petstore.example.com"],"resources":["pets"],"verbs":["impersonate-on:serviceaccount:get","impersonate-on:serviceaccount:list"]}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"operetta:petstore:host"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"operetta:petstore:host"},"subjects":[{"kind":"ServiceAccount","name":"operetta","namespace":"operetta-system"}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"operetta:petstore:host","namespace":"a"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["impersonate-on:serviceaccount:get","impersonate-on:serviceaccount:list","impersonate-on:serviceaccount:watch","impersonate-on:serviceaccount:create","impersonate-on:serviceaccount:update","impersonate-on:serviceaccount:patch","impersonate-on:serviceaccount:delete"]},{"apiGroups":[""],"resourceNames":["x"],"resources":["secrets"],"verbs":["impersonate-on:serviceaccount:get","impersonate-on:serviceaccount:list"]}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"operetta:petstore:host","namespace":"a"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"operetta:petstore:host"},"subjects":[{"kind":"ServiceAccount","name":"operetta","namespace":"operetta-system"}]}
    "#]].assert_eq(&for_the_host(&constrained));

    // An account elsewhere is named to the host, whichever way it becomes it.
    let account = ServiceAccount { namespace: namespace("zoo"), ..installation().account };
    let elsewhere =
        |way| Installation { way, account: account.clone(), rules: vec![], events: false, ..installation() };
    expect![[r#"
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"operetta:petstore:host","namespace":"zoo"},"rules":[{"apiGroups":[""],"resourceNames":["petstore"],"resources":["serviceaccounts"],"verbs":["get","impersonate"]}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"operetta:petstore:host","namespace":"zoo"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"operetta:petstore:host"},"subjects":[{"kind":"ServiceAccount","name":"operetta","namespace":"operetta-system"}]}
    "#]].assert_eq(&for_the_host(&elsewhere(Way::Classic)));
    expect![[r#"
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"operetta:petstore:host","namespace":"zoo"},"rules":[{"apiGroups":[""],"resourceNames":["petstore"],"resources":["serviceaccounts"],"verbs":["get"]},{"apiGroups":["authentication.k8s.io"],"resourceNames":["petstore"],"resources":["serviceaccounts"],"verbs":["impersonate:serviceaccount"]}]}
        {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"labels":{"app.kubernetes.io/managed-by":"operetta","operetta.dev/plugin":"petstore"},"name":"operetta:petstore:host","namespace":"zoo"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"operetta:petstore:host"},"subjects":[{"kind":"ServiceAccount","name":"operetta","namespace":"operetta-system"}]}
    "#]].assert_eq(&for_the_host(&elsewhere(Way::Constrained)));
}

#[test]
fn an_account_gets_no_verb_that_takes_or_hands_on_rights() {
    let with = |verb: &str| {
        let rules = vec![Rule { verbs: vec![verb.into()], ..rule("rbac.authorization.k8s.io", "roles", &[]) }];
        render(&Installation { rules, events: false, ..installation() })
    };
    for verb in ["escalate", "bind", "impersonate", "deletecollection", "Get"] {
        let refused = with(verb).unwrap_err().to_string();
        assert!(refused.contains(&format!("the verb {verb:?}")) && refused.contains("spec.grants.rules"), "{refused}");
    }
    let all = with("*").unwrap().into_iter().find(|object| object["kind"] == "ClusterRole").unwrap();
    assert_eq!(all["rules"][0]["verbs"], json!(["get", "list", "watch", "create", "update", "patch", "delete"]));
}

#[test]
fn crds_that_could_do_harm_are_refused() {
    let try_with = |change: fn(&mut Value)| {
        let mut crd = crd();
        change(&mut crd);
        render(&Installation { crds: vec![crd], ..installation() }).map(drop)
    };
    let regroup = |crd: &mut Value, group: &str| {
        crd["spec"]["group"] = group.into();
        crd["metadata"]["name"] = format!("pets.{group}").into();
    };
    for result in [
        try_with(|c| (c["spec"]["group"], c["metadata"]["name"]) = ("k8s.io".into(), "pets.k8s.io".into())),
        try_with(|c| (c["spec"]["group"], c["metadata"]["name"]) = ("x.k8s.io".into(), "pets.x.k8s.io".into())),
        try_with(|c| {
            (c["spec"]["group"], c["metadata"]["name"]) = ("x.kubernetes.io".into(), "pets.x.kubernetes.io".into())
        }),
        try_with(|c| (c["spec"]["group"], c["metadata"]["name"]) = ("operetta.dev".into(), "pets.operetta.dev".into())),
    ] {
        assert!(matches!(result, Err(InstallError::ReservedGroup(_))), "{result:?}");
    }
    assert!(matches!(
        try_with(|c| c["spec"]["conversion"] = json!({"strategy": "Webhook"})),
        Err(InstallError::Webhook(_))
    ));
    assert!(matches!(
        try_with(|c| c["spec"]["conversion"] = json!({"strategy": "None", "webhook": {}})),
        Err(InstallError::Webhook(_))
    ));
    assert!(matches!(try_with(|c| c["kind"] = "ClusterRole".into()), Err(InstallError::NoCrd(_))));
    assert!(matches!(
        try_with(|c| c["metadata"]["name"] = "pets.other.example.com".into()),
        Err(InstallError::NoCrd(_))
    ));
    assert!(try_with(|c| c["spec"]["conversion"] = json!({"strategy": "None"})).is_ok());
    let mut fine = crd();
    regroup(&mut fine, "notk8s.io");
    assert!(render(&Installation { crds: vec![fine], ..installation() }).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_crd_of_another_plugin_is_refused_before_anything_is_written() {
    let api = FakeApi::new(|sent| {
        (sent.method == "GET" && sent.path.ends_with("/pets.petstore.example.com"))
            .then(|| (200, json!({"metadata": {"labels": {"operetta.dev/plugin": "zoo"}}})))
    });
    let error = install(&api.client(), &installation(), true).await.unwrap_err();
    assert!(matches!(&error, InstallError::Taken { other, .. } if other == "zoo"), "{error}");
    assert!(api.sent().iter().all(|s| s.method != "PATCH"));
}

/// Answers as a cluster in which everything but what `answer` says is as it is to be, and whoever asks may do everything.
fn cluster(answer: impl Fn(&Sent) -> Option<(u16, Value)> + Send + Sync + 'static) -> Arc<FakeApi> {
    let object = json!({"metadata": {"resourceVersion": "1"}, "status": {"conditions": [{"type": "Established", "status": "True"}]}});
    FakeApi::new(move |sent| {
        answer(sent).or_else(|| {
            Some(match sent.path.as_str() {
                path if path.ends_with("/selfsubjectaccessreviews") => (201, json!({"status": {"allowed": true}})),
                path if path.ends_with("/pets") => (200, json!({"items": []})),
                _ => (200, object.clone()),
            })
        })
    })
}

fn nothing_was_written(api: &FakeApi) -> bool {
    api.sent().iter().all(|sent| sent.method != "PATCH" || sent.query.contains("dryRun=All"))
}

#[tokio::test(start_paused = true)]
async fn rights_that_are_missing_are_told_all_at_once_and_nothing_is_written() {
    let api = cluster(|sent| {
        let review: Value = serde_json::from_str(&sent.body).ok()?;
        let attributes = review.pointer("/spec/resourceAttributes")?;
        let is = |field: &str, value: &str| attributes[field] == value;
        let denied = is("verb", "*")
            || is("resource", "clusterroles") && is("verb", "patch")
            || is("resource", "serviceaccounts");
        Some((201, json!({"status": {"allowed": !denied}})))
    });
    let error = install(&api.client(), &installation(), false).await.unwrap_err();
    let InstallError::Lacks(missing) = &error else { panic!("{error}") };
    assert_eq!(
        *missing,
        [
            "get serviceaccounts \"petstore\" in namespace operetta-plugins",
            "patch clusterroles.rbac.authorization.k8s.io \"operetta:petstore\"",
        ]
    );
    assert!(api.sent().iter().all(|sent| sent.method != "PATCH"));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_objects_are_stored_in_must_not_go() {
    let api = cluster(|sent| {
        (sent.method == "GET" && sent.path.ends_with("/pets.petstore.example.com"))
            .then(|| (200, json!({"status": {"storedVersions": ["v1", "v1alpha1"]}})))
    });
    let error = install(&api.client(), &installation(), true).await.unwrap_err();
    assert!(matches!(&error, InstallError::StoredVersion { version, .. } if version == "v1alpha1"), "{error}");
    assert!(error.to_string().contains("kubectl patch crd pets.petstore.example.com --subresource=status"), "{error}");
    assert!(api.sent().iter().all(|sent| sent.method != "PATCH"));
}

#[tokio::test(start_paused = true)]
async fn what_the_api_server_would_refuse_at_the_end_is_known_at_the_beginning() {
    let api = cluster(|sent| {
        (sent.method == "PATCH" && sent.path.contains("/namespaces/b/rolebindings/"))
            .then(|| status(409, "Conflict", "conflict with \"helm\"", &json!({})))
    });
    let error = install(&api.client(), &installation(), false).await.unwrap_err();
    assert!(matches!(&error, InstallError::Conflict { message, .. } if message.contains("helm")), "{error}");
    assert!(nothing_was_written(&api));
}

#[tokio::test(start_paused = true)]
async fn what_lies_in_a_namespace_that_is_itself_new_cannot_be_tried_out() {
    let api = cluster(|sent| {
        let in_new = sent.path.ends_with("/namespaces/operetta-plugins") && sent.method == "GET"
            || sent.path.contains("/namespaces/operetta-plugins/");
        in_new.then(|| status(404, "NotFound", "namespaces \"operetta-plugins\" not found", &json!({})))
    });
    let plan = Plan::of(&api.client(), &installation(), false).await.unwrap();
    let new: Vec<_> =
        plan.changes.iter().filter(|change| change.outcome() == Outcome::Created).map(|c| c.what.as_str()).collect();
    assert_eq!(new, ["namespace/operetta-plugins", "serviceaccount/petstore"]);
    assert!(nothing_was_written(&api));
}

#[tokio::test(start_paused = true)]
async fn only_what_an_installation_wrote_is_taken_back_and_kinds_first() {
    let item = |name: &str, manager: &str| {
        let labels = json!({"operetta.dev/plugin": if name == "another" { name } else { "petstore" }});
        json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "managedFields": [{"manager": manager}], "labels": labels},
            "spec": {"group": "petstore.example.com", "names": {"plural": "pets"}, "versions": [{"name": "v1", "served": true}]}})
    };
    let api = cluster(move |sent| {
        Some(match (sent.method.as_str(), sent.path.as_str()) {
            ("GET", path) if path.ends_with("/pets") => {
                let held = json!({"metadata": {"finalizers": ["a/b"]}});
                // The second page is asked for by the token of the first.
                let (items, next) = if sent.query.contains("continue=more") {
                    (json!([held]), "")
                } else {
                    (json!([held, {}]), "more")
                };
                (200, json!({"metadata": {"continue": next}, "items": items}))
            }
            ("GET", path) if path.ends_with("/customresourcedefinitions") => {
                (200, json!({"items": [item("pets.x", MANAGER)]}))
            }
            ("GET", path) if path.ends_with("/clusterroles") => (200, json!({"items": [item("theirs", "kubectl")]})),
            ("GET", path) if path.ends_with("/serviceaccounts") => {
                (200, json!({"items": [item("another", MANAGER), item("petstore", MANAGER)]}))
            }
            ("GET", path) if path.contains("/pets.x") || path.contains("/petstore") => {
                status(404, "NotFound", "gone", &json!({}))
            }
            ("GET", _) => (200, json!({"items": []})),
            _ => return None,
        })
    });
    let client = api.client();
    let survey = Survey::of(&client, &PluginName::parse("petstore").unwrap(), &[], false).await.unwrap();
    assert_eq!(survey.foreign, ["clusterrole.rbac.authorization.k8s.io/theirs"]);
    assert_eq!((survey.kinds[0].objects, survey.kinds[0].finalizers["a/b"]), (3, 2));
    let mut told = Vec::new();
    survey.remove(&client, |removed| told.push(removed.to_string())).await.unwrap();
    assert_eq!(
        told,
        ["customresourcedefinition.apiextensions.k8s.io/pets.x deleted", "serviceaccount/petstore deleted"]
    );
    let deleted: Vec<_> = api.sent().into_iter().filter(|sent| sent.method == "DELETE").collect();
    assert_eq!(deleted.len(), 2);
    assert!(deleted.iter().all(|sent| sent.body.contains("\"preconditions\":{\"uid\":\"uid-")));
    let kept = Survey::of(&client, &PluginName::parse("petstore").unwrap(), &[], true).await.unwrap();
    assert_eq!(kept.objects().map(|kept| kept.to_string()).collect::<Vec<_>>(), ["serviceaccount/petstore deleted"]);
}

#[tokio::test(start_paused = true)]
async fn each_object_is_said_to_be_created_configured_or_unchanged() {
    let established = json!({"metadata": {"resourceVersion": "1"}, "status": {"conditions": [{"type": "Established", "status": "True"}]}});
    let api = FakeApi::new(move |sent| {
        let role = sent.path.contains("/clusterroles/");
        Some(match sent.method.as_str() {
            "POST" => (201, json!({"status": {"allowed": true}})),
            "GET" if sent.path.ends_with("/pets") => (200, json!({"items": []})),
            "GET" if sent.path.contains("/customresourcedefinitions/") => (200, established.clone()),
            "GET" if role => (200, json!({"metadata": {"resourceVersion": "1"}})),
            "GET" => status(404, "NotFound", "no", &json!({})),
            _ if role => (200, json!({"metadata": {"resourceVersion": "2"}})),
            _ => (200, json!({"metadata": {"resourceVersion": "1"}})),
        })
    });
    let installed = install(&api.client(), &installation(), false).await.unwrap();
    let shown: Vec<_> = installed.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "customresourcedefinition.apiextensions.k8s.io/pets.petstore.example.com unchanged",
            "namespace/operetta-plugins created",
            "serviceaccount/petstore created",
            "clusterrole.rbac.authorization.k8s.io/operetta:petstore configured",
            "clusterrolebinding.rbac.authorization.k8s.io/operetta:petstore created",
            "role.rbac.authorization.k8s.io/operetta:petstore created",
            "rolebinding.rbac.authorization.k8s.io/operetta:petstore created",
            "role.rbac.authorization.k8s.io/operetta:petstore created",
            "rolebinding.rbac.authorization.k8s.io/operetta:petstore created",
        ]
    );
    assert!(
        api.sent()
            .iter()
            .filter(|s| s.method == "PATCH")
            .all(|s| s.query.starts_with("fieldManager=operetta-install&force=false"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_crd_that_is_never_served_is_an_error() {
    let api = cluster(|sent| (sent.method != "POST").then(|| (200, json!({"metadata": {"resourceVersion": "1"}}))));
    assert!(matches!(install(&api.client(), &installation(), false).await, Err(InstallError::NotEstablished(_))));
}

/// A namespace, and ConfigMaps in it.
fn bundle(namespace: &str, maps: &[&str]) -> Vec<Value> {
    let place = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    let map = |name: &&str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}});
    [place].into_iter().chain(maps.iter().map(map)).collect()
}

fn shown(installed: &[Installed]) -> Vec<String> {
    installed.iter().map(ToString::to_string).collect()
}

#[tokio::test(start_paused = true)]
async fn objects_are_applied_in_their_order_and_only_tried_out_where_their_namespace_is() {
    let objects = [bundle("new", &["a"]), bundle("old", &["b"])].concat();
    for dry_run in [true, false] {
        let api = cluster(|sent| {
            let new = sent.path.contains("/namespaces/new") && sent.method == "GET";
            new.then(|| status(404, "NotFound", "no", &json!({})))
        });
        let how = How { manager: "m", force: false, dry_run };
        let applied = apply(&api.client(), objects.clone(), how).await.unwrap();
        let expected =
            ["namespace/new created", "configmap/a created", "namespace/old unchanged", "configmap/b unchanged"];
        assert_eq!(shown(&applied), expected);
        let sent: Vec<_> = api.sent().into_iter().filter(|sent| sent.method == "PATCH").collect();
        assert!(sent.iter().all(|sent| sent.query.contains("dryRun=All") == dry_run));
        let paths: Vec<_> = sent.iter().filter_map(|sent| sent.path.strip_prefix("/api/v1/namespaces/")).collect();
        let all = ["new", "new/configmaps/a", "old", "old/configmaps/b"];
        // The API server tries nothing out in a namespace that is not there.
        assert_eq!(paths, if dry_run { vec![all[0], all[2], all[3]] } else { all.to_vec() });
    }
}

#[tokio::test(start_paused = true)]
async fn objects_are_removed_the_last_one_first_and_each_is_waited_for() {
    for dry_run in [true, false] {
        let api = FakeApi::new(|sent| match sent.method.as_str() {
            "DELETE" if !sent.path.ends_with("/missing") => Some((200, json!({}))),
            _ => None,
        });
        let removed = remove(&api.client(), bundle("old", &["a", "missing"]), dry_run).await.unwrap();
        assert_eq!(shown(&removed), ["configmap/a deleted", "namespace/old deleted"]);
        let sent: Vec<_> = api.sent().into_iter().map(|sent| format!("{} {}", sent.method, sent.path)).collect();
        let root = "/api/v1/namespaces/old";
        let mut expected = vec![
            format!("DELETE {root}/configmaps/missing"),
            format!("DELETE {root}/configmaps/a"),
            format!("GET {root}/configmaps/a"),
            format!("DELETE {root}"),
            format!("GET {root}"),
        ];
        if dry_run {
            expected.retain(|sent| sent.starts_with("DELETE"));
        }
        assert_eq!(sent, expected);
        assert!(api.sent().iter().all(|sent| sent.query.contains("dryRun=All") == dry_run));
    }
}

#[tokio::test(start_paused = true)]
async fn what_plugins_have_in_the_cluster_is_their_documents_and_their_accounts() {
    let item = |name: &str, more: Value| json!({"metadata": {"name": name, "namespace": more, "uid": "u"}, "spec": {}});
    let answering = |plugins: (u16, Value)| {
        FakeApi::new(move |sent| match sent.path.as_str() {
            "/apis/operetta.dev/v1alpha1/plugins" => Some(plugins.clone()),
            "/api/v1/namespaces/accounts/serviceaccounts" => {
                Some((200, json!({"items": [item("p", json!("accounts"))]})))
            }
            _ => None,
        })
    };
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "p", "namespace": "accounts"}});
    let plugin =
        json!({"apiVersion": "operetta.dev/v1alpha1", "kind": "Plugin", "metadata": {"name": "q", "namespace": null}});
    let api = answering((200, json!({"items": [item("q", Value::Null)]})));
    assert_eq!(plugins(&api.client(), &namespace("accounts")).await.unwrap(), [plugin, account.clone()]);
    let queries: Vec<_> = api.sent().into_iter().map(|sent| sent.query).collect();
    assert_eq!(queries, ["", "labelSelector=operetta.dev%2Fplugin"], "accounts of others are not a plugin's");
    // Where the kind is not there, there are none.
    let api = answering(status(404, "NotFound", "no", &json!({})));
    assert_eq!(plugins(&api.client(), &namespace("accounts")).await.unwrap(), [account]);
    let api = answering(status(403, "Forbidden", "no", &json!({})));
    let error = plugins(&api.client(), &namespace("accounts")).await.unwrap_err();
    assert!(matches!(&error, InstallError::Unreadable { what, .. } if what.contains("plugins")), "{error}");
}
