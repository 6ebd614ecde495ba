//! Conditions by the Kubernetes API conventions. Refuses to let a transition time move without a transition.

use crate::context::Context;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// A condition's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody can tell yet.
    Unknown,
}

impl State {
    /// As written in the object.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// The conditions of one object, on their way from the observed status to the next.
#[derive(Clone, Debug)]
pub struct Conditions {
    now: Time,
    generation: Option<i64>,
    list: Vec<Condition>,
}

impl Conditions {
    /// Starts from what the object's status says now.
    pub fn of<K: kube::Resource>(context: &Context, object: &K, observed: &[Condition]) -> Self {
        Self { now: Time(context.now()), generation: object.meta().generation, list: observed.to_vec() }
    }

    /// Sets a condition for the object's current generation. Keeps `lastTransitionTime` unless the status changes. Says whether status or reason did.
    pub fn set(&mut self, kind: &str, state: State, reason: &str, message: impl Into<String>) -> bool {
        let next = Condition {
            last_transition_time: self.now.clone(),
            message: message.into(),
            observed_generation: self.generation,
            reason: reason.to_owned(),
            status: state.as_str().to_owned(),
            type_: kind.to_owned(),
        };
        let Some(old) = self.list.iter_mut().find(|condition| condition.type_ == kind) else {
            self.list.push(next);
            return true;
        };
        let old = std::mem::replace(old, next);
        let Some(new) = self.list.iter_mut().find(|condition| condition.type_ == kind) else { return true };
        if old.status == new.status {
            new.last_transition_time = old.last_transition_time;
        }
        old.status != new.status || old.reason != new.reason
    }

    /// The condition of this type.
    pub fn get(&self, kind: &str) -> Option<&Condition> {
        self.list.iter().find(|condition| condition.type_ == kind)
    }

    /// Whether the condition of this type has this status and reason.
    pub fn is(&self, kind: &str, state: State, reason: &str) -> bool {
        self.get(kind).is_some_and(|condition| condition.status == state.as_str() && condition.reason == reason)
    }

    /// None was ever set.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// For the next status.
    pub fn to_vec(&self) -> Vec<Condition> {
        self.list.clone()
    }
}
