//! The back-off of a node that was dropped, before it asks to join again.

use std::time::Duration;

use squall_fabric::Time;

use crate::input::Settings;

/// The back-off of a node that is dropped again soon, at first and at most; in failure timeouts.
const FIRST: u32 = 2;
const LONGEST: u32 = 16;

/// The number of failure timeouts after which a member has come to stay.
const CALM: u32 = 16;

/// The back-off of a node that is dropped again and again.
///
/// A node whose link comes and goes costs the others a failure timeout whenever it is lost, and is lost again soon if
/// it joins at once. So it waits before it joins again, twice as long each time, and not at all once it was a member
/// for a while.
#[derive(Debug, Default)]
pub(crate) struct RejoinBackoff {
    member_since: Option<Time>,
    /// The back-off if it is dropped soon; zero before it was dropped at all.
    next: Duration,
    asks: Asks,
}

/// The time at which a node asks to join.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Asks {
    #[default]
    No,
    /// The node was dropped, and the clock was not read since.
    Dropped,
    At(Time),
}

impl RejoinBackoff {
    /// Notes that the node is a member.
    pub(crate) fn is_member(&mut self, now: Time) {
        self.member_since.get_or_insert(now);
    }

    pub(crate) fn dropped(&mut self) {
        self.asks = Asks::Dropped;
    }

    /// Whether it is time to ask. True once for each time that the node was dropped.
    pub(crate) fn asks(&mut self, now: Time, settings: &Settings) -> bool {
        if self.asks == Asks::Dropped {
            self.asks = Asks::At(now + self.wait(now, settings.failure_timeout));
        }
        let asks = matches!(self.asks, Asks::At(at) if now >= at);
        if asks {
            self.asks = Asks::No;
        }
        asks
    }

    /// The back-off of the node now that it was dropped.
    fn wait(&mut self, now: Time, timeout: Duration) -> Duration {
        let was_calm = self.member_since.take().is_some_and(|since| now.since(since) >= timeout * CALM);
        let wait = if was_calm { Duration::ZERO } else { self.next };
        self.next = (wait * 2).clamp(timeout * FIRST, timeout * LONGEST);
        if !wait.is_zero() {
            tracing::warn!(
                ?wait,
                "this node was dropped again soon after it had joined: it waits before it asks again"
            );
        }
        wait
    }

    /// The time until which the node waits, if it does.
    pub(crate) fn waits_until(&self) -> Option<Time> {
        match self.asks {
            Asks::At(at) => Some(at),
            Asks::No | Asks::Dropped => None,
        }
    }

    pub(crate) fn deadline(&self) -> Time {
        match self.asks {
            Asks::No => Time::MAX,
            Asks::Dropped => Time::ZERO,
            Asks::At(at) => at,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{layout::Layout, stall::StallLimits};

    const TIMEOUT: Duration = Duration::from_secs(1);

    pub(crate) fn settings() -> Settings {
        Settings {
            fingerprint: 0,
            layout: Layout::default(),
            policy: Default::default(),
            failure_timeout: TIMEOUT,
            connect_timeout: TIMEOUT,
            read_lease: TIMEOUT,
            restart_wait: Duration::ZERO,
            stall_limits: StallLimits { disk: Duration::MAX, application: Duration::MAX },
        }
    }

    /// The back-off of a node that was a member from `now` on for this long.
    fn waits(backoff: &mut RejoinBackoff, now: &mut Time, member_for: Duration) -> Duration {
        backoff.is_member(*now);
        *now = *now + member_for;
        backoff.dropped();
        assert_eq!(backoff.deadline(), Time::ZERO, "it must read the clock");
        let dropped = *now;
        while !backoff.asks(*now, &settings()) {
            *now = backoff.waits_until().expect("it waits");
        }
        assert_eq!((backoff.deadline(), backoff.waits_until()), (Time::MAX, None), "it has asked");
        now.since(dropped)
    }

    #[test]
    fn who_is_dropped_again_and_again_waits_twice_as_long_each_time_up_to_a_limit() {
        let (mut backoff, mut now) = (RejoinBackoff::default(), Time::ZERO);
        let waited: Vec<u64> = (0..8).map(|_| waits(&mut backoff, &mut now, TIMEOUT).as_secs()).collect();
        assert_eq!(waited, [0, 2, 4, 8, 16, 16, 16, 16]);
    }

    #[test]
    fn who_was_a_member_for_a_while_does_not_wait() {
        let (mut backoff, mut now) = (RejoinBackoff::default(), Time::ZERO);
        let calm = TIMEOUT * CALM;
        let times = [TIMEOUT, TIMEOUT, TIMEOUT, calm, TIMEOUT, calm - Duration::from_nanos(1)];
        let waited = times.map(|time| waits(&mut backoff, &mut now, time).as_secs());
        assert_eq!(waited, [0, 2, 4, 0, 2, 4]);
    }
}
