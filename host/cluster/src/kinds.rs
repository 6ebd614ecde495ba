//! Kinds as people name them: `pet`, `pets`, a short name, `Pet`, `pets.petstore.example.com`, `pets.v1alpha1.petstore.example.com`, as kubectl takes them.
//!
//! Refuses to guess: where kubectl would take the first of several groups that have such a kind, these are named instead.

use http::{Request, header::ACCEPT};
use kube::Client;
use operetta_core::{name::NameError, resource::Resource};
use serde_json::Value;

use crate::request::{Fault, send_json};

/// Everything that a group of APIs has, in one answer; Kubernetes 1.30 and later say `v2`, those since 1.27 `v2beta1`.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// A kind that the cluster knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    /// Group, version and plural.
    pub resource: Resource,
    /// As objects and owner references name it.
    pub kind: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// What else it is called, in lower case: plural, singular, kind and short names.
    names: Vec<String>,
}

impl Kind {
    /// An object of it as kubectl shows it: `pet.petstore.example.com/thor`.
    pub fn show(&self, name: &str) -> String {
        let dot = if self.resource.group().is_empty() { "" } else { "." };
        format!("{}{dot}{}/{name}", self.kind.to_lowercase(), self.resource.group())
    }
}

/// Why a name leads to no kind.
#[derive(Debug, thiserror::Error)]
pub enum KindError {
    /// Nothing is called so.
    #[error("the cluster knows no kind {0:?}; `kubectl api-resources` lists those that it knows")]
    Unknown(String),
    /// Several are.
    #[error("{name:?} may be any of {candidates}; say which")]
    Ambiguous {
        /// The name.
        name: String,
        /// Whose it is.
        candidates: String,
    },
    /// The cluster cannot be asked.
    #[error("cannot ask what kinds the cluster has")]
    Fault(#[from] Fault),
    /// An answer of another sort.
    #[error("the API server does not list all its kinds at once, as Kubernetes does since 1.27")]
    TooOld,
    /// A kind that cannot be.
    #[error("the API server lists a kind that cannot be: {0}")]
    Name(#[from] NameError),
}

/// All kinds of a cluster, each group's versions in its own order of preference.
#[derive(Debug)]
pub struct Kinds(Vec<Kind>);

impl Kinds {
    /// Asks the cluster.
    ///
    /// # Errors
    /// The cluster cannot be asked, or is too old.
    pub async fn read(client: &Client) -> Result<Self, KindError> {
        let mut kinds = Vec::new();
        for root in ["/api", "/apis"] {
            let request = Request::get(root).header(ACCEPT, AGGREGATED).body(Vec::new()).map_err(Fault::from)?;
            let list = send_json(client, request).await?;
            if list.get("kind").and_then(Value::as_str) != Some("APIGroupDiscoveryList") {
                return Err(KindError::TooOld);
            }
            for group in array(&list, "items") {
                let group_name = text(group, "/metadata/name");
                for version in array(group, "versions") {
                    for resource in array(version, "resources") {
                        kinds.push(kind(group_name, text(version, "/version"), resource)?);
                    }
                }
            }
        }
        Ok(Self(kinds))
    }

    /// The kind that a person means.
    ///
    /// # Errors
    /// None is called so, or kinds of several groups are.
    pub fn named(&self, name: &str) -> Result<&Kind, KindError> {
        let lower = name.to_lowercase();
        let (word, place) = lower.split_once('.').unwrap_or((&lower, ""));
        let mut found: Vec<&Kind> = Vec::new();
        for kind in self.0.iter().filter(|kind| kind.names.iter().any(|n| n == word) && kind.is_at(place)) {
            // The first version of a group is the one that it prefers.
            if !found.iter().any(|other| other.resource.group() == kind.resource.group()) {
                found.push(kind);
            }
        }
        match found.as_slice() {
            [] => Err(KindError::Unknown(name.to_owned())),
            [kind] => Ok(kind),
            several => {
                let candidates: Vec<_> = several.iter().map(|kind| kind.resource.to_string()).collect();
                Err(KindError::Ambiguous { name: name.to_owned(), candidates: candidates.join(", ") })
            }
        }
    }

    /// The kind of a resource.
    ///
    /// # Errors
    /// The cluster does not have it.
    pub fn of(&self, resource: &Resource) -> Result<&Kind, KindError> {
        let found = self.0.iter().find(|kind| kind.resource == *resource);
        found.ok_or_else(|| KindError::Unknown(resource.to_string()))
    }
}

impl Kind {
    /// Whether it is of this group, version, or version and group; nothing said means any.
    fn is_at(&self, place: &str) -> bool {
        let (group, version) = (self.resource.group(), self.resource.version());
        let in_version =
            place.strip_prefix(version).is_some_and(|rest| rest.strip_prefix('.').unwrap_or(rest) == group);
        place.is_empty() || place == group || in_version
    }
}

fn kind(group: &str, version: &str, listed: &Value) -> Result<Kind, NameError> {
    let (plural, kind) = (text(listed, "/resource"), text(listed, "/responseKind/kind"));
    let short = array(listed, "shortNames").filter_map(Value::as_str);
    let names = [plural, text(listed, "/singularResource"), kind].into_iter().chain(short);
    Ok(Kind {
        resource: Resource::parse(group, version, plural)?,
        kind: kind.to_owned(),
        namespaced: text(listed, "/scope") == "Namespaced",
        names: names.filter(|name| !name.is_empty()).map(str::to_lowercase).collect(),
    })
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn array<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::FakeApi;

    fn resource(plural: &str, kind: &str, scope: &str, short: Value) -> Value {
        json!({"resource": plural, "singularResource": kind.to_lowercase(), "scope": scope, "shortNames": short,
            "responseKind": {"group": "", "version": "", "kind": kind}, "verbs": ["get"]})
    }

    async fn kinds() -> Kinds {
        let api = FakeApi::new(|sent| {
            let of = |group: &str, versions: Value| json!({"metadata": {"name": group}, "versions": versions});
            let version = |name: &str, resources: Value| json!({"version": name, "resources": resources});
            let event = || resource("events", "Event", "Namespaced", json!(["ev"]));
            let pet = || resource("pets", "Pet", "Namespaced", Value::Null);
            let items = match sent.path.as_str() {
                "/api" => {
                    json!([{"versions": [version("v1", json!([event(), resource("nodes", "Node", "Cluster", json!(["no"]))]))]}])
                }
                "/apis" => json!([
                    of("events.k8s.io", json!([version("v1", json!([event()]))])),
                    of(
                        "petstore.example.com",
                        json!([version("v1", json!([pet()])), version("v1alpha1", json!([pet()]))])
                    ),
                ]),
                _ => return None,
            };
            Some((200, json!({"kind": "APIGroupDiscoveryList", "items": items})))
        });
        Kinds::read(&api.client()).await.unwrap()
    }

    #[tokio::test]
    async fn a_kind_is_found_under_each_of_its_names() {
        let kinds = kinds().await;
        for (name, found) in [
            ("pet", "pets.v1.petstore.example.com"),
            ("pets", "pets.v1.petstore.example.com"),
            ("Pet", "pets.v1.petstore.example.com"),
            ("pets.petstore.example.com", "pets.v1.petstore.example.com"),
            ("pet.v1alpha1.petstore.example.com", "pets.v1alpha1.petstore.example.com"),
            ("no", "nodes.v1"),
            ("ev.v1", "events.v1"),
            ("ev.events.k8s.io", "events.v1.events.k8s.io"),
        ] {
            assert_eq!(kinds.named(name).unwrap().resource.to_string(), found, "{name}");
        }
        assert!(!kinds.named("nodes").unwrap().namespaced);
        assert_eq!(kinds.named("pet").unwrap().show("thor"), "pet.petstore.example.com/thor");
        assert_eq!(kinds.named("node").unwrap().show("one"), "node/one");
    }

    #[tokio::test]
    async fn a_name_that_leads_nowhere_or_to_several_kinds_is_said_to() {
        let kinds = kinds().await;
        for (name, says) in [
            ("cats", "knows no kind \"cats\""),
            ("pets.example.com", "knows no kind"),
            ("pets.v2.petstore.example.com", "knows no kind"),
            ("events", "may be any of events.v1, events.v1.events.k8s.io; say which"),
        ] {
            let error = kinds.named(name).unwrap_err().to_string();
            assert!(error.contains(says), "{name}: {error}");
        }
    }

    #[tokio::test]
    async fn a_server_that_lists_no_kinds_is_too_old() {
        let api = FakeApi::new(|_| Some((200, json!({"kind": "APIVersions", "versions": ["v1"]}))));
        assert!(matches!(Kinds::read(&api.client()).await, Err(KindError::TooOld)));
    }
}
