//! The host's log as data: one JSON object a line.

use std::{
    fmt,
    fs::File,
    io::{ErrorKind, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::eventually;

/// How many lines an error shows of those that did not fit.
const SHOWN: usize = 30;

/// A log file that grows.
#[derive(Debug, Clone)]
pub struct Log(PathBuf);

/// A place in a log, to ask only for what comes after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(u64);

/// One event.
#[derive(Debug, Clone)]
pub struct Line(Value);

impl Log {
    /// The log in this file, which need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The present end.
    pub fn mark(&self) -> Mark {
        Mark(std::fs::metadata(&self.0).map_or(0, |meta| meta.len()))
    }

    /// The beginning.
    pub fn start() -> Mark {
        Mark(0)
    }

    /// What came after the mark. A line that is no JSON, such as a panic's, stands as an event with that text as its message.
    pub fn after(&self, mark: Mark) -> Result<Vec<Line>> {
        let read = || {
            let mut file = File::open(&self.0)?;
            file.seek(SeekFrom::Start(mark.0))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            std::io::Result::Ok(bytes)
        };
        let bytes = match read() {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            other => other.with_context(|| format!("read {}", self.0.display()))?,
        };
        let text = String::from_utf8_lossy(&bytes);
        // What follows the last line break is a line still being written.
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        Ok(whole.map(|line| Line(serde_json::from_str(line).unwrap_or_else(|_| Value::String(line.into())))).collect())
    }

    /// The first line after the mark that fits, as soon as there is one.
    pub async fn until(&self, what: &str, mark: Mark, within: Duration, fits: impl Fn(&Line) -> bool) -> Result<Line> {
        eventually(&format!("the host logs {what}"), within, async || {
            let mut lines = self.after(mark)?;
            if let Some(at) = lines.iter().position(&fits) {
                return Ok(lines.swap_remove(at));
            }
            let last = lines.iter().rev().take(SHOWN).rev().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            bail!("it logged {} lines, the last being:\n{last}", lines.len())
        })
        .await
    }
}

impl Line {
    /// What happened.
    pub fn message(&self) -> &str {
        self.0.as_str().map_or_else(|| self.text("message"), str::trim_end)
    }

    /// A field's text, of the event itself or the nearest span that has it; empty where none has.
    pub fn text(&self, field: &str) -> &str {
        let spans = self.0.get("spans").and_then(Value::as_array).into_iter().flatten().rev();
        let mut places = std::iter::once(&self.0).chain(spans);
        places.find_map(|place| place.get(field)?.as_str()).unwrap_or_default()
    }

    /// Which plugin it is about.
    pub fn plugin(&self) -> &str {
        self.text("plugin")
    }

    /// How bad it is, in capitals: `INFO`, `ERROR`.
    pub fn level(&self) -> &str {
        self.text("level")
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_from_the_event_or_its_spans_and_half_a_line_waits() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = Log::new(file.path());
        std::fs::write(file.path(), concat!(
            r#"{"level":"ERROR","message":"reconcile failed","spans":[{"plugin":"a","object.name":"x"},{"object.name":"y"}]}"#,
            "\nthread 'main' panicked\n{\"mess",
        ))
        .unwrap();
        let lines = log.after(Log::start()).unwrap();
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[0].plugin(), lines[0].text("object.name"), lines[0].level()), ("a", "y", "ERROR"));
        assert_eq!(lines[1].message(), "thread 'main' panicked");
        assert!(log.after(log.mark()).unwrap().is_empty());
    }
}
