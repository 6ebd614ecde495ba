//! PostgreSQL: for each database that a Plugin document names a pool of connections, over which single statements pass with typed values.
//!
//! **Nothing of a session outlives its use**: a connection that comes back is cleaned before it is given out again, and one whose use was cut off is closed. Credentials are never logged, and
//! no error that reaches a plugin names them or says where the database is.

mod connect;
mod value;

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use deadpool_postgres::{Client, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod};
use futures::TryStreamExt as _;
use operetta_api::Database as DatabaseSpec;
use operetta_core::{
    aside::{Aside, ELSEWHERE},
    limit::Limits,
    name::DatabaseName,
    port::database::{Databases, Isolation, SqlError, SqlRows, SqlStatement, SqlValue, Transaction},
};
use tokio::{
    runtime::Handle,
    sync::{Mutex, Semaphore},
    time::{Instant, timeout, timeout_at},
};

use connect::{By, Connector, Login, config};
use value::{Param, declared, read};

use crate::credentials::{Unready, Vault};

/// Connections of a pool unless the document says otherwise: a reconcile uses one for milliseconds, and a PostgreSQL server has a hundred for everybody.
const CONNECTIONS: u32 = 5;
/// How a session forgets its last user: what DISCARD ALL does, except for prepared statements, of which tokio-postgres keeps some of its own; and first a transaction that was
/// begun in plain SQL ends. The settings go back to those of the connection's start.
const CLEAN: &str = "ROLLBACK; CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); \
                     DISCARD TEMP; DISCARD SEQUENCES";
/// How long it may take to tell a server that a statement is not waited for any more. What answers nothing to that would keep two connections for ever.
const CANCEL: Duration = Duration::from_secs(5);
/// Such messages to one database at the same time. Beyond them its connections are just closed, and the server's statement_timeout ends what runs on.
const CANCELS: usize = 3;
/// What a statement in a transaction that has failed answers, and a commit of it.
const IN_FAILED_TRANSACTION: &str = "25P02";

/// The databases of one plugin.
pub struct DatabasePools {
    pools: HashMap<DatabaseName, Database>,
    /// Told what is not the plugin's to know.
    aside: Aside,
}

struct Database {
    pool: Pool,
    login: Arc<Login>,
    cancels: Arc<Cancels>,
}

impl DatabasePools {
    /// Reads the credentials and connects to nothing yet: connections are made as they are needed, up to the pool's size.
    ///
    /// # Errors
    /// An environment variable is missing or malformed, or a Secret is missing.
    pub async fn open(
        specs: &[DatabaseSpec],
        limits: &Limits,
        variable: impl Fn(&str) -> Option<String> + Send + Sync,
        vault: &Arc<dyn Vault>,
        aside: &Aside,
    ) -> Result<Self, Unready> {
        let mut pools = HashMap::new();
        for spec in specs {
            let wrong = |error: anyhow::Error| Unready::Wrong(format!("{error:#}"));
            let config = config(spec, limits.deadline, &variable).map_err(wrong)?;
            let login = Arc::new(Login::read(spec, &variable, vault).await?);
            let manager = Manager::from_connect(
                config,
                By(Arc::clone(&login)),
                ManagerConfig { recycling_method: RecyclingMethod::Custom(CLEAN.to_owned()) },
            );
            let size = spec.connections.unwrap_or(CONNECTIONS).max(1) as usize;
            let pool = Pool::builder(manager).max_size(size).build().map_err(|e| wrong(e.into()))?;
            pools.insert(spec.name.clone(), Database { pool, login, cancels: Arc::new(Cancels::new()) });
        }
        Ok(Self { pools, aside: aside.clone() })
    }

    /// A connection of nobody else.
    async fn connection(&self, database: &DatabaseName, until: Instant) -> Result<InUse, SqlError> {
        // Grants and pools come from one document, so this is a fault of the host and no denial.
        let Database { pool, login, cancels } = self
            .pools
            .get(database)
            .ok_or_else(|| SqlError::Unavailable(format!("database {database} has no connection")))?;
        let client = timeout_at(until, pool.get()).await.map_err(|_| {
            SqlError::Timeout(format!(
                "no connection to database {database} in time, of the {} that it has",
                pool.status().max_size
            ))
        })?;
        let client = client.map_err(|error| self.unreachable(database, &error))?;
        Ok(InUse { client: Some(client), connector: login.connector(), cancels: Arc::clone(cancels) })
    }

    /// Why there is no connection. Where the database is and what it says of a user and a password is for the administrator alone.
    fn unreachable(&self, database: &DatabaseName, error: &PoolError) -> SqlError {
        let PoolError::Backend(error) = error else { return SqlError::Unavailable(error.to_string()) };
        let (less, why) = match error.as_db_error() {
            Some(said) => {
                let code = said.code().code();
                (format!("refuses the host's connection (SQLSTATE {code})"), said.message().to_owned())
            }
            None => ("cannot be reached".to_owned(), chain(error)),
        };
        self.aside.say(&format!("database {database} {less}: {why}"));
        SqlError::Unavailable(format!("database {database} {less}; {ELSEWHERE}"))
    }
}

#[async_trait]
impl Databases for DatabasePools {
    async fn query(&self, database: &DatabaseName, statement: SqlStatement) -> Result<SqlRows, SqlError> {
        let until = Instant::now() + statement.deadline;
        let connection = self.connection(database, until).await?;
        let result = connection.run(&statement, until).await;
        connection.finish(result).map(|(rows, _)| rows)
    }

    async fn execute(&self, database: &DatabaseName, statement: SqlStatement) -> Result<u64, SqlError> {
        let until = Instant::now() + statement.deadline;
        let connection = self.connection(database, until).await?;
        let result = connection.run(&statement, until).await;
        connection.finish(result).map(|(_, changed)| changed)
    }

    async fn begin(
        &self,
        database: &DatabaseName,
        isolation: Isolation,
        deadline: Duration,
    ) -> Result<Box<dyn Transaction>, SqlError> {
        let until = Instant::now() + deadline;
        let connection = self.connection(database, until).await?;
        let sql = match isolation {
            Isolation::ReadCommitted => "BEGIN ISOLATION LEVEL READ COMMITTED",
            Isolation::RepeatableRead => "BEGIN ISOLATION LEVEL REPEATABLE READ",
            Isolation::Serializable => "BEGIN ISOLATION LEVEL SERIALIZABLE",
        };
        connection.control(sql, until).await?;
        Ok(Box::new(OpenTransaction { began: Mutex::new(Some(Began { connection, failed: false })), deadline }))
    }
}

/// A connection at work. One that is dropped before [`InUse::give_back`] is cancelled and closed, which also undoes an open transaction.
struct InUse {
    client: Option<Client>,
    connector: Connector,
    cancels: Arc<Cancels>,
}

/// Tells the server of one database that statements are not waited for any more.
struct Cancels {
    /// The host's own: what is dropped may be dropped by a guest's thread.
    runtime: Handle,
    places: Arc<Semaphore>,
}

impl Cancels {
    /// On the current runtime.
    fn new() -> Self {
        Self { runtime: Handle::current(), places: Arc::new(Semaphore::new(CANCELS)) }
    }

    /// Does that for a while, and then drops the connection; at once where too many are told so already.
    fn close<C: Send + 'static>(&self, connection: C, cancel: impl Future<Output: Send> + Send + 'static) {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return };
        self.runtime.spawn(async move {
            // Best effort: whatever runs on has the server's statement_timeout.
            let _ = timeout(CANCEL, cancel).await;
            drop((connection, place));
        });
    }
}

impl InUse {
    /// Runs one statement to its end.
    async fn run(&self, statement: &SqlStatement, until: Instant) -> Result<(SqlRows, u64), SqlError> {
        let client = self.client.as_ref().ok_or_else(ended)?;
        let work = async {
            let parameters = statement.parameters.iter().map(|value| (Param(value), declared(value)));
            let stream = client.query_typed_raw(&statement.sql, parameters).await.map_err(|e| failure(&e))?;
            let mut stream = std::pin::pin!(stream);
            let (mut answer, mut bytes) = (SqlRows::default(), 0);
            while let Some(row) = stream.try_next().await.map_err(|e| failure(&e))? {
                if answer.rows.len() == statement.max_rows {
                    let text = format!(
                        "the answer has more than {} rows, as max-rows and limits.rows allow",
                        statement.max_rows
                    );
                    return Err(SqlError::TooLarge(text));
                }
                if answer.columns.is_empty() {
                    answer.columns = row.columns().iter().map(|column| column.name().to_owned()).collect();
                }
                let values = read(&row)?;
                bytes += values.iter().map(SqlValue::size).sum::<usize>();
                if bytes > statement.max_bytes {
                    let text =
                        format!("the answer has more than {} bytes, as limits.messageKiB allows", statement.max_bytes);
                    return Err(SqlError::TooLarge(text));
                }
                answer.rows.push(values);
            }
            Ok((answer, stream.rows_affected().unwrap_or_default()))
        };
        timeout_at(until, work).await.unwrap_or_else(|_| Err(late()))
    }

    /// Runs a statement of our own.
    async fn control(&self, sql: &'static str, until: Instant) -> Result<(), SqlError> {
        let client = self.client.as_ref().ok_or_else(ended)?;
        match timeout_at(until, client.batch_execute(sql)).await {
            Ok(done) => done.map_err(|e| failure(&e)),
            Err(_) => Err(late()),
        }
    }

    /// Back into the pool, which cleans it before anybody else has it.
    fn give_back(mut self) {
        drop(self.client.take());
    }

    /// Back into the pool where it is known to be idle: after success, or after an error that the database itself told.
    fn finish<T>(self, result: Result<T, SqlError>) -> Result<T, SqlError> {
        if matches!(result, Ok(_) | Err(SqlError::Database { .. })) {
            self.give_back();
        }
        result
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        let client = Object::take(client);
        let (token, connector) = (client.cancel_token(), self.connector.clone());
        self.cancels.close(client, async move { token.cancel_query(connector).await });
    }
}

/// A transaction that was begun.
struct OpenTransaction {
    /// None once it has ended.
    began: Mutex<Option<Began>>,
    deadline: Duration,
}

struct Began {
    connection: InUse,
    /// A statement failed, or was cut off: nothing of it can last.
    failed: bool,
}

impl OpenTransaction {
    async fn run(&self, statement: &SqlStatement) -> Result<(SqlRows, u64), SqlError> {
        let until = Instant::now() + statement.deadline;
        let mut slot = timeout_at(until, self.began.lock()).await.map_err(|_| late())?;
        let began = slot.as_mut().ok_or_else(ended)?;
        let failed_before = std::mem::replace(&mut began.failed, true);
        let result = began.connection.run(statement, until).await;
        match &result {
            Ok(_) => began.failed = failed_before,
            Err(SqlError::Database { .. }) => {}
            Err(_) => *slot = None,
        }
        result
    }

    async fn end(&self, commit: bool) -> Result<(), SqlError> {
        let until = Instant::now() + self.deadline;
        let mut slot = timeout_at(until, self.began.lock()).await.map_err(|_| late())?;
        let Began { connection, failed } = slot.take().ok_or_else(ended)?;
        // PostgreSQL answers a commit of a failed transaction with success, and undoes it.
        let result = connection.control(if commit && !failed { "COMMIT" } else { "ROLLBACK" }, until).await;
        connection.finish(result)?;
        if commit && failed {
            return Err(SqlError::Database {
                sqlstate: IN_FAILED_TRANSACTION.to_owned(),
                message: "a statement of the transaction failed before, so nothing of it lasts".to_owned(),
                more: Vec::new(),
            });
        }
        Ok(())
    }
}

#[async_trait]
impl Transaction for OpenTransaction {
    async fn query(&self, statement: SqlStatement) -> Result<SqlRows, SqlError> {
        self.run(&statement).await.map(|(rows, _)| rows)
    }

    async fn execute(&self, statement: SqlStatement) -> Result<u64, SqlError> {
        self.run(&statement).await.map(|(_, changed)| changed)
    }

    async fn commit(&self) -> Result<(), SqlError> {
        self.end(true).await
    }

    async fn rollback(&self) -> Result<(), SqlError> {
        self.end(false).await
    }
}

fn ended() -> SqlError {
    SqlError::Invalid("the transaction has ended".to_owned())
}

fn late() -> SqlError {
    SqlError::Timeout("the database did not answer in time".to_owned())
}

/// What went wrong with a statement.
fn failure(error: &tokio_postgres::Error) -> SqlError {
    let Some(said) = error.as_db_error() else { return SqlError::Unavailable(chain(error)) };
    let sqlstate = said.code().code();
    // The statement_timeout, and our own cancellation, have a case of their own; so has a server that goes down.
    if sqlstate == "57014" {
        return SqlError::Timeout(said.message().to_owned());
    }
    if error.is_closed() || matches!(sqlstate, "57P01" | "57P02" | "57P03" | "57P05" | "25P03") {
        return SqlError::Unavailable(said.message().to_owned());
    }
    let more = [
        ("detail", said.detail()),
        ("hint", said.hint()),
        ("table", said.table()),
        ("column", said.column()),
        ("constraint", said.constraint()),
    ];
    SqlError::Database {
        sqlstate: sqlstate.to_owned(),
        message: said.message().to_owned(),
        more: more.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?.to_owned()))).collect(),
    }
}

/// An error with its causes, which tokio-postgres keeps apart.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// So many of them still exist.
    fn alive(connections: &[std::sync::Weak<()>]) -> usize {
        connections.iter().filter(|connection| connection.strong_count() > 0).count()
    }

    #[tokio::test(start_paused = true)]
    async fn cancels_are_few_short_and_of_the_hosts_runtime() {
        let cancels = Cancels::new();
        let close = |count: usize| {
            let connections: Vec<_> = (0..count).map(|_| Arc::new(())).collect();
            let watched: Vec<_> = connections.iter().map(Arc::downgrade).collect();
            // As on a thread of a guest's, where there is no such runtime.
            std::thread::scope(|scope| {
                let drop_all = || connections.into_iter().for_each(|it| cancels.close(it, pending::<()>()));
                scope.spawn(drop_all).join().unwrap();
            });
            watched
        };
        let silent = close(10);
        assert_eq!(alive(&silent), CANCELS, "the others are closed at once");
        let began = Instant::now();
        while alive(&silent) > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(began.elapsed() < CANCEL * 2, "{} wait for ever", alive(&silent));
        }
        // And there is room again.
        assert_eq!(alive(&close(1)), 1);
    }
}
