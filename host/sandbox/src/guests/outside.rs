//! What guests have the host do for them: the work that a call makes on the host's own threads, which no meter of a guest sees.
//!
//! It counts for its component as if that had computed it. Of a component that computes a lot beside others so few calls are under way at once as guests of it may compute, so that
//! there is always a core for what its neighbours ask.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use tokio::{sync::Semaphore, time::timeout};

use crate::meter::nanos;

/// What a call that does not answer at once costs the host, about: a request to the API server and its answer.
const COST: Duration = Duration::from_micros(100);
/// A call that takes longer than this is worked on elsewhere: another one may begin.
const UNDER_WAY: Duration = Duration::from_millis(5);

/// The calls of one component.
pub(super) struct Outside {
    places: Semaphore,
    /// Whether they have to wait for a place.
    scarce: AtomicBool,
    /// Nanoseconds that are not charged yet.
    cost: AtomicU64,
}

impl Outside {
    /// With so many places.
    pub fn new(places: usize) -> Self {
        Self { places: Semaphore::new(places), scarce: AtomicBool::new(false), cost: AtomicU64::new(0) }
    }

    /// Runs a call.
    pub async fn run<T>(&self, call: impl Future<Output = T>) -> T {
        // They are never closed.
        let place = if self.scarce.load(Ordering::Relaxed) { self.places.acquire().await.ok() } else { None };
        let (mut call, mut waits) = (pin!(call), false);
        let mut call = pin!(poll_fn(|context| {
            let polled = call.as_mut().poll(context);
            if polled.is_pending() && !std::mem::replace(&mut waits, true) {
                self.cost.fetch_add(nanos(COST), Ordering::Relaxed);
            }
            polled
        }));
        if let Some(place) = place {
            if let Ok(answer) = timeout(UNDER_WAY, call.as_mut()).await {
                return answer;
            }
            drop(place);
        }
        call.await
    }

    /// Whether calls have to wait for a place from now on.
    pub fn make_scarce(&self, scarce: bool) {
        self.scarce.store(scarce, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub fn is_scarce(&self) -> bool {
        self.scarce.load(Ordering::Relaxed)
    }

    /// What the calls cost since this was asked last.
    pub fn cost(&self) -> Duration {
        Duration::from_nanos(self.cost.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures::future::{join_all, pending};
    use tokio::time::{Instant, sleep};

    use super::*;

    /// How many of some calls that take so long were under way at most, and how long all of them took.
    async fn most_at_once(outside: &Outside, each: Duration) -> (usize, Duration) {
        let (now, most, began) = (AtomicUsize::new(0), AtomicUsize::new(0), Instant::now());
        let calls = (0..10).map(|_| {
            outside.run(async {
                most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                sleep(each).await;
                now.fetch_sub(1, Ordering::Relaxed);
            })
        });
        join_all(calls).await;
        (most.into_inner(), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn where_places_are_scarce_calls_are_worked_on_one_after_another() {
        const EACH: Duration = Duration::from_millis(2);
        let outside = Outside::new(2);
        assert_eq!(most_at_once(&outside, EACH).await, (10, EACH));
        outside.make_scarce(true);
        assert_eq!(most_at_once(&outside, EACH).await, (2, EACH * 5));
        outside.make_scarce(false);
        assert_eq!(most_at_once(&outside, EACH).await.0, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_holds_up_no_other() {
        const LONG: Duration = Duration::from_secs(1);
        let outside = Outside::new(2);
        outside.make_scarce(true);
        assert_eq!(most_at_once(&outside, LONG).await, (10, LONG + UNDER_WAY * 4));
        // Nor does one that nobody waits for any more.
        for _ in 0..3 {
            assert!(timeout(UNDER_WAY / 2, outside.run(pending::<()>())).await.is_err());
        }
        assert_eq!(most_at_once(&outside, UNDER_WAY / 5).await, (2, UNDER_WAY));
    }

    #[tokio::test]
    async fn a_call_costs_something_unless_it_is_answered_at_once() {
        let outside = Outside::new(1);
        for _ in 0..10 {
            outside.run(async {}).await;
        }
        assert_eq!(outside.cost(), Duration::ZERO);
        for _ in 0..10 {
            outside.run(tokio::task::yield_now()).await;
        }
        assert_eq!(outside.cost(), COST * 10);
        assert_eq!(outside.cost(), Duration::ZERO);
    }
}
