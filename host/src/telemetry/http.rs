//! The two small HTTP servers of every kubebuilder manager: metrics, and health probes.
//!
//! Any pod may reach them. So whoever connects and says nothing is cut off, and **whoever holds many connections keeps nobody else out**: beyond [`MOST`] one goes of the address that has most
//! of them, however fast it opens them, so that no flood ends the one of a probe that has not been answered yet.

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use anyhow::Context as _;
use axum::{Router, http::StatusCode, response::IntoResponse, routing::get, serve::Listener};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};
use tokio_util::sync::CancellationToken;

use super::Metrics;

/// The head of a request must be there this soon after its connection, or after the request before it.
const HEAD: Duration = Duration::from_secs(10);
/// Connections of one server: the kubelet has one at a time, and each Prometheus another.
const MOST: usize = 64;

/// Whether the host does its work.
#[derive(Default)]
pub struct Health(RwLock<State>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum State {
    #[default]
    NotReady,
    /// The API server was reached, and of each plugin that lay there at the start it is known how it fares.
    Works,
    /// The API server was reached, and another host leads: this one.
    StandsBy(String),
}

impl Health {
    /// The host does its work from now on, or no longer.
    pub fn set_ready(&self, ready: bool) {
        self.set(if ready { State::Works } else { State::NotReady });
    }

    /// The host would do its work, and `leader` does it. As in controller-runtime that is ready, too: a roll-out waits for each pod.
    pub fn stand_by(&self, leader: &str) {
        self.set(State::StandsBy(leader.to_owned()));
    }

    /// Whether it works or stands by.
    pub fn is_ready(&self) -> bool {
        self.state() != State::NotReady
    }

    fn set(&self, state: State) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn state(&self) -> State {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves until `stop`: `/metrics` on one address, `/healthz` and `/readyz` on the other; `0` as an address means not at all.
/// Answers with the addresses that it really listens on.
///
/// # Errors
/// An address cannot be read or is taken.
pub async fn serve(
    metrics: (&str, Arc<Metrics>),
    probes: (&str, Arc<Health>),
    stop: &CancellationToken,
) -> anyhow::Result<(Option<SocketAddr>, Option<SocketAddr>)> {
    let encode = move || async move {
        match metrics.1.encode() {
            Ok(text) => {
                ([("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response()
            }
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    };
    let metrics_page = Router::new().route("/metrics", get(encode));
    let ready = move || async move {
        match probes.1.state() {
            State::Works => (StatusCode::OK, "ok".to_owned()),
            State::StandsBy(leader) => (StatusCode::OK, format!("ok: standing by, {leader} leads")),
            State::NotReady => {
                (StatusCode::SERVICE_UNAVAILABLE, "not ready: see the log for what the host waits for".to_owned())
            }
        }
    };
    let probes_page = Router::new().route("/healthz", get(|| async { "ok" })).route("/readyz", get(ready));
    Ok((
        listen("--metrics-bind-address", metrics.0, metrics_page, stop).await?,
        listen("--health-probe-bind-address", probes.0, probes_page, stop).await?,
    ))
}

async fn listen(
    flag: &str,
    address: &str,
    page: Router,
    stop: &CancellationToken,
) -> anyhow::Result<Option<SocketAddr>> {
    if address == "0" {
        return Ok(None);
    }
    // As in Go, no host means all addresses, of IPv6 too where the machine has it.
    let everywhere = address.starts_with(':');
    let first = if everywhere { format!("[::]{address}") } else { address.to_owned() };
    let bound = match TcpListener::bind(first).await {
        Err(error) if everywhere && error.kind() != std::io::ErrorKind::AddrInUse => {
            TcpListener::bind(format!("0.0.0.0{address}")).await
        }
        bound => bound,
    };
    let listener = bound
        .with_context(|| format!("{flag} {address}: cannot listen there; choose another address, or 0 for none"))?;
    let local = listener.local_addr()?;
    tokio::spawn(accept(listener, page, stop.clone()));
    Ok(Some(local))
}

/// A connection that is not over.
struct Open {
    peer: IpAddr,
    task: AbortHandle,
}

/// Takes connections until `stop`.
async fn accept(mut listener: TcpListener, page: Router, stop: CancellationToken) {
    let mut open: VecDeque<Open> = VecDeque::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            () = stop.cancelled() => return,
        };
        open.retain(|connection| !connection.task.is_finished());
        let task = tokio::spawn(converse(stream, page.clone(), stop.clone())).abort_handle();
        open.push_back(Open { peer: peer.ip(), task });
        if open.len() > MOST
            && let Some(one) = crowding(&open).and_then(|one| open.remove(one))
        {
            one.task.abort();
        }
        // What asked at once is answered before the next one comes.
        tokio::task::yield_now().await;
    }
}

/// Of the address that has most of them, the oldest.
fn crowding(open: &VecDeque<Open>) -> Option<usize> {
    let mut held: HashMap<IpAddr, usize> = HashMap::new();
    for connection in open {
        *held.entry(connection.peer).or_default() += 1;
    }
    let most = held.values().max();
    open.iter().position(|connection| held.get(&connection.peer) == most)
}

/// Answers the requests of one connection; after `stop` the one that it is at.
async fn converse(stream: TcpStream, page: Router, stop: CancellationToken) {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(page)));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection for metrics or probes broke off");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn get(at: SocketAddr, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }

    #[tokio::test]
    async fn the_host_is_alive_at_once_and_ready_only_while_it_works() {
        let (metrics, health) = (Arc::new(Metrics::default()), Arc::new(Health::default()));
        let stop = CancellationToken::new();
        let at = "127.0.0.1:0";
        let (metrics, probes) = serve((at, metrics), (at, health.clone()), &stop).await.unwrap();
        let (metrics, probes) = (metrics.unwrap(), probes.unwrap());
        assert!(get(probes, "/healthz").await.0.contains("200"));
        for ready in [false, true, false] {
            health.set_ready(ready);
            let (status, body) = get(probes, "/readyz").await;
            assert_eq!((status.contains("200"), status.contains("503")), (ready, !ready), "{status} {body}");
        }
        health.stand_by("host-7");
        let (status, body) = get(probes, "/readyz").await;
        assert!(status.contains("200") && body.contains("standing by, host-7 leads"), "{status} {body}");
        let (status, body) = get(metrics, "/metrics").await;
        assert!(status.contains("200") && body.ends_with("# EOF\n"), "{status} {body}");
        assert!(get(metrics, "/healthz").await.0.contains("404"));
        stop.cancel();
    }

    #[tokio::test]
    async fn who_says_nothing_keeps_nobody_out_and_is_cut_off() {
        let stop = CancellationToken::new();
        let (_, probes) = serve(("0", Arc::default()), ("127.0.0.1:0", Arc::default()), &stop).await.unwrap();
        let probes = probes.unwrap();
        let mut silent = Vec::new();
        for _ in 0..=MOST {
            silent.push(TcpStream::connect(probes).await.unwrap());
        }
        // The oldest goes at once, long before it is too late for its head.
        let soon = HEAD / 2;
        let mut first = silent.remove(0);
        let read = async { first.read(&mut [0; 1]).await };
        assert!(matches!(tokio::time::timeout(soon, read).await.unwrap(), Ok(0) | Err(_)));
        assert!(get(probes, "/healthz").await.0.contains("200"));

        // And one of which half a head came after a while.
        let mut half = TcpStream::connect(probes).await.unwrap();
        half.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(HEAD * 10, half.read_to_end(&mut answer)).await.expect("it is cut off");
        assert!(began.elapsed() <= HEAD * 2 && !answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    }

    #[tokio::test]
    async fn whoever_opens_many_connections_ends_no_one_of_another_address() {
        let stop = CancellationToken::new();
        let (_, probes) = serve(("0", Arc::default()), ("127.0.0.1:0", Arc::default()), &stop).await.unwrap();
        let probes = probes.unwrap();
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
        let mut probe = socket.connect(probes).await.unwrap();
        let mut crowd = Vec::new();
        for _ in 0..2 * MOST {
            crowd.push(TcpStream::connect(probes).await.unwrap());
        }
        // The one that had to go for the last of them.
        let read = async { crowd[MOST].read(&mut [0; 1]).await };
        assert!(matches!(tokio::time::timeout(HEAD / 2, read).await.unwrap(), Ok(0) | Err(_)));
        probe.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        probe.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.") && answer.contains(" 200 "), "{answer}");
    }

    #[tokio::test]
    async fn zero_serves_nowhere_and_an_address_that_is_taken_is_named() {
        let stop = CancellationToken::new();
        let serve =
            async |metrics: &str, probes: &str| serve((metrics, Arc::default()), (probes, Arc::default()), &stop).await;
        assert_eq!(serve("0", "0").await.unwrap(), (None, None));
        let (everywhere, _) = serve(":0", "0").await.unwrap();
        let port = everywhere.unwrap().port();
        assert!(get(SocketAddr::from(([127, 0, 0, 1], port)), "/metrics").await.0.contains("200"));
        let (taken, _) = serve("127.0.0.1:0", "0").await.unwrap();
        let taken = taken.unwrap().to_string();
        let error = serve("0", &taken).await.unwrap_err().to_string();
        assert!(error.contains(&format!("--health-probe-bind-address {taken}")), "{error}");
        let error = serve("nonsense", "0").await.unwrap_err().to_string();
        assert!(error.contains("--metrics-bind-address nonsense"), "{error}");
    }
}
