//! The sandbox's compiler for tests of the sandbox alone, as `operetta compile-component` is in the host.

fn main() -> std::process::ExitCode {
    operetta_sandbox::compile_main(false)
}
