//! The places in which reconciles run, shared among the plugins of a host.
//!
//! # Guarantees
//! - **A plugin always finds a place, whatever its neighbours do**: half of all places are kept, evenly, for the plugins that there are and for one that may come.
//! - The other half is for whoever comes first, so that a busy plugin among idle ones is not held to an even share.
//! - One that comes when others hold more than they would get now takes at most half of what is free, so that the next one finds a place, too.
//! - First come, first served among those that may have the place that is free.
//!
//! # Assumptions
//! - There are more places than plugins. Where there are not, places are for whoever comes first, and plugins that hang hold up others until their deadline.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use crate::name::PluginName;

/// All places of a host.
pub struct Places {
    total: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    taken: usize,
    plugins: HashMap<PluginName, Shares>,
    waiting: VecDeque<(PluginName, oneshot::Sender<Place>)>,
}

/// Of one plugin.
#[derive(Default)]
struct Shares {
    tenants: usize,
    taken: usize,
}

impl State {
    /// How many places are kept for each plugin.
    fn kept(&self, total: usize) -> usize {
        // One more than there are, for one that may come.
        let plugins = self.plugins.values().filter(|shares| shares.tenants > 0).count() + 1;
        (total / (2 * plugins)).max(1)
    }

    /// Whether this plugin may have one more place.
    fn may_take(&self, plugin: &PluginName, total: usize) -> bool {
        let free = total.saturating_sub(self.taken);
        let kept = self.kept(total);
        let taken = self.plugins.get(plugin).map_or(0, |shares| shares.taken);
        if free > 0 && taken < kept && (taken == 0 || taken < free) {
            return true;
        }
        let others = self.plugins.iter().filter(|(other, shares)| *other != plugin && shares.tenants > 0);
        let kept_for_others = others.map(|(_, shares)| kept.saturating_sub(shares.taken)).sum::<usize>() + kept;
        free > kept_for_others
    }

    fn take(&mut self, plugin: &PluginName) {
        self.taken += 1;
        self.plugins.entry(plugin.clone()).or_default().taken += 1;
    }

    fn forget(&mut self, plugin: &PluginName) {
        if self.plugins.get(plugin).is_some_and(|shares| shares.tenants == 0 && shares.taken == 0) {
            self.plugins.remove(plugin);
        }
    }
}

impl Places {
    /// So many, at least one.
    pub fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { total: total.max(1), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps places for a plugin for as long as the answer is held.
    pub fn join(self: &Arc<Self>, plugin: &PluginName) -> Tenant {
        self.state().plugins.entry(plugin.clone()).or_default().tenants += 1;
        Tenant { places: Arc::clone(self), plugin: plugin.clone() }
    }

    /// Gives what is free to those that wait and may have it.
    fn give(self: &Arc<Self>) {
        loop {
            let mut state = self.state();
            state.waiting.retain(|(_, waiter)| !waiter.is_closed());
            let next = state.waiting.iter().position(|(plugin, _)| state.may_take(plugin, self.total));
            let Some((plugin, waiter)) = next.and_then(|next| state.waiting.remove(next)) else { return };
            state.take(&plugin);
            drop(state);
            // One that has gone meanwhile gives it back at once.
            let _ = waiter.send(Place { places: Arc::clone(self), plugin });
        }
    }
}

/// A plugin that has places kept for it.
pub struct Tenant {
    places: Arc<Places>,
    plugin: PluginName,
}

impl Tenant {
    /// Waits for a place. Cancel-safe.
    pub async fn place(&self) -> Place {
        loop {
            let (waiter, place) = oneshot::channel();
            self.places.state().waiting.push_back((self.plugin.clone(), waiter));
            self.places.give();
            if let Ok(place) = place.await {
                return place;
            }
        }
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let mut state = self.places.state();
        if let Some(shares) = state.plugins.get_mut(&self.plugin) {
            shares.tenants = shares.tenants.saturating_sub(1);
        }
        state.forget(&self.plugin);
        drop(state);
        // What was kept for it may be given to others.
        self.places.give();
    }
}

/// A place in which a reconcile runs, until it is dropped.
pub struct Place {
    places: Arc<Places>,
    plugin: PluginName,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.state();
        state.taken = state.taken.saturating_sub(1);
        if let Some(shares) = state.plugins.get_mut(&self.plugin) {
            shares.taken = shares.taken.saturating_sub(1);
        }
        state.forget(&self.plugin);
        drop(state);
        self.places.give();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn tenant(places: &Arc<Places>, plugin: &str) -> Tenant {
        places.join(&PluginName::parse(plugin).unwrap())
    }

    /// All that it gets at once.
    fn greedy(tenant: &Tenant) -> Vec<Place> {
        std::iter::from_fn(|| tenant.place().now_or_never()).take(1_000).collect()
    }

    #[test]
    fn a_lone_plugin_leaves_a_quarter_for_one_that_may_come() {
        let places = Places::new(64);
        let first = tenant(&places, "first");
        let held = greedy(&first);
        assert_eq!(held.len(), 48);
        let second = tenant(&places, "second");
        assert_eq!(greedy(&second).len(), 8);
        drop(held);
    }

    #[test]
    fn of_plugins_that_come_one_by_one_and_hang_each_leaves_some_for_the_next() {
        let places = Places::new(64);
        let tenants: Vec<_> = (0..6).map(|number| format!("p{number}")).collect();
        let mut held = Vec::new();
        for name in &tenants {
            let tenant = tenant(&places, name);
            let got = greedy(&tenant);
            held.push((tenant, got));
        }
        assert_eq!(held.iter().map(|(_, got)| got.len()).collect::<Vec<_>>(), [48, 8, 4, 2, 1, 1]);
    }

    #[test]
    fn of_plugins_that_are_all_there_each_has_its_even_share_of_half_though_all_others_hang() {
        for count in [2, 5, 20, 31] {
            let places = Places::new(64);
            let tenants: Vec<_> = (0..count).map(|number| tenant(&places, &format!("p{number}"))).collect();
            let held: Vec<_> = tenants.iter().map(greedy).collect();
            let least = held.iter().map(Vec::len).min().unwrap();
            assert!(least >= (64 / (2 * (count + 1))).max(1), "{count}: {least}");
        }
    }

    #[test]
    fn a_busy_plugin_among_idle_ones_is_not_held_to_an_even_share() {
        let places = Places::new(64);
        let _idle: Vec<_> = (0..9).map(|number| tenant(&places, &format!("idle{number}"))).collect();
        let busy = tenant(&places, "busy");
        let held = greedy(&busy);
        assert_eq!(held.len(), 44, "two are kept for each of the others, and for one that may come");
    }

    #[test]
    fn with_hardly_any_places_whoever_comes_first_has_them() {
        for total in 1..4 {
            let places = Places::new(total);
            let (a, b) = (tenant(&places, "a"), tenant(&places, "b"));
            let (held_a, held_b) = (greedy(&a), greedy(&b));
            assert_eq!(held_a.len(), 1);
            assert_eq!(held_b.len(), usize::from(total > 1));
            drop(held_a);
            assert_eq!(greedy(&b).len(), usize::from(total == 1));
        }
    }

    #[tokio::test]
    async fn what_is_free_goes_to_the_first_that_may_have_it() {
        let places = Places::new(2);
        let (hangs, other) = (tenant(&places, "hangs"), tenant(&places, "other"));
        let held = greedy(&hangs);
        assert_eq!(held.len(), 1);
        let mut more = Box::pin(hangs.place());
        assert!((&mut more).now_or_never().is_none());
        // The one before it in the line may not have it.
        let others = other.place().now_or_never().unwrap();
        let mut next = Box::pin(other.place());
        assert!((&mut next).now_or_never().is_none());
        drop(others);
        assert!((&mut more).now_or_never().is_none());
        let _others = next.await;
        drop(held);
        let _held = more.await;
    }

    #[test]
    fn places_are_kept_for_plugins_that_are_there_and_for_no_others() {
        let places = Places::new(64);
        let gone = tenant(&places, "gone");
        let its_last = greedy(&gone).pop();
        drop(gone);
        let busy = tenant(&places, "busy");
        assert_eq!(greedy(&busy).len(), 63 - 16, "a quarter is left for one that may come, and nothing for the other");
        drop(its_last);

        let places = Places::new(4);
        let (busy, idle) = (tenant(&places, "busy"), tenant(&places, "idle"));
        let held = greedy(&busy);
        let mut more = Box::pin(busy.place());
        assert!(held.len() == 2 && (&mut more).now_or_never().is_none());
        drop(idle);
        assert!(more.now_or_never().is_some(), "what was kept for it is given to who waits");
    }

    #[test]
    fn a_plugin_is_forgotten_with_its_last_place_and_no_sooner() {
        let places = Places::new(8);
        let known = || places.state().plugins.len();
        let (one, other) = (tenant(&places, "p"), tenant(&places, "p"));
        drop(greedy(&one));
        drop(one);
        assert_eq!(known(), 1, "it is there, and idle");
        let held = greedy(&other);
        drop(other);
        assert_eq!(known(), 1, "it has gone, and its reconciles have not ended");
        drop(held);
        assert_eq!(known(), 0);
    }

    #[tokio::test]
    async fn one_that_waits_no_more_takes_nothing() {
        let places = Places::new(1);
        let (a, b) = (tenant(&places, "a"), tenant(&places, "b"));
        let held = a.place().await;
        let mut gone = Box::pin(a.place());
        assert!((&mut gone).now_or_never().is_none());
        let mut given_and_gone = Box::pin(b.place());
        assert!((&mut given_and_gone).now_or_never().is_none());
        drop(gone);
        drop(held);
        // It was given to this one, which never looked.
        drop(given_and_gone);
        assert!(a.place().now_or_never().is_some());
    }
}
