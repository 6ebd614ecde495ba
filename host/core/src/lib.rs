//! The pure heart of Operetta: what things are called, what may be done, what waits, and the ports through which every effect of a
//! plugin leaves its sandbox.
//!
//! **Nothing here knows wasmtime, kube, tonic or the file system.** Time is tokio's clock, so that tests pause it.
//!
//! | module | owns |
//! | --- | --- |
//! | [`annotation`] | what a person says to the host on an object |
//! | [`name`], [`resource`] | names, parsed once at the border |
//! | [`manifest`] | what a plugin says of itself |
//! | [`grant`] | what the administrator lets it do |
//! | [`bounds`] | what no grant allows |
//! | [`limit`] | how much of it |
//! | [`memory`] | which part of the memory is for what, and how plugins share one |
//! | [`port`] | the traits that the world outside implements |
//! | [`effect`] | the one way out: checks the grant, then calls the port |
//! | [`reconcile`] | requests, outcomes, failures |
//! | [`queue`], [`backoff`] | which key runs next |
//! | [`share`] | which plugin gets the next place |
//! | [`cache`] | what is kept of an object, how a change is told |
//! | [`route`] | which keys an event wakes |

pub mod annotation;
pub mod aside;
pub mod backoff;
pub mod bounds;
pub mod cache;
pub mod effect;
pub mod grant;
mod hashed;
pub mod limit;
pub mod looping;
pub mod manifest;
pub mod memory;
pub mod name;
pub mod park;
pub mod port;
pub mod queue;
pub mod reconcile;
pub mod resource;
pub mod route;
pub mod share;
