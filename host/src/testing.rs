//! A world without wasmtime and without a cluster: fakes of the core's ports, of which tests see every reconcile and every watch.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use operetta_api::{KeyRef, PluginStatus, Reference};
use operetta_cluster::plugins::PartError;
use operetta_core::{
    aside::Aside,
    cache::{
        Cached, Change, Extent, Informers, KindInfo, Meta, Scope, Subscription,
        changes::{self, Teller},
    },
    effect::Effects,
    manifest::Manifest,
    name::{Actor, ConfigKey, ConfigName, Digest, Namespace, PluginName, Subresource},
    port::{ApiError, Caller, DeleteOptions, Event, Kubernetes, ListOptions, Page, Patch, Severity, Written},
    reconcile::{Cause, Failure, Outcome, Reconciler, Request},
    resource::{ObjectKey, Resource},
};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};

use crate::{
    credentials::Vault,
    plugin::{Code, Identities, LastGood, Loader, Phase, Problem},
    plugin_objects::Objects,
};

/// Longer than anything takes. Where time is paused, it passes only when nobody has anything to do.
pub const SOON: Duration = Duration::from_hours(24);

/// Waits until it is so.
pub async fn eventually(what: &str, so: impl Fn() -> bool) {
    let wait = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(SOON, wait).await.unwrap_or_else(|_| panic!("{what} never came"));
}

pub fn things() -> Resource {
    Resource::parse("x.example.com", "v1", "things").unwrap()
}

pub fn parts() -> Resource {
    Resource::parse("x.example.com", "v1", "parts").unwrap()
}

pub fn key(name: &str) -> ObjectKey {
    ObjectKey::parse(Some("n"), name).unwrap()
}

pub fn plugin_name(name: &str) -> PluginName {
    PluginName::parse(name).unwrap()
}

/// The objects of a cluster, and who watches them.
pub struct World {
    state: Mutex<State>,
    /// Something about the watches changed.
    changed: Notify,
    /// How many subscriptions there were.
    pub subscriptions: AtomicUsize,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<(String, ObjectKey), Arc<Cached>>,
    watches: Vec<Watch>,
    versions: u64,
    /// What was published.
    events: Vec<Event>,
    refusal: Option<ApiError>,
    banished: bool,
    /// Subscriptions to this kind tell nothing until it is taken away.
    silent: Option<Resource>,
}

struct Watch {
    actor: Actor,
    resource: Resource,
    extents: Vec<Extent>,
    sender: Teller,
    alive: Arc<AtomicBool>,
    told: bool,
}

struct Guard {
    world: Arc<World>,
    alive: Arc<AtomicBool>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::SeqCst);
        self.world.changed.notify_waiters();
    }
}

impl Watch {
    fn tell_all(&mut self, objects: &BTreeMap<(String, ObjectKey), Arc<Cached>>) {
        self.told = true;
        for ((_, key), object) in objects.iter().filter(|((resource, key), _)| self.wants(resource, key)) {
            let new = Some(object.clone());
            self.sender.tell(Change::Object { key: key.clone(), old: None, new, initial: true });
        }
        self.sender.tell(Change::Synced);
    }

    fn wants(&self, resource: &str, key: &ObjectKey) -> bool {
        self.resource.to_string() == resource && Extent::from(key).wider().any(|extent| self.extents.contains(&extent))
    }
}

impl World {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: Notify::new(), subscriptions: AtomicUsize::new(0) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Makes or changes an object of namespace `n`.
    pub fn apply(&self, resource: &Resource, name: &str) {
        self.apply_with(resource, "n", name, json!({}));
    }

    /// A part that belongs to a thing.
    pub fn apply_owned(&self, name: &str, owner: &str) {
        let owner =
            json!({"apiVersion": "x.example.com/v1", "kind": "Thing", "name": owner, "uid": "u", "controller": true});
        self.apply_with(&parts(), "n", name, json!({"ownerReferences": [owner]}));
    }

    pub fn apply_with(&self, resource: &Resource, namespace: &str, name: &str, metadata: Value) {
        let mut state = self.state();
        state.versions += 1;
        let mut whole =
            json!({"name": name, "namespace": namespace, "uid": "u", "resourceVersion": state.versions.to_string()});
        let version = whole["resourceVersion"].clone();
        whole.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        whole["resourceVersion"] = version;
        let (key, cached) = Cached::of(json!({"metadata": whole})).unwrap();
        let new = Arc::new(cached);
        let old = state.objects.insert((resource.to_string(), key.clone()), new.clone());
        state.tell(resource, &key, old, Some(new));
    }

    pub fn delete(&self, resource: &Resource, name: &str) {
        let mut state = self.state();
        let old = state.objects.remove(&(resource.to_string(), key(name)));
        state.tell(resource, &key(name), old, None);
    }

    /// What was published.
    pub fn events(&self) -> Vec<Event> {
        self.state().events.clone()
    }

    /// What keeps an object.
    pub fn finalizers(&self, resource: &Resource, name: &str) -> Value {
        let state = self.state();
        let object = &state.objects[&(resource.to_string(), key(name))];
        object.value()["metadata"]["finalizers"].clone()
    }

    /// An object went while its watch was interrupted, and the next list no longer has it.
    pub fn vanish(&self, resource: &Resource, name: &str) {
        let state = &mut *self.state();
        let old = state.objects.remove(&(resource.to_string(), key(name)));
        for watch in state.watches.iter().filter(|watch| watch.told && watch.wants(&resource.to_string(), &key(name))) {
            watch.sender.tell(Change::Object { key: key(name), old: old.clone(), new: None, initial: true });
        }
    }

    /// Who watches this kind was so far behind that changes were left out.
    pub fn miss(&self, resource: &Resource) {
        for watch in self.state().watches.iter().filter(|watch| watch.resource == *resource) {
            watch.sender.tell(Change::Missed);
        }
    }

    /// From now on nobody may watch, and who does is told no more.
    pub fn revoke(&self) {
        let mut state = self.state();
        state.refusal = Some(ApiError::Forbidden("the account may not watch".into()));
        state.watches.clear();
    }

    /// From now on nobody may act as their account, or everybody may again.
    pub fn banish(&self, banished: bool) {
        let mut state = self.state();
        state.banished = banished;
        if banished {
            state.watches.clear();
        }
    }

    /// No subscription succeeds from now on, or each does again.
    pub fn refuse(&self, refusal: Option<ApiError>) {
        self.state().refusal = refusal;
    }

    /// Subscriptions to this kind tell nothing from now on, or what they have to tell.
    pub fn silence(&self, resource: Option<&Resource>) {
        let state = &mut *self.state();
        state.silent = resource.cloned();
        if resource.is_none() {
            state.watches.iter_mut().filter(|watch| !watch.told).for_each(|watch| watch.tell_all(&state.objects));
        }
    }

    /// The watches that run: account, kind and how much of it.
    pub fn watches(&self) -> Vec<(String, String, Vec<Extent>)> {
        let state = self.state();
        let alive = state.watches.iter().filter(|watch| watch.alive.load(Ordering::SeqCst));
        let mut all: Vec<_> =
            alive.map(|w| (w.actor.account.to_string(), w.resource.resource().to_owned(), w.extents.clone())).collect();
        all.sort_by_key(|(account, resource, _)| (account.clone(), resource.clone()));
        all
    }

    /// Waits until so many watches run.
    pub async fn has_watches(&self, count: usize) {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if self.watches().len() == count {
                    return;
                }
                changed.await;
            }
        };
        timeout(SOON, wait).await.unwrap_or_else(|_| panic!("watches: {:?}", self.watches()));
    }
}

impl State {
    fn tell(&mut self, resource: &Resource, key: &ObjectKey, old: Option<Arc<Cached>>, new: Option<Arc<Cached>>) {
        let change = Change::Object { key: key.clone(), old, new, initial: false };
        for watch in self.watches.iter().filter(|watch| watch.told && watch.wants(&resource.to_string(), key)) {
            watch.sender.tell(change.clone());
        }
    }
}

/// A world as its plugins see it.
pub struct Cluster(pub Arc<World>);

#[async_trait]
impl Informers for Cluster {
    async fn subscribe(
        &self,
        actor: &Actor,
        resource: &Resource,
        extents: &[Extent],
    ) -> Result<Subscription, ApiError> {
        // As over a network: everybody else goes first.
        tokio::task::yield_now().await;
        let state = &mut *self.0.state();
        if let Some(refusal) = &state.refusal {
            return Err(refusal.clone());
        }
        let (sender, changes) = changes::channel();
        let alive = Arc::new(AtomicBool::new(true));
        let (actor, resource, extents) = (actor.clone(), resource.clone(), extents.to_vec());
        let silent = state.silent.as_ref() == Some(&resource);
        let mut watch = Watch { actor, resource, extents, sender, alive: alive.clone(), told: false };
        if !silent {
            watch.tell_all(&state.objects);
        }
        let kind =
            KindInfo { kind: if watch.resource == things() { "Thing" } else { "Part" }.into(), namespaced: true };
        state.watches.push(watch);
        self.0.subscriptions.fetch_add(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
        let guard = Box::new(Guard { world: self.0.clone(), alive });
        Ok(Subscription { kind: watch::channel(Some(kind)).1, changes, guard })
    }
}

fn caller_of_nobody() -> Caller {
    Caller { plugin: plugin_name("nobody"), controller: "nobody".parse().unwrap() }
}

fn not_here<T>() -> Result<T, ApiError> {
    Err(ApiError::Unavailable("not in this world".into()))
}

#[async_trait]
impl Kubernetes for Cluster {
    async fn get(&self, _: &Caller, resource: &Resource, key: &ObjectKey, _: bool) -> Result<Arc<Cached>, ApiError> {
        tokio::task::yield_now().await;
        let object = self.0.state().objects.get(&(resource.to_string(), key.clone())).cloned();
        object.ok_or_else(|| ApiError::NotFound(key.to_string()))
    }
    async fn list(&self, _: &Caller, _: &Resource, _: &ListOptions) -> Result<Page, ApiError> {
        not_here()
    }
    async fn create(&self, _: &Caller, _: &Resource, _: Option<&Namespace>, _: String) -> Result<Written, ApiError> {
        not_here()
    }
    async fn patch(
        &self,
        _: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        patch: Patch,
    ) -> Result<Written, ApiError> {
        if let (None, Patch::Merge(patch)) = (subresource, &patch) {
            // What plugins of this world do: they write labels.
            let patch: Value = serde_json::from_str(patch).unwrap();
            let of = |world: &World| world.state().objects.get(&(resource.to_string(), key.clone())).cloned();
            let before = of(&self.0);
            let namespace = key.namespace.as_ref().unwrap().as_str();
            self.0.apply_with(resource, namespace, key.name.as_str(), patch["metadata"].clone());
            return Ok(Written { now: of(&self.0).unwrap(), before, sent: true, made: false });
        }
        // What the host itself does: it takes finalizers off.
        let (None, Patch::Json(patch)) = (subresource, patch) else { return not_here() };
        let object = self.get(&caller_of_nobody(), resource, key, true).await?;
        let object: Value = serde_json::from_str(&object).unwrap();
        let patch: Value = serde_json::from_str(&patch).unwrap();
        assert_eq!(patch[0]["value"], object["metadata"]["finalizers"]);
        let namespace = key.namespace.as_ref().unwrap().as_str();
        let mut metadata = object["metadata"].clone();
        metadata["finalizers"] = patch[1]["value"].clone();
        if metadata["deletionTimestamp"].is_string() && metadata["finalizers"] == json!([]) {
            self.0.delete(resource, key.name.as_str());
        } else {
            self.0.apply_with(resource, namespace, key.name.as_str(), metadata);
        }
        Ok(Arc::<str>::from("{}").into())
    }
    async fn replace(
        &self,
        _: &Caller,
        _: &Resource,
        _: &ObjectKey,
        _: Option<&Subresource>,
        _: String,
    ) -> Result<Written, ApiError> {
        not_here()
    }
    async fn delete(&self, _: &Caller, _: &Resource, _: &ObjectKey, _: &DeleteOptions) -> Result<Meta, ApiError> {
        not_here()
    }
    async fn publish(&self, _: &Caller, event: Event) -> Result<(), ApiError> {
        self.0.state().events.push(event);
        Ok(())
    }
}

#[async_trait]
impl Identities for Cluster {
    async fn port(&self, _: &Actor, _: &Scope) -> Result<Arc<dyn Kubernetes>, ApiError> {
        tokio::task::yield_now().await;
        if self.0.state().banished {
            return Err(ApiError::Forbidden("the account names another plugin".into()));
        }
        Ok(Arc::new(Self(self.0.clone())))
    }
}

/// One reconcile that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Of the code.
    pub version: String,
    pub plugin: String,
    pub key: ObjectKey,
    /// Whether the object was there.
    pub there: bool,
    pub attempt: u32,
    pub cause: Cause,
    pub began: Instant,
}

type Act = dyn Fn(Request, Arc<Effects>) -> BoxFuture<'static, Result<Outcome, Failure>> + Send + Sync;

/// All reconciles of a test, as they end, and what they do.
pub struct Runs {
    ended: watch::Sender<Vec<Run>>,
    act: Mutex<Arc<Act>>,
    under_way: Mutex<HashSet<(String, ObjectKey)>>,
    /// What ran twice at a time, which nothing may.
    twice: Mutex<Option<(String, ObjectKey)>>,
    /// How many run now, and how many did at most.
    now: watch::Sender<usize>,
    at_most: AtomicUsize,
}

impl Runs {
    /// Reconciles that do nothing.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            ended: watch::Sender::new(Vec::new()),
            act: Mutex::new(Arc::new(|_, _| Box::pin(async { Ok(Outcome::AwaitChange) }))),
            under_way: Mutex::default(),
            twice: Mutex::default(),
            now: watch::Sender::new(0),
            at_most: AtomicUsize::new(0),
        })
    }

    /// From now on they do this.
    pub fn act<F>(&self, act: impl Fn(Request, Arc<Effects>) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<Outcome, Failure>> + Send + 'static,
    {
        *self.act.lock().unwrap() = Arc::new(move |request, effects| Box::pin(act(request, effects)));
    }

    /// Code that records its reconciles under this version.
    pub fn code(self: &Arc<Self>, version: &str) -> Arc<dyn Reconciler> {
        Arc::new(Versioned { version: version.to_owned(), runs: self.clone() })
    }

    /// Those that ended.
    pub fn all(&self) -> Vec<Run> {
        assert_eq!(*self.twice.lock().unwrap(), None, "ran twice at a time");
        self.ended.borrow().clone()
    }

    /// Forgets those that ended.
    pub fn clear(&self) {
        self.ended.send_replace(Vec::new());
    }

    /// Waits until those that ended are so.
    pub async fn until(&self, what: &str, so: impl Fn(&[Run]) -> bool) -> Vec<Run> {
        let mut ended = self.ended.subscribe();
        let seen = timeout(SOON, ended.wait_for(|runs| so(runs))).await.map(|seen| seen.unwrap().clone());
        let all = self.all();
        seen.unwrap_or_else(|_| panic!("{what} never came; {all:#?}"))
    }

    /// Waits until so many have ended.
    pub async fn count(&self, count: usize) -> Vec<Run> {
        self.until(&format!("run {count}"), |runs| runs.len() >= count).await
    }

    /// Waits until so many are under way.
    pub async fn under_way(&self, count: usize) {
        let mut now = self.now.subscribe();
        timeout(SOON, now.wait_for(|now| *now == count)).await.expect("so many are under way").unwrap();
    }

    /// How many were under way at most.
    pub fn at_most(&self) -> usize {
        self.at_most.load(Ordering::SeqCst)
    }
}

struct Versioned {
    version: String,
    runs: Arc<Runs>,
}

/// Under way until dropped.
struct UnderWay<'a> {
    runs: &'a Runs,
    place: (String, ObjectKey),
}

impl<'a> UnderWay<'a> {
    fn new(runs: &'a Runs, place: (String, ObjectKey)) -> Self {
        if runs.under_way.lock().unwrap().replace(place.clone()).is_some() {
            *runs.twice.lock().unwrap() = Some(place.clone());
        }
        runs.now.send_modify(|now| *now += 1);
        runs.at_most.fetch_max(*runs.now.borrow(), Ordering::SeqCst);
        Self { runs, place }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.runs.under_way.lock().unwrap().remove(&self.place);
        self.runs.now.send_modify(|now| *now -= 1);
    }
}

#[async_trait]
impl Reconciler for Versioned {
    async fn reconcile(&self, request: Request, effects: Arc<Effects>) -> Result<Outcome, Failure> {
        let plugin = effects.caller().plugin.to_string();
        let run = Run {
            version: self.version.clone(),
            plugin: plugin.clone(),
            key: request.key.clone(),
            there: request.object.is_some(),
            attempt: request.attempt,
            cause: request.cause,
            began: Instant::now(),
        };
        let under_way = UnderWay::new(&self.runs, (plugin, request.key.clone()));
        let act = self.runs.act.lock().unwrap().clone();
        let result = act(request, effects).await;
        drop(under_way);
        self.runs.ended.send_modify(|ended| ended.push(run));
        result
    }
}

/// A component of this world is the JSON of its manifest.
pub fn component(version: &str, change: impl FnOnce(&mut Value)) -> Bytes {
    let mut manifest = json!({
        "manifestVersion": 1, "name": "demo", "version": version,
        "controllers": [{"name": "main", "for": {"group": "x.example.com", "version": "v1", "resource": "things"}}]
    });
    change(&mut manifest);
    manifest.to_string().into()
}

/// Loads the components of this world.
pub struct Components {
    pub runs: Arc<Runs>,
    /// Of all tries.
    pub loads: AtomicUsize,
    /// What is wrong with the host at the moment.
    pub trouble: Mutex<Option<Problem>>,
    /// A component with "slow" in it waits for this.
    pub gate: watch::Sender<bool>,
}

impl Components {
    pub fn new(runs: Arc<Runs>) -> Arc<Self> {
        Arc::new(Self { runs, loads: AtomicUsize::new(0), trouble: Mutex::default(), gate: watch::Sender::new(true) })
    }

    pub fn loads(&self) -> usize {
        self.loads.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Loader for Components {
    async fn load(&self, wasm: Bytes) -> Result<Code, Problem> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        if let Some(trouble) = &*self.trouble.lock().unwrap() {
            return Err(trouble.clone());
        }
        let text = String::from_utf8_lossy(&wasm);
        if text.contains("slow") {
            let _ = self.gate.subscribe().wait_for(|open| *open).await;
        }
        let manifest = Manifest::parse(&text).map_err(|e| Problem::lasting(Phase::Describe, &e))?;
        Ok(Code {
            digest: Digest::of(&wasm),
            reconciler: self.runs.code(&manifest.version),
            manifest: Arc::new(manifest),
        })
    }
}

/// The Plugins of this world's cluster: what was written about them, and their ConfigMaps.
#[derive(Default)]
pub struct Shelf {
    pub maps: Mutex<HashMap<String, Bytes>>,
    pub statuses: Mutex<HashMap<String, PluginStatus>>,
    /// How often a status was written.
    pub writes: AtomicUsize,
    /// The incarnations that the host keeps.
    pub held: Mutex<HashSet<String>>,
    /// Events: reason and note.
    pub events: Mutex<Vec<(String, String)>>,
}

impl Shelf {
    pub fn holds(&self, uid: &str) -> bool {
        self.held.lock().unwrap().contains(uid)
    }

    /// Status, reason and message of a condition.
    pub fn condition(&self, plugin: &str, type_: &str) -> Option<(String, String, String)> {
        let statuses = self.statuses.lock().unwrap();
        let condition = statuses.get(plugin)?.conditions.iter().find(|c| c.type_ == type_)?;
        Some((condition.status.clone(), condition.reason.clone(), condition.message.clone()))
    }
}

#[async_trait]
impl Objects for Shelf {
    fn status(&self, plugin: &PluginName) -> Option<PluginStatus> {
        self.statuses.lock().unwrap().get(plugin.as_str()).cloned()
    }
    async fn write(&self, plugin: &PluginName, _: &str, status: &PluginStatus) -> Result<(), ApiError> {
        tokio::task::yield_now().await;
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.statuses.lock().unwrap().insert(plugin.to_string(), status.clone());
        Ok(())
    }
    async fn hold(&self, _: &PluginName, uid: &str, held: bool) -> Result<(), ApiError> {
        tokio::task::yield_now().await;
        let mut all = self.held.lock().unwrap();
        if held {
            all.insert(uid.to_owned())
        } else {
            all.remove(uid)
        };
        Ok(())
    }
    async fn part(&self, name: &ConfigName) -> Result<Bytes, PartError> {
        tokio::task::yield_now().await;
        let part = self.maps.lock().unwrap().get(name.as_str()).cloned();
        part.ok_or_else(|| PartError::NoConfigMap(format!("operetta-system/{name}")))
    }
    async fn publish(&self, _: &PluginName, _: Severity, reason: &str, note: &str) -> Result<(), ApiError> {
        self.events.lock().unwrap().push((reason.to_owned(), note.to_owned()));
        Ok(())
    }
}

/// What ran last, in memory.
#[derive(Default)]
pub struct Memory(pub Mutex<HashMap<String, Bytes>>);

impl LastGood for Memory {
    fn keep(&self, plugin: &PluginName, _: &Digest, wasm: &[u8]) {
        self.0.lock().unwrap().insert(plugin.to_string(), Bytes::copy_from_slice(wasm));
    }
    fn recall(&self, plugin: &PluginName) -> Option<Bytes> {
        self.0.lock().unwrap().get(plugin.as_str()).cloned()
    }
    fn forget(&self, plugin: &PluginName) {
        self.0.lock().unwrap().remove(plugin.as_str());
    }
}

/// The administrator's ear, and what it hears.
pub fn ear() -> (Aside, Arc<Mutex<Vec<String>>>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = heard.clone();
    (Aside::to(move |text| hears.lock().unwrap().push(text.to_owned())), heard)
}

/// Secrets of the host's namespace, without a cluster.
#[derive(Default)]
pub struct Drawer {
    values: Mutex<HashMap<Reference, String>>,
    reads: AtomicUsize,
}

/// A key of a Secret.
pub fn secret(name: &str, key: &str) -> Reference {
    Reference::Secret(KeyRef { name: ConfigName::parse(name).unwrap(), key: ConfigKey::parse(key).unwrap() })
}

impl Drawer {
    /// With these: Secret, key, value.
    pub fn new(values: &[(&str, &str, &str)]) -> Arc<Self> {
        let drawer = Arc::new(Self::default());
        for (name, key, value) in values {
            drawer.put(name, key, value);
        }
        drawer
    }

    pub fn put(&self, name: &str, key: &str, value: &str) {
        self.values.lock().unwrap().insert(secret(name, key), value.to_owned());
    }

    /// Takes a whole Secret away.
    pub fn take(&self, name: &str) {
        self.values.lock().unwrap().retain(|reference, _| reference.key().name.as_str() != name);
    }

    /// How often something was read.
    pub fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Vault for Drawer {
    async fn read(&self, reference: &Reference) -> Result<Vec<u8>, String> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let value = self.values.lock().unwrap().get(reference).cloned();
        value.map(String::into_bytes).ok_or_else(|| format!("{reference} is missing"))
    }
}
