//! The host's pools against a real PostgreSQL: values, errors, limits, transactions, and what is left of a session.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures::future::join_all;
use operetta::{
    credentials::{Unready, Vault},
    databases::DatabasePools,
};
use operetta_api::{Database, FromKey, FromSecret, KeyRef, Reference};
use operetta_core::{
    aside::Aside,
    limit::Limits,
    name::{ConfigKey, ConfigName, DatabaseName},
    port::database::{Databases, Isolation, SqlError, SqlStatement, SqlValue},
};
use operetta_tests::{control_plane::run_dir::RunDir, eventually, postgres::Postgres};

const SOON: Duration = Duration::from_secs(20);

struct Scene {
    server: Postgres,
    run: RunDir,
    name: DatabaseName,
    aside: Aside,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Scene {
    async fn new() -> Self {
        let run = RunDir::create().unwrap();
        Self::of(Postgres::start(&run).await.unwrap(), run)
    }

    fn of(server: Postgres, run: RunDir) -> Self {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hears = heard.clone();
        let aside = Aside::to(move |text| hears.lock().unwrap().push(text.to_owned()));
        Self { server, run, name: DatabaseName::parse("people").unwrap(), aside, heard }
    }

    async fn pools(&self, connections: u32) -> DatabasePools {
        self.pools_with(connections, &[]).await
    }

    async fn pools_with(&self, connections: u32, instead: &[(&str, &str)]) -> DatabasePools {
        self.pools_over(false, connections, instead).await
    }

    async fn pools_over(&self, tls: bool, connections: u32, instead: &[(&str, &str)]) -> DatabasePools {
        let environment = self.server.environment();
        let variable = |name: &str| {
            let other = instead.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
            other.or_else(|| environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()))
        };
        let spec = Database { tls, connections: Some(connections), ..Database::from_env(self.name.clone(), "PSQL") };
        DatabasePools::open(&[spec], &Limits::default(), variable, &Drawer::vault(), &self.aside).await.unwrap()
    }

    /// What the administrator was told and no plugin.
    fn heard(&self) -> String {
        self.heard.lock().unwrap().join("\n")
    }
}

/// Secrets of the host's namespace, without a cluster.
#[derive(Default)]
struct Drawer(Mutex<HashMap<(String, String), Vec<u8>>>);

impl Drawer {
    fn vault() -> Arc<dyn Vault> {
        Arc::new(Self::default())
    }

    fn put(&self, name: &str, key: &str, value: &[u8]) {
        self.0.lock().unwrap().insert((name.to_owned(), key.to_owned()), value.to_vec());
    }
}

#[async_trait]
impl Vault for Drawer {
    async fn read(&self, reference: &Reference) -> Result<Vec<u8>, String> {
        let KeyRef { name, key } = reference.key();
        let value = self.0.lock().unwrap().get(&(name.to_string(), key.to_string())).cloned();
        value.ok_or_else(|| format!("{reference} is missing"))
    }
}

fn key(name: &str, key: &str) -> KeyRef {
    KeyRef { name: ConfigName::parse(name).unwrap(), key: ConfigKey::parse(key).unwrap() }
}

fn ask(sql: &str, parameters: Vec<SqlValue>) -> SqlStatement {
    SqlStatement { sql: sql.to_owned(), parameters, deadline: SOON, max_rows: 10, max_bytes: 10_000 }
}

fn text(text: &str) -> SqlValue {
    SqlValue::Text(text.to_owned())
}

#[tokio::test]
async fn values_go_there_and_come_back() {
    let scene = Scene::new().await;
    let pools = scene.pools(2).await;
    let values = vec![
        SqlValue::Null,
        SqlValue::Boolean(true),
        SqlValue::Integer(i64::MIN),
        SqlValue::Float(0.1),
        text("it's \"quoted\"; 学生"),
        SqlValue::Bytes(vec![0, 1, 255]),
    ];
    let sql = "SELECT $1::text AS a, $2 AS b, $3 AS c, $4 AS d, $5 AS e, $6 AS f";
    let answer = pools.query(&scene.name, ask(sql, values.clone())).await.unwrap();
    assert_eq!((answer.columns.join(""), answer.rows), ("abcdef".to_owned(), vec![values]));
    let sql = "SELECT 1::int2, 2::int4, 0.5::float4, 'x'::varchar, 'y'::char(2), '{\"a\": 1}'::jsonb, \
               '00112233-4455-6677-8899-aabbccddeeff'::uuid";
    let answer = pools.query(&scene.name, ask(sql, vec![])).await.unwrap();
    let mut expected = vec![SqlValue::Integer(1), SqlValue::Integer(2), SqlValue::Float(0.5)];
    expected.extend(["x", "y ", "{\"a\": 1}", "00112233-4455-6677-8899-aabbccddeeff"].map(text));
    assert_eq!(answer.rows, [expected]);

    scene.server.sql("CREATE TYPE mood AS ENUM ('glad'); CREATE TABLE t (m mood, n int2, d date)").await.unwrap();
    let sql = "INSERT INTO t VALUES ($1, $2, $3)";
    let row = |n| ask(sql, vec![text("glad"), SqlValue::Integer(n), text("2026-01-01")]);
    assert_eq!(pools.execute(&scene.name, row(7)).await, Ok(1));
    let answer = pools.query(&scene.name, ask("SELECT m, n, d::text FROM t", vec![])).await.unwrap();
    assert_eq!(answer.rows, [[text("glad"), SqlValue::Integer(7), text("2026-01-01")]]);
    let unsupported = pools.query(&scene.name, ask("SELECT d FROM t", vec![])).await.unwrap_err();
    assert_eq!(unsupported.to_string(), "unsupported: column \"d\" is of type date; cast it, such as \"d\"::text");
    for (statement, state) in [
        (row(70_000), "22003"),
        (ask(sql, vec![text("sad"), SqlValue::Null, SqlValue::Null]), "22P02"),
        (ask("SELECT 1; DROP TABLE t", vec![]), "42601"),
        (ask("SELECT * FROM nowhere", vec![]), "42P01"),
        (ask("SELECT $1::int8", vec![text("x")]), "22P02"),
    ] {
        let error = pools.execute(&scene.name, statement).await.unwrap_err();
        assert!(matches!(&error, SqlError::Database { sqlstate, .. } if sqlstate == state), "{error}");
    }
    // Only an answer of those that failed is lost, never the connection.
    let answer = pools.query(&scene.name, ask("SELECT count(*) FROM t", vec![])).await.unwrap();
    assert_eq!(answer.rows, [[SqlValue::Integer(1)]]);
}

#[tokio::test]
async fn answers_and_times_are_limited_and_what_is_cut_off_is_cancelled() {
    let scene = Scene::new().await;
    let pools = scene.pools(1).await;
    let error = pools.query(&scene.name, ask("SELECT generate_series(1, 1000000000)", vec![])).await.unwrap_err();
    assert!(matches!(&error, SqlError::TooLarge(why) if why.contains("10 rows")), "{error}");
    let error = pools.query(&scene.name, ask("SELECT repeat('x', 20000)", vec![])).await.unwrap_err();
    assert!(matches!(&error, SqlError::TooLarge(why) if why.contains("10000 bytes")), "{error}");
    // A value has eight bytes beside its text.
    for (sql, rows) in [("SELECT generate_series(1, 10)", 10), ("SELECT repeat('x', 9992)", 1)] {
        assert_eq!(pools.query(&scene.name, ask(sql, vec![])).await.unwrap().rows.len(), rows);
    }
    let error = pools.query(&scene.name, ask("SELECT repeat('x', 9993)", vec![])).await.unwrap_err();
    assert!(matches!(error, SqlError::TooLarge(_)), "{error}");
    let short = |sql| SqlStatement { deadline: Duration::from_millis(300), ..ask(sql, vec![]) };
    let began = Instant::now();
    let error = pools.query(&scene.name, short("SELECT pg_sleep(60)")).await.unwrap_err();
    assert!(matches!(error, SqlError::Timeout(_)) && began.elapsed() < Duration::from_secs(10), "{error}");
    // The one connection was replaced, and nothing runs on in the server.
    pools.query(&scene.name, ask("SELECT 1", vec![])).await.unwrap();
    let running = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND application_name = 'operetta'";
    eventually("what was cut off has ended", SOON, async || {
        let count = scene.server.sql(running).await?;
        anyhow::ensure!(count == [["0"]], "{count:?}");
        Ok(())
    })
    .await
    .unwrap();
    let busy = pools.begin(&scene.name, Isolation::default(), SOON).await.unwrap();
    let error = pools.query(&scene.name, short("SELECT 1")).await.unwrap_err();
    assert!(matches!(&error, SqlError::Timeout(why) if why.contains("no connection")), "{error}");
    drop(busy);
}

#[tokio::test]
async fn a_transaction_lasts_only_when_it_is_committed_and_whole() {
    let scene = Scene::new().await;
    let pools = scene.pools(2).await;
    scene.server.sql("CREATE TABLE t (n bigint PRIMARY KEY)").await.unwrap();
    let begin = async || pools.begin(&scene.name, Isolation::Serializable, SOON).await.unwrap();
    let insert = |n| ask("INSERT INTO t VALUES ($1)", vec![SqlValue::Integer(n)]);
    let rows = async || scene.server.sql("SELECT n FROM t ORDER BY n").await.unwrap();

    let transaction = begin().await;
    assert_eq!(transaction.execute(insert(1)).await, Ok(1));
    let seen = transaction.query(ask("SELECT n FROM t", vec![])).await.unwrap();
    assert_eq!((seen.rows.len(), rows().await.len()), (1, 0), "seen inside and not outside");
    transaction.commit().await.unwrap();
    assert_eq!(rows().await, [["1"]]);
    assert!(matches!(transaction.execute(insert(2)).await, Err(SqlError::Invalid(_))));

    let transaction = begin().await;
    transaction.execute(insert(2)).await.unwrap();
    transaction.rollback().await.unwrap();
    let transaction = begin().await;
    transaction.execute(insert(3)).await.unwrap();
    drop(transaction);
    let transaction = begin().await;
    transaction.execute(insert(4)).await.unwrap();
    assert!(
        matches!(transaction.execute(insert(1)).await, Err(SqlError::Database { sqlstate, .. }) if sqlstate == "23505")
    );
    assert!(
        matches!(transaction.execute(insert(5)).await, Err(SqlError::Database { sqlstate, .. }) if sqlstate == "25P02")
    );
    assert!(matches!(transaction.commit().await, Err(SqlError::Database { sqlstate, .. }) if sqlstate == "25P02"));
    assert_eq!(rows().await, [["1"]]);
    let held = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    eventually("nothing is left open", SOON, async || {
        let count = scene.server.sql(held).await?;
        anyhow::ensure!(count == [["0"]], "{count:?}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn nothing_of_a_session_reaches_its_next_user() {
    let scene = Scene::new().await;
    let pools = scene.pools(1).await;
    scene.server.sql("CREATE TABLE t (n bigint)").await.unwrap();
    for sql in [
        "SET statement_timeout = 0",
        "SET search_path = nowhere",
        "CREATE TEMPORARY TABLE left_over (secret text)",
        "SELECT pg_advisory_lock(7)",
        "BEGIN",
        "INSERT INTO public.t VALUES (1)",
    ] {
        pools.execute(&scene.name, ask(sql, vec![])).await.unwrap();
    }
    let sql = "SELECT current_setting('statement_timeout'), current_setting('search_path'), to_regclass('left_over')::text, \
               (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'), (SELECT count(*) FROM t)";
    let answer = pools.query(&scene.name, ask(sql, vec![])).await.unwrap();
    let expected = [text("30s"), text("\"$user\", public"), SqlValue::Null, SqlValue::Integer(0), SqlValue::Integer(1)];
    assert_eq!(answer.rows, [expected]);
}

#[tokio::test]
async fn a_thousand_at_once_share_the_connections_of_the_pool() {
    let scene = Scene::new().await;
    let pools = scene.pools(3).await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'operetta'";
    let answers = join_all((0..1_000).map(|_| pools.query(&scene.name, ask(sql, vec![])))).await;
    for answer in answers {
        let [SqlValue::Integer(count)] = answer.unwrap().rows[0][..] else { panic!() };
        assert!((1..=3).contains(&count), "{count} connections");
    }
}

#[tokio::test]
async fn a_server_that_goes_away_is_unavailable_and_found_again() {
    let mut scene = Scene::new().await;
    let pools = scene.pools(2).await;
    let one = || ask("SELECT 1", vec![]);
    pools.query(&scene.name, one()).await.unwrap();
    scene.server.stop().await.unwrap();
    let error = pools.query(&scene.name, one()).await.unwrap_err();
    assert!(matches!(error, SqlError::Unavailable(_)), "{error}");
    scene.server.start_again(&scene.run).await.unwrap();
    pools.query(&scene.name, one()).await.unwrap();

    let wrong = scene.pools_with(1, &[("PSQL_PASSWORD", "hush-hush")]).await;
    let error = wrong.query(&scene.name, one()).await.unwrap_err().to_string();
    assert!(error.contains("refuses the host's connection (SQLSTATE 28P01)"), "{error}");
    assert!(!error.contains("hush-hush") && !error.contains("operetta\""), "{error}");
    assert!(scene.heard().contains("password authentication failed"), "{}", scene.heard());
}

#[tokio::test]
async fn tls_is_used_where_it_is_asked_for_and_never_without_a_certificate_that_holds() {
    let run = RunDir::create().unwrap();
    let server = Postgres::start_with_tls(&run).await.unwrap();
    let scene = Scene::of(server, run);
    let tls = scene.server.tls().unwrap();
    let (port, roots) = (tls.port.to_string(), tls.certificate.to_str().unwrap());
    let at = |host| [("PSQL_HOST", host), ("PSQL_PORT", port.as_str()), ("PSQL_SSLROOTCERT", roots)];
    let encrypted = || ask("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", vec![]);
    let pools = scene.pools_over(true, 1, &at("127.0.0.1")).await;
    let answer = pools.query(&scene.name, encrypted()).await.unwrap();
    assert_eq!(answer.rows, [[SqlValue::Boolean(true)]]);
    // What is cut off is cancelled over TLS as well.
    let slow = SqlStatement { deadline: Duration::from_millis(300), ..ask("SELECT pg_sleep(60)", vec![]) };
    assert!(matches!(pools.query(&scene.name, slow).await, Err(SqlError::Timeout(_))));
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'";
    eventually("what was cut off has ended", SOON, async || {
        let count = scene.server.sql(sleeping).await?;
        anyhow::ensure!(count == [["0"]], "{count:?}");
        Ok(())
    })
    .await
    .unwrap();
    // The certificate speaks of the address, not of the name; and the system does not know it.
    let strangers = [("PSQL_HOST", "127.0.0.1"), ("PSQL_PORT", port.as_str())];
    for pools in [scene.pools_over(true, 1, &at("localhost")).await, scene.pools_over(true, 1, &strangers).await] {
        let error = pools.query(&scene.name, encrypted()).await.unwrap_err().to_string();
        // A certificate has names and addresses in it.
        assert!(error.contains("cannot be reached") && !error.contains("certificate"), "{error}");
    }
    assert!(scene.heard().contains("certificate"), "{}", scene.heard());
    let plain = scene.pools_over(false, 1, &at("127.0.0.1")).await;
    assert_eq!(plain.query(&scene.name, encrypted()).await.unwrap().rows, [[SqlValue::Boolean(false)]]);
}

#[tokio::test]
async fn what_the_environment_lacks_is_named() {
    let spec = Database::from_env(DatabaseName::parse("people").unwrap(), "PSQL");
    let pools = async |variables: &'static [(&'static str, &'static str)]| {
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        let aside = Aside::to(|_| {});
        DatabasePools::open(std::slice::from_ref(&spec), &Limits::default(), variable, &Drawer::vault(), &aside).await
    };
    for (variables, expected) in [
        (&[][..], "needs the environment variable PSQL_HOST"),
        (&[("PSQL_HOST", "h"), ("PSQL_DBNAME", "d")], "needs the environment variable PSQL_USER"),
        (
            &[("PSQL_HOST", "h"), ("PSQL_DBNAME", "d"), ("PSQL_USER", "u"), ("PSQL_PORT", "x")],
            "PSQL_PORT of database people is no port",
        ),
    ] {
        let error = pools(variables).await.err().unwrap();
        assert!(matches!(&error, Unready::Wrong(text) if text.contains(expected)), "{error}");
    }
}

/// The document's own form, for a role `writer` with the password of Secret `people`.
fn written(scene: &Scene) -> Database {
    let environment = scene.server.environment();
    let of = |name: &str| environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    Database {
        env: None,
        host: of("PSQL_HOST"),
        dbname: of("PSQL_DBNAME"),
        user: Some("writer".to_owned()),
        password_from: Some(FromSecret { secret_key_ref: key("people", "password") }),
        connections: Some(1),
        ..Database::from_env(scene.name.clone(), "")
    }
}

async fn open(spec: Database, drawer: &Arc<Drawer>) -> Result<DatabasePools, Unready> {
    let vault: Arc<dyn Vault> = drawer.clone();
    DatabasePools::open(&[spec], &Limits::default(), |_| None, &vault, &Aside::to(|_| {})).await
}

#[tokio::test]
async fn a_password_comes_from_a_secret_and_one_that_was_changed_is_read_again_when_it_is_refused() {
    let scene = Scene::new().await;
    scene.server.sql("CREATE ROLE writer LOGIN PASSWORD 'first'").await.unwrap();
    let drawer = Arc::new(Drawer::default());
    let missing = open(written(&scene), &drawer).await.err().unwrap();
    assert!(
        matches!(&missing, Unready::Missing(text) if text == "database people: key password of Secret people is missing")
    );

    // As an editor leaves it, with a newline.
    drawer.put("people", "password", b"first\n");
    let pools = open(written(&scene), &drawer).await.unwrap();
    let who = || ask("SELECT current_user::text", vec![]);
    assert_eq!(pools.query(&scene.name, who()).await.unwrap().rows, [[text("writer")]]);
    // The connection that is open goes on; once it is lost, the old password is refused.
    scene.server.sql("ALTER ROLE writer PASSWORD 'second'").await.unwrap();
    let lose = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'writer'";
    pools.query(&scene.name, who()).await.unwrap();
    scene.server.sql(lose).await.unwrap();
    let refused = eventually("the lost connection is noticed", SOON, async || {
        let error = pools.query(&scene.name, who()).await.err().map(|error| error.to_string()).unwrap_or_default();
        anyhow::ensure!(error.contains("28P01"), "{error}");
        Ok(error)
    });
    let refused = refused.await.unwrap();
    assert!(!refused.contains("first") && !refused.contains("writer") && !refused.contains("Secret"), "{refused}");
    drawer.put("people", "password", b"second");
    eventually("the new password is used", SOON, async || {
        anyhow::ensure!(pools.query(&scene.name, who()).await.is_ok(), "it is refused");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn certificates_to_trust_come_from_a_key_and_new_ones_are_read_when_the_old_do_not_hold() {
    let run = RunDir::create().unwrap();
    let server = Postgres::start_with_tls(&run).await.unwrap();
    let scene = Scene::of(server, run);
    scene.server.sql("CREATE ROLE writer LOGIN PASSWORD 'x'").await.unwrap();
    let tls = scene.server.tls().unwrap();
    let spec = Database {
        host: Some("127.0.0.1".to_owned()),
        port: Some(tls.port),
        tls: true,
        ca_from: Some(FromKey { config_map_key_ref: Some(key("roots", "ca.crt")), ..FromKey::default() }),
        ..written(&scene)
    };
    let drawer = Arc::new(Drawer::default());
    drawer.put("people", "password", b"x");
    drawer.put("roots", "ca.crt", b"no PEM but a secret");
    let error = open(spec.clone(), &drawer).await.err().unwrap().to_string();
    assert_eq!(
        error,
        "database people: key ca.crt of ConfigMap roots cannot be used: there is no PEM certificate in it"
    );
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    drawer.put("roots", "ca.crt", other.cert.pem().as_bytes());
    let pools = open(spec, &drawer).await.unwrap();
    let encrypted = || ask("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", vec![]);
    let error = pools.query(&scene.name, encrypted()).await.unwrap_err().to_string();
    assert!(error.contains("cannot be reached") && !error.contains("certificate"), "{error}");
    drawer.put("roots", "ca.crt", &std::fs::read(&tls.certificate).unwrap());
    let answer = eventually("the new roots are used", SOON, async || Ok(pools.query(&scene.name, encrypted()).await?));
    assert_eq!(answer.await.unwrap().rows, [[SqlValue::Boolean(true)]]);
}
