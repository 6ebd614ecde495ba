//! Which objects of a controller's kind hold a finalizer that the controller declares: nobody else would ever remove it, so that a plugin must not simply go.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use operetta_core::{cache::Cached, manifest, resource::ObjectKey};
use tokio::sync::watch;

/// What one object holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Finalizers that the controller declares.
    pub finalizers: Vec<String>,
    /// Whether it waits for them to be removed.
    pub deleting: bool,
}

/// The holders of one controller, as its watch tells of them.
pub struct Holders {
    held: Mutex<BTreeMap<ObjectKey, Holder>>,
    objects: AtomicUsize,
    changed: watch::Sender<usize>,
}

impl Default for Holders {
    fn default() -> Self {
        Self { held: Mutex::default(), objects: AtomicUsize::new(0), changed: watch::Sender::new(0) }
    }
}

impl Holders {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Holder>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object is so now, or gone.
    pub(super) fn update(&self, spec: &manifest::Controller, key: &ObjectKey, new: Option<&Cached>) {
        let held = new.map(|object| Holder {
            finalizers: object.meta.finalizers.iter().filter(|f| spec.finalizers.contains(*f)).cloned().collect(),
            deleting: object.meta.deleting,
        });
        let mut all = self.lock();
        match held {
            Some(holder) if !holder.finalizers.is_empty() => {
                all.insert(key.clone(), holder);
            }
            _ => {
                all.remove(key);
            }
        }
        self.changed.send_if_modified(|count| std::mem::replace(count, all.len()) != all.len());
    }

    /// Nothing is known any more.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    pub(super) fn count_objects(&self, objects: usize) {
        self.objects.store(objects, Ordering::Relaxed);
    }

    /// How many objects of the kind there are.
    pub fn objects(&self) -> usize {
        self.objects.load(Ordering::Relaxed)
    }

    /// All of them.
    pub fn all(&self) -> Vec<(ObjectKey, Holder)> {
        self.lock().iter().map(|(key, holder)| (key.clone(), holder.clone())).collect()
    }

    /// Whether the object is being deleted and waits for the controller.
    pub fn is_leaving(&self, key: &ObjectKey) -> bool {
        self.lock().get(key).is_some_and(|holder| holder.deleting)
    }

    /// How many hold each finalizer.
    pub fn by_finalizer(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for finalizer in self.lock().values().flat_map(|holder| &holder.finalizers) {
            *counts.entry(finalizer.clone()).or_default() += 1;
        }
        counts
    }

    /// How many there are, and of those how many wait to go.
    pub fn count(&self) -> (usize, usize) {
        let all = self.lock();
        (all.len(), all.values().filter(|holder| holder.deleting).count())
    }

    /// Told when their number changes.
    pub fn changes(&self) -> watch::Receiver<usize> {
        self.changed.subscribe()
    }
}
