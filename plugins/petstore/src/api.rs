//! The custom resource `Pet`.
#![allow(clippy::duplicated_attributes, reason = "clippy takes the fields of two printer columns for one attribute")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A pet that lives in the pet store as long as this object does.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[kube(
    group = "petstore.example.com",
    version = "v1alpha1",
    kind = "Pet",
    namespaced,
    status = "PetStatus",
    printcolumn(name = "Name", type_ = "string", json_path = ".spec.name"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Birthday", type_ = "date", json_path = ".spec.birthday", priority = 1),
    printcolumn(name = "ID", type_ = "string", json_path = ".status.id"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct PetSpec {
    /// What it is called.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// What sort of animal it is.
    #[serde(rename = "type")]
    pub kind: PetType,
    /// When it was born.
    pub birthday: Time,
}

/// A sort of animal.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum PetType {
    /// Barks.
    Dog,
    /// Purrs.
    Cat,
    /// Sings.
    Bird,
    /// Does none of it.
    Reptile,
}

/// What the pet store says of the pet.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PetStatus {
    /// The identifier that the store returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `Ready`: the store holds the pet as the object says.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
