//! The times that a node's messages get, and their bound: the limit to the lead of its wall clock over the other
//! members'.

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::Duration,
};

use squall_fabric::{NodeId, Time, sync::Lock};
use squall_ordered::log::Hlc;

use crate::calls::{
    clock::Now,
    error::{Outcome, SubmitError, Unavailable},
};

/// The unit of times, in nanoseconds: a time is a multiple of it. In a ring, only the first message of each tick has a
/// record of its time.
const TICK: u64 = 1_000_000;

/// The interval at which the log repeats its warning while a clock is wrong.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The bound while the others' clocks are not known, so that no message may be stamped yet.
const UNKNOWN: i64 = i64::MIN;

/// The bound where there is no other member to compare with.
const UNBOUNDED: i64 = i64::MAX;

/// The bound of one node's wall clock, set by the engine and asked by all threads that submit.
///
/// A clock is given as its *offset*: its lead over this node's boot clock, which neither operators nor programs set.
/// So a clock that is set right may be used at once.
#[derive(Debug)]
pub(crate) struct ClockBound {
    limit: Duration,
    /// The largest offset that this node's wall clock may have, in nanoseconds.
    most: AtomicI64,
    /// The time that messages get, as of the engine's last look at the clock; 0 while a submitting thread must look
    /// itself.
    time: AtomicU64,
    seen: Lock<ClockObservations>,
}

#[derive(Debug, Default)]
struct ClockObservations {
    /// The other members' offsets, in nanoseconds.
    others: Vec<(NodeId, i64)>,
    wrong: Option<Wrong>,
    warn_at: Time,
}

/// The way in which a node's wall clock differs from the clocks of more than half of the other members, by more than
/// the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Ahead,
    Behind,
}

impl Default for ClockBound {
    /// The absence of a bound.
    fn default() -> ClockBound {
        ClockBound {
            limit: Duration::MAX,
            most: AtomicI64::new(UNBOUNDED),
            time: AtomicU64::new(0),
            seen: Lock::default(),
        }
    }
}

impl ClockBound {
    /// A bound that allows nothing until the other members' clocks are known.
    pub(crate) fn new(limit: Duration) -> ClockBound {
        ClockBound { limit, most: AtomicI64::new(UNKNOWN), ..ClockBound::default() }
    }

    /// Returns the time of a message that is submitted now; [`SubmitError::Full`] while the others' clocks are not
    /// known.
    ///
    /// It seldom reads a clock: only while the engine sleeps, or has found that no message may have a time.
    #[inline]
    pub(crate) fn time(&self, clock: &Now) -> Result<Hlc, SubmitError> {
        match self.time.load(Ordering::Relaxed) {
            0 => self.judge(clock.wall(), clock.get()),
            time => Ok(Hlc(time)),
        }
    }

    /// Returns the time of messages by this reading of the clocks.
    #[cold]
    fn judge(&self, wall: Hlc, now: Time) -> Result<Hlc, SubmitError> {
        match self.most.load(Ordering::Relaxed) {
            UNKNOWN => Err(SubmitError::Full),
            most if offset(wall, now) > most => {
                let why = self.refusal(wall, now);
                Err(SubmitError::Unavailable { why, outcome: Outcome::NotAccepted })
            }
            _ => Ok(tick(wall)),
        }
    }

    /// Takes this node's reading of its clocks, so that submitting threads need not look. Called by the engine, while
    /// it is awake.
    #[inline]
    pub(crate) fn look(&self, wall: Hlc, now: Time) {
        let may = offset(wall, now) <= self.most.load(Ordering::Relaxed);
        let time = if may { tick(wall).0 } else { 0 };
        // Written only when it changes, since all submitting threads read it.
        if self.time.load(Ordering::Relaxed) != time {
            self.time.store(time, Ordering::Relaxed);
        }
    }

    /// Withdraws the time. Called by the engine, before it sleeps.
    pub(crate) fn look_away(&self) {
        self.time.store(0, Ordering::Relaxed);
    }

    /// Takes the other members' offsets, and this node's reading of its clocks. Called by the engine. Returns whether
    /// messages may be stamped from now on that had to wait before.
    pub(crate) fn set(&self, others: impl Iterator<Item = (NodeId, i64)>, wall: Hlc, now: Time) -> bool {
        let mut seen = self.seen.lock();
        seen.others.clear();
        seen.others.extend(others);
        seen.others.sort_unstable_by_key(|&(_, offset)| offset);
        let limit = i64::try_from(self.limit.as_nanos()).unwrap_or(i64::MAX);
        let all = seen.others.len();
        // A clock that is ahead of this one is ahead of more than half of the others. Where there is one other member,
        // the clock that is behind counts as right.
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
        self.most.swap(most, Ordering::Relaxed) == UNKNOWN
    }

    /// Whether the others' clocks are known, so that messages are stamped.
    pub(crate) fn is_known(&self) -> bool {
        self.most.load(Ordering::Relaxed) != UNKNOWN
    }

    /// A sentence that says that this node's clock is wrong, as far as the others' clocks say; None if it is not.
    pub(crate) fn warning(&self, wall: Hlc, now: Time) -> Option<String> {
        self.seen.lock().sentence(offset(wall, now))
    }

    /// The lead of another member's clock over this node's, in milliseconds; negative if it is behind.
    pub(crate) fn ahead_ms(&self, node: NodeId, wall: Hlc, now: Time) -> Option<i64> {
        let seen = self.seen.lock();
        let (_, theirs) = seen.others.iter().find(|(other, _)| *other == node)?;
        Some(theirs.saturating_sub(offset(wall, now)) / 1_000_000)
    }

    /// The reason to refuse a message whose time is too far ahead.
    fn refusal(&self, wall: Hlc, now: Time) -> Unavailable {
        let seen = self.seen.lock();
        let own = offset(wall, now);
        let ahead_of = seen.others.iter().filter(|(_, theirs)| own.saturating_sub(*theirs) > 0);
        Unavailable::ClockAhead { by: seen.distance(own), ahead_of: ahead_of.map(|(node, _)| *node).collect() }
    }
}

impl ClockObservations {
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

/// The time of the messages that are submitted at this reading of the wall clock.
fn tick(wall: Hlc) -> Hlc {
    Hlc(wall.0 - wall.0 % TICK)
}

/// The lead of a wall clock over the boot clock, in nanoseconds.
fn offset(wall: Hlc, now: Time) -> i64 {
    let difference = i128::from(wall.0) - i128::from(now.as_nanos());
    i64::try_from(difference).unwrap_or(if difference > 0 { i64::MAX - 1 } else { i64::MIN + 1 })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn bound(others: &[i64]) -> ClockBound {
        let bound = ClockBound::new(Duration::from_secs(5));
        assert_eq!(bound.judge(Hlc(0), Time::ZERO), Err(SubmitError::Full));
        bound.look(Hlc(TICK), Time::ZERO);
        assert_eq!(published(&bound), 0, "the others' clocks are not known");
        let others = others.iter().zip(2..).map(|(&seconds, node)| (NodeId(node), (1000 + seconds) * SECOND));
        assert!(bound.set(others, Hlc(1000 * SECOND as u64), Time::ZERO));
        bound
    }

    fn published(bound: &ClockBound) -> u64 {
        bound.time.load(Ordering::Relaxed)
    }

    /// Whether messages get a time at a reading of the wall clock. Checks that a look of the engine and one of a
    /// submitting thread agree.
    fn allows(bound: &ClockBound, seconds: u64) -> bool {
        let wall = Hlc((1000 + seconds) * SECOND as u64);
        bound.look(wall, Time::ZERO);
        let time = bound.judge(wall, Time::ZERO);
        assert_eq!(time.as_ref().map_or(0, |time| time.0), published(bound));
        assert_ne!(time, Err(SubmitError::Full));
        time.is_ok()
    }

    #[test]
    fn times_are_whole_milliseconds_and_who_submits_looks_himself_while_the_engine_does_not() {
        let bound = bound(&[0, 0]);
        let clock =
            Now::Virtual { boot: Arc::default(), wall: Arc::new(AtomicU64::new(1000 * SECOND as u64 + TICK + 1)) };
        bound.look(Hlc(1000 * SECOND as u64 + 1), Time::ZERO);
        assert_eq!(bound.time(&clock), Ok(Hlc(1000 * SECOND as u64)));
        bound.look_away();
        assert_eq!(bound.time(&clock), Ok(Hlc(1000 * SECOND as u64 + TICK)));
    }

    #[test]
    fn a_clock_is_refused_that_is_ahead_of_more_than_half_of_the_others() {
        for (others, allowed) in [(&[0][..], 5), (&[0, 7], 12), (&[0, 0], 5), (&[0, 7, 9], 12), (&[0, 1, 2, 3], 7)] {
            let bound = bound(others);
            assert!(allows(&bound, allowed), "{others:?}");
            assert!(!allows(&bound, allowed + 1), "{others:?}");
        }
        assert!(allows(&bound(&[]), 1_000_000), "there is no member to compare with");
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
        assert!(allows(&bound, 0));
        let why = bound.warning(Hlc(1000 * SECOND as u64), Time::ZERO).expect("it is wrong");
        assert!(why.contains("3600.0 s behind"), "{why}");
        assert_eq!(bound.ahead_ms(NodeId(3), Hlc(1000 * SECOND as u64), Time::ZERO), Some(3_600_000));
    }
}
