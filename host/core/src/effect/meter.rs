//! What one plugin uses of the world, counted at the door: its calls by how they ended, and the bytes that they carried. Counting costs some nanoseconds and waits for nobody.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::port::{ApiError, GrpcStatus, Objection, database::SqlError};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$case_doc:meta])* $case:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$case_doc])* $case,)*
        }

        impl $name {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$case,)*];

            /// The value of the metric's label.
            pub fn label(self) -> &'static str {
                match self {
                    $(Self::$case => $word,)*
                }
            }
        }
    };
}

words! {
    /// What is called. Requests to the API server are called as RBAC calls them, whether a cache or the API server answers.
    Call {
        /// One object.
        Get = "get",
        /// A page of objects.
        List = "list",
        /// A new object.
        Create = "create",
        /// A change.
        Patch = "patch",
        /// A whole object.
        Update = "update",
        /// An end.
        Delete = "delete",
        /// An event.
        Publish = "publish",
        /// A gRPC call, unary or streaming.
        Grpc = "grpc",
        /// A statement, or the beginning of a transaction.
        Sql = "sql",
    }
}

words! {
    /// How it ended: the cases of `api-error` in the contract, and two more.
    Ending {
        /// As asked.
        Ok = "ok",
        /// A write that would have changed nothing, and left the host never.
        Unchanged = "unchanged",
        /// There is none.
        NotFound = "not_found",
        /// There is one.
        AlreadyExists = "already_exists",
        /// It changed meanwhile.
        Conflict = "conflict",
        /// It makes no sense.
        Invalid = "invalid",
        /// The cluster or the service says no.
        Forbidden = "forbidden",
        /// The host says no.
        Denied = "denied",
        /// A token that is too old.
        Gone = "gone",
        /// Too fast.
        TooManyRequests = "too_many_requests",
        /// Nobody answers.
        Unavailable = "unavailable",
        /// Nobody answers in time.
        Timeout = "timeout",
        /// A limit.
        TooLarge = "too_large",
        /// Anything else that a service says.
        Error = "error",
    }
}

impl From<&ApiError> for Ending {
    fn from(error: &ApiError) -> Self {
        match error {
            ApiError::NotFound(_) => Self::NotFound,
            ApiError::AlreadyExists(_) => Self::AlreadyExists,
            ApiError::Conflict(_) => Self::Conflict,
            ApiError::Invalid(_) => Self::Invalid,
            ApiError::Forbidden(_) => Self::Forbidden,
            ApiError::Denied(_) => Self::Denied,
            ApiError::Gone(_) => Self::Gone,
            ApiError::TooManyRequests(_) => Self::TooManyRequests,
            ApiError::Unavailable(_) | ApiError::Unreachable(_) => Self::Unavailable,
            ApiError::Timeout(_) => Self::Timeout,
            ApiError::TooLarge(_) | ApiError::AnswerTooLarge(_) => Self::TooLarge,
        }
    }
}

impl From<&GrpcStatus> for Ending {
    fn from(status: &GrpcStatus) -> Self {
        match status.objection {
            Some(Objection::Limit(_)) => return Self::TooLarge,
            Some(Objection::Denied) => return Self::Denied,
            None => {}
        }
        match status.code {
            3 => Self::Invalid,
            4 => Self::Timeout,
            5 => Self::NotFound,
            6 => Self::AlreadyExists,
            7 | 16 => Self::Forbidden,
            14 => Self::Unavailable,
            _ => Self::Error,
        }
    }
}

impl From<&SqlError> for Ending {
    fn from(error: &SqlError) -> Self {
        match error {
            SqlError::Denied(_) => Self::Denied,
            SqlError::Invalid(_) => Self::Invalid,
            SqlError::TooLarge(_) => Self::TooLarge,
            SqlError::Timeout(_) => Self::Timeout,
            SqlError::Unavailable(_) => Self::Unavailable,
            SqlError::Database { .. } | SqlError::Unsupported(_) => Self::Error,
        }
    }
}

/// What one plugin has used so far.
#[derive(Debug, Default)]
pub struct Meter {
    calls: [[AtomicU64; Ending::ALL.len()]; Call::ALL.len()],
    host_calls: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Meter {
    /// A call ended.
    pub fn count(&self, call: Call, ending: Ending) {
        if let Some(counter) = self.calls.get(call as usize).and_then(|calls| calls.get(ending as usize)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn host_call(&self) {
        self.host_calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn send(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn receive(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Calls that happened, by what and how.
    pub fn calls(&self) -> impl Iterator<Item = (Call, Ending, u64)> {
        let all = Call::ALL.iter().zip(&self.calls).flat_map(|(call, endings)| {
            Ending::ALL.iter().zip(endings).map(|(ending, count)| (*call, *ending, count.load(Ordering::Relaxed)))
        });
        all.filter(|(_, _, count)| *count > 0)
    }

    /// Imports that were called, as `limits.hostCalls` counts them: each message of a stream is one.
    pub fn host_calls(&self) -> u64 {
        self.host_calls.load(Ordering::Relaxed)
    }

    /// Bytes of all arguments, and of all answers.
    pub fn bytes(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed))
    }
}
