//! The crate as its README tells it; what each part is for stands with the part.
#![doc = include_str!("../README.md")]

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
