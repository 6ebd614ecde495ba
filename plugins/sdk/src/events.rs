//! Kubernetes events about the object being reconciled: best effort, as everywhere in Kubernetes.

use crate::host::{Handle, Host, ObjectKey, Resource, Severity};

/// Publishes events. One that fails is logged and otherwise forgotten: an event never fails a reconcile.
pub struct Events<'a> {
    host: &'a Handle,
    resource: &'a Resource,
    key: &'a ObjectKey,
}

impl<'a> Events<'a> {
    pub(crate) fn new(host: &'a Handle, resource: &'a Resource, key: &'a ObjectKey) -> Self {
        Self { host, resource, key }
    }

    /// Something happened that was meant to. `reason` is an UpperCamelCase word.
    pub async fn normal(&self, reason: &str, message: &str) {
        self.publish(Severity::Normal, reason, message).await;
    }

    /// Something needs attention. `reason` is an UpperCamelCase word.
    pub async fn warning(&self, reason: &str, message: &str) {
        self.publish(Severity::Warning, reason, message).await;
    }

    async fn publish(&self, severity: Severity, reason: &str, message: &str) {
        if let Err(error) = self.host.publish(self.resource, self.key, severity, reason, message).await {
            tracing::warn!(reason, %error, "event not published");
        }
    }
}
