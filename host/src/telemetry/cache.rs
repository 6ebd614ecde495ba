//! What the caches hold, read when somebody asks.

use std::sync::Arc;

use operetta_cluster::informer::CacheBudget;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::held;

/// The caches of this host.
#[derive(Debug)]
pub struct Caches(pub Arc<CacheBudget>);

impl Collector for Caches {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let (name, help) = ("operetta_cache_limit_bytes", "What all caches may hold together");
        held::one(&mut encoder, name, help, self.0.total())?;
        held::one(
            &mut encoder,
            "operetta_cache_outlines",
            "Objects of which there was no room for more than the metadata; whoever reads them asks the API server",
            self.0.outlines(),
        )?;
        held::each(
            &mut encoder,
            "operetta_cache_bytes",
            "What the caches hold, by plugin; what several watch is charged to the one that holds least",
            self.0.held().into_iter().map(|(plugin, bytes)| (plugin.to_string(), bytes)),
        )
    }
}
