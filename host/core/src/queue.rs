//! The work queue of one controller: which key runs next.
//!
//! # Guarantees
//! - **A key waits at most once and never runs twice at a time**; what arrives during its run makes it run again after.
//! - First in, first out within a [`Priority`]; a lower priority is a handicap in time, not a sentence: each key is served in the end.
//! - A failed key waits by its [`Backoff`]; an event ends that wait, since it may have mended the cause.
//! - A key that is held ([`WorkQueue::hold`]) waits out its time whatever happens, unless a person asks for it.
//!
//! # Assumptions
//! - Each job that [`WorkQueue::try_next`] gives out is given back by [`WorkQueue::done`].

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{backoff::Backoff, reconcile::Cause};

/// How urgent a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Nothing may have changed: a resync, or new code that takes over.
    Resync,
    /// Found by a list.
    Initial,
    /// Something happened.
    Live,
    /// A person asks for it: before all others, whatever it waits for.
    Asked,
}

impl Priority {
    /// How much later than a live one a key of this priority may be served: long enough that a burst of events goes first, short enough that nobody takes it for lost.
    fn handicap(self) -> Duration {
        match self {
            Self::Resync => Duration::from_secs(10),
            Self::Initial => Duration::from_secs(2),
            Self::Live | Self::Asked => Duration::ZERO,
        }
    }

    fn of(cause: Cause) -> Self {
        match cause {
            Cause::Resync => Self::Resync,
            Cause::Changed | Cause::Requeued | Cause::Retried => Self::Live,
        }
    }
}

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job<K> {
    /// The key.
    pub key: K,
    /// Why.
    pub cause: Cause,
    /// Failures in a row so far.
    pub attempt: u32,
    /// How long the key was ready and waited.
    pub waited: Duration,
}

/// What to do with a key after its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Forget it until something happens.
    Await,
    /// Run it again after this time, or earlier if something happens.
    After(Duration),
    /// It failed: run it again after its backoff.
    Retry,
}

/// How full a queue is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// Ready and waiting.
    pub ready: usize,
    /// Waiting for their time.
    pub delayed: usize,
    /// Running.
    pub running: usize,
}

/// When a waiting key's turn comes: the instant first, then the order of arrival.
type Turn = (Instant, u64);

enum State {
    Ready { turn: Turn, since: Instant, cause: Cause },
    Delayed { turn: Turn, cause: Cause, held: bool },
    Running { again: Option<(Priority, Cause)> },
}

struct Entry {
    state: State,
    failures: u32,
}

struct Inner<K> {
    entries: HashMap<K, Entry>,
    ready: BTreeMap<Turn, K>,
    delayed: BTreeMap<Turn, K>,
    arrivals: u64,
    adds: u64,
    retries: u64,
    running: usize,
}

/// The work queue of one controller.
pub struct WorkQueue<K> {
    inner: Mutex<Inner<K>>,
    changed: Notify,
    backoff: Backoff,
    /// A source of numbers in 0..1, for the jitter.
    random: Box<dyn Fn() -> f64 + Send + Sync>,
}

impl<K: Clone + Eq + Hash> WorkQueue<K> {
    /// An empty queue.
    pub fn new(backoff: Backoff) -> Self {
        Self::with_random(backoff, Box::new(rand::random))
    }

    fn with_random(backoff: Backoff, random: Box<dyn Fn() -> f64 + Send + Sync>) -> Self {
        let inner = Inner {
            entries: HashMap::new(),
            ready: BTreeMap::new(),
            delayed: BTreeMap::new(),
            arrivals: 0,
            adds: 0,
            retries: 0,
            running: 0,
        };
        Self { inner: Mutex::new(inner), changed: Notify::new(), backoff, random }
    }

    /// Something happened that concerns the key.
    ///
    /// A delayed key becomes ready, unless this is but a resync; a key that waits with less urgency moves forward; a running key runs again after.
    pub fn add(&self, key: K, priority: Priority, cause: Cause) {
        let mut inner = self.lock();
        inner.adds += 1;
        inner.add(key, priority, cause);
        drop(inner);
        self.changed.notify_one();
    }

    /// Waits until a key is ready. It may be gone again when another task calls [`Self::try_next`].
    pub async fn ready(&self) {
        loop {
            let changed = self.changed.notified();
            let wake = {
                let mut inner = self.lock();
                inner.promote(Instant::now());
                if !inner.ready.is_empty() {
                    return;
                }
                inner.delayed.first_key_value().map(|(turn, _)| turn.0)
            };
            match wake {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, changed).await;
                }
                None => changed.await,
            }
        }
    }

    /// The key whose turn it is, if one is ready.
    pub fn try_next(&self) -> Option<Job<K>> {
        let now = Instant::now();
        let mut inner = self.lock();
        inner.promote(now);
        let (_, key) = inner.ready.pop_first()?;
        let entry = inner.entries.get_mut(&key)?;
        let attempt = entry.failures;
        let State::Ready { since, cause, .. } = std::mem::replace(&mut entry.state, State::Running { again: None })
        else {
            return None;
        };
        inner.running += 1;
        let more = !inner.ready.is_empty();
        drop(inner);
        if more {
            self.changed.notify_one();
        }
        Some(Job { key, cause, attempt, waited: now.duration_since(since) })
    }

    /// Gives a job back. Answers how long the key waits now, if it does.
    pub fn done(&self, key: &K, next: Next) -> Option<Duration> {
        self.give_back(key, next, None)
    }

    /// Gives a job back, and runs the key again no earlier than after this time, whatever happens. Since what happened meanwhile must not be lost, it runs then in any case.
    pub fn hold(&self, key: &K, next: Next, least: Duration) -> Option<Duration> {
        self.give_back(key, next, Some(least))
    }

    fn give_back(&self, key: &K, next: Next, least: Option<Duration>) -> Option<Duration> {
        let now = Instant::now();
        let mut inner = self.lock();
        let entry = inner.entries.get_mut(key)?;
        let State::Running { again } = entry.state else { return None };
        entry.failures = if next == Next::Retry { entry.failures.saturating_add(1) } else { 0 };
        let asked = again.is_some_and(|(priority, _)| priority == Priority::Asked);
        let least = least.filter(|_| !asked);
        if let Some((priority, cause)) = again
            && (asked || next != Next::Retry && least.is_none())
        {
            inner.running -= 1;
            inner.entries.remove(key);
            inner.add(key.clone(), priority, cause);
            drop(inner);
            self.changed.notify_one();
            return Some(Duration::ZERO);
        }
        let delay = match (next, again) {
            (Next::Retry, again) => {
                inner.retries += 1;
                let delay = self.backoff.delay(inner.entries.get(key).map_or(1, |e| e.failures), (self.random)());
                // An event during the failed run may have mended the cause, but a failing plugin whose own writes wake it must not spin.
                Some((if again.is_some() { delay.min(Duration::from_secs(1)) } else { delay }, Cause::Retried))
            }
            (_, Some((_, cause))) => Some((Duration::ZERO, cause)),
            // No later than it is held: what happens until then is not looked at.
            (Next::After(delay), None) => Some((least.map_or(delay, |least| delay.min(least)), Cause::Requeued)),
            (Next::Await, None) => least.map(|least| (least, Cause::Changed)),
        };
        inner.running -= 1;
        let Some((delay, cause)) = delay else {
            inner.entries.remove(key);
            return None;
        };
        let delay = delay.max(least.unwrap_or_default());
        let turn = inner.turn(now + delay);
        inner.delayed.insert(turn, key.clone());
        if let Some(entry) = inner.entries.get_mut(key) {
            entry.state = State::Delayed { turn, cause, held: least.is_some() };
        }
        drop(inner);
        self.changed.notify_one();
        Some(delay)
    }

    /// Lets all keys go that are held.
    pub fn release(&self) {
        let mut inner = self.lock();
        let held = inner.entries.iter().filter(|(_, entry)| matches!(entry.state, State::Delayed { held: true, .. }));
        let held: Vec<_> = held.map(|(key, _)| key.clone()).collect();
        for key in held {
            inner.add(key, Priority::Asked, Cause::Resync);
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// How full it is.
    pub fn depth(&self) -> Depth {
        let inner = self.lock();
        Depth { ready: inner.ready.len(), delayed: inner.delayed.len(), running: inner.running }
    }

    /// How often [`Self::add`] was called, and how often a key failed.
    pub fn totals(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.adds, inner.retries)
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K>> {
        // Nothing in here panics while it holds the lock; if something did, the queue would still be consistent between statements.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> Inner<K> {
    fn turn(&mut self, at: Instant) -> Turn {
        self.arrivals += 1;
        (at, self.arrivals)
    }

    fn add(&mut self, key: K, priority: Priority, cause: Cause) {
        let now = Instant::now();
        let mut turn = self.turn(now + priority.handicap());
        if priority == Priority::Asked
            && let Some((first, _)) = self.ready.first_key_value()
        {
            turn.0 = first.0.min(now).checked_sub(Duration::from_nanos(1)).unwrap_or(now);
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            self.ready.insert(turn, key.clone());
            self.entries.insert(key, Entry { state: State::Ready { turn, since: now, cause }, failures: 0 });
            return;
        };
        match &mut entry.state {
            State::Running { again } => {
                if again.is_none_or(|(before, _)| before < priority) {
                    *again = Some((priority, cause));
                }
            }
            State::Ready { turn: before, cause: why, .. } => {
                if turn < *before {
                    self.ready.remove(before);
                    self.ready.insert(turn, key);
                    *before = turn;
                    *why = cause;
                }
            }
            State::Delayed { turn: until, held, .. } => {
                if priority > Priority::Resync && (!*held || priority == Priority::Asked) {
                    self.delayed.remove(until);
                    self.ready.insert(turn, key);
                    entry.state = State::Ready { turn, since: now, cause };
                }
            }
        }
    }

    /// Makes ready whose time has come.
    fn promote(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry() {
            if first.key().0 > now {
                break;
            }
            let key = first.remove();
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            let State::Delayed { turn, cause, .. } = entry.state else { continue };
            // Its turn is counted from when its time came, behind those that were ready before.
            let turn = (turn.0 + Priority::of(cause).handicap(), turn.1);
            entry.state = State::Ready { turn, since: now, cause };
            self.ready.insert(turn, key);
        }
    }
}

#[cfg(test)]
mod tests;
