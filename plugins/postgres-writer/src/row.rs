//! A row and its tables, as SQL. **The tables' names are the only thing that is written into a statement**, each as one quoted identifier; all else is a parameter.

use crate::api::PostgresWriterSpec;
use operetta_sdk::sql::{Database, NameError, Rows, SqlError, Transaction, Value, identifier};

/// SQLSTATE of a table that does not exist.
const UNDEFINED_TABLE: &str = "42P01";
/// SQLSTATEs of a table that is not made for such rows: a missing column; no primary key on `id`; a column of a type that does not take the value.
const UNFIT: [&str; 4] = ["42703", "42P10", "42804", "22P02"];

/// Why a row is not where it should be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RowError {
    /// No table can be called so.
    Name(NameError),
    /// The table does not exist.
    Missing,
    /// The table is there and is not made for such rows.
    Unfit(String),
    /// All else.
    Sql(SqlError),
}

impl From<SqlError> for RowError {
    fn from(error: SqlError) -> Self {
        match error.sqlstate() {
            Some(UNDEFINED_TABLE) => Self::Missing,
            Some(state) if UNFIT.contains(&state) => Self::Unfit(error.to_string()),
            _ => match error {
                SqlError::Unsupported(message) => Self::Unfit(message),
                error => Self::Sql(error),
            },
        }
    }
}

/// A table by its name in SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table(String);

impl Table {
    pub(crate) fn parse(name: &str) -> Result<Self, RowError> {
        identifier(name).map(Self).map_err(RowError::Name)
    }

    /// What makes it.
    pub(crate) fn ddl(&self) -> String {
        let columns =
            "\"id\" text PRIMARY KEY, \"name\" text NOT NULL, \"age\" bigint NOT NULL, \"country\" text NOT NULL";
        format!("CREATE TABLE {} ({columns});", self.0)
    }

    fn select(&self) -> String {
        format!("SELECT \"name\", \"age\", \"country\" FROM {} WHERE \"id\" = $1", self.0)
    }

    fn upsert(&self) -> String {
        format!(
            "INSERT INTO {} (\"id\", \"name\", \"age\", \"country\") VALUES ($1, $2, $3, $4) ON CONFLICT (\"id\") DO UPDATE \
             SET \"name\" = excluded.\"name\", \"age\" = excluded.\"age\", \"country\" = excluded.\"country\"",
            self.0
        )
    }

    fn delete(&self) -> String {
        format!("DELETE FROM {} WHERE \"id\" = $1", self.0)
    }
}

/// Makes the row stand in its table as described. One query where it does.
pub(crate) async fn keep(
    database: &Database,
    table: &Table,
    id: &str,
    spec: &PostgresWriterSpec,
) -> Result<(), RowError> {
    if holds(&database.query(&table.select(), [id.into()]).await?, spec)? {
        return Ok(());
    }
    database.execute(&table.upsert(), values(id, spec)).await?;
    Ok(())
}

/// Takes the row out of all tables that it leaves and puts it into its own, all at once.
pub(crate) async fn transfer(
    database: &Database,
    leaving: &[Table],
    table: &Table,
    id: &str,
    spec: &PostgresWriterSpec,
) -> Result<(), RowError> {
    let transaction = database.begin().await?;
    for left in leaving {
        if exists(&transaction, left).await? {
            transaction.execute(&left.delete(), [id.into()]).await?;
        }
    }
    transaction.execute(&table.upsert(), values(id, spec)).await?;
    Ok(transaction.commit().await?)
}

/// Makes the row stand in none of the tables. One that does not exist holds none.
pub(crate) async fn remove(database: &Database, tables: &[Table], id: &str) -> Result<(), RowError> {
    for table in tables {
        match database.execute(&table.delete(), [id.into()]).await.map_err(RowError::from) {
            Ok(_) | Err(RowError::Missing) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Asked before, since a statement that fails ends a transaction.
async fn exists(transaction: &Transaction, table: &Table) -> Result<bool, SqlError> {
    let answer = transaction.query("SELECT to_regclass($1) IS NOT NULL", [Value::from(table.0.as_str())]).await?;
    Ok(answer.rows.first().and_then(|row| row.first()).and_then(Value::as_boolean).unwrap_or_default())
}

fn values(id: &str, spec: &PostgresWriterSpec) -> [Value; 4] {
    [id.into(), spec.name.as_str().into(), spec.age.into(), spec.country.as_str().into()]
}

/// Whether the answer is the row as described. A row whose values are of other types would never be.
fn holds(answer: &Rows, spec: &PostgresWriterSpec) -> Result<bool, RowError> {
    let Some(row) = answer.rows.first() else { return Ok(false) };
    match row.as_slice() {
        [Value::Text(name), Value::Integer(age), Value::Text(country)] => {
            Ok((name, *age, country) == (&spec.name, spec.age, &spec.country))
        }
        values if values.contains(&Value::Null) => Ok(false),
        _ => Err(RowError::Unfit("its columns have other types".to_owned())),
    }
}
