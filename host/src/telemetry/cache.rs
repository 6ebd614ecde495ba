//! What the caches hold, read when somebody asks.

use std::sync::Arc;

use operetta_cluster::informer::CacheBudget;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

/// The caches of this host.
#[derive(Debug)]
pub struct Caches(pub Arc<CacheBudget>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Which {
    plugin: String,
}

impl Collector for Caches {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let whole = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let mut tell = |name: &str, help, number| {
            let metric = ConstGauge::new(whole(number));
            metric.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        tell("operetta_cache_limit_bytes", "What all caches may hold together", self.0.total())?;
        tell(
            "operetta_cache_outlines",
            "Objects of which there was no room for more than the metadata; whoever reads them asks the API server",
            self.0.outlines(),
        )?;
        let held = self.0.held();
        if held.is_empty() {
            return Ok(());
        }
        let help = "What the caches hold, by plugin; what several watch is charged to the one that holds least";
        let mut family = encoder.encode_descriptor("operetta_cache_bytes", help, None, MetricType::Gauge)?;
        for (plugin, bytes) in held {
            let labels = Which { plugin: plugin.to_string() };
            ConstGauge::new(whole(bytes)).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
