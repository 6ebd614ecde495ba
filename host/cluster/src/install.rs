//! What a plugin needs in the cluster before it can run: its CRDs, its service account and the RBAC of that account, written by server-side apply **with the rights of the
//! person who installs and never with the host's**.
//!
//! Refuses CRDs of Kubernetes' own groups, CRDs with a conversion webhook (which would send every read to an address of the plugin's choice), and CRDs that another plugin
//! brought. Everything is checked before anything is written.

mod admission;
mod planned;
mod preflight;
mod render;
mod uninstall;
mod way;

use std::time::Duration;

use kube::Client;
use operetta_core::{
    cache::Scope,
    grant::Rule,
    name::{NameError, Namespace, PluginName, ServiceAccount},
    resource::Resource,
};
use serde::Serialize;
use serde_json::{Value, json};

use self::planned::Planned;
pub use self::{
    admission::admission,
    preflight::{Change, essence},
    render::{host_rbac, render},
    uninstall::{KindSurvey, Survey},
    way::Way,
};
use crate::request::{Fault, Url, send_json};

/// Under which name an installation owns fields.
pub const MANAGER: &str = "operetta-install";
/// The label that says which plugin brought an object.
pub const PLUGIN_LABEL: &str = "operetta.dev/plugin";
/// How long a CRD may take to be served.
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(30);
/// How long what is removed may take to go; a namespace or a CRD takes what lies in it along.
const GONE_WITHIN: Duration = Duration::from_mins(1);

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
    /// The account of the host that will act as the plugin's.
    pub host: ServiceAccount,
    /// How the host becomes the plugin's account.
    pub way: Way,
}

/// What became of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It is new.
    Created,
    /// It was there and changed.
    Configured,
    /// It was there and is as it was.
    Unchanged,
    /// It was there and is gone.
    Deleted,
}

/// An installed object; shown as kubectl does: `serviceaccount/memcached created`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Installed {
    /// Kind in lower case, with its group where it has one, and name.
    #[serde(rename = "object")]
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
            Outcome::Deleted => "deleted",
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
    /// Objects are stored in a version that would be gone.
    #[error(
        "objects of {crd} may be stored as {version}, and the new CRD has only {versions}, so that nobody could read them; keep {version} in the CRD with `served: false`, \
         or write every object anew and then forget the version: `kubectl patch crd {name} --subresource=status --type=merge -p \
         '{{\"status\":{{\"storedVersions\":[\"{versions}\"]}}}}'`"
    )]
    StoredVersion {
        /// The CRD.
        crd: String,
        /// Its name alone.
        name: String,
        /// The version that would be gone.
        version: String,
        /// Those that would be there.
        versions: String,
    },
    /// A verb that no plugin has a use for.
    #[error(
        "the rules have the verb {0:?}, which no plugin has a use for: it may get, list, watch, create, update, patch and delete; take it out of spec.grants.rules. \
         What a plugin hands on by RBAC is at most what it has itself"
    )]
    Verb(String),
    /// The person may not.
    #[error(
        "you may not do all that it takes, and nothing was changed: {}; ask whoever administers the cluster for these rights, or to type this command",
        .0.join(", ")
    )]
    Lacks(Vec<String>),
    /// A name that cannot be.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Someone else owns a field.
    #[error(
        "{what} has fields of others that would be set otherwise: {message}; compare them, and take them over with --force"
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
    /// The API server refuses to delete.
    #[error("cannot delete {what}: {fault}")]
    Kept {
        /// The object.
        what: String,
        /// Why.
        fault: Fault,
    },
    /// The API server refuses to tell.
    #[error("cannot list {what}: {fault}")]
    Unreadable {
        /// The kind.
        what: String,
        /// Why.
        fault: Fault,
    },
    /// A CRD is not served.
    #[error("{0} was installed and is not served after {within} s; see its conditions with `kubectl describe`", within = ESTABLISHED_WITHIN.as_secs())]
    NotEstablished(String),
    /// Something is held.
    #[error("{0} was deleted and is still there after {within} s; `kubectl get -o yaml` says what holds it (metadata.finalizers, status.conditions)", within = GONE_WITHIN.as_secs())]
    NotGone(String),
}

/// How objects are applied.
#[derive(Debug, Clone, Copy)]
pub struct How<'a> {
    /// Under which name fields are owned.
    pub manager: &'a str,
    /// Whether to take fields over that other managers own otherwise.
    pub force: bool,
    /// Whether the API server is only asked what would become of it.
    pub dry_run: bool,
}

/// Applies objects in their order.
pub async fn apply(client: &Client, objects: Vec<Value>, how: How<'_>) -> Result<Vec<Installed>, InstallError> {
    let objects: Vec<Planned> = objects.into_iter().map(Planned::of).collect::<Result<_, _>>()?;
    apply_planned(client, &objects, how).await
}

async fn apply_planned(client: &Client, objects: &[Planned], how: How<'_>) -> Result<Vec<Installed>, InstallError> {
    let mut installed: Vec<Installed> = Vec::new();
    for object in objects {
        // The API server tries nothing out in a namespace that is not there, and one that is only tried out is not.
        let lies_nowhere = how.dry_run
            && object.namespace().is_some_and(|namespace| {
                let what = format!("namespace/{namespace}");
                installed.iter().any(|before| before.what == what && before.outcome == Outcome::Created)
            });
        let outcome = if lies_nowhere { Outcome::Created } else { object.apply(client, how).await? };
        installed.push(Installed { what: object.what.clone(), outcome });
    }
    if !how.dry_run {
        for object in objects.iter().filter(|o| o.is_crd()) {
            object.wait_until_established(client).await?;
        }
    }
    Ok(installed)
}

/// Removes objects, the last one first, each before the next one is touched; tells of those that were there.
pub async fn remove(client: &Client, objects: Vec<Value>, dry_run: bool) -> Result<Vec<Installed>, InstallError> {
    let objects: Vec<Planned> = objects.into_iter().rev().map(Planned::of).collect::<Result<_, _>>()?;
    let mut removed = Vec::new();
    for object in objects {
        if object.delete(client, dry_run).await? {
            if !dry_run {
                object.wait_until_gone(client).await?;
            }
            removed.push(Installed { what: object.what, outcome: Outcome::Deleted });
        }
    }
    Ok(removed)
}

/// What installed plugins still have in the cluster: their Plugins, and their accounts in the namespace of these.
pub async fn plugins(client: &Client, accounts: &Namespace) -> Result<Vec<Value>, InstallError> {
    let kinds = [
        ("operetta.dev", "v1alpha1", "plugins", "Plugin", None),
        ("", "v1", "serviceaccounts", "ServiceAccount", Some(accounts)),
    ];
    let mut found = Vec::new();
    for (group, version, plural, kind, namespace) in kinds {
        let resource = Resource::parse(group, version, plural)?;
        let unreadable = |fault| InstallError::Unreadable { what: resource.to_string(), fault };
        let mut url = Url::of(&resource, namespace);
        if namespace.is_some() {
            url = url.query("labelSelector", PLUGIN_LABEL);
        }
        let list = match send_json(client, url.get().map_err(unreadable)?).await {
            Ok(list) => list,
            // The kind itself is not there.
            Err(fault) if fault.is_not_found() => continue,
            Err(fault) => return Err(unreadable(fault)),
        };
        for item in list.get("items").and_then(Value::as_array).into_iter().flatten() {
            // Of the object only what names it.
            let metadata =
                json!({"name": item.pointer("/metadata/name"), "namespace": item.pointer("/metadata/namespace")});
            found.push(json!({"apiVersion": resource.api_version(), "kind": kind, "metadata": metadata}));
        }
    }
    Ok(found)
}

/// An installation that was thought through: everything that can be known to fail would have failed.
pub struct Plan {
    objects: Vec<Planned>,
    force: bool,
    /// What would become of each object.
    pub changes: Vec<Change>,
}

impl Plan {
    /// Looks at what would change, and writes nothing; `force` takes fields over that other managers own otherwise.
    ///
    /// # Errors
    /// The installation would fail.
    pub async fn of(client: &Client, installation: &Installation, force: bool) -> Result<Self, InstallError> {
        let objects: Vec<Planned> = render(installation)?.into_iter().map(Planned::of).collect::<Result<_, _>>()?;
        let how = How { manager: MANAGER, force, dry_run: true };
        let changes = preflight::preflight(client, installation.plugin.as_str(), &objects, how).await?;
        Ok(Self { objects, force, changes })
    }

    /// Installs.
    ///
    /// # Errors
    /// The cluster has changed meanwhile, or cannot be reached any more. What was applied stays; installing again goes on from there.
    pub async fn apply(&self, client: &Client) -> Result<Vec<Installed>, InstallError> {
        apply_planned(client, &self.objects, How { manager: MANAGER, force: self.force, dry_run: false }).await
    }
}

/// Installs; `force` takes fields over that other managers own otherwise.
pub async fn install(
    client: &Client,
    installation: &Installation,
    force: bool,
) -> Result<Vec<Installed>, InstallError> {
    Plan::of(client, installation, force).await?.apply(client).await
}

#[cfg(test)]
mod tests;
