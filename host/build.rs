//! Packs what `operetta new` lays down beside a project: the SDK with the contract, and the versions of everything else that this workspace is tested with. Reads nothing
//! outside the workspace, and fetches nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    error::Error,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What the SDK consists of, besides its Cargo.toml; `wit` is a link to the contract.
const SDK: [&str; 3] = ["README.md", "src", "wit"];
/// Manifests that take versions from the workspace, and where they go.
const MANIFESTS: [(&str, &str); 3] = [
    ("../plugins/sdk/Cargo.toml", "sdk.toml"),
    ("template/Cargo.toml.in", "project.toml"),
    ("template/tests-cargo.toml.in", "tests.toml"),
];

fn main() -> Result<()> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let workspace = read("../Cargo.toml")?;
    let mut direct = BTreeSet::new();
    for (from, to) in MANIFESTS {
        let manifest = flattened(&read(from)?, &workspace)?;
        direct.extend(dependencies(&manifest).map(str::to_owned));
        fs::write(out.join(to), manifest)?;
    }
    fs::write(out.join("Cargo.lock"), locked(&read("../Cargo.lock")?, direct))?;
    fs::write(out.join("sdk.rs"), files()?)?;
    Ok(())
}

fn read(path: &str) -> Result<String> {
    println!("cargo::rerun-if-changed={path}");
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}").into())
}

/// A Rust expression: each file of the SDK with its text.
fn files() -> Result<String> {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../plugins/sdk");
    let mut todo: Vec<_> = SDK.map(|name| folder.join(name)).into();
    let mut found = BTreeSet::new();
    while let Some(path) = todo.pop() {
        println!("cargo::rerun-if-changed={}", path.display());
        if path.is_dir() {
            for entry in fs::read_dir(&path)? {
                todo.push(entry?.path());
            }
        } else {
            found.insert(path);
        }
    }
    let mut text = String::from("&[\n");
    for path in &found {
        let utf8 =
            |path: &Path| path.to_str().map(str::to_owned).ok_or_else(|| format!("{}: no UTF-8", path.display()));
        writeln!(text, "({:?}, include_str!({:?})),", utf8(path.strip_prefix(&folder)?)?, utf8(path)?)?;
    }
    Ok(text + "]")
}

/// The lines `name = value` of a section.
fn section<'a>(manifest: &'a str, name: &str) -> BTreeMap<&'a str, &'a str> {
    let head = format!("[{name}]");
    let lines = manifest.lines().skip_while(move |line| *line != head).skip(1);
    lines.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once(" = ")).collect()
}

/// The manifest with what it takes from its workspace written out, and without the workspace's lints.
fn flattened(manifest: &str, workspace: &str) -> Result<String> {
    let package = section(workspace, "workspace.package");
    let dependencies = section(workspace, "workspace.dependencies");
    let mut text = String::new();
    let mut head = "";
    for line in manifest.lines() {
        if line.starts_with('[') {
            head = line;
        }
        if head == "[lints]" {
            continue;
        }
        let plain = line.strip_suffix(".workspace = true").map(|name| (name, ""));
        let more = || line.strip_suffix("] }")?.split_once(" = { workspace = true, features = [");
        let Some((name, features)) = plain.or_else(more) else {
            writeln!(text, "{line}")?;
            continue;
        };
        let values = if head == "[package]" { &package } else { &dependencies };
        let value = values.get(name).ok_or_else(|| format!("the workspace says nothing of {name}"))?;
        match value.split_once("features = [") {
            Some((before, after)) if !features.is_empty() => {
                writeln!(text, "{name} = {before}features = [{features}, {after}")?;
            }
            _ => writeln!(text, "{name} = {value}")?,
        }
    }
    Ok(text.trim_end().to_owned() + "\n")
}

/// What a manifest depends on.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    manifest.lines().filter_map(move |line| {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]");
        }
        if inside { line.split_once(" = ").map(|(name, _)| name) } else { None }
    })
}

/// The lock file's entries of these packages and of all that they need in turn, as far as a registry has them.
fn locked(lock: &str, direct: BTreeSet<String>) -> String {
    let (head, entries) = lock.split_once("[[package]]\n").unwrap_or((lock, ""));
    let entries: Vec<_> = entries.split("[[package]]\n").map(|entry| (entry, section_of(entry))).collect();
    let mut todo: Vec<String> = direct.into_iter().collect();
    let mut wanted = BTreeSet::new();
    while let Some(name) = todo.pop() {
        for (entry, package) in &entries {
            // A name, or a name and a version where there are several.
            let is_it = name == package.name || name == format!("{} {}", package.name, package.version);
            if is_it && package.published && wanted.insert(*entry) {
                todo.extend(package.needs.iter().map(|need| (*need).to_owned()));
            }
        }
    }
    let chosen: Vec<_> = entries.iter().map(|(entry, _)| *entry).filter(|entry| wanted.contains(entry)).collect();
    chosen
        .iter()
        .fold(head.trim_end().to_owned() + "\n", |text, entry| text + "\n[[package]]\n" + entry.trim_end() + "\n")
}

struct Locked<'a> {
    name: &'a str,
    version: &'a str,
    published: bool,
    needs: Vec<&'a str>,
}

fn section_of(entry: &str) -> Locked<'_> {
    let value = |name: &str| {
        let line = entry.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        line.map(|text| text.trim_matches('"')).unwrap_or_default()
    };
    let needs = entry.lines().filter_map(|line| line.strip_prefix(" \"")?.strip_suffix("\",")).collect();
    Locked { name: value("name"), version: value("version"), published: !value("source").is_empty(), needs }
}
