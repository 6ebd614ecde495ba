//! `operetta install`: what a component needs in the cluster, applied with the rights of the person who types it.

use std::{collections::HashMap, path::Path};

use anyhow::Context as _;
use operetta_cluster::install::{Change, InstallError, Installation, Installed, Plan, essence};
use operetta_core::{manifest::Manifest, name::PluginName};
use serde_json::Value;

use crate::{
    cli::InstallArgs,
    diff::unified,
    generate::COMMAND_CONCURRENCY,
    loader::{load_file, read_document, sandbox},
    output::print,
};

pub(crate) async fn install(args: InstallArgs) -> anyhow::Result<()> {
    let sandbox = sandbox(&args.state.state_dir, COMMAND_CONCURRENCY)?;
    let mut installations = Vec::new();
    for file in &args.files {
        let (name, component) = load_file(&sandbox, file).await?;
        installations.push(installation(name, component.manifest(), file)?);
    }
    check_together(&installations)?;
    let client = args.cluster.connect().await?;
    // All of them are thought through before anything is written.
    let mut plans = Vec::new();
    for installation in &installations {
        let in_plugin = || format!("plugin {}", installation.plugin);
        plans.push(Plan::of(&client, installation, args.force).await.with_context(in_plugin)?);
    }
    let mut done = Vec::new();
    for (plan, installation) in plans.iter().zip(&installations) {
        let installed = if args.dry_run {
            plan.changes.iter().map(|c| Installed { what: c.what.clone(), outcome: c.outcome() }).collect()
        } else {
            plan.apply(&client).await.with_context(|| format!("plugin {}", installation.plugin))?
        };
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
pub(crate) fn installation(name: PluginName, manifest: &Manifest, file: &Path) -> anyhow::Result<Installation> {
    let spec = match read_document(&name, file)? {
        Some(spec) => spec,
        None => operetta_api::parse(&name, &operetta_api::render(&name, manifest)?)?.spec,
    };
    Ok(Installation {
        account: spec.account(&name)?,
        scope: spec.scope(),
        plugin: name,
        crds: manifest.crds.clone(),
        events: spec.grants.events,
        rules: spec.grants.rules,
    })
}
