//! Writes as attackers and as ordinary operators write them, and what the bounds make of each.

use proptest::prelude::*;

use super::*;
use crate::{
    manifest::Manifest,
    name::{AccountName, ObjectName, Subresource},
    resource::Resource,
};

fn bounds() -> Bounds {
    let manifest = serde_json::json!({
        "manifestVersion": 1, "name": "p", "version": "1",
        "controllers": [{"name": "c", "for": {"group": "x.example.com", "version": "v1", "resource": "things"}, "finalizers": ["x.example.com/f"]}],
    });
    let manifest = Manifest::parse(&manifest.to_string()).unwrap();
    let account = ServiceAccount { namespace: "plugins".parse().unwrap(), name: AccountName::parse("p").unwrap() };
    Bounds::of(&"p".parse().unwrap(), &manifest.controllers, &account, &Scope::All)
}

/// A write, as `verb group resource[/subresource] [namespace/]name`; a name of `-` is none.
fn asked<T>(text: &str, ask: impl FnOnce(&Access<'_>) -> T) -> T {
    let words: Vec<_> = text.split(' ').collect();
    let verb = Verb::ALL.into_iter().find(|verb| verb.as_str() == words[0]).unwrap();
    let (plural, part) = words[2].split_once('/').map_or((words[2], None), |(plural, part)| (plural, Some(part)));
    let (namespace, name) = words[3].split_once('/').map_or((None, words[3]), |(n, name)| (Some(n), name));
    let group = if words[1] == "core" { "" } else { words[1] };
    ask(&Access {
        verb,
        resource: &Resource::parse(group, "v1", plural).unwrap(),
        subresource: part.map(|part| Subresource::parse(part).unwrap()).as_ref(),
        namespace: namespace.map(|namespace| namespace.parse().unwrap()).as_ref(),
        name: ObjectName::parse(name).ok().filter(|_| name != "-").as_ref(),
    })
}

#[test]
fn what_a_plugin_may_do_is_not_its_own_to_write() {
    for (access, refused) in [
        ("patch operetta.dev plugins other", true),
        ("update operetta.dev plugins/status p", true),
        ("create operetta.dev plugins -", true),
        ("get operetta.dev plugins p", false),
        ("patch core serviceaccounts plugins/p", true),
        ("create core serviceaccounts/token plugins/p", true),
        ("delete core serviceaccounts plugins/p", true),
        ("patch core serviceaccounts plugins/q", true),
        ("create core serviceaccounts plugins/-", true),
        ("delete core serviceaccounts operetta-plugins/q", true),
        ("create core serviceaccounts operetta-plugins/-", true),
        ("get core serviceaccounts operetta-plugins/q", false),
        ("create core serviceaccounts elsewhere/-", false),
        ("patch core serviceaccounts elsewhere/p", false),
        ("get core serviceaccounts plugins/p", false),
        ("patch rbac.authorization.k8s.io clusterroles operetta:p", true),
        ("delete rbac.authorization.k8s.io rolebindings n/operetta:p", true),
        ("patch rbac.authorization.k8s.io roles n/operetta:q", true),
        ("delete rbac.authorization.k8s.io clusterrolebindings operetta:q:host", true),
        ("patch rbac.authorization.k8s.io clusterroles operetta", true),
        ("delete rbac.authorization.k8s.io clusterrolebindings operetta", true),
        ("update rbac.authorization.k8s.io rolebindings operetta-plugins/operetta-accounts", true),
        ("delete rbac.authorization.k8s.io roles default/operetta-events", true),
        ("get rbac.authorization.k8s.io clusterroles operetta", false),
        ("patch rbac.authorization.k8s.io roles n/operettas", false),
        ("patch x.example.com roles n/operetta:p", false),
        ("patch apiextensions.k8s.io customresourcedefinitions plugins.operetta.dev", true),
        ("delete apiextensions.k8s.io customresourcedefinitions plugins.operetta.dev", true),
        ("patch apiextensions.k8s.io customresourcedefinitions/status plugins.operetta.dev", true),
        ("patch apiextensions.k8s.io customresourcedefinitions others.operetta.dev", true),
        ("patch apiextensions.k8s.io customresourcedefinitions plugins.demo.operetta.dev", false),
        ("patch apiextensions.k8s.io customresourcedefinitions plugins.my-operetta.dev", false),
        ("get apiextensions.k8s.io customresourcedefinitions plugins.operetta.dev", false),
        ("update apiregistration.k8s.io apiservices v1alpha1.operetta.dev", true),
        ("update apiregistration.k8s.io apiservices v1.x.example.com", false),
        ("patch admissionregistration.k8s.io validatingadmissionpolicies plugins.operetta.dev", true),
        ("delete admissionregistration.k8s.io validatingadmissionpolicybindings plugins.operetta.dev", true),
        ("delete admissionregistration.k8s.io validatingadmissionpolicies pods-beside-the-host.operetta.dev", true),
        ("delete admissionregistration.k8s.io validatingadmissionpolicies x.example.com", false),
        ("patch x.example.com customresourcedefinitions plugins.operetta.dev", false),
        ("delete core namespaces operetta-plugins", true),
        ("update core namespaces/finalize operetta-plugins", true),
        ("patch core namespaces plugins", true),
        ("patch core namespaces n", false),
        ("get core namespaces operetta-plugins", false),
        ("delete core configmaps operetta-plugins/operetta-plugins", false),
    ] {
        let denied = asked(access, |access| bounds().check(access));
        assert_eq!(denied.is_err(), refused, "{access}");
        if let Err(denial) = denied {
            assert_eq!(denial.grant(), "none");
            assert!(denial.to_string().contains("is refused, whatever is granted: "), "{denial}");
        }
    }
}

#[test]
fn namespaces_that_were_taken_away_are_out_of_sight_until_they_are_given_back() {
    let only = |namespace: &str| Some(Scope::Namespaces([namespace.parse().unwrap()].into()));
    let mut bounds = bounds();
    let sees = |bounds: &Bounds, place: &str| bounds.contains(Some(&place.parse().unwrap()));
    let may = |bounds: &Bounds, what: &str| asked(what, |access| bounds.check(access)).is_ok();
    assert!(sees(&bounds, "n") && sees(&bounds, "m") && may(&bounds, "list x.example.com things -"));
    bounds.narrow(only("n"));
    assert!(sees(&bounds, "n") && !sees(&bounds, "m") && !bounds.contains(None));
    assert!(may(&bounds, "get x.example.com things n/a") && !may(&bounds, "get x.example.com things m/a"));
    assert!(!may(&bounds, "list x.example.com things -"), "the ports would answer what lies elsewhere, too");
    bounds.narrow(None);
    assert!(sees(&bounds, "m"));
    let mut nobodys = Bounds::default();
    nobodys.narrow(only("n"));
    assert!(sees(&nobodys, "m"));
}

#[test]
fn nothing_is_made_by_the_name_of_what_is_guarded() {
    const CRDS: &str = "create apiextensions.k8s.io customresourcedefinitions -";
    const POLICIES: &str = "create admissionregistration.k8s.io validatingadmissionpolicies -";
    const ROLES: &str = "create rbac.authorization.k8s.io roles n/-";
    const BINDINGS: &str = "create rbac.authorization.k8s.io clusterrolebindings -";
    for (access, metadata, found) in [
        (CRDS, r#"{"name": "plugins.operetta.dev"}"#, "denied"),
        (CRDS, r#"{"name": "plugins.operetta\u002edev"}"#, "denied"),
        (CRDS, r#"{"name": "things.x.example.com"}"#, "fine"),
        ("create apiregistration.k8s.io apiservices -", r#"{"name": "v1.operetta.dev"}"#, "denied"),
        (POLICIES, r#"{"name": "plugins.operetta.dev"}"#, "denied"),
        (POLICIES, r#"{"generateName": "mine-"}"#, "fine"),
        (ROLES, r#"{"name": "operetta-accounts"}"#, "denied"),
        (ROLES, r#"{"name": "operetta:q"}"#, "denied"),
        (ROLES, r#"{"generateName": "operetta:"}"#, "denied"),
        (ROLES, r#"{"name": "", "generateName": "operetta:q:"}"#, "denied"),
        (ROLES, r#"{"name": "mine"}"#, "fine"),
        (BINDINGS, r#"{"name": "operetta"}"#, "denied"),
        (BINDINGS, r#"{"name": "mine"}"#, "fine"),
        ("create core namespaces -", r#"{"name": "operetta-plugins"}"#, "denied"),
        ("create core namespaces -", r#"{"name": "plugins"}"#, "denied"),
        ("create core namespaces -", r#"{"name": "n"}"#, "fine"),
        ("create core namespaces -", r#"{"name": "n", "name": "plugins"}"#, "unclear"),
        ("create core configmaps n/-", r#"{"name": "operetta"}"#, "fine"),
    ] {
        let text = format!(r#"{{"metadata": {metadata}}}"#);
        assert_eq!(judge(access, Change::Fields(&text)), found, "{access} {metadata}");
        // For a plugin of whom nothing is known, too.
        let nobodys = asked(access, |access| Bounds::default().claims(access, Change::Fields(&text)).is_ok());
        assert!(nobodys == (found == "fine") || text.contains("\"plugins\""), "{access} {metadata}");
    }
    // What is denied is named, and nothing that it says gets out of its place.
    let text = r#"{"metadata": {"name": "operetta:\u001b[2J"}}"#;
    let Err(Outside::Denied(denial)) = claims(ROLES, Change::Fields(text)) else { panic!() };
    assert!(denial.to_string().contains(r"operetta:\u{1b}[2J: it is among the rights"), "{denial}");
}

#[test]
fn a_namespace_is_held_by_nobody_for_whom_no_controller_lets_go() {
    let made = |text: &str| judge("create core namespaces -", Change::Fields(text));
    for (text, found) in [
        (r#"{"spec": {"finalizers": ["kubernetes"]}}"#, "fine"),
        (r#"{"spec": {"finalizers": ["kubernetes", "x.example.com/f"]}}"#, "denied"),
        (r#"{"spec": {"finaliz\u0065rs": ["x.example.com/f"]}}"#, "denied"),
        (r#"{"spec": {"finalizers": null}}"#, "fine"),
        (r#"{"spec": null}"#, "fine"),
        ("{}", "fine"),
        (r#"{"spec": {"finalizers": ["x.example.com/f"]}, "spec": {}}"#, "unclear"),
        (r#"{"spec": {"finalizers": "x.example.com/f"}}"#, "unclear"),
        (r#"{"metadata": {"finalizers": ["x.example.com/f"]}}"#, "finalizer"),
    ] {
        assert_eq!(made(text), found, "{text}");
    }
    let whole = Change::Whole(r#"{"metadata": {"name": "n"}, "spec": {"finalizers": ["g"]}}"#);
    let Err(Outside::Denied(denial)) = claims("update core namespaces/finalize n", whole) else { panic!() };
    assert!(denial.to_string().contains("with the finalizer g in spec.finalizers is refused, whatever"), "{denial}");
    let add = |path: &str, value: &str| format!(r#"[{{"op": "add", "path": "{path}", "value": {value}}}]"#);
    let copy = |path: &str| format!(r#"[{{"op": "copy", "from": "/metadata/labels/a", "path": "{path}"}}]"#);
    for (steps, found) in [
        (add("/spec/finalizers/-", "\"g\""), "denied"),
        (add("/spec/finalizers/0", "\"kubernetes\""), "fine"),
        (add("/spec/finalizers", "[\"g\"]"), "denied"),
        (add("/spec/finalizers", "null"), "fine"),
        (add("/spec", r#"{"finalizers": ["g"]}"#), "denied"),
        (add("/spec", "{}"), "fine"),
        (add("", r#"{"spec": {"finalizers": ["g"]}}"#), "denied"),
        (copy("/spec/finalizers/0"), "denied"),
        (copy("/spec/finalizers"), "denied"),
        (copy("/spec"), "denied"),
        (copy("/metadata/labels/b"), "fine"),
        (r#"[{"op": "remove", "path": "/spec/finalizers/0"}]"#.to_owned(), "fine"),
    ] {
        assert_eq!(judge("patch core namespaces/finalize n", Change::Steps(&steps)), found, "{steps}");
        // Of another kind it is a field as any other.
        assert_eq!(judge("patch x.example.com namespaces n", Change::Steps(&copy("/spec/finalizers"))), "fine");
    }
    let other = Change::Fields(r#"{"a": "\u0061", "spec": {"finalizers": 1}}"#);
    assert_eq!(judge("create x.example.com things n/-", other), "fine");
}

#[test]
fn of_two_bounds_what_lies_within_both_is_left_and_nothing_where_the_accounts_differ() {
    let of = |account: &str, finalizers: &[&str], places: &[&str]| {
        let controller = serde_json::json!({
            "name": "c", "for": {"group": "x.example.com", "version": "v1", "resource": "things"}, "finalizers": finalizers
        });
        let account = ServiceAccount { namespace: "plugins".parse().unwrap(), name: account.parse().unwrap() };
        let places = places.iter().map(|place| place.parse().unwrap()).collect();
        let controller: Controller = serde_json::from_value(controller).unwrap();
        Bounds::of(&"p".parse().unwrap(), &[controller], &account, &Scope::Namespaces(places))
    };
    let sees = |bounds: &Bounds| ["n", "m", "o"].map(|place| bounds.contains(Some(&place.parse().unwrap())));
    let may_hold = |bounds: &Bounds, finalizer: &str| {
        let body = format!(r#"{{"metadata":{{"finalizers":["{finalizer}"]}}}}"#);
        asked("patch x.example.com things n/a", |access| {
            bounds.claims(access, Change::Fields(&body)).unwrap().is_empty()
        })
    };
    let before = of("p", &["x/f", "x/g"], &["n", "m"]);
    let left = before.and(&of("p", &["x/g", "x/h"], &["m", "o"])).unwrap();
    assert_eq!(sees(&left), [false, true, false]);
    assert_eq!(["x/f", "x/g", "x/h"].map(|finalizer| may_hold(&left, finalizer)), [false, true, false]);
    let mut narrowed = of("p", &[], &["n", "m"]);
    narrowed.narrow(Some(Scope::Namespaces(["n".parse().unwrap()].into())));
    assert_eq!(sees(&before.and(&narrowed).unwrap()), [true, false, false]);
    assert_eq!(sees(&narrowed.and(&before).unwrap()), [true, false, false]);
    assert!(before.and(&of("q", &[], &["n", "m"])).is_none());
    assert_eq!(sees(&before.and(&Bounds::default()).unwrap()), [true, true, false]);
}

#[test]
fn nothing_runs_where_the_accounts_of_plugins_lie() {
    for (what, refused) in [
        ("create core pods", true),
        ("update core pods", true),
        ("patch core pods", true),
        ("patch core pods/ephemeralcontainers", true),
        ("create core pods/exec", true),
        ("get core pods/exec", true),
        ("get core pods/attach", true),
        ("create core replicationcontrollers", true),
        ("patch apps deployments", true),
        ("update apps daemonsets", true),
        ("create apps statefulsets", true),
        ("create apps replicasets", true),
        ("create batch jobs", true),
        ("patch batch cronjobs", true),
        ("create core serviceaccounts/token", true),
        ("get core pods", false),
        ("get core pods/log", false),
        ("list apps deployments", false),
        ("delete core pods", false),
        ("create core configmaps", false),
        ("patch apps controllerrevisions", true),
        ("create x.example.com pods", false),
        ("create batch pods", false),
    ] {
        // Whether or not its own account is there.
        let said = |place: &str| asked(&format!("{what} {place}/x"), |access| bounds().check(access));
        assert_eq!(said(ACCOUNTS).is_err(), refused, "{what}");
        assert_eq!(said("n"), Ok(()), "{what} elsewhere");
        if let Err(denial) = said(ACCOUNTS) {
            assert!(denial.to_string().contains("what runs there can act as any of them"), "{denial}");
        }
    }
}

#[test]
fn nothing_outside_of_the_scope_is_reached() {
    let Bounds(Some(plugin)) = bounds() else { panic!() };
    let limited = Bounds(Some(Plugin { scope: Scope::Namespaces(["n".parse().unwrap()].into()), ..plugin }));
    for (access, refused) in [
        ("get core pods n/x", false),
        ("get core pods m/x", true),
        ("get core nodes x", true),
        ("list core pods -", false),
        ("list core pods m/-", true),
        ("create core pods m/-", true),
    ] {
        assert_eq!(asked(access, |access| limited.check(access)).is_err(), refused, "{access}");
    }
}

/// What a write says: all of it where it says anything.
fn claims<'a>(access: &str, change: Change<'a>) -> Result<Claims<'a>, Outside> {
    let at_most = asked(access, |access| bounds().claims(access, change))?;
    if at_most.is_empty() { Ok(at_most) } else { asked(access, |access| bounds().all_claims(access, change)) }
}

/// An object as it is there.
fn there(text: &str) -> There {
    There::Object(Arc::new(Cached::read(text.into())))
}

/// Whether nothing allows it, something else must, or it is no matter.
fn judge(access: &str, change: Change<'_>) -> &'static str {
    match claims(access, change) {
        Err(Outside::Denied(_)) => "denied",
        Err(Outside::Unclear(_)) => "unclear",
        Ok(Claims { owners, finalizers, annotations, .. }) => {
            match (owners.is_empty(), finalizers.is_empty(), annotations.is_empty()) {
                (true, true, true) => "fine",
                (false, true, true) => "owner",
                (true, false, true) => "finalizer",
                (true, true, false) => "annotation",
                (false, false, true) => "both",
                (false, false, false) => "all",
                _ => "some",
            }
        }
    }
}

const OWNER: &str = r#"{"apiVersion": "x.example.com/v1", "kind": "Thing", "name": "t", "uid": "u"}"#;

#[test]
fn owners_and_finalizers_are_found_however_they_are_written() {
    let on = |access: &str, text: &str| judge(access, Change::Fields(&text.replace("OWNER", OWNER)));
    let thing = "patch x.example.com things n/t";
    for (text, found) in [
        (r#"{"spec": {"size": 1}}"#, "fine"),
        (r#"{"metadata": {"labels": {"a": "b"}}}"#, "fine"),
        (r#"{"metadata": {"ownerReferences": [OWNER]}}"#, "owner"),
        (r#"{"metadata": {"owner\u0052eferences": [OWNER]}}"#, "owner"),
        (r#"{"\u006detadata": {"ownerReferences": [OWNER]}}"#, "owner"),
        (r#"{"metadata": {"ownerReferences": null}}"#, "fine"),
        (r#"{"metadata": {"finalizers": ["x.example.com/f"]}}"#, "fine"),
        (r#"{"metadata": {"finalizers": ["x.example.com/f", "x.example.com/g"]}}"#, "finalizer"),
        (r#"{"metadata": {"ownerReferences": [OWNER], "finalizers": ["foregroundDeletion"]}}"#, "both"),
        // Each is read once, so that nothing hides behind a second one.
        (r#"{"metadata": {"ownerReferences": [OWNER]}, "metadata": {}}"#, "unclear"),
        (r#"{"metadata": {"finalizers": ["g"], "finalizers": []}}"#, "unclear"),
        (r#"{"metadata": {"finalizers": [null]}}"#, "unclear"),
        (r#"{"metadata": {"ownerReferences": "#, "unclear"),
        // Of what an object holds within, nothing matters.
        (r#"{"spec": {"template": {"metadata": {"ownerReferences": [OWNER], "finalizers": ["g"]}}}}"#, "fine"),
    ] {
        assert_eq!(on(thing, text), found, "{text}");
    }
    // The finalizer is declared for another kind.
    assert_eq!(on("create core configmaps n/-", r#"{"metadata": {"finalizers": ["x.example.com/f"]}}"#), "finalizer");
}

#[test]
fn steps_are_followed_to_what_they_change() {
    for (text, found) in [
        (r#"[{"op": "add", "path": "/spec/size", "value": 1}]"#, "fine"),
        (
            r#"[{"op": "test", "path": "/metadata/finalizers", "value": null}, {"op": "add", "path": "/metadata/finalizers", "value": ["x.example.com/f"]}]"#,
            "fine",
        ),
        (r#"[{"op": "add", "path": "/metadata/finalizers/-", "value": "x.example.com/f"}]"#, "fine"),
        (r#"[{"op": "add", "path": "/metadata/finalizers/-", "value": "g"}]"#, "finalizer"),
        (r#"[{"op": "replace", "path": "/metadata/finalizers/0", "value": "g"}]"#, "finalizer"),
        (r#"[{"op": "remove", "path": "/metadata/finalizers/0"}]"#, "fine"),
        (r#"[{"op": "add", "path": "/metadata/ownerReferences", "value": [OWNER]}]"#, "owner"),
        (r#"[{"op": "add", "path": "/metadata/ownerReferences/-", "value": OWNER}]"#, "owner"),
        (r#"[{"op": "replace", "path": "/metadata/ownerReferences/0/name", "value": "x"}]"#, "owner"),
        (r#"[{"op": "replace", "path": "/metadata", "value": {"ownerReferences": [OWNER]}}]"#, "owner"),
        (r#"[{"op": "replace", "path": "", "value": {"metadata": {"finalizers": ["g"]}}}]"#, "finalizer"),
        (r#"[{"op": "copy", "from": "/spec/free", "path": "/metadata"}]"#, "all"),
        (r#"[{"op": "move", "from": "/spec/free", "path": "/metadata/finalizers"}]"#, "finalizer"),
        (r#"[{"op": "copy", "from": "/spec/free", "path": "/metadata/ownerReferences/0"}]"#, "owner"),
        (r#"[{"op": "move", "from": "/metadata/finalizers", "path": "/spec/free"}]"#, "fine"),
        (r#"[{"op": "add", "path": "x/metadata/finalizers/-", "value": "g"}]"#, "finalizer"),
        (r#"[{"op": "add", "path": "/metadata/ownerReferences/-", "value": 1}]"#, "unclear"),
        (r#"{"op": "add"}"#, "unclear"),
    ] {
        let text = text.replace("OWNER", OWNER);
        assert_eq!(judge("patch x.example.com things n/t", Change::Steps(&text)), found, "{text}");
    }
}

#[test]
fn annotations_that_are_the_hosts_affair_are_found_however_they_are_written() {
    let thing = "patch x.example.com things n/t";
    for (text, found) in [
        (r#"{"metadata": {"annotations": {"operetta.dev/paused": ""}}}"#, "annotation"),
        (r#"{"metadata": {"annotations": {"operetta.dev\/paused": ""}}}"#, "annotation"),
        (r#"{"metadata": {"annotations": {"\u006fperetta.dev/paused": ""}}}"#, "annotation"),
        (r#"{"metadata": {"annotations": {"operetta.dev/whatever": "x"}}}"#, "annotation"),
        (r#"{"metadata": {"annotations": {"operetta.dev/paused": null}}}"#, "annotation"),
        (r#"{"metadata": {"annotations": {"operetta.dev/paused": 1}}}"#, "annotation"),
        // Both are looked at, so that nothing hides behind the second.
        (r#"{"metadata": {"annotations": {"operetta.dev/paused": "", "operetta.dev/paused": null}}}"#, "annotation"),
        (r#"{"metadata": {"annotations": {"operetta.dev/paused": ""}, "annotations": {}}}"#, "unclear"),
        (r#"{"metadata": {"annotations": ["operetta.dev/paused"]}}"#, "unclear"),
        (r#"{"metadata": {"annotations": {"demo.operetta.dev/start": "1", "operetta.device/a": "b"}}}"#, "fine"),
        (r#"{"metadata": {"labels": {"operetta.dev/paused": ""}, "annotations": null}}"#, "fine"),
        (r#"{"spec": {"template": {"metadata": {"annotations": {"operetta.dev/paused": ""}}}}}"#, "fine"),
    ] {
        assert_eq!(judge(thing, Change::Fields(text)), found, "{text}");
    }
    assert_eq!(
        judge("create core pods n/-", Change::Fields(r#"{"metadata": {"annotations": {"operetta.dev/paused": ""}}}"#)),
        "annotation"
    );
    for (text, found) in [
        (r#"[{"op": "add", "path": "/metadata/annotations/operetta.dev~1paused", "value": ""}]"#, "annotation"),
        (r#"[{"op": "replace", "path": "/metadata/annotations/operetta.dev~1paused", "value": ""}]"#, "annotation"),
        (r#"[{"op": "remove", "path": "/metadata/annotations/operetta.dev~1paused"}]"#, "annotation"),
        (r#"[{"op": "test", "path": "/metadata/annotations/operetta.dev~1paused", "value": ""}]"#, "fine"),
        (r#"[{"op": "add", "path": "/metadata/annotations", "value": {"operetta.dev/paused": ""}}]"#, "annotation"),
        (r#"[{"op": "add", "path": "/metadata/annotations", "value": null}]"#, "fine"),
        (r#"[{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}]"#, "fine"),
        (r#"[{"op": "replace", "path": "/metadata", "value": {"annotations": {"operetta.dev/a": ""}}}]"#, "annotation"),
        (r#"[{"op": "copy", "from": "/spec/free", "path": "/metadata/annotations"}]"#, "annotation"),
        (
            r#"[{"op": "copy", "from": "/spec/free", "path": "/metadata/annotations/operetta.dev~1paused"}]"#,
            "annotation",
        ),
        (
            r#"[{"op": "move", "from": "/metadata/annotations/operetta.dev~1paused", "path": "/spec/free"}]"#,
            "annotation",
        ),
        (r#"[{"op": "copy", "from": "/metadata/annotations/operetta.dev~1paused", "path": "/spec/free"}]"#, "fine"),
        (r#"[{"op": "copy", "from": "/spec/free", "path": "/metadata/annotations/mine"}]"#, "fine"),
        (r#"[{"op": "remove", "path": "/metadata/annotations/mine"}]"#, "fine"),
        (r#"[{"op": "remove", "path": "/metadata/labels/operetta.dev~1paused"}]"#, "fine"),
        (r#"[{"op": "remove", "path": "/spec/annotations/operetta.dev~1paused"}]"#, "fine"),
    ] {
        assert_eq!(judge(thing, Change::Steps(text)), found, "{text}");
    }
}

#[test]
fn an_annotation_of_the_hosts_may_stay_as_it_is_and_nothing_else() {
    let access = "update x.example.com things n/t";
    let left = |text: &str, known: &str| {
        let mut claims = claims(access, Change::Fields(text)).unwrap();
        claims.allow_what_is_there(&there(known));
        asked(access, |access| claims.check(access)).map_err(|denial| denial.to_string())
    };
    let with =
        |value: &str| format!(r#"{{"metadata": {{"annotations": {{"a": "b", "operetta.dev/paused": {value}}}}}}}"#);
    assert_eq!(left(&with("\"x\""), &with("\"x\"")), Ok(()));
    for (text, known) in [
        (with("\"x\""), with("\"y\"")),
        (with("\"x\""), with("\"x\"").replace("paused", "other")),
        (with("\"x\""), "{}".to_owned()),
        (with("null"), with("\"x\"")),
        (with("null"), with("null")),
    ] {
        let denied = left(&text, &known).unwrap_err();
        assert!(denied.contains("with the annotation operetta.dev/paused is refused, whatever is granted"), "{denied}");
        assert!(denied.contains("plugins have no part in it; leave the annotation as it is"), "{denied}");
    }
    let unseen = r#"[{"op": "copy", "from": "/spec/free", "path": "/metadata/annotations"}]"#;
    let claims = asked(access, |access| bounds().claims(access, Change::Steps(unseen))).unwrap();
    assert!(!claims.is_empty());
    let denied = asked(access, |access| claims.check(access)).unwrap_err().to_string();
    assert!(denied.contains("with the annotation that is moved or copied is refused"), "{denied}");
}

#[test]
fn nobody_is_bound_who_is_the_plugin_itself() {
    let binding = "create rbac.authorization.k8s.io rolebindings n/-";
    let with = |subject: &str| {
        judge(binding, Change::Fields(&format!(r#"{{"metadata": {{"name": "b"}}, "subjects": [{subject}]}}"#)))
    };
    for (subject, found) in [
        (r#"{"kind": "ServiceAccount", "name": "p", "namespace": "plugins"}"#, "denied"),
        (r#"{"kind": "ServiceAccount", "name": "p"}"#, "denied"),
        (r#"{"kind": "ServiceAccount", "name": "p", "namespace": ""}"#, "denied"),
        (r#"{"kind": "ServiceAccount", "name": "p", "namespace": null}"#, "denied"),
        (r#"{"kind": "ServiceAccount", "name": "q", "namespace": ""}"#, "fine"),
        (r#"{"kind": "ServiceAccount", "name": "p", "namespace": "n"}"#, "fine"),
        (r#"{"kind": "ServiceAccount", "name": "q", "namespace": "plugins"}"#, "fine"),
        (r#"{"kind": "User", "name": "system:serviceaccount:plugins:p"}"#, "denied"),
        (r#"{"kind": "User", "name": "system:serviceaccount:plugins:q"}"#, "fine"),
        (r#"{"kind": "User", "name": "alice"}"#, "fine"),
        (r#"{"kind": "Group", "name": "system:serviceaccounts:plugins"}"#, "denied"),
        (r#"{"kind": "Group", "name": "system:serviceaccounts"}"#, "denied"),
        (r#"{"kind": "Group", "name": "system:authenticated"}"#, "denied"),
        (r#"{"kind": "Group", "name": "system:serviceaccounts:n"}"#, "fine"),
    ] {
        assert_eq!(with(subject), found, "{subject}");
    }
    let steps = |text: &str| judge("patch rbac.authorization.k8s.io clusterrolebindings b", Change::Steps(text));
    assert_eq!(steps(r#"[{"op": "add", "path": "/subjects/-", "value": {"kind": "User", "name": "alice"}}]"#), "fine");
    assert_eq!(steps(r#"[{"op": "add", "path": "/subjects", "value": [{"kind": "User", "name": "alice"}]}]"#), "fine");
    assert_eq!(steps(r#"[{"op": "replace", "path": "/subjects/0/name", "value": "p"}]"#), "denied");
    assert_eq!(steps(r#"[{"op": "replace", "path": "/subjects", "value": null}]"#), "fine");
    assert_eq!(steps(r#"[{"op": "copy", "from": "/metadata", "path": ""}]"#), "denied");
    assert_eq!(steps(r#"[{"op": "copy", "from": "/metadata", "path": "/subjects"}]"#), "denied");
    // Roles bind nobody, and neither does what is only called like a binding.
    for other in ["patch rbac.authorization.k8s.io clusterroles r", "patch x.example.com bindings n/b"] {
        let copied = r#"[{"op": "copy", "from": "/metadata", "path": "/subjects"}]"#;
        assert_eq!(judge(other, Change::Steps(copied)), "fine", "{other}");
        // There subjects are whatever they are, also where all of it is read.
        for subjects in [r#"["a"]"#, "1", r#"{"a": null}"#] {
            let text = format!(r#"{{"a": "\u0061", "subjects": {subjects}}}"#);
            assert_eq!(judge(other, Change::Fields(&text)), "fine", "{other} {subjects}");
            let added = format!(r#"[{{"op": "add", "path": "/subjects", "value": {subjects}}}]"#);
            assert_eq!(judge(other, Change::Steps(&added)), "fine", "{other} {subjects}");
        }
    }
    let own = r#"{"metadata": {"name": "operetta:p"}, "rules": []}"#;
    assert_eq!(judge("create rbac.authorization.k8s.io clusterroles -", Change::Fields(own)), "denied");
}

#[test]
fn no_secret_becomes_a_token_of_an_account_beside_its_own() {
    let token = r#"{"metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": "p"}}, "type": "kubernetes.io/service-account-token"}"#;
    let step = r#"[{"op": "add", "path": "/metadata/annotations/kubernetes.io~1service-account.name", "value": "p"}]"#;
    let escaped = token.replace("service", "\\u0073ervice");
    for text in [token, &escaped] {
        assert_eq!(judge("create core secrets plugins/-", Change::Fields(text)), "denied");
        assert_eq!(judge("patch core secrets plugins/s", Change::Fields(text)), "denied");
        assert_eq!(judge("create core secrets operetta-plugins/-", Change::Fields(text)), "denied");
        assert_eq!(judge("create core secrets n/-", Change::Fields(text)), "fine");
    }
    assert_eq!(judge("patch core secrets plugins/s", Change::Steps(step)), "denied");
    let other = r#"{"metadata": {"name": "s"}, "stringData": {"note": "of the service-account", "u": "\u00e4"}}"#;
    assert_eq!(judge("create core secrets plugins/-", Change::Fields(other)), "fine");
}

#[test]
fn what_an_object_carries_is_nothing_new_and_the_rest_says_what_it_lacks() {
    let access = "patch core configmaps/status n/c";
    let text = format!(r#"{{"metadata": {{"ownerReferences": [{OWNER}], "finalizers": ["g"]}}}}"#);
    let left = |known: &str| {
        let mut claims = claims(access, Change::Fields(&text)).unwrap();
        claims.allow_what_is_there(&there(&known.replace("OWNER", OWNER)));
        asked(access, |access| claims.check(access)).map_err(|denial| denial.to_string())
    };
    let carried = r#"{"metadata": {"ownerReferences": [OWNER], "finalizers": ["g"]}, "data": {}}"#;
    assert_eq!(left(carried), Ok(()));
    // The owner in another version of its group is the same one; under another name it is not, and would not be found.
    assert_eq!(left(&carried.replace("OWNER", &OWNER.replace("/v1\"", "/v2\""))), Ok(()));
    let all_known = |steps: &str, known: &str| {
        let mut claims = claims(access, Change::Steps(steps)).unwrap();
        claims.allow_what_is_there(&there(known));
        claims.is_empty()
    };
    let add = format!(r#"[{{"op": "add", "path": "/metadata/ownerReferences", "value": [{OWNER}]}}]"#);
    assert!(all_known(&add, &carried.replace("OWNER", OWNER)));
    // What a step makes of an owner is not seen, and so is nobody that is there.
    let rename = r#"[{"op": "replace", "path": "/metadata/ownerReferences/0/name", "value": "x"}]"#;
    assert!(!all_known(rename, r#"{"metadata": {"ownerReferences": [{}]}}"#));
    for (word, other) in
        [("\"t\"", "\"other\""), ("\"u\"", "\"other\""), ("Thing", "Other"), ("x.example", "y.example")]
    {
        let other = OWNER.replace(word, other);
        let denied = left(&carried.replace("OWNER", &other)).unwrap_err();
        assert!(
            denied.contains("with a new owner of kind Thing") && denied.contains("verbs: [\"delete\"]"),
            "{denied}"
        );
        // Nobody deletes a part of an object.
        assert!(denied.contains("resources: [\"configmaps\"]"), "{denied}");
    }
    let denied = left(&carried.replace("\"g\"", "\"other\"")).unwrap_err();
    assert!(denied.contains("with the finalizer g is refused") && denied.contains("Controller::finalizer"), "{denied}");
}

/// What is left to deny of a write to an object that is there, with the words of the denial.
fn left(access: &str, change: Change<'_>, known: &There) -> Result<(), String> {
    let mut claims = claims(access, change).unwrap();
    claims.allow_what_is_there(known);
    asked(access, |access| claims.check(access)).map_err(|denial| denial.to_string())
}

#[test]
fn no_write_drops_an_annotation_of_the_hosts_with_all_that_lies_around_it() {
    let thing = "update x.example.com things n/t";
    let paused = there(r#"{"metadata": {"annotations": {"a": "b", "operetta.dev/paused": "x"}}}"#);
    let free = there(r#"{"metadata": {"annotations": {"a": "b", "demo.operetta.dev/paused": "x"}}}"#);
    let as_read = r#"{"operetta.dev/paused": "x", "mine": "y"}"#;
    let of = |annotations: &str| format!(r#"{{"metadata": {{"resourceVersion": "7", "annotations": {annotations}}}}}"#);
    let (kept, other) = (of(as_read), of(r#"{"operetta.dev/whatever": "x"}"#));
    let (none, null) = (of("{}"), of("null"));
    let op = |op: &str, path: &str, value: &str| format!(r#"{{"op": "{op}", "path": "{path}", "value": {value}}}"#);
    let steps = |steps: &[String]| format!("[{}]", steps.join(","));
    let all = "/metadata/annotations";
    let key = "/metadata/annotations/operetta.dev~1paused";
    let remove = |path: &str| format!(r#"{{"op": "remove", "path": "{path}"}}"#);
    let moved = |from: &str| format!(r#"{{"op": "move", "from": "{from}", "path": "/spec/free"}}"#);
    let patches: Vec<(String, bool)> = vec![
        (steps(&[op("add", "/spec/size", "1")]), false),
        (steps(&[op("add", "/metadata/labels/a", "\"b\""), remove("/metadata/annotations/a")]), false),
        (steps(&[op("test", all, "null"), remove("/metadata/annotationsz"), remove("/spec/metadata")]), false),
        (steps(&[remove(all)]), true),
        (steps(&[remove("/metadata")]), true),
        (steps(&[remove("")]), true),
        (steps(&[moved(all)]), true),
        (steps(&[moved("/metadata")]), true),
        (steps(&[moved(key)]), true),
        (steps(&[op("replace", all, "null")]), true),
        (steps(&[op("add", all, "{}")]), true),
        (steps(&[op("replace", all, r#"{"mine": "y"}"#)]), true),
        (steps(&[op("replace", all, as_read)]), false),
        (steps(&[op("replace", "/metadata", &format!(r#"{{"annotations": {as_read}}}"#))]), false),
        (steps(&[op("replace", "/metadata", "{}")]), true),
        (steps(&[op("replace", "", &kept)]), false),
        (steps(&[op("replace", "", "{}")]), true),
        // What comes after counts, and what came before is gone.
        (steps(&[remove(all), op("add", all, as_read)]), false),
        (steps(&[remove(all), op("add", all, "{}"), op("add", key, "\"x\"")]), false),
        (steps(&[op("replace", all, as_read), remove(all)]), true),
        (steps(&[op("add", key, "\"x\""), op("replace", all, "{}")]), true),
        (steps(&[op("replace", all, as_read), remove(key)]), true),
    ];
    let mut writes: Vec<(Change<'_>, bool)> = vec![
        (Change::Whole(&kept), false),
        (Change::Whole(&none), true),
        (Change::Whole(&null), true),
        (Change::Whole(&other), true),
        (Change::Whole(r#"{"spec": {"template": {"metadata": {"annotations": {"operetta.dev/paused": "x"}}}}}"#), true),
        (Change::Whole("{}"), true),
        (Change::Whole(r#"{"metadata": null}"#), true),
        (Change::Merge(&none), false),
        (Change::Merge(&null), true),
        (Change::Merge(r#"{"metadata": {"\u0061nnotations": null}}"#), true),
        (Change::Merge(r#"{"metadata": null}"#), true),
        (Change::Merge(r#"{"\u006detadata": null}"#), true),
        (Change::Merge(r#"{"metadata": {"labels": null, "annotations": {"a": null}}, "spec": null}"#), false),
        (Change::Merge(r#"{"spec": {"metadata": null, "annotations": null}}"#), false),
        // What is left out of an apply, or is null there, stays where others wrote it.
        (Change::Fields(&none), false),
        (Change::Fields(&null), false),
    ];
    writes.extend(patches.iter().map(|(text, denied)| (Change::Steps(text), *denied)));
    for (change, denied) in writes {
        let on_paused = left(thing, change, &paused);
        assert_eq!(on_paused.is_err(), denied, "{change:?}: {on_paused:?}");
        if let Err(why) = on_paused {
            assert!(why.contains("the annotation operetta.dev/"), "{change:?}: {why}");
            assert!(why.contains("leave the annotation as it is: add none, and write back what was read"), "{why}");
        }
    }
    // Where there is none, nobody notices, and of what is not there nothing is taken.
    for known in [&free, &There::Nothing] {
        for (text, _) in &patches {
            if !text.contains("operetta.dev") {
                assert_eq!(left(thing, Change::Steps(text), known), Ok(()), "{text}");
            }
        }
        for change in [Change::Whole(&none), Change::Whole("{}"), Change::Merge(&null)] {
            assert_eq!(left(thing, change, known), Ok(()), "{change:?}");
        }
    }
    // Where nobody can say, nothing is taken.
    for change in [Change::Whole(&none), Change::Whole("{}"), Change::Merge(&null), Change::Steps(&patches[3].0)] {
        let why = left(thing, change, &There::Unseen).unwrap_err();
        assert!(why.contains("nobody can say") && why.contains("whatever is granted"), "{change:?}: {why}");
    }
    assert_eq!(left(thing, Change::Merge(&none), &There::Unseen), Ok(()));
    // A part of the object has its metadata, but for a scale, which has its own; and what is made takes nothing away.
    let part = |part: &str| left(&format!("update apps deployments/{part} n/d"), Change::Whole("{}"), &paused);
    assert!(part("status").is_err() && part("scale").is_ok());
    assert!(
        asked("create core configmaps n/-", |access| bounds().claims(access, Change::Fields("{}"))).unwrap().is_empty()
    );
}

#[test]
fn what_takes_all_annotations_away_is_held_to_the_version_that_was_looked_at_or_looks_again() {
    let newer = |change: Change<'_>, seen: Option<&str>| {
        let claims = asked("update x.example.com things n/t", |access| bounds().claims(access, change)).unwrap();
        let seen = seen.map(|version| Meta { resource_version: version.into(), ..Meta::default() });
        claims.need_newer(seen.as_ref())
    };
    let of = |version: &str| format!(r#"{{"metadata": {{"resourceVersion": {version}}}}}"#);
    assert!(!newer(Change::Whole(&of("\"7\"")), Some("7")));
    for (text, seen) in [
        (of("\"7\""), Some("8")),
        (of("\"7\""), None),
        (of("\"\""), Some("8")),
        (of("null"), Some("")),
        (of("null"), None),
        ("{}".into(), Some("7")),
        // Said twice, or within something else as well, it is none.
        (r#"{"metadata": {"resourceVersion": "8"}, "spec": {"resourceVersion": "7"}}"#.into(), Some("7")),
        (r#"{"metadata": {"resourceVersion": "7", "resourceVersion": "8"}}"#.into(), Some("7")),
    ] {
        assert!(newer(Change::Whole(&text), seen), "{text} {seen:?}");
    }
    assert!(newer(Change::Merge(r#"{"metadata": {"resourceVersion": "8", "annotations": null}}"#), Some("7")));
    assert!(newer(Change::Steps(r#"[{"op": "remove", "path": "/metadata/annotations"}]"#), Some("7")));
    // The rest is as good as what is there.
    assert!(!newer(Change::Merge(r#"{"metadata": {"finalizers": ["g"]}}"#), Some("7")));
    assert!(!newer(Change::Fields(r#"{"metadata": {"finalizers": ["g"]}}"#), None));
}

#[test]
fn a_glance_is_enough_for_what_most_writes_say() {
    let at_most =
        |change| asked("update apps deployments n/d", |access| bounds().claims(access, change).unwrap().are_at_most());
    let owned = format!(r#"{{"metadata": {{"ownerReferences" : [{OWNER}], "name": "d"}}, "a\nb": "\"\\"}}"#);
    for change in [Change::Fields(&owned), Change::Merge(&owned), Change::Whole(&owned), Change::Whole("{}")] {
        assert!(at_most(change), "{change:?}");
    }
    for text in [
        r#"{"metadata": {"annotations": {"operetta.dev/paused": "x"}}}"#,
        r#"{"a": "\u0061"}"#,
        r#"{"a": "finalizers"}"#,
        r#"{"metadata": {"finalizers": []}, "spec": {"finalizers": []}}"#,
    ] {
        assert!(!at_most(Change::Fields(text)), "{text}");
    }
    assert!(!at_most(Change::Merge(r#"{"a": null}"#)) && at_most(Change::Fields(r#"{"a": null}"#)));
}

/// JSON as nobody writes it: keys twice, letters in escapes, the names that bounds ask for at any depth and in any type.
fn texts() -> impl Strategy<Value = String> {
    const WORDS: [&str; 9] = [
        "metadata",
        "ownerReferences",
        "finalizers",
        "annotations",
        "resourceVersion",
        "operetta.dev/paused",
        "spec",
        "x",
        "uid",
    ];
    let word = (prop::sample::select(&WORDS[..]), 0..12_usize, 0..12_usize).prop_map(|(word, how, at)| match how {
        0 => format!(
            "\"{}\\u{:04x}{}\"",
            &word[..at % word.len()],
            word.as_bytes()[at % word.len()],
            &word[at % word.len() + 1..]
        ),
        1 => format!("\"\\\"{word}\""),
        2 => format!("\"{word}\\\"\""),
        3 => format!("\"{word}\\\\\""),
        4 => format!("\"{}\"", word.replace('/', "\\/")),
        _ => format!("\"{word}\""),
    });
    let owner = word.clone().prop_map(|uid| format!(r#"[{{"uid":{uid},"finalizers":["x"]}}]"#));
    let leaf = prop_oneof![Just("null".to_owned()), Just("1".to_owned()), word.clone(), owner];
    let map = move |value: BoxedStrategy<String>| {
        let pair = (word.clone(), prop::sample::select(vec![":", " : ", ":\n"]), value);
        prop::collection::vec(pair.prop_map(|(key, colon, value)| format!("{key}{colon}{value}")), 0..5)
            .prop_map(|pairs| format!("{{{}}}", pairs.join(",")))
    };
    let within = map.clone();
    let value = leaf.prop_recursive(4, 24, 4, move |inner| {
        let list = prop::collection::vec(inner.clone(), 0..3).prop_map(|items| format!("[{}]", items.join(",")));
        prop_oneof![list, within(inner.boxed())]
    });
    let metadata = map(value.clone().boxed()).prop_map(|fields| format!(r#"{{"metadata":{fields}}}"#));
    prop_oneof![map(value.boxed()), metadata]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Compared with what is sent: the text as serde reads it, the last of two fields that are called the same.
    #[test]
    fn a_glance_misses_nothing_that_is_sent(text in texts()) {
        let Ok(sent) = serde_json::from_str::<Value>(&text) else { panic!("{text}") };
        for change in [Change::Fields(&text), Change::Merge(&text), Change::Whole(&text)] {
            let Some(most) = change.glance(&Named::of(change.text())) else { continue };
            let list = |field: &str| sent["metadata"][field].as_array().cloned().unwrap_or_default();
            for owner in list("ownerReferences") {
                let owner = owner.to_string();
                prop_assert!(most.owners.contains(&serde_json::from_str(&owner).unwrap()), "{text}: {owner}");
            }
            for finalizer in list("finalizers") {
                prop_assert!(most.finalizers.contains(&finalizer.as_str().unwrap().to_owned()), "{text}: {finalizer}");
            }
            let annotations = sent["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
            prop_assert!(annotations.keys().all(|key| !key.starts_with("operetta.dev/")), "{text}");
            if let Change::Merge(_) = change {
                let null = |value: Option<&Value>| value.is_some_and(Value::is_null);
                prop_assert!(!null(sent.get("metadata")) && !null(sent["metadata"].get("annotations")), "{text}");
            }
            if let (Some(version), Change::Whole(_)) = (sent["metadata"]["resourceVersion"].as_str(), change) {
                prop_assert!(most.version.is_none_or(|most| most == version), "{text}");
            }
        }
    }
}
