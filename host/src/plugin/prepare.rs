//! What comes before the switch: everything that can fail or takes time, and changes nothing that runs. May be given up at any point.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use operetta_api::{ConfigMapSource, DeletionPolicy, Plugin as Document, PluginSpec, Source};
use operetta_cluster::plugins::PartError;
use operetta_core::{
    aside::Aside,
    bounds::Bounds,
    effect::{Policy, Ports},
    grant::{Grants, Remedy},
    manifest::Manifest,
    name::{Actor, ControllerName, Digest, Namespace},
    port::{ApiError, Kubernetes, Level, Log},
};
use tokio::time::Instant;

use super::{Code, Phase, Plugin, Prepared, Problem, Reason, Step, Withdrawn, claims::kind_of, confine, needs};
use crate::{
    catalog::{Entry, Object, Wasm},
    channels::GrpcChannels,
    controller::{Extents, Mode, Watches},
    databases::DatabasePools,
    package,
};

impl Withdrawn {
    /// What this document takes away from what runs by that one, on a host in this namespace.
    pub(super) fn by(runs: &PluginSpec, spec: &PluginSpec, host: &Namespace) -> Self {
        let grants = (spec.grants != runs.grants).then(|| {
            let (before, now) = (&runs.grants, &spec.grants);
            // Only those that lead to the same place still: under the name of another one the old one is no longer granted.
            let channels = now.channels.iter().filter(|channel| before.channels.contains(channel));
            let databases = now.databases.iter().filter(|database| before.databases.contains(database));
            Arc::new(Grants {
                channels: channels.map(|channel| channel.name.clone()).collect(),
                databases: databases.map(|database| database.name.clone()).collect(),
                host_namespace: Some(host.clone()),
                ..spec.policy().grants
            })
        });
        let (before, left) = (runs.scope(), runs.scope().intersection(&spec.scope()));
        Self { grants, scope: (left != before).then_some(left), ..Self::default() }
    }
}

/// A document with what the catalog says of it.
#[derive(Clone, Copy)]
struct Asked<'a> {
    spec: &'a PluginSpec,
    object: Option<&'a Object>,
    mode: Mode,
    since: Instant,
}

impl Plugin {
    /// Does everything that can fail or takes time, and changes nothing that runs. Cancel-safe.
    ///
    /// Where the component cannot be used, its document still holds for the code that runs already, so that a grant can be withdrawn whatever lies beside it; and where
    /// nothing runs yet, what ran before the host was restarted is better than nothing.
    pub(super) async fn prepare(&mut self, entry: &Entry) -> (Step, Option<Problem>) {
        let since = Instant::now();
        let (wasm, yaml, object) = match entry {
            Entry::Present { wasm, yaml, object } => (wasm, yaml, object.as_ref()),
            Entry::Incomplete(why) => {
                return (
                    self.without_document(),
                    Some(Problem::lasting(Phase::Fetch, why).because(Reason::FileMissing)),
                );
            }
            Entry::WithoutDocument(why) => {
                let problem = Problem::lasting(Phase::Fetch, why).because(Reason::DocumentMissing);
                return (self.without_document(), Some(problem));
            }
            Entry::Gone => return (self.farewell(), None),
        };
        let document = match operetta_api::parse(&self.name, yaml) {
            Ok(document) => document,
            Err(error) => {
                let place = if object.is_some() { "the Plugin".to_owned() } else { format!("{}.yaml", self.name) };
                let problem = Problem::lasting(Phase::Fetch, &format!("{place}: {error}"));
                return (Step::Stay, Some(problem.because(Reason::InvalidDocument)));
            }
        };
        self.weigh(wasm, &document, object, since).await
    }

    /// The same for a document that can be read.
    async fn weigh(
        &mut self,
        wasm: &Wasm,
        document: &Document,
        object: Option<&Object>,
        since: Instant,
    ) -> (Step, Option<Problem>) {
        let spec = &document.spec;
        let deleting = object.is_some_and(|object| object.deleting);
        if object.is_some_and(|object| self.let_go.as_ref() == Some(&object.uid)) {
            return (Step::Stay, None);
        }
        if spec.suspend && !deleting {
            return (Step::Suspend, None);
        }
        let mode = match spec.deletion_policy {
            DeletionPolicy::Drain if deleting => Mode::Drain,
            DeletionPolicy::Release if deleting => Mode::Rest,
            // Who holds what must be known before it may go.
            _ if spec.suspend => Mode::Rest,
            _ => Mode::Run,
        };
        let asked = Asked { spec, object, mode, since };
        let problem = match self.code(wasm, document).await {
            Ok(code) => match self.version(code, asked).await {
                Ok(step) => return (step, None),
                // Whoever may not act does not go on by what needs no account, such as channels.
                Err(problem) if problem.is_of_account() => return (Step::Close, Some(problem)),
                Err(problem) => return (Step::Stay, Some(problem)),
            },
            Err(problem) => problem,
        };
        let Some(code) = self.older(wasm, document, object).await else { return (Step::Stay, Some(problem)) };
        match self.version(code, asked).await {
            Ok(step) => (step, Some(problem)),
            Err(other) => {
                let step = if other.is_of_account() { Step::Close } else { Step::Stay };
                let message =
                    format!("{}; and the version before it: {}: {}", problem.message, other.phase, other.message);
                (step, Some(Problem { message, passing: problem.passing || other.passing, ..problem }))
            }
        }
    }

    /// The code of a component, loaded unless it runs already or is known to be broken.
    async fn code(&mut self, wasm: &Wasm, document: &Document) -> Result<Code, Problem> {
        let pinned = document.spec.digest;
        if let (Wasm::ConfigMap(_), Some(pinned), Some(running)) = (wasm, pinned, &self.running)
            && running.code.digest == pinned
        {
            // No need to read what can only be the same.
            return Ok(running.code.clone());
        }
        let bytes = match wasm {
            Wasm::File { bytes, .. } => bytes.clone(),
            Wasm::ConfigMap(source) => self.fetch(source).await?,
            Wasm::Missing(why) => return Err(Problem::lasting(Phase::Fetch, why).because(Reason::FileMissing)),
        };
        let digest = Digest::of(&bytes);
        if let Some(pinned) = pinned
            && pinned != digest
        {
            let text =
                format!("{wasm} is {digest} and the document pins {pinned}; correct spec.digest or the component");
            let problem = Problem::lasting(Phase::Verify, &text).because(Reason::DigestMismatch);
            // A file that is exchanged is told; a ConfigMap is not.
            return Err(Problem { passing: matches!(wasm, Wasm::ConfigMap(_)), ..problem });
        }
        if let Some(running) = &self.running
            && running.code.digest == digest
        {
            return Ok(running.code.clone());
        }
        if let Some((broken, problem)) = &self.broken
            && *broken == digest
            && !problem.passing
        {
            return Err(problem.clone());
        }
        let loaded = self.host.loader.load(bytes.clone()).await;
        match loaded {
            Ok(code) => {
                self.fetched = Some((digest, bytes));
                Ok(code)
            }
            Err(problem) => {
                let problem = Problem { message: format!("{wasm}: {}", problem.message), ..problem };
                self.broken = Some((digest, problem.clone()));
                Err(problem)
            }
        }
    }

    /// Reads a component from its ConfigMaps.
    async fn fetch(&self, source: &ConfigMapSource) -> Result<Bytes, Problem> {
        let failed =
            |reason, text: &dyn std::fmt::Display| Problem::passing(Phase::Fetch, &text.to_string()).because(reason);
        let names = source.names().map_err(|e| failed(Reason::InvalidDocument, &e))?;
        let mut parts = Vec::new();
        for name in names {
            parts.push(self.host.objects.part(&name).await.map_err(|error| match error {
                PartError::NoConfigMap(_) => failed(
                    Reason::ConfigMapMissing,
                    &format!("{error}; apply it, as `operetta install {}.wasm --plugin` does, or correct spec.source", self.name),
                ),
                PartError::NoKey(_) => failed(Reason::ConfigMapInvalid, &error),
                PartError::Api(ApiError::Forbidden(_)) => failed(Reason::Other, &format!("{error}; the host may read ConfigMaps of its own namespace only, by the Role of `operetta generate rbac`")),
                PartError::Api(_) => failed(Reason::Other, &error),
            })?);
        }
        // Some ten milliseconds for a large one.
        let unpacked = tokio::task::spawn_blocking(move || package::unpack(&parts)).await;
        let unpacked = unpacked.unwrap_or_else(|e| Err(e.to_string()));
        unpacked.map_err(|why| {
            failed(Reason::ConfigMapInvalid, &format!("the component in ConfigMap {}: {why}", source.name))
        })
    }

    /// The code that runs, or ran last, if the document admits it.
    async fn older(&self, wasm: &Wasm, document: &Document, object: Option<&Object>) -> Option<Code> {
        let admitted = |digest: Digest| document.spec.digest.is_none_or(|pinned| pinned == digest);
        if let Some(running) = &self.running {
            return admitted(running.code.digest).then(|| running.code.clone());
        }
        // The first of two files that are copied is no reason to bring back what may have been removed while the host was away.
        if object.is_none() && matches!(wasm, Wasm::Missing(_)) {
            return None;
        }
        let (last_good, plugin) = (self.host.last_good.clone(), self.name.clone());
        let before = tokio::task::spawn_blocking(move || last_good.recall(&plugin)).await.ok()??;
        if matches!(wasm, Wasm::File { bytes, .. } if *bytes == before) || !admitted(Digest::of(&before)) {
            return None;
        }
        self.host.loader.load(before).await.ok()
    }

    /// All that this version needs, unless it runs so already.
    async fn version(&mut self, code: Code, asked: Asked<'_>) -> Result<Step, Problem> {
        let Asked { spec, object, mode, since, .. } = asked;
        self.candidate = Some((code.manifest.version.clone(), code.digest));
        if let Some(running) = &self.running
            && running.code.digest == code.digest
            && running.spec == *spec
            && running.mode == mode
            && running.owner.as_deref() == object.map(|object| object.uid.as_str())
            && !running.has_lost_watches()
            && running.closed().is_none()
            && !running.withdrawn.cluster_only
        {
            return Ok(Step::Stay);
        }
        if object.is_none() {
            self.check_file_source(spec.source.as_ref())?;
        }
        let account = spec.account(&self.name).map_err(|e| Problem::lasting(Phase::Grant, &e))?;
        let scope = self.host.scope.intersection(&spec.scope());
        confine::check(&account, &spec.grants.rules, &scope, &self.host.namespace)
            .map_err(|e| Problem::lasting(Phase::Grant, &e))?;
        let bounds = Bounds::of(&self.name, &code.manifest.controllers, &account, &scope);
        let mut policy = Policy { bounds, ..spec.policy() };
        policy.grants.host_namespace = Some(self.host.namespace.clone());
        let extents = needs::check(&self.name, object.is_some(), &code.manifest, &policy.grants, &scope)?;
        let vault = &self.host.vault;
        let aside = Aside::in_log(&self.name);
        let channels = GrpcChannels::open(&spec.grants.channels, policy.limits.message, vault, &aside).await?;
        let variable = |name: &str| std::env::var(name).ok();
        let databases = DatabasePools::open(&spec.grants.databases, &policy.limits, variable, vault, &aside).await?;
        self.check_held(&code.manifest)?;
        let claim = self.host.claims.take(&self.name, &code.manifest);
        let claim = claim.map_err(|e| Problem::passing(Phase::Start, &e).because(Reason::KindTaken))?;
        // What the cluster refuses today it may allow tomorrow, when somebody has made the account or its rights.
        let refused = |phase, error: &ApiError| {
            let problem = Problem::passing(phase, error);
            if matches!(error, ApiError::Forbidden(_)) { problem.because(Reason::Forbidden) } else { problem }
        };
        let actor = Actor { plugin: self.name.clone(), account };
        let port = self.host.identities.port(&actor, &scope).await;
        let port = port.map_err(|e| refused(Phase::Grant, &e))?;
        let watches = self.watches(&code.manifest, &actor, &extents).await;
        let watches = watches.map_err(|e| refused(Phase::Start, &e))?;
        // Before the first object can hold a finalizer of it, the Plugin is held itself.
        let declares = code.manifest.controllers.iter().any(|controller| !controller.finalizers.is_empty());
        if let Some(object) = object.filter(|object| !object.deleting) {
            let held = self.host.objects.hold(&self.name, &object.uid, declares).await;
            held.map_err(|e| Problem::passing(Phase::Start, &e))?;
        }
        let ports = self.ports(port, channels, databases);
        let (spec, owner) = (spec.clone(), object.map(|object| object.uid.clone()));
        Ok(Step::Exchange(Box::new(Prepared {
            code,
            spec,
            mode,
            owner,
            account: actor.account,
            scope,
            extents,
            policy,
            ports,
            claim,
            watches,
            since,
        })))
    }

    fn check_file_source(&self, source: Option<&Source>) -> Result<(), Problem> {
        let own = format!("{}.wasm", self.name);
        match source {
            None => Ok(()),
            Some(Source { file: Some(file), .. }) if *file == own => Ok(()),
            Some(_) => Err(Problem::lasting(
                Phase::Fetch,
                &format!("spec.source of {}.yaml names another component, and in a plugin directory it can only be {own}; correct it or leave it out", self.name),
            )
            .because(Reason::InvalidDocument)),
        }
    }

    /// Whether every finalizer that is held under the code that runs is one that the new code removes, too.
    fn check_held(&self, manifest: &Manifest) -> Result<(), Problem> {
        let Some(running) = &self.running else { return Ok(()) };
        for controller in running.controllers.values() {
            let before = controller.spec();
            let after = manifest.controllers.iter().find(|c| kind_of(&c.primary) == kind_of(&before.primary));
            let dropped = |finalizer: &String| after.is_none_or(|after| !after.finalizers.contains(finalizer));
            if !before.finalizers.iter().any(dropped) {
                continue;
            }
            let kind = format!("{}.{}", before.primary.resource(), before.primary.group());
            if !controller.is_synced() {
                let text = format!(
                    "version {} no longer removes finalizers from {kind}, and which of them are held is not known yet",
                    manifest.version
                );
                return Err(Problem::passing(Phase::Start, &text).because(Reason::FinalizersHeld));
            }
            if let Some((finalizer, count)) = controller.holders().by_finalizer().into_iter().find(|(f, _)| dropped(f))
            {
                let lost = if after.is_some() { "that finalizer" } else { "that kind" };
                let text = format!(
                    "{count} {kind} hold the finalizer {finalizer}, and version {} knows nothing of {lost}: nobody would ever let them go; \
                     delete them while version {} runs, or take the finalizer off them by `kubectl patch`; it is tried again",
                    manifest.version, running.code.manifest.version
                );
                return Err(Problem::passing(Phase::Start, &text).because(Reason::FinalizersHeld));
            }
        }
        Ok(())
    }

    /// The watches of those controllers whose watches are not running yet, each complete or none at all.
    async fn watches(
        &self,
        manifest: &Manifest,
        actor: &Actor,
        extents: &Extents,
    ) -> Result<HashMap<ControllerName, Watches>, ApiError> {
        let mut watches = HashMap::new();
        for spec in &manifest.controllers {
            let kept = self.running.as_ref().is_some_and(|running| {
                running.account == actor.account
                    && spec.kinds().iter().all(|&kind| running.extents.get(kind) == extents.get(kind))
                    && running.controllers.get(&spec.name).is_some_and(|c| c.spec() == spec && !c.is_lost())
            });
            if !kept {
                let started = Watches::start(&*self.host.informers, actor, extents, spec).await?;
                watches.insert(spec.name.clone(), started);
            }
        }
        Ok(watches)
    }

    fn ports(&self, kubernetes: Arc<dyn Kubernetes>, channels: GrpcChannels, databases: DatabasePools) -> Ports {
        let (metrics, vitals, plugin) = (self.metrics.clone(), self.vitals.clone(), self.name.clone());
        let limits = self.metrics.clone();
        // What it is denied all the time would be a log of nothing else.
        let again = {
            let plugin = plugin.clone();
            Aside::to(move |what| tracing::warn!(%plugin, what, "denied again"))
        };
        let no_longer = {
            let plugin = plugin.clone();
            Aside::to(move |what| tracing::warn!(%plugin, what, "denied: no longer allowed to what runs"))
        };
        Ports {
            kubernetes,
            channels: Arc::new(channels),
            databases: Arc::new(databases),
            log: Arc::new(NoLog),
            denials: Arc::new(move |denial| {
                metrics.denied(denial.grant());
                // What began before the document of now is no reason to change that one.
                if matches!(denial.remedy, Remedy::Closed(_)) {
                    return no_longer.say(&denial.to_string());
                }
                if !vitals.denied(denial) {
                    return again.say(&denial.to_string());
                }
                match &denial.remedy {
                    Remedy::Grant { yaml, .. } => {
                        tracing::warn!(%plugin, what = denial.what, rule = yaml, "denied: not granted to the plugin");
                    }
                    Remedy::None(why) => {
                        tracing::warn!(%plugin, what = denial.what, why, "denied: refused, whatever is granted to the plugin");
                    }
                    Remedy::Closed(_) => {}
                }
            }),
            exceeded: Arc::new(move |limit| limits.exceeded(limit)),
            rates: self.metrics.rates(),
        }
    }
}

/// Takes the place of a log where there is no reconcile to speak of.
struct NoLog;

impl Log for NoLog {
    fn enabled(&self, _: Level) -> bool {
        false
    }
    fn write(&self, _: Level, _: &str, _: &str, _: &[(String, String)]) {}
}
