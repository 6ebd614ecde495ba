//! Watches start, are shared, move and stop, against an API server that answers what the test wants.

mod neighbours;

use std::time::Duration;

use operetta_core::{
    cache::{Change, Scope},
    port::ListOptions,
};
use serde_json::{Value, json};

use super::*;
use crate::{
    Cluster,
    access::LOOK_AGAIN_AFTER,
    answer::Purpose,
    identity::Impersonation,
    testing::{FakeApi, Sent, actor, caller, key, namespace, status, thing, things, until},
};

/// What a subscription was told so far: `+NAME VERSION`, `-NAME`, `~NAME VERSION`, `synced`; initial ones in parentheses.
fn told(subscription: &mut Subscription) -> Vec<String> {
    let mut told = Vec::new();
    while let Some(change) = subscription.changes.try_recv() {
        told.push(match change {
            Change::Synced => "synced".to_owned(),
            Change::Missed => "missed".to_owned(),
            Change::Object { key, old, new, initial } => {
                let text = match (&old, &new) {
                    (None, Some(new)) => format!("+{} {}", key.name, new.meta.resource_version),
                    (Some(_), Some(new)) => format!("~{} {}", key.name, new.meta.resource_version),
                    _ => format!("-{}", key.name),
                };
                if initial { format!("({text})") } else { text }
            }
        });
    }
    told
}

/// Waits until exactly this was told.
async fn expect(subscription: &mut Subscription, expected: &[&str]) {
    let mut all = Vec::new();
    for _ in 0..2_000 {
        all.extend(told(subscription));
        if all.len() >= expected.len() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(all, expected);
}

async fn subscribe(cluster: &Cluster, who: &str) -> Subscription {
    cluster.informers().subscribe(&actor(who), &things(), &Scope::All.extents()).await.unwrap()
}

/// As a request that this account makes names it.
fn user(who: &str) -> Option<String> {
    Some(actor(who)).map(|actor| actor.account.user())
}

#[tokio::test(start_paused = true)]
async fn all_that_exists_is_told_then_synced_then_what_changes() {
    let api = FakeApi::new(|_| None);
    api.set_things(vec![thing("a", 1), thing("b", 2)]);
    let cluster = api.cluster();
    let mut subscription = subscribe(&cluster, "p").await;
    expect(&mut subscription, &["(+a 1)", "(+b 2)", "synced"]).await;
    assert_eq!(subscription.kind.borrow().as_ref().unwrap().kind, "Thing");
    until("the watch is open", || api.open_watches().len() == 1).await;
    api.tell("ADDED", &thing("c", 3));
    api.tell("MODIFIED", &thing("a", 4));
    api.tell("DELETED", &thing("b", 5));
    expect(&mut subscription, &["+c 3", "~a 4", "-b"]).await;
    assert!(
        api.sent()
            .iter()
            .filter(|sent| sent.path.ends_with("/things"))
            .all(|sent| sent.purpose == Some(Purpose::Cache))
    );
    let of_rights = |sent: &Sent| sent.path.ends_with("/selfsubjectaccessreviews");
    assert!(api.sent().iter().any(of_rights));
    assert!(api.sent().iter().filter(|sent| of_rights(sent)).all(|sent| sent.purpose == Some(Purpose::Rights)));
    let options = ListOptions { live: true, ..ListOptions::default() };
    cluster.kubernetes(actor("p"), Scope::All).list(&caller("p"), &things(), &options).await.unwrap();
    let last = api.sent().pop().unwrap();
    assert!(last.path.ends_with("/things") && last.purpose.is_none(), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn subscribers_share_one_watch_that_ends_with_the_last() {
    let api = FakeApi::new(|_| None);
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let mut first = subscribe(&cluster, "p").await;
    expect(&mut first, &["(+a 1)", "synced"]).await;
    let mut second = subscribe(&cluster, "q").await;
    expect(&mut second, &["(+a 1)", "synced"]).await;
    until("the watch is open", || api.open_watches().len() == 1).await;
    assert_eq!((cluster.watches(), api.open_watches()[0].user.clone()), (1, user("p")));
    api.tell("MODIFIED", &thing("a", 2));
    expect(&mut first, &["~a 2"]).await;
    expect(&mut second, &["~a 2"]).await;

    // The sponsor leaves: the other carries on, without being told anything twice.
    drop(first);
    api.set_things(vec![thing("a", 2)]);
    until("the watch moves to the other", || api.open_watches().iter().map(|w| w.user.clone()).eq([user("q")])).await;
    api.tell("MODIFIED", &thing("a", 3));
    expect(&mut second, &["~a 3"]).await;
    drop(second);
    until("the watch ends", || api.open_watches().is_empty()).await;
    assert_eq!(cluster.watches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_list_after_a_lost_watch_tells_what_changed_meanwhile() {
    let api = FakeApi::new(|_| None);
    api.set_things(vec![thing("a", 1), thing("b", 2), thing("c", 3)]);
    let cluster = api.cluster();
    let mut subscription = subscribe(&cluster, "p").await;
    expect(&mut subscription, &["(+a 1)", "(+b 2)", "(+c 3)", "synced"]).await;
    until("the watch is open", || api.open_watches().len() == 1).await;
    api.set_things(vec![thing("a", 1), thing("b", 7), thing("d", 8)]);
    api.tell(
        "ERROR",
        &json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old", "status": "Failure"}),
    );
    expect(&mut subscription, &["(~b 7)", "(+d 8)", "(-c)"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_malformed_object_is_left_out_and_kills_nothing() {
    let api = FakeApi::new(|_| None);
    let odd = |metadata: Value| json!({"apiVersion": "x.example.com/v1", "kind": "Thing", "metadata": metadata, "spec": "not a map"});
    api.set_things(vec![
        odd(json!({"name": "a/b", "resourceVersion": "1"})),
        json!({}),
        odd(json!({"name": "b", "namespace": "n", "resourceVersion": "2"})),
    ]);
    let cluster = api.cluster();
    let mut subscription = subscribe(&cluster, "p").await;
    expect(&mut subscription, &["(+b 2)", "synced"]).await;
    until("the watch is open", || api.open_watches().len() == 1).await;
    api.tell("ADDED", &odd(json!({"name": "..", "resourceVersion": "3"})));
    api.tell(
        "ADDED",
        &odd(json!({"name": "c", "namespace": "n", "resourceVersion": "4", "labels": 5, "ownerReferences": "x"})),
    );
    expect(&mut subscription, &["+c 4"]).await;
    assert_eq!(api.open_watches().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn several_namespaces_are_one_subscription_that_syncs_once() {
    let api = FakeApi::new(|sent| {
        (sent.path.contains("/namespaces/m/things") && !sent.is_watch())
            .then(|| (200, json!({"metadata": {"resourceVersion": "1"}, "items": []})))
    });
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let scope = Scope::Namespaces([namespace("n"), namespace("m")].into());
    let mut subscription = cluster.informers().subscribe(&actor("p"), &things(), &scope.extents()).await.unwrap();
    expect(&mut subscription, &["(+a 1)", "synced"]).await;
    assert_eq!(cluster.watches(), 2);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(told(&mut subscription), [] as [&str; 0]);
    drop(subscription);
    assert_eq!(cluster.watches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_does_not_exist_is_synced_and_empty_until_it_appears() {
    let api = FakeApi::new(|_| None);
    api.set_kinds(&[]);
    let cluster = api.cluster();
    let mut subscription = subscribe(&cluster, "p").await;
    expect(&mut subscription, &["synced"]).await;
    assert!(subscription.kind.borrow().is_none());
    assert!(api.open_watches().is_empty());

    api.set_things(vec![thing("a", 1)]);
    api.set_kinds(&["things"]);
    expect(&mut subscription, &["(+a 1)"]).await;
    assert!(subscription.kind.borrow().is_some());
    until("the watch is open", || api.open_watches().len() == 1).await;

    // The CRD goes: its objects are told as deleted, and it may come back.
    api.set_kinds(&[]);
    cluster.discovery().doubt(&things());
    expect(&mut subscription, &["-a"]).await;
    until("the watch ends", || api.open_watches().is_empty()).await;
    api.set_kinds(&["things"]);
    expect(&mut subscription, &["(+a 1)"]).await;
}

fn refusing(who: &'static str, verb: &'static str) -> impl Fn(&crate::testing::Sent) -> Option<(u16, Value)> {
    move |sent| {
        let asked: Value = serde_json::from_str(&sent.body).unwrap_or_default();
        (sent.path.ends_with("selfsubjectaccessreviews")
            && sent.user == user(who)
            && asked["spec"]["resourceAttributes"]["verb"] == verb)
            .then(|| (201, json!({"status": {"allowed": false}})))
    }
}

#[tokio::test(start_paused = true)]
async fn an_account_without_the_right_is_refused_with_the_verb_that_is_missing() {
    let api = FakeApi::new(refusing("q", "watch"));
    let cluster = api.cluster();
    let _first = subscribe(&cluster, "p").await;
    let Err(ApiError::Forbidden(text)) =
        cluster.informers().subscribe(&actor("q"), &things(), &Scope::All.extents()).await
    else {
        panic!()
    };
    assert!(
        text.contains("operetta-plugins/q may not watch things of group x.example.com in all namespaces"),
        "{text}"
    );
    assert!(text.contains("operetta install"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn an_account_that_loses_the_right_is_told_nothing_more_and_the_watch_goes_on() {
    let lost = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let api = FakeApi::new({
        let (lost, refuse) = (Arc::clone(&lost), refusing("p", "list"));
        move |sent| if lost.load(Ordering::Relaxed) { refuse(sent) } else { None }
    });
    let cluster = api.cluster();
    let mut first = subscribe(&cluster, "p").await;
    let mut second = subscribe(&cluster, "q").await;
    expect(&mut first, &["synced"]).await;
    expect(&mut second, &["synced"]).await;
    lost.store(true, Ordering::Relaxed);
    let ended = async { while first.changes.recv().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(32), ended).await.expect("the stream ends within 30 s");
    until("the watch moves to the other", || api.open_watches().iter().map(|w| w.user.clone()).eq([user("q")])).await;
    api.tell("ADDED", &thing("a", 1));
    expect(&mut second, &["+a 1"]).await;
    // The cache does not answer the first any more either.
    assert!(cluster.informers.covering(&actor("p"), &things(), &Extent::default()).is_none());
    assert!(cluster.informers.covering(&actor("q"), &things(), &Extent::default()).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_sponsor_that_is_refused_is_replaced() {
    let api = FakeApi::new(|sent| {
        (sent.path.ends_with("/things") && sent.user == user("p")).then(|| status(403, "Forbidden", "no", &json!({})))
    });
    let cluster = api.cluster();
    let mut first = subscribe(&cluster, "p").await;
    let mut second = subscribe(&cluster, "q").await;
    expect(&mut second, &["synced"]).await;
    expect(&mut first, &["synced"]).await;
    until("the other's watch is open", || api.open_watches().iter().map(|w| w.user.clone()).eq([user("q")])).await;
}

#[tokio::test(start_paused = true)]
async fn secrets_are_never_shared() {
    let api = FakeApi::new(|_| None);
    let cluster = api.cluster();
    let secrets = Resource::parse("", "v1", "secrets").unwrap();
    let _p = cluster.informers().subscribe(&actor("p"), &secrets, &Scope::All.extents()).await.unwrap();
    let _q = cluster.informers().subscribe(&actor("q"), &secrets, &Scope::All.extents()).await.unwrap();
    assert_eq!(cluster.watches(), 2);
    // What else is in the core group is.
    let nodes = Resource::parse("", "v1", "nodes").unwrap();
    let _nodes = cluster.informers().subscribe(&actor("p"), &nodes, &Scope::All.extents()).await.unwrap();
    let _same = cluster.informers().subscribe(&actor("q"), &nodes, &Scope::All.extents()).await.unwrap();
    assert_eq!(cluster.watches(), 3);
}

#[tokio::test(start_paused = true)]
async fn one_object_is_watched_alone_and_the_cache_answers_for_nothing_else() {
    let api = FakeApi::new(|_| None);
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let of = |name| Extent::from(&key(name));
    let subscribe = async |who, name| cluster.informers().subscribe(&actor(who), &things(), &[of(name)]).await.unwrap();
    let mut first = subscribe("p", "a").await;
    let (_same, _other) = (subscribe("q", "a").await, subscribe("q", "b").await);
    expect(&mut first, &["(+a 1)", "synced"]).await;
    until("the watches are open", || api.open_watches().len() == 2).await;
    assert_eq!(cluster.watches(), 2);
    let queries: Vec<_> = api.sent().into_iter().filter(|s| s.path.ends_with("/namespaces/n/things")).collect();
    assert!(
        queries.len() > 3 && queries.iter().all(|s| s.query.contains("fieldSelector=metadata.name%3D")),
        "{queries:?}"
    );
    let covered = |who, extent: &Extent| cluster.informers.covering(&actor(who), &things(), extent).is_some();
    until("it answers", || covered("p", &of("a")) && covered("q", &of("a"))).await;
    let all = Extent { name: None, ..of("a") };
    assert!(
        !covered("p", &of("b")) && !covered("p", &all) && !covered("p", &Extent::default()) && !covered("r", &of("a"))
    );
    let seeing = |name| cluster.informers.seeing(&actor("p"), &things(), &key(name)).len();
    assert_eq!((seeing("a"), seeing("c")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_cluster_scoped_kind_cannot_be_watched_in_a_namespace() {
    let api = FakeApi::new(|_| None);
    let cluster = api.cluster();
    let nodes = Resource::parse("", "v1", "nodes").unwrap();
    let scope = Scope::Namespaces([namespace("n")].into());
    assert!(matches!(
        cluster.informers().subscribe(&actor("p"), &nodes, &scope.extents()).await,
        Err(ApiError::Invalid(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn a_kind_of_which_the_api_server_offers_no_watch_is_refused() {
    let kind = |verbs: Value| json!({"name": "things", "kind": "Thing", "namespaced": true, "singularName": "", "verbs": verbs});
    for (verbs, offered) in [(json!(["get", "list"]), false), (json!(["watch"]), true)] {
        let found = json!({"groupVersion": "x.example.com/v1", "resources": [kind(verbs)]});
        let api = FakeApi::new(move |sent| (sent.path == "/apis/x.example.com/v1").then(|| (200, found.clone())));
        let subscribed = api.cluster().informers().subscribe(&actor("p"), &things(), &Scope::All.extents()).await;
        let refused = subscribed.err().map(|error| error.to_string());
        assert_eq!(refused.is_none(), offered);
        assert!(refused.is_none_or(|why| why.contains("offers no watch of this kind")));
    }
}

/// What is asked in five minutes of some trouble with the API server, after which the watch is open again.
async fn asked_in_trouble(
    trouble: impl Fn(&crate::testing::Sent) -> Option<(u16, Value)> + Send + Sync + 'static,
) -> Vec<String> {
    let on = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let api = FakeApi::new({
        let on = Arc::clone(&on);
        move |sent| on.load(Ordering::Relaxed).then(|| trouble(sent)).flatten()
    });
    let cluster = api.cluster();
    let mut subscription = subscribe(&cluster, "p").await;
    expect(&mut subscription, &["synced"]).await;
    until("the watch is open", || api.open_watches().len() == 1).await;
    // Longer than what was said of the account is believed.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let before = api.sent().len();
    on.store(true, Ordering::Relaxed);
    api.end_watches();
    tokio::time::sleep(Duration::from_mins(5)).await;
    on.store(false, Ordering::Relaxed);
    let asked = api.sent().into_iter().skip(before);
    let counts = |path: &String| path.starts_with("/apis/x.example.com") || path.contains("/serviceaccounts/");
    let asked = asked.map(|sent| sent.path).filter(counts).collect();
    tokio::time::sleep(Duration::from_secs(30)).await;
    until("the watch is open again", || api.open_watches().len() == 1).await;
    asked
}

#[tokio::test(start_paused = true)]
async fn who_gets_no_answer_asks_again_ever_more_rarely() {
    let on_things = |sent: &crate::testing::Sent| sent.path.ends_with("/things");
    let refused =
        asked_in_trouble(move |sent| on_things(sent).then(|| status(403, "Forbidden", "no", &json!({})))).await;
    let lost = asked_in_trouble(move |sent| on_things(sent).then(|| (0, json!("connection reset")))).await;
    let absent = asked_in_trouble(move |sent| on_things(sent).then(|| status(404, "NotFound", "no", &json!({})))).await;
    let unasked = asked_in_trouble(move |sent| {
        // Whether the account is still the plugin's cannot be asked either.
        let account = sent.path.contains("/serviceaccounts/").then(|| status(500, "InternalError", "no", &json!({})));
        account.or_else(|| on_things(sent).then(|| status(403, "Forbidden", "no", &json!({}))))
    })
    .await;
    for asked in [&refused, &lost, &absent, &unasked] {
        let things = asked.iter().filter(|path| path.ends_with("/things")).count();
        assert!(things < 40 && asked.len() < 100, "{} times in five minutes", asked.len());
    }
    // Only where the kind seems to be gone it is looked up again.
    let looked_up = |asked: &[String]| asked.iter().filter(|path| path.ends_with("/v1")).count();
    assert!(looked_up(&absent) > 5 && looked_up(&refused) == 0 && looked_up(&lost) == 0, "{absent:?}");
}

#[tokio::test(start_paused = true)]
async fn where_a_watch_is_too_old_to_go_on_another_list_is_made() {
    let lists = Arc::new(AtomicU64::new(0));
    let api = FakeApi::new({
        let lists = Arc::clone(&lists);
        move |sent| {
            let things = sent.path.ends_with("/things");
            if things && !sent.is_watch() {
                lists.fetch_add(1, Ordering::Relaxed);
            }
            // The version of the first list is not kept any more.
            (things && sent.is_watch() && lists.load(Ordering::Relaxed) < 2)
                .then(|| status(410, "Expired", "too old resource version", &json!({})))
        }
    });
    let cluster = api.cluster();
    let _subscription = subscribe(&cluster, "p").await;
    until("the watch is open", || api.open_watches().len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_the_host_itself_may_not_make_for_an_account_ends_for_it() {
    let on = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let api = FakeApi::new({
        let on = Arc::clone(&on);
        move |sent| {
            if !on.load(Ordering::Relaxed) {
                return None;
            }
            let hosts_own = sent.path.ends_with("selfsubjectaccessreviews") && sent.user.is_none();
            let answer = || status(403, "Forbidden", "no", &json!({}));
            hosts_own
                .then(|| (201, json!({"status": {"allowed": false}})))
                .or_else(|| sent.path.ends_with("/things").then(answer))
        }
    });
    let cluster = api.cluster();
    let mut subscription = subscribe(&cluster, "p").await;
    expect(&mut subscription, &["synced"]).await;
    until("the watch is open", || api.open_watches().len() == 1).await;
    on.store(true, Ordering::Relaxed);
    api.end_watches();
    let ended = async { while subscription.changes.recv().await.is_some() {} };
    tokio::time::timeout(Duration::from_mins(2), ended).await.expect("the stream ends");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_goes_away_for_a_while_loses_nothing() {
    let down = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let api = FakeApi::new({
        let down = Arc::clone(&down);
        move |_| down.load(Ordering::Relaxed).then(|| (0, json!("connection refused")))
    });
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let mut subscription = subscribe(&cluster, "p").await;
    expect(&mut subscription, &["(+a 1)", "synced"]).await;
    until("the watch is open", || api.open_watches().len() == 1).await;
    down.store(true, Ordering::Relaxed);
    api.end_watches();
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(told(&mut subscription), [] as [&str; 0]);
    down.store(false, Ordering::Relaxed);
    let mut opened = 0;
    for _ in 0..6_000 {
        opened = api.open_watches().len();
        if opened == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(opened, 1);
    api.tell("MODIFIED", &thing("a", 2));
    expect(&mut subscription, &["~a 2"]).await;
}

/// A thing with so many bytes in its spec.
fn large(name: &str, version: u32, bytes: usize) -> Value {
    let mut thing = thing(name, version);
    thing["spec"] = json!({"text": "x".repeat(bytes)});
    thing["metadata"]["labels"] = json!({"of": "thor"});
    thing
}

/// A cluster whose caches hold so many bytes.
fn with_room(api: &Arc<FakeApi>, bytes: usize) -> (Cluster, Arc<CacheBudget>) {
    let (client, budget) = (api.client(), Arc::new(CacheBudget::new(bytes)));
    (Cluster::new(client.clone(), Arc::new(Impersonation::new(client)), Arc::clone(&budget)), budget)
}

fn cached<'a>(cluster: &Cluster, who: &'a Actor) -> View<'a> {
    cluster.informers.covering(who, &things(), &Extent::default()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_has_no_room_is_told_all_the_same_and_read_from_the_api_server() {
    let api = FakeApi::new(|_| None);
    api.set_things(vec![large("a", 1, 10_000), large("b", 2, 10_000), large("c", 3, 10_000)]);
    // Half of it is one plugin's.
    let (cluster, budget) = with_room(&api, 50_000);
    let mut subscription = subscribe(&cluster, "p").await;
    let mut whole = Vec::new();
    let mut told = 0;
    until("all is told", || {
        while let Some(change) = subscription.changes.try_recv() {
            if let Change::Object { new: Some(new), .. } = change {
                whole.push(new.json.len() > 10_000);
            }
            told += 1;
        }
        told == 4
    })
    .await;
    assert_eq!(whole, [true; 3], "whoever is told sees the whole object");
    let p = actor("p");
    let informer = cached(&cluster, &p);
    assert!(
        matches!(informer.get(&key("a")), Reading::Known(_)) && matches!(informer.get(&key("b")), Reading::Known(_))
    );
    assert!(matches!(informer.get(&key("c")), Reading::Live) && matches!(informer.get(&key("d")), Reading::Absent));
    assert!(informer.list(None, None).is_none(), "a list has to be whole");
    assert!(informer.list(Some(&namespace("other")), None).is_some());
    assert_eq!((budget.outlines(), budget.held().len()), (1, 1));
    assert!(!informer.has_room_again());

    // What changes is compared with its metadata as before, and it is whole once there is room.
    until("the watch is open", || api.open_watches().len() == 1).await;
    api.tell("DELETED", &large("a", 4, 10_000));
    let Some(Change::Object { new: None, .. }) = subscription.changes.recv().await else { panic!() };
    assert!(informer.has_room_again());
    api.tell("MODIFIED", &large("c", 5, 10_000));
    let Some(Change::Object { old: Some(old), .. }) = subscription.changes.recv().await else { panic!() };
    assert!(old.json.contains(r#""labels":{"of":"thor"}"#) && !old.json.contains("spec"), "{}", old.json);
    assert!(matches!(informer.get(&key("c")), Reading::Known(_)));
    assert_eq!(budget.outlines(), 0);
    drop((subscription, informer));
    until("all is given back", || budget.held().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn who_comes_when_the_caches_are_full_is_told_whole_objects_by_another_list() {
    let api = FakeApi::new(|_| None);
    api.set_things(vec![large("a", 1, 10_000), large("b", 2, 10_000)]);
    let (cluster, budget) = with_room(&api, 36_000);
    let mut first = subscribe(&cluster, "p").await;
    expect(&mut first, &["(+a 1)", "(+b 2)", "synced"]).await;
    assert_eq!(budget.outlines(), 1);
    let mut second = subscribe(&cluster, "q").await;
    let mut all = Vec::new();
    until("the second is told", || {
        while let Some(change) = second.changes.try_recv() {
            match change {
                Change::Object { key, new, .. } => all.push((key.name.to_string(), new.unwrap().json.len() > 10_000)),
                Change::Synced => all.push(("synced".to_owned(), true)),
                Change::Missed => panic!("it is not far behind"),
            }
        }
        all.len() == 3
    })
    .await;
    assert_eq!(all, [("a", true), ("b", true), ("synced", true)].map(|(name, whole)| (name.to_owned(), whole)));
    assert!(told(&mut first).is_empty(), "for the first nothing is new");
    assert_eq!(budget.outlines(), 0, "the second has room of its own");
}

#[tokio::test(start_paused = true)]
async fn what_is_free_again_is_used_again() {
    let api = FakeApi::new(|sent| {
        // Two namespaces, and so two caches.
        let name = if sent.path.contains("namespaces/one/things") { "a" } else { "b" };
        let list = |items: Value| {
            (
                200,
                json!({"kind": "ThingList", "apiVersion": "x.example.com/v1", "metadata": {"resourceVersion": "9"}, "items": items}),
            )
        };
        (sent.path.ends_with("/things") && !sent.is_watch()).then(|| list(json!([large(name, 1, 10_000)])))
    });
    let (cluster, budget) = with_room(&api, 30_000);
    let of = async |who: &str, place: &str| {
        let extent = Extent { namespace: Some(namespace(place)), name: None };
        cluster.informers().subscribe(&actor(who), &things(), &[extent]).await.unwrap()
    };
    let (mut one, mut two) = (of("p", "one").await, of("p", "two").await);
    expect(&mut one, &["(+a 1)", "synced"]).await;
    expect(&mut two, &["(+b 1)", "synced"]).await;
    assert_eq!(budget.outlines(), 1);
    drop(one);
    tokio::time::sleep(LOOK_AGAIN_AFTER).await;
    until("it is whole", || budget.outlines() == 0 && budget.held().len() == 1).await;
    assert!(told(&mut two).is_empty(), "and nothing new is told");
}

#[tokio::test(start_paused = true)]
async fn objects_that_are_too_large_for_a_page_are_listed_in_smaller_ones() {
    let api = FakeApi::new(|sent| {
        let page = sent.query.split('&').find_map(|pair| pair.strip_prefix("limit="))?.parse::<u32>().unwrap();
        (sent.path.ends_with("/things") && page > 10).then_some((2, Value::Null))
    });
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let mut subscription = subscribe(&cluster, "p").await;
    expect(&mut subscription, &["(+a 1)", "synced"]).await;
    let pages: Vec<_> = api
        .sent()
        .iter()
        .filter(|sent| sent.path.ends_with("/things") && !sent.is_watch())
        .map(|sent| sent.query.clone())
        .collect();
    assert!(pages.len() == 3 && pages[2].contains("limit=7"), "{pages:?}");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_is_there_all_the_same() {
    let deep = |version: u32| {
        let mut deep = thing("deep", version);
        deep["spec"] = (0..200).fold(json!(1), |inner, _| json!([inner]));
        deep
    };
    let api = FakeApi::new(|_| None);
    api.set_things(vec![thing("a", 1), deep(2)]);
    let (cluster, budget) = with_room(&api, 1 << 20);
    let mut subscription = subscribe(&cluster, "p").await;
    expect(&mut subscription, &["(+a 1)", "(+deep 2)", "synced"]).await;
    let p = actor("p");
    let informer = cached(&cluster, &p);
    assert!(
        matches!(informer.get(&key("a")), Reading::Known(_)) && matches!(informer.get(&key("deep")), Reading::Live)
    );
    assert!(!informer.has_room_again(), "no room would make it readable");
    until("the watch is open", || api.open_watches().len() == 1).await;
    api.tell("MODIFIED", &{
        let mut a = deep(3);
        a["metadata"]["name"] = json!("a");
        a
    });
    expect(&mut subscription, &["~a 3"]).await;
    assert!(matches!(informer.get(&key("a")), Reading::Live), "what is known of it is not what it is");
    api.tell("DELETED", &deep(4));
    expect(&mut subscription, &["-deep"]).await;
    assert!(matches!(informer.get(&key("deep")), Reading::Absent));
    assert_eq!(budget.outlines(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_list_under_way_ends_before_another_begins_however_often_somebody_asks() {
    let api = FakeApi::new(|_| None);
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let mut subscription = subscribe(&cluster, "p").await;
    expect(&mut subscription, &["(+a 1)", "synced"]).await;
    let p = actor("p");
    let informer = cached(&cluster, &p);
    let lists = || api.sent().iter().filter(|sent| sent.path.ends_with("/things") && !sent.is_watch()).count();
    let before = lists();
    for _ in 0..100 {
        informer.relist.notify_one();
        tokio::task::yield_now().await;
    }
    until("it listed again", || lists() > before && api.open_watches().len() == 1).await;
    assert!(lists() <= before + 3, "{}", lists() - before);
    assert!(told(&mut subscription).is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_leaves_pays_no_more() {
    let api = FakeApi::new(|_| None);
    // More than are charged anew at once.
    api.set_things((0..600).map(|number| thing(&format!("a{number}"), 1)).collect());
    let (cluster, budget) = with_room(&api, 10 << 20);
    let (mut first, mut all) = (subscribe(&cluster, "p").await, 0);
    until("all is told", || {
        all += told(&mut first).len();
        all == 601
    })
    .await;
    let mut second = subscribe(&cluster, "q").await;
    until("all is told again", || {
        all += told(&mut second).len();
        all == 2 * 601
    })
    .await;
    let payers = || budget.held().into_keys().map(|plugin| plugin.to_string()).collect::<Vec<_>>();
    assert_eq!(payers(), ["p"]);
    drop(first);
    assert_eq!(payers(), ["q"]);
    assert_eq!(budget.outlines(), 0);
}

#[tokio::test(start_paused = true)]
async fn where_each_watch_fails_at_once_lists_come_ever_more_rarely() {
    // At its beginning.
    let asked = asked_in_trouble(|sent| {
        (sent.path.ends_with("/things") && sent.is_watch())
            .then(|| status(410, "Expired", "too old resource version", &json!({})))
    })
    .await;
    let things = asked.iter().filter(|path| path.ends_with("/things")).count();
    assert!((10..60).contains(&things), "{things} times in five minutes");

    // Soon after it.
    let api = FakeApi::new(|_| None);
    let cluster = api.cluster();
    let mut subscription = subscribe(&cluster, "p").await;
    expect(&mut subscription, &["synced"]).await;
    let expired =
        json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old", "status": "Failure"});
    let lists = || api.sent().iter().filter(|sent| sent.path.ends_with("/things") && !sent.is_watch()).count();
    for _ in 0..300 {
        api.tell("ERROR", &expired);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!((5..30).contains(&lists()), "{} lists in five minutes", lists());

    // One that lived for a while, or told something, is followed by another soon.
    tokio::time::sleep(Duration::from_mins(1)).await;
    let before = lists();
    api.tell("ERROR", &expired);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(lists(), before + 1);
    for version in 1..10 {
        until("the watch is open", || api.open_watches().len() == 1).await;
        api.tell("ADDED", &thing("a", version));
        api.tell("ERROR", &expired);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(lists(), before + 10);
}
