//! What a person sees who watches one plugin at work: a line for each reconcile and for each thing that it says, with the time and the object in front.

use std::{collections::BTreeMap, fmt, io::IsTerminal as _};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{
    EnvFilter, Layer, layer::Context, layer::SubscriberExt as _, registry::LookupSpan, util::SubscriberInitExt as _,
};

/// What is shown unless told: all of the plugin, and of the host what it does with it.
pub(super) const DEFAULT: &str =
    "warn,operetta::dev=info,operetta::plugin=info,operetta::controller=debug,plugin=trace";

/// Begins to show.
///
/// # Errors
/// The filter cannot be read.
pub(super) fn init(filter: &str) -> anyhow::Result<()> {
    let plain = filter == DEFAULT;
    let filter = EnvFilter::try_new(filter)
        .map_err(|e| anyhow::anyhow!("--log-level {filter:?}: {e}; write for example info, or plugin=debug"))?;
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::registry().with(filter).with(Show { colour, plain }).try_init()?;
    Ok(())
}

struct Show {
    /// For a terminal.
    colour: bool,
    /// Nobody asked for more.
    plain: bool,
}

/// Fields of a span or an event, as text.
#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Fields {
    fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Show {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        // Of what the host tells those who debug it, only how each reconcile ended is for the plugin's author.
        let ours = event.metadata().target() != "plugin" && *event.metadata().level() > Level::INFO;
        if self.plain && ours && fields.0.get("message").is_none_or(|message| message != "reconciled") {
            return;
        }
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(outer) = span.extensions().get::<Fields>() {
                for (name, value) in &outer.0 {
                    fields.0.entry(name).or_insert_with(|| value.clone());
                }
            }
        }
        let text = line(*event.metadata().level(), event.metadata().target(), fields);
        let now = jiff::Timestamp::now().strftime("%H:%M:%S%.3f");
        let (dim, mark, plain) = if self.colour {
            let mark = match *event.metadata().level() {
                Level::ERROR => "\x1b[31m",
                Level::WARN => "\x1b[33m",
                _ => "",
            };
            ("\x1b[2m", mark, "\x1b[0m")
        } else {
            ("", "", "")
        };
        eprintln!("{dim}{now}{plain} {mark}{text}{plain}");
    }
}

/// The text of one event. There is one plugin, so its name goes without saying.
fn line(level: Level, target: &str, mut fields: Fields) -> String {
    let message = fields.take("message").unwrap_or_default();
    let object = match (fields.take("object.namespace"), fields.take("object.name")) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name} "),
        (_, name) => name.map(|name| format!("{name} ")).unwrap_or_default(),
    };
    for known in ["plugin", "controller", "reconcile_id"] {
        fields.take(known);
    }
    if let Some(took) = fields.0.get_mut("took") {
        *took = short(took);
    }
    let mut take = |name: &str| fields.take(name).unwrap_or_default();
    match (target, message.as_str()) {
        ("plugin", _) => {
            take("logger");
            format!("{object}{level} {message} {}", take("fields")).trim_end().to_owned()
        }
        (_, "reconciled") => {
            format!("{object}reconciled in {} ({}): {}", take("took"), take("cause"), take("outcome"))
        }
        (_, "reconcile failed") => {
            let (reason, error, again) = (take("reason"), take("error"), take("retry"));
            format!("{object}failed after {} ({reason}): {error}; again {again}", take("took"))
        }
        (_, "plugin ready" | "plugin exchanged") => {
            let digest: String = take("digest").chars().take(19).collect();
            format!("version {} ({digest}) runs, {} after it was handed over", take("version"), take("took"))
        }
        _ => {
            let rest = fields.0.iter().fold(String::new(), |text, (name, value)| format!("{text} {name}={value}"));
            format!("{object}{message}{rest}")
        }
    }
}

/// A duration without the digits that nobody reads: `1.0ms` for `1.032195ms`.
fn short(duration: &str) -> String {
    let Some((whole, rest)) = duration.split_once('.') else { return duration.to_owned() };
    let unit = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{whole}.{}{unit}", rest.get(..1).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_a_person_wants_to_know_and_no_more() {
        let fields = |pairs: &[(&'static str, &str)]| {
            Fields(pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect())
        };
        let object = [("plugin", "p"), ("controller", "c"), ("object.namespace", "default"), ("object.name", "a")];
        let of = |more: &[(&'static str, &str)]| fields(&[&object[..], more].concat());
        let cases = [
            (
                line(Level::INFO, "plugin", of(&[("message", "kept"), ("logger", "x"), ("fields", "n=1")])),
                "default/a INFO kept n=1",
            ),
            (
                line(
                    Level::DEBUG,
                    "operetta::controller",
                    of(&[
                        ("message", "reconciled"),
                        ("took", "2.034518ms"),
                        ("cause", "Changed"),
                        ("outcome", "AwaitChange"),
                    ]),
                ),
                "default/a reconciled in 2.0ms (Changed): AwaitChange",
            ),
            (
                line(
                    Level::ERROR,
                    "operetta::controller",
                    of(&[
                        ("message", "reconcile failed"),
                        ("took", "2ms"),
                        ("reason", "Trapped"),
                        ("error", "it crashed"),
                        ("retry", "in 1s"),
                        ("attempt", "3"),
                    ]),
                ),
                "default/a failed after 2ms (Trapped): it crashed; again in 1s",
            ),
            (
                line(Level::WARN, "operetta::plugin", fields(&[("message", "denied"), ("rule", "r"), ("plugin", "p")])),
                "denied rule=r",
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(line, expected);
        }
    }
}
