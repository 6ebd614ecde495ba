//! `operetta install`: what a component needs in the cluster, applied with the rights of the person who types it.

use std::{collections::HashMap, path::Path};

use anyhow::Context as _;
use operetta_api::PluginSpec;
use operetta_cluster::install::{Change, InstallError, Installation, Installed, Plan, essence};
use operetta_core::{manifest::Manifest, name::PluginName};
use serde_json::Value;

use crate::{
    cli::InstallArgs,
    diff::unified,
    exit::Failed,
    generate::COMMAND_CONCURRENCY,
    impersonation::HostSide,
    loader::{load_file, read_document, read_file, sandbox},
    output::print,
    plugin::confine,
    publish::Publication,
};

pub(crate) async fn install(args: InstallArgs) -> anyhow::Result<()> {
    let sandbox = sandbox(&args.state.state_dir, COMMAND_CONCURRENCY)?;
    let host = args.host.host()?;
    let (mut installations, mut publications): (Vec<Installation>, _) = (Vec::new(), Vec::new());
    for file in &args.files {
        let (name, component) = load_file(&sandbox, file).await?;
        publications.push(Publication {
            plugin: name.clone(),
            host_namespace: args.host.host_namespace.clone(),
            spec: spec(&name, component.manifest(), file)?,
            wasm: read_file(file)?.1,
        });
        installations.push(installation(name, component.manifest(), file, &host)?);
    }
    check_together(&installations)?;
    let client = args.cluster.connect().await?;
    let way = args.host.impersonation.known_to(&client).await.context("cannot ask the API server for its version")?;
    for installation in &mut installations {
        installation.way = way;
    }
    // All of them are thought through before anything is written.
    let mut plans = Vec::new();
    for installation in &installations {
        let in_plugin = || format!("plugin {}", installation.plugin);
        plans.push(Plan::of(&client, installation, args.force).await.with_context(in_plugin)?);
    }
    for publication in publications.iter().filter(|_| args.plugin) {
        publication.check(&client, args.force).await.with_context(|| format!("plugin {}", publication.plugin))?;
    }
    let mut done = Vec::new();
    for ((plan, installation), publication) in plans.iter().zip(&installations).zip(&publications) {
        let mut installed: Vec<_> = if args.dry_run {
            plan.changes.iter().map(|c| Installed { what: c.what.clone(), outcome: c.outcome() }).collect()
        } else {
            plan.apply(&client).await.with_context(|| format!("plugin {}", installation.plugin))?
        };
        if args.plugin {
            installed.extend(publication.apply(&client, args.force).await?);
        }
        if args.output.output.is_none() {
            if args.dry_run {
                print(&plan.changes.iter().map(difference).collect::<Result<String, _>>()?)?;
            }
            let suffix = if args.dry_run { " (dry run)" } else { "" };
            for object in &installed {
                print(&format!("{object}{suffix}\n"))?;
            }
        }
        done.extend(installed);
    }
    match args.output.output {
        Some(format) => print(&format.render(&done)?),
        None => Ok(()),
    }
}

/// What would change of one object, line by line.
fn difference(change: &Change) -> anyhow::Result<String> {
    let shown = |object: &Value| serde_saphyr::to_string(&essence(object));
    let before = change.before.as_ref().map(shown).transpose()?.unwrap_or_default();
    Ok(unified(&change.what, &before, &shown(&change.after)?))
}

/// Two plugins of one command must not bring the same kind: the second would take it from the first.
fn check_together(installations: &[Installation]) -> Result<(), InstallError> {
    let mut brought: HashMap<&str, &PluginName> = HashMap::new();
    for installation in installations {
        for crd in installation.crds.iter().filter_map(|crd| crd.pointer("/metadata/name")?.as_str()) {
            if let Some(other) = brought.insert(crd, &installation.plugin)
                && *other != installation.plugin
            {
                return Err(InstallError::Taken { crd: crd.to_owned(), other: other.to_string() });
            }
        }
    }
    Ok(())
}

/// What a component needs: as the Plugin document beside it grants, or all that it asks for where there is none.
///
/// # Errors
/// The document is there and cannot be used.
pub(crate) fn installation(
    name: PluginName,
    manifest: &Manifest,
    file: &Path,
    host: &HostSide,
) -> anyhow::Result<Installation> {
    let spec = spec(&name, manifest, file)?;
    let account = spec.account(&name)?;
    confine::check(&account, &spec.grants.rules, &spec.scope(), &host.account.namespace).map_err(Failed::plugin)?;
    Ok(Installation {
        account,
        scope: spec.scope(),
        plugin: name,
        crds: manifest.crds.clone(),
        events: spec.grants.events,
        rules: spec.grants.rules,
        host: host.account.clone(),
        way: host.way,
    })
}

/// As the Plugin document beside it says, or with all that it asks for where there is none.
fn spec(name: &PluginName, manifest: &Manifest, file: &Path) -> anyhow::Result<PluginSpec> {
    match read_document(name, file)? {
        Some(spec) => Ok(spec),
        None => Ok(operetta_api::parse(name, &operetta_api::render(name, manifest)?)?.spec),
    }
}
