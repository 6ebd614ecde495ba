//! Builds the host and the plugins with a cargo inside a cargo, into the workspace's own target directory, so that nothing is built
//! twice. It decides nothing about them: what a plugin is called, what it brings and what it asks for is the plugin's own business.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, ErrorKind},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use operetta::cargo::{TARGET, not_inherited};
use serde::Deserialize;

use crate::progress::{Progress, Step};

/// The packages under `plugins/` that are operators: the one list of them.
pub const PLUGINS: [&str; 5] = ["petstore", "immortal-container", "memcached", "demo-volume", "postgres-writer"];

/// What tests and demo run in a whole host besides them: a stranger, and another version of a plugin. Nobody publishes them.
pub const FIXTURES: [Recipe; 2] = [
    Recipe { name: "hostile", package: "hostile", features: None },
    Recipe { name: "memcached-next", package: "memcached", features: Some("next") },
];

/// A component and how it is built.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// The component's name, and that of its file.
    pub name: &'static str,
    /// The package that it is built from.
    pub package: &'static str,
    /// The package's features, other than its default ones.
    pub features: Option<&'static str>,
}

impl Recipe {
    /// A package as it is.
    const fn of(package: &'static str) -> Self {
        Self { name: package, package, features: None }
    }
}

/// What those compile for who know nothing of plugins: with a standard library on WASI 0.2, whose linker makes components anyway.
const ORDINARY_TARGET: &str = "wasm32-wasip2";

/// The profile of host and tests, so that a benchmark's host is optimised and a test's is shared with `cargo test`.
const HOST_PROFILE: &str = if cfg!(debug_assertions) { "dev" } else { "release" };

/// This workspace on disk.
#[derive(Debug, Clone, Deserialize)]
pub struct Workspace {
    #[serde(rename = "workspace_root")]
    root: PathBuf,
    #[serde(rename = "target_directory")]
    target: PathBuf,
}

/// A built plugin: the component and, beside it, its Plugin document.
#[derive(Debug, Clone)]
pub struct Component {
    /// Its name, and that of its plugin.
    pub name: &'static str,
    /// The package that it was built from.
    pub package: &'static str,
    /// `NAME.wasm`.
    pub wasm: PathBuf,
    /// `NAME.yaml`.
    pub document: PathBuf,
}

impl Workspace {
    /// Asks cargo where the workspace and its target directory are.
    pub fn locate() -> Result<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output =
            cargo(here, ["metadata", "--no-deps", "--format-version=1"]).output().context("run `cargo metadata`")?;
        if !output.status.success() {
            bail!("`cargo metadata` failed:\n{}", String::from_utf8_lossy(&output.stderr));
        }
        serde_json::from_slice(&output.stdout).context("understand `cargo metadata`")
    }

    /// The root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of the built plugins.
    pub fn plugin_dir(&self) -> PathBuf {
        self.target.join("plugins")
    }

    /// Builds every program of the workspace and returns the directory that holds them.
    pub fn programs(&self, progress: &Progress) -> Result<PathBuf> {
        let mut step = progress.step("host");
        // The whole workspace, as `cargo test` does: a selection would have other features, and build its dependencies again.
        let mut command = cargo(&self.root, ["build", "--workspace", "--bins", "--profile", HOST_PROFILE]);
        watch(&mut command, &mut step)?;
        step.done("built");
        Ok(self.target.join(if HOST_PROFILE == "dev" { "debug" } else { HOST_PROFILE }))
    }

    /// Builds the host and returns the `operetta` program.
    pub fn host(&self, progress: &Progress) -> Result<PathBuf> {
        Ok(self.programs(progress)?.join("operetta"))
    }

    /// Builds every plugin into [`Workspace::plugin_dir`] as `operetta build` hands it on: with its manifest written into it, and its Plugin document beside it.
    pub fn plugins(&self, host: &Path, progress: &Progress) -> Result<Vec<Component>> {
        self.components("plugins", &PLUGINS.map(Recipe::of), host, progress)
    }

    /// Builds everything: programs, plugins and fixtures.
    pub fn build(&self, progress: &Progress) -> Result<Built> {
        let programs = self.programs(progress)?;
        let host = programs.join("operetta");
        let mut components = self.plugins(&host, progress)?;
        components.extend(self.components("fixtures", &FIXTURES, &host, progress)?);
        Ok(Built { programs, state: self.state_dir(), components })
    }

    /// Where the host keeps what it compiled to write the documents.
    fn state_dir(&self) -> PathBuf {
        self.target.join("state")
    }

    /// Builds one package to a component and returns its bytes, without a Plugin document.
    pub fn guest(&self, package: &str, progress: &Progress) -> Result<Vec<u8>> {
        let mut step = progress.step(package);
        let built = self.compile(TARGET, &[package], None, progress, &mut step)?;
        step.done("built");
        read(&built, package)
    }

    /// The same with an ordinary toolchain's target.
    pub fn ordinary_guest(&self, package: &str, progress: &Progress) -> Result<Vec<u8>> {
        let mut step = progress.step(package);
        let built = self.compile(ORDINARY_TARGET, &[package], None, progress, &mut step)?;
        step.done("built");
        read(&built, package)
    }

    /// Compiles packages to components and returns the directory that holds them.
    fn compile(
        &self,
        target: &str,
        packages: &[&str],
        features: Option<&str>,
        progress: &Progress,
        step: &mut Step,
    ) -> Result<PathBuf> {
        ensure_target(&self.root, target, progress)?;
        let mut command = cargo(&self.root, ["build", "--profile=plugin", "--target", target]);
        command.args(packages.iter().flat_map(|package| ["--package", package]));
        command.args(features.into_iter().flat_map(|features| ["--features", features]));
        // Flags that somebody set for this machine's programs (a CPU, another linker) mean nothing to a component.
        command.env_remove("RUSTFLAGS");
        watch(&mut command, step)?;
        Ok(self.target.join(target).join("plugin"))
    }

    /// Builds components into the directory `what` of the target directory.
    fn components(&self, what: &str, recipes: &[Recipe], host: &Path, progress: &Progress) -> Result<Vec<Component>> {
        let mut step = progress.step(what);
        let directory = self.target.join(what);
        fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
        let mut components = Vec::new();
        // Those that are built alike in one go. What cargo leaves is named after the package, so each go's results are taken before the next begins.
        for alike in recipes.chunk_by(|one, other| one.features == other.features) {
            let packages: Vec<_> = alike.iter().map(|recipe| recipe.package).collect();
            let features = alike.first().and_then(|recipe| recipe.features);
            let built = self.compile(TARGET, &packages, features, progress, &mut step)?;
            for Recipe { name, package, .. } in alike {
                step.say(name);
                let from = built.join(format!("{}.wasm", package.replace('-', "_")));
                let wasm = directory.join(format!("{name}.wasm"));
                let document = directory.join(format!("{name}.yaml"));
                if !document.is_file() || [host, &from].into_iter().any(|made_of| newer(made_of, &wasm)) {
                    // Not a person's document, and of a host that may have written it otherwise.
                    let _ = fs::remove_file(&document);
                    finish(host, &from, &wasm, &self.state_dir())?;
                }
                components.push(Component { name, package, wasm, document });
            }
        }
        let shown = directory.strip_prefix(&self.root).unwrap_or(&directory).display();
        step.done(&format!("{} components in {shown}", components.len()));
        Ok(components)
    }
}

/// What was built.
#[derive(Debug, Clone)]
pub struct Built {
    programs: PathBuf,
    state: PathBuf,
    components: Vec<Component>,
}

impl Built {
    /// The `operetta` program.
    pub fn host(&self) -> PathBuf {
        self.program("operetta")
    }

    /// A program of the workspace.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// A host's state directory that holds all components compiled.
    pub fn state_dir(&self) -> &Path {
        &self.state
    }

    /// The files that `operetta install` takes: each component once, without its other versions.
    pub fn installable(&self) -> Vec<&Path> {
        let first = self.components.iter().filter(|component| component.name == component.package);
        first.map(|component| component.wasm.as_path()).collect()
    }

    /// The component of a package.
    pub fn component(&self, name: &str) -> Result<&Component> {
        self.components.iter().find(|component| component.name == name).with_context(|| format!("{name} is not built"))
    }
}

impl Component {
    /// Its bytes.
    pub fn code(&self) -> Result<Vec<u8>> {
        fs::read(&self.wasm).with_context(|| format!("read {}", self.wasm.display()))
    }
}

/// The component of a package among what was built.
fn read(built: &Path, package: &str) -> Result<Vec<u8>> {
    let wasm = built.join(format!("{package}.wasm"));
    fs::read(&wasm).with_context(|| format!("read the component {}", wasm.display()))
}

/// Whether the component is older than what it is made of.
fn newer(made_of: &Path, wasm: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    modified(made_of) > modified(wasm)
}

/// `operetta build` of a component that is compiled already.
fn finish(host: &Path, from: &Path, wasm: &Path, state: &Path) -> Result<()> {
    let mut command = Command::new(host);
    command.arg("build").arg(from).arg("--out").arg(wasm).arg("--state-dir").arg(state).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("run {}", host.display()))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("`operetta build {}` failed ({}):\n{why}", from.display(), output.status);
    }
    Ok(())
}

/// Puts `content` at `path` in one step, so that a host that watches the directory never sees half of it. Whether there was anything to do.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<bool> {
    if fs::read(path).is_ok_and(|present| present == content) {
        return Ok(false);
    }
    let directory = path.parent().context("a file has a directory")?;
    let mut file = tempfile::Builder::new()
        .prefix(".")
        .suffix(".tmp")
        .tempfile_in(directory)
        .context("create a temporary file")?;
    std::io::Write::write_all(&mut file, content).with_context(|| format!("write {}", path.display()))?;
    file.persist(path).with_context(|| format!("move into place {}", path.display()))?;
    Ok(true)
}

/// A cargo in `directory` that takes the caller's settings, but not what an outer cargo said of the calling program.
pub fn cargo<'a>(directory: &Path, arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    for name in not_inherited() {
        command.env_remove(name);
    }
    command
}

/// Adds the compilation target to the toolchain if it is not there.
fn ensure_target(directory: &Path, target: &str, progress: &Progress) -> Result<()> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", target])
        .current_dir(directory)
        .output()
        .context("ask rustc where its libraries are")?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if output.status.success() && fs::read_dir(&libraries).is_ok_and(|mut files| files.next().is_some()) {
        return Ok(());
    }
    let mut step = progress.step("wasm target");
    let mut command = Command::new("rustup");
    command.args(["target", "add", target]).current_dir(directory);
    watch(&mut command, &mut step).with_context(|| {
        format!(
            "plugins are compiled for {target}, which this Rust toolchain lacks: install it (`rustup target add {target}`, or your \
             distribution's package). Where rustup has no network, put the component rust-src into the toolchain and build them with \
             `RUSTC_BOOTSTRAP=1 cargo build --profile=plugin --target {target} -Zbuild-std=std,panic_abort --package NAME`"
        )
    })?;
    step.done("added");
    Ok(())
}

/// Runs a command to its end and shows the last line it said; if it fails, everything it said.
pub(crate) fn watch(command: &mut Command, step: &mut Step) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let arguments = command.get_args().map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
    let line = format!("{} {arguments}", Path::new(&program).file_name().unwrap_or_default().to_string_lossy());
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                anyhow::anyhow!("the program `{program}` is not on the PATH: install it, or run `{line}` elsewhere")
            }
            _ => anyhow::Error::new(error).context(format!("run `{line}`")),
        })?;
    let mut said = String::new();
    for text in child.stderr.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
        let text = text.with_context(|| format!("read what `{line}` says"))?;
        step.say(text.trim());
        said.push_str(&text);
        said.push('\n');
    }
    let status = child.wait().with_context(|| format!("wait for `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status}):\n{said}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_only_when_its_content_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.wasm");
        assert!(replace(&path, b"one").unwrap());
        assert!(!replace(&path, b"one").unwrap());
        assert!(replace(&path, b"two").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "a temporary file stayed");
    }
}
