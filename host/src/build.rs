//! `operetta build`: from sources to what is handed on: the component with its manifest written into it, and the Plugin document that grants all that it asks for.
//!
//! **A document that somebody edited is never overwritten**: what it lacks was cut on purpose.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use bytes::Bytes;
use operetta_core::{manifest::Manifest, name::PluginName};
use operetta_sandbox::{
    CompileLimits, Sandbox,
    stamp::{glance, stamp},
};

use crate::{
    cargo::{Build, Project},
    cli::StateArgs,
    exit::Failed,
    generate::COMMAND_CONCURRENCY,
    loader::{in_file, sandbox},
    output::{grouped, print},
};

#[derive(Debug, clap::Args)]
pub(crate) struct BuildArgs {
    /// The folder of a plugin's sources, or a component that is built already
    #[arg(value_name = "DIR|FILE.wasm", default_value = ".")]
    source: PathBuf,
    /// Where to put NAME.wasm and NAME.yaml: a folder, or NAME.wasm itself; unless told, target/operetta of the sources, or where the component lies
    #[arg(short, long, value_name = "DIR|NAME.wasm")]
    out: Option<PathBuf>,
    /// The cargo profile that sources are built with; it decides how small the component is
    #[arg(long, value_name = "NAME", default_value = "release")]
    profile: String,
    #[command(flatten)]
    state: StateArgs,
}

pub(crate) async fn build(args: BuildArgs) -> anyhow::Result<()> {
    let sandbox = sandbox(&args.state.state_dir, COMMAND_CONCURRENCY)?;
    let (built, out) = if is_wasm(&args.source) {
        (args.source.clone(), args.out.unwrap_or_else(|| args.source.clone()))
    } else {
        if !args.source.is_dir() {
            return Err(Failed::usage(format!(
                "{}: neither a folder with a plugin's sources nor a .wasm file",
                args.source.display()
            )));
        }
        let project = Project::find(&args.source).await?;
        let built = project.build(&Build { profile: args.profile, abandonable: false }).await?;
        (built, args.out.unwrap_or_else(|| project.target.join("operetta")))
    };
    print(&finish(&sandbox, &built, &out).await?)
}

fn is_wasm(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "wasm")
}

/// Stamps the component, and writes it and its document; says what lies where.
async fn finish(sandbox: &Sandbox, built: &Path, out: &Path) -> anyhow::Result<String> {
    let cap = CompileLimits::default().component;
    let read = fs::read(built).map_err(|e| Failed::usage(format!("{}: cannot be read: {e}", built.display())))?;
    let read = Bytes::from(read);
    // An older stamp may lie by now; the component itself does not.
    let bare = operetta_sandbox::stamp::bare(&read, cap).map_err(|error| in_file(built, &error))?;
    let component = sandbox.load(bare).await.map_err(|error| in_file(built, &error))?;
    let manifest = component.manifest();
    let stamped = stamp(&read, manifest, cap).map_err(|error| in_file(built, &error))?;
    // As any host will: what is handed on has been loaded once. Its code is compiled already.
    let component = sandbox.load(stamped.clone()).await.map_err(|error| in_file(built, &error))?;

    let wasm = if is_wasm(out) { out.to_owned() } else { out.join(format!("{}.wasm", manifest.name)) };
    let stem = wasm.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let name = PluginName::parse(stem).map_err(|error| {
        Failed::usage(format!(
            "{}: the file's name is the plugin's, and {error}; choose one with --out",
            wasm.display()
        ))
    })?;
    let yaml = wasm.with_extension("yaml");
    let document = operetta_api::render(&name, manifest)?;
    let ours = is_as_written(&name, &wasm, &yaml, &document);
    if let Some(folder) = wasm.parent() {
        fs::create_dir_all(folder).with_context(|| format!("--out: create {}", folder.display()))?;
    }
    write(&wasm, &stamped)?;
    if ours {
        write(&yaml, document.as_bytes())?;
    }
    let said = if ours {
        "grants all that it asks for; read it, and cut what you do not grant"
    } else {
        "was edited and stays as it is; `operetta inspect` says what it lacks"
    };
    Ok(format!(
        "{}  {} {}, {} bytes, {}\n{}  {said}\n",
        wasm.display(),
        manifest.name,
        manifest.version,
        grouped(stamped.len()),
        component.digest(),
        yaml.display(),
    ))
}

/// Whether nobody has edited the document: there is none, or it says what the component that lies beside it, or the new one, asks for.
fn is_as_written(name: &PluginName, wasm: &Path, yaml: &Path, new: &str) -> bool {
    let Ok(there) = fs::read_to_string(yaml) else { return !yaml.exists() };
    let before = fs::read(wasm).ok().and_then(|wasm| glance(&wasm, CompileLimits::default().component).ok()?.manifest);
    let rendered = |manifest: Manifest| operetta_api::render(name, &manifest).ok();
    there == new || before.and_then(rendered).is_some_and(|before| before == there)
}

/// In one step, so that a host that watches the folder never sees half of it.
fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = || {
        let mut file = tempfile::Builder::new()
            .prefix(".")
            .suffix(".tmp")
            // As any file of this person; a private one could not be read by a host that runs as somebody else.
            .permissions(fs::Permissions::from_mode(0o666))
            .tempfile_in(folder)?;
        file.write_all(content)?;
        file.persist(path)?;
        Ok::<_, std::io::Error>(())
    };
    written().with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_was_edited_is_told_apart_from_one_that_was_not() {
        let folder = tempfile::tempdir().unwrap();
        let (wasm, yaml) = (folder.path().join("demo.wasm"), folder.path().join("demo.yaml"));
        let name = PluginName::parse("demo").unwrap();
        assert!(is_as_written(&name, &wasm, &yaml, "new"), "there is none");
        fs::write(&yaml, "new").unwrap();
        assert!(is_as_written(&name, &wasm, &yaml, "new"), "it says that already");
        fs::write(&yaml, "edited").unwrap();
        assert!(!is_as_written(&name, &wasm, &yaml, "new"), "somebody's");
        fs::write(&yaml, b"\xff").unwrap();
        assert!(!is_as_written(&name, &wasm, &yaml, "new"), "not even text");
    }

    #[test]
    fn what_is_written_can_be_read_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        write(&path, b"1").unwrap();
        write(&path, b"2").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"2");
        assert_ne!(fs::metadata(&path).unwrap().permissions().mode() & 0o044, 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
