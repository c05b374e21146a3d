//! Sources of timestamps.

use squall_fabric::Time;

/// A rank's clock.
///
/// # To ensure correctness
///
/// The clock never decreases, and stays below 2⁶³ nanoseconds (292 years). Order and atomicity hold however far clocks
/// are apart (within the 39 hours that timestamps on the wire can tell). With a slow clock, delivery comes late at all
/// ranks.
pub trait Clock {
    /// Returns the clock's reading at a time of the caller's: wide nanoseconds, from an origin that all ranks share.
    fn now(&mut self, time: Time) -> u64;
}

/// This host's clock, ahead of [`Time`] by a constant offset.
///
/// By default it shows the [`Time`] itself, which all processes of a host have in common. Ranks on several hosts set it
/// to a synchronised clock (NTP, PTP) when they form their group.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostClock {
    ahead: u64,
}

impl HostClock {
    /// A clock that shows `nanos` at `now`, for example nanoseconds since 1970.
    pub fn that_shows(nanos: u64, now: Time) -> HostClock {
        HostClock { ahead: nanos.wrapping_sub(now.as_nanos()) }
    }
}

impl Clock for HostClock {
    #[inline]
    fn now(&mut self, time: Time) -> u64 {
        time.as_nanos().wrapping_add(self.ahead)
    }
}

/// A clock that is off by a growing amount, for simulations.
#[derive(Clone, Copy, Debug, Default)]
pub struct SkewedClock {
    /// The reading at [`Time::ZERO`], in nanoseconds.
    pub origin: u64,
    /// The amount by which it is ahead from the beginning, in nanoseconds; negative if it is behind.
    pub offset: i64,
    /// The amount by which it is faster than [`Time`], in parts per million; negative if slower.
    pub drift_ppm: i32,
}

impl Clock for SkewedClock {
    fn now(&mut self, time: Time) -> u64 {
        let nanos = i128::from(time.as_nanos());
        let drift = nanos * i128::from(self.drift_ppm.max(-1_000_000)) / 1_000_000;
        let shown = i128::from(self.origin) + i128::from(self.offset) + nanos + drift;
        u64::try_from(shown.max(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_clock_keeps_its_offset() {
        assert_eq!(HostClock::default().now(Time::from_nanos(5)), 5);
        let mut ahead = HostClock::that_shows(1_000, Time::from_nanos(5));
        assert_eq!(ahead.now(Time::from_nanos(7)), 1_002);
        let mut behind = HostClock::that_shows(3, Time::from_nanos(5));
        assert_eq!(behind.now(Time::from_nanos(7)), 5);
    }

    #[test]
    fn a_skewed_clock_is_off_and_drifts_and_never_decreases() {
        let mut clock = SkewedClock { origin: 1_000, offset: -200, drift_ppm: 100 };
        assert_eq!(clock.now(Time::ZERO), 800);
        assert_eq!(clock.now(Time::from_nanos(1_000_000)), 1_000_900);
        for drift_ppm in [-2_000_000, -999_999, -1, 0, 5] {
            let mut clock = SkewedClock { origin: 0, offset: -50, drift_ppm };
            let shown: Vec<u64> = (0..200).map(|nanos| clock.now(Time::from_nanos(nanos))).collect();
            assert!(shown.is_sorted(), "{drift_ppm}: {shown:?}");
        }
    }
}
