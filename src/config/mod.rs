//! What a node is configured with: from a TOML file, the environment, or a program.
//!
//! ```toml
//! cluster = "bank"             # nodes of different clusters never meet
//! id = 1                       # this node
//! members = [1, 2, 3]          # all nodes
//! # The rest may be left out; these are the defaults.
//! formation_timeout_ms = 30000 # how long to wait until all members have appeared
//! failure_timeout_ms = 1000    # a member that is silent for so long is suspected
//! read_lease_ms = 15           # how long members that all vouch for read alone, and how long who drops one waits; 0: never,
//!                              # for virtual machines whose clocks stop while they are paused or moved
//! spin = "auto"                # who has nothing to do: "auto", "always" (never sleeps), "never" (sleeps at once)
//! short_limit_us = 1000        # a group whose calls overrun it gets a thread of its own
//!
//! [fabric]
//! backend = "auto"             # "shm": shared memory of one host, the only one in this version
//!
//! [groups.accounts]
//! mode = "ordered"             # or "unordered"
//! ring_bytes = "1MiB"          # each sender's ring
//! bulk_threshold = "256KiB"    # larger messages travel as bulk messages (never more than a quarter of the ring counts)
//! bulk_reserve = "64MiB"       # memory for each sender's bulk messages, at each member: the largest message; 0: no bulk
//!                              # messages, and a message may have a quarter of the ring
//! senders = [1, 2, 3]          # who may send; all members
//! max_waiting = 65536          # how many submits of this node may wait for their replies
//! ```
//!
//! All nodes of a cluster share one file: what differs, and what a deployment changes, comes from the environment, which
//! overrides the file: `SQUALL_CLUSTER`, `SQUALL_ID`, `SQUALL_MEMBERS` (as `1,2,3`), `SQUALL_FORMATION_TIMEOUT_MS`,
//! `SQUALL_FAILURE_TIMEOUT_MS`, `SQUALL_READ_LEASE_MS`, `SQUALL_SPIN`, `SQUALL_SHORT_LIMIT_US` and `SQUALL_FABRIC`.

mod builder;
mod bytes;
mod draft;
mod environment;
mod error;
mod file;
#[cfg(all(test, not(squall_loom)))]
mod tests;

use std::{collections::BTreeMap, path::Path, time::Duration};

use squall_fabric::NodeId;
use squall_ordered::{BulkPath, Mode};

use crate::plan;

pub use self::{
    builder::{ConfigBuilder, GroupBuilder},
    error::{ConfigError, Place},
};

/// Who spins, who yields and who sleeps when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    /// Spin for a moment where the host has cores enough, then sleep. An idle node uses next to no processor time.
    #[default]
    Auto,
    /// Never sleep. The lowest latency, for a core per thread.
    Always,
    /// Sleep as soon as there is nothing to do.
    Never,
}

/// What carries the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The best that reaches all members: in this version, [`Backend::Shm`].
    #[default]
    Auto,
    /// Shared memory: all members run on one host.
    Shm,
}

/// A node's configuration, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    cluster: String,
    id: NodeId,
    members: Vec<NodeId>,
    formation_timeout: Duration,
    failure_timeout: Duration,
    read_lease: Duration,
    spin: Spin,
    short_limit: Duration,
    backend: Backend,
    groups: BTreeMap<String, GroupConfig>,
}

/// A group's configuration. All members must have the same, but for `max_waiting`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupConfig {
    /// The delivery mode.
    pub mode: Mode,
    /// The size of each sender's ring, in bytes: a power of two.
    pub ring_bytes: usize,
    /// A message of more bytes travels as a bulk message, by RDMC, and then takes its turn; never more than a quarter of the
    /// ring counts.
    pub bulk_threshold: usize,
    /// The memory for each sender's bulk messages, in bytes, at each member, of which what has held none takes
    /// none. No message may be larger. 0 for no bulk messages; then a message may have a quarter of the ring.
    pub bulk_reserve: usize,
    /// Who may send, in ascending order; None for all members.
    pub senders: Option<Vec<NodeId>>,
    /// How many submits of this node may wait for their replies; further ones wait for room.
    pub max_waiting: usize,
}

impl Default for GroupConfig {
    fn default() -> GroupConfig {
        GroupConfig {
            mode: Mode::Ordered,
            ring_bytes: 1 << 20,
            // In shared memory a ring moves what fits into it faster than RDMC does.
            bulk_threshold: 256 << 10,
            bulk_reserve: 64 << 20,
            senders: None,
            max_waiting: 1 << 16,
        }
    }
}

impl GroupConfig {
    /// The largest message that the group takes, in bytes: the reserve in whole blocks, or what goes through the ring.
    pub fn max_message_bytes(&self) -> usize {
        plan::shard_config(self, BulkPath::default(), Duration::ZERO).max_message_bytes()
    }
}

impl Config {
    /// Reads a TOML file, and lets the environment override it.
    pub fn load(path: impl AsRef<Path>) -> Result<Config, ConfigError> {
        let mut draft = file::read(path.as_ref())?;
        environment::apply(&mut draft, std::env::var_os)?;
        draft.check()
    }

    /// As [`load`](Config::load), for the node `id` whatever the file and the environment say: for one file that all nodes of
    /// a cluster share.
    pub fn load_as(path: impl AsRef<Path>, id: u32) -> Result<Config, ConfigError> {
        let mut draft = file::read(path.as_ref())?;
        environment::apply(&mut draft, std::env::var_os)?;
        draft.id = Some(draft::Given { value: id, place: Place::Builder });
        draft.check()
    }

    /// Reads TOML. The environment has no say.
    pub fn from_toml(text: &str) -> Result<Config, ConfigError> {
        file::parse(text, &Place::text)?.check()
    }

    /// Begins a configuration in the program: of the node `id` of `cluster`.
    pub fn builder(cluster: impl Into<String>, id: u32) -> ConfigBuilder {
        ConfigBuilder::new(cluster.into(), id)
    }

    /// The cluster's name: nodes of different clusters never meet.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// This node.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// All members, this node among them, in ascending order. That is their order in the first view, however they were listed.
    pub fn members(&self) -> &[NodeId] {
        &self.members
    }

    /// How long a node waits until all members have appeared.
    pub fn formation_timeout(&self) -> Duration {
        self.formation_timeout
    }

    /// A member that is silent for so long is suspected.
    pub fn failure_timeout(&self) -> Duration {
        self.failure_timeout
    }

    /// How long a member that all others have vouched for answers linearizable reads by itself. When one is dropped, the
    /// others wait as long, unless they know that it reads no more. 0 for never: then each read asks all.
    pub fn read_lease(&self) -> Duration {
        self.read_lease
    }

    /// Who spins, who yields and who sleeps.
    pub fn spin(&self) -> Spin {
        self.spin
    }

    /// A group whose calls are longer gets a thread of its own.
    pub fn short_limit(&self) -> Duration {
        self.short_limit
    }

    /// What carries the messages.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The names of the groups that are configured, in their order. A program may have more, with the default options.
    pub fn group_names(&self) -> impl Iterator<Item = &str> {
        self.groups.keys().map(String::as_str)
    }

    /// A group's options; the defaults if it is not configured.
    pub fn group(&self, name: &str) -> GroupConfig {
        self.groups.get(name).cloned().unwrap_or_default()
    }
}
