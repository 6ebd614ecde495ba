//! What is a loop and what is none, as stories of one controller and its objects, in paused time.

mod chains;
mod unanswered;

use serde_json::json;

use super::{
    chain::{MOST_DEEDS, MOST_WAKES},
    differences::DEEPEST,
    *,
};
use crate::cache::Meta;

const SECOND: Duration = Duration::from_secs(1);

/// A controller with one key, and the objects that it and others write.
struct Story {
    guard: Guard,
    key: ObjectKey,
    versions: u64,
    held: Vec<Duration>,
    found: Vec<Loop>,
}

fn resource(plural: &str) -> Resource {
    Resource::parse(if plural == "deployments" { "apps" } else { "x.example.com" }, "v1", plural).unwrap()
}

fn object(uid: &str, version: u64, content: &Value) -> Arc<Cached> {
    let mut object =
        json!({"metadata": {"name": "x", "namespace": "n", "uid": uid, "resourceVersion": version.to_string()}});
    object.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
    Arc::new(Cached::of(object).unwrap().1)
}

fn guard(controller: &str, chain: &Arc<Chain>) -> Guard {
    Guard::new(ControllerName::parse(controller).unwrap(), chain.clone())
}

fn changed(plural: &str, key: &ObjectKey, before: Arc<Cached>, now: Arc<Cached>) -> Step {
    Step { resource: resource(plural), key: key.clone(), deed: Deed::Changed { before: Some(before), now } }
}

/// An event wakes a key: something of the kind `things` is so now.
fn hears(guard: &Guard, woken: &ObjectKey, now: &Meta, order: bool) -> bool {
    let key = ObjectKey::parse(Some("n"), "x").unwrap();
    guard.heard(woken, &Happened { resource: &resource("things"), key: &key, was: None, now: Some(now) }, order)
}

impl Story {
    fn new() -> Self {
        let key = ObjectKey::parse(Some("n"), "x").unwrap();
        Self { guard: guard("main", &Arc::default()), key, versions: 0, held: Vec::new(), found: Vec::new() }
    }

    /// One reconcile that does this, of which these are the objects that are so now.
    fn does(&mut self, now: &[&Cached], steps: &[Step]) {
        let errand = self.guard.begin(&self.key);
        for object in now {
            errand.wrote(&object.meta);
        }
        let Verdict { hold, found } = self.guard.ended(&self.key, steps);
        self.held.extend(hold);
        self.found.extend(found);
    }

    /// One reconcile that writes an object from this to that; answers the event of it.
    fn writes(&mut self, plural: &str, from: &Value, to: &Value) -> Arc<Cached> {
        self.versions += 2;
        let (before, now) = (object(plural, self.versions - 1, from), object(plural, self.versions, to));
        let step = changed(plural, &self.key, before, now.clone());
        self.does(&[&now], &[step]);
        now
    }

    fn wakes(&self, object: &Cached) {
        hears(&self.guard, &self.key, &object.meta, false);
    }

    /// Something that it did not write.
    fn somebody(&mut self, order: bool) -> bool {
        self.versions += 1;
        let object = object("foreign", self.versions, &json!({}));
        hears(&self.guard, &self.key, &object.meta, order)
    }

    /// For so long that it is a loop.
    fn flaps(&mut self) {
        for lap in 0..40 {
            let written = self.writes("deployments", &replicas(3 + lap % 2), &replicas(4 - lap % 2));
            self.wakes(&written);
        }
    }

    fn is_content(&self) {
        assert_eq!((&self.found, &self.held), (&vec![], &vec![]));
        assert_eq!(self.guard.loops(), []);
    }
}

fn replicas(count: i32) -> Value {
    json!({"spec": {"replicas": count, "paused": false}})
}

#[tokio::test(start_paused = true)]
async fn a_field_that_flaps_is_named_and_the_key_waits_longer_each_time() {
    let mut story = Story::new();
    for lap in 0..40 {
        let written = story.writes("deployments", &replicas(3 + lap % 2), &replicas(4 - lap % 2));
        story.wakes(&written);
        // The Deployment's controller answers each write, which is no order.
        story.somebody(false);
        tokio::time::advance(SECOND / 10).await;
    }
    let what = ".spec.replicas of deployments.v1.apps n/x flaps between 3 and 4";
    let told = ".spec.replicas of deployments.v1.apps n/x changes again and again".into();
    assert_eq!(story.found, [Loop { what: what.into(), told }]);
    assert_eq!(story.guard.loops(), [(story.key.clone(), what.to_owned())]);
    for (held, least) in story.held.iter().zip([1, 2, 4, 8, 16, 32, 60, 60]) {
        assert!((least * SECOND..=least * SECOND * 11 / 10).contains(held), "{:?}", story.held);
    }
    assert!(story.held.len() > 8);
    // A minute and twice the pause after the last lap it is over.
    tokio::time::advance(SECOND * 200).await;
    assert_eq!(story.guard.loops(), []);
    let before = story.held.len();
    story.writes("deployments", &replicas(3), &replicas(4));
    assert_eq!(story.held.len(), before);
}

#[tokio::test(start_paused = true)]
async fn what_nothing_but_its_own_writes_wake_is_a_loop_whatever_it_writes() {
    let mut story = Story::new();
    let seen = |at: i32| json!({"status": {"phase": "Ready", "conditions": [{"type": "Ready", "at": at}]}});
    for at in 0..40 {
        let written = story.writes("things", &seen(at), &seen(at + 1));
        story.wakes(&written);
        tokio::time::advance(SECOND).await;
    }
    assert_eq!(story.found.len(), 1);
    let said = &story.found[0].what;
    assert!(
        said.starts_with(
            ".status.conditions[Ready].at of things.v1.x.example.com n/x changes with every reconcile, last from "
        ),
        "{said}"
    );
}

#[tokio::test(start_paused = true)]
async fn two_that_fight_over_a_field_are_found_even_in_a_status_and_over_its_own_spec() {
    for (plural, order) in [("deployments", false), ("things", true)] {
        let mut story = Story::new();
        let (mine, yours) = if order {
            (json!({"spec": {"a": 1}}), json!({"spec": {"a": 2}}))
        } else {
            (json!({"status": {"a": "x"}}), json!({"status": {"a": "y"}}))
        };
        for _ in 0..40 {
            // Somebody else wrote theirs, and this puts its own back.
            story.somebody(order);
            let written = story.writes(plural, &yours, &mine);
            story.wakes(&written);
            tokio::time::advance(SECOND).await;
        }
        assert_eq!(story.found.len(), 1, "{plural}");
        assert!(story.found[0].what.contains(" flaps between "), "{:?}", story.found);
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_settles_after_many_steps_is_none() {
    let mut story = Story::new();
    for step in 0..15 {
        let written =
            story.writes("things", &json!({"status": {"phase": step}}), &json!({"status": {"phase": step + 1}}));
        story.wakes(&written);
    }
    story.is_content();
}

#[tokio::test(start_paused = true)]
async fn a_status_that_mirrors_what_others_do_is_none_however_fast() {
    let mut story = Story::new();
    let ready = |count: i32| json!({"status": {"ready": count}});
    for change in 0..2_000 {
        story.somebody(false);
        let written = story.writes("things", &ready(97 + change % 2), &ready(98 - change % 2));
        story.wakes(&written);
        tokio::time::advance(SECOND / 20).await;
    }
    story.is_content();
}

#[tokio::test(start_paused = true)]
async fn a_counter_at_the_pace_that_it_asked_for_is_none() {
    let mut story = Story::new();
    for count in 0..600 {
        let written = story.writes("things", &json!({"status": {"n": count}}), &json!({"status": {"n": count + 1}}));
        // Its own event finds nothing to do; then it is called again, by no event.
        story.wakes(&written);
        story.guard.begin(&story.key);
        assert_eq!(story.guard.ended(&story.key, &[]), Verdict::default());
        tokio::time::advance(SECOND / 2).await;
    }
    story.is_content();
}

#[tokio::test(start_paused = true)]
async fn what_somebody_orders_is_none_however_often_and_does_not_wait() {
    let mut story = Story::new();
    for order in 0..500 {
        assert!(!story.somebody(true), "it does not loop");
        let written = story.writes("deployments", &replicas(1 + order % 3), &replicas(1 + (order + 1) % 3));
        story.wakes(&written);
        tokio::time::advance(SECOND / 10).await;
    }
    story.is_content();
    story.flaps();
    assert_eq!(story.found.len(), 1);
    assert!(!story.somebody(false) && story.somebody(true), "of a key that loops, an order goes first");
    // During a reconcile nobody knows whose write it was before it ended.
    let held = story.held.len();
    story.guard.begin(&story.key);
    story.guard.ended(&story.key, &[]);
    story.guard.begin(&story.key);
    assert!(!story.somebody(true));
    let (before, now) = (object("o", 1, &replicas(3)), object("o", 2, &replicas(4)));
    hears(&story.guard, &story.key, &now.meta, true);
    let step = changed("deployments", &story.key, before, now);
    assert_eq!(story.guard.ended(&story.key, &[step]).hold, None);
    // What it does about the order is no lap, and what comes after is one again.
    story.writes("deployments", &replicas(4), &replicas(3));
    assert_eq!(story.held.len(), held);
    story.writes("deployments", &replicas(3), &replicas(4));
    assert_eq!(story.held.len(), held + 1);
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_takes_its_time_harms_nobody() {
    for (seconds, looked_at) in [(4, 1), (8, 0)] {
        let mut story = Story::new();
        for lap in 0..500 {
            let written = story.writes("deployments", &replicas(3 + lap % 2), &replicas(4 - lap % 2));
            story.wakes(&written);
            tokio::time::advance(SECOND * seconds).await;
        }
        story.is_content();
        let fields: usize = story.guard.lock().values().map(|track| track.fields.len()).sum();
        assert_eq!(fields, looked_at, "what writes so seldom is not even looked at");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_secret_holds_is_not_said_and_what_is_said_is_printable() {
    let place = |group, plural| Place {
        resource: Resource::parse(group, "v1", plural).unwrap(),
        key: ObjectKey::parse(Some("n"), "x").unwrap(),
        path: ".data.a\nb".to_owned(),
    };
    let say = |of: &str, place: Place, values: [&str; 2], returns: bool| {
        let key = ObjectKey::parse(Some(of), "y").unwrap();
        let me = Doer { controller: ControllerName::parse("main").unwrap(), key };
        let change = Change { path: place.path.clone(), from: json!(values[0]), to: json!(values[1]) };
        super::say(&me, &place, &change, returns, &Wakes::default())
    };
    let said = say("n", place("", "secrets"), ["hunter2", "hunter3"], true);
    assert_eq!(said.what, ".data.a\\nb of secrets.v1 n/x changes again and again");
    let maps = || place("", "configmaps");
    let said = say("n", maps(), ["\u{1b}[31m", &"y".repeat(1_000)], false);
    assert!(!said.what.contains('\u{1b}') && said.what.len() < 200, "{said:?}");
    assert!(said.what.contains(" changes with every reconcile, last from "), "{said:?}");
    let theirs = Place { resource: resource("secrets"), ..maps() };
    assert!(say("n", theirs, ["1", "2"], true).what.ends_with(" flaps between \"1\" and \"2\""));
    // Whoever sees the object that loops learns which field it is, and nothing that stands in it or elsewhere.
    assert_eq!(said.told, ".data.a\\nb of configmaps.v1 n/x changes again and again");
    let elsewhere = say("m", maps(), ["1", "2"], true).told;
    assert_eq!(elsewhere, "a field of configmaps.v1 elsewhere changes again and again");
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_and_what_loops_is_forgotten_last() {
    let mut story = Story::new();
    story.flaps();
    let key = story.key.clone();
    for number in 0..3 * MOST_KEYS {
        story.key = ObjectKey::parse(Some("n"), &format!("other-{number}")).unwrap();
        story.writes("things", &json!({"a": 1}), &json!({"a": 2}));
        assert!(story.guard.lock().len() <= MOST_KEYS);
    }
    assert_eq!(story.guard.loops().len(), 1);
    assert_eq!(story.guard.loops()[0].0, key);
    story.guard.begin_anew();
    assert_eq!(story.guard.lock().len(), 0);
}

/// Writes a field of the object from this to that.
fn spec(field: &str, from: u64, to: u64) -> [Value; 2] {
    [from, to].map(|value| json!({"spec": {field: value}}))
}

#[tokio::test(start_paused = true)]
async fn values_are_remembered_for_a_while() {
    for (values, found) in [(MOST_VALUES as u64, 1), (MOST_VALUES as u64 + 1, 0)] {
        let mut story = Story::new();
        for lap in 0..60 {
            story.somebody(false);
            let [from, to] = spec("a", lap % values, (lap + 1) % values);
            story.writes("things", &from, &to);
            tokio::time::advance(SECOND / 2).await;
        }
        assert_eq!(story.found.len(), found, "a round of {values}");
    }
}

#[tokio::test(start_paused = true)]
async fn more_events_than_are_told_apart_before_anybody_knows_whose_they_are_are_somebody_elses() {
    for (events, early, found) in [(1_000, false, 1), (MOST_WAKES, true, 1), (MOST_WAKES + 1, true, 0)] {
        let mut story = Story::new();
        for at in 0..40_u64 {
            let [before, now] = [at, at + 1].map(|n| object("o", n + 1, &json!({"status": {"n": n}})));
            let errand = story.guard.begin(&story.key);
            // The events come before the answer of the write, or after it.
            let hear = || (0..events).for_each(|_| story.wakes(&now));
            if early {
                hear();
                errand.wrote(&now.meta);
            } else {
                errand.wrote(&now.meta);
                hear();
            }
            let verdict = story.guard.ended(&story.key, &[changed("things", &story.key, before, now)]);
            story.found.extend(verdict.found);
        }
        assert_eq!(story.found.len(), found, "{events} events, early: {early}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_fields_that_change_together_the_one_that_loops_is_named_and_the_first_of_equals() {
    let both = |a: u64, b: u64| json!({"spec": {"a": a, "b": b}});
    for (joins, named) in [(15, ".spec.b "), (0, ".spec.a ")] {
        let mut story = Story::new();
        for lap in 0..40 {
            story.somebody(false);
            let (now, next) = (lap % 2, (lap + 1) % 2);
            let (from, to) =
                if lap < joins { (both(0, now), both(0, next)) } else { (both(now, now), both(next, next)) };
            story.writes("things", &from, &to);
        }
        assert_eq!(story.found.len(), 1);
        assert!(story.found[0].what.starts_with(named), "{:?}", story.found);
    }
}

#[tokio::test(start_paused = true)]
async fn during_a_reconcile_only_an_order_of_somebody_else_keeps_it_from_waiting() {
    let mut story = Story::new();
    for lap in 0..40 {
        story.writes("deployments", &replicas(3 + lap % 2), &replicas(4 - lap % 2));
        story.somebody(false);
    }
    let mut ends = |own: bool, order: bool| {
        story.versions += 2;
        let [before, now] = [(1, 3), (0, 4)].map(|(back, count)| object("o", story.versions - back, &replicas(count)));
        let errand = story.guard.begin(&story.key);
        let foreign = object("foreign", story.versions, &json!({}));
        hears(&story.guard, &story.key, if own { &now.meta } else { &foreign.meta }, order);
        errand.wrote(&now.meta);
        let step = changed("deployments", &story.key, before, now);
        story.guard.ended(&story.key, &[step]).hold.is_some()
    };
    // Whose event it was is known when the reconcile has ended.
    let waits = [(true, true), (false, false), (false, true), (true, false)].map(|(own, order)| ends(own, order));
    assert_eq!(waits, [true, true, false, true]);
}

#[tokio::test(start_paused = true)]
async fn what_is_over_is_forgotten_to_the_moment() {
    let start = Instant::now();
    let track = |wrote: Option<Instant>, until: Option<Instant>| Track {
        wrote: wrote.into_iter().collect(),
        looping: until.map(|until| Looping {
            what: Loop { what: String::new(), told: String::new() },
            pauses: 1,
            until,
        }),
        ..Track::new(guard("main", &Arc::default()).doer(&ObjectKey::parse(Some("n"), "x").unwrap()))
    };
    let nanosecond = Duration::from_nanos(1);
    let end = start + WINDOW;
    assert!(track(Some(start), None).is_forgotten(end));
    assert!(!track(Some(start + nanosecond), None).is_forgotten(end));
    assert!(!track(None, Some(end + nanosecond)).is_forgotten(end));
    assert!(track(None, Some(end)).is_forgotten(end) && track(Some(start), Some(start)).is_forgotten(end));
    assert!(
        !track(Some(end), Some(start)).is_forgotten(end) && !track(Some(start), Some(end + WINDOW)).is_forgotten(end)
    );

    // A key that wrote nothing for so long is not even known any more.
    let mut story = Story::new();
    story.writes("things", &json!({"a": 1}), &json!({"a": 2}));
    story.guard.begin(&story.key);
    story.guard.ended(&story.key, &[]);
    assert_eq!(story.guard.lock().len(), 1);
    tokio::time::advance(WINDOW).await;
    story.guard.begin(&story.key);
    story.guard.ended(&story.key, &[]);
    assert_eq!(story.guard.lock().len(), 0);

    // Nor is a loop one when its time is over.
    story.flaps();
    let hold = *story.held.last().unwrap();
    tokio::time::advance((hold * 2 + WINDOW).saturating_sub(nanosecond)).await;
    assert_eq!(story.guard.loops().len(), 1);
    tokio::time::advance(nanosecond).await;
    assert_eq!(story.guard.loops(), []);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_looked_at_before_a_key_writes_often() {
    let half = WINDOW / 2;
    for (rest, looked_at) in [(half, 0), (half.saturating_sub(Duration::from_nanos(1)), 1)] {
        let mut story = Story::new();
        let mut write = || {
            story.writes("things", &json!({"a": 1}), &json!({"a": 2}));
            story.guard.lock()[&story.key].fields.len()
        };
        assert_eq!(write(), 0);
        tokio::time::advance(half).await;
        for _ in 2..WARM {
            assert_eq!(write(), 0);
        }
        tokio::time::advance(rest).await;
        assert_eq!(write(), looked_at, "{rest:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_one_key_so_many_fields_are_known_and_those_with_laps_stay() {
    let mut story = Story::new();
    for _ in 0..WARM - 1 {
        story.writes("things", &json!({"a": 1}), &json!({"a": 2}));
    }
    let known = |story: &Story| {
        let tracks = story.guard.lock();
        let mut paths: Vec<_> = tracks[&story.key].fields.keys().map(|place| place.path.clone()).collect();
        paths.sort();
        (paths.len(), paths.first().cloned().unwrap_or_default())
    };
    let write = |story: &mut Story, field: &str, value: u64| {
        story.somebody(false);
        let [from, to] = spec(field, value, value + 1);
        story.writes("things", &from, &to);
    };
    let most = MOST_FIELDS as u64;
    for field in 0..most {
        write(&mut story, &format!("x{field}"), field);
    }
    assert_eq!(known(&story).0, MOST_FIELDS);
    // One that is known needs no room.
    write(&mut story, "x0", 100);
    assert_eq!(known(&story).0, MOST_FIELDS);
    // Those without a lap make room.
    write(&mut story, "y", 0);
    assert_eq!(known(&story), (1, ".spec.y".to_owned()));
    // Those with one do not, within a minute, and are counted on.
    for field in 0..most {
        for value in [1, 1] {
            write(&mut story, &format!("z{field}"), value);
        }
    }
    write(&mut story, "late", 0);
    assert_eq!(known(&story), (MOST_FIELDS, ".spec.z0".to_owned()));
    tokio::time::advance(WINDOW.saturating_sub(SECOND)).await;
    for _ in 0..WARM {
        write(&mut story, "z0", 1);
    }
    tokio::time::advance(SECOND).await;
    write(&mut story, "late", 0);
    assert_eq!(known(&story), (2, ".spec.late".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_lap_after_the_end_of_a_loop_is_the_first_of_another() {
    let mut story = Story::new();
    story.flaps();
    let (hold, held) = (*story.held.last().unwrap(), story.held.len());
    tokio::time::advance((hold * 2 + WINDOW).saturating_sub(SECOND)).await;
    // Something else is written meanwhile, so that the key is known.
    story.somebody(false);
    let [from, to] = spec("else", 1, 2);
    story.writes("things", &from, &to);
    assert_eq!(story.held.len(), held);
    tokio::time::advance(SECOND).await;
    story.writes("deployments", &replicas(3), &replicas(4));
    assert_eq!(story.held.len(), held);
}

#[test]
fn differences_have_the_names_that_people_use() {
    let before = json!({"metadata": {"resourceVersion": "1", "labels": {"a": "1"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}], "args": ["a"], "gone": 1}});
    let now = json!({"metadata": {"resourceVersion": "2", "labels": {"a": "2"}}, "spec": {"containers": [{"name": "c", "image": "i:2"}], "args": ["a", "b"], "new": 1}});
    let all = differences(&before, &now);
    let paths: Vec<_> = all.iter().map(|change| change.path.as_str()).collect();
    assert_eq!(paths, [".metadata.labels.a", ".spec.args", ".spec.containers[c].image", ".spec.gone", ".spec.new"]);
}

#[test]
fn differences_go_only_so_deep() {
    let nested = |wrap: &dyn Fn(Value) -> Value, leaf: i32| (0..DEEPEST + 5).fold(json!(leaf), |inner, _| wrap(inner));
    let objects = |inner| json!({"a": inner});
    let arrays = |inner| json!([inner]);
    for wrap in [&objects as &dyn Fn(Value) -> Value, &arrays] {
        let all = differences(&nested(wrap, 1), &nested(wrap, 2));
        let deep = all[0].path.matches(['.', '[']).count();
        assert_eq!((all.len(), deep), (1, DEEPEST), "{all:?}");
    }
}

#[test]
fn a_long_path_is_cut_and_told_apart() {
    let of = |last: &str| json!({"a".repeat(300): {last: 1}});
    let paths = ["b", "c"].map(|last| differences(&of(last), &json!({"a".repeat(300): {}}))[0].path.clone());
    assert_ne!(paths[0], paths[1]);
    assert!(paths.iter().all(|path| path.len() < 300), "{paths:?}");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_too_large_to_be_read_in_time_is_no_loop_of_fields() {
    for (length, found) in [(1 << 20, 1), (3 << 20, 0)] {
        let mut story = Story::new();
        let of = |count: u64| json!({"data": {"long": "x".repeat(length)}, "spec": {"replicas": count}});
        for lap in 0..40 {
            story.writes("deployments", &of(3 + lap % 2), &of(4 - lap % 2));
            story.somebody(false);
        }
        assert_eq!(story.found.len(), found, "{length}");
    }
}

#[test]
fn a_write_that_is_too_large_to_be_read_hides_none_after_it() {
    let key = ObjectKey::parse(Some("n"), "x").unwrap();
    let step = |length: usize| {
        let of = |version: u64| object("o", version, &json!({"a": version, "long": "x".repeat(length)}));
        changed("things", &key, of(1), of(2))
    };
    let steps = [step(0), step(3 << 20), step(1 << 20), step(1 << 20), step(0)];
    let told: Vec<_> = changes(&steps.iter().collect::<Vec<_>>()).iter().map(Vec::len).collect();
    assert_eq!(told, [1, 0, 1, 0, 1], "as much as there is room for");
}

#[tokio::test(start_paused = true)]
async fn what_it_removed_itself_it_makes_again_for_whoever_wakes_it() {
    for (by_itself, found) in [(true, 0), (false, 1)] {
        let mut story = Story::new();
        let step = |story: &Story, deed| Step { resource: resource("things"), key: story.key.clone(), deed };
        for _ in 0..40 {
            story.somebody(false);
            let mut steps = vec![step(&story, Deed::Made)];
            if by_itself {
                steps.push(step(&story, Deed::Removed));
            }
            story.does(&[], &steps);
        }
        assert_eq!(story.found.len(), found, "{by_itself}: {:?}", story.found);
    }
}
