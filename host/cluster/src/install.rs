//! What a plugin needs in the cluster before it can run: its CRDs, its service account and the RBAC of that account, written by server-side apply **with the rights of the
//! person who installs and never with the host's**.
//!
//! Refuses CRDs of Kubernetes' own groups, CRDs with a conversion webhook (which would send every read to an address of the plugin's choice), and CRDs that another plugin
//! brought. Everything is checked before anything is written.

mod render;

use std::time::Duration;

use http::Method;
use kube::Client;
use operetta_core::{
    cache::Scope,
    grant::Rule,
    name::{NameError, PluginName, ServiceAccount},
    resource::{ObjectKey, Resource},
};
use serde_json::Value;

pub use self::render::{host_rbac, render};
use crate::request::{Fault, Url, send_json};

/// Under which name an installation owns fields.
pub const MANAGER: &str = "operetta-install";
/// The label that says which plugin brought an object.
pub const PLUGIN_LABEL: &str = "operetta.dev/plugin";
/// How long a CRD may take to be served.
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(30);

/// What to install.
#[derive(Debug, Clone)]
pub struct Installation {
    /// The plugin.
    pub plugin: PluginName,
    /// The account that it will act as.
    pub account: ServiceAccount,
    /// The CRDs that it brings.
    pub crds: Vec<Value>,
    /// What its account may do.
    pub rules: Vec<Rule>,
    /// Whether it may publish events.
    pub events: bool,
    /// Where it works: limited to namespaces, it gets Roles there and no ClusterRole.
    pub scope: Scope,
}

/// What became of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is new.
    Created,
    /// It was there and changed.
    Configured,
    /// It was there and is as it was.
    Unchanged,
}

/// An installed object; shown as kubectl does: `serviceaccount/memcached created`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Kind in lower case, with its group where it has one, and name.
    pub what: String,
    /// What became of it.
    pub outcome: Outcome,
}

impl std::fmt::Display for Installed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let outcome = match self.outcome {
            Outcome::Created => "created",
            Outcome::Configured => "configured",
            Outcome::Unchanged => "unchanged",
        };
        write!(f, "{} {outcome}", self.what)
    }
}

/// Why an installation ended.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A CRD that is not one.
    #[error("the plugin brings a CustomResourceDefinition that is not one: {0}")]
    NoCrd(String),
    /// Kubernetes' own groups.
    #[error(
        "the plugin brings {0}, whose group belongs to Kubernetes; a plugin may only bring kinds of groups of its own"
    )]
    ReservedGroup(String),
    /// A conversion webhook.
    #[error(
        "{0} converts by webhook, and a plugin must not be asked whenever an object is read; use one version, or conversion strategy None"
    )]
    Webhook(String),
    /// Another plugin's.
    #[error(
        "{crd} was brought by the plugin {other}; uninstall that plugin first, or remove the label {PLUGIN_LABEL} from the CRD if it is no longer there"
    )]
    Taken {
        /// The CRD.
        crd: String,
        /// Who brought it.
        other: String,
    },
    /// A name that cannot be.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Someone else owns a field.
    #[error(
        "{what} has fields of others that the plugin would set otherwise: {message}; compare them, and install with --force to take them over"
    )]
    Conflict {
        /// The object.
        what: String,
        /// Whose fields.
        message: String,
    },
    /// The API server refuses.
    #[error("cannot install {what}: {fault}")]
    Refused {
        /// The object.
        what: String,
        /// Why.
        fault: Fault,
    },
    /// A CRD is not served.
    #[error("{0} was installed and is not served after {within} s; see its conditions with `kubectl describe`", within = ESTABLISHED_WITHIN.as_secs())]
    NotEstablished(String),
}

/// Installs; `force` takes fields over that other managers own otherwise.
pub async fn install(
    client: &Client,
    installation: &Installation,
    force: bool,
) -> Result<Vec<Installed>, InstallError> {
    let objects: Vec<Planned> = render(installation)?.into_iter().map(Planned::of).collect::<Result<_, _>>()?;
    for object in objects.iter().filter(|o| o.is_crd()) {
        if let Some(there) = object.read(client).await?
            && let Some(other) =
                there.pointer("/metadata/labels").and_then(|l| l.get(PLUGIN_LABEL)).and_then(Value::as_str)
            && other != installation.plugin.as_str()
        {
            return Err(InstallError::Taken { crd: object.what.clone(), other: other.to_owned() });
        }
    }
    let mut installed = Vec::new();
    for object in &objects {
        installed.push(Installed { what: object.what.clone(), outcome: object.apply(client, force).await? });
    }
    for object in objects.iter().filter(|o| o.is_crd()) {
        object.wait_until_established(client).await?;
    }
    Ok(installed)
}

/// An object that will be installed.
struct Planned {
    object: Value,
    resource: Resource,
    key: ObjectKey,
    what: String,
}

impl Planned {
    fn of(object: Value) -> Result<Self, InstallError> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (group, version) = text("/apiVersion").split_once('/').unwrap_or(("", text("/apiVersion")));
        let kind = text("/kind").to_ascii_lowercase();
        // All kinds that are rendered here form their plural this way.
        let resource = Resource::parse(group, version, &format!("{kind}s"))?;
        let key =
            ObjectKey::parse(Some(text("/metadata/namespace")).filter(|n| !n.is_empty()), text("/metadata/name"))?;
        let dot = if group.is_empty() { "" } else { "." };
        let what = format!("{kind}{dot}{group}/{}", key.name);
        Ok(Self { object, resource, key, what })
    }

    fn is_crd(&self) -> bool {
        self.resource.resource() == "customresourcedefinitions"
    }

    fn url(&self) -> Url {
        Url::of(&self.resource, self.key.namespace.as_ref()).object(&self.key.name)
    }

    fn refused(&self) -> impl Fn(Fault) -> InstallError + '_ {
        |fault| InstallError::Refused { what: self.what.clone(), fault }
    }

    async fn read(&self, client: &Client) -> Result<Option<Value>, InstallError> {
        match send_json(client, self.url().get().map_err(self.refused())?).await {
            Ok(object) => Ok(Some(object)),
            Err(fault) if fault.is_not_found() => Ok(None),
            Err(fault) => Err(self.refused()(fault)),
        }
    }

    async fn apply(&self, client: &Client, force: bool) -> Result<Outcome, InstallError> {
        let version = |object: &Value| object.pointer("/metadata/resourceVersion").cloned();
        let before = self.read(client).await?;
        let url = self.url().query("fieldManager", MANAGER).query("force", if force { "true" } else { "false" });
        let request =
            url.request(Method::PATCH, Some("application/apply-patch+yaml"), self.object.to_string().into_bytes());
        match send_json(client, request.map_err(self.refused())?).await {
            Ok(after) => Ok(match before {
                None => Outcome::Created,
                Some(before) if version(&before) == version(&after) => Outcome::Unchanged,
                Some(_) => Outcome::Configured,
            }),
            Err(Fault::Answer { code: 409, message, .. }) => {
                Err(InstallError::Conflict { what: self.what.clone(), message })
            }
            Err(fault) => Err(self.refused()(fault)),
        }
    }

    /// Until the CRD is established and its kind is really served, so that what follows an installation finds it.
    async fn wait_until_established(&self, client: &Client) -> Result<(), InstallError> {
        let text = |pointer: &str| self.object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let mut served = Vec::new();
        for version in self.object.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten() {
            if version.get("served").and_then(Value::as_bool) == Some(true) {
                let name = version.get("name").and_then(Value::as_str).unwrap_or_default();
                served.push(Resource::parse(text("/spec/group"), name, text("/spec/names/plural"))?);
            }
        }
        let wait = async {
            loop {
                let there = self.read(client).await?.is_some_and(|crd| is_established(&crd));
                if there && all_served(client, &served).await {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(ESTABLISHED_WITHIN, wait)
            .await
            .unwrap_or_else(|_| Err(InstallError::NotEstablished(self.what.clone())))
    }
}

fn is_established(crd: &Value) -> bool {
    let conditions = crd.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| {
        let is = |field: &str, value: &str| condition.get(field).and_then(Value::as_str) == Some(value);
        is("type", "Established") && is("status", "True")
    })
}

/// Whether each kind answers. A person who may not list it has reached it all the same.
async fn all_served(client: &Client, kinds: &[Resource]) -> bool {
    for kind in kinds {
        let Ok(request) = Url::of(kind, None).query("limit", "1").get() else { return false };
        match send_json(client, request).await {
            Ok(_) | Err(Fault::Answer { code: 403, .. }) => {}
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests;
