//! The source of a rank's timestamps, and its promises about later ones.

use squall_fabric::Time;

use crate::Clock;

/// A source of wide timestamps. Those of one rank increase, and none is lower than an earlier promise.
pub(crate) trait Stamps {
    /// Whether a promise grows as time passes.
    const GROWS_WITH_TIME: bool;

    /// Whether a promise is told as soon as it has grown, not only once in a beacon interval.
    const IS_URGENT: bool;

    /// Sets the time.
    fn advance(&mut self, now: Time);

    /// Takes note of another rank's promise that none of its timestamps is lower.
    fn hear(&mut self, from: usize, promise: u64);

    /// Takes note that a rank waits for promises beyond `stamp`.
    fn hear_want(&mut self, stamp: u64);

    /// A timestamp for a scattering, at least 1, since no rank waits for 0. None while it is not this rank's turn.
    fn stamp(&mut self) -> Option<u64>;

    /// Promises that no timestamp from now on is lower.
    fn promise(&mut self) -> u64;

    /// A timestamp near which other ranks' timestamps are.
    fn near(&self) -> u64;
}

/// Timestamps of a clock.
#[derive(Debug)]
pub(crate) struct Clocked<C> {
    clock: C,
    now: u64,
    /// The least timestamp from now on.
    next: u64,
}

impl<C: Clock> Clocked<C> {
    pub(crate) fn new(clock: C) -> Clocked<C> {
        Clocked { clock, now: 0, next: 1 }
    }
}

impl<C: Clock> Stamps for Clocked<C> {
    const GROWS_WITH_TIME: bool = true;
    const IS_URGENT: bool = false;

    #[inline]
    fn advance(&mut self, now: Time) {
        self.now = self.clock.now(now);
    }

    fn hear(&mut self, _: usize, _: u64) {}

    fn hear_want(&mut self, _: u64) {}

    #[inline]
    fn stamp(&mut self) -> Option<u64> {
        let stamp = self.now.max(self.next);
        self.next = stamp + 1;
        Some(stamp)
    }

    #[inline]
    fn promise(&mut self) -> u64 {
        self.next = self.now.max(self.next);
        self.next
    }

    #[inline]
    fn near(&self) -> u64 {
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostClock;

    #[test]
    fn stamps_increase_and_keep_promises() {
        let mut stamps = Clocked::new(HostClock::default());
        assert_eq!([stamps.stamp(), stamps.stamp()], [Some(1), Some(2)], "no caller waits for 0");
        stamps.advance(Time::from_nanos(5));
        assert_eq!([stamps.stamp(), stamps.stamp()], [Some(5), Some(6)], "also while the clock stands");
        assert_eq!(stamps.promise(), 7);
        assert_eq!(stamps.stamp(), Some(7));
        stamps.advance(Time::from_nanos(20));
        assert_eq!(stamps.promise(), 20);
        // A clock that goes back, against its contract, breaks no promise.
        stamps.advance(Time::from_nanos(3));
        assert_eq!([stamps.stamp(), stamps.stamp()], [Some(20), Some(21)]);
    }
}
