//! Kinds come, go and come back.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use operetta_core::cache::Scope;
use serde_json::json;
use tokio::time::timeout;

use super::*;
use crate::testing::{FakeApi, actor, caller, key, status, things, until};

#[tokio::test(start_paused = true)]
async fn versions_are_compared_only_where_the_server_promises_it() {
    for (minor, expected) in [(34, false), (35, true), (36, true)] {
        let api = FakeApi::new(|_| None);
        api.set_minor(minor);
        assert_eq!(Discovery::start(api.client()).comparable_versions().await, expected, "{minor}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_is_asked_once_and_again_where_a_kind_is_missing() {
    let api = FakeApi::new(|_| None);
    let discovery = Discovery::start(api.client());
    let asked = || api.sent().iter().filter(|s| s.path == "/apis/x.example.com/v1").count();
    for _ in 0..3 {
        assert_eq!(discovery.lookup(&things()).await.unwrap().unwrap().info.kind, "Thing");
    }
    assert_eq!(asked(), 1);
    let missing = Resource::parse("x.example.com", "v1", "others").unwrap();
    for _ in 0..3 {
        assert_eq!(discovery.lookup(&missing).await.unwrap(), None);
    }
    assert_eq!(asked(), 1);
    tokio::time::advance(ABSENT_FOR).await;
    assert_eq!(discovery.lookup(&missing).await.unwrap(), None);
    assert_eq!(asked(), 2);
}

/// Of one plugin.
fn turns() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(1))
}

#[tokio::test(start_paused = true)]
async fn what_many_ask_for_at_once_is_asked_once() {
    let api = FakeApi::new(|_| None);
    let (discovery, turns, things) = (Discovery::start(api.client()), turns(), things());
    for kind in join_all((0..1_000).map(|_| discovery.lookup_for_plugin(&turns, &things))).await {
        assert_eq!(kind.unwrap().unwrap().info.kind, "Thing");
    }
    let asked = |path: &str| api.sent().iter().filter(|s| s.path == path).count();
    assert_eq!((asked("/apis"), asked("/apis/x.example.com/v1")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn versions_that_a_plugin_makes_up_are_neither_asked_for_nor_remembered() {
    let api = FakeApi::new(|_| None);
    let (discovery, turns) = (Discovery::start(api.client()), turns());
    for group in ["x.example.com", "nowhere.example.com", ""] {
        let made_up: Vec<_> = (2..1_000).map(|n| Resource::parse(group, &format!("v{n}"), "things").unwrap()).collect();
        for kind in join_all(made_up.iter().map(|resource| discovery.lookup_for_plugin(&turns, resource))).await {
            assert_eq!(kind.unwrap(), None);
        }
    }
    let sent = api.sent();
    let asked = |begin: &str| sent.iter().filter(|s| s.path.starts_with(begin)).count();
    assert_eq!((asked("/apis/x."), asked("/apis/nowhere."), asked("/api/")), (0, 0, 0));
    assert_eq!(sent.iter().filter(|s| s.path == "/apis").count(), 1);
    assert!(discovery.state().versions.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_version_that_comes_is_found_though_it_was_named_before() {
    let there = Arc::new(AtomicBool::new(false));
    let api = FakeApi::new({
        let there = there.clone();
        move |sent| (sent.path == "/apis" && !there.load(Ordering::Relaxed)).then(|| (200, json!({"groups": []})))
    });
    let discovery = Discovery::start(api.client());
    assert_eq!(discovery.lookup_for_plugin(&turns(), &things()).await.unwrap(), None);
    there.store(true, Ordering::Relaxed);
    tokio::time::advance(UNLISTED_FOR / 2).await;
    assert_eq!(discovery.lookup_for_plugin(&turns(), &things()).await.unwrap(), None, "it is not listed again yet");
    tokio::time::advance(UNLISTED_FOR / 2).await;
    assert!(discovery.lookup_for_plugin(&turns(), &things()).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn what_somebody_waits_for_is_asked_for_whatever_versions_are_listed() {
    let api = FakeApi::new(|sent| (sent.path == "/apis").then(|| (200, json!({"groups": []}))));
    let discovery = Discovery::start(api.client());
    let _waiting = discovery.watch(&things());
    assert!(discovery.lookup_for_plugin(&turns(), &things()).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn doubts_take_nothing_from_anybody_and_are_followed_once_in_a_while() {
    let failing = Arc::new(AtomicBool::new(false));
    let api = FakeApi::new({
        let failing = failing.clone();
        move |sent| {
            let fails = sent.path == "/apis/x.example.com/v1" && failing.load(Ordering::Relaxed);
            fails.then(|| status(500, "InternalError", "etcd", &json!({})))
        }
    });
    let discovery = Discovery::start(api.client());
    let asked = || api.sent().iter().filter(|s| s.path == "/apis/x.example.com/v1").count();
    assert!(discovery.lookup_for_plugin(&turns(), &things()).await.unwrap().is_some());
    failing.store(true, Ordering::Relaxed);
    let doubt = || (0..1_000).for_each(|_| discovery.doubt(&things()));
    doubt();
    until("what is doubted is asked for", || asked() == 2).await;
    doubt();
    tokio::time::sleep(REST / 2).await;
    assert_eq!(asked(), 2);
    assert!(discovery.lookup_for_plugin(&turns(), &things()).await.unwrap().is_some(), "it is believed all the same");
    assert_eq!(asked(), 2);
    tokio::time::sleep(REST).await;
    doubt();
    until("it is doubted again", || asked() == 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_waits_for_an_answer_reads_what_is_known_meanwhile() {
    let api = FakeApi::new(|sent| (sent.path == "/apis/x.example.com/v1").then_some((1, json!(null))));
    let (discovery, turns, things) = (Discovery::start(api.client()), turns(), things());
    let secrets = Resource::parse("", "v1", "secrets").unwrap();
    assert!(discovery.lookup_for_plugin(&turns, &secrets).await.unwrap().is_some());
    let waiting = discovery.lookup_for_plugin(&turns, &things);
    let meanwhile = async {
        until("the other is asked for", || api.sent().iter().any(|s| s.path == "/apis/x.example.com/v1")).await;
        discovery.lookup_for_plugin(&turns, &secrets).await.unwrap().is_some()
    };
    tokio::select! {
        answer = waiting => panic!("{answer:?}"),
        known = meanwhile => assert!(known),
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_computes_while_it_asks_keeps_nobody_from_an_answer() {
    let api = FakeApi::new(|_| None);
    let (discovery, things) = (Discovery::start(api.client()), things());
    let (own, of_another) = (turns(), turns());
    let mut computing = Box::pin(discovery.lookup_for_plugin(&own, &things));
    assert!(futures::poll!(computing.as_mut()).is_pending());
    let answer = timeout(Duration::from_secs(1), discovery.lookup_for_plugin(&of_another, &things)).await;
    assert!(answer.expect("it is not kept waiting").unwrap().is_some());
    assert!(computing.await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn two_kinds_at_once_are_looked_up_for_a_plugin_and_eight_for_all() {
    let group = |n: usize| format!("g{n}.example.com");
    for (plugins, expected) in [(1, 2), (10, 8)] {
        let groups: Vec<_> = (0..20)
            .map(|n| json!({"name": group(n), "versions": [{"groupVersion": format!("{}/v1", group(n)), "version": "v1"}]}))
            .collect();
        let api = FakeApi::new(move |sent| match sent.path.as_str() {
            "/apis" => Some((200, json!({"kind": "APIGroupList", "groups": groups}))),
            path => path.starts_with("/apis/g").then_some((1, json!(null))),
        });
        let cluster = api.cluster();
        let ports: Vec<_> = (0..plugins).map(|n| cluster.kubernetes(actor(&format!("p{n}")), Scope::All)).collect();
        let (who, a) = (caller("p"), key("a"));
        let kinds: Vec<_> = (0..20).map(|n| Resource::parse(&group(n), "v1", "things").unwrap()).collect();
        let asked = kinds.iter().zip(ports.iter().cycle());
        let all = join_all(asked.map(|(kind, port)| port.get(&who, kind, &a, true)));
        assert!(timeout(Duration::from_secs(1), all).await.is_err(), "nothing is answered");
        let under_way = api.sent().iter().filter(|sent| sent.path.starts_with("/apis/g")).count();
        assert_eq!(under_way, expected, "{plugins} plugins");
    }
}
