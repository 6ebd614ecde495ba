//! What no document gives a plugin: a way to the host's own account, which may act as every plugin.
//!
//! Whoever makes pods in the host's namespace, or gets into one, can use every account there; whoever writes ConfigMaps there says what runs; and whoever reads Secrets there has what
//! the host alone should have. So nothing there is theirs but to read other things. A rule for all namespaces does not mean the host's own (see
//! [`operetta_core::grant::Grants`]), so only what names it is refused here.

use operetta_core::{
    cache::Scope,
    effect::printable,
    grant::Rule,
    name::{Namespace, ServiceAccount},
};

/// What leads there though it only reads, by its verb: group, resource, and verbs.
const READS_IN: [(&str, &str, &[&str]); 3] =
    [("", "pods/exec", &["get"]), ("", "pods/attach", &["get"]), ("", "secrets", READS)];
const READS: &[&str] = &["get", "list", "watch"];
/// Bytes of what a document calls a verb or a resource, in an error.
const MOST_SHOWN: usize = 80;

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
            "spec.grants.rules lets it {verb} {resource} in the namespace {host}, where the host itself runs: there lie its account, its Secrets and the plugins that it runs, and \
             whoever may do that can act as every plugin; take {host} out of {place}, or let it only read there, and no Secrets"
        ));
    }
    Ok(())
}

/// What a rule allows that leads to the host's account, or to what it runs: a verb and a resource.
///
/// Whatever writes is one: pods run with any account there, ConfigMaps hold plugins, a Lease says which host works, and of kinds that others bring nobody knows.
fn way_in(rule: &Rule) -> Option<(String, String)> {
    // With nothing in one of its lists a rule allows nothing.
    let (first, _) = (rule.resources.first()?, rule.api_groups.first()?);
    if let Some(verb) = rule.verbs.iter().find(|verb| !READS.contains(&verb.as_str())) {
        let verb = if verb == "*" { "create" } else { verb };
        let resource = if first == "*" { "everything" } else { first };
        return Some((printable(verb, MOST_SHOWN), printable(resource, MOST_SHOWN)));
    }
    let any = |list: &[String], wanted: &str| list.iter().any(|x| x == "*" || x == wanted);
    READS_IN.into_iter().find_map(|(group, resource, verbs)| {
        let part = resource.split_once('/').map(|(_, part)| format!("*/{part}"));
        let covers = any(&rule.resources, resource) || part.is_some_and(|part| rule.resources.contains(&part));
        let verb = verbs.iter().find(|verb| any(&rule.verbs, verb))?;
        (covers && any(&rule.api_groups, group)).then(|| ((*verb).to_owned(), resource.to_owned()))
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
    fn whatever_writes_or_reads_secrets_is_refused_where_the_host_is() {
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
            // The plugin directory, and components of Plugins.
            ("", "configmaps", "create"),
            ("", "configmaps", "update"),
            ("", "configmaps", "patch"),
            ("", "configmaps", "delete"),
            ("", "configmaps", "deletecollection"),
            ("", "configmaps", "*"),
            ("coordination.k8s.io", "leases", "update"),
            ("example.com", "things", "delete"),
            ("", "namespaces", "patch"),
            ("", "secrets", "get"),
            ("", "secrets", "list"),
            ("*", "*", "watch"),
        ] {
            let said = fine(rule(group, resource, verb, &["a", "operetta-system"])).unwrap_err();
            assert!(said.contains("take operetta-system out of the namespaces of the rule"), "{said}");
            assert_eq!(fine(rule(group, resource, verb, &["a"])), Ok(()), "{group} {resource} {verb} elsewhere");
            assert_eq!(fine(rule(group, resource, verb, &[])), Ok(()), "{group} {resource} {verb} everywhere");
        }
        for (group, resource, verb) in [
            ("", "pods", "get"),
            ("", "pods/log", "get"),
            ("", "configmaps", "get"),
            ("", "configmaps", "list"),
            ("", "*/log", "get"),
            ("", "pods/exec", "watch"),
            ("example.com", "secrets", "get"),
            ("apps", "*", "watch"),
        ] {
            assert_eq!(fine(rule(group, resource, verb, &["operetta-system"])), Ok(()), "{group} {resource} {verb}");
        }
    }

    #[test]
    fn what_is_refused_is_said_as_the_rule_has_it() {
        let said = |rule: Rule| try_with("operetta-plugins", rule, &Scope::All).unwrap_err();
        let all = said(rule("*", "*", "*", &["operetta-system"]));
        assert!(all.contains("lets it create everything in the namespace operetta-system"), "{all}");
        let mut mixed = rule("", "configmaps", "get", &["operetta-system"]);
        mixed.verbs.push("delete".into());
        assert!(said(mixed).contains("lets it delete configmaps in the namespace operetta-system"));
        let odd = said(rule("", "pods\n", "create", &["operetta-system"]));
        assert!(odd.contains("lets it create pods\\n in"), "{odd}");
        assert!(odd.contains("or let it only read there, and no Secrets"), "{odd}");
        let secrets = said(rule("", "*", "list", &["operetta-system"]));
        assert!(secrets.contains("lets it list secrets in the namespace"), "{secrets}");
        for nothing in ["resources", "verbs", "apiGroups"] {
            let mut rule = rule("*", "*", "*", &["operetta-system"]);
            match nothing {
                "resources" => rule.resources.clear(),
                "verbs" => rule.verbs.clear(),
                _ => rule.api_groups.clear(),
            }
            assert_eq!(try_with("operetta-plugins", rule, &Scope::All), Ok(()), "no {nothing}");
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
