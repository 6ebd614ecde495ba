//! The Deployment that an object describes, and what an observed one says. Pure.

use crate::api::Memcached;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use operetta_sdk::{State, controller_reference};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What runs where the plugin's setting does not say otherwise.
pub(crate) const IMAGE: &str = "memcached:1.4.36-alpine";
/// Which version of the plugin wrote a Deployment; version 0.1.0 did not say so.
const OPERATOR_VERSION: &str = "cache.example.com/operator-version";

/// What matters of a Deployment.
#[derive(Deserialize)]
pub(crate) struct DeploymentView {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: SpecView,
    #[serde(default)]
    status: StatusView,
}

#[derive(Deserialize)]
pub(crate) struct SpecView {
    pub(crate) replicas: Option<i32>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusView {
    observed_generation: Option<i64>,
    replicas: Option<i32>,
    updated_replicas: Option<i32>,
    available_replicas: Option<i32>,
    conditions: Vec<ConditionView>,
}

#[derive(Deserialize)]
struct ConditionView {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default)]
    message: String,
}

/// The Deployment of an object. Holds the fields that this plugin cares for and no others, since an apply owns what it names.
pub(crate) fn deployment(object: &Memcached, image: &str) -> Value {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    // What the selector names can never change, so no version is in it.
    let selector = BTreeMap::from([("app.kubernetes.io/name", "memcached"), ("app.kubernetes.io/instance", name)]);
    let mut labels = selector.clone();
    labels.insert("app.kubernetes.io/part-of", "memcached-operator");
    labels.insert("app.kubernetes.io/managed-by", "memcached-operator");
    if let Some(version) = version_label(image) {
        labels.insert("app.kubernetes.io/version", version);
    }
    let owners = [controller_reference(object)];
    let metadata = if cfg!(feature = "next") {
        json!({"labels": labels, "ownerReferences": owners, "annotations": {OPERATOR_VERSION: crate::VERSION}})
    } else {
        json!({"labels": labels, "ownerReferences": owners})
    };
    json!({
        "metadata": metadata,
        "spec": {
            "replicas": object.spec.size,
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [container(object.spec.container_port, image)],
                },
            },
        },
    })
}

fn container(port: i32, image: &str) -> Value {
    json!({
        "name": "memcached",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["memcached", "-m=64", "-o", "modern", "-v"],
        // The protocol is part of a port's identity in an apply.
        "ports": [{"name": "memcached", "containerPort": port, "protocol": "TCP"}],
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": 1001,
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
        },
    })
}

/// The image's tag, where it is fit for a label.
fn version_label(image: &str) -> Option<&str> {
    let name = image.split('@').next()?;
    let (_, tag) = name.rsplit('/').next()?.split_once(':')?;
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    (tag.len() <= 63 && edge(tag.chars().next()) && edge(tag.chars().last())).then_some(tag)
}

/// What `Available` says once the Deployment is as described.
pub(crate) fn available_message(name: &str, size: i32) -> String {
    let message = format!("Deployment for custom resource ({name}) with {size} replicas created successfully");
    if cfg!(feature = "next") { format!("{message}; looked after by version {}", crate::VERSION) } else { message }
}

/// What `Progressing` says of a roll-out: status, reason and message.
pub(crate) fn progress(deployment: &DeploymentView) -> (State, &'static str, String) {
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let wanted = deployment.spec.replicas.unwrap_or(1);
    let status = &deployment.status;
    let stuck =
        status.conditions.iter().find(|condition| condition.kind == "Progressing" && condition.status == "False");
    let seen = status.observed_generation >= deployment.metadata.generation;
    let counts = [status.replicas, status.updated_replicas, status.available_replicas];
    if seen && counts.iter().all(|count| *count == Some(wanted)) {
        (State::False, "RolledOut", format!("Deployment {name} has {wanted} replicas up to date and available"))
    } else if let Some(stuck) = stuck.filter(|_| seen) {
        (State::False, "DeadlineExceeded", format!("Deployment {name} does not get on: {}", stuck.message))
    } else {
        (State::True, "RollingOut", format!("Deployment {name} rolls out {wanted} replicas"))
    }
}
