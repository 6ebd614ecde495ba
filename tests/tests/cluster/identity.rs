//! Who acts: the plugin's own service account, as the API server's audit log sees it.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ServiceAccount as KubeServiceAccount;
use kube::api::{DeleteParams, Patch, PatchParams};
use operetta_cluster::{
    Cluster, client,
    identity::Impersonation,
    install::{Installation, Outcome, Way, host_rbac, install, render},
};
use operetta_core::{
    cache::{Scope, Subscription},
    grant::Rule,
    name::{AccountName, Actor, PluginName, ServiceAccount},
    port::{self, ApiError, DeleteOptions, ListOptions},
    resource::Resource,
};
use operetta_tests::control_plane::audit::{Filter, Request};
use serde_json::{Value, json};

use crate::{
    layer::{Layer, caller, config_maps, layer},
    shared::{client_of, position, shared},
};

#[tokio::test]
async fn the_audit_log_sees_the_plugin_and_not_the_host() {
    let layer = layer().await;
    let p = layer.capable("p").await;
    let since = position(&layer.namespace).await;
    let subscription = layer.subscribe(&p, &config_maps()).await;
    let (kubernetes, caller, maps, here) = (layer.kubernetes(&p), caller("p"), config_maps(), layer.here());
    let (key, body) = (layer.key("a"), json!({"metadata": {"name": "a"}, "data": {"b": "1"}}).to_string());
    kubernetes.create(&caller, &maps, Some(&here), body.clone()).await.unwrap();
    let live = ListOptions { namespace: Some(here.clone()), live: true, ..ListOptions::default() };
    kubernetes.list(&caller, &maps, &live).await.unwrap();
    let there = kubernetes.get(&caller, &maps, &key, true).await.unwrap();
    kubernetes.replace(&caller, &maps, &key, None, there.to_string()).await.unwrap();
    kubernetes
        .patch(&caller, &maps, &key, None, port::Patch::Merge(json!({"data": {"b": "2"}}).to_string()))
        .await
        .unwrap();
    kubernetes.delete(&caller, &maps, &key, &DeleteOptions::default()).await.unwrap();
    // It is logged when it ends, too.
    drop(subscription);
    let Some(requests) = layer.requests(&p, since).await else { return };
    for verb in ["watch", "list", "get", "create", "update", "patch", "delete"] {
        let about = |r: &&Request| r.verb == verb && r.uri.contains("/configmaps");
        let asked = requests.iter().find(about).unwrap_or_else(|| panic!("no {verb} by the account"));
        assert_eq!(asked.acting_user(), p.account.user());
        assert!(asked.impersonates() && asked.user() != p.account.user(), "{asked:#?}");
        let named = asked.uri.contains("fieldManager=operetta%3Ap%2Fc");
        assert_eq!(named, ["create", "update", "patch"].contains(&verb), "{}", asked.uri);
    }
    // Whatever was asked about users' objects in this namespace, it was asked by no other name of the host.
    let ours = Filter::all().agent("operetta/").namespace(here.as_str()).resource("configmaps");
    let all = shared().audit_log().unwrap().requests(&ours).unwrap();
    assert!(all.len() > 6 && all.iter().all(Request::impersonates), "{all:#?}");
}

#[tokio::test]
async fn an_account_that_does_not_exist_is_never_impersonated() {
    let layer = layer().await;
    let missing = layer.actor("missing");
    let error = layer.kubernetes(&missing).get(&caller("p"), &config_maps(), &layer.key("a"), true).await.unwrap_err();
    assert!(matches!(error, ApiError::Forbidden(_)), "{error:?}");
    let Err(ApiError::Forbidden(why)) = layer.cluster.check_actor(&missing).await else { panic!() };
    assert!(why.contains("does not exist") && why.contains("kubectl create serviceaccount missing"), "{why}");
    if let Some(requests) = layer.requests(&missing, None).await {
        assert!(requests.is_empty(), "{requests:#?}");
    }
}

#[tokio::test]
async fn an_account_that_is_deleted_or_names_another_plugin_is_revoked_within_30_s() {
    let layer = layer().await;
    let (gone, other) = (layer.capable("gone").await, layer.capable("other").await);
    let (mut a, mut b) = (layer.subscribe(&gone, &config_maps()).await, layer.subscribe(&other, &config_maps()).await);
    let accounts = layer.namespace.api::<KubeServiceAccount>();
    accounts.delete("gone", &DeleteParams::default()).await.unwrap();
    let away = json!({"metadata": {"annotations": {"operetta.dev/plugin": "somebody"}}});
    accounts.patch("other", &PatchParams::default(), &Patch::Merge(away)).await.unwrap();
    let ended = async |subscription: &mut Subscription| while subscription.changes.recv().await.is_some() {};
    let both = async { tokio::join!(ended(&mut a), ended(&mut b)) };
    tokio::time::timeout(Duration::from_secs(33), both).await.expect("no more changes are told");
    for (actor, why) in [(&gone, "does not exist"), (&other, "says that somebody may act as it, and not other")] {
        let get = layer.kubernetes(actor).get(&caller("p"), &config_maps(), &layer.key("a"), false).await;
        let Err(ApiError::Forbidden(said)) = get else { panic!("{get:?}") };
        assert!(said.contains("the host cannot act as the plugin's service account"), "{said}");
        assert!(!said.contains("somebody"), "whom else an account names is no plugin's to know: {said}");
        let Err(ApiError::Forbidden(said)) = layer.cluster.check_actor(actor).await else { panic!() };
        assert!(said.contains(why) && said.contains("kubectl annotate serviceaccount"), "{said}");
    }
}

#[tokio::test]
async fn an_installation_is_all_that_a_plugin_needs_and_repeating_it_changes_nothing() {
    let layer = layer().await;
    let group = layer.group();
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("things.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    });
    let rule = Rule {
        api_groups: vec![group],
        resources: vec!["things".into()],
        verbs: ["get", "list", "watch", "patch", "create"].map(str::to_owned).into(),
        ..Rule::default()
    };
    let account = ServiceAccount { namespace: layer.here(), name: AccountName::parse("installed").unwrap() };
    let actor = Actor { plugin: PluginName::parse(layer.namespace.name()).unwrap(), account: account.clone() };
    let installation = Installation {
        plugin: actor.plugin.clone(),
        account,
        crds: vec![crd],
        rules: vec![rule],
        events: true,
        scope: Scope::All,
        host: layer.actor("host").account,
        way: Way::Constrained,
    };
    let first = install(&layer.client(), &installation, false).await.unwrap();
    let outcomes: Vec<_> = first.iter().map(|i| (i.what.split('/').next().unwrap_or_default(), i.outcome)).collect();
    assert_eq!(outcomes[0], ("customresourcedefinition.apiextensions.k8s.io", Outcome::Created));
    assert_eq!(
        outcomes[2..],
        [
            ("serviceaccount", Outcome::Created),
            ("clusterrole.rbac.authorization.k8s.io", Outcome::Created),
            ("clusterrolebinding.rbac.authorization.k8s.io", Outcome::Created),
            ("clusterrole.rbac.authorization.k8s.io", Outcome::Created),
            ("clusterrolebinding.rbac.authorization.k8s.io", Outcome::Created),
            // The account lives elsewhere than others do, so the host is told of it.
            ("role.rbac.authorization.k8s.io", Outcome::Created),
            ("rolebinding.rbac.authorization.k8s.io", Outcome::Created),
        ]
    );
    let second = install(&layer.client(), &installation, false).await.unwrap();
    assert!(second.iter().all(|i| i.outcome == Outcome::Unchanged), "{second:?}");

    // Straight away, since an installation waits for its kinds.
    let subscription = layer.subscribe(&actor, &layer.things()).await;
    assert!(subscription.kind.borrow().is_some());
    let body = operetta_core::port::Patch::Apply(json!({"spec": {"size": 1}}).to_string());
    layer.kubernetes(&actor).patch(&caller("p"), &layer.things(), &layer.key("t"), None, body).await.unwrap();

    // Another plugin that brings the same kind is refused, whatever else it asks for.
    let other = Installation { plugin: PluginName::parse("another").unwrap(), ..installation };
    let refused = install(&layer.client(), &other, true).await.unwrap_err();
    assert!(refused.to_string().contains("was brought by the plugin"), "{refused}");
    layer.remove_things().await;
}

/// RBAC objects, under names that a user's cluster has not.
async fn apply_rbac(admin: &Layer, objects: Vec<Value>) {
    for mut object in objects {
        let kind = object["kind"].as_str().unwrap().to_owned();
        // Plugins live beside the host here, and nothing is said about Plugins, whose events lie in `default`.
        let elsewhere = object["metadata"]["namespace"].as_str().is_some_and(|name| name != admin.namespace.name());
        if elsewhere || !kind.contains("Role") {
            continue;
        }
        // A user's cluster may have a host of its own.
        let name = format!("{}-{}", object["metadata"]["name"].as_str().unwrap(), admin.namespace.name());
        object["metadata"]["name"] = name.clone().into();
        if kind.ends_with("Binding") {
            object["roleRef"]["name"] = name.into();
        }
        let plural = format!("{}s", kind.to_lowercase());
        admin.apply("rbac.authorization.k8s.io", "v1", &kind, &plural, &object).await;
    }
}

/// The layer of a host whose own account has what `operetta generate` prints for it and for a plugin, and nothing else.
async fn narrow(admin: Layer, way: Way, plugin: &Actor, rules: Vec<Rule>) -> Layer {
    let host = admin.account("host").await.account;
    apply_rbac(&admin, host_rbac(&host, &admin.here(), way)).await;
    let installation = Installation {
        plugin: plugin.plugin.clone(),
        account: plugin.account.clone(),
        crds: vec![],
        rules,
        events: false,
        scope: admin.scope(),
        host,
        way,
    };
    apply_rbac(&admin, render(&installation).unwrap()).await;
    let client = client_of(&admin.namespace, "host").await;
    client::wait_until_ready(&client, |_| {}).await.unwrap();
    let cluster = Cluster::new(client.clone(), Arc::new(Impersonation::new(client)), Arc::default());
    Layer { namespace: admin.namespace, cluster }
}

fn rule(group: &str, resource: &str, verbs: &[&str]) -> Rule {
    let verbs = verbs.iter().map(|&verb| verb.to_owned()).collect();
    Rule { api_groups: vec![group.into()], resources: vec![resource.into()], verbs, ..Rule::default() }
}

/// Whether the API server constrains impersonation, as those since 1.36 do.
async fn constrains() -> bool {
    Way::of(&shared().client().await.unwrap()).await.unwrap() == Way::Constrained
}

#[tokio::test]
async fn the_hosts_own_narrow_rights_suffice_either_way() {
    for way in [Way::Classic, Way::Constrained] {
        if way == Way::Constrained && !constrains().await {
            continue;
        }
        let admin = layer().await;
        let p = admin.capable("p").await;
        let named = Rule { resource_names: vec!["one".into()], ..rule("", "secrets", &["list", "watch"]) };
        let narrow = narrow(admin, way, &p, vec![rule("", "configmaps", &["*"]), named]).await;
        let since = position(&narrow.namespace).await;
        let _subscription = narrow.subscribe(&p, &config_maps()).await;
        let secrets = Resource::parse("", "v1", "secrets").unwrap();
        let _of_one = narrow.subscribe_to(&p, &secrets, &narrow.only("one")).await;
        let kubernetes = narrow.kubernetes(&p);
        let body = json!({"metadata": {"name": "a"}}).to_string();
        kubernetes.create(&caller("p"), &config_maps(), Some(&narrow.here()), body).await.unwrap();
        kubernetes.get(&caller("p"), &config_maps(), &narrow.key("a"), false).await.unwrap();
        let constraint = (way == Way::Constrained).then_some("impersonate:serviceaccount");
        if let Some(requests) = narrow.requests(&p, since).await {
            assert!(requests.iter().all(|request| request.constraint() == constraint), "{requests:#?}");
        }
        // It cannot become an account of any other namespace.
        let account =
            ServiceAccount { namespace: "kube-system".parse().unwrap(), name: AccountName::parse("default").unwrap() };
        let controller = Actor { account, ..p };
        let error =
            narrow.kubernetes(&controller).get(&caller("p"), &config_maps(), &narrow.key("a"), true).await.unwrap_err();
        assert!(matches!(error, ApiError::Forbidden(_)), "{error:?}");
    }
}

/// The account has more rights than the plugin's rules say: RBAC that somebody else gave it.
#[tokio::test]
async fn the_host_can_do_nothing_as_an_account_that_the_plugins_rules_do_not_say() {
    if !constrains().await {
        return;
    }
    let admin = layer().await;
    let p = admin.capable("p").await;
    let deployments = Resource::parse("apps", "v1", "deployments").unwrap();
    // The account may.
    admin.subscribe(&p, &deployments).await;
    let narrow = narrow(admin, Way::Constrained, &p, vec![rule("", "configmaps", &["get", "list", "watch"])]).await;
    let _subscription = narrow.subscribe(&p, &config_maps()).await;
    let kubernetes = narrow.kubernetes(&p);
    let body = json!({"metadata": {"name": "a"}}).to_string();
    let create = kubernetes.create(&caller("p"), &config_maps(), Some(&narrow.here()), body).await;
    let Err(ApiError::Forbidden(said)) = create else { panic!("{create:?}") };
    // What exactly the host lacks, and who it is, stands in its log.
    assert!(said.contains("the host itself may not do this") && !said.contains("impersonate"), "{said}");
    let read = kubernetes.get(&caller("p"), &deployments, &narrow.key("a"), true).await;
    assert!(matches!(read, Err(ApiError::Forbidden(_))), "{read:?}");
    let Err(ApiError::Forbidden(said)) =
        narrow.cluster.informers().subscribe(&p, &deployments, &narrow.scope().extents()).await
    else {
        panic!("a watch that the host may not have")
    };
    for part in [
        "the host itself may not list deployments of group apps in namespace",
        "`operetta install`",
        "{apiGroups: [\"apps\"], resources: [\"deployments\"], verbs: [impersonate-on:serviceaccount:list, impersonate-on:serviceaccount:watch]}",
    ] {
        assert!(said.contains(part), "{said} lacks {part}");
    }
}
