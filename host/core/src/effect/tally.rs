//! What one reconcile has used so far, held to its limits; and what all reconciles of a plugin use together.

use std::{
    collections::{BTreeSet, HashMap},
    hash::{BuildHasher as _, BuildHasherDefault},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use foldhash::quality::RandomState;
use tokio::time::Instant;

use super::meter::Meter;
use crate::{
    hashed::Hashed,
    limit::{Exceeded, Limit, Limits, MADE_FOR_WRITTEN},
    looping::Doer,
    resource::{ObjectKey, Resource},
};

/// Objects whose writes are counted at the same time. Only those count that were written within a minute; a plugin that writes more objects than that in a minute begins anew.
const MOST_WRITTEN: usize = 50_000;
/// The portion of what is written beyond them.
const BEYOND: u64 = 0;

/// Told of every limit that is met.
pub type OnExceeded = Arc<dyn Fn(Limit) + Send + Sync>;

/// What is counted over all reconciles of one plugin.
#[derive(Debug, Default)]
pub struct Rates {
    events: Bucket,
    log: Bucket,
    /// Of objects, and of what is made for them.
    writes: Writes,
    /// Lines that were left out since the last that was kept.
    left_out: AtomicU64,
    /// What was used so far.
    pub meter: Meter,
}

/// Nothing is left; how long until there is, where there ever is.
pub(crate) type Empty = Option<Duration>;

/// What is left of a minute's portion, and since when it fills up, which takes a minute.
#[derive(Debug, Clone, Copy)]
struct Level {
    left: f64,
    since: Instant,
}

impl Level {
    fn of(before: Option<Self>, a_minute: u64, now: Instant) -> Self {
        let full = a_minute as f64;
        let left = before.map_or(full, |before| {
            (before.left + now.duration_since(before.since).as_secs_f64() * full / 60.0).min(full)
        });
        Self { left, since: now }
    }

    /// Takes one of those that a minute brings, if there is one.
    fn take(&mut self, a_minute: u64) -> Result<(), Empty> {
        if self.left >= 1.0 {
            self.left -= 1.0;
            return Ok(());
        }
        // A division by zero is no duration.
        Err(Duration::try_from_secs_f64((1.0 - self.left) * 60.0 / a_minute as f64).ok())
    }
}

/// One portion.
#[derive(Debug, Default)]
pub(crate) struct Bucket(Mutex<Option<Level>>);

impl Bucket {
    pub(crate) fn take(&self, a_minute: u64) -> Result<(), Empty> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let level = Level::of(*state, a_minute, Instant::now());
        state.insert(level).take(a_minute)
    }
}

/// A portion for each object, of which only those are kept that are not full.
#[derive(Debug, Default)]
struct Writes {
    state: Mutex<Written>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Written {
    levels: HashMap<u64, Level, BuildHasherDefault<Hashed>>,
    /// How many there may be before those that are full again are looked for.
    most: usize,
    /// When they were.
    looked: Option<Instant>,
}

impl Writes {
    /// Answers to which portion it was counted.
    fn take(&self, mut object: u64, a_minute: u64, now: Instant) -> Result<u64, Empty> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(level) = state.levels.get_mut(&object) {
            *level = Level::of(Some(*level), a_minute, now);
            return level.take(a_minute).map(|()| object);
        }
        if state.levels.len() >= state.most {
            // Looking through all of them happens seldom enough to cost nothing.
            if state.looked.is_none_or(|at| now.duration_since(at) >= Duration::from_secs(1)) {
                state.levels.retain(|_, level| now.duration_since(level.since) < Duration::from_mins(1));
                state.most = (state.levels.len() * 2).clamp(1_000, MOST_WRITTEN);
                state.looked = Some(now);
            }
            // Whoever writes so many has what is beyond them held to one portion, and no portion forgotten.
            if state.levels.len() >= MOST_WRITTEN {
                object = BEYOND;
            }
        }
        let mut level = Level::of(state.levels.get(&object).copied(), a_minute, now);
        let taken = level.take(a_minute);
        state.levels.insert(object, level);
        taken.map(|()| object)
    }

    fn give_back(&self, object: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(level) = state.levels.get_mut(&object) {
            level.left += 1.0;
        }
    }
}

/// A write that was counted.
#[derive(Debug)]
pub(super) struct Counted(u64);

/// A rate that is met.
#[derive(Debug)]
pub(super) struct TooFast {
    /// When there is room again, where there ever is.
    pub after: Option<Duration>,
    /// What to say of it, once in a reconcile.
    pub first: Option<Exceeded>,
}

/// What becomes of a line.
pub(super) enum Line {
    /// It is kept; so many were left out before it.
    Kept(u64),
    /// It is the first that is over the reconcile's limit.
    FirstOver,
    /// It is left out.
    LeftOut,
}

/// What one reconcile has used.
pub(super) struct Tally {
    pub limits: Limits,
    calls: AtomicU64,
    bytes: AtomicU64,
    lines: AtomicU64,
    waiting: AtomicUsize,
    under_way: AtomicUsize,
    streams: AtomicUsize,
    /// Writes that were refused for their rate.
    refused: AtomicU64,
    rates: Arc<Rates>,
    exceeded: OnExceeded,
    met: Mutex<BTreeSet<Limit>>,
    /// The portion of what is made for the reconcile's object.
    by: OnceLock<u64>,
}

fn whole(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Gives back when it is dropped.
pub(super) struct Held {
    tally: Arc<Tally>,
    of: fn(&Tally) -> &AtomicUsize,
    amount: usize,
}

impl Held {
    pub fn tally(&self) -> &Tally {
        &self.tally
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        (self.of)(&self.tally).fetch_sub(self.amount, Ordering::Relaxed);
    }
}

impl Tally {
    pub fn new(limits: Limits, rates: Arc<Rates>, exceeded: OnExceeded) -> Self {
        Self {
            limits,
            calls: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            lines: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            rates,
            exceeded,
            met: Mutex::default(),
            by: OnceLock::new(),
        }
    }

    fn meet(&self, limit: Limit) {
        (self.exceeded)(limit);
        self.met.lock().unwrap_or_else(PoisonError::into_inner).insert(limit);
    }

    /// The limits that were met so far.
    pub fn met(&self) -> BTreeSet<Limit> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts a limit that is met.
    pub fn exceed(&self, limit: Limit, what: impl Into<String>) -> Exceeded {
        self.meet(limit);
        Exceeded { limit, what: what.into() }
    }

    /// Counts a call with so many bytes of arguments; `limit` says what an argument that is too long is.
    pub fn call(&self, bytes: usize, limit: Limit) -> Result<(), Exceeded> {
        self.rates.meter.host_call();
        self.rates.meter.send(whole(bytes));
        self.size("an argument", bytes, limit)?;
        if self.calls.fetch_add(1, Ordering::Relaxed) >= self.limits.host_calls {
            let most = self.limits.host_calls;
            return Err(self.exceed(Limit::HostCalls, format!("more than {most} host calls in one reconcile")));
        }
        self.carry(bytes)
    }

    /// Counts what a call carries beside its longest argument, whose bytes [`Tally::call`] counts.
    pub fn beside(&self, bytes: usize) -> Result<(), Exceeded> {
        self.rates.meter.send(whole(bytes));
        self.carry(bytes)
    }

    /// Counts an answer of so many bytes.
    pub fn answer(&self, bytes: usize, limit: Limit) -> Result<(), Exceeded> {
        self.rates.meter.receive(whole(bytes));
        self.size("the answer", bytes, limit)?;
        self.carry(bytes)
    }

    /// Counts an answer of which nothing is handed on.
    pub fn carried(&self, bytes: usize) -> Result<(), Exceeded> {
        self.rates.meter.receive(whole(bytes));
        self.carry(bytes)
    }

    fn size(&self, what: &str, bytes: usize, limit: Limit) -> Result<(), Exceeded> {
        let most = self.limits.message;
        if bytes > most {
            return Err(self.exceed(limit, format!("{what} of {bytes} bytes, and a host call carries at most {most}")));
        }
        Ok(())
    }

    fn carry(&self, bytes: usize) -> Result<(), Exceeded> {
        let (bytes, most) = (whole(bytes), self.limits.traffic);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > most {
            return Err(self.exceed(
                Limit::Traffic,
                format!("the arguments and answers of one reconcile come to more than {most} bytes"),
            ));
        }
        Ok(())
    }

    /// A call to the world begins.
    pub fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// It is over.
    pub fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether one is under way.
    pub fn is_waiting(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// Holds arguments while their call waits: each of ten thousand may be as long as a message.
    pub fn wait(self: &Arc<Self>, bytes: usize) -> Result<Held, Exceeded> {
        let most = self.limits.message.saturating_mul(4);
        self.hold(|tally| &tally.waiting, bytes, most).map_err(|()| {
            let what = format!(
                "host calls that wait hold more than {most} bytes of arguments, four messages; await some first"
            );
            self.exceed(Limit::Waiting, what)
        })
    }

    /// Holds a place for an open exchange, or for a unary call.
    pub fn stream(self: &Arc<Self>) -> Result<Held, Exceeded> {
        let most = self.limits.streams;
        self.hold(|tally| &tally.streams, 1, most).map_err(|()| {
            let what = format!(
                "the reconcile holds {most} open exchanges already, unary calls among them; drop or await some first"
            );
            self.exceed(Limit::Streams, what)
        })
    }

    fn hold(self: &Arc<Self>, of: fn(&Self) -> &AtomicUsize, amount: usize, most: usize) -> Result<Held, ()> {
        let before = of(self).fetch_add(amount, Ordering::Relaxed);
        let held = Held { tally: Arc::clone(self), of, amount };
        if before.saturating_add(amount) > most { Err(()) } else { Ok(held) }
    }

    /// Counts an event.
    pub fn event(&self) -> Result<(), TooFast> {
        let most = self.limits.event_rate;
        self.rates.events.take(most).map_err(|after| {
            self.too_fast(Limit::EventRate, after, || format!("the plugin publishes more than {most} events a minute"))
        })
    }

    /// Counts a write of an object.
    pub fn write(&self, resource: &Resource, key: &ObjectKey, now: Instant) -> Result<Counted, TooFast> {
        let most = self.limits.write_rate;
        let what = || format!("the plugin writes {resource} {key} more than {most} times a minute");
        self.count(self.rates.writes.hasher.hash_one((resource, key)), most, now, what)
    }

    /// Counts an object that is made for another.
    pub fn make(&self, by: &Doer, now: Instant) -> Result<Counted, TooFast> {
        let Doer { controller, key } = by;
        let written = self.limits.write_rate;
        let most = written.saturating_mul(MADE_FOR_WRITTEN);
        let what = || {
            format!(
                "controller {controller} makes more than {most} objects a minute for {key}, {MADE_FOR_WRITTEN} times the {written} writes of one object"
            )
        };
        // The same all through a reconcile.
        let by = *self.by.get_or_init(|| self.rates.writes.hasher.hash_one(by));
        self.count(by, most, now, what)
    }

    fn count(&self, object: u64, most: u64, now: Instant, what: impl FnOnce() -> String) -> Result<Counted, TooFast> {
        let taken = self.rates.writes.take(object, most, now);
        taken.map(Counted).map_err(|after| self.too_fast(Limit::WriteRate, after, what))
    }

    /// It was none after all.
    pub fn was_free(&self, counted: &Counted) {
        self.rates.writes.give_back(counted.0);
    }

    fn too_fast(&self, limit: Limit, after: Empty, what: impl FnOnce() -> String) -> TooFast {
        self.meet(limit);
        let first = self.refused.fetch_add(1, Ordering::Relaxed) == 0;
        TooFast { after, first: first.then(|| Exceeded { limit, what: what() }) }
    }

    /// Counts a line of the log.
    pub fn line(&self) -> Line {
        let before = self.lines.fetch_add(1, Ordering::Relaxed);
        if before >= self.limits.log_lines {
            self.meet(Limit::LogLines);
            return if before == self.limits.log_lines { Line::FirstOver } else { Line::LeftOut };
        }
        if self.rates.log.take(self.limits.log_rate).is_ok() {
            return Line::Kept(self.rates.left_out.swap(0, Ordering::Relaxed));
        }
        self.rates.left_out.fetch_add(1, Ordering::Relaxed);
        self.meet(Limit::LogRate);
        Line::LeftOut
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_of_objects_is_bounded_and_forgets_first_what_is_full_again() {
        let writes = Writes::default();
        let take = |object| writes.take(object, 1, Instant::now());
        let kept = || writes.state.lock().unwrap().levels.len();
        for object in 0..900 {
            take(object).unwrap();
        }
        advance(Duration::from_secs(61)).await;
        take(5_000).unwrap();
        for object in 1_000..1_200 {
            take(object).unwrap();
        }
        assert_eq!(kept(), 201, "those of a minute ago are gone");
        assert!(take(5_000).is_err(), "and no other");
        let refused = (10_000..200_000).filter(|object| take(*object).is_err()).count();
        assert_eq!(
            (kept(), refused),
            (MOST_WRITTEN + 1, 190_000 - (MOST_WRITTEN - 201) - 1),
            "the rest shares one portion"
        );
        assert!(take(5_000).is_err(), "and none is forgotten for it");
        advance(Duration::from_secs(61)).await;
        assert_eq!(take(7), Ok(7));
        assert_eq!(kept(), 1);
    }
}
