//! The points of a node's life for which its program waits: the end of its start, and of its leave.

use std::time::Duration;

use squall_fabric::Time;
use squall_membership::EndReason;

use super::watch::NodeWatch;

/// The longest time that a node that has left waits until it is no voter any more.
pub(super) const VOTE_PATIENCE: Duration = Duration::from_millis(500);

/// The interval at which an engine that sleeps looks whether a point was reached.
const LOOKS: Duration = Duration::from_millis(2);

/// The points that an engine reports.
#[derive(Debug)]
pub(crate) struct Milestones {
    /// The longest time that a node in its first view waits for the other members' clocks.
    clock_patience: Duration,
    started: Milestone,
    left: Milestone,
    /// The time of the next look.
    look_at: Time,
}

/// A point for which a node waits for a certain time at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Milestone {
    Ahead,
    WaitsUntil(Time),
    Passed,
}

impl Milestones {
    pub(super) fn new(clock_patience: Duration) -> Milestones {
        Milestones { clock_patience, started: Milestone::Ahead, left: Milestone::Ahead, look_at: Time::MAX }
    }

    /// The time of the next look.
    pub(super) fn deadline(&self) -> Time {
        self.look_at
    }

    /// Tells the program when the start is done: the node is in a view, and knows the other members' clocks. Without
    /// these the first submits would wait, and later ones might overtake them. Members that never beat are given up.
    pub(super) fn look_at_start(&mut self, now: Time, watch: &NodeWatch, knows_clocks: impl FnOnce() -> bool) {
        self.look_at = Time::MAX;
        if self.started == Milestone::Passed || watch.views() == 0 {
            return;
        }
        if self.started.look(now, self.clock_patience, knows_clocks()) {
            watch.say_started();
        } else {
            self.look_at = now + LOOKS;
        }
    }

    /// Tells the program, after the node's end, when the others can decide without it: the change of the voters follows
    /// a moment after that of the view. `is_voter` tells whether the node is still one of them.
    pub(super) fn look_at_end(&mut self, now: Time, watch: &NodeWatch, is_voter: impl FnOnce() -> bool) {
        if self.left == Milestone::Passed {
            return;
        }
        let Some(reason) = watch.end_reason() else { return };
        let has_others = || watch.view().is_some_and(|view| view.members.len() > 1);
        let is_needed = reason == EndReason::Left && has_others() && is_voter();
        if self.left.look(now, VOTE_PATIENCE, !is_needed) {
            watch.say_left();
        } else {
            self.look_at = now + LOOKS;
        }
    }
}

impl Milestone {
    /// Passes it once `is_reached`, or after `patience` since the first look. Returns whether that is now.
    fn look(&mut self, now: Time, patience: Duration, is_reached: bool) -> bool {
        let until = match *self {
            Milestone::Ahead => now + patience,
            Milestone::WaitsUntil(until) => until,
            Milestone::Passed => return false,
        };
        let passes = is_reached || now >= until;
        *self = if passes { Milestone::Passed } else { Milestone::WaitsUntil(until) };
        passes
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_passed_once_when_it_is_reached_or_its_time_is_up() {
        let (mut reached, mut late) = (Milestone::Ahead, Milestone::Ahead);
        let at = Time::from_nanos;
        let patience = Duration::from_nanos(10);
        assert!(!reached.look(at(5), patience, false) && reached.look(at(6), patience, true));
        assert!(!reached.look(at(7), patience, true));
        assert!(!late.look(at(5), patience, false) && !late.look(at(14), patience, false));
        assert!(late.look(at(15), patience, false) && !late.look(at(16), patience, false));
    }
}
