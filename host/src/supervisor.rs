//! One task for each plugin of the directory, so that one that compiles for long, waits for its account or fails delays no other.

use std::{collections::BTreeMap, sync::Arc};

use operetta_core::name::PluginName;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    directory::{Directory, Entry},
    plugin::{Host, Plugin, Status},
    telemetry::Health,
};

struct Seat {
    entries: watch::Sender<Entry>,
    status: watch::Receiver<Status>,
}

/// Runs what lies in the directory until `stop`; then takes no more keys, and returns when the reconciles in flight have ended.
pub async fn supervise(host: Arc<Host>, mut directory: Directory, health: Arc<Health>, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    let mut seats: BTreeMap<PluginName, Seat> = BTreeMap::new();
    let mut first = directory.untold();
    if first == 0 {
        tracing::info!("the plugin directory is empty; copy NAME.wasm and NAME.yaml into it");
        health.set_ready(true);
    }
    loop {
        let found = tokio::select! {
            found = directory.next() => found,
            () = stop.cancelled() => break,
        };
        seats.retain(|_, seat| !seat.entries.is_closed());
        match seats.get(&found.name) {
            Some(seat) => {
                seat.entries.send_replace(found.entry);
            }
            None if found.entry == Entry::Gone => {}
            None => {
                let (entries, follow) = watch::channel(found.entry);
                let (tell, status) = watch::channel(Status::default());
                let plugin = Plugin::new(host.clone(), found.name.clone(), tell);
                tasks.spawn(plugin.follow(follow, stop.clone()));
                seats.insert(found.name, Seat { entries, status });
            }
        }
        if first > 0 {
            first -= 1;
            if first == 0 {
                let tried: Vec<_> = seats.values().map(|seat| seat.status.clone()).collect();
                let health = health.clone();
                tokio::spawn(async move {
                    for mut status in tried {
                        // An error means that the plugin is gone already.
                        let _ = status.wait_for(|s| s.running.is_some() || (s.tried && s.problem.is_some())).await;
                    }
                    health.set_ready(true);
                });
            }
        }
    }
    health.set_ready(false);
    tasks.close();
    tasks.wait().await;
    host.leaving.close();
    host.leaving.wait().await;
}
