//! Reads and writes of one plugin: the port `Kubernetes`, as its service account and within its namespaces.
//!
//! - **A cache answers only what lies within it**: a synced informer that the plugin itself subscribes to, selectors that can be evaluated here, whole lists. The rest goes live.
//! - **Read your own writes**: an answer is at least as new as what the plugin's last write returned; a write whose answer was lost makes the next read live.
//! - **A free no-op**: an apply that would change nothing leaves no trace at the API server.

mod apply;
mod body;
mod others;
mod told;
mod write;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use http::Request;
use operetta_core::{
    aside::Aside,
    cache::{Cached, Extent, KindInfo, Meta, Scope},
    name::{Actor, ContinueToken, FieldSelector, LabelSelector, Namespace, Subresource},
    port::{ApiError, Caller, DeleteOptions, Event, Kubernetes, ListOptions, Page, Patch, Written},
    resource::{ObjectKey, Resource},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, value::RawValue};
use tokio::sync::Semaphore;

use crate::{
    discovery::Discovery,
    events::Recorder,
    identity::Identity,
    informer::{Reading, SharedInformers},
    object::{Entry, List, Unreadable},
    request::{Fault, Url, send_for, send_write},
    selector::Requirements,
};

/// Objects a page where the caller names no limit.
const PAGE: u32 = 500;
/// Kinds of which a plugin may have the host find out at once what they are.
const LOOKUPS: usize = 2;

/// The API server as one plugin sees it.
pub struct PluginKubernetes {
    actor: Actor,
    scope: Scope,
    identity: Arc<dyn Identity>,
    discovery: Arc<Discovery>,
    informers: Arc<SharedInformers>,
    events: Recorder,
    /// The host asks with its own client which kinds there are, and for each plugin so much at once.
    lookups: Arc<Semaphore>,
    applied: Mutex<apply::Memory>,
    /// Told what is not the plugin's to know.
    aside: Aside,
}

impl PluginKubernetes {
    /// Acts as the actor's account, on objects within `scope` only.
    pub fn new(
        actor: Actor,
        scope: Scope,
        identity: Arc<dyn Identity>,
        discovery: Arc<Discovery>,
        informers: Arc<SharedInformers>,
    ) -> Self {
        let (events, aside) = (Recorder::default(), Aside::in_log(&actor.plugin));
        let (lookups, applied) = (Arc::new(Semaphore::new(LOOKUPS)), Mutex::default());
        Self { actor, scope, identity, discovery, informers, events, lookups, applied, aside }
    }

    /// The kind, after checking that such an object can be and lies within the plugin's namespaces.
    async fn kind(&self, what: &str, resource: &Resource, namespace: Option<&Namespace>) -> Result<KindInfo, ApiError> {
        let kind = self.any_kind(what, resource).await?;
        match namespace {
            None if kind.namespaced => {
                return Err(ApiError::Invalid(format!("{what}: {resource} live in namespaces; name the namespace")));
            }
            Some(namespace) if !kind.namespaced => {
                return Err(ApiError::Invalid(format!(
                    "{what}: {resource} are cluster-scoped; leave the namespace {namespace} out"
                )));
            }
            _ => {}
        }
        self.check_scope(what, namespace)?;
        Ok(kind)
    }

    async fn any_kind(&self, what: &str, resource: &Resource) -> Result<KindInfo, ApiError> {
        let kind = self.discovery.lookup_for_plugin(&self.lookups, resource).await;
        let kind = kind.map_err(|fault| self.tell(what, fault))?;
        kind.map(|kind| kind.info).ok_or_else(|| {
            ApiError::NotFound(format!(
                "{what}: the cluster has no resource {resource}; is its CustomResourceDefinition installed?"
            ))
        })
    }

    fn check_scope(&self, what: &str, namespace: Option<&Namespace>) -> Result<(), ApiError> {
        if self.scope.contains(namespace) {
            return Ok(());
        }
        let place =
            namespace.map_or_else(|| "cluster-scoped objects lie".to_owned(), |n| format!("namespace {n} lies"));
        Err(ApiError::Denied(format!(
            "{what}: {place} outside of the namespaces in which the plugin works (spec.namespaces, --namespace)"
        )))
    }

    async fn ask<T: DeserializeOwned>(&self, request: Result<Request<Vec<u8>>, Fault>) -> Result<T, Fault> {
        let client = self.identity.client(&self.actor).await.map_err(Fault::NoClient)?;
        send_for(&client, request?).await
    }

    /// Answers also whether the API server made what it answers.
    async fn ask_to_write(&self, request: Result<Request<Vec<u8>>, Fault>) -> Result<(Value, bool), Fault> {
        let client = self.identity.client(&self.actor).await.map_err(Fault::NoClient)?;
        send_write(&client, request?).await
    }

    async fn get_live(
        &self,
        what: &str,
        resource: &Resource,
        kind: &KindInfo,
        key: &ObjectKey,
    ) -> Result<Entry, ApiError> {
        let url = Url::of(resource, key.namespace.as_ref()).object(&key.name);
        let answer = self.ask(url.get()).await;
        let informers = self.informers.seeing(&self.actor, resource, key);
        match answer {
            Ok(object) => {
                let (found, entry) = decode(what, object, resource, kind)?;
                for informer in informers.iter().filter(|_| found == *key) {
                    informer.read_live(key, Some(entry.clone()));
                }
                Ok(entry)
            }
            Err(fault) => {
                if fault.is_not_found() {
                    for informer in informers {
                        informer.read_live(key, None);
                    }
                }
                Err(self.explain(what, resource, fault))
            }
        }
    }

    /// Says what a fault means, and has discovery look again where the kind itself may be gone.
    fn explain(&self, what: &str, resource: &Resource, fault: Fault) -> ApiError {
        if let Fault::Answer { code: 404, status, .. } = &fault
            && status.details.as_ref().is_none_or(|details| details.name.is_empty())
        {
            self.discovery.doubt(resource);
        }
        self.tell(what, fault)
    }

    fn list_cached(&self, resource: &Resource, namespace: Option<&Namespace>, options: &ListOptions) -> Option<Page> {
        if options.live || options.field_selector.is_some() || options.continue_token.is_some() {
            return None;
        }
        let selector = match &options.label_selector {
            Some(text) => Some(Requirements::parse(text.as_str())?),
            None => None,
        };
        let extent = Extent { namespace: namespace.cloned(), name: None };
        let informer = self.informers.covering(&self.actor, resource, &extent)?;
        // Paging is the API server's affair: its tokens name a state that the cache does not keep.
        let most = options.limit.unwrap_or(PAGE) as usize;
        let (objects, resource_version) = informer.list(namespace, selector.is_none().then_some(most))?;
        let items: Vec<_> = objects
            .into_iter()
            .map(|object| Arc::clone(&object.json))
            .filter(|json| selector.as_ref().is_none_or(|selector| selector.matches(json)))
            .take(most.saturating_add(1))
            .collect();
        (items.len() <= most).then_some(Page { items, continue_token: None, resource_version })
    }

    async fn list_in(
        &self,
        what: &str,
        resource: &Resource,
        kind: &KindInfo,
        namespace: Option<&Namespace>,
        options: &ListOptions,
    ) -> Result<Page, ApiError> {
        if let Some(page) = self.list_cached(resource, namespace, options) {
            return Ok(page);
        }
        let mut url = Url::of(resource, namespace).query("limit", &options.limit.unwrap_or(PAGE).to_string());
        for (name, value) in [
            ("labelSelector", options.label_selector.as_ref().map(LabelSelector::as_str)),
            ("fieldSelector", options.field_selector.as_ref().map(FieldSelector::as_str)),
            ("continue", options.continue_token.as_ref().map(ContinueToken::as_str)),
        ] {
            if let Some(value) = value {
                url = url.query(name, value);
            }
        }
        let list: List = self.ask(url.get()).await.map_err(|fault| self.explain(what, resource, fault))?;
        let continue_token = match list.metadata.continue_token.as_str() {
            "" => None,
            more => Some(ContinueToken::parse(more).map_err(|e| ApiError::Unavailable(format!("{what}: {e}")))?),
        };
        let json = |object: Box<RawValue>| {
            Entry::of_text(&object, &resource.api_version(), &kind.kind).map(|(_, e)| Arc::clone(&e.cached.json))
        };
        let items: Result<Vec<_>, _> = list.items.into_iter().flatten().map(json).collect();
        let items = items.map_err(|error| not_understood(what, &error))?;
        let resource_version = list.metadata.resource_version;
        Ok(Page { items, continue_token, resource_version })
    }

    /// Over all namespaces of a plugin that is limited to some: their lists, one after the other.
    async fn list_scope(
        &self,
        what: &str,
        resource: &Resource,
        kind: &KindInfo,
        namespaces: impl Iterator<Item = &Namespace> + Send,
        options: &ListOptions,
    ) -> Result<Page, ApiError> {
        let mut all = Page::default();
        for namespace in namespaces {
            let page = self.list_in(what, resource, kind, Some(namespace), options).await?;
            all.items.extend(page.items);
            all.resource_version = page.resource_version;
            if page.continue_token.is_some() || all.items.len() > options.limit.unwrap_or(PAGE) as usize {
                return Err(ApiError::TooLarge(format!(
                    "{what}: more objects than one page holds, in several namespaces; list each namespace by itself"
                )));
            }
        }
        Ok(all)
    }
}

/// Takes an answer apart.
fn decode(what: &str, object: Value, resource: &Resource, kind: &KindInfo) -> Result<(ObjectKey, Entry), ApiError> {
    Entry::of(object, &resource.api_version(), &kind.kind).map_err(|error| not_understood(what, &error.into()))
}

fn not_understood(what: &str, error: &Unreadable) -> ApiError {
    ApiError::Unavailable(format!("{what}: the API server's answer is not understood: {error}"))
}

#[async_trait]
impl Kubernetes for PluginKubernetes {
    async fn get(&self, _: &Caller, resource: &Resource, key: &ObjectKey, live: bool) -> Result<Arc<Cached>, ApiError> {
        let what = || format!("get {resource} {key}");
        if !live {
            // Whatever an informer covers is a kind that exists; the scope is checked all the same.
            if !self.scope.contains(key.namespace.as_ref()) {
                self.check_scope(&what(), key.namespace.as_ref())?;
            }
            match self.informers.covering(&self.actor, resource, &key.into()).map(|i| i.get(key)) {
                Some(Reading::Known(entry)) => return Ok(entry.cached),
                Some(Reading::Absent) => {
                    let what = what();
                    self.kind(&what, resource, key.namespace.as_ref()).await?;
                    return Err(ApiError::NotFound(format!("{what}: there is none")));
                }
                Some(Reading::Live) | None => {}
            }
        }
        let what = what();
        let kind = self.kind(&what, resource, key.namespace.as_ref()).await?;
        self.get_live(&what, resource, &kind, key).await.map(|entry| entry.cached)
    }

    async fn list(&self, _: &Caller, resource: &Resource, options: &ListOptions) -> Result<Page, ApiError> {
        let what = match &options.namespace {
            Some(namespace) => format!("list {resource} in namespace {namespace}"),
            None => format!("list {resource}"),
        };
        let kind = self.any_kind(&what, resource).await?;
        if options.namespace.is_some() {
            let kind = self.kind(&what, resource, options.namespace.as_ref()).await?;
            return self.list_in(&what, resource, &kind, options.namespace.as_ref(), options).await;
        }
        match &self.scope {
            Scope::Namespaces(namespaces) if kind.namespaced => {
                self.list_scope(&what, resource, &kind, namespaces.iter(), options).await
            }
            _ => {
                self.check_scope(&what, None)?;
                self.list_in(&what, resource, &kind, None, options).await
            }
        }
    }

    async fn create(
        &self,
        caller: &Caller,
        resource: &Resource,
        namespace: Option<&Namespace>,
        object: String,
    ) -> Result<Written, ApiError> {
        self.create_object(caller, resource, namespace, &object).await
    }

    async fn patch(
        &self,
        caller: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        patch: Patch,
    ) -> Result<Written, ApiError> {
        match patch {
            Patch::Apply(body) => self.apply(caller, resource, key, subresource, &body).await,
            Patch::Merge(body) => self.merge(caller, resource, key, subresource, &body).await,
            Patch::Json(body) => self.json_patch(caller, resource, key, subresource, &body).await,
        }
    }

    async fn replace(
        &self,
        caller: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        object: String,
    ) -> Result<Written, ApiError> {
        self.replace_object(caller, resource, key, subresource, &object).await
    }

    async fn delete(
        &self,
        _: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        options: &DeleteOptions,
    ) -> Result<Meta, ApiError> {
        self.delete_object(resource, key, options).await
    }

    async fn publish(&self, caller: &Caller, event: Event) -> Result<(), ApiError> {
        let what = format!("publish an event about {} {}", event.resource, event.key);
        let kind = self.kind(&what, &event.resource, event.key.namespace.as_ref()).await?;
        let informer = self.informers.covering(&self.actor, &event.resource, &Extent::from(&event.key));
        let known = match informer.as_ref().map(|i| i.get(&event.key)) {
            Some(Reading::Known(entry)) => Some(entry),
            // Which incarnation it is about, its metadata tell as well.
            _ => informer.and_then(|i| i.outline(&event.key)),
        };
        let published = match self.identity.client(&self.actor).await {
            Ok(client) => self.events.publish(&client, caller, &event, &kind, known.as_ref()).await,
            Err(error) => Err(Fault::NoClient(error)),
        };
        published.map_err(|fault| self.tell(&what, fault))
    }
}

#[cfg(test)]
mod tests;
