//! Credentials in a Plugin document: references to keys of Secrets, never the values themselves.
//!
//! **They name no namespace**: what they refer to lies in the host's own, so that whoever writes a Plugin hands out nothing that the host's administrator did not lay there.

use std::fmt;

use operetta_core::name::{ConfigKey, ConfigName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plugin::admit_unknown_fields;

/// A key of a Secret or of a ConfigMap in the host's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = admit_unknown_fields)]
pub struct KeyRef {
    /// The Secret's or the ConfigMap's name.
    pub name: ConfigName,
    /// The key in it.
    pub key: ConfigKey,
}

/// Where a secret value is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = admit_unknown_fields)]
pub struct FromSecret {
    /// A key of a Secret in the host's namespace.
    pub secret_key_ref: KeyRef,
}

/// Where a value is that need not be secret: exactly one of the two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(transform = admit_unknown_fields)]
pub struct FromKey {
    /// A key of a Secret in the host's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
    /// A key of a ConfigMap in the host's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
}

/// Where a certificate and its key are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = admit_unknown_fields)]
pub struct FromTlsSecret {
    /// A Secret in the host's namespace as `kubectl create secret tls` makes it, with the keys `tls.crt` and `tls.key`.
    pub secret_name: ConfigName,
}

/// One value of the host's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reference {
    /// A key of a Secret.
    Secret(KeyRef),
    /// A key of a ConfigMap.
    ConfigMap(KeyRef),
}

impl Reference {
    /// Which Secret or ConfigMap, and which key.
    pub fn key(&self) -> &KeyRef {
        match self {
            Self::Secret(key) | Self::ConfigMap(key) => key,
        }
    }
}

/// `key KEY of Secret NAME`.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeyRef { name, key } = self.key();
        let kind = match self {
            Self::Secret(_) => "Secret",
            Self::ConfigMap(_) => "ConfigMap",
        };
        write!(f, "key {key} of {kind} {name}")
    }
}

impl FromSecret {
    /// What it refers to.
    pub fn reference(&self) -> Reference {
        Reference::Secret(self.secret_key_ref.clone())
    }
}

impl FromKey {
    /// What it refers to; none where it says both or neither.
    pub fn reference(&self) -> Option<Reference> {
        match (&self.secret_key_ref, &self.config_map_key_ref) {
            (Some(key), None) => Some(Reference::Secret(key.clone())),
            (None, Some(key)) => Some(Reference::ConfigMap(key.clone())),
            _ => None,
        }
    }
}

impl FromTlsSecret {
    /// The certificate and its key.
    pub fn references(&self) -> Option<[Reference; 2]> {
        let key =
            |key| Some(Reference::Secret(KeyRef { name: self.secret_name.clone(), key: ConfigKey::parse(key).ok()? }));
        Some([key("tls.crt")?, key("tls.key")?])
    }
}
