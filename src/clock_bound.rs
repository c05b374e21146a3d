//! The bound of a node's wall clock: how far it may be ahead of the other members' before it stamps no messages.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use squall_fabric::{NodeId, Time};
use squall_ordered::log::Hlc;

use crate::error::Unavailable;

/// While a clock is wrong, the log says so again after this time.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The others' clocks are not known, so no message may be stamped yet.
const UNKNOWN: i64 = i64::MIN;

/// There is nobody to compare with.
const UNBOUNDED: i64 = i64::MAX;

/// The bound of one node's wall clock, set by the engine and asked by all threads that submit.
///
/// A clock is given as its *offset*: how far it is ahead of this node's boot clock, which nobody sets. So a clock that jumps is
/// noticed by the first submit after the jump, and one that is set right may be used at once.
#[derive(Debug)]
pub(crate) struct ClockBound {
    limit: Duration,
    /// The largest offset that this node's wall clock may have, in nanoseconds.
    most: AtomicI64,
    /// A reading of the wall clock before which none is too far ahead, by that.
    allowed: AtomicU64,
    seen: Mutex<Seen>,
    /// Rings once the others' clocks are known.
    known: Condvar,
}

#[derive(Debug, Default)]
struct Seen {
    /// The other members' offsets, in nanoseconds.
    others: Vec<(NodeId, i64)>,
    wrong: Option<Wrong>,
    warn_at: Time,
}

/// The way in which a node's wall clock differs from those of more than half of the other members, by more than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Ahead,
    Behind,
}

/// The bound's answer for a reading of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    /// The others' clocks are not known yet.
    Unknown,
    Ahead,
}

impl Default for ClockBound {
    /// No bound.
    fn default() -> ClockBound {
        ClockBound {
            limit: Duration::MAX,
            most: AtomicI64::new(UNBOUNDED),
            allowed: AtomicU64::new(0),
            seen: Mutex::default(),
            known: Condvar::new(),
        }
    }
}

impl ClockBound {
    /// A bound that allows nothing until the other members' clocks are known.
    pub(crate) fn new(limit: Duration) -> ClockBound {
        let (most, allowed) = (AtomicI64::new(UNKNOWN), AtomicU64::new(0));
        ClockBound { limit, most, allowed, seen: Mutex::default(), known: Condvar::new() }
    }

    /// Whether a message may carry this reading of the wall clock. The boot clock is seldom read for that.
    #[inline]
    pub(crate) fn judge(&self, wall: Hlc, now: impl FnOnce() -> Time) -> Verdict {
        if wall.0 < self.allowed.load(Ordering::Relaxed) { Verdict::Allowed } else { self.look(wall, now()) }
    }

    #[cold]
    fn look(&self, wall: Hlc, now: Time) -> Verdict {
        match self.most.load(Ordering::SeqCst) {
            UNKNOWN => Verdict::Unknown,
            most if offset(wall, now) > most => Verdict::Ahead,
            most => {
                // The boot clock does not go back, so this holds until another bound is set.
                let until = i128::from(now.as_nanos()) + i128::from(most);
                self.allowed
                    .store(u64::try_from(until).unwrap_or(if until > 0 { u64::MAX } else { 0 }), Ordering::SeqCst);
                if self.most.load(Ordering::SeqCst) != most {
                    self.allowed.store(0, Ordering::SeqCst);
                }
                Verdict::Allowed
            }
        }
    }

    /// By the engine: the other members' offsets, and what this node's clocks say. Returns whether messages may be stamped from
    /// now on that had to wait before.
    pub(crate) fn set(&self, others: impl Iterator<Item = (NodeId, i64)>, wall: Hlc, now: Time) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.others.clear();
        seen.others.extend(others);
        seen.others.sort_unstable_by_key(|&(_, offset)| offset);
        let limit = i64::try_from(self.limit.as_nanos()).unwrap_or(i64::MAX);
        let all = seen.others.len();
        // Ahead of more than half of the others is whoever is ahead of this one. Of two, the clock that is behind counts.
        let most = seen.others.get(all / 2).map_or(UNBOUNDED, |&(_, offset)| offset.saturating_add(limit));
        let least = all.checked_sub(all / 2 + 1).and_then(|at| seen.others.get(at));
        let least = least.map_or(i64::MIN, |&(_, offset)| offset.saturating_sub(limit));
        let own = offset(wall, now);
        let wrong = match own {
            own if own > most => Some(Wrong::Ahead),
            own if own < least => Some(Wrong::Behind),
            _ => None,
        };
        if wrong != seen.wrong || wrong.is_some() && now >= seen.warn_at {
            (seen.wrong, seen.warn_at) = (wrong, now + WARN_EVERY);
            match seen.sentence(own) {
                Some(why) => tracing::warn!("{why}"),
                None => tracing::info!("this node's clock agrees with the other members' again"),
            }
        }
        let is_new = self.most.swap(most, Ordering::SeqCst) == UNKNOWN;
        // Behind that, so that who looks at the same time leaves nothing of the bound before.
        self.allowed.store(0, Ordering::SeqCst);
        if is_new {
            self.known.notify_all();
        }
        is_new
    }

    /// Whether the others' clocks are known, so that messages are stamped.
    pub(crate) fn is_known(&self) -> bool {
        self.most.load(Ordering::Relaxed) != UNKNOWN
    }

    /// Waits until the others' clocks are known, for `limit` at most.
    pub(crate) fn wait_known(&self, limit: Duration) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // It is set under the lock.
        let waited = self.known.wait_timeout_while(seen, limit, |_| !self.is_known());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// A sentence if this node's clock is wrong, as far as the others' say.
    pub(crate) fn warning(&self, wall: Hlc, now: Time) -> Option<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).sentence(offset(wall, now))
    }

    /// By how many milliseconds another member's clock is ahead of this node's; negative if it is behind.
    pub(crate) fn ahead_ms(&self, node: NodeId, wall: Hlc, now: Time) -> Option<i64> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, theirs) = seen.others.iter().find(|(other, _)| *other == node)?;
        Some(theirs.saturating_sub(offset(wall, now)) / 1_000_000)
    }

    /// Why a message is refused whose time is too far ahead.
    pub(crate) fn refusal(&self, wall: Hlc, now: Time) -> Unavailable {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let own = offset(wall, now);
        let ahead_of = seen.others.iter().filter(|(_, theirs)| own.saturating_sub(*theirs) > 0);
        Unavailable::ClockAhead { by: seen.distance(own), ahead_of: ahead_of.map(|(node, _)| *node).collect() }
    }
}

impl Seen {
    /// The distance of an offset from the median of the others.
    fn distance(&self, own: i64) -> Duration {
        let middle = self.others.get(self.others.len() / 2).map_or(own, |&(_, offset)| offset);
        Duration::from_millis(own.abs_diff(middle) / 1_000_000)
    }

    fn sentence(&self, own: i64) -> Option<String> {
        let by = self.distance(own).as_secs_f64();
        Some(match self.wrong? {
            Wrong::Ahead => format!(
                "this node's clock is {by:.1} s ahead of those of most other members: it submits nothing until it is \
                 set right (with chrony: `chronyc makestep`)"
            ),
            Wrong::Behind => format!(
                "this node's clock is {by:.1} s behind those of most other members: what it submits has the time of the message \
                 before; set it right (with chrony: `chronyc makestep`)"
            ),
        })
    }
}

/// The lead of a wall clock over the boot clock, in nanoseconds.
fn offset(wall: Hlc, now: Time) -> i64 {
    let difference = i128::from(wall.0) - i128::from(now.as_nanos());
    i64::try_from(difference).unwrap_or(if difference > 0 { i64::MAX - 1 } else { i64::MIN + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn bound(others: &[i64]) -> ClockBound {
        let bound = ClockBound::new(Duration::from_secs(5));
        assert_eq!(bound.judge(Hlc(0), || Time::ZERO), Verdict::Unknown);
        let others = others.iter().zip(2..).map(|(&seconds, node)| (NodeId(node), (1000 + seconds) * SECOND));
        assert!(bound.set(others, Hlc(1000 * SECOND as u64), Time::ZERO));
        bound
    }

    fn judge(bound: &ClockBound, seconds: u64) -> Verdict {
        bound.judge(Hlc((1000 + seconds) * SECOND as u64), || Time::ZERO)
    }

    #[test]
    fn a_clock_is_refused_that_is_ahead_of_more_than_half_of_the_others() {
        for (others, allowed) in [(&[0][..], 5), (&[0, 7], 12), (&[0, 0], 5), (&[0, 7, 9], 12), (&[0, 1, 2, 3], 7)] {
            let bound = bound(others);
            assert_eq!(judge(&bound, allowed), Verdict::Allowed, "{others:?}");
            assert_eq!(judge(&bound, allowed + 1), Verdict::Ahead, "{others:?}");
        }
        assert_eq!(judge(&bound(&[]), 1_000_000), Verdict::Allowed, "there is nobody to compare with");
    }

    #[test]
    fn a_refusal_says_by_how_much_and_what_to_do() {
        let bound = bound(&[0, 0]);
        let why = bound.refusal(Hlc(4600 * SECOND as u64), Time::ZERO).to_string();
        assert!(why.contains("3600.0 s ahead of node 2, node 3"), "{why}");
        assert!(why.contains("chrony"), "{why}");
    }

    #[test]
    fn a_clock_that_is_behind_is_named_and_allowed() {
        let bound = bound(&[3600, 3600]);
        assert_eq!(judge(&bound, 0), Verdict::Allowed);
        let why = bound.warning(Hlc(1000 * SECOND as u64), Time::ZERO).expect("it is wrong");
        assert!(why.contains("3600.0 s behind"), "{why}");
        assert_eq!(bound.ahead_ms(NodeId(3), Hlc(1000 * SECOND as u64), Time::ZERO), Some(3_600_000));
    }
}
