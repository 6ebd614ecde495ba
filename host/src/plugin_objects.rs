//! The Plugins of the cluster as this host needs them: a port, so that everything about them is tested without an API server.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use operetta_api::PluginStatus;
use operetta_cluster::plugins::{PartError, Plugins};
use operetta_core::{
    name::{ConfigName, PluginName},
    port::{ApiError, Severity},
};

/// Plugins, their status and their components.
#[async_trait]
pub trait Objects: Send + Sync {
    /// What the status was when the Plugin was last seen.
    fn status(&self, plugin: &PluginName) -> Option<PluginStatus>;
    /// Says what became of this incarnation.
    async fn write(&self, plugin: &PluginName, uid: &str, status: &PluginStatus) -> Result<(), ApiError>;
    /// Keeps this incarnation until it is let go, or lets it go.
    async fn hold(&self, plugin: &PluginName, uid: &str, held: bool) -> Result<(), ApiError>;
    /// A part of a component.
    async fn part(&self, name: &ConfigName) -> Result<Bytes, PartError>;
    /// Publishes an event about a Plugin.
    async fn publish(&self, plugin: &PluginName, severity: Severity, reason: &str, note: &str) -> Result<(), ApiError>;
}

/// Those of a cluster.
pub struct ClusterObjects(pub Arc<Plugins>);

#[async_trait]
impl Objects for ClusterObjects {
    fn status(&self, plugin: &PluginName) -> Option<PluginStatus> {
        let status = self.0.last_seen(plugin)?.get("status").cloned()?;
        // One that somebody else garbled is written anew.
        serde_json::from_value(status).ok()
    }

    async fn write(&self, plugin: &PluginName, uid: &str, status: &PluginStatus) -> Result<(), ApiError> {
        let status = serde_json::to_value(status).map_err(|e| ApiError::Invalid(e.to_string()))?;
        self.0.write_status(plugin, uid, &status).await
    }

    async fn hold(&self, plugin: &PluginName, uid: &str, held: bool) -> Result<(), ApiError> {
        self.0.set_finalizer(plugin, uid, held).await
    }

    async fn part(&self, name: &ConfigName) -> Result<Bytes, PartError> {
        self.0.part(name).await
    }

    async fn publish(&self, plugin: &PluginName, severity: Severity, reason: &str, note: &str) -> Result<(), ApiError> {
        self.0.publish(plugin, severity, reason, note).await
    }
}
