//! A cache as one plugin sees it, with what that plugin wrote laid over it.
//!
//! To read one's own writes is a promise to who wrote. Whoever leaves many of them in doubt, or more than are remembered, has its own reads go to the API server, and nobody else's.

use std::{collections::BTreeMap, ops::Deref, sync::Arc};

use operetta_core::{
    cache::Cached,
    name::{Actor, Namespace},
    resource::ObjectKey,
};

use super::Informer;
use crate::{
    object::Entry,
    overlay::{Overlay, Written},
};

/// What a cache answers of one object.
#[derive(Debug, Clone)]
pub enum Reading {
    /// This.
    Known(Entry),
    /// There is none.
    Absent,
    /// Ask the API server.
    Live,
}

/// An informer, for one plugin.
pub struct View<'a> {
    informer: Arc<Informer>,
    actor: &'a Actor,
}

impl<'a> View<'a> {
    /// As this one sees it.
    pub fn new(informer: Arc<Informer>, actor: &'a Actor) -> Self {
        Self { informer, actor }
    }
}

impl Deref for View<'_> {
    type Target = Informer;

    fn deref(&self) -> &Informer {
        &self.informer
    }
}

impl View<'_> {
    // Reads.

    /// One object.
    pub fn get(&self, key: &ObjectKey) -> Reading {
        let state = self.state();
        let stored = state.store.get(key);
        match (state.overlays.get(self.actor).and_then(|overlay| overlay.get(key)), stored) {
            (Some(Written::There(own)), _) => Reading::Known(own),
            (Some(Written::Uncertain), _) => Reading::Live,
            (Some(Written::Gone { uid }), Some(stored)) if stored.entry.cached.meta.uid == uid => Reading::Absent,
            (_, Some(stored)) if stored.charge.is_whole() => Reading::Known(stored.entry.clone()),
            (_, Some(_)) => Reading::Live,
            (_, None) => Reading::Absent,
        }
    }

    /// What is known of an object, and be it its metadata.
    pub fn outline(&self, key: &ObjectKey) -> Option<Entry> {
        self.state().store.get(key).map(|kept| kept.entry.clone())
    }

    /// One object, unless a write of it is under way, so that what it holds now is open.
    pub fn settled(&self, key: &ObjectKey) -> Reading {
        let is_under_way = self.state().overlays.get(self.actor).is_some_and(|overlay| overlay.is_under_way(key));
        if is_under_way { Reading::Live } else { self.get(key) }
    }

    /// The objects of a namespace (none: all) and a version of the collection; none where one of them must be read live, or where there are more than `most`, which is found out before
    /// much is done.
    pub fn list(&self, namespace: Option<&Namespace>, most: Option<usize>) -> Option<(Vec<Arc<Cached>>, String)> {
        let state = self.state();
        let mut own: BTreeMap<&ObjectKey, &Written> = BTreeMap::new();
        if let Some(overlay) = state.overlays.get(self.actor) {
            let within = |key: &ObjectKey| namespace.is_none() || key.namespace.as_ref() == namespace;
            own.extend(overlay.all()?.filter(|(key, _)| within(key)));
        }
        if own.values().any(|written| matches!(written, Written::Uncertain)) {
            return None;
        }
        if let Some(most) = most
            && state.within(namespace).nth(most.saturating_add(own.len())).is_some()
        {
            return None;
        }
        let mut all = Vec::new();
        let mut own = own.into_iter().peekable();
        for (key, kept) in state.within(namespace) {
            while let Some((_, written)) = own.next_if(|(at, _)| *at < key) {
                all.extend(written.there());
            }
            match own.next_if(|(at, _)| *at == key) {
                Some((_, Written::There(entry))) => all.push(Arc::clone(&entry.cached)),
                Some((_, Written::Gone { uid })) if kept.entry.cached.meta.uid == *uid => {}
                _ if kept.charge.is_whole() => all.push(Arc::clone(&kept.entry.cached)),
                _ => return None,
            }
        }
        for (_, written) in own {
            all.extend(written.there());
        }
        let version = state.version.clone();
        drop(state);
        most.is_none_or(|most| all.len() <= most).then_some((all, version))
    }

    // Own writes.

    /// Lays something over the cache; told what that holds of the object.
    fn note(&self, key: &ObjectKey, what: impl FnOnce(&mut Overlay, Option<&Entry>)) {
        let state = &mut *self.state();
        let overlay = state.overlays.entry(self.actor.clone()).or_default();
        what(overlay, state.store.get(key).map(|kept| &kept.entry));
        if overlay.is_idle() {
            state.overlays.remove(self.actor);
        }
    }

    /// A write begins.
    pub fn write_begins(&self, key: &ObjectKey) {
        self.note(key, |overlay, _| overlay.begin(key));
    }

    /// A write ended without a change, or with an unknown outcome.
    pub fn write_ends(&self, key: &ObjectKey, unknown: bool) {
        self.note(key, |overlay, _| overlay.end(key, unknown));
    }

    /// A write was answered with an object.
    pub fn write_answered(&self, key: &ObjectKey, entry: Entry) {
        let comparable = self.comparable();
        let keeps = self.keeps(&entry);
        self.note(key, |overlay, known| {
            if keeps {
                overlay.answered(key, entry, known, comparable);
            } else {
                overlay.end(key, true);
            }
        });
    }

    /// Whether a whole object may lie over the cache. What has no room in that has none here; and who is told nothing reads nothing here, and would hold what is charged to nobody.
    fn keeps(&self, entry: &Entry) -> bool {
        let state = self.state();
        state.is_told(self.actor) && self.budget.has_room(state.plugins(), entry.size())
    }

    /// A write was answered with the end of an incarnation.
    pub fn write_removed(&self, key: &ObjectKey, uid: String) {
        self.note(key, |overlay, known| overlay.gone(key, uid, known));
    }

    /// A live read found this.
    pub fn read_live(&self, key: &ObjectKey, found: Option<Entry>) {
        let comparable = self.comparable();
        if found.as_ref().is_some_and(|found| !self.keeps(found)) {
            return;
        }
        self.note(key, |overlay, known| overlay.settled(key, found, known, comparable));
    }
}
