//! What the memories of guests take, read when somebody asks.

use std::sync::Arc;

use operetta_sandbox::GuestBudget;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::held;

/// The guests of this host.
#[derive(Debug)]
pub struct Guests(pub Arc<GuestBudget>);

impl Collector for Guests {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let (name, help) = ("operetta_guest_memory_limit_bytes", "Linear memory that all guests may hold together");
        held::one(&mut encoder, name, help, self.0.total())?;
        let of = self.0.held().into_iter();
        let of = of.map(|(plugin, bytes)| (plugin.map(|plugin| plugin.to_string()).unwrap_or_default(), bytes));
        held::each(
            &mut encoder,
            "operetta_guest_memory_bytes",
            "Linear memory that guests hold now, by plugin; without one, of components that are asked what they are",
            of,
        )
    }
}
