//! `operetta run`: wires the layers together and waits for the end.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use operetta_cluster::{
    Cluster,
    client::{self, Target},
    identity::Impersonation,
    informer::CacheBudget,
    plugins::Plugins,
    vault::Vault,
};
use operetta_core::{
    cache::Scope,
    name::{Actor, NameError, Namespace},
    port::{ApiError, Caller, Kubernetes},
    share::Places,
};
use operetta_sandbox::{GuestBudget, Usage, forget_marks};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    catalog::Catalog,
    cli::RunArgs,
    directory::Directory,
    election::Leadership,
    loader::{LastGoodFolder, SandboxLoader, sharing},
    plugin::{Claims, Host, Identities},
    plugin_objects::ClusterObjects,
    supervisor::supervise,
    telemetry::{self, Health, Metrics},
};

/// Kubernetes kills a pod 30 seconds after it asked it to end; what has not ended a little before is cut off by us, with a word in the log.
const PATIENCE: Duration = Duration::from_secs(28);

/// Runs until SIGTERM or Ctrl-C, or until another host leads.
pub(crate) async fn run(args: RunArgs) -> anyhow::Result<()> {
    args.election.timing()?;
    telemetry::init_log(args.log_format, &args.log_level)?;
    let stop = stop_on_signal()?;
    let caches =
        Arc::new(args.cache_mib.map_or_else(CacheBudget::default, |mib| CacheBudget::new((mib as usize) << 20)));
    let guests =
        Arc::new(args.guest_mib.map_or_else(GuestBudget::default, |mib| GuestBudget::new((mib as usize) << 20)));
    let metrics = Arc::new(Metrics::of(Arc::clone(&caches), Arc::clone(&guests)));
    let health = Arc::new(Health::default());
    // Until the end, so that the last reconciles are counted and a host that still ends them is not taken for dead.
    let serving = CancellationToken::new();
    let _serving = serving.clone().drop_guard();
    let (metrics_at, probes_at) = telemetry::serve(
        (&args.metrics_bind_address, metrics.clone()),
        (&args.health_probe_bind_address, health.clone()),
        &serving,
    )
    .await?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        metrics = metrics_at.map(tracing::field::display),
        probes = probes_at.map(tracing::field::display),
        plugin_dir = args.catalog.plugin_dir.as_deref().map(|dir| tracing::field::display(dir.display())),
        "serving"
    );

    let directory = args.catalog.plugin_dir.as_deref().map(Directory::watch).transpose()?;
    let sandbox = sharing(&args.state.state_dir, args.max_concurrent_reconciles, guests)?;
    let client = client::connect_observed(&args.cluster.target(), {
        let metrics = metrics.clone();
        Arc::new(move |host, method, code, plugin| metrics.answered(host, method.as_str(), code, plugin))
    })
    .await?;
    let Some(()) = stop.run_until_cancelled(reached(&client)).await.transpose()? else { return Ok(()) };
    let leadership = Box::pin(Leadership::gain(&args.election, &client, &health, &metrics));
    let gained = stop.run_until_cancelled(leadership).await;
    let Some(mut leadership) = gained.transpose()? else { return Ok(()) };

    let namespace = args.host_namespace.map_or_else(|| own_namespace(&args.cluster.target()), Ok)?;
    let vault = Vault::new(client.clone(), namespace.clone());
    let cluster = Arc::new(Cluster::new(client.clone(), Arc::new(Impersonation::new(client)), caches));
    let plugins = Plugins::new(&cluster, namespace.clone(), args.catalog.plugin_selector)?;
    let catalog = Catalog::new(directory, plugins.watch());
    let observer = {
        let metrics = metrics.clone();
        Arc::new(move |caller: &Caller, usage: &Usage| metrics.used(caller, usage.cpu, usage.memory))
    };
    let host = Arc::new(Host {
        loader: Arc::new(SandboxLoader::new(sandbox, observer)),
        informers: cluster.informers(),
        identities: Arc::new(ClusterIdentities(cluster)),
        claims: Arc::new(Claims::default()),
        scope: match args.namespace.as_slice() {
            [] => Scope::All,
            some => Scope::Namespaces(some.iter().cloned().collect()),
        },
        namespace,
        places: Places::new(args.max_concurrent_reconciles.into()),
        vault: Arc::new(vault),
        metrics,
        leaving: TaskTracker::new(),
        last_good: Arc::new(LastGoodFolder::open(args.state.state_dir.join("last-good"))?),
        objects: Arc::new(ClusterObjects(plugins)),
    });
    let work = supervise(host, catalog, health, stop.clone());
    let patience = async {
        stop.cancelled().await;
        tracing::info!("stopping: reconciles in flight may end");
        tokio::time::sleep(PATIENCE).await;
    };
    tokio::select! {
        () = work => tracing::info!("stopped"),
        () = patience => tracing::warn!("stopped before all reconciles had ended; they are safe to run again"),
        // Another host may begin at any moment: nothing is waited for.
        lost = leadership.lost() => {
            forget_marks();
            return Err(lost.into());
        }
    }
    forget_marks();
    leadership.give_back().await;
    Ok(())
}

/// The pod's own namespace, and where there is no pod, where the host would be deployed.
pub(crate) fn own_namespace(target: &Target) -> Result<Namespace, NameError> {
    Namespace::parse(client::pod_namespace(target).as_deref().unwrap_or(crate::deploy::NAMESPACE))
}

/// Waits for the API server, with a word in the log about why.
async fn reached(client: &kube::Client) -> anyhow::Result<()> {
    let mut told = String::new();
    let waiting = |why: &str| {
        if told != why {
            tracing::warn!(error = why, "waiting for the API server");
            why.clone_into(&mut told);
        }
    };
    client::wait_until_ready(client, waiting).await?;
    Ok(())
}

/// Cancelled by the first SIGTERM or Ctrl-C; a second one ends the program at once.
fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let tell = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
            if tell.is_cancelled() {
                // Whatever is being compiled, the host does not die of it.
                forget_marks();
                std::process::exit(130);
            }
            tell.cancel();
        }
    });
    Ok(stop)
}

struct ClusterIdentities(Arc<Cluster>);

#[async_trait]
impl Identities for ClusterIdentities {
    async fn port(&self, actor: &Actor, scope: &Scope) -> Result<Arc<dyn Kubernetes>, ApiError> {
        self.0.check_actor(actor).await?;
        Ok(self.0.kubernetes(actor.clone(), scope.clone()))
    }
}
