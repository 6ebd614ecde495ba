//! The house's rules, as tests: which crate may use which, what every file looks like, what is never written down. Each test lists all
//! offenders at once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;

/// Who may use whom in this workspace, and what each may not take from outside (`*` stands for any ending). The design in one table.
const LAYERS: &[(&str, &[&str], &[&str])] = &[
    ("operetta-core", &[], &["kube*", "k8s-openapi", "wasmtime*", "wasmparser", "tonic*", "hyper*", "notify", "clap"]),
    ("operetta-api", &["operetta-core"], &["wasmtime*", "wasmparser", "tonic*"]),
    ("operetta-sandbox", &["operetta-core"], &["kube*", "k8s-openapi"]),
    ("operetta-cluster", &["operetta-core", "operetta-api"], &["wasmtime*", "wasmparser"]),
    ("operetta", &["operetta-core", "operetta-api", "operetta-sandbox", "operetta-cluster"], &[]),
    ("operetta-sdk", &[], &["wasmtime*", "tokio*"]),
    ("petstore", &["operetta-sdk"], &["wasmtime*"]),
    ("petstore-service", &[], &["wasmtime*", "kube*"]),
    ("immortal-container", &["operetta-sdk"], &["wasmtime*"]),
    ("memcached", &["operetta-sdk"], &["wasmtime*"]),
    ("demo-volume", &["operetta-sdk"], &["wasmtime*"]),
    ("postgres-writer", &["operetta-sdk"], &["wasmtime*"]),
    ("hostile", &["operetta-sdk"], &["wasmtime*"]),
    ("imports", &["operetta-sdk"], &["wasmtime*"]),
    ("ordinary", &[], &["operetta*", "wasmtime*"]),
    (TESTS, ANYTHING, &[]),
    ("operetta-fuzz", ANYTHING, &[]),
];
/// What the tests inside a crate may use beyond that.
const IN_TESTS: [(&str, &str); 1] = [("petstore", "petstore-service")];
const TESTS: &str = "operetta-tests";
const ANYTHING: &[&str] = &["*"];

/// What the root directory holds, besides dotfiles.
const ROOT: [&str; 10] =
    ["Cargo.lock", "Cargo.toml", "LICENSE", "README.md", "config", "host", "plugins", "target", "tests", "wit"];

/// A module fits in a head at about 400 lines; at this length it no longer does.
const LONGEST_FILE: usize = 800;

/// Files whose contents tools write.
const WRITTEN_BY_TOOLS: [&str; 3] = ["Cargo.lock", "go.mod", "go.sum"];

/// What must not be written down: where packages and images are fetched from is for whoever fetches them to say, and a path of one
/// machine is wrong on every other. In two halves each, so that this file does not offend.
const NEVER_WRITTEN: [(&str, &str); 13] = [
    ("crates", ".io"),
    ("docker", ".io"),
    ("gcr", ".io"),
    ("ghcr", ".io"),
    ("quay", ".io"),
    ("registry.k8s", ".io"),
    ("golang", ".org"),
    ("npmjs", ".org"),
    ("pypi", ".org"),
    ("../", "shared"),
    ("/wo", "rk/"),
    ("/ro", "ot/"),
    ("/ho", "me/"),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    license: Option<String>,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Target {
    src_path: PathBuf,
}

/// Of the workspace, and of the package beside it that cargo-fuzz builds.
fn metadata() -> Metadata {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of = |folder: &Path| -> Metadata {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--no-deps", "--format-version=1"])
            .current_dir(folder)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let mut metadata = of(here);
    metadata.packages.extend(of(&here.join("fuzz")).packages);
    metadata
}

fn root() -> PathBuf {
    metadata().workspace_root
}

/// Every file of the repository, relative to its root.
fn files() -> Vec<PathBuf> {
    fn walk(root: &Path, directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(root.join(directory)).unwrap() {
            let entry = entry.unwrap();
            let path = directory.join(entry.file_name());
            match entry.file_type().unwrap() {
                // Build results may also lie in a `target` of a package that is no member.
                kind if kind.is_dir() && entry.file_name() != "target" && entry.file_name() != ".git" => {
                    walk(root, &path, found);
                }
                // In a linked worktree `.git` is a file, which names the machine's paths.
                kind if kind.is_file() && entry.file_name() != ".git" => found.push(path),
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), Path::new(""), &mut found);
    found.sort();
    found
}

/// The Rust files with their contents.
fn modules() -> BTreeMap<PathBuf, String> {
    let root = root();
    let rust = files().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    rust.map(|path| (path.clone(), fs::read_to_string(root.join(&path)).unwrap())).collect()
}

/// Fails with every offender, if there is one.
fn nobody(rule: &str, offenders: impl IntoIterator<Item = String>) {
    let list = offenders.into_iter().fold(String::new(), |mut list, offender| {
        writeln!(list, "  {offender}").unwrap();
        list
    });
    assert!(list.is_empty(), "{rule}, but:\n{list}");
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

#[test]
fn each_layer_uses_only_the_layers_below_it() {
    let packages = metadata().packages;
    let ours: BTreeSet<_> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut offenders = Vec::new();
    for Package { name, dependencies, .. } in &packages {
        let Some((_, inside, outside)) = LAYERS.iter().find(|(layer, ..)| layer == name) else {
            offenders.push(format!("{name} has no place in the table of layers"));
            continue;
        };
        for Dependency { name: dependency, kind } in dependencies {
            let in_tests = kind.as_deref() == Some("dev");
            let allowed = if ours.contains(dependency.as_str()) {
                dependency != TESTS && inside.iter().any(|pattern| matches(pattern, dependency))
                    || in_tests && IN_TESTS.contains(&(name, dependency))
            } else {
                in_tests || !outside.iter().any(|pattern| matches(pattern, dependency))
            };
            if !allowed {
                offenders.push(format!("{name} uses {dependency}"));
            }
        }
    }
    for (layer, ..) in LAYERS.iter().filter(|(layer, ..)| !ours.contains(layer)) {
        offenders.push(format!("{layer} is in the table of layers and does not exist"));
    }
    nobody("each layer uses only what lies below it", offenders);
}

#[test]
fn every_module_says_what_it_owns() {
    let offenders = modules().into_iter().filter(|(_, text)| {
        let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        !first.starts_with("//! ")
    });
    nobody("every module opens with //!", offenders.map(|(path, _)| path.display().to_string()));
}

#[test]
fn no_file_is_too_long_to_read() {
    let offenders = modules().into_iter().map(|(path, text)| (path, text.lines().count()));
    let offenders = offenders.filter(|(_, lines)| *lines > LONGEST_FILE);
    nobody(
        "no file is longer than 800 lines",
        offenders.map(|(path, lines)| format!("{} has {lines}: split it along an idea", path.display())),
    );
}

/// The modules that a file declares in files of their own.
fn declared(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("pub").map_or(line, |rest| {
            // `pub`, `pub(crate)`, `pub(super)`, `pub(in path)`
            rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest).trim_start()
        });
        line.strip_prefix("mod ")?.strip_suffix(';')
    })
}

#[test]
fn no_module_is_an_orphan() {
    let root = root();
    let modules = modules();
    let targets = metadata().packages.into_iter().flat_map(|package| package.targets);
    let mut todo: Vec<(PathBuf, bool)> =
        targets.map(|target| (target.src_path.strip_prefix(&root).unwrap().to_owned(), true)).collect();
    let mut reached = BTreeSet::new();
    while let Some((file, is_root)) = todo.pop() {
        let Some(text) = modules.get(&file) else { continue };
        if !reached.insert(file.clone()) {
            continue;
        }
        let owns_folder = is_root || file.ends_with("mod.rs");
        let folder = if owns_folder { file.parent().unwrap().to_owned() } else { file.with_extension("") };
        for name in declared(text) {
            todo.push((folder.join(format!("{name}.rs")), false));
            todo.push((folder.join(name).join("mod.rs"), false));
        }
    }
    let offenders = modules.keys().filter(|path| !reached.contains(*path));
    nobody(
        "every file belongs to a crate",
        offenders.map(|path| format!("{} is declared by no module", path.display())),
    );
}

#[test]
fn nothing_is_written_that_holds_only_here() {
    let root = root();
    let words: Vec<_> = NEVER_WRITTEN.iter().map(|(one, two)| format!("{one}{two}")).collect();
    let mut offenders = Vec::new();
    for path in files() {
        if WRITTEN_BY_TOOLS.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        // What is no text says nothing.
        let Ok(text) = fs::read_to_string(root.join(&path)) else { continue };
        for (number, line) in text.lines().enumerate() {
            for word in words.iter().filter(|word| line.contains(*word)) {
                offenders.push(format!("{}:{} has {word}", path.display(), number + 1));
            }
        }
    }
    nobody("no registry, no path of one machine is written down", offenders);
}

#[test]
fn the_root_is_tidy() {
    let root = root();
    let present = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let offenders = present.filter(|name| !name.starts_with('.') && !ROOT.contains(&name.as_str()));
    nobody("the root holds what the README's tour names", offenders);
}

#[test]
fn the_licence_is_there_and_every_package_names_it() {
    let licence = fs::read_to_string(root().join("LICENSE")).unwrap();
    assert!(licence.contains("Apache License") && licence.contains("END OF TERMS AND CONDITIONS"));
    let offenders = metadata().packages.into_iter().filter(|package| package.license.as_deref() != Some("Apache-2.0"));
    nobody("every package names its licence", offenders.map(|package| package.name));
}

#[test]
fn the_sdk_is_published_with_its_contract() {
    let output = Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "--package", "operetta-sdk"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).unwrap();
    let contract = files().into_iter().filter(|path| path.starts_with("wit")).map(|path| path.display().to_string());
    let needed = contract.chain(["README.md".to_owned(), "src/lib.rs".to_owned()]);
    nobody(
        "the SDK's package holds all that it is built from",
        needed.filter(|path| !listed.lines().any(|line| line == path)),
    );
}

#[test]
fn the_readme_shows_the_plugin_that_the_sdk_compiles() {
    let example = |path: &str| {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let (_, code) = text.split_once("```rust\n").expect(path);
        code.split_once("```").expect(path).0.to_owned()
    };
    // The SDK's README is its documentation, so the compiler has seen that one.
    assert_eq!(example("README.md"), example("plugins/sdk/README.md"));
}
