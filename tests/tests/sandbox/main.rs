//! The sandbox against fake ports: no cluster, no host. What a guest gets, what it cannot get, and that what it does to itself harms nobody else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod cache;
mod contain;
mod hostile;
mod imports;
mod load;
mod setup;
mod wasi;
mod world;
