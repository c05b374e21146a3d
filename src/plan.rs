//! What a configuration and the declared groups come to.

use std::{collections::BTreeMap, time::Duration};

use squall_membership::{GroupLayout, Layout, LayoutError, Settings, ShardId};
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
    /// A group's shards are not those that the program has replicas for.
    #[error(
        "the group {name:?} has shards = {configured}, and is declared with {declared}: declare it with `NodeBuilder::sharded`, or \
             configure as many"
    )]
    Shards {
        /// The group.
        name: String,
        /// How many the configuration says.
        configured: u32,
        /// How many were declared.
        declared: usize,
    },
    /// The groups' shards make no sense.
    #[error(transparent)]
    Layout(#[from] LayoutError),
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

/// Connections may take this long to come up, however soon a member that is silent is given up.
const SLOWEST_CONNECT: Duration = Duration::from_millis(100);

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
    /// `groups` are the names of what was declared, in their order: that of a group once for each shard.
    pub(crate) fn new<'a>(
        config: &Config,
        bulk_path: BulkPath,
        groups: impl Iterator<Item = &'a str>,
    ) -> Result<Plan, PlanError> {
        let mut layout = Layout::default();
        let mut shards = BTreeMap::new();
        let mut agreed = Fingerprint::default();
        let mut declared = BTreeMap::<&str, usize>::new();
        groups.for_each(|name| *declared.entry(name).or_default() += 1);
        if let Some(unknown) = config.group_names().find(|name| !declared.contains_key(name)) {
            return Err(PlanError::UnknownGroup(unknown.to_owned()));
        }
        let mut next = 0;
        for (name, declared) in declared {
            let group: GroupConfig = config.group(name);
            match group.shards {
                1 if declared > 1 => return Err(PlanError::DuplicateGroup(name.to_owned())),
                configured if configured as usize != declared => {
                    return Err(PlanError::Shards { name: name.to_owned(), configured, declared });
                }
                _ => {}
            }
            let mode = match group.mode {
                Mode::Ordered => 0,
                Mode::Unordered => 1,
                Mode::Durable => 2,
            };
            agreed.text(name).number(mode);
            for bytes in [group.ring_bytes, group.bulk_threshold, group.bulk_reserve] {
                agreed.number(bytes as u64);
            }
            agreed.number(config.read_lease().as_nanos() as u64);
            for sender in group.senders.iter().flatten() {
                agreed.number(u64::from(sender.0));
            }
            let config = shard_config(&group, bulk_path, config.read_lease());
            shards.extend((next..next + group.shards).map(|shard| (ShardId(shard), config)));
            next += group.shards;
            let GroupConfig { shards, min_replicas, max_replicas, senders, .. } = group;
            layout.groups.push(GroupLayout { name: name.to_owned(), shards, min_replicas, max_replicas, senders });
        }
        layout.check()?;
        let settings = Settings {
            layout,
            fingerprint: agreed.value(),
            connect_timeout: config.failure_timeout().max(SLOWEST_CONNECT),
            failure_timeout: config.failure_timeout(),
            read_lease: config.read_lease(),
            // Nobody who is missing may still read when the others go on.
            restart_wait: config.restart_wait().max(config.read_lease() * 2),
        };
        Ok(Plan { settings, shards })
    }
}
