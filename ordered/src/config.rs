//! The configuration of a shard, alike at all of its members.

use std::time::Duration;

use squall_rdmc::{GroupConfig, schedule::Algorithm};
use squall_sst::ring;

use crate::error::CreateError;

/// The order and the time in which messages are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Atomic multicast: one order at all members, each message once all have received it.
    #[default]
    Ordered,
    /// The mode `Ordered` with a log on disk: each message has a version, and is [globally
    /// persisted](crate::Deliver::globally_persisted) once all members have it on disk.
    Durable,
    /// Each sender's messages in their order, at most once, as they arrive. No order between senders, no nulls, no
    /// trim, no linearizable reads. A sender delivers its own message once every other member holds it.
    Unordered,
}

impl Mode {
    /// Returns whether all members deliver in one order.
    pub fn is_ordered(self) -> bool {
        matches!(self, Mode::Ordered | Mode::Durable)
    }
}

/// The path by which bulk messages travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BulkPath {
    /// A network, where each sender's link is the bottleneck. Bulk messages go by a binomial pipeline, in which members
    /// pass blocks on.
    #[default]
    Network,
    /// A [`Network`](BulkPath::Network) of devices that lock the memory that they reach. Reserves stay as they are: a
    /// new one would take long to lock, and would give nothing back to the system.
    Rdma,
    /// Through memory that members share, from the sender to each of the others. There, a block costs its receiver a
    /// copy and its sender nothing.
    SharedMemory,
}

impl BulkPath {
    /// Sets the group's fields that suit this path.
    pub(crate) fn apply(self, group: &mut GroupConfig) {
        match self {
            // A group's defaults suit these.
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

/// A shard's configuration. All members must have the same, except for `reads_alone` and `bulk_patience`. A member that
/// differs is refused when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// The delivery mode.
    pub mode: Mode,
    /// The size of each sender's ring in bytes, a power of two. A member keeps one ring for each sender, and as much
    /// again for its own.
    pub ring_bytes: usize,
    /// The longest message that goes through the ring, in bytes; at most a quarter of the ring counts. A longer one is
    /// a *bulk message*: it travels by RDMC, and only then takes its turn.
    pub bulk_threshold: usize,
    /// The memory for the bulk messages of each sender, in bytes, of which whole blocks are used. Each member reserves
    /// it, for each sender. It bounds the bulk messages of a sender that are under way together, and the size of one. 0
    /// for no bulk messages: then a message may have a quarter of the ring.
    pub bulk_reserve_bytes: usize,
    /// The size of the blocks in which bulk messages travel, in bytes: a multiple of 64. A bulk message takes whole
    /// blocks of the reserve.
    pub bulk_block_bytes: usize,
    /// The path by which bulk messages travel.
    pub bulk_path: BulkPath,
    /// The time within which a member's failure is noticed, and ends the view. If a transfer of bulk messages was
    /// broken off, and the view goes on for longer, the member that broke it off is blamed. Best alike at all members.
    pub bulk_patience: Duration,
    /// The time for which a member answers reads by itself, once all others have vouched for it. When a member is
    /// dropped, the others wait as long before they go on. 0 for never.
    pub read_lease: Duration,
    /// Whether this member reads under its leases. Else it confirms each read, as a host needs whose clock may stop.
    /// Members may differ in this.
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
            bulk_patience: Duration::from_secs(1),
            read_lease: Duration::from_millis(15),
            reads_alone: true,
        }
    }
}

impl ShardConfig {
    /// Returns the length of the longest message that goes through the ring, in bytes.
    pub(crate) fn inline_bytes(&self) -> usize {
        let quarter = ring::max_payload(self.ring_bytes);
        if self.bulk_reserve_bytes == 0 { quarter } else { self.bulk_threshold.min(quarter) }
    }

    /// Returns the size of the reserve in whole blocks, in bytes.
    pub(crate) fn reserve_bytes(&self) -> usize {
        self.bulk_reserve_bytes - self.bulk_reserve_bytes.checked_rem(self.bulk_block_bytes).unwrap_or(0)
    }

    /// Returns the length of the longest message that a shard takes, in bytes.
    pub fn max_message_bytes(&self) -> usize {
        self.inline_bytes().max(self.reserve_bytes())
    }

    /// Refuses a ring, a reserve or blocks of an impossible size.
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
