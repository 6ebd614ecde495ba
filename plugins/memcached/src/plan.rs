//! The Deployment that an object describes, and what an observed one says. Pure.

use crate::api::Memcached;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{
            Capabilities, Container, ContainerPort, PodSecurityContext, PodSpec, PodTemplateSpec, SeccompProfile,
            SecurityContext,
        },
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use operetta_sdk::{State, controller_reference};
use std::collections::BTreeMap;

/// What runs where the plugin's setting does not say otherwise.
pub(crate) const IMAGE: &str = "memcached:1.4.36-alpine";
/// Which version of the plugin wrote a Deployment; version 0.1.0 did not say so.
#[cfg(feature = "next")]
const OPERATOR_VERSION: &str = "cache.example.com/operator-version";

/// The Deployment of an object. Holds the fields that this plugin cares for and no others, since an apply owns what it names.
pub(crate) fn deployment(object: &Memcached, image: &str) -> Deployment {
    let name = object.metadata.name.clone().unwrap_or_default();
    // What the selector names can never change, so no version is in it.
    let selector = BTreeMap::from([
        ("app.kubernetes.io/name".to_owned(), "memcached".to_owned()),
        ("app.kubernetes.io/instance".to_owned(), name.clone()),
    ]);
    let mut labels = selector.clone();
    labels.insert("app.kubernetes.io/part-of".to_owned(), "memcached-operator".to_owned());
    labels.insert("app.kubernetes.io/managed-by".to_owned(), "operetta".to_owned());
    if let Some(version) = version_label(image) {
        labels.insert("app.kubernetes.io/version".to_owned(), version.to_owned());
    }
    Deployment {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(labels.clone()),
            annotations: annotations(),
            owner_references: controller_reference(object).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            replicas: Some(object.spec.size),
            selector: LabelSelector { match_labels: Some(selector), ..LabelSelector::default() },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
                spec: Some(PodSpec {
                    security_context: Some(PodSecurityContext {
                        run_as_non_root: Some(true),
                        seccomp_profile: Some(SeccompProfile {
                            type_: "RuntimeDefault".to_owned(),
                            ..SeccompProfile::default()
                        }),
                        ..PodSecurityContext::default()
                    }),
                    containers: vec![container(object.spec.container_port, image)],
                    ..PodSpec::default()
                }),
            },
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn container(port: i32, image: &str) -> Container {
    let command = ["memcached", "-m=64", "-o", "modern", "-v"];
    Container {
        name: "memcached".to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(command.map(str::to_owned).to_vec()),
        ports: Some(vec![ContainerPort {
            container_port: port,
            name: Some("memcached".to_owned()),
            // Part of a port's identity in an apply.
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        security_context: Some(SecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(1001),
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}

#[cfg(not(feature = "next"))]
fn annotations() -> Option<BTreeMap<String, String>> {
    None
}

#[cfg(feature = "next")]
fn annotations() -> Option<BTreeMap<String, String>> {
    Some(BTreeMap::from([(OPERATOR_VERSION.to_owned(), crate::VERSION.to_owned())]))
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
pub(crate) fn progress(deployment: &Deployment) -> (State, &'static str, String) {
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = deployment.status.clone().unwrap_or_default();
    let stuck = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "Progressing" && condition.status == "False")
        .map(|condition| condition.message.clone().unwrap_or_default());
    let seen = status.observed_generation >= deployment.metadata.generation;
    let counts = [status.replicas, status.updated_replicas, status.available_replicas];
    if seen && counts.iter().all(|count| *count == Some(wanted)) {
        (State::False, "RolledOut", format!("Deployment {name} has {wanted} replicas up to date and available"))
    } else if let Some(message) = stuck.filter(|_| seen) {
        (State::False, "DeadlineExceeded", format!("Deployment {name} does not get on: {message}"))
    } else {
        (State::True, "RollingOut", format!("Deployment {name} rolls out {wanted} replicas"))
    }
}
