//! The loop guard: finds a controller whose own writes wake it again and again, or that fights somebody over a field, names the field, and slows that one key.
//!
//! A *lap* is a change of one field by a reconcile
//! - that nothing but the controller's own writes woke, or
//! - that puts back what the controller wrote and somebody else changed meanwhile, or
//! - that goes back to a value which the controller wrote before, in a part of an object that no controller ought to count or measure in (anything but `status`), without anybody
//!   having changed what the controller is asked for.
//!
//! [`LAPS`] laps of one field in a minute are a loop. What is no loop, then: an object that settles after some writes, since each step changes other fields; a status that mirrors what
//! others do, however fast, since they wake the controller and nobody puts anything back; a time or a counter that is written whenever the controller asked to be called again; whatever
//! a person or another operator orders by a new spec.
//!
//! While it lasts, the key runs after pauses that double; it is over when [`LAPS`]' minute and twice the pause have passed without a lap. Memory is bounded: only keys that wrote within a
//! minute are known, and nothing of an object is looked at before a key has written [`WARM`] times in a minute.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hasher as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use crate::{
    backoff::Backoff,
    cache::{Cached, Meta},
    effect::printable,
    resource::{ObjectKey, Resource},
};

/// Laps of one field within [`WINDOW`] that are a loop. Together with [`WARM`]: thirty changes of one field in a minute, which an operator that settles, or a person who types, never makes;
/// what spins makes them within a second. A loop that takes two seconds a lap harms nobody.
const LAPS: usize = 20;
/// Reconciles of a key that wrote something, within [`WINDOW`], before anybody looks what they wrote.
const WARM: usize = 10;
/// In which laps count.
const WINDOW: Duration = Duration::from_mins(1);
/// Between two reconciles of a key that loops.
const PAUSES: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_mins(1), jitter: 0.1 };
/// Keys known at the same time. Those that loop are the last to be forgotten.
const MOST_KEYS: usize = 2_000;
/// Fields of one key that are known at the same time.
const MOST_FIELDS: usize = 64;
/// Own writes that are remembered until their events come.
const MOST_OWN: usize = 64;
/// Events that wake one reconcile and are told apart.
const MOST_WAKES: usize = 16;
/// Values of one field that are remembered.
const MOST_VALUES: usize = 8;
/// Changes of one write that are looked at, and how deep.
const MOST_CHANGES: usize = 32;
const DEEPEST: usize = 24;
/// Bytes of a value that are shown.
const SHOWN: usize = 40;

/// What one write did to an object.
#[derive(Debug, Clone)]
pub struct Step {
    /// Of which kind.
    pub resource: Resource,
    /// Which object.
    pub key: ObjectKey,
    /// As it was; none where that is not known.
    pub before: Option<Arc<Cached>>,
    /// As it is now.
    pub now: Arc<Cached>,
}

/// A loop, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loop {
    /// For who looks after plugins: `.spec.replicas of deployments.v1.apps n/x flaps between 3 and 4`.
    pub what: String,
    /// For who sees the key's object and perhaps nothing else: which field of which object, without its values; of an object of another namespace only the kind.
    pub field: String,
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
#[derive(Debug, Default)]
pub struct Guard(Mutex<HashMap<ObjectKey, Track>>);

/// What is known of one key.
#[derive(Debug, Default)]
struct Track {
    /// When reconciles wrote something, the last [`WARM`].
    wrote: VecDeque<Instant>,
    /// The events that its writes bring about.
    own: VecDeque<u64>,
    /// What woke it since its last reconcile began.
    wakes: Vec<Wake>,
    /// What woke the reconcile that runs.
    woken: Woken,
    /// A reconcile is under way, of whose writes nothing is known yet.
    running: bool,
    fields: HashMap<Place, Field>,
    looping: Option<Looping>,
}

#[derive(Debug, Clone, Copy)]
struct Wake {
    event: u64,
    order: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Woken {
    /// By nothing but its own writes.
    alone: bool,
    /// Somebody changed what it is asked for.
    ordered: bool,
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

#[derive(Debug)]
struct Looping {
    what: Loop,
    pauses: u32,
    until: Instant,
}

/// Which event a version of an object brings about.
fn event(meta: &Meta) -> Option<u64> {
    (!meta.uid.is_empty()).then(|| fingerprint(&(&meta.uid, &meta.resource_version)))
}

fn fingerprint(value: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Guard {
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Track>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event woke a key: an object is so now, or gone. `order` says whether this may be what a person or another operator asks for: of the primary object's spec, or of what is watched
    /// and not owned. Answers whether the key loops and this is such an order by somebody else, so that it may not wait.
    pub fn heard(&self, key: &ObjectKey, object: Option<&Meta>, order: bool) -> bool {
        let mut tracks = self.lock();
        let Some(track) = tracks.get_mut(key) else { return false };
        let event = object.and_then(event).unwrap_or_default();
        // One more than are told apart is somebody else's.
        let event = if track.wakes.len() < MOST_WAKES { event } else { 0 };
        if track.wakes.len() <= MOST_WAKES {
            track.wakes.push(Wake { event, order });
        }
        order && track.looping.is_some() && !track.running && !track.own.contains(&event)
    }

    /// A reconcile begins.
    pub fn begin(&self, key: &ObjectKey) {
        let mut tracks = self.lock();
        let Some(track) = tracks.get_mut(key) else { return };
        let wakes = std::mem::take(&mut track.wakes);
        let mut foreign = wakes.iter().filter(|wake| !track.own.contains(&wake.event)).peekable();
        let alone = !wakes.is_empty() && foreign.peek().is_none();
        track.running = true;
        track.woken = Woken { alone, ordered: foreign.any(|wake| wake.order) };
    }

    /// It ended, having done this.
    pub fn ended(&self, key: &ObjectKey, steps: &[Step]) -> Verdict {
        let changed = |step: &&Step| {
            step.before.as_ref().is_none_or(|before| before.meta.resource_version != step.now.meta.resource_version)
        };
        let steps: Vec<_> = steps.iter().filter(changed).collect();
        let now = Instant::now();
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
        tracks.entry(key.clone()).or_default().ended(key, &steps, now)
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
    /// Nothing of it counts any more.
    fn is_forgotten(&self, now: Instant) -> bool {
        let wrote = self.wrote.back().is_some_and(|at| now.duration_since(*at) < WINDOW);
        let looping = self.looping.as_ref().is_some_and(|looping| looping.until > now);
        !wrote && !looping
    }

    fn ended(&mut self, key: &ObjectKey, steps: &[&Step], now: Instant) -> Verdict {
        let woken = std::mem::take(&mut self.woken);
        self.running = false;
        for step in steps {
            self.own.extend(event(&step.now.meta));
            if self.own.len() > MOST_OWN {
                self.own.pop_front();
            }
        }
        if steps.is_empty() {
            return Verdict::default();
        }
        self.wrote.push_back(now);
        if self.wrote.len() > WARM {
            self.wrote.pop_front();
        }
        let is_warm = self.wrote.len() == WARM && self.wrote.front().is_some_and(|at| now.duration_since(*at) < WINDOW);
        if !is_warm && self.looping.is_none() {
            return Verdict::default();
        }
        let mut laps = Vec::new();
        for step in steps {
            self.look(key, step, woken, now, &mut laps);
        }
        let verdict = self.judge(laps, now);
        let ordered = self.wakes.iter().any(|wake| wake.order && !self.own.contains(&wake.event));
        // Who asked for something else meanwhile does not wait.
        Verdict { hold: verdict.hold.filter(|_| !ordered), ..verdict }
    }

    /// Finds the laps of one write: how many its field has by now, and what is to be said of it.
    fn look(&mut self, of: &ObjectKey, step: &Step, woken: Woken, now: Instant, laps: &mut Vec<(usize, Loop)>) {
        let Some(before) = &step.before else { return };
        let mut changes = Vec::new();
        differences("", &before.value(), &step.now.value(), 0, &mut changes);
        for Change { path, from, to } in changes {
            let place = Place { resource: step.resource.clone(), key: step.key.clone(), path };
            if self.fields.len() >= MOST_FIELDS && !self.fields.contains_key(&place) {
                self.fields.retain(|_, field| field.laps.back().is_some_and(|at| now.duration_since(*at) < WINDOW));
                if self.fields.len() >= MOST_FIELDS {
                    continue;
                }
            }
            let field = self.fields.entry(place.clone()).or_default();
            let value = fingerprint(&to.to_string());
            let put_back = field.values.back() == Some(&value);
            let returns = field.values.contains(&value);
            field.values.retain(|known| *known != value);
            field.values.push_back(value);
            if field.values.len() > MOST_VALUES {
                field.values.pop_front();
            }
            let is_status = place.path.starts_with(".status");
            if !(woken.alone || put_back || returns && !is_status && !woken.ordered) {
                continue;
            }
            field.laps.push_back(now);
            while field.laps.len() > LAPS || field.laps.front().is_some_and(|at| now.duration_since(*at) >= WINDOW) {
                field.laps.pop_front();
            }
            laps.push((field.laps.len(), say(of, &place, &from, &to, put_back || returns)));
        }
    }

    fn judge(&mut self, laps: Vec<(usize, Loop)>, now: Instant) -> Verdict {
        // Of several that change together the first is as good as any.
        let Some((most, what)) = laps.into_iter().reduce(|a, b| if b.0 > a.0 { b } else { a }) else {
            return Verdict::default();
        };
        let known = self.looping.take().filter(|looping| looping.until > now);
        if known.is_none() && most < LAPS {
            return Verdict::default();
        }
        let pauses = known.as_ref().map_or(1, |known| known.pauses.saturating_add(1));
        let hold = PAUSES.delay(pauses, rand::random());
        let found = known.is_none().then(|| what.clone());
        self.looping =
            Some(Looping { what: known.map_or(what, |known| known.what), pauses, until: now + hold * 2 + WINDOW });
        Verdict { hold: Some(hold), found }
    }
}

/// In words. What a Secret holds is never said.
fn say(of: &ObjectKey, place: &Place, from: &Value, to: &Value, returns: bool) -> Loop {
    let Place { resource, key, path } = place;
    let (path, elsewhere) = (printable(path, 120), key.namespace != of.namespace);
    let what = format!("{path} of {resource} {key}");
    let field = if elsewhere { format!("a field of {resource} elsewhere") } else { what.clone() };
    if resource.group().is_empty() && resource.resource() == "secrets" {
        return Loop { what: format!("{what} changes again and again"), field };
    }
    let shown =
        |value: &Value| if value.is_null() { "nothing".to_owned() } else { printable(&value.to_string(), SHOWN) };
    let (from, to) = (shown(from), shown(to));
    if returns {
        // In one order, whichever of the two came last.
        let (a, b) = if from <= to { (from, to) } else { (to, from) };
        Loop { what: format!("{what} flaps between {a} and {b}"), field }
    } else {
        Loop { what: format!("{what} changes with every reconcile, last from {from} to {to}"), field }
    }
}

/// One field that a write changed.
#[derive(Debug, PartialEq)]
struct Change {
    path: String,
    from: Value,
    to: Value,
}

/// What the API server itself changes with each write.
const BOOKKEEPING: [&str; 3] = [".metadata.resourceVersion", ".metadata.generation", ".metadata.managedFields"];

fn differences(path: &str, before: &Value, now: &Value, depth: usize, all: &mut Vec<Change>) {
    if before == now || all.len() >= MOST_CHANGES || BOOKKEEPING.contains(&path) {
        return;
    }
    match (before, now) {
        (Value::Object(before), Value::Object(now)) if depth < DEEPEST => {
            for (name, value) in before {
                let path = format!("{path}.{name}");
                differences(&path, value, now.get(name).unwrap_or(&Value::Null), depth + 1, all);
            }
            for (name, value) in now.iter().filter(|(name, _)| !before.contains_key(*name)) {
                differences(&format!("{path}.{name}"), &Value::Null, value, depth + 1, all);
            }
        }
        (Value::Array(before), Value::Array(now)) if depth < DEEPEST && before.len() == now.len() => {
            for (at, (before, now)) in before.iter().zip(now).enumerate() {
                // As people call the items of Kubernetes' lists.
                let name = ["name", "type"].into_iter().find_map(|field| now.get(field).and_then(Value::as_str));
                let name = name.map_or_else(|| at.to_string(), str::to_owned);
                differences(&format!("{path}[{name}]"), before, now, depth + 1, all);
            }
        }
        _ => all.push(Change { path: path.to_owned(), from: before.clone(), to: now.clone() }),
    }
}

#[cfg(test)]
mod tests;
