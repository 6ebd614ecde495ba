//! The connection to the API server: one pool of connections for everything the host and its plugins ask.
//!
//! kube's own builder leaves `TCP_NODELAY` off, which costs a small request on a quiet connection some 40 ms; hence the connector is built here.
//! **A kubeconfig that itself impersonates is refused**: those headers are how plugins get their identity, and mixing both would give a plugin someone else's.

use std::{
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header::USER_AGENT};
use http_body::Body as HttpBody;
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{Builder, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt as _},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use operetta_core::name::PluginName;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use tower::{BoxError, Service, ServiceBuilder};

use crate::{
    answer::{Answer, Answers, Purpose, is_watch, read},
    identity::Acting,
    request::{Fault, send},
};

/// A connection that is not there after this long will not come; kube's default of 30 s is made for people.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A request that cannot be written for this long has lost its connection.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often an idle connection is probed, so that a watch whose peer vanished without a word ends within about a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Between two attempts to reach an API server, at most.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Where Kubernetes mounts the credentials of a pod.
const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Which cluster, and as whom.
#[derive(Debug, Clone, Default)]
pub struct Target {
    /// A kubeconfig; `KUBECONFIG`, `~/.kube/config` and then the pod's own account unless told.
    pub kubeconfig: Option<PathBuf>,
    /// A context of it; its current one unless told.
    pub context: Option<String>,
    /// Where the pod's own account has its token, CA certificate and namespace, instead of any kubeconfig.
    pub service_account_dir: Option<PathBuf>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing says where a cluster is.
    #[error(
        "no cluster is configured: {tried}, and this is no pod with a service account; set KUBECONFIG, or pass --kubeconfig FILE"
    )]
    Nowhere {
        /// What was looked at.
        tried: String,
    },
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig {path}: {why}; try `kubectl --kubeconfig {path} version`")]
    Kubeconfig {
        /// Where it is.
        path: String,
        /// What is wrong, causes included.
        why: Box<KubeconfigError>,
    },
    /// The pod's service account cannot be used.
    #[error("cannot use the service account of this pod: {what}: {why}; check automountServiceAccountToken")]
    InCluster {
        /// A file, or a variable of the environment.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The kubeconfig says `as:`.
    #[error(
        "the kubeconfig {path} impersonates {user} (`as`), and operetta impersonates service accounts itself; choose a context whose user does not"
    )]
    Impersonates {
        /// Where it is.
        path: String,
        /// As whom.
        user: String,
    },
    /// A proxy is asked for.
    #[error("the kubeconfig wants the proxy {0}, and operetta connects directly; remove proxy-url from the cluster")]
    Proxy(String),
    /// TLS or credentials cannot be set up.
    #[error("cannot set up the connection to {url}: {source}; check the certificates and the user of the kubeconfig")]
    Setup {
        /// The API server.
        url: String,
        /// What is wrong.
        source: Box<kube::Error>,
    },
    /// The API server does not know who this is.
    #[error(
        "the API server does not accept the credentials ({0}); log in again, or choose another context with --context"
    )]
    Unauthorized(String),
    /// Nobody answers.
    #[error(
        "no API server answers at {url} within {within:?}: {why}; check the server of the kubeconfig, or wait longer with --timeout"
    )]
    Unreachable {
        /// The API server.
        url: String,
        /// How long was waited.
        within: Duration,
        /// What the last attempt ended with.
        why: String,
    },
}

/// Is told of each answer: the API server's address, the method, the HTTP status where one came, and the plugin for which was asked.
pub type Observer = Arc<dyn Fn(&str, &Method, Option<u16>, Option<&PluginName>) + Send + Sync>;

/// Opens the pool. Connects to nothing yet: see [`wait_until_ready`]. Requests run on the runtime on which this is called, whoever awaits them.
pub async fn connect(target: &Target) -> Result<Client, ConnectError> {
    build(configuration(target).await?)
}

/// For a command that ends: connects, waits until the API server answers that it is ready, and gives up after `within`.
pub async fn connect_within(target: &Target, within: Duration) -> Result<Client, ConnectError> {
    let config = configuration(target).await?;
    let url = config.cluster_url.to_string();
    let client = build(config)?;
    let mut last = None;
    match tokio::time::timeout(within, wait_until_ready(&client, |why| last = Some(why.to_owned()))).await {
        Ok(reached) => reached.map(|()| client),
        Err(_) => {
            Err(ConnectError::Unreachable { url, within, why: last.unwrap_or_else(|| "it says nothing".to_owned()) })
        }
    }
}

/// The same, for one who counts the requests.
pub async fn connect_observed(target: &Target, observer: Observer) -> Result<Client, ConnectError> {
    build_for(configuration(target).await?, Some(observer))
}

/// Reads the kubeconfig or the pod's service account.
pub async fn configuration(target: &Target) -> Result<Config, ConnectError> {
    if let Some(dir) = &target.service_account_dir {
        return in_cluster(dir)?.ok_or_else(|| ConnectError::InCluster {
            what: "KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT".to_owned(),
            why: "not set".to_owned(),
        });
    }
    let (kubeconfig, path) = match &target.kubeconfig {
        Some(path) => (Some(Kubeconfig::read_from(path)), path.display().to_string()),
        None => found(),
    };
    let Some(kubeconfig) = kubeconfig else {
        return in_cluster(Path::new(SERVICE_ACCOUNT_DIR))?.ok_or(ConnectError::Nowhere { tried: path });
    };
    let unusable = |why| ConnectError::Kubeconfig { path: path.clone(), why: Box::new(why) };
    let options = KubeConfigOptions { context: target.context.clone(), ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(kubeconfig.map_err(unusable)?, &options).await.map_err(unusable)?;
    let auth = &config.auth_info;
    if auth.impersonate.is_some()
        || auth.impersonate_uid.is_some()
        || auth.impersonate_groups.is_some()
        || auth.impersonate_user_extra.is_some()
    {
        let user = auth.impersonate.clone().unwrap_or_else(|| "groups or attributes of a user".to_owned());
        return Err(ConnectError::Impersonates { path, user });
    }
    Ok(config)
}

/// The namespace of this pod; none where this is no pod.
pub fn pod_namespace(target: &Target) -> Option<String> {
    let dir = target.service_account_dir.as_deref().unwrap_or(Path::new(SERVICE_ACCOUNT_DIR));
    std::fs::read_to_string(dir.join("namespace")).ok().map(|text| text.trim().to_owned())
}

/// The pod's own account, as every Kubernetes client finds it; none where the environment names no API server. Token and CA certificate are read again every minute, since
/// both are exchanged while the pod runs.
fn in_cluster(dir: &Path) -> Result<Option<Config>, ConnectError> {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (Some(host), Some(port)) = (set("KUBERNETES_SERVICE_HOST"), set("KUBERNETES_SERVICE_PORT")) else {
        return Ok(None);
    };
    let unusable = |what: String, why: &dyn std::fmt::Display| ConnectError::InCluster { what, why: why.to_string() };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let url = format!("https://{host}:{port}");
    let mut config = Config::new(url.parse().map_err(|error: http::uri::InvalidUri| unusable(url, &error))?);
    let read = |name: &str| {
        let path = dir.join(name);
        let text = std::fs::read_to_string(&path).map_err(|error| unusable(path.display().to_string(), &error))?;
        Ok::<_, ConnectError>((path, text))
    };
    let ((_, namespace), (ca, _), (token, _)) = (read("namespace")?, read("ca.crt")?, read("token")?);
    namespace.trim().clone_into(&mut config.default_namespace);
    // Nobody else is trusted: not what the machine trusts, and a scratch image trusts nobody.
    config.root_cert = Some(Vec::new());
    config.root_cert_file = Some(ca);
    config.auth_info.token_file = Some(token.display().to_string());
    Ok(Some(config))
}

/// The kubeconfig that kubectl would take, if there is one, and what was looked at.
fn found() -> (Option<Result<Kubeconfig, KubeconfigError>>, String) {
    if let Some(list) = std::env::var_os("KUBECONFIG").filter(|list| !list.is_empty()) {
        let tried = list.display().to_string();
        // Like kubectl, an empty list or one of missing files only is a wrong setting and not a reason to try elsewhere.
        return (Some(Kubeconfig::read()), tried);
    }
    let Some(path) = std::env::home_dir().map(|home| home.join(".kube").join("config")) else {
        return (None, "KUBECONFIG is not set and there is no home directory".to_owned());
    };
    if path.exists() {
        let shown = path.display().to_string();
        return (Some(Kubeconfig::read_from(path)), shown);
    }
    (None, format!("KUBECONFIG is not set and {} does not exist", path.display()))
}

/// Builds the client: TLS and credentials as kube sets them up (a rotated token file and CA are read again), our own connector below.
pub fn build(config: Config) -> Result<Client, ConnectError> {
    build_for(config, None)
}

fn build_for(mut config: Config, observer: Option<Observer>) -> Result<Client, ConnectError> {
    if let Some(proxy) = &config.proxy_url {
        return Err(ConnectError::Proxy(proxy.to_string()));
    }
    let url = config.cluster_url.to_string();
    let setup = |source| ConnectError::Setup { url: url.clone(), source: Box::new(source) };
    let agent = concat!("operetta/", env!("CARGO_PKG_VERSION"));
    config.headers.push((USER_AGENT, HeaderValue::from_static(agent)));

    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEP_ALIVE));
    tcp.set_keepalive_interval(Some(KEEP_ALIVE));
    tcp.set_keepalive_retries(Some(2));
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp).map_err(setup)?);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_write_timeout(Some(WRITE_TIMEOUT));
    // No read timeout: a quiet watch is healthy. Requests have deadlines of their own.
    let pool = Builder::new(TokioExecutor::new()).pool_timer(TokioTimer::new()).build::<_, Body>(connector);

    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(setup)?)
        .layer(config.extra_headers_layer().map_err(setup)?)
        .map_err(BoxError::from)
        .service(pool);
    let host = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default().into();
    let service = OnRuntime { inner: service, runtime: Handle::current(), observer, host, answers: Arc::default() };
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// Waits until the API server answers that it is ready, and tells `waiting` after each attempt why not. Never gives up but on credentials that are refused.
pub async fn wait_until_ready(client: &Client, mut waiting: impl FnMut(&str)) -> Result<(), ConnectError> {
    let mut delay = Duration::from_millis(100);
    loop {
        let request = Request::get("/readyz").body(Vec::new());
        let why = match request.map_err(Fault::from) {
            Ok(request) => match send(client, request).await {
                // Whoever may not look at the probe has reached the API server all the same.
                Ok(_) | Err(Fault::Answer { code: 403, .. }) => return Ok(()),
                Err(Fault::Answer { code: 401, message, .. }) => return Err(ConnectError::Unauthorized(message)),
                Err(fault) => fault.to_string(),
            },
            Err(fault) => fault.to_string(),
        };
        waiting(&why);
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(LONGEST_WAIT);
    }
}

/// Runs requests on the runtime of the host, whoever awaits them: connections are shared, and one whose task lives among guests that spin would hold up a watch or
/// a lease. Holds plugins to their share of answers.
struct OnRuntime<S> {
    inner: S,
    runtime: Handle,
    observer: Option<Observer>,
    host: Arc<str>,
    answers: Arc<Answers>,
}

impl<S, B> Service<Request<Body>> for OnRuntime<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError> + Send,
    S::Error: Into<BoxError> + Send + 'static,
{
    type Response = Response<Answer<B>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (method, acting) = (request.method().clone(), request.extensions().get::<Acting>().cloned());
        let (streams, purpose) = (is_watch(request.uri()), request.extensions().get::<Purpose>().copied());
        let exchange = self.inner.call(request);
        let (observer, host, answers) = (self.observer.clone(), Arc::clone(&self.host), Arc::clone(&self.answers));
        let task = AbortOnDropHandle::new(self.runtime.spawn(async move {
            let turn = match &acting {
                Some(Acting(plugin)) if !streams => answers.turn(plugin, purpose).await?,
                _ => None,
            };
            let answer = exchange.await;
            if let Some(observer) = observer {
                let status = answer.as_ref().ok().map(|answer| answer.status().as_u16());
                observer(&host, &method, status, acting.as_ref().map(|Acting(plugin)| plugin));
            }
            let (head, body) = answer.map_err(Into::into)?.into_parts();
            let body = if streams { Answer::Stream(body) } else { read(body, turn).await? };
            Ok(Response::from_parts(head, body))
        }));
        Box::pin(async move { task.await.map_err(BoxError::from)? })
    }
}

#[cfg(test)]
mod tests;
