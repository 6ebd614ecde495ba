//! Which kinds the cluster knows now. A plugin names a kind as in a URL; what it is called in owner references and whether it lives in namespaces comes from here.
//!
//! **A CRD that appears or disappears later is noticed without a restart**: a watch of CRDs (their metadata only) says which group changed, and since the API
//! server's own discovery lags behind its CRDs, that group is then asked for several times. Kinds that others wait for are also polled slowly, for API servers whose
//! CRDs the host may not watch, and for aggregated ones.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures::StreamExt as _;
use http::Request;
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::APIResourceList,
};
use kube::{
    Api, Client,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt as _, watcher},
};
use operetta_core::{cache::KindInfo, resource::Resource};
use tokio::{
    sync::{OnceCell, mpsc, watch},
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use crate::request::{Fault, is_at_least, send};

/// A kind that was not there is not asked for again within this time.
const ABSENT_FOR: Duration = Duration::from_secs(1);
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

/// The kinds of one cluster.
pub struct Discovery {
    client: Client,
    state: Mutex<State>,
    comparable: OnceCell<bool>,
    changed: mpsc::UnboundedSender<String>,
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

#[derive(Default)]
struct State {
    /// By API version, such as `apps/v1`.
    versions: HashMap<String, Listed>,
    waited_for: HashMap<Resource, watch::Sender<Option<KindInfo>>>,
}

struct Listed {
    kinds: HashMap<String, Kind>,
    at: Instant,
}

impl Discovery {
    /// Begins to watch CRDs, on the current runtime, until the last reference goes.
    pub fn start(client: Client) -> Arc<Self> {
        let (changed, groups) = mpsc::unbounded_channel();
        let this = Arc::new(Self {
            client: client.clone(),
            state: Mutex::default(),
            comparable: OnceCell::new(),
            changed: changed.clone(),
            tasks: Mutex::default(),
        });
        let tasks = [tokio::spawn(watch_crds(client, changed)), tokio::spawn(follow(Arc::downgrade(&this), groups))];
        this.tasks.lock().unwrap_or_else(PoisonError::into_inner).extend(tasks.map(AbortOnDropHandle::new));
        this
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the cluster says of a kind; none where it does not know it.
    pub async fn lookup(&self, resource: &Resource) -> Result<Option<Kind>, Fault> {
        if let Some(listed) = self.state().versions.get(&resource.api_version()) {
            let kind = listed.kinds.get(resource.resource()).cloned();
            if kind.is_some() || listed.at.elapsed() < ABSENT_FOR {
                return Ok(kind);
            }
        }
        self.refresh(resource).await
    }

    /// Asks the cluster, whatever is remembered.
    pub async fn refresh(&self, resource: &Resource) -> Result<Option<Kind>, Fault> {
        let api_version = resource.api_version();
        let kinds = self.list(resource).await?;
        let kind = kinds.get(resource.resource()).cloned();
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
        state.versions.insert(api_version, Listed { kinds, at: Instant::now() });
        Ok(kind)
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

    /// To be told when a kind turned out to be other than remembered.
    pub fn doubt(&self, resource: &Resource) {
        let _ = self.changed.send(resource.group().to_owned());
    }

    /// Whether this server promises that resource versions of one kind can be compared.
    pub async fn comparable_versions(&self) -> bool {
        let ask = || is_at_least(&self.client, COMPARABLE_SINCE);
        self.comparable.get_or_try_init(ask).await.copied().unwrap_or(false)
    }

    async fn list(&self, resource: &Resource) -> Result<HashMap<String, Kind>, Fault> {
        let root = if resource.group().is_empty() { "/api/" } else { "/apis/" };
        let request = Request::get(format!("{root}{}", resource.api_version())).body(Vec::new())?;
        let body = match send(&self.client, request).await {
            Ok(body) => body,
            Err(fault) if fault.is_not_found() => return Ok(HashMap::new()),
            Err(fault) => return Err(fault),
        };
        let list: APIResourceList = serde_json::from_slice(&body).map_err(|e| Fault::Garbled(e.to_string()))?;
        let kinds = list.resources.into_iter().filter(|r| !r.name.contains('/'));
        Ok(kinds
            .map(|r| (r.name, Kind { info: KindInfo { kind: r.kind, namespaced: r.namespaced }, verbs: r.verbs }))
            .collect())
    }

    /// Forgets a group, and asks for those of its kinds that someone waits for.
    async fn forget(&self, group: &str) {
        let in_group = |api_version: &str| api_version.split_once('/').map_or("", |(group, _)| group) == group;
        let waited: Vec<_> = {
            let mut state = self.state();
            state.versions.retain(|api_version, _| !in_group(api_version));
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

/// Asks for changed groups, each several times over the next seconds.
async fn follow(discovery: Weak<Discovery>, mut changes: mpsc::UnboundedReceiver<String>) {
    let mut due: HashMap<String, (Instant, usize)> = HashMap::new();
    let mut poll = Instant::now() + POLL;
    loop {
        let next = due.values().map(|(at, _)| *at).min().map_or(poll, |at| at.min(poll));
        tokio::select! {
            group = changes.recv() => match group {
                Some(group) => { due.insert(group, (Instant::now(), 0)); }
                None => return,
            },
            () = tokio::time::sleep_until(next) => {}
        }
        let Some(discovery) = discovery.upgrade() else { return };
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
async fn watch_crds(client: Client, changed: mpsc::UnboundedSender<String>) {
    let crds: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client);
    let mut stream = std::pin::pin!(watcher(crds, watcher::Config::default()).default_backoff());
    // Names, with the version that was seen, so that a list after a lost watch tells only what changed meanwhile.
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let mut listed: HashSet<String> = HashSet::new();
    let tell = |name: &str| {
        if let Some((_, group)) = name.split_once('.') {
            let _ = changed.send(group.to_owned());
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
