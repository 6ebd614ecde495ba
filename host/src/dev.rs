//! `operetta dev`: the loop of a person who writes a plugin. Whenever its sources change it is built, what it needs is installed with the person's rights, and the host in
//! this same process takes it over; what it logs and reconciles is shown.
//!
//! The host is that of `operetta run` on a plugin directory that nobody else uses, so that a person sees what an administrator will. **Whatever cannot be built, loaded or installed
//! leaves the version before running.**

mod log;
mod sources;

use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Parser;
use operetta_cluster::{
    client,
    install::{Installation, Way, install, render},
};
use operetta_core::name::{Digest, Namespace};
use operetta_sandbox::Sandbox;

use self::sources::Sources;
use crate::{
    cargo::{Build, BuildError, Project},
    cli::{ClusterArgs, RunArgs, StateArgs},
    exit::Failed,
    generate::COMMAND_CONCURRENCY,
    impersonation::HostSide,
    install::installation,
    loader::quick_sandbox,
};

/// What the cluster refused, or did not answer, is tried again after this time even if nobody saves.
const AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct DevArgs {
    /// The folder of the plugin's sources
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Work in this namespace only; may be repeated; all unless told
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Vec<Namespace>,
    /// The profile that cargo builds with
    #[arg(long, value_name = "NAME", default_value = "dev")]
    profile: String,
    /// What is shown: a level, or a filter as in RUST_LOG
    #[arg(long, value_name = "FILTER", default_value = log::DEFAULT)]
    log_level: String,
    #[command(flatten)]
    state: StateArgs,
}

/// All that `operetta run` takes, as it is when nobody says anything.
#[derive(Parser)]
struct Plain {
    #[command(flatten)]
    run: RunArgs,
}

/// Works until SIGTERM or Ctrl-C.
pub(crate) async fn dev(args: DevArgs) -> anyhow::Result<()> {
    log::init(&args.log_level)?;
    let project = Project::find(&args.dir).await?;
    let place = Place::take(&args.state.state_dir, &project)?;
    // Before the first build, so that no save is missed.
    let sources = Sources::watch(&project.sources, &project.target)?;
    let client = client::connect(&args.cluster.target()).await?;
    let shown = project.root.display();
    tracing::info!("{} in {shown}: whenever you save, it is built and takes over; Ctrl-C ends", project.name);

    let plain = [
        "run".as_ref(),
        "--plugin-dir".as_ref(),
        place.plugins.as_os_str(),
        "--state-dir".as_ref(),
        place.state.as_os_str(),
        "--metrics-bind-address=0".as_ref(),
        "--health-probe-bind-address=0".as_ref(),
        // The Plugins of the cluster are another host's.
        "--plugin-selector=operetta.dev/dev".as_ref(),
    ];
    let mut run = Plain::try_parse_from(plain)?.run;
    let host_namespace = crate::run::own_namespace(&args.cluster.target())?;
    (run.cluster, run.namespace) = (args.cluster, args.namespace);
    let workshop = Workshop {
        sandbox: quick_sandbox(&place.state, COMMAND_CONCURRENCY)?,
        how: Build { profile: args.profile, abandonable: true },
        plugins: place.plugins.clone(),
        project,
        client,
        host_namespace,
        installed: None,
        given: None,
    };
    tokio::select! {
        ended = crate::run::run(run) => ended,
        never = workshop.follow(sources) => match never {},
    }
}

/// Where one project's host keeps what it needs, taken by this process alone.
struct Place {
    state: PathBuf,
    plugins: PathBuf,
    _lock: File,
}

impl Place {
    fn take(state: &Path, project: &Project) -> anyhow::Result<Self> {
        // Projects of the same name may lie in several places.
        let place = Digest::of(project.root.as_os_str().as_encoded_bytes());
        let state = state.join("dev").join(format!("{}-{}", project.name, place.short().replace(':', "-")));
        let plugins = state.join("plugins");
        let cannot = || format!("--state-dir: {} cannot be used", state.display());
        fs::create_dir_all(&plugins).with_context(cannot)?;
        let lock = File::create(state.join("lock")).with_context(cannot)?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let shown = project.root.display();
                return Err(Failed::usage(format!(
                    "another `operetta dev` works on {shown} already; end that one first"
                )));
            }
            locked => locked.with_context(cannot)?,
        }
        for left in fs::read_dir(&plugins).with_context(cannot)? {
            fs::remove_file(left.with_context(cannot)?.path()).with_context(cannot)?;
        }
        Ok(Self { state, plugins, _lock: lock })
    }
}

/// From sources to the host's plugin directory.
struct Workshop {
    project: Project,
    how: Build,
    sandbox: Sandbox,
    client: kube::Client,
    /// Where the host of this process looks for Secrets.
    host_namespace: Namespace,
    plugins: PathBuf,
    /// What was installed last, as the objects that it consists of.
    installed: Option<Vec<serde_json::Value>>,
    /// What the host was given last: the component's digest, and the project's own document where it has one.
    given: Option<(Digest, Option<String>)>,
}

/// Nothing: a loop that ends only with what it is part of.
enum Never {}

impl Workshop {
    /// Builds and hands over, now and whenever the sources change.
    async fn follow(mut self, mut sources: Sources) -> Never {
        let mut told = String::new();
        loop {
            let done = tokio::select! {
                // What was saved meanwhile makes the work on what was there before pointless.
                () = sources.changed() => continue,
                done = self.once() => done,
            };
            let Err(error) = done else {
                told.clear();
                sources.changed().await;
                continue;
            };
            let runs_on = if self.given.is_some() { "; the version before runs on" } else { "" };
            if let Some(BuildError::Failed(_)) = error.downcast_ref() {
                // Cargo has said why.
                tracing::error!("not built{runs_on}");
            } else {
                let text = format!("{error:#}{runs_on}");
                if text != told {
                    tracing::error!("{text}");
                    told = text;
                }
            }
            if error.is::<BuildError>() {
                sources.changed().await;
            } else {
                let _ = tokio::time::timeout(AGAIN, sources.changed()).await;
            }
        }
    }

    async fn once(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        let file = self.project.build(&self.how).await?;
        let wasm = tokio::fs::read(&file).await.with_context(|| file.display().to_string())?;
        let (digest, size, took) = (Digest::of(&wasm), wasm.len(), start.elapsed());
        let name = &self.project.name;
        let own = match fs::read_to_string(self.project.root.join(format!("{name}.yaml"))) {
            Ok(document) => Some(document),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| format!("{name}.yaml")),
        };
        let next = Some((digest, own));
        if self.given == next {
            return Ok(());
        }
        tracing::info!("built in {took:.2?}, {} kB", size / 1000);
        let component = self.sandbox.load(wasm.clone()).await?;
        let manifest = component.manifest();
        let document = match &next {
            Some((_, Some(own))) => own.clone(),
            _ => operetta_api::render(name, manifest)?,
        };
        let beside = self.project.root.join(format!("{name}.wasm"));
        let (wasm_name, yaml_name) = (format!("{name}.wasm"), format!("{name}.yaml"));
        // The host of this process acts with the person's rights, and needs none of its own.
        let host = HostSide::of(&self.host_namespace, Way::Classic)?;
        let installation = installation(name.clone(), manifest, &beside, &host)?;
        self.install(&installation).await?;
        // The document first, so that the component finds it there.
        self.put(&yaml_name, document.as_bytes())?;
        self.put(&wasm_name, &wasm)?;
        self.given = next;
        Ok(())
    }

    /// Writes to the cluster what has changed since the last time.
    async fn install(&mut self, installation: &Installation) -> anyhow::Result<()> {
        let objects = render(installation)?;
        if self.installed.as_ref() == Some(&objects) {
            return Ok(());
        }
        client::wait_until_ready(&self.client, |_| {}).await?;
        for object in install(&self.client, installation, false).await? {
            tracing::info!("{object}");
        }
        self.installed = Some(objects);
        Ok(())
    }

    /// In one step, so that the host never sees half a file.
    fn put(&self, name: &str, content: &[u8]) -> anyhow::Result<()> {
        let cannot = || format!("{} cannot be written to", self.plugins.display());
        let mut file = tempfile::NamedTempFile::new_in(&self.plugins).with_context(cannot)?;
        std::io::Write::write_all(&mut file, content).with_context(cannot)?;
        file.persist(self.plugins.join(name)).with_context(cannot)?;
        Ok(())
    }
}
