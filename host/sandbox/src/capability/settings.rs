//! The interface `settings`.

use crate::{bindings::operetta::operator::settings::Host, state::State};

impl Host for State {
    fn get(&mut self, name: String) -> wasmtime::Result<Option<String>> {
        Ok(self.effects()?.setting(&name).map(str::to_owned))
    }
}
