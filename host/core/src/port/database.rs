//! The port to PostgreSQL: statements on named databases, whose addresses and credentials only the implementation knows.

use std::time::Duration;

use async_trait::async_trait;

use crate::name::DatabaseName;

/// A value of a parameter or a column.
#[derive(Debug, Clone, PartialEq)]
pub enum SqlValue {
    /// NULL.
    Null,
    /// `boolean`.
    Boolean(bool),
    /// `bigint`, and a column of a smaller integer.
    Integer(i64),
    /// `double precision`, and a column of `real`.
    Float(f64),
    /// As a parameter, what a literal in quotes is; as a column, text or a type that is written as text.
    Text(String),
    /// `bytea`.
    Bytes(Vec<u8>),
}

impl SqlValue {
    /// About how many bytes it takes.
    pub fn size(&self) -> usize {
        match self {
            Self::Null | Self::Boolean(_) | Self::Integer(_) | Self::Float(_) => 8,
            Self::Text(text) => text.len() + 8,
            Self::Bytes(bytes) => bytes.len() + 8,
        }
    }
}

/// One statement and how far it may go.
#[derive(Debug, Clone, PartialEq)]
pub struct SqlStatement {
    /// A single statement, with `$1` for the first parameter.
    pub sql: String,
    /// For `$1`, `$2` and so on.
    pub parameters: Vec<SqlValue>,
    /// Until it is cancelled, waiting for a connection included.
    pub deadline: Duration,
    /// Rows that it may answer.
    pub max_rows: usize,
    /// Bytes that it may answer.
    pub max_bytes: usize,
}

/// What a statement answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SqlRows {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// One value for each column.
    pub rows: Vec<Vec<SqlValue>>,
}

/// How far transactions are kept apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// PostgreSQL's own default.
    #[default]
    ReadCommitted,
    /// One snapshot for all.
    RepeatableRead,
    /// As if one after the other.
    Serializable,
}

/// Why a statement failed; the cases of `error` in the interface `postgres`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SqlError {
    /// Not granted by the administrator.
    #[error("denied by the host: {0}")]
    Denied(String),
    /// A malformed argument.
    #[error("invalid: {0}")]
    Invalid(String),
    /// The database refuses the statement.
    #[error("the database says {sqlstate}: {message}")]
    Database {
        /// Five letters and digits.
        sqlstate: String,
        /// For people.
        message: String,
        /// `detail`, `hint`, `table`, `column`, `constraint`, as far as it says.
        more: Vec<(String, String)>,
    },
    /// A column of a type that has no value in the contract.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The database cannot be reached, or went away; a write may have happened.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// No answer in time; a write may have happened.
    #[error("timeout: {0}")]
    Timeout(String),
    /// A limit was exceeded.
    #[error("too large: {0}")]
    TooLarge(String),
}

/// PostgreSQL on named databases.
#[async_trait]
pub trait Databases: Send + Sync {
    /// Rows of one statement, in a transaction of its own.
    async fn query(&self, database: &DatabaseName, statement: SqlStatement) -> Result<SqlRows, SqlError>;

    /// How many rows one statement changed, in a transaction of its own.
    async fn execute(&self, database: &DatabaseName, statement: SqlStatement) -> Result<u64, SqlError>;

    /// Begins a transaction, waiting at most this long for a connection.
    async fn begin(
        &self,
        database: &DatabaseName,
        isolation: Isolation,
        deadline: Duration,
    ) -> Result<Box<dyn Transaction>, SqlError>;
}

/// A transaction; dropping it rolls it back. Its statements run one after the other, in the order of the calls.
#[async_trait]
pub trait Transaction: Send + Sync {
    /// Rows of one statement.
    async fn query(&self, statement: SqlStatement) -> Result<SqlRows, SqlError>;
    /// How many rows one statement changed.
    async fn execute(&self, statement: SqlStatement) -> Result<u64, SqlError>;
    /// Makes it last. An error where a statement of it failed before: then nothing of it lasts.
    async fn commit(&self) -> Result<(), SqlError>;
    /// Undoes it.
    async fn rollback(&self) -> Result<(), SqlError>;
}

/// No database is anywhere: for a world without any.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDatabases;

fn nowhere<T>(database: &DatabaseName) -> Result<T, SqlError> {
    Err(SqlError::Unavailable(format!("there is no database {database}")))
}

#[async_trait]
impl Databases for NoDatabases {
    async fn query(&self, database: &DatabaseName, _: SqlStatement) -> Result<SqlRows, SqlError> {
        nowhere(database)
    }

    async fn execute(&self, database: &DatabaseName, _: SqlStatement) -> Result<u64, SqlError> {
        nowhere(database)
    }

    async fn begin(
        &self,
        database: &DatabaseName,
        _: Isolation,
        _: Duration,
    ) -> Result<Box<dyn Transaction>, SqlError> {
        nowhere(database)
    }
}
