//! Series of plugins, which go with the plugin: names that come and go must not fill the memory of the host, nor that of whoever scrapes it.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    ops::Deref,
    sync::{Mutex, MutexGuard, PoisonError},
};

use prometheus_client::metrics::family::Family;

/// Labels of which one is the plugin.
pub(super) trait OfPlugin: Clone + Eq + Hash {
    /// Its name.
    fn plugin(&self) -> &str;
}

/// A family of such series. The library's own tells nobody which it has, so that is kept beside it.
pub(super) struct PluginSeries<S, M> {
    family: Family<S, M>,
    known: Mutex<HashMap<String, HashSet<S>>>,
}

impl<S: OfPlugin, M> PluginSeries<S, M> {
    pub(super) fn of(family: Family<S, M>) -> Self {
        Self { family, known: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, HashSet<S>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be let go before the next is asked for.
    pub(super) fn get_or_create(&self, labels: &S) -> impl Deref<Target = M> {
        if let Some(metric) = self.family.get(labels) {
            return metric;
        }
        // Held meanwhile, so that none is made that is not known.
        let mut known = self.lock();
        known.entry(labels.plugin().to_owned()).or_default().insert(labels.clone());
        self.family.get_or_create(labels)
    }

    /// One of them.
    pub(super) fn remove(&self, labels: &S) {
        let mut known = self.lock();
        if let Some(of_plugin) = known.get_mut(labels.plugin()) {
            of_plugin.remove(labels);
            if of_plugin.is_empty() {
                known.remove(labels.plugin());
            }
        }
        self.family.remove(labels);
    }
}

/// A family, whatever it counts.
pub(super) trait Forget {
    /// All series of this plugin go.
    fn forget(&self, plugin: &str);
}

impl<S: OfPlugin, M> Forget for PluginSeries<S, M> {
    fn forget(&self, plugin: &str) {
        let mut known = self.lock();
        for labels in known.remove(plugin).unwrap_or_default() {
            self.family.remove(&labels);
        }
    }
}
