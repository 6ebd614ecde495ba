//! Statuses and what they mean to a plugin.

use operetta_core::{name::LabelSelector, resource::ObjectKey};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::testing::FakeApi;

fn answer(code: u16, reason: &str) -> Fault {
    let status = Status { reason: reason.to_owned(), message: "m".to_owned(), code, ..Status::default() };
    Fault::Answer {
        code,
        reason: reason.to_owned(),
        message: "m".to_owned(),
        status: Box::new(status),
        retry_after: Some(Duration::from_secs(3)),
    }
}

#[test]
fn each_status_has_its_case_and_says_what_failed() {
    let text = || "get x: m".to_owned();
    for (code, reason, expected, unknown) in [
        (400, "BadRequest", ApiError::Invalid(text()), false),
        (401, "Unauthorized", ApiError::Forbidden(text()), false),
        (403, "Forbidden", ApiError::Forbidden(text()), false),
        (404, "NotFound", ApiError::NotFound(text()), false),
        (405, "MethodNotAllowed", ApiError::Invalid(text()), false),
        (409, "AlreadyExists", ApiError::AlreadyExists(text()), false),
        (409, "Conflict", ApiError::Conflict(text()), false),
        (410, "Expired", ApiError::Gone(text()), false),
        (413, "RequestEntityTooLarge", ApiError::TooLarge(text()), false),
        (422, "Invalid", ApiError::Invalid(text()), false),
        (429, "TooManyRequests", ApiError::TooManyRequests(Some(Duration::from_secs(3))), false),
        (500, "InternalError", ApiError::Unavailable(text()), true),
        (500, "ServerTimeout", ApiError::Timeout(text()), true),
        (502, "", ApiError::Unavailable(text()), true),
        (503, "ServiceUnavailable", ApiError::Unavailable(text()), true),
        (504, "Timeout", ApiError::Timeout(text()), true),
    ] {
        assert_eq!(answer(code, reason).outcome_unknown(), unknown, "{code}");
        assert_eq!(expected.may_have_happened(), unknown, "{code}");
        assert_eq!(answer(code, reason).into_api_error("get x"), expected, "{code}");
    }
    assert!(matches!(Fault::Timeout.into_api_error("get x"), ApiError::Timeout(_)));
    assert!(
        matches!(Fault::Lost("reset".into()).into_api_error("get x"), ApiError::Unavailable(t) if t.contains("reset"))
    );
    assert!(matches!(Fault::TooLarge.into_api_error("get x"), ApiError::AnswerTooLarge(_)));
    assert!(Fault::Lost(String::new()).outcome_unknown() && Fault::Timeout.outcome_unknown());
    assert!(!Fault::Unreachable(String::new()).outcome_unknown());
    // Whatever is known of the outcome, the contract's error says as well.
    let text = || String::from("t");
    let no_client = [ApiError::Timeout(text()), ApiError::Unavailable(text()), ApiError::AnswerTooLarge(text())];
    let faults = [Fault::Lost(text()), Fault::Unreachable(text()), Fault::Timeout, Fault::TooLarge]
        .into_iter()
        .chain([Fault::Unsendable(text()), Fault::Garbled(text())])
        .chain(no_client.map(Fault::NoClient));
    for fault in faults {
        let error = fault.clone().into_api_error("get x");
        assert_eq!(error.may_have_happened(), fault.outcome_unknown(), "{fault:?}");
    }
}

#[test]
fn a_host_that_was_not_installed_for_this_is_told_so() {
    let said = |code| {
        let Fault::Answer { reason, status, retry_after, .. } = answer(code, "") else { panic!() };
        let message = "cannot impersonate-on:serviceaccount:get".to_owned();
        Fault::Answer { code, reason, message, status, retry_after }.into_api_error("get x").to_string()
    };
    assert!(
        said(403).contains("; as a plugin the host may do only what was installed with it: run `operetta install`")
    );
    assert!(!said(404).contains("operetta install"));
}

#[test]
fn an_error_says_each_of_its_causes_once() {
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Layer(&'static str, #[source] Option<Box<Layer>>);
    let under = |text, below: Layer| Layer(text, Some(Box::new(below)));
    assert_eq!(chain(&under("a", under("b of c", Layer("c", None)))), "a: b of c");
    assert_eq!(chain(&under("a", under("b", Layer("c", None)))), "a: b: c");
}

#[tokio::test]
async fn a_server_is_as_old_as_it_says() {
    for (major, minor, expected) in [
        ("1", "35", true),
        ("1", "36", true),
        ("1", "35+", true),
        ("1", "34", false),
        ("1", "", false),
        ("2", "35", false),
    ] {
        let api = FakeApi::new(move |_| Some((200, json!({"major": major, "minor": minor}))));
        assert_eq!(is_at_least(&api.client(), 35).await.unwrap(), expected, "{major}.{minor}");
    }
}

#[test]
fn names_and_values_cannot_leave_their_place_in_a_url() {
    let pods = Resource::parse("", "v1", "pods").unwrap();
    let namespace = Namespace::parse("n").unwrap();
    let name = ObjectName::parse("system:node\"<>&=+").unwrap();
    let url = Url::of(&pods, Some(&namespace)).object(&name).query("fieldManager", "a/b&c=d e").query("x", "ä");
    let request = url.get().unwrap();
    assert_eq!(
        request.uri().to_string(),
        "/api/v1/namespaces/n/pods/system%3Anode%22%3C%3E%26%3D%2B?fieldManager=a%2Fb%26c%3Dd%20e&x=%C3%A4"
    );
    let things = Resource::parse("x.example.com", "v1", "things").unwrap();
    let status: Subresource = "status".parse().unwrap();
    let url = Url::of(&things, None).object(&ObjectName::parse("a").unwrap()).subresource(Some(&status));
    assert_eq!(url.get().unwrap().uri().to_string(), "/apis/x.example.com/v1/things/a/status");
}

/// What a guest may write instead of a name: tricks with paths, headers and look-alikes among letters.
fn trick() -> impl Strategy<Value = String> {
    let pieces = [
        "../", "..", "/", "%2f", "%2e", "?", "#", "&", "=", ";", "\\", "\r\n", "\0", " ", "\u{2215}", "\u{ff0f}",
        "\u{202e}",
    ];
    let piece = prop_oneof![
        3 => "[a-z0-9.:@+-]{1,10}",
        1 => prop::sample::select(pieces.to_vec()).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 1..4).prop_map(|pieces| pieces.concat())
}

/// As a server reads it.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = text.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        let digit = |byte: u8| u8::try_from(char::from(byte).to_digit(16).unwrap()).unwrap();
        out.push(if byte == b'%' {
            let (high, low) = (bytes.next().unwrap(), bytes.next().unwrap());
            digit(high) * 16 + digit(low)
        } else {
            byte
        });
    }
    out
}

proptest! {
    #[test]
    fn whatever_a_guest_writes_stays_in_its_own_segment(
        kind in (trick(), trick(), trick()), namespace in trick(), name in trick(), part in trick(),
    ) {
        let Ok(resource) = Resource::parse(&kind.0, &kind.1, &kind.2) else { return Ok(()) };
        let Ok(key) = ObjectKey::parse(Some(&namespace), &name) else { return Ok(()) };
        let Ok(part) = Subresource::parse(&part) else { return Ok(()) };
        let url = Url::of(&resource, key.namespace.as_ref()).object(&key.name).subresource(Some(&part));
        let uri = url.get().unwrap().uri().clone();
        let segments: Vec<_> = uri.path().split('/').map(decoded).collect();
        let expected = ["", "apis", &kind.0, &kind.1, "namespaces", &namespace, &kind.2, &name, part.as_str()];
        prop_assert_eq!(segments, expected.map(|segment| segment.as_bytes().to_vec()));
        prop_assert!(!uri.path().split('/').any(|s| s == "." || s == ".."), "{}", uri);
        prop_assert_eq!(uri.query(), None);
    }

    #[test]
    fn names_that_parse_stay_in_their_own_segment(
        group in "[a-z0-9]{1,8}(\\.[a-z0-9]{1,8}){0,2}", namespace in "[a-z0-9]{1,8}", name in "[!-~]{1,20}",
    ) {
        let Ok(name) = ObjectName::parse(&name) else { return Ok(()) };
        let resource = Resource::parse(&group, "v1", "things").unwrap();
        let namespace = Namespace::parse(&namespace).unwrap();
        let uri = Url::of(&resource, Some(&namespace)).object(&name).get().unwrap().uri().clone();
        let segments: Vec<_> = uri.path().split('/').map(decoded).collect();
        let expected = ["", "apis", &group, "v1", "namespaces", namespace.as_str(), "things", name.as_str()];
        prop_assert_eq!(segments, expected.map(|segment| segment.as_bytes().to_vec()));
        prop_assert_eq!(uri.query(), None);
    }

    #[test]
    fn a_value_stays_in_its_own_parameter(text in trick(), token in trick()) {
        let things = Resource::parse("", "v1", "things").unwrap();
        let mut url = Url::of(&things, None).query("limit", "5");
        if let Ok(selector) = LabelSelector::parse(&text) {
            url = url.query("labelSelector", selector.as_str());
        }
        let uri = url.query("fieldManager", &token).get().unwrap().uri().clone();
        prop_assert_eq!(uri.path(), "/api/v1/things");
        let pairs: Vec<_> = uri.query().unwrap().split('&').map(|pair| pair.split_once('=').unwrap()).collect();
        prop_assert_eq!(pairs.first(), Some(&("limit", "5")));
        let (last, value) = pairs.last().unwrap();
        prop_assert_eq!((*last, decoded(value)), ("fieldManager", token.into_bytes()));
        prop_assert!(pairs.len() <= 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_ends() {
    let client = Client::new(
        tower::service_fn(|_: Request<Body>| std::future::pending::<Result<http::Response<Body>, kube::Error>>()),
        "default",
    );
    let request = Request::get("/version").body(Vec::new()).unwrap();
    assert!(matches!(send(&client, request).await, Err(Fault::Timeout)));
}

#[tokio::test]
async fn an_answer_of_a_proxy_is_understood_as_far_as_it_goes() {
    let client = Client::new(
        tower::service_fn(async |_: Request<Body>| {
            let answer = http::Response::builder()
                .status(503)
                .header("retry-after", "7")
                .body(Body::from(b"<html>down</html>".to_vec()));
            Ok::<_, kube::Error>(answer.unwrap())
        }),
        "default",
    );
    let fault = send(&client, Request::get("/version").body(Vec::new()).unwrap()).await.unwrap_err();
    let Fault::Answer { code: 503, message, retry_after, .. } = fault else { panic!("{fault:?}") };
    assert_eq!((message.as_str(), retry_after), ("<html>down</html>", Some(Duration::from_secs(7))));
}

#[tokio::test]
async fn a_connection_that_never_came_about_is_no_lost_answer() {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = crate::client::build(config).unwrap();
    let fault = send(&client, Request::get("/version").body(Vec::new()).unwrap()).await.unwrap_err();
    assert!(matches!(fault, Fault::Unreachable(_)), "{fault:?}");
    assert_eq!(json!(fault.outcome_unknown()), json!(false));
}
