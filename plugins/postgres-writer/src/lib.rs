//! Keeps one row in PostgreSQL for each `PostgresWriter`.
//!
//! **The row stands only in tables that the status names.** A table is written down before the first row goes in, and is forgotten only after the row has left; so it does not matter where
//! a reconcile is cut off, or how often the table changes meanwhile. The row's key is the object's namespace and name, so that there is one row, whoever writes it again.

mod api;
mod row;
#[cfg(test)]
mod tests;

pub use api::{PostgresWriter, PostgresWriterSpec, PostgresWriterStatus};

use operetta_sdk::{prelude::*, sql::SqlError};
use row::{RowError, Table, keep, remove, transfer};
use std::time::Duration;

/// What holds a `PostgresWriter` until its row is gone.
pub const FINALIZER: &str = "demo.yash.com/finalizer";
/// The database, as the grants name it.
pub const DATABASE: &str = "postgres";
/// How often the row is looked at although nothing changed.
const RESYNC: &str = "resync";
/// A statement on one row takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(5);
/// How soon a table that was not there, or did not fit, is looked at again: nobody tells us when a person has made it.
const TABLE_AGAIN: Duration = Duration::from_secs(15);

/// The plugin.
pub fn plugin() -> Plugin {
    operetta_sdk::plugin!()
        .crd::<PostgresWriter>()
        .controller(
            Controller::new("postgres-writer", reconcile)
                .finalizer(FINALIZER)
                .status()
                .wakes_on([Predicate::Generation]),
        )
        .database(DATABASE, "where the rows are written", "PSQL")
        .events()
        .setting(RESYNC, "look at each row again after this long, such as 30s, 5m or 1h", Some("5m"))
}

operetta_sdk::export!(plugin);

async fn reconcile(ctx: &Context, object: PostgresWriter) -> Result<Outcome, Failure> {
    let resync = ctx.duration_setting(RESYNC)?;
    finalizer(&ctx.api::<PostgresWriter>(), FINALIZER, object, async |event| match event {
        Event::Apply(object) => write(ctx, &object, resync).await,
        Event::Cleanup(object) => clean_up(ctx, &object).await,
    })
    .await
}

/// Makes the row stand in the object's table, and nowhere else.
async fn write(ctx: &Context, object: &PostgresWriter, resync: Duration) -> Result<Outcome, Failure> {
    let spec = &object.spec;
    let mut status = Status::of(ctx, object);
    let table = match Table::parse(&spec.table) {
        Ok(table) => table,
        Err(error) => return report(status, object, error).await,
    };
    if status.table.as_ref() != Some(&spec.table) {
        status.leaving.retain(|left| *left != spec.table);
        status.leaving.extend(status.table.replace(spec.table.clone()));
        status.say(State::False, "Pending", &format!("the row is on its way into table {:?}", spec.table)).await?;
    }
    let database = ctx.database(DATABASE).deadline(DEADLINE);
    let id = row_id(ctx);
    let written = if status.leaving.is_empty() {
        keep(&database, &table, &id, spec).await
    } else {
        transfer(&database, &tables(&status.leaving), &table, &id, spec).await
    };
    match written {
        Ok(()) => {
            status.leaving.clear();
            status.say(State::True, "Written", &format!("row {id} is in table {:?}", spec.table)).await?;
            Ok(Outcome::RequeueAfter(resync))
        }
        Err(error) => report(status, object, error).await,
    }
}

/// Makes the row stand nowhere.
async fn clean_up(ctx: &Context, object: &PostgresWriter) -> Result<Outcome, Failure> {
    let status = Status::of(ctx, object);
    let mut names = status.leaving.clone();
    names.extend(status.table.clone());
    match remove(&ctx.database(DATABASE).deadline(DEADLINE), &tables(&names), &row_id(ctx)).await {
        Ok(()) => Ok(Outcome::AwaitChange),
        // The object must not go before its row has.
        Err(error) => report(status, object, error)
            .await
            .and_then(|_| Err(Failure::retryable("the row is not removed yet; the condition Ready says why"))),
    }
}

/// Puts what went wrong into the status, with an event when it is news.
async fn report(mut status: Status<'_>, object: &PostgresWriter, error: RowError) -> Result<Outcome, Failure> {
    let name = &object.spec.table;
    let ddl = || Table::parse(name).map(|table| table.ddl()).unwrap_or_default();
    let (reason, message, outcome) = match error {
        RowError::Name(error) => {
            ("InvalidTable", format!("{name:?} is no name of a table: {error}"), Ok(Outcome::AwaitChange))
        }
        RowError::Missing => (
            "TableMissing",
            format!("there is no table {name:?}; make it with: {}", ddl()),
            Ok(Outcome::RequeueAfter(TABLE_AGAIN)),
        ),
        RowError::Unfit(why) => (
            "TableUnfit",
            format!("table {name:?} does not take the row: {why}; one that does is: {}", ddl()),
            Ok(Outcome::RequeueAfter(TABLE_AGAIN)),
        ),
        RowError::Sql(error) => {
            let reason = match &error {
                SqlError::Denied(_) => "Denied",
                SqlError::Unavailable(_) | SqlError::Timeout(_) => "DatabaseUnavailable",
                _ => "DatabaseRefused",
            };
            let message = format!("the database failed: {error}");
            (reason, message.clone(), Err(Failure::retryable(message)))
        }
    };
    match status.say(State::False, reason, &message).await {
        Ok(true) => status.ctx.events().warning(reason, &message).await,
        Ok(false) => {}
        // The cause of it all matters more.
        Err(error) => tracing::warn!(error = error.message(), "status not written"),
    }
    outcome
}

/// The row's key.
fn row_id(ctx: &Context) -> String {
    ctx.request().key.to_string()
}

/// Those that can exist. The status holds no others, unless a person wrote it.
fn tables(names: &[String]) -> Vec<Table> {
    names.iter().filter_map(|name| Table::parse(name).ok()).collect()
}

/// The status on its way to the object.
struct Status<'a> {
    ctx: &'a Context,
    table: Option<String>,
    leaving: Vec<String>,
    conditions: Conditions,
}

impl<'a> Status<'a> {
    fn of(ctx: &'a Context, object: &PostgresWriter) -> Self {
        let observed = object.status.clone().unwrap_or_default();
        let conditions = Conditions::of(ctx, object, &observed.conditions);
        Self { ctx, table: observed.table, leaving: observed.leaving, conditions }
    }

    /// Writes it, and says whether its condition changed.
    async fn say(&mut self, state: State, reason: &str, message: &str) -> Result<bool, Failure> {
        let news = self.conditions.set("Ready", state, reason, message);
        let status = PostgresWriterStatus {
            row_id: self.table.is_some().then(|| row_id(self.ctx)),
            table: self.table.clone(),
            leaving: self.leaving.clone(),
            conditions: self.conditions.to_vec(),
        };
        self.ctx.api::<PostgresWriter>().apply_status(&self.ctx.request().key.name, &status).await?;
        Ok(news)
    }
}
