//! The one way out of a sandbox: every effect of a reconcile is a method here, which checks the limits and the grant and then calls the port.
//!
//! **The ports are private fields and nothing hands them out**, so an effect that forgets its check cannot be written elsewhere.

mod database;

pub use database::Ask;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;

use crate::{
    grant::{Access, Denial, Grants, Verb},
    limit::Limits,
    name::{Namespace, ObjectName, Subresource},
    port::{
        ApiError, Caller, Channels, DeleteOptions, Event, Exchange, GrpcCall, GrpcReply, GrpcStatus, Kubernetes, Level,
        ListOptions, Log, Page, Patch, database::Databases,
    },
    resource::{ObjectKey, Resource},
};

/// gRPC's PERMISSION_DENIED.
const PERMISSION_DENIED: u32 = 7;
/// gRPC's RESOURCE_EXHAUSTED.
const RESOURCE_EXHAUSTED: u32 = 8;
/// gRPC's INVALID_ARGUMENT.
const INVALID_ARGUMENT: u32 = 3;

/// The ports of one plugin.
#[derive(Clone)]
pub struct Ports {
    /// The API server, as the plugin's service account.
    pub kubernetes: Arc<dyn Kubernetes>,
    /// Its gRPC channels.
    pub channels: Arc<dyn Channels>,
    /// Its databases.
    pub databases: Arc<dyn Databases>,
    /// Its log.
    pub log: Arc<dyn Log>,
    /// Told of every denial.
    pub denials: Arc<dyn Fn(&Denial) + Send + Sync>,
}

/// What one plugin may do, and with how much; shared by its reconciles and exchanged live.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// What it may do.
    pub grants: Grants,
    /// How much.
    pub limits: Limits,
    /// Text by name.
    pub settings: BTreeMap<String, String>,
}

/// The effects of one reconcile.
pub struct Effects {
    caller: Caller,
    policy: Arc<ArcSwap<Policy>>,
    ports: Ports,
    settings: Arc<Policy>,
    calls: AtomicU64,
    lines: AtomicU64,
}

impl Effects {
    /// For one reconcile of `caller`.
    pub fn new(caller: Caller, policy: Arc<ArcSwap<Policy>>, ports: Ports) -> Self {
        let settings = policy.load_full();
        Self { caller, policy, ports, settings, calls: AtomicU64::new(0), lines: AtomicU64::new(0) }
    }

    /// Who acts.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The limits as they were when the reconcile began.
    pub fn limits(&self) -> &Limits {
        &self.settings.limits
    }

    /// A setting, as it was when the reconcile began.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.settings.get(name).map(String::as_str)
    }

    /// One object.
    pub async fn get(&self, resource: &Resource, key: &ObjectKey, live: bool) -> Result<Arc<str>, ApiError> {
        self.count(0)?;
        self.allow(Verb::Get, resource, None, key.namespace.as_ref(), Some(&key.name))?;
        self.ports.kubernetes.get(&self.caller, resource, key, live).await
    }

    /// Objects of one kind.
    pub async fn list(&self, resource: &Resource, options: &ListOptions) -> Result<Page, ApiError> {
        self.count(0)?;
        self.allow(Verb::List, resource, None, options.namespace.as_ref(), None)?;
        self.ports.kubernetes.list(&self.caller, resource, options).await
    }

    /// Makes an object.
    pub async fn create(
        &self,
        resource: &Resource,
        namespace: Option<&Namespace>,
        object: String,
    ) -> Result<Arc<str>, ApiError> {
        self.count(object.len())?;
        self.allow(Verb::Create, resource, None, namespace, None)?;
        self.ports.kubernetes.create(&self.caller, resource, namespace, object).await
    }

    /// Changes an object. Without the right to create, an apply to an object that does not exist is `NotFound`, as with kubectl.
    pub async fn patch(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        patch: Patch,
    ) -> Result<Arc<str>, ApiError> {
        let (Patch::Apply(body) | Patch::Merge(body) | Patch::Json(body)) = &patch;
        self.count(body.len())?;
        self.allow(Verb::Patch, resource, subresource, key.namespace.as_ref(), Some(&key.name))?;
        if matches!(patch, Patch::Apply(_)) && subresource.is_none() {
            // Server-side apply makes the object where there is none, which RBAC lets pass with `create`; a plugin that may not create is held to objects that exist.
            let create = self.allow_quietly(Verb::Create, resource, None, key.namespace.as_ref(), None);
            if let Err(denial) = create
                && matches!(
                    self.ports.kubernetes.get(&self.caller, resource, key, true).await,
                    Err(ApiError::NotFound(_) | ApiError::Forbidden(_))
                )
            {
                return Err(self.deny(&denial));
            }
        }
        self.ports.kubernetes.patch(&self.caller, resource, key, subresource, patch).await
    }

    /// Replaces an object.
    pub async fn replace(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        object: String,
    ) -> Result<Arc<str>, ApiError> {
        self.count(object.len())?;
        self.allow(Verb::Update, resource, subresource, key.namespace.as_ref(), Some(&key.name))?;
        self.ports.kubernetes.replace(&self.caller, resource, key, subresource, object).await
    }

    /// Removes an object.
    pub async fn delete(&self, resource: &Resource, key: &ObjectKey, options: &DeleteOptions) -> Result<(), ApiError> {
        self.count(0)?;
        self.allow(Verb::Delete, resource, None, key.namespace.as_ref(), Some(&key.name))?;
        self.ports.kubernetes.delete(&self.caller, resource, key, options).await
    }

    /// Publishes an event.
    pub async fn publish(&self, event: Event) -> Result<(), ApiError> {
        self.count(event.message.len())?;
        self.policy.load().grants.check_events().map_err(|denial| self.deny(&denial))?;
        // Regarding an object that it could not read, an event would be a way to write about strangers' objects.
        self.allow(Verb::Get, &event.resource, None, event.key.namespace.as_ref(), Some(&event.key.name))?;
        self.ports.kubernetes.publish(&self.caller, event).await
    }

    /// A unary gRPC call on a named channel.
    pub async fn unary(&self, channel: &str, call: GrpcCall, message: Vec<u8>) -> Result<GrpcReply, GrpcStatus> {
        let (channel, call) = self.allow_grpc(channel, call, message.len())?;
        self.ports.channels.unary(&channel, call, message).await
    }

    /// Opens a streaming gRPC call on a named channel.
    pub async fn open(&self, channel: &str, call: GrpcCall) -> Result<Box<dyn Exchange>, GrpcStatus> {
        let (channel, call) = self.allow_grpc(channel, call, 0)?;
        self.ports.channels.open(&channel, call).await
    }

    /// Counts a message sent on an open stream.
    pub fn count_message(&self, bytes: usize) -> Result<(), GrpcStatus> {
        self.count(bytes).map_err(|error| GrpcStatus::of(RESOURCE_EXHAUSTED, error.to_string()))
    }

    /// Whether a log line of this level would be kept.
    pub fn log_enabled(&self, level: Level) -> bool {
        self.ports.log.enabled(level)
    }

    /// Writes a log line: control characters escaped, cut to the limit; of those over the limit only the first is said.
    pub fn log(&self, level: Level, target: &str, message: &str, fields: &[(String, String)]) {
        if !self.ports.log.enabled(level) {
            return;
        }
        let limits = &self.settings.limits;
        let before = self.lines.fetch_add(1, Ordering::Relaxed);
        if before > limits.log_lines {
            return;
        }
        if before == limits.log_lines {
            let text =
                format!("this reconcile logs more than its limit of {} lines; the rest is dropped", limits.log_lines);
            self.ports.log.write(Level::Warn, "operetta", &text, &[]);
            return;
        }
        let mut room = limits.log_line;
        let mut clean = |text: &str| {
            let text = printable(text, room);
            room = room.saturating_sub(text.len());
            text
        };
        let (target, message) = (clean(target), clean(message));
        let fields: Vec<_> = fields.iter().take(32).map(|(name, value)| (clean(name), clean(value))).collect();
        self.ports.log.write(level, &target, &message, &fields);
    }

    fn allow_grpc(
        &self,
        channel: &str,
        call: GrpcCall,
        bytes: usize,
    ) -> Result<(crate::name::ChannelName, GrpcCall), GrpcStatus> {
        self.count_message(bytes)?;
        let channel = self.policy.load().grants.check_channel(channel).map_err(|denial| {
            (self.ports.denials)(&denial);
            GrpcStatus::of(PERMISSION_DENIED, format!("denied: {denial}"))
        })?;
        check_path(&call.path).map_err(|why| GrpcStatus::of(INVALID_ARGUMENT, why))?;
        check_metadata(&call.metadata).map_err(|why| GrpcStatus::of(INVALID_ARGUMENT, why))?;
        let limit = self.settings.limits.deadline;
        Ok((channel, GrpcCall { deadline: Some(call.deadline.map_or(limit, |d: Duration| d.min(limit))), ..call }))
    }

    fn allow(
        &self,
        verb: Verb,
        resource: &Resource,
        subresource: Option<&Subresource>,
        namespace: Option<&Namespace>,
        name: Option<&ObjectName>,
    ) -> Result<(), ApiError> {
        self.allow_quietly(verb, resource, subresource, namespace, name).map_err(|denial| self.deny(&denial))
    }

    fn allow_quietly(
        &self,
        verb: Verb,
        resource: &Resource,
        subresource: Option<&Subresource>,
        namespace: Option<&Namespace>,
        name: Option<&ObjectName>,
    ) -> Result<(), Denial> {
        self.policy.load().grants.check(&Access { verb, resource, subresource, namespace, name })
    }

    fn deny(&self, denial: &Denial) -> ApiError {
        (self.ports.denials)(denial);
        ApiError::Denied(denial.to_string())
    }

    fn count(&self, bytes: usize) -> Result<(), ApiError> {
        let limits = &self.settings.limits;
        if bytes > limits.message {
            return Err(ApiError::TooLarge(format!(
                "{bytes} bytes in one call; limits.messageKiB allows {}",
                limits.message
            )));
        }
        if self.calls.fetch_add(1, Ordering::Relaxed) >= limits.host_calls {
            return Err(ApiError::TooLarge(format!(
                "more than {} host calls in one reconcile; raise limits.hostCalls in the Plugin document if it needs more",
                limits.host_calls
            )));
        }
        Ok(())
    }
}

/// The text without control characters (escaped as Rust does) and without those that change the direction of writing, at most `room` bytes.
pub fn printable(text: &str, room: usize) -> String {
    let mut clean = String::with_capacity(text.len().min(room));
    for c in text.chars() {
        let hidden = c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
        let size = if hidden { c.escape_default().count() } else { c.len_utf8() };
        if clean.len() + size > room {
            clean.push('…');
            break;
        }
        if hidden { clean.extend(c.escape_default()) } else { clean.push(c) }
    }
    clean
}

fn check_path(path: &str) -> Result<(), String> {
    let word = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    match path.strip_prefix('/').and_then(|rest| rest.split_once('/')) {
        Some((service, method)) if path.len() <= 512 && service.split('.').all(word) && word(method) => Ok(()),
        _ => Err(format!("{:?} is not a gRPC path; write /package.Service/Method", printable(path, 200))),
    }
}

fn check_metadata(metadata: &[(String, Vec<u8>)]) -> Result<(), String> {
    /// HTTP's own, and those with which a request could be taken for another's.
    const RESERVED: [&str; 10] = [
        "host",
        "te",
        "connection",
        "content-type",
        "content-length",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "cookie",
        "authorization",
    ];
    for (key, value) in metadata {
        let form = !key.is_empty()
            && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.'));
        if !form || key.starts_with("grpc-") || RESERVED.contains(&key.as_str()) {
            return Err(format!("metadata key {:?} is not allowed from a plugin", printable(key, 100)));
        }
        if !key.ends_with("-bin") && !value.iter().all(|b| matches!(b, 0x20..=0x7e)) {
            return Err(format!(
                "metadata value of {key:?} is not printable ASCII; a key that ends in -bin may carry bytes"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
