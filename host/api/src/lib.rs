//! The `Plugin` custom resource (`operetta.dev/v1alpha1`): what an administrator writes to run a plugin, as a file beside the component or as an object in the cluster.
//!
//! Refuses to do anything about it: reading files is the host's affair, talking to the cluster the cluster layer's.

mod credential;
mod document;
mod plugin;

pub use credential::{FromKey, FromSecret, FromTlsSecret, KeyRef, Reference};
pub use document::{DocumentError, parse, render};
pub use plugin::{
    Address, Channel, ConfigMapSource, DEFAULT_ACCOUNT_NAMESPACE, Database, DeletionPolicy, GrantSpec, LimitSpec,
    Plugin, PluginSpec, PluginStatus, Source, crd,
};
