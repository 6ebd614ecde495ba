//! The log: one line an event, for people or as JSON, on standard error.

use clap::ValueEnum;
use operetta_core::{
    port::{Caller, Level, Log},
    resource::ObjectKey,
};
use tracing_subscriber::EnvFilter;

use crate::exit::Failed;

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Begins to log. `filter` is as in `RUST_LOG`, for example `info` or `operetta=debug,plugin=trace`.
///
/// # Errors
/// The filter cannot be read.
pub fn init(format: LogFormat, filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).map_err(|e| {
        Failed::usage(format!("--log-level {filter:?}: {e}; write for example info, or operetta=debug,plugin=trace"))
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error means that a subscriber is set already, as in tests.
    let _ = match format {
        LogFormat::Text => {
            let colour = std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(colour).try_init()
        }
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).with_span_list(true).try_init(),
    };
    Ok(())
}

/// Where the log of one reconcile goes. Guests run on threads of their own, so each line carries what it belongs to as fields instead of in a span.
pub struct ReconcileLog {
    plugin: String,
    controller: String,
    namespace: Option<String>,
    name: String,
    id: String,
}

impl ReconcileLog {
    /// For one reconcile of `key`.
    pub fn new(caller: &Caller, key: &ObjectKey, id: String) -> Self {
        Self {
            plugin: caller.plugin.to_string(),
            controller: caller.controller.to_string(),
            namespace: key.namespace.as_ref().map(ToString::to_string),
            name: key.name.to_string(),
            id,
        }
    }
}

/// A line at a level that is known only when it is written, which tracing's macros want to know when they are compiled.
macro_rules! at {
    ($level:expr, $macro:ident) => {
        match $level {
            Level::Trace => $macro!(TRACE),
            Level::Debug => $macro!(DEBUG),
            Level::Info => $macro!(INFO),
            Level::Warn => $macro!(WARN),
            Level::Error => $macro!(ERROR),
        }
    };
}

impl Log for ReconcileLog {
    fn enabled(&self, level: Level) -> bool {
        macro_rules! enabled {
            ($level:ident) => {
                tracing::enabled!(target: "plugin", tracing::Level::$level)
            };
        }
        at!(level, enabled)
    }

    fn write(&self, level: Level, target: &str, message: &str, fields: &[(String, String)]) {
        let fields = fields.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ");
        macro_rules! write {
            ($level:ident) => {
                tracing::event!(
                    target: "plugin",
                    tracing::Level::$level,
                    plugin = self.plugin,
                    controller = self.controller,
                    object.namespace = self.namespace,
                    object.name = self.name,
                    reconcile_id = self.id,
                    logger = target,
                    fields = (!fields.is_empty()).then_some(fields.as_str()),
                    "{message}"
                )
            };
        }
        at!(level, write);
    }
}
