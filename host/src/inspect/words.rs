//! RBAC rules in words that a person can judge: what a plugin does with which kinds and where, and above all **what follows from it** beyond what the rules say. Pure.

use std::collections::BTreeMap;

use operetta_core::{bounds::WORKLOADS, grant::Rule, manifest::Manifest, name::Namespace};

/// Where and to which objects some verbs apply.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    namespaces: Vec<Namespace>,
    names: Vec<String>,
}

impl Place {
    fn of(rule: &Rule) -> Self {
        let (mut namespaces, mut names) = (rule.namespaces.clone(), rule.resource_names.clone());
        namespaces.sort();
        names.sort();
        Self { namespaces, names }
    }

    fn words(&self) -> String {
        let place = match self.namespaces.as_slice() {
            [] => "in any namespace".to_owned(),
            [one] => format!("in namespace {one}"),
            more => format!("in the namespaces {}", list(more)),
        };
        if self.names.is_empty() { place } else { format!("{place}, only those named {}", list(&self.names)) }
    }
}

/// Kinds as people write them. The names of a plugin's own kinds come from the CRDs it brings.
pub(super) struct Kinds(BTreeMap<(String, String), String>);

/// Of Kubernetes' own kinds those that do not just begin with one capital.
const CAMEL: &[&str] = &[
    "ConfigMaps",
    "ControllerRevisions",
    "StatefulSets",
    "DaemonSets",
    "ReplicaSets",
    "ReplicationControllers",
    "PodTemplates",
    "CronJobs",
    "ServiceAccounts",
    "PersistentVolumes",
    "PersistentVolumeClaims",
    "StorageClasses",
    "VolumeAttachments",
    "NetworkPolicies",
    "IngressClasses",
    "EndpointSlices",
    "HorizontalPodAutoscalers",
    "PodDisruptionBudgets",
    "ResourceQuotas",
    "LimitRanges",
    "PriorityClasses",
    "ClusterRoles",
    "RoleBindings",
    "ClusterRoleBindings",
    "CustomResourceDefinitions",
    "ValidatingWebhookConfigurations",
    "MutatingWebhookConfigurations",
    "ValidatingAdmissionPolicies",
    "ValidatingAdmissionPolicyBindings",
    "MutatingAdmissionPolicies",
    "MutatingAdmissionPolicyBindings",
    "CertificateSigningRequests",
    "APIServices",
    "CSIDrivers",
    "RuntimeClasses",
    "FlowSchemas",
    "PriorityLevelConfigurations",
    "SubjectAccessReviews",
    "TokenReviews",
];

impl Kinds {
    pub(super) fn of(manifest: &Manifest) -> Self {
        let named = manifest.crds.iter().filter_map(|crd| {
            let text = |pointer: &str| crd.pointer(pointer)?.as_str();
            let (group, kind, plural) = (text("/spec/group")?, text("/spec/names/kind")?, text("/spec/names/plural")?);
            let ending = plural.strip_prefix(&kind.to_lowercase());
            let shown = ending.map_or_else(|| plural.to_owned(), |ending| format!("{kind}{ending}"));
            Some(((group.to_owned(), plural.to_owned()), shown))
        });
        Self(named.collect())
    }

    /// `Deployments` for `deployments` of `apps`; with the group where the kind is somebody else's.
    pub(super) fn name(&self, group: &str, plural: &str) -> String {
        if let Some(name) = self.0.get(&(group.to_owned(), plural.to_owned())) {
            return name.clone();
        }
        if plural == "*" {
            return if group == "*" {
                "objects of every kind".into()
            } else if group.is_empty() {
                "objects of every core kind".into()
            } else {
                format!("objects of every kind of {group}")
            };
        }
        let camel = CAMEL.iter().find(|name| name.to_lowercase() == plural).map(|&name| name.to_owned());
        let own = group.is_empty() || !group.contains('.') || group.ends_with(".k8s.io");
        match camel {
            Some(name) if own => name,
            _ if own => plural.get(..1).unwrap_or_default().to_uppercase() + plural.get(1..).unwrap_or_default(),
            _ if group == "*" => format!("{plural} of every group"),
            _ => format!("{plural}.{group}"),
        }
    }
}

/// What the rules allow, a sentence for each thing done at each place.
pub(super) fn sentences(rules: &[Rule], kinds: &Kinds) -> Vec<String> {
    // All verbs of a resource at a place, whichever rules they come from.
    let mut verbs: BTreeMap<(Place, String, String), Vec<&str>> = BTreeMap::new();
    for rule in rules {
        for group in &rule.api_groups {
            for resource in &rule.resources {
                let all = verbs.entry((Place::of(rule), group.clone(), resource.clone())).or_default();
                all.extend(rule.verbs.iter().map(String::as_str));
            }
        }
    }
    // Then what is done alike with several kinds, in one sentence.
    let mut alike: BTreeMap<(Place, String), Vec<String>> = BTreeMap::new();
    for ((place, group, resource), verbs) in verbs {
        let (plural, part) =
            resource.split_once('/').map_or((resource.as_str(), None), |(kind, part)| (kind, Some(part)));
        let name = kinds.name(&group, plural);
        let names = alike.entry((place, act(&verbs, part))).or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let said = alike.into_iter().map(|((place, does), names)| format!("{does} {} {}", list(&names), place.words()));
    let mut sentences: Vec<_> = said.collect();
    // What changes something first.
    sentences.sort_by_key(|sentence| sentence.starts_with("reads ") && !sentence.starts_with("reads,"));
    sentences
}

/// What is done, to stand before the names of the kinds.
fn act(verbs: &[&str], part: Option<&str>) -> String {
    let has = |any: &[&str]| verbs.iter().any(|verb| *verb == "*" || any.contains(verb));
    let mut does = Vec::new();
    if verbs.contains(&"*") {
        does.push("does anything with".to_owned());
    } else {
        let known: [(&str, &[&str]); 4] = [
            ("reads", &["get", "list", "watch"]),
            ("creates", &["create"]),
            ("changes", &["update", "patch"]),
            ("deletes", &["delete", "deletecollection"]),
        ];
        does.extend(known.iter().filter(|(_, any)| has(any)).map(|(word, _)| (*word).to_owned()));
        let others = verbs.iter().filter(|verb| !known.iter().any(|(_, any)| any.contains(verb)));
        does.extend(others.map(|verb| format!("has the verb {verb:?} on")));
        does.dedup();
    }
    let does = list(&does);
    match part {
        None => does,
        Some("finalizers") if !has(&["get", "list", "watch", "create", "delete"]) => {
            "owns objects that hold up the deletion of".into()
        }
        Some("exec" | "attach") if has(&["create", "get"]) => "runs commands within".into(),
        Some("log") => "reads the logs of".into(),
        Some("*") => format!("{does} every part of"),
        Some(part) => format!("{does} the {part} of"),
    }
}

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "update", "patch"];
const CHANGE_OR_DELETE: &[&str] = &["update", "patch", "delete"];
const WRITE_OR_DELETE: &[&str] = &["create", "update", "patch", "delete"];

/// A right from which more follows than it says.
struct Danger {
    /// Group and resource, any of them.
    targets: &'static [(&'static str, &'static str)],
    /// Any of these verbs.
    verbs: &'static [&'static str],
    /// What follows, after the kinds and the place.
    follows: &'static str,
}

const DANGERS: &[Danger] = &[
    Danger {
        targets: WORKLOADS,
        verbs: WRITE,
        follows: "decides which images and commands run there, and may therefore use every service account, Secret, ConfigMap and volume of those namespaces",
    },
    Danger {
        targets: &[("", "secrets")],
        verbs: READ,
        follows: "learns every password, key and token that is kept there",
    },
    Danger {
        targets: &[("", "secrets")],
        verbs: WRITE,
        follows: "may replace keys and passwords there, and may get itself a token of any service account there",
    },
    Danger {
        targets: &[("", "secrets")],
        verbs: &["patch"],
        follows: "learns what is kept there without reading it, since a patch that changes nothing is answered with all of the object",
    },
    Danger {
        targets: &[("", "serviceaccounts/token")],
        verbs: &["create"],
        follows: "may act as any service account there",
    },
    Danger {
        targets: &[
            ("", "pods/exec"),
            ("", "pods/attach"),
            ("", "pods/portforward"),
            ("", "pods/proxy"),
            ("", "services/proxy"),
            ("", "nodes/proxy"),
        ],
        // A plugin writes to parts of objects by updates and patches only, and a proxy passes on any method.
        verbs: &["get", "create", "update", "patch"],
        follows: "reaches into running containers, and so into all that they hold",
    },
    Danger {
        targets: &[
            ("rbac.authorization.k8s.io", "roles"),
            ("rbac.authorization.k8s.io", "clusterroles"),
            ("rbac.authorization.k8s.io", "rolebindings"),
            ("rbac.authorization.k8s.io", "clusterrolebindings"),
        ],
        verbs: &["create", "update", "patch", "bind", "escalate"],
        follows: "may hand on its rights, and with bind or escalate (which `operetta install` refuses) take any others",
    },
    Danger {
        targets: &[
            ("", "users"),
            ("", "groups"),
            ("", "serviceaccounts"),
            ("authentication.k8s.io", "userextras"),
            ("authentication.k8s.io", "uids"),
        ],
        verbs: &["impersonate"],
        follows: "may act as them",
    },
    Danger {
        targets: &[
            ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
            ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
            ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
            ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"),
            ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
            ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
            ("apiregistration.k8s.io", "apiservices"),
            ("apiextensions.k8s.io", "customresourcedefinitions"),
        ],
        verbs: WRITE_OR_DELETE,
        follows: "may see, change or stop the requests of everyone in the cluster, and lift what guards it",
    },
    Danger {
        targets: &[("", "persistentvolumes")],
        verbs: &["create"],
        follows: "may mount any folder of a node, and so take the node",
    },
    Danger {
        targets: &[("storage.k8s.io", "storageclasses"), ("storage.k8s.io", "csidrivers")],
        verbs: WRITE,
        follows: "may have the drivers of volumes use Secrets of any namespace, and tokens of any pod's service account",
    },
    Danger {
        targets: &[("", "nodes"), ("", "nodes/status"), ("", "pods/binding"), ("", "bindings")],
        verbs: WRITE_OR_DELETE,
        follows: "decides where pods run",
    },
    Danger {
        targets: &[("", "endpoints"), ("discovery.k8s.io", "endpointslices")],
        verbs: WRITE,
        follows: "may turn the traffic of every service there to itself",
    },
    Danger {
        targets: &[("networking.k8s.io", "networkpolicies")],
        verbs: WRITE_OR_DELETE,
        follows: "decides which pods there may be reached, and by whom",
    },
    Danger {
        targets: &[("", "serviceaccounts")],
        verbs: WRITE,
        follows: "may tie rights outside of the cluster to them, where a cloud takes these from annotations",
    },
    Danger {
        targets: &[("", "namespaces")],
        verbs: CHANGE_OR_DELETE,
        follows: "may lift their pod security, or delete all that is in them",
    },
    Danger {
        targets: &[
            ("certificates.k8s.io", "certificatesigningrequests/approval"),
            ("certificates.k8s.io", "certificatesigningrequests/status"),
        ],
        verbs: &["update", "patch"],
        follows: "may make itself certificates of any user",
    },
    Danger {
        targets: &[
            ("flowcontrol.apiserver.k8s.io", "flowschemas"),
            ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"),
        ],
        verbs: WRITE_OR_DELETE,
        follows: "decides whose requests the API server answers first, and whose it leaves waiting",
    },
    Danger {
        targets: &[("operetta.dev", "plugins")],
        verbs: WRITE_OR_DELETE,
        follows: "would decide what plugins may do, which the host refuses whatever is granted",
    },
    Danger {
        targets: &[("operetta.dev", "plugins")],
        verbs: READ,
        follows: "learns which other plugins there are, and what each may do",
    },
];

/// Where the cluster's own parts have what they go by.
const KUBE_SYSTEM: &str = "kube-system";
/// What is a danger there and nowhere else.
const DANGERS_IN_KUBE_SYSTEM: &[Danger] = &[
    Danger {
        targets: &[("", "configmaps")],
        verbs: CHANGE_OR_DELETE,
        follows: "may set in kube-system what the cluster's own parts go by, such as whom aggregated API servers believe and how names are resolved",
    },
    Danger {
        targets: &[("coordination.k8s.io", "leases")],
        verbs: CHANGE_OR_DELETE,
        follows: "may keep the scheduler and the controllers of the cluster from working, whose leases lie in kube-system",
    },
];

/// The name of a kind, and the verbs.
type Deed = (String, Vec<&'static str>);

/// What follows from the rules beyond what they say, a warning for each danger at each place.
pub(super) fn warnings(rules: &[Rule], kinds: &Kinds) -> Vec<String> {
    let everything = |rule: &&Rule| {
        let all = |list: &[String]| list.iter().any(|x| x == "*");
        all(&rule.api_groups) && all(&rule.resources) && all(&rule.verbs)
    };
    let mut warnings = Vec::new();
    if let Some(rule) = rules.iter().find(everything) {
        warnings.push(format!("may do everything {}: whoever wrote it rules there", Place::of(rule).words()));
        return warnings;
    }
    let there = DANGERS_IN_KUBE_SYSTEM.iter().map(|danger| (danger, Some(KUBE_SYSTEM)));
    for (danger, only) in DANGERS.iter().map(|danger| (danger, None)).chain(there) {
        let lies_there = |rule: &Rule| {
            rule.namespaces.is_empty() || only.is_none_or(|only| rule.namespaces.iter().any(|n| n.as_str() == only))
        };
        // By place and kind: its parts, and what is done with them.
        let mut places: BTreeMap<Place, BTreeMap<Deed, Vec<&str>>> = BTreeMap::new();
        for rule in rules.iter().filter(|rule| lies_there(rule)) {
            for (group, resource) in danger.targets {
                if !(any(&rule.api_groups, group) && rule.resources.iter().any(|r| covers(r, resource))) {
                    continue;
                }
                let mut verbs: Vec<_> = danger.verbs.iter().copied().filter(|verb| any(&rule.verbs, verb)).collect();
                if verbs.is_empty() {
                    continue;
                }
                let (plural, part) = resource.split_once('/').unwrap_or((resource, ""));
                if part.is_empty() && verbs.iter().all(|verb| READ.contains(verb)) {
                    verbs = vec!["read"];
                }
                let place = places.entry(Place::of(rule)).or_default();
                let parts = place.entry((kinds.name(group, plural), verbs)).or_default();
                if !parts.contains(&part) {
                    parts.push(part);
                }
            }
        }
        for (place, said) in places {
            let said = said.into_iter().map(|((kind, verbs), parts)| {
                let named: Vec<_> = parts.iter().filter(|part| !part.is_empty()).collect();
                match (parts.contains(&""), named.as_slice()) {
                    (_, []) => format!("{} {kind}", list(&verbs)),
                    (false, parts) => format!("{} {} of {kind}", list(&verbs), list(parts)),
                    (true, parts) => format!("{} {kind} and their {}", list(&verbs), list(parts)),
                }
            });
            let said: Vec<_> = said.collect();
            warnings.push(format!("may {} {}: {}", said.join("; "), place.words(), danger.follows));
        }
    }
    warnings
}

/// Whether a list of a rule names it, or all.
pub(super) fn any(list: &[String], wanted: &str) -> bool {
    list.iter().any(|x| x == "*" || x == wanted)
}

/// Whether a rule's resource covers another, as RBAC has it.
pub(super) fn covers(rule: &str, wanted: &str) -> bool {
    rule == "*"
        || rule == wanted
        || rule.strip_prefix("*/").is_some_and(|part| wanted.split_once('/').is_some_and(|(_, sub)| sub == part))
}

/// `a`, `a and b`, `a, b and c`.
pub(super) fn list(items: &[impl ToString]) -> String {
    let items: Vec<_> = items.iter().map(ToString::to_string).collect();
    match items.split_last() {
        None => String::new(),
        Some((one, [])) => one.clone(),
        Some((last, first)) => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(rules: &str, expected: Expect) {
        let rules: Vec<Rule> = serde_saphyr::from_str(rules).unwrap();
        let kinds = Kinds(BTreeMap::from([(("x.example.com".into(), "petstores".into()), "PetStores".into())]));
        let said: Vec<_> = warnings(&rules, &kinds).iter().map(|warning| format!("! {warning}")).collect();
        expected.assert_eq(&[said, sentences(&rules, &kinds)].concat().join("\n"));
    }

    #[test]
    fn what_is_done_with_a_kind_is_one_sentence_whichever_rules_allow_it() {
        check(
            r#"
- {apiGroups: [x.example.com], resources: [petstores], verbs: [get, list, watch]}
- {apiGroups: [x.example.com], resources: [petstores], verbs: [patch]}
- {apiGroups: [x.example.com], resources: [petstores/status], verbs: [patch]}
- {apiGroups: [x.example.com], resources: [petstores/finalizers], verbs: [update]}
- {apiGroups: [""], resources: [configmaps, services], verbs: [get], namespaces: [b, a]}
- {apiGroups: [other.example.com], resources: [things], verbs: ["*"], resourceNames: [one]}
- {apiGroups: [""], resources: [pods/log], verbs: [get]}
"#,
            expect![[r"
                changes the status of PetStores in any namespace
                owns objects that hold up the deletion of PetStores in any namespace
                does anything with things.other.example.com in any namespace, only those named one
                reads and changes PetStores in any namespace
                reads the logs of Pods in any namespace
                reads ConfigMaps and Services in the namespaces a and b"]],
        );
    }

    #[test]
    fn what_follows_from_a_right_is_said() {
        check(
            r#"
- {apiGroups: [apps], resources: [deployments], verbs: [get, create, patch]}
- {apiGroups: [""], resources: [secrets], verbs: [get], namespaces: [a]}
- {apiGroups: [""], resources: [pods/exec], verbs: [create]}
- {apiGroups: [""], resources: ["*/token"], verbs: ["*"]}
"#,
            expect![[r"
                ! may create and patch Deployments in any namespace: decides which images and commands run there, and may therefore use every service account, Secret, ConfigMap and volume of those namespaces
                ! may read Secrets in namespace a: learns every password, key and token that is kept there
                ! may create token of ServiceAccounts in any namespace: may act as any service account there
                ! may create exec of Pods in any namespace: reaches into running containers, and so into all that they hold
                does anything with the token of objects of every core kind in any namespace
                reads, creates and changes Deployments in any namespace
                runs commands within Pods in any namespace
                reads Secrets in namespace a"]],
        );
    }

    #[test]
    fn stars_are_taken_for_what_they_are() {
        check(
            r#"[{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]"#,
            expect![[r"
            ! may do everything in any namespace: whoever wrote it rules there
            does anything with objects of every kind in any namespace"]],
        );
        check(
            r#"[{apiGroups: [""], resources: ["*"], verbs: [get]}]"#,
            expect![[r"
                ! may read Secrets in any namespace: learns every password, key and token that is kept there
                ! may get proxy of Nodes; get exec, attach, portforward and proxy of Pods; get proxy of Services in any namespace: reaches into running containers, and so into all that they hold
                reads objects of every core kind in any namespace"]],
        );
    }

    #[test]
    fn what_leads_further_than_it_says_is_said() {
        check(
            r#"
- {apiGroups: [apps], resources: [controllerrevisions], verbs: [patch], namespaces: [a]}
- {apiGroups: [admissionregistration.k8s.io], resources: [validatingadmissionpolicybindings], verbs: [delete]}
- {apiGroups: [storage.k8s.io], resources: [storageclasses], verbs: [create]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [update], namespaces: [a]}
- {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [delete], namespaces: [a]}
- {apiGroups: [""], resources: [serviceaccounts], verbs: [patch], namespaces: [a]}
- {apiGroups: [operetta.dev], resources: ["*"], verbs: ["*"]}
"#,
            expect![[r"
                ! may patch ControllerRevisions in namespace a: decides which images and commands run there, and may therefore use every service account, Secret, ConfigMap and volume of those namespaces
                ! may delete ValidatingAdmissionPolicyBindings in any namespace: may see, change or stop the requests of everyone in the cluster, and lift what guards it
                ! may create StorageClasses in any namespace: may have the drivers of volumes use Secrets of any namespace, and tokens of any pod's service account
                ! may update EndpointSlices in namespace a: may turn the traffic of every service there to itself
                ! may delete NetworkPolicies in namespace a: decides which pods there may be reached, and by whom
                ! may patch ServiceAccounts in namespace a: may tie rights outside of the cluster to them, where a cloud takes these from annotations
                ! may create, update, patch and delete plugins.operetta.dev in any namespace: would decide what plugins may do, which the host refuses whatever is granted
                ! may read plugins.operetta.dev in any namespace: learns which other plugins there are, and what each may do
                creates StorageClasses in any namespace
                deletes ValidatingAdmissionPolicyBindings in any namespace
                does anything with objects of every kind of operetta.dev in any namespace
                changes ServiceAccounts, ControllerRevisions and EndpointSlices in namespace a
                deletes NetworkPolicies in namespace a"]],
        );
    }

    #[test]
    fn what_a_write_reads_or_stops_is_said() {
        check(
            r#"
- {apiGroups: [""], resources: [secrets], verbs: [patch], namespaces: [a]}
- {apiGroups: [""], resources: [pods/proxy, services/proxy], verbs: [update, patch], namespaces: [a]}
- {apiGroups: [flowcontrol.apiserver.k8s.io], resources: [flowschemas, prioritylevelconfigurations], verbs: [patch]}
- {apiGroups: [""], resources: [configmaps], verbs: [create, patch], namespaces: [a]}
- {apiGroups: [""], resources: [configmaps], verbs: [create, update], namespaces: [a, kube-system]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, update], namespaces: [kube-system]}
"#,
            expect![[r"
                ! may patch Secrets in namespace a: may replace keys and passwords there, and may get itself a token of any service account there
                ! may patch Secrets in namespace a: learns what is kept there without reading it, since a patch that changes nothing is answered with all of the object
                ! may update and patch proxy of Pods; update and patch proxy of Services in namespace a: reaches into running containers, and so into all that they hold
                ! may patch FlowSchemas; patch PriorityLevelConfigurations in any namespace: decides whose requests the API server answers first, and whose it leaves waiting
                ! may update ConfigMaps in the namespaces a and kube-system: may set in kube-system what the cluster's own parts go by, such as whom aggregated API servers believe and how names are resolved
                ! may update Leases in namespace kube-system: may keep the scheduler and the controllers of the cluster from working, whose leases lie in kube-system
                changes FlowSchemas and PriorityLevelConfigurations in any namespace
                changes Secrets in namespace a
                changes the proxy of Pods and Services in namespace a
                creates and changes ConfigMaps in namespace a
                creates and changes ConfigMaps in the namespaces a and kube-system
                creates and changes Leases in namespace kube-system"]],
        );
    }

    #[test]
    fn what_reads_only_brings_no_warning() {
        check(
            r#"[{apiGroups: ["", apps], resources: [pods, deployments], verbs: [get, list, watch]}]"#,
            expect!["reads Deployments and Pods in any namespace"],
        );
    }
}
