//! Ports that cost nothing, for what is measured before them.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicUsize, Ordering},
};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use operetta_core::{
    cache::{Cached, Meta},
    effect::{Effects, Policy, Ports},
    looping::{Deed, Guard, Happened, Step},
    name::{ChannelName, ControllerName, Namespace, PluginName, Subresource},
    port::{
        ApiError, Caller, Channels, DeleteOptions, Event, Exchange, GrpcCall, GrpcReply, GrpcStatus, Kubernetes, Level,
        ListOptions, Log, Page, Patch, Written, database::NoDatabases,
    },
    resource::{ObjectKey, Resource},
};
use serde_json::json;

/// The object that is there, as an operator made it before, and as a cache has it.
static THERE: LazyLock<Arc<Cached>> = LazyLock::new(|| {
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "u", "controller": true});
    let metadata = json!({"name": "thing", "namespace": "default", "resourceVersion": "7", "ownerReferences": [owner]});
    Arc::new(Cached::of(json!({"metadata": metadata, "data": {"key-0": "a value"}})).unwrap().1)
});

/// What writes answer, by turns: more versions than the loop guard remembers.
static WRITTEN: LazyLock<Vec<Arc<Cached>>> = LazyLock::new(|| {
    let metadata = |version: u32| json!({"name": "thing", "namespace": "default", "uid": "u", "resourceVersion": version.to_string()});
    (0..8_192).map(|version| Arc::new(Cached::of(json!({"metadata": metadata(version)})).unwrap().1)).collect()
});

fn written() -> Written {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed) % WRITTEN.len();
    Written { now: Arc::clone(WRITTEN.get(next).unwrap()), before: None, sent: true, made: false }
}

/// Ports that answer at once.
pub struct Nothing;

#[async_trait]
impl Kubernetes for Nothing {
    async fn get(&self, _: &Caller, _: &Resource, _: &ObjectKey, _: bool) -> Result<Arc<Cached>, ApiError> {
        Ok(Arc::clone(&THERE))
    }
    async fn list(&self, _: &Caller, _: &Resource, _: &ListOptions) -> Result<Page, ApiError> {
        Ok(Page::default())
    }
    async fn create(
        &self,
        _: &Caller,
        _: &Resource,
        _: Option<&Namespace>,
        object: String,
    ) -> Result<Written, ApiError> {
        Ok(Arc::<str>::from(object).into())
    }
    async fn patch(
        &self,
        _: &Caller,
        _: &Resource,
        _: &ObjectKey,
        _: Option<&Subresource>,
        _: Patch,
    ) -> Result<Written, ApiError> {
        Ok(written())
    }
    async fn replace(
        &self,
        _: &Caller,
        _: &Resource,
        _: &ObjectKey,
        _: Option<&Subresource>,
        _: String,
    ) -> Result<Written, ApiError> {
        Ok(written())
    }
    async fn delete(&self, _: &Caller, _: &Resource, _: &ObjectKey, _: &DeleteOptions) -> Result<Meta, ApiError> {
        Ok(Meta::default())
    }
    async fn publish(&self, _: &Caller, _: Event) -> Result<(), ApiError> {
        Ok(())
    }
}

#[async_trait]
impl Channels for Nothing {
    async fn unary(&self, _: &ChannelName, _: GrpcCall, _: Vec<u8>) -> Result<GrpcReply, GrpcStatus> {
        Ok(GrpcReply { headers: Vec::new(), message: Vec::new(), trailers: Vec::new() })
    }
    async fn open(&self, _: &ChannelName, _: GrpcCall) -> Result<Box<dyn Exchange>, GrpcStatus> {
        Err(GrpcStatus::of(12, "unimplemented"))
    }
}

impl Log for Nothing {
    fn enabled(&self, _: Level) -> bool {
        false
    }
    fn write(&self, _: Level, _: &str, _: &str, _: &[(String, String)]) {}
}

/// The effects of one reconcile, on such ports.
pub fn effects(policy: &Arc<ArcSwap<Policy>>) -> Arc<Effects> {
    let caller =
        Caller { plugin: PluginName::parse("bench").unwrap(), controller: ControllerName::parse("tick").unwrap() };
    let ports = Ports {
        kubernetes: Arc::new(Nothing),
        channels: Arc::new(Nothing),
        databases: Arc::new(NoDatabases),
        log: Arc::new(Nothing),
        denials: Arc::new(|_| {}),
        exceeded: Arc::new(|_| {}),
        rates: Arc::default(),
    };
    // As in a reconcile of an object that wrote before, so that what it writes is noted.
    let (guard, key) =
        (Guard::new(caller.controller.clone(), Arc::default()), ObjectKey::parse(Some("default"), "tick").unwrap());
    let step = Step {
        resource: Resource::parse("", "v1", "configmaps").unwrap(),
        key: key.clone(),
        deed: Deed::Changed { before: None, now: Arc::clone(&THERE) },
    };
    guard.ended(&key, &[step]);
    let now = WRITTEN.first().map(|written| &written.meta);
    let resource = Resource::parse("", "v1", "configmaps").unwrap();
    guard.heard(&key, &Happened { resource: &resource, key: &key, was: None, now }, false);
    Arc::new(Effects::new(caller, Arc::clone(policy), ports).on(guard.begin(&key)))
}
