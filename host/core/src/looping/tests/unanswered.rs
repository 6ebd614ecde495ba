//! Writes that nobody has an answer of: their events are the plugin's own, and no other is.

use super::*;

fn thing(name: &str) -> ObjectKey {
    ObjectKey::parse(Some("n"), name).unwrap()
}

/// A controller that writes one object in each reconcile and never learns what became of it; answers what is found after a hundred and twenty of them. An event comes before each that
/// `before` says, and after it so many as `after` says.
async fn drops(name: Option<&str>, events: u32, before: bool, after: usize) -> Vec<Loop> {
    let mut story = Story::new();
    let named = thing(name.unwrap_or("x-7f2c9"));
    let mut versions = 0;
    let mut hears = |story: &Story| {
        versions += 1;
        let now = object("u", versions, &json!({}));
        let what = Happened { resource: &resource("things"), key: &named, was: None, now: Some(&now.meta) };
        story.guard.heard(&story.key, &what, true);
    };
    for _ in 0..120 {
        if before {
            hears(&story);
        }
        let errand = story.guard.begin(&story.key);
        let name = name.map(|_| &named.name);
        tokio::time::advance(SECOND / 100).await;
        errand.unanswered(&resource("things"), named.namespace.as_ref(), name, Instant::now(), events);
        let step = Step { resource: resource("things"), key: named.clone(), deed: Deed::Unanswered };
        tokio::time::advance(SECOND / 100).await;
        for _ in 0..after {
            hears(&story);
        }
        story.found.extend(story.guard.ended(&story.key, &[step]).found);
    }
    story.found
}

#[tokio::test(start_paused = true)]
async fn who_drops_what_it_writes_wakes_itself_all_the_same() {
    for (name, events) in [(Some("x"), 1), (None, 1), (Some("x"), 2)] {
        let found = drops(name, events, false, events as usize).await;
        let said: Vec<_> = found.iter().map(|found| found.what.as_str()).collect();
        assert_eq!(
            said,
            ["objects of things.v1.x.example.com in namespace n are written again and again"],
            "{name:?} {events}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_does_to_the_object_stays_theirs() {
    // What came before the write was sent.
    assert_eq!(drops(Some("x"), 1, true, 1).await, []);
    // One event more than the write may have brought.
    assert_eq!(drops(Some("x"), 1, false, 2).await, []);
    assert_eq!(drops(None, 1, false, 2).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_write_without_an_answer_is_waited_for_a_minute_and_for_so_many_objects() {
    let story = Story::new();
    let (errand, things) = (story.guard.begin(&story.key), resource("things"));
    let loses = |name: &str| {
        let key = thing(name);
        errand.unanswered(&things, key.namespace.as_ref(), Some(&key.name), Instant::now(), 1);
    };
    let is_own = |resource: &Resource, name: &str, version: u64| {
        let now = object(name, version, &json!({}));
        let what = Happened { resource, key: &thing(name), was: None, now: Some(&now.meta) };
        story.guard.chain.feeds(&what.wake(false), errand.by())
    };
    loses("a");
    assert!(!is_own(&things, "b", 1) && !is_own(&resource("others"), "a", 1));
    // In another version of the API it is the same object.
    assert!(is_own(&Resource::parse("x.example.com", "v2", "things").unwrap(), "a", 1));
    // Whoever asks again is told the same, and of the next one it is not.
    assert!(is_own(&things, "a", 1) && !is_own(&things, "a", 2));
    loses("a");
    tokio::time::advance(WINDOW).await;
    assert!(!is_own(&things, "a", 3));
    for number in 0..=MOST_DEEDS {
        loses(&format!("n{number}"));
    }
    assert_eq!(story.guard.chain.len().2, MOST_DEEDS);
    assert!(is_own(&things, "n0", 1) && !is_own(&things, &format!("n{MOST_DEEDS}"), 1));
    tokio::time::advance(WINDOW).await;
    // Whose time is over goes when there is no room.
    loses("fills");
    assert_eq!(story.guard.chain.len().2, MOST_DEEDS);
    loses("after");
    assert_eq!(story.guard.chain.len().2, 2);
}
