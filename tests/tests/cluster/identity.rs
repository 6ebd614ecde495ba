//! Who acts: the plugin's own service account, as the API server's audit log sees it.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount as KubeServiceAccount,
};
use kube::{
    api::{DeleteParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use operetta_cluster::{
    Cluster, client,
    identity::Impersonation,
    install::{Installation, Outcome, host_rbac, install},
};
use operetta_core::{
    cache::{Scope, Subscription},
    grant::Rule,
    name::{AccountName, Actor, PluginName, ServiceAccount},
    port::ApiError,
};
use serde_json::json;

use crate::{
    layer::{Layer, caller, config_maps, layer},
    shared::{position, shared},
};

#[tokio::test]
async fn the_audit_log_sees_the_plugin_and_not_the_host() {
    let layer = layer().await;
    let p = layer.capable("p").await;
    layer.subscribe(&p, &config_maps()).await;
    let since = position(&layer.namespace).await;
    let body = json!({"metadata": {"name": "a"}}).to_string();
    layer.kubernetes(&p).create(&caller("p"), &config_maps(), Some(&layer.here()), body).await.unwrap();
    let Some(requests) = layer.requests(&p, since).await else { return };
    let create = requests.iter().find(|r| r.verb == "create").expect("a create by the account");
    assert_eq!(create.acting_user(), p.account.user());
    assert_ne!(create.user(), p.account.user());
    assert!(create.uri.contains("fieldManager=operetta%3Ap%2Fc"), "{}", create.uri);
}

#[tokio::test]
async fn an_account_that_does_not_exist_is_never_impersonated() {
    let layer = layer().await;
    let missing = layer.actor("missing");
    let error = layer.kubernetes(&missing).get(&caller("p"), &config_maps(), &layer.key("a"), true).await.unwrap_err();
    let ApiError::Forbidden(why) = error else { panic!("{error:?}") };
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

/// The layer of a host whose own account has what `operetta generate` prints for it, and nothing else.
#[tokio::test]
async fn the_hosts_own_narrow_rights_suffice() {
    let admin = layer().await;
    let host = admin.account("host").await;
    let unique = |name: &str| format!("{name}-{}", admin.namespace.name());
    for mut object in host_rbac(&host.account, &admin.here()) {
        let kind = object["kind"].as_str().unwrap().to_owned();
        // Plugins live beside the host here, and nothing is said about Plugins, whose events lie in `default`.
        let elsewhere = object["metadata"]["namespace"].as_str().is_some_and(|name| name != admin.namespace.name());
        if elsewhere || ["Namespace", "ServiceAccount"].contains(&kind.as_str()) {
            continue;
        }
        // A user's cluster may have a host of its own.
        let name = unique(object["metadata"]["name"].as_str().unwrap());
        object["metadata"]["name"] = name.clone().into();
        if kind.ends_with("Binding") {
            object["roleRef"]["name"] = name.into();
        }
        let plural = format!("{}s", kind.to_lowercase());
        admin.apply("rbac.authorization.k8s.io", "v1", &kind, &plural, &object).await;
    }
    let p = admin.capable("p").await;

    let accounts = admin.namespace.api::<KubeServiceAccount>();
    let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
    let token = accounts
        .create_token_request("host", &PostParams::default(), &request)
        .await
        .unwrap()
        .status
        .unwrap()
        .token
        .unwrap();
    let kubeconfig = Kubeconfig::read_from(shared().kubeconfig()).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info = kube::config::AuthInfo { token: Some(token.into()), ..Default::default() };
    let client = client::build(config).unwrap();
    client::wait_until_ready(&client, |_| {}).await.unwrap();
    let cluster = Cluster::new(client.clone(), Arc::new(Impersonation::new(client)));
    let narrow = Layer { namespace: admin.namespace, cluster };

    let _subscription = narrow.subscribe(&p, &config_maps()).await;
    let kubernetes = narrow.kubernetes(&p);
    let body = json!({"metadata": {"name": "a"}}).to_string();
    kubernetes.create(&caller("p"), &config_maps(), Some(&narrow.here()), body).await.unwrap();
    kubernetes.get(&caller("p"), &config_maps(), &narrow.key("a"), false).await.unwrap();
    // It cannot become an account of any other namespace.
    let account =
        ServiceAccount { namespace: "kube-system".parse().unwrap(), name: AccountName::parse("default").unwrap() };
    let controller = Actor { account, ..p };
    let error =
        narrow.kubernetes(&controller).get(&caller("p"), &config_maps(), &narrow.key("a"), true).await.unwrap_err();
    assert!(matches!(error, ApiError::Forbidden(_)), "{error:?}");
}
