//! Read your own writes: what a plugin's writes answered, laid over the cache until the informer has seen as much.
//!
//! **Whatever is in doubt is read live.** A write that is under way or whose answer was lost, a version that cannot be compared with another: the API server knows.

use std::{collections::HashMap, sync::Arc};

use operetta_core::{cache::Cached, resource::ObjectKey};

use crate::object::Entry;

/// Objects that one plugin's writes lay over one cache, at most. Informers catch up within milliseconds, so this many means that a watch is stuck, or that the plugin waits for no answer;
/// then its reads are live.
pub(crate) const MOST: usize = 4_096;
/// Versions remembered for one write under way.
const MOST_SEEN: usize = 64;

/// How an object stands, as far as own writes tell.
#[derive(Debug, Clone)]
pub enum Written {
    /// At least as new as this.
    There(Entry),
    /// This incarnation is gone.
    Gone {
        /// Its uid.
        uid: String,
    },
    /// Only the API server knows.
    Uncertain,
}

/// The writes of one plugin to what one cache holds. The numbers of lists let a relist settle everything that was written before it began.
#[derive(Debug, Default)]
pub struct Overlay {
    written: HashMap<ObjectKey, Note>,
    under_way: HashMap<ObjectKey, Pending>,
    /// How many lists have begun.
    list: u64,
    /// Set when there were too many notes: all reads are live until a list that begins from now on is complete.
    overflow: Option<u64>,
}

#[derive(Debug)]
struct Note {
    written: Written,
    list: u64,
}

/// Writes of one object that have no answer yet, and what the informer saw meanwhile.
#[derive(Debug, Clone, Default)]
struct Pending {
    writes: usize,
    /// Versions.
    seen: Vec<String>,
    /// Uids.
    ended: Vec<String>,
}

impl Written {
    /// The object, if it is there.
    pub fn there(&self) -> Option<Arc<Cached>> {
        match self {
            Self::There(entry) => Some(Arc::clone(&entry.cached)),
            Self::Gone { .. } | Self::Uncertain => None,
        }
    }
}

impl Overlay {
    /// Whether it holds nothing.
    pub fn is_idle(&self) -> bool {
        self.written.is_empty() && self.under_way.is_empty() && self.overflow.is_none()
    }

    /// A write begins.
    pub fn begin(&mut self, key: &ObjectKey) {
        self.under_way.entry(key.clone()).or_default().writes += 1;
    }

    /// A write ended without a change, or nobody waits for it any more and nothing is known (`unknown`).
    pub fn end(&mut self, key: &ObjectKey, unknown: bool) {
        self.leave(key);
        if unknown {
            self.note(key, Written::Uncertain);
        }
    }

    /// A write was answered with this object. `known` is what the cache holds now.
    pub fn answered(&mut self, key: &ObjectKey, entry: Entry, known: Option<&Entry>, comparable: bool) {
        let version = &entry.cached.meta.resource_version;
        let caught_up = self.leave(key).seen.contains(version)
            || known.is_some_and(|k| k.cached.meta.resource_version == *version)
            || (comparable && known.is_some_and(|k| at_least(&k.cached.meta.resource_version, version)));
        if caught_up {
            return;
        }
        // Two plugins may write the same object, and their answers come in any order.
        if let Some(Note { written: Written::There(other), .. }) = self.written.get(key) {
            if comparable && at_least(&other.cached.meta.resource_version, version) {
                return;
            }
            if !comparable {
                self.note(key, Written::Uncertain);
                return;
            }
        }
        self.note(key, Written::There(entry));
    }

    /// A write was answered with the end of this incarnation.
    pub fn gone(&mut self, key: &ObjectKey, uid: String, known: Option<&Entry>) {
        let caught_up = self.leave(key).ended.contains(&uid);
        match known {
            // The cache knows another incarnation, an earlier or a later one.
            Some(entry) if entry.cached.meta.uid != uid => self.note(key, Written::Uncertain),
            None if caught_up => {
                self.written.remove(key);
            }
            _ => self.note(key, Written::Gone { uid }),
        }
    }

    /// A live read of an uncertain object found this, or nothing.
    pub fn settled(&mut self, key: &ObjectKey, found: Option<Entry>, known: Option<&Entry>, comparable: bool) {
        if !matches!(self.written.get(key), Some(Note { written: Written::Uncertain, .. }))
            || self.under_way.contains_key(key)
        {
            return;
        }
        self.written.remove(key);
        match (found, known) {
            (Some(found), known) => {
                self.begin(key);
                self.answered(key, found, known, comparable);
            }
            (None, Some(known)) => self.note(key, Written::Gone { uid: known.cached.meta.uid.clone() }),
            (None, None) => {}
        }
    }

    /// How an object stands, if that differs from what the cache holds.
    pub fn get(&self, key: &ObjectKey) -> Option<Written> {
        if self.overflow.is_some() {
            return Some(Written::Uncertain);
        }
        self.written.get(key).map(|note| note.written.clone())
    }

    /// Whether a write of this object has no answer yet.
    pub fn is_under_way(&self, key: &ObjectKey) -> bool {
        self.under_way.contains_key(key)
    }

    /// All objects that differ from the cache; none where only the API server knows.
    pub fn all(&self) -> Option<impl Iterator<Item = (&ObjectKey, &Written)>> {
        self.overflow.is_none().then(|| self.written.iter().map(|(key, note)| (key, &note.written)))
    }

    /// Whether there were too many writes that the informer did not see.
    pub fn is_overflowing(&self) -> bool {
        self.overflow.is_some()
    }

    /// The informer saw an object.
    pub fn saw(&mut self, key: &ObjectKey, entry: &Entry, comparable: bool) {
        let meta = &entry.cached.meta;
        if let Some(pending) = self.under_way.get_mut(key)
            && pending.seen.len() < MOST_SEEN
        {
            pending.seen.push(meta.resource_version.clone());
        }
        let settled = match self.written.get(key).map(|note| &note.written) {
            Some(Written::There(own)) => {
                own.cached.meta.resource_version == meta.resource_version
                    || (comparable && at_least(&meta.resource_version, &own.cached.meta.resource_version))
            }
            Some(Written::Gone { uid }) => *uid != meta.uid,
            Some(Written::Uncertain) | None => false,
        };
        if settled {
            self.written.remove(key);
        }
    }

    /// The informer saw the end of an object.
    pub fn saw_end(&mut self, key: &ObjectKey, last: &Entry) {
        let meta = &last.cached.meta;
        if let Some(pending) = self.under_way.get_mut(key)
            && pending.ended.len() < MOST_SEEN
        {
            pending.ended.push(meta.uid.clone());
        }
        let settled = match self.written.get(key).map(|note| &note.written) {
            Some(Written::There(own)) => own.cached.meta.uid == meta.uid,
            Some(Written::Gone { uid }) => *uid == meta.uid,
            Some(Written::Uncertain) | None => false,
        };
        if settled {
            self.written.remove(key);
        }
    }

    /// A list begins.
    pub fn list_begins(&mut self) {
        self.list += 1;
    }

    /// A list is complete. It is consistent, so it knows of every write that was answered before it began; a write that it does not know has been undone, as by a
    /// restored backup.
    pub fn list_complete(&mut self) {
        let list = self.list;
        self.written.retain(|_, note| note.list >= list);
        self.overflow = self.overflow.filter(|since| *since >= list);
    }

    fn leave(&mut self, key: &ObjectKey) -> Pending {
        let Some(pending) = self.under_way.get_mut(key) else { return Pending::default() };
        pending.writes = pending.writes.saturating_sub(1);
        if pending.writes > 0 {
            return pending.clone();
        }
        self.under_way.remove(key).unwrap_or_default()
    }

    fn note(&mut self, key: &ObjectKey, written: Written) {
        if self.written.len() >= MOST && !self.written.contains_key(key) {
            self.written.clear();
            self.overflow = Some(self.list);
        }
        if self.overflow.is_none() {
            self.written.insert(key.clone(), Note { written, list: self.list });
        }
    }
}

/// Whether version `a` is `b` or later; false where one of them is no number.
fn at_least(a: &str, b: &str) -> bool {
    matches!((a.parse::<u128>(), b.parse::<u128>()), (Ok(a), Ok(b)) if a >= b)
}

#[cfg(test)]
mod tests;
