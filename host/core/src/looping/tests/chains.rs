//! The writes of one plugin that wake its other controllers and objects, and what is made and removed.

use super::{super::chain::LONG, *};

/// The controllers of one plugin: each reconciles what it is told to, and hears what it is told to.
struct Plugin {
    chain: Arc<Chain>,
    guards: HashMap<String, Guard>,
    versions: u64,
    found: Vec<Loop>,
    held: Vec<Duration>,
}

/// A controller, and the object that it reconciles.
type Who<'a> = (&'a str, &'a str);

const ONE: Who<'_> = ("one", "x");
const OTHER: Who<'_> = ("other", "y");

fn key(name: &str) -> ObjectKey {
    ObjectKey::parse(Some("n"), name).unwrap()
}

fn made(name: &str) -> Step {
    Step { resource: resource("things"), key: key(name), deed: Deed::Made }
}

fn removed(name: &str) -> Step {
    Step { deed: Deed::Removed, ..made(name) }
}

/// Whether an event is of what this one wrote.
fn feeds(plugin: &Plugin, was: Option<&Meta>, now: Option<&Meta>, me: &Doer) -> bool {
    plugin.chain.feeds(&Happened { resource: &resource("things"), key: &key("x"), was, now }.wake(false), me)
}

impl Plugin {
    fn new(controllers: &[&str]) -> Self {
        let chain = Arc::default();
        let guards = controllers.iter().map(|name| ((*name).to_owned(), guard(name, &chain))).collect();
        Self { chain, guards, versions: 0, found: Vec::new(), held: Vec::new() }
    }

    fn version(&mut self, uid: &str, content: &Value) -> Arc<Cached> {
        self.versions += 1;
        object(uid, self.versions, content)
    }

    fn does(&mut self, (controller, of): Who<'_>, act: impl FnOnce(&Errand) -> Vec<Step>) {
        let guard = &self.guards[controller];
        let errand = guard.begin(&key(of));
        let steps = act(&errand);
        let Verdict { hold, found } = guard.ended(&key(of), &steps);
        self.held.extend(hold);
        self.found.extend(found);
    }

    /// Changes a field of an object from this to that.
    fn changes(&mut self, who: Who<'_>, name: &str, from: u64, to: u64) -> Arc<Cached> {
        let [before, now] = spec("a", from, to).map(|content| self.version(name, &content));
        self.does(who, |errand| {
            errand.wrote(&now.meta);
            vec![changed("things", &key(name), before, now.clone())]
        });
        now
    }

    fn makes(&mut self, who: Who<'_>, name: &str) -> Arc<Cached> {
        let uid = format!("uid {}", self.versions);
        let now = self.version(&uid, &json!({}));
        self.does(who, |errand| {
            errand.wrote(&now.meta);
            vec![made(name)]
        });
        now
    }

    fn removes(&mut self, who: Who<'_>, name: &str, was: &Cached) {
        self.does(who, |errand| {
            errand.removed(&was.meta);
            vec![removed(name)]
        });
    }

    fn hears(&self, (controller, of): Who<'_>, now: &Cached, order: bool) -> bool {
        hears(&self.guards[controller], &key(of), &now.meta, order)
    }

    fn hears_of_the_end(&self, (controller, of): Who<'_>, was: &Cached) {
        let gone = Happened { resource: &resource("things"), key: &key("x"), was: Some(&was.meta), now: None };
        self.guards[controller].heard(&key(of), &gone, false);
    }

    /// Something that the plugin did not write.
    fn foreign(&mut self, who: Who<'_>, order: bool) -> bool {
        let object = self.version("foreign", &json!({}));
        self.hears(who, &object, order)
    }

    fn is_content(&self) {
        assert_eq!((&self.found, &self.held), (&vec![], &vec![]));
    }
}

#[tokio::test(start_paused = true)]
async fn two_that_wake_each_other_are_found_and_both_are_named() {
    // Two controllers of one plugin, and two objects of one controller; by what each takes for an order or not.
    for (other, words) in
        [(OTHER, "controller other of this plugin writes for n/y"), (("one", "y"), "it writes for n/y")]
    {
        for order in [true, false] {
            let mut plugin = Plugin::new(&["one", "other"]);
            let (mut at, mut laps) = (0, 0);
            while plugin.found.len() < 2 {
                laps += 1;
                assert!(laps < 60, "{:?}", plugin.found);
                for (who, next, name) in [(ONE, other, "a"), (other, ONE, "b")] {
                    let written = plugin.changes(who, name, at, at + 1);
                    plugin.hears(next, &written, order);
                    at += 1;
                    tokio::time::advance(SECOND / 10).await;
                }
            }
            assert!(laps > LAPS, "{laps}");
            let what = &plugin.found[0].what;
            assert!(
                what.starts_with(".spec.a of things.v1.x.example.com n/a changes with every reconcile, "),
                "{what}"
            );
            assert!(what.ends_with(&format!(", woken by what {words}")), "{what}");
            assert!(!plugin.found[0].told.contains("woken"), "{:?}", plugin.found);
            // Neither takes the other's writes for somebody's order, and a person's is one.
            let held = plugin.held.len();
            let written = plugin.changes(ONE, "a", at, at + 1);
            assert_eq!(plugin.held.len(), held + 1);
            assert!(!plugin.hears(other, &written, true));
            // After a pause it runs whether anything woke it or not, which begins no other chain.
            plugin.changes(other, "b", at, at + 1);
            let written = plugin.changes(other, "b", at + 1, at + 2);
            assert!(!plugin.hears(ONE, &written, true));
            assert!(plugin.foreign(other, true));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_that_make_and_remove_for_each_other_are_found_whatever_the_names() {
    let mut plugin = Plugin::new(&["one", "other"]);
    for at in 0..150 {
        let name = format!("child-{at}");
        let child = plugin.makes(ONE, &name);
        plugin.hears(OTHER, &child, true);
        plugin.removes(OTHER, &name, &child);
        plugin.hears_of_the_end(ONE, &child);
        tokio::time::advance(SECOND / 10).await;
    }
    let [one, other] = plugin.found.as_slice() else { panic!("{:?}", plugin.found) };
    let objects = "objects of things.v1.x.example.com in namespace n are";
    assert!(one.what.starts_with(&format!("{objects} created again and again, woken by ")), "{one:?}");
    assert!(other.what.starts_with(&format!("{objects} removed again and again, woken by ")), "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_ends_is_none_however_often_somebody_begins_it() {
    let names = ["a", "b", "c", "d", "e"];
    let mut plugin = Plugin::new(&names);
    for round in 0..500 {
        plugin.foreign(("a", "x"), false);
        for (at, name) in names.iter().enumerate() {
            let written = plugin.changes((name, "x"), name, round, round + 1);
            if let Some(next) = names.get(at + 1) {
                plugin.hears((next, "x"), &written, true);
            }
            // It hears its own write, too, and finds nothing to do.
            plugin.hears((name, "x"), &written, false);
            plugin.does((name, "x"), |_| Vec::new());
        }
        tokio::time::advance(SECOND / 20).await;
    }
    plugin.is_content();
}

#[tokio::test(start_paused = true)]
async fn a_chain_may_be_so_long_and_what_somebody_else_does_begins_another() {
    for (links, found) in [(LONG, 0), (LONG + 1, 1)] {
        let names: Vec<_> = (0..=links).map(|at| format!("c{at}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let mut plugin = Plugin::new(&names);
        for round in 0..40 {
            plugin.foreign((names[0], "x"), false);
            for (at, name) in names.iter().enumerate() {
                let written = plugin.changes((name, "x"), name, round, round + 1);
                if let Some(next) = names.get(at + 1) {
                    plugin.hears((next, "x"), &written, false);
                }
            }
            tokio::time::advance(SECOND / 20).await;
        }
        assert_eq!(plugin.found.len(), found, "{links} links: {:?}", plugin.found);
    }
    let mut plugin = Plugin::new(&["one", "other"]);
    for at in 0..500 {
        let written = plugin.changes(ONE, "a", at, at + 1);
        plugin.hears(OTHER, &written, false);
        if at % 4 == 0 {
            plugin.foreign(OTHER, false);
        }
        let written = plugin.changes(OTHER, "b", at, at + 1);
        plugin.hears(ONE, &written, false);
    }
    plugin.is_content();
}

#[tokio::test(start_paused = true)]
async fn what_a_controller_hands_on_is_an_order_of_whom_it_obeys() {
    let mut plugin = Plugin::new(&["one", "other"]);
    for at in 0..500 {
        // Somebody orders this and that by turns, and each obeys.
        plugin.foreign(ONE, true);
        let written = plugin.changes(ONE, "a", at % 2, (at + 1) % 2);
        plugin.hears(OTHER, &written, true);
        plugin.changes(OTHER, "b", at % 2, (at + 1) % 2);
        tokio::time::advance(SECOND / 10).await;
    }
    plugin.is_content();
}

#[tokio::test(start_paused = true)]
async fn events_that_come_before_the_answers_are_known_in_the_end() {
    let mut plugin = Plugin::new(&["one", "other"]);
    let mut last: Option<(Who<'_>, Errand, Arc<Cached>, Step)> = None;
    for at in 0..120 {
        let (who, next) = if at % 2 == 0 { (ONE, OTHER) } else { (OTHER, ONE) };
        // It begins before anybody knows whose write woke it.
        let errand = plugin.guards[who.0].begin(&key(who.1));
        if let Some(((controller, of), errand, now, step)) = last.take() {
            errand.wrote(&now.meta);
            plugin.found.extend(plugin.guards[controller].ended(&key(of), &[step]).found);
        }
        let [before, now] = spec("a", at, at + 1).map(|content| plugin.version(who.0, &content));
        plugin.hears(next, &now, false);
        last = Some((who, errand, now.clone(), changed("things", &key(who.0), before, now)));
    }
    assert_eq!(plugin.found.len(), 2, "{:?}", plugin.found);
}

#[tokio::test(start_paused = true)]
async fn what_makes_one_after_the_other_by_itself_goes_on_slowly_from_the_hundredth_on() {
    let mut plugin = Plugin::new(&["one"]);
    for at in 0..1_000 {
        let child = plugin.makes(ONE, &format!("child-{at}"));
        plugin.hears(ONE, &child, false);
        tokio::time::advance(plugin.held.last().copied().unwrap_or(SECOND / 10)).await;
        if at < TURNS {
            plugin.is_content();
        }
    }
    let said = "objects of things.v1.x.example.com in namespace n are created again and again";
    assert_eq!(plugin.found, [Loop { what: said.into(), told: said.into() }]);
    assert!(plugin.held.len() > 800 && plugin.held.iter().all(|held| *held <= 10 * SECOND), "{:?}", plugin.held);
}

#[tokio::test(start_paused = true)]
async fn who_makes_one_after_the_other_may_count_them() {
    let mut plugin = Plugin::new(&["one"]);
    for at in 0..TURNS as u64 - 1 {
        let [before, now] = spec("count", at, at + 1).map(|content| plugin.version("x", &content));
        plugin.does(ONE, |errand| {
            errand.wrote(&now.meta);
            vec![made(&format!("child-{at}")), changed("things", &key("x"), before, now.clone())]
        });
        plugin.hears(ONE, &now, false);
        tokio::time::advance(SECOND / 10).await;
    }
    plugin.is_content();
}

#[tokio::test(start_paused = true)]
async fn an_answer_with_somebody_elses_version_makes_it_nobody_elses() {
    let mut plugin = Plugin::new(&["one"]);
    for at in 0..200 {
        // Somebody writes, which wakes it, and it sends what changes nothing.
        let theirs = plugin.version("x", &json!({"spec": {"a": at}}));
        plugin.hears(ONE, &theirs, false);
        plugin.does(ONE, |errand| {
            errand.wrote(&theirs.meta);
            vec![Step { deed: Deed::Changed { before: None, now: theirs.clone() }, ..made("x") }]
        });
        tokio::time::advance(SECOND / 10).await;
    }
    plugin.is_content();
}

#[tokio::test(start_paused = true)]
async fn what_changes_another_field_each_time_is_found_as_well() {
    let mut plugin = Plugin::new(&["one"]);
    for at in 0..150 {
        let [before, now] = [at, at + 1].map(|n| plugin.version("o", &json!({"spec": {format!("turn-{n}"): 1}})));
        plugin.does(ONE, |errand| {
            errand.wrote(&now.meta);
            vec![changed("things", &key("o"), before, now.clone())]
        });
        plugin.hears(ONE, &now, false);
    }
    let said = "objects of things.v1.x.example.com in namespace n are changed again and again";
    assert_eq!(plugin.found, [Loop { what: said.into(), told: said.into() }]);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_children_are_none_at_once_nor_one_by_one_as_others_let_them_grow() {
    let mut plugin = Plugin::new(&["one"]);
    // Its finalizer first, which wakes it to make them all; then it hears of each and counts them.
    let finalizer = plugin.changes(ONE, "x", 0, 1);
    plugin.hears(ONE, &finalizer, true);
    let children: Vec<_> = (0..1_000).map(|at| plugin.version(&format!("uid {at}"), &json!({}))).collect();
    plugin.does(ONE, |errand| {
        for child in &children {
            errand.wrote(&child.meta);
        }
        (0..32).map(|at| made(&format!("child-{at}"))).collect()
    });
    for child in &children {
        plugin.hears(ONE, child, false);
    }
    plugin.changes(ONE, "x", 1, 1_000);
    plugin.is_content();

    for at in 0..1_000 {
        // The child before became ready.
        plugin.foreign(ONE, false);
        let child = plugin.makes(ONE, &format!("replica-{at}"));
        plugin.hears(ONE, &child, false);
        plugin.does(ONE, |_| Vec::new());
        tokio::time::advance(SECOND / 20).await;
    }
    plugin.is_content();
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_made_again_and_again_is_named_unless_somebody_orders_it() {
    // It removes it itself, or somebody else does.
    for (own, order, found) in [(true, false, 1), (false, false, 1), (false, true, 0), (true, true, 0)] {
        let mut plugin = Plugin::new(&["one"]);
        for _ in 0..40 {
            let child = plugin.makes(ONE, "child");
            plugin.hears(ONE, &child, false);
            if order {
                plugin.foreign(ONE, true);
            }
            if own {
                plugin.removes(ONE, "child", &child);
                plugin.hears_of_the_end(ONE, &child);
            } else {
                plugin.does(ONE, |_| Vec::new());
                plugin.foreign(ONE, false);
            }
            if order {
                plugin.foreign(ONE, true);
            }
            tokio::time::advance(SECOND).await;
        }
        assert_eq!(plugin.found.len(), found, "{own} {order}: {:?}", plugin.found);
        let said = "things.v1.x.example.com n/child is created again and again";
        plugin.found.iter().for_each(|found| assert_eq!(*found, Loop { what: said.into(), told: said.into() }));
    }
}

#[test]
fn what_is_made_elsewhere_is_named_by_its_kind() {
    let me = Doer { controller: ControllerName::parse("one").unwrap(), key: ObjectKey::parse(Some("m"), "x").unwrap() };
    let woken = Wakes::default();
    let told = [say_made(&me, &made("a"), &woken).told, say_turns(&me, &removed("a"), &woken).told];
    assert_eq!(
        told,
        [
            "an object of things.v1.x.example.com elsewhere is created again and again",
            "objects of things.v1.x.example.com elsewhere are removed again and again"
        ]
    );
}

#[test]
fn a_deletion_is_known_by_its_incarnation_and_by_the_version_that_waits() {
    let plugin = Plugin::new(&["one"]);
    let errand = plugin.guards["one"].begin(&key("x"));
    let is_own = |was: Option<&Meta>, now: Option<&Meta>| feeds(&plugin, was, now, errand.by());
    let meta = |uid: &str, version: &str, deleting: bool, finalizers: &[&str]| Meta {
        uid: uid.into(),
        resource_version: version.into(),
        deleting,
        finalizers: finalizers.iter().map(|f| (*f).to_owned()).collect(),
        ..Meta::default()
    };
    let gone = |uid: &str| is_own(Some(&meta(uid, "1", false, &[])), None);
    errand.removed(&meta("a", "", false, &[]));
    errand.removed(&meta("b", "7", true, &["f"]));
    assert!(gone("a") && gone("b") && !gone("c"));
    assert!(is_own(None, Some(&meta("b", "7", true, &[]))) && !is_own(None, Some(&meta("b", "8", true, &[]))));
    // The write that takes the last of what holds it ends it as well.
    errand.wrote(&meta("d", "1", true, &["f"]));
    errand.wrote(&meta("d", "2", false, &[]));
    assert!(!gone("d"));
    errand.wrote(&meta("d", "3", true, &[]));
    assert!(gone("d"));
    // What nobody could know again is nobody's.
    errand.removed(&Meta::default());
    errand.wrote(&meta("e", "", false, &[]));
    assert!(!is_own(None, None) && !is_own(None, Some(&Meta::default())) && !gone("") && !gone("e"));
    assert!(!is_own(None, Some(&meta("e", "", false, &[]))));
}

#[tokio::test(start_paused = true)]
async fn what_changed_nothing_stays_the_write_of_who_made_that_version() {
    let mut plugin = Plugin::new(&["one", "other"]);
    let written = plugin.changes(ONE, "a", 0, 1);
    plugin.does(OTHER, |errand| {
        errand.wrote(&written.meta);
        Vec::new()
    });
    let [one, other] = [ONE, OTHER].map(|(name, of)| plugin.guards[name].doer(&key(of)));
    let is_of = |doer| feeds(&plugin, None, Some(&written.meta), doer);
    assert!(is_of(&one) && !is_of(&other));
}

#[tokio::test(start_paused = true)]
async fn so_many_writes_of_a_plugin_are_known_and_the_oldest_is_forgotten() {
    let mut plugin = Plugin::new(&["one"]);
    let me = plugin.guards["one"].doer(&key("x"));
    let first = plugin.changes(ONE, "a", 0, 1);
    let known = |plugin: &Plugin, object: &Cached| feeds(plugin, None, Some(&object.meta), &me);
    let written: Vec<_> = (1..MOST_DEEDS).map(|_| plugin.version("a", &json!({}))).collect();
    plugin.does(ONE, |errand| {
        for object in &written {
            errand.wrote(&object.meta);
        }
        Vec::new()
    });
    assert!(known(&plugin, &first));
    let last = plugin.changes(ONE, "a", 1, 2);
    assert!(!known(&plugin, &first) && known(&plugin, &written[0]) && known(&plugin, &last));
    assert_eq!(plugin.chain.len(), (MOST_DEEDS, MOST_DEEDS, 0));
}
