//! What tests of the cluster layer share: the layer itself on the shared API server, plugins' accounts with rights, and a kind that belongs to one test.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams},
};
use operetta_cluster::{
    Cluster,
    client::{Target, connect, wait_until_ready},
    identity::Impersonation,
};
use operetta_core::{
    cache::{Change, Extent, Scope, Subscription},
    name::{AccountName, Actor, ControllerName, Namespace, PluginName, ServiceAccount},
    port::{Caller, Kubernetes},
    resource::{ObjectKey, Resource},
};
use operetta_tests::{
    control_plane::audit::{Filter, Position, Request},
    eventually,
};
use serde_json::{Value, json};

use crate::shared::{SOON, TestNamespace, namespace, shared};

/// The cluster layer of a host, in the namespace of a test.
pub struct Layer {
    pub namespace: TestNamespace,
    pub cluster: Cluster,
}

/// Opens it.
pub async fn layer() -> Layer {
    let target = Target { kubeconfig: Some(shared().kubeconfig().to_owned()), ..Target::default() };
    let client = connect(&target).await.unwrap();
    wait_until_ready(&client, |_| {}).await.unwrap();
    let cluster = Cluster::new(client.clone(), Arc::new(Impersonation::new(client)), Arc::default());
    Layer { namespace: namespace().await, cluster }
}

pub fn caller(plugin: &str) -> Caller {
    Caller { plugin: PluginName::parse(plugin).unwrap(), controller: ControllerName::parse("c").unwrap() }
}

impl Layer {
    pub fn client(&self) -> Client {
        self.namespace.client()
    }

    pub fn here(&self) -> Namespace {
        Namespace::parse(self.namespace.name()).unwrap()
    }

    pub fn scope(&self) -> Scope {
        Scope::Namespaces([self.here()].into())
    }

    pub fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::parse(Some(self.namespace.name()), name).unwrap()
    }

    /// The plugin of this name with a service account of this namespace.
    pub fn actor(&self, name: &str) -> Actor {
        let account = ServiceAccount { namespace: self.here(), name: AccountName::parse(name).unwrap() };
        Actor { plugin: PluginName::parse(name).unwrap(), account }
    }

    /// With the account, which has no rights.
    pub async fn account(&self, name: &str) -> Actor {
        let account = json!({"metadata": {"name": name, "annotations": {"operetta.dev/plugin": name}}});
        self.apply("", "v1", "ServiceAccount", "serviceaccounts", &account).await;
        self.actor(name)
    }

    /// Lets it do all with these resources of this namespace.
    pub async fn allow(&self, actor: &Actor, groups: &[&str], resources: &[&str]) {
        self.allow_by(actor, &json!([{"apiGroups": groups, "resources": resources, "verbs": ["*"]}])).await;
    }

    /// Lets it do what these rules of RBAC say, in this namespace.
    pub async fn allow_by(&self, actor: &Actor, rules: &Value) {
        let (group, account) = ("rbac.authorization.k8s.io", &actor.account);
        let role = json!({"metadata": {"name": account.name.as_str()}, "rules": rules});
        self.apply(group, "v1", "Role", "roles", &role).await;
        let binding = json!({
            "metadata": {"name": account.name.as_str()}, "roleRef": {"apiGroup": group, "kind": "Role", "name": account.name.as_str()},
            "subjects": [{"kind": "ServiceAccount", "name": account.name.as_str(), "namespace": account.namespace.as_str()}],
        });
        self.apply(group, "v1", "RoleBinding", "rolebindings", &binding).await;
    }

    /// An account that may do all with config maps, events and deployments here.
    pub async fn capable(&self, name: &str) -> Actor {
        let actor = self.account(name).await;
        self.allow(
            &actor,
            &["", "apps", "events.k8s.io"],
            &["configmaps", "deployments", "deployments/status", "events"],
        )
        .await;
        actor
    }

    pub fn kubernetes(&self, actor: &Actor) -> Arc<dyn Kubernetes> {
        self.cluster.kubernetes(actor.clone(), self.scope())
    }

    /// The one object of this name in this namespace.
    pub fn only(&self, name: &str) -> Vec<Extent> {
        vec![Extent::from(&self.key(name))]
    }

    /// Subscribes in this namespace, once RBAC has come through, and waits until all that exists is told.
    pub async fn subscribe(&self, actor: &Actor, resource: &Resource) -> Subscription {
        self.subscribe_to(actor, resource, &self.scope().extents()).await
    }

    /// The same, to so much of the kind.
    pub async fn subscribe_to(&self, actor: &Actor, resource: &Resource, extents: &[Extent]) -> Subscription {
        let mut subscription = eventually("the account may subscribe", SOON, async || {
            Ok(self.cluster.informers().subscribe(actor, resource, extents).await?)
        })
        .await
        .unwrap();
        while !matches!(next(&mut subscription).await, Change::Synced) {}
        subscription
    }

    /// Applies as a person would with kubectl.
    pub async fn apply(&self, group: &str, version: &str, kind: &str, plural: &str, object: &Value) -> DynamicObject {
        let mut object = object.clone();
        object["apiVersion"] = if group.is_empty() { version.into() } else { format!("{group}/{version}").into() };
        object["kind"] = kind.into();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let api = self.api(group, version, kind, plural);
        api.patch(&name, &PatchParams::apply("kubectl").force(), &Patch::Apply(&object)).await.unwrap()
    }

    pub fn api(&self, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version,
            kind: kind.into(),
            plural: plural.into(),
        };
        if kind == "CustomResourceDefinition" || kind.starts_with("Cluster") {
            Api::all_with(self.client(), &resource)
        } else {
            Api::namespaced_with(self.client(), self.namespace.name(), &resource)
        }
    }

    /// What this account asked for since then, as `verb resource-path`; none on a cluster whose audit log is not ours.
    pub async fn requests(&self, actor: &Actor, since: Option<Position>) -> Option<Vec<Request>> {
        let audit = shared().audit_log()?;
        audit.settle(&self.client()).await.unwrap();
        let mut filter = Filter::all().impersonated(&actor.account.user());
        if let Some(since) = since {
            filter = filter.after(since);
        }
        Some(audit.requests(&filter).unwrap())
    }

    /// The group of this test's own kind.
    pub fn group(&self) -> String {
        format!("{}.example.com", self.namespace.name())
    }

    pub fn things(&self) -> Resource {
        Resource::parse(&self.group(), "v1", "things").unwrap()
    }

    /// Installs the kind `Thing` of this test's own group.
    pub async fn define_things(&self) {
        let spec = json!({"type": "object", "properties": {
            "size": {"type": "integer"}, "colour": {"type": "string", "default": "red"},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {"type": "object", "required": ["port"], "properties": {
                    "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}, "name": {"type": "string"}}}},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "plain": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string", "default": "B"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": {"type": "integer"}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "ratio": {"type": "number"},
        }});
        let status = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let name = format!("things.{}", self.group());
        let crd = json!({"metadata": {"name": name}, "spec": {
            "group": self.group(), "scope": "Namespaced", "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}}}],
        }});
        self.apply("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", &crd).await;
        let things = self.api(&self.group(), "v1", "Thing", "things");
        eventually("things are served", SOON, async || {
            things.list(&kube::api::ListParams::default()).await.context("list things").map(drop)
        })
        .await
        .unwrap();
    }

    /// Removes it, and with it all things.
    pub async fn remove_things(&self) {
        let name = format!("things.{}", self.group());
        let crds = self.api("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions");
        crds.delete(&name, &DeleteParams::default()).await.unwrap();
        eventually("the definition is gone", SOON, async || {
            ensure!(crds.get_opt(&name).await?.is_none(), "it is still there");
            Ok(())
        })
        .await
        .unwrap();
    }
}

pub fn config_maps() -> Resource {
    Resource::parse("", "v1", "configmaps").unwrap()
}

/// The next change, soon.
pub async fn next(subscription: &mut Subscription) -> Change {
    tokio::time::timeout(SOON, subscription.changes.recv())
        .await
        .expect("a change in time")
        .expect("a stream that goes on")
}

/// Waits until this object is told as here or gone; answers its JSON.
pub async fn told(subscription: &mut Subscription, name: &str, there: bool) -> Option<Value> {
    loop {
        if let Change::Object { key, new, .. } = next(subscription).await
            && key.name.as_str() == name
            && new.is_some() == there
        {
            return new.map(|new| new.value());
        }
    }
}

/// How long to watch that nothing happens.
pub const A_WHILE: Duration = Duration::from_millis(700);
