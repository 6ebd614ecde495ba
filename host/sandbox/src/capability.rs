//! What a guest can import, one interface a file. Each turns the contract's types into those of `operetta-core`, calls [`operetta_core::effect::Effects`], and turns the answer back.
//!
//! **Nothing here decides what is allowed**: `Effects` does. An argument that does not parse never gets that far.

pub(crate) mod convert;
pub(crate) mod events;
pub(crate) mod grpc;
pub(crate) mod log;
pub(crate) mod postgres;
pub(crate) mod reader;
pub(crate) mod settings;
pub(crate) mod wasi;
pub(crate) mod writer;

use wasmtime::{Engine, component::Linker};

use crate::{
    bindings::operetta::operator,
    state::{Caps, State},
};

/// A linker with all that a component may import, and the whole of WASI 0.2 if it imports some of that: std imports files and sockets even where it uses
/// none, and their types are entangled, so they are there and lead nowhere.
pub(crate) fn linker(engine: &Engine, wasi_p2: bool) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    operator::types::add_to_linker::<State, Caps>(&mut linker, |state| state)?;
    operator::log::add_to_linker::<State, Caps>(&mut linker, |state| state)?;
    operator::settings::add_to_linker::<State, Caps>(&mut linker, |state| state)?;
    operator::reader::add_to_linker::<State, Caps>(&mut linker, |state| state)?;
    operator::writer::add_to_linker::<State, Caps>(&mut linker, |state| state)?;
    operator::events::add_to_linker::<State, Caps>(&mut linker, |state| state)?;
    operator::grpc::add_to_linker::<State, Caps>(&mut linker, |state| state)?;
    operator::postgres::add_to_linker::<State, Caps>(&mut linker, |state| state)?;
    wasmtime_wasi::p3::clocks::add_to_linker(&mut linker)?;
    wasmtime_wasi::p3::random::add_to_linker(&mut linker)?;
    if wasi_p2 {
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    }
    Ok(linker)
}
