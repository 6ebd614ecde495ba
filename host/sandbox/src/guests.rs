//! Who computes when: the threads on which guests run, apart from the host's own, and how a component that computes a lot makes room for its neighbours.
//!
//! # Guarantees
//! - **A guest never waits for another component's**: what computes little runs on prompt threads, of which a component holds at most one for each core but one.
//! - What a component computes beyond [`RATE`] goes on on patient threads, which get little of a core that somebody else wants: a component that
//!   computes a lot has the whole machine while it is idle, and what is left of it while it is not.
//! - There components take turns, however many reconciles each has.
//!
//! # Assumptions
//! - A guest yields at each tick of the epoch, so that whoever polls one gets it back soon.

use std::{
    future::{Future, poll_fn},
    io,
    num::NonZero,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Poll, ready},
    time::{Duration, Instant},
};

use rustix::process::nice;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::Semaphore,
    task::JoinError,
};
use tokio_util::{sync::PollSemaphore, task::AbortOnDropHandle};

use crate::meter::Meter;

/// CPU time in a second that a component may use at once: a quarter of a core, which is a thousand reconciles of an ordinary operator.
const RATE: Duration = Duration::from_millis(250);
/// What it may have saved up of that. Ten ticks, so that one reconcile that computes for a moment does not count as one that computes a lot.
const SAVINGS: Duration = Duration::from_millis(20);
/// How nice patient threads are: a third of a core that somebody else wants as well. Nicer ones would meet their deadlines on a busy machine, and hold the host's locks for long.
const NICENESS: i32 = 5;

/// The threads.
pub(crate) struct Guests {
    prompt: Pool,
    patient: Pool,
    cores: usize,
}

/// What one component has of them.
pub(crate) struct Share {
    prompt: Arc<Semaphore>,
    patient: Arc<Semaphore>,
    account: Mutex<Account>,
}

/// CPU time at once that is left, in nanoseconds; a debt when negative.
struct Account {
    left: i64,
    at: Instant,
}

/// A runtime whose threads are all of one kind.
struct Pool {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl Guests {
    pub fn start() -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Ok(Self {
            prompt: Pool::start("guest", cores, 0)?,
            patient: Pool::start("guest-patient", cores, NICENESS)?,
            cores,
        })
    }

    /// For a component.
    pub fn share(&self) -> Arc<Share> {
        let account = Mutex::new(Account { left: nanos(SAVINGS), at: Instant::now() });
        let prompt = Arc::new(Semaphore::new(self.cores.saturating_sub(1).max(1)));
        Arc::new(Share { prompt, patient: Arc::new(Semaphore::new(self.cores)), account })
    }

    /// Runs a guest of a component. What it uses is `meter`'s to know.
    pub async fn run<F>(&self, share: &Arc<Share>, meter: Arc<Meter>, guest: F) -> Result<F::Output, JoinError>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        let prompt = self.prompt.handle.spawn(promptly(Arc::clone(share), meter, Box::pin(guest)));
        match AbortOnDropHandle::new(prompt).await? {
            Ok(output) => Ok(output),
            Err(guest) => AbortOnDropHandle::new(self.patient.handle.spawn(patiently(Arc::clone(share), guest))).await,
        }
    }

    /// Runs a guest that is not of a component yet, at once: the caller sees to it that there are few, and that each computes little.
    pub async fn run_at_once<F>(&self, guest: F) -> Result<F::Output, JoinError>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        AbortOnDropHandle::new(self.prompt.handle.spawn(guest)).await
    }

    /// Tasks that there are.
    pub fn tasks(&self) -> usize {
        [&self.prompt, &self.patient].map(|pool| pool.handle.metrics().num_alive_tasks()).iter().sum()
    }
}

impl Share {
    /// Whether there is CPU time to be had at once.
    fn has_credit(&self) -> bool {
        let mut account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let earned = nanos(now.duration_since(account.at)).saturating_mul(nanos(RATE)) / nanos(Duration::from_secs(1));
        account.left = account.left.saturating_add(earned).min(nanos(SAVINGS));
        account.at = now;
        account.left > 0
    }

    fn charge(&self, used: Duration) {
        let mut account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        account.left = account.left.saturating_sub(nanos(used));
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// The guest's output, or the guest itself when it is to go on patiently.
async fn promptly<F: Future>(
    share: Arc<Share>,
    meter: Arc<Meter>,
    guest: Pin<Box<F>>,
) -> Result<F::Output, Pin<Box<F>>> {
    let mut turns = PollSemaphore::new(Arc::clone(&share.prompt));
    let mut guest = Some(guest);
    poll_fn(|context| {
        let turn = ready!(turns.poll_acquire(context));
        let Some(mut polled) = guest.take_if(|_| share.has_credit()) else {
            // Only ever polled again after a guest that waits.
            return guest.take().map_or(Poll::Pending, |guest| Poll::Ready(Err(guest)));
        };
        let before = meter.cpu();
        let output = polled.as_mut().poll(context);
        share.charge(meter.cpu().saturating_sub(before));
        drop(turn);
        guest = Some(polled);
        output.map(Ok)
    })
    .await
}

/// One poll at a time, in turn with those of the other components.
async fn patiently<F: Future>(share: Arc<Share>, mut guest: Pin<Box<F>>) -> F::Output {
    let mut turns = PollSemaphore::new(Arc::clone(&share.patient));
    poll_fn(|context| {
        let _turn = ready!(turns.poll_acquire(context));
        guest.as_mut().poll(context)
    })
    .await
}

impl Pool {
    fn start(name: &str, threads: usize, niceness: i32) -> io::Result<Self> {
        let start = move || {
            // On Linux it is the thread's own. A system that refuses it runs guests as it runs everything.
            if niceness > 0
                && let Err(error) = nice(niceness)
            {
                tracing::warn!(%error, "guests that compute a lot run at the host's own priority");
            }
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name(name)
            .on_thread_start(start)
            .enable_all()
            .build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }
}

impl Drop for Pool {
    /// Without waiting, which an asynchronous context forbids; guests are cut off at their next tick.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;
    use tokio::task::yield_now;

    use super::*;
    use crate::meter::metered;

    /// On which kind of thread it runs, and how nice that is.
    fn place() -> (String, i32) {
        (std::thread::current().name().unwrap().to_owned(), getpriority_process(None).unwrap())
    }

    /// Where a guest runs after its component has computed for so long, and it waited for something.
    async fn run(guests: &Guests, share: &Arc<Share>, long: Duration) -> (String, i32) {
        let meter = Meter::new(Duration::MAX);
        let computed = Arc::clone(share);
        let compute = async move {
            computed.charge(long);
            yield_now().await;
            place()
        };
        guests.run(share, Arc::clone(&meter), metered(meter, compute)).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn what_computes_a_lot_goes_on_patiently_and_its_neighbour_at_once() {
        let guests = Guests::start().unwrap();
        let (hungry, neighbour) = (guests.share(), guests.share());
        let own = place().1;
        assert_eq!(run(&guests, &hungry, Duration::ZERO).await, ("guest".to_owned(), own));
        let patient = ("guest-patient".to_owned(), (own + NICENESS).min(19));
        assert_eq!(run(&guests, &hungry, Duration::from_hours(1)).await, patient);
        assert_eq!(run(&guests, &neighbour, Duration::ZERO).await, ("guest".to_owned(), own));
    }

    #[tokio::test]
    async fn credit_comes_back_by_the_rate_and_is_not_saved_up_for_ever() {
        let share = Guests::start().unwrap().share();
        share.charge(SAVINGS + Duration::from_secs(10));
        assert!(!share.has_credit());
        let earned_in = |time: Duration| {
            let mut account = share.account.lock().unwrap();
            account.at = account.at.checked_sub(time).unwrap();
        };
        earned_in(Duration::from_secs(30));
        assert!(!share.has_credit(), "a quarter of half a minute is less than ten seconds");
        earned_in(Duration::from_secs(30));
        assert!(share.has_credit());
        earned_in(Duration::from_hours(1));
        assert!(share.has_credit());
        share.charge(SAVINGS + Duration::from_secs(1));
        assert!(!share.has_credit());
    }
}
