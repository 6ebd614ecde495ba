//! What an account may watch, asked for and believed for a while.

use operetta_core::resource::Resource;
use serde_json::{Value, json};

use super::*;
use crate::{
    identity::Impersonation,
    testing::{FakeApi, actor, namespace, things},
};

#[tokio::test(start_paused = true)]
async fn a_yes_is_believed_for_a_while_and_a_no_never() {
    let allowed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let api = FakeApi::new({
        let allowed = Arc::clone(&allowed);
        move |sent| {
            let yes = allowed.load(std::sync::atomic::Ordering::Relaxed);
            sent.path.ends_with("selfsubjectaccessreviews").then(|| (201, json!({"status": {"allowed": yes}})))
        }
    });
    let access = Access::new(Arc::new(Impersonation::new(api.client())));
    let pods = Resource::parse("", "v1", "pods").unwrap();
    let here = Extent { namespace: Some(namespace("n")), name: None };
    let asked =
        || api.sent().into_iter().filter(|s| s.path.ends_with("reviews") && s.user.is_some()).collect::<Vec<_>>();
    let check = async || access.check(Whose::Account, &actor("p"), &pods, &here).await;
    let Err(Refusal::Lacks(why)) = check().await else { panic!() };
    assert!(why.contains("may not list pods in namespace n"), "{why}");
    assert_eq!(asked().len(), 1);
    allowed.store(true, std::sync::atomic::Ordering::Relaxed);
    check().await.unwrap();
    check().await.unwrap();
    assert_eq!(asked().len(), 3);
    let review: Value = serde_json::from_str(&asked()[2].body).unwrap();
    assert_eq!(
        review["spec"]["resourceAttributes"],
        json!({"group": "", "resource": "pods", "subresource": "", "verb": "watch", "namespace": "n", "name": ""})
    );
    assert_eq!(asked()[2].user, Some(actor("p").account.user()));
    tokio::time::advance(BELIEVED_FOR).await;
    check().await.unwrap();
    access.check(Whose::AccountAnew, &actor("p"), &pods, &here).await.unwrap();
    assert_eq!(asked().len(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_yes_for_one_object_is_none_for_another_and_none_for_all() {
    let api = FakeApi::new(|sent| {
        let asked: Value = serde_json::from_str(&sent.body).unwrap_or_default();
        let attributes = &asked["spec"]["resourceAttributes"];
        let (group, kind) = (&attributes["group"], &attributes["resource"]);
        let yes = attributes["name"] == "a" && group == "x.example.com" && kind == "things";
        sent.path.ends_with("selfsubjectaccessreviews").then(|| (201, json!({"status": {"allowed": yes}})))
    });
    let access = Access::new(Arc::new(Impersonation::new(api.client())));
    let check = async |namespaced: bool, name: Option<&str>| {
        let name = name.map(|name| ObjectName::parse(name).unwrap());
        let extent = Extent { namespace: namespaced.then(|| namespace("n")), name };
        match access.check(Whose::Account, &actor("p"), &things(), &extent).await {
            Err(Refusal::Lacks(why)) => why,
            other => format!("{other:?}"),
        }
    };
    assert_eq!(check(true, Some("a")).await, "Ok(())");
    let account = "service account operetta-plugins/p";
    let install = "run `operetta install` for the plugin, or add to a";
    assert_eq!(
        check(true, Some("b")).await,
        format!(
            "{account} may not list things of group x.example.com named b in namespace n; {install} Role of the account: \
             {{apiGroups: [\"x.example.com\"], resources: [\"things\"], resourceNames: [\"b\"], verbs: [list, watch]}}"
        )
    );
    assert_eq!(
        check(false, None).await,
        format!(
            "{account} may not list things of group x.example.com in all namespaces; {install} ClusterRole of the account: \
             {{apiGroups: [\"x.example.com\"], resources: [\"things\"], verbs: [list, watch]}}"
        )
    );
    let pods = Resource::parse("", "v1", "pods").unwrap();
    let Err(Refusal::Lacks(why)) = access.check(Whose::Account, &actor("p"), &pods, &Extent::default()).await else {
        panic!()
    };
    assert!(why.contains(" may not list pods in all namespaces; "), "{why}");
}
