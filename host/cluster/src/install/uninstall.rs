//! Takes out of the cluster what an installation brought: CRDs, Plugin, service account, roles, bindings.
//!
//! **Only what carries the plugin's label and was written by an installation**: what somebody else wrote is named and left. CRDs go first, with all objects of their kinds, as
//! long as the plugin still has its rights: it may have finalizers to remove. An account that other plugins may act as, too, stays with them.

use std::collections::BTreeMap;

use http::header::ACCEPT;
use kube::Client;
use operetta_core::{name::PluginName, resource::Resource};
use serde_json::{Value, json};

use super::{How, InstallError, Installed, MANAGER, Outcome, PLUGIN_LABEL, planned::Planned, preflight::Rights};
use crate::{
    identity::named,
    request::{Fault, Url, send_json},
};

/// What an installation writes besides namespaces, which others may use by now; in the order in which it is removed.
const KINDS: [(&str, &str, &str, &str); 7] = [
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"),
    // Its ConfigMaps go with it. A host may hold it until no object needs the plugin any more.
    ("operetta.dev", "v1alpha1", "plugins", "Plugin"),
    ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole"),
    ("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    ("", "v1", "serviceaccounts", "ServiceAccount"),
];
/// Objects a page.
const PAGE: &str = "500";
/// Of objects only what counts here: names and finalizers.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// What a plugin has in the cluster.
pub struct Survey {
    objects: Vec<(Planned, Deed)>,
    /// What carries the plugin's label and was written by others; it stays.
    pub foreign: Vec<String>,
    /// Accounts that stay, each with the plugins that may act as it.
    pub shared: Vec<String>,
    /// The objects of the kinds that it brought.
    pub kinds: Vec<KindSurvey>,
}

/// What becomes of an object.
enum Deed {
    /// It goes, if it is still the one of this uid.
    Delete(String),
    /// It stays, as it is planned.
    Keep,
}

impl Deed {
    fn verb(&self) -> &'static str {
        match self {
            Self::Delete(_) => "delete",
            Self::Keep => "patch",
        }
    }
}

/// The objects of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindSurvey {
    /// The CRD's name, such as `pets.petstore.example.com`.
    pub name: String,
    /// How many there are.
    pub objects: usize,
    /// Of these, how many are held by which finalizer.
    pub finalizers: BTreeMap<String, usize>,
}

impl Survey {
    /// Looks at everything of this plugin, and whether the person may delete it. The plugins of `before` are gone by then.
    ///
    /// # Errors
    /// The API server does not tell, or rights are missing.
    pub async fn of(
        client: &Client,
        plugin: &PluginName,
        before: &[PluginName],
        keep_crds: bool,
    ) -> Result<Self, InstallError> {
        let selector = format!("{PLUGIN_LABEL}={plugin},app.kubernetes.io/managed-by=operetta");
        // Its label names but one of the plugins that may act as it.
        let accounts = format!("{PLUGIN_LABEL},app.kubernetes.io/managed-by=operetta");
        let mut survey = Self { objects: Vec::new(), foreign: Vec::new(), shared: Vec::new(), kinds: Vec::new() };
        for (group, version, plural, kind) in KINDS {
            let resource = Resource::parse(group, version, plural)?;
            let is_account = kind == "ServiceAccount";
            let selector = if is_account { &accounts } else { &selector };
            for item in list(client, &resource, &[("labelSelector", selector)], None).await? {
                let labelled = item.pointer("/metadata/labels").and_then(|all| all.get(PLUGIN_LABEL));
                let names = named(&item);
                if is_account && labelled != Some(&json!(plugin)) && !names.contains(&plugin.as_str()) {
                    continue;
                }
                let metadata = |field: &str| item.pointer(&format!("/metadata/{field}")).cloned().unwrap_or_default();
                let place = json!({"name": metadata("name"), "namespace": metadata("namespace")});
                let object = json!({"apiVersion": resource.api_version(), "kind": kind, "metadata": place});
                let planned = Planned::of(object)?;
                if !was_installed(&item) {
                    survey.foreign.push(planned.what);
                    continue;
                }
                let others =
                    names.into_iter().filter(|name| before.iter().chain([plugin]).all(|gone| gone.as_str() != *name));
                let others: Vec<_> = others.collect();
                if is_account && !others.is_empty() {
                    survey.shared.push(format!("{} stays: {} may act as it, too", planned.what, others.join(", ")));
                    survey.objects.push((planned.left_to(&others)?, Deed::Keep));
                    continue;
                }
                if planned.is_crd() {
                    survey.kinds.push(KindSurvey::of(client, &item).await?);
                    if keep_crds {
                        continue;
                    }
                }
                survey.objects.push((planned, Deed::Delete(text(&item, "/metadata/uid").to_owned())));
            }
        }
        let rights = Rights::of(client).await?;
        let mut missing = Vec::new();
        for (object, deed) in &survey.objects {
            if !rights.allow(deed.verb(), object).await? {
                missing.push(object.deed(deed.verb()));
            }
        }
        if missing.is_empty() { Ok(survey) } else { Err(InstallError::Lacks(missing)) }
    }

    /// What would become of which objects, in this order.
    pub fn objects(&self) -> impl Iterator<Item = Installed> {
        self.objects.iter().map(|(object, deed)| Installed {
            what: object.what.clone(),
            outcome: match deed {
                Deed::Delete(_) => Outcome::Deleted,
                Deed::Keep => Outcome::Configured,
            },
        })
    }

    /// Deletes it, each before the next is touched.
    ///
    /// # Errors
    /// Something does not go. What comes after it is still there, so that the plugin can go on with what it has to do, and trying again goes on from there.
    pub async fn remove(&self, client: &Client, mut tell: impl FnMut(&Installed)) -> Result<(), InstallError> {
        for (object, deed) in &self.objects {
            let outcome = match deed {
                Deed::Delete(uid) => {
                    if !object.delete_this(client, uid).await? {
                        continue;
                    }
                    object.wait_until_gone(client).await?;
                    Outcome::Deleted
                }
                Deed::Keep => {
                    // Whoever wrote the annotation: nobody else's name is taken out of it.
                    let how = How { manager: MANAGER, force: true, dry_run: false };
                    object.send(client, how, object.object()).await?;
                    Outcome::Configured
                }
            };
            tell(&Installed { what: object.what.clone(), outcome });
        }
        Ok(())
    }
}

impl KindSurvey {
    async fn of(client: &Client, crd: &Value) -> Result<Self, InstallError> {
        let mut survey = Self { name: text(crd, "/metadata/name").to_owned(), objects: 0, finalizers: BTreeMap::new() };
        let served = |version: &&Value| version.get("served").and_then(Value::as_bool) == Some(true);
        let version = crd.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten().find(served);
        // What is served in no version cannot be counted, and neither can it be deleted one by one.
        let Some(version) = version else { return Ok(survey) };
        let resource =
            Resource::parse(text(crd, "/spec/group"), text(version, "/name"), text(crd, "/spec/names/plural"))?;
        for object in list(client, &resource, &[], Some(METADATA)).await? {
            survey.objects += 1;
            let held = object.pointer("/metadata/finalizers").and_then(Value::as_array);
            for finalizer in held.into_iter().flatten().filter_map(Value::as_str) {
                *survey.finalizers.entry(finalizer.to_owned()).or_default() += 1;
            }
        }
        Ok(survey)
    }
}

/// Whether an installation wrote it.
fn was_installed(object: &Value) -> bool {
    let managers = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    managers.into_iter().flatten().any(|entry| text(entry, "/manager") == MANAGER)
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// All objects of a kind, page by page.
async fn list(
    client: &Client,
    resource: &Resource,
    query: &[(&str, &str)],
    accept: Option<&str>,
) -> Result<Vec<Value>, InstallError> {
    let unreadable = |fault| InstallError::Unreadable { what: resource.to_string(), fault };
    let (mut items, mut next) = (Vec::new(), String::new());
    loop {
        let mut url = Url::of(resource, None).query("limit", PAGE);
        for (name, value) in query {
            url = url.query(name, value);
        }
        if !next.is_empty() {
            url = url.query("continue", &next);
        }
        let mut request = url.get().map_err(unreadable)?;
        if let Some(accept) = accept.and_then(|accept| accept.parse().ok()) {
            request.headers_mut().insert(ACCEPT, accept);
        }
        let mut page = match send_json(client, request).await {
            // A kind that the cluster does not have has no objects: that of Plugins comes with the first of them.
            Err(Fault::Answer { code: 404, .. }) => return Ok(items),
            answer => answer.map_err(unreadable)?,
        };
        if let Some(Value::Array(found)) = page.get_mut("items").map(Value::take) {
            items.extend(found);
        }
        text(&page, "/metadata/continue").clone_into(&mut next);
        if next.is_empty() {
            return Ok(items);
        }
    }
}
