//! The configuration of a group's shards, from the group's options.

use std::time::Duration;

use squall_ordered::{BulkPath, ShardConfig};

use super::GroupConfig;

/// The largest block in which bulk messages travel, in bytes.
const BLOCK_BYTES: usize = 128 << 10;

/// The number of messages that even a small reserve takes.
const MESSAGES: usize = 16;

impl GroupConfig {
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
