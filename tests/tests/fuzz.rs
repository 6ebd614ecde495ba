//! Every border with the inputs of its corpus, and with what the dice make of them: some seconds of what cargo-fuzz does for as long as one likes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::{
    collections::BTreeSet,
    fs,
    panic::catch_unwind,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use operetta_tests::{
    components::Workspace,
    fuzz::{
        TARGETS, Target, guest,
        mutate::{Dice, mutate},
    },
    progress::Progress,
};

/// No input may take longer, on a machine that does other things too.
const SLOW: Duration = Duration::from_secs(5);

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn run(target: &Target, what: &str, input: &[u8]) {
    let began = Instant::now();
    let ended = catch_unwind(|| (target.run)(input));
    let took = began.elapsed();
    if ended.is_ok() && took < SLOW {
        return;
    }
    // As cargo-fuzz leaves it, to be run again and, once the cause is gone, to be added to the corpus.
    let left = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{}", target.name));
    fs::write(&left, input).unwrap();
    panic!("{}, {what}: failed or took {took:?}; the input lies in {}", target.name, left.display());
}

fn try_target(name: &str) {
    let target = Target::find(name).unwrap();
    if target.guests {
        let guest = Workspace::locate().unwrap().guest("imports", &Progress::stderr()).unwrap();
        let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
        guest::prepare(state, vec![env!("CARGO_BIN_EXE_compile-component").into()], guest);
    }
    let seeds = corpus(&target);
    assert!(!seeds.is_empty(), "{name} has no corpus");
    for (path, seed) in &seeds {
        run(&target, &path.display().to_string(), seed);
    }
    let long = if std::env::var_os("OPERETTA_LONG").is_some() { 100 } else { 1 };
    let mut dice = Dice::new(1);
    let mut last = seeds[0].1.clone();
    for number in 0..long * target.inputs {
        let (one, other) = (&seeds[dice.below(seeds.len())].1, &seeds[dice.below(seeds.len())].1);
        // Now and then on from what came out before, so that changes add up.
        let from = if dice.below(3) == 0 { &last } else { one };
        let made = mutate(from, other, &mut dice);
        run(&target, &format!("input {number}"), &made);
        last = made;
    }
}

macro_rules! borders {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            try_target(stringify!($name));
        })*
        const TRIED: &[&str] = &[$(stringify!($name)),*];
    };
}

borders!(component, load, manifest, document, name, route, selector, apply, calls, guest);

#[test]
fn every_target_is_tried_here_and_known_to_cargo_fuzz() {
    let names: BTreeSet<_> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names, TRIED.iter().copied().collect());
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/Cargo.toml")).unwrap();
    let programs = manifest.split("[[bin]]").skip(1).filter_map(|bin| bin.split('"').nth(1));
    assert_eq!(programs.collect::<BTreeSet<_>>(), names);
}
