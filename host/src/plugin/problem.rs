//! Why a plugin does not run as it should: in which step, for which reason, and what to do.

use std::fmt;

/// A step on the way to a running plugin; the same words stand in errors, logs and docs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Finding the document and the component, and reading both.
    Fetch,
    /// Checking the component without running it.
    Verify,
    /// Making machine code of it.
    Compile,
    /// Asking it for its manifest.
    Describe,
    /// Comparing what it needs with what it was granted.
    Grant,
    /// Starting its watches.
    Start,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fetch => "fetch",
            Self::Verify => "verify",
            Self::Compile => "compile",
            Self::Describe => "describe",
            Self::Grant => "grant",
            Self::Start => "start",
        })
    }
}

/// What conditions and events call a problem, where its phase does not say enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The document is not what it should be.
    InvalidDocument,
    /// A file is not there.
    FileMissing,
    /// The document is not there, and nothing is granted without it.
    DocumentMissing,
    /// A ConfigMap is not there.
    ConfigMapMissing,
    /// A ConfigMap holds no component.
    ConfigMapInvalid,
    /// The component is another than the document pins.
    DigestMismatch,
    /// The cluster refuses.
    Forbidden,
    /// Another plugin reconciles the kind.
    KindTaken,
    /// Objects hold a finalizer that nobody would ever remove.
    FinalizersHeld,
    /// What the phase says.
    Other,
}

/// What runs on as long as there is a problem: with how much of what it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meanwhile {
    /// With all of it.
    RunsOn,
    /// With what the document that is not taken grants as well.
    Narrowed,
    /// With nothing.
    Rests,
}

impl fmt::Display for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RunsOn => "runs on",
            Self::Narrowed => "runs on with what both documents grant",
            Self::Rests => "reconciles nothing until then",
        })
    }
}

/// Why a plugin does not run as it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// In which step.
    pub phase: Phase,
    /// For which reason.
    pub reason: Reason,
    /// What is wrong and what to do.
    pub message: String,
    /// Whether the same files may work later, so that trying again makes sense.
    pub passing: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.phase, self.message)
    }
}

impl Problem {
    /// It stays until a file changes.
    pub fn lasting(phase: Phase, message: &impl ToString) -> Self {
        Self { phase, reason: Reason::Other, message: message.to_string(), passing: false }
    }

    /// It may pass by itself.
    pub fn passing(phase: Phase, message: &impl ToString) -> Self {
        Self { passing: true, ..Self::lasting(phase, message) }
    }

    /// For this reason.
    pub fn because(self, reason: Reason) -> Self {
        Self { reason, ..self }
    }

    /// In one word, as conditions and events have it.
    pub fn word(&self) -> &'static str {
        match (self.reason, self.phase) {
            (Reason::InvalidDocument, _) => "InvalidDocument",
            (Reason::FileMissing | Reason::DocumentMissing, _) => "FileMissing",
            (Reason::ConfigMapMissing, _) => "ConfigMapMissing",
            (Reason::ConfigMapInvalid, _) => "ConfigMapInvalid",
            (Reason::DigestMismatch, _) => "DigestMismatch",
            (Reason::Forbidden, _) => "Forbidden",
            (Reason::KindTaken, _) => "KindTaken",
            (Reason::FinalizersHeld, _) => "FinalizersHeld",
            (Reason::Other, Phase::Fetch) => "FetchFailed",
            (Reason::Other, Phase::Verify) => "InvalidComponent",
            (Reason::Other, Phase::Compile) => "CompileFailed",
            (Reason::Other, Phase::Describe) => "InvalidManifest",
            (Reason::Other, Phase::Grant) => "NotGranted",
            (Reason::Other, Phase::Start) => "StartFailed",
        }
    }

    /// Whether the component is to blame, or that it is not there; if not, it is loaded.
    pub fn is_of_loading(&self) -> bool {
        self.phase < Phase::Grant
    }

    /// Whether the plugin may not act at all: the cluster refuses the account itself.
    pub fn is_of_account(&self) -> bool {
        self.phase == Phase::Grant && self.reason == Reason::Forbidden
    }

    /// Whether it is about what the plugin may do.
    pub fn is_of_grants(&self) -> bool {
        self.phase == Phase::Grant || self.reason == Reason::Forbidden
    }
}
