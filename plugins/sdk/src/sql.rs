//! PostgreSQL on a named database: typed values in, typed values out.
//!
//! The host owns the connections. Refuses to build SQL: values are parameters, and the one thing that cannot be a parameter, a name, goes through [`identifier`].

use crate::host::{Handle, Host, Transaction as _};
use std::time::Duration;

/// A value of a parameter or a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// NULL.
    Null,
    /// `boolean`.
    Boolean(bool),
    /// `bigint`; in an answer also a smaller integer.
    Integer(i64),
    /// `double precision`; in an answer also `real`.
    Float(f64),
    /// As a parameter what a literal in quotes is; in an answer text, and types that are written as text.
    Text(String),
    /// `bytea`.
    Bytes(Vec<u8>),
}

impl Value {
    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The integer, if it is one.
    pub fn as_integer(&self) -> Option<i64> {
        if let Self::Integer(integer) = self { Some(*integer) } else { None }
    }

    /// The truth, if it is one.
    pub fn as_boolean(&self) -> Option<bool> {
        if let Self::Boolean(boolean) = self { Some(*boolean) } else { None }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(integer: i64) -> Self {
        Self::Integer(integer)
    }
}

impl From<bool> for Value {
    fn from(boolean: bool) -> Self {
        Self::Boolean(boolean)
    }
}

impl From<f64> for Value {
    fn from(float: f64) -> Self {
        Self::Float(float)
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// One statement.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// SQL, with `$1` for the first parameter.
    pub sql: String,
    /// For `$1`, `$2` and so on.
    pub parameters: Vec<Value>,
    /// How long it may take.
    pub deadline: Option<Duration>,
}

/// What a statement answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// Names of the columns; empty where there is no row.
    pub columns: Vec<String>,
    /// One value for each column.
    pub rows: Vec<Vec<Value>>,
}

/// Why a statement failed; the cases are those of the contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SqlError {
    /// The host says no: the plugin was not granted it. The message holds the missing piece.
    #[error("denied: {0}")]
    Denied(String),
    /// A malformed argument.
    #[error("invalid: {0}")]
    Invalid(String),
    /// The database refuses the statement; it had no effect.
    #[error("{message} (SQLSTATE {sqlstate})")]
    Database {
        /// Five letters and digits.
        sqlstate: String,
        /// For people.
        message: String,
        /// `detail`, `hint`, `table`, `column`, `constraint`, as far as the database says them.
        more: Vec<(String, String)>,
    },
    /// A column of a type without a value: cast it to text.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The database cannot be reached, or went away; whether a write happened is unknown.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// No answer in time; whether a write happened is unknown.
    #[error("timeout: {0}")]
    Timeout(String),
    /// An argument or an answer exceeds a limit.
    #[error("too large: {0}")]
    TooLarge(String),
    /// A case that this SDK does not know yet.
    #[error("{code}: {message}")]
    Other {
        /// For programs, in kebab-case.
        code: String,
        /// For people.
        message: String,
    },
}

impl SqlError {
    /// The SQLSTATE, where the database said one.
    pub fn sqlstate(&self) -> Option<&str> {
        if let Self::Database { sqlstate, .. } = self { Some(sqlstate) } else { None }
    }
}

/// A name that cannot be that of a table or a column.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No bytes, or more than PostgreSQL keeps.
    #[error("a name has 1 to 63 bytes, and this one has {0}")]
    Length(usize),
    /// No text of PostgreSQL's has one.
    #[error("a name has no NUL character")]
    Nul,
}

/// A name of a table or a column as SQL writes it, in quotes: one identifier, whatever is in it.
///
/// PostgreSQL would cut a name after 63 bytes and mean another table, so a longer one is an error.
pub fn identifier(name: &str) -> Result<String, NameError> {
    if name.is_empty() || name.len() > 63 {
        return Err(NameError::Length(name.len()));
    }
    if name.contains('\0') {
        return Err(NameError::Nul);
    }
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

/// A database. Cheap to make: the connections are the host's.
#[derive(Clone)]
pub struct Database {
    host: Handle,
    name: String,
    deadline: Option<Duration>,
}

impl Database {
    pub(crate) fn new(host: Handle, name: &str) -> Self {
        Self { host, name: name.to_owned(), deadline: None }
    }

    /// The same database, where each statement may take this long.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// The rows of one statement, which is a transaction of its own.
    pub async fn query(&self, sql: &str, parameters: impl IntoIterator<Item = Value>) -> Result<Rows, SqlError> {
        self.host.query(&self.name, statement(sql, parameters, self.deadline)).await
    }

    /// How many rows one statement changed; it is a transaction of its own.
    pub async fn execute(&self, sql: &str, parameters: impl IntoIterator<Item = Value>) -> Result<u64, SqlError> {
        self.host.execute(&self.name, statement(sql, parameters, self.deadline)).await
    }

    /// Begins a transaction, read committed.
    pub async fn begin(&self) -> Result<Transaction, SqlError> {
        let transaction = self.host.begin(&self.name, self.deadline).await?;
        Ok(Transaction { transaction, deadline: self.deadline })
    }
}

/// A transaction. Dropping it rolls it back.
pub struct Transaction {
    transaction: <Handle as Host>::Transaction,
    deadline: Option<Duration>,
}

impl Transaction {
    /// The rows of one statement.
    pub async fn query(&self, sql: &str, parameters: impl IntoIterator<Item = Value>) -> Result<Rows, SqlError> {
        self.transaction.query(statement(sql, parameters, self.deadline)).await
    }

    /// How many rows one statement changed.
    pub async fn execute(&self, sql: &str, parameters: impl IntoIterator<Item = Value>) -> Result<u64, SqlError> {
        self.transaction.execute(statement(sql, parameters, self.deadline)).await
    }

    /// Makes all of it last. After [`SqlError::Unavailable`] or [`SqlError::Timeout`] it may have lasted.
    pub async fn commit(self) -> Result<(), SqlError> {
        self.transaction.commit().await
    }

    /// Undoes all of it.
    pub async fn rollback(self) -> Result<(), SqlError> {
        self.transaction.rollback().await
    }
}

fn statement(sql: &str, parameters: impl IntoIterator<Item = Value>, deadline: Option<Duration>) -> Statement {
    Statement { sql: sql.to_owned(), parameters: parameters.into_iter().collect(), deadline }
}

#[cfg(test)]
mod tests {
    use super::{NameError, identifier};

    #[test]
    fn a_name_is_one_identifier_whatever_is_in_it() {
        assert_eq!(identifier("students").unwrap(), "\"students\"");
        assert_eq!(identifier("students; drop table students").unwrap(), "\"students; drop table students\"");
        assert_eq!(identifier("a\"; drop table b; --").unwrap(), "\"a\"\"; drop table b; --\"");
        assert_eq!(identifier("étudiants 学生").unwrap(), "\"étudiants 学生\"");
        assert_eq!(identifier(""), Err(NameError::Length(0)));
        assert_eq!(identifier("a\0b"), Err(NameError::Nul));
        assert!(identifier(&"x".repeat(63)).is_ok());
        assert_eq!(identifier(&"x".repeat(64)), Err(NameError::Length(64)));
        assert_eq!(identifier(&"é".repeat(32)), Err(NameError::Length(64)));
    }
}
