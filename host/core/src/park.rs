//! Parking: what is done about a controller whose reconciles the host has to stop, one after the other.
//!
//! Each key has its own backoff ([`crate::queue`]), which is enough for an object that is poison. When **nothing but traps** comes of a controller, whatever the object, its
//! code is at fault, or something that all of it needs, and the pace of all its keys is slowed together: one is tried at a time, after pauses that double. After a few such tries
//! it is *parked*, which is the same at a longer pause, and told to people.
//!
//! # Guarantees
//! - **An object that is poison does not park a controller whose other objects reconcile**: of the keys that ran last, each must have ended in a trap.
//! - One reconcile that ends, in success or in a failure that the guest itself reports, ends it: all keys run as before.
//! - It is tried again for ever, at [`PAUSES`]' longest at the latest, so that what heals comes back by itself; and at once when a person asks or other code takes over.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::backoff::Backoff;

/// Keys of which it is remembered how they ended last. Where so many ended in a trap and none well, more would say no more.
const RECENT: usize = 20;
/// Traps in a row before anything is done: once may be an accident, and so may be twice.
const ACCIDENTS: u32 = 3;
/// Tries, one at a time, before the controller counts as parked. With [`PAUSES`] that is after some eight seconds of nothing but traps.
const TRIES: u32 = 5;
/// Between two tries. The first is as long as a key waits after four failures; the longest is what people wait before they look why nothing happens, and has a plugin that computes
/// until its deadline take a tenth of one place. One that hangs in a call is another matter: that is the world's doing as likely as its own, so that it is never parked.
const PAUSES: Backoff = Backoff { first: Duration::from_millis(500), longest: Duration::from_mins(5), jitter: 0.1 };

/// How a reconcile ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The guest returned.
    Returned,
    /// The host had to stop it, for this reason.
    Stopped(String),
    /// The host is to blame, which says nothing about the guest.
    Unknown,
}

/// What is new about a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// It is parked from now on.
    Parked(Parked),
    /// It was parked, and is no longer.
    Back,
}

/// Why a controller is parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    /// Traps in a row.
    pub traps: u32,
    /// Of so many objects that ran last.
    pub objects: usize,
    /// The last one's reason.
    pub why: String,
}

/// `the host had to stop its last 7 reconciles, of 4 objects; the last: the plugin trapped: ...`.
impl fmt::Display for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { traps, objects, why } = self;
        let s = if *objects == 1 { "" } else { "s" };
        write!(f, "the host had to stop its last {traps} reconciles, of {objects} object{s}; the last: {why}")
    }
}

/// The gate of one controller, through which each reconcile passes.
#[derive(Debug)]
pub struct Gate<K> {
    inner: Mutex<Inner<K>>,
    changed: Notify,
    /// Whether there is no need to look further: all is well.
    open: AtomicBool,
}

#[derive(Debug)]
struct Inner<K> {
    /// The keys that ran last, and whether that ended in a trap.
    recent: VecDeque<(K, bool)>,
    /// Since a reconcile returned.
    traps: u32,
    /// Tries so far; none while all keys run.
    tries: u32,
    /// When the next try may begin.
    next: Instant,
    /// One is under way.
    trying: bool,
    /// Counts what began anew; what began before it says nothing any more.
    era: u64,
}

/// Leave for one reconcile. Dropping it without an end gives it back.
#[derive(Debug)]
pub struct Pass<K> {
    gate: Arc<Gate<K>>,
    era: u64,
    is_try: bool,
}

impl<K> Drop for Pass<K> {
    fn drop(&mut self) {
        if !self.is_try {
            return;
        }
        let mut inner = self.gate.lock();
        if inner.era == self.era {
            inner.trying = false;
        }
        drop(inner);
        self.gate.changed.notify_one();
    }
}

impl<K> Default for Gate<K> {
    fn default() -> Self {
        let inner = Inner { recent: VecDeque::new(), traps: 0, tries: 0, next: Instant::now(), trying: false, era: 0 };
        Self { inner: Mutex::new(inner), changed: Notify::new(), open: AtomicBool::new(true) }
    }
}

impl<K> Gate<K> {
    fn lock(&self) -> MutexGuard<'_, Inner<K>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a reconcile may begin. Cancel-safe.
    pub async fn pass(self: &Arc<Self>) -> Pass<K> {
        loop {
            let changed = self.changed.notified();
            let wake = {
                let mut inner = self.lock();
                let (era, is_try) = (inner.era, inner.tries > 0);
                if !is_try || !inner.trying && inner.next <= Instant::now() {
                    inner.trying = is_try;
                    return Pass { gate: Arc::clone(self), era, is_try };
                }
                (!inner.trying).then_some(inner.next)
            };
            match wake {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, changed).await;
                }
                None => changed.await,
            }
        }
    }

    /// Whether it is parked.
    pub fn is_parked(&self) -> bool {
        !self.open.load(Ordering::Relaxed) && self.lock().is_parked()
    }

    /// A person asks: whatever is tried next is tried at once.
    pub fn try_now(&self) {
        if !self.open.load(Ordering::Relaxed) {
            self.lock().next = Instant::now();
            self.changed.notify_one();
        }
    }

    /// Other code or another policy took over: what was before says nothing about it.
    pub fn begin_anew(&self) -> Option<News> {
        let mut inner = self.lock();
        let was_parked = inner.is_parked();
        inner.era += 1;
        inner.recent.clear();
        inner.work();
        drop(inner);
        self.open.store(true, Ordering::Relaxed);
        self.changed.notify_one();
        was_parked.then_some(News::Back)
    }
}

impl<K: Clone + Eq> Gate<K> {
    /// A reconcile ended.
    pub fn ended(&self, pass: Pass<K>, key: &K, end: End) -> Option<News> {
        let mut inner = self.lock();
        let was_open = inner.tries == 0;
        let news = if inner.era == pass.era { inner.ended(pass.is_try, key, end) } else { None };
        let is_open = inner.tries == 0;
        self.open.store(is_open, Ordering::Relaxed);
        drop(inner);
        // A try gives itself back, and wakes who waits.
        drop(pass);
        if is_open && !was_open {
            // What began before the pauses is no try, and whoever waits out a pause would not learn that it is over.
            self.changed.notify_one();
        }
        news
    }
}

impl<K> Inner<K> {
    fn is_parked(&self) -> bool {
        self.tries >= TRIES
    }

    fn work(&mut self) {
        (self.traps, self.tries, self.trying) = (0, 0, false);
    }
}

impl<K: Clone + Eq> Inner<K> {
    fn ended(&mut self, is_try: bool, key: &K, end: End) -> Option<News> {
        let why = match end {
            End::Unknown => {
                self.pause();
                return None;
            }
            End::Returned => {
                self.remember(key, false);
                let was_parked = self.is_parked();
                self.work();
                return was_parked.then_some(News::Back);
            }
            End::Stopped(why) => why,
        };
        self.remember(key, true);
        self.traps = self.traps.saturating_add(1);
        // What began before the pauses did says nothing about them.
        let counts =
            if self.tries == 0 { self.traps >= ACCIDENTS && self.recent.iter().all(|(_, trap)| *trap) } else { is_try };
        if !counts {
            return None;
        }
        self.tries = self.tries.saturating_add(1);
        self.pause();
        (self.tries == TRIES).then_some(News::Parked(Parked { traps: self.traps, objects: self.recent.len(), why }))
    }

    fn pause(&mut self) {
        self.next = Instant::now() + PAUSES.delay(self.tries.max(1), rand::random());
    }

    fn remember(&mut self, key: &K, trap: bool) {
        self.recent.retain(|(known, _)| known != key);
        self.recent.push_back((key.clone(), trap));
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    type Keys = Arc<Gate<u32>>;

    fn trap() -> End {
        End::Stopped("unreachable".into())
    }

    /// Runs a key when it may, and answers how long that took, in tenths of a second.
    async fn run(gate: &Keys, key: u32, end: End) -> (u128, Option<News>) {
        let began = Instant::now();
        let pass = gate.pass().await;
        (began.elapsed().as_millis() / 100, gate.ended(pass, &key, end))
    }

    async fn park(gate: &Keys) -> Parked {
        for number in 0..100 {
            if let (_, Some(News::Parked(parked))) = run(gate, number % 4, trap()).await {
                return parked;
            }
        }
        panic!("it was never parked");
    }

    #[tokio::test(start_paused = true)]
    async fn where_nothing_but_traps_comes_it_slows_down_is_parked_and_tried_for_ever() {
        let gate = Keys::default();
        let mut pauses = Vec::new();
        for number in 0..17 {
            let (pause, news) = run(&gate, number % 4, trap()).await;
            assert_eq!(gate.is_parked(), number >= 6, "after {number}");
            if number == 6 {
                let parked = Parked { traps: 7, objects: 4, why: "unreachable".into() };
                let words = "the host had to stop its last 7 reconciles, of 4 objects; the last: unreachable";
                assert_eq!(parked.to_string(), words);
                assert!(Parked { objects: 1, ..parked.clone() }.to_string().contains("of 1 object;"));
                assert_eq!(news, Some(News::Parked(parked)));
            } else {
                assert_eq!(news, None, "said once");
            }
            pauses.push(pause);
        }
        for (pause, least) in pauses.iter().zip([0, 0, 0, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3000, 3000]) {
            assert!((least..=least + least / 10).contains(pause), "{pauses:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_returns_brings_all_back() {
        let gate = Keys::default();
        park(&gate).await;
        assert_eq!(run(&gate, 9, End::Returned).await.1, Some(News::Back));
        assert!(!gate.is_parked());
        for key in 0..9 {
            // No matter that they trapped before: one that went well is among them.
            assert_eq!(run(&gate, key, trap()).await, (0, None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn so_does_one_from_before_the_pauses_and_whoever_waits_one_out_is_woken() {
        let gate = Keys::default();
        let before = gate.pass().await;
        park(&gate).await;
        let waits = gate.clone();
        let waits = tokio::spawn(async move { drop(waits.pass().await) });
        tokio::task::yield_now().await;
        let ended = Instant::now();
        assert_eq!(gate.ended(before, &9, End::Returned), Some(News::Back));
        waits.await.unwrap();
        assert_eq!(ended.elapsed(), Duration::ZERO);
        assert_eq!(run(&gate, 1, End::Returned).await, (0, None));
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_are_poison_do_not_park_those_that_reconcile() {
        let gate = Keys::default();
        for key in 10..15 {
            run(&gate, key, End::Returned).await;
        }
        // While the others have nothing to do.
        for number in 0..1_000 {
            assert_eq!(run(&gate, number % 3, trap()).await, (0, None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_that_went_well_and_then_traps_on_all_is_parked() {
        let gate = Keys::default();
        for key in 100..1_000 {
            run(&gate, key, End::Returned).await;
        }
        for key in 0..30 {
            run(&gate, key, trap()).await;
        }
        assert!(gate.is_parked());
    }

    #[tokio::test(start_paused = true)]
    async fn of_so_many_objects_one_that_went_well_is_enough() {
        let gate = Keys::default();
        run(&gate, 0, End::Returned).await;
        for key in 1..=20 {
            assert_eq!(run(&gate, key, trap()).await, (0, None), "{key}");
        }
        // The last twenty trapped, every one.
        assert_eq!(run(&gate, 21, trap()).await.0, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn twice_may_be_an_accident_and_a_single_object_is_enough() {
        let gate = Keys::default();
        for _ in 0..10 {
            run(&gate, 1, trap()).await;
            run(&gate, 1, trap()).await;
            assert_eq!(run(&gate, 1, End::Returned).await, (0, None));
        }
        for _ in 0..7 {
            run(&gate, 1, trap()).await;
        }
        assert!(gate.is_parked());
    }

    #[tokio::test(start_paused = true)]
    async fn one_is_tried_at_a_time_and_what_was_under_way_before_counts_once() {
        let gate = Keys::default();
        let mut under_way = Vec::new();
        for _ in 0..16 {
            under_way.push(gate.pass().await);
        }
        for (key, pass) in (0..16).zip(under_way) {
            assert_eq!(gate.ended(pass, &key, trap()), None);
        }
        assert!(!gate.is_parked());
        let first = gate.pass().await;
        tokio::time::advance(Duration::from_hours(1)).await;
        assert!(gate.pass().now_or_never().is_none(), "one at a time");
        // Given back without an end, as where there was no key.
        drop(first);
        assert!(gate.pass().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_host_is_to_blame_for_counts_neither_way() {
        let gate = Keys::default();
        for _ in 0..50 {
            run(&gate, 1, End::Unknown).await;
        }
        assert_eq!(run(&gate, 1, trap()).await.0, 0);
        park(&gate).await;
        run(&gate, 1, End::Unknown).await;
        assert!(gate.is_parked());
        assert!(run(&gate, 1, End::Unknown).await.0 >= 80, "it does not spin");
    }

    #[tokio::test(start_paused = true)]
    async fn a_person_who_asks_and_other_code_do_not_wait() {
        let gate = Keys::default();
        park(&gate).await;
        gate.try_now();
        assert_eq!(run(&gate, 1, trap()).await, (0, None));
        assert!(run(&gate, 1, trap()).await.0 >= 160);
        // Whoever waits is told.
        let waits = gate.clone();
        let waits = tokio::spawn(async move { drop(waits.pass().await) });
        tokio::task::yield_now().await;
        let old = Instant::now();
        gate.try_now();
        waits.await.unwrap();
        assert_eq!(old.elapsed(), Duration::ZERO);

        let under_way = gate.pass().await;
        assert_eq!(gate.begin_anew(), Some(News::Back));
        assert_eq!(gate.begin_anew(), None);
        // What the code before did says nothing about this one.
        gate.ended(under_way, &1, trap());
        assert_eq!(run(&gate, 2, trap()).await, (0, None));
        assert_eq!(run(&gate, 3, trap()).await, (0, None));
        assert_eq!(run(&gate, 4, trap()).await, (0, None));
        assert_eq!(run(&gate, 5, trap()).await.0, 5);
    }
}
