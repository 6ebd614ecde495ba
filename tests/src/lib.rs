//! What tests, demo and benchmarks share: a local control plane, the build of host and plugins, and patience.
//!
//! Nothing of the product may depend on this crate; it may depend on everything. It reaches for no file outside the workspace and for
//! no program but `cargo`, `rustup`, `go` and PostgreSQL's.

pub mod canned;
pub mod child;
pub mod components;
pub mod control_plane;
pub mod demo;
pub mod elsewhere;
pub mod eventually;
pub mod fuzz;
pub mod go;
pub mod host;
pub mod kinds;
pub mod moving;
pub mod petstore;
pub mod postgres;
pub mod progress;
pub mod variant;

pub use eventually::eventually;
