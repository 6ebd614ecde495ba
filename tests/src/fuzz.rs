//! The borders where bytes of strangers enter the host, each as a function of bytes that asserts what must hold for all of them: a *target*.
//!
//! A target fails by panicking, and what it was given is then a finding. Two things drive them, with one way of making inputs ([`mutate`]): `cargo test --test fuzz`, for
//! some seconds and with dice that always fall alike, and cargo-fuzz for as long as one likes (`tests/fuzz/README.md`), which includes this file.
//!
//! No target reaches for the network or a cluster: beyond each border stands a [`witness`], who says what came through.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is how a target says that it found something"
)]

mod apply;
mod calls;
mod component;
mod document;
pub mod guest;
mod manifest;
pub mod mutate;
mod name;
mod route;
mod selector;
mod witness;

/// A border, and what must hold there.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, and that of its corpus.
    pub name: &'static str,
    /// Panics where something does not hold.
    pub run: fn(&[u8]),
    /// How many inputs `cargo test` makes for it: some tenths of a second's worth.
    pub inputs: usize,
    /// Whether it runs guests, which [`guest::prepare`] must come before.
    pub guests: bool,
}

/// All of them.
pub const TARGETS: [Target; 10] = [
    Target::of("component", component::look),
    Target { guests: true, inputs: 15, ..Target::of("load", guest::load) },
    Target::of("manifest", manifest::parse),
    Target::of("document", document::parse),
    Target::of("name", name::parse),
    Target::of("route", route::route),
    Target::of("selector", selector::matches),
    Target::of("apply", apply::changes_nothing),
    Target::of("calls", calls::effects),
    Target { guests: true, inputs: 100, ..Target::of("guest", guest::calls) },
];

impl Target {
    const fn of(name: &'static str, run: fn(&[u8])) -> Self {
        Self { name, run, inputs: 3_000, guests: false }
    }

    /// The target of this name.
    pub fn find(name: &str) -> Option<Self> {
        TARGETS.into_iter().find(|target| target.name == name)
    }
}
