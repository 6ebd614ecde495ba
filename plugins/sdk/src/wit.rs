//! The host as the sandbox gives it: the imports of the world `operator`. Translates words and nothing else.

use crate::{
    context::{Cause, Outcome, Request},
    error::{Error, Failure},
    host::{Call, Exchange, Host, Metadata, ObjectKey, Options, Page, Patch, Resource, Severity, Transaction},
    sql::{Rows, SqlError, Statement, Value},
};
use bindings::operetta::operator::{events, grpc, log, postgres, reader, settings, types, writer};
use std::time::Duration;

/// Generated from `wit/`; public only because the code that [`export!`](crate::export) expands to names it.
#[allow(unsafe_code, missing_docs, clippy::all, clippy::pedantic, reason = "generated code")]
#[doc(hidden)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "wit",
        world: "operator",
        generate_all,
        pub_export_macro: true,
        export_macro_name: "export_component",
        default_bindings_module: "operetta_sdk::wit::bindings",
    });
}

/// The imports.
#[derive(Clone, Copy, Debug)]
pub struct WitHost;

impl Host for WitHost {
    type Exchange = WitExchange;
    type Transaction = WitTransaction;

    async fn get(&self, resource: &Resource, key: &ObjectKey, options: Options) -> Result<String, Error> {
        Ok(reader::get(resource.into(), key.into(), options).await?)
    }

    async fn list(&self, resource: &Resource, options: Options) -> Result<Page, Error> {
        let page = reader::list(resource.into(), options).await?;
        Ok(Page { items: page.items, next: page.continue_ })
    }

    async fn create(&self, resource: &Resource, namespace: Option<&str>, object: String) -> Result<String, Error> {
        Ok(writer::create(resource.into(), namespace.map(str::to_owned), object, Vec::new()).await?)
    }

    async fn patch(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&str>,
        patch: Patch,
    ) -> Result<String, Error> {
        let patch = match patch {
            Patch::Apply(json) => writer::Change::Apply(json),
            Patch::Merge(json) => writer::Change::Merge(json),
            Patch::Json(json) => writer::Change::Json(json),
        };
        Ok(writer::patch(resource.into(), key.into(), subresource.map(str::to_owned), patch, Vec::new()).await?)
    }

    async fn replace(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&str>,
        object: String,
    ) -> Result<String, Error> {
        Ok(writer::replace(resource.into(), key.into(), subresource.map(str::to_owned), object, Vec::new()).await?)
    }

    async fn delete(&self, resource: &Resource, key: &ObjectKey, options: Options) -> Result<(), Error> {
        Ok(writer::delete(resource.into(), key.into(), options).await?)
    }

    async fn publish(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        severity: Severity,
        reason: &str,
        message: &str,
    ) -> Result<(), Error> {
        let severity = match severity {
            Severity::Normal => events::Severity::Normal,
            Severity::Warning => events::Severity::Warning,
        };
        let (reason, message) = (reason.to_owned(), message.to_owned());
        Ok(events::publish(resource.into(), key.into(), severity, reason, message, Vec::new()).await?)
    }

    async fn open(&self, call: Call) -> Result<WitExchange, tonic::Status> {
        let exchange = grpc::Exchange::open(grpc::Call {
            channel: call.channel,
            path: call.path,
            metadata: call.metadata,
            deadline: call.deadline.map(millis),
            options: Vec::new(),
        })
        .await;
        exchange.map(WitExchange).map_err(status)
    }

    async fn query(&self, database: &str, statement: Statement) -> Result<Rows, SqlError> {
        Ok(postgres::query(database.to_owned(), statement.into()).await?.into())
    }

    async fn execute(&self, database: &str, statement: Statement) -> Result<u64, SqlError> {
        Ok(postgres::execute(database.to_owned(), statement.into()).await?)
    }

    async fn begin(&self, database: &str, deadline: Option<Duration>) -> Result<WitTransaction, SqlError> {
        Ok(WitTransaction(postgres::Transaction::begin(database.to_owned(), deadline.map(millis), Vec::new()).await?))
    }

    fn setting(&self, name: &str) -> Option<String> {
        settings::get(name)
    }

    fn now(&self) -> jiff::Timestamp {
        let now = bindings::wasi::clocks::system_clock::now();
        let nanoseconds = i32::try_from(now.nanoseconds).unwrap_or_default();
        jiff::Timestamp::new(now.seconds, nanoseconds).unwrap_or_default()
    }

    async fn sleep(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        bindings::wasi::clocks::monotonic_clock::wait_for(nanoseconds).await;
    }

    fn random(&self) -> u64 {
        bindings::wasi::random::random::get_random_u64()
    }
}

/// One streaming call.
#[derive(Debug)]
pub struct WitExchange(grpc::Exchange);

impl Exchange for WitExchange {
    async fn send(&self, message: Vec<u8>) -> Result<(), tonic::Status> {
        self.0.send(message).await.map_err(status)
    }

    fn half_close(&self) {
        self.0.half_close();
    }

    async fn headers(&self) -> Result<Metadata, tonic::Status> {
        self.0.headers().await.map_err(status)
    }

    async fn receive_many(&self, limit: u32) -> Result<Vec<Vec<u8>>, tonic::Status> {
        self.0.receive_many(limit).await.map_err(status)
    }

    fn trailers(&self) -> Metadata {
        self.0.trailers()
    }
}

/// One transaction.
#[derive(Debug)]
pub struct WitTransaction(postgres::Transaction);

impl Transaction for WitTransaction {
    async fn query(&self, statement: Statement) -> Result<Rows, SqlError> {
        Ok(self.0.query(statement.into()).await?.into())
    }

    async fn execute(&self, statement: Statement) -> Result<u64, SqlError> {
        Ok(self.0.execute(statement.into()).await?)
    }

    async fn commit(&self) -> Result<(), SqlError> {
        Ok(self.0.commit().await?)
    }

    async fn rollback(&self) -> Result<(), SqlError> {
        Ok(self.0.rollback().await?)
    }
}

impl From<Statement> for postgres::Statement {
    fn from(statement: Statement) -> Self {
        let parameter = |value| match value {
            Value::Null => postgres::Value::Null,
            Value::Boolean(value) => postgres::Value::Boolean(value),
            Value::Integer(value) => postgres::Value::Integer(value),
            Value::Float(value) => postgres::Value::Float(value),
            Value::Text(value) => postgres::Value::Text(value),
            Value::Bytes(value) => postgres::Value::Bytes(value),
        };
        Self {
            sql: statement.sql,
            parameters: statement.parameters.into_iter().map(parameter).collect(),
            deadline: statement.deadline.map(millis),
            options: Vec::new(),
        }
    }
}

impl From<postgres::Rows> for Rows {
    fn from(rows: postgres::Rows) -> Self {
        let value = |value| match value {
            postgres::Value::Null => Value::Null,
            postgres::Value::Boolean(value) => Value::Boolean(value),
            postgres::Value::Integer(value) => Value::Integer(value),
            postgres::Value::Float(value) => Value::Float(value),
            postgres::Value::Text(value) => Value::Text(value),
            postgres::Value::Bytes(value) => Value::Bytes(value),
            // A value that only a later host knows is at least readable.
            postgres::Value::Other(detail) => Value::Text(detail.message),
        };
        let rows_of = rows.rows.into_iter().map(|row| row.into_iter().map(value).collect());
        Self { columns: rows.columns, rows: rows_of.collect() }
    }
}

impl From<postgres::Error> for SqlError {
    fn from(error: postgres::Error) -> Self {
        match error {
            postgres::Error::Denied(message) => Self::Denied(message),
            postgres::Error::Invalid(message) => Self::Invalid(message),
            postgres::Error::Database(said) => {
                Self::Database { sqlstate: said.sqlstate, message: said.message, more: said.more }
            }
            postgres::Error::Unsupported(message) => Self::Unsupported(message),
            postgres::Error::Unavailable(message) => Self::Unavailable(message),
            postgres::Error::Timeout(message) => Self::Timeout(message),
            postgres::Error::TooLarge(message) => Self::TooLarge(message),
            postgres::Error::Other(detail) => Self::Other { code: detail.code, message: detail.message },
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whether the host would keep a line of this level.
pub(crate) fn log_enabled(level: tracing::Level) -> bool {
    log::enabled(log_level(level))
}

/// Writes one line to the host's log.
pub(crate) fn log_line(level: tracing::Level, target: &str, message: &str, fields: &[(String, String)]) {
    log::write(log_level(level), target, message, fields);
}

fn log_level(level: tracing::Level) -> log::Level {
    match level {
        tracing::Level::ERROR => log::Level::Error,
        tracing::Level::WARN => log::Level::Warn,
        tracing::Level::INFO => log::Level::Info,
        tracing::Level::DEBUG => log::Level::Debug,
        tracing::Level::TRACE => log::Level::Trace,
    }
}

/// The exported `manifest`.
#[doc(hidden)]
pub fn manifest(plugin: fn() -> crate::Plugin) -> String {
    crate::log::install();
    serde_json::to_string(&plugin().manifest()).unwrap_or_default()
}

/// The exported `reconcile`.
#[doc(hidden)]
pub async fn reconcile(
    plugin: fn() -> crate::Plugin,
    request: types::Request,
) -> Result<types::Outcome, types::Failure> {
    // First of all, so that a panic of the plugin's own construction is heard as well.
    crate::log::install();
    let cause = match request.cause {
        types::Cause::Changed => Cause::Changed,
        types::Cause::Resync => Cause::Resync,
        types::Cause::Requeued => Cause::Requeued,
        types::Cause::Retried => Cause::Retried,
        types::Cause::Other(word) => Cause::Other(word),
    };
    let key = ObjectKey { namespace: request.key.namespace, name: request.key.name };
    let object = request.object;
    let request = Request { controller: request.controller, key, attempt: request.attempt, cause };
    match std::rc::Rc::new(plugin()).reconcile(WitHost, request, object).await {
        Ok(Outcome::AwaitChange) => Ok(types::Outcome::AwaitChange),
        Ok(Outcome::RequeueAfter(after)) => Ok(types::Outcome::RequeueAfter(millis(after))),
        Err(Failure::Retryable(message)) => Err(types::Failure::Retryable(message)),
        Err(Failure::Terminal(message)) => Err(types::Failure::Terminal(message)),
    }
}

impl From<&Resource> for types::Resource {
    fn from(resource: &Resource) -> Self {
        Self { group: resource.group.clone(), version: resource.version.clone(), resource: resource.resource.clone() }
    }
}

impl From<&ObjectKey> for types::ObjectKey {
    fn from(key: &ObjectKey) -> Self {
        Self { namespace: key.namespace.clone(), name: key.name.clone() }
    }
}

impl From<types::ApiError> for Error {
    fn from(error: types::ApiError) -> Self {
        match error {
            types::ApiError::NotFound(message) => Self::NotFound(message),
            types::ApiError::AlreadyExists(message) => Self::AlreadyExists(message),
            types::ApiError::Conflict(message) => Self::Conflict(message),
            types::ApiError::Invalid(message) => Self::Invalid(message),
            types::ApiError::Forbidden(message) => Self::Forbidden(message),
            types::ApiError::Denied(message) => Self::Denied(message),
            types::ApiError::Gone(message) => Self::Gone(message),
            types::ApiError::TooManyRequests(after) => Self::TooManyRequests(after.map(Duration::from_millis)),
            types::ApiError::Unavailable(message) => Self::Unavailable(message),
            types::ApiError::Timeout(message) => Self::Timeout(message),
            types::ApiError::TooLarge(message) => Self::TooLarge(message),
            types::ApiError::Other(detail) => Self::Other { code: detail.code, message: detail.message },
        }
    }
}

fn status(status: grpc::Status) -> tonic::Status {
    let code = i32::try_from(status.code).unwrap_or_default();
    tonic::Status::with_details_and_metadata(
        tonic::Code::from_i32(code),
        status.message,
        status.details.into(),
        crate::grpc::metadata_map(&status.metadata),
    )
}
