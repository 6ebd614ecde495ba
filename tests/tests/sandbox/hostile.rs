//! The corpus of attacks in `tests/hostile/`: each is made beside a well-behaved plugin, ends as its file says, and leaves nothing behind. `tests/hostile/README.md` is
//! the table of them, made from the same files: `UPDATE_EXPECT=1 cargo test` writes it.

mod attack;
mod bombs;
mod server;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    mem::take,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use expect_test::expect_file;
use operetta_core::{
    bounds::Bounds,
    cache::Scope,
    grant::{Grants, Rule},
    looping::{Deed, Step},
    name::Namespace,
    reconcile::{Failure, Outcome},
};
use operetta_sandbox::{CompileLimits, LoadError, Occupancy, Sandbox};
use operetta_tests::eventually;
use serde_json::json;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use self::{
    attack::{Attack, Counted, Expect, Guest, Policy},
    server::Server,
};
use crate::setup::{Plugin, imports, sandbox, sandbox_that_compiles_within};

const PATIENCE: Duration = Duration::from_secs(10);
const EMPTY: Occupancy = Occupancy { instances: 0, stacks: 0, reconciles: 0, tasks: 0 };
/// Reconciles of each attack in a row: the second finds what the first left behind.
const TIMES: usize = 2;
/// Reconciles of the neighbour during each attack.
const SERVED: u64 = 3;
/// How often to go through all of it, for `OPERETTA_ATTACK_ROUNDS`.
const ROUNDS: usize = 1;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hostile")
}

/// All attacks, by the file that has them.
fn corpus() -> Vec<(String, Vec<Attack>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let attacks = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), attacks)
    };
    files.into_iter().map(read).collect()
}

/// Memory that is the test process's own, in kB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// `OPERETTA_ATTACK_ROUNDS=60 cargo test --test sandbox hostile -- --nocapture` is the long form: some 37,000 attacks.
#[tokio::test]
async fn every_attack_ends_as_the_corpus_says_and_a_neighbour_goes_on() {
    let rounds = std::env::var("OPERETTA_ATTACK_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    // What guests need, so that a bomb goes off at once.
    let sandbox = sandbox_that_compiles_within(CompileLimits { memory: 768 << 20, ..CompileLimits::default() });
    let (neighbour, mut server) = (Neighbour::at_work(&sandbox).await, Server::start().await);
    let mut wrong = String::new();
    let (mut attacks, mut warm) = (0, 0);
    // Once, so that what a round leaves in memory is the sandbox's.
    let corpus: Vec<_> = corpus()
        .into_iter()
        .flat_map(|(file, attacks)| attacks.into_iter().map(move |attack| (file.clone(), attack.guest.wasm(), attack)))
        .collect();
    for round in 0..rounds {
        for (file, wasm, attack) in &corpus {
            attacks += if let Expect::Load(..) = attack.expect { 1 } else { TIMES };
            let made = make(&sandbox, &mut server, attack, wasm);
            let ((made, counted), served) = tokio::join!(made, neighbour.serves());
            if counted != attack.counted {
                // In the words of the file, so that it can be put there.
                let counted: Vec<_> = counted.iter().map(Counted::to_string).collect();
                writeln!(wrong, "  {file}: {}: counted [{}]", attack.name, counted.join(", ")).unwrap();
            }
            for problem in [made, served].into_iter().filter_map(Result::err) {
                writeln!(wrong, "  {file}: {}: {problem:#}", attack.name).unwrap();
            }
        }
        println!("{attacks} attacks: {} kB of memory", resident());
        // Memory rises ever slower for some 10,000 attacks: slots of the pool and the allocator keep what they had once.
        if round == rounds / 2 {
            warm = resident();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    let grown = resident().saturating_sub(warm);
    println!("{attacks} attacks: {grown} kB more");
    assert!(grown * 20 <= warm, "{warm} kB of memory when it was warm, and {grown} more at the end");
}

#[test]
fn the_table_of_attacks_is_what_the_corpus_says() {
    let corpus = corpus();
    let count: usize = corpus.iter().map(|(_, attacks)| attacks.len()).sum();
    let mut table = format!(
        "# {count} attacks\n\nMade from the files of this folder by the test that makes the attacks (`cargo test --test sandbox hostile`). What the administrator sees is an error of that phase, or\nthe reason of a failed reconcile, with these words; a denial is an answer that the plugin gets, and a metric. What the\nattacks count is what stands here, and no more.\n"
    );
    for (file, attacks) in corpus {
        write!(table, "\n## {file}\n\n| attack | what stops it | what the administrator sees |\n| --- | --- | --- |\n")
            .unwrap();
        for attack in attacks {
            writeln!(table, "| {} | {} | {} |", attack.name, attack.stopped_by, attack.seen()).unwrap();
        }
    }
    expect_file![folder().join("README.md")].assert_eq(&table);
}

/// Makes one attack, and says how it did not end as it should, and what was counted of it.
async fn make(sandbox: &Sandbox, server: &mut Server, attack: &Attack, wasm: &[u8]) -> (Result<()>, BTreeSet<Counted>) {
    let loaded = Plugin::load(sandbox, wasm.to_vec()).await;
    let mut plugin = match (loaded, &attack.expect) {
        (Err(error), Expect::Load(phase, words)) => return (refused(&error, phase, words), BTreeSet::new()),
        (Err(error), _) => return (Err(anyhow!("it does not load: {error}")), BTreeSet::new()),
        (Ok(_), Expect::Load(..)) => return (Err(anyhow!("it loads")), BTreeSet::new()),
        (Ok(plugin), _) => plugin,
    };
    let made = reconcile(sandbox, server, attack, &mut plugin).await;
    (made, counted(&plugin))
}

/// What a plugin's effects have counted.
fn counted(plugin: &Plugin) -> BTreeSet<Counted> {
    let denied = take(&mut *plugin.denied.lock().unwrap());
    let exceeded = take(&mut *plugin.exceeded.lock().unwrap());
    let denied = denied.into_iter().map(|grant| Counted::Denial(grant.to_owned()));
    denied.chain(exceeded.into_iter().map(|limit| Counted::Limit(limit.to_string()))).collect()
}

/// Has the plugin make its attack, again and again.
async fn reconcile(sandbox: &Sandbox, server: &mut Server, attack: &Attack, plugin: &mut Plugin) -> Result<()> {
    if attack.cluster {
        plugin.kubernetes = server.port();
        (plugin.channels, plugin.databases) = (server.channels(), server.databases());
    }
    plugin.limit(|policy| {
        policy.bounds = bounds(plugin);
        policy.grants.host_namespace = Namespace::parse(server::BESIDE_THE_HOST).ok();
        // Short where it is what ends the attack. Where it is not, a guest that makes room for the tests beside it may take its time.
        let by_deadline = matches!(&attack.expect, Expect::Ends(reason, _) if reason == "DeadlineExceeded");
        policy.limits.deadline = if by_deadline { Duration::from_secs(2) } else { PATIENCE };
        policy.limits.cpu = Duration::from_millis(100);
        // So many as take less than that in a host that is not optimised.
        policy.limits.host_calls = 2_000;
        // More than any other attack carries, and soon done.
        policy.limits.traffic = 16 << 20;
        if let Policy::Narrow = attack.grants {
            policy.grants = narrow();
        }
    });
    for _ in 0..TIMES {
        let (command, argument) = attack.guest.request();
        let ended = plugin.call(&command, argument.as_deref(), 0).await;
        let mut calls = plugin.world.calls();
        calls.extend(server.writes());
        let steps = take(&mut *plugin.steps.lock().unwrap());
        judge(&attack.expect, ended, &calls, &plugin.world.lines(), &steps)?;
    }
    eventually("nothing is left of it", PATIENCE, async || {
        let live = plugin.world.live.load(std::sync::atomic::Ordering::SeqCst);
        ensure!(live == 0, "{live} calls alive");
        Ok(())
    })
    .await?;
    // The neighbour may be at work, and nobody else.
    eventually("the sandbox is empty", PATIENCE, async || {
        ensure!(sandbox.occupancy().reconciles <= 1, "{:?}", sandbox.occupancy());
        Ok(())
    })
    .await
}

fn refused(error: &LoadError, phase: &str, words: &str) -> Result<()> {
    let text = error.to_string();
    ensure!(error.phase() == phase && text.contains(words), "{text:?} is not {phase} with {words:?}");
    ensure!(!text.contains(|c: char| c.is_control()) && text.len() < 2_000, "it is no clean line: {text:?}");
    Ok(())
}

fn judge(
    expect: &Expect,
    ended: Result<Outcome, Failure>,
    calls: &[String],
    lines: &[String],
    steps: &[Step],
) -> Result<()> {
    let clean = |text: &str| !text.contains(|c: char| c.is_control());
    ensure!(lines.iter().all(|line| clean(line) && line.len() < 20_000), "a line of the log is not clean: {lines:?}");
    // Texts that an object holds are JSON, which has escapes for them.
    ensure!(calls.iter().all(|call| clean(call)), "what reached a port is not clean: {calls:?}");
    match (expect, ended) {
        (Expect::Harmless, Ok(Outcome::AwaitChange)) => {
            ensure!(calls.is_empty(), "it reached a port: {calls:?}");
        }
        (Expect::Ends(reason, words), Err(failure)) => {
            let text = failure.to_string();
            ensure!(failure.reason() == reason && text.contains(words), "{text:?} is not {reason} with {words:?}");
            ensure!(clean(&text) && text.len() < 2_000, "it is no clean line: {text:?}");
        }
        (Expect::Answers { answers, hides, reaches, logs, unanswered }, Err(Failure::Terminal(text))) => {
            let found = hides.iter().find(|hidden| text.contains(*hidden));
            ensure!(found.is_none(), "{text:?} says {found:?}");
            ensure!(text.contains(answers), "{text:?} lacks {answers:?}");
            let forbidden = calls.iter().find(|call| reaches.as_ref().is_none_or(|verb| !call.contains(verb)));
            ensure!(forbidden.is_none(), "it reached a port: {forbidden:?}");
            ensure!(reaches.is_none() || !calls.is_empty(), "it reached no port");
            let logged = logs.as_ref().is_none_or(|words| lines.iter().any(|line| line.contains(words)));
            ensure!(logged, "no line of the log has {logs:?}: {lines:?}");
            let known = !unanswered || steps.iter().any(|step| matches!(step.deed, Deed::Unanswered));
            ensure!(known, "the loop guard knows of no write without an answer: {steps:?}");
        }
        (_, other) => anyhow::bail!("it ended with {other:?}"),
    }
    Ok(())
}

/// As the host holds a plugin of this name to them.
fn bounds(plugin: &Plugin) -> Bounds {
    let account = server::account();
    Bounds::of(&account.plugin, &plugin.component.manifest().controllers, &account.account, &Scope::All)
}

/// Reads and writes ConfigMaps of one namespace.
fn narrow() -> Grants {
    let rule = Rule {
        api_groups: vec![String::new()],
        resources: vec!["configmaps".into()],
        verbs: ["get", "list", "watch", "create", "patch", "update"].map(Into::into).to_vec(),
        namespaces: vec![Namespace::parse("default").unwrap()],
        ..Rule::default()
    };
    Grants { rules: vec![rule].into(), ..Grants::default() }
}

/// A well-behaved plugin that reconciles all the time. How much slower it gets is what `cargo bench --bench neighbour` measures.
struct Neighbour {
    /// Reconciles that have ended, or how one of them failed.
    served: watch::Receiver<Result<u64, String>>,
    _work: JoinSet<()>,
}

impl Neighbour {
    async fn at_work(sandbox: &Sandbox) -> Self {
        let plugin = Plugin::load(sandbox, imports()).await.unwrap();
        let (tell, served) = watch::channel(Ok(0));
        let mut work = JoinSet::new();
        work.spawn(async move {
            let argument = json!({"name": "thing"}).to_string();
            for number in 1.. {
                let ended = match plugin.call("get", Some(&argument), 0).await {
                    Err(Failure::Terminal(answer)) if answer.contains("ok") => Ok(number),
                    other => Err(format!("{other:?}")),
                };
                tell.send_modify(|served| *served = ended);
                // What is kept for those who look would be memory that grows.
                plugin.world.calls();
                plugin.world.lines();
                plugin.usage.lock().unwrap().clear();
                // An operator that has something to do now and then.
                sleep(Duration::from_millis(1)).await;
            }
        });
        Self { served, _work: work }
    }

    /// Waits until some more reconciles have ended, all of them well.
    async fn serves(&self) -> Result<()> {
        let mut served = self.served.clone();
        let count = |served: &Result<u64, String>| {
            served.clone().map_err(|answer| anyhow!("the neighbour's reconcile ended with {answer}"))
        };
        let enough = count(&served.borrow_and_update())? + SERVED;
        let wait = served.wait_for(|served| served.as_ref().map_or(true, |served| *served >= enough));
        let served = timeout(PATIENCE, wait).await.context("the neighbour was starved")??;
        count(&served).map(drop)
    }
}

/// What is left when all of them have been there.
#[tokio::test]
async fn nothing_stays_in_the_sandbox() {
    let (sandbox, mut server) = (sandbox(), Server::start().await);
    for (_, attacks) in corpus() {
        for attack in attacks.iter().filter(|attack| matches!(attack.guest, Guest::Wat(_))) {
            let _ = make(&sandbox, &mut server, attack, &attack.guest.wasm()).await;
        }
    }
    eventually("the sandbox is empty", PATIENCE, async || {
        ensure!(sandbox.occupancy() == EMPTY, "{:?}", sandbox.occupancy());
        Ok(())
    })
    .await
    .unwrap();
}
