//! The Kubernetes side of Operetta: what `operetta-core` calls ports, on a real API server.
//!
//! **Every request about users' objects is made as a plugin's own service account**; the host's own client only asks what kinds there are, which
//! accounts exist and what became of Plugins. Nothing here knows of WebAssembly.
//!
//! | module | owns |
//! | --- | --- |
//! | [`client`], [`answer`] | the connection and the wait for it; what answers may take of the host's memory |
//! | [`identity`] | acting as a service account |
//! | [`discovery`] | which kinds there are, now |
//! | [`informer`] | the shared watch caches |
//! | [`kubernetes`] | reads and writes of one plugin |
//! | [`ownership`] | whether an apply would change anything |
//! | [`object`], [`selector`] | objects as they are kept, and which of them a selector means |
//! | [`lease`] | leader election |
//! | [`kinds`], [`annotate`], [`adopt`] | what a person does to objects, with their own rights |
//! | [`vault`] | Secrets and ConfigMaps of the host's own namespace |
//! | [`plugins`] | the Plugins of the cluster, with the host's own account |
//! | [`review`] | what an account may do, asked by a person |
//! | [`install`] | CRDs, accounts and RBAC, with a person's own rights |

#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        clippy::semicolon_if_nothing_returned,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        missing_docs
    )
)]

pub mod access;
pub mod adopt;
pub mod annotate;
pub mod answer;
pub mod client;
pub mod discovery;
mod events;
pub mod identity;
pub mod informer;
pub mod install;
pub mod kinds;
pub mod kubernetes;
pub mod lease;
pub mod object;
mod overlay;
pub mod ownership;
pub mod plugins;
pub mod request;
pub mod review;
pub mod selector;
mod single;
#[cfg(test)]
mod testing;
pub mod vault;

use std::sync::Arc;

use operetta_core::{
    cache::{Informers, Scope},
    name::Actor,
    port::{ApiError, Kubernetes},
};

use crate::{
    access::Access,
    discovery::Discovery,
    identity::Identity,
    informer::{CacheBudget, SharedInformers},
    kubernetes::PluginKubernetes,
};

/// One cluster: everything that the plugins of a host share.
pub struct Cluster {
    client: kube::Client,
    discovery: Arc<Discovery>,
    identity: Arc<dyn Identity>,
    informers: Arc<SharedInformers>,
}

impl Cluster {
    /// On an open connection. Spawns the watch of CRDs on the current runtime, on which all informers run too; it ends when the cluster is dropped.
    pub fn new(client: kube::Client, identity: Arc<dyn Identity>, cache: Arc<CacheBudget>) -> Self {
        let discovery = Discovery::start(client.clone());
        let access = Arc::new(Access::new(Arc::clone(&identity)));
        let informers = SharedInformers::new(Arc::clone(&identity), Arc::clone(&discovery), access, cache);
        Self { client, discovery, identity, informers }
    }

    /// The host's own client.
    pub fn client(&self) -> &kube::Client {
        &self.client
    }

    /// What kinds there are.
    pub fn discovery(&self) -> &Arc<Discovery> {
        &self.discovery
    }

    /// The shared watch caches.
    pub fn informers(&self) -> Arc<dyn Informers> {
        Arc::clone(&self.informers) as Arc<dyn Informers>
    }

    /// How many watches run, for tests and metrics.
    pub fn watches(&self) -> usize {
        self.informers.running()
    }

    /// Whether a plugin may act as its account, now.
    ///
    /// # Errors
    /// As [`Identity::client`].
    pub async fn check_actor(&self, actor: &Actor) -> Result<(), ApiError> {
        self.identity.client(actor).await.map(drop)
    }

    /// The API server as one plugin sees it: acting as its account, within `scope` only.
    pub fn kubernetes(&self, actor: Actor, scope: Scope) -> Arc<dyn Kubernetes> {
        Arc::new(PluginKubernetes::new(
            actor,
            scope,
            Arc::clone(&self.identity),
            Arc::clone(&self.discovery),
            Arc::clone(&self.informers),
        ))
    }
}
