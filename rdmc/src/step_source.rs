//! The sends and receives of a member for its messages.

use crate::{
    plan::Plan,
    schedule::{FirstBlock, Rank, Schedule, Step},
};

/// The source of a member's steps.
#[derive(Debug)]
pub(crate) enum Course {
    /// A schedule for whole messages.
    Schedule(Schedule),
    /// A plan for the blocks that members lack of one interrupted message.
    Plan(Plan),
}

impl Course {
    /// The number of parts, which go on side by side.
    pub(crate) fn parts(&self) -> usize {
        match self {
            Course::Schedule(schedule) => schedule.parts().len(),
            Course::Plan(_) => 1,
        }
    }

    /// The part in which this member receives.
    pub(crate) fn receiving(&self) -> Option<usize> {
        match self {
            Course::Schedule(schedule) => schedule.parts().iter().position(|part| part.first_block().is_some()),
            Course::Plan(_) => Some(0),
        }
    }

    /// The block that comes before its message is known.
    pub(crate) fn first_block(&self) -> Option<FirstBlock> {
        match self {
            Course::Schedule(schedule) => schedule.first_block(),
            Course::Plan(_) => None,
        }
    }

    pub(crate) fn steps(&self, part: usize, blocks: u32) -> u64 {
        match self {
            Course::Schedule(schedule) => schedule.parts()[part].steps(blocks),
            Course::Plan(plan) => plan.steps().len() as u64,
        }
    }

    pub(crate) fn at(&self, part: usize, blocks: u32, step: u64) -> Step {
        match self {
            Course::Schedule(schedule) => schedule.parts()[part].at(blocks, step),
            Course::Plan(plan) => plan.steps()[step as usize],
        }
    }

    pub(crate) fn peers(&self) -> Vec<Rank> {
        match self {
            Course::Schedule(schedule) => schedule.peers(),
            Course::Plan(plan) => plan.peers(),
        }
    }
}
