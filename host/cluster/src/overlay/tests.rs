//! Own writes, read back whatever the watch has seen so far.

use serde_json::json;

use super::*;

fn key() -> ObjectKey {
    ObjectKey::parse(Some("n"), "x").unwrap()
}

fn entry(uid: &str, version: &str) -> Entry {
    let object = json!({"metadata": {"name": "x", "namespace": "n", "uid": uid, "resourceVersion": version}});
    Entry::of(object, "v1", "X").unwrap().1
}

/// `there VERSION`, `gone UID`, `uncertain`, or empty where the cache is right.
fn state(overlay: &Overlay) -> String {
    match overlay.get(&key()) {
        Some(Written::There(entry)) => format!("there {}", entry.cached.meta.resource_version),
        Some(Written::Gone { uid }) => format!("gone {uid}"),
        Some(Written::Uncertain) => "uncertain".to_owned(),
        None => String::new(),
    }
}

fn written(version: &str, known: Option<&Entry>, comparable: bool) -> Overlay {
    let mut overlay = Overlay::default();
    overlay.begin(&key());
    overlay.answered(&key(), entry("u", version), known, comparable);
    overlay
}

#[test]
fn a_write_is_read_back_until_the_informer_has_it_or_a_newer_one() {
    let mut overlay = written("10", Some(&entry("u", "9")), true);
    assert_eq!(state(&overlay), "there 10");
    overlay.saw(&key(), &entry("u", "9"), true);
    assert_eq!(state(&overlay), "there 10");
    overlay.saw(&key(), &entry("u", "11"), true);
    assert_eq!(state(&overlay), "");
}

#[test]
fn versions_are_numbers_and_not_texts() {
    let mut overlay = written("100", Some(&entry("u", "99")), true);
    assert_eq!(state(&overlay), "there 100");
    overlay.saw(&key(), &entry("u", "99"), true);
    assert_eq!(state(&overlay), "there 100");
}

#[test]
fn on_an_older_server_only_the_very_version_ends_the_wait() {
    let mut overlay = written("10", Some(&entry("u", "9")), false);
    overlay.saw(&key(), &entry("u", "11"), false);
    assert_eq!(state(&overlay), "there 10");
    overlay.saw(&key(), &entry("u", "10"), false);
    assert_eq!(state(&overlay), "");
}

#[test]
fn an_event_that_overtakes_the_answer_is_remembered() {
    let mut overlay = Overlay::default();
    overlay.begin(&key());
    overlay.saw(&key(), &entry("u", "10"), false);
    overlay.saw(&key(), &entry("u", "12"), false);
    overlay.answered(&key(), entry("u", "10"), Some(&entry("u", "12")), false);
    assert_eq!(state(&overlay), "");

    overlay.begin(&key());
    overlay.saw_end(&key(), &entry("u", "13"));
    overlay.gone(&key(), "u".to_owned(), None);
    assert_eq!(state(&overlay), "");
}

#[test]
fn a_cache_that_is_ahead_of_the_answer_stays_ahead() {
    assert_eq!(state(&written("10", Some(&entry("u", "12")), true)), "");
    assert_eq!(state(&written("10", Some(&entry("u", "10")), false)), "");
}

#[test]
fn a_lost_answer_makes_the_object_uncertain_until_it_is_read_live() {
    let mut overlay = Overlay::default();
    overlay.begin(&key());
    overlay.end(&key(), true);
    assert_eq!(state(&overlay), "uncertain");
    overlay.saw(&key(), &entry("u", "11"), true);
    assert_eq!(state(&overlay), "uncertain");
    overlay.settled(&key(), Some(entry("u", "12")), Some(&entry("u", "11")), true);
    assert_eq!(state(&overlay), "there 12");
    overlay.saw(&key(), &entry("u", "12"), true);
    assert_eq!(state(&overlay), "");
}

#[test]
fn a_live_read_that_finds_nothing_hides_what_the_cache_still_holds() {
    let mut overlay = Overlay::default();
    overlay.end(&key(), true);
    overlay.settled(&key(), None, Some(&entry("u", "9")), true);
    assert_eq!(state(&overlay), "gone u");
}

#[test]
fn a_live_read_during_a_write_settles_nothing() {
    let mut overlay = Overlay::default();
    overlay.end(&key(), true);
    overlay.begin(&key());
    overlay.settled(&key(), Some(entry("u", "9")), None, true);
    assert_eq!(state(&overlay), "uncertain");
}

#[test]
fn a_refused_write_leaves_nothing() {
    let mut overlay = Overlay::default();
    overlay.begin(&key());
    assert!(overlay.is_under_way(&key()));
    overlay.end(&key(), false);
    assert!(!overlay.is_under_way(&key()));
    assert_eq!(state(&overlay), "");
}

#[test]
fn a_deletion_hides_one_incarnation_only() {
    let mut overlay = Overlay::default();
    overlay.begin(&key());
    overlay.gone(&key(), "u".to_owned(), Some(&entry("u", "9")));
    assert_eq!(state(&overlay), "gone u");
    overlay.saw(&key(), &entry("u", "10"), true);
    assert_eq!(state(&overlay), "gone u");
    overlay.saw(&key(), &entry("v", "11"), true);
    assert_eq!(state(&overlay), "");

    overlay.gone(&key(), "w".to_owned(), Some(&entry("v", "11")));
    assert_eq!(state(&overlay), "uncertain");
}

#[test]
fn the_end_of_an_object_ends_what_was_written_to_it_but_not_to_its_successor() {
    let mut overlay = written("10", Some(&entry("u", "9")), false);
    overlay.saw_end(&key(), &entry("older", "8"));
    assert_eq!(state(&overlay), "there 10");
    overlay.saw_end(&key(), &entry("u", "12"));
    assert_eq!(state(&overlay), "");
}

#[test]
fn a_list_settles_what_was_written_before_it_began() {
    let mut overlay = written("10", None, true);
    overlay.list_begins();
    overlay.begin(&key());
    overlay.answered(&key(), entry("u", "11"), None, true);
    overlay.list_complete();
    assert_eq!(state(&overlay), "there 11");
    // Time went back: a backup was restored, and the next list knows nothing of it.
    overlay.list_begins();
    overlay.list_complete();
    assert_eq!(state(&overlay), "");
}

#[test]
fn of_two_answers_the_later_version_counts() {
    let mut overlay = written("11", None, true);
    overlay.answered(&key(), entry("u", "10"), None, true);
    assert_eq!(state(&overlay), "there 11");
    let mut overlay = written("11", None, false);
    overlay.answered(&key(), entry("u", "10"), None, false);
    assert_eq!(state(&overlay), "uncertain");
}

#[test]
fn too_many_writes_that_nobody_sees_make_everything_live() {
    let mut overlay = Overlay::default();
    for i in 0..=MOST {
        let key = ObjectKey::parse(Some("n"), &format!("x{i}")).unwrap();
        overlay.end(&key, true);
    }
    assert_eq!(state(&overlay), "uncertain");
    assert!(overlay.all().is_none());
    overlay.list_complete();
    assert_eq!(state(&overlay), "uncertain");
    overlay.list_begins();
    overlay.list_complete();
    assert_eq!(state(&overlay), "");
}
