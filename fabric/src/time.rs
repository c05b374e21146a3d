//! Time as an argument: nanoseconds since an origin that only the caller knows.

use std::{ops::Add, time::Duration};

/// A point of monotonic time in nanoseconds, comparable only within one clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
#[display("{}.{:09} s", _0 / 1_000_000_000, _0 % 1_000_000_000)]
pub struct Time(u64);

impl Time {
    /// The clock's origin.
    pub const ZERO: Time = Time(0);
    /// A time later than every deadline, shown by a timer that is not set.
    pub const MAX: Time = Time(u64::MAX);

    /// The time `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time that has passed since `earlier`, or zero if it lies ahead.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The present time on this host's `CLOCK_BOOTTIME`, which is monotonic and goes on while the host sleeps (leases
    /// need that).
    ///
    /// For runtimes and backends only: protocol code takes time as an argument.
    pub fn boot_clock() -> Time {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Time(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}
