//! A guest that does with every import what the test that calls it says: the controller's name is the command, the object its argument, and what came of it
//! returns as the message of a terminal failure.
//!
//! It calls the contract itself and takes only the heap of the SDK, so that it shows what the host does, not what an SDK makes of it.
#![cfg(target_arch = "wasm32")]
#![allow(clippy::panic)]

#[allow(unsafe_code, missing_docs, clippy::all, clippy::pedantic, reason = "generated code")]
mod bindings {
    wit_bindgen::generate!({ path: "../../../wit", world: "operator", generate_all });
}

use bindings::{
    Failure, Guest, Outcome, Request, export,
    operetta::operator::{
        events, grpc, log, postgres, reader, settings,
        types::{ObjectKey, Resource},
        writer,
    },
    wasi::{
        clocks::{monotonic_clock, system_clock},
        random::random,
    },
};
use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
// For its heap alone, which every plugin has: what a fresh instance costs is measured with this guest.
use operetta_sdk as _;
use serde_json::Value;

struct Imports;

#[allow(unsafe_code, clippy::pedantic, reason = "generated code")]
mod exported {
    use super::{Imports, bindings, export};

    export!(Imports with_types_in bindings);
}

const MILLISECOND: u64 = 1_000_000;

impl Guest for Imports {
    fn manifest() -> String {
        r#"{"manifestVersion": 1, "name": "imports", "version": "0.1.0",
            "controllers": [{"name": "any", "for": {"group": "x.example.com", "version": "v1", "resource": "things"}}]}"#
            .to_owned()
    }

    async fn reconcile(request: Request) -> Result<Outcome, Failure> {
        let argument =
            request.object.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
        match request.controller.as_str() {
            "nothing" => return Ok(Outcome::AwaitChange),
            "tick" => {
                let _ = reader::get(resource(&argument), key(&argument), Vec::new()).await;
                return Ok(Outcome::AwaitChange);
            }
            "requeue" => return Ok(Outcome::RequeueAfter(1_500)),
            "retry" => return Err(Failure::Retryable("later".to_owned())),
            "later-outcome" => return Ok(Outcome::Other(detail())),
            "later-failure" => return Err(Failure::Other(detail())),
            _ => {}
        }
        Err(Failure::Terminal(run(&request, &argument).await))
    }
}

async fn run(request: &Request, argument: &Value) -> String {
    match request.controller.as_str() {
        "request" => format!("{request:?}"),
        "get" => show(reader::get(resource(argument), key(argument), options(argument)).await),
        "list" => show(reader::list(resource(argument), options(argument)).await),
        "create" => show(
            writer::create(resource(argument), text(argument, "namespace"), body(argument), options(argument)).await,
        ),
        "patch" => {
            let body = body(argument);
            let change = match text(argument, "change").as_deref() {
                Some("merge") => writer::Change::Merge(body),
                Some("json") => writer::Change::Json(body),
                Some("later") => writer::Change::Other(detail()),
                _ => writer::Change::Apply(body),
            };
            show(
                writer::patch(
                    resource(argument),
                    key(argument),
                    text(argument, "subresource"),
                    change,
                    options(argument),
                )
                .await,
            )
        }
        "replace" => {
            let subresource = text(argument, "subresource");
            show(
                writer::replace(resource(argument), key(argument), subresource, body(argument), options(argument))
                    .await,
            )
        }
        "delete" => show(writer::delete(resource(argument), key(argument), options(argument)).await),
        "publish" => {
            let (reason, message) =
                (text(argument, "reason").unwrap_or_default(), text(argument, "message").unwrap_or_default());
            show(
                events::publish(
                    resource(argument),
                    key(argument),
                    events::Severity::Warning,
                    reason,
                    message,
                    options(argument),
                )
                .await,
            )
        }
        "log" => {
            let fields =
                argument.get("fields").map_or_else(|| vec![("colour".to_owned(), "red\nand blue".to_owned())], pairs);
            let message = number(argument, "length").map_or_else(
                || text(argument, "message").unwrap_or_else(|| "a line".to_owned()),
                |length| "a".repeat(length),
            );
            log::write(log::Level::Info, "guest", &message, &fields);
            log::write(log::Level::Trace, "guest", "not kept", &[]);
            format!("{} {}", log::enabled(log::Level::Info), log::enabled(log::Level::Trace))
        }
        "settings" => format!("{:?} {:?}", settings::get("colour"), settings::get("size")),
        "clocks" => clocks().await,
        "clock" => clock(),
        "unary" => show(grpc::unary(call(argument), b"hello".to_vec()).await),
        "exchange" => exchange(argument).await,
        "exchanges" => exchanges(argument).await,
        "listen" => listen(argument).await,
        "sql" => show(postgres::query(database(argument), statement(argument)).await),
        "sql-execute" => show(postgres::execute(database(argument), statement(argument)).await),
        "transaction" => transaction(argument).await,
        "drop-receive" => drop_receive(argument).await,
        "join" => {
            let began = monotonic_clock::now();
            futures::join!(monotonic_clock::wait_for(200 * MILLISECOND), monotonic_clock::wait_for(200 * MILLISECOND));
            format!("{}", (monotonic_clock::now() - began) / MILLISECOND)
        }
        "wait" => {
            monotonic_clock::wait_for(3_600_000 * MILLISECOND).await;
            "waited".to_owned()
        }
        "left-over" => {
            wit_bindgen::spawn_local(async {
                monotonic_clock::wait_for(10 * MILLISECOND).await;
                log::write(log::Level::Info, "guest", "left over", &[]);
            });
            "returned".to_owned()
        }
        "left-over-wait" => {
            wit_bindgen::spawn_local(async { monotonic_clock::wait_for(3_600_000 * MILLISECOND).await });
            "returned".to_owned()
        }
        "left-over-panic" => {
            wit_bindgen::spawn_local(async {
                monotonic_clock::wait_for(10 * MILLISECOND).await;
                panic!("on purpose");
            });
            "returned".to_owned()
        }
        "left-over-loop" => {
            wit_bindgen::spawn_local(async {
                monotonic_clock::wait_for(10 * MILLISECOND).await;
                drop(Spin);
            });
            "returned".to_owned()
        }
        "left-over-drop" => {
            wit_bindgen::spawn_local(async {
                let _spin = Spin;
                monotonic_clock::wait_for(3_600_000 * MILLISECOND).await;
            });
            "returned".to_owned()
        }
        "many-waits" => {
            let mut waits = FuturesUnordered::new();
            for _ in 0..1_000_000 {
                let mut wait = Box::pin(monotonic_clock::wait_for(3_600_000 * MILLISECOND));
                // The first poll makes the call.
                let _ = wait.as_mut().now_or_never();
                waits.push(wait);
            }
            waits.next().await;
            "waited".to_owned()
        }
        "many-writes" => {
            let writes = FuturesUnordered::new();
            for _ in 0..100 {
                let object = "x".repeat(100_000);
                let mut write = Box::pin(writer::create(resource(argument), None, object, Vec::new()));
                if let Some(Err(error)) = write.as_mut().now_or_never() {
                    return format!("after {}: {error:?}", writes.len());
                }
                writes.push(write);
            }
            "all wait".to_owned()
        }
        "writes" => writes(argument).await,
        "many-lists" => many_lists(argument).await,
        "many-sends" => many_sends(argument).await,
        "many-unary" => many_unary(argument).await,
        "many-calls" => {
            let mut calls = 0;
            loop {
                match reader::get(resource(argument), key(argument), Vec::new()).await {
                    Err(error) if format!("{error:?}").contains("host calls") => return format!("{calls}: {error:?}"),
                    _ => calls += 1,
                }
            }
        }
        "large" => {
            let size = number(argument, "size").unwrap_or_default();
            show(writer::create(resource(argument), None, "x".repeat(size), Vec::new()).await)
        }
        "panic" => innermost_function_of_the_panic(&request.controller),
        "eat" => {
            let mut all = Vec::new();
            loop {
                all.push(vec![1_u8; 1 << 20]);
                std::hint::black_box(&all);
            }
        }
        other => format!("no such command: {other}"),
    }
}

#[inline(never)]
fn innermost_function_of_the_panic(text: &str) -> String {
    assert!(std::hint::black_box(text) != "panic", "on purpose");
    text.to_owned()
}

async fn clocks() -> String {
    let began = monotonic_clock::now();
    monotonic_clock::wait_for(20 * MILLISECOND).await;
    let waited = (monotonic_clock::now() - began) / MILLISECOND;
    let different = random::get_random_u64() != random::get_random_u64();
    format!("{} {} {different}", waited >= 20, system_clock::now().seconds > 1_700_000_000)
}

/// Whether all steps of both clocks are such as the host lets be seen.
fn clock() -> String {
    const GRAIN: u64 = 100_000;
    let (mut steps, mut coarse, mut last) = (0, true, monotonic_clock::now());
    // Most looks show nothing new.
    while steps < 100 {
        let now = monotonic_clock::now();
        if now != last {
            coarse &= (now - last).is_multiple_of(GRAIN);
            (steps, last) = (steps + 1, now);
        }
    }
    format!("{coarse} {}", u64::from(system_clock::now().nanoseconds).is_multiple_of(GRAIN))
}

/// Ends never, and begins when it is dropped.
struct Spin;

impl Drop for Spin {
    fn drop(&mut self) {
        loop {
            std::hint::black_box(());
        }
    }
}

/// Begins as many writes as told, each of an object of its own unless they are to be of the `same`: drops each before its answer, or waits for all of them where it is to `keep` them.
async fn writes(argument: &Value) -> String {
    let (keep, same) = (argument["keep"] == true, argument["same"] == true);
    let kept = FuturesUnordered::new();
    let times = number(argument, "times").unwrap_or_default();
    for begun in 0..times {
        let (kind, mut object, options) = (resource(argument), key(argument), options(argument));
        if !same {
            object.name = format!("{}-{begun}", object.name);
        }
        let mut write = if text(argument, "change").as_deref() == Some("delete") {
            async move { show(writer::delete(kind, object, options).await) }.boxed_local()
        } else {
            let change = writer::Change::Merge(body(argument));
            async move { show(writer::patch(kind, object, None, change, options).await) }.boxed_local()
        };
        // The first poll makes the call.
        if let Some(answer) = write.as_mut().now_or_never() {
            return format!("after {begun}: {answer}");
        }
        if keep {
            kept.push(write);
        }
    }
    if keep {
        return kept.collect::<Vec<_>>().await.join(" ");
    }
    format!("{times} dropped")
}

/// Asks for as many lists as told at the same time, and answers what the last of them says.
async fn many_lists(argument: &Value) -> String {
    let times = number(argument, "times").unwrap_or_default();
    let lists = (0..times).map(|_| reader::list(resource(argument), options(argument)));
    futures::future::join_all(lists).await.pop().map(show).unwrap_or_default()
}

/// Sends as many messages as told at the same time, until one is refused.
async fn many_sends(argument: &Value) -> String {
    let exchange = match grpc::Exchange::open(call(argument)).await {
        Ok(exchange) => exchange,
        Err(status) => return format!("{status:?}"),
    };
    let sends = FuturesUnordered::new();
    for sent in 0..number(argument, "times").unwrap_or_default() {
        let mut send = Box::pin(exchange.send(vec![0; number(argument, "size").unwrap_or_default()]));
        match send.as_mut().now_or_never() {
            Some(Err(status)) => return format!("after {sent}: {}", status.message),
            Some(Ok(())) => {}
            None => sends.push(send),
        }
    }
    format!("{} wait", sends.len())
}

/// Makes as many unary calls as told at the same time, until one is refused.
async fn many_unary(argument: &Value) -> String {
    let mut calls = FuturesUnordered::new();
    for _ in 0..number(argument, "times").unwrap_or_default() {
        let mut call = Box::pin(grpc::unary(call(argument), b"hello".to_vec()));
        match call.as_mut().now_or_never() {
            Some(Err(status)) => return status.message,
            Some(Ok(_)) => {}
            None => calls.push(call),
        }
    }
    // Some of them may have had to wait for their turn.
    while let Some(answer) = calls.next().await {
        if let Err(status) = answer {
            return status.message;
        }
    }
    "all were answered".to_owned()
}

/// Opens as many as told at the same time, and closes none of them.
async fn exchanges(argument: &Value) -> String {
    let mut open = Vec::new();
    let mut refused = None;
    while refused.is_none() && open.len() < number(argument, "times").unwrap_or_default() {
        match grpc::Exchange::open(call(argument)).await {
            Ok(exchange) => open.push(exchange),
            Err(status) => refused = Some(status.message),
        }
    }
    let said = format!("{} open, then {refused:?}", open.len());
    std::mem::forget(open);
    said
}

/// Takes whatever a service has to say, one message at a time.
async fn listen(argument: &Value) -> String {
    let exchange = match grpc::Exchange::open(call(argument)).await {
        Ok(exchange) => exchange,
        Err(status) => return format!("{status:?}"),
    };
    let mut messages = 0;
    loop {
        match exchange.receive().await {
            Ok(Some(_)) => messages += 1,
            other => return format!("{messages}: {other:?}"),
        }
    }
}

async fn exchange(argument: &Value) -> String {
    let exchange = match grpc::Exchange::open(call(argument)).await {
        Ok(exchange) => exchange,
        Err(status) => return format!("{status:?}"),
    };
    let mut seen = vec![format!("headers {:?}", exchange.headers().await)];
    // A receive that waits must not keep the other calls from going on.
    let receive = exchange.receive();
    let talk = async {
        let mut seen = Vec::new();
        for message in [b"one", b"two"] {
            seen.push(format!("send {:?}", exchange.send(message.to_vec()).await));
        }
        seen.push(format!("early trailers {:?}", exchange.trailers()));
        seen
    };
    let (first, talked) = futures::join!(receive, talk);
    seen.extend(talked);
    seen.push(format!("receive {first:?}"));
    exchange.half_close();
    seen.push(format!("receive-many {:?}", exchange.receive_many(10).await));
    seen.push(format!("receive-none {:?}", exchange.receive_many(0).await.map_err(|status| status.code)));
    seen.push(format!("end {:?}", exchange.receive().await));
    seen.push(format!("trailers {:?}", exchange.trailers()));
    seen.join("; ")
}

async fn drop_receive(argument: &Value) -> String {
    let Ok(exchange) = grpc::Exchange::open(call(argument)).await else { return "not open".to_owned() };
    {
        let receive = std::pin::pin!(exchange.receive());
        let wait = std::pin::pin!(monotonic_clock::wait_for(10 * MILLISECOND));
        match futures::future::select(receive, wait).await {
            futures::future::Either::Left(_) => return "received".to_owned(),
            futures::future::Either::Right(_) => {}
        }
    }
    drop(exchange);
    "dropped".to_owned()
}

fn show(result: impl std::fmt::Debug) -> String {
    format!("{result:?}")
}

fn detail() -> bindings::operetta::operator::types::Detail {
    bindings::operetta::operator::types::Detail { code: "later".to_owned(), message: "a case of tomorrow".to_owned() }
}

fn text(argument: &Value, name: &str) -> Option<String> {
    argument.get(name).and_then(Value::as_str).map(str::to_owned)
}

fn number(argument: &Value, name: &str) -> Option<usize> {
    argument.get(name).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok())
}

fn resource(argument: &Value) -> Resource {
    Resource {
        group: text(argument, "group").unwrap_or_default(),
        version: text(argument, "version").unwrap_or_else(|| "v1".to_owned()),
        resource: text(argument, "resource").unwrap_or_else(|| "configmaps".to_owned()),
    }
}

fn key(argument: &Value) -> ObjectKey {
    ObjectKey {
        namespace: text(argument, "namespace"),
        name: text(argument, "name").unwrap_or_else(|| "thing".to_owned()),
    }
}

/// As JSON, or as text that need not be any, or something `times` times.
fn body(argument: &Value) -> String {
    match (text(argument, "text"), number(argument, "times")) {
        (Some(text), None) => text,
        (Some(text), Some(times)) => {
            let parts = (0..times).map(|number| text.replace("NUMBER", &number.to_string()));
            let (before, after) = (self::text(argument, "before"), self::text(argument, "after"));
            before.into_iter().chain(parts).chain(after).collect()
        }
        _ => argument.get("body").map(Value::to_string).unwrap_or_default(),
    }
}

fn options(argument: &Value) -> Vec<(String, String)> {
    argument.get("options").into_iter().flat_map(pairs).collect()
}

/// A list of pairs, or one `pair` that is there so many `times`.
fn pairs(list: &Value) -> Vec<(String, String)> {
    let pair = |pair: &Value| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.as_str()?.to_owned()));
    match (list.get("pair").and_then(pair), number(list, "times")) {
        (Some(pair), Some(times)) => vec![pair; times],
        _ => list.as_array().into_iter().flatten().filter_map(pair).collect(),
    }
}

fn call(argument: &Value) -> grpc::Call {
    grpc::Call {
        channel: text(argument, "channel").unwrap_or_default(),
        path: text(argument, "path").unwrap_or_else(|| "/demo.v1.Demo/Talk".to_owned()),
        metadata: match argument.get("metadata") {
            Some(pairs) => self::pairs(pairs).into_iter().map(|(key, value)| (key, value.into_bytes())).collect(),
            None => vec![("x-colour".to_owned(), b"red".to_vec())],
        },
        deadline: Some(5_000),
        options: options(argument),
    }
}

fn database(argument: &Value) -> String {
    text(argument, "database").unwrap_or_default()
}

/// With a parameter of each kind, unless the test asks for so many or for one of a later contract.
fn statement(argument: &Value) -> postgres::Statement {
    use postgres::Value as Sql;
    let parameters = if let Some(count) = number(argument, "parameters") {
        (0..count).map(|_| Sql::Null).collect::<Vec<_>>()
    } else if argument["later"].is_null() {
        vec![
            Sql::Null,
            Sql::Boolean(true),
            Sql::Integer(-7),
            Sql::Float(0.5),
            Sql::Text("a".to_owned()),
            Sql::Bytes(vec![0, 255]),
        ]
    } else {
        vec![Sql::Other(detail())]
    };
    let sql = text(argument, "sql").unwrap_or_default();
    postgres::Statement { sql, parameters, deadline: Some(1_500), options: options(argument) }
}

async fn transaction(argument: &Value) -> String {
    let begun = postgres::Transaction::begin(database(argument), None, options(argument)).await;
    let transaction = match begun {
        Ok(transaction) => transaction,
        Err(error) => return format!("{error:?}"),
    };
    let statement = |sql: &str| postgres::Statement {
        sql: sql.to_owned(),
        parameters: Vec::new(),
        deadline: None,
        options: Vec::new(),
    };
    let changed = transaction.execute(statement("one")).await;
    let rows = transaction.query(statement("two")).await;
    let (commit, rollback) = (transaction.commit().await, transaction.rollback().await);
    format!("{changed:?} {rows:?} {commit:?} {rollback:?}")
}
