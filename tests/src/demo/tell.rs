//! What the demo writes to the terminal: what a person would type, what happened, how long it took. Colours where there is a terminal that wants them.

use std::{
    cell::RefCell,
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use anyhow::Result;

use super::stage::Stage;
use crate::components::PLUGINS;

const BOLD: &str = "1";
const DIM: &str = "2";
const GREEN: &str = "32";
const RED: &str = "31";
const CYAN: &str = "36";

/// Tells the story.
pub struct Teller {
    colour: bool,
    step: usize,
    began: Instant,
    failed: Vec<String>,
    title: RefCell<String>,
}

impl Teller {
    /// To standard output.
    pub fn stdout() -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { colour, step: 0, began: Instant::now(), failed: Vec::new(), title: RefCell::default() }
    }

    /// What this is.
    pub fn title(&self) {
        self.line(&format!(
            "\n{}\n{}\n",
            self.paint(BOLD, "Operetta: Kubernetes operators as sandboxed WebAssembly components"),
            self.paint(
                DIM,
                &format!(
                    "A real control plane, a pet store, a PostgreSQL and {} operators, all on this machine. The first run builds them.",
                    PLUGINS.len()
                )
            )
        ));
    }

    /// A step begins.
    pub fn begin(&mut self, title: &str) {
        if self.step == 0 {
            // The last bar of the set-up has left the cursor behind it.
            self.line("");
        }
        self.step += 1;
        title.clone_into(&mut self.title.borrow_mut());
        self.line(&format!("\n{} {}", self.paint(CYAN, &format!("{:>2}", self.step)), self.paint(BOLD, title)));
        self.began = Instant::now();
    }

    /// What a person would type for what happens now.
    pub fn types(&self, command: &str) {
        self.line(&format!("   {} {command}", self.paint(DIM, "$")));
    }

    /// What happened.
    pub fn says(&self, text: &str) {
        self.line(&format!("     {text}"));
    }

    /// What happened, and how fast.
    pub fn took(&self, text: &str, time: Duration) {
        self.says(&format!("{text} {}", self.paint(DIM, &format!("({})", shown(time)))));
    }

    /// A step has ended.
    pub fn end(&mut self, result: Result<()>) {
        let took = shown(self.began.elapsed());
        match result {
            Ok(()) => self.line(&format!("   {} {}", self.paint(GREEN, "✓"), self.paint(DIM, &took))),
            Err(error) => {
                self.line(&format!("   {} {}", self.paint(RED, "✗"), self.paint(RED, &format!("{error:#}"))));
                self.failed.push(self.title.borrow().clone());
            }
        }
    }

    /// Whether no step failed.
    pub fn all_went_well(&self) -> bool {
        self.failed.is_empty()
    }

    /// What it all took.
    pub async fn summary(&self, stage: &Stage) -> Result<()> {
        let (cpu, memory, reconciles) = stage.cost().await?;
        self.line("");
        if self.failed.is_empty() {
            self.line(&self.paint(GREEN, "All of it happened."));
        } else {
            self.line(&self.paint(RED, &format!("It did not all happen: {}.", self.failed.join("; "))));
        }
        self.line(&format!(
            "One host process did it: {reconciles} reconciles, each in a sandbox of its own, in {} of CPU time; it holds {} MB.",
            shown(cpu),
            memory >> 20
        ));
        Ok(())
    }

    /// What a person can do now.
    pub fn what_next(&self, stage: &Stage) {
        let heading = |text: &str| self.line(&format!("\n{}", self.paint(BOLD, text)));
        heading("Yours to play with, in a second terminal:");
        self.line("");
        for line in stage.environment() {
            self.line(&format!("  {line}"));
        }
        for (what, lines) in stage.suggestions() {
            self.line(&format!("\n  {}", self.paint(DIM, &format!("# {what}"))));
            for line in lines {
                self.line(&format!("  {line}"));
            }
        }
        self.line(&format!("\n{}", self.paint(DIM, "Ctrl-C stops everything and leaves nothing.")));
    }

    /// The end.
    pub fn clearing(&self) {
        self.line(&self.paint(DIM, "\nClearing everything away."));
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    #[expect(clippy::unused_self, reason = "whoever speaks does it as the teller")]
    fn line(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        // A reader that has gone away, such as `head`, is no reason to leave the stage uncleared.
        let _ = writeln!(out, "{text}");
        let _ = out.flush();
    }
}

/// A time as people say it: two digits that matter.
pub fn shown(time: Duration) -> String {
    match time.as_millis() {
        millis @ 0..1000 => format!("{millis} ms"),
        1000..10_000 => format!("{:.1} s", time.as_secs_f64()),
        _ => format!("{} s", time.as_secs()),
    }
}
