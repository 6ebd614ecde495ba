//! Plugins of a real directory on fakes of the ports.

use std::{fs, path::Path, time::Duration};

use operetta_cluster::plugins::PluginChange;
use operetta_core::{
    cache::Scope,
    reconcile::{Cause, Outcome},
    share::Places,
};
use serde_json::json;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinHandle,
    time::timeout,
};

use super::*;
use crate::directory::Directory;
use crate::testing::{Cluster, Components, Drawer, Memory, Runs, Shelf, World, component, eventually, things};

/// Here time is real, since the directory is.
const DEADLINE: Duration = Duration::from_secs(30);

struct Stage {
    world: Arc<World>,
    runs: Arc<Runs>,
    components: Arc<Components>,
    host: Arc<Host>,
    health: Arc<Health>,
    stop: CancellationToken,
    directory: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        let (world, runs) = (World::new(), Runs::new());
        let components = Components::new(runs.clone());
        let host = Arc::new(Host {
            loader: components.clone(),
            identities: Arc::new(Cluster(world.clone())),
            informers: Arc::new(Cluster(world.clone())),
            claims: Arc::default(),
            scope: Scope::All,
            namespace: "operetta-system".parse().unwrap(),
            places: Places::new(64),
            vault: Drawer::new(&[]),
            metrics: Arc::default(),
            leaving: TaskTracker::new(),
            last_good: Arc::new(Memory::default()),
            objects: Arc::new(Shelf::default()),
        });
        let (health, stop) = (Arc::default(), CancellationToken::new());
        Self { world, runs, components, host, health, stop, directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Puts both files of a plugin for a kind of its own.
    fn put(&self, name: &str, version: &str) {
        let wasm = component(version, |manifest| {
            manifest["controllers"][0]["for"]["resource"] = name.into();
        });
        fs::write(self.path().join(format!("{name}.wasm")), wasm).unwrap();
        let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
        let document = json!({
            "apiVersion": "operetta.dev/v1alpha1", "kind": "Plugin",
            "metadata": {"name": name}, "spec": {"grants": {"rules": rules}}
        });
        fs::write(self.path().join(format!("{name}.yaml")), document.to_string()).unwrap();
    }

    fn remove(&self, name: &str) {
        for ending in ["wasm", "yaml"] {
            fs::remove_file(self.path().join(format!("{name}.{ending}"))).unwrap();
        }
    }

    fn supervise(&self) -> JoinHandle<()> {
        let (objects, changes) = mpsc::unbounded_channel();
        objects.send(PluginChange::Synced).unwrap();
        let catalog = Catalog::new(Some(Directory::watch(self.path()).unwrap()), changes);
        tokio::spawn(supervise(self.host.clone(), catalog, self.health.clone(), self.stop.clone()))
    }

    fn runs_version(&self, plugin: &str, version: &str) -> bool {
        let info = format!("operetta_plugin_info{{plugin=\"{plugin}\",version=\"{version}\"");
        self.host.metrics.encode().unwrap().contains(&info)
    }
}

async fn soon(test: impl Future<Output = ()>) {
    timeout(DEADLINE, test).await.expect("it took too long");
}

#[tokio::test]
async fn a_host_without_plugins_is_ready_at_once() {
    soon(async {
        let stage = Stage::new();
        let work = stage.supervise();
        eventually("readiness", || stage.health.is_ready()).await;
        stage.stop.cancel();
        work.await.unwrap();
        assert!(!stage.health.is_ready());
    })
    .await;
}

#[tokio::test]
async fn a_host_is_ready_when_it_is_known_how_its_first_plugins_fare_and_one_that_is_slow_delays_no_other() {
    soon(async {
        let stage = Stage::new();
        stage.put("good", "1");
        stage.put("patient", "slow-1");
        fs::write(stage.path().join("lonely.wasm"), "x").unwrap();
        stage.components.gate.send_replace(false);
        let work = stage.supervise();
        eventually("the good one", || stage.runs_version("good", "1")).await;
        assert!(!stage.health.is_ready(), "the slow one is not known yet");
        stage.components.gate.send_replace(true);
        eventually("readiness", || stage.health.is_ready()).await;
        assert!(stage.runs_version("patient", "slow-1"));

        // What comes later changes nothing about it.
        stage.components.gate.send_replace(false);
        stage.put("later", "slow-1");
        eventually("the later one's load", || stage.components.loads() == 3).await;
        assert!(stage.health.is_ready());
        stage.stop.cancel();
        work.await.unwrap();
        assert!(!stage.health.is_ready());
    })
    .await;
}

#[tokio::test]
async fn a_host_that_is_stopped_before_it_is_ready_never_is() {
    soon(async {
        let stage = Stage::new();
        stage.put("patient", "slow-1");
        stage.components.gate.send_replace(false);
        let work = stage.supervise();
        eventually("the load", || stage.components.loads() == 1).await;
        stage.stop.cancel();
        work.await.unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
            assert!(!stage.health.is_ready());
        }
    })
    .await;
}

#[tokio::test]
async fn a_plugin_that_is_removed_before_it_ran_keeps_nobody_waiting() {
    soon(async {
        let stage = Stage::new();
        stage.put("patient", "slow-1");
        stage.components.gate.send_replace(false);
        let work = stage.supervise();
        eventually("the load", || stage.components.loads() == 1).await;
        stage.remove("patient");
        eventually("readiness", || stage.health.is_ready()).await;
        stage.stop.cancel();
        work.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn plugins_come_change_go_and_come_back() {
    soon(async {
        let stage = Stage::new();
        let work = stage.supervise();
        for version in ["1", "2"] {
            stage.put("demo", version);
            eventually(version, || stage.runs_version("demo", version)).await;
        }
        stage.remove("demo");
        eventually("the end", || !stage.runs_version("demo", "2")).await;
        assert_eq!(stage.world.watches(), []);
        stage.put("demo", "3");
        eventually("the third", || stage.runs_version("demo", "3")).await;
        stage.stop.cancel();
        work.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_stop_waits_for_reconciles_in_flight_those_of_controllers_that_are_leaving_included() {
    for exchanged in [false, true] {
        soon(async {
            let stage = Stage::new();
            stage.world.apply(&things(), "a");
            let gate = Arc::new(Semaphore::new(0));
            let wait = gate.clone();
            stage.runs.act(move |request, _| {
                let wait = wait.clone();
                async move {
                    if request.cause == Cause::Changed {
                        wait.acquire().await.unwrap().forget();
                    }
                    Ok(Outcome::AwaitChange)
                }
            });
            stage.put("things", "1");
            let work = stage.supervise();
            stage.runs.under_way(1).await;
            if exchanged {
                // The next version has another controller; the one before is leaving.
                let wasm = component("2", |manifest| manifest["controllers"][0]["name"] = "renamed".into());
                fs::write(stage.path().join("things.wasm"), wasm).unwrap();
                eventually("the second", || stage.runs_version("things", "2")).await;
            }
            stage.stop.cancel();
            assert!(
                timeout(Duration::from_millis(50), async {
                    while !work.is_finished() {
                        tokio::task::yield_now().await;
                    }
                })
                .await
                .is_err()
            );
            gate.add_permits(10);
            work.await.unwrap();
            let runs = stage.runs.all();
            assert_eq!(runs.iter().map(|run| run.version.as_str()).collect::<Vec<_>>(), ["1"]);
        })
        .await;
    }
}
