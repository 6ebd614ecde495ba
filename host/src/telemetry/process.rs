//! What every Prometheus client tells of its process, under the names that all of them use.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// This process.
#[derive(Debug)]
pub struct Process {
    /// Since the epoch; the first thing that the host does is to make its metrics.
    started: f64,
}

impl Process {
    /// Begins now.
    pub fn new() -> Self {
        Self { started: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let mut tell = |name: &str, help, metric: &dyn EncodeMetric| {
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        tell("process_start_time_seconds", "When the process began", &ConstGauge::new(self.started))?;
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let cpu = std::time::Duration::try_from(cpu).unwrap_or_default().as_secs_f64();
        tell("process_cpu_seconds", "CPU time of the process", &ConstCounter::new(cpu))?;
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        // No limit is what Prometheus' own clients call the largest number.
        let most = most.and_then(|most| i64::try_from(most).ok()).unwrap_or(i64::MAX);
        tell("process_max_fds", "File descriptors that the process may have", &ConstGauge::new(most))?;
        // Where there are no such files, as on macOS, these are left out.
        let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Ok(()) };
        // Without the one that counts.
        let open = i64::try_from(open.count()).unwrap_or(i64::MAX).saturating_sub(1);
        tell("process_open_fds", "File descriptors that the process has", &ConstGauge::new(open))?;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bytes = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field))?;
            let kibibytes: i64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
            Some(ConstGauge::new(kibibytes << 10))
        };
        if let Some(resident) = bytes("VmRSS:") {
            tell("process_resident_memory_bytes", "Memory of the process that lies in RAM", &resident)?;
        }
        if let Some(virtual_memory) = bytes("VmSize:") {
            tell("process_virtual_memory_bytes", "Address space of the process", &virtual_memory)?;
        }
        Ok(())
    }
}
