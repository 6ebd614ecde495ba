//! Why an effect failed, and how a reconcile fails. Refuses to decide whether an error is worth another try: `?` says yes, [`Failure::terminal`] says no.

use std::{error::Error as StdError, time::Duration};

/// Why a read or a write failed; the cases are those of the contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such object, or the cluster has no such resource.
    #[error("not found: {0}")]
    NotFound(String),
    /// The name of a new object is taken.
    #[error("already exists: {0}")]
    AlreadyExists(String),
    /// The object changed meanwhile, a precondition failed, or another plugin owns a field.
    #[error("conflict: {0}")]
    Conflict(String),
    /// The API server refuses the object, or a JSON patch's test failed.
    #[error("invalid: {0}")]
    Invalid(String),
    /// The cluster's RBAC or an admission policy says no.
    #[error("forbidden: {0}")]
    Forbidden(String),
    /// The host says no: the plugin was not granted it. The message holds the missing rule.
    #[error("denied: {0}")]
    Denied(String),
    /// A list took too long to page through: begin again.
    #[error("gone: {0}")]
    Gone(String),
    /// The API server asks for patience, for so long where it says so.
    #[error("the API server asks for patience{}", .0.map(|after| format!(" for {after:?}")).unwrap_or_default())]
    TooManyRequests(Option<Duration>),
    /// The API server cannot be reached or failed; whether a write happened is unknown.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// No answer in time; whether a write happened is unknown.
    #[error("timeout: {0}")]
    Timeout(String),
    /// An argument or an answer exceeds a limit.
    #[error("too large: {0}")]
    TooLarge(String),
    /// A case that this SDK does not know yet.
    #[error("{code}: {message}")]
    Other {
        /// For programs, in kebab-case.
        code: String,
        /// For people.
        message: String,
    },
    /// An object could not be written as JSON, or one that was read does not fit its Rust type.
    #[error("{0}")]
    Malformed(String),
}

impl Error {
    /// The object is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }

    /// A word for a condition's reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "NotFound",
            Self::AlreadyExists(_) => "AlreadyExists",
            Self::Conflict(_) => "Conflict",
            Self::Invalid(_) => "Invalid",
            Self::Forbidden(_) => "Forbidden",
            Self::Denied(_) => "Denied",
            Self::Gone(_) => "Gone",
            Self::TooManyRequests(_) => "TooManyRequests",
            Self::Unavailable(_) => "Unavailable",
            Self::Timeout(_) => "Timeout",
            Self::TooLarge(_) => "TooLarge",
            Self::Other { .. } => "Other",
            Self::Malformed(_) => "Malformed",
        }
    }
}

/// A reconcile that failed. Any error becomes a retryable one by `?`.
///
/// It is no [`std::error::Error`] itself, which is what makes that conversion possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Try again with exponential backoff.
    Retryable(String),
    /// Trying again is pointless until the object changes.
    Terminal(String),
}

impl Failure {
    /// A failure that is tried again with exponential backoff.
    pub fn retryable(message: impl Into<String>) -> Self {
        Self::Retryable(message.into())
    }

    /// A failure that only a change of the object can heal.
    pub fn terminal(message: impl Into<String>) -> Self {
        Self::Terminal(message.into())
    }

    /// What went wrong.
    pub fn message(&self) -> &str {
        match self {
            Self::Retryable(message) | Self::Terminal(message) => message,
        }
    }
}

impl<E: StdError> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            // Many errors already repeat their source.
            if !message.contains(&cause_text) {
                message.push_str(": ");
                message.push_str(&cause_text);
            }
            source = cause.source();
        }
        Self::Retryable(message)
    }
}
