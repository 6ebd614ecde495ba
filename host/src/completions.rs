//! `operetta completions`: what a shell needs to complete the command line, made from the command line itself.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{cli::Cli, output::print};

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

pub(crate) fn completions(args: CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "operetta", &mut script);
    print(&String::from_utf8(script)?)
}
