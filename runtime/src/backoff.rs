//! The choice between spinning, yielding and sleeping.
//!
//! Waking a thread that sleeps on an idle core costs 20–30 µs on virtual machines, on the same core 4 µs; a thread that
//! spins reads a word in 0.1 µs. But a thread that spins on a core that another node of the same host could use delays
//! that node, and with it all others.

use std::time::{Duration, Instant};

use squall_fabric::Time;

use crate::CoreBudget;

/// The behavior of threads that have nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    /// Spin for a moment where the host has cores enough, then sleep. An idle node uses next to no processor time.
    #[default]
    Auto,
    /// Never sleep. The lowest latency, for a core per thread.
    Always,
    /// Sleep as soon as there is nothing to do.
    Never,
}

/// The way to wait after a step that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Looks again at once.
    Spin,
    /// Lets other threads run, then looks again.
    Yield,
    /// Sleeps until signaled.
    Sleep,
}

/// The number of empty steps of an engine, of some 0.2 µs each, that are cheaper than one wake-up.
const ENGINE_SPINS: u32 = 150;

/// The number of an engine's yields on a crowded host before it sleeps.
const ENGINE_YIELDS: u32 = 3;

/// The number of a rank's steps without progress before anything else is done, where each rank has a core. They take
/// some microseconds, several times as long as a short operation. With more, two ranks that the kernel has put on one
/// core wait for each other's spins.
const RANK_SPINS: u32 = 1 << 7;

/// The same where ranks share cores: the rank that is waited for may be the one that could run here.
const RANK_SPINS_OVERSUBSCRIBED: u32 = 1;

/// The number of a rank's yields for each look at the clock.
const RANK_YIELDS_PER_LOOK: u32 = 8;

/// The time for which a rank yields its core before it sleeps. Waking it takes some 40 µs, and delays its operation by
/// as much.
const RANK_YIELDS_FOR: Duration = Duration::from_millis(1);

/// The time for which a thread that waits for a block yields before it sleeps. It is several times what a block takes,
/// so that the thread sleeps between messages only. Waking a thread takes as long as copying half a megabyte. Engines,
/// which wait for messages and not for parts of one, give up sooner.
const BLOCK_YIELDS_FOR: Duration = Duration::from_micros(200);

/// The number of a caller's looks, of some 10 to 40 ns each, that take about as long as waking a thread that sleeps on
/// an idle core.
const CALLER_SPINS: u32 = 1000;

/// The number of waits in a row that last beyond the spins, after which a rank may move. Then ranks that wait for each
/// other may be on one core while other cores have fewer.
///
/// None of these ranks looks idle to the kernel, which took more than 10 ms to part two, also when one slept in
/// between.
const LATE: u32 = 32;

/// The shortest time between two such moves of a rank: the waits may have had another cause.
const MOVES_EVERY: Duration = Duration::from_millis(100);

/// The limits of a wait: it spins, then yields, then sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffProfile {
    /// The number of spins; `u32::MAX` for ever.
    spins: u32,
    /// The number of yields after the spins.
    yields: u32,
    /// The time for which it yields after these.
    yields_for: Duration,
    /// The number of those yields for each look at the clock.
    yields_per_look: u32,
    /// Whether the thread may move to another core when it waits beyond its spins again and again.
    moves: bool,
}

impl BackoffProfile {
    /// Sleeps at once.
    pub const NONE: BackoffProfile =
        BackoffProfile { spins: 0, yields: 0, yields_for: Duration::ZERO, yields_per_look: 1, moves: false };

    /// The engine of a node, whose steps look at all of its groups.
    pub fn engine(spin: Spin, budget: CoreBudget) -> BackoffProfile {
        match (spin, budget) {
            (Spin::Never, _) => Self::NONE,
            (Spin::Always, CoreBudget::Spare) => Self { spins: u32::MAX, ..Self::NONE },
            (Spin::Always, CoreBudget::Shared | CoreBudget::Oversubscribed) => Self::yields_for_ever(),
            (Spin::Auto, CoreBudget::Spare | CoreBudget::Shared) => Self { spins: ENGINE_SPINS, ..Self::NONE },
            (Spin::Auto, CoreBudget::Oversubscribed) => Self { yields: ENGINE_YIELDS, ..Self::NONE },
        }
    }

    /// A thread that drives ranks itself, and waits for what other ranks do.
    pub fn rank(spin: Spin, budget: CoreBudget) -> BackoffProfile {
        let (spins, yields_for) = match (spin, budget) {
            (Spin::Never, _) => return Self::NONE,
            (Spin::Auto, CoreBudget::Spare | CoreBudget::Shared) => (RANK_SPINS, RANK_YIELDS_FOR),
            (Spin::Auto, CoreBudget::Oversubscribed) => (RANK_SPINS_OVERSUBSCRIBED, RANK_YIELDS_FOR),
            (Spin::Always, CoreBudget::Spare | CoreBudget::Shared) => (u32::MAX, Duration::MAX),
            (Spin::Always, CoreBudget::Oversubscribed) => (RANK_SPINS_OVERSUBSCRIBED, Duration::MAX),
        };
        BackoffProfile { spins, yields: 0, yields_for, yields_per_look: RANK_YIELDS_PER_LOOK, moves: true }
    }

    /// A thread that waits for blocks of bulk data.
    pub fn block(spin: Spin, budget: CoreBudget) -> BackoffProfile {
        match (spin, budget) {
            (Spin::Never, _) => Self::NONE,
            (Spin::Auto, _) => Self { yields_for: BLOCK_YIELDS_FOR, ..Self::NONE },
            (Spin::Always, CoreBudget::Spare) => Self { spins: u32::MAX, ..Self::NONE },
            // A thread that spins here could keep the threads that it waits for from running.
            (Spin::Always, CoreBudget::Shared | CoreBudget::Oversubscribed) => Self::yields_for_ever(),
        }
    }

    /// A caller that waits for its node's engine. It spins only where an engine could not run instead.
    pub fn caller(spin: Spin, budget: CoreBudget) -> BackoffProfile {
        match (spin, budget) {
            (Spin::Never, _) | (Spin::Auto, CoreBudget::Shared | CoreBudget::Oversubscribed) => Self::NONE,
            (Spin::Auto, CoreBudget::Spare) => Self { spins: CALLER_SPINS, ..Self::NONE },
            (Spin::Always, CoreBudget::Spare) => Self { spins: u32::MAX, ..Self::NONE },
            (Spin::Always, CoreBudget::Shared | CoreBudget::Oversubscribed) => Self::yields_for_ever(),
        }
    }

    fn yields_for_ever() -> BackoffProfile {
        BackoffProfile { yields_for: Duration::MAX, ..Self::NONE }
    }

    /// Whether a wait never sleeps.
    fn is_endless(self) -> bool {
        self.spins == u32::MAX || self.yields_for == Duration::MAX
    }

    /// Waits for `done`, for a moment and without sleeping; if it never sleeps, until `until`.
    pub fn wait(self, until: Option<Instant>, mut done: impl FnMut() -> bool) {
        let mut backoff = Backoff::new(self);
        loop {
            let rest = backoff.rest(Time::boot_clock);
            if rest == Rest::Sleep || done() {
                return;
            }
            match rest {
                Rest::Yield => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
            if self.is_endless() && until.is_some_and(|until| Instant::now() >= until) {
                return;
            }
        }
    }
}

/// Decides how a thread waits, by the steps that found nothing since one did.
#[derive(Clone, Debug)]
pub struct Backoff {
    profile: BackoffProfile,
    /// The number of spins since the last step that found something.
    spins: u32,
    /// The number of yields since then.
    yields: u32,
    /// The time of the first yield since then at which the clock mattered.
    since: Option<Time>,
    /// Waits that lasted beyond the spins, less the number of waits that did not.
    late: u32,
    /// The time of the last move to another core.
    moved: Option<Time>,
}

impl Backoff {
    /// A wait that has not begun.
    pub fn new(profile: BackoffProfile) -> Backoff {
        Backoff { profile, spins: 0, yields: 0, since: None, late: 0, moved: None }
    }

    /// Notes that a step found something.
    #[inline]
    pub fn found(&mut self) {
        if self.spins > 0 {
            self.late = if self.yields > 0 { self.late.saturating_add(1) } else { self.late.saturating_sub(1) };
        }
        (self.spins, self.yields) = (0, 0);
        self.since = None;
    }

    /// Notes that a step found nothing, and decides how to wait. Asks for the time only if it matters.
    #[inline]
    pub fn rest(&mut self, now: impl FnOnce() -> Time) -> Rest {
        let profile = &self.profile;
        if self.spins < profile.spins {
            self.spins += u32::from(profile.spins != u32::MAX);
            return Rest::Spin;
        }
        let yields = self.yields;
        self.yields = yields.wrapping_add(1);
        if yields < profile.yields {
            return Rest::Yield;
        }
        if profile.yields_for == Duration::ZERO {
            self.yields = yields;
            return Rest::Sleep;
        }
        if !yields.is_multiple_of(profile.yields_per_look) {
            return Rest::Yield;
        }
        let now = now();
        let since = *self.since.get_or_insert(now);
        if now.since(since) < profile.yields_for { Rest::Yield } else { Rest::Sleep }
    }

    /// Whether the caller is to move to another core, because the threads that it waits for may share its core. True
    /// after many waits in a row that lasted beyond the spins, if the profile allows moves, and at most once in 100 ms.
    #[inline]
    pub fn is_astray(&mut self, now: impl FnOnce() -> Time) -> bool {
        if self.late < LATE {
            return false;
        }
        self.late = 0;
        self.profile.moves && self.is_due(now())
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

    type Profile = fn(Spin, CoreBudget) -> BackoffProfile;

    const PROFILES: [(&str, Profile); 4] = [
        ("engine", BackoffProfile::engine),
        ("rank", BackoffProfile::rank),
        ("block", BackoffProfile::block),
        ("caller", BackoffProfile::caller),
    ];
    const BUDGETS: [CoreBudget; 3] = [CoreBudget::Spare, CoreBudget::Shared, CoreBudget::Oversubscribed];

    fn first(profile: BackoffProfile) -> Rest {
        Backoff::new(profile).rest(|| Time::ZERO)
    }

    #[test]
    fn only_always_never_sleeps() {
        for (name, profile) in PROFILES {
            for budget in BUDGETS {
                for (spin, sleeps) in [(Spin::Auto, true), (Spin::Never, true), (Spin::Always, false)] {
                    let mut backoff = Backoff::new(profile(spin, budget));
                    let hour = Duration::from_secs(3600);
                    let slept = (0..10_000).any(|round| backoff.rest(|| Time::ZERO + round * hour) == Rest::Sleep);
                    assert_eq!(slept, sleeps, "{name}, {spin:?}, {budget:?}");
                }
            }
        }
    }

    #[test]
    fn no_thread_spins_where_one_that_it_waits_for_needs_the_core() {
        for (name, profile) in PROFILES {
            for spin in [Spin::Auto, Spin::Never, Spin::Always] {
                let mut backoff = Backoff::new(profile(spin, CoreBudget::Oversubscribed));
                let spun = (0..10_000).filter(|_| backoff.rest(|| Time::ZERO) == Rest::Spin).count();
                let most = if name == "rank" { RANK_SPINS_OVERSUBSCRIBED as usize } else { 0 };
                assert!(spun <= most, "{name} spun {spun} times with {spin:?}");
            }
        }
    }

    #[test]
    fn an_engine_spins_on_a_roomy_host_and_yields_on_a_crowded_one() {
        let engine = |spin, nodes, cores| first(BackoffProfile::engine(spin, CoreBudget::of(nodes, cores)));
        assert_eq!(engine(Spin::Auto, 3, 2), Rest::Yield);
        assert_eq!(engine(Spin::Auto, 2, 4), Rest::Spin);
        assert_eq!(engine(Spin::Never, 2, 4), Rest::Sleep);
        assert_eq!(engine(Spin::Always, 2, 4), Rest::Spin);
        assert_eq!(engine(Spin::Always, 3, 2), Rest::Yield, "else the others could not run");
        assert_eq!(engine(Spin::Always, 2, 2), Rest::Yield, "else the applications could not run");
    }

    #[test]
    fn an_engine_sleeps_after_its_spins_or_yields_and_again_at_once() {
        for (budget, before, count) in
            [(CoreBudget::Shared, Rest::Spin, ENGINE_SPINS), (CoreBudget::Oversubscribed, Rest::Yield, ENGINE_YIELDS)]
        {
            let mut backoff = Backoff::new(BackoffProfile::engine(Spin::Auto, budget));
            for _ in 0..2 {
                for _ in 0..count {
                    assert_eq!(backoff.rest(|| unreachable!("the time does not matter")), before);
                }
                for _ in 0..3 {
                    assert_eq!(backoff.rest(|| unreachable!("the time does not matter")), Rest::Sleep);
                }
                backoff.found();
            }
        }
    }

    #[test]
    fn a_rank_spins_then_yields_then_sleeps() {
        let mut backoff = Backoff::new(BackoffProfile::rank(Spin::Auto, CoreBudget::Shared));
        let began = Time::from_nanos(1_000);
        for _ in 0..RANK_SPINS {
            assert_eq!(backoff.rest(|| unreachable!("the time does not matter yet")), Rest::Spin);
        }
        for now in [began, began + RANK_YIELDS_FOR / 2] {
            assert_eq!(backoff.rest(|| now), Rest::Yield);
            for _ in 1..RANK_YIELDS_PER_LOOK {
                assert_eq!(backoff.rest(|| unreachable!("the time is asked for now and then")), Rest::Yield);
            }
        }
        assert_eq!(backoff.rest(|| began + RANK_YIELDS_FOR), Rest::Sleep);
        backoff.found();
        assert_eq!(backoff.rest(|| began + RANK_YIELDS_FOR), Rest::Spin);
    }

    #[test]
    fn a_thread_that_waits_for_blocks_yields_for_a_while() {
        let mut backoff = Backoff::new(BackoffProfile::block(Spin::Auto, CoreBudget::Oversubscribed));
        let began = Time::from_nanos(1_000);
        assert_eq!(backoff.rest(|| began), Rest::Yield);
        assert_eq!(backoff.rest(|| began + BLOCK_YIELDS_FOR / 2), Rest::Yield);
        assert_eq!(backoff.rest(|| began + BLOCK_YIELDS_FOR), Rest::Sleep);
        backoff.found();
        assert_eq!(backoff.rest(|| began + BLOCK_YIELDS_FOR), Rest::Yield);
    }

    #[test]
    fn a_caller_spins_only_where_an_engine_could_not_run_instead() {
        for (spin, nodes, cores, looks) in
            [(Spin::Auto, 2, 4, CALLER_SPINS), (Spin::Auto, 3, 4, 0), (Spin::Never, 1, 64, 0)]
        {
            let mut looked = 0;
            BackoffProfile::caller(spin, CoreBudget::of(nodes, cores)).wait(None, || {
                looked += 1;
                false
            });
            assert_eq!(looked, looks, "{spin:?} with {nodes} nodes on {cores} cores");
        }
        for (nodes, rest) in [(1, Rest::Spin), (2, Rest::Yield)] {
            assert_eq!(first(BackoffProfile::caller(Spin::Always, CoreBudget::of(nodes, 2))), rest);
        }
    }

    #[test]
    fn a_caller_that_never_sleeps_still_keeps_its_deadline() {
        for budget in BUDGETS {
            let until = Instant::now() + Duration::from_millis(1);
            BackoffProfile::caller(Spin::Always, budget).wait(Some(until), || false);
            assert!(Instant::now() >= until);
        }
    }

    /// Waits for longer than it spins.
    fn outlast(backoff: &mut Backoff, now: Time) {
        assert!((0..=RANK_SPINS).any(|_| backoff.rest(|| now) != Rest::Spin));
    }

    #[test]
    fn a_rank_that_is_late_again_and_again_is_astray_now_and_then() {
        for (spin, budget, moves) in [
            (Spin::Auto, CoreBudget::Shared, true),
            (Spin::Auto, CoreBudget::Oversubscribed, true),
            (Spin::Never, CoreBudget::Shared, false),
        ] {
            let mut backoff = Backoff::new(BackoffProfile::rank(spin, budget));
            let mut moved = Vec::new();
            for wait in 0..10 * LATE {
                let now = Time::ZERO + wait * MOVES_EVERY / (4 * LATE);
                outlast(&mut backoff, now);
                backoff.found();
                if backoff.is_astray(|| now) {
                    moved.push(wait + 1);
                }
            }
            assert_eq!(moved, if moves { vec![LATE, 5 * LATE, 9 * LATE] } else { Vec::new() }, "{spin:?}, {budget:?}");
        }
        let mut backoff = Backoff::new(BackoffProfile::rank(Spin::Auto, CoreBudget::Shared));
        for _ in 0..10 * LATE {
            outlast(&mut backoff, Time::ZERO);
            backoff.found();
            // Spinning was worth it.
            assert_eq!(backoff.rest(|| Time::ZERO), Rest::Spin);
            backoff.found();
            assert!(!backoff.is_astray(|| Time::ZERO));
        }
    }
}
