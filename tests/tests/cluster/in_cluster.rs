//! The host as it runs in a cluster: the token of its own service account, exactly the generated rights, and nothing else. No container engine is needed for that: a process
//! with a pod's environment and a pod's files asks the API server the same things.

use std::{collections::BTreeSet, process::Command, sync::OnceLock, time::Duration};

use anyhow::ensure;
use kube::Api;
use operetta_cluster::install::{Way, host_rbac};
use operetta_core::name::{AccountName, Namespace, ServiceAccount};
use operetta_tests::{
    control_plane::{
        AuditLog, Cluster,
        audit::{Filter, Need, Request},
    },
    eventually,
    host::{Host, Launch, Line, Log, Pod, pod::Token},
    kinds::{act, mischiefs, text},
};
use serde_json::Value;

use crate::{
    demo_volume, immortal, memcached, petstore, plugins, postgres_writer,
    shared::{SOON, built, launch, namespace, plug, run, shared},
};

const NAMESPACE: &str = "operetta-system";
const PLUGINS: &str = "operetta-plugins";
const ACCOUNT: &str = "operetta";
const USER: &str = "system:serviceaccount:operetta-system:operetta";
/// A token file is read again within a minute.
const READ_AGAIN: Duration = Duration::from_secs(100);

/// The host's namespace, account and rights, as `operetta deploy` makes them.
pub fn deployed() {
    static DEPLOYED: OnceLock<()> = OnceLock::new();
    DEPLOYED.get_or_init(|| {
        let mut deploy = Command::new(built().host());
        let output = deploy.arg("deploy").arg("--kubeconfig").arg(shared().kubeconfig()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
}

/// Credentials of a pod of the host.
async fn pod(name: &str) -> (Pod, Token) {
    deployed();
    let mount = run().directory(name).unwrap();
    Pod::mount_at(&mount, shared().kubeconfig(), (NAMESPACE, ACCOUNT)).await.unwrap()
}

/// A host in a pod that wants a lease of its own: in these tests several hosts work side by side, each in its namespace.
fn in_pod(pod: &Pod, lease: &str) -> Launch {
    launch().in_pod(pod).arguments(["--leader-elect", "--leader-election-id", lease])
}

/// What the generated rules grant, one by one.
fn granted() -> BTreeSet<Need> {
    let account =
        ServiceAccount { namespace: Namespace::parse(NAMESPACE).unwrap(), name: AccountName::parse(ACCOUNT).unwrap() };
    let texts = |rule: &Value, field: &str| -> Vec<String> { serde_json::from_value(rule[field].clone()).unwrap() };
    let mut granted = BTreeSet::new();
    for object in host_rbac(&account, &Namespace::parse(PLUGINS).unwrap(), Way::Constrained) {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        for rule in object["rules"].as_array().into_iter().flatten() {
            for group in texts(rule, "apiGroups") {
                for resource in texts(rule, "resources") {
                    for verb in texts(rule, "verbs") {
                        let (namespace, group, resource) = (namespace.to_owned(), group.clone(), resource.clone());
                        granted.insert(Need { namespace, group, resource, verb });
                    }
                }
            }
        }
    }
    granted
}

/// What these requests of the host needed of its own rights. What it asked for as a plugin's account took that account's rights, the right to act as it, and the right to do
/// so under another name, which comes with the plugin.
fn needed(requests: &[Request]) -> BTreeSet<Need> {
    const REVIEWS: &str = "selfsubjectaccessreviews";
    let need = |request: &Request| {
        let mut needs: Vec<_> = request.need().into_iter().collect();
        if !request.impersonates() {
            // Everybody may ask what they may.
            needs.retain(|need| need.resource != REVIEWS);
            return needs;
        }
        needs.retain(|need| need.resource == REVIEWS);
        for need in &mut needs {
            need.verb.insert_str(0, "impersonate-on:serviceaccount:");
        }
        let account = request.acting_user().strip_prefix("system:serviceaccount:").unwrap();
        let (namespace, _) = account.split_once(':').unwrap();
        let (group, resource) = ("authentication.k8s.io".to_owned(), "serviceaccounts".to_owned());
        needs.push(Need {
            namespace: namespace.to_owned(),
            group,
            resource,
            verb: "impersonate:serviceaccount".to_owned(),
        });
        needs
    };
    requests.iter().flat_map(need).collect()
}

#[tokio::test]
async fn all_five_operators_do_their_stories_with_the_hosts_own_rights_all_of_which_it_needs() {
    let Cluster::Own(_) = shared() else { return };
    let audit = shared().audit_log().unwrap();
    let client = shared().client().await.unwrap();
    let (pod, _) = pod("pod-of-the-stories").await;
    let before = audit.settle(&client).await.unwrap();
    tokio::join!(
        petstore::story(in_pod(&pod, "petstore")),
        immortal::story(in_pod(&pod, "immortal-container")),
        memcached::story(in_pod(&pod, "memcached")),
        demo_volume::story(in_pod(&pod, "demo-volume")),
        postgres_writer::story(in_pod(&pod, "postgres-writer")),
        postgres_writer::secret_story(
            in_pod(&pod, "postgres-secret"),
            namespace().await,
            Api::namespaced(client.clone(), NAMESPACE)
        ),
        plugins::story(in_pod(&pod, "plugin"), Api::namespaced(client.clone(), NAMESPACE)),
        handover(&pod),
    );
    audit.settle(&client).await.unwrap();
    let requests = audit.requests(&Filter::all().user(USER).after(before)).unwrap();
    let refused: Vec<_> = requests.iter().filter(|r| r.status() == Some(403) && !r.impersonates()).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    // As plugins' accounts it does what their rules say, and the API server holds it to that.
    let acting: Vec<_> = requests.iter().filter(|r| r.impersonates()).collect();
    let free: Vec<_> = acting.iter().filter(|r| r.constraint() != Some("impersonate:serviceaccount")).collect();
    assert!(free.is_empty(), "{free:#?}");
    for verb in ["list", "watch", "create", "patch"] {
        assert!(acting.iter().any(|r| r.verb == verb && r.status() < Some(300)), "no {verb} as a plugin");
    }
    let (needed, granted) = (needed(&requests), granted());
    let missing: Vec<_> = needed.difference(&granted).collect();
    assert!(missing.is_empty(), "asked for and not granted by the host's own rules: {missing:#?}");
    let idle: Vec<_> = granted.difference(&needed).collect();
    assert!(idle.is_empty(), "granted and never asked for: {idle:#?}");
}

/// One host leads, another one waits for it and follows.
async fn handover(pod: &Pod) {
    let namespace = namespace().await;
    let logs = async |host: &Host, message: &'static str| {
        host.log().until(message, Log::start(), SOON, |line: &Line| line.message() == message).await.unwrap()
    };
    let launch = in_pod(pod, "handover").namespace(namespace.name());
    let mut first = launch.clone().start(run()).await.unwrap();
    logs(&first, "this host leads").await;
    let second = launch.start(run()).await.unwrap();
    logs(&second, "another host leads; this one stands by").await;
    // It says so a moment before it watches the lease.
    let audit = shared().audit_log().unwrap();
    eventually("it watches the lease", SOON, async || {
        let watches = audit.requests(&Filter::all().user(USER).resource("leases").verb("watch"))?;
        ensure!(!watches.is_empty(), "no watch yet");
        Ok(())
    })
    .await
    .unwrap();
    first.stop().await.unwrap();
    logs(&second, "this host leads").await;
}

/// The requests by which a host renews its lease.
fn renewals(audit: &AuditLog, lease: &str) -> Vec<Request> {
    audit.requests(&Filter::all().user(USER).resource("leases").name(lease).verb("update")).unwrap()
}

#[tokio::test]
async fn a_new_token_is_used_before_the_old_one_is_worth_nothing() {
    const LEASE: &str = "tokens";
    let Cluster::Own(_) = shared() else { return };
    let audit = shared().audit_log().unwrap();
    let namespace = namespace().await;
    let objects = mischiefs(&namespace.client(), namespace.name());
    let (pod, first) = pod("pod-of-the-tokens").await;
    let mut host = in_pod(&pod, LEASE).namespace(namespace.name()).start(run()).await.unwrap();
    plug(&host, "hostile", |document| document).await;
    let shows = async |token: &Token, within: Duration| {
        eventually("the host shows the token", within, async || {
            let last = renewals(&audit, LEASE).pop();
            let shown = last.as_ref().and_then(Request::credential).unwrap_or_default().to_owned();
            ensure!(shown == token.credential, "it shows {shown} and not {}", token.credential);
            Ok(())
        })
        .await
        .unwrap();
    };
    shows(&first, SOON).await;
    let second = pod.exchange().await.unwrap();
    shows(&second, READ_AGAIN).await;
    pod.revoke(&first).await.unwrap();

    let mark = audit.settle(&namespace.client()).await.unwrap();
    objects.apply("after", &act("behave")).await.unwrap();
    eventually("it was looked after", SOON, async || {
        ensure!(text(&objects.get("after").await?, "/status/version") == "1.0.0", "not yet");
        Ok(())
    })
    .await
    .unwrap();
    host.ensure_runs().unwrap();
    let since = Filter::all().resource("leases").name(LEASE).verb("update").after(mark);
    eventually("it leads on", SOON, async || {
        let renewals = audit.requests(&since)?;
        let refused = renewals.iter().filter(|request| request.status() != Some(200)).count();
        ensure!(renewals.len() > 3 && refused == 0, "{} renewals, {refused} of them refused", renewals.len());
        Ok(())
    })
    .await
    .unwrap();
    let trouble = host.log().after(Log::start()).unwrap();
    let trouble: Vec<_> = trouble.iter().filter(|line| line.level() == "ERROR").collect();
    assert!(trouble.is_empty(), "{trouble:#?}");
}
