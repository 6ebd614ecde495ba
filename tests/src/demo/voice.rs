//! How the demo speaks: what a person would type, what came of it, and how long that took.

use std::{
    io::{IsTerminal as _, Write as _},
    time::Duration,
};

/// Writes a line. The demo goes on when nobody listens any more.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn styled(code: &str, text: &str) -> String {
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    } else {
        text.to_owned()
    }
}

/// A part begins.
pub fn title(text: &str) {
    say(&format!("\n{}", styled("1", text)));
}

/// What a person would type for what happens now.
pub fn command(line: &str) {
    say(&format!("  {}", styled("36", &format!("$ {line}"))));
}

/// It came true.
pub fn ok(what: &str, took: Duration) {
    say(&format!("  {} {what} {}", styled("32", "✓"), styled("2", &format!("({took:.1?})"))));
}

/// It did not.
pub fn failed(error: &anyhow::Error) {
    say(&format!("  {} {}", styled("31", "✗"), format!("{error:#}").replace('\n', "\n    ")));
}

/// A line of the host's log, as an administrator sees it.
pub fn quote(text: &str) {
    for line in text.lines() {
        say(&format!("    {}", styled("2", &format!("│ {line}"))));
    }
}
