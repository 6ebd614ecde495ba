//! The loop guard: finds a controller whose own writes wake it again and again, or that fights somebody over a field, names the field, and slows that one key.
//!
//! A *lap* is a change of one field by a reconcile
//! - that nothing but the controller's own writes woke, or a chain of the plugin's writes that feeds itself ([`Chain`]: two controllers, or two objects, that wake each other), or
//! - that puts back what the controller wrote and somebody else changed meanwhile, or
//! - that goes back to a value which the controller wrote before, in a part of an object that no controller ought to count or measure in (anything but `status`), without anybody
//!   having changed what the controller is asked for.
//!
//! Making an object that the controller made before, and that went, is such a change of the whole object, unless somebody ordered it, or the controller removed it itself and others call it.
//!
//! [`LAPS`] laps of one field in a minute are a loop, and so are [`TURNS`] reconciles of the first kind that write anything at all: other objects each time, or other fields. What is no
//! loop, then: an object that settles after some writes, since each step changes other fields; a chain that hands on and ends; a status that mirrors what others do, however fast, since
//! they wake the controller and nobody puts anything back; a thousand children made at once, or one by one as others let them grow; a time or a counter that is written whenever the
//! controller asked to be called again; whatever a person or another operator orders by a new spec.
//!
//! While it lasts, the key runs after pauses that double; it is over when [`LAPS`]' minute and twice the pause have passed without a lap. Memory is bounded: only keys that wrote within a
//! minute are known, and nothing of an object is looked at before a key has written [`WARM`] times in a minute.

mod chain;
mod differences;

pub use chain::{Chain, Doer, Errand, Happened};

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use self::{
    chain::{Wakes, fingerprint},
    differences::{Change, differences},
};
use crate::{
    backoff::Backoff,
    cache::Cached,
    effect::printable,
    name::ControllerName,
    resource::{ObjectKey, Resource},
};

/// Laps of one field within [`WINDOW`] that are a loop. Together with [`WARM`]: thirty changes of one field in a minute, which an operator that settles, or a person who types, never makes;
/// what spins makes them within a second. A loop that takes two seconds a lap harms nobody.
const LAPS: usize = 20;
/// Reconciles within [`WINDOW`] that nothing but the plugin's own writes woke and that wrote something, whatever it was, which are a loop. An operator that makes its children one after
/// the other, each woken by the one before, may do so a hundred times; then it goes on slowly.
const TURNS: usize = 100;
/// Reconciles of a key that wrote something, within [`WINDOW`], before anybody looks what they wrote.
const WARM: usize = 10;
/// In which laps count.
const WINDOW: Duration = Duration::from_mins(1);
/// Between two reconciles of a key that loops.
const PAUSES: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_mins(1), jitter: 0.1 };
/// Between two of a key that writes something else each time: so slow that it can fill no cluster, and that who makes a thousand children one by one comes to an end.
const SHORT_PAUSES: Backoff = Backoff { longest: Duration::from_secs(10), ..PAUSES };
/// Keys known at the same time. Those that loop are the last to be forgotten.
const MOST_KEYS: usize = 2_000;
/// Fields of one key that are known at the same time.
const MOST_FIELDS: usize = 64;
/// Values of one field that are remembered.
const MOST_VALUES: usize = 8;
/// Where the laps of an object that is made again and again are kept, which is no path of a field.
const MADE: &str = "made";
/// Instead of a value there: the controller made the object, or removed it.
const CAME: u64 = 0;
const WENT: u64 = 1;
/// Bytes of objects that are read of one reconcile, before and after: of two of the largest that there are.
const MOST_READ: usize = 4 << 20;
/// Bytes of a value that are shown.
const SHOWN: usize = 40;

/// What one write did to an object.
#[derive(Debug, Clone)]
pub struct Step {
    /// Of which kind.
    pub resource: Resource,
    /// Which object.
    pub key: ObjectKey,
    /// What it did.
    pub deed: Deed,
}

/// What was done to an object.
#[derive(Debug, Clone)]
pub enum Deed {
    /// It was made.
    Made,
    /// It was changed.
    Changed {
        /// As it was; none where that is not known.
        before: Option<Arc<Cached>>,
        /// As it is now.
        now: Arc<Cached>,
    },
    /// It was removed.
    Removed,
    /// Something that had no answer.
    Unanswered,
}

/// A loop, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loop {
    /// For who looks after plugins: `.spec.replicas of deployments.v1.apps n/x flaps between 3 and 4`.
    pub what: String,
    /// For who sees the key's object and perhaps nothing else: which field of which object changes, without its values; of an object of another namespace only the kind.
    pub told: String,
}

/// What follows from a reconcile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The key may not run before this time has passed.
    pub hold: Option<Duration>,
    /// A loop that was not known before.
    pub found: Option<Loop>,
}

/// The guard of one controller.
#[derive(Debug)]
pub struct Guard {
    controller: ControllerName,
    chain: Arc<Chain>,
    tracks: Mutex<HashMap<ObjectKey, Track>>,
}

/// What is known of one key.
#[derive(Debug)]
struct Track {
    me: Arc<Doer>,
    /// When reconciles wrote something, the last [`WARM`].
    wrote: VecDeque<Instant>,
    /// When reconciles did that nothing but the plugin's own writes woke, the last [`TURNS`].
    turns: VecDeque<Instant>,
    /// What woke it since its last reconcile began.
    wakes: Wakes,
    /// What woke the reconcile that runs.
    woken: Wakes,
    /// A reconcile is under way, of whose writes nothing is known yet.
    running: bool,
    fields: HashMap<Place, Field>,
    looping: Option<Looping>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Place {
    resource: Resource,
    key: ObjectKey,
    path: String,
}

#[derive(Debug, Default)]
struct Field {
    /// What the controller wrote, the last one at the end.
    values: VecDeque<u64>,
    laps: VecDeque<Instant>,
}

/// So many laps there are of the one thing by now, of so many that are a loop.
struct Laps {
    count: usize,
    most: usize,
    pauses: Backoff,
    what: Loop,
}

#[derive(Debug)]
struct Looping {
    what: Loop,
    pauses: u32,
    until: Instant,
}

/// Adds this moment to the last `most` of them, of which those within [`WINDOW`] count.
fn mark(times: &mut VecDeque<Instant>, now: Instant, most: usize) -> usize {
    times.push_back(now);
    while times.len() > most || times.front().is_some_and(|at| now.duration_since(*at) >= WINDOW) {
        times.pop_front();
    }
    times.len()
}

impl Guard {
    /// For a controller, which shares the chain with the others of its plugin.
    pub fn new(controller: ControllerName, chain: Arc<Chain>) -> Self {
        Self { controller, chain, tracks: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Track>> {
        self.tracks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doer(&self, key: &ObjectKey) -> Arc<Doer> {
        Arc::new(Doer { controller: self.controller.clone(), key: key.clone() })
    }

    /// An event woke a key. `order` says whether this may be what a person or another operator asks for: of the primary object's spec, or of what
    /// is watched and not owned. Answers whether the key loops and this is such an order by somebody else, so that it may not wait.
    pub fn heard(&self, key: &ObjectKey, what: &Happened<'_>, order: bool) -> bool {
        let mut tracks = self.lock();
        let Some(track) = tracks.get_mut(key) else { return false };
        let wake = what.wake(order);
        track.wakes.add(wake, &self.chain, &track.me);
        order && track.looping.is_some() && !track.running && !self.chain.feeds(&wake, &track.me)
    }

    /// A reconcile begins, whose writes are to be noted in what this answers.
    pub fn begin(&self, key: &ObjectKey) -> Errand {
        let mut tracks = self.lock();
        let (by, wakes) = match tracks.get_mut(key) {
            Some(track) => {
                track.running = true;
                track.woken = std::mem::take(&mut track.wakes);
                track.woken.sort_out(&self.chain, &track.me);
                (track.me.clone(), track.woken.clone())
            }
            // It wrote nothing lately, so that no chain goes on here.
            None => (self.doer(key), Wakes::default()),
        };
        Errand { by, wakes, chain: self.chain.clone() }
    }

    /// It ended, having done this.
    pub fn ended(&self, key: &ObjectKey, steps: &[Step]) -> Verdict {
        let counts = |step: &&Step| match &step.deed {
            Deed::Changed { before: Some(before), now } => before.meta.resource_version != now.meta.resource_version,
            Deed::Changed { before: None, .. } | Deed::Made | Deed::Removed | Deed::Unanswered => true,
        };
        let steps: Vec<_> = steps.iter().filter(counts).collect();
        let now = Instant::now();
        let looks = {
            let mut tracks = self.lock();
            if !tracks.contains_key(key) {
                if steps.is_empty() {
                    return Verdict::default();
                }
                make_room(&mut tracks, now);
            } else if tracks.get(key).is_some_and(|track| track.is_forgotten(now)) {
                tracks.remove(key);
                if steps.is_empty() {
                    return Verdict::default();
                }
            }
            tracks.entry(key.clone()).or_insert_with(|| Track::new(self.doer(key))).wrote(&steps, now)
        };
        if !looks {
            return Verdict::default();
        }
        // Objects may be large: nobody waits while they are read.
        let changes = changes(&steps);
        // Where other code took over meanwhile, nothing is left to judge.
        self.lock().get_mut(key).map_or_else(Verdict::default, |track| track.ended(&self.chain, &steps, changes, now))
    }

    /// Which loops there are now.
    pub fn loops(&self) -> Vec<(ObjectKey, String)> {
        let now = Instant::now();
        let tracks = self.lock();
        let looping = tracks.iter().filter_map(|(key, track)| {
            let looping = track.looping.as_ref().filter(|looping| looping.until > now)?;
            Some((key.clone(), looping.what.what.clone()))
        });
        let mut loops: Vec<_> = looping.collect();
        loops.sort();
        loops
    }

    /// Other code or another policy took over: what was before says nothing about it.
    pub fn begin_anew(&self) {
        self.lock().clear();
    }
}

/// Which fields each step changed.
fn changes(steps: &[&Step]) -> Vec<Vec<Change>> {
    let mut read = 0_usize;
    let of = |step: &&Step| match &step.deed {
        Deed::Changed { before: Some(before), now } => {
            // What is too large is left out, and hides nothing that comes after it.
            let more = read.saturating_add(before.json.len() + now.json.len());
            if more > MOST_READ {
                return Vec::new();
            }
            read = more;
            differences(&before.value(), &now.value())
        }
        Deed::Changed { before: None, .. } | Deed::Made | Deed::Removed | Deed::Unanswered => Vec::new(),
    };
    steps.iter().map(of).collect()
}

/// Forgets what is over, and if that is not enough, all that does not loop, and if that is not enough, all.
fn make_room(tracks: &mut HashMap<ObjectKey, Track>, now: Instant) {
    if tracks.len() < MOST_KEYS {
        return;
    }
    tracks.retain(|_, track| !track.is_forgotten(now));
    if tracks.len() >= MOST_KEYS {
        tracks.retain(|_, track| track.looping.is_some());
    }
    if tracks.len() >= MOST_KEYS {
        tracks.clear();
    }
}

impl Track {
    fn new(me: Arc<Doer>) -> Self {
        Self {
            me,
            wrote: VecDeque::new(),
            turns: VecDeque::new(),
            wakes: Wakes::default(),
            woken: Wakes::default(),
            running: false,
            fields: HashMap::new(),
            looping: None,
        }
    }

    /// Nothing of it counts any more.
    fn is_forgotten(&self, now: Instant) -> bool {
        let wrote = self.wrote.back().is_some_and(|at| now.duration_since(*at) < WINDOW);
        let looping = self.looping.as_ref().is_some_and(|looping| looping.until > now);
        !wrote && !looping
    }

    /// A reconcile ended that did this; answers whether it matters what exactly.
    fn wrote(&mut self, steps: &[&Step], now: Instant) -> bool {
        if !steps.is_empty() {
            self.wrote.push_back(now);
            if self.wrote.len() > WARM {
                self.wrote.pop_front();
            }
            let is_warm =
                self.wrote.len() == WARM && self.wrote.front().is_some_and(|at| now.duration_since(*at) < WINDOW);
            if is_warm || self.looping.is_some() {
                return true;
            }
        }
        self.woken = Wakes::default();
        self.running = false;
        false
    }

    fn ended(&mut self, chain: &Chain, steps: &[&Step], changes: Vec<Vec<Change>>, now: Instant) -> Verdict {
        let mut woken = std::mem::take(&mut self.woken);
        self.running = false;
        woken.sort_out(chain, &self.me);
        let mut laps = Vec::new();
        let makes = steps.iter().any(|step| matches!(step.deed, Deed::Made));
        for (step, changes) in steps.iter().zip(changes) {
            match &step.deed {
                Deed::Changed { .. } => laps.extend(self.look(step, changes, &woken, makes, now)),
                Deed::Made => self.look_at_new(step, &woken, now, &mut laps),
                Deed::Removed => self.look_at_removed(step, now),
                Deed::Unanswered => {}
            }
        }
        if woken.is_alone()
            && let Some(last) = steps.last()
        {
            let count = mark(&mut self.turns, now, TURNS);
            let named = steps.iter().rfind(|step| matches!(step.deed, Deed::Made)).unwrap_or(last);
            let what = say_turns(&self.me, named, &woken);
            laps.push(Laps { count, most: TURNS, pauses: SHORT_PAUSES, what });
        }
        let verdict = self.judge(laps, now);
        self.wakes.sort_out(chain, &self.me);
        if verdict.hold.is_some() {
            self.wakes.carry(&woken);
        }
        // Who asked for something else meanwhile does not wait.
        Verdict { hold: verdict.hold.filter(|_| !self.wakes.is_ordered()), ..verdict }
    }

    /// What is known of a field; none where too many are.
    fn field(&mut self, place: &Place, now: Instant) -> Option<&mut Field> {
        if self.fields.len() >= MOST_FIELDS && !self.fields.contains_key(place) {
            self.fields.retain(|_, field| field.laps.back().is_some_and(|at| now.duration_since(*at) < WINDOW));
            if self.fields.len() >= MOST_FIELDS {
                return None;
            }
        }
        Some(self.fields.entry(place.clone()).or_default())
    }

    /// Finds the laps of one change.
    fn look(&mut self, step: &Step, changes: Vec<Change>, woken: &Wakes, makes: bool, now: Instant) -> Vec<Laps> {
        let mut laps = Vec::new();
        let me = self.me.clone();
        for change in changes {
            let place = Place { resource: step.resource.clone(), key: step.key.clone(), path: change.path.clone() };
            let Some(field) = self.field(&place, now) else { continue };
            let value = fingerprint(&change.to.to_string());
            let put_back = field.values.back() == Some(&value);
            let returns = field.values.contains(&value);
            field.values.retain(|known| *known != value);
            field.values.push_back(value);
            if field.values.len() > MOST_VALUES {
                field.values.pop_front();
            }
            let is_status = place.path.starts_with(".status");
            // What makes one object after the other counts them, perhaps, which [`TURNS`] judges.
            if woken.is_alone() && !makes || put_back || returns && !is_status && !woken.is_ordered() {
                let count = mark(&mut field.laps, now, LAPS);
                let what = say(&me, &place, &change, put_back || returns, woken);
                laps.push(Laps { count, most: LAPS, pauses: PAUSES, what });
            }
        }
        laps
    }

    /// Finds out whether an object that was made is made again and again.
    fn look_at_new(&mut self, step: &Step, woken: &Wakes, now: Instant, laps: &mut Vec<Laps>) {
        let me = self.me.clone();
        let place = Place { resource: step.resource.clone(), key: step.key.clone(), path: MADE.to_owned() };
        let Some(field) = self.field(&place, now) else { return };
        let before = field.values.pop_back();
        field.values.push_back(CAME);
        // What the controller itself removed it may make again for as long as others call it.
        if before == Some(CAME) && !woken.is_ordered() || before == Some(WENT) && woken.is_alone() {
            let count = mark(&mut field.laps, now, LAPS);
            let what = say_made(&me, step, woken);
            laps.push(Laps { count, most: LAPS, pauses: PAUSES, what });
        }
    }

    /// Notes that an object went by the controller's own doing.
    fn look_at_removed(&mut self, step: &Step, now: Instant) {
        let place = Place { resource: step.resource.clone(), key: step.key.clone(), path: MADE.to_owned() };
        if let Some(field) = self.fields.contains_key(&place).then(|| self.field(&place, now)).flatten() {
            field.values = [WENT].into();
        }
    }

    fn judge(&mut self, laps: Vec<Laps>, now: Instant) -> Verdict {
        // Of several that change together the first is as good as any.
        let nearer = |a: Laps, b: Laps| if b.count * a.most > a.count * b.most { b } else { a };
        let Some(Laps { count, most, pauses: backoff, what }) = laps.into_iter().reduce(nearer) else {
            return Verdict::default();
        };
        let known = self.looping.take().filter(|looping| looping.until > now);
        if known.is_none() && count < most {
            return Verdict::default();
        }
        let pauses = known.as_ref().map_or(1, |known| known.pauses.saturating_add(1));
        let hold = backoff.delay(pauses, rand::random());
        let found = known.is_none().then(|| what.clone());
        self.looping =
            Some(Looping { what: known.map_or(what, |known| known.what), pauses, until: now + hold * 2 + WINDOW });
        Verdict { hold: Some(hold), found }
    }
}

/// How a sentence about a lap goes on where others of the plugin take part.
fn with(me: &Doer, woken: &Wakes) -> String {
    match woken.with().filter(|_| woken.is_alone()) {
        Some(other) if other.controller == me.controller => format!(", woken by what it writes for {}", other.key),
        Some(other) => {
            format!(", woken by what controller {} of this plugin writes for {}", other.controller, other.key)
        }
        None => String::new(),
    }
}

/// In words: a field that changes. What a Secret holds is never said.
fn say(me: &Doer, place: &Place, change: &Change, returns: bool, woken: &Wakes) -> Loop {
    let Place { resource, key, path } = place;
    let (path, elsewhere) = (printable(path, 120), key.namespace != me.key.namespace);
    let what = format!("{path} of {resource} {key}");
    let field = if elsewhere { format!("a field of {resource} elsewhere") } else { what.clone() };
    let told = format!("{field} changes again and again");
    let with = with(me, woken);
    if resource.group().is_empty() && resource.resource() == "secrets" {
        return Loop { what: format!("{what} changes again and again{with}"), told };
    }
    let shown =
        |value: &Value| if value.is_null() { "nothing".to_owned() } else { printable(&value.to_string(), SHOWN) };
    let (from, to) = (shown(&change.from), shown(&change.to));
    if returns {
        // In one order, whichever of the two came last.
        let (a, b) = if from <= to { (from, to) } else { (to, from) };
        Loop { what: format!("{what} flaps between {a} and {b}{with}"), told }
    } else {
        Loop { what: format!("{what} changes with every reconcile, last from {from} to {to}{with}"), told }
    }
}

/// In words: an object that is made again and again.
fn say_made(me: &Doer, step: &Step, woken: &Wakes) -> Loop {
    let what = format!("{} {} is created again and again", step.resource, step.key);
    let told = if step.key.namespace == me.key.namespace {
        what.clone()
    } else {
        format!("an object of {} elsewhere is created again and again", step.resource)
    };
    Loop { what: what + &with(me, woken), told }
}

/// In words: a key that its own writes wake for ever, and that does something else each time.
fn say_turns(me: &Doer, step: &Step, woken: &Wakes) -> Loop {
    let (objects, deed) = (
        format!("objects of {}", step.resource),
        match step.deed {
            Deed::Made => "are created again and again",
            Deed::Changed { .. } => "are changed again and again",
            Deed::Removed => "are removed again and again",
            Deed::Unanswered => "are written again and again",
        },
    );
    let place = step.key.namespace.as_ref().map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
    let what = format!("{objects}{place} {deed}");
    let told =
        if step.key.namespace == me.key.namespace { what.clone() } else { format!("{objects} elsewhere {deed}") };
    Loop { what: what + &with(me, woken), told }
}

#[cfg(test)]
mod tests;
