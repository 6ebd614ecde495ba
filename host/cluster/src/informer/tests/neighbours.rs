//! Plugins that share a cache: what one writes and how long it works is not the others' affair.

use operetta_core::cache::Cached;

use super::*;
use crate::{object::Entry, overlay::MOST};

fn entry(object: Value) -> Entry {
    Entry::of(object, "x.example.com/v1", "Thing").unwrap().1
}

/// The version that a cache knows, or why not.
fn version(cache: &View<'_>, name: &str) -> String {
    match cache.get(&key(name)) {
        Reading::Known(entry) => entry.cached.meta.resource_version.clone(),
        Reading::Absent => "absent".to_owned(),
        Reading::Live => "live".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn writes_in_doubt_take_the_cache_from_who_wrote_and_from_nobody_else() {
    let api = FakeApi::new(|_| None);
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let (mut first, mut second) = (subscribe(&cluster, "p").await, subscribe(&cluster, "q").await);
    expect(&mut first, &["(+a 1)", "synced"]).await;
    expect(&mut second, &["(+a 1)", "synced"]).await;
    until("the watch is open", || api.open_watches().len() == 1).await;
    let (p, q) = (actor("p"), actor("q"));
    let (own, neighbours) = (cached(&cluster, &p), cached(&cluster, &q));
    let lists = || api.sent().iter().filter(|sent| sent.path.ends_with("/things") && !sent.is_watch()).count();
    let before = lists();

    let lose = |object: &ObjectKey| {
        own.write_begins(object);
        own.write_ends(object, true);
    };
    lose(&key("a"));
    assert_eq!((version(&own, "a"), version(&neighbours, "a")), ("live".to_owned(), "1".to_owned()));
    assert!(own.list(None, None).is_none() && neighbours.list(None, None).is_some());
    for number in 0..=MOST {
        lose(&key(&format!("ghost-{number}")));
    }
    assert_eq!((version(&own, "b"), version(&neighbours, "b")), ("live".to_owned(), "absent".to_owned()));
    assert!(own.list(None, None).is_none() && neighbours.list(None, None).is_some());
    assert!(matches!(neighbours.settled(&key("a")), Reading::Known(_)));

    // A list settles it, and not one after the other.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(lists(), before);
    tokio::time::sleep(LOOK_AGAIN_AFTER).await;
    until("all is known", || version(&own, "a") == "1").await;
    assert_eq!((lists(), version(&own, "b")), (before + 1, "absent".to_owned()));
    assert!(told(&mut first).is_empty() && told(&mut second).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_a_plugin_wrote_lies_over_its_own_lists() {
    let elsewhere = |place: &str| {
        let mut thing = thing("z", 1);
        thing["metadata"]["namespace"] = json!(place);
        thing
    };
    let api = FakeApi::new(|_| None);
    api.set_things(vec![thing("!~", 1), thing("b", 2), thing("d", 3), elsewhere("m"), elsewhere("o")]);
    let cluster = api.cluster();
    let (_first, mut second) = (subscribe(&cluster, "p").await, subscribe(&cluster, "q").await);
    let mut all = 0;
    until("all is told", || {
        all += told(&mut second).len();
        all == 6
    })
    .await;
    let (p, q) = (actor("p"), actor("q"));
    let (own, neighbours) = (cached(&cluster, &p), cached(&cluster, &q));
    let listed = |cache: &View<'_>, place: Option<&str>, most| {
        let (objects, _) = cache.list(place.map(namespace).as_ref(), most)?;
        let name = |object: &Arc<Cached>| object.value()["metadata"]["name"].as_str().unwrap().to_owned();
        Some(objects.iter().map(name).collect::<Vec<_>>().join(" "))
    };
    let is = |names: &str| Some(names.to_owned());
    assert_eq!(listed(&own, Some("n"), None), is("!~ b d"));
    assert_eq!((listed(&own, Some("o"), None), listed(&own, Some("p"), None)), (is("z"), is("")));
    assert_eq!(listed(&own, None, None), is("z !~ b d z"));
    assert_eq!((listed(&own, Some("n"), Some(3)), listed(&own, Some("n"), Some(2))), (is("!~ b d"), None));
    assert_eq!((listed(&own, None, Some(5)), listed(&own, None, Some(4))), (is("z !~ b d z"), None));

    for (name, version) in [("a", 4), ("c", 5), ("d", 6), ("e", 7)] {
        own.write_begins(&key(name));
        own.write_answered(&key(name), entry(thing(name, version)));
    }
    own.write_begins(&key("b"));
    own.write_removed(&key("b"), "uid-b".to_owned());
    assert_eq!(listed(&own, Some("n"), None), is("!~ a c d e"));
    assert_eq!(listed(&own, None, None), is("z !~ a c d e z"));
    assert_eq!((listed(&own, Some("n"), Some(5)), listed(&own, Some("n"), Some(4))), (is("!~ a c d e"), None));
    assert_eq!((version(&own, "d"), version(&own, "b")), ("6".to_owned(), "absent".to_owned()));
    assert_eq!(listed(&neighbours, Some("n"), None), is("!~ b d"), "whom nothing of it was promised to");
}

#[tokio::test(start_paused = true)]
async fn who_is_told_nothing_has_no_whole_object_lie_over_the_cache_of_another() {
    let api = FakeApi::new(|_| None);
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let mut theirs = subscribe(&cluster, "q").await;
    expect(&mut theirs, &["(+a 1)", "synced"]).await;
    until("the watch is open", || api.open_watches().len() == 1).await;
    let p = actor("p");
    let view = cluster.informers.seeing(&p, &things(), &key("a")).pop().unwrap();
    view.write_begins(&key("a"));
    view.write_answered(&key("a"), entry(thing("a", 5)));
    assert_eq!(version(&view, "a"), "live");
    view.read_live(&key("a"), Some(entry(thing("a", 5))));
    assert_eq!(version(&view, "a"), "live");
    // Once it comes, a list says how things stand, and from then on it reads its own writes.
    api.set_things(vec![thing("a", 5)]);
    let _own = subscribe(&cluster, "p").await;
    until("a list settles it", || version(&view, "a") == "5").await;
    view.write_begins(&key("a"));
    view.write_answered(&key("a"), entry(thing("a", 6)));
    assert_eq!(version(&view, "a"), "6");
}

#[tokio::test(start_paused = true)]
async fn who_works_long_with_one_cache_keeps_nobody_from_the_others() {
    let api = FakeApi::new(|_| None);
    let cluster = api.cluster();
    let mut subscription = subscribe(&cluster, "p").await;
    expect(&mut subscription, &["synced"]).await;
    let p = actor("p");
    let informer = cached(&cluster, &p);
    let occupied = informer.occupy();
    let (tell, hear) = std::sync::mpsc::channel();
    let answered = std::thread::scope(|scope| {
        let (informers, began) = (&cluster.informers, tell.clone());
        scope.spawn(move || {
            let _ = began.send(());
            informers.covering(&actor("p"), &things(), &Extent::default()).is_some()
        });
        hear.recv().unwrap();
        scope.spawn(move || {
            // Again and again, since the other one has just begun to wait.
            for _ in 0..1_000 {
                informers.running();
                std::thread::yield_now();
            }
            let _ = tell.send(());
        });
        let answered = hear.recv_timeout(Duration::from_secs(10));
        drop(occupied);
        answered
    });
    assert!(answered.is_ok(), "all informers wait for one");
}
