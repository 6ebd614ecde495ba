//! What plugins hold of something that they share, as gauges.

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Which {
    plugin: String,
}

fn gauge(number: usize) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX))
}

/// One number.
pub(super) fn one(encoder: &mut DescriptorEncoder, name: &str, help: &str, number: usize) -> std::fmt::Result {
    gauge(number).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

/// One for each plugin; nothing where none holds anything.
pub(super) fn each(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    held: impl IntoIterator<Item = (String, usize)>,
) -> std::fmt::Result {
    let mut held = held.into_iter().peekable();
    if held.peek().is_none() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (plugin, number) in held {
        gauge(number).encode(family.encode_family(&Which { plugin })?)?;
    }
    Ok(())
}
