//! All that a plugin may, a row for each thing at each place, with what the cluster lacks of it.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use operetta_api::PluginSpec;
use operetta_cluster::{request::Fault, review::Question};
use operetta_core::{
    cache::Scope,
    grant::Verb,
    name::{Namespace, ServiceAccount},
};
use serde::Serialize;

use crate::output::one_line;

/// One thing at one place.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    /// `deployments.apps`, `deployments.apps/status`, or a channel or a database.
    what: String,
    /// Empty: all, or none has a part in it.
    namespace: String,
    /// Empty: all.
    names: Vec<String>,
    /// What the document grants.
    granted: Vec<&'static str>,
    /// Of that, what the cluster's RBAC does not let its account do.
    refused_by_cluster: Vec<&'static str>,
}

/// By kind, part, place and names.
type Place = (String, String, Option<Namespace>, Vec<String>);

/// Asks the cluster about each of them.
///
/// # Errors
/// It cannot be asked.
pub(super) async fn rows(client: &Client, spec: &PluginSpec, account: &ServiceAccount) -> Result<Vec<Row>, Fault> {
    let mut rows = Vec::new();
    for ((group, resource, namespace, names), verbs) in places(spec) {
        let (plural, part) = resource.split_once('/').unwrap_or((&resource, ""));
        let place = namespace.as_ref().map_or("", Namespace::as_str);
        let mut refused = Vec::new();
        for verb in &verbs {
            // Of what is made RBAC knows no name.
            let all = names.iter().filter(|_| *verb != Verb::Create).map(String::as_str);
            let all: Vec<_> = if names.is_empty() { vec![""] } else { all.collect() };
            for name in all {
                let question = Question {
                    verb: verb.as_str(),
                    group: &group,
                    resource: plural,
                    subresource: part,
                    namespace: place,
                    name,
                };
                if !question.ask(client, Some(account)).await? && !refused.contains(&verb.as_str()) {
                    refused.push(verb.as_str());
                }
            }
        }
        rows.push(Row {
            what: shown(&group, plural, part),
            namespace: place.to_owned(),
            names,
            granted: verbs.into_iter().map(Verb::as_str).collect(),
            refused_by_cluster: refused,
        });
    }
    rows.sort();
    let other = |what: String, verb| Row {
        what,
        namespace: String::new(),
        names: Vec::new(),
        granted: vec![verb],
        refused_by_cluster: Vec::new(),
    };
    rows.extend(spec.grants.channels.iter().map(|channel| other(format!("channel {}", channel.name), "call")));
    rows.extend(spec.grants.databases.iter().map(|database| other(format!("database {}", database.name), "use")));
    if spec.grants.events {
        rows.push(other("events".to_owned(), "publish"));
    }
    Ok(rows)
}

fn shown(group: &str, plural: &str, part: &str) -> String {
    let dot = if group.is_empty() { "" } else { "." };
    let slash = if part.is_empty() { "" } else { "/" };
    format!("{plural}{dot}{group}{slash}{part}")
}

/// All verbs at a place, whichever rules they come from.
fn places(spec: &PluginSpec) -> BTreeMap<Place, Vec<Verb>> {
    let mut places: BTreeMap<Place, Vec<Verb>> = BTreeMap::new();
    let scope = spec.scope();
    for rule in &spec.grants.rules {
        let granted = |verb: &Verb| rule.verbs.iter().any(|granted| granted == "*" || granted == verb.as_str());
        let namespaces: BTreeSet<Option<Namespace>> = match &scope {
            Scope::All if rule.namespaces.is_empty() => [None].into(),
            Scope::Namespaces(scope) if rule.namespaces.is_empty() => scope.iter().cloned().map(Some).collect(),
            scope => {
                rule.namespaces.iter().filter(|namespace| scope.contains(Some(namespace))).cloned().map(Some).collect()
            }
        };
        for group in &rule.api_groups {
            for resource in &rule.resources {
                for namespace in &namespaces {
                    let place = (group.clone(), resource.clone(), namespace.clone(), rule.resource_names.clone());
                    let verbs = places.entry(place).or_default();
                    verbs.extend(Verb::ALL.into_iter().filter(granted));
                    verbs.sort_by_key(|verb| Verb::ALL.iter().position(|known| known == verb));
                    verbs.dedup();
                }
            }
        }
    }
    places
}

/// For people. `host` is where the host runs, which no rule for all namespaces means.
pub(super) fn text(rows: &[Row], host: &Namespace) -> String {
    let list = |items: &[String]| if items.is_empty() { "*".to_owned() } else { items.join(",") };
    let mut lines = vec![["MAY", "NAMESPACE", "NAMES", "VERBS", "CLUSTER"].map(str::to_owned)];
    for row in rows {
        let cluster = if row.refused_by_cluster.is_empty() {
            "yes".to_owned()
        } else {
            format!("not {}", row.refused_by_cluster.join(","))
        };
        let own = ["call", "use", "publish"].iter().any(|verb| row.granted.contains(verb));
        let [namespace, names, cluster] = if own {
            ["", "", ""].map(str::to_owned)
        } else {
            let namespace = if row.namespace.is_empty() { "*" } else { &row.namespace };
            [namespace.to_owned(), list(&row.names), cluster]
        };
        // The words of a rule are those of whoever wrote the document.
        lines.push([one_line(&row.what), namespace, one_line(&names), row.granted.join(","), cluster]);
    }
    let width =
        |column: usize| lines.iter().filter_map(|line| line.get(column)).map(String::len).max().unwrap_or_default();
    let widths = [width(0), width(1), width(2), width(3)];
    let line = |[what, namespace, names, verbs, cluster]: &[String; 5]| {
        let [a, b, c, d] = widths;
        let text = format!("{what:<a$}  {namespace:<b$}  {names:<c$}  {verbs:<d$}  {cluster}");
        format!("{}\n", text.trim_end())
    };
    let mut text: String = lines.iter().map(line).collect();
    if lines.iter().any(|[_, namespace, ..]| namespace == "*") {
        text.push_str(&format!("\nNAMESPACE * is all but {host}, the host's own.\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_become_rows_by_place() {
        let spec: PluginSpec = serde_saphyr::from_str(
            r#"
namespaces: [a, b]
grants:
  rules:
  - {apiGroups: [""], resources: [configmaps], verbs: [watch, get]}
  - {apiGroups: [""], resources: [configmaps], verbs: ["get", "delete"], namespaces: [b, elsewhere]}
  - {apiGroups: [apps], resources: [deployments/status], verbs: ["*"], resourceNames: [one], namespaces: [elsewhere]}
"#,
        )
        .unwrap();
        let said: Vec<_> = places(&spec)
            .into_iter()
            .map(|((_, resource, namespace, _), verbs)| {
                let verbs: Vec<_> = verbs.into_iter().map(Verb::as_str).collect();
                format!("{resource} {} {}", namespace.unwrap(), verbs.join(","))
            })
            .collect();
        assert_eq!(said, ["configmaps a get,watch", "configmaps b get,watch,delete"]);
    }

    #[test]
    fn a_table_says_what_the_cluster_lacks() {
        let row = |what: &str, namespace: &str, granted: &[&'static str], refused: &[&'static str]| Row {
            what: what.into(),
            namespace: namespace.into(),
            names: Vec::new(),
            granted: granted.to_vec(),
            refused_by_cluster: refused.to_vec(),
        };
        let rows = [
            row("configmaps", "", &["get", "list"], &[]),
            row("deployments.apps/status", "a", &["patch"], &["patch"]),
            row("channel store", "", &["call"], &[]),
            row("x\n\u{1b}[J", "a", &["get"], &[]),
        ];
        expect_test::expect![[r"
            MAY                      NAMESPACE  NAMES  VERBS     CLUSTER
            configmaps               *          *      get,list  yes
            deployments.apps/status  a          *      patch     not patch
            channel store                              call
            x\n\u{1b}[J              a          *      get       yes

            NAMESPACE * is all but operetta-system, the host's own.
        "]]
        .assert_eq(&text(&rows, &Namespace::parse("operetta-system").unwrap()));
        assert!(!text(&rows[1..], &Namespace::parse("operetta-system").unwrap()).contains("operetta-system"));
    }
}
