//! The waiting of a thread that drives ranks itself, for what other ranks do.

use std::time::Duration;

use squall_fabric::Time;

use crate::{
    config::Spin,
    runtime::{core_budget::CoreBudget, idle::Rest},
};

/// The number of steps without progress before anything else is done, where each rank has a core. They take some
/// microseconds, several times as long as a short operation. With more, two ranks that the kernel has put on one core
/// wait for each other's spins.
const SPINS: u32 = 1 << 7;

/// The same where ranks share cores: the rank that is waited for may be the one that could run here.
const SPINS_OVERSUBSCRIBED: u32 = 1;

/// The number of yields for each look at the clock.
const YIELDS_PER_LOOK: u32 = 8;

/// The time for which a rank yields its core before it sleeps. Waking it takes some 40 µs, and delays its operation by
/// as much.
const YIELDS_FOR: Duration = Duration::from_millis(1);

/// The number of waits in a row that last beyond the spins, after which a rank may move. Then ranks that wait for each
/// other may be on one core while other cores have fewer.
///
/// None of these ranks looks idle to the kernel, which took more than 10 ms to part two, also when one slept in
/// between.
const LATE: u32 = 32;

/// The shortest time between two such moves of a rank: the waits may have had another cause.
const MOVES_EVERY: Duration = Duration::from_millis(100);

/// Decides what a rank does after a step without progress.
#[derive(Debug)]
pub(crate) struct Pace {
    spins: u32,
    yields_for: Duration,
    /// Steps since the last progress.
    idle: u32,
    /// The number of yields since then.
    yields: u32,
    /// The time of the first yield since then.
    since: Option<Time>,
    /// Whether it may move to another core.
    moves: bool,
    /// Waits that lasted beyond the spins, less the number of waits that did not.
    late: u32,
    /// The time of the last move.
    moved: Option<Time>,
}

impl Pace {
    pub(crate) fn new(spin: Spin, budget: CoreBudget) -> Pace {
        let (spins, yields_for) = match (spin, budget) {
            (Spin::Never, _) => (0, Duration::ZERO),
            (Spin::Auto, CoreBudget::Spare | CoreBudget::Shared) => (SPINS, YIELDS_FOR),
            (Spin::Auto, CoreBudget::Oversubscribed) => (SPINS_OVERSUBSCRIBED, YIELDS_FOR),
            (Spin::Always, CoreBudget::Spare | CoreBudget::Shared) => (u32::MAX, Duration::MAX),
            (Spin::Always, CoreBudget::Oversubscribed) => (SPINS_OVERSUBSCRIBED, Duration::MAX),
        };
        let moves = spin != Spin::Never;
        Pace { spins, yields_for, idle: 0, yields: 0, since: None, moves, late: 0, moved: None }
    }

    /// Notes progress.
    #[inline]
    pub(crate) fn found(&mut self) {
        if self.idle > 0 {
            self.late = if self.yields > 0 { self.late + 1 } else { self.late.saturating_sub(1) };
        }
        (self.idle, self.yields) = (0, 0);
        self.since = None;
    }

    /// Decides what to do after a step without progress. Asks for the time only if it matters.
    #[inline]
    pub(crate) fn rest(&mut self, now: impl FnOnce() -> Time) -> Rest {
        if self.idle < self.spins {
            self.idle += u32::from(self.spins != u32::MAX);
            return Rest::Spin;
        }
        let yields = self.yields;
        self.yields = yields.wrapping_add(1);
        if self.yields_for > Duration::ZERO && !yields.is_multiple_of(YIELDS_PER_LOOK) {
            return Rest::Yield;
        }
        let now = now();
        let since = *self.since.get_or_insert(now);
        if now.since(since) < self.yields_for { Rest::Yield } else { Rest::Sleep }
    }

    /// Whether the ranks that are waited for may be on this core, so that the rank is to move to the core of its
    /// number.
    #[inline]
    pub(crate) fn is_astray(&mut self, now: impl FnOnce() -> Time) -> bool {
        if self.late < LATE {
            return false;
        }
        self.late = 0;
        self.moves && self.is_due(now())
    }

    #[cold]
    fn is_due(&mut self, now: Time) -> bool {
        let is_due = self.moved.is_none_or(|moved| now.since(moved) >= MOVES_EVERY);
        if is_due {
            self.moved = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_spins_then_yields_then_sleeps() {
        let mut pace = Pace::new(Spin::Auto, CoreBudget::Shared);
        let began = Time::from_nanos(1_000);
        for _ in 0..SPINS {
            assert_eq!(pace.rest(|| unreachable!("the time does not matter yet")), Rest::Spin);
        }
        for now in [began, began + YIELDS_FOR / 2] {
            assert_eq!(pace.rest(|| now), Rest::Yield);
            for _ in 1..YIELDS_PER_LOOK {
                assert_eq!(pace.rest(|| unreachable!("the time is asked for now and then")), Rest::Yield);
            }
        }
        assert_eq!(pace.rest(|| began + YIELDS_FOR), Rest::Sleep);
        pace.found();
        assert_eq!(pace.rest(|| began + YIELDS_FOR), Rest::Spin);
    }

    /// Waits for longer than it spins.
    fn outlast(pace: &mut Pace, now: Time) {
        assert!((0..=SPINS).any(|_| pace.rest(|| now) != Rest::Spin));
    }

    #[test]
    fn who_is_late_again_and_again_is_astray_now_and_then() {
        for (spin, budget, moves) in [
            (Spin::Auto, CoreBudget::Shared, true),
            (Spin::Auto, CoreBudget::Oversubscribed, true),
            (Spin::Never, CoreBudget::Shared, false),
        ] {
            let mut pace = Pace::new(spin, budget);
            let mut moved = Vec::new();
            for wait in 0..10 * LATE {
                let now = Time::ZERO + wait * MOVES_EVERY / (4 * LATE);
                outlast(&mut pace, now);
                pace.found();
                if pace.is_astray(|| now) {
                    moved.push(wait + 1);
                }
            }
            assert_eq!(moved, if moves { vec![LATE, 5 * LATE, 9 * LATE] } else { Vec::new() }, "{spin:?}, {budget:?}");
        }
        let mut pace = Pace::new(Spin::Auto, CoreBudget::Shared);
        for _ in 0..10 * LATE {
            outlast(&mut pace, Time::ZERO);
            pace.found();
            // Spinning was worth it.
            assert_eq!(pace.rest(|| Time::ZERO), Rest::Spin);
            pace.found();
            assert!(!pace.is_astray(|| Time::ZERO));
        }
    }

    #[test]
    fn only_always_never_sleeps_and_nobody_spins_long_for_those_who_need_the_core() {
        for budget in [CoreBudget::Spare, CoreBudget::Shared, CoreBudget::Oversubscribed] {
            for (spin, sleeps) in [(Spin::Auto, true), (Spin::Never, true), (Spin::Always, false)] {
                let mut pace = Pace::new(spin, budget);
                pace.since = Some(Time::from_nanos(0));
                let rests: Vec<Rest> = (0..=SPINS).map(|_| pace.rest(|| Time::from_nanos(3_600_000_000_000))).collect();
                assert_eq!(rests.contains(&Rest::Sleep), sleeps, "{spin:?}, {budget:?}");
                let spun = rests.iter().filter(|rest| **rest == Rest::Spin).count() as u32;
                assert!(
                    budget != CoreBudget::Oversubscribed || spun <= SPINS_OVERSUBSCRIBED,
                    "{spin:?} spun {spun} times"
                );
            }
        }
    }
}
