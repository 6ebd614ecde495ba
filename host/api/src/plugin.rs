//! The shape of a Plugin, and what it means in the words of the core.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, ValidationRule},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{CustomResource, CustomResourceExt as _};
use operetta_core::{
    cache::Scope,
    effect::Policy,
    grant::{Grants, Rule},
    limit::{Limits, MOST_ROWS, MOST_TABLE_ELEMENTS},
    name::{
        AccountName, ChannelName, ConfigName, DatabaseName, Digest, NameError, Namespace, PluginName, ServiceAccount,
    },
};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use crate::credential::{FromKey, FromSecret, FromTlsSecret, Reference};

/// Where plugins' service accounts live unless the Plugin says otherwise: apart from the host's own namespace, since whoever may create pods there could take the host's account.
pub const DEFAULT_ACCOUNT_NAMESPACE: &str = operetta_core::bounds::ACCOUNTS;

/// Runs one component.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "operetta.dev",
    version = "v1alpha1",
    kind = "Plugin",
    plural = "plugins",
    status = "PluginStatus",
    derive = "PartialEq",
    doc = "What an administrator writes to run a plugin: where its component comes from, what it may do, and with how much.",
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".status.version"}"#,
    printcolumn = r#"{"name":"Digest","type":"string","jsonPath":".status.shortDigest"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].reason"}"#,
    printcolumn = r#"{"name":"Objects","type":"integer","jsonPath":".status.objects"}"#,
    printcolumn = r#"{"name":"Reconciles","type":"integer","jsonPath":".status.reconciles"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Errors","type":"integer","jsonPath":".status.errors","priority":1}"#,
    printcolumn = r#"{"name":"Held","type":"string","jsonPath":".status.conditions[?(@.type=='FinalizersHeld')].message","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].message","priority":1}"#
)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(transform = admit_unknown_fields)]
pub struct PluginSpec {
    /// Where the component comes from; the file `NAME.wasm` of the plugin directory unless told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// `sha256:…`; a component with another digest is not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub digest: Option<Digest>,
    /// The account whose rights it acts with; `operetta-plugins/NAME` unless told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<Account>,
    /// The namespaces that it works in; all unless told.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub namespaces: BTreeSet<Namespace>,
    /// What it may do, at most as far as the service account's own rights go.
    pub grants: GrantSpec,
    /// Text by name that it may read.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// How much it may use.
    #[serde(skip_serializing_if = "LimitSpec::is_default")]
    pub limits: LimitSpec,
    /// Whether it stands still.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// What becomes of objects that hold the plugin's finalizers when the plugin is to go.
    #[serde(skip_serializing_if = "DeletionPolicy::is_default")]
    pub deletion_policy: DeletionPolicy,
}

/// What becomes of objects that hold a plugin's finalizers when the Plugin is deleted: nobody else would ever let them go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
// In a schema of Kubernetes a description beside each case would hide the enumeration.
#[schemars(transform = plain_enumeration)]
pub enum DeletionPolicy {
    /// The plugin stays, and works on, until no object holds a finalizer of it.
    #[default]
    Refuse,
    /// It looks only after objects that are being deleted, until none holds a finalizer of it; then it goes.
    Drain,
    /// The host takes its finalizers off all objects, without the plugin's clean-up; then it goes.
    Release,
}

/// Where a component comes from: one of the two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(
    transform = admit_unknown_fields,
    extend("x-kubernetes-validations" = [{"rule": "has(self.file) != has(self.configMap)", "message": "name either a file or a configMap"}])
)]
pub struct Source {
    /// A file of the plugin directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// ConfigMaps of the host's own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapSource>,
}

/// A component in ConfigMaps, under the key `component` of their `binaryData`: as it is, or compressed by gzip. They are read from the host's own namespace and no other, since whoever may
/// write them there says what runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = admit_unknown_fields, transform = plain_numbers)]
pub struct ConfigMapSource {
    /// The ConfigMap; with `chunks`, how the names of all of them begin.
    pub name: ConfigName,
    /// In how many parts the component lies, since a ConfigMap holds at most 1 MiB: in `NAME-0`, `NAME-1` and so on, to be joined before they are decompressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub chunks: Option<u32>,
}

impl ConfigMapSource {
    /// Chunks, at most: some 48 MiB.
    pub const MOST: u32 = 64;

    /// The names of the ConfigMaps, in the order of their parts.
    ///
    /// # Errors
    /// A name becomes too long by its number.
    pub fn names(&self) -> Result<Vec<ConfigName>, NameError> {
        match self.chunks {
            None => Ok(vec![self.name.clone()]),
            Some(chunks) => {
                (0..chunks.min(Self::MOST)).map(|i| ConfigName::parse(&format!("{}-{i}", self.name))).collect()
            }
        }
    }
}

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = admit_unknown_fields)]
pub struct Account {
    /// `operetta-plugins` unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// Its name.
    pub name: AccountName,
}

/// What a plugin may do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(transform = admit_unknown_fields)]
pub struct GrantSpec {
    /// Kubernetes requests, in RBAC's own shape.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// gRPC services that it may call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Channel>,
    /// PostgreSQL databases that it may use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub databases: Vec<Database>,
    /// Whether it may publish events.
    pub events: bool,
}

/// A gRPC service, known to the plugin by name only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = admit_unknown_fields)]
pub struct Channel {
    /// What the plugin calls it.
    pub name: ChannelName,
    /// `http://HOST:PORT`, or `https://HOST:PORT` for TLS with the roots of the system.
    pub endpoint: String,
    /// The certificates that TLS trusts instead, as PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_from: Option<FromKey>,
    /// The token that each call carries as `authorization: Bearer TOKEN`; over TLS only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_from: Option<FromSecret>,
    /// The certificate with which the host shows who it is; over TLS only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_from: Option<FromTlsSecret>,
}

impl Channel {
    /// What it needs in the host's namespace.
    pub fn references(&self) -> Vec<Reference> {
        let ca = self.ca_from.as_ref().and_then(FromKey::reference);
        let token = self.token_from.as_ref().map(FromSecret::reference);
        let certificate = self.certificate_from.as_ref().and_then(FromTlsSecret::references);
        ca.into_iter().chain(token).chain(certificate.into_iter().flatten()).collect()
    }
}

/// A PostgreSQL database, known to the plugin by name only. What the plugin may do there is what the user of the connection may do: give it a role of its own.
///
/// The connection is written here, with `host` and what belongs to it, or comes from the host's environment, with `env`: `ENV_HOST` (a name, an address, or the directory of a socket),
/// `ENV_PORT` (5432), `ENV_DBNAME`, `ENV_USER` and `ENV_PASSWORD`, and `ENV_SSLROOTCERT` (a PEM file of the certificates that TLS trusts; those of the system unless
/// told), where `ENV` is what `env` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = admit_unknown_fields, transform = plain_numbers)]
pub struct Database {
    /// What the plugin calls it.
    pub name: DatabaseName,
    /// How the names of the environment variables begin, such as `PSQL`; instead of `host`, `port`, `dbname`, `user`, `passwordFrom` and `caFrom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// A name, an address, or the directory of a socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its port (5432).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The database there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dbname: Option<String>,
    /// The role there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The role's password; none where the server asks for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_from: Option<FromSecret>,
    /// The certificates that TLS trusts instead of those of the system, as PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_from: Option<FromKey>,
    /// Whether to insist on TLS, with a certificate that can be checked; without it none is used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tls: bool,
    /// Connections at the same time, which all reconciles of the plugin share (5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub connections: Option<u32>,
}

/// Where a database is and who the host is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address<'a> {
    /// The host's environment says it, in variables that begin so.
    Env(&'a str),
    /// The document says it.
    Here {
        /// A name, an address, or the directory of a socket.
        host: &'a str,
        /// The database there.
        dbname: &'a str,
        /// The role there.
        user: &'a str,
    },
}

impl Database {
    /// From `postgres-writer.yaml` or the like: by the names of environment variables.
    pub fn from_env(name: DatabaseName, env: impl Into<String>) -> Self {
        let (host, port, dbname, user) = (None, None, None, None);
        let (password_from, ca_from, tls, connections) = (None, None, false, None);
        Self { name, env: Some(env.into()), host, port, dbname, user, password_from, ca_from, tls, connections }
    }

    /// What it needs in the host's namespace.
    pub fn references(&self) -> Vec<Reference> {
        let password = self.password_from.as_ref().map(FromSecret::reference);
        password.into_iter().chain(self.ca_from.as_ref().and_then(FromKey::reference)).collect()
    }

    /// Where it is.
    ///
    /// # Errors
    /// It says too much or too little; what and what to do.
    pub fn address<'a>(&'a self) -> Result<Address<'a>, String> {
        let name = &self.name;
        if let Some(env) = &self.env {
            let here = [
                ("host", self.host.is_some()),
                ("port", self.port.is_some()),
                ("dbname", self.dbname.is_some()),
                ("user", self.user.is_some()),
                ("passwordFrom", self.password_from.is_some()),
                ("caFrom", self.ca_from.is_some()),
            ];
            return match here.into_iter().find(|(_, said)| *said) {
                None => Ok(Address::Env(env)),
                Some((field, _)) => Err(format!(
                    "database {name} has both env and {field}; keep env, where the host's environment holds the connection, or host, dbname, user and passwordFrom"
                )),
            };
        }
        let need = |field: &str, value: &'a Option<String>| -> Result<&'a str, String> {
            value.as_deref().filter(|text| !text.is_empty() && !text.contains('\0')).ok_or_else(|| {
                format!(
                    "database {name} has no {field}; write host, dbname and user (and port, passwordFrom, caFrom), or env alone for a connection from the host's environment"
                )
            })
        };
        Ok(Address::Here {
            host: need("host", &self.host)?,
            dbname: need("dbname", &self.dbname)?,
            user: need("user", &self.user)?,
        })
    }
}

/// How much a plugin may use; what is absent has the host's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(transform = admit_unknown_fields, transform = plain_numbers)]
pub struct LimitSpec {
    /// Memory of one reconcile, in MiB (64).
    #[serde(rename = "memoryMiB", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub memory_mib: Option<u32>,
    /// Wall-clock time of one reconcile, in seconds (30).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub deadline_seconds: Option<u32>,
    /// CPU time of one reconcile, in seconds (2).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600))]
    pub cpu_seconds: Option<u32>,
    /// Reconciles at the same time (16).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub concurrency: Option<u32>,
    /// Host calls of one reconcile (10,000).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub host_calls: Option<u32>,
    /// One argument or answer of a host call, in KiB (4,096).
    #[serde(rename = "messageKiB", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub message_kib: Option<u32>,
    /// Arguments and answers of all host calls of one reconcile, in MiB (512).
    #[serde(rename = "trafficMiB", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub traffic_mib: Option<u32>,
    /// Elements of the tables of one reconcile's instance, which are function pointers (100,000).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub table_elements: Option<u32>,
    /// Rows that one SQL statement may answer (10,000).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub rows: Option<u32>,
    /// gRPC exchanges and unary calls that one reconcile may hold open (100).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub streams: Option<u32>,
    /// Events that the plugin may publish in a minute, on average (6,000).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_per_minute: Option<u32>,
    /// Writes of one object that the plugin may make in a minute, on average, and a tenth of the objects that it may make for one; what would change nothing is none (300).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub writes_per_object_per_minute: Option<u32>,
    /// Lines of log of one reconcile (200).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_lines: Option<u32>,
    /// Lines of log of the plugin in a minute, on average (30,000).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_lines_per_minute: Option<u32>,
    /// Bytes of one line of log (8,192).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 80, max = 65536))]
    pub log_line_bytes: Option<u32>,
}

/// What the host says of a Plugin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PluginStatus {
    /// Of the component that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Its first 12 digits, to tell two apart in a column.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short_digest: Option<String>,
    /// What the component calls its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Of which generation of the spec this speaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where it works: what the spec and the host's own `--namespace` have in common; `*` for everywhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Objects of the kinds that it looks after, some seconds ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<i64>,
    /// Reconciles so far, some seconds ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconciles: Option<i64>,
    /// How many of them failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<i64>,
    /// `Loaded`, `Granted`, `Ready`, `Degraded`, `FinalizersHeld`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The definition of the kind, with what the schema of a spec cannot say: names of Plugins are names of plugins.
pub fn crd() -> CustomResourceDefinition {
    let mut crd = Plugin::crd();
    let rule = ValidationRule {
        rule: "size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')".to_owned(),
        message: Some("a plugin's name is at most 63 lower-case letters, digits and '-', without dots".to_owned()),
        ..ValidationRule::default()
    };
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            schema.x_kubernetes_validations = Some(vec![rule.clone()]);
        }
    }
    crd
}

/// The API server takes `additionalProperties: false` in no schema that names properties; it drops unknown fields, and says so to strict clients, by itself.
pub(crate) fn admit_unknown_fields(schema: &mut Schema) {
    schema.remove("additionalProperties");
}

/// Kubernetes knows no format of unsigned numbers; the ranges say as much.
fn plain_numbers(schema: &mut Schema) {
    let properties = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut);
    for property in
        properties.into_iter().flat_map(serde_json::Map::values_mut).filter_map(serde_json::Value::as_object_mut)
    {
        property.remove("format");
    }
}

/// Cases as one enumeration, as Kubernetes writes them.
fn plain_enumeration(schema: &mut Schema) {
    let cases: Vec<_> = schema
        .remove("oneOf")
        .and_then(|cases| cases.as_array().cloned())
        .into_iter()
        .flatten()
        .filter_map(|case| case.get("const").cloned())
        .collect();
    if !cases.is_empty() {
        schema.insert("type".to_owned(), "string".into());
        schema.insert("enum".to_owned(), cases.into());
    }
}

impl DeletionPolicy {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl LimitSpec {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// With the defaults.
    pub fn limits(&self) -> Limits {
        let default = Limits::default();
        let seconds = |value: Option<u32>, default| value.map_or(default, |s| Duration::from_secs(s.max(1).into()));
        let size = |value: Option<u32>, shift: u32, default| value.map_or(default, |n| (n.max(1) as usize) << shift);
        Limits {
            memory: size(self.memory_mib.map(|m| m.min(1024)), 20, default.memory),
            deadline: seconds(self.deadline_seconds, default.deadline),
            cpu: seconds(self.cpu_seconds, default.cpu),
            concurrency: size(self.concurrency, 0, default.concurrency),
            host_calls: self.host_calls.map_or(default.host_calls, u64::from),
            message: size(self.message_kib.map(|m| m.min(65536)), 10, default.message),
            log_lines: self.log_lines.map_or(default.log_lines, u64::from),
            traffic: self.traffic_mib.map_or(default.traffic, |n| u64::from(n.clamp(1, 65536)) << 20),
            tables: size(self.table_elements, 0, default.tables).min(MOST_TABLE_ELEMENTS),
            rows: size(self.rows, 0, default.rows).min(MOST_ROWS),
            streams: size(self.streams, 0, default.streams),
            event_rate: self.events_per_minute.map_or(default.event_rate, u64::from),
            write_rate: self.writes_per_object_per_minute.map_or(default.write_rate, u64::from),
            log_rate: self.log_lines_per_minute.map_or(default.log_rate, u64::from),
            log_line: size(self.log_line_bytes.map(|n| n.clamp(80, 65536)), 0, default.log_line),
        }
    }
}

impl PluginSpec {
    /// The account it acts as.
    ///
    /// # Errors
    /// The plugin's name is no account name, which cannot be for a [`PluginName`].
    pub fn account(&self, plugin: &PluginName) -> Result<ServiceAccount, NameError> {
        let (namespace, name) = match &self.service_account {
            Some(account) => (account.namespace.clone(), account.name.clone()),
            None => (None, AccountName::parse(plugin.as_str())?),
        };
        let namespace = match namespace {
            Some(namespace) => namespace,
            None => Namespace::parse(DEFAULT_ACCOUNT_NAMESPACE)?,
        };
        Ok(ServiceAccount { namespace, name })
    }

    /// What it may do and with how much; its bounds are not said here.
    pub fn policy(&self) -> Policy {
        let grants = Grants {
            rules: self.grants.rules.clone().into(),
            channels: self.grants.channels.iter().map(|c| c.name.clone()).collect(),
            databases: self.grants.databases.iter().map(|d| d.name.clone()).collect(),
            events: self.grants.events,
            ..Grants::default()
        };
        Policy { grants, limits: self.limits.limits(), settings: self.settings.clone(), ..Policy::default() }
    }

    /// Where it works.
    pub fn scope(&self) -> Scope {
        if self.namespaces.is_empty() { Scope::All } else { Scope::Namespaces(self.namespaces.clone()) }
    }
}
