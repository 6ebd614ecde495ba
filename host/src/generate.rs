//! `operetta generate`: prints what would otherwise be written by hand, as YAML to pipe into a file or into kubectl.

use std::path::Path;

use operetta_cluster::install::render;
use operetta_core::manifest::Manifest;
use serde_json::Value;

use crate::{
    cli::{Generate, GenerateCrdArgs, GenerateRbacArgs},
    deploy::{default_objects, host_rights},
    install::installation,
    loader::{load_file, sandbox},
    output::print,
};

/// Commands run one component at a time.
pub(crate) const COMMAND_CONCURRENCY: u16 = 2;

pub(crate) async fn generate(what: Generate) -> anyhow::Result<()> {
    match what {
        Generate::Plugin(args) => {
            let sandbox = sandbox(&args.state.state_dir, COMMAND_CONCURRENCY)?;
            let (name, component) = load_file(&sandbox, &args.file).await?;
            print(&operetta_api::render(&name, component.manifest())?)?;
        }
        Generate::Crd(args) => print_all(&crds(args).await?)?,
        Generate::Rbac(args) => print_all(&rbac(args).await?)?,
        Generate::ManifestSchema => print(&format!("{}\n", manifest_schema()?))?,
    }
    Ok(())
}

/// The JSON schema of manifests, `config/manifest.schema.json`.
///
/// # Errors
/// Never in practice: a schema is JSON.
pub fn manifest_schema() -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(&schemars::schema_for!(Manifest))?)
}

async fn crds(args: GenerateCrdArgs) -> anyhow::Result<Vec<Value>> {
    match args.file {
        None => Ok(vec![default_objects()?.crd]),
        Some(file) => Ok(manifest(&args.state.state_dir, &file).await?.crds),
    }
}

async fn rbac(args: GenerateRbacArgs) -> anyhow::Result<Vec<Value>> {
    let host = args.host.host()?;
    let GenerateCrdArgs { file, state } = args.component;
    let Some(file) = file else { return host_rights(&host) };
    let sandbox = sandbox(&state.state_dir, COMMAND_CONCURRENCY)?;
    let (name, component) = load_file(&sandbox, &file).await?;
    let objects = render(&installation(name, component.manifest(), &file, &host)?)?;
    Ok(objects
        .into_iter()
        .filter(|object| object.get("kind").is_none_or(|k| k != "CustomResourceDefinition"))
        .collect())
}

async fn manifest(state: &Path, file: &Path) -> anyhow::Result<Manifest> {
    let sandbox = sandbox(state, COMMAND_CONCURRENCY)?;
    let (_, component) = load_file(&sandbox, file).await?;
    Ok(component.manifest().clone())
}

fn print_all(objects: &[Value]) -> anyhow::Result<()> {
    print(&yaml(objects)?)
}

/// The documents of a file, one after the other.
fn yaml(objects: &[Value]) -> anyhow::Result<String> {
    let documents = objects.iter().map(|object| Ok(format!("---\n{}", serde_saphyr::to_string(object)?)));
    documents.collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;
    use operetta_cluster::install::Way;

    use super::*;
    use crate::{deploy::Objects, impersonation::HostSide};

    /// `UPDATE_EXPECT=1 cargo test` rewrites the files.
    #[test]
    fn the_committed_files_are_what_the_code_says() {
        let Objects { crd, rbac, admission, deployment, budget } = default_objects().unwrap();
        expect_file!["../../config/crd/operetta.dev_plugins.yaml"].assert_eq(&yaml(&[crd]).unwrap());
        expect_file!["../../config/rbac/host.yaml"].assert_eq(&yaml(&rbac).unwrap());
        expect_file!["../../config/admission/policies.yaml"].assert_eq(&yaml(&admission).unwrap());
        // Of a classic host what is different.
        let host = HostSide::of(&"operetta-system".parse().unwrap(), Way::Classic).unwrap();
        let classic: Vec<_> = host_rights(&host).unwrap().into_iter().filter(|object| !rbac.contains(object)).collect();
        expect_file!["../../config/classic/rights.yaml"].assert_eq(&yaml(&classic).unwrap());
        expect_file!["../../config/host/deployment.yaml"].assert_eq(&yaml(&[deployment]).unwrap());
        expect_file!["../../config/host/pod_disruption_budget.yaml"].assert_eq(&yaml(&[budget]).unwrap());
        expect_file!["../../config/manifest.schema.json"].assert_eq(&format!("{}\n", manifest_schema().unwrap()));
    }

    #[test]
    fn the_schema_of_the_plugin_kind_is_one_that_an_api_server_takes() {
        let crd = default_objects().unwrap().crd.to_string();
        // Beside `properties`, a structural schema may not close itself.
        assert!(!crd.contains("\"additionalProperties\":false"), "{crd}");
    }
}
