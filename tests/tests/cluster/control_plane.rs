//! The control plane is a real one: what Kubernetes promises happens, and what was asked is counted.

use anyhow::{Context, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    authentication::v1::TokenRequest,
    core::v1::{ConfigMap, Pod, ServiceAccount},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use operetta_tests::{control_plane::audit::Filter, eventually};
use serde_json::json;

use crate::shared::{SOON, TestNamespace, namespace, shared};

fn pod(name: &str, labels: &serde_json::Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "only", "image": "image"}]},
    }))
    .unwrap()
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("none")
}

fn config_map(name: &str) -> ConfigMap {
    ConfigMap { metadata: ObjectMeta { name: Some(name.to_owned()), ..Default::default() }, ..Default::default() }
}

#[tokio::test]
async fn a_deployment_rolls_out_and_garbage_collection_takes_its_pods() {
    let namespace = namespace().await;
    let deployments = namespace.api::<Deployment>();
    let pods = namespace.api::<Pod>();
    let deployment = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "image"}]},
            },
        },
    }))
    .unwrap();
    deployments.create(&PostParams::default(), &deployment).await.unwrap();
    eventually("three replicas are available", SOON, async || {
        let status = deployments.get("web").await?.status.context("no status")?;
        ensure!(status.available_replicas == Some(3), "{:?} are available", status.available_replicas);
        Ok(())
    })
    .await
    .unwrap();
    let running = pods.list(&ListParams::default()).await.unwrap();
    assert!(running.iter().all(|pod| phase(pod) == "Running"), "{running:#?}");
    assert_eq!(running.items.len(), 3);

    deployments.delete("web", &DeleteParams::background()).await.unwrap();
    eventually("the pods go with their owner", SOON, async || {
        let left = pods.list(&ListParams::default()).await?;
        ensure!(left.items.is_empty(), "{} pods are left", left.items.len());
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_pod_that_asks_for_chaos_fails_and_its_neighbour_runs() {
    let namespace = namespace().await;
    let pods = namespace.api::<Pod>();
    let chaos = json!({"pod-container-running-failed.stage.kwok.x-k8s.io": "true"});
    pods.create(&PostParams::default(), &pod("doomed", &chaos)).await.unwrap();
    pods.create(&PostParams::default(), &pod("quiet", &json!({}))).await.unwrap();
    eventually("the doomed pod fails", SOON, async || {
        let pod = pods.get("doomed").await?;
        ensure!(phase(&pod) == "Failed", "its phase is {}", phase(&pod));
        Ok(())
    })
    .await
    .unwrap();
    eventually("the quiet pod runs", SOON, async || {
        let pod = pods.get("quiet").await?;
        ensure!(phase(&pod) == "Running", "its phase is {}", phase(&pod));
        Ok(())
    })
    .await
    .unwrap();
}

async fn account(namespace: &TestNamespace, name: &str) -> String {
    let account = ServiceAccount {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..Default::default() },
        ..Default::default()
    };
    namespace.api::<ServiceAccount>().create(&PostParams::default(), &account).await.unwrap();
    format!("system:serviceaccount:{}:{name}", namespace.name())
}

#[tokio::test]
async fn an_impersonated_service_account_has_its_own_rights_and_shows_in_the_audit_log() {
    let namespace = namespace().await;
    let user = account(&namespace, "stranger").await;
    let path = format!("/api/v1/namespaces/{}/configmaps", namespace.name());
    let request = http::Request::get(path).header("Impersonate-User", &user).body(Vec::new()).unwrap();
    let error = namespace.client().request_text(request).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");

    let Some(audit) = shared().audit_log() else { return };
    audit.settle(&namespace.client()).await.unwrap();
    let lists = Filter::all().verb("list").resource("configmaps").namespace(namespace.name());
    let seen = audit.requests(&lists.clone().impersonated(&user)).unwrap();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!((seen[0].user(), seen[0].acting_user(), seen[0].status()), ("admin", user.as_str(), Some(403)));
    assert!(audit.requests(&lists.impersonated("somebody-else")).unwrap().is_empty());
}

#[tokio::test]
async fn a_token_that_was_asked_for_acts_as_its_service_account() {
    let namespace = namespace().await;
    let user = account(&namespace, "bearer").await;
    let accounts = namespace.api::<ServiceAccount>();
    let asked =
        serde_json::from_value::<TokenRequest>(json!({"spec": {"audiences": [], "expirationSeconds": 600}})).unwrap();
    let token = accounts.create_token_request("bearer", &PostParams::default(), &asked).await.unwrap();
    let review = k8s_openapi::api::authentication::v1::TokenReview {
        spec: k8s_openapi::api::authentication::v1::TokenReviewSpec {
            token: token.status.unwrap().token.unwrap(),
            ..Default::default()
        },
        ..Default::default()
    };
    let answer = Api::all(namespace.client()).create(&PostParams::default(), &review).await.unwrap();
    assert_eq!(answer.status.unwrap().user.unwrap().username.as_deref(), Some(user.as_str()));
}

#[tokio::test]
async fn the_audit_log_counts_each_request_once_by_verb_resource_and_name() {
    let namespace = namespace().await;
    let Some(audit) = shared().audit_log() else { return };
    let maps = namespace.api::<ConfigMap>();
    let before = audit.settle(&namespace.client()).await.unwrap();
    for name in ["one", "two"] {
        maps.create(&PostParams::default(), &config_map(name)).await.unwrap();
    }
    let two = maps.get("two").await.unwrap();
    maps.delete(&two.name_any(), &DeleteParams::default()).await.unwrap();
    let after = audit.settle(&namespace.client()).await.unwrap();

    let ours = Filter::all().resource("configmaps").namespace(namespace.name()).user("admin").after(before);
    let count = |filter: Filter| audit.requests(&filter).unwrap().len();
    assert_eq!(count(ours.clone().verb("create")), 2);
    assert_eq!(count(ours.clone().verb("get").name("two")), 1);
    assert_eq!(count(ours.clone().verb("get").name("one")), 0);
    assert_eq!(count(ours.clone().verb("get").verb("delete")), 2, "verbs add up");
    assert_eq!(count(ours.clone().writes()), 3);
    assert_eq!(count(ours.clone().subresource("status")), 0);
    assert_eq!(count(ours.clone().agent("nobody/")), 0);
    assert_eq!(count(ours.after(after)), 0, "a position hides what came before it");
}
