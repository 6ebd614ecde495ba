//! What Plugins refer to in the host's own namespace: keys of Secrets and ConfigMaps, read with the host's own rights.
//!
//! **No other namespace is ever read**, and no value stands in an error.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use operetta_api::Reference;
use operetta_core::{
    name::{Namespace, ObjectName},
    resource::Resource,
};
use serde::de::DeserializeOwned;

use crate::request::{Fault, Url, send};

/// The host's namespace.
pub struct Vault {
    client: Client,
    namespace: Namespace,
}

/// A value that cannot be had; all of them may be there later.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VaultError {
    /// There is no such Secret or ConfigMap.
    #[error("{what} is missing: there is no {kind} {name} in the host's namespace {namespace}; make it with `{make}`")]
    NoObject {
        /// `key KEY of Secret NAME`.
        what: String,
        /// `Secret` or `ConfigMap`.
        kind: &'static str,
        /// Of the object.
        name: String,
        /// Of the host.
        namespace: Namespace,
        /// A command.
        make: String,
    },
    /// It has no such key.
    #[error("{what} is missing: in the host's namespace {namespace} it has {keys}; add the key with `{add}`")]
    NoKey {
        /// `key KEY of Secret NAME`.
        what: String,
        /// Of the host.
        namespace: Namespace,
        /// Which keys it has.
        keys: String,
        /// A command.
        add: String,
    },
    /// The host may not read it.
    #[error(
        "{what} may not be read by the host: {why}; `operetta generate rbac` prints the role that it needs in its namespace {namespace}"
    )]
    Forbidden {
        /// `key KEY of Secret NAME`.
        what: String,
        /// In the API server's words.
        why: String,
        /// Of the host.
        namespace: Namespace,
    },
    /// Another failure.
    #[error("{what} cannot be read in the host's namespace {namespace}: {why}")]
    Other {
        /// `key KEY of Secret NAME`.
        what: String,
        /// In words.
        why: String,
        /// Of the host.
        namespace: Namespace,
    },
}

impl Vault {
    /// Reads there with the host's own client.
    pub fn new(client: Client, namespace: Namespace) -> Self {
        Self { client, namespace }
    }

    /// One value.
    pub async fn read(&self, reference: &Reference) -> Result<Vec<u8>, VaultError> {
        let key = reference.key().key.as_str();
        let (found, keys) = match reference {
            Reference::Secret(_) => {
                let Secret { data, .. } = self.object("secrets", reference).await?;
                let mut data = data.unwrap_or_default();
                (data.remove(key).map(|value| value.0), data.into_keys().collect::<Vec<_>>())
            }
            Reference::ConfigMap(_) => {
                let ConfigMap { data, binary_data, .. } = self.object("configmaps", reference).await?;
                let (mut text, mut bytes) = (data.unwrap_or_default(), binary_data.unwrap_or_default());
                let value = text.remove(key).map(String::into_bytes).or_else(|| bytes.remove(key).map(|value| value.0));
                (value, text.into_keys().chain(bytes.into_keys()).collect())
            }
        };
        found.ok_or_else(|| VaultError::NoKey {
            what: reference.to_string(),
            namespace: self.namespace.clone(),
            keys: if keys.is_empty() { "no key at all".to_owned() } else { format!("the keys {}", keys.join(", ")) },
            add: self.add(reference),
        })
    }

    async fn object<T: DeserializeOwned>(&self, resource: &str, reference: &Reference) -> Result<T, VaultError> {
        let other =
            |why: String| VaultError::Other { what: reference.to_string(), why, namespace: self.namespace.clone() };
        let resource = Resource::parse("", "v1", resource).map_err(|e| other(e.to_string()))?;
        let name = ObjectName::parse(reference.key().name.as_str()).map_err(|e| other(e.to_string()))?;
        let request =
            Url::of(&resource, Some(&self.namespace)).object(&name).get().map_err(|e| other(e.to_string()))?;
        let body = send(&self.client, request).await.map_err(|fault| match fault {
            Fault::Answer { code: 404, .. } => VaultError::NoObject {
                what: reference.to_string(),
                kind: kind(reference),
                name: name.to_string(),
                namespace: self.namespace.clone(),
                make: self.make(reference),
            },
            Fault::Answer { code: 401 | 403, message, .. } => {
                VaultError::Forbidden { what: reference.to_string(), why: message, namespace: self.namespace.clone() }
            }
            fault => other(fault.to_string()),
        })?;
        // The parser's own words would quote the value.
        serde_json::from_slice(&body).map_err(|_| other("the API server's answer is not understood".to_owned()))
    }

    /// The command that makes what is referred to.
    fn make(&self, reference: &Reference) -> String {
        let (namespace, key) = (&self.namespace, reference.key());
        match (reference, key.key.as_str()) {
            (Reference::Secret(_), "tls.crt" | "tls.key") => {
                format!("kubectl -n {namespace} create secret tls {} --cert=FILE --key=FILE", key.name)
            }
            (Reference::Secret(_), _) => {
                format!("kubectl -n {namespace} create secret generic {} --from-literal={}=VALUE", key.name, key.key)
            }
            (Reference::ConfigMap(_), _) => {
                format!("kubectl -n {namespace} create configmap {} --from-file={}=FILE", key.name, key.key)
            }
        }
    }

    /// The command that adds the key to what is there.
    fn add(&self, reference: &Reference) -> String {
        let (namespace, key) = (&self.namespace, reference.key());
        let (resource, field) = match reference {
            Reference::Secret(_) => ("secret", "stringData"),
            Reference::ConfigMap(_) => ("configmap", "data"),
        };
        format!(
            "kubectl -n {namespace} patch {resource} {} -p '{{\"{field}\":{{\"{}\":\"VALUE\"}}}}'",
            key.name, key.key
        )
    }
}

fn kind(reference: &Reference) -> &'static str {
    match reference {
        Reference::Secret(_) => "Secret",
        Reference::ConfigMap(_) => "ConfigMap",
    }
}

#[cfg(test)]
mod tests {
    use operetta_api::KeyRef;
    use operetta_core::name::{ConfigKey, ConfigName};
    use serde_json::json;

    use super::*;
    use crate::testing::{FakeApi, namespace, status};

    fn key(name: &str, key: &str) -> KeyRef {
        KeyRef { name: ConfigName::parse(name).unwrap(), key: ConfigKey::parse(key).unwrap() }
    }

    #[tokio::test]
    async fn values_are_read_in_the_hosts_namespace_and_what_is_missing_is_named_with_the_command_that_makes_it() {
        let api = FakeApi::new(|sent| match sent.path.as_str() {
            "/api/v1/namespaces/host/secrets/people" => {
                Some((200, json!({"data": {"password": "c2VjcmV0", "user": "eA=="}})))
            }
            "/api/v1/namespaces/host/configmaps/ca" => Some((200, json!({"data": {"ca.crt": "PEM"}}))),
            "/api/v1/namespaces/host/secrets/closed" => Some(status(403, "Forbidden", "no", &json!({}))),
            "/api/v1/namespaces/host/secrets/odd" => Some((200, json!({"data": {"password": "top secret"}}))),
            _ => Some(status(404, "NotFound", "none", &json!({}))),
        });
        let vault = Vault::new(api.client(), namespace("host"));
        let secret = |name, at| Reference::Secret(key(name, at));
        assert_eq!(vault.read(&secret("people", "password")).await.unwrap(), b"secret");
        assert_eq!(vault.read(&Reference::ConfigMap(key("ca", "ca.crt"))).await.unwrap(), b"PEM");
        for (reference, words) in [
            (
                secret("none", "password"),
                &[
                    "there is no Secret none",
                    "`kubectl -n host create secret generic none --from-literal=password=VALUE`",
                ] as &[_],
            ),
            (secret("none", "tls.key"), &["`kubectl -n host create secret tls none --cert=FILE --key=FILE`"]),
            (
                secret("people", "token"),
                &[
                    "key token of Secret people is missing",
                    "the keys password, user",
                    "`kubectl -n host patch secret people -p '{\"stringData\":{\"token\":\"VALUE\"}}'`",
                ],
            ),
            (
                Reference::ConfigMap(key("none", "ca.crt")),
                &["kubectl -n host create configmap none --from-file=ca.crt=FILE"],
            ),
            (secret("closed", "x"), &["may not be read by the host", "operetta generate rbac"]),
            (secret("odd", "password"), &["not understood"]),
        ] {
            let error = vault.read(&reference).await.unwrap_err().to_string();
            for word in words {
                assert!(error.contains(word), "{error} lacks {word}");
            }
            assert!(!error.contains("c2Vj") && !error.contains("top secret"), "{error}");
        }
    }
}
