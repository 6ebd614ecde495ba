//! The border between a plugin and its host: what `wit/` says, as a Rust trait.
//!
//! Everything above this module is the same whether it runs inside the sandbox ([`Handle`] is then the WIT imports) or natively in a test (it is
//! then [`FakeHost`](crate::testing::FakeHost)). The trait is never used as an object: calls stay static, so that a component imports
//! only the interfaces that its plugin really uses.

use crate::{
    error::Error,
    sql::{Rows, SqlError, Statement},
};
use std::{fmt, time::Duration};

/// The host that this build talks to.
#[cfg(target_arch = "wasm32")]
pub type Handle = crate::wit::WitHost;
/// The host that this build talks to.
#[cfg(not(target_arch = "wasm32"))]
pub type Handle = crate::testing::FakeHost;

/// A kind of Kubernetes object, named as in a URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// The API group; the core group is the empty string.
    pub group: String,
    /// The version, such as `v1`.
    pub version: String,
    /// The plural in lower case, such as `deployments`.
    pub resource: String,
}

impl Resource {
    /// The resource of this group, version and plural.
    pub fn new(group: impl Into<String>, version: impl Into<String>, resource: impl Into<String>) -> Self {
        Self { group: group.into(), version: version.into(), resource: resource.into() }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}

/// Which object of a kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// None: the object is cluster-scoped.
    pub namespace: Option<String>,
    /// `metadata.name`.
    pub name: String,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Further wishes by name; which ones a call knows is written in `wit/`.
pub type Options = Vec<(String, String)>;

/// How to change an object; each holds JSON.
#[derive(Clone, Debug)]
pub enum Patch {
    /// Server-side apply of a partial object.
    Apply(String),
    /// A merge patch (RFC 7396).
    Merge(String),
    /// A JSON patch (RFC 6902).
    Json(String),
}

/// A part of a list.
#[derive(Clone, Debug)]
pub struct Page {
    /// The objects as JSON.
    pub items: Vec<String>,
    /// Given to the next `list` as the option `continue`.
    pub next: Option<String>,
}

/// The two types of event that Kubernetes knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something happened that was meant to.
    Normal,
    /// Something needs attention.
    Warning,
}

/// gRPC metadata in wire order; a key that ends in `-bin` carries bytes, any other ASCII text.
pub type Metadata = Vec<(String, Vec<u8>)>;

/// One gRPC call.
#[derive(Clone, Debug)]
pub struct Call {
    /// The channel's name in the grants.
    pub channel: String,
    /// `/package.Service/Method`.
    pub path: String,
    /// What the caller says beside the messages.
    pub metadata: Metadata,
    /// How long the whole call may take.
    pub deadline: Option<Duration>,
}

/// What the host can do for a plugin. The functions, their guarantees and errors are those of `wit/`.
#[allow(async_fn_in_trait, reason = "guests are single-threaded, so no future needs to be Send")]
pub trait Host: Clone + 'static {
    /// One streaming gRPC call; dropping it cancels the call.
    type Exchange: Exchange;
    /// One transaction on a database; dropping it rolls it back.
    type Transaction: Transaction;

    /// `reader.get`.
    async fn get(&self, resource: &Resource, key: &ObjectKey, options: Options) -> Result<String, Error>;
    /// `reader.list`.
    async fn list(&self, resource: &Resource, options: Options) -> Result<Page, Error>;
    /// `writer.create`.
    async fn create(&self, resource: &Resource, namespace: Option<&str>, object: String) -> Result<String, Error>;
    /// `writer.patch`.
    async fn patch(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&str>,
        patch: Patch,
    ) -> Result<String, Error>;
    /// `writer.replace`.
    async fn replace(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&str>,
        object: String,
    ) -> Result<String, Error>;
    /// `writer.delete`.
    async fn delete(&self, resource: &Resource, key: &ObjectKey, options: Options) -> Result<(), Error>;
    /// `events.publish`.
    async fn publish(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        severity: Severity,
        reason: &str,
        message: &str,
    ) -> Result<(), Error>;
    /// `grpc.exchange.open`.
    async fn open(&self, call: Call) -> Result<Self::Exchange, tonic::Status>;
    /// `postgres.query`.
    async fn query(&self, database: &str, statement: Statement) -> Result<Rows, SqlError>;
    /// `postgres.execute`.
    async fn execute(&self, database: &str, statement: Statement) -> Result<u64, SqlError>;
    /// `postgres.transaction.begin`.
    async fn begin(&self, database: &str, deadline: Option<Duration>) -> Result<Self::Transaction, SqlError>;
    /// `settings.get`.
    fn setting(&self, name: &str) -> Option<String>;
    /// The time of day.
    fn now(&self) -> jiff::Timestamp;
    /// Waits; the reconcile's deadline goes on running.
    async fn sleep(&self, duration: Duration);
    /// Sixty-four random bits.
    fn random(&self) -> u64;
}

/// `grpc.exchange`: messages are encoded protobuf without gRPC's frame.
#[allow(async_fn_in_trait, reason = "guests are single-threaded, so no future needs to be Send")]
pub trait Exchange: 'static {
    /// Sends one message.
    async fn send(&self, message: Vec<u8>) -> Result<(), tonic::Status>;
    /// No more messages come from here.
    fn half_close(&self);
    /// The headers of the answer; waits for them.
    async fn headers(&self) -> Result<Metadata, tonic::Status>;
    /// Between one and `limit` messages; empty when the peer ended the call with OK.
    async fn receive_many(&self, limit: u32) -> Result<Vec<Vec<u8>>, tonic::Status>;
    /// The trailers; empty before the end.
    fn trailers(&self) -> Metadata;
}

/// `postgres.transaction`.
#[allow(async_fn_in_trait, reason = "guests are single-threaded, so no future needs to be Send")]
pub trait Transaction: 'static {
    /// The rows of one statement.
    async fn query(&self, statement: Statement) -> Result<Rows, SqlError>;
    /// How many rows one statement changed.
    async fn execute(&self, statement: Statement) -> Result<u64, SqlError>;
    /// Makes it last.
    async fn commit(&self) -> Result<(), SqlError>;
    /// Undoes it.
    async fn rollback(&self) -> Result<(), SqlError>;
}
