//! What a configuration and the declared groups come to.

use std::collections::BTreeMap;

use squall_membership::{Settings, ShardId, ShardView};
use squall_ordered::{Mode, ShardConfig};
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

impl Plan {
    /// `groups` are the declared names, in their order.
    pub(crate) fn new<'a>(config: &Config, groups: impl Iterator<Item = &'a str>) -> Result<Plan, PlanError> {
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
            agreed.text(name).number(u64::from(group.mode == Mode::Unordered)).number(group.ring_bytes as u64);
            agreed.number(config.read_lease().as_nanos() as u64);
            for sender in &senders {
                agreed.number(u64::from(sender.0));
            }
            views.push(ShardView { shard, members: config.members().to_vec(), senders });
            shards.insert(
                shard,
                ShardConfig { mode: group.mode, ring_bytes: group.ring_bytes, read_lease: config.read_lease() },
            );
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
