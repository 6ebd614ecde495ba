//! Runs operators as WebAssembly components in wasmtime: loads what nobody trusts, gives each reconcile an instance of its own, and keeps it within its limits.
//!
//! **No kube type, no network, and no decision about what is allowed live here.** Everything a guest does to the world goes through [`operetta_core::effect::Effects`].
//!
//! | module | owns |
//! | --- | --- |
//! | [`sandbox`] | what all components share: engine, pool, guests' threads, memory, cache |
//! | [`budget`] | how much memory all guests have together |
//! | `guests` | who computes when |
//! | [`verify`] | the cheap first look at a stranger's component |
//! | [`compile`] | compiling it in a child process |
//! | [`cache`] | compiled components on disk, each with a MAC; the only `unsafe` |
//! | [`describe`] | asking a component what it is |
//! | [`stamp`] | the same, written into the component |
//! | [`component`] | all of loading |
//! | [`operator`] | reconciles |
//! | `meter`, `fault` | limits, and how a guest ends badly |
//! | `capability` | what a guest can import, one interface a file |

pub mod budget;
pub mod cache;
pub mod compile;
pub mod component;
pub mod describe;
pub mod operator;
pub mod sandbox;
pub mod stamp;
pub mod verify;

mod bindings;
mod capability;
mod engine;
mod fault;
mod guests;
mod meter;
mod state;

pub use budget::GuestBudget;
pub use cache::forget_marks;
pub use compile::{CompileLimits, compile_main};
pub use component::{Component, LoadError};
pub use operator::{Observer, Operator, Usage, Warm};
pub use sandbox::{Occupancy, Sandbox, SandboxConfig, SandboxError};
