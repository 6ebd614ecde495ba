//! What else the machine does while something is measured: a program that takes one of two cores for some milliseconds once a second is in every hundredth figure.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result};

/// Threads of other programs, the kernel's own among them, and the CPU time of each.
#[derive(Debug)]
pub struct Elsewhere {
    ours: Vec<u32>,
    /// Nanoseconds, by thread. A thread of the kernel that ends takes its own with it, so no sum of them would only grow.
    used: BTreeMap<String, u64>,
}

impl Elsewhere {
    /// Everything but these processes, by their ids.
    pub fn but(ours: &[u32]) -> Result<Self> {
        let mut elsewhere = Self { ours: ours.to_vec(), used: BTreeMap::new() };
        elsewhere.computed()?;
        Ok(elsewhere)
    }

    /// CPU time that was used elsewhere since it was asked last. Of a thread that is at it on another core this moment, the last few milliseconds may come with the next answer.
    pub fn computed(&mut self) -> Result<Duration> {
        let mut used = BTreeMap::new();
        for process in fs::read_dir("/proc").context("list the machine's processes")? {
            let process = process.context("list the machine's processes")?;
            let id = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            if id.is_some_and(|id| !self.ours.contains(&id)) {
                threads(&process.path(), &mut used);
            }
        }
        let computed = used.iter().map(|(thread, now)| now.saturating_sub(self.used.get(thread).copied().unwrap_or(0)));
        let computed = Duration::from_nanos(computed.sum());
        self.used = used;
        Ok(computed)
    }
}

/// Adds the threads of a process, unless it has ended meanwhile.
fn threads(process: &Path, used: &mut BTreeMap<String, u64>) {
    for thread in fs::read_dir(process.join("task")).into_iter().flatten().flatten() {
        // The kernel's sched-stats document: time on the CPU in nanoseconds, time of waiting for it, turns.
        let stat = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        if let Some(time) = stat.split_whitespace().next().and_then(|field| field.parse().ok()) {
            used.insert(thread.file_name().to_string_lossy().into_owned(), time);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{process, time::Instant};

    use anyhow::ensure;

    use super::*;
    use crate::eventually;

    /// Without a program of its own: starting one would share the locks of tests beside it for a moment.
    #[tokio::test]
    async fn what_a_program_computes_is_seen_unless_it_is_ours() -> Result<()> {
        let (mut all, mut but_us) = (Elsewhere::but(&[])?, Elsewhere::but(&[process::id()])?);
        let (mut seen, mut seen_but_us) = (Duration::ZERO, Duration::ZERO);
        eventually("our CPU time is seen", Duration::from_secs(20), async || {
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(10) {}
            seen += all.computed()?;
            seen_but_us += but_us.computed()?;
            let ours = seen.saturating_sub(seen_but_us);
            ensure!(ours > Duration::from_millis(100), "{seen:?} and {seen_but_us:?} without us");
            Ok(())
        })
        .await
    }
}
