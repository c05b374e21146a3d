//! A group's options, and the configuration of its shards that follows from them.

use std::{collections::BTreeMap, time::Duration};

use squall_fabric::NodeId;
use squall_ordered::{BulkPath, Mode, ShardConfig, log::MAX_PAYLOAD_BYTES};

use super::{ShardOptions, carrier::Carrier};

/// The largest block in which bulk messages travel, in bytes.
const BLOCK_BYTES: usize = 128 << 10;

/// The number of messages that even a small reserve takes.
const MESSAGES: usize = 16;

/// A group's configuration. All members must have the same, except for `max_waiting`, `snapshot_bytes` and `retain`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupConfig {
    /// The delivery mode.
    pub mode: Mode,
    /// The size of each sender's ring, in bytes: a power of two.
    pub ring_bytes: usize,
    /// The size above which a message travels as a bulk message, by RDMC, and then takes its turn, in bytes. No more
    /// than a quarter of the ring counts.
    pub bulk_threshold: usize,
    /// The memory for each sender's bulk messages, in bytes, at each member. Memory that has held no message takes no
    /// room. No message may be larger. 0 for no bulk messages; then a message may have a quarter of the ring.
    pub bulk_reserve: usize,
    /// The members that may send, in ascending order; None for all members of a shard.
    pub senders: Option<Vec<NodeId>>,
    /// The number of submits of this node that may wait for their replies; further ones wait for room.
    pub max_waiting: usize,
    /// The number of the group's shards: each has an order, members and a state of its own.
    pub shards: u32,
    /// The number of members that hold its whole state below which a shard refuses work.
    pub min_replicas: u32,
    /// The most members of a shard; None for all.
    pub max_replicas: Option<u32>,
    /// The nodes that hold none of its shards, but those that are pinned to them, in ascending order.
    pub reserved: Vec<NodeId>,
    /// The options of single shards, by their numbers.
    pub shard_options: BTreeMap<u32, ShardOptions>,
    /// Durable groups: the bytes of log after which a snapshot is written to disk again. May differ between members.
    pub snapshot_bytes: u64,
    /// Durable groups: the bytes of the log before the newest snapshot that are kept; None for all. May differ between
    /// members.
    pub retain: Option<u64>,
}

impl Default for GroupConfig {
    /// Returns the defaults for members of one host.
    fn default() -> GroupConfig {
        GroupConfig {
            mode: Mode::Ordered,
            ring_bytes: 1 << 20,
            // In shared memory a ring moves messages that fit into it faster than RDMC does.
            bulk_threshold: 256 << 10,
            bulk_reserve: 64 << 20,
            senders: None,
            max_waiting: 1 << 16,
            shards: 1,
            min_replicas: 1,
            max_replicas: None,
            reserved: Vec::new(),
            shard_options: BTreeMap::new(),
            snapshot_bytes: 256 << 20,
            retain: None,
        }
    }
}

impl GroupConfig {
    /// Returns the defaults for a transport.
    pub(super) fn suited_to(carrier: Carrier) -> GroupConfig {
        let default = GroupConfig::default();
        match carrier {
            // Through sockets, too, rings are faster up to that size: each of RDMC's steps wakes a thread.
            Carrier::Shm | Carrier::Tcp | Carrier::Mixed => default,
            Carrier::Verbs => GroupConfig { bulk_threshold: 10 << 10, ..default },
        }
    }

    /// Returns the largest message that the group takes, in bytes: the reserve in whole blocks, or the most that goes
    /// through the ring.
    pub fn max_message_bytes(&self) -> usize {
        let most = self.shard_config(BulkPath::default(), Duration::ZERO, Duration::ZERO).max_message_bytes();
        if self.mode == Mode::Durable { most.min(MAX_PAYLOAD_BYTES) } else { most }
    }

    /// The configuration of each of the group's shards.
    pub(crate) fn shard_config(
        &self,
        bulk_path: BulkPath,
        read_lease: Duration,
        failure_timeout: Duration,
    ) -> ShardConfig {
        let block = (self.bulk_reserve / MESSAGES).min(BLOCK_BYTES);
        ShardConfig {
            mode: self.mode,
            ring_bytes: self.ring_bytes,
            bulk_threshold: self.bulk_threshold,
            bulk_reserve_bytes: self.bulk_reserve,
            bulk_block_bytes: (block - block % 64).max(64),
            bulk_path,
            bulk_patience: failure_timeout,
            read_lease,
            reads_alone: true,
        }
    }
}
