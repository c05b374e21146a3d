//! The form in which the work for a group is given to the thread that does it.

use squall_fabric::Time;
use squall_membership::EndReason;
use squall_ordered::{DeliverError, Ran};

use crate::delivery::shard_change::ShardChange;

/// The reason for which a task takes no further step.
#[derive(Debug)]
pub(crate) enum Halt {
    /// A sender is faulty.
    Faulty(DeliverError),
    /// The application panicked, so this node's part ends with this reason.
    Panicked(EndReason),
}

impl From<DeliverError> for Halt {
    fn from(error: DeliverError) -> Halt {
        Halt::Faulty(error)
    }
}

/// The delivering thread's work for one group. It runs on the engine's thread, on one of its own, or in the simulator.
pub(crate) trait Task: Send {
    /// Whether a step would do anything, deadlines aside.
    fn is_due(&self) -> bool;

    /// Applies about `max` turns at most, and answers the reads that can be answered. The reads that it counts include
    /// peeks.
    ///
    /// After an error there must be no further step, only the [end](ShardChange::End).
    fn step(&mut self, now: Time, max: usize) -> Result<Ran, Halt>;

    /// Returns the time at which a step is due even if nothing happens.
    fn deadline(&self) -> Option<Time>;

    /// Notes an event of the shard. After [`ShardChange::End`] there must be no further step; another end does nothing.
    fn change(&mut self, change: ShardChange);

    fn name(&self) -> &str;
}
