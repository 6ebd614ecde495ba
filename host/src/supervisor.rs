//! One task for each plugin, so that one that compiles for long, waits for its account or fails delays no other; and one beside it that tells its Plugin in the cluster how it fares.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt as _, stream::FuturesUnordered};
use operetta_core::name::PluginName;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    catalog::{Catalog, Entry, News},
    plugin::{Host, Plugin, Status},
    report::Reporter,
    telemetry::Health,
};

/// Runs what the catalog names until `stop`; then takes no more keys, and returns when the reconciles in flight have ended.
///
/// The host is ready when it is known of all plugins that were there at the start how they fare, and until `stop`.
pub async fn supervise(host: Arc<Host>, mut catalog: Catalog, health: Arc<Health>, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    // A plugin that is removed keeps its task, which waits for it to come back: one that ended could miss that.
    let mut plugins: BTreeMap<PluginName, watch::Sender<Entry>> = BTreeMap::new();
    let mut all_told = false;
    let mut unsettled = FuturesUnordered::new();
    loop {
        if all_told && unsettled.is_empty() {
            health.set_ready(true);
        }
        let news = tokio::select! {
            news = catalog.next() => news,
            Some(()) = unsettled.next() => continue,
            () = stop.cancelled() => break,
        };
        let News::Found(name, entry) = news else {
            all_told = true;
            if plugins.is_empty() {
                tracing::info!(
                    "nothing to run yet; copy NAME.wasm and NAME.yaml into the plugin directory, or apply a Plugin"
                );
            }
            continue;
        };
        if let Some(entries) = plugins.get(&name) {
            entries.send_replace(entry);
            continue;
        }
        let (entries, follow) = watch::channel(entry);
        let (tell, mut status) = watch::channel(Status::default());
        let plugin = Plugin::new(host.clone(), name.clone(), tell);
        let reporter = Reporter::new(host.objects.clone(), name.clone(), plugin.vitals());
        tasks.spawn(stop.clone().run_until_cancelled_owned(reporter.follow(status.clone())));
        tasks.spawn(plugin.follow(follow, stop.clone()));
        plugins.insert(name, entries);
        if !all_told {
            unsettled.push(async move {
                // An error means that the host stops.
                let _ = status.wait_for(|status| status.settled).await;
            });
        }
    }
    health.set_ready(false);
    tasks.close();
    tasks.wait().await;
    host.leaving.close();
    host.leaving.wait().await;
}

#[cfg(test)]
mod tests;
