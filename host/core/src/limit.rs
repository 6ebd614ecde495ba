//! How much of the machine one plugin may use. The defaults are such that a normal operator never meets them.

use std::time::Duration;

/// The limits of one plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of linear memory that one reconcile may hold.
    pub memory: usize,
    /// Wall-clock time of one reconcile, waiting included.
    pub deadline: Duration,
    /// CPU time of one reconcile.
    pub cpu: Duration,
    /// Reconciles of the plugin at the same time.
    pub concurrency: usize,
    /// Imports that one reconcile may call.
    pub host_calls: u64,
    /// Bytes of one argument or answer of a host call.
    pub message: usize,
    /// Lines that one reconcile may log.
    pub log_lines: u64,
    /// Bytes of one line of its log.
    pub log_line: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A Rust guest with kube types and a tonic client stays under 4 MiB; an interpreter in a component needs some 30.
            memory: 64 << 20,
            deadline: Duration::from_secs(30),
            // A reconcile of a 2 kB object takes well under a millisecond.
            cpu: Duration::from_secs(2),
            concurrency: 16,
            host_calls: 10_000,
            // etcd takes objects of at most 1.5 MiB, and gRPC's own default is 4 MiB.
            message: 4 << 20,
            log_lines: 200,
            log_line: 8 << 10,
        }
    }
}
