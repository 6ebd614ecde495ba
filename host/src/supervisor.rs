//! One task for each plugin of the directory, so that one that compiles for long, waits for its account or fails delays no other.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt as _, stream::FuturesUnordered};
use operetta_core::name::PluginName;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    directory::{Directory, Entry},
    plugin::{Host, Plugin, Status},
    telemetry::Health,
};

/// Runs what lies in the directory until `stop`; then takes no more keys, and returns when the reconciles in flight have ended.
///
/// The host is ready when it is known of all plugins that lay there at the start how they fare, and until `stop`.
pub async fn supervise(host: Arc<Host>, mut directory: Directory, health: Arc<Health>, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    // A plugin that is removed keeps its task, which waits for its files to come back: one that ended could miss them.
    let mut plugins: BTreeMap<PluginName, watch::Sender<Entry>> = BTreeMap::new();
    let mut first = directory.untold();
    let mut unsettled = FuturesUnordered::new();
    if first == 0 {
        tracing::info!("the plugin directory is empty; copy NAME.wasm and NAME.yaml into it");
    }
    loop {
        if first == 0 && unsettled.is_empty() {
            health.set_ready(true);
        }
        let found = tokio::select! {
            found = directory.next() => found,
            Some(()) = unsettled.next() => continue,
            () = stop.cancelled() => break,
        };
        if let Some(entries) = plugins.get(&found.name) {
            entries.send_replace(found.entry);
        } else {
            let (entries, follow) = watch::channel(found.entry);
            let (tell, mut status) = watch::channel(Status::default());
            let plugin = Plugin::new(host.clone(), found.name.clone(), tell);
            tasks.spawn(plugin.follow(follow, stop.clone()));
            plugins.insert(found.name, entries);
            if first > 0 {
                unsettled.push(async move {
                    // An error means that the host stops.
                    let _ = status.wait_for(|status| status.settled).await;
                });
            }
        }
        first = first.saturating_sub(1);
    }
    health.set_ready(false);
    tasks.close();
    tasks.wait().await;
    host.leaving.close();
    host.leaving.wait().await;
}

#[cfg(test)]
mod tests;
