//! The custom resource `PostgresWriter`.
#![allow(clippy::duplicated_attributes, reason = "clippy takes the fields of two printer columns for one attribute")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A row in a table.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[kube(
    group = "demo.yash.com",
    version = "v1",
    kind = "PostgresWriter",
    namespaced,
    status = "PostgresWriterStatus",
    printcolumn(name = "Table", type_ = "string", json_path = ".spec.table"),
    printcolumn(name = "Row", type_ = "string", json_path = ".status.rowId"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct PostgresWriterSpec {
    /// The table that holds the row: one identifier, whatever is in it, found by the search path of the connection's role.
    #[schemars(length(min = 1, max = 63))]
    pub table: String,
    /// The row's `name`.
    pub name: String,
    /// The row's `age`.
    #[schemars(range(min = 0))]
    pub age: i64,
    /// The row's `country`.
    pub country: String,
}

/// Where the row is.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PostgresWriterStatus {
    /// The row's `id`: `NAMESPACE/NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_id: Option<String>,
    /// The table that holds the row, or is about to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// Tables that may hold the row still, because it is on its way out of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaving: Vec<String>,
    /// `Ready`: the row is in the table as described.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
