//! Leader election by a Lease, as client-go does it: of several hosts one works, and another takes over when it goes.
//!
//! **Whether a lease has run out is told by watching it, never by its times**: clocks of machines differ, so a candidate takes a lease only after it has seen it
//! unchanged for as long as its holder promised to renew it. **Every write names the version that it replaces**, so of two candidates one wins. A holder counts from
//! before it asked, and gives up at its renew deadline, which is shorter than the lease: it has stopped before anyone else may begin.
//!
//! Refuses to fence: a holder that was paused for longer than its lease notices when it wakes up, and not before.

use std::{pin::pin, time::Duration};

use futures::{Stream, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::ObjectReference},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{ObjectMeta, PostParams},
    runtime::{
        WatchStreamExt as _,
        events::{Event, EventType, Recorder, Reporter},
        watcher,
    },
};
use operetta_core::name::Namespace;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// How long the last word of a holder may take.
const RELEASE_WITHIN: Duration = Duration::from_secs(5);
/// Candidates that began together must not ask together: up to so much of the retry period more, as in client-go.
const JITTER: f64 = 1.2;

/// How long a lease holds, and how often it is renewed; the defaults are controller-runtime's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long others wait for a holder that is silent. Whole seconds.
    pub lease_duration: Duration,
    /// How long a holder tries to renew before it gives up.
    pub renew_deadline: Duration,
    /// Between two attempts.
    pub retry_period: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// Times that cannot work together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// A lease is promised in whole seconds.
    #[error("a lease lasts whole seconds, one at least")]
    Fraction,
    /// The old holder must have given up before a new one begins.
    #[error("the lease duration must be longer than the renew deadline, or two hosts could work at once")]
    Deadline,
    /// One failed attempt must not be the end.
    #[error("the renew deadline must be longer than {JITTER} retry periods, or one lost answer would end a term")]
    Retry,
}

impl Timing {
    /// Whether these times can work together, by client-go's rules.
    pub fn check(&self) -> Result<(), TimingError> {
        if self.lease_duration.subsec_nanos() != 0 || self.lease_duration.is_zero() || self.seconds().is_none() {
            return Err(TimingError::Fraction);
        }
        if self.lease_duration <= self.renew_deadline {
            return Err(TimingError::Deadline);
        }
        if self.retry_period.is_zero() || self.renew_deadline <= self.retry_period.mul_f64(JITTER) {
            return Err(TimingError::Retry);
        }
        Ok(())
    }

    fn seconds(&self) -> Option<i32> {
        i32::try_from(self.lease_duration.as_secs()).ok()
    }
}

/// What a candidate learned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Another one holds the lease.
    Follows(String),
    /// The lease could not be looked at or taken, for the reason given.
    Unknown(String),
}

/// Why a term ended before its holder wanted it to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// Another one has it.
    #[error("leader election lost: the lease {lease} is now held by {holder}")]
    Taken {
        /// The lease.
        lease: String,
        /// Who has it.
        holder: String,
    },
    /// It could not be renewed in time.
    #[error("leader election lost: the lease {lease} could not be renewed within the renew deadline: {why}")]
    Unrenewed {
        /// The lease.
        lease: String,
        /// What was the matter.
        why: String,
    },
}

/// Someone who wants a lease.
pub struct Candidate {
    leases: Api<Lease>,
    name: String,
    identity: String,
    timing: Timing,
    recorder: Recorder,
    observed: Option<Observed>,
}

/// A lease as it was last seen to change.
struct Observed {
    lease: Lease,
    /// On our own clock.
    at: Instant,
}

/// How one attempt went.
enum Attempt {
    Won,
    Held(String),
}

impl Candidate {
    /// For the lease `name`; `identity` must be nobody else's.
    pub fn new(client: Client, namespace: &Namespace, name: &str, identity: &str, timing: Timing) -> Self {
        let reporter = Reporter { controller: "operetta.dev/leader-election".into(), instance: Some(identity.into()) };
        Self {
            leases: Api::namespaced(client.clone(), namespace.as_str()),
            name: name.to_owned(),
            identity: identity.to_owned(),
            timing,
            recorder: Recorder::new(client, reporter),
            observed: None,
        }
    }

    /// Waits until the lease is ours, and tells each change of what it waits for.
    pub async fn lead(mut self, mut tell: impl FnMut(&Standing)) -> Term {
        let mut changes = pin!(watcher::watch_object(self.leases.clone(), &self.name).default_backoff());
        let mut told = None;
        loop {
            let asked = Instant::now();
            let standing = match timeout(self.timing.renew_deadline, self.attempt()).await {
                Ok(Ok(Attempt::Won)) => {
                    self.announce("Lead", "became leader").await;
                    return Term { candidate: self, renewed: asked };
                }
                Ok(Ok(Attempt::Held(holder))) => Standing::Follows(holder),
                Ok(Err(error)) => Standing::Unknown(error.to_string()),
                Err(_) => Standing::Unknown("no answer from the API server".to_owned()),
            };
            if told.as_ref() != Some(&standing) {
                tell(&standing);
                told = Some(standing);
            }
            let pause = self.timing.retry_period.mul_f64(1.0 + JITTER * rand::random::<f64>());
            tokio::select! {
                () = sleep(pause) => {}
                // A holder that goes in order says so; nobody waits for its lease to run out then.
                () = released(&mut changes) => {}
            }
        }
    }

    /// Looks at the lease, and takes or renews it where that is ours to do.
    async fn attempt(&mut self) -> Result<Attempt, kube::Error> {
        let Some(found) = self.leases.get_opt(&self.name).await? else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = self.taken(Lease { metadata, ..Lease::default() });
            let created = self.leases.create(&PostParams::default(), &lease).await?;
            self.observe(created);
            return Ok(Attempt::Won);
        };
        self.observe(found.clone());
        match holder(&found) {
            Some(other) if other != self.identity && !self.has_run_out() => Ok(Attempt::Held(other.to_owned())),
            _ => {
                let lease = self.taken(found);
                self.replace(lease).await?;
                Ok(Attempt::Won)
            }
        }
    }

    /// Renews what is ours by its last known version; only where that is wrong is the lease looked at again.
    async fn renew(&mut self) -> Result<Attempt, kube::Error> {
        let Some(Observed { lease, .. }) = &self.observed else { return self.attempt().await };
        let lease = self.taken(lease.clone());
        match self.replace(lease).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => self.attempt().await,
            other => other.map(|()| Attempt::Won),
        }
    }

    async fn replace(&mut self, lease: Lease) -> Result<(), kube::Error> {
        let replaced = self.leases.replace(&self.name, &PostParams::default(), &lease).await?;
        self.observe(replaced);
        Ok(())
    }

    fn observe(&mut self, lease: Lease) {
        match &mut self.observed {
            // Not by its version: whoever puts a label on a lease has not renewed it.
            Some(observed) if observed.lease.spec == lease.spec => observed.lease = lease,
            observed => *observed = Some(Observed { lease, at: Instant::now() }),
        }
    }

    fn has_run_out(&self) -> bool {
        self.observed.as_ref().is_some_and(|observed| {
            let promised = observed.lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
            let promised = promised.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
            observed.at.elapsed() >= promised.unwrap_or(self.timing.lease_duration)
        })
    }

    /// The lease, held by us from now on.
    fn taken(&self, mut lease: Lease) -> Lease {
        let ours = holder(&lease) == Some(self.identity.as_str());
        let now = MicroTime(Timestamp::now());
        let spec = lease.spec.get_or_insert_default();
        if !ours {
            // The first holder of a new lease follows nobody.
            let before = spec.lease_transitions.map_or(0, |count| count.saturating_add(1));
            spec.lease_transitions = Some(before);
            spec.acquire_time = Some(now.clone());
            spec.holder_identity = Some(self.identity.clone());
        }
        spec.renew_time = Some(now);
        spec.lease_duration_seconds = self.timing.seconds();
        lease
    }

    /// An event at the lease. Nothing depends on it, so it may fail.
    async fn announce(&self, action: &str, what: &str) {
        let Some(Observed { lease, .. }) = &self.observed else { return };
        let note = format!("{} {what}", self.identity);
        let event = Event {
            type_: EventType::Normal,
            reason: "LeaderElection".to_owned(),
            note: Some(note),
            // Two events of one action would count as one that happened again.
            action: action.to_owned(),
            secondary: None,
        };
        let about = ObjectReference { namespace: lease.namespace(), ..lease.object_ref(&()) };
        if let Ok(Err(error)) = timeout(RELEASE_WITHIN, self.recorder.publish(&event, &about)).await {
            tracing::debug!(%error, lease = self.name, "an event cannot be published");
        }
    }
}

/// The time during which a lease is ours, as long as [`Self::keep`] is polled.
pub struct Term {
    candidate: Candidate,
    /// From when on others count: before the last renewal was asked for.
    renewed: Instant,
}

impl Term {
    /// Renews the lease for as long as that goes well.
    pub async fn keep(&mut self) -> Lost {
        let Timing { renew_deadline, retry_period, .. } = self.candidate.timing;
        let mut why = "no answer from the API server".to_owned();
        loop {
            let deadline = self.renewed + renew_deadline;
            sleep_until((Instant::now() + retry_period).min(deadline)).await;
            let asked = Instant::now();
            // Half of the time for one attempt, so that a connection that hangs is not the end.
            let patience = (asked + renew_deadline / 2).min(deadline);
            match timeout_at(patience, self.candidate.renew()).await {
                Ok(Ok(Attempt::Won)) => self.renewed = asked,
                Ok(Ok(Attempt::Held(holder))) => return Lost::Taken { lease: self.candidate.name.clone(), holder },
                Ok(Err(error)) => why = error.to_string(),
                Err(_) => {}
            }
            if self.renewed < asked {
                tracing::warn!(lease = self.candidate.name, error = why, "the lease was not renewed");
                if Instant::now() >= deadline {
                    return Lost::Unrenewed { lease: self.candidate.name.clone(), why };
                }
            }
        }
    }

    /// Gives the lease back, so that another one takes over at once. To be called when all work has ended.
    pub async fn end(mut self) {
        let given_back = async {
            let Some(Observed { lease, .. }) = &self.candidate.observed else { return Ok(()) };
            let mut lease = lease.clone();
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = Some(String::new());
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            // As client-go does: should somebody only look at the times.
            spec.lease_duration_seconds = Some(1);
            self.candidate.replace(lease).await
        };
        match timeout(RELEASE_WITHIN, given_back).await {
            Ok(Ok(())) => self.candidate.announce("GiveBack", "stopped leading").await,
            Ok(Err(error)) => tracing::warn!(%error, "the lease cannot be given back; it will run out"),
            Err(_) => tracing::warn!("the lease cannot be given back in time; it will run out"),
        }
    }
}

/// Who holds a lease; one that was given back has an empty holder.
fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|identity| !identity.is_empty())
}

/// Waits until the lease is seen without a holder. Where it may not be watched, that never happens, and the retry period decides.
async fn released(changes: &mut (impl Stream<Item = watcher::Result<Option<Lease>>> + Unpin)) {
    while let Some(change) = changes.next().await {
        if let Ok(lease) = change
            && lease.as_ref().and_then(holder).is_none()
        {
            return;
        }
    }
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests;
