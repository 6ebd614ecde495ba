//! Who computes when: the threads on which guests run, apart from the host's own, and how a component that computes a lot makes room for its neighbours.
//!
//! # Guarantees
//! - **A guest never waits for another component's**: of a component at most one guest for each second core computes at a time, and what computes little runs on prompt threads.
//! - A component that computes more than a quarter of a core is heavy, until it has rested. It runs on patient threads, which get what nobody else of the host wants. What it has the
//!   host do is counted, and done one after another where others are at work; see [`outside`].
//! - A heavy component that gets nothing that way, since others keep the machine busy, gets a turn on a prompt thread every few milliseconds. Patient threads, which would hold what
//!   they took for seconds, take nothing then, until one of them finds that it gets to compute.
//! - Components take turns, however many reconciles each has.
//!
//! # Assumptions
//! - A guest yields at each tick of the epoch, so that whoever polls one gets it back soon.

mod outside;
mod turns;

use std::{
    future::Future,
    io,
    num::NonZero,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use async_task::Runnable;
use futures::FutureExt as _;
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
    thread_schedule_policy,
};
use tokio::runtime::{Builder, Handle, Runtime};

use self::outside::Outside;
use self::turns::{CROWDED, Id, Pace, Paces, Turns};
use crate::meter::{Meter, thread_cpu};

/// How long a patient thread computes to find out whether it gets to: longer than what the system gives at a time.
const TRIAL: Duration = Duration::from_millis(5);
/// Before it tries.
const REST: Duration = Duration::from_millis(100);

/// A guest ended without an output: it panicked in the host's code, or the host stops.
#[derive(Debug, thiserror::Error)]
#[error("the guest was cut off: {0}")]
pub(crate) struct CutOff(&'static str);

/// The threads.
pub(crate) struct Guests {
    /// Of guests that are not of a component yet.
    own: Arc<Share>,
    shared: Arc<Shared>,
    /// For timers, which a guest may have wherever it runs.
    timers: Option<Runtime>,
}

/// What one component has of them, while it lives.
pub(crate) struct Share {
    id: Id,
    outside: Outside,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Where threads wait that have nothing to do.
    waiting: Paces<Condvar>,
    alive: AtomicUsize,
}

struct State {
    turns: Turns<Guest>,
    idle: Paces<Idle>,
    /// Whether a prompt thread wakes up by itself when a heavy component starves.
    watched: bool,
    /// Whether a patient thread finds out if it gets to compute.
    on_trial: bool,
    closed: bool,
}

/// Threads of one kind.
#[derive(Default)]
struct Idle {
    waiting: usize,
    /// Of those, the ones that were told to wake up.
    called: usize,
}

/// A guest that can go on.
type Guest = Runnable<Tag>;

/// Whose it is.
struct Tag {
    share: Arc<Share>,
    /// None: nobody is charged.
    meter: Option<Arc<Meter>>,
}

/// Counts a guest for as long as there is anything of it.
struct Alive(Arc<Shared>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Guests {
    pub fn start() -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let timers = Builder::new_multi_thread().worker_threads(1).thread_name("guest-timers").enable_all().build()?;
        let turns = Turns::new(cores);
        let state = State { turns, idle: Paces::default(), watched: false, on_trial: false, closed: false };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), waiting: Paces::default(), alive: AtomicUsize::new(0) });
        // From here on the threads end with it, should one of them not start.
        let handle = timers.handle().clone();
        let guests = Self { own: Share::of(&shared, true), shared, timers: Some(timers) };
        for _ in 0..cores {
            guests.thread("guest", Pace::Prompt, handle.clone())?;
            guests.thread("guest-patient", Pace::Patient, handle.clone())?;
        }
        Ok(guests)
    }

    fn thread(&self, name: &str, pace: Pace, timers: Handle) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let work = move || {
            let _entered = timers.enter();
            if pace == Pace::Patient {
                be_patient();
            }
            shared.work(pace);
        };
        thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
    }

    /// For a component.
    pub fn share(&self) -> Arc<Share> {
        Share::of(&self.shared, false)
    }

    /// Runs a guest of a component. What it uses is `meter`'s to know.
    pub async fn run<F>(&self, share: &Arc<Share>, meter: Arc<Meter>, guest: F) -> Result<F::Output, CutOff>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.spawn(Tag { share: Arc::clone(share), meter: Some(meter) }, guest).await
    }

    /// Runs a guest that is not of a component yet, at once: the caller sees to it that there are few, and that each computes little.
    pub async fn run_at_once<F>(&self, guest: F) -> Result<F::Output, CutOff>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.spawn(Tag { share: Arc::clone(&self.own), meter: None }, guest).await
    }

    /// Dropped before it is ready it ends the guest.
    async fn spawn<F>(&self, tag: Tag, guest: F) -> Result<F::Output, CutOff>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.shared.alive.fetch_add(1, Ordering::Relaxed);
        let alive = Alive(Arc::clone(&self.shared));
        let guest = async move {
            let _alive = alive;
            guest.await
        };
        let (runnable, task) =
            async_task::Builder::new().propagate_panic(true).metadata(tag).spawn(move |_| guest, schedule);
        runnable.schedule();
        match AssertUnwindSafe(task.fallible()).catch_unwind().await {
            Ok(Some(output)) => Ok(output),
            Ok(None) => Err(CutOff("the host stops")),
            Err(_) => Err(CutOff("the host's own code panicked; its log says where")),
        }
    }

    /// Ends the threads, without waiting, which an asynchronous context forbids; guests are cut off at their next tick.
    fn close(&self) {
        let cut_off = {
            let mut state = self.shared.lock();
            state.closed = true;
            state.turns.drain()
        };
        self.shared.waiting.prompt.notify_all();
        self.shared.waiting.patient.notify_all();
        // Not under the lock: with a guest its component's share may go.
        drop(cut_off);
    }

    /// Guests that there are.
    pub fn tasks(&self) -> usize {
        self.shared.alive.load(Ordering::Relaxed)
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        self.close();
        if let Some(timers) = self.timers.take() {
            timers.shutdown_background();
        }
    }
}

impl Share {
    fn of(shared: &Arc<Shared>, trusted: bool) -> Arc<Self> {
        let mut state = shared.lock();
        let (id, abreast) = (state.turns.join(trusted, Instant::now()), state.turns.abreast());
        Arc::new(Self { id, outside: Outside::new(abreast), shared: Arc::clone(shared) })
    }

    /// Runs what a guest asks of the host. To be awaited by the guest.
    pub async fn outside<T>(&self, call: impl Future<Output = T>) -> T {
        self.outside.run(call).await
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shared.lock().turns.leave(self.id);
    }
}

/// A guest can go on.
fn schedule(guest: Guest) {
    let share = Arc::clone(&guest.metadata().share);
    let mut state = share.shared.lock();
    if state.closed {
        drop(state);
        return drop(guest);
    }
    let now = Instant::now();
    state.turns.ready(share.id, guest, now);
    state.call(&share.shared, now);
}

impl State {
    /// Wakes a thread of each kind that has something to do.
    fn call(&mut self, shared: &Shared, now: Instant) {
        for pace in [Pace::Prompt, Pace::Patient] {
            let idle = self.idle.of(pace);
            if idle.called == idle.waiting {
                continue;
            }
            let aside = || match pace {
                Pace::Prompt => !self.watched && self.turns.starving().is_some(),
                Pace::Patient => self.needs_trial(),
            };
            if self.turns.has(pace, now) || aside() {
                self.idle.of_mut(pace).called += 1;
                shared.waiting.of(pace).notify_one();
            }
        }
    }

    fn needs_trial(&self) -> bool {
        !self.on_trial && self.turns.wants_room()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does.
    fn work(&self, pace: Pace) {
        let mut state = self.lock();
        while !state.closed {
            let now = Instant::now();
            let next = state.turns.next(pace, now);
            // Whoever had a turn may have become one for the other kind, and the line may have more than one.
            state.call(self, now);
            state = match next {
                Some((id, guest)) => {
                    drop(state);
                    self.turn(pace, id, guest)
                }
                None if pace == Pace::Patient && state.needs_trial() => {
                    state.on_trial = true;
                    drop(state);
                    self.trial()
                }
                None => self.wait(pace, state, now),
            };
        }
    }

    /// Finds out whether a patient thread gets to compute, holding nobody's guest.
    fn trial(&self) -> MutexGuard<'_, State> {
        thread::sleep(REST);
        let (began, before) = (Instant::now(), thread_cpu());
        let (mut used, mut waited) = (Duration::ZERO, Duration::ZERO);
        while used < TRIAL && waited < CROWDED {
            used = thread_cpu().saturating_sub(before);
            waited = began.elapsed().saturating_sub(used);
        }
        let mut state = self.lock();
        state.on_trial = false;
        state.turns.waited(waited);
        state
    }

    /// Until something may have changed.
    fn wait<'a>(&'a self, pace: Pace, mut state: MutexGuard<'a, State>, now: Instant) -> MutexGuard<'a, State> {
        let waiting = self.waiting.of(pace);
        let starving = if pace == Pace::Prompt && !state.watched { state.turns.starving() } else { None };
        state.idle.of_mut(pace).waiting += 1;
        state = match starving {
            Some(at) => {
                state.watched = true;
                let waited = waiting.wait_timeout(state, at.saturating_duration_since(now));
                let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
                state.watched = false;
                state
            }
            None => waiting.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
        let idle = state.idle.of_mut(pace);
        idle.waiting -= 1;
        idle.called = idle.called.saturating_sub(1);
        state
    }

    /// Lets a guest compute until it waits, ends or is to yield.
    fn turn(&self, pace: Pace, id: Id, guest: Guest) -> MutexGuard<'_, State> {
        let tag = guest.metadata();
        // Its number is nobody else's as long as this is held.
        let (share, meter) = (Arc::clone(&tag.share), tag.meter.clone());
        let used = || meter.as_ref().map_or(Duration::ZERO, |meter| meter.cpu());
        let (began, before) = (Instant::now(), used());
        guest.run();
        let used = used().saturating_sub(before);
        let now = Instant::now();
        let mut state = self.lock();
        // What it has asked for since its last turn counts as well, though no meter of its shows it.
        state.turns.done(id, pace, used + share.outside.cost(), now);
        share.outside.make_scarce(state.turns.presses(id, now));
        if pace == Pace::Patient {
            state.turns.waited(now.saturating_duration_since(began).saturating_sub(used));
        }
        drop(state);
        drop(share);
        self.lock()
    }
}

const IDLE: ThreadSchedulePolicy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);

/// Makes the thread get only what no other of the process wants: whatever else wakes up runs at once. A system that refuses it runs guests as it runs everything.
fn be_patient() {
    // It sets the niceness as well, which may be refused where it is not needed.
    let set = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, IDLE);
    if thread_schedule_policy().ok() != Some(IDLE) {
        tracing::warn!(error = ?set.err(), "guests that compute a lot run at the host's own priority");
    }
}

#[cfg(test)]
mod tests;
