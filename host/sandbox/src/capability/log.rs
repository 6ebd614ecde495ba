//! The interface `log`.

use operetta_core::port::Level;

use crate::{
    bindings::operetta::operator::log::{self, Host},
    state::State,
};

impl Host for State {
    fn enabled(&mut self, level: log::Level) -> wasmtime::Result<bool> {
        // While it is described, only what explains a failure.
        Ok(self.effects().map_or(level == log::Level::Error, |effects| effects.log_enabled(convert(level))))
    }

    fn write(
        &mut self,
        level: log::Level,
        target: String,
        message: String,
        fields: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        match self.effects() {
            Ok(effects) => effects.log(convert(level), &target, &message, &fields),
            Err(_) => self.say(&message),
        }
        Ok(())
    }
}

fn convert(level: log::Level) -> Level {
    match level {
        log::Level::Trace => Level::Trace,
        log::Level::Debug => Level::Debug,
        log::Level::Info => Level::Info,
        log::Level::Warn => Level::Warn,
        log::Level::Error => Level::Error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_it_is_described_only_errors_are_worth_saying() {
        let mut state = crate::state::testing::described();
        let worth = [log::Level::Trace, log::Level::Debug, log::Level::Info, log::Level::Warn, log::Level::Error]
            .map(|level| state.enabled(level).unwrap());
        assert_eq!(worth, [false, false, false, false, true]);
    }
}
