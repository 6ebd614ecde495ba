//! A plugin and its controllers: what they are made of, and the way from a request to the function that handles it.
//!
//! Building a [`Plugin`] is cheap, because every reconcile builds one anew: schemas are only generated when the manifest is asked for.

use crate::{
    context::{Context, Outcome, Request},
    error::Failure,
    host::{Handle, Resource},
    kind::Kind,
    manifest::{
        ChannelRequest, ControllerManifest, DatabaseRequest, Manifest, Mapping, Predicate, Requests, Rule,
        SettingRequest, Verb, Watch, merged,
    },
};
use futures::future::{FutureExt, LocalBoxFuture};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::CustomResourceExt;
use std::rc::Rc;

type Handler = Box<dyn Fn(Context, Option<String>) -> LocalBoxFuture<'static, Result<Outcome, Failure>>>;

/// Reconciles the objects of one kind.
pub struct Controller {
    manifest: ControllerManifest,
    rules: Vec<Rule>,
    handler: Handler,
}

impl Controller {
    /// A controller of the kind that `reconcile` takes.
    ///
    /// `reconcile` is called with an object that exists. For one that is gone nothing is done: what must happen before an object goes belongs behind a
    /// [finalizer](crate::finalizer). Asks for reading the kind.
    pub fn new<K, F>(name: &str, reconcile: F) -> Self
    where
        K: Kind,
        F: AsyncFn(&Context, K) -> Result<Outcome, Failure> + 'static,
    {
        let reconcile = Rc::new(reconcile);
        let handler: Handler = Box::new(move |context, object| {
            let reconcile = reconcile.clone();
            async move {
                let Some(object) = object else { return Ok(Outcome::AwaitChange) };
                let object = serde_json::from_str(&object)
                    .map_err(|error| Failure::terminal(format!("the object is no valid {}: {error}", K::kind(&()))))?;
                reconcile(&context, object).await
            }
            .boxed_local()
        });
        Self {
            manifest: ControllerManifest {
                name: name.to_owned(),
                primary: K::resource(),
                owns: Vec::new(),
                watches: Vec::new(),
                predicates: Vec::new(),
                finalizers: Vec::new(),
                resync_seconds: None,
            },
            rules: vec![Rule::of::<K>(Verb::READ)],
            handler,
        }
    }

    /// Wakes when an object changes whose controller owner reference leads to a primary. Asks for reading that kind, and for what an owner reference
    /// that blocks its owner's deletion needs.
    pub fn owns<K: Kind>(mut self) -> Self {
        self.manifest.owns.push(K::resource());
        self.rules.push(Rule::of::<K>(Verb::READ));
        self.rules.push(Rule::on(&self.manifest.primary, Some("finalizers"), [Verb::Update]));
        self
    }

    /// Wakes when an object of a further kind changes, found by `map`. Asks for reading that kind.
    pub fn watches<K: Kind>(mut self, map: Mapping) -> Self {
        self.manifest.watches.push(Watch { resource: K::resource(), map });
        self.rules.push(Rule::of::<K>(Verb::READ));
        self
    }

    /// A change of the primary wakes only where one of the named parts changed.
    pub fn wakes_on(mut self, predicates: impl IntoIterator<Item = Predicate>) -> Self {
        self.manifest.predicates.extend(predicates);
        self
    }

    /// Declares a finalizer that [`finalizer`](crate::finalizer) puts on primaries, so that the host knows what a plugin holds. Asks for patching the kind.
    pub fn finalizer(mut self, name: &str) -> Self {
        self.manifest.finalizers.push(name.to_owned());
        self.rules.push(Rule::on(&self.manifest.primary, None, [Verb::Patch]));
        self
    }

    /// Writes the primary's status. Asks for patching that subresource.
    pub fn status(mut self) -> Self {
        self.rules.push(Rule::on(&self.manifest.primary, Some("status"), [Verb::Patch]));
        self
    }

    /// Looks at every primary this often, whatever happens.
    pub fn resync_seconds(mut self, seconds: u64) -> Self {
        self.manifest.resync_seconds = Some(seconds);
        self
    }
}

/// An operator: what [`export!`](crate::export) makes a component of.
pub struct Plugin {
    name: String,
    version: String,
    description: String,
    controllers: Vec<Controller>,
    crds: Vec<fn() -> CustomResourceDefinition>,
    rules: Vec<Rule>,
    channels: Vec<ChannelRequest>,
    databases: Vec<DatabaseRequest>,
    events: bool,
    settings: Vec<SettingRequest>,
}

impl Plugin {
    /// A plugin without controllers; [`plugin!`](crate::plugin) fills in what Cargo knows.
    pub fn new(name: &str, version: &str, description: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            description: description.to_owned(),
            controllers: Vec::new(),
            crds: Vec::new(),
            rules: Vec::new(),
            channels: Vec::new(),
            databases: Vec::new(),
            events: false,
            settings: Vec::new(),
        }
    }

    /// A version other than the crate's.
    pub fn version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.version);
        self
    }

    /// Adds a controller.
    pub fn controller(mut self, controller: Controller) -> Self {
        self.controllers.push(controller);
        self
    }

    /// Brings the definition of a custom resource.
    pub fn crd<K: CustomResourceExt>(mut self) -> Self {
        self.crds.push(K::crd);
        self
    }

    /// Asks for more than the controllers ask for themselves.
    pub fn allow(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Asks for a gRPC channel.
    pub fn channel(mut self, name: &str, description: &str, example: &str) -> Self {
        self.channels.push(ChannelRequest {
            name: name.to_owned(),
            description: description.to_owned(),
            example: example.to_owned(),
        });
        self
    }

    /// Asks for a PostgreSQL database; `example` is how the host's environment variables that lead there begin, such as `PSQL`.
    pub fn database(mut self, name: &str, description: &str, example: &str) -> Self {
        self.databases.push(DatabaseRequest {
            name: name.to_owned(),
            description: description.to_owned(),
            example: example.to_owned(),
        });
        self
    }

    /// Asks for publishing events.
    pub fn events(mut self) -> Self {
        self.events = true;
        self
    }

    /// Announces a setting.
    pub fn setting(mut self, name: &str, description: &str, default: Option<&str>) -> Self {
        self.settings.push(SettingRequest {
            name: name.to_owned(),
            description: description.to_owned(),
            default: default.map(str::to_owned),
        });
        self
    }

    /// The manifest.
    pub fn manifest(&self) -> Manifest {
        let rules = self.controllers.iter().flat_map(|controller| &controller.rules).chain(&self.rules).cloned();
        Manifest {
            manifest_version: 1,
            name: self.name.clone(),
            version: self.version.clone(),
            description: self.description.clone(),
            controllers: self.controllers.iter().map(|controller| controller.manifest.clone()).collect(),
            crds: self.crds.iter().map(|crd| crd()).collect(),
            requests: Requests {
                rules: merged(rules),
                channels: self.channels.clone(),
                databases: self.databases.clone(),
                events: self.events,
                settings: self.settings.clone(),
            },
        }
    }

    /// The setting's value where nothing is set.
    pub fn default_of(&self, setting: &str) -> Option<&str> {
        self.settings.iter().find(|request| request.name == setting)?.default.as_deref()
    }

    /// The controller of a primary kind.
    pub fn controller_of(&self, primary: &Resource) -> Option<&str> {
        self.controllers
            .iter()
            .find(|controller| controller.manifest.primary == *primary)
            .map(|controller| controller.manifest.name.as_str())
    }

    /// Handles one request.
    pub async fn reconcile(
        self: Rc<Self>,
        host: Handle,
        request: Request,
        object: Option<String>,
    ) -> Result<Outcome, Failure> {
        let Some(controller) = self.controllers.iter().find(|known| known.manifest.name == request.controller) else {
            return Err(Failure::terminal(format!("the plugin has no controller {:?}", request.controller)));
        };
        let context = Context::new(host, self.clone(), controller.manifest.primary.clone(), request);
        (controller.handler)(context, object).await
    }
}
