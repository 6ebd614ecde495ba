//! How long a failing key waits: exponential, with jitter so that keys that failed together do not come back together.

use std::time::Duration;

/// Exponential backoff.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// Never longer than this.
    pub longest: Duration,
    /// The part of a delay that is random: 0.1 means up to 10 % more.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        // controller-runtime's limiter begins with 5 ms and ends at 1,000 s. A sandboxed retry that soon helps nobody but a conflict, and 16
        // minutes without a look is longer than people wait for a database to come back.
        Self { first: Duration::from_millis(50), longest: Duration::from_mins(5), jitter: 0.1 }
    }
}

impl Backoff {
    /// The delay after `failures` failures in a row (1 or more); `random` in 0..1.
    pub fn delay(&self, failures: u32, random: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let delay = self.first.saturating_mul(1 << doublings).min(self.longest);
        delay.mul_f64(1.0 + self.jitter * random.clamp(0.0, 1.0)).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_jitter_only_adds() {
        let backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(1), jitter: 0.5 };
        let ms = |n, r| backoff.delay(n, r).as_millis();
        assert_eq!([ms(1, 0.0), ms(2, 0.0), ms(3, 0.0), ms(6, 0.0), ms(u32::MAX, 0.0)], [50, 100, 200, 1000, 1000]);
        assert_eq!([ms(1, 1.0), ms(6, 1.0)], [75, 1000]);
    }
}
