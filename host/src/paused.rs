//! Which objects a person has paused, by [`PAUSED`]: their keys are not run, whatever wakes them. Told by the watch of the primary kind, so that asking costs no look into an object.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use operetta_core::{annotation::PAUSED, cache::Cached, resource::ObjectKey};

/// The paused objects of one controller.
#[derive(Debug, Default)]
pub struct Paused(Mutex<BTreeSet<ObjectKey>>);

impl Paused {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<ObjectKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object is so now, or gone. What is new is said once in the log.
    pub fn note(&self, key: &ObjectKey, object: Option<&Cached>) {
        let mut all = self.lock();
        let news = match object {
            Some(object) if object.meta.is_paused() => all.insert(key.clone()),
            _ => all.remove(key),
        };
        drop(all);
        let (Some(object), true) = (object, news) else { return };
        let namespace = key.namespace.as_ref().map(tracing::field::display);
        if object.meta.is_paused() {
            tracing::info!(object.namespace = namespace, object.name = %key.name, annotation = PAUSED, "object paused");
        } else {
            tracing::info!(object.namespace = namespace, object.name = %key.name, "object resumed");
        }
    }

    /// Forgets all but these, since no others exist.
    pub fn retain(&self, existing: &BTreeSet<ObjectKey>) {
        self.lock().retain(|key| existing.contains(key));
    }

    /// Whether the object is paused.
    pub fn contains(&self, key: &ObjectKey) -> bool {
        self.lock().contains(key)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }
}
