//! The group that a receiver is in, and what has come of segments that are not whole.

use std::{collections::VecDeque, sync::Arc};

use squall_rdmc::{BlockSet, Buffer, GroupId};

use super::super::control::Join;

/// Blocks of a segment that is not whole.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) held: BlockSet,
    pub(super) buffer: Arc<Buffer>,
}

/// The group that this receiver is in.
pub(super) struct ReceivingGroup {
    pub(super) id: GroupId,
    pub(super) join: Join,
    /// The number of its messages for which memory was given.
    pub(super) given: u64,
    /// The number of buffers that are in the group, and have not come back as a whole message.
    pub(super) inside: usize,
    /// Messages that have begun to arrive, and wait for memory.
    pub(super) waiting: VecDeque<u64>,
}
