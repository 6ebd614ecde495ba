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
        // Where there is no such file, as on macOS, the metric is left out.
        let Some(resident) = resident() else { return Ok(()) };
        tell("process_resident_memory_bytes", "Memory of the process that lies in RAM", &ConstGauge::new(resident))
    }
}

fn resident() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: i64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}
