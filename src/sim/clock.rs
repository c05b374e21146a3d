//! The clocks of simulated nodes.

use std::time::Duration;

use fastrand::Rng;
use squall_fabric::Time;

/// A node's clock, which begins anywhere and runs at its own rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    begins: Duration,
    millionths: u64,
}

impl Clock {
    /// One that is off by at most `drift` millionths, and begins within a minute.
    pub(super) fn random(drift: u32, rng: &mut Rng) -> Clock {
        let drift = u64::from(drift);
        Clock {
            begins: Duration::from_nanos(rng.u64(0..60_000_000_000)),
            millionths: 1_000_000 - drift + rng.u64(0..=2 * drift),
        }
    }

    /// What it says at a time of the network.
    pub(super) fn at(self, time: Time) -> Time {
        let run = u128::from(time.as_nanos()) * u128::from(self.millionths) / 1_000_000;
        Time::from_nanos(run as u64) + self.begins
    }

    /// The first time of the network at which it says so much.
    pub(super) fn when(self, says: Time) -> Time {
        if says == Time::MAX {
            return Time::MAX;
        }
        let run = u128::from(says.as_nanos().saturating_sub(self.begins.as_nanos() as u64)) * 1_000_000;
        Time::from_nanos(run.div_ceil(u128::from(self.millionths)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_says_at_a_time_what_it_is_asked_for() {
        let mut rng = Rng::with_seed(1);
        for _ in 0..1000 {
            let clock = Clock::random(83_000, &mut rng);
            let says = clock.at(Time::from_nanos(rng.u64(0..1 << 50)));
            let when = clock.when(says);
            assert!(clock.at(when) >= says, "it does not ring too early");
            assert!(clock.at(when).since(says) <= Duration::from_nanos(2), "nor late");
        }
        assert_eq!(Clock::random(0, &mut rng).when(Time::MAX), Time::MAX);
    }
}
