//! Requests carry the account, and nothing else that names a user.

use operetta_core::{
    cache::{Extent, Scope},
    resource::Resource,
};
use serde_json::json;

use super::*;
use crate::testing::{FakeApi, actor, status};

#[tokio::test(start_paused = true)]
async fn nothing_that_is_sent_can_choose_another_user_or_a_group() {
    let api = FakeApi::new(|_| None);
    let identity = Impersonation::new(api.client());
    let client = identity.client(&actor("p")).await.unwrap();
    let request = Request::get("/version")
        .header("Impersonate-User", "admin")
        .header("Impersonate-Group", "system:masters")
        .header("Impersonate-Extra-scopes", "x")
        .header("impersonate-uid", "1");
    client.send(request.body(Body::empty()).unwrap()).await.unwrap();
    let sent = api.sent().pop().unwrap();
    assert_eq!(sent.user, Some(actor("p").account.user()));
    assert_eq!(sent.impersonation, ["impersonate-user"]);
    // The host's own requests stay its own.
    assert_eq!(api.sent()[0].user, None);
}

#[tokio::test(start_paused = true)]
async fn an_account_is_looked_up_once_in_a_while() {
    let api = FakeApi::new(|_| None);
    let identity = Impersonation::new(api.client());
    for _ in 0..3 {
        identity.client(&actor("p")).await.unwrap();
    }
    assert_eq!(api.sent().len(), 1);
    tokio::time::advance(BELIEVED_FOR).await;
    identity.client(&actor("p")).await.unwrap();
    assert_eq!(api.sent().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_account_that_many_ask_for_at_once_is_looked_up_once() {
    for (annotations, fine) in [(json!({"operetta.dev/plugin": "p"}), true), (json!(null), false)] {
        let api = naming(annotations);
        let identity = Impersonation::new(api.client());
        let who = actor("p");
        let clients = futures::future::join_all((0..100).map(|_| identity.client(&who))).await;
        assert!(clients.iter().all(|client| client.is_ok() == fine));
        assert_eq!(api.sent().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_computes_while_it_asks_for_its_account_keeps_nobody_from_an_answer() {
    let api = FakeApi::new(|_| None);
    let (identity, who) = (Impersonation::new(api.client()), actor("p"));
    let mut computing = identity.client(&who);
    assert!(futures::poll!(computing.as_mut()).is_pending());
    let answer = tokio::time::timeout(Duration::from_secs(1), identity.client(&who)).await;
    assert!(answer.expect("it is not kept waiting").is_ok());
    assert!(computing.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_nobody_uses_is_dropped_and_no_other() {
    let api = FakeApi::new(|_| None);
    let identity = Impersonation::new(api.client());
    let held = || {
        let clients = identity.inner.clients.lock().unwrap();
        let mut names: Vec<_> = clients.keys().map(|actor| actor.plugin.to_string()).collect();
        names.sort();
        names
    };
    let half = KEPT_FOR / 2;
    identity.client(&actor("idle")).await.unwrap();
    tokio::time::advance(half).await;
    identity.client(&actor("busy")).await.unwrap();
    assert_eq!(held(), ["busy", "idle"]);
    tokio::time::advance(half).await;
    identity.client(&actor("new")).await.unwrap();
    assert_eq!(held(), ["busy", "new"]);
}

#[tokio::test(start_paused = true)]
async fn what_the_host_may_do_as_an_account_is_asked_for_that_account_and_once_in_a_while() {
    let api = FakeApi::new(|_| None);
    let identity = Impersonation::new(api.client());
    identity.client(&actor("p")).await.unwrap();
    let pods = Resource::parse("", "v1", "pods").unwrap();
    let asked = Asked { verb: Verb::List, resource: &pods, extent: &Extent::default() };
    let questions = || -> Vec<Value> {
        let reviews = api.sent().into_iter().filter(|sent| sent.path.ends_with("selfsubjectaccessreviews"));
        reviews
            .map(|sent| serde_json::from_str::<Value>(&sent.body).unwrap()["spec"]["resourceAttributes"].take())
            .collect()
    };
    for _ in 0..3 {
        identity.check_host(&actor("p"), &asked).await.unwrap();
    }
    let becoming = json!({
        "verb": "impersonate", "group": "", "resource": "serviceaccounts", "subresource": "",
        "namespace": "operetta-plugins", "name": "p",
    });
    assert_eq!(questions(), [becoming]);
    tokio::time::advance(BELIEVED_FOR).await;
    identity.check_host(&actor("p"), &asked).await.unwrap();
    assert_eq!(questions().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn expired_credentials_of_the_host_say_nothing_about_the_account() {
    let api = FakeApi::new(|_| Some(status(401, "Unauthorized", "expired", &json!({}))));
    assert!(matches!(Impersonation::new(api.client()).client(&actor("p")).await, Err(ApiError::Unavailable(_))));
}

/// An API server that says this of the account.
fn naming(annotations: Value) -> std::sync::Arc<FakeApi> {
    FakeApi::new(move |sent| {
        let asked = sent.path.contains("/serviceaccounts/");
        asked.then(|| (200, json!({"kind": "ServiceAccount", "metadata": {"annotations": annotations}})))
    })
}

#[tokio::test(start_paused = true)]
async fn an_account_is_only_for_the_plugins_that_it_names() {
    let line = "`kubectl annotate serviceaccount p --namespace operetta-plugins operetta.dev/plugin=";
    for (annotations, said, typed) in [
        (json!(null), "does not say which plugin may act as it", "p`"),
        (json!({"operetta.dev/plugin": ""}), "does not say which plugin may act as it", "p`"),
        (json!({"operetta.dev/plugin": "q, pp"}), "says that q, pp may act as it, and not p", "q,pp,p --overwrite`"),
        (json!({"operetta.dev/plugins": "p"}), "does not say", "p`"),
    ] {
        let refused = Impersonation::new(naming(annotations).client()).client(&actor("p")).await;
        let Err(ApiError::Forbidden(why)) = refused else { panic!("{:?}", refused.err()) };
        assert!(why.contains(said) && why.contains(&format!("{line}{typed}")), "{why}");
    }
    for names in ["p", "q,p", " p , q"] {
        let api = naming(json!({"operetta.dev/plugin": names}));
        Impersonation::new(api.client()).client(&actor("p")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_account_that_is_gone_or_names_the_plugin_no_more_is_revoked_within_30_s() {
    for after in [
        status(404, "NotFound", "no", &json!({})),
        (200, json!({"kind": "ServiceAccount", "metadata": {"annotations": {"operetta.dev/plugin": "q"}}})),
    ] {
        let revoked = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let api = FakeApi::new({
            let revoked = std::sync::Arc::clone(&revoked);
            move |sent| {
                let asked = sent.path.contains("/serviceaccounts/");
                (asked && revoked.load(std::sync::atomic::Ordering::Relaxed)).then(|| after.clone())
            }
        });
        let cluster = api.cluster();
        let things = Resource::parse("x.example.com", "v1", "things").unwrap();
        let mut subscription =
            cluster.informers().subscribe(&actor("p"), &things, &Scope::All.extents()).await.unwrap();
        // Somebody else asks right before, so that it is believed as long as it can be.
        tokio::time::sleep(Duration::from_secs(19)).await;
        cluster.check_actor(&actor("p")).await.unwrap();
        revoked.store(true, std::sync::atomic::Ordering::Relaxed);
        let ended = async { while subscription.changes.recv().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(30), ended).await.expect("the stream ends soon");
        assert!(matches!(cluster.check_actor(&actor("p")).await, Err(ApiError::Forbidden(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_may_not_act_so_under_another_name_is_told_which_rule_it_lacks() {
    for (rights, fine) in [
        (&["impersonate"][..], true),
        (&["impersonate-on:serviceaccount:list"], true),
        (&["impersonate-on:serviceaccount:watch", "list", "impersonate:serviceaccount"], false),
    ] {
        let api = FakeApi::new(move |sent| {
            let review = sent.path.ends_with("selfsubjectaccessreviews");
            let allowed = rights.iter().any(|verb| sent.body.contains(&format!("\"verb\":\"{verb}\"")));
            review.then(|| (201, json!({"status": {"allowed": allowed}})))
        });
        let identity = Impersonation::new(api.client());
        identity.client(&actor("p")).await.unwrap();
        let pods = Resource::parse("", "v1", "pods").unwrap();
        let asked = Asked { verb: Verb::List, resource: &pods, extent: &Extent::default() };
        match identity.check_host(&actor("p"), &asked).await {
            Ok(()) => assert!(fine, "{rights:?}"),
            Err(Refusal::Lacks(why)) => {
                assert!(!fine && why.contains("the host itself may not list pods in all namespaces"), "{why}");
                assert!(
                    why.contains("verbs: [impersonate-on:serviceaccount:list, impersonate-on:serviceaccount:watch]"),
                    "{why}"
                );
            }
            Err(Refusal::Unasked(error)) => panic!("{error}"),
        }
        // The host asks for itself.
        assert!(api.sent().iter().filter(|sent| sent.path.ends_with("reviews")).all(|sent| sent.user.is_none()));
    }
}
