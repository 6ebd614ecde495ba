//! PostgresWriter on a real API server and a real PostgreSQL: one row for each object, whatever happens to either.

use anyhow::ensure;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use operetta_tests::{
    eventually,
    host::{Document, Host, Launch, Line, Log},
    kinds::{Objects, state, text, writers},
    postgres::Postgres,
};
use serde_json::{Value, json};

use crate::shared::{SOON, TestNamespace, installed, launch, namespace, plug, position, run, settled, writes_since};

const PLUGIN: &str = "postgres-writer";
const STUDENTS: &str =
    "CREATE TABLE students (id text PRIMARY KEY, name text NOT NULL, age bigint NOT NULL, country text NOT NULL)";

struct Scene {
    namespace: TestNamespace,
    postgres: Postgres,
    host: Host,
    writers: Objects,
}

/// A namespace, an empty server, and a host that runs the plugin against both. Each row is looked at again every `resync`.
async fn scene(launch: Launch, resync: &str) -> Scene {
    let namespace = namespace().await;
    let postgres = Postgres::start(run()).await.unwrap();
    let launch = launch.namespace(namespace.name());
    let host = launch.environment(postgres.environment()).start(run()).await.unwrap();
    plug(&host, PLUGIN, |document| document.setting("resync", resync)).await;
    let writers = writers(&namespace.client(), namespace.name());
    Scene { namespace, postgres, host, writers }
}

fn student(table: &str, age: i64) -> Value {
    json!({"table": table, "name": "alex", "age": age, "country": "canada"})
}

impl Scene {
    /// Waits for a condition `Ready` of the object as it is now, and returns its message.
    async fn is(&self, name: &str, wanted: &str) -> String {
        eventually(&format!("{name} is {wanted}"), SOON, async || {
            let object = self.writers.get(name).await?;
            let ready = state(&object, "Ready");
            let message = text(&object, "/status/conditions/0/message");
            ensure!(ready == wanted, "Ready is {ready}: {message}");
            let observed = object.data.pointer("/status/conditions/0/observedGeneration").and_then(Value::as_i64);
            ensure!(observed == object.metadata.generation, "it speaks of generation {observed:?}");
            Ok(message.to_owned())
        })
        .await
        .unwrap()
    }

    /// Waits until a table, as SQL writes it, holds these rows.
    async fn holds(&self, table: &str, rows: &[[&str; 4]]) {
        eventually(&format!("{table} holds {} rows", rows.len()), SOON, async || {
            let found = self.postgres.sql(&format!("SELECT id, name, age, country FROM {table} ORDER BY id")).await?;
            ensure!(found == rows, "it holds {found:?}");
            Ok(())
        })
        .await
        .unwrap();
    }

    fn id(&self, name: &str) -> String {
        format!("{}/{name}", self.namespace.name())
    }
}

#[tokio::test]
async fn a_row_follows_its_object_from_table_to_table_and_goes_with_it() {
    story(launch()).await;
}

/// What its users were promised, whatever rights the host has.
pub async fn story(launch: Launch) {
    let scene = scene(launch, "5m").await;
    let id = scene.id("sample-student");
    scene.writers.apply("sample-student", &student("students", 23)).await.unwrap();
    let message = scene.is("sample-student", "False/TableMissing").await;
    let (_, ddl) = message.split_once("make it with: ").unwrap();
    scene.postgres.sql(ddl).await.unwrap();
    scene.is("sample-student", "True/Written").await;
    scene.holds("students", &[[&id, "alex", "23", "canada"]]).await;
    let object = scene.writers.get("sample-student").await.unwrap();
    assert_eq!((text(&object, "/status/rowId"), text(&object, "/status/table")), (id.as_str(), "students"));

    scene.writers.merge("sample-student", &json!({"spec": {"age": 24}})).await.unwrap();
    scene.holds("students", &[[&id, "alex", "24", "canada"]]).await;
    let evil = "students; drop table students";
    scene.postgres.sql(&format!("CREATE TABLE \"{evil}\" (LIKE students INCLUDING ALL)")).await.unwrap();
    scene.writers.merge("sample-student", &json!({"spec": {"table": evil}})).await.unwrap();
    scene.holds(&format!("\"{evil}\""), &[[&id, "alex", "24", "canada"]]).await;
    scene.holds("students", &[]).await;
    scene.is("sample-student", "True/Written").await;
    let refused = scene.writers.merge("sample-student", &json!({"spec": {"table": "x".repeat(64)}})).await.unwrap_err();
    assert!(refused.to_string().contains("spec.table"), "{refused}");
    scene.writers.merge("sample-student", &json!({"spec": {"table": "é".repeat(32)}})).await.unwrap();
    scene.is("sample-student", "False/InvalidTable").await;
    scene.postgres.sql("CREATE TABLE unfit (id text, name text, age date, country text)").await.unwrap();
    scene.writers.merge("sample-student", &json!({"spec": {"table": "unfit"}})).await.unwrap();
    let message = scene.is("sample-student", "False/TableUnfit").await;
    assert!(message.contains("CREATE TABLE \"unfit\""), "{message}");
    scene.holds(&format!("\"{evil}\""), &[[&id, "alex", "24", "canada"]]).await;

    scene.writers.remove("sample-student").await.unwrap();
    scene.holds(&format!("\"{evil}\""), &[]).await;
    eventually("the object is gone", SOON, async || {
        ensure!(scene.writers.get_opt("sample-student").await?.is_none(), "it is still there");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_row_deleted_by_hand_returns_and_one_that_is_there_costs_one_query() {
    let scene = scene(launch(), "1s").await;
    scene.postgres.sql(STUDENTS).await.unwrap();
    scene.writers.apply("alex", &student("students", 23)).await.unwrap();
    scene.is("alex", "True/Written").await;
    let id = scene.id("alex");
    scene.postgres.sql("DELETE FROM students").await.unwrap();
    scene.holds("students", &[[&id, "alex", "23", "canada"]]).await;

    let before = position(&scene.namespace).await;
    let statements = scene.postgres.statements().unwrap().len();
    let reconciled = scene.host.metrics().await.unwrap().reconciles(PLUGIN);
    eventually("it is looked at again and again", SOON, async || {
        let more = scene.host.metrics().await?.reconciles(PLUGIN) - reconciled;
        ensure!(more >= 3.0, "{more} times");
        Ok(())
    })
    .await
    .unwrap();
    let more = scene.host.metrics().await.unwrap().reconciles(PLUGIN) - reconciled;
    let statements = scene.postgres.statements().unwrap().split_off(statements);
    assert!(statements.iter().all(|sql| sql.starts_with("SELECT \"name\"")), "{statements:#?}");
    // One of them may have begun before we counted, and one after.
    #[allow(clippy::cast_precision_loss, reason = "a handful")]
    let difference = (statements.len() as f64 - more).abs();
    assert!(difference <= 1.0, "{} queries for {more} reconciles", statements.len());
    let writes = writes_since(before, PLUGIN, &scene.namespace).await;
    assert!(writes.is_empty(), "as desired means no write: {writes:#?}");
}

#[tokio::test]
async fn while_the_database_is_down_nothing_is_lost_and_many_share_few_connections() {
    let mut scene = scene(launch(), "5m").await;
    scene.postgres.sql(STUDENTS).await.unwrap();
    scene.writers.apply("alex", &student("students", 23)).await.unwrap();
    scene.is("alex", "True/Written").await;
    scene.postgres.stop().await.unwrap();
    scene.writers.merge("alex", &json!({"spec": {"age": 24}})).await.unwrap();
    scene.is("alex", "False/DatabaseUnavailable").await;
    scene.writers.apply("going", &student("students", 99)).await.unwrap();
    scene.is("going", "False/DatabaseUnavailable").await;
    scene.writers.remove("going").await.unwrap();
    let held = scene.writers.get("going").await.unwrap();
    assert!(held.metadata.deletion_timestamp.is_some(), "it waits for the database");
    scene.host.kill().unwrap();
    scene.postgres.start_again(run()).await.unwrap();
    scene.host.begin(run()).await.unwrap();
    scene.holds("students", &[[&scene.id("alex"), "alex", "24", "canada"]]).await;
    eventually("the other one has gone", SOON, async || {
        ensure!(scene.writers.get_opt("going").await?.is_none(), "it is still there");
        Ok(())
    })
    .await
    .unwrap();

    let count = if std::env::var_os("OPERETTA_LONG").is_some() { 1_000 } else { 100 };
    let within = SOON * u32::try_from(count / 100).unwrap();
    let names: Vec<_> = (0..count).map(|n| format!("student-{n:04}")).collect();
    let watch = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'operetta'";
    for applied in
        join_all(names.iter().map(async |name| scene.writers.apply(name, &student("students", 1)).await)).await
    {
        applied.unwrap();
    }
    let mut most = 0;
    eventually("each has its row", within, async || {
        let connections: usize = scene.postgres.sql(watch).await?[0][0].parse()?;
        most = most.max(connections);
        let rows = scene.postgres.sql("SELECT count(*) FROM students WHERE age = 1").await?;
        ensure!(rows == [[count.to_string()]], "{rows:?}");
        Ok(())
    })
    .await
    .unwrap();
    assert!((1..=5).contains(&most), "{most} connections");
    settled(&scene.host, PLUGIN).await;
}

#[tokio::test]
async fn its_password_comes_from_a_secret_of_the_hosts_namespace_and_may_change() {
    let (home, namespace) = (namespace().await, namespace().await);
    // Everything that the host and what it is made of would ever say.
    let launch = launch().arguments(["--host-namespace", home.name()]).log_level("trace");
    secret_story(launch, namespace, home.api()).await;
}

/// The same with a password in a Secret of the host's namespace.
pub async fn secret_story(launch: Launch, namespace: TestNamespace, secrets: Api<Secret>) {
    let postgres = Postgres::start(run()).await.unwrap();
    postgres.sql(STUDENTS).await.unwrap();
    postgres.sql("CREATE ROLE writer LOGIN PASSWORD 'hush-one'; GRANT ALL ON students TO writer").await.unwrap();
    let host = launch.namespace(namespace.name()).start(run()).await.unwrap();
    let environment = postgres.environment();
    let of = |name: &str| environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let component = installed().component(PLUGIN).unwrap();
    let document = Document::of(component).unwrap().setting("resync", "1s").field(
        &["spec", "grants", "databases"],
        json!([{
            "name": "postgres", "host": of("PSQL_HOST"), "dbname": of("PSQL_DBNAME"), "user": "writer",
            "passwordFrom": {"secretKeyRef": {"name": "people", "key": "password"}},
        }]),
    );
    host.plugins().put(PLUGIN, &component.code().unwrap(), &document).unwrap();
    let command = "create secret generic people --from-literal=password=VALUE";
    let says = |line: &Line| line.plugin() == PLUGIN && line.text("error").contains(command);
    let line = host.log().until("what makes the Secret", Log::start(), SOON, says).await.unwrap();
    assert_eq!(line.text("phase"), "start", "{line}");
    let secret = |password: &str| -> Secret {
        serde_json::from_value(json!({"metadata": {"name": "people"}, "stringData": {"password": password}})).unwrap()
    };
    secrets.create(&PostParams::default(), &secret("hush-one")).await.unwrap();
    host.says(PLUGIN, "plugin ready", Log::start(), SOON).await.unwrap();
    let writers = writers(&namespace.client(), namespace.name());
    let scene = Scene { namespace, postgres, host, writers };
    scene.writers.apply("alex", &student("students", 23)).await.unwrap();
    scene.is("alex", "True/Written").await;

    // The password changes in the database, and the connection is lost before the Secret follows.
    scene.postgres.sql("ALTER ROLE writer PASSWORD 'hush-two'").await.unwrap();
    scene
        .postgres
        .sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'writer'")
        .await
        .unwrap();
    let message = scene.is("alex", "False/DatabaseUnavailable").await;
    assert!(!message.contains("hush") && !message.contains("people"), "{message}");
    let merge = Patch::Merge(json!({"stringData": {"password": "hush-two"}}));
    secrets.patch("people", &PatchParams::default(), &merge).await.unwrap();
    scene.is("alex", "True/Written").await;
    let log = scene.host.log().after(Log::start()).unwrap();
    let page = scene.host.metrics().await.unwrap();
    let said = log.iter().map(ToString::to_string).chain([page.text().to_owned()]);
    // As it is, and as it comes from the API server.
    let passwords = ["hush-", "aHVzaC1vbmU", "aHVzaC10d28"];
    let leaked: Vec<_> = said.filter(|text| passwords.iter().any(|password| text.contains(password))).collect();
    assert!(leaked.is_empty(), "a password is said: {leaked:#?}");
    let ready = log.iter().filter(|line| line.plugin() == PLUGIN && line.message() == "plugin ready").count();
    assert_eq!(ready, 1, "it was started again");
}
