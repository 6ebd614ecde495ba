//! Go modules whose programs are compiled once into the cache: the control plane, and an operator to move away from. It never starts them.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, ErrorKind, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{
    control_plane::{OVERRIDE, cache_dir},
    progress::{Progress, Step},
};

/// A module, and what is made of it.
#[derive(Debug)]
pub struct Module {
    /// Its folder in the cache.
    pub name: &'static str,
    /// What people call the result.
    pub title: &'static str,
    /// Every file of it: path and text. `go.mod` and `go.sum` pin all others.
    pub files: &'static [(&'static str, &'static str)],
    /// Counts the changes of what is done with the module, so that an older result is not taken for a new one.
    pub recipe: &'static str,
}

impl Module {
    /// Finds the result in the cache or lets `compile` make it there, in the directory that it is given. Two callers at once build once.
    pub fn build(
        &self,
        progress: &Progress,
        compile: impl FnOnce(&Go, &Path, &mut Step) -> Result<()>,
    ) -> Result<PathBuf> {
        let root = cache_dir()?.join(self.name);
        let id = self.identity();
        let finished = root.join(&id);
        if finished.is_dir() {
            return Ok(finished);
        }
        fs::create_dir_all(&root).with_context(|| format!("create the cache directory {}", root.display()))?;
        let mut step = progress.step(self.title);
        step.say("waiting for another build of the same");
        let lock = File::create(root.join(format!("{id}.lock"))).context("create the build's lock file")?;
        lock.lock().context("lock the build")?;
        if finished.is_dir() {
            step.done("built by someone else meanwhile");
            return Ok(finished);
        }
        // Under the lock nobody else uses this name: what is there was left by a build that was killed.
        let unfinished = root.join(format!("{id}.unfinished"));
        remove_dir(&unfinished)?;
        let source = unfinished.join("source");
        for (path, text) in self.files {
            let path = source.join(path);
            let directory = path.parent().context("a file has a directory")?;
            fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        let go = Go { title: self.title, directory: source };
        compile(&go, &unfinished, &mut step)?;
        remove_dir(&go.directory)?;
        fs::rename(&unfinished, &finished).with_context(|| format!("move the programs to {}", finished.display()))?;
        step.done("built");
        Ok(finished)
    }

    fn identity(&self) -> String {
        let mut hash = Sha256::new();
        for part in self.files.iter().map(|(_, text)| *text).chain([self.recipe]) {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        let mut id = hex::encode(hash.finalize());
        id.truncate(16);
        id
    }
}

fn remove_dir(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// The Go toolchain, working in the module.
#[derive(Debug)]
pub struct Go {
    title: &'static str,
    directory: PathBuf,
}

impl Go {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("go");
        // A go.work or vendor setting of the surroundings is about other people's modules.
        command
            .args(arguments)
            .current_dir(&self.directory)
            .env("GOWORK", "off")
            .env_remove("GOFLAGS")
            .stdin(Stdio::null());
        command
    }

    fn spawn(&self, arguments: &[&str]) -> Result<std::process::Child> {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => anyhow::anyhow!(
                "the program `go` is not on the PATH, and the {} is built from Go modules: install Go 1.26 or later \
                 (go.dev, or a package named golang); a control plane is not built where {OVERRIDE} names a cluster of your own",
                self.title
            ),
            _ => anyhow::Error::new(error).context("run `go`"),
        })
    }

    /// Runs to the end and returns what was printed.
    pub fn answer(&self, arguments: &[&str]) -> Result<String> {
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
    pub fn build(&self, arguments: &[&str], step: &mut Step) -> Result<()> {
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
            bail!("`go build` of the {} failed ({status}):\n{last}", self.title);
        }
        Ok(())
    }
}
