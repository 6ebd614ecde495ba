//! The program `operetta`.

use std::process::ExitCode;

fn main() -> ExitCode {
    operetta::cli::main()
}
