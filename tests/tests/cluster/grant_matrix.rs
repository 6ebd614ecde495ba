//! The grant matrix: verbs x resources and their parts x namespaces x names, as discovery tells of them, under sample grants. What is not granted is denied by the host, and
//! once more by the cluster's RBAC (as `operetta install` wrote it) when the host's check is left out; what is granted passes both.
//!
//! A sample of the cells is tried, other ones each time; the seed is printed and `OPERETTA_SEED` repeats it. All of them by
//! `OPERETTA_LONG=1 cargo test --test cluster grant_matrix -- --nocapture`.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    task::{Context, Poll},
};

use anyhow::{Context as _, ensure};
use arc_swap::ArcSwap;
use async_trait::async_trait;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture};
use http::{Method, Request, Response};
use kube::{Client, client::Body};
use operetta_cluster::{
    Cluster,
    access::{Asked, Refusal},
    identity::{Identity, Impersonation},
    install::{Installation, Way, install, remove, render},
    review::Question,
};
use operetta_core::{
    bounds::Bounds,
    cache::Scope,
    effect::{Effects, Policy, Ports},
    grant::{Access, Denial, Grants, Rule, Verb},
    name::{
        AccountName, Actor, ChannelName, DatabaseName, FieldSelector, Namespace, ObjectName, PluginName,
        ServiceAccount, Subresource,
    },
    port::{
        ApiError, Channels, DeleteOptions, Exchange, GrpcCall, GrpcReply, GrpcStatus, Kubernetes, Level, ListOptions,
        Log, Patch,
        database::{Databases, Isolation, SqlError, SqlRows, SqlStatement, Transaction},
    },
    resource::{ObjectKey, Resource},
};
use operetta_tests::eventually;
use serde_json::{Value, json};
use tonic::codegen::Service;

use crate::{
    layer::{Layer, caller, layer},
    shared::{SOON, TestNamespace, namespace},
};

/// Cells of each sample of grants that are tried unless all are.
const CELLS: usize = 60;
/// Requests at the same time.
const ABREAST: usize = 8;

/// What is granted; NEAR and FAR are two namespaces, NAME is an object's name. A title that ends in `here` is of a plugin that works in NEAR only.
const SAMPLES: &[(&str, &str)] = &[
    ("nothing", "[]"),
    (
        "reads of one kind in one namespace",
        r#"[{apiGroups: [""], resources: [configmaps], verbs: [get, list, watch], namespaces: [NEAR]}]"#,
    ),
    ("one name", r#"[{apiGroups: [""], resources: [secrets, configmaps], verbs: ["*"], resourceNames: [NAME]}]"#),
    (
        "one name in two namespaces",
        "[{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, update, list], resourceNames: [NAME], namespaces: [NEAR, FAR]}]",
    ),
    (
        "parts",
        r#"[{apiGroups: [apps], resources: [deployments/status, "*/scale", "statefulsets/*"], verbs: [patch, update]}, {apiGroups: [""], resources: [pods/exec], verbs: [create]}]"#,
    ),
    ("all parts of one sort", r#"[{apiGroups: ["*"], resources: ["*/status"], verbs: ["*"], namespaces: [NEAR]}]"#),
    ("a group", r#"[{apiGroups: [apps], resources: ["*"], verbs: ["*"], namespaces: [NEAR]}]"#),
    ("accounts", r#"[{apiGroups: [""], resources: [serviceaccounts, serviceaccounts/token], verbs: ["*"]}]"#),
    (
        "what has no namespace",
        r#"[{apiGroups: [""], resources: [namespaces], verbs: [get, patch, delete, create], namespaces: [NEAR]}, {apiGroups: [""], resources: [nodes], verbs: [get, list]}]"#,
    ),
    (
        "two rules that are not one",
        r#"[{apiGroups: [""], resources: [pods], verbs: [get], namespaces: [NEAR]}, {apiGroups: [""], resources: [services], verbs: [delete], namespaces: [FAR]}]"#,
    ),
    (
        "roles",
        "[{apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings, clusterroles], verbs: [\"*\"]}]",
    ),
    (
        "what an operator makes",
        r#"[{apiGroups: [""], resources: [configmaps], verbs: [get, list, watch, create, patch, update], namespaces: [NEAR]}]"#,
    ),
    ("everything", r#"[{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]"#),
    ("everything, for a plugin that works here", r#"[{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]"#),
];

const MAKES: usize = SAMPLES.len() - 3;
const EVERYTHING: usize = SAMPLES.len() - 2;

/// A kind, or a part of one.
struct Target {
    resource: Resource,
    part: Option<Subresource>,
    namespaced: bool,
}

/// Everything that Kubernetes itself serves, and Plugins. Kinds of other tests come and go.
async fn targets(client: &Client) -> Vec<Target> {
    let mut lists = vec![client.list_core_api_resources("v1").await.unwrap()];
    for group in client.list_api_groups().await.unwrap().groups {
        if !group.name.contains('.') || group.name.ends_with(".k8s.io") || group.name == "operetta.dev" {
            let version = group.preferred_version.unwrap().group_version;
            lists.push(client.list_api_group_resources(&version).await.unwrap());
        }
    }
    let mut targets = Vec::new();
    for list in lists {
        let (group, version) = list.group_version.split_once('/').unwrap_or(("", &list.group_version));
        for listed in &list.resources {
            let (plural, part) =
                listed.name.split_once('/').map_or((listed.name.as_str(), None), |(p, s)| (p, Some(s)));
            let part = part.map(|part| Subresource::parse(part).unwrap());
            let resource = Resource::parse(group, version, plural).unwrap();
            targets.push(Target { resource, part, namespaced: listed.namespaced });
        }
    }
    targets
}

/// One request.
struct Cell<'a> {
    verb: Verb,
    target: &'a Target,
    namespace: Option<Namespace>,
    name: Option<ObjectName>,
}

impl Cell<'_> {
    fn access(&self) -> Access<'_> {
        Access {
            verb: self.verb,
            resource: &self.target.resource,
            subresource: self.target.part.as_ref(),
            namespace: self.namespace.as_ref(),
            name: self.name.as_ref(),
        }
    }

    /// Whether a plugin has a way to ask for it: by a watch it is woken, and of parts it only writes.
    fn can_be_asked(&self) -> bool {
        match self.verb {
            Verb::Watch => false,
            Verb::Patch | Verb::Update => true,
            _ => self.target.part.is_none(),
        }
    }

    fn key(&self) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone(), name: self.name.clone().unwrap() }
    }

    fn list(&self) -> ListOptions {
        let one = self.name.as_ref().map(|name| FieldSelector::parse(&format!("metadata.name={name}")).unwrap());
        ListOptions { namespace: self.namespace.clone(), field_selector: one, live: true, ..ListOptions::default() }
    }

    fn body(&self) -> String {
        let name = self.name.as_ref().map_or("made", ObjectName::as_str);
        json!({"metadata": {"name": name, "resourceVersion": (self.verb == Verb::Update).then_some("1")}}).to_string()
    }

    /// As a plugin asks.
    async fn ask(&self, effects: &Effects) -> Result<(), ApiError> {
        let Target { resource, part, .. } = self.target;
        match self.verb {
            Verb::Get => effects.get(resource, &self.key(), true).await.map(drop),
            Verb::List => effects.list(resource, &self.list()).await.map(drop),
            Verb::Create => effects.create(resource, self.namespace.as_ref(), self.body()).await.map(drop),
            Verb::Patch => {
                effects.patch(resource, &self.key(), part.as_ref(), Patch::Merge("{}".into())).await.map(drop)
            }
            Verb::Update => effects.replace(resource, &self.key(), part.as_ref(), self.body()).await.map(drop),
            Verb::Delete => effects.delete(resource, &self.key(), &DeleteOptions::default()).await,
            Verb::Watch => unreachable!(),
        }
    }

    /// As it would be if the host had not looked.
    async fn ask_unchecked(&self, port: &dyn Kubernetes) -> Result<(), ApiError> {
        let Target { resource, part, .. } = self.target;
        let who = caller("p");
        match self.verb {
            Verb::Get => port.get(&who, resource, &self.key(), true).await.map(drop),
            Verb::List => port.list(&who, resource, &self.list()).await.map(drop),
            Verb::Create => port.create(&who, resource, self.namespace.as_ref(), self.body()).await.map(drop),
            Verb::Patch => {
                port.patch(&who, resource, &self.key(), part.as_ref(), Patch::Merge("{}".into())).await.map(drop)
            }
            Verb::Update => port.replace(&who, resource, &self.key(), part.as_ref(), self.body()).await.map(drop),
            Verb::Delete => port.delete(&who, resource, &self.key(), &DeleteOptions::default()).await.map(drop),
            Verb::Watch => unreachable!(),
        }
    }
}

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_ref().map_or("*", ObjectName::as_str);
        write!(f, "{} {name:?}", self.access().words())
    }
}

/// A plugin with its grants, installed.
struct Sample {
    title: &'static str,
    account: ServiceAccount,
    installation: Installation,
    policy: Arc<ArcSwap<Policy>>,
    port: Arc<dyn Kubernetes>,
}

impl Sample {
    async fn install(stage: &Stage, number: usize) -> Self {
        let (title, yaml) = SAMPLES[number];
        let yaml = yaml.replace("NEAR", stage.here().as_str()).replace("FAR", stage.there().as_str());
        let rules: Vec<Rule> = serde_saphyr::from_str(&yaml.replace("NAME", NAME)).unwrap();
        let plugin = PluginName::parse(&format!("{}-{number}", stage.layer.namespace.name())).unwrap();
        let account = ServiceAccount { namespace: stage.here(), name: AccountName::parse(plugin.as_str()).unwrap() };
        let scope = if title.ends_with("here") { stage.layer.scope() } else { Scope::All };
        let installation = Installation {
            plugin: plugin.clone(),
            account: account.clone(),
            crds: Vec::new(),
            rules: rules.clone(),
            events: false,
            scope: scope.clone(),
            host: stage.layer.actor("host").account,
            way: Way::Constrained,
        };
        install(&stage.layer.client(), &installation, false).await.unwrap();
        let bounds = Bounds::of(&plugin, &[], &account, &scope);
        let policy =
            Policy { grants: Grants { rules: rules.into(), ..Grants::default() }, bounds, ..Policy::default() };
        let port = stage.trial.kubernetes(Actor { plugin: plugin.clone(), account: account.clone() }, scope);
        Self { title, account, installation, policy: Arc::new(ArcSwap::from_pointee(policy)), port }
    }

    /// Waits until RBAC knows of what was installed.
    async fn comes_through(&self, access: &Access<'_>, stage: &Stage) {
        eventually("RBAC has come through", SOON, async || {
            ensure!(Question::of(access).ask(&stage.layer.client(), Some(&self.account)).await?, "{access:?}: not yet");
            Ok(())
        })
        .await
        .unwrap();
    }

    /// What lies in the namespaces goes with them.
    async fn remove(&self, stage: &Stage) {
        let objects = render(&self.installation).unwrap().into_iter();
        let objects = objects.filter(|object| object["kind"].as_str().is_some_and(|kind| kind.starts_with("Cluster")));
        remove(&stage.layer.client(), objects.collect(), false).await.unwrap();
    }

    fn is_limited(&self) -> bool {
        self.installation.scope != Scope::All
    }

    /// What the host says.
    fn host(&self, access: &Access<'_>) -> Result<(), Denial> {
        let policy = self.policy.load();
        policy.bounds.check(access)?;
        policy.grants.check(access)
    }

    fn effects(&self) -> Effects {
        let nobody = Arc::new(Nobody);
        let ports = Ports {
            kubernetes: self.port.clone(),
            channels: nobody.clone(),
            databases: nobody.clone(),
            log: nobody,
            denials: Arc::new(|_| {}),
            exceeded: Arc::new(|_| {}),
            rates: Arc::default(),
        };
        Effects::new(caller("p"), self.policy.clone(), ports)
    }

    fn cells<'a>(&self, targets: &'a [Target], stage: &Stage) -> Vec<Cell<'a>> {
        let mut cells = Vec::new();
        for target in targets {
            for verb in Verb::ALL {
                let many = matches!(verb, Verb::List | Verb::Watch);
                // Where it is limited, a list of everything is one of its namespaces, and of what has none there is none.
                let everywhere = !target.namespaced || many && !self.is_limited();
                if self.is_limited() && !target.namespaced && many {
                    continue;
                }
                let mut places: Vec<_> = everywhere.then_some(None).into_iter().collect();
                if target.namespaced {
                    places.extend([Some(stage.here()), Some(stage.there())]);
                }
                let mut names = vec![None];
                if verb != Verb::Create {
                    let own = [self.account.name.to_string(), Bounds::role(&self.installation.plugin)];
                    let all = [NAME, "another", &own[0], &own[1], stage.here().as_str()]
                        .map(|name| ObjectName::parse(name).ok());
                    names.extend(all);
                    if !many {
                        names.remove(0);
                    }
                }
                for namespace in &places {
                    let cell =
                        |name: &Option<_>| Cell { verb, target, namespace: namespace.clone(), name: name.clone() };
                    cells.extend(names.iter().map(cell));
                }
            }
        }
        cells
    }

    /// How a cell ended, or how it should not have.
    async fn judge(&self, cell: &Cell<'_>, stage: &Stage) -> anyhow::Result<&'static str> {
        let access = cell.access();
        let host = self.host(&access);
        let rbac = Question::of(&access).ask(&stage.layer.client(), Some(&self.account)).await?;
        let asked = if cell.can_be_asked() { Some(cell.ask(&self.effects()).await) } else { None };
        let denied = asked.as_ref().map(|asked| match asked {
            // Nothing is there to replace, and to make it is another right; or nobody may look at what is there.
            Err(ApiError::Denied(why)) => {
                cell.verb != Verb::Update || !why.starts_with("create ") && !why.contains("nobody can say")
            }
            _ => false,
        });
        ensure!(
            denied.is_none_or(|denied| denied == host.is_err()),
            "the host's check says {host:?}, and it ends as {asked:?}"
        );
        match (&host, rbac) {
            (Ok(()), true) => {
                ensure!(!asked.as_ref().is_some_and(refused), "granted, and RBAC refuses: {asked:?}");
                Ok("granted by both")
            }
            (Ok(()), false) => anyhow::bail!("granted by the host, and not by RBAC"),
            (Err(denial), true) if denial.grant() == "none" => {
                self.policy.load().grants.check(&access)?;
                Ok("granted, and out of bounds")
            }
            (Err(_), true) => {
                let everyones = Question::of(&access).ask(&stage.layer.client(), Some(&stage.bare)).await?;
                ensure!(everyones, "granted by RBAC, and not by the host");
                Ok("everyone's right, and not a plugin's")
            }
            (Err(_), false) => {
                if cell.can_be_asked() {
                    let unchecked = cell.ask_unchecked(&*self.port).await;
                    let scope = self.is_limited() && matches!(unchecked, Err(ApiError::Denied(_)));
                    ensure!(
                        scope || refused(&unchecked),
                        "RBAC denies it, and without the host's check it ends as {unchecked:?}"
                    );
                }
                Ok("denied by both")
            }
        }
    }
}

/// Whether RBAC refused it; what admission forbids is said otherwise.
fn refused(answer: &Result<(), ApiError>) -> bool {
    matches!(answer, Err(ApiError::Forbidden(why)) if why.contains(" cannot ") && why.contains(" resource "))
}

const NAME: &str = "matrix-object";

struct Stage {
    layer: Layer,
    other: TestNamespace,
    /// The same cluster, where nothing is written.
    trial: Cluster,
    /// Has no rights.
    bare: ServiceAccount,
}

impl Stage {
    async fn new() -> Self {
        let (layer, other) = (layer().await, namespace().await);
        let crd = serde_json::to_value(operetta_api::crd()).unwrap();
        layer.apply("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", &crd).await;
        for place in [&layer.namespace, &other] {
            for (kind, plural) in [("ConfigMap", "configmaps"), ("Secret", "secrets")] {
                let url = format!("/api/v1/namespaces/{}/{plural}", place.name());
                let object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": NAME}});
                let request = Request::post(url).header("content-type", "application/json");
                layer.client().request::<Value>(request.body(object.to_string().into_bytes()).unwrap()).await.unwrap();
            }
        }
        eventually("Plugins are served", SOON, async || {
            layer.client().list_api_group_resources("operetta.dev/v1alpha1").await.map(drop).context("list them")
        })
        .await
        .unwrap();
        let host = layer.cluster.client().clone();
        let trial = Cluster::new(host.clone(), Arc::new(Trial(Impersonation::new(host))), Arc::default());
        let bare = layer.account("bare").await.account;
        Self { layer, other, trial, bare }
    }

    fn here(&self) -> Namespace {
        self.layer.here()
    }

    fn there(&self) -> Namespace {
        Namespace::parse(self.other.name()).unwrap()
    }
}

/// How each of the cells ended, or how it should not have.
async fn try_sample(
    stage: &Stage,
    targets: &[Target],
    number: usize,
    seed: u64,
    all: bool,
) -> Vec<Result<&'static str, String>> {
    let sample = Sample::install(stage, number).await;
    let mut tried = sample.cells(targets, stage);
    if let Some(cell) = tried.iter().find(|cell| sample.host(&cell.access()).is_ok()) {
        sample.comes_through(&cell.access(), stage).await;
    }
    if !all {
        tried.sort_by_key(|cell| {
            let (here, there) = (stage.here(), stage.there());
            let mut hasher = DefaultHasher::new();
            (seed, number, cell.to_string().replace(here.as_str(), "a").replace(there.as_str(), "b")).hash(&mut hasher);
            hasher.finish()
        });
        // Half of them of what some rule names, which is little among all.
        let named = |cell: &Cell<'_>| {
            let rules = &sample.installation.rules;
            let mut resources = rules.iter().flat_map(|rule| &rule.resources);
            resources.any(|resource| resource.split('/').next() == Some(cell.target.resource.resource()))
        };
        let (near, far): (Vec<_>, Vec<_>) = tried.into_iter().partition(named);
        tried = near.into_iter().take(CELLS / 2).chain(far.into_iter().take(CELLS / 2)).collect();
    }
    let judged = futures::stream::iter(&tried).map(|cell| {
        let judged = sample.judge(cell, stage);
        judged.map(move |ended| ended.map_err(|error| format!("{}: {cell}: {error:#}", sample.title))).boxed_local()
    });
    let judged = judged.buffer_unordered(ABREAST).collect().await;
    sample.remove(stage).await;
    judged
}

#[tokio::test]
async fn what_is_not_granted_is_denied_twice_and_what_is_granted_passes_both() {
    let all = std::env::var_os("OPERETTA_LONG").is_some();
    let seed: u64 = std::env::var("OPERETTA_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    let stage = Stage::new().await;
    let targets = targets(&stage.layer.client()).await;
    let (mut wrong, mut ends, mut cells) = (Vec::new(), BTreeMap::<_, usize>::new(), 0);
    let tried = futures::stream::iter(0..SAMPLES.len())
        .map(|number| try_sample(&stage, &targets, number, seed, all).boxed_local());
    let mut tried = tried.buffer_unordered(ABREAST);
    while let Some(judged) = tried.next().await {
        cells += judged.len();
        for ended in judged {
            match ended {
                Ok(end) => *ends.entry(end).or_default() += 1,
                Err(error) => wrong.push(error),
            }
        }
    }
    println!(
        "grant matrix: {cells} cells tried under {} grants over {} resources, seed {seed}: {ends:?}",
        SAMPLES.len(),
        targets.len()
    );
    assert!(wrong.is_empty(), "{} cells are wrong:\n{}", wrong.len(), wrong.join("\n"));
    for end in ["granted by both", "granted, and out of bounds", "denied by both"] {
        assert!(ends.contains_key(end), "no cell was {end}");
    }
}

/// Of a plugin that may apply one object by name, RBAC admits its creation, as it names it.
#[tokio::test]
async fn an_apply_is_held_to_the_names_that_are_granted() {
    let stage = Stage::new().await;
    let sample = Sample::install(&stage, 2).await;
    let config_maps = crate::layer::config_maps();
    let apply = async |name: &str| {
        let key = stage.layer.key(name);
        sample.effects().patch(&config_maps, &key, None, Patch::Apply(json!({"data": {"a": "b"}}).to_string())).await
    };
    eventually("it may", SOON, async || apply(NAME).await.map(drop).context("apply")).await.unwrap();
    assert!(matches!(apply("another").await, Err(ApiError::Denied(_))));
    let body = Patch::Apply(json!({"data": {}}).to_string());
    let unchecked = sample.port.patch(&caller("p"), &config_maps, &stage.layer.key("another"), None, body).await;
    assert!(refused(&unchecked.map(drop)));
    sample.remove(&stage).await;
}

/// Some kinds the API server makes where a replace finds none; that needs `create`.
#[tokio::test]
async fn a_replace_makes_nothing_without_the_right_to_create() {
    let stage = Stage::new().await;
    // All that RBAC has, so that only the host is left.
    let sample = Sample::install(&stage, EVERYTHING).await;
    let update = Rule {
        api_groups: vec!["*".into()],
        resources: vec!["*".into()],
        verbs: vec!["get".into(), "update".into()],
        ..Rule::default()
    };
    let policy = Policy::clone(&sample.policy.load());
    sample
        .policy
        .store(Arc::new(Policy { grants: Grants { rules: vec![update].into(), ..Grants::default() }, ..policy }));
    let kinds =
        [("", "services", json!({"spec": {"ports": [{"port": 80}]}})), ("coordination.k8s.io", "leases", json!({}))];
    for (group, plural, mut object) in kinds {
        let resource = Resource::parse(group, "v1", plural).unwrap();
        for version in ["1", "0"] {
            object["metadata"] = json!({"name": "absent", "resourceVersion": version});
            let made = sample.effects().replace(&resource, &stage.layer.key("absent"), None, object.to_string()).await;
            assert!(made.is_err(), "{plural}: made {made:?}");
        }
    }
    sample.remove(&stage).await;
}

/// Whatever is granted; and without the host's check, RBAC would let it.
#[tokio::test]
async fn a_plugin_never_widens_its_own() {
    let stage = Stage::new().await;
    let sample = Sample::install(&stage, EVERYTHING).await;
    let (effects, port) = (sample.effects(), &sample.port);
    let resource = |group: &str, version: &str, plural: &str| Resource::parse(group, version, plural).unwrap();
    let (here, own) = (stage.here(), sample.installation.plugin.to_string());
    let role = Bounds::role(&sample.installation.plugin);
    let token: Subresource = "token".parse().unwrap();
    let (rbac, accounts) = ("rbac.authorization.k8s.io", resource("", "v1", "serviceaccounts"));
    let config_maps = crate::layer::config_maps();
    let make_pods =
        Access { verb: Verb::Create, resource: &config_maps, subresource: None, namespace: Some(&here), name: None };
    sample.comes_through(&make_pods, &stage).await;
    let cases = [
        (resource("operetta.dev", "v1alpha1", "plugins"), ObjectKey::parse(None, &own).unwrap(), None),
        (accounts.clone(), stage.layer.key(&own), None),
        (accounts, stage.layer.key(&own), Some(&token)),
        (resource(rbac, "v1", "clusterroles"), ObjectKey::parse(None, &role).unwrap(), None),
        (resource(rbac, "v1", "clusterrolebindings"), ObjectKey::parse(None, &role).unwrap(), None),
    ];
    for (kind, key, part) in &cases {
        let patch = || Patch::Merge(r#"{"metadata":{"labels":{"a":"b"}}}"#.to_owned());
        let denied = effects.patch(kind, key, *part, patch()).await.unwrap_err();
        assert!(denied.to_string().contains("is refused, whatever is granted"), "{kind} {key}: {denied}");
        let unchecked = port.patch(&caller("p"), kind, key, *part, patch()).await.map(drop);
        assert!(!refused(&unchecked), "{kind} {key}: RBAC would not: {unchecked:?}");
    }
    let subject = json!({"kind": "ServiceAccount", "name": own, "namespace": here.as_str()});
    let binding = |subject: &Value| {
        let role = json!({"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"});
        json!({"metadata": {"name": "b"}, "roleRef": role, "subjects": [subject]}).to_string()
    };
    let bindings = resource(rbac, "v1", "rolebindings");
    let denied = effects.create(&bindings, Some(&here), binding(&subject)).await.unwrap_err();
    assert!(denied.to_string().contains("as which it acts itself"), "{denied}");
    let secret = json!({"metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": own}}, "type": "kubernetes.io/service-account-token"});
    let denied = effects.create(&resource("", "v1", "secrets"), Some(&here), secret.to_string()).await.unwrap_err();
    assert!(denied.to_string().contains("would be a token"), "{denied}");

    // What it gives to others the API server holds to what it has: a star among its verbs is no `bind` and no `escalate`.
    let other = json!({"kind": "User", "name": "somebody"});
    for (kind, body) in [
        (&bindings, binding(&other)),
        (&resource(rbac, "v1", "roles"), json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}]}).to_string()),
    ] {
        let forbidden = effects.create(kind, Some(&here), body).await.unwrap_err();
        assert!(matches!(&forbidden, ApiError::Forbidden(why) if why.contains("attempting to grant RBAC permissions")), "{forbidden}");
    }
    sample.remove(&stage).await;
}

/// An operator makes what it owns, applies it again, and holds nothing else.
#[tokio::test]
async fn no_owner_and_no_finalizer_is_put_on_what_a_plugin_did_not_make() {
    let stage = Stage::new().await;
    let sample = Sample::install(&stage, MAKES).await;
    // Here it is really written.
    let actor = Actor { plugin: sample.installation.plugin.clone(), account: sample.account.clone() };
    let sample = Sample { port: stage.layer.cluster.kubernetes(actor, Scope::All), ..sample };
    let (effects, config_maps) = (sample.effects(), crate::layer::config_maps());
    let owner = stage.layer.apply("", "v1", "ConfigMap", "configmaps", &json!({"metadata": {"name": "owner"}})).await;
    let reference = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid, "controller": true}]);
    let owned = || json!({"metadata": {"ownerReferences": reference}, "data": {"a": "b"}}).to_string();
    let apply =
        async |name: &str| effects.patch(&config_maps, &stage.layer.key(name), None, Patch::Apply(owned())).await;
    eventually("it makes one", SOON, async || apply("child").await.map(drop).context("apply")).await.unwrap();
    apply("child").await.unwrap();

    let foreign = stage.layer.key(NAME);
    let steps = json!([{"op": "add", "path": "/metadata/ownerReferences", "value": reference}]).to_string();
    let version = effects.get(&config_maps, &foreign, true).await.unwrap();
    let mut whole: Value = serde_json::from_str(&version).unwrap();
    whole["metadata"]["ownerReferences"] = reference.clone();
    for ended in [
        apply(NAME).await,
        effects.patch(&config_maps, &foreign, None, Patch::Merge(owned())).await,
        effects.patch(&config_maps, &foreign, None, Patch::Json(steps)).await,
        effects.replace(&config_maps, &foreign, None, whole.to_string()).await,
    ] {
        let said = ended.unwrap_err().to_string();
        assert!(said.contains("with a new owner of kind ConfigMap") && said.contains("verbs: [\"delete\"]"), "{said}");
    }
    let held = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/mine"]}}).to_string());
    let said = effects.patch(&config_maps, &foreign, None, held).await.unwrap_err().to_string();
    assert!(said.contains("with the finalizer example.com/mine is refused, whatever is granted"), "{said}");
    let after: Value = serde_json::from_str(&effects.get(&config_maps, &foreign, true).await.unwrap()).unwrap();
    assert_eq!(after["metadata"]["ownerReferences"], Value::Null);
    sample.remove(&stage).await;
}

/// Acts as an account, and writes nothing.
struct Trial(Impersonation);

#[async_trait]
impl Identity for Trial {
    async fn client(&self, actor: &Actor) -> Result<Client, ApiError> {
        Ok(Client::new(DryRun(self.0.client(actor).await?), actor.account.namespace.as_str()))
    }

    async fn check_host(&self, actor: &Actor, asked: &Asked<'_>) -> Result<(), Refusal> {
        self.0.check_host(actor, asked).await
    }
}

#[derive(Clone)]
struct DryRun(Client);

impl Service<Request<Body>> for DryRun {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, kube::Result<Response<Body>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<kube::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (mut head, mut body) = request.into_parts();
        if head.method != Method::GET {
            let mark = if head.uri.query().is_some() { '&' } else { '?' };
            head.uri = format!("{}{mark}dryRun=All", head.uri).parse().unwrap();
        }
        if head.method == Method::DELETE {
            // A body's options count, and those of the query do not.
            let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]});
            body = Body::from(options.to_string().into_bytes());
        }
        let inner = self.0.clone();
        async move { inner.send(Request::from_parts(head, body)).await }.boxed()
    }
}

/// The ports that no cell needs.
struct Nobody;

#[async_trait]
impl Channels for Nobody {
    async fn unary(&self, _: &ChannelName, _: GrpcCall, _: Vec<u8>) -> Result<GrpcReply, GrpcStatus> {
        Err(GrpcStatus::of(14, "nobody"))
    }

    async fn open(&self, _: &ChannelName, _: GrpcCall) -> Result<Box<dyn Exchange>, GrpcStatus> {
        Err(GrpcStatus::of(14, "nobody"))
    }
}

#[async_trait]
impl Databases for Nobody {
    async fn query(&self, _: &DatabaseName, _: SqlStatement) -> Result<SqlRows, SqlError> {
        Err(SqlError::Denied(String::new()))
    }

    async fn execute(&self, _: &DatabaseName, _: SqlStatement) -> Result<u64, SqlError> {
        Err(SqlError::Denied(String::new()))
    }

    async fn begin(
        &self,
        _: &DatabaseName,
        _: Isolation,
        _: std::time::Duration,
    ) -> Result<Box<dyn Transaction>, SqlError> {
        Err(SqlError::Denied(String::new()))
    }
}

impl Log for Nobody {
    fn enabled(&self, _: Level) -> bool {
        false
    }

    fn write(&self, _: Level, _: &str, _: &str, _: &[(String, String)]) {}
}
