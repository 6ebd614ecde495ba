//! Which kinds the cluster knows now. A plugin names a kind as in a URL; what it is called in owner references and whether it lives in namespaces comes from here.
//!
//! **A CRD that appears or disappears later is noticed without a restart**: a watch of CRDs (their metadata only) says which group changed, and since the API
//! server's own discovery lags behind its CRDs, that group is then asked for several times. Kinds that others wait for are also polled slowly, for API servers whose
//! CRDs the host may not watch, and for aggregated ones.
//!
//! **The host asks with its own right, so a plugin must not be able to have it ask much**: a rule names no API version, and any may be named to the host. Only those that the API server
//! lists are asked for and remembered, each by one request at a time and of all of them [`AT_ONCE`]; and whoever doubts what is remembered has it looked at again, and takes it from nobody.
//! While a plugin asks it may compute, and nothing that it awaits goes on meanwhile; so what others may have to wait for runs in a task of the host.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures::StreamExt as _;
use http::Request;
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResourceList},
};
use kube::{
    Api, Client,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt as _, watcher},
};
use operetta_core::{cache::KindInfo, resource::Resource};
use tokio::{
    runtime::Handle,
    sync::{Notify, OnceCell, Semaphore, watch},
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use crate::{
    request::{Fault, is_at_least, send},
    single::Single,
};

/// A kind that was not there is not asked for again within this time.
const ABSENT_FOR: Duration = Duration::from_secs(1);
/// A version that was not listed is not looked for in a new list within this time, unless a CRD changes: whoever makes up versions has the host ask no more often.
const UNLISTED_FOR: Duration = Duration::from_secs(5);
/// API versions that are asked for at once because plugins named them.
const AT_ONCE: usize = 8;
/// What was doubted and asked for is not doubted again within this time.
const REST: Duration = Duration::from_secs(5);
/// How often a kind that someone waits for is asked for.
const POLL: Duration = Duration::from_secs(10);
/// When to ask after a CRD changed. Measured, the API server's discovery follows within some 100 ms; a loaded one takes longer.
const LAG: [u64; 7] = [0, 50, 150, 400, 1_000, 2_500, 5_000];
/// From this minor version on, resource versions of one kind may be compared as numbers (KEP-5504).
const COMPARABLE_SINCE: u32 = 35;

/// A kind, as discovery tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    /// Kind and scope.
    pub info: KindInfo,
    /// What can be done with it, such as `watch`.
    pub verbs: Vec<String>,
}

/// The kinds of an API version, by their plurals.
type Kinds = Arc<HashMap<String, Kind>>;
/// API versions such as `apps/v1`, those of the core group left out.
type Versions = Arc<HashSet<String>>;

/// The kinds of one cluster.
pub struct Discovery {
    client: Client,
    runtime: Handle,
    state: Mutex<State>,
    comparable: OnceCell<bool>,
    /// The requests under way, by API version.
    lists: Single<String, Result<Kinds, Fault>>,
    /// The one for the list of versions.
    list_of_versions: Single<(), Result<Versions, Fault>>,
    for_plugins: Semaphore,
    news: Arc<News>,
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

#[derive(Default)]
struct State {
    /// By API version, such as `apps/v1`.
    versions: HashMap<String, Listed>,
    /// Those that the API server says it has, and when it said so.
    served: Option<(Versions, Instant)>,
    waited_for: HashMap<Resource, watch::Sender<Option<KindInfo>>>,
    /// By API version.
    doubts: HashMap<String, Doubt>,
}

struct Listed {
    kinds: Kinds,
    at: Instant,
}

struct Doubt {
    /// Any of its kinds.
    resource: Resource,
    at: Instant,
    asked: bool,
}

/// Groups whose CRDs changed.
#[derive(Default)]
struct News {
    groups: Mutex<HashSet<String>>,
    /// They, or doubts.
    some: Notify,
}

impl News {
    fn groups(&self) -> MutexGuard<'_, HashSet<String>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, group: &str) {
        self.groups().insert(group.to_owned());
        self.some.notify_one();
    }
}

impl Discovery {
    /// Begins to watch CRDs, on the current runtime, until the last reference goes.
    pub fn start(client: Client) -> Arc<Self> {
        let news = Arc::new(News::default());
        let this = Arc::new(Self {
            client: client.clone(),
            runtime: Handle::current(),
            state: Mutex::default(),
            comparable: OnceCell::new(),
            lists: Single::default(),
            list_of_versions: Single::default(),
            for_plugins: Semaphore::new(AT_ONCE),
            news: Arc::clone(&news),
            tasks: Mutex::default(),
        });
        let follow = follow(Arc::downgrade(&this), Arc::clone(&news));
        let tasks = [tokio::spawn(watch_crds(client, news)), tokio::spawn(follow)];
        this.tasks.lock().unwrap_or_else(PoisonError::into_inner).extend(tasks.map(AbortOnDropHandle::new));
        this
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the cluster says of a kind; none where it does not know it. For the kinds that manifests name: see [`Self::lookup_for_plugin`].
    pub async fn lookup(&self, resource: &Resource) -> Result<Option<Kind>, Fault> {
        self.look(resource, self.list(resource)).await
    }

    /// The same for any kind that a plugin may name: nothing is asked for or remembered of versions that the API server does not have, and what has to be asked for waits for one
    /// of the plugin's `turns`.
    pub async fn lookup_for_plugin(
        self: &Arc<Self>,
        turns: &Arc<Semaphore>,
        resource: &Resource,
    ) -> Result<Option<Kind>, Fault> {
        if let Some(kinds) = self.recall(resource) {
            return Ok(kinds.get(resource.resource()).cloned());
        }
        // Each in a task of its own, which goes with who asked: none of the others loses anything by that.
        let (this, turns, resource) = (Arc::clone(self), Arc::clone(turns), resource.clone());
        let task = self.runtime.spawn(async move { this.look_in_turn(&turns, &resource).await });
        AbortOnDropHandle::new(task).await.unwrap_or_else(|stopped| Err(Fault::Lost(stopped.to_string())))
    }

    async fn look_in_turn(&self, turns: &Semaphore, resource: &Resource) -> Result<Option<Kind>, Fault> {
        // An error would say that the semaphore was closed, which nobody does.
        let _own_turn = turns.acquire().await;
        // The list of versions may lag behind what somebody waits for, and of that there is only so much.
        let is_waited_for = self.state().waited_for.contains_key(resource);
        if !is_waited_for && !self.has_version_of(resource).await? {
            return Ok(None);
        }
        let list = async {
            let _turn = self.for_plugins.acquire().await;
            self.list(resource).await
        };
        self.look(resource, list).await
    }

    async fn look(
        &self,
        resource: &Resource,
        list: impl Future<Output = Result<Kinds, Fault>>,
    ) -> Result<Option<Kind>, Fault> {
        let recall = || self.recall(resource);
        let kinds = match recall() {
            Some(kinds) => kinds,
            None => self.lists.ask(&resource.api_version(), || recall().map(Ok), list).await?,
        };
        Ok(kinds.get(resource.resource()).cloned())
    }

    /// The kinds of its API version, where they say enough of this one.
    fn recall(&self, resource: &Resource) -> Option<Kinds> {
        let state = self.state();
        let listed = state.versions.get(&resource.api_version())?;
        let says = listed.kinds.contains_key(resource.resource()) || listed.at.elapsed() < ABSENT_FOR;
        says.then(|| Arc::clone(&listed.kinds))
    }

    /// Asks the cluster, whatever is remembered.
    pub async fn refresh(&self, resource: &Resource) -> Result<Option<Kind>, Fault> {
        let kinds = self.lists.ask(&resource.api_version(), || None, self.list(resource)).await?;
        Ok(kinds.get(resource.resource()).cloned())
    }

    /// Whether the API server says that it has the kind's API version.
    async fn has_version_of(&self, resource: &Resource) -> Result<bool, Fault> {
        if resource.group().is_empty() {
            // The core group has no other, and gets none.
            return Ok(resource.version() == "v1");
        }
        let version = resource.api_version();
        let recall = || {
            let state = self.state();
            let (versions, at) = state.served.as_ref()?;
            let says = versions.contains(&version) || at.elapsed() < UNLISTED_FOR;
            says.then(|| Arc::clone(versions))
        };
        let versions = match recall() {
            Some(versions) => versions,
            None => self.list_of_versions.ask(&(), || recall().map(Ok), self.list_versions()).await?,
        };
        Ok(versions.contains(&version))
    }

    /// A kind's presence, as it changes. Said to be absent until it was looked up.
    pub fn watch(&self, resource: &Resource) -> watch::Receiver<Option<KindInfo>> {
        let mut state = self.state();
        let known = state
            .versions
            .get(&resource.api_version())
            .and_then(|v| v.kinds.get(resource.resource()))
            .map(|k| k.info.clone());
        state.waited_for.entry(resource.clone()).or_insert_with(|| watch::channel(known).0).subscribe()
    }

    /// To be told when a kind turned out to be other than remembered, which is believed until it was asked for again.
    pub fn doubt(&self, resource: &Resource) {
        let mut state = self.state();
        state.doubts.retain(|_, doubt| doubt.at.elapsed() < REST);
        let version = resource.api_version();
        if state.versions.contains_key(&version) {
            let doubt = || Doubt { resource: resource.clone(), at: Instant::now(), asked: false };
            state.doubts.entry(version).or_insert_with(doubt);
            self.news.some.notify_one();
        }
    }

    /// What was doubted since this was last asked.
    fn doubted(&self) -> Vec<Resource> {
        let mut state = self.state();
        let new = |doubt: &mut Doubt| (!std::mem::replace(&mut doubt.asked, true)).then(|| doubt.resource.clone());
        state.doubts.values_mut().filter_map(new).collect()
    }

    /// Whether this server promises that resource versions of one kind can be compared.
    pub async fn comparable_versions(&self) -> bool {
        let ask = || is_at_least(&self.client, COMPARABLE_SINCE);
        self.comparable.get_or_try_init(ask).await.copied().unwrap_or(false)
    }

    /// Asks for the kinds of an API version, and remembers and tells what is answered.
    async fn list(&self, resource: &Resource) -> Result<Kinds, Fault> {
        let api_version = resource.api_version();
        let root = if resource.group().is_empty() { "/api/" } else { "/apis/" };
        let request = Request::get(format!("{root}{api_version}")).body(Vec::new())?;
        let kinds: Kinds = match send(&self.client, request).await {
            Ok(body) => Arc::new(read_kinds(&body)?),
            Err(fault) if fault.is_not_found() => Kinds::default(),
            Err(fault) => return Err(fault),
        };
        let mut state = self.state();
        for (waited, sender) in &state.waited_for {
            if waited.api_version() == api_version {
                let now = kinds.get(waited.resource()).map(|kind| kind.info.clone());
                sender.send_if_modified(|known| {
                    let changed = *known != now;
                    *known = now;
                    changed
                });
            }
        }
        state.versions.insert(api_version, Listed { kinds: Arc::clone(&kinds), at: Instant::now() });
        Ok(kinds)
    }

    /// Asks for all API versions but those of the core group.
    async fn list_versions(&self) -> Result<Versions, Fault> {
        let body = send(&self.client, Request::get("/apis").body(Vec::new())?).await?;
        let list: APIGroupList = serde_json::from_slice(&body).map_err(|e| Fault::Garbled(e.to_string()))?;
        let versions = list.groups.into_iter().flat_map(|group| group.versions);
        let versions: Versions = Arc::new(versions.map(|version| version.group_version).collect());
        self.state().served = Some((Arc::clone(&versions), Instant::now()));
        Ok(versions)
    }

    /// Forgets a group, and asks for those of its kinds that someone waits for.
    async fn forget(&self, group: &str) {
        let in_group = |api_version: &str| api_version.split_once('/').map_or("", |(group, _)| group) == group;
        let waited: Vec<_> = {
            let mut state = self.state();
            state.versions.retain(|api_version, _| !in_group(api_version));
            state.served = None;
            state.waited_for.retain(|_, sender| sender.receiver_count() > 0);
            state.waited_for.keys().filter(|r| r.group() == group).cloned().collect()
        };
        self.ask_for(waited).await;
    }

    /// Asks for the kinds that someone waits for and that are not there.
    async fn poll(&self) {
        let absent = {
            let state = self.state();
            let absent =
                state.waited_for.iter().filter(|(_, sender)| sender.receiver_count() > 0 && sender.borrow().is_none());
            absent.map(|(resource, _)| resource.clone()).collect()
        };
        self.ask_for(absent).await;
    }

    async fn ask_for(&self, resources: Vec<Resource>) {
        let mut asked = HashSet::new();
        for resource in resources {
            if asked.insert(resource.api_version())
                && let Err(error) = self.refresh(&resource).await
            {
                debug!(%resource, %error, "discovery failed");
            }
        }
    }
}

fn read_kinds(body: &[u8]) -> Result<HashMap<String, Kind>, Fault> {
    let list: APIResourceList = serde_json::from_slice(body).map_err(|e| Fault::Garbled(e.to_string()))?;
    let kinds = list.resources.into_iter().filter(|r| !r.name.contains('/'));
    Ok(kinds
        .map(|r| (r.name, Kind { info: KindInfo { kind: r.kind, namespaced: r.namespaced }, verbs: r.verbs }))
        .collect())
}

/// Asks for what is in doubt, and for changed groups, each of these several times over the next seconds.
async fn follow(discovery: Weak<Discovery>, news: Arc<News>) {
    let mut due: HashMap<String, (Instant, usize)> = HashMap::new();
    let mut poll = Instant::now() + POLL;
    loop {
        let next = due.values().map(|(at, _)| *at).min().map_or(poll, |at| at.min(poll));
        tokio::select! {
            () = news.some.notified() => {}
            () = tokio::time::sleep_until(next) => {}
        }
        let Some(discovery) = discovery.upgrade() else { return };
        let changed = std::mem::take(&mut *news.groups());
        due.extend(changed.into_iter().map(|group| (group, (Instant::now(), 0))));
        discovery.ask_for(discovery.doubted()).await;
        let now = Instant::now();
        if poll <= now {
            poll = now + POLL;
            discovery.poll().await;
        }
        let groups: Vec<_> =
            due.iter().filter(|(_, (at, _))| *at <= now).map(|(group, (_, step))| (group.clone(), *step)).collect();
        for (group, step) in groups {
            discovery.forget(&group).await;
            match LAG.get(step + 1) {
                Some(wait) => due.insert(group, (now + Duration::from_millis(*wait), step + 1)),
                None => due.remove(&group),
            };
        }
    }
}

/// Tells the group of each CRD that comes, changes or goes.
async fn watch_crds(client: Client, news: Arc<News>) {
    let crds: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client);
    let mut stream = std::pin::pin!(watcher(crds, watcher::Config::default()).default_backoff());
    // Names, with the version that was seen, so that a list after a lost watch tells only what changed meanwhile.
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let mut listed: HashSet<String> = HashSet::new();
    let tell = |name: &str| {
        if let Some((_, group)) = name.split_once('.') {
            news.tell(group);
        }
    };
    while let Some(event) = stream.next().await {
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(crd) | watcher::Event::Apply(crd)) => {
                let (Some(name), Some(version)) = (crd.metadata.name, crd.metadata.resource_version) else { continue };
                listed.insert(name.clone());
                if known.get(&name) != Some(&version) {
                    tell(&name);
                    known.insert(name, version);
                }
            }
            Ok(watcher::Event::Delete(crd)) => {
                if let Some(name) = crd.metadata.name {
                    known.remove(&name);
                    tell(&name);
                }
            }
            Ok(watcher::Event::InitDone) => known.retain(|name, _| {
                let there = listed.contains(name);
                if !there {
                    tell(name);
                }
                there
            }),
            Err(error) => debug!(%error, "the watch of CRDs failed and goes on; kinds are polled meanwhile"),
        }
    }
}

#[cfg(test)]
mod tests;
