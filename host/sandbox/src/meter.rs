//! What a guest may use up: memory, tables and CPU time, and the typed errors that say which ran out.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use operetta_core::limit::Limits;
use rustix::time::{ClockId, clock_gettime};
use wasmtime::ResourceLimiter;

use crate::budget::GuestCharge;

/// The guest asked for more memory than it may hold.
#[derive(Debug, thiserror::Error)]
#[error("memory limit")]
pub(crate) struct MemoryLimit {
    /// Bytes of all its memories as it wanted them.
    pub wanted: usize,
    /// Bytes it may hold.
    pub cap: usize,
}

/// The guest asked for longer tables than it may have.
#[derive(Debug, thiserror::Error)]
#[error("table limit")]
pub(crate) struct TableLimit {
    /// Elements of all its tables as it wanted them.
    pub wanted: usize,
    /// Elements it may have.
    pub cap: usize,
}

/// The guest used up its CPU time.
#[derive(Debug, thiserror::Error)]
#[error("CPU limit")]
pub(crate) struct CpuLimit;

/// What one instance uses: the CPU time by its thread's clock, read around each poll so that other guests on the same thread do not count, and memory.
pub(crate) struct Meter {
    budget: u64,
    spent: AtomicU64,
    /// What the thread's clock showed when the poll that runs now began.
    since: AtomicU64,
    memory: AtomicUsize,
}

impl Meter {
    /// Up to `budget` of CPU time.
    pub fn new(budget: Duration) -> Arc<Self> {
        Arc::new(Self {
            budget: nanos(budget),
            spent: AtomicU64::new(0),
            since: AtomicU64::new(0),
            memory: AtomicUsize::new(0),
        })
    }

    /// CPU time used so far, without the poll that runs now.
    pub fn cpu(&self) -> Duration {
        Duration::from_nanos(self.spent.load(Ordering::Relaxed))
    }

    /// Bytes of linear memory that the instance grew to; memories never shrink.
    pub fn memory(&self) -> usize {
        self.memory.load(Ordering::Relaxed)
    }

    /// For use within a poll, on its thread: an error when the budget is used up.
    pub fn check(&self) -> Result<(), CpuLimit> {
        let now = thread_nanos().saturating_sub(self.since.load(Ordering::Relaxed));
        if self.spent.load(Ordering::Relaxed).saturating_add(now) > self.budget { Err(CpuLimit) } else { Ok(()) }
    }
}

/// Limits the memories of one instance, all together, and its tables. Dropped with the instance it gives back what that took of what all guests share.
pub(crate) struct Memory {
    meter: Arc<Meter>,
    cap: usize,
    shared: GuestCharge,
    elements: usize,
    most_elements: usize,
}

impl Memory {
    /// Up to so many bytes, and elements of tables.
    pub fn new(meter: Arc<Meter>, limits: &Limits, shared: GuestCharge) -> Self {
        Self { meter, cap: limits.memory, shared, elements: 0, most_elements: limits.tables }
    }
}

impl ResourceLimiter for Memory {
    /// An error of its own: a plain no would make the guest abort, which looks like any panic.
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current);
        let wanted = self.meter.memory().saturating_add(more);
        if wanted > self.cap {
            return Err(MemoryLimit { wanted, cap: self.cap }.into());
        }
        self.shared.grow(more)?;
        self.meter.memory.store(wanted, Ordering::Relaxed);
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let wanted = self.elements.saturating_add(desired.saturating_sub(current));
        if wanted > self.most_elements {
            return Err(TableLimit { wanted, cap: self.most_elements }.into());
        }
        self.elements = wanted;
        Ok(true)
    }
}

/// In nanoseconds, of which there is room for 584 years.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time of this thread; zero where the system keeps none.
pub(crate) fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

fn thread_nanos() -> u64 {
    nanos(thread_cpu())
}

/// Runs `future` on the account of `meter`; an error when the budget was used up.
pub(crate) fn metered<F: Future>(meter: Arc<Meter>, future: F) -> impl Future<Output = Result<F::Output, CpuLimit>> {
    Metered { meter, future: Box::pin(future) }
}

struct Metered<F> {
    meter: Arc<Meter>,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Metered<F> {
    type Output = Result<F::Output, CpuLimit>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let began = thread_nanos();
        self.meter.since.store(began, Ordering::Relaxed);
        let polled = self.future.as_mut().poll(context);
        let spent = thread_nanos().saturating_sub(began);
        let total = self.meter.spent.fetch_add(spent, Ordering::Relaxed).saturating_add(spent);
        match polled {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            // A guest that always waits just before the tick must not run for ever either.
            Poll::Pending if total > self.meter.budget => Poll::Ready(Err(CpuLimit)),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, future::poll_fn};

    use super::*;
    use crate::budget::{GuestBudget, NoRoom};

    #[test]
    fn what_all_guests_share_is_another_limit_than_ones_own_and_is_given_back() {
        let budget = Arc::new(GuestBudget::new(200));
        let limits = Limits { memory: 150, ..Limits::default() };
        let memory = || Memory::new(Meter::new(Duration::MAX), &limits, budget.charge(None));
        let (mut one, mut other) = (memory(), memory());
        assert!(one.memory_growing(0, 60, None).unwrap() && other.memory_growing(0, 40, None).unwrap());
        assert!(one.memory_growing(60, 151, None).unwrap_err().is::<MemoryLimit>(), "its own limit comes first");
        let none: NoRoom = one.memory_growing(60, 61, None).unwrap_err().downcast().unwrap();
        assert_eq!(none, NoRoom { wanted: 1, held: 100, free: 100, total: 200 });
        assert_eq!(one.meter.memory(), 60, "what it did not get does not count");
        drop(other);
        assert!(one.memory_growing(60, 61, None).unwrap());
        drop(one);
        assert!(budget.held().is_empty());
    }

    #[test]
    fn all_memories_and_all_tables_grow_to_just_the_limit() {
        let meter = Meter::new(Duration::MAX);
        let limits = Limits { memory: 100, tables: 10, ..Limits::default() };
        let budget = Arc::new(GuestBudget::default());
        let mut memory = Memory::new(Arc::clone(&meter), &limits, budget.charge(None));
        // One, and another beside it.
        assert!(memory.memory_growing(0, 60, None).unwrap() && memory.memory_growing(0, 40, None).unwrap());
        let over: MemoryLimit = memory.memory_growing(40, 41, None).unwrap_err().downcast().unwrap();
        assert_eq!((over.wanted, over.cap, meter.memory()), (101, 100, 100));
        assert!(memory.table_growing(0, 6, None).unwrap() && memory.table_growing(0, 4, None).unwrap());
        let over: TableLimit = memory.table_growing(4, 5, None).unwrap_err().downcast().unwrap();
        assert_eq!((over.wanted, over.cap), (11, 10));
    }

    /// Uses some CPU time, and waits for ever.
    async fn burn() {
        let began = thread_nanos();
        while thread_nanos() < began + 1_000_000 {}
        std::future::pending::<()>().await;
    }

    #[test]
    fn time_is_that_of_the_thread_and_ends_a_guest_that_waits_all_the_time() {
        let meter = Meter::new(Duration::from_mins(1));
        assert!(metered(Arc::clone(&meter), burn()).now_or_never().is_none());
        assert!((1..1_000).contains(&meter.cpu().as_millis()), "{:?}", meter.cpu());
        assert!(meter.check().is_ok());
        let short = Meter::new(Duration::from_micros(999));
        assert!(matches!(metered(Arc::clone(&short), burn()).now_or_never(), Some(Err(CpuLimit))));
        // What it used before counts in the poll that runs now, and what it has to say at its end is heard.
        let checked = poll_fn(|_| Poll::Ready(short.check()));
        assert!(matches!(metered(Arc::clone(&short), checked).now_or_never(), Some(Ok(Err(CpuLimit)))));
    }
}
