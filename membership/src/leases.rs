//! A member's knowledge of the leases of others: the members for which it has vouched, and the time from which on they
//! can read no more.

use std::time::Duration;

use squall_fabric::Time;

/// The most by which the rates of two clocks may differ: one part in so many. A clock daemon slews a clock by up to 8 %
/// (chrony).
const DRIFT: u32 = 5;

/// The time after which a lease is over on any clock, if it lasts this long on its owner's.
pub(crate) fn over_after(lasts: Duration) -> Duration {
    lasts + lasts / DRIFT + Duration::from_nanos(1)
}

/// The members that may read because this one has vouched for them, by member.
#[derive(Clone, Debug)]
pub(crate) struct Leases {
    /// The time for which a lease lasts on its owner's clock.
    lasts: Duration,
    /// A moment, on this member's clock, after which it vouched for no member.
    vouched_until: Option<Time>,
    vouched: Vec<bool>,
    /// Whether a kernel vouches that a member's process is gone, by member.
    gone: Vec<bool>,
}

impl Leases {
    pub(crate) fn new(members: usize, lasts: Duration) -> Leases {
        Leases { lasts, vouched_until: None, vouched: vec![false; members], gone: vec![false; members] }
    }

    /// Notes that this member has vouched for another.
    pub(crate) fn vouched(&mut self, member: usize) {
        self.vouched[member] = true;
    }

    /// Notes that another member's process is gone.
    pub(crate) fn gone(&mut self, member: usize) {
        self.gone[member] = true;
    }

    /// Notes that this member vouches for no member any more. `now` is the reading of a clock after it ceased to: only
    /// such a reading is known to be later than the last echo.
    pub(crate) fn ceased(&mut self, now: Time) {
        self.vouched_until.get_or_insert(now);
    }

    /// The time from which on none of these reads any more, as far as this member is concerned; [`Time::MAX`] if that
    /// is not known yet.
    pub(crate) fn over(&self, mut members: impl Iterator<Item = usize>) -> Time {
        if !members.any(|member| self.vouched[member] && !self.gone[member]) {
            return Time::ZERO;
        }
        self.vouched_until.map_or(Time::MAX, |until| until + over_after(self.lasts))
    }
}
