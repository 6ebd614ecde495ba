//! Writes as attackers and as ordinary operators write them, and what the bounds make of each.

use super::*;
use crate::{
    manifest::Manifest,
    name::{AccountName, Subresource},
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
        ("patch core serviceaccounts plugins/q", false),
        ("patch core serviceaccounts elsewhere/p", false),
        ("get core serviceaccounts plugins/p", false),
        ("patch rbac.authorization.k8s.io clusterroles operetta:p", true),
        ("delete rbac.authorization.k8s.io rolebindings n/operetta:p", true),
        ("patch rbac.authorization.k8s.io roles n/operetta:q", false),
        ("patch x.example.com roles n/operetta:p", false),
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
        ("patch core serviceaccounts", false),
        ("create x.example.com pods", false),
        ("create batch pods", false),
    ] {
        // Whether or not its own account is there.
        let said = |place: &str| asked(&format!("{what} {place}/x"), |access| bounds().check(access));
        assert_eq!(said(ACCOUNTS).is_err(), refused, "{what}");
        assert_eq!(said("plugins"), Ok(()), "{what} elsewhere");
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

/// Whether nothing allows it, something else must, or it is no matter.
fn judge(access: &str, change: Change<'_>) -> &'static str {
    match asked(access, |access| bounds().claims(access, change)) {
        Err(Outside::Denied(_)) => "denied",
        Err(Outside::Unclear(_)) => "unclear",
        Ok(Claims { owners, finalizers, annotations }) => {
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
    let on = |access: &str, text: &str| judge(access, Change::Object(&text.replace("OWNER", OWNER)));
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
        assert_eq!(judge(thing, Change::Object(text)), found, "{text}");
    }
    assert_eq!(
        judge("create core pods n/-", Change::Object(r#"{"metadata": {"annotations": {"operetta.dev/paused": ""}}}"#)),
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
    let left = |text: &str, there: &str| {
        let mut claims = asked(access, |access| bounds().claims(access, Change::Object(text))).unwrap();
        claims.allow_what_is_there(there);
        asked(access, |access| claims.check(access)).map_err(|denial| denial.to_string())
    };
    let with =
        |value: &str| format!(r#"{{"metadata": {{"annotations": {{"a": "b", "operetta.dev/paused": {value}}}}}}}"#);
    assert_eq!(left(&with("\"x\""), &with("\"x\"")), Ok(()));
    for (text, there) in [
        (with("\"x\""), with("\"y\"")),
        (with("\"x\""), with("\"x\"").replace("paused", "other")),
        (with("\"x\""), "{}".to_owned()),
        (with("null"), with("\"x\"")),
        (with("null"), with("null")),
    ] {
        let denied = left(&text, &there).unwrap_err();
        assert!(denied.contains("with the annotation operetta.dev/paused is refused, whatever is granted"), "{denied}");
        assert!(denied.contains("plugins have no part in it; leave it out"), "{denied}");
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
        judge(binding, Change::Object(&format!(r#"{{"metadata": {{"name": "b"}}, "subjects": [{subject}]}}"#)))
    };
    for (subject, found) in [
        (r#"{"kind": "ServiceAccount", "name": "p", "namespace": "plugins"}"#, "denied"),
        (r#"{"kind": "ServiceAccount", "name": "p"}"#, "denied"),
        (r#"{"kind": "ServiceAccount", "name": "p", "namespace": "n"}"#, "fine"),
        (r#"{"kind": "ServiceAccount", "name": "q", "namespace": "plugins"}"#, "fine"),
        (r#"{"kind": "User", "name": "system:serviceaccount:plugins:p"}"#, "denied"),
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
    assert_eq!(steps(r#"[{"op": "copy", "from": "/metadata", "path": "/subjects"}]"#), "denied");
    // Roles bind nobody, and neither does what is only called like a binding.
    for other in ["patch rbac.authorization.k8s.io clusterroles r", "patch x.example.com bindings n/b"] {
        let copied = r#"[{"op": "copy", "from": "/metadata", "path": "/subjects"}]"#;
        assert_eq!(judge(other, Change::Steps(copied)), "fine", "{other}");
    }
    let own = r#"{"metadata": {"name": "operetta:p"}, "rules": []}"#;
    assert_eq!(judge("create rbac.authorization.k8s.io clusterroles -", Change::Object(own)), "denied");
    let account = |place: &str| {
        judge(&format!("create core serviceaccounts {place}/-"), Change::Object(r#"{"metadata": {"name": "p"}}"#))
    };
    assert_eq!((account("plugins"), account("n")), ("denied", "fine"));
}

#[test]
fn no_secret_becomes_a_token_of_an_account_beside_its_own() {
    let token = r#"{"metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": "p"}}, "type": "kubernetes.io/service-account-token"}"#;
    let step = r#"[{"op": "add", "path": "/metadata/annotations/kubernetes.io~1service-account.name", "value": "p"}]"#;
    let escaped = token.replace("service", "\\u0073ervice");
    for text in [token, &escaped] {
        assert_eq!(judge("create core secrets plugins/-", Change::Object(text)), "denied");
        assert_eq!(judge("patch core secrets plugins/s", Change::Object(text)), "denied");
        assert_eq!(judge("create core secrets n/-", Change::Object(text)), "fine");
    }
    assert_eq!(judge("patch core secrets plugins/s", Change::Steps(step)), "denied");
    let other = r#"{"metadata": {"name": "s"}, "stringData": {"note": "of the service-account", "u": "\u00e4"}}"#;
    assert_eq!(judge("create core secrets plugins/-", Change::Object(other)), "fine");
}

#[test]
fn what_an_object_carries_is_nothing_new_and_the_rest_says_what_it_lacks() {
    let access = "patch core configmaps/status n/c";
    let text = format!(r#"{{"metadata": {{"ownerReferences": [{OWNER}], "finalizers": ["g"]}}}}"#);
    let left = |there: &str| {
        let mut claims = asked(access, |access| bounds().claims(access, Change::Object(&text))).unwrap();
        claims.allow_what_is_there(&there.replace("OWNER", OWNER));
        asked(access, |access| claims.check(access)).map_err(|denial| denial.to_string())
    };
    let carried = r#"{"metadata": {"ownerReferences": [OWNER], "finalizers": ["g"]}, "data": {}}"#;
    assert_eq!(left(carried), Ok(()));
    // The owner in another version of its group is the same one; under another name it is not, and would not be found.
    assert_eq!(left(&carried.replace("OWNER", &OWNER.replace("/v1\"", "/v2\""))), Ok(()));
    let all_known = |steps: &str, there: &str| {
        let mut claims = asked(access, |access| bounds().claims(access, Change::Steps(steps))).unwrap();
        claims.allow_what_is_there(there);
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
