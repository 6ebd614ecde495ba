//! The control plane as a child of a test run, a demo or a benchmark: it ends when its parent does, however that happens.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use super::{Access, AuditLog, OVERRIDE};

/// The `control-plane` program, running as our child until this value goes.
#[derive(Debug)]
pub struct Supervised {
    access: Access,
    child: Child,
    /// Its end of file tells the child to stop. The system closes it when this process ends, so nothing can be forgotten.
    stdin: Option<ChildStdin>,
    _stdout: BufReader<ChildStdout>,
}

impl Supervised {
    /// Starts `program`, which must be the `control-plane` binary of this crate, and returns when the control plane is ready.
    pub fn start(program: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .arg("--until-stdin-closes")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C on the terminal is for the parent, which may still want to clean up in the cluster.
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().context("read what the control plane prints")?);
        let mut line = String::new();
        stdout.read_line(&mut line).context("read what the control plane prints")?;
        ensure!(!line.is_empty(), "the control plane did not start; standard error says why");
        let access =
            serde_json::from_str(&line).with_context(|| format!("understand the control plane's answer {line:?}"))?;
        Ok(Self { access, child, stdin, _stdout: stdout })
    }

    /// Where to find it.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// The supervisor's own process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // It has nothing to report that anyone could act on now.
        let _ = self.child.wait();
    }
}

/// The cluster that tests, demo and benchmarks work on.
#[derive(Debug)]
pub enum Cluster {
    /// Our own control plane.
    Own(Box<Supervised>),
    /// The one that [`OVERRIDE`] names.
    Users(PathBuf),
}

impl Cluster {
    /// The user's cluster if there is one, else our own, started by `program`, the `control-plane` binary.
    pub fn open(program: &Path) -> Result<Self> {
        match std::env::var_os(OVERRIDE).filter(|path| !path.is_empty()) {
            Some(kubeconfig) => {
                let kubeconfig = PathBuf::from(kubeconfig);
                ensure!(kubeconfig.is_file(), "{OVERRIDE} names {}, which is no file", kubeconfig.display());
                Ok(Self::Users(kubeconfig))
            }
            None => Ok(Self::Own(Box::new(Supervised::start(program)?))),
        }
    }

    /// A kubeconfig with full rights.
    pub fn kubeconfig(&self) -> &Path {
        match self {
            Self::Own(supervised) => &supervised.access().kubeconfig,
            Self::Users(kubeconfig) => kubeconfig,
        }
    }

    /// What the API server saw. A user's cluster keeps that to itself.
    pub fn audit_log(&self) -> Option<AuditLog> {
        match self {
            Self::Own(supervised) => Some(AuditLog::new(&supervised.access().audit_log)),
            Self::Users(_) => None,
        }
    }

    /// A client for it, for the runtime that asks.
    pub async fn client(&self) -> Result<kube::Client> {
        super::client(self.kubeconfig()).await
    }
}
