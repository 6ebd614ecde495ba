//! What one reconcile may do: what the policy of now allows, and never more than that of its beginning did, which is the one that its ports belong to.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};

use super::{Effects, Policy};
use crate::grant::{Closed, Denial, Grants};

/// The policies of one reconcile.
pub(super) struct View {
    /// The one of now.
    pub shared: Arc<ArcSwap<Policy>>,
    /// The one of the beginning.
    pub began: Arc<Policy>,
    /// What both allow, where they are two.
    both: Mutex<Option<Both>>,
}

struct Both {
    now: Arc<Policy>,
    left: Arc<Policy>,
}

impl View {
    pub fn new(began: Arc<Policy>, shared: Arc<ArcSwap<Policy>>) -> Self {
        Self { shared, began, both: Mutex::default() }
    }

    /// Whether all is as it was in the beginning. Asked with every call, so it must cost nothing.
    pub fn is_unchanged(&self) -> bool {
        is_same(&self.shared.load(), &self.began)
    }

    /// What it may do now.
    pub fn now(&self) -> Guard<Arc<Policy>> {
        let now = self.shared.load();
        if is_same(&now, &self.began) {
            return now;
        }
        let mut both = self.both.lock().unwrap_or_else(PoisonError::into_inner);
        let known = both.as_ref().filter(|both| is_same(&both.now, &now)).map(|both| Arc::clone(&both.left));
        let left = known.unwrap_or_else(|| {
            let left = Arc::new(now.left_to(&self.began));
            *both = Some(Both { now: Guard::into_inner(now), left: Arc::clone(&left) });
            left
        });
        Guard::from_inner(left)
    }

    /// A denial as it is told: what began before the document of now may lack what that one grants.
    pub fn told(&self, denial: Denial) -> Denial {
        if self.is_unchanged() { denial } else { denial.of_before() }
    }
}

fn is_same(one: &Policy, other: &Policy) -> bool {
    std::ptr::eq(one, other)
}

impl Policy {
    /// What is left of it to a reconcile that began under another: what both allow. That is nothing where the plugin acts as another account by now: what is granted now is granted to that one, and the
    /// ports are still the old one's.
    fn left_to(&self, began: &Self) -> Self {
        let mut left = began.clone();
        match began.bounds.and(&self.bounds) {
            Some(bounds) => {
                left.bounds = bounds;
                left.grants = self.grants.clone().and(began.grants.clone());
            }
            None => left.grants.closed = Some(Closed::OtherAccount),
        }
        left
    }
}

/// Whether what was opened is granted still.
pub(super) struct Still {
    policy: Arc<View>,
    denials: Arc<dyn Fn(&Denial) + Send + Sync>,
}

impl Still {
    pub fn check<T>(&self, granted: impl FnOnce(&Grants) -> Result<T, Denial>) -> Result<(), Denial> {
        if self.policy.is_unchanged() {
            return Ok(());
        }
        granted(&self.policy.now().grants).map(drop).map_err(|denial| {
            let denial = self.policy.told(denial);
            (self.denials)(&denial);
            denial
        })
    }
}

impl Effects {
    /// For what stays open after the call that opens it.
    pub(super) fn still(&self) -> Still {
        Still { policy: Arc::clone(&self.policy), denials: Arc::clone(&self.ports.denials) }
    }
}
