//! What no document gives a plugin: a way to the host's own account, which may act as every plugin.
//!
//! Whoever makes pods in the host's namespace, or gets into one, can use every account there. A rule for all namespaces does not mean the host's own (see
//! [`operetta_core::grant::Grants`]), so only what names it is refused here.

use operetta_core::{
    cache::Scope,
    grant::Rule,
    name::{Namespace, ServiceAccount},
};

/// What runs with an account of its namespace, or gives one away: group, resource, and the verbs by which it does.
const WAYS_IN: [(&str, &str, &[&str]); 15] = [
    ("", "pods", &["create"]),
    ("", "pods/ephemeralcontainers", &["update", "patch"]),
    ("", "pods/exec", &["create", "get"]),
    ("", "pods/attach", &["create", "get"]),
    ("", "replicationcontrollers", WRITE),
    ("apps", "deployments", WRITE),
    ("apps", "daemonsets", WRITE),
    ("apps", "statefulsets", WRITE),
    ("apps", "replicasets", WRITE),
    ("batch", "jobs", WRITE),
    ("batch", "cronjobs", WRITE),
    ("", "serviceaccounts/token", &["create"]),
    // Which get themselves a token, or hand on the rights of others.
    ("", "secrets", &["create"]),
    ("rbac.authorization.k8s.io", "roles", WRITE),
    ("rbac.authorization.k8s.io", "rolebindings", WRITE),
];
const WRITE: &[&str] = &["create", "update", "patch"];

/// Whether the account and all rules keep away from the host.
///
/// # Errors
/// What does not, and what to write instead.
pub(crate) fn check(account: &ServiceAccount, rules: &[Rule], scope: &Scope, host: &Namespace) -> Result<(), String> {
    if account.namespace == *host {
        return Err(format!(
            "spec.serviceAccount is {account}, and the host itself runs in the namespace {host}, whose accounts are not for plugins; leave spec.serviceAccount.namespace out, which \
             means {}, or name another namespace",
            operetta_api::DEFAULT_ACCOUNT_NAMESPACE
        ));
    }
    let limited = matches!(scope, Scope::Namespaces(some) if some.contains(host));
    for rule in rules {
        let names_it = rule.namespaces.contains(host) || (rule.namespaces.is_empty() && limited);
        let Some((verb, resource)) = way_in(rule).filter(|_| names_it) else { continue };
        let place = if rule.namespaces.is_empty() { "spec.namespaces" } else { "the namespaces of the rule" };
        return Err(format!(
            "spec.grants.rules lets it {verb} {resource} in the namespace {host}, where the host itself runs: whoever may do that can take the host's account, and with it act as every \
             plugin; take {host} out of {place}"
        ));
    }
    Ok(())
}

/// What a rule allows that leads to an account: a verb and a resource.
fn way_in(rule: &Rule) -> Option<(&'static str, &'static str)> {
    let any = |list: &[String], wanted: &str| list.iter().any(|x| x == "*" || x == wanted);
    WAYS_IN.into_iter().find_map(|(group, resource, verbs)| {
        let part = resource.split_once('/').map(|(_, part)| format!("*/{part}"));
        let covers = any(&rule.resources, resource) || part.is_some_and(|part| rule.resources.contains(&part));
        let verb = verbs.iter().find(|verb| any(&rule.verbs, verb))?;
        (covers && any(&rule.api_groups, group)).then_some((*verb, resource))
    })
}

#[cfg(test)]
mod tests {
    use operetta_core::name::AccountName;

    use super::*;

    fn namespace(name: &str) -> Namespace {
        Namespace::parse(name).unwrap()
    }

    fn rule(group: &str, resource: &str, verb: &str, namespaces: &[&str]) -> Rule {
        Rule {
            api_groups: vec![group.into()],
            resources: vec![resource.into()],
            verbs: vec![verb.into()],
            namespaces: namespaces.iter().map(|name| namespace(name)).collect(),
            ..Rule::default()
        }
    }

    fn try_with(account: &str, rule: Rule, scope: &Scope) -> Result<(), String> {
        let account = ServiceAccount { namespace: namespace(account), name: AccountName::parse("p").unwrap() };
        check(&account, &[rule], scope, &namespace("operetta-system"))
    }

    #[test]
    fn whatever_leads_to_the_hosts_account_is_refused_where_the_host_is() {
        let fine = |rule: Rule| try_with("operetta-plugins", rule, &Scope::All);
        for (group, resource, verb) in [
            ("", "pods", "create"),
            ("", "pods", "*"),
            ("", "*", "create"),
            ("*", "*", "*"),
            ("apps", "deployments", "patch"),
            ("apps", "daemonsets", "update"),
            ("apps", "statefulsets", "create"),
            ("apps", "replicasets", "create"),
            ("batch", "jobs", "create"),
            ("*", "cronjobs", "create"),
            ("", "replicationcontrollers", "create"),
            ("", "pods/exec", "create"),
            ("", "*/exec", "get"),
            ("", "pods/exec", "get"),
            ("", "pods/attach", "create"),
            ("", "*/attach", "get"),
            ("", "pods/ephemeralcontainers", "patch"),
            ("", "pods/ephemeralcontainers", "update"),
            ("", "serviceaccounts/token", "create"),
            ("", "secrets", "create"),
            ("rbac.authorization.k8s.io", "roles", "update"),
            ("rbac.authorization.k8s.io", "rolebindings", "patch"),
        ] {
            let said = fine(rule(group, resource, verb, &["a", "operetta-system"])).unwrap_err();
            assert!(said.contains("take operetta-system out of the namespaces of the rule"), "{said}");
            assert_eq!(fine(rule(group, resource, verb, &["a"])), Ok(()), "{group} {resource} {verb} elsewhere");
            assert_eq!(fine(rule(group, resource, verb, &[])), Ok(()), "{group} {resource} {verb} everywhere");
        }
        for (group, resource, verb) in
            [("", "pods", "get"), ("", "pods/log", "get"), ("", "configmaps", "*"), ("example.com", "pods", "create")]
        {
            assert_eq!(fine(rule(group, resource, verb, &["operetta-system"])), Ok(()), "{group} {resource} {verb}");
        }
    }

    #[test]
    fn a_plugin_that_is_limited_to_the_hosts_namespace_is_refused_too() {
        let limited = Scope::Namespaces([namespace("a"), namespace("operetta-system")].into());
        let said = try_with("operetta-plugins", rule("", "pods", "create", &[]), &limited).unwrap_err();
        assert!(said.contains("take operetta-system out of spec.namespaces"), "{said}");
        assert_eq!(try_with("operetta-plugins", rule("", "pods", "create", &["a"]), &limited), Ok(()));
    }

    #[test]
    fn an_account_beside_the_host_is_refused() {
        let said = try_with("operetta-system", rule("", "pods", "get", &[]), &Scope::All).unwrap_err();
        assert!(said.contains("operetta-system/p") && said.contains("means operetta-plugins"), "{said}");
    }
}
