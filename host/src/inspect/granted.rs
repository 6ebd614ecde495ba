//! What a Plugin document grants of what a component asks for, and beyond it. Pure.

use std::collections::BTreeSet;

use operetta_api::PluginSpec;
use operetta_core::{grant::Rule, manifest::Manifest, name::Digest};
use serde::Serialize;

use super::words::{any, covers};

/// A document beside a component, compared with what the component asks for.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Granted {
    /// Asked for and not granted; the plugin must do without, or does not start.
    pub(crate) missing: Vec<String>,
    /// Granted and not asked for; it could be cut.
    pub(crate) beyond: Vec<String>,
    /// What else the document says.
    pub(crate) notes: Vec<String>,
}

impl Granted {
    pub(crate) fn of(spec: &PluginSpec, manifest: &Manifest, digest: Digest) -> Self {
        let (asks, grants) = (&manifest.requests, &spec.grants);
        let (mut missing, mut beyond) = (lacking(&asks.rules, &grants.rules), lacking(&grants.rules, &asks.rules));
        let names = |list: Vec<&str>| list.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
        for (what, asked, granted) in [
            (
                "gRPC channel",
                names(asks.channels.iter().map(|c| c.name.as_str()).collect()),
                names(grants.channels.iter().map(|c| c.name.as_str()).collect()),
            ),
            (
                "database",
                names(asks.databases.iter().map(|d| d.name.as_str()).collect()),
                names(grants.databases.iter().map(|d| d.name.as_str()).collect()),
            ),
            ("setting", BTreeSet::new(), names(unknown_settings(spec, manifest))),
        ] {
            missing.extend(asked.difference(&granted).map(|name| format!("{what} {name}")));
            beyond.extend(granted.difference(&asked).map(|name| format!("{what} {name}")));
        }
        match (asks.events, grants.events) {
            (true, false) => missing.push("publishing events".into()),
            (false, true) => beyond.push("publishing events".into()),
            _ => {}
        }
        let mut notes = Vec::new();
        if !spec.namespaces.is_empty() {
            let names: Vec<_> = spec.namespaces.iter().map(ToString::to_string).collect();
            notes.push(format!("works only in the namespaces {}", names.join(", ")));
        }
        if spec.suspend {
            notes.push("stands still (spec.suspend)".into());
        }
        match &spec.digest {
            Some(pinned) if *pinned != digest => {
                notes.push(format!("will not run: spec.digest names another component, {pinned}"));
            }
            Some(_) => notes.push("runs this very file only (spec.digest)".into()),
            None => {}
        }
        Self { missing, beyond, notes }
    }
}

fn unknown_settings<'a>(spec: &'a PluginSpec, manifest: &Manifest) -> Vec<&'a str> {
    let known = |name: &str| manifest.requests.settings.iter().any(|setting| setting.name == name);
    spec.settings.keys().map(String::as_str).filter(|name| !known(name)).collect()
}

/// What `wanted` allows that `given` does not, verb by verb.
fn lacking(wanted: &[Rule], given: &[Rule]) -> Vec<String> {
    let mut lacking = Vec::new();
    for rule in wanted {
        for group in &rule.api_groups {
            for resource in &rule.resources {
                let verbs: Vec<_> =
                    rule.verbs.iter().filter(|verb| !allows(given, rule, group, resource, verb)).cloned().collect();
                if verbs.is_empty() {
                    continue;
                }
                let of = if group.is_empty() { String::new() } else { format!(".{group}") };
                let mut text = format!("{} {resource}{of}", verbs.join(", "));
                if !rule.namespaces.is_empty() {
                    let names: Vec<_> = rule.namespaces.iter().map(ToString::to_string).collect();
                    text = format!("{text} in {}", names.join(", "));
                }
                if !rule.resource_names.is_empty() {
                    text = format!("{text} named {}", rule.resource_names.join(", "));
                }
                if !lacking.contains(&text) {
                    lacking.push(text);
                }
            }
        }
    }
    lacking
}

/// Whether for each namespace and name of the wanted rule one given rule allows all of it.
fn allows(given: &[Rule], wanted: &Rule, group: &str, resource: &str, verb: &str) -> bool {
    let each = |list: &[String]| -> Vec<Option<String>> {
        if list.is_empty() { vec![None] } else { list.iter().cloned().map(Some).collect() }
    };
    let namespaces: Vec<_> = wanted.namespaces.iter().map(ToString::to_string).collect();
    each(&namespaces).iter().all(|namespace| {
        each(&wanted.resource_names).iter().all(|name| {
            given.iter().any(|rule| {
                any(&rule.api_groups, group)
                    && any(&rule.verbs, verb)
                    && rule.resources.iter().any(|r| covers(r, resource))
                    && (rule.namespaces.is_empty()
                        || namespace.as_ref().is_some_and(|n| rule.namespaces.iter().any(|x| x.as_str() == n)))
                    && (rule.resource_names.is_empty()
                        || name.as_ref().is_some_and(|n| rule.resource_names.contains(n)))
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(yaml: &str) -> PluginSpec {
        serde_saphyr::from_str(yaml).unwrap()
    }

    fn manifest(requests: &str) -> Manifest {
        let requests: serde_json::Value = serde_saphyr::from_str(requests).unwrap();
        let json = serde_json::json!({
            "manifestVersion": 1, "name": "demo", "version": "1", "requests": requests,
            "controllers": [{"name": "a", "for": {"group": "x.example.com", "version": "v1", "resource": "things"}}]
        });
        Manifest::parse(&json.to_string()).unwrap()
    }

    const ASKS: &str = r#"
rules:
- {apiGroups: [apps], resources: [deployments, deployments/status], verbs: [get, list, patch]}
- {apiGroups: [""], resources: [secrets], verbs: [get], namespaces: [a, b]}
channels: [{name: shop}]
databases: [{name: people}]
events: true
"#;

    fn check(grants: &str, missing: &[&str], beyond: &[&str]) {
        let granted = Granted::of(&spec(grants), &manifest(ASKS), Digest::of(b""));
        assert_eq!((granted.missing, granted.beyond), (own(missing), own(beyond)));
    }

    fn own(list: &[&str]) -> Vec<String> {
        list.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn what_is_not_granted_and_what_nobody_asked_for_is_named() {
        check(
            &format!("grants: {{{}}}", "rules: []"),
            &[
                "get, list, patch deployments.apps",
                "get, list, patch deployments/status.apps",
                "get secrets in a, b",
                "gRPC channel shop",
                "database people",
                "publishing events",
            ],
            &[],
        );
        check(
            r#"
grants:
  rules:
  - {apiGroups: ["*"], resources: [deployments], verbs: [get, list]}
  - {apiGroups: [apps], resources: ["*/status"], verbs: ["*"]}
  - {apiGroups: [""], resources: [secrets], verbs: [get], namespaces: [a]}
  - {apiGroups: [""], resources: [pods], verbs: [delete]}
  channels: [{name: shop, endpoint: "http://x:1"}, {name: other, endpoint: "http://x:1"}]
  databases: [{name: people, env: PSQL}]
  events: true
settings: {colour: red}
"#,
            &["patch deployments.apps", "get secrets in a, b"],
            &["get, list deployments.*", "* */status.apps", "delete pods", "gRPC channel other", "setting colour"],
        );
    }

    #[test]
    fn a_rule_limited_to_one_namespace_does_not_grant_all() {
        let grants = "grants: {rules: [{apiGroups: [apps], resources: ['*'], verbs: ['*'], namespaces: [a]}]}";
        let granted = Granted::of(&spec(grants), &manifest(ASKS), Digest::of(b""));
        assert!(granted.missing.contains(&"get, list, patch deployments.apps".to_owned()), "{granted:?}");
    }

    #[test]
    fn a_pinned_digest_that_names_another_file_is_said() {
        let digest = |bytes: &[u8]| Digest::of(bytes);
        let pinned = spec(&format!("{{digest: \"{}\", suspend: true, namespaces: [a]}}", digest(b"x")));
        let notes = |of| Granted::of(&pinned, &manifest("{}"), of).notes;
        assert!(notes(digest(b"x")).iter().any(|note| note.contains("this very file")));
        assert!(notes(digest(b"y")).iter().any(|note| note.contains("will not run")));
        assert_eq!(notes(digest(b"x")).len(), 3);
    }
}
