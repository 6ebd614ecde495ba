//! An API server in memory, over HTTP, for what must not be measured with the noise of a real one: it allows everything, keeps objects, tells watches, and lets
//! whoever runs it see each write as it comes.
//!
//! **It checks nothing, merges where it should apply and knows no managed fields**: what the host may rely on is shown on a real API server.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{Method, StatusCode},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures::{StreamExt as _, channel::mpsc};
use serde_json::{Value, json};

/// The most that a request may have.
const LARGEST: usize = 16 << 20;
/// Changes that are kept for watches that begin after them, in bytes: tests measure the memory of the process that it is in.
const HISTORY: usize = 1 << 20;

/// A kind that it serves; all of them live in namespaces.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Group and version, such as `apps/v1`, or `v1`.
    pub api_version: &'static str,
    /// As objects say it.
    pub kind: &'static str,
    /// As paths say it.
    pub plural: &'static str,
}

/// A write that was asked for.
#[derive(Debug, Clone)]
pub struct Write {
    /// When it was there.
    pub at: Instant,
    /// `/apis/...`, subresource and all.
    pub path: String,
    /// As it was sent; nothing where it is no JSON.
    pub body: Value,
}

/// The server. It ends with this value.
pub struct Canned {
    served: Arc<Served>,
    address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
}

struct Served {
    kinds: &'static [Kind],
    told: mpsc::UnboundedSender<Write>,
    state: Mutex<Store>,
}

#[derive(Default)]
struct Store {
    version: u64,
    /// By the path of the object.
    objects: BTreeMap<String, Value>,
    /// Version, path of the object, and the watch's line.
    history: VecDeque<(u64, String, Bytes)>,
    /// Of the lines of the history.
    bytes: usize,
    watches: Vec<(Place, mpsc::UnboundedSender<Bytes>)>,
    /// By the path of the object, what is answered to whoever asks for it: status and text.
    lies: BTreeMap<String, (u16, String)>,
}

/// What a path is about.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    root: String,
    namespace: Option<String>,
    plural: String,
}

impl Place {
    /// The collection, name and subresource of a path; none where it is no collection's.
    fn of(path: &str) -> Option<(Self, Option<String>, Option<String>)> {
        let mut parts = path.split('/').skip(1);
        let root = match parts.next()? {
            "api" => format!("/api/{}", parts.next()?),
            "apis" => format!("/apis/{}/{}", parts.next()?, parts.next()?),
            _ => return None,
        };
        let mut rest: Vec<_> = parts.map(str::to_owned).collect();
        let namespaced = rest.len() >= 3 && rest.first().is_some_and(|word| word == "namespaces");
        let namespace = namespaced.then(|| rest.drain(..2).nth(1)).flatten();
        let mut rest = rest.into_iter();
        let place = Self { root, namespace, plural: rest.next()? };
        Some((place, rest.next(), rest.next()))
    }

    fn object(&self, name: &str) -> String {
        let namespace = self.namespace.as_deref().unwrap_or_default();
        format!("{}/namespaces/{namespace}/{}/{name}", self.root, self.plural)
    }

    fn has(&self, object: &str) -> bool {
        Self::of(object).is_some_and(|(place, ..)| {
            place.root == self.root
                && place.plural == self.plural
                && self.namespace.as_ref().is_none_or(|namespace| place.namespace.as_ref() == Some(namespace))
        })
    }
}

impl Store {
    /// Puts an object in place of what is there, and tells it where it differs.
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        let before = self.objects.get(path);
        let version = before.and_then(|before| before.pointer("/metadata/resourceVersion")).cloned();
        if let (Some(metadata), Some(version)) = (metadata(&mut object), version) {
            metadata.insert("resourceVersion".into(), version);
        }
        if before == Some(&object) {
            return object;
        }
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        self.version += 1;
        let version = self.version.to_string();
        if let Some(metadata) = metadata(&mut object) {
            metadata.entry("uid").or_insert_with(|| json!(format!("uid-{version}")));
            metadata.entry("creationTimestamp").or_insert_with(|| json!("2026-01-01T00:00:00Z"));
            metadata.insert("resourceVersion".into(), json!(version));
        }
        self.objects.insert(path.to_owned(), object.clone());
        self.tell(path, kind, &object);
        object
    }

    fn remove(&mut self, path: &str) -> Option<Value> {
        let mut object = self.objects.remove(path)?;
        self.version += 1;
        if let Some(metadata) = metadata(&mut object) {
            metadata.insert("resourceVersion".into(), json!(self.version.to_string()));
        }
        self.tell(path, "DELETED", &object);
        Some(object)
    }

    fn tell(&mut self, path: &str, kind: &str, object: &Value) {
        let line = Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"));
        self.watches.retain(|(place, watch)| !place.has(path) || watch.unbounded_send(line.clone()).is_ok());
        self.bytes += line.len();
        self.history.push_back((self.version, path.to_owned(), line));
        while self.bytes > HISTORY {
            let Some((.., line)) = self.history.pop_front() else { break };
            self.bytes -= line.len();
        }
    }
}

fn metadata(object: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    object.get_mut("metadata").and_then(Value::as_object_mut)
}

/// A merge patch.
fn merge(into: &mut Value, patch: &Value) {
    match (into.as_object_mut(), patch.as_object()) {
        (Some(object), Some(patch)) => {
            for (field, value) in patch {
                if value.is_null() {
                    object.remove(field);
                } else {
                    merge(object.entry(field).or_insert(Value::Null), value);
                }
            }
        }
        _ => *into = patch.clone(),
    }
}

impl Canned {
    /// Starts one that knows these kinds; the receiver gets each write.
    pub fn start(kinds: &'static [Kind]) -> Result<(Self, mpsc::UnboundedReceiver<Write>)> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").context("listen")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let listener = {
            let _entered = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (told, writes) = mpsc::unbounded();
        let served = Arc::new(Served { kinds, told, state: Mutex::default() });
        let app = Router::new().fallback(answer).with_state(served.clone());
        let listener = axum::serve::ListenerExt::tap_io(listener, |connection| {
            let _ = connection.set_nodelay(true);
        });
        runtime.spawn(async move { axum::serve(listener, app).await });
        Ok((Self { served, address, runtime: Some(runtime) }, writes))
    }

    /// A kubeconfig for it in this directory.
    pub fn kubeconfig(&self, directory: &Path) -> Result<PathBuf> {
        let path = directory.join("canned.kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "canned",
            "clusters": [{"name": "canned", "cluster": {"server": format!("http://{}", self.address)}}],
            "contexts": [{"name": "canned", "context": {"cluster": "canned", "user": "canned"}}],
            "users": [{"name": "canned", "user": {"token": "none"}}],
        });
        std::fs::write(&path, config.to_string()).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// Makes or exchanges an object. Answers when watches were told.
    pub fn put(&self, kind: &Kind, namespace: &str, name: &str, object: Value) -> Instant {
        let mut whole = json!({"apiVersion": kind.api_version, "kind": kind.kind});
        merge(&mut whole, &json!({"metadata": {"name": name, "namespace": namespace}}));
        merge(&mut whole, &object);
        let path = kind.path(namespace, name);
        let mut state = self.served.state();
        if let Some(uid) = state.objects.get(&path).and_then(|before| before.pointer("/metadata/uid")).cloned() {
            merge(&mut whole, &json!({"metadata": {"uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}}));
        }
        let at = Instant::now();
        state.put(&path, whole);
        at
    }

    /// From now on this status and text are the answer to each request about an object.
    pub fn lie(&self, kind: &Kind, namespace: &str, name: &str, status: u16, answer: &str) {
        self.served.state().lies.insert(kind.path(namespace, name), (status, answer.to_owned()));
    }

    /// Removes an object.
    pub fn remove(&self, kind: &Kind, namespace: &str, name: &str) {
        self.served.state().remove(&kind.path(namespace, name));
    }
}

impl Drop for Canned {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Kind {
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    fn root(&self) -> String {
        format!("{}/{}", if self.api_version.contains('/') { "/apis" } else { "/api" }, self.api_version)
    }

    /// Where an object is.
    pub fn path(&self, namespace: &str, name: &str) -> String {
        format!("{}/namespaces/{namespace}/{}/{name}", self.root(), self.plural)
    }
}

impl Served {
    fn state(&self) -> MutexGuard<'_, Store> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kinds_at(&self, root: &str) -> Option<Value> {
        let verbs = ["create", "delete", "get", "list", "patch", "update", "watch"];
        let kinds: Vec<_> = self.kinds.iter().filter(|kind| kind.root() == root).collect();
        let listed = |kind: &&Kind| json!({"name": kind.plural, "kind": kind.kind, "namespaced": true, "singularName": "", "verbs": verbs});
        let first = kinds.first()?.api_version;
        Some(
            json!({"kind": "APIResourceList", "groupVersion": first, "resources": kinds.iter().map(listed).collect::<Vec<_>>()}),
        )
    }

    /// The group versions that it serves.
    fn versions(&self) -> Value {
        let listed = |kind: &Kind| {
            let (group, version) = kind.api_version.split_once('/')?;
            Some(json!({"name": group, "versions": [{"groupVersion": kind.api_version, "version": version}]}))
        };
        let groups: Vec<_> = self.kinds.iter().filter_map(listed).collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    }
}

async fn answer(State(served): State<Arc<Served>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let (path, query) = (head.uri.path().to_owned(), head.uri.query().unwrap_or_default().to_owned());
    let body = axum::body::to_bytes(body, LARGEST).await.unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let at = Instant::now();
    match path.as_str() {
        "/readyz" => return "ok".into_response(),
        "/version" => return found(&json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0"})),
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => {
            return found(&json!({"status": {"allowed": true}}));
        }
        "/apis" => return found(&served.versions()),
        _ => {}
    }
    let Some((place, name, subresource)) = Place::of(&path) else {
        return served.kinds_at(&path).map_or_else(missing, |kinds| found(&kinds));
    };
    let lie = name.as_ref().and_then(|name| served.state().lies.get(&place.object(name)).cloned());
    if let Some((status, lie)) = lie {
        if head.method != Method::GET {
            let _ = served.told.unbounded_send(Write { at, path, body });
        }
        let status = StatusCode::from_u16(status).unwrap_or_default();
        return (status, [("content-type", "application/json")], lie).into_response();
    }
    let watched = query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1");
    match (head.method, name) {
        (Method::GET, None) if watched => watch(&served, place, &query),
        (Method::GET, None) => {
            let state = served.state();
            let items: Vec<_> = state.objects.iter().filter(|(path, _)| place.has(path)).map(|(_, o)| o).collect();
            let version = state.version.to_string();
            found(
                &json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items}),
            )
        }
        (Method::GET, Some(name)) if place.plural == "serviceaccounts" => {
            let annotations = json!({"operetta.dev/plugin": name});
            found(
                &json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": name, "namespace": place.namespace, "annotations": annotations}}),
            )
        }
        (Method::GET, Some(name)) => {
            let object = served.state().objects.get(&place.object(&name)).cloned();
            object.map_or_else(missing, |object| found(&object))
        }
        (Method::DELETE, Some(name)) => {
            let removed = served.state().remove(&place.object(&name));
            removed.map_or_else(missing, |object| found(&object))
        }
        (Method::POST, None) => {
            let named = body.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("unnamed").to_owned();
            let mut object = body.clone();
            merge(&mut object, &json!({"metadata": {"namespace": place.namespace}}));
            let object = served.state().put(&place.object(&named), object);
            let _ = served.told.unbounded_send(Write { at, path, body });
            (StatusCode::CREATED, found(&object)).into_response()
        }
        (Method::PATCH | Method::PUT, Some(name)) => {
            let _ = served.told.unbounded_send(Write { at, path, body: body.clone() });
            let mut state = served.state();
            let object = place.object(&name);
            let mut whole = state
                .objects
                .get(&object)
                .cloned()
                .unwrap_or_else(|| json!({"metadata": {"namespace": place.namespace}}));
            match subresource {
                Some(part) => merge(&mut whole, &json!({ part.as_str(): body.get(&part) })),
                None => merge(&mut whole, &body),
            }
            found(&state.put(&object, whole))
        }
        _ => missing(),
    }
}

fn watch(served: &Served, place: Place, query: &str) -> Response {
    let after = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")?.parse::<u64>().ok());
    let (sender, lines) = mpsc::unbounded();
    let mut state = served.state();
    for (version, path, line) in &state.history {
        if after.is_some_and(|after| *version > after) && place.has(path) {
            let _ = sender.unbounded_send(line.clone());
        }
    }
    state.watches.push((place, sender));
    Body::from_stream(lines.map(Ok::<_, Infallible>)).into_response()
}

fn found(object: &Value) -> Response {
    ([("content-type", "application/json")], object.to_string()).into_response()
}

fn missing() -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "message": "not found", "code": 404});
    (StatusCode::NOT_FOUND, found(&status)).into_response()
}
