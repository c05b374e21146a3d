//! What a shard is configured with, alike at all of its members.

use std::time::Duration;

use squall_rdmc::{GroupConfig, schedule::Algorithm};
use squall_sst::ring;

use crate::CreateError;

/// In which order, and when, messages are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Atomic multicast: one order at all members, each message once all have received it.
    #[default]
    Ordered,
    /// As `Ordered`, with a log on disk: each message has a version, and is [safe](crate::Deliver::safe) once all members have
    /// it on disk.
    Durable,
    /// Each sender's messages in their order, at most once, as they arrive. No order between senders, no nulls, no trim, no
    /// linearizable reads. A sender delivers its own message once every other member holds it.
    Unordered,
}

impl Mode {
    /// Whether all members deliver in one order.
    pub fn is_ordered(self) -> bool {
        matches!(self, Mode::Ordered | Mode::Durable)
    }
}

/// How bulk messages travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BulkPath {
    /// Over a network, where each sender's link is the bottleneck: by a binomial pipeline, in which members pass blocks on.
    #[default]
    Network,
    /// As over a [`Network`](BulkPath::Network), by devices that lock the memory they reach: reserves stay as they are, since
    /// new ones would take long to lock, and give nothing back.
    Rdma,
    /// Through memory that members share, where a block costs its receiver a copy and its sender nothing: from the sender to
    /// each of the others.
    SharedMemory,
}

impl BulkPath {
    /// Sets what suits it.
    pub(crate) fn apply(self, group: &mut GroupConfig) {
        match self {
            // What a group has by itself.
            BulkPath::Network | BulkPath::Rdma => {}
            BulkPath::SharedMemory => {
                group.algorithm = Algorithm::Interleaved;
                group.receives_ahead = 16;
                group.sends_in_flight = 16 * group.members.len();
                group.steps_ahead = u64::MAX;
            }
        }
    }
}

/// A shard's configuration. All members must have the same, but for `reads_alone`: others are refused when they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// The delivery mode.
    pub mode: Mode,
    /// The size of each sender's ring in bytes, a power of two. A member keeps one ring for each sender, and as much again
    /// for its own.
    pub ring_bytes: usize,
    /// A message of more bytes is a *bulk message*: it travels by RDMC, and only then takes its turn. Never more than a quarter
    /// of the ring counts.
    pub bulk_threshold: usize,
    /// The memory for the bulk messages of each sender, in bytes, of which whole blocks are used; each member reserves it, for
    /// each sender. So much of a sender's bulk messages may be under way together, and none may be larger. 0 for no bulk
    /// messages: then a message may have a quarter of the ring.
    pub bulk_reserve_bytes: usize,
    /// The size of the blocks that bulk messages travel in, in bytes: a multiple of 64. A bulk message takes whole blocks of
    /// the reserve.
    pub bulk_block_bytes: usize,
    /// How bulk messages travel.
    pub bulk_path: BulkPath,
    /// How long a member that all others have vouched for answers reads by itself. When a member is dropped, the others wait
    /// as long before they go on. 0 for never.
    pub read_lease: Duration,
    /// Whether this member reads under its leases; else it confirms each read, for a host whose clock may stop. Others may differ.
    pub reads_alone: bool,
}

impl Default for ShardConfig {
    fn default() -> ShardConfig {
        ShardConfig {
            mode: Mode::Ordered,
            ring_bytes: 1 << 20,
            bulk_threshold: 10 << 10,
            bulk_reserve_bytes: 64 << 20,
            bulk_block_bytes: 128 << 10,
            bulk_path: BulkPath::default(),
            read_lease: Duration::from_millis(15),
            reads_alone: true,
        }
    }
}

impl ShardConfig {
    /// The longest message that goes through the ring, in bytes.
    pub(crate) fn inline_bytes(&self) -> usize {
        let quarter = ring::max_payload(self.ring_bytes);
        if self.bulk_reserve_bytes == 0 { quarter } else { self.bulk_threshold.min(quarter) }
    }

    /// The reserve in whole blocks, in bytes.
    pub(crate) fn reserve_bytes(&self) -> usize {
        self.bulk_reserve_bytes - self.bulk_reserve_bytes.checked_rem(self.bulk_block_bytes).unwrap_or(0)
    }

    /// The longest message that a shard takes, in bytes.
    pub fn max_message_bytes(&self) -> usize {
        self.inline_bytes().max(self.reserve_bytes())
    }

    /// Checks what can't be.
    pub(crate) fn check(&self) -> Result<(), CreateError> {
        if !self.ring_bytes.is_power_of_two() || !(ring::MIN_BYTES..=ring::MAX_BYTES).contains(&self.ring_bytes) {
            return Err(CreateError::RingBytes(self.ring_bytes));
        }
        let (reserve, block) = (self.bulk_reserve_bytes, self.bulk_block_bytes);
        if reserve > 0 && (block == 0 || !block.is_multiple_of(64) || reserve < block) {
            return Err(CreateError::Reserve { reserve, block });
        }
        Ok(())
    }
}
