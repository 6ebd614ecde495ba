//! `operetta install --plugin`: a component into the cluster itself, as ConfigMaps of the host's namespace and the Plugin that names them, with the rights of the person who types it.
//!
//! The names of the ConfigMaps say what is in them, so that a host that reads them meanwhile never finds half of one component and half of another. They belong to the
//! Plugin and go with it; those of versions before the last one go with the next publication.

use std::collections::BTreeSet;

use kube::Client;
use operetta_api::{ConfigMapSource, PluginSpec, Source};
use operetta_cluster::{
    install::{self, How, InstallError, Installed, PLUGIN_LABEL},
    plugins,
};
use operetta_core::name::{ConfigName, Digest, Namespace, PluginName};
use serde_json::{Value, json};

use crate::package;

/// A component that is to run in the cluster.
pub(crate) struct Publication {
    pub(crate) plugin: PluginName,
    /// Where the host looks for ConfigMaps.
    pub(crate) host_namespace: Namespace,
    /// As it is to run, but for its source and digest.
    pub(crate) spec: PluginSpec,
    pub(crate) wasm: Vec<u8>,
}

impl Publication {
    /// Whether the API server would take the Plugin from this person, before anything else is written. Where it does not know the kind, nobody can say.
    pub(crate) async fn check(&self, client: &Client, force: bool) -> anyhow::Result<()> {
        let how = How { manager: install::MANAGER, force, dry_run: true };
        let (source, digest) = self.source(&package::pack(&self.wasm)?)?;
        match install::apply(client, vec![self.plugin(source, digest)?], how).await {
            Err(InstallError::Refused { fault, .. }) if fault.is_not_found() => Ok(()),
            tried => tried.map(drop).map_err(Into::into),
        }
    }

    /// Where the parts will be found.
    fn source(&self, parts: &[Vec<u8>]) -> anyhow::Result<(ConfigMapSource, Digest)> {
        let digest = Digest::of(&self.wasm);
        let name = ConfigName::parse(&format!("{}-{}", self.plugin, digest.short()))?;
        Ok((ConfigMapSource { name, chunks: Some(u32::try_from(parts.len())?) }, digest))
    }

    /// Applies all of it; what was there before goes on until the last step.
    pub(crate) async fn apply(&self, client: &Client, force: bool) -> anyhow::Result<Vec<Installed>> {
        let how = How { manager: install::MANAGER, force, dry_run: false };
        let parts = package::pack(&self.wasm)?;
        let (source, digest) = self.source(&parts)?;
        let names: Vec<_> = source.names()?.iter().map(ToString::to_string).collect();
        let before = plugins::read(client, &self.plugin).await?;
        let owner = |plugin: &Value| plugin.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned);

        let mut installed = install::apply(client, self.ground()?, how).await?;
        let maps = self.maps(&names, &parts, before.as_ref().and_then(owner).as_deref())?;
        installed.extend(install::apply(client, maps, how).await?);
        let kept = before.iter().flat_map(named).chain(names.iter().cloned()).collect::<BTreeSet<_>>();
        let plugin = self.plugin(source, digest)?;
        installed.extend(install::apply(client, vec![plugin], how).await?);
        if before.is_none() {
            let plugin = plugins::read(client, &self.plugin).await?;
            let maps = self.maps(&names, &parts, plugin.as_ref().and_then(owner).as_deref())?;
            install::apply(client, maps, how).await?;
        }
        plugins::tidy(client, &self.host_namespace, &self.plugin, &kept).await?;
        Ok(installed)
    }

    /// The kind, and the namespace.
    fn ground(&self) -> anyhow::Result<Vec<Value>> {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": self.host_namespace.as_str(), "labels": {"app.kubernetes.io/managed-by": "operetta"}},
        });
        Ok(vec![serde_json::to_value(operetta_api::crd())?, namespace])
    }

    /// By which `operetta uninstall` finds it.
    fn labels(&self) -> Value {
        json!({"app.kubernetes.io/managed-by": "operetta", PLUGIN_LABEL: self.plugin.as_str()})
    }

    fn maps(&self, names: &[String], parts: &[Vec<u8>], owner: Option<&str>) -> anyhow::Result<Vec<Value>> {
        let mut maps = Vec::new();
        for (name, part) in names.iter().zip(parts) {
            let mut metadata = json!({
                "name": name, "namespace": self.host_namespace.as_str(),
                "labels": self.labels(),
            });
            if let (Some(uid), Some(fields)) = (owner, metadata.as_object_mut()) {
                let owner = json!([{"apiVersion": "operetta.dev/v1alpha1", "kind": "Plugin", "name": self.plugin.as_str(), "uid": uid}]);
                fields.insert("ownerReferences".to_owned(), owner);
            }
            maps.push(plugins::config_map(&metadata, part.clone())?);
        }
        Ok(maps)
    }

    fn plugin(&self, source: ConfigMapSource, digest: Digest) -> anyhow::Result<Value> {
        let source = Some(Source { file: None, config_map: Some(source) });
        let spec = PluginSpec { source, digest: Some(digest), ..self.spec.clone() };
        Ok(json!({
            "apiVersion": "operetta.dev/v1alpha1", "kind": "Plugin",
            "metadata": {"name": self.plugin.as_str(), "labels": self.labels()}, "spec": spec,
        }))
    }
}

/// The ConfigMaps that a Plugin names.
fn named(plugin: &Value) -> Vec<String> {
    let source = plugin.pointer("/spec/source/configMap").cloned().unwrap_or_default();
    let source: Option<ConfigMapSource> = serde_json::from_value(source).ok();
    source.and_then(|source| source.names().ok()).into_iter().flatten().map(|name| name.to_string()).collect()
}
