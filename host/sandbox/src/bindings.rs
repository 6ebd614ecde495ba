//! The contract as Rust types and traits, generated from `wit/`. **Nothing outside this crate sees them**: each capability turns them into words of `operetta-core`.

// Generated code is not held to the house's style.
#![allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "operator",
    imports: { default: trappable },
    exports: { "manifest": async },
    with: {
        "operetta:operator/grpc.exchange": crate::capability::grpc::Stream,
        "operetta:operator/postgres.transaction": crate::capability::postgres::Open,
        "wasi:clocks": wasmtime_wasi::p3::bindings::clocks,
        "wasi:random": wasmtime_wasi::p3::bindings::random,
    },
});
