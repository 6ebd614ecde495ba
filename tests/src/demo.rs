//! The demo: everything set up, a story told while it happens on a real API server, and then yours to play with.
//!
//! [`stage`] sets up and clears away, [`tell`] writes to the terminal, [`pets`], [`pods`], [`volumes`], [`rows`], [`plugins`] hold the steps of the story. A step does what a person would
//! do with kubectl and cp, through the API, and waits for what follows; it decides nothing about how the others look.

use std::{path::Path, process::ExitCode};

use anyhow::{Context, Result};
use futures::future::{FutureExt as _, LocalBoxFuture};
use tokio::signal::unix::{SignalKind, signal};

use crate::{components::Workspace, control_plane::Cluster, postgres, progress::Progress};

mod pets;
mod plugins;
mod pods;
mod rows;
mod stage;
mod tell;
mod volumes;

use stage::Stage;
use tell::Teller;

/// A step of the story.
type Step = for<'a> fn(&'a mut Stage, &'a Teller) -> LocalBoxFuture<'a, Result<()>>;

/// The story.
const STORY: [(&str, Step); 9] = [
    ("Thor and Tron move into the pet store", |stage, tell| pets::move_in(stage, tell).boxed_local()),
    ("Thor becomes Thorbert", |stage, tell| pets::rename(stage, tell).boxed_local()),
    ("Both move out", |stage, tell| pets::move_out(stage, tell).boxed_local()),
    ("An immortal pod is killed", |stage, tell| pods::kill(stage, tell).boxed_local()),
    ("A Memcached is scaled by hand", |stage, tell| pods::scale(stage, tell).boxed_local()),
    ("A claim grows and does not shrink", |stage, tell| volumes::grow(stage, tell).boxed_local()),
    ("A student moves from table to table", |stage, tell| rows::follow(stage, tell).boxed_local()),
    ("A plugin is replaced while it works", |stage, tell| plugins::replace(stage, tell).boxed_local()),
    ("A stranger moves in", |stage, tell| plugins::contain(stage, tell).boxed_local()),
];

/// Builds what is missing, tells the story and, unless `once`, stays until Ctrl-C. Fails when a step of the story did.
pub fn run(once: bool) -> Result<ExitCode> {
    let mut tell = Teller::stdout();
    tell.title();
    let progress = Progress::stderr();
    // First, since it may be for a person to do.
    postgres::bring(&progress)?;
    let workspace = Workspace::locate()?;
    let built = workspace.build(&progress)?;
    let cluster = Cluster::open(&built.program("control-plane"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("make a runtime")?;
    runtime.block_on(async {
        // From here on a signal ends the demo in order: hosts and stores are children that must not outlive it.
        let interrupted = interrupted()?;
        tokio::pin!(interrupted);
        let set_up = Stage::set_up(cluster, built, workspace.root(), &progress);
        let mut stage = tokio::select! {
            stage = set_up => stage?,
            () = &mut interrupted => return Ok(ExitCode::FAILURE),
        };
        let whole = tokio::select! {
            () = story(&mut stage, &mut tell) => true,
            () = &mut interrupted => false,
        };
        if whole {
            tell.summary(&stage).await?;
            if !once {
                tell.what_next(&stage);
                tokio::select! {
                    () = &mut interrupted => {}
                    error = stage.broken() => return Err(error),
                }
            }
        }
        tell.clearing();
        stage.clear().await?;
        Ok(if whole && tell.all_went_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

async fn story(stage: &mut Stage, tell: &mut Teller) {
    for (title, step) in STORY {
        tell.begin(title);
        let result = step(stage, tell).await;
        tell.end(result);
    }
}

/// Completes at Ctrl-C, SIGTERM or the terminal's end.
fn interrupted() -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

/// A path as a person in `root` would type it.
fn typed(path: &Path, root: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}
