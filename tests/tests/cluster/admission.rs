//! Who may have which plugin act as which account: what the API server itself refuses, asked by people with tokens of their own.

use std::fs;

use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use operetta_tests::{control_plane::Cluster, eventually};
use serde_json::{Value, json};

use crate::{
    cli::operetta,
    in_cluster::deployed,
    layer::layer,
    shared::{SOON, TestNamespace, client_of, installed, kubeconfig_of, shared},
};

const PLUGINS: &str = "operetta-plugins";
const HOST: &str = "operetta-system";

fn kind() -> ApiResource {
    ApiResource {
        group: "operetta.dev".into(),
        version: "v1alpha1".into(),
        api_version: "operetta.dev/v1alpha1".into(),
        kind: "Plugin".into(),
        plural: "plugins".into(),
    }
}

/// A person who may do everything with everything but impersonate, and that with one account, if any.
async fn person(namespace: &TestNamespace, name: &str, account: Option<&str>) {
    let admin = namespace.client();
    let unique = format!("{name}-{}", namespace.name());
    let person = json!({"metadata": {"name": name}});
    namespace
        .api()
        .create(&PostParams::default(), &serde_json::from_value(person).unwrap())
        .await
        .map(|_: k8s_openapi::api::core::v1::ServiceAccount| ())
        .unwrap();
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "escalate", "bind"];
    let group = "rbac.authorization.k8s.io";
    let subjects = json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace.name()}]);
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": verbs}]);
    let role = json!({"metadata": {"name": unique}, "rules": rules});
    let binding = json!({
        "metadata": {"name": unique}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": unique}, "subjects": subjects,
    });
    let put = async |kind: &str, namespace: Option<&str>, object: Value| {
        let plural = format!("{}s", kind.to_lowercase());
        let kind = ApiResource {
            group: group.into(),
            version: "v1".into(),
            api_version: format!("{group}/v1"),
            kind: kind.into(),
            plural,
        };
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(admin.clone(), namespace, &kind),
            None => Api::all_with(admin.clone(), &kind),
        };
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    };
    put("ClusterRole", None, role).await;
    put("ClusterRoleBinding", None, binding).await;
    let Some(account) = account else { return };
    let rules = json!([{"apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": [account], "verbs": ["impersonate"]}]);
    put("Role", Some(PLUGINS), json!({"metadata": {"name": unique}, "rules": rules})).await;
    let binding = json!({
        "metadata": {"name": unique}, "roleRef": {"apiGroup": group, "kind": "Role", "name": unique}, "subjects": subjects,
    });
    put("RoleBinding", Some(PLUGINS), binding).await;
}

/// Writes a Plugin, which no host of these tests runs: they select by labels that it lacks.
async fn write(client: &Client, name: &str, spec: &Value) -> kube::Result<DynamicObject> {
    let plugin = json!({
        "apiVersion": "operetta.dev/v1alpha1", "kind": "Plugin",
        "metadata": {"name": name}, "spec": spec,
    });
    let plugins: Api<DynamicObject> = Api::all_with(client.clone(), &kind());
    plugins.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(plugin)).await
}

/// What the API server says of a write that it forbids.
fn forbidden(written: kube::Result<DynamicObject>) -> String {
    match written {
        Err(kube::Error::Api(status)) if status.code == 403 => status.message,
        other => panic!("{other:?}"),
    }
}

/// Waits until a person is refused a Plugin, and returns with which words: a policy is in force some moments after it was written.
async fn refused(client: &Client, name: &str) -> String {
    let plugins: Api<DynamicObject> = Api::all_with(client.clone(), &kind());
    eventually("the person is refused", SOON, async || match write(client, name, &json!({})).await {
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains("plugins.operetta.dev") => {
            Ok(status.message)
        }
        Ok(_) => {
            // Written again as it is, it would be let pass.
            plugins.delete(name, &DeleteParams::default()).await?;
            anyhow::bail!("it was let pass")
        }
        other => anyhow::bail!("{other:?}"),
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn only_who_may_act_as_an_account_may_have_a_plugin_act_as_it() {
    let Cluster::Own(_) = shared() else { return };
    deployed();
    let layer = layer().await;
    let here = &layer.namespace;
    let name = format!("mine-{}", here.name());
    person(here, "alice", Some(&name)).await;
    person(here, "bob", None).await;
    let (alice, bob) = (client_of(here, "alice").await, client_of(here, "bob").await);
    let spec = |events: bool| json!({"grants": {"events": events}});

    let said = refused(&bob, &name).await;
    eprintln!("{said}");
    for part in [
        &format!("you may not let a plugin act as service account operetta-plugins/{name}"),
        &format!(
            "ask for a Role in namespace operetta-plugins with the rule {{apiGroups: [\"\"], resources: [serviceaccounts], resourceNames: [{name}], verbs: [impersonate]}}"
        ),
    ] {
        assert!(said.contains(part.as_str()), "{said} lacks {part}");
    }
    write(&alice, &name, &spec(false)).await.unwrap();
    // What runs nothing is nobody's secret; what does is hers.
    let plugins: Api<DynamicObject> = Api::all_with(bob.clone(), &kind());
    let label = json!({"metadata": {"labels": {"by": "bob"}, "finalizers": ["example.com/held"]}});
    plugins.patch(&name, &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
    let more = json!({"spec": {"grants": {"events": true}}});
    forbidden(plugins.patch(&name, &PatchParams::default(), &Patch::Merge(more)).await);
    write(&alice, &name, &spec(true)).await.unwrap();
    write(&alice, &name, &json!({"grants": {"events": true}, "serviceAccount": null})).await.unwrap();

    // Whatever account a Plugin names is the one that counts.
    let named = |account: &str, namespace: Value| json!({"serviceAccount": {"name": account, "namespace": namespace}});
    for (account, namespace) in
        [("other", json!(null)), ("default", json!("kube-system")), (name.as_str(), json!(here.name()))]
    {
        let said = forbidden(write(&alice, &name, &named(account, namespace)).await);
        assert!(said.contains(&format!("/{account}, since you may not act as it yourself")), "{said}");
    }
    let elsewhere = format!("elsewhere-{}", here.name());
    write(&alice, &elsewhere, &named(&name, json!(PLUGINS))).await.unwrap();
    // Nobody, not even who may do everything.
    let beside = forbidden(write(&here.client(), &name, &named("operetta", json!("operetta-system"))).await);
    assert!(beside.contains("plugins do not act as accounts of the namespace operetta-system"), "{beside}");

    let free = json!({"metadata": {"finalizers": null}});
    plugins.patch(&name, &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    for name in [&name, &elsewhere] {
        plugins.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn a_plugin_that_a_person_may_not_write_is_refused_before_anything_is() {
    let Cluster::Own(_) = shared() else { return };
    deployed();
    let layer = layer().await;
    person(&layer.namespace, "bob", None).await;
    let home = tempfile::tempdir().unwrap();
    let config = kubeconfig_of(&layer.namespace, "bob").await;
    let kubeconfig = home.path().join("bob.kubeconfig");
    let wasm = &installed().component("demo-volume").unwrap().wasm;
    fs::write(&kubeconfig, config.to_string()).unwrap();
    let bob = client_of(&layer.namespace, "bob").await;
    refused(&bob, &format!("nobodys-{}", layer.namespace.name())).await;
    let arguments = ["install", wasm.to_str().unwrap(), "--plugin", "--host-namespace", layer.namespace.name()];
    let output = operetta(home.path(), &[&arguments[..], &["--kubeconfig", kubeconfig.to_str().unwrap()]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("since you may not act as it yourself"), "{said}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    let maps = layer.namespace.api::<k8s_openapi::api::core::v1::ConfigMap>();
    let maps = maps.list(&kube::api::ListParams::default().labels("operetta.dev/plugin")).await.unwrap();
    assert!(maps.items.is_empty(), "{maps:?}");
}

/// The host's own check is not asked here: the request comes from elsewhere, in the name of a plugin's account that may make pods everywhere.
#[tokio::test]
async fn a_plugins_account_makes_and_enters_no_pods_beside_the_host_whatever_rbac_says() {
    let Cluster::Own(_) = shared() else { return };
    deployed();
    let layer = layer().await;
    let admin = layer.client();
    let name = format!("eager-{}", layer.namespace.name());
    let account: k8s_openapi::api::core::v1::ServiceAccount =
        serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    Api::namespaced(admin.clone(), PLUGINS).create(&PostParams::default(), &account).await.unwrap();
    let binding: k8s_openapi::api::rbac::v1::ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": PLUGINS}],
    }))
    .unwrap();
    Api::all(admin.clone()).create(&PostParams::default(), &binding).await.unwrap();
    let kubeconfig = kube::config::Kubeconfig::read_from(shared().kubeconfig()).unwrap();
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await.unwrap();
    config.auth_info.impersonate = Some(format!("system:serviceaccount:{PLUGINS}:{name}"));
    let eager = Client::try_from(config).unwrap();
    let spec = json!({"serviceAccountName": "operetta", "containers": [{"name": "c", "image": "i", "securityContext": {
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}}]});
    let pod = json!({"metadata": {"name": name}, "spec": spec});
    let labels = json!({"a": "b"});
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    let workload = |more: Value| {
        let mut spec = json!({"selector": {"matchLabels": labels}, "template": template});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let mut once = json!({"spec": {"template": template}});
    once["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    let job = json!({"metadata": {"name": name}, "spec": once["spec"]});
    let jobs = json!({"metadata": {"name": name}, "spec": {"schedule": "0 0 * * *", "jobTemplate": once}});
    let set = json!({"metadata": {"name": name}, "spec": {"replicas": 0, "selector": labels, "template": template}});
    // What is there already, so that it can be changed.
    let there = |path: &str| format!("{path}/{name}");
    let ask = async |client: &Client, method: &str, namespace: &str, path: &str, body: &Value, dry: &str| {
        let path = path.replacen("v1/", &format!("v1/namespaces/{namespace}/"), 1);
        let mark = if path.contains('?') { '&' } else { '?' };
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{path}{mark}{dry}"))
            .header("content-type", kind)
            .body(serde_json::to_vec(body).unwrap())
            .unwrap();
        client.request::<Value>(request).await
    };
    for (path, object) in [("/api/v1/pods", &pod), ("/apis/apps/v1/deployments", &workload(json!({"replicas": 0})))] {
        ask(&admin, "POST", HOST, path, object, "").await.unwrap();
    }
    let (label, nothing) = (json!({"metadata": {"labels": {"c": "d"}}}), json!({}));
    let more = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i", "securityContext": spec["containers"][0]["securityContext"]}]}});
    let ways: Vec<(&str, String, &Value)> = vec![
        ("POST", "/api/v1/pods".into(), &pod),
        ("PATCH", there("/api/v1/pods"), &label),
        ("PATCH", format!("{}/ephemeralcontainers", there("/api/v1/pods")), &more),
        ("POST", format!("{}/exec?command=id&stdout=true", there("/api/v1/pods")), &nothing),
        ("POST", format!("{}/attach?stdout=true", there("/api/v1/pods")), &nothing),
        ("POST", "/api/v1/serviceaccounts/operetta/token".into(), &nothing),
        ("POST", "/api/v1/replicationcontrollers".into(), &set),
        ("PATCH", there("/apis/apps/v1/deployments"), &label),
    ];
    let made: Vec<(String, Value)> = vec![
        ("/apis/apps/v1/deployments".into(), workload(json!({}))),
        ("/apis/apps/v1/replicasets".into(), workload(json!({}))),
        ("/apis/apps/v1/daemonsets".into(), workload(json!({}))),
        ("/apis/apps/v1/statefulsets".into(), workload(json!({"serviceName": "s"}))),
        ("/apis/batch/v1/jobs".into(), job),
        ("/apis/batch/v1/cronjobs".into(), jobs),
    ];
    let made = made.iter().map(|(path, object)| ("POST", path.clone(), object));
    for (method, path, body) in ways.into_iter().chain(made) {
        // What is entered and not written knows no dry run.
        let dry = if path.contains('?') { "" } else { "dryRun=All" };
        eventually(&format!("{method} {path} is refused beside the host"), SOON, async || {
            match ask(&eager, method, HOST, &path, body, dry).await {
                Err(kube::Error::Api(status))
                    if status.code == 403 && status.message.contains("plugins make no pods") =>
                {
                    Ok(())
                }
                other => anyhow::bail!("{other:?}"),
            }
        })
        .await
        .unwrap();
        if let Err(error) = ask(&eager, method, layer.namespace.name(), &path, body, dry).await {
            assert!(!error.to_string().contains("plugins make no pods"), "{method} {path} elsewhere: {error}");
        }
    }
    for path in ["/api/v1/pods", "/apis/apps/v1/deployments"] {
        ask(&admin, "DELETE", HOST, &there(path), &nothing, "").await.unwrap();
    }
    let bindings: Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> = Api::all(admin);
    bindings.delete(&name, &DeleteParams::default()).await.unwrap();
}
