//! How long steps tell how they fare: bars on a terminal, plain lines elsewhere. It only shows; it never decides.

use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often a step that is still running says so where there is no terminal to redraw.
const REMINDER: Duration = Duration::from_secs(30);

/// Where steps are shown.
#[derive(Debug, Clone)]
pub struct Progress {
    bars: MultiProgress,
    /// Lines instead of bars, because standard error is a file or a pipe.
    lines: bool,
}

impl Progress {
    /// Shows steps on standard error.
    pub fn stderr() -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let lines = bars.is_hidden();
        Self { bars, lines }
    }

    /// Begins a step. It ends with [`Step::done`]; a step that is dropped without it has failed, and says nothing more.
    pub fn step(&self, what: &str) -> Step {
        let bar = self.bars.add(ProgressBar::new_spinner());
        bar.set_prefix(what.to_owned());
        bar.set_style(style("{spinner} {prefix:18} {elapsed:>4} {wide_msg:.dim}"));
        bar.enable_steady_tick(Duration::from_millis(100));
        Step { what: what.to_owned(), bar, lines: self.lines, started: Instant::now(), told: Instant::now() }
    }
}

/// A template is a constant of this file; a bad one falls back to indicatif's own.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// One step under way.
#[derive(Debug)]
pub struct Step {
    what: String,
    bar: ProgressBar,
    lines: bool,
    started: Instant,
    told: Instant,
}

impl Step {
    /// Turns the spinner into a bar: `total` calls of [`Step::advance`] fill it.
    pub fn expect(&self, total: u64) {
        self.bar.set_length(total);
        self.bar.set_style(style("{spinner} {prefix:18} {elapsed:>4} [{bar:30}] {pos}/{len} {wide_msg:.dim}"));
    }

    /// One more thing of the total is done.
    pub fn advance(&mut self, detail: &str) {
        self.bar.inc(1);
        self.say(detail);
    }

    /// What happens just now. On a terminal always shown, elsewhere only every half minute.
    pub fn say(&mut self, detail: &str) {
        self.bar.set_message(detail.to_owned());
        if self.lines && self.told.elapsed() >= REMINDER {
            self.told = Instant::now();
            eprintln!("{}: {detail} ({:.0?})", self.what, self.started.elapsed());
        }
    }

    /// The step has ended well; `outcome` says in a few words what there is now.
    pub fn done(self, outcome: &str) {
        let took = self.started.elapsed();
        if self.lines {
            eprintln!("{}: {outcome} ({took:.1?})", self.what);
        }
        self.bar.set_style(style("✓ {prefix:18} {wide_msg}"));
        self.bar.finish_with_message(format!("{outcome} ({took:.1?})"));
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.bar.is_finished() {
            self.bar.abandon();
        }
    }
}
