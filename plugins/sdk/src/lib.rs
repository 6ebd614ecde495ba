//! Write Kubernetes operators as WebAssembly components for Operetta.
//!
//! A plugin is a `#[derive(CustomResource)]` struct, a function that reconciles it, and a [`Plugin`] that says what belongs together:
//!
//! ```
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::CustomResource;
//! use operetta_sdk::prelude::*;
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use serde_json::json;
//!
//! #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
//! #[kube(group = "hello.example.com", version = "v1", kind = "Greeting", namespaced)]
//! struct GreetingSpec {
//!     name: String,
//! }
//!
//! async fn reconcile(ctx: &Context, greeting: Greeting) -> Result<Outcome, Failure> {
//!     let text = format!("Hello, {}!", greeting.spec.name);
//!     let owner = controller_reference(&greeting);
//!     let config = json!({"metadata": {"ownerReferences": [owner]}, "data": {"text": text}});
//!     ctx.api::<ConfigMap>().apply(&ctx.request().key.name, &config).await?;
//!     tracing::info!(text, "greeted");
//!     Ok(Outcome::AwaitChange)
//! }
//!
//! fn plugin() -> Plugin {
//!     operetta_sdk::plugin!()
//!         .crd::<Greeting>()
//!         .controller(Controller::new("greeting", reconcile).owns::<ConfigMap>())
//!         .allow(Rule::of::<ConfigMap>(Verb::APPLY))
//! }
//!
//! operetta_sdk::export!(plugin);
//! # fn main() {}
//! ```
//!
//! The crate is a `cdylib` (and an `rlib`, for its tests) built for `wasm32-unknown-unknown` with `linker = "wasm-component-ld"`.
//!
//! Inside the sandbox every effect is an import of the component; natively it goes to [`testing::FakeHost`], an API server in memory, so plugin logic is tested
//! with plain `cargo test`, crashes included. **Each reconcile starts in a fresh instance: nothing survives in a static.** Time, random numbers and waiting come from
//! [`Context`]: those of `std` panic on this target.

mod api;
mod conditions;
mod context;
mod error;
mod events;
mod finalizer;
mod grpc;
#[cfg(target_arch = "wasm32")]
mod heap;
pub mod host;
mod kind;
#[cfg(target_arch = "wasm32")]
mod log;
pub mod manifest;
mod owner;
mod plugin;
pub mod sql;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub mod wit;

pub use api::{Api, DeleteParams, JsonPatch, ListParams};
pub use conditions::{Conditions, State};
pub use context::{Cause, Context, Outcome, Request};
pub use error::{Error, Failure};
pub use events::Events;
pub use finalizer::{Event, finalizer};
pub use grpc::Channel;
pub use kind::{Kind, Scope};
pub use owner::{controller_reference, controls};
pub use plugin::{Controller, Plugin};

/// What nearly every plugin needs.
pub mod prelude {
    pub use crate::{
        Conditions, Context, Controller, Error, Event, Failure, Outcome, Plugin, State, controller_reference, controls,
        finalizer,
        manifest::{Mapping, Predicate, Rule, Verb},
    };
}

/// A [`Plugin`] with the name, version and description that the crate's Cargo.toml gives.
#[macro_export]
macro_rules! plugin {
    () => {
        $crate::Plugin::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), env!("CARGO_PKG_DESCRIPTION"))
    };
}

/// Makes the crate a component: takes the name of a function that returns a [`Plugin`]. Does nothing in a native build.
#[macro_export]
macro_rules! export {
    ($plugin:path) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;

            impl $crate::wit::bindings::Guest for Component {
                fn manifest() -> String {
                    $crate::wit::manifest($plugin)
                }

                async fn reconcile(
                    request: $crate::wit::bindings::Request,
                ) -> Result<$crate::wit::bindings::Outcome, $crate::wit::bindings::Failure> {
                    $crate::wit::reconcile($plugin, request).await
                }
            }

    $crate::wit::bindings::export_component!(Component with_types_in $crate::wit::bindings);
        };
    };
}
