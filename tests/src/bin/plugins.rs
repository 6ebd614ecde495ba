//! Builds all plugins into `target/plugins`: `NAME.wasm`, and `NAME.yaml` beside each.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use operetta_tests::{components::Workspace, progress::Progress};

/// Build every plugin of this workspace into target/plugins, each with its Plugin document beside it.
#[derive(Debug, Parser)]
struct Arguments {}

fn main() -> ExitCode {
    let Arguments {} = Arguments::parse();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plugins: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let progress = Progress::stderr();
    let workspace = Workspace::locate()?;
    let host = workspace.host(&progress)?;
    for component in workspace.plugins(&host, &progress)? {
        println!("{}", component.wasm.display());
    }
    Ok(())
}
