//! What the memories of guests take, read when somebody asks.

use std::sync::Arc;

use operetta_sandbox::GuestBudget;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

/// The guests of this host.
#[derive(Debug)]
pub struct Guests(pub Arc<GuestBudget>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Which {
    plugin: String,
}

impl Collector for Guests {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let gauge = |number: usize| ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX));
        let (name, help) = ("operetta_guest_memory_limit_bytes", "Linear memory that all guests may hold together");
        gauge(self.0.total()).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        let held = self.0.held();
        if held.is_empty() {
            return Ok(());
        }
        let (name, help) = (
            "operetta_guest_memory_bytes",
            "Linear memory that guests hold now, by plugin; without one, of components that are asked what they are",
        );
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (plugin, bytes) in held {
            let labels = Which { plugin: plugin.map(|plugin| plugin.to_string()).unwrap_or_default() };
            gauge(bytes).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
