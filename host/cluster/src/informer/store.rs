//! The state of one informer: its objects, who is told of them, and the writes laid over them. Everything here is a short lock, or some, and never waits.

mod view;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use operetta_core::{
    cache::{Cached, Change, changes::Teller},
    name::{Actor, Namespace, ObjectName, PluginName},
    resource::ObjectKey,
};
use tokio::sync::Notify;
use tracing::warn;

pub use self::view::{Reading, View};
use super::{
    Watched,
    budget::{CacheBudget, Charge},
};
use crate::{object::Entry, overlay::Overlay};

/// Where one subscription is told of changes; shared by its informers where it has several namespaces.
pub struct Tap {
    teller: Mutex<Option<Teller>>,
    /// How many of its informers have not told all that exists.
    behind: AtomicUsize,
}

impl Tap {
    /// For so many informers. Synced at once where there are none.
    pub fn new(teller: Teller, informers: usize) -> Self {
        if informers == 0 {
            teller.tell(Change::Synced);
        }
        Self { teller: Mutex::new(Some(teller)), behind: AtomicUsize::new(informers) }
    }

    fn teller(&self) -> MutexGuard<'_, Option<Teller>> {
        self.teller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, change: Change) {
        if let Some(teller) = &*self.teller() {
            teller.tell(change);
        }
    }

    fn synced(&self) {
        if self.behind.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.tell(Change::Synced);
        }
    }

    fn is_open(&self) -> bool {
        self.teller().is_some()
    }

    /// Ends the subscription's stream.
    fn close(&self) {
        *self.teller() = None;
    }
}

struct Subscriber {
    actor: Actor,
    tap: Arc<Tap>,
    synced: bool,
    /// The number of the list that tells it all, where it came when the store held only the metadata of some objects.
    awaits: u64,
}

/// Of what lacks room, the part for which a new list is worth its while.
const GOOD_PART: usize = 10;

/// Objects that are charged anew at once.
const PORTION: usize = 256;

/// An object in the store: whole, or its metadata where there is no room.
struct Kept {
    entry: Entry,
    charge: Charge,
    /// The API server's text was understood.
    is_readable: bool,
}

/// One informer.
pub struct Informer {
    /// What it watches.
    pub watched: Watched,
    /// Wakes its task when subscribers came or went.
    pub changed: Notify,
    /// Asks its task for a new list.
    pub relist: Notify,
    comparable: AtomicBool,
    budget: Arc<CacheBudget>,
    state: Mutex<State>,
}

#[cfg(test)]
impl Informer {
    /// As if somebody worked long with it.
    pub fn occupy(&self) -> impl Sized {
        self.state()
    }
}

#[derive(Default)]
struct State {
    store: BTreeMap<ObjectKey, Kept>,
    /// What each plugin wrote.
    overlays: HashMap<Actor, Overlay>,
    subscribers: BTreeMap<u64, Subscriber>,
    /// All that exists is in the store.
    synced: bool,
    /// The cluster knows the kind.
    present: bool,
    /// How many lists have begun.
    lists: u64,
    /// How many of them have ended, in whatever way; they end in turn.
    ended: u64,
    /// Somebody was told that there is no room for all of it.
    full: bool,
    /// What the list under way has named so far.
    listed: HashSet<ObjectKey>,
    /// The last version seen.
    version: String,
}

impl Informer {
    /// Empty, and without a subscriber; holds no more than its part of the budget.
    pub fn new(watched: Watched, budget: Arc<CacheBudget>) -> Self {
        Self {
            watched,
            changed: Notify::new(),
            relist: Notify::new(),
            comparable: AtomicBool::new(false),
            budget,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn comparable(&self) -> bool {
        self.comparable.load(Ordering::Relaxed)
    }

    /// Whether versions of this kind can be compared.
    pub fn set_comparable(&self, comparable: bool) {
        self.comparable.store(comparable, Ordering::Relaxed);
    }

    // Subscribers.

    /// Tells a new subscriber all that is known, and from now on what changes. Where not all is held whole, another list tells it.
    pub fn join(&self, id: u64, actor: &Actor, tap: &Arc<Tap>) {
        let mut state = self.state();
        let is_whole = state.store.values().all(|kept| kept.charge.is_whole());
        let awaits = if is_whole { 0 } else { state.lists.saturating_add(1) };
        for (key, kept) in state.store.iter().filter(|_| is_whole) {
            tap.tell(Change::Object {
                key: key.clone(),
                old: None,
                new: Some(Arc::clone(&kept.entry.cached)),
                initial: true,
            });
        }
        let synced = state.synced && is_whole;
        if synced {
            tap.synced();
        }
        // What it wrote before it came is not known any more than that it wrote; a list settles that.
        let is_in_doubt = !state.is_told(actor) && state.overlays.contains_key(actor);
        state.subscribers.insert(id, Subscriber { actor: actor.clone(), tap: Arc::clone(tap), synced, awaits });
        drop(state);
        if !is_whole || is_in_doubt {
            self.relist.notify_one();
        }
        self.changed.notify_one();
    }

    /// Removes a subscriber.
    pub fn leave(&self, id: u64) {
        let gone = self.state().subscribers.remove(&id);
        if let Some(gone) = gone {
            self.charge_anew(&gone.actor.plugin);
        }
        self.changed.notify_one();
    }

    /// Ends the streams of a plugin whose account lost its right.
    pub fn revoke(&self, actor: &Actor) {
        let state = self.state();
        for subscriber in state.subscribers.values().filter(|s| s.actor == *actor) {
            subscriber.tap.close();
        }
        drop(state);
        self.charge_anew(&actor.plugin);
        self.changed.notify_one();
    }

    /// Once a plugin is told nothing more, it holds nothing here any more either. Others have their turn after each portion.
    fn charge_anew(&self, gone: &PluginName) {
        let mut from: Bound<ObjectKey> = Bound::Unbounded;
        loop {
            let mut without_room = Vec::new();
            let mut state = self.state();
            let left: Vec<_> = state.plugins().cloned().collect();
            if left.is_empty() || left.contains(gone) {
                return;
            }
            let mut last = None;
            for (key, kept) in state.store.range_mut((from, Bound::Unbounded)).take(PORTION) {
                last = Some(key);
                if kept.charge.is_of(gone) {
                    kept.charge.move_to(left.iter());
                    if !kept.charge.is_whole() {
                        without_room.push((key.clone(), Arc::clone(&kept.entry.cached)));
                    }
                }
            }
            let last = last.cloned();
            drop(state);
            for (key, whole) in &without_room {
                self.shrink(key, whole);
            }
            let Some(last) = last else { return };
            from = Bound::Excluded(last);
        }
    }

    /// Keeps of an object, if it is still this one and has no room, its metadata alone; while nobody waits for it, since a large object has to be read for that.
    fn shrink(&self, key: &ObjectKey, whole: &Arc<Cached>) {
        let outline = Entry { cached: Arc::clone(whole), owned: None }.outline();
        if let Some(kept) = self.state().store.get_mut(key)
            && !kept.charge.is_whole()
            && Arc::ptr_eq(&kept.entry.cached, whole)
        {
            kept.entry = outline;
        }
    }

    /// The plugins that are told of changes, each once, in the order of their coming.
    pub fn actors(&self) -> Vec<Actor> {
        let state = self.state();
        let mut actors: Vec<Actor> = Vec::new();
        for subscriber in state.subscribers.values().filter(|s| s.tap.is_open()) {
            if !actors.contains(&subscriber.actor) {
                actors.push(subscriber.actor.clone());
            }
        }
        actors
    }

    /// Whether the cache may answer this plugin.
    pub fn serves(&self, actor: &Actor) -> bool {
        let state = self.state();
        state.synced && state.present && state.is_told(actor)
    }

    // What the watch tells.

    /// Whether a list is under way.
    pub fn is_listing(&self) -> bool {
        self.state().is_listing()
    }

    /// Whether some objects are not held whole, though there would be room for a good part of them by now; never while a list is under way.
    pub fn has_room_again(&self) -> bool {
        let state = self.state();
        let outlines = state.store.values().filter(|kept| kept.is_readable && !kept.charge.is_whole());
        let (mut bytes, mut smallest) = (0_usize, usize::MAX);
        for kept in outlines {
            bytes = bytes.saturating_add(kept.charge.bytes());
            smallest = smallest.min(kept.charge.bytes());
        }
        !state.is_listing() && bytes > 0 && self.budget.has_room(state.plugins(), smallest.max(bytes / GOOD_PART))
    }

    /// Whether one of its plugins wrote more than is remembered until the informer sees it, so that only a list settles it; never while one is under way.
    pub fn is_outrun(&self) -> bool {
        let state = self.state();
        let is_outrun = |s: &Subscriber| state.overlays.get(&s.actor).is_some_and(Overlay::is_overflowing);
        !state.is_listing() && state.subscribers.values().any(is_outrun)
    }

    /// A list begins.
    pub fn list_begins(&self) {
        let mut state = self.state();
        // What was there before the kind went is no answer any more.
        if !std::mem::replace(&mut state.present, true) {
            state.synced = false;
        }
        state.lists = state.lists.saturating_add(1);
        state.listed.clear();
        state.lay_anew(Overlay::list_begins);
    }

    /// A list is complete: what it did not name is gone.
    pub fn list_complete(&self) {
        let mut state = self.state();
        let listed = std::mem::take(&mut state.listed);
        let gone: Vec<_> = state.store.keys().filter(|key| !listed.contains(key)).cloned().collect();
        for key in gone {
            state.remove(&key, true);
        }
        state.lay_anew(Overlay::list_complete);
        state.ended = state.lists;
        state.full = state.store.values().any(|kept| !kept.charge.is_whole());
        let list = state.lists;
        state.all_told(list);
    }

    /// An object is so.
    pub fn apply(&self, key: ObjectKey, entry: Entry, initial: bool) {
        self.put(key, entry, true, initial);
    }

    /// An object is there of which the name is all that can be read. Whoever asks for it hears why from the API server's answer.
    pub fn apply_unreadable(&self, key: ObjectKey, entry: Entry, initial: bool) {
        self.put(key, entry, false, initial);
    }

    fn put(&self, key: ObjectKey, entry: Entry, is_readable: bool, initial: bool) {
        let comparable = self.comparable();
        let new = Arc::clone(&entry.cached);
        let version = &new.meta.resource_version;
        let mut state = self.state();
        state.lay_anew(|overlay| overlay.saw(&key, &entry, comparable));
        if initial {
            state.listed.insert(key.clone());
        }
        state.version.clone_from(version);
        let (old, is_whole) = self.keep(&mut state, key.clone(), entry, is_readable);
        if old.as_ref().is_none_or(|old| old.meta.resource_version != *version) {
            state.tell(&Change::Object { key: key.clone(), old, new: Some(Arc::clone(&new)), initial });
        } else if initial {
            let new = Some(Arc::clone(&new));
            state.tell_who_awaits(&Change::Object { key: key.clone(), old: None, new, initial });
        }
        drop(state);
        if !is_whole && is_readable {
            self.shrink(&key, &new);
        }
    }

    /// Puts an object into the store; answers what was there, and whether there is room for the whole object.
    fn keep(&self, state: &mut State, key: ObjectKey, entry: Entry, is_readable: bool) -> (Option<Arc<Cached>>, bool) {
        // First of all the old one gives its room back.
        let old = state.store.remove(&key).map(|old| old.entry.cached);
        let charge = self.budget.charge(state.plugins().filter(|_| is_readable), entry.size());
        let is_whole = charge.is_whole();
        if !is_whole && is_readable && !std::mem::replace(&mut state.full, true) {
            let plugins: Vec<_> = state.plugins().map(PluginName::as_str).collect();
            warn!(
                resource = %self.watched.resource,
                extent = %self.watched.extent,
                plugins = plugins.join(","),
                "the caches have no room for all of these objects, and the rest is read from the API server; give the host more with --cache-mib, or have the plugins watch less"
            );
        }
        state.store.insert(key, Kept { entry, charge, is_readable });
        (old, is_whole)
    }

    /// An object is gone; `last` is how it was at its end.
    pub fn delete(&self, key: &ObjectKey, last: &Entry) {
        let mut state = self.state();
        state.lay_anew(|overlay| overlay.saw_end(key, last));
        state.version.clone_from(&last.cached.meta.resource_version);
        state.remove(key, false);
    }

    /// An object is gone of which the name is all that can be read.
    pub fn delete_unreadable(&self, key: &ObjectKey) {
        self.state().remove(key, false);
    }

    /// The cluster does not know the kind: there is nothing.
    pub fn absent(&self) {
        let mut state = self.state();
        state.present = false;
        let all: Vec<_> = state.store.keys().cloned().collect();
        for key in all {
            state.remove(&key, false);
        }
        state.overlays.clear();
        state.ended = state.lists;
        state.all_told(u64::MAX);
    }
}

impl State {
    fn is_listing(&self) -> bool {
        self.lists > self.ended
    }

    fn is_told(&self, actor: &Actor) -> bool {
        self.subscribers.values().any(|s| s.actor == *actor && s.tap.is_open())
    }

    /// Those that are told of changes.
    fn plugins(&self) -> impl Iterator<Item = &PluginName> {
        self.subscribers.values().filter(|s| s.tap.is_open()).map(|subscriber| &subscriber.actor.plugin)
    }

    /// The informer saw something: what lies over the cache may be settled by it.
    fn lay_anew(&mut self, saw: impl Fn(&mut Overlay)) {
        self.overlays.retain(|_, overlay| {
            saw(overlay);
            !overlay.is_idle()
        });
    }

    /// The objects of a namespace; none: all.
    fn within<'a>(&'a self, namespace: Option<&'a Namespace>) -> impl Iterator<Item = (&'a ObjectKey, &'a Kept)> {
        // The first of all names. A cache of many namespaces is not walked through for one of them.
        let first = |namespace: &Namespace| {
            Some(ObjectKey { namespace: Some(namespace.clone()), name: ObjectName::parse("!").ok()? })
        };
        let from = namespace.and_then(first).map_or(Bound::Unbounded, Bound::Included);
        let all = self.store.range((from, Bound::Unbounded));
        all.take_while(move |(key, _)| namespace.is_none() || key.namespace.as_ref() == namespace)
    }

    fn tell(&self, change: &Change) {
        for subscriber in self.subscribers.values() {
            subscriber.tap.tell(change.clone());
        }
    }

    fn remove(&mut self, key: &ObjectKey, initial: bool) {
        if let Some(old) = self.store.remove(key) {
            self.tell(&Change::Object { key: key.clone(), old: Some(old.entry.cached), new: None, initial });
        }
    }

    fn tell_who_awaits(&self, change: &Change) {
        for subscriber in self.subscribers.values().filter(|s| !s.synced && s.awaits > 0) {
            subscriber.tap.tell(change.clone());
        }
    }

    /// A list was complete, the one of this number.
    fn all_told(&mut self, list: u64) {
        self.synced = true;
        for subscriber in self.subscribers.values_mut().filter(|s| !s.synced && s.awaits <= list) {
            subscriber.synced = true;
            subscriber.tap.synced();
        }
    }
}
