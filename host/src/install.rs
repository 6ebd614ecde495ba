//! `operetta install`: what a component needs in the cluster, applied with the rights of the person who types it.

use std::path::Path;

use anyhow::Context as _;
use operetta_cluster::install::Installation;
use operetta_core::{manifest::Manifest, name::PluginName};

use crate::{
    cli::InstallArgs,
    generate::COMMAND_CONCURRENCY,
    loader::{load_file, read_document, sandbox},
};

pub(crate) async fn install(args: InstallArgs) -> anyhow::Result<()> {
    let sandbox = sandbox(&args.state.state_dir, COMMAND_CONCURRENCY)?;
    // All files are looked at before anything is written.
    let mut installations = Vec::new();
    for file in &args.files {
        let (name, component) = load_file(&sandbox, file).await?;
        installations.push(installation(name, component.manifest(), file)?);
    }
    let client = args.cluster.connect().await?;
    for installation in &installations {
        let installed = operetta_cluster::install::install(&client, installation, args.force)
            .await
            .with_context(|| format!("plugin {}", installation.plugin))?;
        for object in installed {
            println!("{object}");
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
