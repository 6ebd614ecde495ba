//! The demo: `cargo demo`.

use std::process::ExitCode;

use clap::Parser;
use operetta_tests::demo;

/// Build everything, start a real control plane, run three operators on it and tell their story.
#[derive(Debug, Parser)]
struct Arguments {
    /// End after the story; the exit code says whether all of it came true.
    #[arg(long)]
    once: bool,
}

fn main() -> ExitCode {
    let Arguments { once } = Arguments::parse();
    match demo::run(once) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
