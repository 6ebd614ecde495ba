//! What a well-behaved plugin notices of a hostile one in the same host: the time from a change at the API server to the write that its reconcile makes of it, alone
//! and beside each attacker by turns. `cargo bench --bench neighbour` prints the table and says where the target is missed; the API server is a canned one, whose noise is small.
//!
//! A change during which a program computed that is neither the host nor this one is left out, beside attackers as well as alone: one that takes a core for some milliseconds each second
//! is what the slowest of a hundred changes would tell of. The table says how many there were, and what the figure is with them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, channel::mpsc::UnboundedReceiver};
use operetta_tests::{
    canned::{Canned, Kind, Write},
    components::{Built, Workspace},
    control_plane::run_dir::RunDir,
    elsewhere::Elsewhere,
    host::{Document, Host, Launch},
    progress::Progress,
};
use serde_json::json;
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
    thread_schedule_policy,
};
use tokio::time::{sleep, timeout};

const KINDS: &[Kind] = &[VOLUME, CLAIM, MISCHIEF];
const VOLUME: Kind = Kind { api_version: "demo.operetta.dev/v1", kind: "DemoVolume", plural: "demovolumes" };
const CLAIM: Kind = Kind { api_version: "v1", kind: "PersistentVolumeClaim", plural: "persistentvolumeclaims" };
const MISCHIEF: Kind = Kind { api_version: "hostile.example.com/v1", kind: "Mischief", plural: "mischiefs" };

const NAMESPACE: &str = "bench";
/// The well-behaved plugin, with a claim to read and a status to write for each change.
const NEIGHBOUR: &str = "demo-volume";
const ATTACKER: &str = "hostile";
/// So many that none of them meets the budget of writes.
const VOLUMES: usize = 100;
/// Objects of the attacker: enough for all places that it may have.
const MISCHIEFS: usize = 100;
/// Changes that are measured in each turn, one after another.
const CHANGES: usize = 500;
/// Between two of them, so that the neighbour is not what makes the host busy.
const PAUSE: Duration = Duration::from_millis(4);
/// Between the beginning of an attack and the first of them.
const SETTLE: Duration = Duration::from_millis(100);
const ROUNDS: usize = 7;
/// What other programs may compute from one change to the next. The kernel's threads do so much for us that it is not nothing.
const UNNOTICED: Duration = Duration::from_micros(200);
/// What the slowest of a hundred may take beside an attacker, of what it takes alone.
const TARGET: f64 = 1.2;
const WITHIN: Duration = Duration::from_mins(1);

/// What the attacker does, as the table and as its objects say it.
const ATTACKS: [(&str, &str); 10] = [
    ("computes without end", "loop"),
    ("computes little, all the time", "nibble"),
    ("takes all memory", "hoard"),
    ("reads without end from the cache", "pester"),
    ("reads without end from the server", "reread"),
    ("writes without end", "churn"),
    ("logs without end", "chatter"),
    ("publishes events without end", "publish"),
    ("crashes", "panic"),
    ("is flooded with changes", FLOOD),
];
/// Behaves, while its objects change a thousand times a second.
const FLOOD: &str = "behave";
const LOWEST: ThreadSchedulePolicy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
/// No attack, and no matter of the host: a thread of this program computes at the lowest priority there is. What that costs, any attacker that may compute at all costs.
const FLOOR: (&str, &str) = ("is not there, while a program of the lowest priority computes", "none");

/// What some changes took.
#[derive(Default)]
struct Turn {
    times: Vec<Duration>,
    /// Of those that are left out.
    disturbed: Vec<Duration>,
    /// Cores that the host kept busy meanwhile.
    busy: f64,
}

struct Bench<'a> {
    built: &'a Built,
    canned: Arc<Canned>,
    writes: UnboundedReceiver<Write>,
    host: Host,
    elsewhere: Elsewhere,
    changes: usize,
}

fn main() -> Result<()> {
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let only: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let built = Workspace::locate()?.build(&Progress::stderr())?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let run = RunDir::create()?;
        let (canned, writes) = Canned::start(KINDS)?;
        for number in 0..VOLUMES {
            let (name, uid) = (format!("volume-{number}"), format!("volume-uid-{number}"));
            let owner = json!({"apiVersion": VOLUME.api_version, "kind": VOLUME.kind, "name": name, "uid": uid, "controller": true});
            let claim = json!({
                "metadata": {"ownerReferences": [owner]},
                "spec": {"resources": {"requests": {"storage": "1Gi"}}},
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
            });
            canned.put(&CLAIM, NAMESPACE, &name, claim);
        }
        let launch = Launch::new(&built, &canned.kubeconfig(run.path())?).namespace(NAMESPACE).log_level("info");
        let host = launch.start(&run).await?;
        let elsewhere = Elsewhere::but(&[process::id(), host.pid()?])?;
        let mut bench = Bench { built: &built, canned: Arc::new(canned), writes, host, elsewhere, changes: 0 };
        bench.start(NEIGHBOUR).await?;
        // Compiled once, so that no attack is measured beside its compiler.
        bench.start(ATTACKER).await?;
        bench.end(ATTACKER).await?;
        let chosen = |act: &str| only.is_empty() || only.iter().any(|o| o == act);
        let attacks: Vec<_> = [FLOOR].into_iter().chain(ATTACKS.into_iter().filter(|(_, act)| chosen(act))).collect();
        bench.turn().await?;
        let mut alone = Vec::new();
        let mut beside: Vec<_> = attacks.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for ((_, act), beside) in attacks.iter().zip(&mut beside) {
                bench.calm().await?;
                alone.push(bench.turn().await?);
                // Anew each time: one that was parked for the last attack would be harmless in the next.
                bench.start(ATTACKER).await?;
                beside.push(if *act == FLOOR.1 {
                    bench.beside_the_lowest_priority().await?
                } else {
                    bench.attacked(act).await?
                });
                bench.end(ATTACKER).await?;
            }
        }
        print(&alone, attacks.iter().map(|(name, _)| *name).zip(&beside));
        bench.host.stop().await?;
        run.remove()
    })
}

impl Bench<'_> {
    async fn start(&self, plugin: &str) -> Result<()> {
        let (component, mark) = (self.built.component(plugin)?, self.host.log().mark());
        self.host.plugins().put(plugin, &component.code()?, &Document::of(component)?)?;
        self.host.says(plugin, "plugin ready", mark, WITHIN).await.map(drop)
    }

    async fn end(&self, plugin: &str) -> Result<()> {
        let mark = self.host.log().mark();
        self.host.plugins().remove(plugin)?;
        self.host.says(plugin, "plugin removed", mark, WITHIN).await.map(drop)
    }

    /// The times of some changes, one after another.
    async fn turn(&mut self) -> Result<Turn> {
        let (began, before, mut turn) = (Instant::now(), self.host.cpu()?, Turn::default());
        self.elsewhere.computed()?;
        for _ in 0..CHANGES {
            self.changes += 1;
            let (number, text) = (self.changes % VOLUMES, format!("change-{}", self.changes));
            let name = format!("volume-{number}");
            let metadata = json!({"uid": format!("volume-uid-{number}"), "generation": self.changes});
            let object = json!({"metadata": metadata, "spec": {"name": text, "size": 1}});
            let changed = self.canned.put(&VOLUME, NAMESPACE, &name, object);
            let path = format!("{}/status", VOLUME.path(NAMESPACE, &name));
            let written = timeout(WITHIN, async {
                loop {
                    let write = self.writes.next().await.context("the server is gone")?;
                    if write.path == path && write.body.pointer("/status/name").is_some_and(|name| *name == *text) {
                        return anyhow::Ok(write.at);
                    }
                }
            });
            let written = written.await.with_context(|| format!("{name} was not reconciled"))??;
            sleep(PAUSE).await;
            let unnoticed = self.elsewhere.computed()? <= UNNOTICED;
            if unnoticed { &mut turn.times } else { &mut turn.disturbed }.push(written.duration_since(changed));
        }
        let cpu = self.host.cpu()?.saturating_sub(before);
        turn.busy = cpu.as_secs_f64() / began.elapsed().as_secs_f64();
        Ok(turn)
    }

    /// The same while a thread computes that makes room for everybody.
    async fn beside_the_lowest_priority(&mut self) -> Result<Turn> {
        let over = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&over);
        let computes = thread::spawn(move || {
            // The niceness, which it sets as well, may be refused.
            set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, LOWEST).ok();
            while !theirs.load(Ordering::Relaxed) {}
            thread_schedule_policy().ok()
        });
        let turn = self.turn().await;
        over.store(true, Ordering::Relaxed);
        ensure!(matches!(computes.join(), Ok(Some(LOWEST))), "the system knows no lowest priority");
        turn
    }

    /// The same while the attacker is at it.
    async fn attacked(&mut self, act: &str) -> Result<Turn> {
        let name = |number| format!("mischief-{number}");
        let change = |canned: &Canned, number: usize, generation: u64| {
            let object = json!({"metadata": {"generation": generation}, "spec": {"act": act}});
            canned.put(&MISCHIEF, NAMESPACE, &name(number), object);
        };
        (0..MISCHIEFS).for_each(|number| change(&self.canned, number, 1));
        let canned = self.canned.clone();
        let flood = async {
            // One by one: ten at once every ten milliseconds would be the server's noise.
            for turn in MISCHIEFS.. {
                sleep(Duration::from_millis(1)).await;
                if act == FLOOD {
                    change(&canned, turn % MISCHIEFS, turn as u64);
                }
            }
        };
        let times = async {
            // What it takes to put the objects there is not the attacker's doing.
            sleep(SETTLE).await;
            self.turn().await
        };
        let times = tokio::select! {
            times = times => times?,
            () = flood => unreachable!("it has no end"),
        };
        (0..MISCHIEFS).for_each(|number| self.canned.remove(&MISCHIEF, NAMESPACE, &name(number)));
        Ok(times)
    }

    /// Waits until the host has nothing to do.
    async fn calm(&mut self) -> Result<()> {
        let began = Instant::now();
        loop {
            let before = self.host.cpu()?;
            sleep(Duration::from_millis(300)).await;
            if self.host.cpu()?.saturating_sub(before) < Duration::from_millis(10) {
                return Ok(());
            }
            ensure!(began.elapsed() < WITHIN, "the host does not come to rest");
        }
    }
}

/// Of a hundred times the slowest but one, or the middle one.
fn percentile(mut times: Vec<Duration>, percent: usize) -> Duration {
    times.sort();
    times[(times.len() * percent).div_ceil(100).saturating_sub(1)]
}

/// The middle of the turns' percentiles: a machine that is slow for some seconds is slow for one of them.
fn middle(turns: &[Turn], percent: usize, times: impl Fn(&Turn) -> Vec<Duration>) -> Duration {
    percentile(turns.iter().map(|turn| percentile(times(turn), percent)).collect(), 50)
}

/// What the table says of some turns.
struct Row {
    middle: Duration,
    slow: Duration,
    /// With the disturbed ones.
    slow_of_all: Duration,
    disturbed: f64,
    busy: f64,
}

impl Row {
    fn of(turns: &[Turn]) -> Self {
        let undisturbed = |turn: &Turn| turn.times.clone();
        let all = |turn: &Turn| [turn.times.as_slice(), &turn.disturbed].concat();
        let share = |turn: &Turn| turn.disturbed.len() as f64 / all(turn).len() as f64;
        let mean = |of: &dyn Fn(&Turn) -> f64| turns.iter().map(of).sum::<f64>() / turns.len() as f64;
        Self {
            middle: middle(turns, 50, undisturbed),
            slow: middle(turns, 99, undisturbed),
            slow_of_all: middle(turns, 99, all),
            disturbed: mean(&share),
            busy: mean(&|turn| turn.busy),
        }
    }

    fn print(&self, name: &str, alone: Option<&Self>) {
        let times = |ours: fn(&Self) -> Duration| {
            alone.map_or_else(String::new, |alone| format!("{:.2}", ours(self).div_duration_f64(ours(alone))))
        };
        println!(
            "| {name} | {:.2?} | {:.2?} | {} | {:.2?} | {} | {:.1} % | {:.2} |",
            self.middle,
            self.slow,
            times(|row| row.slow),
            self.slow_of_all,
            times(|row| row.slow_of_all),
            self.disturbed * 100.0,
            self.busy
        );
    }
}

fn print<'a>(alone: &[Turn], beside: impl Iterator<Item = (&'static str, &'a Vec<Turn>)>) {
    println!(
        "\nfrom a change to the write that follows from it, {ROUNDS} turns of {CHANGES} changes beside each attacker\n"
    );
    println!(
        "| beside one that | p50 | p99 | of its p99 alone | p99, disturbed ones too | of that alone | disturbed by other programs | cores that the host keeps busy |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let alone = Row::of(alone);
    alone.print("is not there", None);
    let (mut worst, mut floor) = (("", 0.0_f64), 0.0);
    for (name, turns) in beside {
        let row = Row::of(turns);
        row.print(name, Some(&alone));
        let times = row.slow.div_duration_f64(alone.slow);
        if name == FLOOR.0 {
            floor = times;
        } else if times > worst.1 {
            worst = (name, times);
        }
    }
    let verdict = if worst.1 <= TARGET { "reached" } else { "MISSED" };
    println!(
        "\nthe worst {}: {:.2} times (at most {TARGET}: {verdict}); what computes at the lowest priority, no matter of the host: {floor:.2} times",
        worst.0, worst.1
    );
}
