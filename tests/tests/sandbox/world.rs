//! The ports as fakes that write down what reached them, and answer by the object's name.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use operetta_core::{
    cache::{Cached, Meta},
    name::{ChannelName, ContinueToken, DatabaseName, Namespace, Subresource},
    port::{
        ApiError, Caller, Channels, DeleteOptions, Event, Exchange, GrpcCall, GrpcReply, GrpcStatus, Kubernetes, Level,
        ListOptions, Log, Metadata, Page, Patch, Written,
        database::{Databases, Isolation, SqlError, SqlRows, SqlStatement, SqlValue, Transaction},
    },
    resource::{ObjectKey, Resource},
};
use tokio::sync::{Notify, watch};

#[derive(Default)]
pub struct World {
    calls: Mutex<Vec<String>>,
    lines: Mutex<Vec<String>>,
    /// Calls that wait for ever, and exchanges that are open.
    pub live: Arc<AtomicUsize>,
    pub arrived: Notify,
}

/// Counts what is alive.
struct Live(Arc<AtomicUsize>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl World {
    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    pub fn lines(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap())
    }

    fn note(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }

    fn live(&self) -> Live {
        self.live.fetch_add(1, Ordering::SeqCst);
        self.arrived.notify_waiters();
        Live(Arc::clone(&self.live))
    }

    async fn answer(&self, name: &str) -> Result<Arc<str>, ApiError> {
        let why = || "why".to_owned();
        Err(match name {
            "not-found" => ApiError::NotFound(why()),
            "already-exists" => ApiError::AlreadyExists(why()),
            "conflict" => ApiError::Conflict(why()),
            "invalid" => ApiError::Invalid(why()),
            "forbidden" => ApiError::Forbidden(why()),
            "denied" => ApiError::Denied(why()),
            "gone" => ApiError::Gone(why()),
            "too-many-requests" => ApiError::TooManyRequests(Some(Duration::from_millis(1_234))),
            "unavailable" => ApiError::Unavailable(why()),
            "timeout" => ApiError::Timeout(why()),
            "too-large" => ApiError::TooLarge(why()),
            name if name.starts_with("never") => {
                let _live = self.live();
                pending().await
            }
            "enormous" => return Ok("x".repeat(2 << 20).into()),
            "paused" => return Ok(r#"{"metadata":{"annotations":{"operetta.dev/paused":""}}}"#.into()),
            // On the host's own runtime, of which a guest's worker thread knows nothing.
            "spawned" => return Ok(tokio::spawn(async { thread() }).await.unwrap().into()),
            _ => return Ok(r#"{"ok":true}"#.into()),
        })
    }
}

pub fn thread() -> String {
    std::thread::current().name().unwrap_or("none").to_owned()
}

#[async_trait]
impl Kubernetes for World {
    async fn get(&self, caller: &Caller, r: &Resource, key: &ObjectKey, live: bool) -> Result<Arc<Cached>, ApiError> {
        self.note(format!("{}: get {r} {key} live={live}", caller.field_manager()));
        let mut there = Cached::read(self.answer(key.name.as_str()).await?);
        "1".clone_into(&mut there.meta.resource_version);
        Ok(Arc::new(there))
    }

    async fn list(&self, _: &Caller, resource: &Resource, options: &ListOptions) -> Result<Page, ApiError> {
        self.note(format!("list {resource} {options:?}"));
        let items =
            if options.limit == Some(1) { vec!["x".repeat(2 << 20).into()] } else { vec!["{}".into(), "[]".into()] };
        Ok(Page { items, continue_token: ContinueToken::parse("more").ok(), resource_version: "7".into() })
    }

    async fn create(
        &self,
        _: &Caller,
        resource: &Resource,
        namespace: Option<&Namespace>,
        object: String,
    ) -> Result<Written, ApiError> {
        let shown: String = object.chars().take(40).collect();
        self.note(format!("create {resource} {namespace:?} {shown}"));
        if resource.resource() == "nevers" {
            self.answer("never").await.map(Into::into)
        } else {
            Ok(Arc::<str>::from(object).into())
        }
    }

    async fn patch(
        &self,
        _: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        patch: Patch,
    ) -> Result<Written, ApiError> {
        self.note(format!("patch {resource} {key} {} {patch:?}", subresource.map_or("-", Subresource::as_str)));
        self.answer(key.name.as_str()).await.map(Into::into)
    }

    async fn replace(
        &self,
        _: &Caller,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        object: String,
    ) -> Result<Written, ApiError> {
        self.note(format!("replace {resource} {key} {} {object}", subresource.map_or("-", Subresource::as_str)));
        self.answer(key.name.as_str()).await.map(Into::into)
    }

    async fn delete(
        &self,
        _: &Caller,
        r: &Resource,
        key: &ObjectKey,
        options: &DeleteOptions,
    ) -> Result<Meta, ApiError> {
        self.note(format!("delete {r} {key} {options:?}"));
        self.answer(key.name.as_str()).await.map(|_| Meta::default())
    }

    async fn publish(&self, _: &Caller, event: Event) -> Result<(), ApiError> {
        // As it is, so that whoever looks sees what would be written.
        let Event { resource, key, severity, reason, action, message } = event;
        self.note(format!(
            "publish {resource} {key} severity: {severity:?} reason: \"{reason}\" action: \"{action}\" message: \"{message}\""
        ));
        Ok(())
    }
}

#[async_trait]
impl Channels for World {
    async fn unary(&self, channel: &ChannelName, call: GrpcCall, message: Vec<u8>) -> Result<GrpcReply, GrpcStatus> {
        self.note(format!("unary {channel} {} {:?} {:?}", call.path, call.metadata, call.deadline));
        if call.path.ends_with("/Never") {
            let _live = self.live();
            pending::<()>().await;
        }
        Ok(GrpcReply { headers: call.metadata, message, trailers: vec![("x-end".into(), b"1".to_vec())] })
    }

    async fn open(&self, channel: &ChannelName, call: GrpcCall) -> Result<Box<dyn Exchange>, GrpcStatus> {
        self.note(format!("open {channel} {}", call.path));
        let live = self.live();
        let exchange: Box<dyn Exchange> = if call.path.ends_with("/Forever") {
            Box::new(Forever { _live: live })
        } else if call.path.ends_with("/Deaf") {
            Box::new(Deaf { _live: live })
        } else {
            Box::new(Echo { state: watch::Sender::new(EchoState::default()), _live: live })
        };
        Ok(exchange)
    }
}

/// Sends back what was sent.
struct Echo {
    state: watch::Sender<EchoState>,
    _live: Live,
}

#[derive(Default)]
struct EchoState {
    messages: Vec<Vec<u8>>,
    closed: bool,
    ended: bool,
}

#[async_trait]
impl Exchange for Echo {
    async fn send(&self, message: Vec<u8>) -> Result<(), GrpcStatus> {
        self.state.send_modify(|state| state.messages.push(message));
        Ok(())
    }

    fn half_close(&self) {
        self.state.send_modify(|state| state.closed = true);
    }

    async fn headers(&self) -> Result<Metadata, GrpcStatus> {
        Ok(vec![("x-begin".into(), b"0".to_vec())])
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Vec<u8>>, GrpcStatus> {
        let mut seen = self.state.subscribe();
        let _ = seen.wait_for(|state| !state.messages.is_empty() || state.closed).await;
        let mut got = Vec::new();
        self.state.send_modify(|state| {
            got = state.messages.drain(..limit.min(state.messages.len())).collect();
            state.ended = got.is_empty();
        });
        Ok(got)
    }

    fn trailers(&self) -> Metadata {
        if self.state.borrow().ended { vec![("x-end".into(), b"1".to_vec())] } else { Vec::new() }
    }
}

/// Has always more to say.
struct Forever {
    _live: Live,
}

#[async_trait]
impl Exchange for Forever {
    async fn send(&self, _: Vec<u8>) -> Result<(), GrpcStatus> {
        Ok(())
    }

    fn half_close(&self) {}

    async fn headers(&self) -> Result<Metadata, GrpcStatus> {
        Ok(Vec::new())
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Vec<u8>>, GrpcStatus> {
        Ok(vec![b"more".to_vec(); limit])
    }

    fn trailers(&self) -> Metadata {
        Vec::new()
    }
}

/// Reads nothing, and says nothing.
struct Deaf {
    _live: Live,
}

#[async_trait]
impl Exchange for Deaf {
    async fn send(&self, _: Vec<u8>) -> Result<(), GrpcStatus> {
        pending().await
    }

    fn half_close(&self) {}

    async fn headers(&self) -> Result<Metadata, GrpcStatus> {
        pending().await
    }

    async fn receive(&self, _: usize) -> Result<Vec<Vec<u8>>, GrpcStatus> {
        pending().await
    }

    fn trailers(&self) -> Metadata {
        Vec::new()
    }
}

#[async_trait]
impl Databases for World {
    async fn query(&self, database: &DatabaseName, statement: SqlStatement) -> Result<SqlRows, SqlError> {
        self.note(format!("query {database} {statement:?}"));
        sql(statement)
    }

    async fn execute(&self, database: &DatabaseName, statement: SqlStatement) -> Result<u64, SqlError> {
        self.note(format!("execute {database} {}", statement.sql));
        sql(statement).map(|rows| rows.rows.len() as u64)
    }

    async fn begin(
        &self,
        database: &DatabaseName,
        isolation: Isolation,
        deadline: Duration,
    ) -> Result<Box<dyn Transaction>, SqlError> {
        self.note(format!("begin {database} {isolation:?} {deadline:?}"));
        Ok(Box::new(OneTransaction { notes: Mutex::default(), _live: self.live() }))
    }
}

/// Answers the parameters as a row, or the error that the statement names.
fn sql(statement: SqlStatement) -> Result<SqlRows, SqlError> {
    let why = || "why".to_owned();
    Err(match statement.sql.as_str() {
        "invalid" => SqlError::Invalid(why()),
        "database" => SqlError::Database {
            sqlstate: "42P01".to_owned(),
            message: why(),
            more: vec![("hint".to_owned(), "look".to_owned())],
        },
        "unsupported" => SqlError::Unsupported(why()),
        "unavailable" => SqlError::Unavailable(why()),
        "timeout" => SqlError::Timeout(why()),
        "too-large" => SqlError::TooLarge(why()),
        _ => {
            let columns = (1..=statement.parameters.len()).map(|n| format!("c{n}")).collect();
            return Ok(SqlRows { columns, rows: vec![statement.parameters] });
        }
    })
}

/// A transaction that answers what was called before.
struct OneTransaction {
    notes: Mutex<Vec<String>>,
    _live: Live,
}

impl OneTransaction {
    fn note(&self, what: &str) {
        self.notes.lock().unwrap().push(what.to_owned());
    }
}

#[async_trait]
impl Transaction for OneTransaction {
    async fn query(&self, statement: SqlStatement) -> Result<SqlRows, SqlError> {
        self.note(&statement.sql);
        let notes = self.notes.lock().unwrap().join(" ");
        Ok(SqlRows { columns: vec!["notes".to_owned()], rows: vec![vec![SqlValue::Text(notes)]] })
    }

    async fn execute(&self, statement: SqlStatement) -> Result<u64, SqlError> {
        self.note(&statement.sql);
        Ok(7)
    }

    async fn commit(&self) -> Result<(), SqlError> {
        self.note("commit");
        Ok(())
    }

    async fn rollback(&self) -> Result<(), SqlError> {
        self.note("rollback");
        Err(SqlError::Invalid("the transaction has ended".to_owned()))
    }
}

impl Log for World {
    fn enabled(&self, level: Level) -> bool {
        level >= Level::Info
    }

    fn write(&self, level: Level, target: &str, message: &str, fields: &[(String, String)]) {
        self.lines.lock().unwrap().push(format!("{level:?} {target}: {message} {fields:?}"));
    }
}
