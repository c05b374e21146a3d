//! The clocks of simulated nodes.

use std::time::Duration;

use fastrand::Rng;
use squall_fabric::Time;

/// A node's clock, which begins at a random reading, and has run at its own rate since some moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// A time of the network; `says` is the clock's reading then.
    since: Time,
    says: Time,
    /// The rate at which it runs from there on, in millionths of the true one; 0 if it stands still.
    millionths: u64,
}

impl Clock {
    /// A clock that is off by at most `drift` millionths, and begins with a reading within a minute.
    pub(super) fn random(drift: u32, rng: &mut Rng) -> Clock {
        let begins = Duration::from_nanos(rng.u64(0..60_000_000_000));
        Clock { since: Time::ZERO, says: Time::ZERO + begins, millionths: Clock::rate(drift, rng) }
    }

    /// A rate that is off by at most `drift` millionths.
    pub(super) fn rate(drift: u32, rng: &mut Rng) -> u64 {
        let drift = u64::from(drift);
        1_000_000 - drift + rng.u64(0..=2 * drift)
    }

    /// The same clock, at another rate from a time of the network on.
    pub(super) fn at_rate(self, now: Time, millionths: u64) -> Clock {
        Clock { since: now, says: self.at(now), millionths }
    }

    /// Its reading at a time of the network.
    pub(super) fn at(self, time: Time) -> Time {
        let run = u128::from(time.since(self.since).as_nanos() as u64) * u128::from(self.millionths) / 1_000_000;
        self.says + Duration::from_nanos(run as u64)
    }

    /// The first time of the network at which the clock reads `says`, or a time before now if it has read that already.
    /// [`Time::MAX`] if it never will.
    pub(super) fn when(self, says: Time) -> Time {
        let run = u128::from(says.since(self.says).as_nanos() as u64) * 1_000_000;
        match (says, self.millionths) {
            (Time::MAX, _) => Time::MAX,
            _ if run == 0 => self.since,
            (_, 0) => Time::MAX,
            (_, millionths) => self.since + Duration::from_nanos(run.div_ceil(u128::from(millionths)) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_says_at_a_time_what_it_is_asked_for() {
        let mut rng = Rng::with_seed(1);
        for _ in 0..1000 {
            let mut clock = Clock::random(83_000, &mut rng);
            let mut now = Time::ZERO;
            for _ in 0..rng.usize(0..4) {
                now = now + Duration::from_nanos(rng.u64(0..1 << 48));
                clock = clock.at_rate(now, Clock::rate(83_000, &mut rng));
            }
            let says = clock.at(now + Duration::from_nanos(rng.u64(0..1 << 50)));
            let when = clock.when(says);
            assert!(clock.at(when) >= says, "it does not ring too early");
            assert!(clock.at(when).since(says) <= Duration::from_nanos(2), "nor late");
        }
        assert_eq!(Clock::random(0, &mut rng).when(Time::MAX), Time::MAX);
    }

    #[test]
    fn a_clock_that_stands_still_says_the_same_and_goes_on_from_there() {
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let clock = Clock::random(0, &mut Rng::with_seed(1));
        let still = clock.at_rate(at(5), 0);
        assert_eq!((still.at(at(5)), still.at(at(9))), (clock.at(at(5)), clock.at(at(5))));
        assert_eq!(still.when(clock.at(at(6))), Time::MAX);
        let again = still.at_rate(at(9), 1_000_000);
        assert_eq!(again.at(at(10)), clock.at(at(6)));
        assert_eq!(again.when(clock.at(at(6))), at(10));
    }
}
