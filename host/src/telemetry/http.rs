//! The two small HTTP servers of every kubebuilder manager: metrics, and health probes.

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context as _;
use axum::{Router, http::StatusCode, response::IntoResponse, routing::get};
use tokio_util::sync::CancellationToken;

use super::Metrics;

/// Whether the host does its work.
#[derive(Default)]
pub struct Health {
    /// The API server was reached and the plugin directory was read.
    ready: AtomicBool,
}

impl Health {
    /// The host does its work from now on, or no longer.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
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
        if probes.1.ready.load(Ordering::Relaxed) {
            (StatusCode::OK, "ok")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "not ready: see the log for what the host waits for")
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
    // As in Go, no host means all addresses.
    let full = if address.starts_with(':') { format!("0.0.0.0{address}") } else { address.to_owned() };
    let listener = tokio::net::TcpListener::bind(&full)
        .await
        .with_context(|| format!("{flag} {address}: cannot listen there; choose another address, or 0 for none"))?;
    let local = listener.local_addr()?;
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, page).with_graceful_shutdown(stop).await {
            tracing::error!(%error, "an HTTP server ended");
        }
    });
    Ok(Some(local))
}
