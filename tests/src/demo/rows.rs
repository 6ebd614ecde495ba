//! The part of the story about a database: a row for an object, wherever its table is, and names that are never SQL.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{
    stage::{SOON, Stage},
    tell::Teller,
};
use crate::{
    eventually,
    kinds::{ready, writers},
};

const SAMPLE: &str = "config/samples/demo_v1_postgreswriter.yaml";
const STUDENTS: &str =
    "CREATE TABLE students (id text PRIMARY KEY, name text NOT NULL, age bigint NOT NULL, country text NOT NULL)";
const ALUMNI: &str = "CREATE TABLE alumni (LIKE students INCLUDING ALL)";
/// A table's name, if somebody lets it be one.
const EVIL: &str = "alumni; DROP TABLE alumni";

/// A row is made, follows its object from value to value and from table to table, and goes with it.
pub async fn follow(stage: &mut Stage, tell: &Teller) -> Result<()> {
    let objects = writers(&stage.client, stage.namespace());
    for ddl in [STUDENTS, ALUMNI] {
        tell.types(&format!("psql -c '{ddl}'"));
        stage.postgres.sql(ddl).await?;
    }
    let start = Instant::now();
    let (name, _) = stage.apply(tell, &objects, SAMPLE).await?;
    holds(stage, "students", &["alex | 23 | canada"]).await?;
    let row = format!("{}/{name} | alex | 23 | canada", stage.namespace());
    tell.took(&format!("students holds {row}"), start.elapsed());

    let change = async |patch: Value| {
        tell.types(&stage.kubectl(&format!("patch postgreswriter {name} --type=merge --patch='{patch}'")));
        objects.merge(&name, &patch).await
    };
    let start = Instant::now();
    change(json!({"spec": {"age": 24}})).await?;
    holds(stage, "students", &["alex | 24 | canada"]).await?;
    tell.took("the row says 24", start.elapsed());
    let start = Instant::now();
    change(json!({"spec": {"table": "alumni"}})).await?;
    holds(stage, "alumni", &["alex | 24 | canada"]).await?;
    holds(stage, "students", &[]).await?;
    tell.took("the row has moved: alumni holds it, students is empty", start.elapsed());

    change(json!({"spec": {"table": EVIL}})).await?;
    let message = eventually("the name is only a name", SOON, async || {
        let (state, message) = ready(&objects, &name).await?;
        ensure!(state == "False/TableMissing", "Ready is {state}");
        Ok(message)
    })
    .await?;
    let (what, ddl) = message.split_once("; make it with: ").context("the message says how to make the table")?;
    ensure!(ddl.starts_with(&format!("CREATE TABLE \"{EVIL}\"")), "it is made with {ddl}");
    tell.says(&format!("Ready is False/TableMissing: {what}"));
    holds(stage, "alumni", &["alex | 24 | canada"]).await?;
    tell.says("and alumni is as it was");

    tell.types(&stage.kubectl(&format!("delete postgreswriter {name}")));
    let start = Instant::now();
    objects.remove(&name).await?;
    eventually("the object is gone", SOON, async || {
        ensure!(objects.get_opt(&name).await?.is_none(), "it is still there");
        Ok(())
    })
    .await?;
    holds(stage, "alumni", &[]).await?;
    tell.took("the row went before its object", start.elapsed());
    Ok(())
}

/// Waits until a table holds these rows and no others: name, age and country.
async fn holds(stage: &Stage, table: &str, rows: &[&str]) -> Result<()> {
    eventually(&format!("{table} holds {rows:?}"), SOON, async || {
        let found = stage.postgres.sql(&format!("SELECT name, age, country FROM {table}")).await?;
        let found: Vec<_> = found.iter().map(|row| row.join(" | ")).collect();
        ensure!(found == rows, "it holds {found:?}");
        Ok(())
    })
    .await
}
