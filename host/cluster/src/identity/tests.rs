//! Requests carry the account, and nothing else that names a user.

use operetta_core::{cache::Scope, resource::Resource};
use serde_json::json;

use super::*;
use crate::testing::{FakeApi, account, status};

#[tokio::test(start_paused = true)]
async fn nothing_that_is_sent_can_choose_another_user_or_a_group() {
    let api = FakeApi::new(|_| None);
    let identity = Impersonation::new(api.client());
    let client = identity.client(&account("p")).await.unwrap();
    let request = Request::get("/version")
        .header("Impersonate-User", "admin")
        .header("Impersonate-Group", "system:masters")
        .header("Impersonate-Extra-scopes", "x")
        .header("impersonate-uid", "1");
    client.send(request.body(Body::empty()).unwrap()).await.unwrap();
    let sent = api.sent().pop().unwrap();
    assert_eq!(sent.user, Some(account("p").user()));
    assert_eq!(sent.impersonation, ["impersonate-user"]);
    // The host's own requests stay its own.
    assert_eq!(api.sent()[0].user, None);
}

#[tokio::test(start_paused = true)]
async fn an_account_is_looked_up_once_in_a_while() {
    let api = FakeApi::new(|_| None);
    let identity = Impersonation::new(api.client());
    for _ in 0..3 {
        identity.client(&account("p")).await.unwrap();
    }
    assert_eq!(api.sent().len(), 1);
    tokio::time::advance(EXISTS_FOR).await;
    identity.client(&account("p")).await.unwrap();
    assert_eq!(api.sent().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn expired_credentials_of_the_host_say_nothing_about_the_account() {
    let api = FakeApi::new(|_| Some(status(401, "Unauthorized", "expired", &json!({}))));
    assert!(matches!(Impersonation::new(api.client()).client(&account("p")).await, Err(ApiError::Unavailable(_))));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_account_loses_its_access() {
    let gone = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let api = FakeApi::new({
        let gone = std::sync::Arc::clone(&gone);
        move |sent| {
            let away = sent.path.contains("/serviceaccounts/") && gone.load(std::sync::atomic::Ordering::Relaxed);
            away.then(|| status(404, "NotFound", "no", &json!({})))
        }
    });
    let cluster = api.cluster();
    let things = Resource::parse("x.example.com", "v1", "things").unwrap();
    let mut subscription = cluster.informers().subscribe(&account("p"), &things, &Scope::All).await.unwrap();
    gone.store(true, std::sync::atomic::Ordering::Relaxed);
    let ended = async { while subscription.changes.recv().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(62), ended).await.expect("the stream ends soon");
}
