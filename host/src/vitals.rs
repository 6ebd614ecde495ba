//! What a plugin does while it runs, as its Plugin's status tells it: counts, what it was denied, what it traps on, what is held.
//!
//! Kept for the life of the plugin on this host; what only the version that runs can be blamed for begins anew with the next one.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use operetta_core::{
    grant::Denial,
    looping::Guard,
    name::ControllerName,
    park::{News, Parked},
    reconcile::{Failure, Outcome},
    resource::ObjectKey,
};
use tokio::sync::Notify;

use crate::controller::Holders;

/// An object whose reconcile the host had to end so often in a row makes the plugin degraded: once may be an accident, and the backoff between three is well under a second.
pub const AGAIN_AND_AGAIN: u32 = 3;
/// Objects remembered that make it trap; more say nothing more.
const MOST_TRAPPING: usize = 1_000;
/// Denials remembered; a condition that names more is not read.
const MOST_DENIED: usize = 20;

/// The vitals of one plugin.
#[derive(Default)]
pub struct Vitals {
    reconciles: AtomicU64,
    errors: AtomicU64,
    trapping: Mutex<BTreeMap<(ControllerName, ObjectKey), Trapping>>,
    parked: Mutex<BTreeMap<ControllerName, Parked>>,
    denied: Mutex<BTreeMap<String, Denial>>,
    holders: Mutex<Vec<(String, Arc<Holders>)>>,
    guards: Mutex<Vec<Arc<Guard>>>,
    alarm: Notify,
}

struct Trapping {
    times: u32,
    why: String,
}

/// What is held, of all controllers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// Objects of the primary kinds.
    pub objects: usize,
    /// Of those, how many hold a declared finalizer.
    pub held: usize,
    /// Of those, how many are being deleted.
    pub deleting: usize,
    /// By kind (`RESOURCE.GROUP`) and finalizer.
    pub by_finalizer: BTreeMap<(String, String), usize>,
}

impl std::fmt::Display for Census {
    /// `3 pets.petstore.example.com hold petstore.example.com/finalizer`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, ((kind, finalizer), count)) in self.by_finalizer.iter().enumerate() {
            let and = if number == 0 { "" } else { ", and " };
            let hold = if *count == 1 { "holds" } else { "hold" };
            write!(f, "{and}{count} {kind} {hold} the finalizer {finalizer}")?;
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Vitals {
    /// A reconcile ended.
    pub fn reconciled(&self, controller: &ControllerName, key: &ObjectKey, result: &Result<Outcome, Failure>) {
        self.reconciles.fetch_add(1, Ordering::Relaxed);
        if result.is_err() {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        let mut trapping = lock(&self.trapping);
        let place = (controller.clone(), key.clone());
        match result {
            // What the plugin itself reports, or the host is to blame for, is no trap.
            Err(failure) if failure.is_guests_end() => {
                if trapping.len() >= MOST_TRAPPING && !trapping.contains_key(&place) {
                    return;
                }
                let trap = trapping.entry(place).or_insert_with(|| Trapping { times: 0, why: String::new() });
                trap.times += 1;
                trap.why = failure.first_line();
                if trap.times == AGAIN_AND_AGAIN {
                    self.alarm.notify_one();
                }
            }
            _ if trapping.is_empty() => {}
            _ => {
                if trapping.remove(&place).is_some_and(|trap| trap.times >= AGAIN_AND_AGAIN) {
                    self.alarm.notify_one();
                }
            }
        }
    }

    /// A controller is parked, or no longer.
    pub fn parked(&self, controller: &ControllerName, news: &News) {
        let mut parked = lock(&self.parked);
        match news {
            News::Parked(why) => parked.insert(controller.clone(), why.clone()),
            News::Back => parked.remove(controller),
        };
        self.alarm.notify_one();
    }

    /// An effect was not granted. Says whether that is news, which it is a limited number of times.
    pub fn denied(&self, denial: &Denial) -> bool {
        let mut denied = lock(&self.denied);
        let is_news = denied.len() < MOST_DENIED && !denied.contains_key(&denial.what);
        if is_news {
            denied.insert(denial.what.clone(), denial.clone());
            self.alarm.notify_one();
        }
        is_news
    }

    /// What was denied is granted again, as far as anybody knows.
    pub fn forget_denials(&self) {
        lock(&self.denied).clear();
        self.alarm.notify_one();
    }

    /// Other code or another policy took over: what the one before did says nothing about it.
    pub fn begin(&self, holders: Vec<(String, Arc<Holders>)>, guards: Vec<Arc<Guard>>) {
        *lock(&self.guards) = guards;
        lock(&self.trapping).clear();
        lock(&self.parked).clear();
        lock(&self.denied).clear();
        *lock(&self.holders) = holders;
    }

    /// Nothing runs.
    pub fn end(&self) {
        self.begin(Vec::new(), Vec::new());
    }

    /// Reconciles so far, and how many of them failed.
    pub fn totals(&self) -> (u64, u64) {
        (self.reconciles.load(Ordering::Relaxed), self.errors.load(Ordering::Relaxed))
    }

    /// What was denied since the policy changed.
    pub fn denials(&self) -> Vec<Denial> {
        lock(&self.denied).values().cloned().collect()
    }

    /// What makes it trap again and again, in words.
    pub fn trapping(&self) -> Option<String> {
        let trapping = lock(&self.trapping);
        let mut again = trapping.iter().filter(|(_, trap)| trap.times >= AGAIN_AND_AGAIN);
        let ((controller, key), trap) = again.next()?;
        let more = match again.count() {
            0 => String::new(),
            more => format!(", and {more} more objects do"),
        };
        Some(format!("{key} ended controller {controller} {} times in a row: {}{more}", trap.times, trap.why))
    }

    /// Which controllers are parked and why, in words.
    pub fn why_parked(&self) -> Option<String> {
        let parked = lock(&self.parked);
        let all = parked.iter().map(|(controller, why)| format!("controller {controller} is parked: {why}"));
        (!parked.is_empty()).then(|| all.collect::<Vec<_>>().join("; "))
    }

    /// Where its own writes wake it again and again, or somebody undoes them, in words.
    pub fn looping(&self) -> Option<String> {
        let loops: Vec<_> = lock(&self.guards).iter().flat_map(|guard| guard.loops()).collect();
        let (_, first) = loops.first()?;
        Some(match loops.len() - 1 {
            0 => first.clone(),
            more => format!("{first}, and {more} more objects loop"),
        })
    }

    /// What is held now.
    pub fn census(&self) -> Census {
        let mut census = Census::default();
        for (kind, holders) in lock(&self.holders).iter() {
            let (held, deleting) = holders.count();
            census.objects += holders.objects();
            census.held += held;
            census.deleting += deleting;
            for (finalizer, count) in holders.by_finalizer() {
                *census.by_finalizer.entry((kind.clone(), finalizer)).or_default() += count;
            }
        }
        census
    }

    /// Something happened that cannot wait.
    pub fn raise_alarm(&self) {
        self.alarm.notify_one();
    }

    /// Waits until something happened that cannot wait for the regular look. For one listener.
    pub async fn alarm(&self) {
        self.alarm.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;

    fn trap() -> Result<Outcome, Failure> {
        Err(Failure::Trap("unreachable".into()))
    }

    #[test]
    fn an_object_that_makes_it_trap_again_and_again_is_named_until_it_no_longer_does() {
        let (vitals, controller) = (Vitals::default(), ControllerName::parse("main").unwrap());
        for times in 1..=3 {
            assert_eq!(vitals.trapping(), None, "{times}");
            vitals.reconciled(&controller, &key("a"), &trap());
            // Another one that goes well changes nothing about it.
            vitals.reconciled(&controller, &key("b"), &Ok(Outcome::AwaitChange));
        }
        let why = vitals.trapping().unwrap();
        assert!(why.starts_with("n/a ended controller main 3 times in a row: "), "{why}");
        vitals.reconciled(&controller, &key("a"), &Ok(Outcome::AwaitChange));
        assert_eq!(vitals.trapping(), None);
        assert_eq!(vitals.totals(), (7, 3));
    }

    #[test]
    fn an_error_that_the_plugin_reports_is_no_trap() {
        let (vitals, controller) = (Vitals::default(), ControllerName::parse("main").unwrap());
        for _ in 0..5 {
            vitals.reconciled(&controller, &key("a"), &Err(Failure::Retryable("the store is down".into())));
        }
        assert_eq!((vitals.trapping(), vitals.totals()), (None, (5, 5)));
    }
}
