//! How a plugin goes whose finalizers objects hold: nobody else would ever remove them, and a namespace with such an object would hang in Terminating for ever.
//!
//! A Plugin of the cluster goes as its `spec.deletionPolicy` says. A file cannot refuse to be removed, so the plugin works on for those objects that are being deleted until none holds
//! anything (`Drain`), or, where its document said `Release`, lets all of them go.

use std::{collections::BTreeSet, time::Duration};

use operetta_api::DeletionPolicy;
use operetta_core::{
    effect::Effects,
    grant::Closed,
    manifest,
    name::PluginName,
    port::{ApiError, Caller, Patch},
    resource::ObjectKey,
};
use serde_json::{Value, json};

use super::{Leaving, Phase, Plugin, Problem, Running, Step};
use crate::{
    catalog::{Entry, Object},
    controller::{Controller, Mode},
    vitals::Census,
};

/// For so long nothing may be held before a plugin goes: longer than a watch lags behind a write.
const QUIET: Duration = Duration::from_millis(500);
/// Between two tries to let objects go.
const AGAIN: Duration = Duration::from_secs(2);

impl Running {
    fn is_synced(&self) -> bool {
        self.controllers.values().all(Controller::is_synced)
    }

    fn declares_finalizers(&self) -> bool {
        self.controllers.values().any(|controller| !controller.spec().finalizers.is_empty())
    }

    fn held(&self) -> usize {
        self.controllers.values().map(|controller| controller.holders().count().0).sum()
    }

    /// Waits until it is known that no object holds a finalizer of it, and stays so for a while; tells `changed` on the way.
    pub(super) async fn emptied(running: Option<&Self>, changed: impl Fn()) {
        let Some(running) = running else { return std::future::pending().await };
        futures::future::join_all(running.controllers.values().map(Controller::synced)).await;
        let mut changes: Vec<_> = running.controllers.values().map(|c| c.holders().changes()).collect();
        loop {
            for change in &mut changes {
                change.mark_unchanged();
            }
            let quiet = async {
                if running.held() > 0 {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(QUIET).await;
            };
            let next = changes.iter_mut().map(|change| Box::pin(change.changed()));
            tokio::select! {
                () = quiet => return,
                _ = futures::future::select_all(next) => changed(),
            }
        }
    }

    /// Takes its finalizers off all objects, with its own account and grants, until it is dropped; tells `failed` what does not go.
    pub(super) async fn release(running: Option<&Self>, plugin: &PluginName, failed: impl Fn(String)) {
        let Some(running) = running else { return std::future::pending().await };
        loop {
            for controller in running.controllers.values() {
                for (key, _) in controller.holders().all() {
                    if let Err(error) = running.let_go(plugin, controller.spec(), &key).await {
                        failed(format!("{key}: {error}"));
                    }
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn let_go(&self, plugin: &PluginName, spec: &manifest::Controller, key: &ObjectKey) -> Result<(), ApiError> {
        let caller = Caller { plugin: plugin.clone(), controller: spec.name.clone() };
        let version = self.shared.version.load_full();
        let (began, now) = (version.policy.clone(), self.shared.policy.clone());
        let effects = Effects::since(began, caller, now, version.ports.clone());
        let object = match effects.get(&spec.primary, key, true).await {
            Ok(object) => object,
            Err(ApiError::NotFound(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let object: Value = serde_json::from_str(&object).map_err(|e| ApiError::Invalid(e.to_string()))?;
        let Some(patch) = without(&object, &spec.finalizers) else { return Ok(()) };
        match effects.patch(&spec.primary, key, None, Patch::Json(patch.to_string())).await {
            Ok(_) | Err(ApiError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The JSON patch that takes finalizers off; none where it has none of them. Others may change the list meanwhile, and then it is refused.
fn without(object: &Value, finalizers: &BTreeSet<String>) -> Option<Value> {
    let all = object.pointer("/metadata/finalizers").and_then(Value::as_array)?;
    let kept: Vec<_> = all.iter().filter(|f| !f.as_str().is_some_and(|f| finalizers.contains(f))).collect();
    (kept.len() < all.len()).then(|| {
        json!([
            {"op": "test", "path": "/metadata/finalizers", "value": all},
            {"op": "replace", "path": "/metadata/finalizers", "value": kept},
        ])
    })
}

/// What holds a plugin, and what a person can do about it.
pub fn explain(policy: DeletionPolicy, census: &Census, is_file: bool) -> String {
    let (held, deleting) = (census.to_string(), census.deleting);
    match policy {
        DeletionPolicy::Refuse => format!(
            "{held}: the Plugin stays, and works on, until none does ({deleting} are being deleted); delete them, or set spec.deletionPolicy to Drain, \
             which looks after deleted ones only, or to Release, which lets all go without the plugin's clean-up"
        ),
        DeletionPolicy::Drain => {
            let release = if is_file {
                "put both files back to keep the plugin"
            } else {
                "set spec.deletionPolicy to Release to let all go without the plugin's clean-up"
            };
            format!(
                "{held}: the plugin looks only after those that are being deleted ({deleting} are) and goes when none is left; delete the others, or {release}"
            )
        }
        DeletionPolicy::Release => {
            format!("{held}: it is taken off them, without the plugin's clean-up, and then the plugin goes")
        }
    }
}

impl Plugin {
    /// What to do when nothing is there any more.
    pub(super) fn farewell(&self) -> Step {
        match &self.running {
            Some(running)
                if running.owner.is_none()
                    && running.declares_finalizers()
                    && (running.held() > 0 || !running.is_synced()) =>
            {
                Step::Keep(if running.spec.deletion_policy == DeletionPolicy::Release {
                    Mode::Rest
                } else {
                    Mode::Drain
                })
            }
            _ => Step::Remove,
        }
    }

    /// What to do where a file is left that can be no plugin by itself. What runs by a file waits for the other one; what was asked for by a Plugin of the cluster is gone with that, and no file brings it back.
    pub(super) fn without_document(&self) -> Step {
        let was_object = || self.status.borrow().object.is_some();
        let is_over = self.running.as_ref().map_or_else(was_object, |running| running.owner.is_some());
        if is_over { self.farewell() } else { Step::Stay }
    }

    /// Whether it is to go, and how.
    pub(super) fn leaving(&self, entry: &Entry) -> Option<Leaving> {
        let running = self.running.as_ref();
        match entry {
            Entry::Present { object: Some(object), .. } if object.deleting => {
                let policy = running.map(|running| running.spec.deletion_policy).unwrap_or_default();
                Some(Leaving { policy, object: Some(object.clone()) })
            }
            Entry::Gone => running.map(|running| {
                let policy = if running.mode == Mode::Rest { DeletionPolicy::Release } else { DeletionPolicy::Drain };
                Leaving { policy, object: None }
            }),
            _ => None,
        }
    }

    /// Nothing is held any more: ends, and lets its Plugin go. Whoever removed files is done with in the next look.
    pub(super) async fn finish(&mut self, object: Option<&Object>) -> Result<(), Problem> {
        let Some(object) = object else { return Ok(()) };
        // Reconciles in flight may still put finalizers on.
        let mode = self.running.as_ref().map(|running| running.mode).unwrap_or_default();
        self.set_mode(Mode::Drain);
        tokio::time::sleep(QUIET).await;
        if self.running.as_ref().is_some_and(|running| running.held() > 0) {
            self.set_mode(mode);
            return Ok(());
        }
        // What is under way may put no finalizer on any more.
        self.close(Some(Closed::Removed));
        self.stop().await;
        self.let_go(object).await
    }

    /// Lets its Plugin go.
    pub(super) async fn let_go(&mut self, object: &Object) -> Result<(), Problem> {
        let released = self.host.objects.hold(&self.name, &object.uid, false).await;
        released.map_err(|e| Problem::passing(Phase::Start, &e))?;
        tracing::info!(plugin = %self.name, "no object holds a finalizer of the plugin; its Plugin may go");
        self.let_go = Some(object.uid.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_declared_finalizers_are_taken_off_and_only_from_the_list_that_was_seen() {
        let ours = BTreeSet::from(["a/x".to_owned(), "a/y".to_owned()]);
        let patch = without(&json!({"metadata": {"finalizers": ["a/x", "b/z", "a/y"]}}), &ours).unwrap();
        assert_eq!(patch[0]["value"], json!(["a/x", "b/z", "a/y"]));
        assert_eq!(patch[1]["value"], json!(["b/z"]));
        assert_eq!(without(&json!({"metadata": {"finalizers": ["b/z"]}}), &ours), None);
        assert_eq!(without(&json!({"metadata": {}}), &ours), None);
    }
}
