//! What the linear memories of all guests together may take, and how plugins share it.
//!
//! Each reconcile has a limit of its own, but all places of the host at those limits are more than most machines have. The rule is that of [`Shares`]: **whoever wants more may hold as much as is
//! still free**, so that one plugin alone holds half at most, and a guest of a plugin that holds little always starts. What counts is what memories grew to, whether their pages were touched or
//! not. A guest that finds no room ends, which is not its plugin's fault: its key is tried again, and nobody is parked for it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use operetta_core::{
    memory::{GUESTS, Shares, share},
    name::PluginName,
};

/// Enough for every place of a host, unless told otherwise 64, to have one of the 2 MiB that an ordinary operator's guest has, all of one plugin or not.
const LEAST: usize = 192 << 20;

/// Whose guest: of a plugin, or of none as long as a component is only asked what it is.
type Whose = Option<PluginName>;

/// The bytes that all guests of a host share.
#[derive(Debug)]
pub struct GuestBudget {
    total: usize,
    held: Mutex<Shares<Whose>>,
}

/// Three eighths of the memory that this process may use.
impl Default for GuestBudget {
    fn default() -> Self {
        Self::new(share(GUESTS, LEAST))
    }
}

impl GuestBudget {
    /// Of so many bytes.
    pub fn new(total: usize) -> Self {
        Self { total, held: Mutex::new(Shares::new(total)) }
    }

    fn lock(&self) -> MutexGuard<'_, Shares<Whose>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it, in bytes.
    pub fn total(&self) -> usize {
        self.total
    }

    /// What the guests of each plugin hold, in bytes; under no name what those hold that are only asked what they are.
    pub fn held(&self) -> BTreeMap<Option<PluginName>, usize> {
        self.lock().held().clone()
    }

    /// What one instance takes of it: nothing yet.
    pub(crate) fn charge(self: &Arc<Self>, plugin: Option<&PluginName>) -> GuestCharge {
        GuestCharge { budget: Arc::clone(self), whose: plugin.cloned(), bytes: 0 }
    }
}

/// What one instance takes of it, until this is dropped.
#[derive(Debug)]
pub(crate) struct GuestCharge {
    budget: Arc<GuestBudget>,
    whose: Whose,
    bytes: usize,
}

/// There is no room for what a guest asked for, whatever its own limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no room among all guests")]
pub(crate) struct NoRoom {
    /// Bytes more that it asked for.
    pub wanted: usize,
    /// What all guests of its plugin hold.
    pub held: usize,
    /// What nobody holds.
    pub free: usize,
    /// What all may hold.
    pub total: usize,
}

impl GuestCharge {
    /// So many bytes more.
    pub fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        if bytes == 0 {
            return Ok(());
        }
        let mut shares = self.budget.lock();
        if !shares.take(&self.whose, bytes) {
            let (held, free) = (shares.held_by(&self.whose), shares.free());
            return Err(NoRoom { wanted: bytes, held, free, total: self.budget.total });
        }
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }
}

impl Drop for GuestCharge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.lock().give_back(&self.whose, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_holds_as_much_as_is_free_and_all_of_it_is_given_back() {
        let budget = Arc::new(GuestBudget::new(1_000));
        let (hog, other) = (PluginName::parse("hog").unwrap(), PluginName::parse("other").unwrap());
        let (mut first, mut second) = (budget.charge(Some(&hog)), budget.charge(Some(&hog)));
        assert_eq!((first.grow(200), first.grow(100), second.grow(200)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(second.grow(1), Err(NoRoom { wanted: 1, held: 500, free: 500, total: 1_000 }));
        assert_eq!(second.grow(0), Ok(()), "what grows by nothing needs no room");
        let mut neighbour = budget.charge(Some(&other));
        assert_eq!(neighbour.grow(250), Ok(()), "a hog leaves room for others");
        let mut nobodys = budget.charge(None);
        assert_eq!((nobodys.grow(126).is_err(), nobodys.grow(125)), (true, Ok(())));
        assert_eq!(budget.held(), BTreeMap::from([(None, 125), (Some(hog.clone()), 500), (Some(other), 250)]));
        drop((neighbour, nobodys, first));
        assert_eq!(budget.held(), BTreeMap::from([(Some(hog), 200)]));
        drop(second);
        assert_eq!((budget.held().len(), budget.total()), (0, 1_000));
    }

    #[test]
    fn ordinary_guests_in_every_place_have_room_however_small_the_machine() {
        const ORDINARY: usize = 2 << 20;
        assert!(GuestBudget::default().total() >= LEAST);
        for plugins in 1..=16 {
            let budget = Arc::new(GuestBudget::new(LEAST));
            let names: Vec<_> = (0..plugins).map(|number| PluginName::parse(&format!("p{number}")).unwrap()).collect();
            // A lone plugin has 48 of 64 places, and its concurrency is 16 unless told otherwise.
            let places = if plugins == 1 { 48 } else { 64 };
            let guests: Vec<_> = (0..places)
                .map(|place| {
                    let mut guest = budget.charge(names.get(place % plugins));
                    assert_eq!(guest.grow(ORDINARY), Ok(()), "{place} of {plugins}");
                    guest
                })
                .collect();
            assert_eq!(guests.len(), places);
        }
    }
}
