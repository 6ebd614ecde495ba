//! The interface `postgres`.

use std::{sync::Arc, time::Duration};

use operetta_core::{
    effect::Ask,
    limit::{Exceeded, Limit},
    port::{
        ApiError,
        database::{Isolation, SqlError, SqlRows, SqlValue, Transaction},
    },
};
use wasmtime::component::{Accessor, Resource};

use super::convert::{self, Size};
use crate::{
    bindings::operetta::operator::{
        postgres::{
            DatabaseError, Error, Host, HostTransaction, HostTransactionWithStore, HostWithStore, Rows, Statement,
            Value,
        },
        types::Options,
    },
    state::{Call, Caps, State, begin},
};

/// Rows that a statement may ask for, as the contract says.
const MOST_ROWS: u32 = 10_000;

/// What a handle of the resource `transaction` stands for.
pub struct Open(Arc<dyn Transaction>);

type Answer<T> = wasmtime::Result<Result<T, Error>>;

impl Host for State {}

impl HostWithStore<State> for Caps {
    async fn query(accessor: &Accessor<State, Self>, database: String, statement: Statement) -> Answer<Rows> {
        let under_way = begin(accessor, database.len() + statement.size())?;
        let answer = async {
            let (under_way, ask) = ready(under_way, statement)?;
            under_way.on_main(under_way.effects.query(&database, ask)).await
        };
        Ok(answer.await.map(Rows::from).map_err(Error::from))
    }

    async fn execute(accessor: &Accessor<State, Self>, database: String, statement: Statement) -> Answer<u64> {
        let under_way = begin(accessor, database.len() + statement.size())?;
        let answer = async {
            let (under_way, ask) = ready(under_way, statement)?;
            under_way.on_main(under_way.effects.execute(&database, ask)).await
        };
        Ok(answer.await.map_err(Error::from))
    }
}

impl HostTransactionWithStore<State> for Caps {
    async fn begin(
        accessor: &Accessor<State, Self>,
        database: String,
        deadline: Option<u64>,
        options: Options,
    ) -> Answer<Resource<Open>> {
        let under_way = begin(accessor, database.len() + options.size())?;
        let answer = async {
            let under_way = under_way?;
            let isolation = isolation(options)?;
            let deadline = deadline.map(Duration::from_millis);
            let open = under_way.on_main(under_way.effects.begin(&database, isolation, deadline)).await?;
            let pushed = accessor.with(|mut store| store.get().table.push(Open(Arc::from(open))));
            pushed.map_err(|_| {
                let exceeded = under_way.effects.exceed(Limit::Handles, "the reconcile holds too many handles");
                SqlError::from(exceeded)
            })
        };
        Ok(answer.await.map_err(Error::from))
    }

    async fn query(accessor: &Accessor<State, Self>, this: Resource<Open>, statement: Statement) -> Answer<Rows> {
        let (open, under_way) = (open(accessor, &this)?, begin(accessor, statement.size())?);
        let answer = async {
            let (under_way, ask) = ready(under_way, statement)?;
            under_way.on_main(open.query(under_way.effects.statement(ask)?)).await
        };
        Ok(answer.await.map(Rows::from).map_err(Error::from))
    }

    async fn execute(accessor: &Accessor<State, Self>, this: Resource<Open>, statement: Statement) -> Answer<u64> {
        let (open, under_way) = (open(accessor, &this)?, begin(accessor, statement.size())?);
        let answer = async {
            let (under_way, ask) = ready(under_way, statement)?;
            under_way.on_main(open.execute(under_way.effects.statement(ask)?)).await
        };
        Ok(answer.await.map_err(Error::from))
    }

    async fn commit(accessor: &Accessor<State, Self>, this: Resource<Open>) -> Answer<()> {
        let (open, under_way) = (open(accessor, &this)?, begin(accessor, 0)?);
        let answer = async {
            let under_way = under_way?;
            under_way.effects.count_sql(0)?;
            under_way.on_main(open.commit()).await
        };
        Ok(answer.await.map_err(Error::from))
    }

    async fn rollback(accessor: &Accessor<State, Self>, this: Resource<Open>) -> Answer<()> {
        let (open, under_way) = (open(accessor, &this)?, begin(accessor, 0)?);
        let answer = async {
            let under_way = under_way?;
            under_way.effects.count_sql(0)?;
            under_way.on_main(open.rollback()).await
        };
        Ok(answer.await.map_err(Error::from))
    }
}

impl HostTransaction for State {
    fn drop(&mut self, this: Resource<Open>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}

/// Out of the table, which must not be held while waiting.
fn open(accessor: &Accessor<State, Caps>, this: &Resource<Open>) -> wasmtime::Result<Arc<dyn Transaction>> {
    Ok(accessor.with(|mut store| store.get().table.get(this).map(|open| Arc::clone(&open.0)))?)
}

impl Size for Value {
    fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Other(detail) => detail.code.len() + detail.message.len(),
            Self::Null | Self::Boolean(_) | Self::Integer(_) | Self::Float(_) => 0,
        }
    }
}

impl Size for Statement {
    fn size(&self) -> usize {
        self.sql.len() + self.parameters.size() + self.options.size()
    }
}

fn ready(under_way: Result<Call, Exceeded>, statement: Statement) -> Result<(Call, Ask), SqlError> {
    let under_way = under_way?;
    let mut max_rows = None;
    convert::options(statement.options, &["max-rows"], |name, value| {
        max_rows = Some(convert::number(name, &value, 1..=MOST_ROWS)? as usize);
        Ok(())
    })
    .map_err(invalid)?;
    let parameters = statement.parameters.into_iter().map(parameter).collect::<Result<_, _>>()?;
    let deadline = statement.deadline.map(Duration::from_millis);
    Ok((under_way, Ask { sql: statement.sql, parameters, deadline, max_rows }))
}

fn isolation(options: Options) -> Result<Isolation, SqlError> {
    let mut isolation = Isolation::default();
    convert::options(options, &["isolation"], |_, value| {
        isolation = match value.as_str() {
            "read-committed" => Isolation::ReadCommitted,
            "repeatable-read" => Isolation::RepeatableRead,
            "serializable" => Isolation::Serializable,
            _ => {
                let why = "the option isolation has the value read-committed, repeatable-read or serializable";
                return Err(convert::invalid(why));
            }
        };
        Ok(())
    })
    .map_err(invalid)?;
    Ok(isolation)
}

fn invalid(error: ApiError) -> SqlError {
    match error {
        ApiError::Invalid(why) => SqlError::Invalid(why),
        other => SqlError::Invalid(other.to_string()),
    }
}

fn parameter(value: Value) -> Result<SqlValue, SqlError> {
    Ok(match value {
        Value::Null => SqlValue::Null,
        Value::Boolean(value) => SqlValue::Boolean(value),
        Value::Integer(value) => SqlValue::Integer(value),
        Value::Float(value) => SqlValue::Float(value),
        Value::Text(value) => SqlValue::Text(value),
        Value::Bytes(value) => SqlValue::Bytes(value),
        Value::Other(detail) => {
            let code: String = detail.code.chars().take(80).collect();
            return Err(SqlError::Invalid(format!("this host knows no value {code:?}")));
        }
    })
}

impl From<SqlRows> for Rows {
    fn from(rows: SqlRows) -> Self {
        let value = |value| match value {
            SqlValue::Null => Value::Null,
            SqlValue::Boolean(value) => Value::Boolean(value),
            SqlValue::Integer(value) => Value::Integer(value),
            SqlValue::Float(value) => Value::Float(value),
            SqlValue::Text(value) => Value::Text(value),
            SqlValue::Bytes(value) => Value::Bytes(value),
        };
        let rows_of = rows.rows.into_iter().map(|row| row.into_iter().map(value).collect());
        Self { columns: rows.columns, rows: rows_of.collect() }
    }
}

impl From<SqlError> for Error {
    fn from(error: SqlError) -> Self {
        match error {
            SqlError::Denied(why) => Self::Denied(why),
            SqlError::Invalid(why) => Self::Invalid(why),
            SqlError::Database { sqlstate, message, more } => Self::Database(DatabaseError { sqlstate, message, more }),
            SqlError::Unsupported(why) => Self::Unsupported(why),
            SqlError::Unavailable(why) => Self::Unavailable(why),
            SqlError::Timeout(why) => Self::Timeout(why),
            SqlError::TooLarge(why) => Self::TooLarge(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use operetta_core::port::database::SqlStatement;

    use super::*;

    struct Nothing;

    #[async_trait]
    impl Transaction for Nothing {
        async fn query(&self, _: SqlStatement) -> Result<SqlRows, SqlError> {
            Err(SqlError::Invalid(String::new()))
        }

        async fn execute(&self, _: SqlStatement) -> Result<u64, SqlError> {
            Ok(0)
        }

        async fn commit(&self) -> Result<(), SqlError> {
            Ok(())
        }

        async fn rollback(&self) -> Result<(), SqlError> {
            Ok(())
        }
    }

    #[test]
    fn a_transaction_whose_handle_goes_goes_at_once() {
        let mut state = crate::state::testing::described();
        let open: Arc<dyn Transaction> = Arc::new(Nothing);
        let handle = state.table.push(Open(Arc::clone(&open))).unwrap();
        HostTransaction::drop(&mut state, handle).unwrap();
        assert_eq!(Arc::strong_count(&open), 1);
    }

    #[test]
    fn a_statement_holds_its_text_and_its_values() {
        let parameters = vec![Value::Text("abc".into()), Value::Bytes(vec![0; 100]), Value::Null, Value::Integer(7)];
        let statement = Statement { sql: "SELECT 1".into(), parameters, deadline: None, options: vec![] };
        assert_eq!(statement.size(), 8 + 3 + 100 + 4 * size_of::<Value>());
    }

    #[test]
    fn an_isolation_is_the_one_that_is_named() {
        let read = |value: &str| isolation(vec![("isolation".into(), value.into())]);
        assert_eq!(isolation(vec![]), Ok(Isolation::default()));
        assert_eq!(read("read-committed"), Ok(Isolation::ReadCommitted));
        assert_eq!(read("repeatable-read"), Ok(Isolation::RepeatableRead));
        assert_eq!(read("serializable"), Ok(Isolation::Serializable));
        assert!(matches!(read("none"), Err(SqlError::Invalid(why)) if why.contains("read-committed")));
    }
}
