//! Stands beyond the last border, in place of the API server, the gRPC services, the databases and the log, and knows of each call that arrives whether it should have.
//!
//! It judges by itself: nothing here asks [`Grants`] or [`Limits`] what they think.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use operetta_core::{
    cache::{Cached, Meta},
    effect::{Effects, Policy, Ports},
    name::{
        ChannelName, ContinueToken, ControllerName, DatabaseName, FieldSelector, LabelSelector, Namespace, PluginName,
        Subresource,
    },
    port::{
        ApiError, Caller, Channels, DeleteOptions, Event, Exchange, GrpcCall, GrpcReply, GrpcStatus, Kubernetes, Level,
        ListOptions, Log, Metadata, Page, Patch, Written,
        database::{Databases, Isolation, SqlError, SqlRows, SqlStatement, Transaction},
    },
    resource::{ObjectKey, Resource},
};

/// Who sees what comes through.
#[derive(Default)]
pub struct Witness {
    policy: Arc<ArcSwap<Policy>>,
    found: Mutex<Vec<String>>,
    arrived: AtomicUsize,
    /// Bytes of each answer.
    answer: AtomicUsize,
}

impl Witness {
    /// Under a policy.
    pub fn of(policy: Policy) -> Arc<Self> {
        Arc::new(Self { policy: Arc::new(ArcSwap::from_pointee(policy)), ..Self::default() })
    }

    /// Changes what is granted from now on.
    pub fn change(&self, change: impl FnOnce(&mut Policy)) {
        let mut policy = Policy::clone(&self.policy.load());
        change(&mut policy);
        self.policy.store(Arc::new(policy));
    }

    /// How many bytes each answer has from now on.
    pub fn answer_with(&self, bytes: usize) {
        self.answer.store(bytes, Ordering::Relaxed);
    }

    /// The effects of one reconcile, which end here.
    pub fn effects(self: &Arc<Self>) -> Effects {
        let caller =
            Caller { plugin: PluginName::parse("fuzz").unwrap(), controller: ControllerName::parse("any").unwrap() };
        let ports = Ports {
            kubernetes: self.clone(),
            channels: self.clone(),
            databases: self.clone(),
            log: self.clone(),
            denials: Arc::new(|denial| {
                assert!(denial.to_string().len() < 5_000, "a denial of {} bytes", denial.to_string().len());
            }),
            exceeded: Arc::new(|_| {}),
            rates: Arc::default(),
        };
        Effects::new(caller, Arc::clone(&self.policy), ports)
    }

    /// How many calls came through.
    pub fn arrived(&self) -> usize {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Panics with what should not have been. In a port a panic would end a task, and nobody would hear of it.
    pub fn testify(&self) {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    fn expect(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.found.lock().unwrap_or_else(PoisonError::into_inner).push(what());
        }
    }

    fn arrives(&self, bytes: usize, what: &str) {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        let most = self.policy.load().limits.message;
        self.expect(bytes <= most, || format!("{what} with {bytes} bytes, and {most} are allowed"));
    }

    fn is_granted(
        &self,
        verb: &str,
        resource: &Resource,
        part: Option<&Subresource>,
        namespace: Option<&Namespace>,
        name: Option<&str>,
    ) {
        let words = [resource.group(), resource.version(), resource.resource()];
        let names = [namespace.map(Namespace::as_str), part.map(Subresource::as_str), name];
        for word in words.into_iter().chain(names.into_iter().flatten()) {
            self.expect(is_harmless(word), || format!("{verb} {resource} with the name {word:?}"));
        }
        let granted = self.grants(verb, resource, part, namespace, name);
        self.expect(granted, || {
            format!(
                "{verb} {resource} {part:?} {namespace:?} {name:?} came through {:?}",
                self.policy.load().grants.rules
            )
        });
    }

    fn grants(
        &self,
        verb: &str,
        resource: &Resource,
        part: Option<&Subresource>,
        namespace: Option<&Namespace>,
        name: Option<&str>,
    ) -> bool {
        let plural = resource.resource();
        let target = part.map_or_else(|| plural.to_owned(), |part| format!("{plural}/{part}"));
        self.policy.load().grants.rules.iter().any(|rule| {
            let has = |list: &[String], word: &str| list.iter().any(|entry| entry == "*" || entry == word);
            let of_all = part.is_some_and(|part| rule.resources.contains(&format!("*/{part}")));
            let here = rule.namespaces.is_empty() || rule.namespaces.iter().any(|entry| Some(entry) == namespace);
            let this =
                rule.resource_names.is_empty() || rule.resource_names.iter().any(|entry| Some(entry.as_str()) == name);
            has(&rule.api_groups, resource.group())
                && (has(&rule.resources, &target) || of_all)
                && has(&rule.verbs, verb)
                && here
                && this
        })
    }

    fn object(&self) -> Result<Arc<str>, ApiError> {
        Ok("x".repeat(self.answer.load(Ordering::Relaxed)).into())
    }

    fn grpc(&self, channel: &ChannelName, call: &GrpcCall) {
        let policy = self.policy.load();
        self.expect(policy.grants.channels.contains(channel), || format!("channel {channel}"));
        let deadline = call.deadline.is_some_and(|deadline| deadline <= policy.limits.deadline);
        self.expect(deadline, || format!("the deadline {:?}", call.deadline));
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'/');
        let path = &call.path;
        self.expect(path.starts_with('/') && path.matches('/').count() == 2 && path.bytes().all(plain), || {
            path.clone()
        });
        for (key, value) in &call.metadata {
            let owned = ["grpc-", "content-", "proxy-", "x-forwarded-", ":"].iter().any(|start| key.starts_with(start))
                || ["te", "host", "authorization", "cookie", "user-agent", "connection"].contains(&key.as_str());
            let form = key.bytes().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase());
            let text = key.ends_with("-bin") || value.iter().all(|b| matches!(b, 0x20..=0x7e));
            self.expect(!owned && form && text, || format!("metadata {key:?} {value:?}"));
        }
    }

    fn statement(&self, database: &DatabaseName, statement: &SqlStatement) {
        let policy = self.policy.load();
        self.arrives(statement.sql.len(), "a statement");
        self.expect(policy.grants.databases.contains(database), || format!("database {database}"));
        self.expect(!statement.sql.contains('\0'), || format!("{:?}", statement.sql));
        self.expect((1..=policy.limits.rows).contains(&statement.max_rows), || format!("{} rows", statement.max_rows));
        self.expect(statement.deadline <= policy.limits.deadline, || format!("deadline {:?}", statement.deadline));
        self.expect(statement.max_bytes <= policy.limits.message, || format!("{} bytes", statement.max_bytes));
    }
}

fn is_harmless(name: &str) -> bool {
    name.is_ascii()
        && !name.contains(|c: char| c.is_ascii_control() || "/\\%?# ".contains(c))
        && !matches!(name, "." | "..")
}

#[async_trait]
impl Kubernetes for Witness {
    async fn get(&self, _: &Caller, resource: &Resource, key: &ObjectKey, _: bool) -> Result<Arc<Cached>, ApiError> {
        self.arrives(0, "get");
        let (namespace, name) = (key.namespace.as_ref(), Some(key.name.as_str()));
        // Before a plugin writes, the host looks whether the object exists and what it carries, and tells nobody else.
        if !["patch", "update"].into_iter().any(|verb| self.grants(verb, resource, None, namespace, name)) {
            self.is_granted("get", resource, None, namespace, name);
        }
        self.object().map(|json| Arc::new(Cached::read(json)))
    }

    async fn list(&self, _: &Caller, resource: &Resource, options: &ListOptions) -> Result<Page, ApiError> {
        self.arrives(0, "list");
        self.is_granted("list", resource, None, options.namespace.as_ref(), None);
        let texts = [
            options.label_selector.as_ref().map(LabelSelector::as_str),
            options.field_selector.as_ref().map(FieldSelector::as_str),
            options.continue_token.as_ref().map(ContinueToken::as_str),
        ];
        for text in texts.into_iter().flatten() {
            self.expect(text.bytes().all(|b| matches!(b, 0x20..=0x7e)), || format!("{text:?} in a list"));
        }
        let items = (0..options.limit.unwrap_or(10).min(10)).map(|_| self.object()).collect::<Result<_, _>>()?;
        Ok(Page { items, ..Page::default() })
    }

    async fn create(
        &self,
        _: &Caller,
        resource: &Resource,
        namespace: Option<&Namespace>,
        object: String,
    ) -> Result<Written, ApiError> {
        self.arrives(object.len(), "create");
        self.is_granted("create", resource, None, namespace, None);
        self.object().map(Written::from)
    }

    async fn patch(
        &self,
        _: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        patch: Patch,
    ) -> Result<Written, ApiError> {
        let (Patch::Apply(body) | Patch::Merge(body) | Patch::Json(body)) = &patch;
        self.arrives(body.len(), "patch");
        self.is_granted("patch", resource, subresource, key.namespace.as_ref(), Some(key.name.as_str()));
        self.object().map(Written::from)
    }

    async fn replace(
        &self,
        _: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        object: String,
    ) -> Result<Written, ApiError> {
        self.arrives(object.len(), "replace");
        self.is_granted("update", resource, subresource, key.namespace.as_ref(), Some(key.name.as_str()));
        self.object().map(Written::from)
    }

    async fn delete(
        &self,
        _: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        _: &DeleteOptions,
    ) -> Result<Meta, ApiError> {
        self.arrives(0, "delete");
        self.is_granted("delete", resource, None, key.namespace.as_ref(), Some(key.name.as_str()));
        Ok(Meta::default())
    }

    async fn publish(&self, _: &Caller, event: Event) -> Result<(), ApiError> {
        self.arrives(event.message.len(), "publish");
        let Event { resource, key, .. } = &event;
        self.is_granted("get", resource, None, key.namespace.as_ref(), Some(key.name.as_str()));
        self.expect(self.policy.load().grants.events, || "an event".to_owned());
        Ok(())
    }
}

#[async_trait]
impl Channels for Witness {
    async fn unary(&self, channel: &ChannelName, call: GrpcCall, message: Vec<u8>) -> Result<GrpcReply, GrpcStatus> {
        self.arrives(message.len(), "unary");
        self.grpc(channel, &call);
        Ok(GrpcReply {
            headers: Metadata::new(),
            message: vec![0; self.answer.load(Ordering::Relaxed)],
            trailers: Metadata::new(),
        })
    }

    async fn open(&self, channel: &ChannelName, call: GrpcCall) -> Result<Box<dyn Exchange>, GrpcStatus> {
        self.arrives(0, "open");
        self.grpc(channel, &call);
        Err(GrpcStatus::of(14, "closed"))
    }
}

#[async_trait]
impl Databases for Witness {
    async fn query(&self, database: &DatabaseName, statement: SqlStatement) -> Result<SqlRows, SqlError> {
        self.statement(database, &statement);
        Ok(SqlRows { columns: Vec::new(), rows: vec![statement.parameters] })
    }

    async fn execute(&self, database: &DatabaseName, statement: SqlStatement) -> Result<u64, SqlError> {
        self.statement(database, &statement);
        Ok(0)
    }

    async fn begin(
        &self,
        database: &DatabaseName,
        _: Isolation,
        deadline: Duration,
    ) -> Result<Box<dyn Transaction>, SqlError> {
        self.arrives(0, "begin");
        let policy = self.policy.load();
        self.expect(policy.grants.databases.contains(database), || format!("database {database}"));
        self.expect(deadline <= policy.limits.deadline, || format!("deadline {deadline:?}"));
        Err(SqlError::Timeout("busy".into()))
    }
}

impl Log for Witness {
    fn enabled(&self, _: Level) -> bool {
        true
    }

    fn write(&self, _: Level, target: &str, message: &str, fields: &[(String, String)]) {
        let texts =
            || [target, message].into_iter().chain(fields.iter().flat_map(|(name, value)| [name.as_str(), value]));
        for text in texts() {
            let plain =
                !text.contains(|c: char| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c) || c == '\u{2028}');
            self.expect(plain, || format!("a line of the log with {text:?}"));
        }
        // Each text that is cut says so with three bytes.
        let (bytes, most) = (texts().map(str::len).sum::<usize>(), self.policy.load().limits.log_line + 66 * 3);
        // Lines of the host's own are as long as they are.
        self.expect(target == "operetta" || bytes <= most, || {
            format!("a line of {bytes} bytes where {most} are taken")
        });
    }
}
