//! Whose doing an event is: what the reconciles of one plugin wrote, and how often it handed on by then.
//!
//! Each write has a *generation*: 0 where anything but the plugin's own writes woke the reconcile (another's write, a person, a timer), otherwise one more than the smallest of the writes
//! that woke it. A chain that is longer than [`LONG`] feeds itself. Whose event it was is looked up as late as can be, since an event may come before the answer of the write that it
//! tells of; and whatever is not known then is somebody else's.
//!
//! A write without an answer (the guest dropped it, or the answer was lost) made a version that nobody knows. The next event of its object within [`WINDOW`] that nobody else is known for is
//! its own, so that no chain is hidden by not waiting for what it does; and no more than the write may bring, so that it hides little of others: one event, or two of a deletion. Several
//! such writes of an object add up.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::{BuildHasher as _, BuildHasherDefault, Hash},
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
};

use foldhash::quality::RandomState;

use tokio::time::Instant;

use super::WINDOW;
use crate::{
    cache::Meta,
    hashed::Hashed,
    name::{ControllerName, Namespace, ObjectName},
    resource::{ObjectKey, Resource},
};

/// From this generation on a chain feeds itself. The longest that people build goes down three kinds and back up (such as `CronJob`, `Job`, `Pod`), and each of them takes a step or two of
/// its own; and to be longer is no loop yet, it only lets changes count.
pub(super) const LONG: u32 = 8;
/// Writes that are remembered until their events come, of all controllers of a plugin: of seconds at a thousand a second, where an event takes milliseconds.
pub(super) const MOST_DEEDS: usize = 4_000;
/// Events that wake one reconcile while nobody knows yet whose they are.
pub(super) const MOST_WAKES: usize = 16;

/// What the reconciles of one plugin wrote lately; shared by its controllers.
#[derive(Debug, Default)]
pub struct Chain(Mutex<Deeds>);

#[derive(Debug, Default)]
struct Deeds {
    known: HashMap<u64, Deed, BuildHasherDefault<Hashed>>,
    /// The oldest first.
    order: VecDeque<u64>,
    /// Writes without an answer, by what they were about.
    unanswered: HashMap<u64, Unanswered, BuildHasherDefault<Hashed>>,
}

#[derive(Debug, Clone)]
struct Deed {
    by: Arc<Doer>,
    generation: u32,
}

/// Writes of one object whose outcome nobody knows.
#[derive(Debug)]
struct Unanswered {
    deed: Deed,
    /// Whatever was heard before is not theirs.
    since: Instant,
    until: Instant,
    /// Events that they may bring yet.
    events: u32,
}

/// What an event tells: an object was so, and is so now, or gone.
#[derive(Debug, Clone, Copy)]
pub struct Happened<'a> {
    /// Of which kind.
    pub resource: &'a Resource,
    /// Which object.
    pub key: &'a ObjectKey,
    /// Before; none where it is new.
    pub was: Option<&'a Meta>,
    /// After; none where it is gone.
    pub now: Option<&'a Meta>,
}

impl Happened<'_> {
    pub(super) fn wake(&self, order: bool) -> Wake {
        let namespace = self.key.namespace.as_ref();
        let places = [place(self.resource, namespace, Some(&self.key.name)), place(self.resource, namespace, None)];
        Wake { event: event(self.was, self.now), places, at: Instant::now(), order }
    }
}

/// What a write is about, as far as it is known: of what is made with a generated name, not which object. In whichever version of the API.
fn place(resource: &Resource, namespace: Option<&Namespace>, name: Option<&ObjectName>) -> u64 {
    fingerprint(&(resource.group(), resource.resource(), namespace, name))
}

/// Which object a reconcile is about, and of which controller of the plugin.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Doer {
    /// The controller.
    pub controller: ControllerName,
    /// The object, of the controller's primary kind.
    pub key: ObjectKey,
}

/// One reconcile: what it writes is noted here, as soon as it is known.
#[derive(Debug)]
pub struct Errand {
    pub(super) by: Arc<Doer>,
    pub(super) wakes: Wakes,
    pub(super) chain: Arc<Chain>,
}

impl Errand {
    /// What it is about.
    pub fn by(&self) -> &Doer {
        &self.by
    }

    /// It wrote an object, which is so now.
    pub fn wrote(&self, now: &Meta) {
        let ends = now.deleting && now.finalizers.is_empty();
        self.note([event(None, Some(now)), if ends { event(Some(now), None) } else { 0 }]);
    }

    /// It removed an object, which was so, or is so until nothing holds it any more.
    pub fn removed(&self, was: &Meta) {
        self.note([event(None, Some(was)), event(Some(was), None)]);
    }

    /// It began to write at this time what may bring so many events, and nobody knows whether it did.
    pub fn unanswered(
        &self,
        resource: &Resource,
        namespace: Option<&Namespace>,
        name: Option<&ObjectName>,
        since: Instant,
        events: u32,
    ) {
        let mut deeds = self.chain.lock();
        let deed = Deed { by: self.by.clone(), generation: self.wakes.generation(&mut deeds) };
        deeds
            .lose(place(resource, namespace, name), Unanswered { deed, since, until: Instant::now() + WINDOW, events });
    }

    fn note(&self, events: [u64; 2]) {
        let mut deeds = self.chain.lock();
        let generation = self.wakes.generation(&mut deeds);
        // What was heard before it began, it did not write: a write that changed nothing is answered as somebody else's version.
        let heard = |event: &u64| self.wakes.open.iter().any(|wake| wake.event == *event);
        for event in events.into_iter().filter(|event| *event != 0 && !heard(event)) {
            deeds.remember(event, || Deed { by: self.by.clone(), generation });
        }
    }
}

impl Deeds {
    fn remember(&mut self, event: u64, deed: impl FnOnce() -> Deed) {
        // What changed nothing is answered as the version that somebody made before, whose it stays.
        let Entry::Vacant(place) = self.known.entry(event) else { return };
        place.insert(deed());
        self.order.push_back(event);
        if self.order.len() > MOST_DEEDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    fn lose(&mut self, place: u64, lost: Unanswered) {
        if let Some(known) = self.unanswered.get_mut(&place).filter(|known| known.until > Instant::now()) {
            (known.deed, known.until) = (lost.deed, lost.until);
            known.events = known.events.saturating_add(lost.events);
            return;
        }
        if self.unanswered.len() >= MOST_DEEDS {
            let now = Instant::now();
            self.unanswered.retain(|_, lost| lost.until > now);
        }
        // Whoever has so many does not get others forgotten.
        if self.unanswered.len() < MOST_DEEDS {
            self.unanswered.insert(place, lost);
        }
    }

    /// Whose event it is, if anybody of the plugin's.
    fn whose(&mut self, wake: &Wake) -> Option<&Deed> {
        if wake.event != 0 && !self.known.contains_key(&wake.event) {
            let mut deed = None;
            for place in wake.places {
                let Some(lost) = self.unanswered.get_mut(&place) else { continue };
                if wake.at < lost.since || lost.until <= Instant::now() {
                    continue;
                }
                deed = Some(lost.deed.clone());
                lost.events = lost.events.saturating_sub(1);
                if lost.events == 0 {
                    self.unanswered.remove(&place);
                }
                break;
            }
            let deed = deed?;
            self.remember(wake.event, || deed);
        }
        self.known.get(&wake.event)
    }
}

impl Chain {
    fn lock(&self) -> MutexGuard<'_, Deeds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this event is of a key's own writes, or of a chain that feeds itself.
    pub(super) fn feeds(&self, wake: &Wake, me: &Doer) -> bool {
        self.lock().whose(wake).is_some_and(|deed| deed.feeds(me))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize, usize) {
        let deeds = self.lock();
        (deeds.known.len(), deeds.order.len(), deeds.unanswered.len())
    }
}

impl Deed {
    fn feeds(&self, me: &Doer) -> bool {
        *self.by == *me || self.generation >= LONG
    }
}

/// Which event it is that an object was so, and is so now; 0 where nobody could know it again.
pub(super) fn event(was: Option<&Meta>, now: Option<&Meta>) -> u64 {
    let (uid, version) = match (was, now) {
        (_, Some(now)) => (&now.uid, Some(&now.resource_version).filter(|version| !version.is_empty())),
        (Some(was), None) => (&was.uid, None),
        (None, None) => return 0,
    };
    if uid.is_empty() || now.is_some() && version.is_none() {
        return 0;
    }
    fingerprint(&(uid, version))
}

/// Of what is forgotten with the process.
pub(super) fn fingerprint(value: &impl Hash) -> u64 {
    static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::default);
    STATE.hash_one(value)
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Wake {
    pub event: u64,
    /// What it is about: this object, and all of its kind in its namespace.
    places: [u64; 2],
    at: Instant,
    pub order: bool,
}

/// What woke a key.
#[derive(Debug, Clone, Default)]
pub(super) struct Wakes {
    /// Something that the plugin did not write, or so much at once that nobody knows.
    foreign: bool,
    /// Another key's write, of a chain that may come to an end.
    handed: bool,
    /// Somebody changed what it is asked for.
    ordered: bool,
    /// The smallest generation of the plugin's own writes.
    least: Option<u32>,
    /// The same of the reconcile before, after whose pause this one runs whether anything woke it or not.
    carried: Option<u32>,
    /// Whose chain it is that feeds itself.
    with: Option<Arc<Doer>>,
    /// Of which nobody knew yet whose they are.
    open: Vec<Wake>,
}

impl Wakes {
    pub fn add(&mut self, wake: Wake, chain: &Chain, me: &Doer) {
        if self.open.len() >= MOST_WAKES {
            self.sort_out(chain, me);
        }
        if self.open.len() < MOST_WAKES {
            self.open.push(wake);
        } else {
            self.foreign = true;
            self.ordered |= wake.order;
        }
    }

    /// Looks again whose those are of which nobody knew.
    pub fn sort_out(&mut self, chain: &Chain, me: &Doer) {
        if self.open.is_empty() {
            return;
        }
        let mut deeds = chain.lock();
        for wake in std::mem::take(&mut self.open) {
            let Some(deed) = deeds.whose(&wake) else {
                self.open.push(wake);
                continue;
            };
            self.least = Some(self.least.map_or(deed.generation, |least| least.min(deed.generation)));
            if !deed.feeds(me) {
                self.handed = true;
                self.ordered |= wake.order;
            } else if *deed.by != *me && self.with.is_none() {
                self.with = Some(deed.by.clone());
            }
        }
    }

    /// A reconcile that these woke has to pause; what woke the one after it goes on from there.
    pub fn carry(&mut self, before: &Self) {
        self.carried = before.least.or(before.carried);
    }

    /// Whether nothing woke it but its own writes, and chains that feed themselves.
    pub fn is_alone(&self) -> bool {
        self.least.is_some() && !self.foreign && !self.handed && self.open.is_empty()
    }

    /// Whether somebody changed what it is asked for.
    pub fn is_ordered(&self) -> bool {
        self.ordered || self.open.iter().any(|wake| wake.order)
    }

    /// Who else of the plugin takes part, where that is known.
    pub fn with(&self) -> Option<&Doer> {
        self.with.as_deref()
    }

    /// What a reconcile that these woke hands on, by what is known now.
    fn generation(&self, deeds: &mut Deeds) -> u32 {
        let mut least = self.least;
        for wake in &self.open {
            let Some(deed) = deeds.whose(wake) else { return 0 };
            least = Some(least.map_or(deed.generation, |least| least.min(deed.generation)));
        }
        least.or(self.carried).filter(|_| !self.foreign).map_or(0, |least| least.saturating_add(1))
    }
}
