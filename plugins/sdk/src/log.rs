//! `tracing` and panics, into the host's log. Inside the sandbox only.
//!
//! Spans are not kept: the host already puts plugin, controller, object and reconcile id on every line.

use crate::wit::{log_enabled, log_line};
use std::fmt;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Sends `tracing` events and the messages of panics to the host's log.
pub(crate) fn install() {
    // A second reconcile in the same instance finds both in place.
    if tracing::subscriber::set_global_default(HostLog).is_err() {
        return;
    }
    // The trap that ends a panic does not carry its message.
    std::panic::set_hook(Box::new(|panic| {
        log_line(Level::ERROR, "panic", &panic.to_string(), &[]);
    }));
}

struct HostLog;

impl Subscriber for HostLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && log_enabled(*metadata.level())
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        log_line(*event.metadata().level(), event.metadata().target(), &line.message, &line.fields);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: Vec<(String, String)>,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}

impl Line {
    fn put(&mut self, field: &Field, value: String) {
        if field.name() == "message" {
            self.message = value;
        } else {
            self.fields.push((field.name().to_owned(), value));
        }
    }
}
