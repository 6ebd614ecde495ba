//! Kinds come, go and come back.

use super::*;
use crate::testing::{FakeApi, things};

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
