//! What a plugin says of itself, exactly as the host parses it: JSON, camelCase, unknown fields refused.
//!
//! Authors do not fill these records: [`Plugin`](crate::Plugin) and [`Controller`](crate::Controller) do. Refuses to check anything that the host checks anyway.

use crate::{host::Resource, kind::Kind};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The manifest document.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The version of this document's schema: 1.
    pub manifest_version: u32,
    /// The plugin's name.
    pub name: String,
    /// The plugin's own version.
    pub version: String,
    /// One sentence for people.
    pub description: String,
    /// Its controllers.
    pub controllers: Vec<ControllerManifest>,
    /// The custom resource definitions it brings.
    pub crds: Vec<CustomResourceDefinition>,
    /// What it asks to be granted.
    pub requests: Requests,
}

/// One controller.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControllerManifest {
    /// Unique within the plugin.
    pub name: String,
    /// The primary kind.
    #[serde(rename = "for")]
    pub primary: Resource,
    /// Kinds whose controller owner reference leads back to a primary.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owns: Vec<Resource>,
    /// Kinds that lead back to a primary in another way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub watches: Vec<Watch>,
    /// Which changes of the primary matter; empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub predicates: Vec<Predicate>,
    /// The finalizers it puts on primaries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// Look at every primary this often; the host's default unless told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resync_seconds: Option<u64>,
}

/// A watched kind and how its objects name primaries.
#[derive(Clone, Debug, Serialize)]
pub struct Watch {
    /// The watched kind.
    pub resource: Resource,
    /// From an event to a key.
    pub map: Mapping,
}

/// How an object of a watched kind leads to primaries of the same namespace.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Mapping {
    /// A field path of the *primary* that names the watched object, such as `spec.secretName`.
    Reference(String),
    /// A label of the watched object whose value is the primary's name.
    Label(String),
    /// An annotation of the watched object whose value is the primary's name.
    Annotation(String),
}

/// A part of the primary whose change wakes the controller. Additions, deletions and the start of a deletion always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Predicate {
    /// `metadata.generation`: the spec, for a kind with a status subresource.
    Generation,
    /// `metadata.labels`.
    Labels,
    /// `metadata.annotations`.
    Annotations,
}

/// What a plugin asks the administrator for.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Requests {
    /// Kubernetes rules, one for each resource.
    pub rules: Vec<Rule>,
    /// gRPC channels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelRequest>,
    /// PostgreSQL databases.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub databases: Vec<DatabaseRequest>,
    /// Whether it publishes events.
    pub events: bool,
    /// Settings that it reads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<SettingRequest>,
}

/// A gRPC channel by name.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ChannelRequest {
    /// As the plugin calls it.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// An endpoint such as an administrator would fill in.
    pub example: String,
}

/// A PostgreSQL database by name.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseRequest {
    /// As the plugin calls it.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// How the host's environment variables that lead there begin.
    pub example: String,
}

/// A setting of the Plugin document.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SettingRequest {
    /// As the plugin reads it.
    pub name: String,
    /// What it does.
    pub description: String,
    /// What holds where nothing is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

/// What may be done to a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Create objects; an apply that may create needs it beside `Patch`.
    Create,
    /// Delete objects.
    Delete,
    /// Read one object.
    Get,
    /// Read many objects.
    List,
    /// Patch and apply.
    Patch,
    /// Replace.
    Update,
    /// Be told of changes.
    Watch,
}

impl Verb {
    /// What reading and being woken needs.
    pub const READ: [Verb; 3] = [Verb::Get, Verb::List, Verb::Watch];
    /// What an apply needs that may create.
    pub const APPLY: [Verb; 2] = [Verb::Create, Verb::Patch];
    /// All of them.
    pub const ALL: [Verb; 7] =
        [Verb::Create, Verb::Delete, Verb::Get, Verb::List, Verb::Patch, Verb::Update, Verb::Watch];
}

/// A Kubernetes rule in RBAC's own shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// The core group is the empty string.
    pub api_groups: Vec<String>,
    /// Plurals, with `/subresource` where one is meant.
    pub resources: Vec<String>,
    /// What may be done.
    pub verbs: Vec<Verb>,
    /// Only these objects; empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
}

impl Rule {
    /// These verbs on a kind.
    pub fn of<K: Kind>(verbs: impl IntoIterator<Item = Verb>) -> Self {
        Self::on(&K::resource(), None, verbs)
    }

    /// These verbs on a subresource of a kind, such as `status`.
    pub fn of_sub<K: Kind>(subresource: &str, verbs: impl IntoIterator<Item = Verb>) -> Self {
        Self::on(&K::resource(), Some(subresource), verbs)
    }

    /// These verbs on a resource, or on a subresource of it.
    pub fn on(resource: &Resource, subresource: Option<&str>, verbs: impl IntoIterator<Item = Verb>) -> Self {
        let plural = match subresource {
            Some(subresource) => format!("{}/{subresource}", resource.resource),
            None => resource.resource.clone(),
        };
        Self {
            api_groups: vec![resource.group.clone()],
            resources: vec![plural],
            verbs: verbs.into_iter().collect(),
            resource_names: Vec::new(),
        }
    }

    /// Only objects of these names.
    pub fn named(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.resource_names = names.into_iter().map(Into::into).collect();
        self
    }
}

/// One rule for each resource and set of names, in a stable order.
pub(crate) fn merged(rules: impl IntoIterator<Item = Rule>) -> Vec<Rule> {
    let mut merged: BTreeMap<_, BTreeSet<Verb>> = BTreeMap::new();
    for rule in rules {
        merged.entry((rule.api_groups, rule.resources, rule.resource_names)).or_default().extend(rule.verbs);
    }
    merged
        .into_iter()
        .map(|((api_groups, resources, resource_names), verbs)| Rule {
            api_groups,
            resources,
            verbs: verbs.into_iter().collect(),
            resource_names,
        })
        .collect()
}
