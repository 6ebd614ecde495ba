//! One object on its way into the cluster or out of it.

use std::time::Duration;

use http::Method;
use kube::Client;
use operetta_core::{
    name::{AccountName, NameError, Namespace, ServiceAccount},
    resource::{ObjectKey, Resource},
};
use serde_json::{Value, json};

use super::{ESTABLISHED_WITHIN, GONE_WITHIN, How, InstallError, Outcome, preflight::Change, render::account_of};
use crate::{
    identity::named,
    request::{Fault, Url, send_json},
    review::Question,
};

/// An object that will be installed.
pub(super) struct Planned {
    object: Value,
    resource: Resource,
    key: ObjectKey,
    pub what: String,
}

impl Planned {
    pub fn of(object: Value) -> Result<Self, InstallError> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (group, version) = text("/apiVersion").split_once('/').unwrap_or(("", text("/apiVersion")));
        let kind = text("/kind").to_ascii_lowercase();
        // All kinds that are rendered here form their plural in one of these ways.
        let plural = kind.strip_suffix('y').map_or_else(|| format!("{kind}s"), |stem| format!("{stem}ies"));
        let resource = Resource::parse(group, version, &plural)?;
        let key =
            ObjectKey::parse(Some(text("/metadata/namespace")).filter(|n| !n.is_empty()), text("/metadata/name"))?;
        let dot = if group.is_empty() { "" } else { "." };
        let what = format!("{kind}{dot}{group}/{}", key.name);
        Ok(Self { object, resource, key, what })
    }

    /// As it is to be.
    pub fn object(&self) -> &Value {
        &self.object
    }

    pub fn name(&self) -> &str {
        self.key.name.as_str()
    }

    /// Whether it cannot be tried out before this change was made: it lies in that namespace, or binds that role.
    pub fn stands_on(&self, change: &Change) -> bool {
        let role = self.object.pointer("/roleRef/name").and_then(Value::as_str);
        let is = |kind: &str, name: &str| change.what == format!("{kind}/{name}");
        change.before.is_none()
            && (self.namespace().is_some_and(|namespace| is("namespace", namespace.as_str()))
                || role.is_some_and(|role| {
                    is("role.rbac.authorization.k8s.io", role) || is("clusterrole.rbac.authorization.k8s.io", role)
                }))
    }

    /// As an access review asks about it.
    pub fn question<'a>(&'a self, verb: &'a str) -> Question<'a> {
        Question {
            verb,
            group: self.resource.group(),
            resource: self.resource.resource(),
            namespace: self.namespace().map_or("", Namespace::as_str),
            name: self.name(),
            ..Question::default()
        }
    }

    /// As people say it: `patch clusterroles.rbac.authorization.k8s.io "operetta:petstore"`.
    pub fn deed(&self, verb: &str) -> String {
        let dot = if self.resource.group().is_empty() { "" } else { "." };
        let place = self.namespace().map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
        format!("{verb} {}{dot}{} {:?}{place}", self.resource.resource(), self.resource.group(), self.name())
    }

    pub fn is_crd(&self) -> bool {
        self.resource.resource() == "customresourcedefinitions"
    }

    pub fn namespace(&self) -> Option<&Namespace> {
        self.key.namespace.as_ref()
    }

    fn url(&self) -> Url {
        Url::of(&self.resource, self.key.namespace.as_ref()).object(&self.key.name)
    }

    fn refused(&self) -> impl Fn(Fault) -> InstallError + '_ {
        |fault| InstallError::Refused { what: self.what.clone(), fault }
    }

    pub async fn read(&self, client: &Client) -> Result<Option<Value>, InstallError> {
        match send_json(client, self.url().get().map_err(self.refused())?).await {
            Ok(object) => Ok(Some(object)),
            Err(fault) if fault.is_not_found() => Ok(None),
            Err(fault) => Err(self.refused()(fault)),
        }
    }

    pub async fn apply(&self, client: &Client, how: How<'_>) -> Result<Outcome, InstallError> {
        let version = |object: &Value| object.pointer("/metadata/resourceVersion").cloned();
        let before = self.read(client).await?;
        let after = self.send(client, how, &self.beside(before.as_ref())?).await?;
        Ok(match before {
            None => Outcome::Created,
            Some(before) if version(&before) == version(&after) => Outcome::Unchanged,
            Some(_) => Outcome::Configured,
        })
    }

    /// As it is to be where this is there: an account goes on naming the other plugins that may act as it.
    pub fn beside(&self, there: Option<&Value>) -> Result<Value, InstallError> {
        let (own, mut all) = (named(&self.object), there.map(named).unwrap_or_default());
        if self.resource.resource() != "serviceaccounts" || own.is_empty() || all.is_empty() {
            return Ok(self.object.clone());
        }
        for name in own {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        Ok(account_of(&self.account()?, &all))
    }

    /// The account that it is.
    fn account(&self) -> Result<ServiceAccount, NameError> {
        let namespace = Namespace::parse(self.namespace().map_or("", Namespace::as_str))?;
        Ok(ServiceAccount { namespace, name: AccountName::parse(self.name())? })
    }

    /// The same account when only these plugins may act as it.
    pub fn left_to(&self, plugins: &[&str]) -> Result<Self, InstallError> {
        Self::of(account_of(&self.account()?, plugins))
    }

    /// Applies it as `wanted`, and answers how it is now, or would be.
    pub async fn send(&self, client: &Client, how: How<'_>, wanted: &Value) -> Result<Value, InstallError> {
        let How { manager, force, dry_run } = how;
        let mut url = self.url().query("fieldManager", manager).query("force", if force { "true" } else { "false" });
        if dry_run {
            url = url.query("dryRun", "All");
        }
        let request = url.request(Method::PATCH, Some("application/apply-patch+yaml"), wanted.to_string().into_bytes());
        match send_json(client, request.map_err(self.refused())?).await {
            Ok(after) => Ok(after),
            Err(Fault::Answer { code: 409, message, .. }) => {
                Err(InstallError::Conflict { what: self.what.clone(), message })
            }
            Err(fault) => Err(self.refused()(fault)),
        }
    }

    /// Whether it was there. What it owns goes before it: of a Deployment, the pods.
    pub async fn delete(&self, client: &Client, dry_run: bool) -> Result<bool, InstallError> {
        let mut url = self.url().query("propagationPolicy", "Foreground");
        if dry_run {
            url = url.query("dryRun", "All");
        }
        let kept = |fault| InstallError::Kept { what: self.what.clone(), fault };
        let request = url.request(Method::DELETE, None, Vec::new()).map_err(kept)?;
        match send_json(client, request).await {
            Ok(_) => Ok(true),
            Err(fault) if fault.is_not_found() => Ok(false),
            Err(fault) => Err(kept(fault)),
        }
    }

    /// The same, if it is still the one of this uid.
    pub async fn delete_this(&self, client: &Client, uid: &str) -> Result<bool, InstallError> {
        let kept = |fault| InstallError::Kept { what: self.what.clone(), fault };
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground", "preconditions": {"uid": uid},
        });
        let body = options.to_string().into_bytes();
        let request = self.url().request(Method::DELETE, Some("application/json"), body).map_err(kept)?;
        match send_json(client, request).await {
            Ok(_) => Ok(true),
            Err(fault) if fault.is_not_found() => Ok(false),
            Err(fault) => Err(kept(fault)),
        }
    }

    /// Until nobody finds it any more.
    pub async fn wait_until_gone(&self, client: &Client) -> Result<(), InstallError> {
        let wait = async {
            while self.read(client).await?.is_some() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Ok(())
        };
        tokio::time::timeout(GONE_WITHIN, wait).await.unwrap_or_else(|_| Err(InstallError::NotGone(self.what.clone())))
    }

    /// Until the CRD is established and its kind is really served, so that what follows an installation finds it.
    pub async fn wait_until_established(&self, client: &Client) -> Result<(), InstallError> {
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
