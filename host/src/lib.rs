//! The host: what `operetta` does, wired from the layers below.

mod adopt;
mod build;
pub mod cargo;
pub mod catalog;
pub mod channels;
pub mod cli;
mod completions;
pub mod controller;
pub mod credentials;
pub mod databases;
mod deploy;
mod dev;
mod diff;
pub mod directory;
mod election;
pub mod exit;
pub mod generate;
mod inspect;
mod install;
pub mod loader;
mod new;
mod objects;
mod output;
pub mod package;
pub mod paused;
pub mod plugin;
pub mod plugin_objects;
mod publish;
pub mod report;
mod run;
pub mod supervisor;
pub mod telemetry;
#[cfg(test)]
mod testing;
mod uninstall;
mod validate;
pub mod vitals;
