//! What the administrator lets a plugin do, and the check that every effect passes.
//!
//! Rules have RBAC's own shape and meaning: a request is allowed when one rule allows all of it. A [`Denial`] names the rule that is missing, as YAML ready to paste. What no
//! rule allows is the affair of [`crate::bounds`].

mod rules;

pub use rules::Rules;

use std::{collections::BTreeSet, fmt, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    cache::Extent,
    name::{ChannelName, DatabaseName, Namespace, ObjectName, Subresource},
    resource::Resource,
};

/// Matches everything in a rule's list, as in RBAC.
const ALL: &str = "*";

/// What one plugin may do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Grants {
    /// Kubernetes requests.
    pub rules: Rules,
    /// Names of the gRPC channels that it may call.
    pub channels: BTreeSet<ChannelName>,
    /// Names of the databases that it may use.
    pub databases: BTreeSet<DatabaseName>,
    /// Whether it may publish events.
    pub events: bool,
    /// The namespace of the host itself: a rule for all namespaces does not mean it, nor the object of it, only one that names it.
    #[serde(skip)]
    pub host_namespace: Option<Namespace>,
    /// What else has to allow it: a document that takes grants away and is not in force yet.
    #[serde(skip)]
    pub within: Option<Arc<Self>>,
    /// Nothing is granted any more, whatever stands here.
    #[serde(skip)]
    pub closed: Option<Closed>,
}

/// Why something is no longer allowed to what runs, whatever the document says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// It began under another document.
    Earlier,
    /// It began as another account.
    OtherAccount,
    /// The account is no longer the plugin's.
    LostAccount,
    /// The plugin stands still because its document says so.
    Suspended,
    /// There is no plugin any more.
    Removed,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Earlier => {
                "this reconcile began under the document before, and may do what that one and the one of now allow; the next one goes by the one of now alone"
            }
            Self::OtherAccount => {
                "the plugin acts as another account by now, and this reconcile began as the one before; the next one acts as the new one"
            }
            Self::LostAccount => "the plugin may not act as its account any more",
            Self::Suspended => "the plugin is suspended",
            Self::Removed => "the plugin is removed",
        })
    }
}

/// One rule, in the shape of RBAC's PolicyRule, with namespaces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// API groups; `""` is the core group, `"*"` all.
    pub api_groups: Vec<String>,
    /// Resources, `RESOURCE/SUBRESOURCE` for a subresource, `"*"` all of both, `"*/status"` that subresource of all.
    pub resources: Vec<String>,
    /// Verbs: get, list, watch, create, update, patch, delete, `"*"` all of these.
    pub verbs: Vec<String>,
    /// Names that the rule is limited to; empty means all. Allows no `create` but by an apply, and no `list` or `watch` but with the field selector `metadata.name=NAME`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// Namespaces that the rule is limited to; empty means all, and cluster-scoped objects. The object of a namespace itself lies in that namespace, as RBAC has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<Namespace>,
}

/// What a plugin may ask the API server to do; RBAC's verbs for objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read one.
    Get,
    /// Read many.
    List,
    /// Be woken.
    Watch,
    /// Make one.
    Create,
    /// Replace one.
    Update,
    /// Change one.
    Patch,
    /// Remove one.
    Delete,
}

impl Verb {
    /// All of them: what `"*"` means.
    pub const ALL: [Self; 7] =
        [Self::Get, Self::List, Self::Watch, Self::Create, Self::Update, Self::Patch, Self::Delete];

    /// Whether nothing changes by it.
    pub fn reads(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch)
    }

    /// As RBAC writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A request to the API server as authorization sees it.
#[derive(Debug, Clone, Copy)]
pub struct Access<'a> {
    /// What to do.
    pub verb: Verb,
    /// To which kind.
    pub resource: &'a Resource,
    /// To which part of it.
    pub subresource: Option<&'a Subresource>,
    /// Where; none is all namespaces or a cluster-scoped object.
    pub namespace: Option<&'a Namespace>,
    /// To which object; none where the request names none: for `create`, and for `list` and `watch` without a field selector that names it.
    pub name: Option<&'a ObjectName>,
}

impl Access<'_> {
    /// `patch deployments/status of group apps in namespace default`.
    pub fn words(&self) -> String {
        let mut words = format!("{} {}", self.verb, self.target());
        if !self.resource.group().is_empty() {
            words = format!("{words} of group {}", self.resource.group());
        }
        if let Some(namespace) = self.namespace {
            words = format!("{words} in namespace {namespace}");
        } else if matches!(self.verb, Verb::List | Verb::Watch) {
            words.push_str(" in all namespaces");
        }
        words
    }

    /// The rule that allows it, as an item of a YAML list.
    pub fn rule(&self) -> String {
        let mut yaml = format!(
            "- apiGroups: [{:?}]\n  resources: [{:?}]\n  verbs: [{:?}]",
            self.resource.group(),
            self.target(),
            self.verb.as_str()
        );
        if let Some(namespace) = self.namespace {
            yaml = format!("{yaml}\n  namespaces: [{:?}]", namespace.as_str());
        }
        yaml
    }

    /// The denial of what lacks this rule.
    pub fn missing(&self, what: impl Into<String>) -> Denial {
        Denial::of(Place::Rules, what, self.rule())
    }

    /// Where RBAC sees the request. The API server takes the name of a namespace in its path for the place, too; a `create` names it in the body only.
    pub fn place(&self) -> Option<&str> {
        let is_namespace = self.resource.group().is_empty() && self.resource.resource() == "namespaces";
        match self.namespace {
            None if is_namespace && self.verb != Verb::Create => self.name.map(ObjectName::as_str),
            namespace => namespace.map(Namespace::as_str),
        }
    }

    /// `RESOURCE` or `RESOURCE/SUBRESOURCE`, as rules write it.
    fn target(&self) -> String {
        match self.subresource {
            Some(sub) => format!("{}/{sub}", self.resource.resource()),
            None => self.resource.resource().to_owned(),
        }
    }
}

/// What was not granted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {remedy}")]
pub struct Denial {
    /// The request in words, such as `create pods in namespace default`.
    pub what: String,
    /// What would allow it.
    pub remedy: Remedy,
}

/// What would allow what was denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// A piece of the Plugin document.
    Grant {
        /// Where it belongs.
        place: Place,
        /// The piece.
        yaml: String,
    },
    /// Nothing that a Plugin document grants; why, and what to do.
    None(String),
    /// Nothing any more for what runs. Of what the document lacks it says nothing.
    Closed(Closed),
}

/// A part of the Plugin document that grants something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Kubernetes requests.
    Rules,
    /// gRPC channels.
    Channels,
    /// Databases.
    Databases,
    /// Events.
    Events,
}

impl Place {
    /// The field that the piece belongs below.
    pub fn field(self) -> &'static str {
        match self {
            Self::Rules => "spec.grants.rules",
            Self::Channels => "spec.grants.channels",
            Self::Databases => "spec.grants.databases",
            Self::Events => "spec.grants",
        }
    }
}

impl Denial {
    fn of(place: Place, what: impl Into<String>, yaml: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: Remedy::Grant { place, yaml: yaml.into() } }
    }

    /// The same to what began under another document: no reason to change the one of now.
    pub fn of_before(&self) -> Self {
        match self.remedy {
            Remedy::Closed(_) => self.clone(),
            Remedy::Grant { .. } | Remedy::None(_) => {
                Self { what: self.what.clone(), remedy: Remedy::Closed(Closed::Earlier) }
            }
        }
    }

    /// What kind of grant it lacks: `rules`, `channels`, `databases`, `events`, or `none` where there is none for it.
    pub fn grant(&self) -> &'static str {
        match &self.remedy {
            Remedy::Grant { place: Place::Rules, .. } => "rules",
            Remedy::Grant { place: Place::Channels, .. } => "channels",
            Remedy::Grant { place: Place::Databases, .. } => "databases",
            Remedy::Grant { place: Place::Events, .. } => "events",
            Remedy::None(_) | Remedy::Closed(_) => "none",
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grant { place, yaml } => {
                write!(f, "is not granted; to allow it, add to {} of the Plugin document:\n{yaml}", place.field())
            }
            Self::None(why) => write!(f, "is refused, whatever is granted: {why}"),
            Self::Closed(why) => write!(f, "is refused: {why}"),
        }
    }
}

impl Grants {
    /// What others grant as well.
    pub fn and(mut self, others: Self) -> Self {
        let within = match self.within.take() {
            Some(within) => Arc::unwrap_or_clone(within).and(others),
            None => others,
        };
        self.within = Some(Arc::new(within));
        self
    }

    fn closed(&self) -> Option<Closed> {
        self.closed.or_else(|| self.within.as_ref()?.closed())
    }

    fn denial(&self, place: Place, what: String, yaml: String) -> Denial {
        match self.closed() {
            Some(closed) => Denial { what, remedy: Remedy::Closed(closed) },
            None => Denial::of(place, what, yaml),
        }
    }

    /// Whether some rule allows this access.
    pub fn allow(&self, access: &Access<'_>) -> bool {
        let beside_the_host = self.beside_the_host(access);
        self.closed.is_none()
            && self.within.as_ref().is_none_or(|within| within.allow(access))
            && self.rules.allowing(access).any(|rule| !beside_the_host || !rule.namespaces.is_empty())
    }

    /// The same, with what is lacking.
    pub fn check(&self, access: &Access<'_>) -> Result<(), Denial> {
        if self.allow(access) {
            return Ok(());
        }
        // The object of the host's namespace needs a rule that names it, too.
        let namespace = if self.beside_the_host(access) { self.host_namespace.as_ref() } else { access.namespace };
        Err(self.denial(Place::Rules, access.words(), Access { namespace, ..*access }.rule()))
    }

    fn beside_the_host(&self, access: &Access<'_>) -> bool {
        let place = access.place();
        place.is_some() && place == self.host_namespace.as_ref().map(Namespace::as_str)
    }

    /// How much of a kind may be listed and watched in a namespace (none: in all): all of it, or else the objects that rules name.
    pub fn watchable(&self, resource: &Resource, namespace: Option<&Namespace>) -> Vec<Extent> {
        let may = |name: Option<&ObjectName>| {
            let access = |verb| Access { verb, resource, subresource: None, namespace, name };
            [Verb::List, Verb::Watch].into_iter().all(|verb| self.check(&access(verb)).is_ok())
        };
        let extent = |name| Extent { namespace: namespace.cloned(), name };
        if may(None) {
            return vec![extent(None)];
        }
        let names = self.rules.iter().flat_map(|rule| &rule.resource_names);
        let names: BTreeSet<_> = names.filter_map(|name| ObjectName::parse(name).ok()).collect();
        names.into_iter().filter(|name| may(Some(name))).map(Some).map(extent).collect()
    }

    /// The host's own namespace, where it is among those that a request means and no rule names it: what comes of there is not the plugin's to see.
    pub fn hidden(&self, access: &Access<'_>) -> Option<&Namespace> {
        let host = self.host_namespace.as_ref()?;
        let meant = access.place().is_none_or(|place| place == host.as_str());
        let named = || self.check(&Access { namespace: Some(host), ..*access }).is_ok();
        (meant && !named()).then_some(host)
    }

    /// Whether the channel may be called.
    pub fn check_channel(&self, channel: &str) -> Result<ChannelName, Denial> {
        let open =
            self.closed.is_none() && self.within.as_ref().is_none_or(|within| within.check_channel(channel).is_ok());
        let granted = self.channels.iter().find(|granted| open && granted.as_str() == channel);
        granted.cloned().ok_or_else(|| {
            let channel = shown(channel);
            let yaml = format!("- name: {channel:?}\n  endpoint: http://HOST:PORT");
            self.denial(Place::Channels, format!("gRPC channel {channel:?}"), yaml)
        })
    }

    /// Whether the database may be used.
    pub fn check_database(&self, database: &str) -> Result<DatabaseName, Denial> {
        let open =
            self.closed.is_none() && self.within.as_ref().is_none_or(|within| within.check_database(database).is_ok());
        let granted = self.databases.iter().find(|granted| open && granted.as_str() == database);
        granted.cloned().ok_or_else(|| {
            let database = shown(database);
            let yaml = format!("- name: {database:?}\n  env: PSQL");
            self.denial(Place::Databases, format!("database {database:?}"), yaml)
        })
    }

    /// Whether events may be published.
    pub fn check_events(&self) -> Result<(), Denial> {
        let open = self.closed.is_none() && self.within.as_ref().is_none_or(|within| within.check_events().is_ok());
        if self.events && open {
            return Ok(());
        }
        Err(self.denial(Place::Events, "publishing events".to_owned(), "events: true".to_owned()))
    }
}

/// As much of what a guest gave as a name can be long; it may be megabytes.
fn shown(name: &str) -> String {
    name.chars().take(80).collect()
}

/// Whether two texts are the same. An empty text has no memory of its own, and on some processors a look there takes longer than all the rest of a check.
pub(crate) fn same(one: &str, other: &str) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

impl Rule {
    fn allows(&self, access: &Access<'_>) -> bool {
        let any = |list: &[String], wanted: &str| list.iter().any(|x| x == ALL || same(x, wanted));
        self.allows_target(access)
            && any(&self.verbs, access.verb.as_str())
            && any(&self.api_groups, access.resource.group())
            && (self.namespaces.is_empty()
                || access.place().is_some_and(|place| self.namespaces.iter().any(|n| n.as_str() == place)))
            && (self.resource_names.is_empty()
                || access.name.is_some_and(|n| self.resource_names.iter().any(|x| x == n.as_str())))
    }

    fn allows_target(&self, access: &Access<'_>) -> bool {
        let resource = access.resource.resource();
        self.resources.iter().any(|x| match access.subresource {
            _ if x == ALL => true,
            None => x == resource,
            Some(wanted) => {
                x.split_once('/').is_some_and(|(of, sub)| sub == wanted.as_str() && (of == ALL || of == resource))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Rule {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        Rule { api_groups: own(groups), resources: own(resources), verbs: own(verbs), ..Rule::default() }
    }

    fn check(
        rules: Vec<Rule>,
        verb: Verb,
        target: &str,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> Result<(), Denial> {
        let (resource, sub) = target.split_once('/').map_or((target, None), |(r, s)| (r, Some(s)));
        let (group, resource) = if resource == "pods" { ("", resource) } else { ("apps", resource) };
        Grants { rules: rules.into(), ..Grants::default() }.check(&Access {
            verb,
            resource: &Resource::parse(group, "v1", resource).unwrap(),
            subresource: sub.map(|s| Subresource::parse(s).unwrap()).as_ref(),
            namespace: namespace.map(|n| Namespace::parse(n).unwrap()).as_ref(),
            name: name.map(|n| ObjectName::parse(n).unwrap()).as_ref(),
        })
    }

    #[test]
    fn one_rule_must_allow_all_of_a_request() {
        let rules = || vec![rule(&[""], &["pods"], &["get"]), rule(&["apps"], &["deployments"], &["delete"])];
        assert!(check(rules(), Verb::Get, "pods", Some("a"), Some("x")).is_ok());
        assert!(check(rules(), Verb::Delete, "pods", Some("a"), Some("x")).is_err());
        assert!(check(rules(), Verb::Get, "deployments", Some("a"), Some("x")).is_err());
    }

    #[test]
    fn what_another_document_has_to_grant_as_well_is_granted_by_both_or_not_at_all() {
        let names = |n: &str| (ChannelName::parse(n).unwrap(), DatabaseName::parse(n).unwrap());
        let (channel, database) = names("demo");
        let all = Grants {
            rules: vec![rule(&["*"], &["*"], &["*"])].into(),
            channels: [channel].into(),
            databases: [database].into(),
            events: true,
            ..Grants::default()
        };
        let pods = Resource::parse("", "v1", "pods").unwrap();
        let granted = |grants: &Grants| {
            let access = |verb| Access { verb, resource: &pods, subresource: None, namespace: None, name: None };
            [
                grants.check(&access(Verb::List)).is_ok(),
                grants.check(&access(Verb::Create)).is_ok(),
                grants.check_channel("demo").is_ok(),
                grants.check_database("demo").is_ok(),
                grants.check_events().is_ok(),
            ]
        };
        let lists = Grants { rules: vec![rule(&["*"], &["pods"], &["list"])].into(), ..Grants::default() };
        let within = |inner: &Grants, outer: &Grants| Grants { within: Some(Arc::new(inner.clone())), ..outer.clone() };
        assert_eq!(granted(&within(&all, &all)), [true; 5]);
        assert_eq!(granted(&within(&lists, &all)), [true, false, false, false, false]);
        assert_eq!(granted(&within(&all, &lists)), [true, false, false, false, false]);
        // Of three, all three.
        for three in [[&lists, &all, &all], [&all, &lists, &all], [&all, &all, &lists]] {
            let [one, two, other] = three.map(Grants::clone);
            assert_eq!(granted(&one.and(two).and(other)), [true, false, false, false, false]);
        }
        assert_eq!(granted(&all.clone().and(all.clone())), [true; 5]);
    }

    #[test]
    fn what_is_closed_grants_nothing_and_no_document_would() {
        let everything = rule(&["*"], &["*"], &["*"]);
        let open = Grants {
            rules: vec![everything].into(),
            channels: [ChannelName::parse("c").unwrap()].into(),
            databases: [DatabaseName::parse("d").unwrap()].into(),
            events: true,
            ..Grants::default()
        };
        let closed = Grants { closed: Some(Closed::LostAccount), ..open.clone() };
        let pods = Resource::parse("", "v1", "pods").unwrap();
        let access = Access { verb: Verb::Get, resource: &pods, subresource: None, namespace: None, name: None };
        for grants in [closed.clone(), open.clone().and(closed.clone()), closed.and(open)] {
            assert!(!grants.allow(&access));
            for denial in [
                grants.check(&access).unwrap_err(),
                grants.check_channel("c").unwrap_err(),
                grants.check_database("d").unwrap_err(),
                grants.check_events().unwrap_err(),
            ] {
                assert_eq!(denial.grant(), "none");
                assert!(denial.to_string().contains("may not act as its account any more"), "{denial}");
            }
        }
    }

    #[test]
    fn a_resource_does_not_bring_its_subresources() {
        let pods = || vec![rule(&[""], &["pods"], &["*"])];
        assert!(check(pods(), Verb::Create, "pods/exec", Some("a"), Some("x")).is_err());
        assert!(
            check(vec![rule(&["*"], &["*/status"], &["patch"])], Verb::Patch, "pods/status", None, Some("x")).is_ok()
        );
        assert!(check(vec![rule(&["*"], &["*/status"], &["patch"])], Verb::Patch, "pods", None, Some("x")).is_err());
        assert!(check(vec![rule(&["*"], &["*"], &["*"])], Verb::Create, "pods/exec", None, None).is_ok());
    }

    #[test]
    fn a_rule_is_found_among_many_wherever_it_stands() {
        let others =
            |from: usize| (from..from + 50).map(|n| rule(&["*"], &[&format!("others{n}"), "pods/log"], &["*"]));
        for wanted in [rule(&[""], &["x", "pods"], &["get"]), rule(&["*"], &["*"], &["get"])] {
            let rules: Vec<_> = others(0).chain([wanted]).chain(others(50)).collect();
            assert!(check(rules.clone(), Verb::Get, "pods", Some("a"), Some("x")).is_ok());
            assert!(check(rules.clone(), Verb::Delete, "pods", Some("a"), Some("x")).is_err());
            assert!(check(rules, Verb::Delete, "pods/log", Some("a"), Some("x")).is_ok());
        }
        let rules = Rules::from(others(0).collect::<Vec<_>>());
        assert!(rules.len() == 50 && rules != Rules::default());
        assert_eq!(serde_json::from_value::<Rules>(serde_json::to_value(&rules).unwrap()).unwrap(), rules);
    }

    #[test]
    fn what_one_rule_names_is_not_mixed() {
        let rules = || vec![rule(&["*"], &["*/scale", "deployments/status"], &["patch"])];
        for (target, allowed) in
            [("deployments/status", true), ("pods/scale", true), ("pods/status", false), ("deployments/log", false)]
        {
            assert_eq!(check(rules(), Verb::Patch, target, Some("a"), Some("x")).is_ok(), allowed, "{target}");
        }
    }

    #[test]
    fn names_and_namespaces_narrow_a_rule() {
        let named = || vec![Rule { resource_names: vec!["x".into()], ..rule(&[""], &["pods"], &["*"]) }];
        assert!(check(named(), Verb::Get, "pods", Some("a"), Some("x")).is_ok());
        assert!(check(named(), Verb::Get, "pods", Some("a"), Some("y")).is_err());
        assert!(check(named(), Verb::Create, "pods", Some("a"), None).is_err());
        assert!(check(named(), Verb::List, "pods", Some("a"), None).is_err());
        let placed =
            || vec![Rule { namespaces: vec![Namespace::parse("a").unwrap()], ..rule(&[""], &["pods"], &["*"]) }];
        assert!(check(placed(), Verb::List, "pods", Some("a"), None).is_ok());
        assert!(check(placed(), Verb::List, "pods", Some("b"), None).is_err());
        assert!(check(placed(), Verb::List, "pods", None, None).is_err());
    }

    #[test]
    fn a_namespace_lies_in_itself_once_it_is_there() {
        let (namespaces, nodes) = (("", "namespaces"), ("", "nodes"));
        for (verb, (group, resource), namespace, name, place) in [
            (Verb::Get, namespaces, None, Some("a"), Some("a")),
            (Verb::Delete, namespaces, None, Some("a"), Some("a")),
            (Verb::List, namespaces, None, None, None),
            (Verb::Create, namespaces, None, Some("a"), None),
            (Verb::Get, nodes, None, Some("a"), None),
            (Verb::Get, ("x.example.com", "namespaces"), None, Some("a"), None),
            (Verb::Get, ("", "pods"), Some("b"), Some("a"), Some("b")),
        ] {
            let resource = &Resource::parse(group, "v1", resource).unwrap();
            let namespace = namespace.map(|n| Namespace::parse(n).unwrap());
            let name = name.map(|n| ObjectName::parse(n).unwrap());
            let access =
                Access { verb, resource, subresource: None, namespace: namespace.as_ref(), name: name.as_ref() };
            assert_eq!(access.place(), place, "{}", access.words());
            let here =
                Rule { namespaces: place.iter().map(|p| p.parse().unwrap()).collect(), ..rule(&["*"], &["*"], &["*"]) };
            let elsewhere = Rule { namespaces: vec!["elsewhere".parse().unwrap()], ..here.clone() };
            assert!(here.allows(&access) && !elsewhere.allows(&access), "{}", access.words());
        }
    }

    #[test]
    fn what_may_be_watched_is_all_of_a_kind_or_what_rules_name() {
        let a = Namespace::parse("a").unwrap();
        let watchable = |rules: Vec<Rule>, namespace: Option<&Namespace>| {
            let grants = Grants { rules: rules.into(), ..Grants::default() };
            let extents = grants.watchable(&Resource::parse("", "v1", "pods").unwrap(), namespace);
            extents.iter().map(|extent| format!("pods{extent}")).collect::<Vec<_>>()
        };
        let named = |names: &[&str], verbs: &[&str]| Rule {
            resource_names: names.iter().map(|&name| name.into()).collect(),
            ..rule(&[""], &["pods"], verbs)
        };
        let whole = || rule(&[""], &["pods"], &["list", "watch"]);
        // Both verbs, by whichever rules; of what nobody can be called nothing.
        let rules = vec![
            named(&["x", "y", "a/b"], &["list", "watch"]),
            named(&["z", "w"], &["list"]),
            named(&["z"], &["watch", "get"]),
            Rule { resource_names: vec!["d".into()], ..rule(&["apps"], &["*"], &["*"]) },
        ];
        let names = ["x", "y", "z"];
        assert_eq!(watchable(rules.clone(), Some(&a)), names.map(|name| format!("pods named {name} in namespace a")));
        assert_eq!(watchable(rules.clone(), None), names.map(|name| format!("pods named {name} in all namespaces")));
        assert_eq!(watchable([rules.clone(), vec![whole()]].concat(), None), ["pods in all namespaces"]);
        let here = Rule { namespaces: vec![a.clone()], ..whole() };
        assert_eq!(watchable([rules, vec![here.clone()]].concat(), Some(&a)), ["pods in namespace a"]);
        assert_eq!(watchable(vec![here], None), [""; 0]);
        let listed = vec![rule(&[""], &["pods"], &["list"]), named(&["x"], &["watch"])];
        assert_eq!(watchable(listed, Some(&a)), ["pods named x in namespace a"]);
    }

    #[test]
    fn a_rule_for_all_namespaces_does_not_mean_the_hosts_own() {
        let host = Namespace::parse("operetta-system").unwrap();
        let everything = || rule(&["*"], &["*"], &["*"]);
        let check = |rule: Rule, namespace: Option<&str>| {
            let (rules, host_namespace) = (vec![rule].into(), Some(host.clone()));
            Grants { rules, host_namespace, ..Grants::default() }.check(&Access {
                verb: Verb::List,
                resource: &Resource::parse("", "v1", "pods").unwrap(),
                subresource: None,
                namespace: namespace.map(|n| Namespace::parse(n).unwrap()).as_ref(),
                name: None,
            })
        };
        assert!(check(everything(), Some("a")).is_ok());
        assert!(check(everything(), None).is_ok());
        let denial = check(everything(), Some("operetta-system")).unwrap_err();
        assert!(denial.to_string().contains("namespaces: [\"operetta-system\"]"), "{denial}");
        assert!(check(Rule { namespaces: vec![host.clone()], ..everything() }, Some("operetta-system")).is_ok());
    }

    #[test]
    fn the_object_of_the_hosts_namespace_is_beside_the_host_too() {
        let host = Namespace::parse("operetta-system").unwrap();
        let grants =
            |rule: Rule| Grants { rules: vec![rule].into(), host_namespace: Some(host.clone()), ..Grants::default() };
        let everything = || rule(&["*"], &["*"], &["*"]);
        let by_namespace = Rule { namespaces: vec![host.clone()], ..everything() };
        let by_name = Rule { resource_names: vec!["operetta-system".into()], ..everything() };
        let namespaces = Resource::parse("", "v1", "namespaces").unwrap();
        let nodes = Resource::parse("", "v1", "nodes").unwrap();
        for verb in [Verb::Get, Verb::Update, Verb::Patch, Verb::Delete] {
            for (rule, resource, name, allowed) in [
                (everything(), &namespaces, "operetta-system", false),
                (by_name.clone(), &namespaces, "operetta-system", false),
                (by_namespace.clone(), &namespaces, "operetta-system", true),
                (by_namespace.clone(), &namespaces, "a", false),
                (everything(), &namespaces, "a", true),
                (everything(), &nodes, "operetta-system", true),
            ] {
                let name = ObjectName::parse(name).unwrap();
                let access = Access { verb, resource, subresource: None, namespace: None, name: Some(&name) };
                let checked = grants(rule).check(&access);
                assert_eq!(checked.is_ok(), allowed, "{} {name}", access.words());
                // What a denial says can be pasted here, too.
                if let Err(Denial { remedy: Remedy::Grant { yaml, .. }, .. }) = checked {
                    let rules: Vec<Rule> = serde_saphyr::from_str(&yaml).unwrap();
                    assert!(Grants { rules: rules.into(), ..grants(everything()) }.check(&access).is_ok(), "{yaml}");
                }
            }
        }
        // All of them may be listed still, and of the list the host's is left out.
        let all = Access { verb: Verb::List, resource: &namespaces, subresource: None, namespace: None, name: None };
        assert_eq!(grants(everything()).check(&all), Ok(()));
        let hidden = |rule: Rule, name: &str| {
            let name = ObjectName::parse(name).unwrap();
            let one = Access { verb: Verb::Get, name: Some(&name), ..all };
            grants(rule).hidden(&one).is_some()
        };
        assert!(hidden(everything(), "operetta-system") && !hidden(everything(), "a"));
        assert!(!hidden(by_namespace.clone(), "operetta-system"));
        assert_eq!(grants(everything()).hidden(&all), Some(&host));
        assert_eq!(grants(by_namespace).hidden(&all), None);
    }

    #[test]
    fn a_denial_is_short_however_long_the_name_is() {
        let (grants, name) = (Grants::default(), "x".repeat(1 << 20));
        for denial in [grants.check_channel(&name).unwrap_err(), grants.check_database(&name).unwrap_err()] {
            assert!(denial.to_string().len() < 500, "{}", denial.to_string().len());
        }
    }

    #[test]
    fn a_denial_can_be_pasted_as_a_rule_that_allows_the_request() {
        let denial = check(vec![], Verb::Patch, "deployments/status", Some("a"), Some("x")).unwrap_err();
        assert!(
            denial.to_string().starts_with("patch deployments/status of group apps in namespace a is not granted"),
            "{denial}"
        );
        let Remedy::Grant { place: Place::Rules, yaml } = denial.remedy else { panic!("{denial}") };
        let rules: Vec<Rule> = serde_saphyr::from_str(&yaml).unwrap();
        assert!(check(rules, Verb::Patch, "deployments/status", Some("a"), Some("x")).is_ok());
    }
}
