//! The custom resource `DemoVolume`.
#![allow(clippy::duplicated_attributes, reason = "clippy takes the fields of two printer columns for one attribute")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A volume of a certain size.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[kube(
    group = "demo.operetta.dev",
    version = "v1",
    kind = "DemoVolume",
    namespaced,
    status = "DemoVolumeStatus",
    printcolumn(name = "Name", type_ = "string", json_path = ".status.name"),
    printcolumn(name = "Size", type_ = "integer", json_path = ".spec.size"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct DemoVolumeSpec {
    /// What people call it; the status repeats it.
    pub name: String,
    /// How large it is, in GiB. It may grow where its storage class allows that, and never shrinks.
    #[schemars(range(min = 1))]
    pub size: i32,
}

/// Where the volume is.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DemoVolumeStatus {
    /// What the spec calls it.
    #[serde(default)]
    pub name: String,
    /// `Ready`: its claim is bound to a volume of this size.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
