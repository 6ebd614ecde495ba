//! What 1,000 Pets cost, created at once and then deleted at once, on a real API server with a real store. `cargo bench --bench pets` prints the host beside a bare
//! client that does the same writes and calls and nothing else (no watch, no queue, no sandbox, not a look at what is there), and fails where the host writes
//! more than it must.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use operetta_tests::{
    components::{Built, Workspace},
    control_plane::{
        AuditLog, Cluster,
        audit::{Filter, Position},
        run_dir::RunDir,
    },
    eventually,
    host::{self, Document, Launch, Log},
    kinds::{Objects, pet, pets, text},
    petstore::PetStore,
    progress::Progress,
};
use petstore_service::proto::{AddPetsRequest, DeletePetsRequest, Pet, PetType};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

const PETS: usize = 1_000;
/// Requests at a time of whoever creates and deletes, and of the bare client.
const LANES: usize = 32;
const WITHIN: Duration = Duration::from_mins(5);
const PLUGIN: &str = "petstore";
const FINALIZER: &str = "petstore.example.com/finalizer";
/// A new pet: its finalizer and its status. A pet that goes: its finalizer.
const WRITES: [usize; 2] = [2, 1];

/// One way of doing it, measured.
struct Run {
    who: &'static str,
    /// For creation and deletion.
    phases: [Phase; 2],
}

struct Phase {
    wall: Duration,
    cpu: Duration,
    writes: usize,
    /// Requests that are no writes, by verb.
    others: BTreeMap<String, usize>,
}

struct Bench {
    cluster: Cluster,
    audit: AuditLog,
    built: Built,
    run: RunDir,
    client: kube::Client,
}

fn main() -> Result<()> {
    let progress = Progress::stderr();
    let built = Workspace::locate()?.build(&progress)?;
    let cluster = Cluster::open(&built.program("control-plane"))?;
    let audit = cluster
        .audit_log()
        .context("requests are counted in the audit log of the local control plane; unset OPERETTA_KUBECONFIG")?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let (run, client) = (RunDir::create()?, cluster.client().await?);
        host::install(&built, cluster.kubeconfig(), &[&built.component(PLUGIN)?.wasm])?;
        let bench = Bench { cluster, audit, built, run, client };
        let runs = [bench.bare().await?, bench.host().await?];
        print(&runs);
        for Run { who, phases } in &runs {
            for (phase, minimum) in phases.iter().zip(WRITES) {
                ensure!(
                    phase.writes == PETS * minimum,
                    "{who}: {} writes where {} are needed",
                    phase.writes,
                    PETS * minimum
                );
            }
        }
        bench.run.remove()
    })
}

fn names() -> impl Iterator<Item = String> {
    (0..PETS).map(|number| format!("pet-{number}"))
}

impl Bench {
    async fn namespace(&self, name: &str) -> Result<Objects> {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::<Namespace>::all(self.client.clone()).create(&PostParams::default(), &namespace).await?;
        Ok(pets(&self.client, name))
    }

    async fn create(&self, objects: &Objects) -> Result<Vec<DynamicObject>> {
        let spec = pet("One of many", "cat");
        let created = names().map(async |name| objects.apply(&name, &spec).await);
        Ok(futures::stream::iter(created).buffer_unordered(LANES).try_collect().await?)
    }

    /// Requests since `after` that `who` admits.
    async fn count(&self, who: Filter, after: Position) -> Result<(usize, BTreeMap<String, usize>)> {
        self.audit.settle(&self.client).await?;
        let requests = self.audit.requests(&who.after(after))?;
        let mut others = BTreeMap::new();
        for request in requests.iter().filter(|request| !request.is_write()) {
            *others.entry(request.verb.clone()).or_default() += 1;
        }
        Ok((requests.iter().filter(|request| request.is_write()).count(), others))
    }

    /// The host: watches, queue, sandbox and all.
    async fn host(&self) -> Result<Run> {
        let namespace = "bench-host";
        let objects = self.namespace(namespace).await?;
        let store = PetStore::start(&self.run, &self.built).await?;
        let launch = Launch::new(&self.built, self.cluster.kubeconfig()).namespace(namespace).log_level("info");
        let host = launch.start(&self.run).await?;
        let component = self.built.component(PLUGIN)?;
        let document = Document::of(component)?.endpoint(PLUGIN, &store.endpoint()).setting("resync", "1h");
        host.plugins().put(PLUGIN, &component.code()?, &document)?;
        host.says(PLUGIN, "plugin ready", Log::start(), WITHIN).await?;
        let who = || Filter::all().impersonated(&format!("system:serviceaccount:operetta-plugins:{PLUGIN}"));

        let position = self.audit.settle(&self.client).await?;
        let (start, cpu) = (Instant::now(), host.cpu()?);
        self.create(&objects).await?;
        eventually("all pets are in the store", WITHIN, async || {
            let stored = store.pets().await?.len();
            ensure!(stored == PETS, "{stored} are");
            Ok(())
        })
        .await?;
        eventually("all pets have ids", WITHIN, async || {
            let all = objects.list(&ListParams::default()).await?;
            let with = all.iter().filter(|object| !text(object, "/status/id").is_empty()).count();
            ensure!(with == PETS, "{with} have");
            Ok(())
        })
        .await?;
        let (wall, cpu) = (start.elapsed(), host.cpu()?.saturating_sub(cpu));
        let (writes, others) = self.count(who(), position).await?;
        let created = Phase { wall, cpu, writes, others };

        let position = self.audit.settle(&self.client).await?;
        let (start, cpu) = (Instant::now(), host.cpu()?);
        let removed = names().map(async |name| objects.remove(&name).await);
        futures::stream::iter(removed).buffer_unordered(LANES).try_collect::<()>().await?;
        eventually("all pets are gone", WITHIN, async || {
            let left = objects.list(&ListParams::default()).await?.items.len();
            ensure!(left == 0, "{left} are left");
            Ok(())
        })
        .await?;
        let (wall, cpu) = (start.elapsed(), host.cpu()?.saturating_sub(cpu));
        let (writes, others) = self.count(who(), position).await?;
        let failures = host.metrics().await?.failures(PLUGIN);
        ensure!(failures < 0.5, "{failures} reconciles failed");
        Ok(Run { who: "operetta", phases: [created, Phase { wall, cpu, writes, others }] })
    }

    /// A client that knows what to write and only writes it. Its creations and deletions are not measured, as they are not the host's.
    async fn bare(&self) -> Result<Run> {
        let namespace = "bench-bare";
        let objects = self.namespace(namespace).await?;
        let store = PetStore::start(&self.run, &self.built).await?;
        let client = store.client().await?;
        let who =
            || Filter::all().namespace(namespace).user("admin").verb("patch").verb("get").verb("list").verb("watch");
        let all = self.create(&objects).await?;
        let position = self.audit.settle(&self.client).await?;
        let (start, cpu) = (Instant::now(), clock_gettime(ClockId::ProcessCPUTime));
        let written = all.iter().map(async |object| {
            let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
            objects.merge(&name, &json!({"metadata": {"finalizers": [FINALIZER]}})).await?;
            let birthday = Some(prost_types::Timestamp { seconds: 1_582_977_600, nanos: 0 });
            let pet = Pet { name, r#type: PetType::Cat.into(), birthday, external_ref: uid, ..Pet::default() };
            let name = pet.name.clone();
            let added = client.clone().add_pets(AddPetsRequest { pets: vec![pet] }).await?.into_inner();
            let id = added.pets.into_iter().next().context("the store adds a pet")?.id;
            let status = json!({"status": {"id": id}});
            objects.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
            anyhow::Ok((name, id))
        });
        let stored: Vec<_> = futures::stream::iter(written).buffer_unordered(LANES).try_collect().await?;
        let created = self.phase(start, cpu, who(), position).await?;

        let removed = names().map(async |name| objects.remove(&name).await);
        futures::stream::iter(removed).buffer_unordered(LANES).try_collect::<()>().await?;
        let position = self.audit.settle(&self.client).await?;
        let (start, cpu) = (Instant::now(), clock_gettime(ClockId::ProcessCPUTime));
        let released = stored.iter().map(async |(name, id)| {
            client.clone().delete_pets(DeletePetsRequest { ids: vec![id.clone()] }).await?;
            objects.merge(name, &json!({"metadata": {"finalizers": null}})).await?;
            anyhow::Ok(())
        });
        futures::stream::iter(released).buffer_unordered(LANES).try_collect::<()>().await?;
        Ok(Run { who: "bare client", phases: [created, self.phase(start, cpu, who(), position).await?] })
    }

    /// What this process has done since.
    async fn phase(&self, start: Instant, cpu: rustix::time::Timespec, who: Filter, after: Position) -> Result<Phase> {
        let (wall, now) = (start.elapsed(), clock_gettime(ClockId::ProcessCPUTime));
        let nanos = (now.tv_sec - cpu.tv_sec) * 1_000_000_000 + (now.tv_nsec - cpu.tv_nsec);
        let (writes, others) = self.count(who, after).await?;
        Ok(Phase { wall, cpu: Duration::from_nanos(nanos.unsigned_abs()), writes, others })
    }
}

fn print(runs: &[Run]) {
    let pets = PETS as f64;
    println!("\n{PETS} Pets at once, {LANES} requests at a time, an API server on the same machine\n");
    println!("| | wall | CPU a Pet | writes a Pet | needed | other requests |");
    println!("| --- | ---: | ---: | ---: | ---: | --- |");
    for (phase, what) in ["create", "delete"].iter().enumerate() {
        for Run { who, phases } in runs {
            let Phase { wall, cpu, writes, others } = &phases[phase];
            let others = others.iter().map(|(verb, count)| format!("{count} {verb}")).collect::<Vec<_>>().join(", ");
            println!(
                "| {what}: {who} | {:.2} s | {:.2} ms | {:.3} | {} | {} |",
                wall.as_secs_f64(),
                cpu.as_secs_f64() * 1_000.0 / pets,
                *writes as f64 / pets,
                WRITES[phase],
                if others.is_empty() { "none" } else { &others },
            );
        }
    }
    println!("\nThe host's wall time has the creations and deletions in it, the bare client's has not.");
}
