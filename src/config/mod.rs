//! What a node is configured with: from a TOML file, the environment, or a program.
//!
//! ```toml
//! cluster = "bank"             # nodes of different clusters never meet
//! id = 1                       # this node
//! members = [1, 2, 3]          # all nodes
//! # The rest may be left out; these are the defaults, for members of one host.
//! formation_timeout_ms = 30000 # how long to wait until all members have appeared
//! failure_timeout_ms = 1000    # a member that is silent for so long is suspected
//! clock_limit_ms = 5000        # a node whose wall clock is further ahead of most others' submits nothing
//! # read_lease_ms = 15         # how long members that all vouch for read alone, and how long who drops one waits; 0: never.
//!                              # Left out, it is 15, and a virtual machine with members on other hosts does not read alone:
//!                              # see "Leases"
//! restart_wait_ms = 10000      # after a total failure: how long members that are back, when they are more than half, wait for
//!                              # the others
//! disk_timeout_ms = 3000       # a member is given up whose disk finishes nothing for so long while those of the others do: longer
//!                              # than an fsync may take on a bad disk; 0: never. With the length of the failure timeout,
//!                              # callers wait little longer for a disk that hangs than for a member that is silent
//! apply_timeout_ms = 10000     # the same for a call of a group's application: longer than the longest `apply`; 0: never
//! spin = "auto"                # who has nothing to do: "auto", "always" (never sleeps), "never" (sleeps at once)
//! short_limit_us = 1000        # a group whose calls overrun it gets a thread of its own
//! scrub_bytes_per_second = "1MiB" # of its logs a node reads again so much, to find and repair what its disk has damaged; 0: nothing
//! client_bytes = "256MiB"      # what this node holds for clients, over all connections: half for requests that the groups have
//!                              # not taken yet, half for what clients have not read
//! # storage = "state/{id}"     # a directory for this node's part of the view log; nothing is kept
//! # sign_log = "keys/node-{id}.log.key"   # the key with which this node signs its durable groups' logs: `squall keys log`
//! # rack = "a"                 # where this node stands: replicas are spread over racks
//! # voters = [1, 2, 3]         # who decides on views; an odd number of the members of the view, at most 5
//!
//! [fabric]
//! backend = "auto"             # "shm" with members on this host; with others RDMA where both have a device, else TCP. Or for
//!                              # all: "shm" (of one host for good), "tcp", "verbs"
//!
//! [groups.accounts]
//! mode = "ordered"             # or "unordered", or "durable": then `storage` must be given
//! ring_bytes = "1MiB"          # each sender's ring
//! bulk_threshold = "256KiB"    # larger messages travel as bulk messages (never more than a quarter of the ring counts)
//! bulk_reserve = "64MiB"       # memory for each sender's bulk messages, at each member: the largest message; 0: no bulk
//!                              # messages, and a message may have a quarter of the ring
//! senders = [1, 2, 3]          # who may send; all members
//! max_waiting = 65536          # how many submits of this node may wait for their replies
//! shards = 1                   # each has an order and a state of its own
//! min_replicas = 1             # a shard with fewer complete members refuses work
//! # max_replicas = 3           # how many members a shard has at most; all
//! snapshot_bytes = "256MiB"    # a durable group's state is written to disk each time that so much was logged
//! # retain = "4GiB"            # how much of a durable group's log is kept before the newest of these; all
//! ```
//!
//! # Joining
//!
//! `members` are those of the first view: they wait for each other. A node that is not among them joins a group that runs. It
//! asks one of those whom `join` names: by their addresses, or by their ids if they are on one host, or have
//! addresses here. One file may be for all: `join` is of no concern to those in `members`, who join by themselves if the
//! group is there already. They hear of it from each other: when all others of `members` are gone, and only nodes that joined
//! are left, one that comes back with nothing on its disk must be configured to join.
//!
//! ```toml
//! cluster = "bank"
//! id = 4
//! join = ["10.0.0.1:7700", "10.0.0.2:7700"]
//! security = "none"
//! addresses.4 = "10.0.0.4:7700"   # where the others find this node; without it, it dials them
//! ```
//!
//! A group that may grow beyond one host needs addresses from the first: members without any have no ports, and can be joined on
//! their host alone.
//!
//! A *witness* votes on views and has no part in any group: with one, two members survive the loss of either.
//!
//! ```toml
//! cluster = "bank"
//! id = 3                       # a process of `squall witness`
//! members = [1, 2]
//! witnesses = [3]              # then voters = [1, 2, 3], if nothing else is said
//! ```
//!
//! # Members on several hosts
//!
//! Members of several hosts need addresses: `host:port`, where the host is an IP address or a name. They stand for the list of
//! members too. One port of each node serves everything. One member may do without: it dials all others.
//!
//! ```toml
//! cluster = "bank"
//! id = 1
//! # listen = "0.0.0.0:7700"    # if it is not this node's addresses below: behind NAT, or in a container
//!
//! [addresses]
//! 1 = "10.0.0.1:7700"
//! 2 = ["10.0.0.2:7700", "[fd00::2]:7700"]  # tried in turn
//! 3 = "host3.example:7700"
//!
//! [security]                   # what `squall keys` has made; relative to this file, and {id} is this node's
//! ca = "keys/ca.pem"
//! certificate = "keys/node-{id}.pem"
//! key = "keys/node-{id}.key"
//! ```
//!
//! With `security = "none"` instead, whoever reaches a port can join, read and write. With neither, nodes listen on loopback
//! addresses only.
//!
//! With `backend = "verbs"`, `bulk_threshold` is 10 KiB if it is left out. RDMC lets receivers pass a bulk message on, while a
//! sender's link carries what goes through its ring once for each of them: where links are slow and members many, a lower
//! threshold than the default pays over TCP as well. Where the hosts' network needs it, there is also
//!
//! ```toml
//! [fabric.tcp]
//! send_buffer_bytes = "4MiB"   # of each connection; the system chooses
//! receive_buffer_bytes = "4MiB"
//!
//! [fabric.verbs]
//! device = "mlx5_0"            # the first with an active port; {id} in it is this node's
//! port = 1                     # the first that is active
//! gid_index = 3                # one of RoCE v2, if there is one
//! ```
//!
//! # RDMA
//!
//! `backend = "verbs"` lets members talk through RDMA devices: InfiniBand, RoCE, or software (`rdma_rxe`). `auto` chooses them
//! for members on other hosts if both have one, unless there are keys: the devices' packets are not encrypted, and whoever
//! wants that in spite of keys says so. Only programs that were built with the feature `verbs`
//! have it. Members still need addresses, and keys or
//! `security = "none"`: at those ports they meet, agree on queue pairs, and notice when one is gone. TLS protects these
//! connections; the devices' packets are not encrypted. `squall doctor` says what a machine can do.
//!
//! All memory that a device reaches is locked: of each group the rings, and `bulk_reserve` in full, once for each sender. The
//! limit of a service is `LimitMEMLOCK=`, that of a shell `ulimit -l`.
//!
//! # Leases
//!
//! A member reads alone for `read_lease_ms` after the others have vouched for it, by its own clock. A virtual machine that is paused or
//! moved may resume with a clock that did not advance, after the others went on without it; a read under its lease would miss what they
//! have applied since. So where `read_lease_ms` is left out, and the host shows signs of a hypervisor, a member confirms each read with
//! the others, unless all members are on this host, and so are paused together. Where the machine is never paused, `read_lease_ms = 15`
//! makes reads local. Members may differ in this; what they must have alike is the length. `squall doctor` says which holds.
//!
//! # The environment
//!
//! All nodes of a cluster share one file: what differs, and what a deployment changes, comes from the environment, which
//! overrides the file: `SQUALL_CLUSTER`, `SQUALL_ID`, `SQUALL_MEMBERS` (as `1,2,3`, or with addresses as
//! `1=10.0.0.1:7700,2=10.0.0.2:7700+[fd00::2]:7700`; it stands for `members` and `[addresses]` together), `SQUALL_LISTEN`
//! (as `0.0.0.0:7700,[::]:7700`), `SQUALL_SECURITY` (`none` or `tls`), `SQUALL_CA`, `SQUALL_CERTIFICATE`, `SQUALL_KEY`,
//! `SQUALL_FORMATION_TIMEOUT_MS`, `SQUALL_FAILURE_TIMEOUT_MS`, `SQUALL_CLOCK_LIMIT_MS`, `SQUALL_READ_LEASE_MS`,
//! `SQUALL_DISK_TIMEOUT_MS`, `SQUALL_APPLY_TIMEOUT_MS`, `SQUALL_SPIN`,
//! `SQUALL_SHORT_LIMIT_US`, `SQUALL_CLIENT_BYTES`, `SQUALL_JOIN` (as `10.0.0.1:7700,10.0.0.2:7700`, or `1,2`), `SQUALL_STORAGE`, `SQUALL_RACK`,
//! `SQUALL_VOTERS`, `SQUALL_WITNESSES` (as `1,2,3`), `SQUALL_FABRIC`, `SQUALL_VERBS_DEVICE`, `SQUALL_VERBS_PORT` and `SQUALL_VERBS_GID_INDEX`.

mod address;
mod builder;
pub(crate) mod bytes;
mod draft;
mod environment;
mod error;
mod file;
mod hypervisor;
mod membership;
#[cfg(all(test, not(squall_loom)))]
mod membership_tests;
mod name;
mod network;
#[cfg(all(test, not(squall_loom)))]
mod network_tests;
mod security;
#[cfg(all(test, not(squall_loom)))]
mod tests;

use std::{collections::BTreeMap, path::Path, time::Duration};

use squall_fabric::NodeId;
use squall_ordered::{BulkPath, Mode, log::MAX_PAYLOAD_BYTES};

use self::{membership::Membership, network::Network};
use crate::{plan, transport::Carrier};

#[cfg(feature = "copy")]
pub(crate) use self::name::check_name_within;
pub use self::{
    address::{Address, NoAddress},
    builder::{ConfigBuilder, GroupBuilder},
    error::{ConfigError, Place},
    hypervisor::hypervisor,
    membership::Contact,
    name::{NameError, check_name},
    security::{KeyFiles, Security},
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
    /// Shared memory alone if nobody has an address: then all run on one host, and so does whoever joins. With addresses each node
    /// has a port, at which others can join from other hosts, and any two meet in shared memory if their addresses say that
    /// they are on one host, else on the network: by RDMA where both have a device and there are no keys, else TCP.
    #[default]
    Auto,
    /// Shared memory: all members run on one host.
    Shm,
    /// TCP, with TLS if there are keys.
    Tcp,
    /// RDMA, in programs that were built with the feature `verbs`.
    Verbs,
}

/// Options of sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// What the system keeps of what a connection has sent, in bytes; None lets it choose.
    pub send_buffer_bytes: Option<usize>,
    /// What the system keeps of what a connection has received, in bytes; None lets it choose.
    pub receive_buffer_bytes: Option<usize>,
}

/// Which RDMA device to use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsOptions {
    /// Its name, such as `mlx5_0`; None for the first with an active port. `{id}` in it stands for the node's id.
    pub device: Option<String>,
    /// The number of its port, from 1; None for the first that is active.
    pub port: Option<u8>,
    /// The index of its GID; None for one of RoCE v2, if there is one.
    pub gid_index: Option<u8>,
}

/// A node's configuration, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    cluster: String,
    id: NodeId,
    members: Vec<NodeId>,
    membership: Membership,
    formation_timeout: Duration,
    failure_timeout: Duration,
    clock_limit: Duration,
    read_lease: Duration,
    /// Whether the lease was chosen, and not left out.
    read_lease_given: bool,
    restart_wait: Duration,
    disk_timeout: Duration,
    apply_timeout: Duration,
    spin: Spin,
    short_limit: Duration,
    client_bytes: usize,
    scrub_bytes_per_second: usize,
    network: Network,
    groups: BTreeMap<String, GroupConfig>,
}

/// A group's configuration. All members must have the same, but for `max_waiting`, `snapshot_bytes` and `retain`.
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
    /// Who may send, in ascending order; None for all members of a shard.
    pub senders: Option<Vec<NodeId>>,
    /// How many submits of this node may wait for their replies; further ones wait for room.
    pub max_waiting: usize,
    /// How many shards the group has: each has an order, members and a state of its own.
    pub shards: u32,
    /// With fewer members that hold its whole state, a shard refuses work.
    pub min_replicas: u32,
    /// How many members a shard has at most; None for all.
    pub max_replicas: Option<u32>,
    /// Durable groups: each time that so much was logged, in bytes, a snapshot is written to disk. May differ between members.
    pub snapshot_bytes: u64,
    /// Durable groups: how much of the log before the newest snapshot is kept, in bytes; None for all. May differ between members.
    pub retain: Option<u64>,
}

impl Default for GroupConfig {
    /// For members of one host.
    fn default() -> GroupConfig {
        GroupConfig {
            mode: Mode::Ordered,
            ring_bytes: 1 << 20,
            // In shared memory a ring moves what fits into it faster than RDMC does.
            bulk_threshold: 256 << 10,
            bulk_reserve: 64 << 20,
            senders: None,
            max_waiting: 1 << 16,
            shards: 1,
            min_replicas: 1,
            max_replicas: None,
            snapshot_bytes: 256 << 20,
            retain: None,
        }
    }
}

impl GroupConfig {
    /// The defaults.
    fn suited_to(carrier: Carrier) -> GroupConfig {
        let default = GroupConfig::default();
        match carrier {
            // Through sockets, too, rings are faster up to there: each of RDMC's steps wakes somebody.
            Carrier::Shm | Carrier::Tcp | Carrier::Mixed => default,
            Carrier::Verbs => GroupConfig { bulk_threshold: 10 << 10, ..default },
        }
    }

    /// The largest message that the group takes, in bytes: the reserve in whole blocks, or what goes through the ring.
    pub fn max_message_bytes(&self) -> usize {
        let most = plan::shard_config(self, BulkPath::default(), Duration::ZERO).max_message_bytes();
        if self.mode == Mode::Durable { most.min(MAX_PAYLOAD_BYTES) } else { most }
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

    /// The members of the first view, in ascending order. That is their order in it, however they were listed. Nothing if that
    /// is not said, as a node need not know that joins.
    pub fn members(&self) -> &[NodeId] {
        &self.members
    }

    /// How long a node waits until all members have appeared.
    pub fn formation_timeout(&self) -> Duration {
        self.formation_timeout
    }

    /// A node whose wall clock is further ahead of those of more than half of the other members submits nothing.
    pub fn clock_limit(&self) -> Duration {
        self.clock_limit
    }

    /// A member that is silent for so long is suspected.
    pub fn failure_timeout(&self) -> Duration {
        self.failure_timeout
    }

    /// The number of bytes of its logs that the node reads again per second, to find what its disk has damaged; 0 for none.
    pub fn scrub_bytes_per_second(&self) -> u64 {
        self.scrub_bytes_per_second as u64
    }

    /// How long members that come back with their disks after a total failure wait for the others, once they are more than half.
    pub fn restart_wait(&self) -> Duration {
        self.restart_wait
    }

    /// The time for which others wait for a member whose disk hangs, until they give it up; [`Duration::MAX`] for ever.
    ///
    /// No message of the group is acknowledged in that time. The default of 3 s lets a sync of a second or two pass, which bad
    /// disks need at times. A member that was given up rejoins by itself, once its disk works.
    pub fn disk_timeout(&self) -> Duration {
        self.disk_timeout
    }

    /// The time for which others wait for a member whose application hangs in a call, until they give it up; [`Duration::MAX`] for ever.
    pub fn apply_timeout(&self) -> Duration {
        self.apply_timeout
    }

    /// How long a member that all others have vouched for answers linearizable reads by itself. When one is dropped, the
    /// others wait as long, unless they know that it reads no more. 0 for never: then each read asks all.
    pub fn read_lease(&self) -> Duration {
        self.read_lease
    }

    /// The reason for which this node confirms each read with the others, though there are leases: a sentence, with what to do. None if
    /// it reads under its leases.
    pub fn confirms_reads(&self) -> Option<String> {
        if self.read_lease.is_zero() || self.read_lease_given || self.carrier() == Carrier::Shm {
            return None;
        }
        hypervisor().map(|sign| {
            format!(
                "this is a virtual machine ({sign}), whose clock may stop while it is paused or moved, so each read is confirmed by the \
                 other members: if it is never paused or moved, read_lease_ms = {} makes reads local",
                self.read_lease.as_millis()
            )
        })
    }

    /// Who spins, who yields and who sleeps.
    pub fn spin(&self) -> Spin {
        self.spin
    }

    /// A group whose calls are longer gets a thread of its own.
    pub fn short_limit(&self) -> Duration {
        self.short_limit
    }

    /// What this node holds for clients, over all connections, in bytes: half for requests that the groups have not taken yet,
    /// half for what clients have not read.
    pub fn client_bytes(&self) -> usize {
        self.client_bytes
    }

    /// What was asked to carry the messages.
    pub fn backend(&self) -> Backend {
        self.network.backend
    }

    /// What does carry them.
    pub fn carrier(&self) -> Carrier {
        self.network.carrier
    }

    /// Where a member can be dialed, in the order in which that is tried; nothing if it is not said.
    pub fn addresses(&self, member: NodeId) -> &[Address] {
        self.network.addresses.get(&member).map_or(&[], Vec::as_slice)
    }

    /// Where this node listens, if it is on a network. Nothing if it dials all others.
    pub fn listen(&self) -> &[Address] {
        &self.network.listen
    }

    /// What protects this node's port.
    pub fn security(&self) -> &Security {
        &self.network.security
    }

    /// Options of sockets.
    pub fn tcp(&self) -> TcpOptions {
        self.network.tcp
    }

    /// Which RDMA device to use.
    pub fn verbs(&self) -> &VerbsOptions {
        &self.network.verbs
    }

    /// The names of the groups that are configured, in their order. A program may have more, with the default options.
    pub fn group_names(&self) -> impl Iterator<Item = &str> {
        self.groups.keys().map(String::as_str)
    }

    /// A group's options; the defaults if it is not configured.
    pub fn group(&self, name: &str) -> GroupConfig {
        self.groups.get(name).cloned().unwrap_or_else(|| GroupConfig::suited_to(self.carrier()))
    }
}
