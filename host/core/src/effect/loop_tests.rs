//! What the loop guard learns of each write.

use std::{sync::atomic::Ordering, time::Duration};

use super::{
    tests::{Fake, effects, key, pods, rules},
    *,
};
use crate::{
    looping::{Guard, Happened, Verdict},
    name::ControllerName,
};

#[tokio::test(start_paused = true)]
async fn what_writes_bring_about_is_noted_and_what_they_did_is_told() {
    for (write, said) in [
        ("create", "objects of pods.v1 in namespace n are created again and again"),
        ("apply", "objects of pods.v1 in namespace n are created again and again"),
        ("patch", "objects of pods.v1 in namespace n are changed again and again"),
        ("replace", "objects of pods.v1 in namespace n are changed again and again"),
        ("delete", "objects of pods.v1 in namespace n are removed again and again"),
        ("free", ""),
    ] {
        let fake = Arc::new(Fake { exists: true, free: write == "free", ..Fake::default() });
        fake.makes.store(write == "apply", Ordering::Relaxed);
        let limits = Limits { write_rate: 10_000, ..Limits::default() };
        let (first, _) = effects(&fake, Policy { grants: rules(&["*"]), limits, ..Policy::default() });
        let guard = Guard::new(ControllerName::parse("c").unwrap(), Arc::default());
        let mut found = Vec::new();
        for round in 0..120 {
            let errand = guard.begin(&key());
            let effects =
                Effects::new(first.caller.clone(), first.policy.shared.clone(), first.ports.clone()).on(errand);
            let other = ObjectKey { name: ObjectName::parse(&format!("x{round}")).unwrap(), ..key() };
            match write {
                "create" => {
                    let field = if round % 2 == 0 { "name" } else { "generateName" };
                    let object = format!(r#"{{"metadata": {{"{field}": "x{round}"}}}}"#);
                    effects.create(&pods(), key().namespace.as_ref(), object).await.map(drop).unwrap();
                }
                "apply" => effects.patch(&pods(), &other, None, Patch::Apply("{}".into())).await.map(drop).unwrap(),
                "replace" => effects.replace(&pods(), &key(), None, "{}".into()).await.map(drop).unwrap(),
                "delete" => effects.delete(&pods(), &other, &DeleteOptions::default()).await.unwrap(),
                _ => effects.patch(&pods(), &key(), None, Patch::Merge("{}".into())).await.map(drop).unwrap(),
            }
            let meta = fake.meta();
            let now = Some(&meta).filter(|_| write != "delete");
            guard.heard(&key(), &Happened { resource: &pods(), key: &other, was: Some(&meta), now }, true);
            found.extend(guard.ended(&key(), &effects.steps()).found);
        }
        let found: Vec<_> = found.into_iter().map(|found| found.what).collect();
        assert_eq!(found.join(", "), said, "{write}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_changed_nothing_makes_nobodys_version_its_own() {
    let fake = Arc::new(Fake { exists: true, ..Fake::default() });
    let (first, _) = effects(&fake, Policy { grants: rules(&["*"]), ..Policy::default() });
    let guard = Guard::new(ControllerName::parse("c").unwrap(), Arc::default());
    for round in 0..150 {
        // Somebody else wrote.
        fake.versions.fetch_add(1, Ordering::Relaxed);
        let foreign = fake.meta();
        let errand = guard.begin(&key());
        let effects = Effects::new(first.caller.clone(), first.policy.shared.clone(), first.ports.clone()).on(errand);
        fake.same.store(true, Ordering::Relaxed);
        effects.patch(&pods(), &key(), None, Patch::Merge("{}".into())).await.unwrap();
        fake.same.store(false, Ordering::Relaxed);
        let object = format!(r#"{{"metadata": {{"name": "x{round}"}}}}"#);
        effects.create(&pods(), key().namespace.as_ref(), object).await.unwrap();
        let now = Some(&foreign);
        guard.heard(&key(), &Happened { resource: &pods(), key: &key(), was: None, now }, false);
        assert_eq!(guard.ended(&key(), &effects.steps()), Verdict::default());
        tokio::time::advance(Duration::from_millis(200)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_never_sent_or_is_refused_makes_no_event_its_own() {
    for refusal in [ApiError::Unreachable("refused".into()), ApiError::TooLarge("413".into())] {
        let fake = Arc::new(Fake { exists: true, ..Fake::default() });
        *fake.refusal.lock().unwrap() = Some(refusal);
        let (first, _) = effects(&fake, Policy { grants: rules(&["*"]), ..Policy::default() });
        let guard = Guard::new(ControllerName::parse("c").unwrap(), Arc::default());
        for _ in 0..120 {
            let errand = guard.begin(&key());
            let effects =
                Effects::new(first.caller.clone(), first.policy.shared.clone(), first.ports.clone()).on(errand);
            let object = r#"{"metadata": {"generateName": "x"}}"#.to_owned();
            effects.create(&pods(), key().namespace.as_ref(), object).await.unwrap_err();
            assert!(effects.steps().is_empty(), "nothing happened");
            // What somebody else writes meanwhile.
            fake.versions.fetch_add(1, Ordering::Relaxed);
            let meta = fake.meta();
            guard.heard(&key(), &Happened { resource: &pods(), key: &key(), was: None, now: Some(&meta) }, true);
            assert_eq!(guard.ended(&key(), &effects.steps()), Verdict::default());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_dropped_before_its_answer_or_that_lost_it_is_noted_too() {
    for write in ["create", "generate", "patch", "delete", "lost"] {
        let fake = Arc::new(Fake { exists: true, ..Fake::default() });
        let lost = (write == "lost").then(|| ApiError::Unavailable("the connection was reset".into()));
        fake.hangs.store(lost.is_none(), Ordering::Relaxed);
        *fake.refusal.lock().unwrap() = lost;
        let limits = Limits { write_rate: 10_000, ..Limits::default() };
        let (first, _) = effects(&fake, Policy { grants: rules(&["*"]), limits, ..Policy::default() });
        let guard = Guard::new(ControllerName::parse("c").unwrap(), Arc::default());
        let mut found = Vec::new();
        for round in 0..120 {
            let errand = guard.begin(&key());
            let effects =
                Effects::new(first.caller.clone(), first.policy.shared.clone(), first.ports.clone()).on(errand);
            let other = ObjectKey { name: ObjectName::parse(&format!("x{round}")).unwrap(), ..key() };
            let call = async {
                match write {
                    "patch" => effects.patch(&pods(), &other, None, Patch::Merge("{}".into())).await.map(drop),
                    "delete" => effects.delete(&pods(), &other, &DeleteOptions::default()).await,
                    _ => {
                        let field = if write == "generate" { "generateName" } else { "name" };
                        let object = format!(r#"{{"metadata": {{"{field}": "x{round}"}}}}"#);
                        effects.create(&pods(), key().namespace.as_ref(), object).await.map(drop)
                    }
                }
            };
            let answer = tokio::time::timeout(Duration::from_millis(10), call).await;
            assert_eq!(answer.is_ok(), write == "lost", "{write}: {answer:?}");
            fake.versions.fetch_add(1, Ordering::Relaxed);
            let meta = fake.meta();
            guard.heard(&key(), &Happened { resource: &pods(), key: &other, was: None, now: Some(&meta) }, true);
            found.extend(guard.ended(&key(), &effects.steps()).found);
        }
        let found: Vec<_> = found.into_iter().map(|found| found.what).collect();
        assert_eq!(found, ["objects of pods.v1 in namespace n are written again and again"], "{write}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_there_a_moment_ago_and_is_made_anew_counts_as_made() {
    const OWNED: &str = r#"{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"a","uid":"u"}]}}"#;
    for (makes, refused) in [(true, true), (false, false)] {
        let fake = Arc::new(Fake { exists: true, ..Fake::default() });
        fake.makes.store(makes, Ordering::Relaxed);
        *fake.object.lock().unwrap() = Some(OWNED.to_owned());
        let limits = Limits { write_rate: 1, ..Limits::default() };
        let grants = rules(&["get", "create", "patch"]);
        let (first, _) = effects(&fake, Policy { grants, limits, ..Policy::default() });
        let guard = Guard::new(ControllerName::parse("c").unwrap(), Arc::default());
        let errand = guard.begin(&key());
        let effects = Effects::new(first.caller.clone(), first.policy.shared.clone(), first.ports.clone()).on(errand);
        // Ten times the writes of one object, each of an object of its own.
        for number in 0..10 {
            let other = ObjectKey { name: ObjectName::parse(&format!("x{number}")).unwrap(), ..key() };
            effects.patch(&pods(), &other, None, Patch::Apply(OWNED.into())).await.map(drop).unwrap();
        }
        let object = r#"{"metadata": {"name": "y"}}"#.to_owned();
        let made = effects.create(&pods(), key().namespace.as_ref(), object).await;
        assert_eq!(matches!(made, Err(ApiError::TooManyRequests(_))), refused, "{made:?}");
    }
}
