//! What no grant allows, so that a plugin never widens what it may do. Whatever its rules say, a plugin
//!
//! - reaches nothing outside of the namespaces in which it works,
//! - does not write Plugins, what defines them (the CRD, and APIServices of the group) and what guards them (the host's admission policies),
//! - does not write the host's roles and bindings, its own or those of another plugin, nor any binding of its account,
//! - does not write service accounts in [`ACCOUNTS`] or beside its own, nor a Secret that is a token of one, nor the objects of these two namespaces. Where else accounts of other plugins lie it does
//!   not know,
//! - runs nothing in [`ACCOUNTS`], and gets into nothing there, since what runs there can act as any of them. That is said of Kubernetes' own kinds ([`WORKLOADS`]): of kinds that others bring
//!   nobody here knows which make pods,
//! - adds no finalizer but those that its manifest declares, each to objects of the kind that it is declared for, since nobody else knows who would ever take it off, and none to the spec of a
//!   Namespace,
//! - gives, changes and takes away no annotation by which people speak to the host (see [`crate::annotation`]), neither by its name nor with all that lies around it, since it would lift its
//!   own backoff or a pause,
//! - and gives no object that is there another owner unless it may delete it, since the garbage collector deletes an object with its owner.
//!
//! What it hands on to others by RBAC the API server holds to what it has itself: `operetta install` never gives an account `escalate`, `bind` or `impersonate`.

mod guarded;
mod named;
mod written;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

pub use self::written::Change;
use self::{
    named::Named,
    written::{Matter, Owner, Written},
};
use crate::{
    cache::{Cached, Meta, Scope},
    effect::printable,
    grant::{Access, Denial, Remedy, Verb},
    manifest::Controller,
    name::{Namespace, PluginName, ServiceAccount, Subresource},
};

const RBAC: &str = "rbac.authorization.k8s.io";
/// Why no write touches an annotation of the host's, and what to do instead.
const PEOPLES: &str = "by annotations of operetta.dev/ people tell the host what to do, and plugins have no part in it; leave the annotation as it is: add none, and write back what was read, or use patch";
/// The finalizer that Kubernetes itself gives to each Namespace.
const KUBERNETES: &str = "kubernetes";
/// Bytes of what a plugin calls a kind, an object or a finalizer, in a denial.
const MOST_SHOWN: usize = 80;

/// The namespace where the accounts of plugins lie, unless their Plugins name another; no place for what runs.
pub const ACCOUNTS: &str = "operetta-plugins";
/// The group of Plugins.
pub const GROUP: &str = "operetta.dev";
/// What the host's own roles and bindings are called, and its other objects.
pub const HOST: &str = "operetta";
/// The role by which the host becomes the accounts of plugins.
pub const HOST_ACCOUNTS: &str = "operetta-accounts";
/// The role by which the host publishes events.
pub const HOST_EVENTS: &str = "operetta-events";
/// How the roles and bindings of plugins begin.
const OF_PLUGINS: &str = "operetta:";
/// Of Kubernetes' own kinds, as rules write them, what runs with an account of its namespace, or makes what does.
pub const WORKLOADS: &[(&str, &str)] = &[
    ("", "pods"),
    ("", "pods/ephemeralcontainers"),
    ("", "replicationcontrollers"),
    ("apps", "deployments"),
    ("apps", "daemonsets"),
    ("apps", "statefulsets"),
    ("apps", "replicasets"),
    ("batch", "jobs"),
    ("batch", "cronjobs"),
    // The pods of StatefulSets and DaemonSets are made from these.
    ("apps", "controllerrevisions"),
];

/// The bounds of one plugin.
#[derive(Debug, Clone, Default)]
pub struct Bounds(Option<Plugin>);

#[derive(Debug, Clone)]
struct Plugin {
    account: ServiceAccount,
    /// What its roles and bindings are called.
    role: String,
    scope: Scope,
    /// A document that is not taken took the rest away.
    within: Option<Scope>,
    /// By group and plural.
    finalizers: BTreeMap<(String, String), BTreeSet<String>>,
}

/// What a write says that its verb alone does not allow.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Claims<'a> {
    /// Which version of the object it was made from.
    version: Option<Cow<'a, str>>,
    owners: Vec<Owner<'a>>,
    finalizers: Vec<String>,
    annotations: Vec<(String, Value)>,
    swept: Swept,
    at_most: bool,
}

/// Which of the host's annotations go with all others.
#[derive(Debug, Default, PartialEq, Eq)]
enum Swept {
    #[default]
    None,
    /// Whatever is there, but for the claimed ones from this place on.
    AllBut(usize),
    /// This one, which is there.
    This(String),
}

/// What a write meets.
#[derive(Debug)]
pub enum There {
    /// The object as it is.
    Object(Arc<Cached>),
    /// There is none.
    Nothing,
    /// Nobody can say, since the account may not look.
    Unseen,
}

/// Why a write is not sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Outside {
    /// It is refused.
    Denied(Denial),
    /// It cannot be judged.
    Unclear(String),
}

fn never(access: &Access<'_>, why: impl Into<String>) -> Denial {
    Denial { what: access.words(), remedy: Remedy::None(why.into()) }
}

/// A finalizer, for people.
fn shown(finalizer: &str) -> String {
    let finalizer = if finalizer.is_empty() { "that is moved or copied" } else { finalizer };
    format!("the finalizer {}", printable(finalizer, MOST_SHOWN))
}

/// Whether it is about this kind of the core group, or a part of it.
fn is_core(access: &Access<'_>, resource: &str) -> bool {
    access.resource.group().is_empty() && access.resource.resource() == resource
}

/// Whether whoever does it can act as any account of the namespace.
fn takes_an_account(access: &Access<'_>) -> bool {
    let (group, resource) = (access.resource.group(), access.resource.resource());
    let part = access.subresource.map(Subresource::as_str);
    match (group, resource, part) {
        // By a `get`, too.
        ("", "pods", Some("exec" | "attach")) | ("", "serviceaccounts", Some("token")) => true,
        // Of a kind that makes pods any part.
        kind => {
            matches!(access.verb, Verb::Create | Verb::Update | Verb::Patch) && WORKLOADS.contains(&(kind.0, kind.1))
        }
    }
}

impl Bounds {
    /// What `operetta install` calls the roles and bindings of a plugin.
    pub fn role(plugin: &PluginName) -> String {
        format!("{OF_PLUGINS}{plugin}")
    }

    /// Of a plugin that acts as this account, in this scope. Without any, as in [`Bounds::default`], nothing is guarded that takes a plugin's own account or scope to know.
    pub fn of(plugin: &PluginName, controllers: &[Controller], account: &ServiceAccount, scope: &Scope) -> Self {
        let mut finalizers: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for controller in controllers {
            let kind = (controller.primary.group().to_owned(), controller.primary.resource().to_owned());
            finalizers.entry(kind).or_default().extend(controller.finalizers.iter().cloned());
        }
        let (account, role, scope) = (account.clone(), Self::role(plugin), scope.clone());
        Self(Some(Plugin { account, role, scope, within: None, finalizers }))
    }

    /// Within these namespaces as well, though the ports reach further.
    pub fn narrow(&mut self, within: Option<Scope>) {
        if let Some(plugin) = &mut self.0 {
            plugin.within = within;
        }
    }

    /// What lies within both, for ports that reach as far as this one; nothing where the two are of different accounts.
    pub fn and(&self, other: &Self) -> Option<Self> {
        let (Some(plugin), Some(others)) = (&self.0, &other.0) else {
            return Some(Self(self.0.clone().or_else(|| other.0.clone())));
        };
        if plugin.account != others.account {
            return None;
        }
        let left = plugin.reach().intersection(&others.reach());
        let within = (left != plugin.scope).then_some(left);
        let both = |(kind, declared): (&(String, String), &BTreeSet<String>)| {
            Some((kind.clone(), declared & others.finalizers.get(kind)?))
        };
        let finalizers = plugin.finalizers.iter().filter_map(both).collect();
        Some(Self(Some(Plugin { within, finalizers, ..plugin.clone() })))
    }

    /// Whether objects of this namespace are the plugin's to see.
    pub fn contains(&self, namespace: Option<&Namespace>) -> bool {
        self.0.as_ref().is_none_or(|plugin| plugin.contains(namespace))
    }

    /// Whether a request lies within, as far as its target says.
    pub fn check(&self, access: &Access<'_>) -> Result<(), Denial> {
        if let Some(plugin) = &self.0 {
            plugin.check_scope(access)?;
        }
        let among_accounts = access.namespace.is_some_and(|namespace| namespace.as_str() == ACCOUNTS);
        let takes = among_accounts && takes_an_account(access);
        if access.verb.reads() && !takes {
            return Ok(());
        }
        if access.resource.group() == GROUP {
            return Err(never(access, "what a plugin may do is said by people; change the Plugin yourself"));
        }
        if let Some(name) = access.name {
            self.check_name(access, name.as_str())?;
        }
        if takes {
            let why = "accounts lie there, and what runs there can act as any of them; use another namespace";
            return Err(never(access, why));
        }
        let is_account = is_core(access, "serviceaccounts");
        let place = access.namespace.filter(|place| guarded::holds_accounts(place.as_str(), self.account()));
        if let Some(place) = place.filter(|_| is_account) {
            let why = format!(
                "plugins act as the accounts of namespace {place}; change them yourself, and have it make accounts in another namespace"
            );
            return Err(never(access, why));
        }
        Ok(())
    }

    /// The same of the name that an object has or gets.
    fn check_name(&self, access: &Access<'_>, name: &str) -> Result<(), Denial> {
        if let Some(plugin) = &self.0 {
            if access.resource.group() == RBAC && name == plugin.role {
                return Err(never(access, "these are its own rights; change them yourself, or by `operetta install`"));
            }
            let own = name == plugin.account.name.as_str() && access.namespace == Some(&plugin.account.namespace);
            if own && is_core(access, "serviceaccounts") {
                return Err(never(access, "it is the account that it acts as; change it yourself"));
            }
        }
        match guarded::why(access, name, self.account()) {
            Some(why) => Err(never(access, format!("{}: {why}; change it yourself", printable(name, MOST_SHOWN)))),
            None => Ok(()),
        }
    }

    fn account(&self) -> Option<&ServiceAccount> {
        self.0.as_ref().map(|plugin| &plugin.account)
    }

    /// What a write says beyond what its verb allows, after refusing what nothing allows. Where a glance is enough to know it, that is what it says [at most](Claims::are_at_most).
    ///
    /// # Errors
    /// It is refused, or its text is not understood.
    pub fn claims<'a>(&self, access: &Access<'_>, change: Change<'a>) -> Result<Claims<'a>, Outside> {
        // What is judged has to be what is sent.
        let names = Named::of(change.text());
        if change.has_private_key(&names).map_err(Outside::Unclear)? {
            let why = "it has a key `$serde_json::private::…`, which is of the host's own parser; leave it out";
            return Err(Outside::Unclear(why.to_owned()));
        }
        let place = access.namespace.filter(|place| guarded::holds_accounts(place.as_str(), self.account()));
        if let Some(place) = place.filter(|_| is_core(access, "secrets"))
            && change.mentions_token(&names)
        {
            let beside = self.account().is_some_and(|account| account.namespace == *place);
            let whose = if beside {
                "beside its own account would be a token of it"
            } else {
                "there would be a token of an account of plugins"
            };
            let why = format!("a Secret {whose}; take a Secret of another type, or in another namespace");
            return Err(Outside::Denied(never(access, why)));
        }
        let matter = Matter::of(access);
        // Of what is made only the text says what it is called.
        let named = access.verb == Verb::Create && guarded::by_name(access);
        if matter == Matter::Metadata
            && !named
            && let Some(written) = change.glance(&names)
        {
            return Ok(Claims { at_most: true, ..self.of_what_is_written(access, written) });
        }
        let written = change.read(matter).map_err(Outside::Unclear)?;
        if named {
            // Whatever a name is generated from, it begins so.
            for name in written.name.iter().chain(&written.generated_from) {
                self.check_name(access, name).map_err(Outside::Denied)?;
            }
        }
        if let Some(account) = self.account()
            && written.subjects.iter().any(|subject| subject.includes(account))
        {
            let why = format!("it binds service account {account}, as which it acts itself; bind it yourself");
            return Err(Outside::Denied(never(access, why)));
        }
        if let Some(finalizer) = written.spec_finalizers.iter().find(|finalizer| *finalizer != KUBERNETES) {
            let what = format!("{} with {} in spec.finalizers", access.words(), shown(finalizer));
            let why = "nobody would take it off again, and the namespace would never go; leave it out";
            return Err(Outside::Denied(Denial { what, remedy: Remedy::None(why.to_owned()) }));
        }
        Ok(self.of_what_is_written(access, written))
    }

    /// The same, where a glance was not enough.
    ///
    /// # Errors
    /// Its text is not understood.
    pub fn all_claims<'a>(&self, access: &Access<'_>, change: Change<'a>) -> Result<Claims<'a>, Outside> {
        Ok(self.of_what_is_written(access, change.read(Matter::of(access)).map_err(Outside::Unclear)?))
    }

    fn of_what_is_written<'a>(&self, access: &Access<'_>, written: Written<'a>) -> Claims<'a> {
        let Written { version, owners, mut finalizers, annotations, swept, .. } = written;
        if !finalizers.is_empty() {
            let kind = (access.resource.group().to_owned(), access.resource.resource().to_owned());
            let declared = self.0.as_ref().and_then(|plugin| plugin.finalizers.get(&kind));
            finalizers.retain(|finalizer| !declared.is_some_and(|declared| declared.contains(finalizer)));
        }
        // A scale is an object of its own, whose metadata nobody keeps.
        let of_itself = access.subresource.is_none_or(|part| part.as_str() != "scale");
        let swept = swept.filter(|_| of_itself && access.verb != Verb::Create).map_or(Swept::None, Swept::AllBut);
        Claims { version, owners, finalizers, annotations, swept, at_most: false }
    }
}

impl Plugin {
    fn reach(&self) -> Scope {
        self.within.as_ref().map_or_else(|| self.scope.clone(), |within| self.scope.intersection(within))
    }

    fn contains(&self, namespace: Option<&Namespace>) -> bool {
        self.scope.contains(namespace) && self.within.as_ref().is_none_or(|within| within.contains(namespace))
    }

    fn check_scope(&self, access: &Access<'_>) -> Result<(), Denial> {
        // A list of everything is one of the plugin's namespaces, as far as the ports know them.
        let everywhere = access.namespace.is_none() && matches!(access.verb, Verb::List | Verb::Watch);
        if self.contains(access.namespace) || everywhere && self.within.is_none() {
            return Ok(());
        }
        let place = match access.namespace.map(Namespace::as_str) {
            Some(namespace) => format!("namespace {namespace} lies"),
            None => "cluster-scoped objects lie".to_owned(),
        };
        let why = format!(
            "{place} outside of the namespaces in which the plugin works (spec.namespaces, and --namespace of the host)"
        );
        Err(never(access, why))
    }
}

impl<'a> Claims<'a> {
    /// Whether there is nothing to object to.
    pub fn is_empty(&self) -> bool {
        let Self { owners, finalizers, annotations, swept, .. } = self;
        owners.is_empty() && finalizers.is_empty() && annotations.is_empty() && *swept == Swept::None
    }

    /// Whether the write may say less than that: what is left of them is to be [read](Bounds::all_claims) before it is denied.
    pub fn are_at_most(&self) -> bool {
        self.at_most
    }

    /// Whether what is seen may be older than what the write meets. What takes all annotations away would drop one that came meanwhile, unless it names the version that was looked at, which the API
    /// server then holds it to.
    pub fn need_newer(&self, seen: Option<&Meta>) -> bool {
        matches!(self.swept, Swept::AllBut(_))
            && (self.version.is_none() || self.version.as_deref() != seen.map(|seen| seen.resource_version.as_str()))
    }

    /// The version that it takes the place of, where it names one: the API server takes 0 for none.
    pub fn replaced(&self) -> Option<Cow<'a, str>> {
        let version = self.version.clone().filter(|version| !version.trim_matches('0').is_empty());
        version.filter(|_| matches!(self.swept, Swept::AllBut(_)))
    }

    /// Whether it makes somebody the owner.
    pub fn has_owners(&self) -> bool {
        !self.owners.is_empty()
    }

    /// Owners are no matter: the object is new, or may be deleted anyhow.
    pub fn allow_owners(&mut self) {
        self.owners.clear();
    }

    /// What the object carries already is nothing new, and what it does not carry is not taken away.
    pub fn allow_what_is_there(&mut self, there: &There) {
        let there = match there {
            There::Object(there) => &there.meta,
            There::Nothing => {
                self.swept = Swept::None;
                return self.allow_owners();
            }
            There::Unseen => return,
        };
        if let Swept::AllBut(first) = self.swept {
            let kept = self.annotations.get(first..).unwrap_or_default();
            let goes = there.told.iter().find(|(key, _)| !kept.iter().any(|(kept, _)| kept == key));
            self.swept = goes.map_or(Swept::None, |(key, _)| Swept::This(key.clone()));
        }
        self.owners.retain(|owner| !there.owners.iter().any(|known| owner.is(known)));
        self.finalizers.retain(|finalizer| !there.finalizers.contains(finalizer));
        // Null is what is taken away or not seen, and so none that is there.
        let is_there = |key: &str, value: &str| there.told.iter().any(|(k, v)| k == key && v == value);
        self.annotations.retain(|(key, value)| !value.as_str().is_some_and(|value| is_there(key, value)));
    }

    /// The denial of what is left.
    pub fn check(&self, access: &Access<'_>) -> Result<(), Denial> {
        if let Some(owner) = self.owners.first() {
            let delete = Access { verb: Verb::Delete, subresource: None, ..*access };
            let kind = printable(owner.kind(), MOST_SHOWN);
            let words = access.words();
            return Err(
                delete.missing(format!("{words} with a new owner of kind {kind}, with which it would be deleted,"))
            );
        }
        if let Some(finalizer) = self.finalizers.first() {
            let what = format!("{} with {}", access.words(), shown(finalizer));
            let why = format!(
                "its manifest declares it for no controller of {}, so that nobody would know who takes it off; declare it (`Controller::finalizer`), or leave it out",
                access.resource
            );
            return Err(Denial { what, remedy: Remedy::None(why) });
        }
        if let Some((key, _)) = self.annotations.first() {
            let key = if key.is_empty() { "that is moved or copied" } else { key };
            let what = format!("{} with the annotation {}", access.words(), printable(key, MOST_SHOWN));
            return Err(Denial { what, remedy: Remedy::None(PEOPLES.to_owned()) });
        }
        match &self.swept {
            Swept::None => Ok(()),
            Swept::This(key) => {
                let what = format!("{} without the annotation {}", access.words(), printable(key, MOST_SHOWN));
                Err(Denial { what, remedy: Remedy::None(PEOPLES.to_owned()) })
            }
            Swept::AllBut(_) => Err(never(
                access,
                "it takes all annotations away, and nobody can say whether one of operetta.dev/ is among them, since the account may not get the object; let it, in RBAC, or patch your own fields only",
            )),
        }
    }
}

#[cfg(test)]
mod tests;
