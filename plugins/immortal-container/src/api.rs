//! The custom resource `ImmortalContainer`.
#![allow(clippy::duplicated_attributes, reason = "clippy takes the fields of two printer columns for one attribute")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A container that is always there.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[kube(
    group = "immortalcontainer.flugel.it",
    version = "v1alpha1",
    kind = "ImmortalContainer",
    namespaced,
    status = "ImmortalContainerStatus",
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image"),
    printcolumn(name = "Pod", type_ = "string", json_path = ".status.currentPod"),
    printcolumn(name = "Starts", type_ = "integer", json_path = ".status.startTimes"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ImmortalContainerSpec {
    /// What it runs.
    #[schemars(length(min = 1))]
    pub image: String,
}

/// Where the container is.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImmortalContainerStatus {
    /// The pod that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_pod: Option<String>,
    /// How many pods were made for it.
    #[serde(default)]
    pub start_times: u64,
    /// `Ready`: the pod runs.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
