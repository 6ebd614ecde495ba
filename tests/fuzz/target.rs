//! One target as a program for cargo-fuzz: the one that the program is called after.
#![no_main]

/// With its files where the workspace has them.
#[path = "../src"]
mod src {
    pub mod fuzz;
}

use std::{env, fs, process, sync::LazyLock};

use src::fuzz::{
    Target, guest,
    mutate::{Dice, mutate},
};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

/// With this word the program is the sandbox's compiler.
const COMPILE: &str = "compile-component";

static TARGET: LazyLock<Target> = LazyLock::new(|| Target::find(env!("CARGO_BIN_NAME")).expect("it is one of them"));

fuzz_target!(
    init: {
        if env::args().nth(1).is_some_and(|word| word == COMPILE) {
            let code = operetta_sandbox::compile_main(false);
            process::exit(i32::from(code != process::ExitCode::SUCCESS));
        }
        if TARGET.guests {
            let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
            let component = fs::read(format!("{root}/target/wasm32-unknown-unknown/plugin/imports.wasm"));
            let component = component.expect("the guest of the tests; README.md says how to build it");
            let compiler = vec![env::current_exe().expect("it has a path").into(), COMPILE.into()];
            guest::prepare(format!("{root}/target/fuzz-state").into(), compiler, component);
        }
    },
    |data: &[u8]| (TARGET.run)(data)
);

// By turns as libFuzzer does, which knows nothing of documents, and as we do.
fuzz_mutator!(|data: &mut [u8], size: usize, most: usize, seed: u32| {
    let mut dice = Dice::new(seed.into());
    if dice.below(2) == 0 {
        return fuzzer_mutate(data, size, most);
    }
    let made = mutate(&data[..size], &data[..size], &mut dice);
    let size = made.len().min(most);
    data[..size].copy_from_slice(&made[..size]);
    size
});
