//! The plugin against the fake host, with tables in memory that know the statements of [`crate::row`].

use crate::{DATABASE, PostgresWriter, PostgresWriterSpec, PostgresWriterStatus, plugin};
use expect_test::expect_file;
use operetta_sdk::{
    Failure, Outcome,
    sql::{Rows, SqlError, Value},
    testing::{Answer, Cut, Ended, FakeDatabase, FakeHost, every_cut},
};
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};

const ID: &str = "default/sample-student";
const SETTLED: Outcome = Outcome::RequeueAfter(Duration::from_mins(5));

/// Tables by their name as SQL writes it, rows by their key.
#[derive(Clone, Default)]
struct Tables(BTreeMap<String, BTreeMap<String, Vec<Value>>>);

impl Tables {
    fn table(&mut self, name: &str) -> Result<&mut BTreeMap<String, Vec<Value>>, SqlError> {
        self.0.get_mut(name).ok_or_else(|| SqlError::Database {
            sqlstate: "42P01".to_owned(),
            message: format!("relation {name} does not exist"),
            more: Vec::new(),
        })
    }
}

impl FakeDatabase for Tables {
    fn run(&mut self, sql: &str, parameters: &[Value]) -> Result<Answer, SqlError> {
        let first = parameters[0].as_text().unwrap();
        let between = |start: &str, end: &str| sql.strip_prefix(start)?.split_once(end).map(|(name, _)| name);
        let rows = |rows: Vec<Vec<Value>>| Answer { rows: Rows { columns: Vec::new(), rows }, changed: 0 };
        let by_id = " WHERE \"id\" = $1";
        if sql == "SELECT to_regclass($1) IS NOT NULL" {
            return Ok(rows(vec![vec![self.0.contains_key(first).into()]]));
        }
        if let Some(name) = between("SELECT \"name\", \"age\", \"country\" FROM ", by_id) {
            return Ok(rows(self.table(name)?.get(first).cloned().into_iter().collect()));
        }
        if let Some(name) = between("DELETE FROM ", by_id) {
            let changed = u64::from(self.table(name)?.remove(first).is_some());
            return Ok(Answer { changed, ..Answer::default() });
        }
        if let Some(name) = between("INSERT INTO ", " (\"id\", \"name\"") {
            self.table(name)?.insert(first.to_owned(), parameters[1..].to_vec());
            return Ok(Answer { changed: 1, ..Answer::default() });
        }
        panic!("{sql}")
    }
}

fn student(tables: &[&str]) -> FakeHost {
    let fake = FakeHost::new(plugin);
    let tables = tables.iter().map(|name| (format!("\"{name}\""), BTreeMap::new())).collect();
    fake.database(DATABASE, Tables(tables));
    let text = str::to_owned;
    let spec = PostgresWriterSpec { table: text("students"), name: text("alex"), age: 23, country: text("canada") };
    fake.put(&PostgresWriter::new("sample-student", spec));
    fake
}

fn alex() -> Vec<Value> {
    vec!["alex".into(), 23.into(), "canada".into()]
}

/// All rows of all tables.
fn rows(fake: &FakeHost) -> Vec<(String, String, Vec<Value>)> {
    fake.in_database(DATABASE, |tables: &mut Tables| {
        let all = tables
            .0
            .iter()
            .flat_map(|(table, rows)| rows.iter().map(|(id, values)| (table.clone(), id.clone(), values.clone())));
        all.collect()
    })
}

fn row(table: &str, values: Vec<Value>) -> Vec<(String, String, Vec<Value>)> {
    vec![(format!("\"{table}\""), ID.to_owned(), values)]
}

fn status(fake: &FakeHost) -> PostgresWriterStatus {
    fake.object::<PostgresWriter>("sample-student").unwrap().status.unwrap_or_default()
}

fn reason(fake: &FakeHost) -> String {
    status(fake).conditions[0].reason.clone()
}

fn message(fake: &FakeHost) -> String {
    status(fake).conditions[0].message.clone()
}

fn change(fake: &FakeHost, field: &str, value: impl Into<serde_json::Value>) {
    fake.edit::<PostgresWriter>("sample-student", |object| object["spec"][field] = value.into());
}

async fn live(fake: &FakeHost) -> Outcome {
    fake.settle::<PostgresWriter>("sample-student").await.unwrap()
}

#[tokio::test]
async fn the_row_is_as_promised_and_one_query_finds_it_so() {
    let fake = student(&["students"]);
    assert_eq!(live(&fake).await, SETTLED);
    assert_eq!(rows(&fake), row("students", alex()));
    let PostgresWriterStatus { row_id, table, .. } = status(&fake);
    assert_eq!((row_id.as_deref(), table.as_deref()), (Some(ID), Some("students")));
    assert_eq!(reason(&fake), "Written");
    fake.take_writes();
    fake.take_statements();
    assert_eq!(fake.reconcile::<PostgresWriter>("sample-student").await, Ended::Well(SETTLED));
    assert_eq!(fake.take_statements().len(), 1, "one query");
    assert_eq!(fake.take_writes(), [""; 0], "as desired");

    change(&fake, "age", 24);
    live(&fake).await;
    assert_eq!(rows(&fake), row("students", vec!["alex".into(), 24.into(), "canada".into()]));
    assert_eq!(fake.objects::<PostgresWriter>()[0].metadata.finalizers.as_ref().unwrap(), &[crate::FINALIZER]);
    fake.remove::<PostgresWriter>("sample-student");
    live(&fake).await;
    assert!(rows(&fake).is_empty() && fake.objects::<PostgresWriter>().is_empty());
}

#[tokio::test]
async fn a_row_that_somebody_deletes_or_changes_comes_back() {
    let fake = student(&["students"]);
    live(&fake).await;
    fake.in_database(DATABASE, |tables: &mut Tables| tables.table("\"students\"").unwrap().clear());
    live(&fake).await;
    assert_eq!(rows(&fake), row("students", alex()));
    fake.in_database(DATABASE, |tables: &mut Tables| {
        tables.table("\"students\"").unwrap().insert(ID.to_owned(), vec!["eve".into(), 1.into(), Value::Null]);
    });
    live(&fake).await;
    assert_eq!(rows(&fake), row("students", alex()));
}

#[tokio::test]
async fn a_missing_table_is_told_with_what_makes_it() {
    let fake = student(&[]);
    assert_eq!(live(&fake).await, Outcome::RequeueAfter(Duration::from_secs(15)));
    assert_eq!(reason(&fake), "TableMissing");
    assert_eq!(
        message(&fake),
        "there is no table \"students\"; make it with: CREATE TABLE \"students\" (\"id\" text PRIMARY KEY, \
         \"name\" text NOT NULL, \"age\" bigint NOT NULL, \"country\" text NOT NULL);"
    );
    assert_eq!(fake.take_events().len(), 1);
    fake.in_database(DATABASE, |tables: &mut Tables| tables.0.insert("\"students\"".to_owned(), BTreeMap::new()));
    assert_eq!(live(&fake).await, SETTLED);
    assert_eq!(rows(&fake), row("students", alex()));
}

#[tokio::test]
async fn a_table_whose_columns_have_other_types_is_told() {
    let fake = student(&["students"]);
    fake.in_database(DATABASE, |tables: &mut Tables| {
        let values = vec!["alex".into(), "23".into(), "canada".into()];
        tables.table("\"students\"").unwrap().insert(ID.to_owned(), values);
    });
    live(&fake).await;
    assert_eq!(reason(&fake), "TableUnfit");
}

#[tokio::test]
async fn another_table_takes_the_row_along_in_one_transaction() {
    let fake = student(&["students", "alumni"]);
    live(&fake).await;
    change(&fake, "table", "missing");
    live(&fake).await;
    assert_eq!((rows(&fake), reason(&fake).as_str()), (row("students", alex()), "TableMissing"));
    change(&fake, "table", "alumni");
    fake.take_statements();
    live(&fake).await;
    assert_eq!(rows(&fake), row("alumni", alex()));
    assert_eq!((status(&fake).table.as_deref(), status(&fake).leaving), (Some("alumni"), vec![]));
    fake.in_database(DATABASE, |tables: &mut Tables| tables.0.remove("\"alumni\""));
    fake.remove::<PostgresWriter>("sample-student");
    live(&fake).await;
    assert!(fake.objects::<PostgresWriter>().is_empty(), "a table that is gone holds nothing back");
}

#[tokio::test]
async fn a_name_made_to_inject_is_a_name() {
    let fake = student(&["students; drop table students", "a\"\"; --", "学生"]);
    for table in ["students; drop table students", "a\"; --", "学生"] {
        change(&fake, "table", table);
        live(&fake).await;
        assert_eq!(rows(&fake), row(&table.replace('"', "\"\""), alex()));
    }
    for table in ["x".repeat(64), "学".repeat(22), "a\0b".to_owned()] {
        change(&fake, "table", table);
        assert_eq!(live(&fake).await, Outcome::AwaitChange);
        assert_eq!(reason(&fake), "InvalidTable");
        assert_eq!(rows(&fake), row("学生", alex()), "the row stays where it was");
    }
    fake.remove::<PostgresWriter>("sample-student");
    live(&fake).await;
    assert!(rows(&fake).is_empty());
}

#[tokio::test]
async fn while_the_database_is_down_nothing_is_lost() {
    let fake = student(&["students"]);
    live(&fake).await;
    fake.take_events();
    fake.take_database_down(DATABASE, Some(SqlError::Unavailable("connection refused".to_owned())));
    change(&fake, "age", 24);
    for _ in 0..3 {
        let Ended::Badly(Failure::Retryable(text)) = fake.reconcile::<PostgresWriter>("sample-student").await else {
            panic!()
        };
        assert_eq!(text, "the database failed: unavailable: connection refused");
    }
    assert_eq!(reason(&fake), "DatabaseUnavailable");
    assert_eq!(fake.take_events().len(), 1, "said once");
    fake.remove::<PostgresWriter>("sample-student");
    assert!(matches!(fake.reconcile::<PostgresWriter>("sample-student").await, Ended::Badly(_)));
    assert_eq!(fake.objects::<PostgresWriter>().len(), 1, "it waits for its row to go");
    fake.take_database_down(DATABASE, None);
    live(&fake).await;
    assert!(rows(&fake).is_empty() && fake.objects::<PostgresWriter>().is_empty());
}

#[tokio::test]
async fn whatever_is_cut_there_is_one_row_and_in_the_end_none() {
    let cuts = every_cut(async |cut: Cut| {
        let fake = student(&["students", "alumni", "staff"]);
        fake.cut(cut);
        live(&fake).await;
        assert_eq!(rows(&fake), row("students", alex()), "{cut:?}");
        // The table changes again while the row is still on its way.
        change(&fake, "table", "alumni");
        fake.reconcile::<PostgresWriter>("sample-student").await;
        change(&fake, "table", "staff");
        fake.reconcile::<PostgresWriter>("sample-student").await;
        change(&fake, "table", "alumni");
        change(&fake, "age", 24);
        live(&fake).await;
        assert_eq!(rows(&fake), row("alumni", vec!["alex".into(), 24.into(), "canada".into()]), "{cut:?}");
        change(&fake, "table", "students");
        fake.reconcile::<PostgresWriter>("sample-student").await;
        fake.remove::<PostgresWriter>("sample-student");
        live(&fake).await;
        assert!(rows(&fake).is_empty() && fake.objects::<PostgresWriter>().is_empty(), "{cut:?}");
        fake
    })
    .await;
    assert!(cuts > 80, "{cuts}");
}

#[tokio::test]
async fn a_resync_that_is_no_duration_is_told() {
    let fake = student(&["students"]);
    fake.set("resync", "often");
    let Err(Failure::Terminal(text)) = fake.settle::<PostgresWriter>("sample-student").await else { panic!() };
    assert!(text.contains("\"often\""), "{text}");
    assert_eq!(json!(fake.take_statements()), json!([]));
}

#[test]
fn the_manifest_is_what_is_committed() {
    let manifest = serde_json::to_string_pretty(&plugin().manifest()).unwrap();
    expect_file!["../manifest.json"].assert_eq(&manifest);
}
