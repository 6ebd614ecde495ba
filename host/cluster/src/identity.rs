//! Acting as a service account, so that the cluster's RBAC and audit log see the plugin and not the host.
//!
//! **Only the user is ever impersonated, never a group**: the API server itself adds `system:serviceaccounts`, `system:serviceaccounts:NAMESPACE` and
//! `system:authenticated` to a service account's name, and nothing that a plugin says reaches these headers.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::BoxFuture;
use http::{HeaderName, HeaderValue, Request, Response};
use kube::{Client, client::Body};
use operetta_core::{
    name::{ObjectName, ServiceAccount},
    port::ApiError,
    resource::Resource,
};
use tokio::{runtime::Handle, time::Instant};
use tower::Service;

use crate::request::{Fault, Url, send};

/// How long an account that existed is believed to exist.
const EXISTS_FOR: Duration = Duration::from_secs(30);
/// A client that nobody used for this long is dropped.
const KEPT_FOR: Duration = Duration::from_mins(10);
/// The header that names the user.
const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");

/// Gives clients that act as service accounts. Another way than impersonation (tokens of short life) is another implementation.
#[async_trait]
pub trait Identity: Send + Sync {
    /// A client whose every request the API server sees as made by this account.
    ///
    /// # Errors
    /// `Forbidden` where the account does not exist or the host may not act as it; never `NotFound`, which a plugin would take for the absence of its object.
    async fn client(&self, account: &ServiceAccount) -> Result<Client, ApiError>;
}

/// Impersonation: one header on the host's own connections. Works with any kubeconfig that may impersonate.
pub struct Impersonation {
    host: Client,
    runtime: Handle,
    clients: Mutex<HashMap<ServiceAccount, Known>>,
}

struct Known {
    client: Client,
    checked: Instant,
    used: Instant,
}

impl Impersonation {
    /// On the host's own client. To be called on the host's runtime, on which the clients are served.
    pub fn new(host: Client) -> Self {
        Self { host, runtime: Handle::current(), clients: Mutex::default() }
    }

    fn known(&self, account: &ServiceAccount) -> Option<Client> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let known = clients.get_mut(account)?;
        known.used = Instant::now();
        (known.checked.elapsed() < EXISTS_FOR).then(|| known.client.clone())
    }

    fn keep(&self, account: &ServiceAccount) -> Result<Client, ApiError> {
        let now = Instant::now();
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|_, known| known.used.elapsed() < KEPT_FOR);
        if let Some(known) = clients.get_mut(account) {
            known.checked = now;
            return Ok(known.client.clone());
        }
        let user = HeaderValue::from_str(&account.user())
            .map_err(|e| ApiError::Invalid(format!("service account {account}: {e}")))?;
        // A client owns a task, which belongs on the host's runtime whoever asks for it.
        let _guard = self.runtime.enter();
        let client = Client::new(ActAs { inner: self.host.clone(), user }, account.namespace.as_str());
        clients.insert(account.clone(), Known { client: client.clone(), checked: now, used: now });
        Ok(client)
    }
}

#[async_trait]
impl Identity for Impersonation {
    async fn client(&self, account: &ServiceAccount) -> Result<Client, ApiError> {
        if let Some(client) = self.known(account) {
            return Ok(client);
        }
        check_exists(&self.host, account).await?;
        self.keep(account)
    }
}

async fn check_exists(host: &Client, account: &ServiceAccount) -> Result<(), ApiError> {
    let what = format!("cannot look up service account {account}");
    let invalid = |e: operetta_core::name::NameError| ApiError::Invalid(e.to_string());
    let accounts = Resource::parse("", "v1", "serviceaccounts").map_err(invalid)?;
    let name = ObjectName::parse(account.name.as_str()).map_err(invalid)?;
    let request = Url::of(&accounts, Some(&account.namespace)).object(&name).get();
    match send(host, request.map_err(|e| e.into_api_error(&what))?).await {
        Ok(_) => Ok(()),
        Err(fault) if fault.is_not_found() => Err(ApiError::Forbidden(format!(
            "service account {account} does not exist; run `operetta install` for the plugin, or `kubectl create serviceaccount {} --namespace {}`",
            account.name, account.namespace
        ))),
        // Nothing is said about the account: the host's own credentials have expired.
        Err(Fault::Answer { code: 401, message, .. }) => Err(ApiError::Unavailable(format!("{what}: {message}"))),
        Err(fault) => Err(fault.into_api_error(&what)),
    }
}

/// The host's client with one header: the tower service by which a plugin becomes its account.
#[derive(Clone)]
struct ActAs {
    inner: Client,
    user: HeaderValue,
}

impl Service<Request<Body>> for ActAs {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, kube::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), kube::Error>> {
        // The client waits for its own readiness when it sends.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let headers = request.headers_mut();
        let strange: Vec<_> =
            headers.keys().filter(|name| name.as_str().starts_with("impersonate-")).cloned().collect();
        for name in strange {
            headers.remove(name);
        }
        headers.insert(IMPERSONATE_USER, self.user.clone());
        let inner = self.inner.clone();
        Box::pin(async move { inner.send(request).await })
    }
}

#[cfg(test)]
mod tests;
