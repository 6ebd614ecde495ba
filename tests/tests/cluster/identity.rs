//! Who acts: the plugin's own service account, as the API server's audit log sees it.

use operetta_cluster::install::{Installation, Outcome, install};
use operetta_core::{
    cache::Scope,
    grant::Rule,
    name::{AccountName, PluginName, ServiceAccount},
    port::ApiError,
};
use serde_json::json;

use crate::{
    layer::{caller, config_maps, layer},
    shared::position,
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
    assert_eq!(create.acting_user(), p.user());
    assert_ne!(create.user(), p.user());
    assert!(create.uri.contains("fieldManager=operetta%3Ap%2Fc"), "{}", create.uri);
}

#[tokio::test]
async fn an_account_that_does_not_exist_is_never_impersonated() {
    let layer = layer().await;
    let missing = ServiceAccount { namespace: layer.here(), name: AccountName::parse("missing").unwrap() };
    let error = layer.kubernetes(&missing).get(&caller("p"), &config_maps(), &layer.key("a"), true).await.unwrap_err();
    let ApiError::Forbidden(why) = error else { panic!("{error:?}") };
    assert!(why.contains("does not exist") && why.contains("kubectl create serviceaccount missing"), "{why}");
    if let Some(requests) = layer.requests(&missing, None).await {
        assert!(requests.is_empty(), "{requests:#?}");
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
    let installation = Installation {
        plugin: PluginName::parse(layer.namespace.name()).unwrap(),
        account: account.clone(),
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
    let subscription = layer.subscribe(&account, &layer.things()).await;
    assert!(subscription.kind.borrow().is_some());
    let body = operetta_core::port::Patch::Apply(json!({"spec": {"size": 1}}).to_string());
    layer.kubernetes(&account).patch(&caller("p"), &layer.things(), &layer.key("t"), None, body).await.unwrap();

    // Another plugin that brings the same kind is refused, whatever else it asks for.
    let other = Installation { plugin: PluginName::parse("another").unwrap(), ..installation };
    let refused = install(&layer.client(), &other, true).await.unwrap_err();
    assert!(refused.to_string().contains("was brought by the plugin"), "{refused}");
    layer.remove_things().await;
}
