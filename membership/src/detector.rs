//! The failure detector: it notices heartbeats that stand still.

use std::time::Duration;

use squall_fabric::Time;

/// A watch over one counter per member, which names the members whose counter stood still for the timeout.
///
/// Time in which this node itself did not run does not count. After a stall all members get the whole timeout again, so
/// a node that was frozen accuses no member for it.
#[derive(Clone, Debug)]
pub struct Detector {
    timeout: Duration,
    /// The time of the last look.
    looked: Option<Time>,
    has_stalled: bool,
    /// The counter of each member, and the time at which that value was first seen.
    seen: Vec<(u64, Time)>,
}

impl Detector {
    /// A detector for `members` members, of which none has been heard.
    pub fn new(members: usize, timeout: Duration) -> Detector {
        Detector { timeout, looked: None, has_stalled: false, seen: vec![(0, Time::ZERO); members] }
    }

    /// The time between two looks, and between two beats of a heartbeat: a fourth of the timeout.
    pub fn interval(&self) -> Duration {
        self.timeout / 4
    }

    /// The time at which a member's counter was last found to have moved.
    pub fn moved(&self, member: usize) -> Time {
        self.seen[member].1
    }

    /// Whether this node had stood still before its last look.
    pub fn has_stalled(&self) -> bool {
        self.has_stalled
    }

    /// Looks at the counters, and returns the members whose counter stood still for the timeout.
    pub fn look(&mut self, now: Time, counter: impl Fn(usize) -> u64) -> Vec<usize> {
        // Two intervals without a look: this node stood still, not the others.
        let stalled = self.looked.is_none_or(|looked| now.since(looked) > 2 * self.interval());
        (self.looked, self.has_stalled) = (Some(now), stalled);
        let mut silent = Vec::new();
        for (member, (value, since)) in self.seen.iter_mut().enumerate() {
            let current = counter(member);
            if stalled || current != *value {
                (*value, *since) = (current, now);
            } else if now.since(*since) >= self.timeout {
                silent.push(member);
            }
        }
        silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(1000);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_counter_that_stands_still_is_noticed_after_the_timeout() {
        let mut detector = Detector::new(2, TIMEOUT);
        for ms in (0..1000).step_by(250) {
            assert!(detector.look(at(ms), |member| if member == 0 { ms } else { 7 }).is_empty(), "at {ms} ms");
        }
        assert_eq!(detector.look(at(1000), |member| if member == 0 { 1000 } else { 7 }), [1]);
    }

    #[test]
    fn own_stalls_accuse_nobody() {
        let mut detector = Detector::new(1, TIMEOUT);
        detector.look(at(0), |_| 1);
        assert!(detector.look(at(60_000), |_| 1).is_empty(), "this node stood still for a minute");
        for ms in (60_250..61_000).step_by(250) {
            assert!(detector.look(at(ms), |_| 1).is_empty());
        }
        assert_eq!(detector.look(at(61_000), |_| 1), [0]);
    }
}
