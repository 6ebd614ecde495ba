//! The demo: sets everything up, tells the story of the operators while doing it through the API, and stays until Ctrl-C.
//!
//! Whatever it starts ends with it; what a killed one left is stopped by the next.

mod stage;
mod story;
mod voice;

use anyhow::{Context, Result, ensure};
use tokio::signal::unix::{SignalKind, signal};

use self::{
    stage::Stage,
    voice::{say, title},
};
use crate::{
    components::Workspace,
    control_plane::{self, OVERRIDE},
    progress::Progress,
};

/// Sets up, tells the story, and stays unless `once`.
///
/// # Errors
/// Something could not be set up, or, with `once`, a part of the story did not come true.
pub fn run(once: bool) -> Result<()> {
    let progress = Progress::stderr();
    title("Setting up");
    if std::env::var_os(OVERRIDE).is_none_or(|path| path.is_empty()) {
        control_plane::build::build(&progress)?;
    }
    let built = Workspace::locate()?.build(&progress)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("make a runtime")?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for Ctrl-C")?;
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let act = async {
            let mut stage = Stage::set(built, &progress).await?;
            let failed = story::tell(&mut stage).await;
            if !once {
                stage.epilogue(failed).await?;
                std::future::pending::<()>().await;
            }
            let end = if failed == 0 { "The whole story came true." } else { "Not all of the story came true." };
            say(&format!("\n{end}"));
            stage.clear().await?;
            ensure!(failed == 0, "{failed} of the story's parts did not come true; what is marked ✗ above says why");
            Ok(())
        };
        tokio::select! {
            ended = act => ended,
            _ = interrupt.recv() => Ok(say("\nStopping everything.")),
            _ = terminate.recv() => Ok(say("\nStopping everything.")),
        }
    })
}
