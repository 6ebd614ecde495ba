//! A real Kubernetes control plane on this machine, without containers: etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//! and kwok, which plays the nodes and runs pods without running them.
//!
//! - [`build`] compiles the programs from Go modules, once, into a cache directory.
//! - [`start`] runs them on loopback, with certificates, tokens, ports and data of their own.
//! - [`supervised`] runs the `control-plane` program as a child: what tests, demo and benchmarks use.
//! - [`audit`] counts the requests that the API server saw.
//!
//! **Nothing outlives its owner.** The `control-plane` program stops everything when it is asked to or when its standard input closes; what a
//! killed one left is stopped and removed by the next start ([`run_dir`]).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::{Deserialize, Serialize};

pub mod audit;
pub mod build;
mod pki;
mod process;
pub mod run_dir;
pub mod start;
pub mod supervised;

pub use audit::AuditLog;
pub use supervised::Cluster;

/// Names a kubeconfig of a cluster to use instead of the local control plane (kind, k3d, ...).
pub const OVERRIDE: &str = "OPERETTA_KUBECONFIG";

/// Where to find what a started control plane offers. The `control-plane` program prints it as one line of JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// A kubeconfig whose user is in `system:masters`.
    pub kubeconfig: PathBuf,
    /// Logs, certificates, data and process ids; gone when the control plane has stopped.
    pub run_dir: PathBuf,
    /// Every request to the API server, one JSON event a line.
    pub audit_log: PathBuf,
    /// A `kubectl` of the same version.
    pub kubectl: PathBuf,
}

/// A client for the cluster that `kubeconfig` names. A client belongs to the runtime that made it, so each test makes its own.
pub async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    let file = kubeconfig.display();
    let parsed = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read the kubeconfig {file}"))?;
    let config = kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("use the kubeconfig {file}"))?;
    kube::Client::try_from(config).with_context(|| format!("make a client from {file}"))
}

/// The directory of this project's caches: `$XDG_CACHE_HOME/operetta` or `~/.cache/operetta`.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("operetta"))
        .context("neither XDG_CACHE_HOME nor HOME is set, so there is no cache directory: set one of them")
}
