//! An API server for unit tests: a tower service that remembers what was asked, knows a few kinds and lets a test answer first.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::{StreamExt as _, channel::mpsc};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use kube::{Client, client::Body};
use operetta_core::{
    name::{AccountName, Actor, ControllerName, Namespace, PluginName, ServiceAccount},
    port::Caller,
    resource::{ObjectKey, Resource},
};
use serde_json::{Value, json};

use crate::{
    Cluster,
    answer::{Purpose, TooLarge},
    identity::Impersonation,
};

/// A request as the API server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub method: String,
    pub path: String,
    pub query: String,
    pub user: Option<String>,
    pub impersonation: Vec<String>,
    pub purpose: Option<Purpose>,
    pub body: String,
}

impl Sent {
    pub fn is_watch(&self) -> bool {
        self.query.contains("watch=true")
    }
}

type Answer = Box<dyn Fn(&Sent) -> Option<(u16, Value)> + Send + Sync>;

#[derive(Default)]
struct State {
    sent: Vec<Sent>,
    things: Vec<Value>,
    watches: Vec<(Sent, mpsc::UnboundedSender<String>)>,
    kinds: Vec<&'static str>,
    minor: u32,
}

/// The server. It knows `things.v1.x.example.com`, which live in namespaces, and `v1` secrets and nodes.
pub struct FakeApi {
    state: Mutex<State>,
    answer: Answer,
}

impl FakeApi {
    /// Answers what `answer` says, and where it says nothing as a server whose every request is allowed.
    pub fn new(answer: impl Fn(&Sent) -> Option<(u16, Value)> + Send + Sync + 'static) -> Arc<Self> {
        let state = State { kinds: vec!["things"], minor: 36, ..State::default() };
        Arc::new(Self { state: Mutex::new(state), answer: Box::new(answer) })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_minor(&self, minor: u32) {
        self.state().minor = minor;
    }

    pub fn set_kinds(&self, kinds: &[&'static str]) {
        self.state().kinds = kinds.to_vec();
    }

    pub fn set_things(&self, things: Vec<Value>) {
        self.state().things = things;
    }

    /// Tells all open watches of things.
    pub fn tell(&self, kind: &str, object: &Value) {
        for (_, watch) in &self.state().watches {
            // The type comes first, as API servers write it.
            let _ = watch.unbounded_send(format!(r#"{{"type":"{kind}","object":{object}}}"#));
        }
    }

    /// Ends all open watches of things.
    pub fn end_watches(&self) {
        self.state().watches.clear();
    }

    /// Those of things that are open.
    pub fn open_watches(&self) -> Vec<Sent> {
        let mut state = self.state();
        state.watches.retain(|(_, watch)| !watch.is_closed());
        state.watches.iter().map(|(sent, _)| sent.clone()).collect()
    }

    pub fn sent(&self) -> Vec<Sent> {
        self.state().sent.clone()
    }

    /// What plugins sent about things, watches left out, as `METHOD path`.
    pub fn about_things(&self) -> Vec<String> {
        let things = |s: &&Sent| {
            s.path.contains("/things") && !s.is_watch() && !(s.method == "GET" && s.query.contains("&limit="))
        };
        self.sent().iter().filter(things).map(|s| format!("{} {}", s.method, s.path)).collect()
    }

    pub fn client(self: &Arc<Self>) -> Client {
        let this = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = Arc::clone(&this);
            async move { this.serve(request).await }
        });
        Client::new(service, "default")
    }

    /// A host's cluster on it.
    pub fn cluster(self: &Arc<Self>) -> Cluster {
        let client = self.client();
        Cluster::new(client.clone(), Arc::new(Impersonation::new(client)), Arc::default())
    }

    async fn serve(&self, request: Request<Body>) -> Result<Response<BoxBody<Bytes, std::io::Error>>, kube::Error> {
        let (head, body) = request.into_parts();
        let header = |name: &str| head.headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let sent = Sent {
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            user: header("impersonate-user"),
            impersonation: head
                .headers
                .keys()
                .map(ToString::to_string)
                .filter(|n| n.starts_with("impersonate-"))
                .collect(),
            purpose: head.extensions.get::<Purpose>().copied(),
            body: String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap(),
        };
        self.state().sent.push(sent.clone());
        let (code, value) = match (self.answer)(&sent) {
            // Three answers that no server gives: silence, more than is read, and a lost connection.
            Some((1, _)) => std::future::pending().await,
            Some((2, _)) => return Err(kube::Error::Service(TooLarge.into())),
            Some((0, why)) => return Err(kube::Error::Service(why.to_string().into())),
            Some(answer) => answer,
            None if sent.is_watch() => return Ok(Response::new(self.watch(sent))),
            None => self.default_answer(&sent),
        };
        let body = http_body_util::Full::new(Bytes::from(value.to_string())).map_err(std::io::Error::other).boxed();
        Ok(Response::builder().status(code).body(body).unwrap())
    }

    fn watch(&self, sent: Sent) -> BoxBody<Bytes, std::io::Error> {
        let (sender, events) = mpsc::unbounded();
        if sent.path.ends_with("/things") {
            self.state().watches.push((sent, sender));
        } else {
            // A quiet watch that never ends.
            std::mem::forget(sender);
        }
        let frames = events.map(|event| Ok(Frame::data(Bytes::from(format!("{event}\n")))));
        BodyExt::boxed(StreamBody::new(frames))
    }

    fn default_answer(&self, sent: &Sent) -> (u16, Value) {
        let state = self.state();
        match (sent.method.as_str(), sent.path.as_str()) {
            (_, "/version") => (200, json!({"major": "1", "minor": state.minor.to_string()})),
            (_, "/apis") => {
                let version = json!({"groupVersion": "x.example.com/v1", "version": "v1"});
                (200, json!({"kind": "APIGroupList", "groups": [{"name": "x.example.com", "versions": [version]}]}))
            }
            (_, "/apis/x.example.com/v1") => {
                let kinds: Vec<_> = state
                    .kinds
                    .iter()
                    .map(|name| json!({"name": name, "kind": "Thing", "namespaced": true, "singularName": "thing", "verbs": ["get", "list", "watch"]}))
                    .collect();
                (200, json!({"groupVersion": "x.example.com/v1", "resources": kinds}))
            }
            (_, "/api/v1") => {
                let verbs = json!(["get", "list", "watch"]);
                (
                    200,
                    json!({"groupVersion": "v1", "resources": [
                        {"name": "secrets", "kind": "Secret", "namespaced": true, "singularName": "", "verbs": verbs},
                        {"name": "nodes", "kind": "Node", "namespaced": false, "singularName": "", "verbs": verbs},
                    ]}),
                )
            }
            (_, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews") => {
                (201, json!({"status": {"allowed": true}}))
            }
            ("GET", path) if path.contains("/serviceaccounts/") => {
                let name = path.rsplit('/').next().unwrap_or_default();
                (200, json!({"kind": "ServiceAccount", "metadata": {"annotations": {"operetta.dev/plugin": name}}}))
            }
            ("GET", path) if path.ends_with("/things") => (
                200,
                json!({"kind": "ThingList", "apiVersion": "x.example.com/v1", "metadata": {"resourceVersion": "100"}, "items": state.things}),
            ),
            ("GET", path)
                if path.ends_with("customresourcedefinitions")
                    || path.ends_with("/secrets")
                    || path.ends_with("/nodes") =>
            {
                (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}))
            }
            _ => status(404, "NotFound", "the server could not find the requested resource", &json!({})),
        }
    }
}

/// A failure as the API server writes it.
pub fn status(code: u16, reason: &str, message: &str, details: &Value) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code, "details": details}),
    )
}

pub fn things() -> Resource {
    Resource::parse("x.example.com", "v1", "things").unwrap()
}

pub fn key(name: &str) -> ObjectKey {
    ObjectKey::parse(Some("n"), name).unwrap()
}

pub fn namespace(name: &str) -> Namespace {
    Namespace::parse(name).unwrap()
}

/// A plugin with an account of its name.
pub fn actor(name: &str) -> Actor {
    let account = ServiceAccount { namespace: namespace("operetta-plugins"), name: AccountName::parse(name).unwrap() };
    Actor { plugin: PluginName::parse(name).unwrap(), account }
}

pub fn caller(plugin: &str) -> Caller {
    Caller { plugin: PluginName::parse(plugin).unwrap(), controller: ControllerName::parse("c").unwrap() }
}

/// A thing in namespace `n`.
pub fn thing(name: &str, version: u32) -> Value {
    json!({
        "apiVersion": "x.example.com/v1", "kind": "Thing",
        "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"), "resourceVersion": version.to_string()},
        "spec": {"size": version},
    })
}

/// Waits until something holds. Time is paused in these tests, so this yields until nothing else can run and then lets a little time pass.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("not within 20 s: {what}");
}
