//! Where a reconcile is cut, and how.

/// What happens to one host call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with `unavailable` and had no effect.
    Refused,
    /// It had its effect, but the answer is `unavailable`.
    AnswerLost,
    /// The plugin dies before it.
    CrashBefore,
    /// The plugin dies after it, without seeing the answer.
    CrashAfter,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 4] = [Fault::Refused, Fault::AnswerLost, Fault::CrashBefore, Fault::CrashAfter];
}

/// A fault at one host call, counted from 0 over the whole life of a [`FakeHost`](super::FakeHost).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Which call.
    pub call: usize,
    /// What happens to it.
    pub fault: Fault,
}

/// Counts host calls and knows the one that is cut.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) calls: usize,
    pub(super) cut: Option<Cut>,
    pub(super) reached: bool,
    pub(super) crashed: bool,
}

impl Faults {
    /// What happens to the call that begins now.
    pub(super) fn next(&mut self) -> Option<Fault> {
        let call = self.calls;
        self.calls += 1;
        let fault = self.cut.filter(|cut| cut.call == call).map(|cut| cut.fault);
        self.reached |= fault.is_some();
        fault
    }
}
