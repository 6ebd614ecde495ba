//! Plugin logic under plain `cargo test`: an API server in memory, gRPC in process, and every crash that can happen.
//!
//! ```
//! # use operetta_sdk::{prelude::*, testing::FakeHost};
//! # use k8s_openapi::api::core::v1::ConfigMap;
//! # async fn reconcile(ctx: &Context, map: ConfigMap) -> Result<Outcome, Failure> { Ok(Outcome::AwaitChange) }
//! # fn plugin() -> Plugin { operetta_sdk::plugin!().controller(Controller::new("map", reconcile)) }
//! # futures::executor::block_on(async {
//! let fake = FakeHost::new(plugin);
//! fake.put(&serde_json::from_value::<ConfigMap>(serde_json::json!({"metadata": {"name": "a"}})).unwrap());
//! fake.settle::<ConfigMap>("a").await.unwrap();
//! assert_eq!(fake.take_writes(), [""; 0]);
//! # });
//! ```
//!
//! Refuses to route events: a test says what is reconciled. Not `Send`: a test runs on one thread, as a guest does.
#![allow(clippy::panic, clippy::indexing_slicing, clippy::missing_panics_doc, reason = "a test that goes wrong panics")]

mod channel;
mod cluster;
mod database;
mod fault;
mod ownership;
#[cfg(test)]
mod tests;

pub use channel::FakeExchange;
pub use database::{Answer, FakeDatabase, FakeTransaction};
pub use fault::{Cut, Fault};

use crate::{
    context::{Cause, Outcome, Request},
    error::{Error, Failure},
    host::{Call, Host, ObjectKey, Options, Page, Patch, Resource, Severity},
    kind::Kind,
    plugin::Plugin,
    sql::{Rows, SqlError, Statement},
};
use channel::{Route, unavailable};
use cluster::Cluster;
use database::Server;
use fault::Faults;
use futures::FutureExt;
use serde::Serialize;
use serde_json::Value;
use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::{poll_fn, ready},
    pin::pin,
    rc::Rc,
    task::Poll,
    time::Duration,
};

/// An event that a plugin published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// `Normal` or `Warning`.
    pub severity: Severity,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
}

/// How one reconcile ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It succeeded.
    Well(Outcome),
    /// It failed.
    Badly(Failure),
    /// A [`Fault`] killed it.
    Crashed,
}

struct State {
    cluster: Cluster,
    faults: Faults,
    writes: Vec<String>,
    events: Vec<Published>,
    channels: BTreeMap<String, Route>,
    databases: BTreeMap<String, Server>,
    statements: Vec<String>,
    settings: BTreeMap<String, String>,
    attempts: BTreeMap<String, u32>,
    refused: BTreeMap<String, Error>,
    now: jiff::Timestamp,
    random: u64,
}

/// A host without sandbox and cluster. Clones share everything.
#[derive(Clone)]
pub struct FakeHost {
    plugin: fn() -> Plugin,
    namespace: String,
    state: Rc<RefCell<State>>,
}

/// Passes of [`FakeHost::settle`] before it gives up: no plugin needs as many.
const PASSES: usize = 30;

impl FakeHost {
    /// A host of this plugin, with an empty cluster. Keys lie in the namespace `default`.
    pub fn new(plugin: fn() -> Plugin) -> Self {
        let state = State {
            cluster: Cluster::default(),
            faults: Faults::default(),
            writes: Vec::new(),
            events: Vec::new(),
            channels: BTreeMap::new(),
            databases: BTreeMap::new(),
            statements: Vec::new(),
            settings: BTreeMap::new(),
            attempts: BTreeMap::new(),
            refused: BTreeMap::new(),
            // Any fixed moment will do: 2026-01-01T00:00:00Z.
            now: jiff::Timestamp::from_second(1_767_225_600).unwrap_or_default(),
            random: 0,
        };
        Self { plugin, namespace: "default".to_owned(), state: Rc::new(RefCell::new(state)) }
    }

    /// The same host, seen from another namespace.
    pub fn in_namespace(&self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self.clone() }
    }

    /// Routes a channel to a service, such as `PetStoreServer::new(..)`.
    pub fn serve<S>(&self, channel: &str, mut service: S)
    where
        S: tower_service::Service<http::Request<tonic::body::Body>, Response = http::Response<tonic::body::Body>>
            + 'static,
        S::Error: std::fmt::Display,
        S::Future: 'static,
    {
        let dispatch = move |request| {
            service
                .call(request)
                .map(|answer| answer.map_err(|error| tonic::Status::unknown(error.to_string())))
                .boxed_local()
        };
        self.route(channel, Route::Service(Rc::new(RefCell::new(dispatch))));
    }

    /// Makes every call on a channel fail.
    pub fn take_down(&self, channel: &str, status: tonic::Status) {
        self.route(channel, Route::Down(status));
    }

    /// Makes nobody answer on a channel: a call with a deadline runs into it at once.
    pub fn silence(&self, channel: &str) {
        self.route(channel, Route::Silent);
    }

    fn route(&self, channel: &str, route: Route) {
        self.state.borrow_mut().channels.insert(channel.to_owned(), route);
    }

    /// Sets a setting of the Plugin document.
    pub fn set(&self, setting: &str, value: &str) {
        self.state.borrow_mut().settings.insert(setting.to_owned(), value.to_owned());
    }

    /// Lets time pass.
    pub fn advance(&self, duration: Duration) {
        let mut state = self.state.borrow_mut();
        state.now = state.now.checked_add(duration).unwrap_or(state.now);
    }

    /// Makes the API server answer a write with this error from now on, as a quota or an admission policy would. The write is named as by
    /// [`take_writes`](Self::take_writes).
    pub fn refuse(&self, write: &str, error: Error) {
        self.state.borrow_mut().refused.insert(write.to_owned(), error);
    }

    /// Ends all that [`refuse`](Self::refuse) began.
    pub fn refuse_nothing(&self) {
        self.state.borrow_mut().refused.clear();
    }

    /// Cuts one host call.
    pub fn cut(&self, cut: Cut) {
        self.state.borrow_mut().faults.cut = Some(cut);
    }

    /// How many host calls were made so far.
    pub fn calls(&self) -> usize {
        self.state.borrow().faults.calls
    }

    /// Whether the cut happened: false once its call lies beyond the end of the scenario.
    pub fn was_cut(&self) -> bool {
        self.state.borrow().faults.reached
    }

    /// Creates an object as a person would.
    pub fn put<K: Kind + Serialize>(&self, object: &K) {
        let namespace = K::NAMESPACED.then_some(self.namespace.as_str());
        let object = serde_json::to_value(object).unwrap_or_else(|error| panic!("an object as JSON: {error}"));
        let mut state = self.state.borrow_mut();
        let now = state.now.to_string();
        if let Err(error) = state.cluster.create(&K::resource(), namespace, object, &now) {
            panic!("{error}");
        }
    }

    /// Changes an object as a person, or another controller, would: spec and metadata, or the status (told by what differs).
    pub fn edit<K: Kind>(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let key = self.key::<K>(name);
        let mut state = self.state.borrow_mut();
        let old = state.cluster.get(&K::resource(), &key).unwrap_or_else(|error| panic!("{error}"));
        let mut next = old.clone();
        change(&mut next);
        let subresource = (next["status"] != old["status"]).then_some("status");
        if let Err(error) = state.cluster.update(&K::resource(), &key, subresource, next) {
            panic!("{error}");
        }
    }

    /// Deletes an object as a person would. What it owns goes with it.
    pub fn remove<K: Kind>(&self, name: &str) {
        let key = self.key::<K>(name);
        let mut state = self.state.borrow_mut();
        let now = state.now.to_string();
        if let Err(error) = state.cluster.delete(&K::resource(), &key, &Options::new(), &now) {
            panic!("{error}");
        }
    }

    /// The object, if it is there.
    pub fn object<K: Kind>(&self, name: &str) -> Option<K> {
        let object = self.state.borrow().cluster.get(&K::resource(), &self.key::<K>(name)).ok()?;
        Some(serde_json::from_value(object).unwrap_or_else(|error| panic!("{}: {error}", K::kind(&()))))
    }

    /// All objects of a kind, in every namespace.
    pub fn objects<K: Kind>(&self) -> Vec<K> {
        let found = self.state.borrow().cluster.list(&K::resource(), &Options::new()).unwrap_or_default();
        found
            .into_iter()
            .map(|object| serde_json::from_value(object).unwrap_or_else(|error| panic!("{}: {error}", K::kind(&()))))
            .collect()
    }

    /// The requests that changed the cluster since the last call, such as `apply pods/status default/web`. An apply that changes nothing is none.
    pub fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut self.state.borrow_mut().writes)
    }

    /// The events published since the last call.
    pub fn take_events(&self) -> Vec<Published> {
        std::mem::take(&mut self.state.borrow_mut().events)
    }

    /// One reconcile of an object by the controller of its kind.
    pub async fn reconcile<K: Kind>(&self, name: &str) -> Ended {
        let plugin = Rc::new((self.plugin)());
        let controller =
            plugin.controller_of(&K::resource()).unwrap_or_else(|| panic!("no controller of {}", K::kind(&())));
        let key = self.key::<K>(name);
        let slot = format!("{controller} {key}");
        let attempt = self.state.borrow().attempts.get(&slot).copied().unwrap_or_default();
        let cause = if attempt == 0 { Cause::Changed } else { Cause::Retried };
        let object = self.state.borrow().cluster.get(&K::resource(), &key).ok().map(|object| object.to_string());
        let request = Request { controller: controller.to_owned(), key, attempt, cause };
        let ended = {
            let mut run = pin!(plugin.clone().reconcile(self.clone(), request, object));
            poll_fn(|cx| match run.as_mut().poll(cx) {
                Poll::Ready(Ok(outcome)) => Poll::Ready(Ended::Well(outcome)),
                Poll::Ready(Err(failure)) => Poll::Ready(Ended::Badly(failure)),
                // Dropping the run is the crash.
                Poll::Pending if std::mem::take(&mut self.state.borrow_mut().faults.crashed) => {
                    Poll::Ready(Ended::Crashed)
                }
                Poll::Pending => Poll::Pending,
            })
            .await
        };
        let next = if matches!(ended, Ended::Badly(_)) { attempt + 1 } else { 0 };
        self.state.borrow_mut().attempts.insert(slot, next);
        ended
    }

    /// Reconciles an object again and again, as a host would after each change, failure and crash, until a reconcile succeeds without a write.
    /// A terminal failure ends it as well.
    pub async fn settle<K: Kind>(&self, name: &str) -> Result<Outcome, Failure> {
        let mut last = None;
        for _ in 0..PASSES {
            let before = self.state.borrow().writes.len();
            let ended = self.reconcile::<K>(name).await;
            let quiet = self.state.borrow().writes.len() == before;
            match &ended {
                Ended::Well(outcome) if quiet => return Ok(*outcome),
                Ended::Badly(failure @ Failure::Terminal(_)) if quiet => return Err(failure.clone()),
                _ => last = Some(ended),
            }
        }
        panic!(
            "{name} does not settle in {PASSES} reconciles; the last one ended {last:?}, writes: {:#?}",
            self.state.borrow().writes
        )
    }

    fn key<K: Kind>(&self, name: &str) -> ObjectKey {
        let namespace = K::NAMESPACED.then(|| self.namespace.clone());
        ObjectKey { namespace, name: name.to_owned() }
    }

    /// Runs the effect of one host call, with what the test wants to go wrong.
    async fn call<T, E>(&self, error: impl FnOnce() -> E, effect: impl AsyncFnOnce() -> Result<T, E>) -> Result<T, E> {
        let fault = self.state.borrow_mut().faults.next();
        match fault {
            None => effect().await,
            Some(Fault::Refused) => Err(error()),
            Some(Fault::AnswerLost) => {
                // Whatever it answered, nobody hears it.
                drop(effect().await);
                Err(error())
            }
            Some(Fault::CrashBefore) => self.crash().await,
            Some(Fault::CrashAfter) => {
                drop(effect().await);
                self.crash().await
            }
        }
    }

    async fn crash<T>(&self) -> T {
        self.state.borrow_mut().faults.crashed = true;
        std::future::pending().await
    }

    async fn write<T>(
        &self,
        verb: &str,
        (resource, subresource): (&Resource, Option<&str>),
        target: impl std::fmt::Display,
        effect: impl FnOnce(&mut Cluster, &str) -> Result<(T, bool), Error>,
    ) -> Result<T, Error> {
        let subresource = subresource.map(|subresource| format!("/{subresource}")).unwrap_or_default();
        self.call(lost, async || {
            let mut state = self.state.borrow_mut();
            let write = format!("{verb} {}{subresource} {target}", resource.resource);
            if let Some(error) = state.refused.get(&write) {
                return Err(error.clone());
            }
            let now = state.now.to_string();
            let (answer, left_the_host) = effect(&mut state.cluster, &now)?;
            if left_the_host {
                state.writes.push(write);
            }
            Ok(answer)
        })
        .await
    }
}

impl Host for FakeHost {
    type Exchange = FakeExchange;
    type Transaction = FakeTransaction;

    async fn get(&self, resource: &Resource, key: &ObjectKey, _options: Options) -> Result<String, Error> {
        self.call(lost, async || Ok(self.state.borrow().cluster.get(resource, key)?.to_string())).await
    }

    async fn list(&self, resource: &Resource, options: Options) -> Result<Page, Error> {
        self.call(lost, async || {
            let items = self.state.borrow().cluster.list(resource, &options)?;
            Ok(Page { items: items.iter().map(Value::to_string).collect(), next: None })
        })
        .await
    }

    async fn create(&self, resource: &Resource, namespace: Option<&str>, object: String) -> Result<String, Error> {
        let object: Value = serde_json::from_str(&object).map_err(|error| Error::Invalid(error.to_string()))?;
        let key = ObjectKey {
            namespace: namespace.map(str::to_owned),
            name: object["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        };
        self.write("create", (resource, None), &key, |cluster, now| {
            Ok((cluster.create(resource, namespace, object, now)?.to_string(), true))
        })
        .await
    }

    async fn patch(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&str>,
        patch: Patch,
    ) -> Result<String, Error> {
        let verb = match &patch {
            Patch::Apply(_) => "apply",
            Patch::Merge(_) => "merge",
            Patch::Json(_) => "json",
        };
        self.write(verb, (resource, subresource), key, |cluster, now| {
            let (object, left) = cluster.patch(resource, key, subresource, &patch, now)?;
            Ok((object.to_string(), left))
        })
        .await
    }

    async fn replace(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&str>,
        object: String,
    ) -> Result<String, Error> {
        let object: Value = serde_json::from_str(&object).map_err(|error| Error::Invalid(error.to_string()))?;
        self.write("replace", (resource, subresource), key, |cluster, _| {
            if object["metadata"]["resourceVersion"].is_null() {
                return Err(Error::Invalid("metadata.resourceVersion is missing".to_owned()));
            }
            Ok((cluster.update(resource, key, subresource, object)?.to_string(), true))
        })
        .await
    }

    async fn delete(&self, resource: &Resource, key: &ObjectKey, options: Options) -> Result<(), Error> {
        self.write("delete", (resource, None), key, |cluster, now| {
            Ok((cluster.delete(resource, key, &options, now)?, true))
        })
        .await
    }

    async fn publish(
        &self,
        _resource: &Resource,
        _key: &ObjectKey,
        severity: Severity,
        reason: &str,
        message: &str,
    ) -> Result<(), Error> {
        self.call(lost, async || {
            let event = Published { severity, reason: reason.to_owned(), message: message.to_owned() };
            self.state.borrow_mut().events.push(event);
            Ok(())
        })
        .await
    }

    async fn open(&self, call: Call) -> Result<FakeExchange, tonic::Status> {
        self.call(unavailable, async || {
            let route = self.state.borrow().channels.get(&call.channel).cloned();
            let denied =
                || tonic::Status::permission_denied(format!("denied: channel {:?} is not granted", call.channel));
            FakeExchange::open(self.clone(), route.ok_or_else(denied)?, &call)
        })
        .await
    }

    async fn query(&self, database: &str, statement: Statement) -> Result<Rows, SqlError> {
        Ok(self.run(database, statement).await?.rows)
    }

    async fn execute(&self, database: &str, statement: Statement) -> Result<u64, SqlError> {
        Ok(self.run(database, statement).await?.changed)
    }

    async fn begin(&self, database: &str, _deadline: Option<Duration>) -> Result<FakeTransaction, SqlError> {
        self.call(database::lost, async || {
            self.up(database)?;
            let state = self.state.borrow();
            let server = state.databases.get(database).ok_or_else(database::lost)?;
            Ok(FakeTransaction::begin(self.clone(), database, server))
        })
        .await
    }

    fn setting(&self, name: &str) -> Option<String> {
        self.state.borrow().settings.get(name).cloned()
    }

    fn now(&self) -> jiff::Timestamp {
        self.state.borrow().now
    }

    async fn sleep(&self, duration: Duration) {
        self.advance(duration);
        ready(()).await;
    }

    fn random(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.random += 1;
        state.random
    }
}

fn lost() -> Error {
    Error::Unavailable("cut by the test".to_owned())
}

/// Runs `scenario` once for every host call that it makes and every [`Fault`] that can happen to it.
///
/// The scenario cuts its host ([`FakeHost::cut`]), plays to its end, checks what must hold, and returns the host.
pub async fn every_cut(scenario: impl AsyncFn(Cut) -> FakeHost) -> usize {
    let mut cuts = 0;
    for fault in Fault::ALL {
        for call in 0.. {
            if !scenario(Cut { call, fault }).await.was_cut() {
                break;
            }
            cuts += 1;
        }
    }
    cuts
}
