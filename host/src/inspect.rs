//! `operetta inspect`: what a component is and what it asks for, in words that a person can judge before running it.
//!
//! A component that carries its manifest in a section is **not run and not compiled**: what is shown is what it claims, and loading refuses it where it lies.

mod granted;
mod words;

use std::{fmt::Write as _, path::PathBuf};

use operetta_core::{
    manifest::{ChannelRequest, DatabaseRequest, Manifest, SettingRequest},
    name::{Digest, PluginName},
};
use operetta_sandbox::{
    CompileLimits,
    stamp::{SECTION, glance},
};
use serde::Serialize;

pub(crate) use self::granted::Granted;
use self::words::{Kinds, list, sentences, warnings};
use crate::{
    cli::StateArgs,
    generate::COMMAND_CONCURRENCY,
    loader::{in_file, read_document, read_file, sandbox},
    output::{OutputArgs, grouped, one_line, print},
};

#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// The component; NAME.yaml beside it says what is granted
    #[arg(value_name = "FILE.wasm")]
    file: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    state: StateArgs,
}

/// Where a manifest was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum ReadFrom {
    /// The section of the component.
    Section,
    /// The component itself, whose compiled code was there.
    Cached,
    /// The component itself, after compiling it.
    Compiled,
}

/// What is known of a component.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    file: String,
    name: PluginName,
    version: String,
    description: String,
    size: usize,
    digest: Digest,
    read_from: ReadFrom,
    controllers: Vec<Controller>,
    crds: Vec<Crd>,
    asks: Asks,
    imports: Vec<Import>,
    /// None without a document beside the component.
    granted: Option<Granted>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Controller {
    name: String,
    reconciles: String,
    owns: Vec<String>,
    watches: Vec<String>,
    finalizers: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Crd {
    name: String,
    kind: String,
    scope: String,
    versions: Vec<String>,
}

/// What it asks for, in words.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Asks {
    /// What follows from the rules beyond what they say.
    warnings: Vec<String>,
    rules: Vec<String>,
    channels: Vec<ChannelRequest>,
    databases: Vec<DatabaseRequest>,
    events: bool,
    settings: Vec<SettingRequest>,
}

/// An imported interface, and what it is good for.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Import {
    privilege: Privilege,
    interface: String,
}

/// What an interface can do at most; grants decide what it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
enum Privilege {
    /// Changes objects.
    Writes,
    /// Reads objects.
    Reads,
    /// Calls services.
    Calls,
    /// Touches nothing but itself and the host's log.
    Harmless,
    /// There, but empty: no file, no variable, no socket.
    Hollow,
}

impl Privilege {
    fn of(interface: &str) -> Self {
        match interface.split('@').next().unwrap_or_default() {
            "operetta:operator/writer" | "operetta:operator/events" => Self::Writes,
            "operetta:operator/reader" => Self::Reads,
            "operetta:operator/grpc" | "operetta:operator/postgres" => Self::Calls,
            wasi if ["wasi:filesystem/", "wasi:sockets/", "wasi:cli/environment"]
                .iter()
                .any(|x| wasi.starts_with(x)) =>
            {
                Self::Hollow
            }
            _ => Self::Harmless,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Writes => "can ask for writes",
            Self::Reads => "can ask for reads",
            Self::Calls => "can ask for calls",
            Self::Harmless => "harmless",
            Self::Hollow => "there, but empty",
        }
    }
}

pub(crate) async fn inspect(args: InspectArgs) -> anyhow::Result<()> {
    let report = report(&args).await?;
    print(&match args.output.output {
        Some(format) => format.render(&report)?,
        None => text(&report),
    })
}

async fn report(args: &InspectArgs) -> anyhow::Result<Report> {
    let file = &args.file;
    let (name, wasm) = read_file(file)?;
    let seen = glance(&wasm, CompileLimits::default().component).map_err(|error| in_file(file, &error))?;
    let (read_from, manifest) = if let Some(manifest) = seen.manifest {
        (ReadFrom::Section, manifest)
    } else {
        let sandbox = sandbox(&args.state.state_dir, COMMAND_CONCURRENCY)?;
        let component = sandbox.load(wasm).await.map_err(|error| in_file(file, &error))?;
        let read_from = if component.cached() { ReadFrom::Cached } else { ReadFrom::Compiled };
        (read_from, component.manifest().clone())
    };
    let document = read_document(&name, file)?;
    let mut imports: Vec<_> =
        seen.imports.into_iter().map(|interface| Import { privilege: Privilege::of(&interface), interface }).collect();
    imports.sort_by_key(|import| import.privilege);
    let kinds = Kinds::of(&manifest);
    let (asks, crds, controllers) = (asks(&manifest, &kinds), crds(&manifest), controllers(&manifest, &kinds));
    Ok(Report {
        file: file.display().to_string(),
        granted: document.map(|spec| Granted::of(&spec, &manifest, seen.digest)),
        name: manifest.name,
        version: manifest.version,
        description: manifest.description,
        size: seen.size,
        digest: seen.digest,
        read_from,
        controllers,
        crds,
        asks,
        imports,
    })
}

fn asks(manifest: &Manifest, kinds: &Kinds) -> Asks {
    let requests = &manifest.requests;
    Asks {
        warnings: warnings(&requests.rules, kinds),
        rules: sentences(&requests.rules, kinds),
        channels: requests.channels.clone(),
        databases: requests.databases.clone(),
        events: requests.events,
        settings: requests.settings.clone(),
    }
}

fn crds(manifest: &Manifest) -> Vec<Crd> {
    let of = |crd: &serde_json::Value| {
        let text = |pointer: &str| crd.pointer(pointer).and_then(|v| v.as_str()).unwrap_or_default().to_owned();
        let versions = crd.pointer("/spec/versions").and_then(|v| v.as_array()).into_iter().flatten();
        Crd {
            name: text("/metadata/name"),
            kind: text("/spec/names/kind"),
            scope: text("/spec/scope"),
            versions: versions.filter_map(|v| Some(v.get("name")?.as_str()?.to_owned())).collect(),
        }
    };
    manifest.crds.iter().map(of).collect()
}

fn controllers(manifest: &Manifest, kinds: &Kinds) -> Vec<Controller> {
    let name = |resource: &operetta_core::resource::Resource| kinds.name(resource.group(), resource.resource());
    let of = |controller: &operetta_core::manifest::Controller| Controller {
        name: controller.name.to_string(),
        reconciles: name(&controller.primary),
        owns: controller.owns.iter().map(name).collect(),
        watches: controller.watches.iter().map(|watch| name(&watch.resource)).collect(),
        finalizers: controller.finalizers.iter().cloned().collect(),
    };
    manifest.controllers.iter().map(of).collect()
}

/// For people: what it is, what it does, and what to think about first. Each line has text of whoever wrote the component, who must not write other lines.
fn text(report: &Report) -> String {
    let mut title = format!("{} {}", report.name, report.version);
    if !report.description.is_empty() {
        let _ = write!(title, ": {}", report.description);
    }
    let mut out = one_line(&title);
    let read = match report.read_from {
        ReadFrom::Section => format!("read from the section {SECTION}; the component was not run"),
        ReadFrom::Cached => "the component was asked, in the sandbox (its compiled code was there)".to_owned(),
        ReadFrom::Compiled => "the component was compiled and asked, in the sandbox".to_owned(),
    };
    let _ = writeln!(out, "\n  file      {}, {} bytes", one_line(&report.file), grouped(report.size));
    let _ = writeln!(out, "  digest    {}\n  manifest  {read}", report.digest);

    let mut section = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            let _ = writeln!(out, "\n{title}");
            for line in lines {
                let _ = writeln!(out, "  {}", one_line(&line));
            }
        }
    };
    let mut controllers = Vec::new();
    for controller in &report.controllers {
        let mut line = format!("{} reconciles {}", controller.name, controller.reconciles);
        for (does, kinds) in [("owns", &controller.owns), ("watches", &controller.watches)] {
            if !kinds.is_empty() {
                let _ = write!(line, ", {does} {}", list(kinds));
            }
        }
        controllers.push(line);
        controllers.extend(controller.finalizers.iter().map(|finalizer| {
            format!("  and holds each with the finalizer {finalizer}: without the plugin none can be deleted")
        }));
    }
    section("Controllers", controllers);
    let crds = report
        .crds
        .iter()
        .map(|crd| format!("{} ({}, {}): {}", crd.kind, crd.scope.to_lowercase(), crd.versions.join(", "), crd.name));
    section("Brings the kinds", crds.collect());

    let asks = &report.asks;
    section("Think about this first: it", asks.warnings.clone());
    let mut wants = asks.rules.clone();
    let described = |name: &dyn std::fmt::Display, description: &str| {
        if description.is_empty() { name.to_string() } else { format!("{name}: {description}") }
    };
    wants
        .extend(asks.channels.iter().map(|c| format!("calls the gRPC channel {}", described(&c.name, &c.description))));
    wants.extend(asks.databases.iter().map(|d| {
        format!("uses the PostgreSQL database {}; does there what its role may", described(&d.name, &d.description))
    }));
    if asks.events {
        wants.push("publishes events about objects".into());
    }
    wants.extend(asks.settings.iter().map(|s| {
        let default =
            s.default.as_ref().map_or_else(|| "no default".to_owned(), |default| format!("default {default}"));
        format!("reads the setting {} ({default})", described(&s.name, &s.description))
    }));
    section("Asks for this: it", wants);

    let mut imports: Vec<String> = Vec::new();
    for group in report.imports.chunk_by(|a, b| a.privilege == b.privilege) {
        let Some(first) = group.first() else { continue };
        let names: Vec<_> =
            group.iter().map(|import| import.interface.trim_start_matches("operetta:operator/")).collect();
        imports.push(format!("{:<18}  {}", first.privilege.words(), names.join(", ")));
    }
    section("Imports", imports);

    let granted = match &report.granted {
        None => vec![format!(
            "nothing: no Plugin document lies beside it; `operetta generate plugin {}` writes one to read and cut",
            report.file
        )],
        Some(granted) if granted.missing.is_empty() => vec!["all that it asks for".to_owned()],
        Some(granted) => granted.missing.iter().map(|missing| format!("not: {missing}")).collect(),
    };
    section("Granted", granted);
    if let Some(granted) = &report.granted {
        section("Granted beyond what it asks for", granted.beyond.clone());
        section("Its document also says", granted.notes.clone());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a terminal would take for commands, and a reader for other lines.
    const ATTACK: &str = "x\u{1b}[40A\u{1b}[J\n\nGranted\n  all that it asks for\r\u{202e}\u{2066}\u{7f}\u{9b}2J";

    #[test]
    fn no_text_of_a_stranger_forges_the_report() {
        let manifest = serde_json::json!({
            "manifestVersion": 1, "name": "demo", "version": "1\u{202e}", "description": ATTACK,
            "controllers": [{
                "name": "a", "for": {"group": "x.example.com", "version": "v1", "resource": "things"}, "finalizers": [ATTACK],
            }],
            "crds": [{
                "metadata": {"name": ATTACK},
                "spec": {
                    "group": "x.example.com", "scope": ATTACK, "names": {"kind": ATTACK, "plural": "things"},
                    "versions": [{"name": ATTACK}],
                },
            }],
            "requests": {
                "rules": [
                    {"apiGroups": [ATTACK], "resources": [ATTACK], "verbs": [ATTACK], "resourceNames": [ATTACK]},
                    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": [ATTACK]},
                ],
                "channels": [{"name": "c", "description": ATTACK}],
                "databases": [{"name": "d", "description": ATTACK}],
                "settings": [{"name": "s", "description": ATTACK, "default": ATTACK}],
            },
        });
        let manifest = Manifest::parse(&manifest.to_string()).unwrap();
        let (kinds, digest) = (Kinds::of(&manifest), Digest::of(b""));
        let report = Report {
            file: format!("{ATTACK}.wasm"),
            granted: Some(Granted::of(&operetta_api::PluginSpec::default(), &manifest, digest)),
            controllers: controllers(&manifest, &kinds),
            crds: crds(&manifest),
            asks: asks(&manifest, &kinds),
            name: manifest.name,
            version: manifest.version,
            description: manifest.description,
            size: 1,
            digest,
            read_from: ReadFrom::Section,
            imports: vec![Import { privilege: Privilege::Harmless, interface: ATTACK.into() }],
        };
        let shown = text(&report);
        let hidden = |c: char| c != '\n' && (c.is_control() || ('\u{2028}'..='\u{2069}').contains(&c));
        assert!(!shown.contains(hidden), "{shown:?}");
        let sections: Vec<_> =
            shown.lines().filter(|line| !line.starts_with(' ') && !line.is_empty()).skip(1).collect();
        let expected = [
            "Controllers",
            "Brings the kinds",
            "Think about this first: it",
            "Asks for this: it",
            "Imports",
            "Granted",
        ];
        assert_eq!(sections, expected, "{shown}");
        assert!(!shown.lines().any(|line| line.trim() == "all that it asks for"), "{shown}");
        assert!(shown.contains("\\u{1b}[40A") && shown.contains("\\n\\nGranted"), "{shown}");
    }

    #[test]
    fn each_interface_of_the_contract_is_judged() {
        for (interface, privilege) in [
            ("operetta:operator/writer@0.1.0", Privilege::Writes),
            ("operetta:operator/events@0.1.0", Privilege::Writes),
            ("operetta:operator/reader@0.1.0", Privilege::Reads),
            ("operetta:operator/grpc@0.1.0", Privilege::Calls),
            ("operetta:operator/postgres@0.1.0", Privilege::Calls),
            ("operetta:operator/log@0.1.0", Privilege::Harmless),
            ("wasi:clocks/monotonic-clock@0.3.0", Privilege::Harmless),
            ("wasi:sockets/tcp@0.2.3", Privilege::Hollow),
        ] {
            assert_eq!(Privilege::of(interface), privilege, "{interface}");
        }
    }
}
