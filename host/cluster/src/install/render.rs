//! The objects of an installation, and the host's own rights. Pure: what is printed is what is applied.

use std::collections::BTreeMap;

use operetta_api::DEFAULT_ACCOUNT_NAMESPACE;
use operetta_core::{
    bounds::{Bounds, HOST, HOST_ACCOUNTS, HOST_EVENTS},
    cache::Scope,
    grant::{Rule, Verb},
    name::{Namespace, ServiceAccount},
};
use serde_json::{Value, json};

use super::{InstallError, Installation, PLUGIN_LABEL, way::Way};

/// In this order they can be applied to an empty cluster: CRDs, namespace, account, roles, bindings.
pub fn render(installation: &Installation) -> Result<Vec<Value>, InstallError> {
    let mut objects = Vec::new();
    for crd in &installation.crds {
        objects.push(definition(installation, crd)?);
    }
    let (plugin, account) = (&installation.plugin, &installation.account);
    objects.push(json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": account.namespace.as_str(), "labels": {"app.kubernetes.io/managed-by": "operetta"}},
    }));
    objects.push(account_of(account, &[plugin.as_str()]));
    let granted = |name: &str, to: &ServiceAccount, rules: Placed| {
        let role = |kind: &str, namespace: Option<&Namespace>, rules: &[Value]| {
            let metadata =
                json!({"name": name, "namespace": namespace.map(Namespace::as_str), "labels": labels(plugin.as_str())});
            role(kind, &without_nulls(metadata), to, rules)
        };
        let mut roles = Vec::new();
        if !rules.everywhere.is_empty() {
            roles.extend(role("ClusterRole", None, &rules.everywhere));
        }
        for (namespace, rules) in rules.here {
            roles.extend(role("Role", Some(&namespace), &rules));
        }
        roles
    };
    let rules = rules(installation)?;
    objects.extend(granted(&Bounds::role(plugin), account, placed(installation, &rules)));
    let acting: Vec<_> = rules.iter().filter_map(|rule| installation.way.rule(rule)).collect();
    let mut acting = placed(installation, &acting);
    // The host may become the accounts of one namespace; one that lives elsewhere is named to it.
    if account.namespace.as_str() != DEFAULT_ACCOUNT_NAMESPACE {
        acting.here.entry(account.namespace.clone()).or_default().extend(becoming(installation.way, Some(account)));
    }
    objects.extend(granted(&format!("{}:host", Bounds::role(plugin)), &installation.host, acting));
    Ok(objects)
}

/// An account that these plugins may act as. The first of them labels it.
pub(super) fn account_of(account: &ServiceAccount, plugins: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        // No pod runs under it; the host acts as it.
        "automountServiceAccountToken": false,
        "metadata": {
            "name": account.name.as_str(), "namespace": account.namespace.as_str(),
            "labels": labels(plugins.first().copied().unwrap_or_default()),
            "annotations": {PLUGIN_LABEL: plugins.join(",")},
        },
    })
}

/// The right to look up accounts and to become them: all of a namespace, or one.
fn becoming(way: Way, only: Option<&ServiceAccount>) -> Vec<Value> {
    let (group, verb) = way.becoming();
    let mut rules: BTreeMap<&str, Vec<&str>> = BTreeMap::from([("", vec!["get"])]);
    rules.entry(group).or_default().push(verb);
    let rule = |(group, verbs): (&str, Vec<&str>)| {
        let names = only.map(|account| [account.name.as_str()]);
        without_nulls(
            json!({"apiGroups": [group], "resources": ["serviceaccounts"], "resourceNames": names, "verbs": verbs}),
        )
    };
    rules.into_iter().map(rule).collect()
}

/// The host's own rights, with the account that has them: to act as the service accounts of `plugins` (and of no other namespace: whoever may act as any account may do
/// anything), to know what kinds there are, to follow Plugins, say what became of them and read the components that lie beside it, and to be the one host that works. None on
/// users' objects: what it may do there as which plugin comes with that plugin, see [`render`]. Asking what an account may do (SelfSubjectAccessReview) is everyone's right. A test
/// compares these rules with what a host asked for.
pub fn host_rbac(account: &ServiceAccount, plugins: &Namespace, way: Way) -> Vec<Value> {
    let labels = json!({"app.kubernetes.io/managed-by": "operetta", "app.kubernetes.io/name": "operetta"});
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let namespace = |name: &Namespace| {
        let mut labels = labels.clone();
        // Whoever may run privileged pods beside the host is the host.
        if let Some(labels) = labels.as_object_mut() {
            labels.insert("pod-security.kubernetes.io/enforce".to_owned(), "restricted".into());
        }
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name.as_str(), "labels": labels}})
    };
    // Roles have a name each, since their namespaces may be one.
    let granted = |kind: &str, name: &str, namespace: Option<&str>, rules: &[Value]| {
        let metadata = json!({"name": name, "namespace": namespace, "labels": labels});
        role(kind, &without_nulls(metadata), account, rules)
    };
    let mut objects = vec![
        namespace(&account.namespace),
        namespace(plugins),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": account.name.as_str(), "namespace": account.namespace.as_str(), "labels": labels},
        }),
    ];
    let mut everywhere = vec![
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["list", "watch"]),
        // Patched for the host's finalizer.
        rule("operetta.dev", &["plugins"], &["list", "patch", "watch"]),
        rule("operetta.dev", &["plugins/status"], &["patch"]),
    ];
    everywhere.extend(way.asking());
    objects.extend(granted("ClusterRole", HOST, None, &everywhere));
    objects.extend(granted("Role", HOST_ACCOUNTS, Some(plugins.as_str()), &becoming(way, None)));
    // Events about what lives in no namespace, such as Plugins, lie here.
    let events = [rule("events.k8s.io", &["events"], &["create", "patch"])];
    objects.extend(granted("Role", HOST_EVENTS, Some("default"), &events));
    let own = [
        rule("coordination.k8s.io", &["leases"], &["create", "get", "list", "update", "watch"]),
        // Who leads.
        rule("events.k8s.io", &["events"], &["create"]),
        // What Plugins refer to: components, credentials, certificates to trust.
        rule("", &["configmaps", "secrets"], &["get"]),
    ];
    objects.extend(granted("Role", HOST, Some(account.namespace.as_str()), &own));
    objects
}

fn without_nulls(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    value
}

fn subject(account: &ServiceAccount) -> Value {
    json!({"kind": "ServiceAccount", "name": account.name.as_str(), "namespace": account.namespace.as_str()})
}

fn labels(plugin: &str) -> Value {
    json!({"app.kubernetes.io/managed-by": "operetta", PLUGIN_LABEL: plugin})
}

/// The CRD with our labels, after the checks that need no cluster.
fn definition(installation: &Installation, crd: &Value) -> Result<Value, InstallError> {
    let text = |pointer: &str| crd.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (name, group) = (text("/metadata/name"), text("/spec/group"));
    if text("/apiVersion") != "apiextensions.k8s.io/v1" || text("/kind") != "CustomResourceDefinition" {
        return Err(InstallError::NoCrd(format!("apiVersion {:?}, kind {:?}", text("/apiVersion"), text("/kind"))));
    }
    if group.is_empty() || name != format!("{}.{group}", text("/spec/names/plural")) {
        return Err(InstallError::NoCrd(format!("metadata.name {name:?} is not its plural and its group {group:?}")));
    }
    let what = format!("customresourcedefinition.apiextensions.k8s.io/{name}");
    if ["k8s.io", "kubernetes.io"].iter().any(|own| group == *own || group.ends_with(&format!(".{own}")))
        || group == "operetta.dev"
    {
        return Err(InstallError::ReservedGroup(what));
    }
    if !matches!(text("/spec/conversion/strategy"), "" | "None")
        || crd.pointer("/spec/conversion/webhook").is_some_and(|w| !w.is_null())
    {
        return Err(InstallError::Webhook(what));
    }
    let mut definition = crd.clone();
    let metadata = crd.pointer("/metadata");
    let carried = |field: &str| {
        metadata.and_then(|m| m.get(field)).cloned().filter(Value::is_object).unwrap_or_else(|| json!({}))
    };
    let (mut marked, annotations) = (carried("labels"), carried("annotations"));
    if let (Some(all), Value::Object(ours)) = (marked.as_object_mut(), labels(installation.plugin.as_str())) {
        all.extend(ours);
    }
    if let Some(fields) = definition.as_object_mut() {
        fields.remove("status");
        // Of the metadata only what describes the kind: owner references or finalizers of a stranger have no place here.
        fields.insert("metadata".to_owned(), json!({"name": name, "labels": marked, "annotations": annotations}));
    }
    Ok(definition)
}

/// The verbs that the account gets. A host asks for no others in a plugin's name, and with them (`escalate`, `bind`, `impersonate`) the account could take any right.
fn verbs(rule: &Rule) -> Result<Vec<&str>, InstallError> {
    let known = Verb::ALL.map(Verb::as_str);
    if let Some(strange) = rule.verbs.iter().find(|verb| *verb != "*" && !known.contains(&verb.as_str())) {
        return Err(InstallError::Verb(strange.clone()));
    }
    let all = rule.verbs.iter().any(|verb| verb == "*");
    Ok(if all { known.to_vec() } else { rule.verbs.iter().map(String::as_str).collect() })
}

/// All rules of the plugin's account.
fn rules(installation: &Installation) -> Result<Vec<Rule>, InstallError> {
    let events = installation.events.then(|| Rule {
        // The older group as well: a binding that a person reads should say what `kubectl get events` shows.
        api_groups: vec![String::new(), "events.k8s.io".into()],
        resources: vec!["events".into()],
        verbs: vec!["create".into(), "patch".into()],
        ..Rule::default()
    });
    let all = installation.rules.iter().chain(&events);
    all.map(|rule| Ok(Rule { verbs: verbs(rule)?.into_iter().map(str::to_owned).collect(), ..rule.clone() })).collect()
}

/// Rules for the whole cluster, and rules by namespace.
#[derive(Default)]
struct Placed {
    everywhere: Vec<Value>,
    here: BTreeMap<Namespace, Vec<Value>>,
}

fn placed(installation: &Installation, rules: &[Rule]) -> Placed {
    let mut placed = Placed::default();
    for rule in rules {
        let mut value = json!({"apiGroups": rule.api_groups, "resources": rule.resources, "verbs": rule.verbs});
        if !rule.resource_names.is_empty()
            && let Some(fields) = value.as_object_mut()
        {
            fields.insert("resourceNames".to_owned(), json!(rule.resource_names));
        }
        let namespaces: Vec<&Namespace> = match &installation.scope {
            Scope::All if rule.namespaces.is_empty() => {
                placed.everywhere.push(value);
                continue;
            }
            Scope::Namespaces(scope) if rule.namespaces.is_empty() => scope.iter().collect(),
            scope => rule.namespaces.iter().filter(|n| scope.contains(Some(n))).collect(),
        };
        for namespace in namespaces {
            placed.here.entry(namespace.clone()).or_default().push(value.clone());
        }
    }
    placed
}

/// A role and its binding to an account.
fn role(kind: &str, metadata: &Value, account: &ServiceAccount, rules: &[Value]) -> [Value; 2] {
    let group = "rbac.authorization.k8s.io";
    [
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, "rules": rules}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": format!("{kind}Binding"), "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": kind, "name": metadata.get("name")},
            "subjects": [subject(account)],
        }),
    ]
}
