//! From files to code: the sandbox as the plugins' [`Loader`], and the memory of what ran last.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use operetta_api::PluginSpec;
use operetta_core::{
    manifest::Manifest,
    name::{Digest, PluginName},
};
use operetta_sandbox::{Component, GuestBudget, LoadError, Observer, Sandbox, SandboxConfig};

use crate::{
    exit::Failed,
    plugin::{Code, LastGood, Loader, Phase, Problem},
};

/// The sandbox of this host, with everything it keeps below `state`.
///
/// # Errors
/// The folder cannot be used, or the machine refuses the address space.
pub fn sandbox(state: &Path, concurrency: u16) -> anyhow::Result<Sandbox> {
    sharing(state, concurrency, Arc::default())
}

/// The same, whose guests share this memory.
///
/// # Errors
/// As for [`sandbox`].
pub fn sharing(state: &Path, concurrency: u16, memory: Arc<GuestBudget>) -> anyhow::Result<Sandbox> {
    compiled_by(&["compile-component"], state, concurrency, memory)
}

/// One whose code is there sooner and runs slower, for what lives until somebody saves again.
///
/// # Errors
/// As for [`sandbox`].
pub fn quick_sandbox(state: &Path, concurrency: u16) -> anyhow::Result<Sandbox> {
    compiled_by(&["compile-component", "--quick"], state, concurrency, Arc::default())
}

fn compiled_by(command: &[&str], state: &Path, concurrency: u16, memory: Arc<GuestBudget>) -> anyhow::Result<Sandbox> {
    let own = std::env::current_exe().context("where this program lies")?;
    // The program compiles in a copy of itself, even if its file was replaced meanwhile.
    let own = if Path::new("/proc/self/exe").exists() { PathBuf::from("/proc/self/exe") } else { own };
    let config = SandboxConfig {
        concurrency,
        memory,
        ..SandboxConfig::new(
            state.join("compiled"),
            state.join("compiled.key"),
            std::iter::once(own.into()).chain(command.iter().map(Into::into)).collect(),
        )
    };
    Ok(Sandbox::new(config)?)
}

/// Loads one component for a command, with the file's name in each error.
///
/// # Errors
/// The file cannot be read, or it is no plugin.
pub async fn load_file(sandbox: &Sandbox, file: &Path) -> anyhow::Result<(PluginName, Arc<Component>)> {
    let (name, wasm) = read_file(file)?;
    let component = sandbox.load(wasm).await.map_err(|error| in_file(file, &error))?;
    Ok((name, component))
}

/// The plugin that a file's name means, and its bytes.
///
/// # Errors
/// The file's name is no plugin's, or it cannot be read.
pub(crate) fn read_file(file: &Path) -> anyhow::Result<(PluginName, Vec<u8>)> {
    let shown = file.display();
    let stem = file.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    let name = PluginName::parse(stem)
        .map_err(|error| Failed::usage(format!("{shown}: the file's name is the plugin's, and {error}")))?;
    let wasm = fs::read(file).map_err(|error| Failed::usage(format!("{shown}: cannot be read: {error}")))?;
    Ok((name, wasm))
}

/// What the Plugin document beside a component says; none where there is no document.
///
/// # Errors
/// The document is there and cannot be used.
pub(crate) fn read_document(name: &PluginName, file: &Path) -> anyhow::Result<Option<PluginSpec>> {
    let document = file.with_extension("yaml");
    match fs::read_to_string(&document) {
        Ok(yaml) => Ok(Some(operetta_api::parse(name, &yaml).with_context(|| document.display().to_string())?.spec)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failed::usage(format!("{}: cannot be read: {error}", document.display()))),
    }
}

/// What is wrong with a component, with its file. Its text says all that its sources say, so that they are left out.
pub(crate) fn in_file(file: &Path, error: &LoadError) -> anyhow::Error {
    let message = format!("{}: {error}", file.display());
    if error.is_the_hosts() { anyhow::anyhow!(message) } else { Failed::plugin(message) }
}

/// Loads plugins into a sandbox.
pub struct SandboxLoader {
    sandbox: Sandbox,
    observer: Observer,
}

impl SandboxLoader {
    /// `observer` is told what each reconcile used.
    pub fn new(sandbox: Sandbox, observer: Observer) -> Self {
        Self { sandbox, observer }
    }
}

#[async_trait]
impl Loader for SandboxLoader {
    async fn load(&self, wasm: Bytes) -> Result<Code, Problem> {
        let component = self.sandbox.load(wasm).await.map_err(|e| problem(&e))?;
        let manifest: Arc<Manifest> = Arc::new(component.manifest().clone());
        tracing::debug!(
            digest = %component.digest(),
            cached = component.cached(),
            took = ?component.took(),
            imports = component.imports().join(" "),
            "component loaded"
        );
        Ok(Code {
            digest: component.digest(),
            manifest,
            reconciler: Arc::new(component.operator(self.observer.clone())),
        })
    }
}

fn problem(error: &LoadError) -> Problem {
    let phase = match error.phase() {
        "verify" => Phase::Verify,
        "compile" => Phase::Compile,
        _ => Phase::Describe,
    };
    // The phase stands beside the message already.
    let message = error.to_string();
    let message = message.strip_prefix(&format!("{phase}: ")).unwrap_or(&message).to_owned();
    if error.may_pass() { Problem::passing(phase, &message) } else { Problem::lasting(phase, &message) }
}

/// Keeps the last component of each plugin that ran as `NAME.wasm` in a folder of its own.
pub struct LastGoodFolder {
    folder: PathBuf,
}

impl LastGoodFolder {
    /// Makes the folder, for its owner only: what lies there is run.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(folder: PathBuf) -> anyhow::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("--state-dir: {} cannot be made", folder.display()))?;
        Ok(Self { folder })
    }

    fn path(&self, plugin: &PluginName) -> PathBuf {
        self.folder.join(format!("{plugin}.wasm"))
    }
}

impl LastGood for LastGoodFolder {
    fn keep(&self, plugin: &PluginName, digest: &Digest, wasm: &[u8]) {
        let path = self.path(plugin);
        if fs::read(&path).is_ok_and(|kept| Digest::of(&kept) == *digest) {
            return;
        }
        let written = tempfile::NamedTempFile::new_in(&self.folder).and_then(|mut file| {
            std::io::Write::write_all(&mut file, wasm)?;
            file.persist(&path)?;
            Ok(())
        });
        if let Err(error) = written {
            tracing::warn!(%plugin, %error, path = %path.display(), "the component cannot be kept for a restart");
        }
    }

    fn recall(&self, plugin: &PluginName) -> Option<Bytes> {
        fs::read(self.path(plugin)).ok().map(Bytes::from)
    }

    fn forget(&self, plugin: &PluginName) {
        // It may never have run.
        let _ = fs::remove_file(self.path(plugin));
    }
}
