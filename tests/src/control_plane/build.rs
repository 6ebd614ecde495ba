//! Compiles the control plane's programs from Go modules into the cache, once per version. It never starts them.
//!
//! `tests/cluster/go.mod` names the programs in its `tool` lines and pins every module; there is no Go code of ours. The first build takes
//! about four minutes on two cores and a warm Go cache makes it seconds; the result is 450 MB.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, ErrorKind, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::progress::{Progress, Step};

const GO_MOD: &str = include_str!("../../cluster/go.mod");
const GO_SUM: &str = include_str!("../../cluster/go.sum");
/// Counts the changes of what this file does with the modules, so that an older result is not taken for a new one.
const RECIPE: &str = "1";

/// kwok's stages, files of its module: they make nodes ready and run, complete, delete and, on a label's demand, fail pods.
const STAGES: [&str; 7] = [
    "node/fast/node-initialize.yaml",
    "node/heartbeat/node-heartbeat.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
    "pod/chaos/pod-container-running-failed.yaml",
];

/// A directory with the built programs.
#[derive(Debug, Clone)]
pub struct Programs(PathBuf);

impl Programs {
    /// The path of one of them.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The files that tell kwok what to do.
    pub fn stages(&self) -> impl Iterator<Item = PathBuf> {
        STAGES.iter().map(|stage| self.0.join("stages").join(flat(stage)))
    }
}

/// A stage's file name in the result: its path's parts joined, since two folders may use the same name.
fn flat(stage: &str) -> String {
    stage.replace('/', "-")
}

/// Finds the programs in the cache or builds them there. Two callers at once build once.
pub fn build(progress: &Progress) -> Result<Programs> {
    let root = super::cache_dir()?.join("control-plane");
    let id = identity();
    let finished = root.join(&id);
    if finished.is_dir() {
        return Ok(Programs(finished));
    }
    fs::create_dir_all(&root).with_context(|| format!("create the cache directory {}", root.display()))?;
    let mut step = progress.step("control plane");
    step.say("waiting for another build of the same");
    let lock = File::create(root.join(format!("{id}.lock"))).context("create the build's lock file")?;
    lock.lock().context("lock the build")?;
    if finished.is_dir() {
        step.done("built by someone else meanwhile");
        return Ok(Programs(finished));
    }
    // Under the lock nobody else uses this name: what is there was left by a build that was killed.
    let unfinished = root.join(format!("{id}.unfinished"));
    remove_dir(&unfinished)?;
    fs::create_dir_all(&unfinished).with_context(|| format!("create {}", unfinished.display()))?;
    compile(&unfinished, &mut step)?;
    fs::rename(&unfinished, &finished).with_context(|| format!("move the programs to {}", finished.display()))?;
    step.done("built");
    Ok(Programs(finished))
}

fn identity() -> String {
    let mut hash = Sha256::new();
    for part in [GO_MOD, GO_SUM, RECIPE] {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    let mut id = hex::encode(hash.finalize());
    id.truncate(16);
    id
}

fn compile(out: &Path, step: &mut Step) -> Result<()> {
    let source = out.join("source");
    fs::create_dir(&source).context("create the build's source directory")?;
    fs::write(source.join("go.mod"), GO_MOD).context("write go.mod")?;
    fs::write(source.join("go.sum"), GO_SUM).context("write go.sum")?;
    let go = Go { directory: &source };

    step.say("fetching Go modules");
    let version = go.answer(&["list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"])?;
    let packages = go.answer(&["list", "-deps", "tool"])?;
    step.expect(packages.lines().count() as u64);
    let stamp = version_stamp(&version)?;
    let target = format!("{}/", out.display());
    go.build(&["build", "-v", "-trimpath", &format!("-ldflags={stamp}"), "-o", &target, "tool"], step)?;
    // etcd's main package is named server.
    fs::rename(out.join("server"), out.join("etcd")).context("name etcd")?;

    let kwok = go.answer(&["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"])?;
    let stages = Path::new(&kwok).join("kustomize/stage");
    fs::create_dir(out.join("stages")).context("create the directory of kwok's stages")?;
    for stage in STAGES {
        // Read and write instead of copy: the module cache is read-only, and a copy would be as well.
        let text = fs::read(stages.join(stage)).with_context(|| format!("read kwok's stage {stage}"))?;
        fs::write(out.join("stages").join(flat(stage)), text).with_context(|| format!("write kwok's stage {stage}"))?;
    }
    remove_dir(&source)
}

/// The linker's flags that make the programs say which version they are. Without them clients cannot parse the server's version.
fn version_stamp(version: &str) -> Result<String> {
    let minor = version.split('.').nth(1).with_context(|| format!("read the minor version of Kubernetes {version}"))?;
    let values = [
        ("gitVersion", version),
        ("gitMajor", "1"),
        ("gitMinor", minor),
        ("gitCommit", "unknown"),
        ("gitTreeState", "archive"),
    ];
    let flags = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"]
        .iter()
        .flat_map(|package| values.iter().map(move |(name, value)| format!("-X {package}.{name}={value}")));
    Ok(["-s".to_owned(), "-w".to_owned()].into_iter().chain(flags).collect::<Vec<_>>().join(" "))
}

fn remove_dir(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// The Go toolchain, working in one directory.
struct Go<'a> {
    directory: &'a Path,
}

impl Go<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("go");
        // A go.work or vendor setting of the surroundings is about other people's modules.
        command
            .args(arguments)
            .current_dir(self.directory)
            .env("GOWORK", "off")
            .env_remove("GOFLAGS")
            .stdin(Stdio::null());
        command
    }

    fn spawn(&self, arguments: &[&str]) -> Result<std::process::Child> {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => anyhow::anyhow!(
                "the program `go` is not on the PATH, and the local control plane is built from Go modules: install Go 1.26 or later \
                 (go.dev, or a package named golang), or name a cluster of your own in {}",
                super::OVERRIDE
            ),
            _ => anyhow::Error::new(error).context("run `go`"),
        })
    }

    /// Runs to the end and returns what was printed.
    fn answer(&self, arguments: &[&str]) -> Result<String> {
        let output = self.spawn(arguments)?.wait_with_output().context("run `go`")?;
        if !output.status.success() {
            bail!(
                "`go {}` failed ({}):\n{}",
                arguments.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Runs a verbose build, which prints a line on standard error for each package that it compiles.
    fn build(&self, arguments: &[&str], step: &mut Step) -> Result<()> {
        let mut child = self.spawn(arguments)?;
        let mut told = Vec::new();
        for line in child.stderr.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
            let line = line.context("read what `go build` says")?;
            if line.starts_with("go: downloading") {
                step.say(&line);
            } else {
                step.advance(&line);
            }
            told.push(line);
        }
        let mut printed = String::new();
        if let Some(mut stdout) = child.stdout.take() {
            stdout.read_to_string(&mut printed).context("read what `go build` prints")?;
        }
        let status = child.wait().context("wait for `go build`")?;
        if !status.success() {
            let last = told.iter().rev().take(20).rev().map(String::as_str).collect::<Vec<_>>().join("\n");
            bail!("`go build` of the control plane failed ({status}):\n{last}");
        }
        Ok(())
    }
}
