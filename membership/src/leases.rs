//! What a member knows of others' leases: for whom it has vouched, and when those can read no more.

use std::time::Duration;

use squall_fabric::Time;

/// By how much the rates of two clocks may differ: one part in so many. What sets clocks slews them, by up to 8 % (chrony).
const DRIFT: u32 = 5;

/// The time after which a lease is over on any clock, that lasts so long on its owner's.
pub(crate) fn over_after(lasts: Duration) -> Duration {
    lasts + lasts / DRIFT + Duration::from_nanos(1)
}

/// The members that may read because this one has vouched for them, by member.
#[derive(Clone, Debug)]
pub(crate) struct Leases {
    /// How long a lease lasts on its owner's clock.
    lasts: Duration,
    /// A moment, on this member's clock, after which it vouched for nobody.
    vouched_until: Option<Time>,
    vouched: Vec<bool>,
    /// Whether a kernel vouches that the member's process is gone.
    gone: Vec<bool>,
}

impl Leases {
    pub(crate) fn new(members: usize, lasts: Duration) -> Leases {
        Leases { lasts, vouched_until: None, vouched: vec![false; members], gone: vec![false; members] }
    }

    /// This member has vouched for another.
    pub(crate) fn vouched(&mut self, member: usize) {
        self.vouched[member] = true;
    }

    /// Another's process is gone.
    pub(crate) fn gone(&mut self, member: usize) {
        self.gone[member] = true;
    }

    /// This member vouches for nobody any more. `now` is a clock that was read after it ceased to: only that is known to be
    /// later than the last echo.
    pub(crate) fn ceased(&mut self, now: Time) {
        self.vouched_until.get_or_insert(now);
    }

    /// When none of these reads any more, as far as this member is concerned; [`Time::MAX`] if that is not known yet.
    pub(crate) fn over(&self, mut members: impl Iterator<Item = usize>) -> Time {
        if !members.any(|member| self.vouched[member] && !self.gone[member]) {
            return Time::ZERO;
        }
        self.vouched_until.map_or(Time::MAX, |until| until + over_after(self.lasts))
    }
}
