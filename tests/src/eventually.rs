//! Waiting for a condition with a deadline. Never a sleep for a state: what is asked is asked again until it holds.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How long one attempt may take before it counts as failed and the next one starts.
const ATTEMPT: Duration = Duration::from_secs(10);
/// The first pause between two attempts; it doubles up to `SLOWEST`, so that quick things are seen quickly and slow ones are not hammered.
const QUICKEST: Duration = Duration::from_millis(10);
const SLOWEST: Duration = Duration::from_millis(250);

/// Asks until `condition` answers `Ok` and returns that answer.
///
/// # Errors
/// After `deadline` without an answer: `what`, the time waited and the last attempt's own error, so write conditions that tell what they
/// saw (`ensure!(ready == 3, "{ready} of 3 ready")`).
pub async fn eventually<T>(what: &str, deadline: Duration, mut condition: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let mut pause = QUICKEST;
    loop {
        let last = match tokio::time::timeout(ATTEMPT.min(deadline), condition()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => anyhow::anyhow!("one attempt took longer than {ATTEMPT:?}"),
        };
        if start.elapsed() >= deadline {
            return Err(last).with_context(|| format!("{what}: not so after {deadline:?}"));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(SLOWEST);
    }
}
