//! `operetta new`: lays down a project that builds, runs and is tested as it is.
//!
//! **All or nothing**: every name is checked before anything is written, and what is written appears at its place when it is complete. The SDK comes out of this program, so
//! that a project needs nothing of Operetta from elsewhere.

mod names;

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use self::names::{ApiGroup, ApiVersion, Kind, PackageName};
use crate::exit::Failed;

/// The SDK: each file with its text.
const SDK: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sdk.rs"));
/// The SDK's manifest, without the workspace that it comes from.
const SDK_MANIFEST: &str = include_str!(concat!(env!("OUT_DIR"), "/sdk.toml"));
/// Where the SDK lies in a project.
const SDK_FOLDER: &str = "vendor/operetta-sdk";

/// The project: each file with its text, in both of which `@WORD@` stands for what the person says.
const PROJECT: &[(&str, &str)] = &[
    (".cargo/config.toml", include_str!("../template/cargo-config.toml.in")),
    (".gitignore", include_str!("../template/gitignore.in")),
    // What this program is tested with; cargo adds the project itself.
    ("Cargo.lock", include_str!(concat!(env!("OUT_DIR"), "/Cargo.lock"))),
    ("Cargo.toml", include_str!(concat!(env!("OUT_DIR"), "/project.toml"))),
    ("README.md", include_str!("../template/README.md.in")),
    ("config/samples/@kind@.yaml", include_str!("../template/sample.yaml.in")),
    ("rust-toolchain.toml", include_str!("../template/rust-toolchain.toml.in")),
    ("src/lib.rs", include_str!("../template/lib.rs.in")),
    ("tests/Cargo.toml", include_str!(concat!(env!("OUT_DIR"), "/tests.toml"))),
    ("tests/cluster.rs", include_str!("../template/tests-cluster.rs.in")),
    ("tests/lib.rs", include_str!("../template/tests-lib.rs.in")),
    ("tests/reconcile.rs", include_str!("../template/tests-reconcile.rs.in")),
];

#[derive(Debug, clap::Args)]
pub(crate) struct NewArgs {
    /// What the plugin and its package are called: lower-case letters, digits and '-'
    pub(crate) name: PackageName,
    /// The API group of its kind, a domain that is yours
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: ApiGroup,
    /// The API version of its kind
    #[arg(long, value_name = "VERSION")]
    pub(crate) version: ApiVersion,
    /// Its kind, in CamelCase
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Kind,
    /// Where to put the project: a folder that is empty or does not exist yet; ./NAME unless told
    #[arg(long, value_name = "PATH")]
    pub(crate) dir: Option<PathBuf>,
}

pub(crate) fn new(args: &NewArgs) -> anyhow::Result<()> {
    let folder = args.dir.clone().unwrap_or_else(|| args.name.as_str().into());
    let files = files(args);
    write(&folder, &files)?;
    let (name, shown) = (args.name.as_str(), folder.display());
    let (kind, lower) = (args.kind.as_str(), args.kind.lower());
    println!(
        "{name}, an operator of {kind} ({}/{}), lies in {shown}. Next:\n\n    cd {shown}\n    operetta dev\n\n\
         and in another terminal\n\n    kubectl apply -f {shown}/config/samples/{lower}.yaml\n    kubectl get {lower},configmap\n\n\
         src/lib.rs is where its work is done; README.md says the rest.",
        args.group.as_str(),
        args.version.as_str(),
    );
    Ok(())
}

/// All files of the project, with their texts.
fn files(args: &NewArgs) -> Vec<(PathBuf, String)> {
    let words = [
        ("@name@", args.name.as_str().to_owned()),
        ("@crate@", args.name.as_str().replace('-', "_")),
        ("@group@", args.group.as_str().to_owned()),
        ("@version@", args.version.as_str().to_owned()),
        ("@Kind@", args.kind.as_str().to_owned()),
        ("@kind@", args.kind.lower()),
        ("@sdk@", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let filled = |text: &str| words.iter().fold(text.to_owned(), |text, (word, said)| text.replace(word, said));
    let project = PROJECT.iter().map(|(path, text)| (PathBuf::from(filled(path)), filled(text)));
    let sdk = SDK.iter().chain([&("Cargo.toml", SDK_MANIFEST)]);
    project.chain(sdk.map(|(path, text)| (Path::new(SDK_FOLDER).join(path), (*text).to_owned()))).collect()
}

/// Writes them beside `folder` first, and moves them there when all are written.
fn write(folder: &Path, files: &[(PathBuf, String)]) -> anyhow::Result<()> {
    let shown = folder.display();
    let exists = match fs::read_dir(folder) {
        Ok(mut entries) => match entries.next() {
            Some(_) => {
                let text =
                    format!("{shown} is not empty, and nothing in it is overwritten; name another folder with --dir");
                return Err(Failed::usage(text));
            }
            None => true,
        },
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(Failed::usage(format!("{shown} is a file; name a folder with --dir")));
        }
        Err(error) => return Err(error).with_context(|| format!("--dir: {shown} cannot be looked into")),
    };
    // An empty folder may be where a shell is, so it stays and is filled.
    let parent = if exists { folder } else { folder.parent().unwrap_or(folder) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let cannot = || format!("{} cannot be written to; name a folder with --dir where you may write", parent.display());
    fs::create_dir_all(parent).with_context(cannot)?;
    let draft = tempfile::Builder::new().prefix(".operetta-new-").tempdir_in(parent).with_context(cannot)?;
    for (path, text) in files {
        let path = draft.path().join(path);
        fs::create_dir_all(path.parent().unwrap_or(&path)).with_context(cannot)?;
        fs::write(path, text).with_context(cannot)?;
    }
    if exists {
        for entry in fs::read_dir(draft.path()).with_context(cannot)? {
            let entry = entry.with_context(cannot)?;
            fs::rename(entry.path(), folder.join(entry.file_name())).with_context(cannot)?;
        }
    } else {
        // A temporary folder is for its owner only; a project is like any other.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(draft.path(), open).with_context(cannot)?;
        fs::rename(draft.path(), folder).with_context(cannot)?;
        // It is no longer where it would be removed from.
        let _ = draft.keep();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    #[command(disable_version_flag = true)]
    struct Line {
        #[command(flatten)]
        args: NewArgs,
    }

    fn greeter(dir: &Path) -> NewArgs {
        let line = ["new", "my-greeter", "--group=hello.example.com", "--version=v1", "--kind=Greeting", "--dir"];
        Line::try_parse_from(line.iter().map(std::ffi::OsStr::new).chain([dir.as_os_str()])).unwrap().args
    }

    fn entries(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn everything_that_was_asked_is_filled_in_and_the_sdk_is_whole() {
        let files = files(&greeter(Path::new("x")));
        let words = ["@name@", "@crate@", "@group@", "@version@", "@Kind@", "@kind@", "@sdk@", "workspace = true"];
        for (path, text) in &files {
            for word in words {
                assert!(!text.contains(word), "{} has {word}", path.display());
            }
        }
        let has = |path: &str| files.iter().any(|(file, _)| file == Path::new(path));
        assert!(has("config/samples/greeting.yaml") && has("src/lib.rs"));
        for file in ["Cargo.toml", "README.md", "src/lib.rs", "wit/world.wit", "wit/deps/random/random.wit"] {
            assert!(has(&format!("vendor/operetta-sdk/{file}")), "{file}");
        }
        let (_, lock) = files.iter().find(|(path, _)| path == Path::new("Cargo.lock")).unwrap();
        assert!(lock.contains("name = \"kube\"") && !lock.contains("name = \"wasmtime\""), "{lock}");
    }

    #[test]
    fn a_project_appears_whole_in_a_new_or_an_empty_folder_and_nowhere_else() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("deep/er");
        new(&greeter(&place)).unwrap();
        let whole = entries(&place);
        assert!(whole.contains(&".cargo".to_owned()) && whole.contains(&"vendor".to_owned()), "{whole:?}");
        assert_eq!(entries(place.parent().unwrap()), ["er"], "nothing is left beside it");

        let empty = home.path().join("empty");
        fs::create_dir(&empty).unwrap();
        new(&greeter(&empty)).unwrap();
        assert_eq!(entries(&empty), whole);

        let error = new(&greeter(&empty)).unwrap_err().to_string();
        assert!(error.contains("is not empty") && error.contains("--dir"), "{error}");
        let file = home.path().join("file");
        fs::write(&file, "mine").unwrap();
        for (place, says) in [(&file, "is a file"), (&file.join("below"), "--dir")] {
            let error = format!("{:#}", new(&greeter(place)).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
        assert_eq!(entries(home.path()), ["deep", "empty", "file"]);
    }
}
