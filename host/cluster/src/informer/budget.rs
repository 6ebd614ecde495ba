//! What all caches together may hold of objects, and how plugins share it.
//!
//! The rule is that of [`Shares`]: **whoever wants more may hold as much as is still free**. What several plugins watch is charged to that one of them which holds least.
//!
//! Of an object for which there is no room its metadata is kept, by which changes are told as ever, and whoever reads it asks the API server. Nothing is lost, and only the reads of kinds
//! that take more than their share become slower.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use operetta_core::{
    memory::{CACHES, Shares, share},
    name::PluginName,
};

/// What an object takes beside its text: its key, what routing needs, and its places in the tables.
const BESIDE: usize = 600;
/// Less is of no use.
const LEAST: usize = 32 << 20;

/// The bytes that all caches of a host share.
#[derive(Debug)]
pub struct CacheBudget {
    total: usize,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    whole: Shares<PluginName>,
    outlines: usize,
}

/// What one object takes of it, until this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<CacheBudget>,
    /// By whom; none where its metadata alone are kept.
    plugin: Option<PluginName>,
    bytes: usize,
}

/// A quarter of the memory that this process may use.
impl Default for CacheBudget {
    fn default() -> Self {
        Self::new(share(CACHES, LEAST))
    }
}

impl CacheBudget {
    /// Of so many bytes.
    pub fn new(total: usize) -> Self {
        Self { total, held: Mutex::new(Held { whole: Shares::new(total), outlines: 0 }) }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it, in bytes.
    pub fn total(&self) -> usize {
        self.total
    }

    /// What each plugin holds, in bytes.
    pub fn held(&self) -> BTreeMap<PluginName, usize> {
        self.lock().whole.held().clone()
    }

    /// Objects of which metadata alone are kept.
    pub fn outlines(&self) -> usize {
        self.lock().outlines
    }

    /// The place of an object whose text has so many bytes, in the cache of these plugins.
    pub(super) fn charge<'a>(self: &Arc<Self>, plugins: impl Iterator<Item = &'a PluginName>, text: usize) -> Charge {
        let bytes = text.saturating_add(BESIDE);
        let plugin = self.lock().take(plugins, bytes);
        Charge { budget: Arc::clone(self), plugin, bytes }
    }

    /// Whether there would be room for so many bytes more.
    pub(super) fn has_room<'a>(&self, plugins: impl Iterator<Item = &'a PluginName>, bytes: usize) -> bool {
        self.lock().lightest(plugins, bytes).is_some()
    }
}

impl Held {
    /// Of these plugins the one that holds least, if it may hold so many bytes more.
    fn lightest<'a>(&self, plugins: impl Iterator<Item = &'a PluginName>, bytes: usize) -> Option<&'a PluginName> {
        let lightest = plugins.min_by_key(|plugin| self.whole.held_by(plugin))?;
        self.whole.has_room(lightest, bytes).then_some(lightest)
    }

    /// Answers by whom the bytes are held now; none where there is no room.
    fn take<'a>(&mut self, plugins: impl Iterator<Item = &'a PluginName>, bytes: usize) -> Option<PluginName> {
        let plugin = plugins.min_by_key(|plugin| self.whole.held_by(plugin));
        let plugin = plugin.filter(|plugin| self.whole.take(plugin, bytes)).cloned();
        if plugin.is_none() {
            self.outlines = self.outlines.saturating_add(1);
        }
        plugin
    }

    fn give_back(&mut self, plugin: Option<&PluginName>, bytes: usize) {
        match plugin {
            Some(plugin) => self.whole.give_back(plugin, bytes),
            None => self.outlines = self.outlines.saturating_sub(1),
        }
    }
}

impl Charge {
    /// Whether there is room for the whole object.
    pub(super) fn is_whole(&self) -> bool {
        self.plugin.is_some()
    }

    /// Whether this plugin holds it.
    pub(super) fn is_of(&self, plugin: &PluginName) -> bool {
        self.plugin.as_ref() == Some(plugin)
    }

    /// Charges it to one of these instead, if it has room.
    pub(super) fn move_to<'a>(&mut self, plugins: impl Iterator<Item = &'a PluginName>) {
        let mut held = self.budget.lock();
        held.give_back(self.plugin.as_ref(), self.bytes);
        self.plugin = held.take(plugins, self.bytes);
    }

    /// What the whole object takes, or would take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.lock().give_back(self.plugin.as_ref(), self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use operetta_core::memory::usable;

    use super::*;

    fn plugin(name: &str) -> PluginName {
        PluginName::parse(name).unwrap()
    }

    /// As many as fit of objects of a kibibyte each, for one of these plugins.
    fn fill(budget: &Arc<CacheBudget>, plugins: &[&str]) -> Vec<Charge> {
        let plugins: Vec<_> = plugins.iter().map(|name| plugin(name)).collect();
        let charges = std::iter::repeat_with(|| budget.charge(plugins.iter(), 1_024 - BESIDE));
        charges.take_while(Charge::is_whole).collect()
    }

    #[test]
    fn whoever_wants_more_may_hold_as_much_as_is_free() {
        let budget = Arc::new(CacheBudget::new(600 << 10));
        let hog = fill(&budget, &["hog"]);
        assert_eq!(hog.len(), 300, "a lone one has half");
        let second = fill(&budget, &["second"]);
        assert_eq!(second.len(), 150, "who comes later has half of the rest");
        assert!(!budget.charge([plugin("hog")].iter(), 1).is_whole(), "and the first has more than its share now");
        assert!(budget.charge([plugin("small")].iter(), 100 << 10 >> 1).is_whole());
        assert_eq!(budget.held(), BTreeMap::from([(plugin("hog"), 300 << 10), (plugin("second"), 150 << 10)]));
        drop(hog);
        assert_eq!(budget.held(), BTreeMap::from([(plugin("second"), 150 << 10)]), "what is dropped is free");
        assert!(budget.has_room([plugin("second")].iter(), 150 << 10));
        assert!(!budget.has_room([plugin("second")].iter(), (150 << 10) + 1));
        drop(second);
        assert_eq!((budget.held().len(), budget.outlines()), (0, 0));
    }

    #[test]
    fn what_several_watch_is_charged_to_who_holds_least() {
        let budget = Arc::new(CacheBudget::new(600 << 10));
        let hog = fill(&budget, &["hog"]);
        let shared = fill(&budget, &["hog", "neighbour"]);
        assert_eq!(shared.len(), 150, "a hog's caches take nothing from what its neighbour watches as well");
        assert_eq!(budget.held().get(&plugin("neighbour")), Some(&(150 << 10)));
        assert!(!budget.charge(std::iter::empty(), 0).is_whole(), "for nobody nothing is kept");
        drop(hog);
    }

    #[test]
    fn objects_without_room_are_counted() {
        let budget = Arc::new(CacheBudget::new(2_000));
        let large = budget.charge([plugin("p")].iter(), 401);
        assert!(!large.is_whole() && large.bytes() == 1_001);
        assert!(budget.charge([plugin("p")].iter(), 400).is_whole(), "what has just room");
        assert_eq!(budget.outlines(), 1);
        drop(large);
        assert_eq!(budget.outlines(), 0);
    }

    #[test]
    fn a_quarter_of_the_memory_is_for_caches() {
        let memory = usable(|path| std::fs::read_to_string(path).ok()).unwrap();
        assert!(memory > 64 << 20, "{memory}");
        assert_eq!(CacheBudget::default().total(), (memory / 8 * 2).max(LEAST));
    }
}
