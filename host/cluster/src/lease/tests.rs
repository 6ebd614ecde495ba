//! Who holds the lease when, by the clock of the one who looks.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::*;
use crate::testing::{FakeApi, Sent, namespace, status};

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/operetta-system/leases";

/// A lease at an API server that keeps its versions apart, and can be told to misbehave.
#[derive(Default)]
struct Server {
    lease: Option<Value>,
    version: u64,
    /// Takes a write and loses its answer.
    forgets: bool,
    /// Says nothing any more.
    silent: bool,
}

impl Server {
    fn answer(&mut self, sent: &Sent) -> Option<(u16, Value)> {
        if !sent.path.starts_with(PATH) || sent.path == PATH && sent.method == "GET" {
            return None;
        }
        if self.silent {
            return Some((1, Value::Null));
        }
        let body = || serde_json::from_str::<Value>(&sent.body).unwrap();
        match sent.method.as_str() {
            "GET" => Some(match &self.lease {
                Some(lease) => (200, lease.clone()),
                None => status(404, "NotFound", "no lease", &json!({})),
            }),
            "POST" if self.lease.is_some() => Some(status(409, "AlreadyExists", "there is one", &json!({}))),
            "POST" => Some(self.write(body())),
            "PUT" => {
                let body = body();
                let now = self.lease.as_ref().map(|lease| lease["metadata"]["resourceVersion"].clone());
                if now.as_ref() != Some(&body["metadata"]["resourceVersion"]) {
                    return Some(status(409, "Conflict", "the object has been modified", &json!({})));
                }
                let written = self.write(body);
                Some(if std::mem::take(&mut self.forgets) { (0, "the connection was reset".into()) } else { written })
            }
            other => panic!("{other} {}", sent.path),
        }
    }

    fn write(&mut self, mut lease: Value) -> (u16, Value) {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.lease = Some(lease.clone());
        (200, lease)
    }

    fn spec(&self, field: &str) -> Value {
        self.lease.as_ref().map(|lease| lease["spec"][field].clone()).unwrap_or_default()
    }
}

struct Scene {
    api: Arc<FakeApi>,
    server: Arc<Mutex<Server>>,
}

impl Scene {
    fn new() -> Self {
        let server = Arc::new(Mutex::new(Server::default()));
        let api = FakeApi::new({
            let server = Arc::clone(&server);
            move |sent| server.lock().unwrap().answer(sent)
        });
        Self { api, server }
    }

    fn candidate(&self, identity: &str) -> Candidate {
        Candidate::new(self.api.client(), &namespace("operetta-system"), "host", identity, Timing::default())
    }

    fn with<T>(&self, act: impl FnOnce(&mut Server) -> T) -> T {
        act(&mut self.server.lock().unwrap())
    }

    /// A holder that is gone, and whose clock was wrong.
    fn held_by(&self, holder: &str, renewed: &str) {
        self.with(|server| {
            server.write(json!({
                "metadata": {"name": "host"},
                "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed, "leaseTransitions": 4},
            }))
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_free_lease_is_taken_at_once_and_renewed_by_one_request_a_period() {
    let scene = Scene::new();
    let begun = Instant::now();
    let mut term = scene.candidate("a").lead(|standing| panic!("{standing:?}")).await;
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(scene.with(|s| (s.spec("holderIdentity"), s.spec("leaseTransitions"))), ("a".into(), 0.into()));
    let first = scene.with(|s| s.spec("renewTime"));
    let sent = scene.api.sent().len();
    assert!(timeout(Duration::from_secs(61), term.keep()).await.is_err(), "it was lost");
    assert_eq!(scene.api.sent().len() - sent, 30, "a renewal every two seconds");
    assert_ne!(scene.with(|s| s.spec("renewTime")), first);
    assert_eq!(scene.with(|s| s.spec("leaseTransitions")), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_held_is_waited_for_by_our_own_clock_whatever_its_times_say() {
    for renewed in ["1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"] {
        let scene = Scene::new();
        scene.held_by("b", renewed);
        let begun = Instant::now();
        let mut told = Vec::new();
        scene.candidate("a").lead(|standing| told.push(standing.clone())).await;
        let waited = begun.elapsed();
        assert!(waited >= Duration::from_secs(15) && waited < Duration::from_secs(20), "{waited:?}");
        assert_eq!(told, [Standing::Follows("b".to_owned())], "told once");
        assert_eq!(scene.with(|s| (s.spec("holderIdentity"), s.spec("leaseTransitions"))), ("a".into(), 5.into()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_renews_is_never_followed_and_a_label_is_no_renewal() {
    let scene = Scene::new();
    scene.held_by("b", "2026-01-01T00:00:00.000000Z");
    let leading = tokio::spawn(scene.candidate("a").lead(|_| {}));
    for second in 1..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        scene.held_by("b", &format!("2026-01-01T00:00:{second:02}.000000Z"));
    }
    assert!(!leading.is_finished());
    // It looks every 4.4 s at the latest: the last renewal is seen as late as that, and so is it that the lease has run out.
    for _ in 0..24 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        scene.with(|server| {
            let mut lease = server.lease.clone().unwrap();
            lease["metadata"]["labels"]["touched"] = server.version.to_string().into();
            server.write(lease);
        });
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(leading.is_finished(), "the label kept it from the lease");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_was_lost_is_still_a_renewal() {
    let scene = Scene::new();
    let mut term = scene.candidate("a").lead(|_| {}).await;
    scene.with(|server| server.forgets = true);
    assert!(timeout(Duration::from_mins(1), term.keep()).await.is_err(), "it was lost");
    assert_eq!(scene.with(|s| (s.spec("holderIdentity"), s.spec("leaseTransitions"))), ("a".into(), 0.into()));
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_cannot_renew_gives_up_before_anyone_may_follow() {
    let scene = Scene::new();
    let mut term = scene.candidate("a").lead(|_| {}).await;
    assert!(timeout(Duration::from_secs(7), term.keep()).await.is_err());
    let since = term.renewed;
    scene.with(|server| server.silent = true);
    let lost = term.keep().await;
    assert!(matches!(&lost, Lost::Unrenewed { lease, .. } if lease == "host"), "{lost}");
    assert_eq!((Instant::now() - since).as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_took_is_lost_at_once() {
    let scene = Scene::new();
    let mut term = scene.candidate("a").lead(|_| {}).await;
    scene.held_by("b", "2026-01-01T00:00:00.000000Z");
    let begun = Instant::now();
    assert_eq!(term.keep().await, Lost::Taken { lease: "host".to_owned(), holder: "b".to_owned() });
    assert!(begun.elapsed() <= Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_given_back_is_free_for_the_next_one() {
    let scene = Scene::new();
    let term = scene.candidate("a").lead(|_| {}).await;
    let next = tokio::spawn(scene.candidate("b").lead(|_| {}));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!next.is_finished());
    term.end().await;
    let given_back = Instant::now();
    next.await.unwrap();
    // As long as the fake server's watch, which tells nothing, makes it wait.
    assert!(given_back.elapsed() < Duration::from_secs(5), "{:?}", given_back.elapsed());
    assert_eq!(scene.with(|s| (s.spec("holderIdentity"), s.spec("leaseTransitions"))), ("b".into(), 1.into()));
}

#[tokio::test(start_paused = true)]
async fn of_many_candidates_one_wins() {
    let scene = Scene::new();
    let terms: Vec<_> = (0..8).map(|n| tokio::spawn(scene.candidate(&format!("c{n}")).lead(|_| {}))).collect();
    // As long as the winner does not renew: less than its lease.
    tokio::time::sleep(Duration::from_secs(14)).await;
    assert_eq!(terms.iter().filter(|term| term.is_finished()).count(), 1);
}

#[test]
fn times_that_cannot_work_together_are_refused() {
    let timing = |lease: u64, renew: u64, retry: u64| Timing {
        lease_duration: Duration::from_millis(lease),
        renew_deadline: Duration::from_millis(renew),
        retry_period: Duration::from_millis(retry),
    };
    assert_eq!(Timing::default().check(), Ok(()));
    assert_eq!(timing(1_000, 600, 100).check(), Ok(()));
    assert_eq!(timing(1_500, 600, 100).check(), Err(TimingError::Fraction));
    assert_eq!(timing(0, 0, 0).check(), Err(TimingError::Fraction));
    assert_eq!(timing(10_000, 10_000, 1_000).check(), Err(TimingError::Deadline));
    assert_eq!(timing(15_000, 1_100, 1_000).check(), Err(TimingError::Retry));
    assert_eq!(timing(15_000, 1_000, 0).check(), Err(TimingError::Retry));
}
