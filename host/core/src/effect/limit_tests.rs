//! Each limit is met once: the error says which it is, it is counted under its name, and what comes after goes on.

use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};

use tokio::time::advance;

use super::{
    tests::{Fake, call, effects, key, pods, rules},
    *,
};
use crate::{
    looping::Guard,
    name::{ChannelName, ContinueToken, ControllerName, DatabaseName, LabelSelector},
    port::{GrpcCall, GrpcStatus, Objection, Severity},
    reconcile::Failure,
};

fn limited(fake: &Arc<Fake>, limits: Limits) -> Effects {
    let grants = Grants {
        channels: [ChannelName::parse("shop").unwrap()].into(),
        databases: [DatabaseName::parse("people").unwrap()].into(),
        events: true,
        ..rules(&["*"])
    };
    effects(fake, Policy { grants, limits, ..Policy::default() }).0
}

/// With objects of these lengths.
fn fake(objects: &[usize]) -> Arc<Fake> {
    Arc::new(Fake { exists: true, objects: objects.to_vec(), ..Fake::default() })
}

fn met(fake: &Fake) -> Vec<Limit> {
    std::mem::take(&mut *fake.exceeded.lock().unwrap())
}

fn event() -> Event {
    Event {
        resource: pods(),
        key: key(),
        severity: Severity::Normal,
        reason: "R".into(),
        action: "A".into(),
        message: "m".into(),
    }
}

#[test]
fn each_limit_has_a_name_of_its_own_and_says_where_it_is_set() {
    let exceeded = Exceeded { limit: Limit::HostCalls, what: "too much".into() };
    assert_eq!(exceeded.to_string(), "too much; limits.hostCalls in the Plugin document sets that limit");
    let fixed = Exceeded { limit: Limit::Stack, ..exceeded };
    assert_eq!(fixed.to_string(), "too much");
    let all = [
        Limit::Memory,
        Limit::GuestMemory,
        Limit::Tables,
        Limit::Deadline,
        Limit::Cpu,
        Limit::Stack,
        Limit::Concurrency,
        Limit::HostCalls,
        Limit::Handles,
        Limit::Message,
        Limit::GrpcMessage,
        Limit::Waiting,
        Limit::Traffic,
        Limit::List,
        Limit::Rows,
        Limit::Streams,
        Limit::EventRate,
        Limit::WriteRate,
        Limit::LogLines,
        Limit::LogRate,
        Limit::LogLine,
        Limit::References,
    ];
    let names: BTreeSet<_> = all.iter().map(ToString::to_string).collect();
    assert_eq!(names.len(), all.len());
    assert!(all.iter().all(|limit| names.contains(limit.label()) && !limit.label().is_empty()), "{names:?}");
    assert!(Failure::Stack(String::new()).to_string().contains("its call stack of 512 KiB"));
}

#[tokio::test]
async fn what_is_just_as_much_as_may_be_is_taken() {
    let fake = fake(&[]);
    let effects = limited(&fake, Limits { message: 10, traffic: 20, ..Limits::default() });
    // The fake answers with the object that it is given.
    effects.create(&pods(), None, "x".repeat(10)).await.unwrap();
    assert_eq!(met(&fake), []);
    assert!(effects.create(&pods(), None, "x".into()).await.is_err());
    assert_eq!(met(&fake), [Limit::Traffic]);
}

#[tokio::test]
async fn host_calls_and_their_bytes_are_limited() {
    let fake = fake(&[]);
    let effects = limited(&fake, Limits { host_calls: 3, message: 10, ..Limits::default() });
    let long = effects.create(&pods(), None, "x".repeat(11)).await.unwrap_err();
    assert!(
        matches!(&long, ApiError::TooLarge(text) if text.contains("11 bytes") && text.contains("messageKiB")),
        "{long}"
    );
    assert_eq!(met(&fake), [Limit::Message]);
    for _ in 0..3 {
        effects.get(&pods(), &key(), false).await.unwrap();
    }
    let many = effects.get(&pods(), &key(), false).await.unwrap_err();
    assert!(matches!(&many, ApiError::TooLarge(text) if text.contains("limits.hostCalls")), "{many}");
    assert_eq!(met(&fake), [Limit::HostCalls]);
}

#[tokio::test]
async fn arguments_and_answers_of_a_reconcile_are_limited_all_together() {
    let fake = fake(&[]);
    let effects = limited(&fake, Limits { traffic: 100, ..Limits::default() });
    // Forty there and forty back.
    effects.create(&pods(), None, "x".repeat(40)).await.unwrap();
    let answer = effects.create(&pods(), None, "x".repeat(15)).await.unwrap_err();
    assert!(answer.to_string().contains("more than 100 bytes; limits.trafficMiB"), "{answer}");
    assert_eq!(met(&fake), [Limit::Traffic]);
    assert!(effects.create(&pods(), None, "x".into()).await.is_err());
    // Another reconcile begins anew.
    assert!(limited(&fake, Limits::default()).create(&pods(), None, "x".into()).await.is_ok());
}

#[tokio::test]
async fn what_a_call_carries_beside_its_longest_argument_counts_as_well() {
    let fake = fake(&[]);
    let of = |traffic| limited(&fake, Limits { traffic, ..Limits::default() });
    let text = || "x".repeat(50);
    let only =
        DeleteOptions { uid: Some("u".repeat(30)), resource_version: Some("1".repeat(20)), ..DeleteOptions::default() };
    assert_eq!(of(50).delete(&pods(), &key(), &only).await, Ok(()));
    assert!(of(49).delete(&pods(), &key(), &only).await.unwrap_err().to_string().contains("limits.trafficMiB"));
    assert_eq!(met(&fake), [Limit::Traffic]);
    for options in [
        ListOptions { label_selector: Some(LabelSelector::parse(&text()).unwrap()), ..ListOptions::default() },
        ListOptions { field_selector: Some(FieldSelector::parse(&text()).unwrap()), ..ListOptions::default() },
        ListOptions { continue_token: Some(ContinueToken::parse(&text()).unwrap()), ..ListOptions::default() },
    ] {
        assert!(of(50).list(&pods(), &options).await.is_ok());
        assert!(of(49).list(&pods(), &options).await.is_err());
    }
    // A letter of a message, and one of an action.
    let event = || Event { reason: "R".repeat(48), ..event() };
    assert_eq!(of(50).publish(event()).await, Ok(()));
    assert!(of(49).publish(event()).await.is_err());
    let call = || GrpcCall { metadata: vec![("x".into(), vec![b'x'; 40])], ..call("/a.B/Open") };
    assert!(of(50).open("shop", call()).await.is_ok());
    assert_eq!(of(49).open("shop", call()).await.err().unwrap().objection, Some(Objection::Limit(Limit::Traffic)));
    assert_eq!(met(&fake), [Limit::Traffic; 5]);
}

#[tokio::test]
async fn a_list_is_cut_into_pages_that_fit() {
    let fake = fake(&[30, 30, 30, 30]);
    let effects = limited(&fake, Limits { message: 100, ..Limits::default() });
    let page = effects.list(&pods(), &ListOptions::default()).await.unwrap();
    assert_eq!((page.items.len(), page.continue_token.is_some()), (3, true));
    assert_eq!(met(&fake), [Limit::List]);
    let two = ListOptions { limit: Some(2), ..ListOptions::default() };
    assert_eq!(effects.list(&pods(), &two).await.unwrap().items.len(), 2);
    assert!(met(&fake).is_empty());
    let effects = limited(&fake, Limits { message: 20, ..Limits::default() });
    let error = effects.list(&pods(), &ListOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("one object of pods.v1 has more than 20 bytes"), "{error}");
    assert_eq!(met(&fake), [Limit::List]);
}

#[tokio::test]
async fn a_failed_reconcile_names_the_limits_that_it_met_even_where_its_plugin_was_told_to_come_again() {
    let fake = fake(&[]);
    let effects = limited(&fake, Limits { event_rate: 1, write_rate: 1, ..Limits::default() });
    let failed = |failure: Failure| effects.concluded(Err(failure)).unwrap_err().to_string();
    assert_eq!(failed(Failure::Retryable("not now".into())), "not now");
    for _ in 0..2 {
        let _ = effects.publish(event()).await;
    }
    assert_eq!(
        failed(Failure::Retryable("not now".into())),
        "not now; it met limits: event_rate (limits.eventsPerMinute)"
    );
    for _ in 0..2 {
        let _ = effects.patch(&pods(), &key(), None, Patch::Merge("{}".into())).await;
    }
    let both = "event_rate (limits.eventsPerMinute), write_rate (limits.writesPerObjectPerMinute)";
    assert_eq!(failed(Failure::Terminal("no".into())), format!("terminal: no; it met limits: {both}"));
    assert_eq!(failed(Failure::Trap("oh".into())), "the plugin trapped: oh");
    assert_eq!(effects.concluded(Ok(Outcome::AwaitChange)), Ok(Outcome::AwaitChange));
}

#[tokio::test]
async fn what_was_cut_off_a_page_counts_as_well() {
    let fake = fake(&[30, 30, 30, 30]);
    let effects = limited(&fake, Limits { message: 100, traffic: 419, ..Limits::default() });
    // The page of four that came, and that of three which is handed on.
    assert!(effects.list(&pods(), &ListOptions::default()).await.is_ok());
    let error = effects.list(&pods(), &ListOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("more than 419 bytes"), "{error}");
    assert_eq!(met(&fake), [Limit::List, Limit::List, Limit::Traffic]);
}

#[tokio::test]
async fn exchanges_are_limited_in_number_and_their_messages_in_length() {
    let fake = fake(&[]);
    let effects =
        limited(&fake, Limits { streams: 2, message: 50, traffic: 242, host_calls: 100, ..Limits::default() });
    let open = async || effects.open("shop", call("/a.B/Open")).await;
    let (first, _second) = (open().await.unwrap(), open().await.unwrap());
    let third = open().await.err().unwrap();
    assert!(third.code == 8 && third.message.contains("2 open exchanges") && third.message.contains("limits.streams"));
    assert_eq!((third.objection, met(&fake)), (Some(Objection::Limit(Limit::Streams)), vec![Limit::Streams]));
    // One that could not be opened gives its place back, and so does one that is dropped.
    drop(first);
    assert_eq!(effects.open("shop", call("/a.B/C")).await.err().unwrap().code, 14);
    let again = open().await.unwrap();

    let long = again.send(vec![0; 51]).await.unwrap_err();
    assert!(long.code == 8 && long.message.contains("51 bytes") && long.message.contains("limits.messageKiB"));
    assert_eq!(met(&fake), [Limit::GrpcMessage]);
    let of_the_port = again.send(b"limit".to_vec()).await.unwrap_err();
    assert_eq!((of_the_port.message.as_str(), met(&fake)), ("too long", vec![Limit::GrpcMessage]));
    let long = effects.unary("shop", call("/a.B/C"), vec![0; 51]).await.unwrap_err();
    assert_eq!((long.code, met(&fake)), (8, vec![Limit::GrpcMessage]));
    // Three of thirty bytes each time, after paths of 42 bytes.
    for _ in 0..2 {
        assert_eq!(again.receive(3).await.unwrap().len(), 3);
    }
    let much: GrpcStatus = again.receive(3).await.unwrap_err();
    assert!(much.message.contains("limits.trafficMiB"), "{much}");
    assert_eq!(met(&fake), [Limit::Traffic]);
}

#[tokio::test]
async fn a_unary_call_takes_the_place_of_an_exchange_while_it_lasts() {
    let fake = fake(&[]);
    let effects = limited(&fake, Limits { streams: 1, ..Limits::default() });
    let exchange = effects.open("shop", call("/a.B/Open")).await.unwrap();
    let second = effects.unary("shop", call("/a.B/C"), vec![]).await.unwrap_err();
    assert!(second.code == 8 && second.message.contains("unary calls among them"), "{second}");
    assert_eq!((second.objection, met(&fake)), (Some(Objection::Limit(Limit::Streams)), vec![Limit::Streams]));
    drop(exchange);
    // Each gives its place back, whether it was answered or not.
    for path in ["/a.B/C", "/a.B/Closed", "/a.B/C"] {
        assert_eq!(effects.unary("shop", call(path), vec![]).await.is_ok(), path == "/a.B/C");
    }
    assert_eq!(met(&fake), []);
}

#[tokio::test]
async fn what_an_exchange_does_counts_as_host_calls() {
    let fake = fake(&[]);
    let effects = limited(&fake, Limits { host_calls: 3, ..Limits::default() });
    let exchange = effects.open("shop", call("/a.B/Open")).await.unwrap();
    exchange.headers().await.unwrap();
    exchange.receive(1).await.unwrap();
    assert_eq!(exchange.receive(1).await.unwrap_err().objection, Some(Objection::Limit(Limit::HostCalls)));
}

#[tokio::test]
async fn rows_are_limited() {
    let fake = fake(&[]);
    let effects = limited(&fake, Limits { rows: 7, ..Limits::default() });
    let ask = |rows| Ask { sql: "SELECT 1".into(), max_rows: rows, ..Ask::default() };
    assert_eq!(effects.statement(ask(None)).unwrap().max_rows, 7);
    assert_eq!(effects.statement(ask(Some(100))).unwrap().max_rows, 7);
    assert_eq!(effects.statement(ask(Some(2))).unwrap().max_rows, 2);
    // The port knows how many there are.
    let error = effects.query("people", Ask { sql: "too many".into(), ..Ask::default() }).await.unwrap_err();
    assert_eq!((error.to_string(), met(&fake)), ("too large: rows".to_owned(), vec![Limit::Rows]));
}

#[tokio::test]
async fn arguments_that_wait_are_limited_and_given_back() {
    let fake = fake(&[]);
    let effects = limited(&fake, Limits { message: 10, ..Limits::default() });
    let held: Vec<_> = (0..4).map(|_| effects.under_way(10).ok().unwrap()).collect();
    let error = effects.under_way(1).err().unwrap();
    assert!(error.to_string().contains("more than 40 bytes"), "{error}");
    assert_eq!(met(&fake), [Limit::Waiting]);
    drop(held);
    assert!(effects.under_way(40).is_ok());
}

#[tokio::test]
async fn it_is_known_whether_a_call_is_under_way_whatever_it_carries() {
    let effects = limited(&fake(&[]), Limits { message: 10, ..Limits::default() });
    assert!(!effects.is_waiting());
    let (one, other) = (effects.under_way(0).ok().unwrap(), effects.under_way(40).ok().unwrap());
    assert!(effects.under_way(1).is_err(), "what does not begin is not under way");
    drop(one);
    assert!(effects.is_waiting());
    drop(other);
    assert!(!effects.is_waiting());
}

#[tokio::test]
async fn an_event_says_nothing_that_nobody_sees() {
    let fake = fake(&[]);
    let effects = limited(&fake, Limits::default());
    let message = "\u{1b}[31mred\nNormal Forged\u{202e}".to_owned();
    effects.publish(Event { message, ..event() }).await.unwrap();
    effects.publish(Event { message: "\n".repeat(1_000), ..event() }).await.unwrap();
    let reached = fake.reached.lock().unwrap();
    assert_eq!(reached[0], "publish \\u{1b}[31mred\\nNormal Forged\\u{202e}");
    assert!(reached[1].len() <= "publish ".len() + 1_024 && reached[1].ends_with("\\n…"), "{reached:?}");
}

#[tokio::test(start_paused = true)]
async fn events_come_at_a_rate() {
    let fake = fake(&[]);
    let effects = limited(&fake, Limits { event_rate: 60, ..Limits::default() });
    for _ in 0..60 {
        effects.publish(event()).await.unwrap();
    }
    advance(Duration::from_millis(250)).await;
    let error = effects.publish(event()).await.unwrap_err();
    assert_eq!(error, ApiError::TooManyRequests(Some(Duration::from_millis(750))));
    assert_eq!(met(&fake), [Limit::EventRate]);
    // Said once in a reconcile.
    assert!(effects.publish(event()).await.is_err());
    let logged = std::mem::take(&mut *fake.logged.lock().unwrap());
    assert_eq!(logged.len(), 1);
    assert!(logged[0].1.contains("more than 60 events a minute; limits.eventsPerMinute"), "{logged:?}");
    advance(Duration::from_secs(1)).await;
    effects.publish(event()).await.unwrap();
    assert!(effects.publish(event()).await.is_err());
    // Where there is none at all, there is no time to wait for either.
    let never = limited(&fake, Limits { event_rate: 0, ..Limits::default() });
    assert_eq!(never.publish(event()).await.unwrap_err(), ApiError::TooManyRequests(None));
}

#[tokio::test(start_paused = true)]
async fn writes_of_one_object_come_at_a_rate_over_all_reconciles() {
    let fake = fake(&[]);
    let first = limited(&fake, Limits { write_rate: 6, ..Limits::default() });
    let next = Effects::new(first.caller.clone(), first.policy.shared.clone(), first.ports.clone());
    let named = |name: &str| format!(r#"{{"metadata": {{"name": "{name}"}}}}"#);
    let create = async |effects: &Effects, name: &str| {
        effects.create(&pods(), key().namespace.as_ref(), named(name)).await.map(drop)
    };
    let patch = async |effects: &Effects, patch| effects.patch(&pods(), &key(), None, patch).await.map(drop);
    create(&first, "x").await.unwrap();
    for change in [Patch::Merge("{}".into()), Patch::Apply("{}".into()), Patch::Json("[]".into())] {
        patch(&first, change).await.unwrap();
    }
    first.replace(&pods(), &key(), None, "{}".into()).await.unwrap();
    first.delete(&pods(), &key(), &DeleteOptions::default()).await.unwrap();
    fake.reached.lock().unwrap().clear();

    let refused = ApiError::TooManyRequests(Some(Duration::from_secs(10)));
    assert_eq!(create(&next, "x").await.unwrap_err(), refused);
    assert_eq!(patch(&next, Patch::Merge("{}".into())).await.unwrap_err(), refused);
    assert_eq!(next.replace(&pods(), &key(), None, "{}".into()).await.unwrap_err(), refused);
    assert_eq!(next.delete(&pods(), &key(), &DeleteOptions::default()).await.unwrap_err(), refused);
    // What a replace would take away is looked at before.
    assert_eq!(std::mem::take(&mut *fake.reached.lock().unwrap()), ["get", "get live"]);
    assert_eq!(met(&fake), [Limit::WriteRate; 4]);
    let logged = std::mem::take(&mut *fake.logged.lock().unwrap());
    assert_eq!(logged.len(), 1, "said once in a reconcile");
    let said = "pods.v1 n/x more than 6 times a minute; limits.writesPerObjectPerMinute in the Plugin document";
    assert!(logged[0].1.contains(said), "{logged:?}");

    // Another object has a budget of its own, and so have those whose names the API server chooses.
    for _ in 0..6 {
        create(&next, "y").await.unwrap();
    }
    for _ in 0..20 {
        next.create(&pods(), None, r#"{"metadata": {"generateName": "x-"}}"#.into()).await.unwrap();
    }
    advance(Duration::from_secs(10)).await;
    patch(&next, Patch::Merge("{}".into())).await.unwrap();
    assert!(patch(&next, Patch::Merge("{}".into())).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn what_is_made_for_one_object_comes_at_ten_times_that_rate_whatever_its_name() {
    let fake = Arc::new(Fake { exists: true, ..Fake::default() });
    let first = limited(&fake, Limits { write_rate: 6, ..Limits::default() });
    let guard = Guard::new(ControllerName::parse("c").unwrap(), Arc::default());
    let on = |name: &str| {
        let key = ObjectKey::parse(Some("n"), name).unwrap();
        Effects::new(first.caller.clone(), first.policy.shared.clone(), first.ports.clone()).on(guard.begin(&key))
    };
    let generated = || r#"{"metadata": {"generateName": "x-"}}"#.to_owned();
    let make = async |effects: &Effects| effects.create(&pods(), None, generated()).await.map(drop);
    let apply = async |effects: &Effects, name: &str| {
        let key = ObjectKey::parse(Some("n"), name).unwrap();
        effects.patch(&pods(), &key, None, Patch::Apply("{}".into())).await.map(drop)
    };
    let one = on("one");
    for number in 0..59 {
        make(&one).await.unwrap();
        // What an apply finds is none that it makes.
        apply(&one, &format!("found-{number}")).await.unwrap();
    }
    fake.makes.store(true, Ordering::Relaxed);
    apply(&one, "made").await.unwrap();
    fake.reached.lock().unwrap().clear();

    let (next, refused) = (on("one"), ApiError::TooManyRequests(Some(Duration::from_secs(1))));
    assert_eq!(make(&next).await.unwrap_err(), refused);
    assert_eq!(apply(&next, "other").await.unwrap_err(), refused);
    assert_eq!((met(&fake), fake.reached.lock().unwrap().clone()), (vec![Limit::WriteRate; 2], vec![]));
    let logged = std::mem::take(&mut *fake.logged.lock().unwrap());
    let said = "controller c makes more than 60 objects a minute for n/one, 10 times the 6 writes of one object; \
        limits.writesPerObjectPerMinute in the Plugin document";
    assert!(logged.len() == 1 && logged[0].1.contains(said), "{logged:?}");
    // Changes are none, nor is what is made for another object, nor what the host makes.
    next.patch(&pods(), &key(), None, Patch::Merge("{}".into())).await.unwrap();
    make(&on("other")).await.unwrap();
    make(&first).await.unwrap();
    advance(Duration::from_secs(1)).await;
    make(&next).await.unwrap();
    assert!(make(&next).await.is_err());
    // A create that another limit stops is none.
    advance(Duration::from_secs(1)).await;
    for _ in 0..6 {
        next.delete(&pods(), &key(), &DeleteOptions::default()).await.ok();
    }
    let named = r#"{"metadata": {"name": "x"}}"#.to_owned();
    assert!(next.create(&pods(), key().namespace.as_ref(), named).await.is_err());
    // Nor one that is refused; one that has no answer may have happened.
    let fails = |refusal: Option<ApiError>| *fake.refusal.lock().unwrap() = refusal;
    fails(Some(ApiError::AlreadyExists(String::new())));
    assert!(matches!(make(&next).await, Err(ApiError::AlreadyExists(_))));
    for refusal in [ApiError::Unreachable(String::new()), ApiError::TooLarge(String::new())] {
        fails(Some(refusal.clone()));
        assert_eq!(make(&next).await.unwrap_err(), refusal, "it was never sent, or not taken");
    }
    fails(Some(ApiError::Unavailable(String::new())));
    assert!(matches!(make(&next).await, Err(ApiError::Unavailable(_))));
    fails(None);
    assert_eq!(make(&next).await.unwrap_err(), refused);
}

#[tokio::test(start_paused = true)]
async fn what_would_change_nothing_is_no_write() {
    let fake = Arc::new(Fake { exists: true, free: true, ..Fake::default() });
    let effects = limited(&fake, Limits { write_rate: 2, ..Limits::default() });
    for _ in 0..100 {
        effects.patch(&pods(), &key(), None, Patch::Apply("{}".into())).await.unwrap();
    }
    assert_eq!(met(&fake), []);
}

#[test]
fn fields_that_are_left_out_of_a_log_line_are_counted() {
    let fake = fake(&[]);
    let effects = limited(&fake, Limits::default());
    let fields: Vec<_> = (0..=MOST_FIELDS).map(|number| (format!("field{number}"), String::new())).collect();
    effects.log(Level::Info, "", "", &fields[1..]);
    assert_eq!(met(&fake), []);
    effects.log(Level::Info, "", "", &fields);
    assert_eq!(met(&fake), [Limit::LogLine]);
}

#[tokio::test(start_paused = true)]
async fn log_lines_are_escaped_cut_counted_and_come_at_a_rate() {
    let fake = fake(&[]);
    let limits = Limits { log_lines: 3, log_line: 40, ..Limits::default() };
    let effects = limited(&fake, limits);
    effects.log(Level::Debug, "t", "not kept", &[]);
    effects.log(Level::Info, "t", "\u{1b}[31mred\nline \u{202e}evil", &[]);
    effects.log(Level::Info, "t", &"x".repeat(1000), &[]);
    assert_eq!(met(&fake), [Limit::LogLine]);
    for _ in 0..10 {
        effects.log(Level::Info, "t", "more", &[]);
    }
    assert_eq!(met(&fake), [Limit::LogLines; 9]);
    let logged = std::mem::take(&mut *fake.logged.lock().unwrap());
    assert_eq!(logged.len(), 4);
    assert_eq!(logged[0].1, "\\u{1b}[31mred\\nline \\u{202e}evil");
    assert_eq!(logged[1].1.len(), 39 + '…'.len_utf8());
    assert!(logged[3].1.contains("limit of 3 lines"), "{}", logged[3].1);

    let effects = limited(&fake, Limits { log_rate: 60, ..Limits::default() });
    for _ in 0..65 {
        effects.log(Level::Info, "t", "line", &[]);
    }
    assert_eq!(met(&fake), [Limit::LogRate; 5]);
    assert_eq!(std::mem::take(&mut *fake.logged.lock().unwrap()).len(), 60);
    advance(Duration::from_secs(1)).await;
    effects.log(Level::Info, "t", "line", &[]);
    let logged = fake.logged.lock().unwrap();
    assert!(logged[0].1.starts_with("5 lines were left out"), "{}", logged[0].1);
    assert_eq!(logged[1].1, "line");
}
