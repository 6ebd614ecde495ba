//! Processes by identity: a process id together with the time its process started, so that a reused id is never mistaken for the
//! process that had it before. It kills what it is given and finds nothing by name.

use std::{
    fmt, fs,
    str::FromStr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

/// How long a killed process may take to disappear. SIGKILL needs milliseconds; a process in uninterruptible input waits for its disk.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// One process, for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pid: i32,
    started: String,
}

impl Process {
    /// The process that has this id now; none when there is none, or only its corpse.
    pub fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        Some(Self { pid, started: started(pid)? })
    }

    /// Whether that very process still runs.
    pub fn is_alive(&self) -> bool {
        started(self.pid).is_some_and(|started| started == self.started)
    }

    /// Kills the process if it still runs, and returns when it is gone.
    pub fn kill(&self) -> Result<()> {
        let start = Instant::now();
        while self.is_alive() {
            if start.elapsed() > GONE_WITHIN {
                bail!("process {} does not die: look what it waits for and kill it by hand", self.pid);
            }
            if let Some(pid) = Pid::from_raw(self.pid) {
                // It may have gone between the look and the blow, which is the very aim.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.started)
    }
}

impl FromStr for Process {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (pid, started) = text.trim().split_once(' ').context("a process record is an id and a start time")?;
        Ok(Self {
            pid: pid.parse().with_context(|| format!("read the process id {pid:?}"))?,
            started: started.to_owned(),
        })
    }
}

/// When the process began, in words that only need comparing: the boot and the clock ticks since then. A zombie counts as gone.
#[cfg(target_os = "linux")]
fn started(pid: i32) -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may itself hold both blanks and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    // proc(5): the state is field 3, the start time field 22.
    Some(format!("{}:{}", boot.trim(), fields.nth(18)?))
}

#[cfg(not(target_os = "linux"))]
fn started(pid: i32) -> Option<String> {
    let output =
        std::process::Command::new("ps").args(["-o", "stat=,lstart=", "-p", &pid.to_string()]).output().ok()?;
    let line = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let (state, started) = line.split_once(' ')?;
    (!state.starts_with('Z')).then(|| started.split_whitespace().collect::<Vec<_>>().join("-"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_known_while_it_lives_and_gone_when_killed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let identity = Process::of(child.id()).unwrap();
        assert!(identity.is_alive());
        assert_eq!(identity.to_string().parse::<Process>().unwrap(), identity);
        identity.kill().unwrap();
        assert!(!identity.is_alive(), "a killed process counts as gone even before its parent has waited for it");
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_merely_has_the_same_id_is_left_alone() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let earlier = Process { started: "an earlier time".into(), ..Process::of(child.id()).unwrap() };
        assert!(!earlier.is_alive());
        earlier.kill().unwrap();
        assert!(child.try_wait().unwrap().is_none(), "the process with the reused id was killed");
        Process::of(child.id()).unwrap().kill().unwrap();
        child.wait().unwrap();
    }
}
