//! Every import of the contract, from a real guest to a fake port and back.

use std::time::{Duration, Instant};

use operetta_core::reconcile::{Failure, Outcome};
use operetta_tests::eventually;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

use crate::{
    setup::{Plugin, imports, sandbox},
    world::thread,
};

async fn plugin() -> Plugin {
    Plugin::load(&sandbox(), imports()).await.unwrap()
}

/// Asks, and returns the answer and what reached the ports.
async fn ask(plugin: &Plugin, command: &str, argument: Value) -> (String, Vec<String>) {
    let answer = plugin.ask(command, &argument).await;
    (answer, plugin.world.calls())
}

#[tokio::test]
async fn a_request_arrives_whole_and_every_answer_means_what_the_contract_says() {
    let plugin = plugin().await;
    let request = plugin.ask("request", &json!({"spec": "ü\u{1f600}"})).await;
    for part in [
        r#"controller: "request""#,
        r#"namespace: Some("default")"#,
        r#"name: "thing""#,
        "ü\u{1f600}",
        "attempt: 0",
        "Cause::Changed",
    ] {
        assert!(request.contains(part), "{request} lacks {part}");
    }
    assert_eq!(plugin.call("nothing", None, 0).await, Ok(Outcome::AwaitChange));
    assert_eq!(plugin.call("requeue", None, 0).await, Ok(Outcome::RequeueAfter(Duration::from_millis(1_500))));
    assert_eq!(plugin.call("retry", None, 3).await, Err(Failure::Retryable("later".into())));
    assert_eq!(plugin.call("later-outcome", None, 0).await, Ok(Outcome::AwaitChange));
    assert_eq!(
        plugin.call("later-failure", None, 0).await,
        Err(Failure::Retryable("later: a case of tomorrow".into()))
    );
}

#[tokio::test]
async fn reads() {
    let plugin = plugin().await;
    let (answer, calls) =
        ask(&plugin, "get", json!({"group": "apps", "resource": "deployments", "namespace": "a", "name": "b"})).await;
    assert_eq!(answer, r#"Ok("{\"ok\":true}")"#);
    assert_eq!(calls, ["operetta:demo/any: get deployments.v1.apps a/b live=false"]);
    let (_, calls) = ask(&plugin, "get", json!({"options": [["freshness", "live"]]})).await;
    assert_eq!(calls, ["operetta:demo/any: get configmaps.v1 thing live=true"]);
    let options = json!({"options": [["namespace", "a"], ["label-selector", "x=y"], ["field-selector", "z=1"], ["limit", "20"], ["continue", "t"], ["freshness", "live"]]});
    let (answer, calls) = ask(&plugin, "list", options).await;
    for part in [r#"items: ["{}", "[]"]"#, r#"Some("more")"#, r#"resource-version: "7""#] {
        assert!(answer.contains(part), "{answer} lacks {part}");
    }
    for part in ["Namespace(\"a\")", "x=y", "z=1", "Some(20)", "ContinueToken(\"t\")", "live: true"] {
        assert!(calls[0].contains(part), "{calls:?} lacks {part}");
    }
}

#[tokio::test]
async fn writes() {
    let plugin = plugin().await;
    let (answer, calls) = ask(&plugin, "create", json!({"namespace": "a", "body": {"kind": "x"}})).await;
    assert_eq!(answer, r#"Ok("{\"kind\":\"x\"}")"#);
    assert_eq!(calls, [r#"create configmaps.v1 Some(Namespace("a")) {"kind":"x"}"#]);
    for (change, words, body) in
        [("apply", "Apply", json!({})), ("merge", "Merge", json!({})), ("json", "Json", json!([]))]
    {
        let (_, calls) = ask(&plugin, "patch", json!({"change": change, "subresource": "status", "body": body})).await;
        assert_eq!(calls, [format!(r#"patch configmaps.v1 thing status {words}("{body}")"#)]);
    }
    let (answer, calls) = ask(&plugin, "patch", json!({"change": "later"})).await;
    assert!(
        answer.contains("Invalid") && answer.contains("apply, merge and json") && calls.is_empty(),
        "{answer} {calls:?}"
    );
    let (_, calls) = ask(&plugin, "replace", json!({"body": 1})).await;
    let look = |live| format!("operetta:demo/any: get configmaps.v1 thing live={live}");
    assert_eq!(calls, [look(false), look(true), "replace configmaps.v1 thing - 1".into()]);
    let options = json!({"options": [["uid", "u"], ["resource-version", "5"], ["propagation", "orphan"], ["grace-period-seconds", "0"]]});
    let (answer, calls) = ask(&plugin, "delete", options).await;
    assert_eq!(answer, "Ok(())");
    assert_eq!(
        calls,
        [
            r#"delete configmaps.v1 thing DeleteOptions { uid: Some("u"), resource_version: Some("5"), propagation: Orphan, grace_period_seconds: Some(0) }"#
        ]
    );
    let event = json!({"reason": "Done", "message": "well", "options": [["action", "Doing"]]});
    let (answer, calls) = ask(&plugin, "publish", event).await;
    assert_eq!(answer, "Ok(())");
    for part in ["severity: Warning", r#"reason: "Done""#, r#"action: "Doing""#, r#"message: "well""#] {
        assert!(calls[0].contains(part), "{calls:?} lacks {part}");
    }
    // Characters, whatever bytes they take.
    let longest = json!({"reason": "D".repeat(128), "message": "\u{fc}".repeat(1_024)});
    assert_eq!(ask(&plugin, "publish", longest).await.0, "Ok(())");
}

#[tokio::test]
async fn every_error_arrives_as_its_own_case() {
    let plugin = plugin().await;
    for (name, case) in [
        ("not-found", r#"NotFound("why")"#),
        ("already-exists", r#"AlreadyExists("why")"#),
        ("conflict", r#"Conflict("why")"#),
        ("invalid", r#"Invalid("why")"#),
        ("forbidden", r#"Forbidden("why")"#),
        ("denied", r#"Denied("why")"#),
        ("gone", r#"Gone("why")"#),
        ("too-many-requests", "TooManyRequests(Some(1234))"),
        ("unavailable", r#"Unavailable("why")"#),
        ("timeout", r#"Timeout("why")"#),
        ("too-large", r#"TooLarge("why")"#),
    ] {
        for command in ["get", "patch", "replace", "delete"] {
            let (answer, _) = ask(&plugin, command, json!({"name": name, "body": {}})).await;
            // What may not be looked at may not be replaced.
            let case = if (command, name) == ("replace", "forbidden") { "nobody can say" } else { case };
            assert!(answer.contains(case), "{command}: {answer} lacks {case}");
        }
    }
}

#[tokio::test]
async fn an_argument_that_does_not_parse_never_reaches_a_port() {
    let plugin = plugin().await;
    let option = |name: &str, value: &str| json!({"options": [[name, value]], "reason": "Done"});
    for (command, argument, words) in [
        ("get", json!({"name": "a/b"}), "name of an object"),
        ("get", json!({"namespace": "a/../b"}), "namespace"),
        ("get", json!({"group": "a/b"}), "API group"),
        ("get", json!({"resource": "Pods"}), "resource"),
        ("get", option("colour", "red"), "no option"),
        ("get", option("freshness", "stale"), "freshness"),
        ("get", json!({"options": [["freshness", "live"], ["freshness", "live"]]}), "given twice"),
        ("list", option("limit", "0"), "from 1 to 1000"),
        ("list", option("limit", "1001"), "from 1 to 1000"),
        ("list", option("limit", "many"), "from 1 to 1000"),
        ("list", option("namespace", "A"), "namespace"),
        ("create", option("x", "y"), "knows none"),
        ("create", json!({"namespace": "a b"}), "namespace"),
        ("patch", json!({"subresource": "status/x"}), "subresource"),
        ("replace", json!({"subresource": ""}), "subresource"),
        ("delete", option("propagation", "sideways"), "propagation"),
        ("delete", option("grace-period-seconds", "-1"), "grace-period-seconds"),
        ("publish", json!({"reason": "not a word"}), "UpperCamelCase"),
        ("publish", json!({"reason": "D".repeat(129)}), "UpperCamelCase"),
        ("publish", json!({"reason": "Done", "message": "x".repeat(1_025)}), "1024"),
        ("publish", option("action", "lower"), "UpperCamelCase"),
    ] {
        let (answer, calls) = ask(&plugin, command, argument).await;
        assert!(answer.contains("Invalid") && answer.contains(words), "{command}: {answer} lacks {words}");
        assert_eq!(calls, Vec::<String>::new(), "{command} {words}");
    }
}

#[tokio::test]
async fn what_is_not_granted_is_denied_with_the_missing_rule() {
    let plugin = plugin().await;
    plugin.limit(|policy| policy.grants = operetta_core::grant::Grants::default());
    for (command, words) in [("get", "verbs"), ("create", "verbs"), ("publish", "events")] {
        let (answer, calls) = ask(&plugin, command, json!({"reason": "Done", "message": "x"})).await;
        assert!(answer.contains("Denied") && answer.contains(words) && calls.is_empty(), "{answer} {calls:?}");
    }
    let (answer, _) = ask(&plugin, "unary", json!({"channel": "demo"})).await;
    assert!(answer.contains("code: 7") && answer.contains("denied:"), "{answer}");
}

#[tokio::test]
async fn sizes_are_limited_both_ways() {
    let plugin = plugin().await;
    let cap = 1 << 20;
    for (size, words) in [(cap, "Ok"), (cap + 1, "limits.messageKiB"), (2 * cap, "limits.messageKiB")] {
        let (answer, _) = ask(&plugin, "large", json!({"size": size})).await;
        let answer: String = answer.chars().take(200).collect();
        assert!(answer.contains(words), "{size}: {answer} lacks {words}");
    }
    // So much more that the host does not even take it.
    let far = json!({"size": 4 * cap}).to_string();
    assert!(matches!(plugin.call("large", Some(&far), 0).await, Err(Failure::Limit(_))));
    let (answer, _) = ask(&plugin, "get", json!({"name": "enormous"})).await;
    assert!(answer.contains("TooLarge") && answer.len() < 300, "{answer}");
    let (answer, _) = ask(&plugin, "list", json!({"options": [["limit", "1"]]})).await;
    assert!(answer.contains("TooLarge") && answer.contains("one object of"), "{answer}");
}

#[tokio::test]
async fn log_and_settings() {
    let plugin = plugin().await;
    let (answer, _) = ask(&plugin, "log", json!({})).await;
    assert_eq!(answer, "true false");
    assert_eq!(plugin.world.lines(), [r#"Info guest: a line [("colour", "red\\nand blue")]"#]);
    let (answer, _) = ask(&plugin, "settings", json!({})).await;
    assert_eq!(answer, r#"Some("red") None"#);
}

#[tokio::test]
async fn clocks_and_random_work_and_two_waits_take_the_time_of_one() {
    let plugin = plugin().await;
    assert_eq!(plugin.ask("clocks", &json!({})).await, "true true true");
    let waited: u64 = plugin.ask("join", &json!({})).await.parse().unwrap();
    assert!((200..380).contains(&waited), "{waited} ms");
}

#[tokio::test]
async fn grpc_unary_and_exchange() {
    let plugin = plugin().await;
    let (answer, calls) = ask(&plugin, "unary", json!({"channel": "demo"})).await;
    assert!(answer.starts_with("Ok(") && answer.contains("x-end"), "{answer}");
    assert_eq!(calls, [r#"unary demo /demo.v1.Demo/Talk [("x-colour", [114, 101, 100])] Some(5s)"#]);
    let (answer, _) = ask(&plugin, "unary", json!({"channel": "demo", "options": [["a", "b"]]})).await;
    assert!(answer.contains("code: 3"), "{answer}");
    let (answer, _) = ask(&plugin, "exchange", json!({"channel": "other"})).await;
    assert!(answer.contains("code: 7"), "{answer}");
    let (answer, _) = ask(&plugin, "exchange", json!({"channel": "demo"})).await;
    let expected = [
        r#"headers Ok([("x-begin", [48])])"#,
        "send Ok(())",
        "send Ok(())",
        "early trailers []",
        "receive Ok(Some([111, 110, 101]))",
        "receive-many Ok([[116, 119, 111]])",
        "receive-none Err(3)",
        "end Ok(None)",
        r#"trailers [("x-end", [49])]"#,
    ];
    assert_eq!(answer, expected.join("; "));
    let (answer, _) = ask(&plugin, "drop-receive", json!({"channel": "demo"})).await;
    assert_eq!(answer, "dropped");
    eventually("every exchange is gone", Duration::from_secs(5), async || {
        anyhow::ensure!(plugin.world.live.load(Ordering::SeqCst) == 0, "{:?}", plugin.world.live);
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn postgres_statements_and_transactions() {
    let plugin = plugin().await;
    let (answer, calls) =
        ask(&plugin, "sql", json!({"database": "demo", "sql": "SELECT", "options": [["max-rows", "7"]]})).await;
    let values = r#"Null, Value::Boolean(true), Value::Integer(-7), Value::Float(0.5), Value::Text("a"), Value::Bytes([0, 255])"#;
    assert!(answer.contains(&values.replace("Null", "Value::Null")), "{answer}");
    assert!(answer.contains(r#"["c1", "c2", "c3", "c4", "c5", "c6"]"#), "{answer}");
    let expected = r#"query demo SqlStatement { sql: "SELECT", parameters: [Null, Boolean(true), Integer(-7), Float(0.5), Text("a"), Bytes([0, 255])], deadline: 1.5s, max_rows: 7, max_bytes: 1048576 }"#;
    assert_eq!(calls, [expected]);
    let (answer, calls) = ask(&plugin, "sql-execute", json!({"database": "demo", "sql": "DELETE"})).await;
    assert_eq!((answer.as_str(), calls[0].as_str()), ("Ok(1)", "execute demo DELETE"));

    for (sql, error) in [
        ("invalid", r#"Error::Invalid("why")"#),
        ("database", r#"sqlstate: "42P01", message: "why", more: [("hint", "look")]"#),
        ("unsupported", r#"Error::Unsupported("why")"#),
        ("unavailable", r#"Error::Unavailable("why")"#),
        ("timeout", r#"Error::Timeout("why")"#),
        ("too-large", r#"Error::TooLarge("why")"#),
    ] {
        let (answer, _) = ask(&plugin, "sql", json!({"database": "demo", "sql": sql})).await;
        assert!(answer.contains(error), "{answer}");
    }
    for (argument, error) in [
        (json!({"database": "other", "sql": "SELECT"}), "spec.grants.databases"),
        (json!({"database": "demo", "sql": "SELECT", "options": [["max-rows", "0"]]}), "from 1 to 10000"),
        (json!({"database": "demo", "sql": "SELECT", "options": [["a", "b"]]}), "knows max-rows"),
        (json!({"database": "demo", "sql": "SELECT", "later": true}), r#"no value \"later\""#),
    ] {
        let (answer, calls) = ask(&plugin, "sql", argument).await;
        assert!(answer.contains(error) && calls.is_empty(), "{answer} {calls:?}");
    }

    let argument = json!({"database": "demo", "options": [["isolation", "serializable"]]});
    let (answer, calls) = ask(&plugin, "transaction", argument).await;
    assert_eq!(calls, ["begin demo Serializable 20s"]);
    let expected = r#"Ok(7) Ok(Rows { columns: ["notes"], rows: [[Value::Text("one two")]] }) Ok(()) Err(Error::Invalid("the transaction has ended"))"#;
    assert_eq!(answer, expected);
    let (answer, _) =
        ask(&plugin, "transaction", json!({"database": "demo", "options": [["isolation", "none"]]})).await;
    assert!(answer.contains("repeatable-read"), "{answer}");
    let (answer, _) = ask(&plugin, "transaction", json!({"database": "other"})).await;
    assert!(answer.contains("Error::Denied"), "{answer}");
    assert_eq!(plugin.world.live.load(Ordering::SeqCst), 0, "a transaction outlived its handle");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_a_port_spawns_lives_on_the_callers_runtime_not_among_guests() {
    let plugin = plugin().await;
    let ours = tokio::spawn(async { thread() }).await.unwrap();
    let (answer, _) = ask(&plugin, "get", json!({"name": "spawned"})).await;
    assert_eq!(answer, format!("Ok({ours:?})"));
    assert_ne!(ours, "guest");
}

#[tokio::test]
async fn loading_again_takes_milliseconds() {
    let sandbox = sandbox();
    sandbox.load(imports()).await.unwrap();
    let began = Instant::now();
    let component = sandbox.load(imports()).await.unwrap();
    assert!(component.cached() && began.elapsed() < Duration::from_millis(250), "{:?}", began.elapsed());
}
