//! The limit of the rate at which contents move.

use std::time::{Duration, Instant};

/// The limit of the rate at which contents are sent, or copied.
pub(crate) struct Pace {
    /// Bytes per second.
    rate: Option<u64>,
    /// The time at which what was sent so far may have been sent.
    even: Instant,
}

impl Pace {
    pub(crate) fn new(rate: Option<u64>) -> Pace {
        Pace { rate: rate.filter(|rate| *rate > 0), even: Instant::now() }
    }

    /// Returns the time until more may be sent.
    pub(crate) fn wait(&self) -> Duration {
        self.even.saturating_duration_since(Instant::now())
    }

    pub(crate) fn spend(&mut self, bytes: usize) {
        if let Some(rate) = self.rate {
            self.even = self.even.max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / rate as f64);
        }
    }
}
