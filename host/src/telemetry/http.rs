//! The two small HTTP servers of every kubebuilder manager: metrics, and health probes.

use std::{
    future::Future,
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
};

use anyhow::Context as _;
use axum::{Router, http::StatusCode, response::IntoResponse, routing::get};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Metrics;

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
        listen("--metrics-bind-address", metrics.0, metrics_page, stop.clone().cancelled_owned()).await?,
        listen("--health-probe-bind-address", probes.0, probes_page, stop.clone().cancelled_owned()).await?,
    ))
}

async fn listen(
    flag: &str,
    address: &str,
    page: Router,
    stop: impl Future<Output = ()> + Send + 'static,
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
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, page).with_graceful_shutdown(stop).await {
            tracing::error!(%error, "an HTTP server ended");
        }
    });
    Ok(Some(local))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };

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
