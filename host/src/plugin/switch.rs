//! The switch and what is like it: makes it so, fails never, and waits for nothing but reconciles in flight and the disk.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use operetta_core::grant::Closed;

use super::{Arriving, Plugin, Prepared, Running, Step, Withdrawn, claims::kind_of};
use crate::{
    catalog::Entry,
    controller::{Controller, Mode, Shared, Version},
};

impl Plugin {
    /// What a document takes away from what runs is gone at once, whatever comes of it otherwise, and so is all where there is none any more. What it grants in addition has to wait until it is in force.
    pub(super) fn withdraw(&mut self, entry: &Entry) {
        let drains = matches!(entry, Entry::Gone) && matches!(self.farewell(), Step::Keep(_));
        let Some(running) = &mut self.running else { return };
        let before = &running.withdrawn;
        let withdrawn = match entry {
            Entry::Present { yaml, .. } => match operetta_api::parse(&self.name, yaml) {
                Ok(document) => Withdrawn {
                    cluster_only: before.cluster_only,
                    ..Withdrawn::by(&running.spec, &document.spec, &self.host.namespace)
                },
                // Nobody knows what it means to take away, or to give back.
                Err(_) => return,
            },
            Entry::WithoutDocument(_) => Withdrawn { all: true, ..before.clone() },
            // What drains looks after its objects to the end.
            Entry::Gone if drains => Withdrawn { all: false, ..before.clone() },
            // What ends gets nothing back for that.
            Entry::Incomplete(_) | Entry::Gone => return,
        };
        if withdrawn == *before {
            return;
        }
        let hid_something = *before != Withdrawn::default();
        running.narrow(withdrawn);
        if hid_something {
            self.vitals.forget_denials();
            running.controllers.values().for_each(Controller::look_at_all);
        }
    }

    /// Makes it so. Fails never, and waits only for reconciles in flight and for the last good version to be kept.
    pub(super) async fn take(&mut self, step: Step) {
        let was_suspended = self.suspended.take();
        match step {
            Step::Stay => {}
            Step::Exchange(prepared) => {
                let digest = prepared.code.digest;
                self.exchange(*prepared);
                // The code that runs may be an older one than was fetched; it is kept already then.
                if let Some((fetched, wasm)) = self.fetched.take_if(|(fetched, _)| *fetched == digest) {
                    let (last_good, plugin) = (self.host.last_good.clone(), self.name.clone());
                    let kept = move || last_good.keep(&plugin, &fetched, &wasm);
                    let _ = tokio::task::spawn_blocking(kept).await;
                }
            }
            Step::Keep(mode) => {
                // What it holds can go only if its account may act again, and until then the cluster refuses that. Nobody refuses what needs no account.
                if let Some(running) = self.running.as_mut().filter(|r| r.closed() == Some(Closed::LostAccount)) {
                    running.narrow(Withdrawn { cluster_only: true, ..running.withdrawn.clone() });
                }
                self.close(None);
                self.set_mode(mode);
            }
            Step::Close => {
                self.close(Some(Closed::LostAccount));
                self.set_mode(Mode::Rest);
            }
            Step::Suspend => {
                let held = self.vitals.census().to_string();
                // Who suspends a plugin wants it to stop, and a reconcile in flight may take an hour.
                self.close(Some(Closed::Suspended));
                self.stop().await;
                if was_suspended.is_none() {
                    tracing::info!(plugin = %self.name, held, "plugin is suspended");
                }
                self.suspended = Some(was_suspended.unwrap_or(held));
            }
            Step::Remove => {
                if let Some(held) = was_suspended.filter(|held| !held.is_empty()) {
                    tracing::warn!(plugin = %self.name, held, "the plugin is removed while it was suspended, and nobody is left to let these objects go; bring it back to delete them");
                }
                self.remove().await;
            }
        }
    }

    /// The end, until something comes back under the name.
    pub(super) async fn remove(&mut self) {
        // With its document all that it granted is gone, also for what is under way.
        self.close(Some(Closed::Removed));
        self.stop().await;
        self.metrics.removed();
        self.broken = None;
        self.candidate = None;
        let (last_good, plugin) = (self.host.last_good.clone(), self.name.clone());
        let _ = tokio::task::spawn_blocking(move || last_good.forget(&plugin)).await;
        tracing::info!(plugin = %self.name, "plugin removed");
    }

    /// The switch.
    fn exchange(&mut self, prepared: Prepared) {
        let Prepared { code, spec, mode, owner, account, scope, extents, policy, ports, claim, mut watches, since } =
            prepared;
        let before = self.running.take();
        let exchanged = before.is_some();
        // A document that leaves the code and its concurrency alone leaves the reconciles in flight counted.
        let share = before.as_ref().filter(|before| {
            before.code.digest == code.digest
                && before.spec.limits.limits().concurrency == policy.limits.concurrency
                && (before.mode == Mode::Rest) == (mode == Mode::Rest)
        });
        let share = share.map(|before| before.shared.version.load().own_share.clone());
        let version = Version {
            mode,
            reconciler: code.reconciler.clone(),
            ports,
            scope: scope.clone(),
            own_share: share.unwrap_or_else(|| mode.share(policy.limits.concurrency)),
            policy: Arc::new(policy),
        };
        let was = before.as_ref().map(|b| (b.code.manifest.version.clone(), b.code.digest.short()));
        let (shared, mut old, old_claim) = match before {
            Some(before) => {
                before.shared.exchange(version);
                (before.shared, before.controllers, Some(before.claim))
            }
            None => (self.shared(version), HashMap::new(), None),
        };
        let mut controllers = HashMap::new();
        // What looks after another kind is another controller, whatever its name.
        let stays = |controller: &Controller| {
            code.manifest
                .controller(&controller.spec().name)
                .is_some_and(|spec| spec.primary == controller.spec().primary)
        };
        let leaving: Vec<_> = old.extract_if(|_, controller| !stays(controller)).map(|(_, leaving)| leaving).collect();
        for spec in &code.manifest.controllers {
            let controller = match (old.remove(&spec.name), watches.remove(&spec.name)) {
                (Some(kept), None) => {
                    kept.look_at_all();
                    kept
                }
                (Some(mut kept), Some(watches)) => {
                    kept.watch(spec.clone(), watches);
                    kept
                }
                (None, Some(watches)) => {
                    let before = leaving.iter().find(|gone| kind_of(&gone.spec().primary) == kind_of(&spec.primary));
                    Controller::start(shared.clone(), spec.clone(), watches, before)
                }
                // Cannot be: what is not kept has new watches.
                (None, None) => continue,
            };
            controllers.insert(spec.name.clone(), controller);
        }
        self.host.leaving.spawn(async move {
            futures::future::join_all(leaving.into_iter().map(Controller::stop)).await;
            // Nobody else may reconcile its kinds before.
            drop(old_claim);
        });
        let holders = controllers.values().map(|controller: &Controller| {
            let primary = &controller.spec().primary;
            (format!("{}.{}", primary.resource(), primary.group()), controller.holders().clone())
        });
        let guards = controllers.values().map(|controller: &Controller| controller.guard().clone());
        self.vitals.begin(holders.collect(), guards.collect());
        self.metrics.loaded(&code.manifest.version, &code.digest.short(), was);
        let arriving = Some(Arriving { exchanged, since });
        let withdrawn = Withdrawn::default();
        self.running = Some(Running {
            code,
            spec,
            mode,
            owner,
            account,
            scope,
            extents,
            shared,
            withdrawn,
            controllers,
            claim,
            arriving,
        });
    }

    /// The same goes on, in another mode.
    pub(super) fn set_mode(&mut self, mode: Mode) {
        let Some(running) = &mut self.running else { return };
        if std::mem::replace(&mut running.mode, mode) == mode {
            return;
        }
        let version = running.shared.version.load_full();
        let own_share = mode.share(version.policy.limits.concurrency);
        running.shared.exchange(Version { mode, own_share, ..Version::clone(&version) });
        running.controllers.values().for_each(Controller::look_at_all);
    }

    /// Whether nothing is allowed any more, whatever is granted, and why.
    pub(super) fn close(&self, why: Option<Closed>) {
        if let Some(running) = &self.running
            && running.closed() != why
        {
            running.shared.close(why);
        }
    }

    fn shared(&self, version: Version) -> Arc<Shared> {
        Arc::new(Shared {
            plugin: self.name.clone(),
            policy: Arc::new(ArcSwap::new(version.policy.clone())),
            version: ArcSwap::from_pointee(version),
            tenant: self.host.places.join(&self.name),
            metrics: self.host.metrics.clone(),
            vitals: self.vitals.clone(),
            chain: Arc::default(),
        })
    }

    /// Waits for the reconciles in flight; then the kinds are free for other plugins.
    pub(super) async fn stop(&mut self) {
        let Some(running) = self.running.take() else { return };
        futures::future::join_all(running.controllers.into_values().map(Controller::stop)).await;
        self.metrics.unloaded(&running.code.manifest.version, &running.code.digest.short());
        self.vitals.end();
    }
}
