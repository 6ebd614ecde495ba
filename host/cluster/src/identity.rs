//! Acting as a service account, so that the cluster's RBAC and audit log see the plugin and not the host.
//!
//! **An account opts in**: it is acted as only by the plugins that its annotation `operetta.dev/plugin` names, so that no Plugin takes up an account that was made for something else.
//! An account that is deleted, or no longer names the plugin, is refused within 10 s.
//!
//! **Only the user is ever impersonated, never a group**: the API server itself adds `system:serviceaccounts`, `system:serviceaccounts:NAMESPACE` and
//! `system:authenticated` to a service account's name, and nothing that a plugin says reaches these headers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::BoxFuture;
use http::{HeaderName, HeaderValue, Request, Response};
use kube::{Client, client::Body};
use operetta_core::{
    grant::Verb,
    name::{Actor, ObjectName, PluginName, ServiceAccount},
    port::ApiError,
    resource::Resource,
};
use serde_json::Value;
use tokio::{runtime::Handle, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use tower::Service;

use crate::{
    access::{Asked, Refusal},
    install::{PLUGIN_LABEL, Way},
    request::{Fault, Url, send_json},
    review::Question,
    single::Single,
};

/// How long an account is believed to be there and to name its plugin. With the time between two looks at the rights of those who watch, a
/// revocation takes 30 s at most.
const BELIEVED_FOR: Duration = Duration::from_secs(10);
/// A client that nobody used for this long is dropped.
const KEPT_FOR: Duration = Duration::from_mins(10);
/// The header that names the user.
const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");

/// Gives clients that act as service accounts. Another way than impersonation (tokens of short life) is another implementation.
#[async_trait]
pub trait Identity: Send + Sync {
    /// A client whose every request the API server sees as made by the plugin's account.
    ///
    /// # Errors
    /// `Forbidden` where the account does not exist or does not name the plugin; never `NotFound`, which a plugin would take for the absence of its object.
    async fn client(&self, actor: &Actor) -> Result<Client, ApiError>;

    /// Whether the host itself may do this as the plugin's account, where the API server constrains that.
    ///
    /// # Errors
    /// What the host lacks, or why it could not be asked.
    async fn check_host(&self, actor: &Actor, asked: &Asked<'_>) -> Result<(), Refusal>;
}

/// Impersonation: one header on the host's own connections. Works with any kubeconfig that may impersonate.
pub struct Impersonation {
    inner: Arc<Inner>,
}

struct Inner {
    host: Client,
    runtime: Handle,
    clients: Mutex<HashMap<Actor, Known>>,
    /// One look at an account at a time: a plugin may ask for its client as often as it likes, and the host asks with its own right.
    checks: Single<Actor, Result<Client, ApiError>>,
}

struct Known {
    client: Client,
    /// Whether the host may act as it without constraints, and when that was asked.
    classic: Option<(bool, Instant)>,
    checked: Instant,
    used: Instant,
}

impl Impersonation {
    /// On the host's own client. To be called on the host's runtime, on which the clients are served.
    pub fn new(host: Client) -> Self {
        let (runtime, clients, checks) = (Handle::current(), Mutex::default(), Single::default());
        Self { inner: Arc::new(Inner { host, runtime, clients, checks }) }
    }
}

impl Inner {
    fn known(&self, actor: &Actor) -> Option<Client> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let known = clients.get_mut(actor)?;
        known.used = Instant::now();
        (known.checked.elapsed() < BELIEVED_FOR).then(|| known.client.clone())
    }

    /// Whether the host may do as this account whatever the account may.
    async fn acts_classically(&self, actor: &Actor) -> Result<bool, Fault> {
        let known = |clients: &HashMap<Actor, Known>| clients.get(actor)?.classic;
        let before = known(&self.clients.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some((may, at)) = before
            && at.elapsed() < BELIEVED_FOR
        {
            return Ok(may);
        }
        let asked = Instant::now();
        let (group, verb) = Way::Classic.becoming();
        let (namespace, name) = (actor.account.namespace.as_str(), actor.account.name.as_str());
        let becoming = Question { verb, group, resource: "serviceaccounts", namespace, name, ..Question::default() };
        let may = becoming.ask(&self.host, None).await?;
        if let Some(known) = self.clients.lock().unwrap_or_else(PoisonError::into_inner).get_mut(actor) {
            known.classic = Some((may, asked));
        }
        Ok(may)
    }

    /// Looks at an account, or waits for who does.
    async fn look(&self, actor: &Actor) -> Result<Client, ApiError> {
        let look = async {
            let asked = Instant::now();
            check(&self.host, actor).await?;
            self.keep(actor, asked)
        };
        self.checks.ask(actor, || self.known(actor).map(Ok), look).await
    }

    fn keep(&self, actor: &Actor, checked: Instant) -> Result<Client, ApiError> {
        let now = Instant::now();
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|_, known| known.used.elapsed() < KEPT_FOR);
        if let Some(known) = clients.get_mut(actor) {
            known.checked = checked;
            return Ok(known.client.clone());
        }
        let account = &actor.account;
        let user = HeaderValue::from_str(&account.user())
            .map_err(|e| ApiError::Invalid(format!("service account {account}: {e}")))?;
        // A client owns a task, which belongs on the host's runtime whoever asks for it.
        let _guard = self.runtime.enter();
        let acting = ActAs { inner: self.host.clone(), user, plugin: Acting(actor.plugin.clone()) };
        let client = Client::new(acting, account.namespace.as_str());
        clients.insert(actor.clone(), Known { client: client.clone(), classic: None, checked, used: now });
        Ok(client)
    }
}

#[async_trait]
impl Identity for Impersonation {
    async fn client(&self, actor: &Actor) -> Result<Client, ApiError> {
        if let Some(client) = self.inner.known(actor) {
            return Ok(client);
        }
        // Others may wait for the same look. A plugin that asks may compute, and nothing that it awaits goes on meanwhile; a task of the host does.
        let (inner, who) = (Arc::clone(&self.inner), actor.clone());
        let task = self.inner.runtime.spawn(async move { inner.look(&who).await });
        AbortOnDropHandle::new(task).await.unwrap_or_else(|stopped| {
            Err(ApiError::Unavailable(format!("cannot look up service account {}: {stopped}", actor.account)))
        })
    }

    async fn check_host(&self, actor: &Actor, asked: &Asked<'_>) -> Result<(), Refusal> {
        let what = format!("cannot ask what the host may do as service account {}", actor.account);
        let unasked = |fault: Fault| Refusal::Unasked(fault.into_api_error(&what));
        if self.inner.acts_classically(actor).await.map_err(unasked)? {
            return Ok(());
        }
        let Some(verb) = Way::Constrained.acting(asked.verb.as_str()) else { return Ok(()) };
        if asked.question(&verb).ask(&self.inner.host, None).await.map_err(unasked)? {
            return Ok(());
        }
        let rule = asked.rule(
            &[Verb::List, Verb::Watch].map(|v| Way::Constrained.acting(v.as_str()).unwrap_or_default()).join(", "),
        );
        Err(Refusal::Lacks(format!(
            "the host itself may not {asked} as service account {}; run `operetta install` for the plugin, or add to a {} of the host's account: {rule}",
            actor.account,
            asked.role()
        )))
    }
}

/// Whether the account is there and says that the plugin may act as it.
async fn check(host: &Client, actor: &Actor) -> Result<(), ApiError> {
    let what = format!("cannot look up service account {}", actor.account);
    match objection(host, actor).await {
        Ok(None) => Ok(()),
        Ok(Some(why)) => Err(ApiError::Forbidden(why)),
        // Nothing is said about the account: the host's own credentials have expired.
        Err(Fault::Answer { code: 401, message, .. }) => Err(ApiError::Unavailable(format!("{what}: {message}"))),
        Err(fault) => Err(fault.into_api_error(&what)),
    }
}

/// Why a plugin may not act as its account, and what to do, where the account is not there or does not name it.
///
/// # Errors
/// The account cannot be looked up.
pub async fn objection(client: &Client, Actor { plugin, account }: &Actor) -> Result<Option<String>, Fault> {
    let invalid = |e: operetta_core::name::NameError| Fault::Garbled(e.to_string());
    let accounts = Resource::parse("", "v1", "serviceaccounts").map_err(invalid)?;
    let name = ObjectName::parse(account.name.as_str()).map_err(invalid)?;
    match send_json(client, Url::of(&accounts, Some(&account.namespace)).object(&name).get()?).await {
        Ok(found) => {
            let said = named(&found);
            Ok((!said.contains(&plugin.as_str())).then(|| unnamed(plugin, account, &said)))
        }
        Err(fault) if fault.is_not_found() => Ok(Some(format!(
            "service account {account} does not exist; run `operetta install` for the plugin, or `kubectl create serviceaccount {} --namespace {}` and `{}`",
            account.name,
            account.namespace,
            annotate(plugin, account, &[])
        ))),
        Err(fault) => Err(fault),
    }
}

/// The plugins that an account names, as the API server sent it: one, or several with commas between them.
pub(crate) fn named(account: &Value) -> Vec<&str> {
    let annotation = account.pointer("/metadata/annotations").and_then(|all| all.get(PLUGIN_LABEL));
    let names = annotation.and_then(Value::as_str).unwrap_or_default();
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect()
}

fn unnamed(plugin: &PluginName, account: &ServiceAccount, others: &[&str]) -> String {
    let says = match others {
        [] => "does not say which plugin may act as it".to_owned(),
        others => format!("says that {} may act as it, and not {plugin}", others.join(", ")),
    };
    format!(
        "service account {account} {says}; run `operetta install` for the plugin, or `{}`",
        annotate(plugin, account, others)
    )
}

/// What to type so that the account names the plugin, too.
fn annotate(plugin: &PluginName, account: &ServiceAccount, others: &[&str]) -> String {
    let all: Vec<_> = others.iter().copied().chain([plugin.as_str()]).collect();
    let overwrite = if others.is_empty() { "" } else { " --overwrite" };
    format!(
        "kubectl annotate serviceaccount {} --namespace {} {PLUGIN_LABEL}={}{overwrite}",
        account.name,
        account.namespace,
        all.join(",")
    )
}

/// The host's client with one header: the tower service by which a plugin becomes its account.
#[derive(Clone)]
struct ActAs {
    inner: Client,
    user: HeaderValue,
    plugin: Acting,
}

/// For which plugin a request is made; travels with the request and is never sent.
#[derive(Debug, Clone)]
pub(crate) struct Acting(pub PluginName);

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
        request.extensions_mut().insert(self.plugin.clone());
        let inner = self.inner.clone();
        Box::pin(async move { inner.send(request).await })
    }
}

#[cfg(test)]
mod tests;
