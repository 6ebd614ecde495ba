//! Of several hosts one works, by a Lease on a real API server; another takes over when it goes, however it goes.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use k8s_openapi::api::{coordination::v1::Lease, events::v1::Event};
use kube::api::{ListParams, Patch, PatchParams};
use operetta_tests::{
    eventually,
    host::{Document, Host, Launch, Line, Log},
    kinds::{Objects, act, mischiefs, text},
};
use serde_json::json;

use crate::shared::{SOON, TestNamespace, built, installed, namespace, reconciled, reconciles, run, shared};

const PLUGIN: &str = "hostile";
const LEASE: &str = "the-lease";

/// A host that wants the lease of this namespace, with the fixture in its directory. Times in seconds: lease, renewal, retry.
async fn candidate(namespace: &TestNamespace, times: [&str; 3]) -> Host {
    let component = installed().component(PLUGIN).unwrap();
    let [lease, renew, retry] = times;
    let host = Launch::new(built(), shared().kubeconfig())
        .namespace(namespace.name())
        .arguments(["--leader-elect", "--leader-election-id", LEASE])
        .arguments(["--leader-election-namespace", namespace.name(), "--leader-election-lease-duration", lease])
        .arguments(["--leader-election-renew-deadline", renew, "--leader-election-retry-period", retry])
        .start(run())
        .await
        .unwrap();
    let document = Document::of(component).unwrap();
    host.plugins().put(PLUGIN, &component.code().unwrap(), &document).unwrap();
    host
}

async fn leads(host: &Host) {
    let message = "this host leads";
    host.log().until(message, Log::start(), SOON, |line: &Line| line.message() == message).await.unwrap();
    eventually("the metric says so", SOON, async || {
        let status = host.metrics().await?.sum("leader_election_master_status", &[("name", LEASE)]);
        ensure!(status > 0.5, "it is {status}");
        Ok(())
    })
    .await
    .unwrap();
}

/// Waits until the host is ready and says that it does not lead.
async fn stands_by(host: &Host) {
    eventually("the host stands by", SOON, async || {
        let readiness = host.readiness().await?;
        ensure!(readiness.contains("standing by"), "it says {readiness:?}");
        let status = host.metrics().await?.sum("leader_election_master_status", &[]);
        ensure!(status < 0.5, "its metric says {status}");
        Ok(())
    })
    .await
    .unwrap();
}

/// Applies an object and waits until somebody looked after it.
async fn looked_after(objects: &Objects, name: &str) {
    objects.apply(name, &act("behave")).await.unwrap();
    eventually(&format!("{name} was looked after"), SOON, async || {
        ensure!(text(&objects.get(name).await?, "/status/version") == "1.0.0", "not yet");
        Ok(())
    })
    .await
    .unwrap();
}

/// Two hosts, of which the first leads and has reconciled the object `one`, and the other has done nothing.
async fn leader_and_standby(namespace: &TestNamespace, objects: &Objects, times: [&str; 3]) -> (Host, Host) {
    let first = candidate(namespace, times).await;
    leads(&first).await;
    let second = candidate(namespace, times).await;
    stands_by(&second).await;
    looked_after(objects, "one").await;
    reconciled(&first, PLUGIN, 0.0, 1.0).await;
    assert!(reconciles(&second, PLUGIN).await < 0.5, "one works");
    (first, second)
}

#[tokio::test]
async fn a_leader_that_ends_in_order_is_followed_at_once() {
    // So long that whoever waits for a time, and not for the word of the leader, comes too late.
    let times = ["120s", "80s", "60s"];
    let namespace = namespace().await;
    let objects = mischiefs(&namespace.client(), namespace.name());
    let (mut first, second) = leader_and_standby(&namespace, &objects, times).await;

    // It gives the lease back when its last reconcile has ended, and not before.
    objects.apply("slow", &json!({"act": "behave", "milliseconds": 1_500})).await.unwrap();
    eventually("it has begun", SOON, async || {
        let active = first.metrics().await?.sum("controller_runtime_active_workers", &[("plugin", PLUGIN)]);
        ensure!(active > 0.5, "nothing runs");
        Ok(())
    })
    .await
    .unwrap();
    let status = first.stop().await.unwrap();
    assert!(status.success(), "it ended with {status}");
    assert_eq!(text(&objects.get("slow").await.unwrap(), "/status/version"), "1.0.0", "it was cut off");
    let gone = Instant::now();
    leads(&second).await;
    let taken_over = gone.elapsed();
    eprintln!("took over {taken_over:?} after the leader had ended");
    assert!(taken_over < Duration::from_secs(20), "it took {taken_over:?}");
    second.ready(SOON).await.unwrap();
    looked_after(&objects, "two").await;
    reconciled(&second, PLUGIN, 0.0, 1.0).await;

    let lease = namespace.api::<Lease>().get(LEASE).await.unwrap().spec.unwrap();
    assert_eq!((lease.lease_transitions, lease.lease_duration_seconds), (Some(1), Some(120)));
    let holder = lease.holder_identity.unwrap();
    eventually("events tell the story", SOON, async || {
        let events = namespace.api::<Event>().list(&ListParams::default()).await?;
        let mut notes: Vec<_> =
            events.iter().filter(|event| event.reason.as_deref() == Some("LeaderElection")).collect();
        notes.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        let notes: Vec<_> = notes.iter().map(|event| event.note.clone().unwrap_or_default()).collect();
        ensure!(notes.len() == 3, "{notes:?}");
        ensure!(notes.iter().any(|note| *note == format!("{holder} became leader")), "{notes:?}");
        ensure!(notes.iter().filter(|note| note.ends_with("stopped leading")).count() == 1, "{notes:?}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_leader_that_is_killed_is_followed_when_its_lease_has_run_out() {
    let times = ["4s", "3s", "500ms"];
    let namespace = namespace().await;
    let objects = mischiefs(&namespace.client(), namespace.name());
    let (mut first, second) = leader_and_standby(&namespace, &objects, times).await;
    let lease = async || namespace.api::<Lease>().get(LEASE).await.unwrap().spec.unwrap();
    let renewed = lease().await.renew_time.unwrap().0;
    first.kill().unwrap();
    let killed = Instant::now();
    leads(&second).await;
    let taken_over = killed.elapsed();
    eprintln!("took over {taken_over:?} after the leader was killed");
    let waited = lease().await.acquire_time.unwrap().0.duration_since(renewed);
    assert!(waited >= Duration::from_secs(4).try_into().unwrap(), "it did not wait: {waited:?} after a renewal");
    assert!(taken_over < Duration::from_secs(15), "it took {taken_over:?}");
    looked_after(&objects, "two").await;
}

#[tokio::test]
async fn a_leader_whose_lease_is_gone_stops_and_says_so() {
    let namespace = namespace().await;
    let mut host = candidate(&namespace, ["4s", "3s", "500ms"]).await;
    leads(&host).await;
    host.says(PLUGIN, "plugin ready", Log::start(), SOON).await.unwrap();
    let theirs = json!({"spec": {"holderIdentity": "somebody-else"}});
    let leases = namespace.api::<Lease>();
    leases.patch(LEASE, &PatchParams::default(), &Patch::Merge(theirs)).await.unwrap();
    let status = host.ended().await.unwrap();
    assert!(!status.success(), "it ended with {status}");
    let last = host.log().after(Log::start()).unwrap();
    let last = last.last().context("it said something").unwrap().message();
    assert!(last.contains("leader election lost") && last.contains("somebody-else"), "{last}");
    let lease = leases.get(LEASE).await.unwrap().spec.unwrap();
    assert_eq!(lease.holder_identity.as_deref(), Some("somebody-else"), "what is not its own it does not give back");
}

#[tokio::test]
async fn times_that_do_not_fit_are_refused_at_once() {
    let output = std::process::Command::new(built().host())
        .args(["run", "--plugin-dir", "/nowhere", "--leader-elect", "--leader-election-lease-duration=5s"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("longer than the renew deadline"), "{said}");
}
