//! The Plugins of the cluster, as the host sees them with its own account: a watch, what became of each, the host's finalizer, and the ConfigMaps that carry components.
//!
//! **Nothing else of a Plugin is ever written**: the spec is the administrator's. A cluster without the Plugin kind is no error; the kind may appear later.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::Method;
use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use kube::{
    Api, Client,
    core::ApiResource,
    runtime::{WatchStreamExt as _, watcher},
};
use operetta_core::{
    cache::KindInfo,
    name::{ConfigName, ControllerName, NameError, Namespace, ObjectName, PluginName, Subresource},
    port::{ApiError, Caller, Event, Severity},
    resource::{ObjectKey, Resource},
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::{
    Cluster,
    discovery::Discovery,
    events::Recorder,
    install::{InstallError, PLUGIN_LABEL},
    object::{Entry, Watched},
    request::{Fault, Url, send, send_json},
};

/// Keeps a Plugin until no object holds a finalizer of its component.
pub const FINALIZER: &str = "operetta.dev/plugin";
/// Under which name the host owns a Plugin's status.
pub const MANAGER: &str = "operetta";
/// Under which key of a ConfigMap's `binaryData` a component lies.
pub const COMPONENT_KEY: &str = "component";

const GROUP: &str = "operetta.dev";
const VERSION: &str = "v1alpha1";
/// A kind that is gone for so long is gone; for less, the API server may just be starting.
const REALLY_GONE: Duration = Duration::from_secs(10);
/// Between two tries to change the list of finalizers, which others change too.
const AGAIN: Duration = Duration::from_millis(200);
/// Such tries.
const TRIES: usize = 10;

/// What happened to a Plugin.
#[derive(Debug, Clone, PartialEq)]
pub enum PluginChange {
    /// It is so now, whole.
    Is(Value),
    /// It is gone, or no longer chosen by the selector.
    Gone(String),
    /// All that exist have been told, or it is known that none can be. Comes once.
    Synced,
}

/// Why a part of a component could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// There is no such ConfigMap.
    #[error("there is no ConfigMap {0}")]
    NoConfigMap(String),
    /// It is there, and holds nothing under the key.
    #[error("the ConfigMap {0} has nothing under binaryData.{COMPONENT_KEY}")]
    NoKey(String),
    /// It cannot be read.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// The Plugins of one cluster.
pub struct Plugins {
    client: Client,
    discovery: Arc<Discovery>,
    resource: Resource,
    /// The host's own.
    namespace: Namespace,
    selector: Option<String>,
    known: Mutex<BTreeMap<String, Value>>,
    /// One for each Plugin, so that one which fails again and again leaves the others their events.
    recorders: Mutex<BTreeMap<PluginName, Arc<Recorder>>>,
}

impl Plugins {
    /// Those that the label selector chooses; `namespace` is where the host's ConfigMaps lie.
    ///
    /// # Errors
    /// Never in practice: the kind's name is one.
    pub fn new(cluster: &Cluster, namespace: Namespace, selector: Option<String>) -> Result<Arc<Self>, NameError> {
        Ok(Arc::new(Self {
            client: cluster.client().clone(),
            discovery: cluster.discovery().clone(),
            resource: Resource::parse(GROUP, VERSION, "plugins")?,
            namespace,
            selector,
            known: Mutex::default(),
            recorders: Mutex::default(),
        }))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Value>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A Plugin as it was last seen.
    pub fn last_seen(&self, plugin: &PluginName) -> Option<Value> {
        self.known().get(plugin.as_str()).cloned()
    }

    /// Begins to watch, on the current runtime, until nobody listens.
    pub fn watch(self: &Arc<Self>) -> mpsc::UnboundedReceiver<PluginChange> {
        let (tell, changes) = mpsc::unbounded_channel();
        let this = self.clone();
        tokio::spawn(async move {
            let closed = tell.clone();
            tokio::select! {
                () = this.follow(tell) => {}
                () = closed.closed() => {}
            }
        });
        changes
    }

    async fn follow(&self, tell: mpsc::UnboundedSender<PluginChange>) {
        let mut watching = Watching { tell, listed: BTreeSet::new(), synced: false, trouble: String::new() };
        let mut kind = self.discovery.watch(&self.resource);
        while let Err(error) = self.discovery.refresh(&self.resource).await {
            watching.trouble(&format!("it cannot be asked for: {error}"));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        loop {
            if kind.borrow_and_update().is_none() {
                if !watching.synced {
                    tracing::info!(
                        "the cluster has no kind Plugin; only the plugin directory is watched until `operetta generate crd | kubectl apply -f -`"
                    );
                }
                watching.synced();
                if tokio::time::timeout(REALLY_GONE, present(&mut kind)).await.is_err() {
                    let gone = std::mem::take(&mut *self.known());
                    for name in gone.into_keys() {
                        watching.tell(PluginChange::Gone(name));
                    }
                    present(&mut kind).await;
                }
            }
            let mut events = std::pin::pin!(self.events());
            let mut absent = kind.clone();
            loop {
                tokio::select! {
                    Some(event) = events.next() => self.heed(event, &mut watching),
                    _ = absent.wait_for(Option::is_none) => break,
                }
            }
        }
    }

    fn events(&self) -> impl Stream<Item = Result<watcher::Event<Watched>, watcher::Error>> + Send + use<> {
        let api_resource = ApiResource {
            group: GROUP.into(),
            version: VERSION.into(),
            api_version: self.resource.api_version(),
            kind: "Plugin".into(),
            plural: "plugins".into(),
        };
        let api: Api<Watched> = Api::all_with(self.client.clone(), &api_resource);
        let config = watcher::Config::default();
        let config = match &self.selector {
            Some(selector) => config.labels(selector),
            None => config,
        };
        watcher(api, config).default_backoff()
    }

    fn heed(&self, event: Result<watcher::Event<Watched>, watcher::Error>, watching: &mut Watching) {
        match event {
            Ok(watcher::Event::Init) => watching.listed.clear(),
            Ok(watcher::Event::InitApply(plugin)) => {
                if let Some(name) = self.keep(&plugin, watching) {
                    watching.listed.insert(name);
                }
            }
            Ok(watcher::Event::Apply(plugin)) => {
                self.keep(&plugin, watching);
            }
            Ok(watcher::Event::Delete(plugin)) => {
                let name = name_of(&plugin.value()).to_owned();
                self.known().remove(&name);
                watching.tell(PluginChange::Gone(name));
            }
            Ok(watcher::Event::InitDone) => {
                let gone: Vec<_> =
                    self.known().keys().filter(|name| !watching.listed.contains(*name)).cloned().collect();
                for name in gone {
                    self.known().remove(&name);
                    watching.tell(PluginChange::Gone(name));
                }
                watching.trouble.clear();
                watching.synced();
            }
            Err(error) => watching.trouble(&error.to_string()),
        }
    }

    fn keep(&self, plugin: &Watched, watching: &Watching) -> Option<String> {
        let mut object = plugin.value();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let name = name_of(&object).to_owned();
        self.known().insert(name.clone(), object.clone());
        watching.tell(PluginChange::Is(object));
        Some(name).filter(|name| !name.is_empty())
    }

    /// Says what became of this incarnation of a Plugin.
    ///
    /// # Errors
    /// `Conflict` where it is another incarnation by now, and as the API server answers.
    pub async fn write_status(&self, plugin: &PluginName, uid: &str, status: &Value) -> Result<(), ApiError> {
        let what = format!("cannot write the status of plugin {plugin}");
        let subresource = Subresource::parse("status").map_err(|e| ApiError::Invalid(e.to_string()))?;
        let url =
            self.url(plugin)?.subresource(Some(&subresource)).query("fieldManager", MANAGER).query("force", "true");
        let body = json!({
            "apiVersion": self.resource.api_version(), "kind": "Plugin",
            "metadata": {"name": plugin.as_str(), "uid": uid}, "status": status,
        });
        let request = url.request(Method::PATCH, Some("application/apply-patch+yaml"), body.to_string().into_bytes());
        send(&self.client, request.map_err(|e| e.into_api_error(&what))?).await.map_err(|e| e.into_api_error(&what))?;
        Ok(())
    }

    /// Puts the host's finalizer on a Plugin, or takes it off.
    ///
    /// # Errors
    /// `Conflict` where it is another incarnation by now or others change its finalizers again and again, and as the API server answers.
    pub async fn set_finalizer(&self, plugin: &PluginName, uid: &str, held: bool) -> Result<(), ApiError> {
        let what =
            format!("cannot {} the finalizer {FINALIZER} of plugin {plugin}", if held { "set" } else { "remove" });
        let mut last = None;
        for _ in 0..TRIES {
            let Some(object) = self.last_seen(plugin) else { return Ok(()) };
            let Some(patch) = finalizer_patch(&object, uid, held) else { return Ok(()) };
            let url = self.url(plugin)?;
            let request =
                url.request(Method::PATCH, Some("application/json-patch+json"), patch.to_string().into_bytes());
            match send_json(&self.client, request.map_err(|e| e.into_api_error(&what))?).await {
                Ok(_) => return Ok(()),
                Err(fault) if fault.is_not_found() => return Ok(()),
                // Changed since it was seen.
                Err(fault @ Fault::Answer { code: 409 | 422, .. }) => last = Some(fault),
                Err(fault) => return Err(fault.into_api_error(&what)),
            }
            tokio::time::sleep(AGAIN).await;
        }
        Err(last.map_or_else(|| ApiError::Conflict(what.clone()), |fault| fault.into_api_error(&what)))
    }

    /// One part of a component.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    pub async fn part(&self, name: &ConfigName) -> Result<Bytes, PartError> {
        let shown = format!("{}/{name}", self.namespace);
        let invalid = |e: NameError| PartError::Api(ApiError::Invalid(e.to_string()));
        let maps = Resource::parse("", "v1", "configmaps").map_err(invalid)?;
        let object = ObjectName::parse(name.as_str()).map_err(invalid)?;
        let what = format!("cannot read the ConfigMap {shown}");
        let api = |fault: Fault| PartError::Api(fault.into_api_error(&what));
        let body =
            match send(&self.client, Url::of(&maps, Some(&self.namespace)).object(&object).get().map_err(api)?).await {
                Ok(body) => body,
                Err(fault) if fault.is_not_found() => return Err(PartError::NoConfigMap(shown)),
                Err(fault) => return Err(api(fault)),
            };
        let map: ConfigMap = serde_json::from_slice(&body).map_err(|e| api(Fault::Garbled(e.to_string())))?;
        let data = map.binary_data.and_then(|mut data| data.remove(COMPONENT_KEY));
        data.map(|ByteString(bytes)| bytes.into()).ok_or(PartError::NoKey(shown))
    }

    /// Publishes an event about a Plugin.
    ///
    /// # Errors
    /// As the API server answers.
    pub async fn publish(
        &self,
        plugin: &PluginName,
        severity: Severity,
        reason: &str,
        note: &str,
    ) -> Result<(), ApiError> {
        let invalid = |e: NameError| ApiError::Invalid(e.to_string());
        let Some(object) = self.last_seen(plugin) else { return Ok(()) };
        let (key, entry) = Entry::of(object, &self.resource.api_version(), "Plugin").map_err(invalid)?;
        let caller = Caller { plugin: plugin.clone(), controller: ControllerName::parse("host").map_err(invalid)? };
        let event = Event {
            resource: self.resource.clone(),
            key,
            severity,
            reason: reason.to_owned(),
            action: "Run".to_owned(),
            message: note.to_owned(),
        };
        let kind = KindInfo { kind: "Plugin".into(), namespaced: false };
        let what = format!("cannot publish an event of plugin {plugin}");
        let published = self.recorder(plugin).publish(&self.client, &caller, &event, &kind, Some(&entry)).await;
        published.map_err(|fault| fault.into_api_error(&what))
    }

    fn recorder(&self, plugin: &PluginName) -> Arc<Recorder> {
        let known = self.known();
        let mut recorders = self.recorders.lock().unwrap_or_else(PoisonError::into_inner);
        recorders.retain(|name, _| known.contains_key(name.as_str()));
        Arc::clone(recorders.entry(plugin.clone()).or_default())
    }

    fn url(&self, plugin: &PluginName) -> Result<Url, ApiError> {
        let key = ObjectKey::parse(None, plugin.as_str()).map_err(|e| ApiError::Invalid(e.to_string()))?;
        Ok(Url::of(&self.resource, None).object(&key.name))
    }
}

/// How far a watch has come.
struct Watching {
    tell: mpsc::UnboundedSender<PluginChange>,
    listed: BTreeSet<String>,
    synced: bool,
    trouble: String,
}

impl Watching {
    fn tell(&self, change: PluginChange) {
        // Nobody listens when the host stops.
        let _ = self.tell.send(change);
    }

    fn synced(&mut self) {
        if !std::mem::replace(&mut self.synced, true) {
            self.tell(PluginChange::Synced);
        }
    }

    /// Says it once, and lets the plugin directory go on without the cluster.
    fn trouble(&mut self, why: &str) {
        if self.trouble != why {
            tracing::warn!(error = why, "the Plugins of the cluster cannot be watched; tried again all the time");
            why.clone_into(&mut self.trouble);
        }
        self.synced();
    }
}

async fn present(kind: &mut watch::Receiver<Option<KindInfo>>) {
    if kind.wait_for(Option::is_some).await.is_err() {
        // Discovery ends with the host.
        std::future::pending::<()>().await;
    }
}

fn name_of(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

/// The JSON patch that makes it so; none where it is. It holds only for the Plugin as it was seen.
fn finalizer_patch(object: &Value, uid: &str, held: bool) -> Option<Value> {
    let finalizers: Vec<&str> = object
        .pointer("/metadata/finalizers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let position = finalizers.iter().position(|f| *f == FINALIZER);
    let same = json!({"op": "test", "path": "/metadata/uid", "value": uid});
    match (position, held) {
        (Some(_), true) | (None, false) => None,
        (None, true) if finalizers.is_empty() => Some(json!([
            same,
            {"op": "test", "path": "/metadata/finalizers", "value": null},
            {"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]},
        ])),
        (None, true) => Some(json!([same, {"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER}])),
        (Some(position), false) => {
            let path = format!("/metadata/finalizers/{position}");
            Some(json!([same, {"op": "test", "path": path, "value": FINALIZER}, {"op": "remove", "path": path}]))
        }
    }
}

/// The ConfigMap that carries a part of a component.
///
/// # Errors
/// Never in practice: a ConfigMap is JSON.
pub fn config_map(metadata: &Value, part: Vec<u8>) -> Result<Value, serde_json::Error> {
    let data = serde_json::to_value(ByteString(part))?;
    // The name says what is in it, so that it never changes.
    Ok(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": true, "binaryData": {COMPONENT_KEY: data}}),
    )
}

/// A Plugin as a person may read it; none where it is not there, or its kind is not.
///
/// # Errors
/// As the API server answers.
pub async fn read(client: &Client, plugin: &PluginName) -> Result<Option<Value>, InstallError> {
    let resource = Resource::parse(GROUP, VERSION, "plugins")?;
    let key = ObjectKey::parse(None, plugin.as_str())?;
    let refused = |fault| InstallError::Refused { what: format!("plugin.{GROUP}/{plugin}"), fault };
    let request = Url::of(&resource, None).object(&key.name).get().map_err(refused)?;
    match send_json(client, request).await {
        Ok(object) => Ok(Some(object)),
        Err(fault) if fault.is_not_found() => Ok(None),
        Err(fault) => Err(refused(fault)),
    }
}

/// Deletes the ConfigMaps of a plugin's components, but for those of these names.
///
/// # Errors
/// As the API server answers.
pub async fn tidy(
    client: &Client,
    namespace: &Namespace,
    plugin: &PluginName,
    keep: &BTreeSet<String>,
) -> Result<(), InstallError> {
    let maps = Resource::parse("", "v1", "configmaps")?;
    let refused = |fault| InstallError::Refused { what: format!("configmaps of plugin {plugin}"), fault };
    let all = Url::of(&maps, Some(namespace)).query("labelSelector", &format!("{PLUGIN_LABEL}={plugin}"));
    let list = send_json(client, all.get().map_err(refused)?).await.map_err(refused)?;
    for map in list.get("items").and_then(Value::as_array).into_iter().flatten() {
        let name = name_of(map);
        if keep.contains(name) {
            continue;
        }
        let url = Url::of(&maps, Some(namespace)).object(&ObjectName::parse(name)?);
        match send(client, url.request(Method::DELETE, None, Vec::new()).map_err(refused)?).await {
            Err(fault) if !fault.is_not_found() => return Err(refused(fault)),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
