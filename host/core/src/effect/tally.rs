//! What one reconcile has used so far, held to its limits; and what all reconciles of a plugin use together.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use tokio::time::Instant;

use crate::limit::{Exceeded, Limit, Limits};

/// Told of every limit that is met.
pub type OnExceeded = Arc<dyn Fn(Limit) + Send + Sync>;

/// What is counted over all reconciles of one plugin.
#[derive(Debug, Default)]
pub struct Rates {
    events: Bucket,
    log: Bucket,
    /// Lines that were left out since the last that was kept.
    left_out: AtomicU64,
}

/// Fills up within a minute.
#[derive(Debug, Default)]
struct Bucket(Mutex<Option<(f64, Instant)>>);

impl Bucket {
    /// Takes one of those that a minute brings, if there is one.
    fn take(&self, a_minute: u64) -> bool {
        let (full, now) = (a_minute as f64, Instant::now());
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, filled) = state.unwrap_or((full, now));
        let left = (left + now.duration_since(filled).as_secs_f64() * full / 60.0).min(full);
        let taken = left >= 1.0;
        *state = Some((if taken { left - 1.0 } else { left }, now));
        taken
    }
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
    streams: AtomicUsize,
    rates: Arc<Rates>,
    exceeded: OnExceeded,
}

/// Gives back when it is dropped.
pub(super) struct Held {
    tally: Arc<Tally>,
    of: fn(&Tally) -> &AtomicUsize,
    amount: usize,
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
            streams: AtomicUsize::new(0),
            rates,
            exceeded,
        }
    }

    /// Counts a limit that is met.
    pub fn exceed(&self, limit: Limit, what: impl Into<String>) -> Exceeded {
        (self.exceeded)(limit);
        Exceeded { limit, what: what.into() }
    }

    /// Counts a call with so many bytes of arguments; `limit` says what an argument that is too long is.
    pub fn call(&self, bytes: usize, limit: Limit) -> Result<(), Exceeded> {
        self.size("an argument", bytes, limit)?;
        if self.calls.fetch_add(1, Ordering::Relaxed) >= self.limits.host_calls {
            let most = self.limits.host_calls;
            return Err(self.exceed(Limit::HostCalls, format!("more than {most} host calls in one reconcile")));
        }
        self.carry(bytes)
    }

    /// Counts an answer of so many bytes.
    pub fn answer(&self, bytes: usize, limit: Limit) -> Result<(), Exceeded> {
        self.size("the answer", bytes, limit)?;
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
        let (bytes, most) = (u64::try_from(bytes).unwrap_or(u64::MAX), self.limits.traffic);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > most {
            return Err(self.exceed(
                Limit::Traffic,
                format!("the arguments and answers of one reconcile come to more than {most} bytes"),
            ));
        }
        Ok(())
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

    /// Holds a place for an open exchange.
    pub fn stream(self: &Arc<Self>) -> Result<Held, Exceeded> {
        let most = self.limits.streams;
        self.hold(|tally| &tally.streams, 1, most).map_err(|()| {
            self.exceed(Limit::Streams, format!("the reconcile holds {most} open exchanges already; drop some first"))
        })
    }

    fn hold(self: &Arc<Self>, of: fn(&Self) -> &AtomicUsize, amount: usize, most: usize) -> Result<Held, ()> {
        let before = of(self).fetch_add(amount, Ordering::Relaxed);
        let held = Held { tally: Arc::clone(self), of, amount };
        if before.saturating_add(amount) > most { Err(()) } else { Ok(held) }
    }

    /// Counts an event.
    pub fn event(&self) -> Result<(), Exceeded> {
        let most = self.limits.event_rate;
        if self.rates.events.take(most) {
            return Ok(());
        }
        Err(self.exceed(Limit::EventRate, format!("the plugin publishes more than {most} events a minute")))
    }

    /// Counts a line of the log.
    pub fn line(&self) -> Line {
        let before = self.lines.fetch_add(1, Ordering::Relaxed);
        if before >= self.limits.log_lines {
            (self.exceeded)(Limit::LogLines);
            return if before == self.limits.log_lines { Line::FirstOver } else { Line::LeftOut };
        }
        if self.rates.log.take(self.limits.log_rate) {
            return Line::Kept(self.rates.left_out.swap(0, Ordering::Relaxed));
        }
        self.rates.left_out.fetch_add(1, Ordering::Relaxed);
        (self.exceeded)(Limit::LogRate);
        Line::LeftOut
    }
}
