//! One reconcile: what is asked, and how it ends.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    effect::Effects,
    limit::{Exceeded, Limit, STACK},
    name::ControllerName,
    resource::ObjectKey,
};

/// Why a reconcile runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Something changed, or was found at start.
    Changed,
    /// The regular look, or a new version took over.
    Resync,
    /// The last reconcile asked for it.
    Requeued,
    /// The last reconcile failed.
    Retried,
}

/// What a plugin is asked to reconcile.
#[derive(Debug, Clone)]
pub struct Request {
    /// Which of the plugin's controllers.
    pub controller: ControllerName,
    /// Names an object of its primary kind.
    pub key: ObjectKey,
    /// That object as JSON, none when it is gone.
    pub object: Option<Arc<str>>,
    /// Failures in a row that came before.
    pub attempt: u32,
    /// Why now.
    pub cause: Cause,
}

/// A reconcile that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Call again when something changes.
    AwaitChange,
    /// Call again after this time, or earlier if something changes.
    RequeueAfter(Duration),
}

/// A reconcile that failed. The kinds are kept apart because an administrator does different things about them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The plugin asks to be called again later.
    #[error("{0}")]
    Retryable(String),
    /// The plugin says that trying again is pointless until the object changes.
    #[error("terminal: {0}")]
    Terminal(String),
    /// The guest crashed: a panic, an `unreachable`, an out-of-bounds access. The text has its backtrace.
    #[error("the plugin trapped: {0}")]
    Trap(String),
    /// Wall-clock time ran out.
    #[error(
        "the reconcile took longer than its deadline of {0:?}; raise limits.deadlineSeconds in the Plugin document if it needs to wait that long"
    )]
    Deadline(Duration),
    /// Wall-clock time ran out while a call to the world was not answered, which may be whose fault it likes.
    #[error(
        "the reconcile still waited for the answer to a call when its deadline of {0:?} passed: the API server, a service or a database is slow or away; \
         raise limits.deadlineSeconds in the Plugin document if it needs to wait that long"
    )]
    Unanswered(Duration),
    /// CPU time ran out.
    #[error(
        "the reconcile used more CPU time than its budget of {0:?}; raise limits.cpuSeconds in the Plugin document if it is no endless loop"
    )]
    Cpu(Duration),
    /// It asked for more memory than it may hold.
    #[error(
        "the reconcile asked for {wanted} bytes of memory and may hold {cap}; raise limits.memoryMiB in the Plugin document if it needs that much"
    )]
    Memory {
        /// What it asked for, in bytes.
        wanted: usize,
        /// What it may hold, in bytes.
        cap: usize,
    },
    /// It asked for more memory than there is among all guests; no fault of the plugin, unless it is the one that holds the most.
    #[error(
        "the host's memory for guests is used up: the reconcile asked for {wanted} bytes more, and a plugin may hold as much as is free; this one's reconciles hold {held} together, and of {total} for all plugins {free} are free. \
         It is tried again; if this goes on, give the host more memory, or more of it for guests with --guest-mib, or lower limits.concurrency in the Plugin document of whoever holds most (metric operetta_guest_memory_bytes)"
    )]
    NoRoom {
        /// What it asked for, in bytes.
        wanted: usize,
        /// What all reconciles of the plugin hold.
        held: usize,
        /// What nobody holds.
        free: usize,
        /// What all guests of the host may hold.
        total: usize,
    },
    /// It asked for more elements of its tables than they may have.
    #[error(
        "the reconcile asked for tables of {wanted} elements and may have {cap}; raise limits.tableElements in the Plugin document if it needs that many"
    )]
    Tables {
        /// What it asked for.
        wanted: usize,
        /// What it may have.
        cap: usize,
    },
    /// Its call stack is exhausted. The text has its backtrace.
    #[error("the reconcile exhausted its call stack of {} KiB: endless recursion? {place}", STACK >> 10, place = .0)]
    Stack(String),
    /// Another limit was met.
    #[error("{0}")]
    Limit(Exceeded),
    /// The host itself failed; no fault of the plugin.
    #[error("the host could not run the reconcile: {0}")]
    Host(String),
}

impl Failure {
    /// The value of the metric label `reason`, and of the events: one word for each kind.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Retryable(_) => "Error",
            Self::Terminal(_) => "TerminalError",
            Self::Trap(_) => "Trap",
            Self::Deadline(_) | Self::Unanswered(_) => "DeadlineExceeded",
            Self::Cpu(_) => "CPUExceeded",
            Self::Memory { .. } => "MemoryExceeded",
            Self::NoRoom { .. } => "GuestMemoryExhausted",
            Self::Tables { .. } => "TablesExceeded",
            Self::Stack(_) => "StackExceeded",
            Self::Limit(_) => "LimitExceeded",
            Self::Host(_) => "HostError",
        }
    }

    /// The limit that was met, if one was.
    pub fn limit(&self) -> Option<Limit> {
        match self {
            Self::Deadline(_) | Self::Unanswered(_) => Some(Limit::Deadline),
            Self::Cpu(_) => Some(Limit::Cpu),
            Self::Memory { .. } => Some(Limit::Memory),
            Self::NoRoom { .. } => Some(Limit::GuestMemory),
            Self::Tables { .. } => Some(Limit::Tables),
            Self::Stack(_) => Some(Limit::Stack),
            Self::Limit(exceeded) => Some(exceeded.limit),
            Self::Retryable(_) | Self::Terminal(_) | Self::Trap(_) | Self::Host(_) => None,
        }
    }

    /// What it is, without the backtrace that may follow.
    pub fn first_line(&self) -> String {
        self.to_string().lines().next().unwrap_or_default().to_owned()
    }

    /// Whether the host had to end the guest, which itself would not. One that waits for an answer cannot, and is none.
    pub fn is_guests_end(&self) -> bool {
        matches!(
            self,
            Self::Trap(_)
                | Self::Deadline(_)
                | Self::Cpu(_)
                | Self::Memory { .. }
                | Self::Tables { .. }
                | Self::Stack(_)
                | Self::Limit(_)
        )
    }
}

/// Something that reconciles: a component in the sandbox, or a closure in a test.
#[async_trait]
pub trait Reconciler: Send + Sync {
    /// Runs one reconcile to its end. Dropping the future is a hard cancel and leaves nothing behind.
    async fn reconcile(&self, request: Request, effects: Arc<Effects>) -> Result<Outcome, Failure>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_for_an_answer_meets_the_deadline_and_is_not_to_blame() {
        let ends = [Failure::Deadline, Failure::Unanswered].map(|end| end(Duration::from_secs(30)));
        assert_eq!(ends.each_ref().map(Failure::is_guests_end), [true, false]);
        for end in ends {
            assert_eq!((end.reason(), end.limit()), ("DeadlineExceeded", Some(Limit::Deadline)));
            assert!(end.to_string().contains("30s") && end.to_string().contains("limits.deadlineSeconds"), "{end}");
        }
    }
}
