//! Tells the Plugin of the cluster how the plugin fares: its status and events.
//!
//! **Written only when something changed, and never more than once a second**; what only counts on is written with the regular look. A plugin of a file has no Plugin and
//! is told of nowhere but in the log and the metrics.

mod conditions;
mod news;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use operetta_api::PluginStatus;
use operetta_core::{
    grant::Denial,
    name::PluginName,
    port::{ApiError, Severity},
};
use tokio::{sync::watch, time::Instant};

use self::conditions::compose;
use crate::{
    plugin::Status,
    plugin_objects::Objects,
    vitals::{Census, Vitals},
};

/// Counts are looked at this often.
const LOOK: Duration = Duration::from_secs(10);
/// Between two writes, at least.
const PAUSE: Duration = Duration::from_secs(1);
/// Changes that come together are told together.
const TOGETHER: Duration = Duration::from_millis(50);

/// All that a status is made of, at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    status: Status,
    census: Census,
    /// With those before the host was started.
    reconciles: u64,
    errors: u64,
    trapping: Option<String>,
    parked: Option<String>,
    looping: Option<String>,
    denied: Vec<Denial>,
}

/// Tells of one plugin.
pub struct Reporter {
    objects: Arc<dyn Objects>,
    name: PluginName,
    vitals: Arc<Vitals>,
    told: Option<Told>,
}

/// What was told last.
struct Told {
    uid: String,
    seen: Seen,
    written: PluginStatus,
    /// What was counted before this host was started.
    before: (u64, u64),
    /// Why it could not be written, said once.
    failure: Option<String>,
}

impl Reporter {
    /// Nothing is told yet.
    pub fn new(objects: Arc<dyn Objects>, name: PluginName, vitals: Arc<Vitals>) -> Self {
        Self { objects, name, vitals, told: None }
    }

    /// Tells until it is dropped.
    pub async fn follow(mut self, mut status: watch::Receiver<Status>) {
        let mut next_look = Instant::now() + LOOK;
        loop {
            tokio::select! {
                changed = status.changed() => if changed.is_err() {
                    return;
                },
                () = self.vitals.alarm() => {}
                () = tokio::time::sleep_until(next_look) => {}
            }
            tokio::time::sleep(TOGETHER).await;
            next_look = Instant::now() + LOOK;
            let now = status.borrow_and_update().clone();
            if now.object.is_none() {
                self.told = None;
                continue;
            }
            if self.tell(now).await {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Tells what is new, and answers whether there was anything.
    async fn tell(&mut self, status: Status) -> bool {
        let Some(uid) = status.object.as_ref().map(|object| object.uid.clone()) else { return false };
        let told = self.told.take().filter(|told| told.uid == uid);
        let first = told.is_none();
        let (before_seen, before_written, before, failure) = if let Some(told) = told {
            (Some(told.seen), told.written, told.before, told.failure)
        } else {
            let recorded = self.objects.status(&self.name).unwrap_or_default();
            let count = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok()).unwrap_or_default();
            // This host's own count may have begun with an earlier incarnation.
            let (reconciles, errors) = self.vitals.totals();
            let before =
                (count(recorded.reconciles).saturating_sub(reconciles), count(recorded.errors).saturating_sub(errors));
            (None, recorded, before, None)
        };
        let seen = self.look(status, before);
        let next = compose(&seen, &before_written, Timestamp::now());
        let changed = first || failure.is_some() || next != before_written;
        let mut told = Told { uid, seen, written: next, before, failure };
        if changed {
            for (severity, reason, note) in news::of(before_seen.as_ref(), &told.seen) {
                self.publish(severity, reason, &note).await;
            }
            let result = self.objects.write(&self.name, &told.uid, &told.written).await;
            told.failure = self.written(result, told.failure.take());
        }
        self.told = Some(told);
        changed
    }

    fn look(&self, status: Status, before: (u64, u64)) -> Seen {
        let (reconciles, errors) = self.vitals.totals();
        Seen {
            status,
            census: self.vitals.census(),
            reconciles: before.0 + reconciles,
            errors: before.1 + errors,
            trapping: self.vitals.trapping(),
            parked: self.vitals.why_parked(),
            looping: self.vitals.looping(),
            denied: self.vitals.denials(),
        }
    }

    fn written(&self, result: Result<(), ApiError>, failed_before: Option<String>) -> Option<String> {
        let error = match result {
            // Another incarnation, or none any more: that is told soon.
            Ok(()) | Err(ApiError::Conflict(_) | ApiError::NotFound(_)) => return None,
            Err(error) => error.to_string(),
        };
        if failed_before.as_ref() != Some(&error) {
            tracing::warn!(plugin = %self.name, error, "the Plugin's status cannot be written; tried again");
        }
        Some(error)
    }

    async fn publish(&self, severity: Severity, reason: &str, note: &str) {
        if let Err(error) = self.objects.publish(&self.name, severity, reason, note).await {
            tracing::debug!(plugin = %self.name, %error, reason, "an event of the Plugin cannot be published");
        }
    }
}
