//! Programs that run beside a test or the demo: their output in a file, their identity on record, their end certain.
//!
//! A child ends with the value that stands for it. If this process is killed before that, the next start of a control plane anywhere finds
//! the record of its [`RunDir`] and ends it then.

use std::{
    fs::{self, OpenOptions},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use crate::control_plane::run_dir::{Process, RunDir};

/// How much of a child's output an error shows.
const LAST_LINES: usize = 20;
/// How often it is asked whether a child has ended.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// A running program.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: std::process::Child,
    output: PathBuf,
}

impl Child {
    /// Starts `command` under a name that no other child of the run has. Its output is appended to `output`.
    ///
    /// It gets a process group of its own: Ctrl-C at the terminal is for us, who may still want it to do something.
    pub fn start(run: &RunDir, name: &str, output: &Path, command: &mut Command) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(output);
        let file = file.with_context(|| format!("open {}", output.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("share a log file")?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {}", command.get_program().display()))?;
        run.record(name, child.id())?;
        Ok(Self { name: name.to_owned(), process: child, output: output.to_owned() })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// An error, with the end of its output, if it has ended.
    pub fn ensure_runs(&mut self) -> Result<()> {
        if let Some(status) = self.process.try_wait().with_context(|| format!("look after {}", self.name))? {
            bail!("{} ended ({status}); the end of its output:\n{}", self.name, self.last_lines());
        }
        Ok(())
    }

    /// The end of its output.
    pub fn last_lines(&self) -> String {
        let text = fs::read_to_string(&self.output).unwrap_or_default();
        let lines = text.lines().collect::<Vec<_>>();
        lines.get(lines.len().saturating_sub(LAST_LINES)..).unwrap_or_default().join("\n")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("a process has an id")?;
        rustix::process::kill_process(pid, signal).with_context(|| format!("signal {}", self.name))
    }

    /// Asks it to end and waits for that.
    pub async fn stop(&mut self, within: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.ended(within).await
    }

    /// Waits for its end.
    pub async fn ended(&mut self, within: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().with_context(|| format!("wait for {}", self.name))? {
                return Ok(status);
            }
            if start.elapsed() > within {
                bail!("{} still runs after {within:?}; the end of its output:\n{}", self.name, self.last_lines());
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// Ends it without warning, as a crash would, and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill().with_context(|| format!("kill {}", self.name))?;
        self.process.wait().with_context(|| format!("wait for {}", self.name)).map(drop)
    }

    /// CPU time that it has used so far, its threads included and children that it has not waited for not.
    #[cfg(target_os = "linux")]
    pub fn cpu(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).context("read a process's times")?;
        let (_, fields) = stat.rsplit_once(')').context("a process's times have a name before them")?;
        // proc(5): the name is field 2, utime is field 14 and stime field 15, in clock ticks of a hundredth of a second.
        let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok());
        Ok(Duration::from_millis(ticks.sum::<u64>() * 10))
    }
    /// Bytes of memory that it holds.
    #[cfg(target_os = "linux")]
    pub fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).context("read a process's memory")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = resident.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kilobytes.context("a process has a resident size")? << 10)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(process) = Process::of(self.pid()) {
            let _ = process.kill();
            let _ = self.process.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- the end of the output of {} ---\n{}\n---", self.name, self.last_lines());
        }
    }
}
