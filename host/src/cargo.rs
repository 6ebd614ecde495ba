//! Cargo, as this program runs it: finds the plugin of a folder, sees to the wasm target, builds the component.
//!
//! What the compiler says goes to standard error as cargo prints it. Refuses to judge the component.

use std::{
    ffi::{OsStr, OsString},
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, bail, ensure};
use operetta_core::name::PluginName;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

/// What plugins are compiled for.
pub const TARGET: &str = "wasm32-unknown-unknown";
/// Ships inside the Rust toolchain and turns what rustc emits into a component.
const LINKER: &str = "target.wasm32-unknown-unknown.linker=\"wasm-component-ld\"";

/// Asked once: a person who builds again and again should not wait for the answer each time.
static TARGET_THERE: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();

/// What an outer cargo and rustc tell the programs that they run. A cargo that inherits it takes itself for somebody else, or builds everything anew.
const NOT_INHERITED: [&str; 8] = [
    "CARGO_BIN_NAME",
    "CARGO_CRATE_NAME",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_MAKEFLAGS",
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_PATH",
    "CARGO_PRIMARY_PACKAGE",
    "OUT_DIR",
];
const NOT_INHERITED_PREFIXES: [&str; 3] = ["CARGO_PKG_", "CARGO_BIN_EXE_", "DEP_"];

/// A package that is a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    /// The plugin's name: the package's, with `-` for `_`.
    pub name: PluginName,
    /// What cargo calls it.
    pub package: String,
    /// The folder of its Cargo.toml.
    pub root: PathBuf,
    /// Where cargo puts what it builds.
    pub target: PathBuf,
    /// The folders whose files it is made of: its own, and those of the packages that it names by path.
    pub sources: Vec<PathBuf>,
}

/// How to build.
#[derive(Debug, Clone)]
pub struct Build {
    /// A profile of cargo's: `dev`, `release`, or one of the project's own.
    pub profile: String,
    /// Whether cargo and what it starts are a process group of their own, which ends when the build is dropped. Else Ctrl-C at a terminal ends them too.
    pub abandonable: bool,
}

/// Why there is no component.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The compiler has said why on standard error.
    #[error("cargo could not build {0}; what it said stands above")]
    Failed(String),
    /// Cargo did not get as far as that.
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    targets: Vec<Target>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Target {
    crate_types: Vec<String>,
}

#[derive(Deserialize)]
struct Dependency {
    kind: Option<String>,
    path: Option<PathBuf>,
}

/// A line that cargo writes for programs.
#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Message {
    CompilerArtifact {
        manifest_path: PathBuf,
        target: Target,
        filenames: Vec<PathBuf>,
    },
    #[serde(other)]
    Other,
}

impl Target {
    fn is_component(&self) -> bool {
        self.crate_types.iter().any(|kind| kind == "cdylib")
    }
}

impl Package {
    fn root(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }

    fn is_plugin(&self) -> bool {
        self.targets.iter().any(Target::is_component)
    }
}

impl Project {
    /// The plugin that `folder` belongs to.
    ///
    /// # Errors
    /// No cargo, no package, or one that is no plugin.
    pub async fn find(folder: &Path) -> anyhow::Result<Self> {
        let shown = folder.display();
        let folder =
            folder.canonicalize().with_context(|| format!("{shown}: name the folder of a plugin's sources"))?;
        ensure!(folder.is_dir(), "{shown} is no folder; name the one that holds the plugin's Cargo.toml");
        let mut command = cargo(&folder);
        command.args(["metadata", "--no-deps", "--format-version=1"]);
        let output = command.output().await.map_err(|error| not_started(&command, error))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{shown} is no Rust project; `operetta new` makes one\n{}", said.trim_end());
        }
        let metadata: Metadata = serde_json::from_slice(&output.stdout).context("understand `cargo metadata`")?;
        Self::choose(&folder, &metadata)
    }

    fn choose(folder: &Path, metadata: &Metadata) -> anyhow::Result<Self> {
        let around = metadata.packages.iter().filter(|package| folder.starts_with(package.root()));
        let plugins: Vec<_> = metadata.packages.iter().filter(|package| package.is_plugin()).collect();
        let package = match (around.max_by_key(|package| package.root().as_os_str().len()), plugins.as_slice()) {
            (Some(package), _) => package,
            // The root of a workspace, without a package of its own.
            (None, [only]) => only,
            (None, []) => bail!("no package in {} is a plugin; `operetta new` makes one", folder.display()),
            (None, several) => {
                let names: Vec<_> = several.iter().map(|package| package.root().display().to_string()).collect();
                bail!("{} holds several plugins; name the folder of one: {}", folder.display(), names.join(", "))
            }
        };
        if !package.is_plugin() {
            bail!(
                "the package {} makes no component; a plugin's Cargo.toml has\n[lib]\ncrate-type = [\"cdylib\"]",
                package.name
            );
        }
        let name = PluginName::parse(&package.name.replace('_', "-"))
            .with_context(|| format!("the package {}: its name is the plugin's", package.name))?;
        Ok(Self {
            name,
            package: package.name.clone(),
            root: package.root().to_owned(),
            target: metadata.target_directory.clone(),
            sources: sources(package, metadata),
        })
    }

    /// Builds the component and answers where it lies.
    ///
    /// # Errors
    /// It does not compile, or cannot be compiled here.
    pub async fn build(&self, how: &Build) -> Result<PathBuf, BuildError> {
        TARGET_THERE.get_or_try_init(|| ensure_target(&self.root)).await?;
        let mut command = cargo(&self.root);
        // The component alone: were a library for its tests made as well, nothing that is unused could be left out of either.
        command.args(["rustc", "--lib", "--crate-type", "cdylib", "--target", TARGET, "--config", LINKER]);
        command.args(["--profile", &how.profile, "--package", &self.package]);
        command.arg("--message-format=json-render-diagnostics");
        command.stdout(Stdio::piped());
        if how.abandonable {
            command.process_group(0);
        }
        let child = command.spawn().map_err(|error| not_started(&command, error))?;
        let mut run = Run { child, group: how.abandonable };
        let mut component = None;
        let mut lines = BufReader::new(run.child.stdout.take().context("cargo's output")?).lines();
        while let Some(line) = lines.next_line().await.context("read what cargo says")? {
            // What is no such message is the output of somebody's build script.
            if let Ok(Message::CompilerArtifact { manifest_path, target, filenames }) = serde_json::from_str(&line)
                && target.is_component()
                && manifest_path.parent() == Some(&self.root)
            {
                component = filenames.into_iter().find(|file| file.extension().is_some_and(|ending| ending == "wasm"));
            }
        }
        let status = run.child.wait().await.context("wait for cargo")?;
        if !status.success() {
            return Err(BuildError::Failed(self.package.clone()));
        }
        Ok(component.with_context(|| format!("cargo built no component of {}", self.package))?)
    }
}

/// The folders of a package and of all that it names by path, as far as they belong to the same workspace; what they name in turn.
fn sources(package: &Package, metadata: &Metadata) -> Vec<PathBuf> {
    let mut found = vec![package.root().to_owned()];
    let mut at = 0;
    while let Some(folder) = found.get(at).cloned() {
        at += 1;
        let members = metadata.packages.iter().filter(|package| package.root() == folder);
        let dependencies = members.flat_map(|package| &package.dependencies);
        for path in
            dependencies.filter(|used| used.kind.as_deref() != Some("dev")).filter_map(|used| used.path.as_ref())
        {
            if !found.contains(path) {
                found.push(path.clone());
            }
        }
    }
    found
}

/// A cargo at work.
struct Run {
    child: Child,
    group: bool,
}

impl Drop for Run {
    /// A compiler that nobody waits for any more would only take the time of the next one.
    fn drop(&mut self) {
        // None: it has ended and was waited for.
        let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)) else { return };
        if self.group {
            // Between the end of a process and the wait for it, its id stays its own.
            let _ = kill_process_group(pid, Signal::TERM);
        }
    }
}

/// A cargo in `folder` that takes the caller's settings, but not what an outer cargo said of this program, nor flags for programs of this machine.
fn cargo(folder: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(folder).stdin(Stdio::null()).env_remove("RUSTFLAGS");
    for name in not_inherited() {
        command.env_remove(name);
    }
    command
}

/// The variables of this process that a cargo which it starts must not see.
pub fn not_inherited() -> impl Iterator<Item = OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| is_not_inherited(name))
}

fn is_not_inherited(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    NOT_INHERITED.contains(&&*name) || NOT_INHERITED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn not_started(command: &Command, error: std::io::Error) -> anyhow::Error {
    let program = command.as_std().get_program().display();
    match error.kind() {
        ErrorKind::NotFound => anyhow::anyhow!(
            "the program `{program}` is not on the PATH; a plugin is built by Rust's cargo: install Rust by rustup, or build elsewhere"
        ),
        _ => anyhow::Error::new(error).context(format!("run {program}")),
    }
}

/// Adds the compilation target to the toolchain if it is not there.
async fn ensure_target(folder: &Path) -> anyhow::Result<()> {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--print", "target-libdir", "--target", TARGET]).current_dir(folder).stdin(Stdio::null());
    let output = rustc.output().await.map_err(|error| not_started(&rustc, error))?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if output.status.success() && std::fs::read_dir(&libraries).is_ok_and(|mut files| files.next().is_some()) {
        return Ok(());
    }
    eprintln!("adding the compilation target {TARGET} to the Rust toolchain");
    let mut rustup = Command::new("rustup");
    rustup.args(["target", "add", TARGET]).current_dir(folder).stdin(Stdio::null());
    let added = rustup.status().await;
    if !added.as_ref().is_ok_and(std::process::ExitStatus::success) {
        let why = match added {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        bail!(
            "plugins are compiled for {TARGET}, which this Rust toolchain lacks, and `rustup target add {TARGET}` failed ({why}): \
             install it, by rustup or your distribution's package. Where there is no network, put the component rust-src into the \
             toolchain and build with `RUSTC_BOOTSTRAP=1 cargo build --target {TARGET} -Zbuild-std=std,panic_abort`"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(root: &str, kind: &str, uses: &[&str]) -> serde_json::Value {
        let dependencies: Vec<_> = uses.iter().map(|path| json!({"kind": null, "path": path})).collect();
        json!({
            "name": Path::new(root).file_name().unwrap().to_str().unwrap(),
            "manifest_path": format!("{root}/Cargo.toml"),
            "targets": [{"crate_types": [kind]}],
            "dependencies": dependencies,
        })
    }

    fn workspace() -> Metadata {
        let mut one = package("/w/plugins/my_one", "cdylib", &["/w/lib", "/elsewhere"]);
        one["dependencies"].as_array_mut().unwrap().push(json!({"kind": "dev", "path": "/w/only-tests"}));
        let packages =
            json!([one, package("/w/plugins/two", "cdylib", &[]), package("/w/lib", "lib", &["/w/lib/deep"])]);
        serde_json::from_value(json!({"packages": packages, "target_directory": "/w/target"})).unwrap()
    }

    #[test]
    fn a_plugin_is_found_from_its_folder_with_all_that_it_is_made_of() {
        for folder in ["/w/plugins/my_one", "/w/plugins/my_one/src"] {
            let found = Project::choose(Path::new(folder), &workspace()).unwrap();
            assert_eq!((found.name.as_str(), found.package.as_str()), ("my-one", "my_one"));
            assert_eq!(found.root, Path::new("/w/plugins/my_one"));
            let sources = ["/w/plugins/my_one", "/w/lib", "/elsewhere", "/w/lib/deep"];
            assert_eq!(found.sources, sources.map(PathBuf::from));
        }
    }

    #[test]
    fn a_nested_cargo_keeps_settings_and_forgets_who_runs_it() {
        for kept in ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_NET_OFFLINE", "RUSTUP_TOOLCHAIN", "PATH"] {
            assert!(!is_not_inherited(kept.as_ref()), "{kept} is a setting");
        }
        for forgotten in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_BIN_EXE_demo", "CARGO_ENCODED_RUSTFLAGS"] {
            assert!(is_not_inherited(forgotten.as_ref()), "{forgotten} is about one program");
        }
    }

    #[test]
    fn what_is_no_plugin_is_refused_with_what_would_be_one() {
        let error =
            |folder: &str, metadata: &Metadata| Project::choose(Path::new(folder), metadata).unwrap_err().to_string();
        let several = error("/w", &workspace());
        assert!(several.contains("name the folder of one: /w/plugins/my_one, /w/plugins/two"), "{several}");
        let library = error("/w/lib", &workspace());
        assert!(library.contains("crate-type = [\"cdylib\"]"), "{library}");
        let mut one = workspace();
        one.packages.remove(0);
        assert_eq!(Project::choose(Path::new("/w"), &one).unwrap().package, "two");
        one.packages.remove(0);
        assert!(error("/w", &one).contains("`operetta new` makes one"));
    }
}
