//! The shared informers on a real API server: who watches what, and what happens when kinds and rights come and go.

use std::{collections::BTreeSet, time::Duration};

use anyhow::ensure;
use futures::FutureExt as _;
use kube::{
    ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use operetta_core::{
    cache::Change,
    name::{Actor, FieldSelector, LabelSelector},
    port::{self, ApiError, ListOptions},
    resource::Resource,
};
use operetta_tests::{eventually, kinds::memcacheds};
use serde_json::{Value, json};

use crate::{
    layer::{A_WHILE, Layer, caller, config_maps, layer, next, told},
    shared::{SOON, host, plug, position, reconciles, settled},
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
        layer.cluster.informers().subscribe(&account, &config_maps(), &layer.scope().extents()).await
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
    let object = kubernetes.get(&caller("p"), &config_maps(), &layer.key("a"), false).await.unwrap().json.clone();
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
async fn a_plugin_that_drops_thousands_of_writes_of_ghosts_takes_a_shared_cache_from_no_neighbour() {
    // More than are remembered until the cache sees them.
    const GHOSTS: usize = 4_200;
    let layer = layer().await;
    let (p, q) = (layer.capable("p").await, layer.capable("q").await);
    layer.apply("", "v1", "ConfigMap", "configmaps", &json!({"metadata": {"name": "a"}})).await;
    // Whose account lists and watches, when the cache is listed anew, is the first one's.
    let _first = layer.subscribe(&p, &config_maps()).await;
    let _second = layer.subscribe(&q, &config_maps()).await;
    assert_eq!(layer.cluster.watches(), 1);
    let (own, neighbours) = (layer.kubernetes(&p), layer.kubernetes(&q));
    let (its, others, maps) = (caller("p"), caller("q"), config_maps());
    let all = ListOptions { namespace: Some(layer.here()), ..ListOptions::default() };
    // Again, should a list of the cache come between.
    eventually("what is in doubt is read live by who wrote it", SOON, async || {
        let since = position(&layer.namespace).await;
        for number in 0..GHOSTS {
            let (ghost, patch) = (layer.key(&format!("ghost-{number}")), json!({"data": {"x": "1"}}).to_string());
            // It is under way, and nobody waits for it.
            let answer = own.patch(&its, &maps, &ghost, None, port::Patch::Merge(patch)).now_or_never();
            assert!(answer.is_none(), "{answer:?}");
            tokio::task::yield_now().await;
        }
        own.get(&its, &maps, &layer.key("a"), false).await?;
        for _ in 0..10 {
            neighbours.get(&others, &maps, &layer.key("a"), false).await?;
            assert!(!neighbours.list(&others, &maps, &all).await?.items.is_empty());
        }
        let read = async |actor: &Actor, verbs: &[&str]| {
            let requests = layer.requests(actor, since).await?;
            let reads = requests.into_iter().filter(|r| verbs.contains(&&*r.verb) && r.uri.contains("/configmaps"));
            Some(reads.map(|request| request.uri).collect::<Vec<_>>())
        };
        if let (Some(live), Some(asked)) = (read(&p, &["get"]).await, read(&q, &["get", "list"]).await) {
            assert!(asked.is_empty(), "the cache is to answer the neighbour: {asked:?}");
            ensure!(live.iter().any(|uri| uri.ends_with("/a")), "it read only {live:?}");
        }
        Ok(())
    })
    .await
    .unwrap();
}

/// Lets an account do all with the config maps of these names, and no others.
async fn allow_named(layer: &Layer, actor: &Actor, names: &[&str]) {
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": names, "verbs": ["*"]}]);
    layer.allow_by(actor, &rules).await;
}

#[tokio::test]
async fn an_account_that_may_read_one_object_watches_it_alone_and_shares_it_with_those_who_may() {
    let layer = layer().await;
    let (p, q) = (layer.account("p").await, layer.account("q").await);
    allow_named(&layer, &p, &["a"]).await;
    allow_named(&layer, &q, &["a", "b"]).await;
    let since = position(&layer.namespace).await;
    let mut first = layer.subscribe_to(&p, &config_maps(), &layer.only("a")).await;
    let both = [layer.only("a"), layer.only("b")].concat();
    let mut second = layer.subscribe_to(&q, &config_maps(), &both).await;
    assert_eq!(layer.cluster.watches(), 2, "that of a is shared");
    let place = layer.namespace.name();
    for (extents, what) in [
        (layer.scope().extents(), format!("configmaps in namespace {place}")),
        (layer.only("b"), format!("configmaps named b in namespace {place}")),
    ] {
        let Err(ApiError::Forbidden(why)) = layer.cluster.informers().subscribe(&p, &config_maps(), &extents).await
        else {
            panic!("{what} are not p's to see");
        };
        assert!(why.contains(&format!("{place}/p may not list {what};")), "{why}");
    }
    for name in ["c", "b", "a"] {
        layer
            .apply("", "v1", "ConfigMap", "configmaps", &json!({"metadata": {"name": name}, "data": {"x": "1"}}))
            .await;
    }
    let Change::Object { key, .. } = next(&mut first).await else { panic!("a change") };
    assert_eq!(key, layer.key("a"), "whatever else came, came before");
    let mut seen = BTreeSet::new();
    while seen.len() < 2 {
        if let Change::Object { key, .. } = next(&mut second).await {
            seen.insert(key);
        }
    }
    assert_eq!(seen, ["a", "b"].map(|name| layer.key(name)).into());

    // The cache answers for what it watches, own writes included, and for nothing else.
    let kubernetes = layer.kubernetes(&p);
    kubernetes.get(&caller("p"), &config_maps(), &layer.key("a"), false).await.unwrap();
    let patch = port::Patch::Merge(json!({"data": {"x": "2"}}).to_string());
    kubernetes.patch(&caller("p"), &config_maps(), &layer.key("a"), None, patch).await.unwrap();
    let own = kubernetes.get(&caller("p"), &config_maps(), &layer.key("a"), false).await.unwrap().json.clone();
    assert!(own.contains(r#""x":"2""#), "{own}");
    let others = kubernetes.get(&caller("p"), &config_maps(), &layer.key("b"), false).await;
    assert!(matches!(others, Err(ApiError::Forbidden(_))), "{others:?}");
    let Change::Object { key, new, .. } = next(&mut first).await else { panic!("a change") };
    assert!(key == layer.key("a") && new.is_some_and(|new| new.json.contains(r#""x":"2""#)));
    let tried = tokio::time::timeout(A_WHILE, next(&mut first)).await;
    assert!(tried.is_err(), "{tried:?}");

    drop((first, second));
    assert_eq!(layer.cluster.watches(), 0);
    let Some(requests) = layer.requests(&p, since).await else { return };
    let read = |verb| requests.iter().filter(move |r| r.verb == verb && r.uri.contains("/configmaps")).map(|r| &*r.uri);
    assert!(["list", "watch"].into_iter().all(|verb| read(verb).count() > 0), "{requests:#?}");
    assert!(read("list").chain(read("watch")).all(|uri| names(uri, "a")), "{requests:#?}");
    assert!(read("get").all(|uri| uri.ends_with("/b")), "{requests:#?}");
}

/// Whether a list or a watch is of the object of this name alone.
fn names(uri: &str, name: &str) -> bool {
    uri.split(['?', '&']).any(|part| part == format!("fieldSelector=metadata.name%3D{name}"))
}

#[tokio::test]
async fn an_account_that_loses_its_right_to_one_object_is_told_nothing_more() {
    let layer = layer().await;
    let (p, q) = (layer.account("p").await, layer.account("q").await);
    for actor in [&p, &q] {
        allow_named(&layer, actor, &["a"]).await;
    }
    let mut first = layer.subscribe_to(&p, &config_maps(), &layer.only("a")).await;
    let mut second = layer.subscribe_to(&q, &config_maps(), &layer.only("a")).await;
    allow_named(&layer, &p, &["b"]).await;
    let ended = async { while first.changes.recv().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(33), ended).await.expect("the stream ends within 30 s");
    layer.apply("", "v1", "ConfigMap", "configmaps", &json!({"metadata": {"name": "a"}})).await;
    told(&mut second, "a", true).await;
    let read = layer.kubernetes(&p).get(&caller("p"), &config_maps(), &layer.key("a"), false).await;
    assert!(matches!(read, Err(ApiError::Forbidden(_))), "{read:?}");
}

/// A whole host: what the document and RBAC grant by name is what wakes the plugin.
#[tokio::test]
async fn a_plugin_that_is_granted_one_object_by_name_is_woken_by_it_and_by_no_other() {
    const PLUGIN: &str = "memcached";
    let layer = layer().await;
    let client = layer.client();
    let account = layer.account(PLUGIN).await;
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let mut named = rule("apps", &["deployments"], &["get", "list", "watch", "patch"]);
    named["resourceNames"] = json!(["mine"]);
    let own = ["memcacheds", "memcacheds/status"];
    let rules = json!([rule("cache.example.com", &own, &["*"]), named, rule("apps", &["deployments"], &["create"])]);
    layer.allow_by(&account, &rules).await;
    let since = position(&layer.namespace).await;
    let host = host(&layer.namespace).await;
    plug(&host, PLUGIN, |document| {
        let account = json!({"name": PLUGIN, "namespace": layer.namespace.name()});
        document.field(&["spec", "grants", "rules"], rules).field(&["spec", "serviceAccount"], account)
    })
    .await;
    let object = memcacheds(&client, layer.namespace.name())
        .apply("mine", &json!({"size": 1, "containerPort": 11211}))
        .await
        .unwrap();
    let deployments = layer.api("apps", "v1", "Deployment", "deployments");
    // Of what is complete its controllers write no more.
    eventually("its deployment is complete", SOON, async || {
        let status = deployments.get("mine").await?.data["status"].to_string();
        ensure!(status.contains(r#""availableReplicas":1"#) && status.contains("NewReplicaSetAvailable"), "{status}");
        Ok(())
    })
    .await
    .unwrap();
    // Another that belongs to the same object, and of which it may know nothing.
    let mine = deployments.get("mine").await.unwrap();
    let owner = json!([{"apiVersion": "cache.example.com/v1alpha1", "kind": "Memcached", "name": "mine", "uid": object.uid(), "controller": true}]);
    let metadata = json!({"name": "other", "ownerReferences": owner});
    let mut other = json!({"metadata": metadata, "spec": mine.data["spec"]});
    other["spec"]["replicas"] = json!(0);
    layer.apply("apps", "v1", "Deployment", "deployments", &other).await;
    settled(&host, PLUGIN).await;
    let change = async |name: &str, patch: Value| {
        deployments.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    let before = reconciles(&host, PLUGIN).await;
    change("other", json!({"metadata": {"labels": {"changed": "yes"}}})).await;
    tokio::time::sleep(A_WHILE).await;
    assert!(reconciles(&host, PLUGIN).await < before + 0.5, "it was woken by what it may not see");
    change("mine", json!({"spec": {"replicas": 2}})).await;
    eventually("it is scaled back", SOON, async || {
        let replicas = deployments.get("mine").await?.data["spec"]["replicas"].clone();
        ensure!(replicas == 1, "{replicas} replicas");
        Ok(())
    })
    .await
    .unwrap();
    assert!(host.metrics().await.unwrap().failures(PLUGIN) < 0.5, "a reconcile failed");
    let Some(requests) = layer.requests(&account, since).await else { return };
    let reads = requests.iter().filter(|r| r.uri.contains("/deployments") && ["list", "watch"].contains(&&*r.verb));
    let reads: Vec<_> = reads.map(|request| &*request.uri).collect();
    assert!(!reads.is_empty() && reads.iter().all(|uri| names(uri, "mine")), "{reads:#?}");
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
        layer.cluster.informers().subscribe(&p, &unwatchable, &layer.scope().extents()).await,
        Err(ApiError::Invalid(_))
    ));
}
