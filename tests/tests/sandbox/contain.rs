//! Guests that end badly: each way is told from the others, ends in time, leaves nothing behind and harms no neighbour.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use anyhow::ensure;
use operetta_core::{
    limit::Limit,
    reconcile::{Failure, Outcome},
};
use operetta_sandbox::{GuestBudget, Occupancy, Sandbox, SandboxConfig};
use operetta_tests::eventually;
use serde_json::json;

use crate::setup::{Crash, Plugin, config, imports, sandbox};

const PATIENCE: Duration = Duration::from_secs(10);
const EMPTY: Occupancy = Occupancy { instances: 0, stacks: 0, reconciles: 0, tasks: 0 };

async fn crash() -> (Sandbox, Plugin) {
    let sandbox = sandbox();
    let plugin = Plugin::load(&sandbox, Crash::default().wasm()).await.unwrap();
    (sandbox, plugin)
}

async fn rust() -> (Sandbox, Plugin) {
    let sandbox = sandbox();
    let plugin = Plugin::load(&sandbox, imports()).await.unwrap();
    (sandbox, plugin)
}

/// That nothing is left of what ran.
async fn empty(sandbox: &Sandbox, plugin: &Plugin) {
    eventually("the sandbox is empty", PATIENCE, async || {
        let live = plugin.world.live.load(Ordering::SeqCst);
        ensure!(sandbox.occupancy() == EMPTY && live == 0, "{:?}, {live} alive", sandbox.occupancy());
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn each_way_to_crash_is_told_apart() {
    let (sandbox, plugin) = crash().await;
    assert_eq!(plugin.call("any", None, 0).await, Ok(Outcome::AwaitChange));
    for (attempt, words) in
        [(1, "panicked or aborted"), (5, "left its memory"), (6, "divide by zero"), (8, ""), (9, ""), (10, "")]
    {
        match plugin.call("any", None, attempt).await {
            Err(Failure::Trap(text)) => {
                assert!(text.contains(words) && !text.contains(['\n', '…']), "{attempt}: {text}");
                assert_eq!(text.contains("; at "), !words.is_empty(), "{attempt}: {text}");
            }
            other => panic!("{attempt}: {other:?}"),
        }
    }
    let deep = plugin.call("any", None, 4).await.unwrap_err();
    let text = deep.to_string();
    assert!(text.contains("call stack of 512 KiB") && text.contains("recurse < recurse < …"), "{text}");
    assert_eq!(deep.limit(), Some(Limit::Stack));
    assert_eq!(plugin.call("any", None, 0).await, Ok(Outcome::AwaitChange));
    empty(&sandbox, &plugin).await;
}

#[tokio::test]
async fn memory_and_tables_end_at_their_limits() {
    let (sandbox, plugin) = crash().await;
    let cap = 32 << 20;
    assert_eq!(plugin.call("any", None, 3).await, Err(Failure::Memory { wanted: cap + (1 << 20) - (15 << 16), cap }));
    assert_eq!(plugin.usage.lock().unwrap()[0].memory, cap - (15 << 16));
    let long = plugin.call("any", None, 7).await.unwrap_err();
    assert!(matches!(long, Failure::Tables { cap: 100_000, wanted: 100_001.. }), "{long:?}");
    plugin.limit(|policy| policy.limits.tables = 15_000);
    let long = plugin.call("any", None, 7).await.unwrap_err();
    assert!(matches!(long, Failure::Tables { cap: 15_000, wanted: 15_001..=30_000 }), "{long:?}");
    plugin.limit(|policy| policy.limits.memory = 60_000);
    assert_eq!(plugin.call("any", None, 0).await, Err(Failure::Memory { wanted: 65_536, cap: 60_000 }));
    let (_, rust) = rust().await;
    assert!(matches!(rust.call("eat", None, 0).await, Err(Failure::Memory { .. })));
    empty(&sandbox, &plugin).await;
}

#[tokio::test]
async fn what_all_guests_share_is_told_from_ones_own_limit_and_given_back_however_they_end() {
    const MIB: usize = 1 << 20;
    let memory = Arc::new(GuestBudget::new(16 * MIB));
    let directory = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::new(SandboxConfig { memory: memory.clone(), ..config(directory.path()) }).unwrap();
    let plugin = Plugin::load(&sandbox, Crash::default().wasm()).await.unwrap();
    let given_back = || assert!(memory.held().is_empty(), "{:?}", memory.held());
    given_back();
    // Its own limit is 32 MiB; alone it may hold half of what all share.
    let refused = plugin.call("any", None, 3).await.unwrap_err();
    let (wanted, held) = (MIB, 8 * MIB - (15 << 16));
    assert_eq!(refused, Failure::NoRoom { wanted, held, free: 16 * MIB - held, total: 16 * MIB });
    assert!(!refused.is_guests_end() && refused.limit() == Some(Limit::GuestMemory), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("the host's memory for guests is used up") && text.contains("--guest-mib"), "{text}");
    given_back();
    for attempt in [0, 1, 4] {
        let _ = plugin.call("any", None, attempt).await;
        given_back();
    }
    plugin.limit(|policy| policy.limits.memory = MIB);
    assert!(matches!(plugin.call("any", None, 3).await, Err(Failure::Memory { cap: MIB, .. })), "its own comes first");
    given_back();
    // One that is cut off while it runs.
    let plugin = Arc::new(plugin);
    let called = plugin.clone();
    let call = tokio::spawn(async move { called.call("any", None, 2).await });
    let whose = plugin.effects().caller().plugin.clone();
    eventually("it runs", PATIENCE, async || {
        ensure!(memory.held().get(&Some(whose.clone())) == Some(&65_536), "{:?}", memory.held());
        Ok(())
    })
    .await
    .unwrap();
    call.abort();
    empty(&sandbox, &plugin).await;
    eventually("it gave back what it held", PATIENCE, async || {
        ensure!(memory.held().is_empty(), "{:?}", memory.held());
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_loop_ends_with_its_cpu_budget_and_one_that_waits_with_its_deadline() {
    let (sandbox, plugin) = crash().await;
    let budget = Duration::from_millis(100);
    plugin.limit(|policy| policy.limits.cpu = budget);
    assert_eq!(plugin.call("any", None, 2).await, Err(Failure::Cpu(budget)));
    let used = plugin.usage.lock().unwrap()[0];
    assert!(used.cpu >= budget && used.cpu < budget * 2, "{used:?}");

    let deadline = Duration::from_millis(100);
    plugin.limit(|policy| (policy.limits.deadline, policy.limits.cpu) = (deadline, PATIENCE));
    assert_eq!(plugin.call("any", None, 2).await, Err(Failure::Deadline(deadline)));
    let (rust_sandbox, rust) = rust().await;
    rust.limit(|policy| policy.limits.deadline = deadline);
    assert_eq!(rust.call("wait", None, 0).await, Err(Failure::Deadline(deadline)));
    let used = rust.usage.lock().unwrap()[0];
    assert!(used.wall >= deadline && used.wall < deadline * 10 && used.cpu < deadline, "{used:?}");
    let never = json!({"name": "never"}).to_string();
    // It is told from what waits for an answer that does not come.
    assert_eq!(rust.call("get", Some(&never), 0).await, Err(Failure::Unanswered(deadline)));
    empty(&sandbox, &plugin).await;
    empty(&rust_sandbox, &rust).await;
}

#[tokio::test]
async fn dropping_the_future_leaves_nothing_behind() {
    let (sandbox, plugin) = rust().await;
    let plugin = std::sync::Arc::new(plugin);
    for (command, argument) in
        [("wait", json!({})), ("get", json!({"name": "never"})), ("exchange", json!({"channel": "demo"}))]
    {
        let (called, argument) = (plugin.clone(), argument.to_string());
        let call = tokio::spawn(async move { called.call(command, Some(&argument), 0).await });
        eventually("it runs", PATIENCE, async || {
            ensure!(command == "exchange" || sandbox.occupancy().instances == 1, "not yet");
            Ok(())
        })
        .await
        .unwrap();
        call.abort();
        let _ = call.await;
        empty(&sandbox, &plugin).await;
    }
    let (sandbox, plugin) = crash().await;
    let spin = plugin.call("any", None, 2);
    assert!(tokio::time::timeout(Duration::from_millis(50), spin).await.is_err());
    empty(&sandbox, &plugin).await;
}

#[tokio::test]
async fn a_crash_harms_no_neighbour_and_more_calls_than_slots_wait_their_turn() {
    let (sandbox, plugin) = crash().await;
    plugin.limit(|policy| policy.limits.cpu = Duration::from_millis(20));
    let calls = (0..200_u32).map(|i| plugin.call("any", None, i % 8));
    for (i, ended) in futures::future::join_all(calls).await.into_iter().enumerate() {
        match (i % 8, ended) {
            (0, Ok(Outcome::AwaitChange))
            | (1 | 5 | 6, Err(Failure::Trap(_)))
            | (4, Err(Failure::Stack(_)))
            | (7, Err(Failure::Tables { .. }))
            | (2, Err(Failure::Cpu(_)))
            | (3, Err(Failure::Memory { .. })) => {}
            (way, ended) => panic!("{way}: {ended:?}"),
        }
    }
    empty(&sandbox, &plugin).await;
}

#[tokio::test]
async fn guests_that_spin_on_every_core_delay_others_by_milliseconds() {
    let (sandbox, plugin) = crash().await;
    let neighbour = Plugin::load(&sandbox, Crash::default().wasm()).await.unwrap();
    plugin.limit(|policy| policy.limits.cpu = Duration::from_mins(1));
    let spin = futures::future::join_all((0..4).map(|_| plugin.call("any", None, 2)));
    let quick = async {
        eventually("they spin", PATIENCE, async || {
            ensure!(sandbox.occupancy().instances == 4, "not yet");
            Ok(())
        })
        .await
        .unwrap();
        let began = Instant::now();
        for _ in 0..20 {
            assert_eq!(neighbour.call("any", None, 0).await, Ok(Outcome::AwaitChange));
        }
        began.elapsed() / 20
    };
    let each = tokio::select! { _ = spin => panic!("they ended"), each = quick => each };
    assert!(each < Duration::from_millis(200), "{each:?}");
    empty(&sandbox, &plugin).await;
}

#[tokio::test]
async fn a_panic_names_the_function_and_not_the_machinery() {
    let (sandbox, plugin) = rust().await;
    match plugin.call("panic", None, 0).await {
        Err(Failure::Trap(text)) => {
            let place = text.split_once("; at ").unwrap().1;
            let first = place.split(" < ").next().unwrap();
            assert!(first.contains("imports::"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    empty(&sandbox, &plugin).await;
}

#[tokio::test]
async fn tasks_left_behind_run_a_moment_and_cannot_take_the_answer_back() {
    let (sandbox, plugin) = rust().await;
    assert_eq!(plugin.ask("left-over", &json!({})).await, "returned");
    assert_eq!(plugin.world.lines(), ["Info guest: left over []"]);
    let began = Instant::now();
    assert_eq!(plugin.ask("left-over-wait", &json!({})).await, "returned");
    assert!(began.elapsed() < Duration::from_secs(2));
    assert_eq!(plugin.ask("left-over-panic", &json!({})).await, "returned");
    let lines = plugin.world.lines();
    assert!(
        lines.len() == 1 && lines[0].starts_with("Warn operetta: a task that the reconcile left behind"),
        "{lines:?}"
    );
    empty(&sandbox, &plugin).await;
}

#[tokio::test]
async fn calls_under_way_are_limited_in_number_and_bytes() {
    let (sandbox, plugin) = rust().await;
    match plugin.call("many-waits", None, 0).await {
        Err(Failure::Limit(exceeded)) => {
            assert!(exceeded.limit == Limit::Handles && exceeded.what.contains("at the same time"), "{exceeded}");
        }
        other => panic!("{other:?}"),
    }
    // Forty of 100 kB are under four times the limit of a message, the next is over it.
    let answer = plugin.ask("many-writes", &json!({"resource": "nevers"})).await;
    assert!(answer.starts_with("after 41: ApiError::TooLarge") && answer.contains("wait"), "{answer}");
    assert_eq!(plugin.exceeded.lock().unwrap().drain(..).next(), Some(Limit::Waiting));
    plugin.limit(|policy| policy.limits.host_calls = 50);
    let answer = plugin.ask("many-calls", &json!({})).await;
    assert!(answer.starts_with("50: ") && answer.contains("limits.hostCalls"), "{answer}");
    assert_eq!(plugin.exceeded.lock().unwrap().first(), Some(&Limit::HostCalls));
    empty(&sandbox, &plugin).await;
}
