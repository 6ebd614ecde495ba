//! The shared watch caches: one informer for each extent of a kind (all of it, a namespace of it, one object of it), whoever subscribes.
//!
//! It starts with its first subscriber and stops with its last. **It never widens access**: each watch runs as one of its subscribers, its sponsor; the others are told of
//! changes only as far as they could list and watch themselves, which is asked when they come and then every 20 s. Secrets are never shared.
//!
//! All of them share a [budget](CacheBudget) of memory: whoever watches a great deal reads from the API server what has no room, and takes no room from the others.

mod budget;
mod run;
mod store;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use operetta_core::{
    cache::{Extent, Informers, Subscription, changes},
    name::Actor,
    port::ApiError,
    resource::{ObjectKey, Resource},
};
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

pub use self::budget::CacheBudget;
pub(crate) use self::store::{Reading, View};
use self::{
    run::{Parts, run},
    store::{Informer, Tap},
};
use crate::{
    access::{Access, Whose},
    discovery::Discovery,
    identity::Identity,
};

/// What one informer watches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Watched {
    /// The kind.
    pub resource: Resource,
    /// How much of it.
    pub extent: Extent,
    /// For whom alone, where it is not shared.
    pub owner: Option<Actor>,
}

impl Watched {
    fn of(actor: &Actor, resource: &Resource, extent: Extent) -> Self {
        let secret = resource.group().is_empty() && resource.resource() == "secrets";
        Self { resource: resource.clone(), extent, owner: secret.then(|| actor.clone()) }
    }
}

struct Running {
    informer: Arc<Informer>,
    /// How many subscribers it has, or is about to have.
    seats: usize,
    _task: AbortOnDropHandle<()>,
}

/// All informers of a host.
pub struct SharedInformers {
    parts: Parts,
    budget: Arc<CacheBudget>,
    runtime: Handle,
    running: Mutex<HashMap<Watched, Running>>,
    ids: AtomicU64,
    this: Weak<Self>,
}

impl SharedInformers {
    /// Informers will run on the current runtime.
    pub fn new(
        identity: Arc<dyn Identity>,
        discovery: Arc<Discovery>,
        access: Arc<Access>,
        budget: Arc<CacheBudget>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            parts: Parts { identity, discovery, access },
            budget,
            runtime: Handle::current(),
            running: Mutex::default(),
            ids: AtomicU64::new(0),
            this: this.clone(),
        })
    }

    fn running_informers(&self) -> MutexGuard<'_, HashMap<Watched, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many informers run.
    pub fn running(&self) -> usize {
        self.running_informers().len()
    }

    fn informer(&self, watched: &Watched) -> Option<Arc<Informer>> {
        self.running_informers().get(watched).map(|running| Arc::clone(&running.informer))
    }

    /// The synced informer that a plugin subscribes to and whose watch sees all of an extent, if there is one. Whoever works long with one informer keeps nobody from the others.
    pub(crate) fn covering<'a>(&self, actor: &'a Actor, resource: &Resource, extent: &Extent) -> Option<View<'a>> {
        let mut wider = extent.wider().filter_map(|extent| self.informer(&Watched::of(actor, resource, extent)));
        wider.find(|informer| informer.serves(actor)).map(|informer| View::new(informer, actor))
    }

    /// All informers that will see a write of this object by this plugin.
    pub(crate) fn seeing<'a>(&self, actor: &'a Actor, resource: &Resource, key: &ObjectKey) -> Vec<View<'a>> {
        let object = Extent::from(key);
        let covering = object.wider().filter_map(|extent| self.informer(&Watched::of(actor, resource, extent)));
        covering.map(|informer| View::new(informer, actor)).collect()
    }

    fn join(&self, watched: Watched, actor: &Actor, tap: &Arc<Tap>) -> Seat {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let mut running = self.running_informers();
        let entry = running.entry(watched.clone()).or_insert_with(|| {
            let informer = Arc::new(Informer::new(watched.clone(), Arc::clone(&self.budget)));
            let task = self.runtime.spawn(run(Arc::clone(&informer), self.parts.clone()));
            Running { informer, seats: 0, _task: AbortOnDropHandle::new(task) }
        });
        entry.seats = entry.seats.saturating_add(1);
        let informer = Arc::clone(&entry.informer);
        drop(running);
        // The seat keeps it running, and what it has to tell may take a while.
        informer.join(id, actor, tap);
        Seat { informers: self.this.clone(), informer, watched, id }
    }

    /// Somebody left: with the last one the informer stops.
    fn give_up(&self, watched: &Watched) {
        let mut running = self.running_informers();
        let Some(entry) = running.get_mut(watched) else { return };
        entry.seats = entry.seats.saturating_sub(1);
        let last = if entry.seats == 0 { running.remove(watched) } else { None };
        drop(running);
        // With all that it holds.
        drop(last);
    }
}

/// One subscriber's place at one informer.
struct Seat {
    informers: Weak<SharedInformers>,
    informer: Arc<Informer>,
    watched: Watched,
    id: u64,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.informer.leave(self.id);
        if let Some(informers) = self.informers.upgrade() {
            informers.give_up(&self.watched);
        }
    }
}

#[async_trait]
impl Informers for SharedInformers {
    async fn subscribe(
        &self,
        actor: &Actor,
        resource: &Resource,
        extents: &[Extent],
    ) -> Result<Subscription, ApiError> {
        let what = format!("cannot watch {resource}");
        let kind = self.parts.discovery.lookup(resource).await.map_err(|fault| fault.into_api_error(&what))?;
        if let Some(kind) = kind {
            if !kind.info.namespaced && extents.iter().any(|extent| extent.namespace.is_some()) {
                return Err(ApiError::Invalid(format!(
                    "{what}: it is cluster-scoped, and the plugin is limited to namespaces; remove the limit or the watch"
                )));
            }
            if !kind.verbs.iter().any(|verb| verb == "watch") {
                return Err(ApiError::Invalid(format!("{what}: the API server offers no watch of this kind")));
            }
        }
        for extent in extents {
            for whose in [Whose::Account, Whose::Host] {
                self.parts.access.check(whose, actor, resource, extent).await?;
            }
        }
        let (teller, changes) = changes::channel();
        let tap = Arc::new(Tap::new(teller, extents.len()));
        let join = |extent: &Extent| self.join(Watched::of(actor, resource, extent.clone()), actor, &tap);
        let seats: Vec<Seat> = extents.iter().map(join).collect();
        Ok(Subscription { kind: self.parts.discovery.watch(resource), changes, guard: Box::new(seats) })
    }
}

#[cfg(test)]
mod tests;
