//! Effects on databases. SQL cannot be judged here: what a plugin may do in a database is what the role may do that its connection was given.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{Call, Effects, tally::Tally, view::Still};
use crate::{
    limit::{Exceeded, Limit, MOST_ROWS},
    name::DatabaseName,
    port::database::{Isolation, SqlError, SqlRows, SqlStatement, SqlValue, Transaction},
};

/// Rows of an answer unless the plugin asks for another limit.
const ROWS: usize = 1_000;
/// PostgreSQL's own limit.
const PARAMETERS: usize = 65_535;

/// One statement as a plugin writes it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ask {
    /// A single statement.
    pub sql: String,
    /// Its parameters.
    pub parameters: Vec<SqlValue>,
    /// Shorter than the reconcile's own limit.
    pub deadline: Option<Duration>,
    /// Rows that it expects at most.
    pub max_rows: Option<usize>,
}

impl From<Exceeded> for SqlError {
    fn from(exceeded: Exceeded) -> Self {
        Self::TooLarge(exceeded.to_string())
    }
}

impl Effects {
    /// Rows of one statement.
    pub async fn query(&self, database: &str, ask: Ask) -> Result<SqlRows, SqlError> {
        let effect = async {
            let (statement, database) = (self.statement(ask)?, self.allow_database(database)?);
            let rows = self.ports.databases.query(&database, statement).await;
            self.tally.rows(rows)
        };
        self.metered(Call::Sql, effect).await
    }

    /// How many rows one statement changed.
    pub async fn execute(&self, database: &str, ask: Ask) -> Result<u64, SqlError> {
        let effect = async {
            let (statement, database) = (self.statement(ask)?, self.allow_database(database)?);
            let changed = self.ports.databases.execute(&database, statement).await;
            self.tally.limited(changed)
        };
        self.metered(Call::Sql, effect).await
    }

    /// Begins a transaction. Its statements pass [`Effects::statement`].
    pub async fn begin(
        &self,
        database: &str,
        isolation: Isolation,
        deadline: Option<Duration>,
    ) -> Result<Box<dyn Transaction>, SqlError> {
        let effect = async {
            self.count_sql(0)?;
            let database = self.allow_database(database)?;
            let inner = self.ports.databases.begin(&database, isolation, self.until(deadline)).await?;
            let (tally, still) = (Arc::clone(&self.tally), self.still());
            let transaction: Box<dyn Transaction> = Box::new(Counted { inner, database, still, tally });
            Ok(transaction)
        };
        self.metered(Call::Sql, effect).await
    }

    /// Counts a statement, and holds it to the limits.
    pub fn statement(&self, ask: Ask) -> Result<SqlStatement, SqlError> {
        let Ask { sql, parameters, deadline, max_rows } = ask;
        self.count_sql(parameters.iter().map(SqlValue::size).sum::<usize>() + sql.len())?;
        if parameters.len() > PARAMETERS {
            return Err(SqlError::Invalid(format!(
                "{} parameters; a statement takes at most {PARAMETERS}",
                parameters.len()
            )));
        }
        if sql.contains('\0') {
            return Err(SqlError::Invalid("the statement has a NUL character in it".into()));
        }
        if max_rows.is_some_and(|rows| !(1..=MOST_ROWS).contains(&rows)) {
            return Err(SqlError::Invalid(format!("max-rows is a number from 1 to {MOST_ROWS}")));
        }
        let limits = &self.tally.limits;
        let (deadline, max_rows) = (self.until(deadline), max_rows.unwrap_or(ROWS).min(limits.rows));
        Ok(SqlStatement { sql, parameters, deadline, max_rows, max_bytes: limits.message })
    }

    /// Counts a call that carries no statement.
    pub fn count_sql(&self, bytes: usize) -> Result<(), SqlError> {
        Ok(self.tally.call(bytes, Limit::Message)?)
    }

    fn until(&self, deadline: Option<Duration>) -> Duration {
        let limit = self.tally.limits.deadline;
        deadline.map_or(limit, |deadline| deadline.min(limit))
    }

    fn allow_database(&self, database: &str) -> Result<DatabaseName, SqlError> {
        self.policy.now().grants.check_database(database).map_err(|denial| {
            let denial = self.policy.told(denial);
            (self.ports.denials)(&denial);
            SqlError::Denied(denial.to_string())
        })
    }
}

impl Tally {
    /// Counts an answer that has more rows or bytes than its statement may have, of which the port says how many.
    fn limited<T>(&self, answer: Result<T, SqlError>) -> Result<T, SqlError> {
        if matches!(answer, Err(SqlError::TooLarge(_))) {
            self.exceed(Limit::Rows, "");
        }
        answer
    }

    fn rows(&self, answer: Result<SqlRows, SqlError>) -> Result<SqlRows, SqlError> {
        let rows = self.limited(answer)?;
        self.answer(rows.rows.iter().flatten().map(SqlValue::size).sum(), Limit::Rows)?;
        Ok(rows)
    }
}

/// A transaction whose answers are counted, as long as its database is granted: after that it can only be given up.
struct Counted {
    inner: Box<dyn Transaction>,
    database: DatabaseName,
    still: Still,
    tally: Arc<Tally>,
}

impl Counted {
    fn is_granted(&self) -> Result<(), SqlError> {
        let granted = self.still.check(|grants| grants.check_database(self.database.as_str()));
        granted.map_err(|denial| SqlError::Denied(denial.to_string()))
    }
}

#[async_trait]
impl Transaction for Counted {
    async fn query(&self, statement: SqlStatement) -> Result<SqlRows, SqlError> {
        self.is_granted()?;
        self.tally.rows(self.inner.query(statement).await)
    }

    async fn execute(&self, statement: SqlStatement) -> Result<u64, SqlError> {
        self.is_granted()?;
        self.tally.limited(self.inner.execute(statement).await)
    }

    async fn commit(&self) -> Result<(), SqlError> {
        self.is_granted()?;
        self.inner.commit().await
    }

    async fn rollback(&self) -> Result<(), SqlError> {
        self.inner.rollback().await
    }
}
