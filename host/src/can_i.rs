//! `operetta can-i`: whether a plugin may do something, as its document and as the cluster's RBAC for its account have it, and what to add where it may not.
//!
//! Asked with the rights of whoever types it; nothing is done, and nobody is impersonated.

mod table;

use std::path::Path;

use anyhow::Context as _;
use kube::{Api, Client, api::DynamicObject, core::ApiResource};
use operetta_api::PluginSpec;
use operetta_cluster::{identity::objection, kinds::Kinds, request::Fault, review::Question};
use operetta_core::{
    bounds::Bounds,
    effect::Policy,
    grant::{self, Access, Denial, Grants, Remedy, Rule, Verb},
    name::{Actor, Namespace, ObjectName, PluginName, ServiceAccount, Subresource},
};
use serde::Serialize;
use serde_json::json;

use crate::{
    cli::ReachArgs,
    exit::Failed,
    loader::read_document,
    output::{OutputArgs, one_line, print},
    plugin::confine,
};

#[derive(Debug, clap::Args)]
pub(crate) struct CanIArgs {
    #[command(flatten)]
    cluster: ReachArgs,
    /// A Plugin of the cluster by name, or a document by its file, or the file of a component that a document lies beside
    #[arg(value_name = "PLUGIN|FILE")]
    plugin: String,
    /// VERB KIND[/SUBRESOURCE] [NAME], the kind as kubectl takes it; or `channel NAME` or `database NAME`
    #[arg(value_name = "REQUEST", required_unless_present = "list", num_args = 2..=3)]
    request: Vec<String>,
    /// Where; the namespace of the kubeconfig unless told
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<Namespace>,
    /// In all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Where the host runs, which a rule for all namespaces does not mean
    #[arg(long, value_name = "NAMESPACE", default_value = crate::deploy::NAMESPACE)]
    host_namespace: Namespace,
    /// Print all that it may, as a table
    #[arg(long, conflicts_with_all = ["request", "namespace", "all_namespaces"])]
    list: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// A plugin, as far as its rights go.
struct Plugin {
    name: PluginName,
    spec: PluginSpec,
    account: ServiceAccount,
    policy: Policy,
    host_namespace: Namespace,
}

/// What there is to say.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    plugin: PluginName,
    request: String,
    allowed: bool,
    document: Half,
    /// None where the cluster has no part in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<Half>,
}

/// What one of two says.
#[derive(Debug, Serialize)]
struct Half {
    allowed: bool,
    says: String,
    /// A piece of YAML that would change it.
    #[serde(skip_serializing_if = "Option::is_none")]
    add: Option<String>,
}

pub(crate) async fn can_i(args: CanIArgs) -> anyhow::Result<()> {
    if args.list {
        let client = args.cluster.connect().await?;
        let plugin = Plugin::find(&args, Some(&client)).await?;
        let rows =
            table::rows(&client, &plugin.spec, &plugin.account).await.map_err(|fault| unasked(&plugin, fault))?;
        return print(&match args.output.output {
            Some(format) => format.render(&rows)?,
            None => table::text(&rows, &plugin.host_namespace),
        });
    }
    let answer = match args.request.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["channel", name] => {
            named(&args, |policy| policy.grants.check_channel(name).map(drop), format!("call the channel {name}"))
                .await?
        }
        ["database", name] => {
            named(&args, |policy| policy.grants.check_database(name).map(drop), format!("use the database {name}"))
                .await?
        }
        [verb, kind] => request(&args, verb, kind, None).await?,
        [verb, kind, name] => request(&args, verb, kind, Some(name)).await?,
        _ => return Err(Failed::usage("ask for VERB KIND [NAME], `channel NAME` or `database NAME`")),
    };
    print(&match args.output.output {
        Some(format) => format.render(&answer)?,
        None => text(&answer),
    })?;
    if answer.allowed { Ok(()) } else { Err(Failed::no(format!("{} may not {}", answer.plugin, answer.request))) }
}

fn text(answer: &Answer) -> String {
    let mut text = String::from(if answer.allowed { "yes\n" } else { "no\n" });
    for (whose, half) in [("document", Some(&answer.document)), ("cluster", answer.cluster.as_ref())] {
        let Some(half) = half else { continue };
        text.push_str(&format!("  {whose:<8}  {}\n", one_line(&half.says)));
        for line in half.add.iter().flat_map(|yaml| yaml.lines()) {
            text.push_str(&format!("    {}\n", one_line(line)));
        }
    }
    text
}

/// What the document alone decides.
async fn named(
    args: &CanIArgs,
    check: impl FnOnce(&Policy) -> Result<(), Denial>,
    request: String,
) -> anyhow::Result<Answer> {
    let client = if is_file(&args.plugin) { None } else { Some(args.cluster.connect().await?) };
    let plugin = Plugin::find(args, client.as_ref()).await?;
    let document = plugin.half(check(&plugin.policy));
    Ok(Answer { plugin: plugin.name, request, allowed: document.allowed, document, cluster: None })
}

async fn request(args: &CanIArgs, verb: &str, kind: &str, name: Option<&str>) -> anyhow::Result<Answer> {
    let known = Verb::ALL.map(Verb::as_str).join(", ");
    let unknown = || Failed::usage(format!("{verb:?} is nothing that a plugin could do; it may {known}"));
    let verb = Verb::ALL.into_iter().find(|known| known.as_str() == verb).ok_or_else(unknown)?;
    let (kind, part) = kind.split_once('/').map_or((kind, None), |(kind, part)| (kind, Some(part)));
    let usage = |error: operetta_core::name::NameError| Failed::usage(error.to_string());
    let subresource = part.map(Subresource::parse).transpose().map_err(usage)?;
    let name = name.map(ObjectName::parse).transpose().map_err(usage)?;
    let client = args.cluster.connect().await?;
    let plugin = Plugin::find(args, Some(&client)).await?;
    let kinds = Kinds::read(&client).await?;
    let kind = kinds.named(kind)?;
    let default = client.default_namespace().parse().map_err(usage)?;
    let namespace = args.namespace.clone().unwrap_or(default);
    let access = Access {
        verb,
        resource: &kind.resource,
        subresource: subresource.as_ref(),
        namespace: (kind.namespaced && !args.all_namespaces).then_some(&namespace),
        // Of what is made RBAC knows no name.
        name: name.as_ref().filter(|_| verb != Verb::Create),
    };
    let mut words = access.words();
    if let Some(name) = access.name {
        words.push_str(&format!(" named {name}"));
    }
    let document = plugin.document(&access);
    let cluster = cluster(&client, &plugin, &access).await.map_err(|fault| unasked(&plugin, fault))?;
    let allowed = document.allowed && cluster.allowed;
    Ok(Answer { plugin: plugin.name, request: words, allowed, document, cluster: Some(cluster) })
}

async fn cluster(client: &Client, plugin: &Plugin, access: &Access<'_>) -> Result<Half, Fault> {
    let account = &plugin.account;
    if let Some(why) = objection(client, &Actor { plugin: plugin.name.clone(), account: account.clone() }).await? {
        return Ok(Half { allowed: false, says: why, add: None });
    }
    if Question::of(access).ask(client, Some(account)).await? {
        return Ok(Half { allowed: true, says: format!("lets service account {account} do it"), add: None });
    }
    let role = match access.namespace {
        Some(namespace) => format!("Role in namespace {namespace}"),
        None => "ClusterRole".to_owned(),
    };
    let says = format!(
        "does not let service account {account} do it; run `operetta install` when the document grants it, or add to a {role} that is bound to it:"
    );
    // A role lies where it holds.
    Ok(Half { allowed: false, says, add: Some(Access { namespace: None, ..*access }.rule()) })
}

fn unasked(plugin: &Plugin, fault: Fault) -> anyhow::Error {
    let may = if matches!(fault, Fault::Answer { code: 403, .. }) {
        "; it takes the right to create subjectaccessreviews.authorization.k8s.io"
    } else {
        ""
    };
    anyhow::Error::from(fault).context(format!("cannot ask what service account {} may do{may}", plugin.account))
}

/// Whether a person means a file, and no Plugin of the cluster.
fn is_file(plugin: &str) -> bool {
    let ending = Path::new(plugin).extension().and_then(|ending| ending.to_str());
    plugin.contains('/') || ending.is_some_and(|ending| ["wasm", "yaml", "yml"].contains(&ending))
}

impl Plugin {
    /// # Errors
    /// There is none, or its document cannot be used.
    async fn find(args: &CanIArgs, client: Option<&Client>) -> anyhow::Result<Self> {
        let (plugin, host_namespace) = (args.plugin.as_str(), args.host_namespace.clone());
        let file = Path::new(plugin);
        let name =
            if is_file(plugin) { file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default() } else { plugin };
        let name = PluginName::parse(name).map_err(|error| Failed::usage(error.to_string()))?;
        let spec = match client {
            Some(client) if !is_file(plugin) => of_cluster(client, &name).await?,
            _ => read_document(&name, file)?.ok_or_else(|| {
                Failed::usage(format!("{} is not there, so nothing is granted", file.with_extension("yaml").display()))
            })?,
        };
        let account = spec.account(&name)?;
        let bounds = Bounds::of(&name, &[], &account, &spec.scope());
        let mut policy = Policy { bounds, ..spec.policy() };
        policy.grants.host_namespace = Some(host_namespace.clone());
        Ok(Self { name, spec, account, policy, host_namespace })
    }

    /// What the document has to say of a request to the API server.
    fn document(&self, access: &Access<'_>) -> Half {
        let Policy { bounds, grants, .. } = &self.policy;
        let said = self.half(bounds.check(access).and_then(|()| grants.check(access)));
        let elsewhere = Grants { host_namespace: None, ..grants.clone() };
        if said.add.is_none() || elsewhere.check(access).is_err() {
            return said;
        }
        let host = &self.host_namespace;
        let part = access.subresource.map(|part| format!("/{part}")).unwrap_or_default();
        let rule = Rule {
            api_groups: vec![access.resource.group().to_owned()],
            resources: vec![format!("{}{part}", access.resource.resource())],
            verbs: vec![access.verb.to_string()],
            namespaces: vec![host.clone()],
            ..Rule::default()
        };
        if confine::check(&self.account, &[rule], &self.spec.scope(), host).is_err() {
            let says =
                format!("could not grant it: {host} is the host's own namespace, and it leads to the host's account");
            return Half { allowed: false, says, add: None };
        }
        let says = format!(
            "does not grant it: {host} is the host's own namespace, and a rule for all namespaces does not mean that one; to allow it, add to {}:",
            grant::Place::Rules.field()
        );
        Half { says, ..said }
    }

    /// The same of anything else, as it was checked.
    fn half(&self, checked: Result<(), Denial>) -> Half {
        let (host, rules) = (&self.host_namespace, &self.spec.grants.rules);
        if let Err(why) = confine::check(&self.account, rules, &self.spec.scope(), host) {
            return Half { allowed: false, says: format!("is refused by the host as a whole: {why}"), add: None };
        }
        match checked {
            Ok(()) => Half { allowed: true, says: "grants it".into(), add: None },
            Err(Denial { remedy: Remedy::Grant { place, yaml }, .. }) => {
                let says = format!("does not grant it; to allow it, add to {}:", place.field());
                Half { allowed: false, says, add: Some(yaml) }
            }
            Err(Denial { remedy: Remedy::None(why), .. }) => {
                Half { allowed: false, says: format!("could not grant it: {why}"), add: None }
            }
            // Of what runs only, and nothing runs here.
            Err(Denial { remedy: Remedy::Closed(why), .. }) => {
                Half { allowed: false, says: format!("refuses it: {why}"), add: None }
            }
        }
    }
}

async fn of_cluster(client: &Client, name: &PluginName) -> anyhow::Result<PluginSpec> {
    let kind = ApiResource::erase::<operetta_api::Plugin>(&());
    let found = Api::<DynamicObject>::all_with(client.clone(), &kind).get_opt(name.as_str()).await;
    let object = found.with_context(|| format!("cannot read the Plugin {name}"))?.ok_or_else(|| {
        Failed::refused(format!(
            "the cluster has no Plugin {name}; of a plugin in a plugin directory, name the file {name}.yaml"
        ))
    })?;
    let document = json!({
        "apiVersion": "operetta.dev/v1alpha1", "kind": "Plugin", "metadata": {"name": name}, "spec": object.data.get("spec"),
    });
    Ok(operetta_api::parse(name, &document.to_string())
        .with_context(|| format!("the Plugin {name} of the cluster"))?
        .spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_a_name_or_a_file() {
        for file in ["petstore.yaml", "./plugins/petstore.wasm", "plugins/petstore", "x.yml"] {
            assert!(is_file(file), "{file}");
        }
        assert!(!is_file("petstore"));
    }

    #[test]
    fn the_hosts_own_namespace_is_meant_only_by_a_rule_that_names_it() {
        let plugin = |rules: &str| {
            let spec: PluginSpec = serde_saphyr::from_str(&format!("grants: {{rules: {rules}}}")).unwrap();
            let name: PluginName = "p".parse().unwrap();
            let account = spec.account(&name).unwrap();
            let host_namespace: Namespace = "operetta-system".parse().unwrap();
            let mut policy = spec.policy();
            policy.grants.host_namespace = Some(host_namespace.clone());
            Plugin { name, spec, account, policy, host_namespace }
        };
        let asked = |rules: &str, verb, resource, namespace: &str| {
            let resource = operetta_core::resource::Resource::parse("", "v1", resource).unwrap();
            let namespace = namespace.parse().unwrap();
            let (namespace, subresource) = (Some(&namespace), None);
            let Half { allowed, says, add } =
                plugin(rules).document(&Access { verb, resource: &resource, subresource, namespace, name: None });
            (allowed, says, add.unwrap_or_default())
        };
        let all = "[{apiGroups: ['*'], resources: ['*'], verbs: ['*']}]";
        assert!(asked(all, Verb::Get, "configmaps", "elsewhere").0);
        let (allowed, says, add) = asked(all, Verb::Get, "configmaps", "operetta-system");
        assert!(!allowed && says.contains("a rule for all namespaces does not mean that one"), "{says}");
        assert!(add.contains(r#"namespaces: ["operetta-system"]"#), "{add}");
        let (allowed, says, add) = asked(all, Verb::Create, "pods", "operetta-system");
        assert!(!allowed && says.contains("leads to the host's account") && add.is_empty(), "{says} {add}");
        let (allowed, says, _) = asked("[]", Verb::Get, "configmaps", "operetta-system");
        assert!(!allowed && says.starts_with("does not grant it; to allow it"), "{says}");
        let named = |resource, verb| {
            format!("[{{apiGroups: [''], resources: [{resource}], verbs: ['{verb}'], namespaces: [operetta-system]}}]")
        };
        assert!(asked(&named("configmaps", "get"), Verb::Get, "configmaps", "operetta-system").0);
        for resource in ["pods", "configmaps"] {
            let (allowed, says, _) = asked(&named(resource, "*"), Verb::Get, resource, "operetta-system");
            assert!(!allowed && says.starts_with("is refused by the host as a whole: "), "{says}");
        }
        let (allowed, says, add) = asked(all, Verb::Patch, "configmaps", "operetta-system");
        assert!(!allowed && says.contains("could not grant it") && add.is_empty(), "{says} {add}");
    }

    #[test]
    fn what_is_said_can_be_pasted() {
        let access_to = "get configmaps in namespace a";
        let rule = "- apiGroups: [\"\"]\n  resources: [\"configmaps\"]\n  verbs: [\"get\"]".to_owned();
        let no = Half {
            allowed: false,
            says: "does not grant it; to allow it, add to spec.grants.rules:".into(),
            add: Some(rule),
        };
        let answer = Answer {
            plugin: "p".parse().unwrap(),
            request: access_to.into(),
            allowed: false,
            document: no,
            cluster: Some(Half { allowed: true, says: "lets it\n\u{1b}[J".into(), add: None }),
        };
        expect_test::expect![[r#"
            no
              document  does not grant it; to allow it, add to spec.grants.rules:
                - apiGroups: [""]
                  resources: ["configmaps"]
                  verbs: ["get"]
              cluster   lets it\n\u{1b}[J
        "#]]
        .assert_eq(&text(&answer));
    }
}
