//! The directory of one run: certificates, logs, data and the identity of every process it started.
//!
//! **A run is alive as long as its lock is held**, and the system releases the lock of a process however it ends. So whoever starts next
//! knows which runs are dead, kills what those left running, by identity, and removes their directories.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

pub use super::process::Process;

/// Inside a run directory: the file whose lock says that the run is alive.
const LOCK: &str = "lock";
/// Inside a run directory: one file per process, named as the program.
const PROCESSES: &str = "processes";

/// A run directory of this process.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Stops and removes what dead runs left, then makes a directory for a new one.
    pub fn create() -> Result<Self> {
        Self::create_in(&runs()?)
    }

    fn create_in(runs: &Path) -> Result<Self> {
        private_dir(runs)?;
        let _gate = gate(runs)?;
        remove_dead_in(runs)?;
        let path = runs.join(format!("{}-{}", std::process::id(), hex::encode(rand::random::<[u8; 4]>())));
        private_dir(&path.join(PROCESSES))?;
        let lock = lock_file(&path.join(LOCK))?;
        lock.lock().with_context(|| format!("lock {}", path.display()))?;
        Ok(Self { path, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory inside that only this user can read.
    pub fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        private_dir(&path)?;
        Ok(path)
    }

    /// Remembers a process as part of this run, for whoever cleans up after us.
    pub fn record(&self, name: &str, pid: u32) -> Result<()> {
        // No identity: the process has ended already, and there is nothing to remember.
        let Some(identity) = Process::of(pid) else { return Ok(()) };
        let file = self.path.join(PROCESSES).join(name);
        fs::write(&file, identity.to_string()).with_context(|| format!("write {}", file.display()))
    }

    /// Kills what still runs and removes the directory.
    pub fn remove(self) -> Result<()> {
        remove(&self.path)
    }
}

fn private_dir(path: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).with_context(|| format!("create {}", path.display()))
}

fn lock_file(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    options.open(path).with_context(|| format!("open the lock file {}", path.display()))
}

fn runs() -> Result<PathBuf> {
    Ok(super::cache_dir()?.join("control-plane/runs"))
}

/// Held while a run directory is made and while the dead are looked for: one that exists but is not locked yet would look dead.
fn gate(runs: &Path) -> Result<File> {
    let gate = lock_file(&runs.join(".lock"))?;
    gate.lock().context("lock the directory of runs")?;
    Ok(gate)
}

/// Stops and removes what dead runs left.
pub fn remove_dead() -> Result<()> {
    let runs = runs()?;
    let _gate = gate(&runs)?;
    remove_dead_in(&runs)
}

fn remove_dead_in(runs: &Path) -> Result<()> {
    for entry in fs::read_dir(runs).with_context(|| format!("read {}", runs.display()))? {
        let path = entry.with_context(|| format!("read {}", runs.display()))?.path();
        if !path.is_dir() {
            continue;
        }
        let lock = lock_file(&path.join(LOCK))?;
        match lock.try_lock() {
            Ok(()) => remove(&path)?,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("lock {}", path.display())),
        }
    }
    Ok(())
}

fn remove(run: &Path) -> Result<()> {
    for identity in processes(run) {
        identity.kill()?;
    }
    // Last things that a process wrote while it was killed may appear in between: a second sweep finds a still directory.
    fs::remove_dir_all(run).or_else(|_| fs::remove_dir_all(run)).with_context(|| format!("remove {}", run.display()))
}

/// The processes that a run has recorded. A record that cannot be read names no process: it was cut off while it was written.
pub fn processes(run: &Path) -> Vec<Process> {
    let records = fs::read_dir(run.join(PROCESSES)).into_iter().flatten().flatten();
    records.filter_map(|record| fs::read_to_string(record.path()).ok()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_next_start_ends_what_a_dead_run_left_and_spares_a_living_one() {
        let runs = tempfile::tempdir().unwrap();
        let living = RunDir::create_in(runs.path()).unwrap();
        let dead = RunDir::create_in(runs.path()).unwrap();
        let [mut of_living, mut of_dead] = [0; 2].map(|_| Command::new("sleep").arg("60").spawn().unwrap());
        living.record("sleep", of_living.id()).unwrap();
        dead.record("sleep", of_dead.id()).unwrap();
        let path = dead.path().to_owned();
        drop(dead);

        let next = RunDir::create_in(runs.path()).unwrap();
        assert!(!path.exists(), "the dead run's directory is still there");
        assert!(of_dead.wait().unwrap().code().is_none(), "its process was not killed");
        assert!(of_living.try_wait().unwrap().is_none(), "the living run's process was killed");
        assert!(living.path().exists() && next.path().exists());

        living.remove().unwrap();
        of_living.wait().unwrap();
        next.remove().unwrap();
    }
}
