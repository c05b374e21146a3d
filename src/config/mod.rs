//! The configuration of a node: from a TOML file, the environment, or a program.
//!
//! ```toml
//! cluster = "bank"             # nodes of different clusters never meet
//! id = 1                       # this node
//! members = [1, 2, 3]          # all nodes
//! # The rest may be left out; these are the defaults, for members of one host.
//! formation_timeout_ms = 30000 # the time to wait until all members have appeared
//! failure_timeout_ms = 1000    # the time of silence after which a member is suspected
//! clock_limit_ms = 5000        # a node whose wall clock is further ahead of most others' submits nothing
//! # read_lease_ms = 15         # the time for which members that all vouch for read alone, and the wait when one is
//!                              # dropped; 0: never. Left out, it is 15, and a virtual machine whose group does not use
//!                              # shared memory alone does not read alone: see "Leases"
//! restart_wait_ms = 10000      # the time for which members that are back after a total failure, once more than half,
//!                              # wait for the others
//! disk_timeout_ms = 3000       # the time after which a member is given up whose disk finishes nothing while the disks
//!                              # of the others do: longer than an fsync may take on a bad disk; 0: never. With the
//!                              # length of the failure timeout, callers wait little longer for a disk that hangs than
//!                              # for a silent member
//! apply_timeout_ms = 10000     # the same for a call of a group's application: longer than any `apply`; 0: never
//! spin = "auto"                # threads with nothing to do: "auto", "always" (never sleep), "never" (sleep at once)
//! short_limit_us = 1000        # a group whose calls overrun it gets a thread of its own
//! scrub_bytes_per_second = "1MiB" # the bytes of its logs that a node reads again, to find and repair damage; 0: none
//! client_bytes = "256MiB"      # bytes that this node holds for clients, over all connections: half for requests that
//!                              # the groups have not taken yet, half for what clients have not read
//! moves_at_once = 4            # the shards that move to a node at a time
//! # storage = "state/{id}"     # a directory for this node's part of the view log and for its logs; nothing is kept
//! # sign_log = "keys/node-{id}.log.key"   # the key with which this node signs its durable groups' logs, made by
//!                                         # `squall keys log`
//! # rack = "a"                 # the rack of this node: replicas are spread over racks
//! # voters = [1, 2, 3]         # the voters on views; an odd number of the members of the view, at most 5
//!
//! [fabric]
//! backend = "auto"             # "shm" with members on this host; with others RDMA where both have a device, else TCP.
//!                              # Or for all: "shm" (of one host for good), "tcp", "verbs"
//!
//! [groups.accounts]
//! mode = "ordered"             # or "unordered", or "durable": then `storage` must be given
//! ring_bytes = "1MiB"          # each sender's ring
//! bulk_threshold = "256KiB"    # larger messages travel as bulk messages (at most a quarter of the ring counts)
//! bulk_reserve = "64MiB"       # memory for each sender's bulk messages, at each member: the largest message; 0: no
//!                              # bulk messages, and a message may have a quarter of the ring
//! senders = [1, 2, 3]          # the members that may send; all members
//! max_waiting = 65536          # the number of submits of this node that may wait for their replies
//! shards = 1                   # each has an order and a state of its own
//! min_replicas = 1             # a shard with fewer complete members refuses work
//! # max_replicas = 3           # the most members of a shard; all
//! # reserved = [3]             # nodes that hold none of its shards; none
//! snapshot_bytes = "256MiB"    # the bytes of log after which a durable group's state is written to disk again
//! # retain = "4GiB"            # bytes of a durable group's log that are kept before the newest of these; all
//!
//! # [groups.accounts.shard.0]  # options of one shard: `min_replicas` and `max_replicas`, and
//! # pinned = [1, 2]            # the nodes that hold it before any others
//! # racks = ["a"]              # the racks whose nodes hold it before those of others
//! # only = true                # rather fewer members than others; false
//!
//! # [weights]                  # the nodes' shares of the shards are in proportion; 1
//! # 1 = 2
//! ```
//!
//! # Joining
//!
//! `members` lists the members of the first view, which wait for each other. A node that is not among them joins a
//! running group. It asks one of the nodes in `join`, which names them by their addresses. Nodes on the same host, or
//! with addresses here, may be named by their ids. One file may serve all nodes: `join` does not concern the nodes in
//! `members`, which join by themselves if the group is there already. They hear of it from each other. When all others
//! of `members` are gone, and only nodes that joined are left, a member that comes back with nothing on its disk must
//! be configured to join.
//!
//! ```toml
//! cluster = "bank"
//! id = 4
//! join = ["10.0.0.1:7700", "10.0.0.2:7700"]
//! security = "none"
//! addresses.4 = "10.0.0.4:7700"   # the address at which the others find this node; without it, it dials them
//! ```
//!
//! A group that may grow beyond one host needs addresses from the first. Members without any have no ports, and can be
//! joined on their host alone.
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
//! Members of several hosts need addresses: `host:port`, where the host is an IP address or a name. The addresses also
//! stand for the list of members. One port of each node serves everything. One member may have no address: it dials all
//! others.
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
//! [security]                   # the files of `squall keys`; relative to this file, and {id} is this node's
//! ca = "keys/ca.pem"
//! certificate = "keys/node-{id}.pem"
//! key = "keys/node-{id}.key"
//! # crl = "keys/crl.pem"       # certificates that the CA has revoked: see `squall keys revoke`
//! # denied = "keys/denied"     # serial numbers of certificates that are refused, one in each line
//! ```
//!
//! With `security = "none"` instead, any process that reaches a port can join, read and write. With neither, nodes
//! listen on loopback addresses only, for processes of their own user.
//!
//! With `backend = "verbs"`, `bulk_threshold` is 10 KiB if it is left out. RDMC lets receivers pass a bulk message on.
//! A sender's link carries a message of its ring once for each receiver. With slow links and many members, a lower
//! threshold than the default therefore pays over TCP as well. Where the hosts' network needs it, there is also
//!
//! ```toml
//! [fabric.tcp]
//! send_buffer_bytes = "4MiB"   # of each connection; the system chooses
//! receive_buffer_bytes = "4MiB"
//!
//! [fabric.verbs]
//! device = "mlx5_0"            # the first with an active port; {id} in it is this node's
//! port = 1                     # the first that is active
//! gid_index = 3                # one of RoCE v2, of an address in `listen` (else in `addresses`)
//! traffic_class = 104          # the DSCP of RoCE packets, times 4: 0
//! service_level = 3            # 0 to 15: 0
//! partition_key = 0x8001       # the P_Key; the port's first
//! ```
//!
//! # RDMA
//!
//! `backend = "verbs"` lets members talk through RDMA devices: InfiniBand, RoCE, or software (`rdma_rxe`). `auto`
//! chooses them for members on other hosts if both have one, unless there are keys: the devices' packets are not
//! encrypted, so with keys `verbs` must be chosen explicitly. Only programs that were built with the feature `verbs`
//! have it. Members still need addresses, and keys or `security = "none"`: at those ports they meet, agree on queue
//! pairs, and notice when one is gone. TLS protects these connections; the devices' packets are not encrypted. `squall
//! doctor` says what a machine can do.
//!
//! All memory that a device reaches is locked: of each group the rings, and `bulk_reserve` in full, once for each
//! sender. The limit of a service is `LimitMEMLOCK=`, that of a shell `ulimit -l`.
//!
//! # Leases
//!
//! A member reads alone for `read_lease_ms`, by its own clock, after the others have vouched for it. A virtual machine
//! that is paused or moved may resume with a clock that did not advance, after the others continued without it. A read
//! under its lease would then miss what they have applied since. So if `read_lease_ms` is left out, and the host shows
//! signs of a hypervisor, a member confirms each read with the others. That is not needed if the group uses shared
//! memory alone, since then all members are on this host, and so are paused together. A member of a cluster with
//! addresses confirms also where all of these are of one host. If the machine is never paused, `read_lease_ms = 15`
//! makes reads local. Members may differ in this; only the length must be the same. `squall doctor` says which holds.
//!
//! # The environment
//!
//! All nodes of a cluster share one file. Values that differ between nodes, or that a deployment changes, come from the
//! environment, which overrides the file: `SQUALL_CLUSTER`, `SQUALL_ID`, `SQUALL_MEMBERS` (as `1,2,3`, or with
//! addresses as `1=10.0.0.1:7700,2=10.0.0.2:7700+[fd00::2]:7700`; it stands for `members` and `[addresses]` together),
//! `SQUALL_LISTEN` (as `0.0.0.0:7700,[::]:7700`), `SQUALL_SECURITY` (`none` or `tls`), `SQUALL_CA`,
//! `SQUALL_CERTIFICATE`, `SQUALL_KEY`, `SQUALL_CRL`, `SQUALL_DENIED`, `SQUALL_FORMATION_TIMEOUT_MS`,
//! `SQUALL_FAILURE_TIMEOUT_MS`, `SQUALL_RESTART_WAIT_MS`, `SQUALL_SCRUB_BYTES_PER_SECOND`, `SQUALL_SIGN_LOG`,
//! `SQUALL_CLOCK_LIMIT_MS`, `SQUALL_READ_LEASE_MS`, `SQUALL_DISK_TIMEOUT_MS`, `SQUALL_APPLY_TIMEOUT_MS`, `SQUALL_SPIN`,
//! `SQUALL_SHORT_LIMIT_US`, `SQUALL_CLIENT_BYTES`, `SQUALL_JOIN` (as `10.0.0.1:7700,10.0.0.2:7700`, or `1,2`),
//! `SQUALL_STORAGE`, `SQUALL_RACK`, `SQUALL_VOTERS`, `SQUALL_WITNESSES` (as `1,2,3`), `SQUALL_FABRIC`,
//! `SQUALL_VERBS_DEVICE`, `SQUALL_VERBS_PORT`, `SQUALL_VERBS_GID_INDEX`, `SQUALL_VERBS_TRAFFIC_CLASS`,
//! `SQUALL_VERBS_SERVICE_LEVEL` and `SQUALL_VERBS_PARTITION_KEY`.

mod address;
mod builder;
pub(crate) mod carrier;
mod draft;
mod environment;
mod error;
mod file;
mod file_text;
mod group;
mod hypervisor;
mod membership;
#[cfg(all(test, not(squall_loom)))]
mod membership_tests;
mod network;
#[cfg(all(test, not(squall_loom)))]
mod network_tests;
mod notation;
mod security;
mod settings;
#[cfg(all(test, not(squall_loom)))]
mod settings_tests;
#[cfg(all(test, not(squall_loom)))]
mod tests;

use std::{collections::BTreeMap, path::Path, time::Duration};

use squall_fabric::NodeId;

use self::{carrier::Carrier, membership::Membership, network::Network, security::SharedIdentity};

pub use squall_fabric::name::{NameError, check_name};
pub use squall_membership::ShardOptions;
pub use squall_runtime::Spin;

pub use self::{
    address::{Address, NoAddress},
    builder::{ConfigBuilder, GroupBuilder},
    error::{ConfigError, ValuePlace},
    group::GroupConfig,
    hypervisor::hypervisor,
    membership::Contact,
    network::VerbsOptions,
    security::{KeyFiles, Security},
};

/// The transport of the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// Shared memory alone if no node has an address: then all run on one host, and so does any node that joins. With
    /// addresses each node has a port, at which others can join from other hosts. Any two nodes then meet in shared
    /// memory if they find that they are processes of one user on one host, else on the network: by RDMA where both
    /// have a device and there are no keys, else TCP.
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
    /// The size of the system's buffer of sent bytes, for each connection; None lets it choose.
    pub send_buffer_bytes: Option<usize>,
    /// The size of the system's buffer of received bytes, for each connection; None lets it choose.
    pub receive_buffer_bytes: Option<usize>,
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
    /// Whether the configuration sets the lease.
    read_lease_given: bool,
    restart_wait: Duration,
    disk_timeout: Duration,
    apply_timeout: Duration,
    spin: Spin,
    short_limit: Duration,
    client_bytes: usize,
    weights: BTreeMap<NodeId, u32>,
    moves_at_once: u32,
    scrub_bytes_per_second: usize,
    network: Network,
    groups: BTreeMap<String, GroupConfig>,
    identity: SharedIdentity,
}

impl Config {
    /// Reads a TOML file, and lets the environment override it. Fails if the file can't be read or is no such TOML, or
    /// if a value is missing or not possible.
    pub fn load(path: impl AsRef<Path>) -> Result<Config, ConfigError> {
        draft_of(path.as_ref())?.check()
    }

    /// Loads as [`load`](Config::load) does, for the node `id` whatever the file and the environment say: for one file
    /// that all nodes of a cluster share. Fails as `load` does.
    pub fn load_as(path: impl AsRef<Path>, id: u32) -> Result<Config, ConfigError> {
        let mut draft = draft_of(path.as_ref())?;
        draft.node.id.set(id, ValuePlace::Builder);
        draft.check()
    }

    /// Loads as [`load`](Config::load) does, for a program that is no node, with its own protection if there is one.
    pub(crate) fn load_for_client(path: &Path, security: Option<Security>) -> Result<Config, ConfigError> {
        draft_of(path)?.for_client(security)?.check()
    }

    /// Reads TOML, without the environment. Fails if the text is no such TOML, or if a value is missing or not
    /// possible.
    pub fn from_toml(text: &str) -> Result<Config, ConfigError> {
        file::parse(text, &ValuePlace::text)?.check()
    }

    /// Reads TOML as [`from_toml`](Config::from_toml) does, for a program that is no node.
    pub(crate) fn from_toml_for_client(text: &str) -> Result<Config, ConfigError> {
        file::parse(text, &ValuePlace::text)?.for_client(None)?.check()
    }

    /// Begins a configuration in the program, of the node `id` of `cluster`.
    pub fn builder(cluster: impl Into<String>, id: u32) -> ConfigBuilder {
        ConfigBuilder::new(cluster.into(), id)
    }

    /// Returns the cluster's name: nodes of different clusters never meet.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Returns this node's id.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Returns the members of the first view, in ascending order. That is their order in the view, however they were
    /// listed. It is empty if they are not configured, since a node that joins need not know them.
    pub fn members(&self) -> &[NodeId] {
        &self.members
    }

    /// Returns the nodes' weights, of those that have another than 1.
    pub fn weights(&self) -> &BTreeMap<NodeId, u32> {
        &self.weights
    }

    /// Returns the number of bytes of its logs that the node reads again per second, to find what its disk has damaged;
    /// 0 for none.
    pub fn scrub_bytes_per_second(&self) -> u64 {
        self.scrub_bytes_per_second as u64
    }

    /// Returns the reason for which this node confirms each read with the others, though there are leases: a sentence,
    /// with advice. None if it reads under its leases.
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

    /// Returns the requested transport of the messages.
    pub fn backend(&self) -> Backend {
        self.network.backend
    }

    /// Returns the transport that carries the messages.
    pub fn carrier(&self) -> Carrier {
        self.network.carrier
    }

    /// Returns the addresses at which a member can be dialed, in the order in which they are tried; empty if none are
    /// configured.
    pub fn addresses(&self, member: NodeId) -> &[Address] {
        self.network.addresses.get(&member).map_or(&[], Vec::as_slice)
    }

    /// Returns the addresses at which this node listens, if it is on a network. Empty if it dials all others.
    pub fn listen(&self) -> &[Address] {
        &self.network.listen
    }

    /// Returns the protection of this node's port.
    pub fn security(&self) -> &Security {
        &self.network.security
    }

    /// Returns the place of the keys that were read.
    pub(crate) fn shared_identity(&self) -> &SharedIdentity {
        &self.identity
    }

    /// Returns the options of sockets.
    pub fn tcp(&self) -> TcpOptions {
        self.network.tcp
    }

    /// Returns the choice of the RDMA device.
    pub fn verbs(&self) -> &VerbsOptions {
        &self.network.verbs
    }

    /// Returns the names of the configured groups, in their order. A program may have more groups, with the default
    /// options.
    pub fn group_names(&self) -> impl Iterator<Item = &str> {
        self.groups.keys().map(String::as_str)
    }

    /// Returns a group's options; the defaults if it is not configured.
    pub fn group(&self, name: &str) -> GroupConfig {
        self.groups.get(name).cloned().unwrap_or_else(|| GroupConfig::suited_to(self.carrier()))
    }
}

/// Declares the methods that return a value as it is.
macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident -> $Type:ty;)*) => {
        impl Config {$(
            $(#[$doc])*
            pub fn $name(&self) -> $Type {
                self.$name
            }
        )*}
    };
}

getters! {
    /// Returns the time for which a node waits until all members have appeared.
    formation_timeout -> Duration;
    /// Returns the clock limit: a node whose wall clock is further ahead of those of more than half of the other
    /// members submits nothing.
    clock_limit -> Duration;
    /// Returns the time of silence after which a member is suspected.
    failure_timeout -> Duration;
    /// Returns the time for which members that come back with their disks after a total failure wait for the others,
    /// once they are more than half.
    restart_wait -> Duration;
    /// Returns the time for which others wait for a member whose disk hangs, until they give it up; [`Duration::MAX`]
    /// for ever.
    ///
    /// No message of the group is acknowledged in that time. The default of 3 s tolerates a sync of a second or two,
    /// which bad disks need at times. A member that was given up rejoins by itself, once its disk works.
    disk_timeout -> Duration;
    /// Returns the time for which others wait for a member whose application hangs in a call, until they give it up;
    /// [`Duration::MAX`] for ever.
    apply_timeout -> Duration;
    /// Returns the time for which a member that all others have vouched for answers linearizable reads by itself. When
    /// a member is dropped, the others wait as long, unless they know that it reads no more. 0 means never: then each
    /// read asks all.
    read_lease -> Duration;
    /// Returns the behavior of threads that have nothing to do.
    spin -> Spin;
    /// Returns the length of calls above which a group gets a thread of its own.
    short_limit -> Duration;
    /// Returns the number of bytes that this node holds for clients, over all connections: half for requests that the
    /// groups have not taken yet, half for bytes that clients have not read.
    client_bytes -> usize;
    /// Returns the number of shards that move to a node at a time.
    moves_at_once -> u32;
}

/// Reads a file, and overrides its values by the environment.
fn draft_of(path: &Path) -> Result<draft::Draft, ConfigError> {
    let mut draft = file::read(path)?;
    environment::apply(&mut draft, std::env::var_os)?;
    Ok(draft)
}
