//! WASI 0.2 for components that come with a standard library: what they print becomes log lines; clocks, which are coarse, and random work; files, environment and sockets are there and empty.

use std::{
    mem::take,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use operetta_core::{effect::Effects, port::Level};
use tokio::io::AsyncWrite;
use wasmtime_wasi::{
    HostMonotonicClock, HostWallClock, WasiCtx,
    cli::{IsTerminal, StdoutStream},
    p2::{OutputStream, Pollable, StreamResult},
};

use crate::meter::nanos;

/// The random bytes that are handed out in one call.
const RANDOM: u64 = 1 << 20;
/// Bytes that one write may have.
const ROOM: usize = 64 << 10;
/// A line that is longer is cut there.
const LINE: usize = 16 << 10;
/// The step of a guest's clocks: finer than any operator needs, and a hundred times what tells a cached line of memory from one that is not, which would tell of neighbours.
const GRAIN: Duration = Duration::from_micros(100);

/// A context that has nothing but coarse clocks, random numbers and, in a reconcile, output.
pub(crate) fn context(effects: Option<&Arc<Effects>>) -> WasiCtx {
    let mut wasi = WasiCtx::builder();
    wasi.monotonic_clock(Coarse(Instant::now())).wall_clock(Coarse(Instant::now()));
    if let Some(effects) = effects {
        let output = |target, level| Output { effects: Arc::clone(effects), target, level, line: Arc::default() };
        wasi.stdout(output("stdout", Level::Info)).stderr(output("stderr", Level::Warn));
    }
    wasi.max_random_size(RANDOM).build()
}

/// Clocks that show multiples of [`GRAIN`]; the monotonic one begins with the instance, so that it does not say how long the machine has been up.
struct Coarse(Instant);

fn coarse(time: Duration) -> Duration {
    let time = nanos(time);
    Duration::from_nanos(time - time % nanos(GRAIN))
}

impl HostMonotonicClock for Coarse {
    fn resolution(&self) -> u64 {
        nanos(GRAIN)
    }

    fn now(&self) -> u64 {
        nanos(coarse(self.0.elapsed()))
    }
}

impl HostWallClock for Coarse {
    fn resolution(&self) -> Duration {
        GRAIN
    }

    fn now(&self) -> Duration {
        coarse(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    }
}

/// Collects lines: a standard library writes in pieces.
#[derive(Clone)]
struct Output {
    effects: Arc<Effects>,
    target: &'static str,
    level: Level,
    line: Arc<Mutex<Vec<u8>>>,
}

impl Output {
    fn say(&self, line: &[u8]) {
        self.effects.log(self.level, self.target, String::from_utf8_lossy(line).trim_end(), &[]);
    }

    fn take(&self, bytes: &[u8]) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            line.extend_from_slice(part);
            if part.ends_with(b"\n") || line.len() >= LINE {
                self.say(&take(&mut *line));
            }
        }
    }
}

impl Drop for Output {
    /// What came without an end of line is said when the last handle goes.
    fn drop(&mut self) {
        if let Some(line) = Arc::get_mut(&mut self.line) {
            let line = take(line.get_mut().unwrap_or_else(PoisonError::into_inner));
            if !line.is_empty() {
                self.say(&line);
            }
        }
    }
}

impl IsTerminal for Output {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Output {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    /// Of WASI 0.3, whose streams of output are not linked.
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Output {
    async fn ready(&mut self) {}
}

impl OutputStream for Output {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.take(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(ROOM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_in_steps_and_say_so() {
        assert_eq!(coarse(Duration::from_nanos(1_234_567)), Duration::from_micros(1_200));
        assert_eq!(coarse(GRAIN), GRAIN);
        assert_eq!(coarse(Duration::from_nanos(99_999)), Duration::ZERO);
        let clock = Coarse(Instant::now());
        assert_eq!(HostMonotonicClock::resolution(&clock), 100_000);
        assert_eq!(HostWallClock::resolution(&clock), Duration::from_micros(100));
    }
}
