//! What a configuration and the declared groups come to.

use std::{collections::BTreeMap, time::Duration};

use squall_membership::{Settings, ShardId, ShardView};
use squall_ordered::{BulkPath, Mode, ShardConfig};
use squall_sst::Fingerprint;

use crate::config::{Config, GroupConfig};

/// Why the declared groups do not fit the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A group of the configuration was not declared by the application.
    #[error(
        "the configuration has a group {0:?}, which this program does not serve: remove [groups.{0}] or declare it"
    )]
    UnknownGroup(String),
    /// The same group was declared twice.
    #[error("the group {0:?} is declared twice")]
    DuplicateGroup(String),
}

/// What a configuration and the declared groups come to.
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) shards: BTreeMap<ShardId, ShardConfig>,
}

/// The largest block that bulk messages travel in, in bytes.
const BLOCK_BYTES: usize = 128 << 10;

/// A small reserve still takes so many messages.
const MESSAGES: usize = 16;

/// What a group's options come to.
pub(crate) fn shard_config(group: &GroupConfig, bulk_path: BulkPath, read_lease: Duration) -> ShardConfig {
    let block = (group.bulk_reserve / MESSAGES).min(BLOCK_BYTES);
    ShardConfig {
        mode: group.mode,
        ring_bytes: group.ring_bytes,
        bulk_threshold: group.bulk_threshold,
        bulk_reserve_bytes: group.bulk_reserve,
        bulk_block_bytes: (block - block % 64).max(64),
        bulk_path,
        read_lease,
    }
}

impl Plan {
    /// `groups` are the declared names, in their order.
    pub(crate) fn new<'a>(
        config: &Config,
        bulk_path: BulkPath,
        groups: impl Iterator<Item = &'a str>,
    ) -> Result<Plan, PlanError> {
        let mut views = Vec::new();
        let mut shards = BTreeMap::new();
        let mut agreed = Fingerprint::default();
        let names: Vec<&str> = groups.collect();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PlanError::DuplicateGroup(pair[0].to_owned()));
        }
        if let Some(unknown) = config.group_names().find(|name| !names.contains(name)) {
            return Err(PlanError::UnknownGroup(unknown.to_owned()));
        }
        for (index, name) in names.iter().enumerate() {
            let shard = ShardId(index as u32);
            let group: GroupConfig = config.group(name);
            let senders = group.senders.clone().unwrap_or_else(|| config.members().to_vec());
            agreed.text(name).number(u64::from(group.mode == Mode::Unordered));
            for bytes in [group.ring_bytes, group.bulk_threshold, group.bulk_reserve] {
                agreed.number(bytes as u64);
            }
            agreed.number(config.read_lease().as_nanos() as u64);
            for sender in &senders {
                agreed.number(u64::from(sender.0));
            }
            views.push(ShardView { shard, members: config.members().to_vec(), senders });
            shards.insert(shard, shard_config(&group, bulk_path, config.read_lease()));
        }
        let settings = Settings {
            members: config.members().to_vec(),
            shards: views,
            fingerprint: agreed.value(),
            formation_timeout: config.formation_timeout(),
            failure_timeout: config.failure_timeout(),
            read_lease: config.read_lease(),
            view_log: false,
        };
        Ok(Plan { settings, shards })
    }
}
