//! How much of the machine one plugin may use. The defaults are such that a normal operator never meets them.
//!
//! A limit that is met is an error value with the limit's name in it, never a silent loss, and is counted by [`Limit::label`]. A rate that is met is `TooManyRequests` with the time
//! until there is room, as an API server would say it, and its name is in the plugin's log. Only what has no caller to tell is cut: lines of the log, which say so, and keys that wait for
//! a place, and what an object refers to.
//!
//! # What one plugin may take of the machine at most
//!
//! | of | at most |
//! | --- | --- |
//! | places for reconciles | its `concurrency`, and never the places that are kept for the others ([`crate::share`]): of 64 places a lone plugin has 48 |
//! | memory | `concurrency` times `memory` (1 GiB), and of what all guests may hold as much as is free: alone half of three eighths of the machine ([`crate::memory`]); the answers on their way in (8 MiB of small ones and one of 64 MiB); and of what all caches may hold as much as is free: alone half of a quarter of the machine |
//! | CPU | half of the cores, of which a quarter of one at once and the rest as nobody else of the host wants it; each reconcile ends after `cpu` |
//! | time in a place | `deadline` |
//! | bytes from and to the world | `traffic` for each reconcile, of which `message` at once |
//! | writes | `write_rate` a minute for each object, and ten times as many new objects for each that is reconciled |
//! | messages of gRPC | for each channel eight of `message` bytes that were sent and that the service has not read, and parts of 32 that have come and are not whole; 64 KiB of each call |
//! | connections | one for each gRPC channel, `connections` for each database |
//! | the log | `log_rate` lines a minute of `log_line` bytes |
//! | what it watches | 32 controllers, 64 kinds and 128 watches by a mapping ([`crate::manifest`]); 1,000 names that one object refers to, 200,000 of all objects of a controller ([`crate::route`]) |

use std::{fmt, time::Duration};

/// Elements that the tables of an instance may have at most: what the pool of instances reserves.
pub const MOST_TABLE_ELEMENTS: usize = 100_000;
/// Rows that a statement may answer at most, whatever the document says.
pub const MOST_ROWS: usize = 10_000;
/// So many times [`Limits::write_rate`] are the objects that may be made in a minute for one that is reconciled: with the default 3,000, so that one with a thousand children makes them at
/// once, and again, and what spins makes no more than fifty a second.
pub const MADE_FOR_WRITTEN: u64 = 10;
/// Bytes of a guest's call stack; one for all plugins, since it is the engine's.
pub const STACK: usize = 512 << 10;

/// The limits of one plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of linear memory that one reconcile may hold.
    pub memory: usize,
    /// Elements of all tables of one reconcile's instance.
    pub tables: usize,
    /// Wall-clock time of one reconcile, waiting included.
    pub deadline: Duration,
    /// CPU time of one reconcile.
    pub cpu: Duration,
    /// Reconciles of the plugin at the same time.
    pub concurrency: usize,
    /// Imports that one reconcile may call.
    pub host_calls: u64,
    /// Bytes of one argument or answer of a host call, of a page of a list, and of a gRPC message.
    pub message: usize,
    /// Bytes of all arguments and answers of one reconcile.
    pub traffic: u64,
    /// Rows that one SQL statement may answer.
    pub rows: usize,
    /// gRPC exchanges that one reconcile may hold open, and unary calls that it waits for.
    pub streams: usize,
    /// Events that the plugin may publish in a minute, on average; as many at once.
    pub event_rate: u64,
    /// Writes of one object that the plugin may make in a minute, on average; as many at once. What would change nothing is no write. See [`MADE_FOR_WRITTEN`] for new objects.
    pub write_rate: u64,
    /// Lines that one reconcile may log.
    pub log_lines: u64,
    /// Lines that the plugin may log in a minute, on average; as many at once.
    pub log_rate: u64,
    /// Bytes of one line of its log.
    pub log_line: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A Rust guest with kube types and a tonic client stays under 4 MiB; an interpreter in a component needs some 30.
            memory: 64 << 20,
            // They hold function pointers: an interpreter has some 20,000.
            tables: MOST_TABLE_ELEMENTS,
            deadline: Duration::from_secs(30),
            // A reconcile of a 2 kB object takes well under a millisecond.
            cpu: Duration::from_secs(2),
            concurrency: 16,
            host_calls: 10_000,
            // etcd takes objects of at most 1.5 MiB, and gRPC's own default is 4 MiB.
            message: 4 << 20,
            // A list of ten thousand pods is some 100 MiB.
            traffic: 512 << 20,
            rows: MOST_ROWS,
            // A reconcile has one, or a few side by side.
            streams: 100,
            // Each of a thousand objects says several things at once when a service goes down.
            event_rate: 6_000,
            // A Deployment of a thousand pods that rolls out changes several times a second, and an operator may mirror each change; what spins writes a hundred times a second.
            write_rate: 300,
            log_lines: 200,
            // Some hundred reconciles a second with a few lines each.
            log_rate: 30_000,
            log_line: 8 << 10,
        }
    }
}

/// Something of which there is only so much. The cases are apart because an administrator does different things about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Limit {
    /// Linear memory.
    Memory,
    /// Linear memory that all guests of the host share.
    GuestMemory,
    /// Elements of tables.
    Tables,
    /// Wall-clock time.
    Deadline,
    /// CPU time.
    Cpu,
    /// The call stack.
    Stack,
    /// Reconciles at the same time: a key had to wait.
    Concurrency,
    /// The number of host calls.
    HostCalls,
    /// Host calls and handles at the same time.
    Handles,
    /// The size of one argument or answer.
    Message,
    /// The size of one gRPC message.
    GrpcMessage,
    /// The size of all arguments that wait at the same time, or of gRPC messages that have come in part.
    Waiting,
    /// The size of all arguments and answers.
    Traffic,
    /// A page of a list, which was cut.
    List,
    /// Rows of an answer.
    Rows,
    /// Open gRPC exchanges, and unary calls under way.
    Streams,
    /// Events a minute.
    EventRate,
    /// Writes of one object a minute, or new objects for one.
    WriteRate,
    /// Lines of one reconcile.
    LogLines,
    /// Lines a minute.
    LogRate,
    /// The length of a line, which was cut.
    LogLine,
    /// Names by which objects refer to others that wake them.
    References,
}

impl Limit {
    /// The value of the metric label `limit`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::GuestMemory => "guest_memory",
            Self::Tables => "tables",
            Self::Deadline => "deadline",
            Self::Cpu => "cpu",
            Self::Stack => "stack",
            Self::Concurrency => "concurrency",
            Self::HostCalls => "host_calls",
            Self::Handles => "handles",
            Self::Message => "message",
            Self::GrpcMessage => "grpc_message",
            Self::Waiting => "waiting",
            Self::Traffic => "traffic",
            Self::List => "list",
            Self::Rows => "rows",
            Self::Streams => "streams",
            Self::EventRate => "event_rate",
            Self::WriteRate => "write_rate",
            Self::LogLines => "log_lines",
            Self::LogRate => "log_rate",
            Self::LogLine => "log_line",
            Self::References => "references",
        }
    }

    /// What an administrator changes in `spec.limits` to move it; none where it is fixed.
    pub fn field(self) -> Option<&'static str> {
        Some(match self {
            Self::Memory => "memoryMiB",
            Self::Tables => "tableElements",
            Self::Deadline => "deadlineSeconds",
            Self::Cpu => "cpuSeconds",
            Self::Concurrency => "concurrency",
            Self::HostCalls => "hostCalls",
            Self::Message | Self::GrpcMessage | Self::Waiting | Self::List => "messageKiB",
            Self::Traffic => "trafficMiB",
            Self::Rows => "rows",
            Self::Streams => "streams",
            Self::EventRate => "eventsPerMinute",
            Self::WriteRate => "writesPerObjectPerMinute",
            Self::LogLines => "logLines",
            Self::LogRate => "logLinesPerMinute",
            Self::LogLine => "logLineBytes",
            Self::GuestMemory | Self::Stack | Self::Handles | Self::References => return None,
        })
    }
}

/// The label.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// A limit that was met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exceeded {
    /// Which.
    pub limit: Limit,
    /// By what, for people.
    pub what: String,
}

impl std::error::Error for Exceeded {}

/// What happened, and which field of the Plugin document says so.
impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match self.limit.field() {
            Some(field) => write!(f, "; limits.{field} in the Plugin document sets that limit"),
            None => Ok(()),
        }
    }
}
