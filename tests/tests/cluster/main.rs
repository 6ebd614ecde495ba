//! Everything that is tested against a real API server, in one program, so that the control plane starts once.
//!
//! Each test works in a namespace of its own and makes its own client and its own host; `shared` is what they share. `OPERETTA_KUBECONFIG`
//! makes the cluster one of the user's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod admission;
mod author;
mod bad_input;
mod cli;
mod control_plane;
mod demo_volume;
mod deploy;
mod dev;
mod gate;
mod grant_matrix;
mod identity;
mod immortal;
mod in_cluster;
mod informers;
mod install;
mod layer;
mod leader;
mod limits;
mod memcached;
mod moving;
mod new;
mod pause;
mod petstore;
mod plugins;
mod postgres_writer;
mod shared;
mod supervisor;
mod swap;
mod writes;
