//! The ports: what the world outside must offer, as traits. The cluster and the host implement them; tests, recording and fault injection are other implementations.
//!
//! **A port is reached only through [`crate::effect::Effects`], which checks the grant.** An implementation may rely on that, and must not be handed to anyone else.

pub mod database;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    cache::{Cached, Meta},
    limit::Limit,
    name::{
        ChannelName, ContinueToken, ControllerName, FieldManager, FieldSelector, LabelSelector, Namespace, PluginName,
        Subresource,
    },
    resource::{ObjectKey, Resource},
};

/// Who acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The plugin.
    pub plugin: PluginName,
    /// Its controller.
    pub controller: ControllerName,
}

impl Caller {
    /// Under which name it owns fields.
    pub fn field_manager(&self) -> FieldManager {
        FieldManager::of(&self.plugin, &self.controller)
    }
}

/// Why an effect failed; the cases of `api-error` in the contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// 404.
    #[error("not found: {0}")]
    NotFound(String),
    /// 409 on create.
    #[error("already exists: {0}")]
    AlreadyExists(String),
    /// 409 otherwise.
    #[error("conflict: {0}")]
    Conflict(String),
    /// 400, 422, or a malformed argument.
    #[error("invalid: {0}")]
    Invalid(String),
    /// 401, 403.
    #[error("forbidden by the cluster: {0}")]
    Forbidden(String),
    /// Not granted by the administrator.
    #[error("denied by the host: {0}")]
    Denied(String),
    /// 410.
    #[error("gone: {0}")]
    Gone(String),
    /// 429, or a rate that the host holds the plugin to; after this time there is room again.
    #[error("too many requests")]
    TooManyRequests(Option<Duration>),
    /// The API server failed; a write may have happened.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The API server was not even reached, so that no write happened; `unavailable` in the contract.
    #[error("unavailable: {0}")]
    Unreachable(String),
    /// No answer in time; a write may have happened.
    #[error("timeout: {0}")]
    Timeout(String),
    /// A limit was exceeded, and so no write happened.
    #[error("too large: {0}")]
    TooLarge(String),
    /// The answer exceeds a limit; a write may have happened. `too-large` in the contract.
    #[error("too large: {0}")]
    AnswerTooLarge(String),
}

impl ApiError {
    /// Whether nobody knows what a write did that ended so.
    pub fn may_have_happened(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Timeout(_) | Self::AnswerTooLarge(_))
    }

    /// The same of what was asked before anything was sent.
    pub fn before_sending(self) -> Self {
        match self {
            Self::Unavailable(why) | Self::Timeout(why) => Self::Unreachable(why),
            Self::AnswerTooLarge(why) => Self::TooLarge(why),
            other => other,
        }
    }

    /// The same case in other words.
    pub fn reworded(self, words: String) -> Self {
        match self {
            Self::NotFound(_) => Self::NotFound(words),
            Self::AlreadyExists(_) => Self::AlreadyExists(words),
            Self::Conflict(_) => Self::Conflict(words),
            Self::Invalid(_) => Self::Invalid(words),
            Self::Forbidden(_) => Self::Forbidden(words),
            Self::Denied(_) => Self::Denied(words),
            Self::Gone(_) => Self::Gone(words),
            Self::TooManyRequests(after) => Self::TooManyRequests(after),
            Self::Unavailable(_) => Self::Unavailable(words),
            Self::Unreachable(_) => Self::Unreachable(words),
            Self::Timeout(_) => Self::Timeout(words),
            Self::TooLarge(_) => Self::TooLarge(words),
            Self::AnswerTooLarge(_) => Self::AnswerTooLarge(words),
        }
    }
}

/// What to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Only here; none is everywhere.
    pub namespace: Option<Namespace>,
    /// As in `kubectl -l`.
    pub label_selector: Option<LabelSelector>,
    /// As in `kubectl --field-selector`.
    pub field_selector: Option<FieldSelector>,
    /// Objects a page, 1 to 1,000.
    pub limit: Option<u32>,
    /// From the page before.
    pub continue_token: Option<ContinueToken>,
    /// Ask the API server, not a cache.
    pub live: bool,
}

/// A part of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// Objects as JSON without managed fields.
    pub items: Vec<Arc<str>>,
    /// For the next page.
    pub continue_token: Option<ContinueToken>,
    /// Of the collection.
    pub resource_version: String,
}

/// How to change an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Patch {
    /// Server-side apply of partial JSON.
    Apply(String),
    /// RFC 7396.
    Merge(String),
    /// RFC 6902.
    Json(String),
}

/// What happens to an object's dependents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Propagation {
    /// They go later.
    #[default]
    Background,
    /// They go first.
    Foreground,
    /// They stay.
    Orphan,
}

/// How to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Only this incarnation.
    pub uid: Option<String>,
    /// Only this version.
    pub resource_version: Option<String>,
    /// Of dependents.
    pub propagation: Propagation,
    /// Seconds until a pod is killed; its own wish where none.
    pub grace_period_seconds: Option<u32>,
}

impl DeleteOptions {
    /// Bytes of its texts.
    pub fn size(&self) -> usize {
        [&self.uid, &self.resource_version].into_iter().flatten().map(String::len).sum()
    }
}

/// Normal or warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Nothing to worry about.
    Normal,
    /// Something to look at.
    Warning,
}

/// An event about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The object's kind.
    pub resource: Resource,
    /// The object.
    pub key: ObjectKey,
    /// Its type.
    pub severity: Severity,
    /// UpperCamelCase.
    pub reason: String,
    /// UpperCamelCase.
    pub action: String,
    /// For people.
    pub message: String,
}

/// What a write came to.
#[derive(Debug, Clone)]
pub struct Written {
    /// The object as it is now.
    pub now: Arc<Cached>,
    /// As it was when the write began, where a cache knew it.
    pub before: Option<Arc<Cached>>,
    /// Whether anything left the host: an apply that would have changed nothing does not.
    pub sent: bool,
    /// Whether an apply made it; a create does in any case.
    pub made: bool,
}

/// A write that was sent, of an object of which nothing but its text is known.
impl From<Arc<str>> for Written {
    fn from(json: Arc<str>) -> Self {
        Self { now: Arc::new(Cached { json, meta: Meta::default() }), before: None, sent: true, made: false }
    }
}

/// The object's text.
impl std::ops::Deref for Written {
    type Target = str;
    fn deref(&self) -> &str {
        &self.now.json
    }
}

/// The API server as one plugin sees it: every call acts as that plugin's service account and answers objects as JSON without managed fields.
#[async_trait]
pub trait Kubernetes: Send + Sync {
    /// One object, at least as new as the plugin's own last write.
    async fn get(
        &self,
        caller: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        live: bool,
    ) -> Result<Arc<Cached>, ApiError>;

    /// Objects of one kind.
    async fn list(&self, caller: &Caller, resource: &Resource, options: &ListOptions) -> Result<Page, ApiError>;

    /// Makes one.
    async fn create(
        &self,
        caller: &Caller,
        resource: &Resource,
        namespace: Option<&Namespace>,
        object: String,
    ) -> Result<Written, ApiError>;

    /// Changes one. An apply that changes nothing leaves no trace at the API server.
    async fn patch(
        &self,
        caller: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        patch: Patch,
    ) -> Result<Written, ApiError>;

    /// Replaces one, of just the version that the object names; one that names none is refused.
    async fn replace(
        &self,
        caller: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        object: String,
    ) -> Result<Written, ApiError>;

    /// Removes one. Answers which it was: its incarnation, and its version as long as something holds it; empty where that is not known.
    async fn delete(
        &self,
        caller: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        options: &DeleteOptions,
    ) -> Result<Meta, ApiError>;

    /// Publishes an event.
    async fn publish(&self, caller: &Caller, event: Event) -> Result<(), ApiError>;
}

/// gRPC metadata: lower-case key and value, in wire order.
pub type Metadata = Vec<(String, Vec<u8>)>;

/// A gRPC status that is not OK.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("gRPC status {code}: {message}")]
pub struct GrpcStatus {
    /// 1 to 16.
    pub code: u32,
    /// For people.
    pub message: String,
    /// An encoded `google.rpc.Status`, or empty.
    pub details: Vec<u8>,
    /// Its trailers.
    pub metadata: Metadata,
    /// What the host itself objects to, where no service said this.
    pub objection: Option<Objection>,
}

/// Why the host ends a gRPC call, whatever a service would say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objection {
    /// A limit of the plugin is met.
    Limit(Limit),
    /// It is not granted.
    Denied,
}

impl GrpcStatus {
    /// A status that the host itself makes.
    pub fn of(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Vec::new(), metadata: Vec::new(), objection: None }
    }
}

/// How to begin a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcCall {
    /// `/package.Service/Method`.
    pub path: String,
    /// To send.
    pub metadata: Metadata,
    /// Until DEADLINE_EXCEEDED.
    pub deadline: Option<Duration>,
}

/// What a unary call answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcReply {
    /// Before the message.
    pub headers: Metadata,
    /// Encoded, without gRPC's frame.
    pub message: Vec<u8>,
    /// After it.
    pub trailers: Metadata,
}

/// gRPC on named channels, whose endpoints and credentials only the implementation knows.
#[async_trait]
pub trait Channels: Send + Sync {
    /// One message there, one back.
    async fn unary(&self, channel: &ChannelName, call: GrpcCall, message: Vec<u8>) -> Result<GrpcReply, GrpcStatus>;

    /// Opens a streaming call.
    async fn open(&self, channel: &ChannelName, call: GrpcCall) -> Result<Box<dyn Exchange>, GrpcStatus>;
}

/// One open streaming call; dropping it cancels the call. Sending and receiving go on side by side, hence `&self`.
#[async_trait]
pub trait Exchange: Send + Sync {
    /// Sends one message; waits while the peer is not ready.
    async fn send(&self, message: Vec<u8>) -> Result<(), GrpcStatus>;
    /// No more from here. Never waits.
    fn half_close(&self);
    /// Waits for the headers.
    async fn headers(&self) -> Result<Metadata, GrpcStatus>;
    /// At least one message and at most `limit`, or none at the end; what has not been fetched waits with the peer.
    async fn receive(&self, limit: usize) -> Result<Vec<Vec<u8>>, GrpcStatus>;
    /// Empty before the end. Never waits.
    fn trailers(&self) -> Metadata;
}

/// A level of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Every step.
    Trace,
    /// For authors.
    Debug,
    /// For operators.
    Info,
    /// Worth a look.
    Warn,
    /// Broken.
    Error,
}

/// Where a plugin's log lines go. Never waits.
pub trait Log: Send + Sync {
    /// Whether such a line would be kept.
    fn enabled(&self, level: Level) -> bool;
    /// Keeps a line, escaped and cut already.
    fn write(&self, level: Level, target: &str, message: &str, fields: &[(String, String)]);
}
