//! The shared informers on a real API server: who watches what, and what happens when kinds and rights come and go.

use anyhow::ensure;
use kube::api::{DeleteParams, Patch, PatchParams};
use operetta_core::{
    name::{FieldSelector, LabelSelector},
    port::{ApiError, ListOptions},
    resource::Resource,
};
use operetta_tests::eventually;
use serde_json::json;

use crate::{
    layer::{A_WHILE, caller, config_maps, layer, next, told},
    shared::{SOON, position},
};

#[tokio::test]
async fn plugins_that_watch_the_same_kind_share_one_watch_that_ends_with_the_last() {
    let layer = layer().await;
    let (p, q) = (layer.capable("p").await, layer.capable("q").await);
    let before = position(&layer.namespace).await;
    let mut first = layer.subscribe(&p, &config_maps()).await;
    let mut second = layer.subscribe(&q, &config_maps()).await;
    assert_eq!(layer.cluster.watches(), 1);
    layer.apply("", "v1", "ConfigMap", "configmaps", &json!({"metadata": {"name": "a"}})).await;
    told(&mut first, "a", true).await;
    told(&mut second, "a", true).await;
    let watches = async |account, since| {
        let requests = layer.requests(account, since).await?;
        Some(requests.iter().filter(|r| r.verb == "watch" && r.uri.contains("/configmaps")).count())
    };
    if let Some(count) = watches(&p, before).await {
        assert_eq!((count, watches(&q, before).await), (1, Some(0)));
    }

    // The sponsor goes; the other's watch goes on under its own account, and nothing is lost on the way.
    drop(first);
    layer.apply("", "v1", "ConfigMap", "configmaps", &json!({"metadata": {"name": "b"}})).await;
    told(&mut second, "b", true).await;
    if before.is_some() {
        eventually("the other watches", SOON, async || {
            let count = watches(&q, before).await.unwrap_or_default();
            ensure!(count == 1, "{count} watches");
            Ok(())
        })
        .await
        .unwrap();
    }
    drop(second);
    assert_eq!(layer.cluster.watches(), 0);
}

#[tokio::test]
async fn a_kind_may_appear_disappear_and_reappear() {
    let layer = layer().await;
    let account = layer.account("p").await;
    layer.allow(&account, &[&layer.group()], &["things"]).await;
    let things = layer.things();
    // Subscribed before the kind exists: synced and empty.
    let mut subscription = layer.subscribe(&account, &things).await;
    assert!(subscription.kind.borrow().is_none());
    for round in ["first", "second"] {
        layer.define_things().await;
        layer
            .apply(&layer.group(), "v1", "Thing", "things", &json!({"metadata": {"name": round}, "spec": {"size": 1}}))
            .await;
        let object = told(&mut subscription, round, true).await.unwrap();
        assert_eq!(object["spec"]["colour"], "red");
        assert_eq!(subscription.kind.borrow().as_ref().unwrap().kind, "Thing");
        layer.remove_things().await;
        told(&mut subscription, round, false).await;
        tokio::time::timeout(SOON, subscription.kind.wait_for(Option::is_none)).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_account_without_rights_is_refused_and_admitted_as_soon_as_it_has_them() {
    let layer = layer().await;
    let account = layer.account("p").await;
    let Err(ApiError::Forbidden(why)) =
        layer.cluster.informers().subscribe(&account, &config_maps(), &layer.scope()).await
    else {
        panic!("refused");
    };
    let place = format!("{}/p may not list configmaps in namespace {}", layer.namespace.name(), layer.namespace.name());
    assert!(why.contains(&place) && why.contains("operetta install"), "{why}");
    layer.allow(&account, &[""], &["configmaps"]).await;
    let mut subscription = layer.subscribe(&account, &config_maps()).await;
    layer.apply("", "v1", "ConfigMap", "configmaps", &json!({"metadata": {"name": "a"}})).await;
    told(&mut subscription, "a", true).await;
}

#[tokio::test]
async fn an_account_that_loses_its_rights_is_told_nothing_more() {
    let layer = layer().await;
    let (p, q) = (layer.capable("p").await, layer.capable("q").await);
    let mut first = layer.subscribe(&p, &config_maps()).await;
    let mut second = layer.subscribe(&q, &config_maps()).await;
    let bindings = layer.api("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings");
    bindings.delete("p", &DeleteParams::default()).await.unwrap();
    let ended = async { while first.changes.recv().await.is_some() {} };
    tokio::time::timeout(SOON, ended).await.expect("the stream ends within 30 s");
    layer.apply("", "v1", "ConfigMap", "configmaps", &json!({"metadata": {"name": "late"}})).await;
    told(&mut second, "late", true).await;
}

#[tokio::test]
async fn what_is_cached_is_read_without_a_request_and_by_nobody_else() {
    let layer = layer().await;
    let (p, q) = (layer.capable("p").await, layer.capable("q").await);
    for name in ["a", "b"] {
        layer
            .apply("", "v1", "ConfigMap", "configmaps", &json!({"metadata": {"name": name, "labels": {"name": name}}}))
            .await;
    }
    let _subscription = layer.subscribe(&p, &config_maps()).await;
    let since = position(&layer.namespace).await;
    let kubernetes = layer.kubernetes(&p);
    let object = kubernetes.get(&caller("p"), &config_maps(), &layer.key("a"), false).await.unwrap();
    assert!(object.contains("\"kind\":\"ConfigMap\"") && !object.contains("managedFields"), "{object}");
    let options = ListOptions {
        namespace: Some(layer.here()),
        label_selector: LabelSelector::parse("name=b").ok(),
        ..ListOptions::default()
    };
    assert_eq!(kubernetes.list(&caller("p"), &config_maps(), &options).await.unwrap().items.len(), 1);
    layer.kubernetes(&q).get(&caller("q"), &config_maps(), &layer.key("a"), false).await.unwrap();
    let live = ListOptions { field_selector: FieldSelector::parse("metadata.name=b").ok(), ..options };
    assert_eq!(kubernetes.list(&caller("p"), &config_maps(), &live).await.unwrap().items.len(), 1);
    if let Some(requests) = layer.requests(&p, since).await {
        let uris: Vec<_> = requests.iter().filter(|r| r.verb != "watch").map(|r| r.uri.as_str()).collect();
        assert!(matches!(uris.as_slice(), [uri] if uri.contains("fieldSelector")), "{uris:?}");
        assert_eq!(layer.requests(&q, since).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_list_that_is_longer_than_a_page_is_whole() {
    let layer = layer().await;
    let p = layer.capable("p").await;
    layer.define_things().await;
    layer.allow(&p, &[&layer.group()], &["things"]).await;
    let things = layer.api(&layer.group(), "v1", "Thing", "things");
    let make = |i: usize| {
        let things = things.clone();
        let object = json!({"apiVersion": format!("{}/v1", layer.group()), "kind": "Thing", "metadata": {"name": format!("t{i}")}});
        async move { things.patch(&format!("t{i}"), &PatchParams::apply("kubectl"), &Patch::Apply(&object)).await.map(drop) }
    };
    let all = futures::StreamExt::buffer_unordered(futures::stream::iter((0..620).map(make)), 20);
    futures::TryStreamExt::try_collect::<()>(all).await.unwrap();
    let _subscription = layer.subscribe(&p, &layer.things()).await;
    let kubernetes = layer.kubernetes(&p);
    let list = async |limit, continue_token| {
        let options = ListOptions { namespace: Some(layer.here()), limit, continue_token, ..ListOptions::default() };
        kubernetes.list(&caller("p"), &layer.things(), &options).await.unwrap()
    };
    assert_eq!(list(Some(1_000), None).await.items.len(), 620);
    let page = list(None, None).await;
    assert_eq!(page.items.len(), 500);
    let rest = list(None, page.continue_token).await;
    assert_eq!((rest.items.len(), rest.continue_token), (120, None));
}

#[tokio::test]
async fn nothing_is_told_where_nothing_changes() {
    let layer = layer().await;
    let p = layer.capable("p").await;
    let mut subscription = layer.subscribe(&p, &config_maps()).await;
    let told = tokio::time::timeout(A_WHILE, next(&mut subscription)).await;
    assert!(told.is_err(), "{told:?}");
    let unwatchable = Resource::parse("", "v1", "bindings").unwrap();
    assert!(matches!(
        layer.cluster.informers().subscribe(&p, &unwatchable, &layer.scope()).await,
        Err(ApiError::Invalid(_))
    ));
}
