//! What the sandbox costs: a fresh instance against a warm one, loading with and without the cache. `cargo bench --bench sandbox` prints a table
//! and says where a target is missed; a machine that does other things at the same time easily doubles the figures.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod ports;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use arc_swap::ArcSwap;
use operetta_core::{
    effect::Policy,
    name::ControllerName,
    reconcile::{Cause, Reconciler, Request},
    resource::ObjectKey,
};
use operetta_sandbox::{Component, Sandbox, SandboxConfig, Warm};
use operetta_tests::{components::Workspace, progress::Progress};
use ports::effects;
use rustix::time::{ClockId, clock_gettime};

const CALLS: u32 = 20_000;
/// Callers side by side, as the host has them.
const LANES: u32 = 16;
const ROUNDS: usize = 5;
/// What a fresh instance may cost over a warm one.
const FRESH: Duration = Duration::from_micros(25);
/// What loading a cached component may take.
const CACHED: Duration = Duration::from_millis(5);

/// A reconcile of an object of 2 kB, which the guest parses before it reads another one.
fn request() -> Request {
    let items: Vec<_> = (0..24)
        .map(|i| serde_json::json!({"name": format!("item-{i}"), "value": i, "labels": {"app": "thing", "tier": i}}))
        .collect();
    let object = serde_json::json!({"apiVersion": "x.example.com/v1", "kind": "Thing", "metadata": {"name": "thing", "namespace": "default"}, "spec": {"items": items}});
    Request {
        controller: ControllerName::parse("tick").unwrap(),
        key: ObjectKey::parse(Some("default"), "thing").unwrap(),
        object: Some(object.to_string().into()),
        attempt: 0,
        cause: Cause::Changed,
    }
}

/// CPU time of the whole process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
}

/// CPU and wall-clock time of one of `CALLS` calls that `lanes` make side by side.
async fn each<L: Future<Output = ()> + Send + 'static>(lanes: impl Iterator<Item = L>) -> (Duration, Duration) {
    let (began, before) = (Instant::now(), cpu());
    for lane in lanes.map(tokio::spawn).collect::<Vec<_>>() {
        lane.await.unwrap();
    }
    (cpu().saturating_sub(before) / CALLS, began.elapsed() / CALLS)
}

fn target(figure: Duration, target: Duration) -> String {
    format!("  (at most {target:?}: {})", if figure <= target { "reached" } else { "MISSED" })
}

fn sandbox(directory: &Path) -> Result<Sandbox> {
    let compiler = vec![env!("CARGO_BIN_EXE_compile-component").into()];
    Ok(Sandbox::new(SandboxConfig::new(directory.join("cache"), directory.join("key"), compiler))?)
}

#[tokio::main]
async fn main() -> Result<()> {
    // `cargo test` runs benches too, to see that they still run; that is what their building shows.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let (workspace, progress) = (Workspace::locate()?, Progress::stderr());
    let (small, large) = (workspace.guest("imports", &progress)?, workspace.guest("petstore", &progress)?);
    let directory = tempfile::tempdir()?;
    let sandbox = sandbox(directory.path())?;

    let cold = sandbox.load(large.clone()).await?;
    let mut cached = Vec::new();
    for _ in 0..20 {
        let component = sandbox.load(large.clone()).await?;
        ensure!(component.cached(), "the cache did not help");
        cached.push(component.took());
    }
    cached.sort();
    let cached = *cached.get(cached.len() / 2).context("there are figures")?;

    let component: Arc<Component> = sandbox.load(small).await?;
    let policy = Arc::<ArcSwap<Policy>>::default();
    policy.rcu(|policy| {
        let mut policy = Policy::clone(policy);
        policy.grants = serde_json::from_value(
            serde_json::json!({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}),
        )
        .unwrap();
        policy.limits.host_calls = u64::MAX;
        policy
    });
    let operator = component.operator(Arc::new(|_, _| {}));
    let (mut warm, mut fresh) = ((Duration::MAX, Duration::MAX), (Duration::MAX, Duration::MAX));
    // By turns, so that a machine that is busy for a while is no advantage for either.
    for _ in 0..ROUNDS {
        let mut instances = Vec::new();
        for _ in 0..LANES {
            instances.push(Warm::new(&operator, effects(&policy)).await?);
        }
        let lanes = instances.into_iter().map(|mut instance| {
            let (request, policy) = (request(), Arc::clone(&policy));
            async move {
                for _ in 0..CALLS / LANES {
                    assert!(instance.reconcile(request.clone(), effects(&policy)).await.is_ok());
                }
            }
        });
        let round = each(lanes).await;
        warm = (warm.0.min(round.0), warm.1.min(round.1));
        let lanes = (0..LANES).map(|_| {
            let (request, operator, policy) = (request(), operator.clone(), Arc::clone(&policy));
            async move {
                for _ in 0..CALLS / LANES {
                    assert!(operator.reconcile(request.clone(), effects(&policy)).await.is_ok());
                }
            }
        });
        let round = each(lanes).await;
        fresh = (fresh.0.min(round.0), fresh.1.min(round.1));
    }
    let more = fresh.0.saturating_sub(warm.0);

    println!("{:<58} {:>12} {:>12}", "a reconcile of an object of 2 kB with one read", "CPU", "wall");
    println!("{:<58} {:>12.1?} {:>12.1?}", "  in a warm instance, on the guests' runtime", warm.0, warm.1);
    println!("{:<58} {:>12.1?} {:>12.1?}", "  in a fresh instance, on the guests' runtime", fresh.0, fresh.1);
    println!("{:<58} {:>12.1?} {}", "  more for being fresh", more, target(more, FRESH));
    println!("loading a component of {} kB", large.len() / 1_000);
    println!("{:<58} {:>25.1?}", "  compiled in a child", cold.took());
    println!("{:<58} {:>25.1?} {}", "  from the cache, median of 20", cached, target(cached, CACHED));
    Ok(())
}
