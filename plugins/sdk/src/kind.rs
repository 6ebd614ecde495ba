//! A Kubernetes kind that is known when the plugin is compiled: k8s-openapi's types and those of `#[derive(CustomResource)]`.

use crate::host::Resource;
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use serde::de::DeserializeOwned;

/// Whether objects of a scope lie in namespaces.
pub trait Scope {
    /// They do.
    const NAMESPACED: bool;
}

impl Scope for NamespaceResourceScope {
    const NAMESPACED: bool = true;
}

impl Scope for ClusterResourceScope {
    const NAMESPACED: bool = false;
}

/// A kind known at compile time. Implemented for every such type; nothing to write.
pub trait Kind: kube::Resource<DynamicType = ()> + DeserializeOwned + 'static {
    /// Whether its objects lie in namespaces.
    const NAMESPACED: bool;

    /// Its name in URLs.
    fn resource() -> Resource {
        Resource::new(Self::group(&()), Self::version(&()), Self::plural(&()))
    }
}

impl<K> Kind for K
where
    K: kube::Resource<DynamicType = ()> + DeserializeOwned + 'static,
    K::Scope: Scope,
{
    const NAMESPACED: bool = <K::Scope as Scope>::NAMESPACED;
}
