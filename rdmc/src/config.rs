//! The configuration of a group.

use squall_fabric::{Fingerprint, NodeId, RegisterError};

use crate::schedule::{Algorithm, Rank, Schedule, ScheduleError};

/// A group's name, alike at all members. Every group has endpoints and regions of its own (G6), so a group that follows
/// another needs another `instance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    /// The group's number among those of a program.
    pub group: u32,
    /// The group's instance: an epoch, or a number that counts attempts.
    pub instance: u64,
}

/// A group's configuration. All members must have the same: others are refused when they connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// The group's name.
    pub id: GroupId,
    /// The members by rank. The first is the root, which alone sends messages.
    pub members: Vec<NodeId>,
    /// The algorithm by which blocks travel.
    pub algorithm: Algorithm,
    /// The size of every block of a message in bytes, except the last, which may be shorter.
    pub block_bytes: usize,
    /// The largest number of receives that a member has posted. With 1, senders take turns at it in the schedule's
    /// order, at the price of a round trip for each block. In shared memory more are better: there a block costs its
    /// receiver's time, and no link's.
    pub receives_ahead: usize,
    /// The largest number of sends that a member has outstanding in each part of its schedule. Several share its link,
    /// which delays the first of them.
    pub sends_in_flight: usize,
    /// The number of steps by which a member's sends may be ahead of its receives, and of its earlier sends. With 1, a
    /// step's send waits for the sends and receives of the steps before. `u64::MAX` means no limit.
    pub steps_ahead: u64,
    /// Whether a receiver keeps a block of memory for a message that comes before it has
    /// [provided](crate::Group::provide) any. Without it, the message's senders wait until the receiver has; then the
    /// first block comes in place, if the memory has room for that many blocks. Members may differ in this.
    pub first_block_memory: bool,
    /// Whether messages are [phantoms](crate::Buffer::phantom).
    pub phantom: bool,
}

/// The largest block, in bytes.
pub const MAX_BLOCK_BYTES: usize = 1 << 30;

impl GroupConfig {
    /// A binomial pipeline of blocks of 1 MiB over a network, in step.
    pub fn new(id: GroupId, members: Vec<NodeId>) -> GroupConfig {
        GroupConfig {
            id,
            members,
            algorithm: Algorithm::default(),
            block_bytes: 1 << 20,
            receives_ahead: 1,
            sends_in_flight: 1,
            steps_ahead: 1,
            first_block_memory: true,
            phantom: false,
        }
    }

    /// The number of blocks of a message of `len` bytes; none if it is 2³² or more.
    pub fn blocks(&self, len: usize) -> Option<u32> {
        u32::try_from(len.div_ceil(self.block_bytes).max(1)).ok()
    }

    /// Checks the configuration for a node. Returns the node's rank and schedule.
    pub(crate) fn check(&self, node: NodeId) -> Result<Schedule, CreateError> {
        let mut sorted = self.members.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(CreateError::Twice(twice[0]));
        }
        let rank = self.members.iter().position(|&member| member == node).ok_or(CreateError::NotAMember(node))?;
        if !(1..=MAX_BLOCK_BYTES).contains(&self.block_bytes) {
            return Err(CreateError::BlockBytes(self.block_bytes));
        }
        if self.receives_ahead == 0 || self.sends_in_flight == 0 || self.steps_ahead == 0 {
            return Err(CreateError::Window);
        }
        Ok(Schedule::new(&self.algorithm, self.members.len(), Rank(rank as u32))?)
    }

    /// The bytes that members compare when they connect. `purpose` is what they must agree on besides the
    /// configuration.
    pub(crate) fn hello(&self, purpose: u64) -> Vec<u8> {
        let mut agreed = Fingerprint::default();
        agreed.number(VERSION).text(&format!("{:?}", self.algorithm)).number(self.block_bytes as u64).number(purpose);
        for member in &self.members {
            agreed.number(u64::from(member.0));
        }
        agreed.value().to_le_bytes().to_vec()
    }
}

/// The version of the protocol between members: the immediate, the control words and the schedules.
const VERSION: u64 = 2;

/// The reason why a group could not be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// A node that is not one of the members.
    #[error("{0} is no member of the group")]
    NotAMember(NodeId),
    /// A member is named twice.
    #[error("{0} is named twice among the group's members")]
    Twice(NodeId),
    /// The block size is impossible.
    #[error("blocks of {0} bytes are not possible: give 1 to {MAX_BLOCK_BYTES}")]
    BlockBytes(usize),
    /// A window is zero.
    #[error("a group needs at least one receive ahead, one send in flight, and one step ahead")]
    Window,
    /// A schedule that there is not.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A group that there is already.
    #[error("there is a group {0:?} already: a group that follows another needs another instance")]
    Exists(GroupId),
    /// The message that is to be completed does not fit its description.
    #[error("a message of {blocks} blocks of {block_bytes} bytes can't be completed: {cause}")]
    Interrupted {
        /// The message's number of blocks.
        blocks: u32,
        /// The group's block size.
        block_bytes: usize,
        /// The cause.
        cause: &'static str,
    },
}
