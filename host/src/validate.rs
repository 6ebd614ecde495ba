//! `operetta validate`: everything that a load would find wrong, found without a cluster, a line for each check.

mod crd;

use std::{collections::BTreeMap, path::PathBuf};

use operetta_api::PluginSpec;
use operetta_cluster::install::{Way, render};
use operetta_core::{
    manifest::Manifest,
    name::{Namespace, PluginName},
    resource::Resource,
};
use operetta_sandbox::{Component, Sandbox};
use serde::Serialize;

use crate::{
    channels::GrpcChannels,
    cli::StateArgs,
    exit::Failed,
    generate::COMMAND_CONCURRENCY,
    impersonation::HostSide,
    inspect::Granted,
    install::installation,
    loader::{read_document, read_file, sandbox},
    output::{OutputArgs, grouped, one_line, print},
    plugin::{confine, needs},
};

#[derive(Debug, clap::Args)]
pub(crate) struct ValidateArgs {
    /// Components, each with NAME.yaml beside it
    #[arg(required = true, value_name = "FILE.wasm")]
    files: Vec<PathBuf>,
    /// Where the host will run, which no plugin may get at
    #[arg(long, value_name = "NAMESPACE", default_value = crate::deploy::NAMESPACE)]
    host_namespace: Namespace,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    state: StateArgs,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Verdict {
    Ok,
    /// It would load, and somebody should know this.
    Note,
    /// It would not load, or not be taken by a cluster.
    Failed,
}

/// One check of one file.
#[derive(Debug, Serialize)]
struct Check {
    file: String,
    /// A phase of loading, or a part of the manifest.
    #[serde(rename = "check")]
    what: &'static str,
    verdict: Verdict,
    message: String,
}

/// The checks of one file.
struct Checks<'a> {
    file: &'a str,
    done: &'a mut Vec<Check>,
}

impl Checks<'_> {
    fn say(&mut self, what: &'static str, verdict: Verdict, message: impl Into<String>) {
        self.done.push(Check { file: self.file.to_owned(), what, verdict, message: message.into() });
    }

    /// All that is wrong with one thing, or that nothing is.
    fn all(&mut self, what: &'static str, wrong: Vec<String>, right: impl Into<String>) {
        if wrong.is_empty() {
            self.say(what, Verdict::Ok, right);
        }
        for message in wrong {
            self.say(what, Verdict::Failed, message);
        }
    }
}

pub(crate) async fn validate(args: ValidateArgs) -> anyhow::Result<()> {
    let sandbox = sandbox(&args.state.state_dir, COMMAND_CONCURRENCY)?;
    let host = HostSide::of(&args.host_namespace, Way::Constrained)?;
    let mut done = Vec::new();
    let mut manifests = Vec::new();
    for file in &args.files {
        let (name, wasm) = read_file(file)?;
        let shown = file.display().to_string();
        let mut checks = Checks { file: &shown, done: &mut done };
        let Some(component) = load(&sandbox, wasm, &mut checks).await else { continue };
        let manifest = component.manifest();
        check_manifest(&name, manifest, file, &host, &mut checks);
        match read_document(&name, file) {
            Ok(Some(spec)) => check_document(&name, &component, &spec, &args.host_namespace, &mut checks),
            Ok(None) => checks.say(
                "document",
                Verdict::Note,
                format!(
                    "{name}.yaml does not lie beside it, and a host with a plugin directory needs it; `operetta generate plugin {shown}` writes one"
                ),
            ),
            Err(error) => checks.say("document", Verdict::Failed, format!("{error:#}")),
        }
        manifests.push((shown, manifest.clone()));
    }
    check_together(&manifests, &mut done);
    print(&match args.output.output {
        Some(format) => format.render(&done)?,
        None => done.iter().map(line).collect(),
    })?;
    match done.iter().filter(|check| check.verdict == Verdict::Failed).count() {
        0 => Ok(()),
        failed => Err(Failed::plugin(format!("{failed} of {} checks failed", done.len()))),
    }
}

fn line(check: &Check) -> String {
    let verdict = match check.verdict {
        Verdict::Ok => "ok",
        Verdict::Note => "note",
        Verdict::Failed => "FAILED",
    };
    // What is to be pasted goes on below.
    let lines: Vec<_> = check.message.split('\n').map(one_line).collect();
    format!("{verdict:<6}  {}  {}: {}\n", one_line(&check.file), check.what, lines.join("\n          "))
}

/// Verify, compile, describe: as far as it comes.
async fn load(sandbox: &Sandbox, wasm: Vec<u8>, checks: &mut Checks<'_>) -> Option<std::sync::Arc<Component>> {
    const PHASES: [&str; 3] = ["verify", "compile", "describe"];
    let size = wasm.len();
    let loaded = sandbox.load(wasm).await;
    let failed = loaded.as_ref().err().map(operetta_sandbox::LoadError::phase);
    for phase in PHASES.into_iter().take_while(|phase| Some(*phase) != failed) {
        let message = match (phase, &loaded) {
            ("verify", Ok(component)) => {
                format!("{} bytes, {} interfaces imported, all known", grouped(size), component.imports().len())
            }
            ("compile", Ok(component)) if component.cached() => "its compiled code was there".to_owned(),
            ("describe", Ok(component)) => {
                let (manifest, stamped) = (component.manifest(), component.stamped());
                let section = if stamped {
                    "and its section says the same"
                } else {
                    "without a section that says so; `operetta build` writes it"
                };
                format!("it is {} {}, {section}", manifest.name, manifest.version)
            }
            _ => "nothing is wrong".to_owned(),
        };
        checks.say(phase, Verdict::Ok, message);
    }
    match loaded {
        Ok(component) => Some(component),
        Err(error) => {
            let text = error.to_string();
            let text = text.strip_prefix(&format!("{}: ", error.phase())).unwrap_or(&text);
            checks.say(error.phase(), Verdict::Failed, text);
            None
        }
    }
}

fn check_manifest(
    name: &PluginName,
    manifest: &Manifest,
    file: &std::path::Path,
    host: &HostSide,
    checks: &mut Checks<'_>,
) {
    let mut wrong: Vec<String> = manifest.crds.iter().flat_map(crd::faults).map(|fault| one_line(&fault)).collect();
    // What `operetta install` would refuse, without the document, which is checked for itself.
    if wrong.is_empty() {
        let bare = file.with_file_name("no-such-document.wasm");
        wrong.extend(
            installation(name.clone(), manifest, &bare, host)
                .and_then(|installation| Ok(render(&installation)?))
                .err()
                .map(|error| format!("{error:#}")),
        );
    }
    let count = match manifest.crds.len() {
        0 => "it brings none".to_owned(),
        1 => "the one it brings can be installed".to_owned(),
        several => format!("the {several} it brings can be installed"),
    };
    checks.all("crds", wrong, count);

    let mut wrong = Vec::new();
    for controller in &manifest.controllers {
        let primary = &controller.primary;
        let brought = manifest.crds.iter().find(|crd| crd::is_of(crd, primary));
        if let Some(crd) = brought {
            match crd::version(crd, primary.version()) {
                None => wrong
                    .push(format!("{} is for {primary}, a version that its own CRD does not have", controller.name)),
                Some(version) => {
                    if version.get("served").and_then(serde_json::Value::as_bool) != Some(true) {
                        wrong.push(format!("{} is for {primary}, which its own CRD does not serve", controller.name));
                    }
                    if asks_for_status(manifest, primary) && version.pointer("/subresources/status").is_none() {
                        wrong.push(format!(
                            "{} writes the status of {primary}, and its own CRD has no status subresource; add it (`#[kube(status = \"..\")]`)",
                            controller.name
                        ));
                    }
                }
            }
        }
        let wrong_finalizers = controller.finalizers.iter().filter(|finalizer| {
            finalizer.split_once('/').is_none_or(|(domain, name)| !domain.contains('.') || name.is_empty())
        });
        wrong.extend(wrong_finalizers.map(|finalizer| {
            format!("the finalizer {finalizer:?} of {} is not DOMAIN/NAME, which the API server wants", controller.name)
        }));
    }
    checks.all("controllers", wrong, format!("{} and their kinds fit", manifest.controllers.len()));
}

fn asks_for_status(manifest: &Manifest, kind: &Resource) -> bool {
    manifest.requests.rules.iter().any(|rule| {
        rule.api_groups.iter().any(|group| group == kind.group())
            && rule.resources.iter().any(|resource| *resource == format!("{}/status", kind.resource()))
    })
}

fn check_document(
    name: &PluginName,
    component: &Component,
    spec: &PluginSpec,
    host: &Namespace,
    checks: &mut Checks<'_>,
) {
    let manifest = component.manifest();
    checks.say("document", Verdict::Ok, format!("{name}.yaml is a Plugin"));
    let pinned = spec.digest.filter(|pinned| *pinned != component.digest());
    let wrong = pinned.map(|pinned| {
        format!(
            "spec.digest is {pinned} and the component's is {}; look at what changed, then correct it",
            component.digest()
        )
    });
    if spec.digest.is_some() {
        checks.all("digest", wrong.into_iter().collect(), "it is the component that the document means");
    }
    let policy = spec.policy();
    let mut wrong: Vec<String> = needs::check(name, false, manifest, &policy.grants, &spec.scope())
        .err()
        .map(|problem| problem.message)
        .into_iter()
        .collect();
    let account = spec.account(name).map_err(|error| error.to_string());
    wrong.extend(account.and_then(|account| confine::check(&account, &spec.grants.rules, &spec.scope(), host)).err());
    wrong.extend(GrpcChannels::check(&spec.grants.channels).err().map(|error| error.to_string()));
    checks.all("grant", wrong, "enough for its controllers to start");
    let granted = Granted::of(spec, manifest, component.digest());
    for missing in granted.missing {
        checks.say("grant", Verdict::Note, format!("asked for and not granted: {}", one_line(&missing)));
    }
    for beyond in granted.beyond {
        checks.say("grant", Verdict::Note, format!("granted and not asked for: {}", one_line(&beyond)));
    }
    for database in &spec.grants.databases {
        let Some(env) = &database.env else { continue };
        let needs =
            format!("{env}_HOST, {env}_DBNAME, {env}_USER and perhaps {env}_PASSWORD in the host's environment");
        checks.say("databases", Verdict::Note, format!("{} needs {needs}", database.name));
    }
    let channels = spec.grants.channels.iter().map(|channel| ("channels", channel.name.as_str(), channel.references()));
    let databases = spec.grants.databases.iter().map(|base| ("databases", base.name.as_str(), base.references()));
    for (what, name, references) in channels.chain(databases) {
        for reference in references {
            checks.say(what, Verdict::Note, format!("{name} needs {reference} in the host's namespace"));
        }
    }
}

/// What no file shows by itself.
fn check_together(manifests: &[(String, Manifest)], done: &mut Vec<Check>) {
    let mut holders: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for (file, manifest) in manifests {
        let mut checks = Checks { file, done };
        for controller in &manifest.controllers {
            let kind = (controller.primary.group(), controller.primary.resource());
            if let Some(other) = holders.insert(kind, file) {
                checks.say(
                    "together",
                    Verdict::Failed,
                    format!(
                        "{}.{} is reconciled by {other}, too, and one host runs one of them; leave one out",
                        kind.1, kind.0
                    ),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_one_line_whatever_a_stranger_wrote_and_what_is_to_be_pasted_stands_below() {
        let check = Check {
            file: "x\u{1b}[J\nok  y.wasm".into(),
            what: "grant",
            verdict: Verdict::Failed,
            message: "add:\n- a\u{1b}[40A\u{202e}".into(),
        };
        assert_eq!(line(&check), "FAILED  x\\u{1b}[J\\nok  y.wasm  grant: add:\n          - a\\u{1b}[40A\\u{202e}\n");
    }
}
