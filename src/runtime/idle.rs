//! The choice between spinning, yielding and sleeping.
//!
//! Waking a thread that sleeps on an idle core costs 20–30 µs on virtual machines, on the same core 4 µs; a thread that
//! spins reads a word in 0.1 µs. But a thread that spins on a core that another node of the same host could use delays
//! that node, and with it all others.

use crate::{config::Spin, runtime::core_budget::CoreBudget};

/// The way to wait after a step that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Looks again at once.
    Spin,
    /// Lets other threads run, then looks again.
    Yield,
    /// Sleeps until signaled.
    Sleep,
}

/// Decides how a thread waits, by how often it found nothing.
#[derive(Clone, Debug)]
pub(crate) struct Idle {
    spins: u32,
    yields: u32,
    sleeps: bool,
    /// The number of steps that found nothing since one did.
    empty: u32,
}

/// The number of empty steps, of some 0.2 µs each, that are cheaper than one wake-up.
const SPINS: u32 = 150;

/// The number of yields to try on a crowded host before sleeping.
const YIELDS: u32 = 3;

impl Idle {
    pub(crate) fn new(spin: Spin, budget: CoreBudget) -> Idle {
        let (spins, yields, sleeps) = match (spin, budget) {
            (Spin::Never, _) => (0, 0, true),
            (Spin::Always, CoreBudget::Spare) => (u32::MAX, 0, false),
            (Spin::Always, CoreBudget::Shared | CoreBudget::Oversubscribed) => (0, u32::MAX, false),
            (Spin::Auto, CoreBudget::Spare | CoreBudget::Shared) => (SPINS, 0, true),
            (Spin::Auto, CoreBudget::Oversubscribed) => (0, YIELDS, true),
        };
        Idle { spins, yields, sleeps, empty: 0 }
    }

    /// Notes that a step found something.
    pub(crate) fn found(&mut self) {
        self.empty = 0;
    }

    /// Notes that a step found nothing, and decides how to wait.
    pub(crate) fn rest(&mut self) -> Rest {
        self.empty = self.empty.saturating_add(1);
        if self.empty <= self.spins {
            Rest::Spin
        } else if self.empty - self.spins <= self.yields || !self.sleeps {
            Rest::Yield
        } else {
            Rest::Sleep
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(spin: Spin, nodes: usize, cores: usize) -> Rest {
        Idle::new(spin, CoreBudget::of(nodes, cores)).rest()
    }

    #[test]
    fn a_crowded_host_yields_and_a_roomy_one_spins() {
        assert_eq!(first(Spin::Auto, 3, 2), Rest::Yield);
        assert_eq!(first(Spin::Auto, 2, 4), Rest::Spin);
        assert_eq!(first(Spin::Never, 2, 4), Rest::Sleep);
        assert_eq!(first(Spin::Always, 2, 4), Rest::Spin);
        assert_eq!(first(Spin::Always, 3, 2), Rest::Yield, "else the others could not run");
        assert_eq!(first(Spin::Always, 2, 2), Rest::Yield, "else the applications could not run");
    }

    #[test]
    fn only_always_never_sleeps() {
        for (spin, sleeps) in [(Spin::Auto, true), (Spin::Never, true), (Spin::Always, false)] {
            for nodes in [2, 9] {
                let mut idle = Idle::new(spin, CoreBudget::of(nodes, 4));
                let slept = (0..10_000).any(|_| idle.rest() == Rest::Sleep);
                assert_eq!(slept, sleeps, "{spin:?} with {nodes} nodes");
            }
        }
    }
}
