//! The sends and receives of a member for its messages.

use crate::{
    plan::Plan,
    schedule::{FirstBlock, Rank, Schedule, Step},
};

/// The source of a member's steps.
#[derive(Debug)]
pub(crate) enum StepSource {
    /// A schedule for whole messages.
    Schedule(Schedule),
    /// A plan for the blocks that members lack of one interrupted message.
    Plan(Plan),
}

impl StepSource {
    /// The number of parts, which go on side by side.
    pub(crate) fn parts(&self) -> usize {
        match self {
            StepSource::Schedule(schedule) => schedule.parts().len(),
            StepSource::Plan(_) => 1,
        }
    }

    /// The part in which this member receives.
    pub(crate) fn receiving(&self) -> Option<usize> {
        match self {
            StepSource::Schedule(schedule) => schedule.parts().iter().position(|part| part.first_block().is_some()),
            StepSource::Plan(_) => Some(0),
        }
    }

    /// The block that comes before its message is known.
    pub(crate) fn first_block(&self) -> Option<FirstBlock> {
        match self {
            StepSource::Schedule(schedule) => schedule.first_block(),
            StepSource::Plan(_) => None,
        }
    }

    pub(crate) fn steps(&self, part: usize, blocks: u32) -> u64 {
        match self {
            StepSource::Schedule(schedule) => schedule.parts()[part].steps(blocks),
            StepSource::Plan(plan) => plan.steps().len() as u64,
        }
    }

    pub(crate) fn at(&self, part: usize, blocks: u32, step: u64) -> Step {
        match self {
            StepSource::Schedule(schedule) => schedule.parts()[part].at(blocks, step),
            StepSource::Plan(plan) => plan.steps()[step as usize],
        }
    }

    pub(crate) fn peers(&self) -> Vec<Rank> {
        match self {
            StepSource::Schedule(schedule) => schedule.peers(),
            StepSource::Plan(plan) => plan.peers(),
        }
    }
}
