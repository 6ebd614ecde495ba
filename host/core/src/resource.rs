//! Which objects: kinds named as in a URL, and keys within them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::{GroupName, Label, NameError, Namespace, ObjectName};

/// A kind of Kubernetes object as group, version and resource (the plural in lower case). Kind and scope come from discovery.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "RawResource", into = "RawResource")]
pub struct Resource {
    group: Option<GroupName>,
    version: Label,
    plural: Label,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Resource")]
struct RawResource {
    group: String,
    version: String,
    resource: String,
}

impl Resource {
    /// Parses the three parts; the core group is the empty string.
    pub fn parse(group: &str, version: &str, resource: &str) -> Result<Self, NameError> {
        let word = |text: &str, what| {
            Label::parse(text)
                .map_err(|_| NameError::new(text, what, "use lower-case letters, digits and '-', at most 63"))
        };
        Ok(Self {
            group: if group.is_empty() { None } else { Some(GroupName::parse(group)?) },
            version: word(version, "API version")?,
            plural: word(resource, "resource (the plural, in lower case)")?,
        })
    }

    /// The API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.group.as_ref().map_or("", GroupName::as_str)
    }

    /// The version within the group.
    pub fn version(&self) -> &str {
        self.version.as_str()
    }

    /// The plural, as RBAC and URLs name it.
    pub fn resource(&self) -> &str {
        self.plural.as_str()
    }

    /// `apps/v1`, or `v1` for the core group.
    pub fn api_version(&self) -> String {
        match &self.group {
            Some(group) => format!("{group}/{}", self.version),
            None => self.version.to_string(),
        }
    }
}

impl TryFrom<RawResource> for Resource {
    type Error = NameError;
    fn try_from(raw: RawResource) -> Result<Self, NameError> {
        Self::parse(&raw.group, &raw.version, &raw.resource)
    }
}

impl From<Resource> for RawResource {
    fn from(r: Resource) -> Self {
        Self { group: r.group().into(), version: r.version().into(), resource: r.resource().into() }
    }
}

/// `deployments.v1.apps`, as kubectl takes it.
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.plural, self.version)?;
        self.group.as_ref().map_or(Ok(()), |group| write!(f, ".{group}"))
    }
}

/// Which object of a kind. No namespace: the object is cluster-scoped.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The namespace of a namespaced object.
    pub namespace: Option<Namespace>,
    /// Its name.
    pub name: ObjectName,
}

impl ObjectKey {
    /// Parses both parts.
    pub fn parse(namespace: Option<&str>, name: &str) -> Result<Self, NameError> {
        Ok(Self { namespace: namespace.map(Namespace::parse).transpose()?, name: ObjectName::parse(name)? })
    }
}

/// `NAMESPACE/NAME`, or `NAME`.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        write!(f, "{}", self.name)
    }
}
