//! Statuses and what they mean to a plugin.

use serde_json::json;

use super::*;

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
        assert_eq!(answer(code, reason).into_api_error("get x"), expected, "{code}");
    }
    assert!(matches!(Fault::Timeout.into_api_error("get x"), ApiError::Timeout(_)));
    assert!(
        matches!(Fault::Lost("reset".into()).into_api_error("get x"), ApiError::Unavailable(t) if t.contains("reset"))
    );
    assert!(matches!(Fault::TooLarge.into_api_error("get x"), ApiError::TooLarge(_)));
    assert!(Fault::Lost(String::new()).outcome_unknown() && Fault::Timeout.outcome_unknown());
    assert!(!Fault::Unreachable(String::new()).outcome_unknown());
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
