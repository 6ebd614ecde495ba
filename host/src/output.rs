//! What commands print: text for people, JSON or YAML for scripts, on standard output.

use std::io::Write as _;

use operetta_core::effect::printable;
use serde::Serialize;

/// A form that scripts read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// `-o`, of each command whose answer a script may want.
#[derive(Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Print JSON or YAML instead of text for people
    #[arg(short, long, value_name = "FORMAT")]
    pub(crate) output: Option<Format>,
}

impl Format {
    /// The value in this form.
    pub(crate) fn render(self, value: &impl Serialize) -> anyhow::Result<String> {
        Ok(match self {
            Self::Json => format!("{}\n", serde_json::to_string_pretty(value)?),
            Self::Yaml => serde_saphyr::to_string(value)?,
        })
    }
}

/// To standard output; whoever reads may stop reading, as `head` does.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// One line for people of what strangers wrote: it does not end early, and a terminal takes nothing in it for a command. JSON and YAML have escapes of their own.
pub(crate) fn one_line(text: &str) -> String {
    printable(text, usize::MAX)
}

/// `1,310,720`.
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_line_gets_out_of_it() {
        for (text, shown) in [
            ("a\u{1b}[40A\u{1b}[J", r"a\u{1b}[40A\u{1b}[J"),
            ("a\nGranted\r", r"a\nGranted\r"),
            ("\u{9b}2J\u{202e}b\u{2066}", r"\u{9b}2J\u{202e}b\u{2066}"),
            ("  all that it asks f\u{f6}r", "  all that it asks f\u{f6}r"),
        ] {
            assert_eq!(one_line(text), shown);
        }
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
