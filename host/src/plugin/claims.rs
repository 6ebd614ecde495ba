//! Which plugin reconciles which kind: one at most, since two would undo each other's work.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use operetta_core::{manifest::Manifest, name::PluginName, resource::Resource};
use tokio::sync::watch;

/// Group and plural.
type Kind = (String, String);

/// Whatever the version: the objects are the same.
pub(super) fn kind_of(resource: &Resource) -> Kind {
    (resource.group().to_owned(), resource.resource().to_owned())
}

/// All claims of a host.
pub struct Claims {
    held: Mutex<HashMap<Kind, Holder>>,
    freed: watch::Sender<()>,
}

impl Default for Claims {
    fn default() -> Self {
        Self { held: Mutex::default(), freed: watch::Sender::new(()) }
    }
}

struct Holder {
    plugin: PluginName,
    /// How many claims name the kind: two while one version takes over from another, and more while reconciles of older ones end.
    claims: usize,
}

/// The claim of one version of a plugin. Dropping it gives it back; the kinds are free when no claim of the plugin names them any more.
pub struct Claim {
    claims: Arc<Claims>,
    kinds: Vec<Kind>,
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<Kind, Holder>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Told whenever a kind becomes free.
    pub fn freed(&self) -> watch::Receiver<()> {
        self.freed.subscribe()
    }

    /// Claims all kinds that the manifest is for, or none.
    ///
    /// # Errors
    /// Another plugin holds one of them; the text says which and what to do.
    pub fn take(self: &Arc<Self>, plugin: &PluginName, manifest: &Manifest) -> Result<Claim, String> {
        let kinds: Vec<_> = manifest.controllers.iter().map(|controller| kind_of(&controller.primary)).collect();
        let mut held = self.lock();
        for kind in &kinds {
            if let Some(Holder { plugin: other, .. }) = held.get(kind)
                && other != plugin
            {
                return Err(format!(
                    "{}.{} is reconciled by the plugin {other} already; remove one of the two plugins, and {plugin} takes over when {other} has ended",
                    kind.1, kind.0
                ));
            }
        }
        for kind in &kinds {
            held.entry(kind.clone()).or_insert_with(|| Holder { plugin: plugin.clone(), claims: 0 }).claims += 1;
        }
        drop(held);
        Ok(Claim { claims: self.clone(), kinds })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut held = self.claims.lock();
        for kind in &self.kinds {
            if let Some(holder) = held.get_mut(kind) {
                holder.claims -= 1;
                if holder.claims == 0 {
                    held.remove(kind);
                    self.claims.freed.send_replace(());
                }
            }
        }
    }
}
