//! What follows from an object and the pod that bears its pod's name. Pure.

use crate::api::ImmortalContainer;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use operetta_sdk::{controller_reference, controls};
use serde::Deserialize;
use serde_json::{Value, json};

/// The annotation by which a pod carries the number of its own start.
pub(crate) const START: &str = "immortalcontainer.flugel.it/start";
/// The container's name in the pod.
pub(crate) const CONTAINER: &str = "acontainer";

/// What matters of a pod.
#[derive(Deserialize)]
pub(crate) struct PodView {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpecView,
    #[serde(default)]
    status: PodStatusView,
}

#[derive(Default, Deserialize)]
struct PodSpecView {
    containers: Vec<ContainerView>,
}

#[derive(Deserialize)]
struct ContainerView {
    name: String,
    image: Option<String>,
}

#[derive(Default, Deserialize)]
struct PodStatusView {
    #[serde(default)]
    phase: String,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The pod is somebody else's: leave it alone.
    NameTaken,
    /// There is no pod: make the one of this start.
    Create(u64),
    /// The pod ended, with this phase: remove it, so that the next one can be made.
    Remove(String),
    /// The pod is about to go: wait for that.
    Wait,
    /// The pod's container, at this place in its list, runs another image.
    SetImage(usize),
    /// All is well, or will be: the pod runs, or does not yet.
    Keep {
        /// It runs.
        running: bool,
    },
}

/// The name of the pod that belongs to an object of this name.
pub(crate) fn pod_name(object: &str) -> String {
    format!("{object}-immortalpod")
}

/// What to do, and how many starts are known by now: those that the status counts, and the one that the pod carries.
pub(crate) fn plan(object: &ImmortalContainer, pod: Option<&PodView>) -> (Step, u64) {
    let counted = object.status.as_ref().map_or(0, |status| status.start_times);
    let Some(pod) = pod else { return (Step::Create(counted + 1), counted) };
    if !controls(object, &pod.metadata) {
        return (Step::NameTaken, counted);
    }
    let carried = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(START)?.parse().ok());
    let starts = counted.max(carried.unwrap_or_default());
    if pod.metadata.deletion_timestamp.is_some() {
        return (Step::Wait, starts);
    }
    if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
        return (Step::Remove(pod.status.phase.clone()), starts);
    }
    let strays = |container: &ContainerView| {
        container.name == CONTAINER && container.image.as_deref() != Some(object.spec.image.as_str())
    };
    match pod.spec.containers.iter().position(strays) {
        Some(position) => (Step::SetImage(position), starts),
        None => (Step::Keep { running: pod.status.phase == "Running" }, starts),
    }
}

/// The pod of a start.
pub(crate) fn pod(object: &ImmortalContainer, start: u64) -> Value {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    json!({
        "metadata": {
            "name": pod_name(name),
            "labels": {"app": name},
            "annotations": {START: start.to_string()},
            "ownerReferences": [controller_reference(object)],
        },
        "spec": {"containers": [{"name": CONTAINER, "image": object.spec.image}]},
    })
}
