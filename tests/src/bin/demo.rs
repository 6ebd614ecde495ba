//! `cargo demo`: parses its arguments and tells the story.

use std::process::ExitCode;

use clap::Parser;
use operetta_tests::demo;

/// Five operators as sandboxed WebAssembly components, on a real Kubernetes API server, while you watch.
#[derive(Debug, Parser)]
#[command(
    after_help = "OPERETTA_KUBECONFIG names a kubeconfig of a cluster to use instead of the local control plane."
)]
struct Arguments {
    /// End after the story; the exit code says whether all of it happened
    #[arg(long)]
    once: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    demo::run(arguments.once).unwrap_or_else(|error| {
        eprintln!("demo: {error:#}");
        ExitCode::FAILURE
    })
}
