//! The builder with which a program makes a configuration.

use std::{path::PathBuf, time::Duration};

use squall_ordered::Mode;

use super::{
    Backend, Config, ConfigError, Security, ShardOptions, Spin, TcpOptions, ValuePlace, VerbsOptions,
    draft::{Draft, GroupDraft},
    settings::{GroupSettings, NodeSettings, Setting},
};

/// A builder of a [`Config`]. Values that are not set have the defaults that [the module](crate::config) lists.
#[derive(Clone, Debug)]
#[must_use]
pub struct ConfigBuilder {
    draft: Draft,
}

/// A builder of a group's options.
#[derive(Debug)]
pub struct GroupBuilder<'a> {
    group: &'a mut GroupDraft,
}

impl ConfigBuilder {
    pub(super) fn new(cluster: String, id: u32) -> ConfigBuilder {
        let mut draft = Draft::new(&ValuePlace::Builder);
        draft.node.cluster.value = Some(cluster);
        draft.node.id.value = Some(id);
        ConfigBuilder { draft }
    }

    fn with(mut self, set: impl FnOnce(&mut NodeSettings)) -> ConfigBuilder {
        set(&mut self.draft.node);
        self
    }

    /// Lists the members of the first view. Required, unless this node [joins](ConfigBuilder::join).
    pub fn members(self, ids: impl IntoIterator<Item = u32>) -> ConfigBuilder {
        self.with(|node| node.members.value = Some(ids.into_iter().collect()))
    }

    /// Lets this node join a running group, if it is not among the members. Names the nodes that it asks, each as
    /// `host:port`, or as the id of a node that is on this host or has an address.
    pub fn join<S: Into<String>>(self, contacts: impl IntoIterator<Item = S>) -> ConfigBuilder {
        self.with(|node| node.join.value = Some(contacts.into_iter().map(Into::into).collect()))
    }

    /// Lists the voters of the view log, an odd number. They stay the same in all views.
    pub fn voters(self, ids: impl IntoIterator<Item = u32>) -> ConfigBuilder {
        self.with(|node| node.voters.value = Some(ids.into_iter().collect()))
    }

    /// Lists nodes that take part in the view log alone.
    pub fn witnesses(self, ids: impl IntoIterator<Item = u32>) -> ConfigBuilder {
        self.with(|node| node.witnesses.value = Some(ids.into_iter().collect()))
    }

    /// Lists the addresses at which a member listens, each as `host:port`, in the order in which they are tried.
    /// Members of one host need none. Members of several hosts do, except for one, which then dials all others.
    pub fn addresses<S: Into<String>>(mut self, id: u32, at: impl IntoIterator<Item = S>) -> ConfigBuilder {
        let mut listed = Setting::new(format!("addresses.{id}"), &ValuePlace::Builder);
        listed.value = Some(at.into_iter().map(Into::into).collect());
        self.draft.addresses.value.get_or_insert_default().insert(id, listed);
        self
    }

    /// Sets the addresses at which this node listens, each as `host:port`, if the others dial it elsewhere.
    pub fn listen<S: Into<String>>(self, at: impl IntoIterator<Item = S>) -> ConfigBuilder {
        self.with(|node| node.listen.value = Some(at.into_iter().map(Into::into).collect()))
    }

    /// Sets the protection of the node's port. `{id}` in a path stands for the node's id.
    pub fn security(mut self, security: Security) -> ConfigBuilder {
        self.draft.set_security(security);
        self
    }

    /// Sets options of sockets.
    pub fn tcp(mut self, options: TcpOptions) -> ConfigBuilder {
        self.draft.node.send_buffer_bytes.value = options.send_buffer_bytes;
        self.draft.node.receive_buffer_bytes.value = options.receive_buffer_bytes;
        self
    }

    /// Chooses the RDMA device.
    pub fn verbs(mut self, options: VerbsOptions) -> ConfigBuilder {
        self.draft.node.device.value = options.device;
        self.draft.node.port.value = options.port;
        self.draft.node.gid_index.value = options.gid_index;
        self
    }

    /// Sets a node's weight, up to 1000: the nodes' shares of the shards are in proportion.
    pub fn weight(mut self, id: u32, weight: u32) -> ConfigBuilder {
        let mut given = Setting::new(format!("weights.{id}"), &ValuePlace::Builder);
        given.value = Some(weight);
        self.draft.weights.insert(id, given);
        self
    }

    /// Sets options of a group.
    pub fn group(mut self, name: impl Into<String>, set: impl FnOnce(&mut GroupBuilder<'_>)) -> ConfigBuilder {
        let name = name.into();
        let group = GroupDraft::new(&name, &ValuePlace::Builder);
        set(&mut GroupBuilder { group: self.draft.groups.entry(name).or_insert(group) });
        self
    }

    /// Checks everything, and returns the configuration. Fails if a value is missing or not possible, and names it.
    pub fn build(self) -> Result<Config, ConfigError> {
        self.draft.check()
    }
}

impl GroupBuilder<'_> {
    fn with(&mut self, set: impl FnOnce(&mut GroupSettings)) -> &mut Self {
        set(&mut self.group.settings);
        self
    }

    /// Lists the members that may send.
    pub fn senders(&mut self, ids: impl IntoIterator<Item = u32>) -> &mut Self {
        self.with(|group| group.senders.value = Some(ids.into_iter().collect()))
    }

    /// Sets the number of a shard's members. With fewer than `min` that hold its whole state it refuses work, and it
    /// has at most `max`, or all if that is None.
    pub fn replicas(&mut self, min: u32, max: Option<u32>) -> &mut Self {
        self.with(|group| (group.min_replicas.value, group.max_replicas.value) = (Some(min), max))
    }

    /// Lists the nodes that hold none of its shards, but those that are pinned to them.
    pub fn reserved(&mut self, ids: impl IntoIterator<Item = u32>) -> &mut Self {
        self.with(|group| group.reserved.value = Some(ids.into_iter().collect()))
    }

    /// Sets the options of one of its shards.
    pub fn shard(&mut self, number: u32, options: ShardOptions) -> &mut Self {
        let shard = self.group.shard(number, &ValuePlace::Builder);
        (shard.min_replicas.value, shard.max_replicas.value) = (options.min_replicas, options.max_replicas);
        shard.pinned.value = Some(options.pinned.iter().map(|node| node.0).collect());
        (shard.racks.value, shard.only.value) = (Some(options.racks), Some(options.only));
        self
    }
}

/// Declares the methods of a builder that set a value as it is given.
macro_rules! setters {
    (impl $Builder:ty, $self:ident: $Self:ty; $($(#[$doc:meta])* $name:ident($value:ident: $Type:ty);)*) => {
        impl $Builder {$(
            $(#[$doc])*
            pub fn $name($self: $Self, $value: $Type) -> $Self {
                $self.with(|settings| settings.$name.value = Some($value.into()))
            }
        )*}
    };
}

setters! {
    impl ConfigBuilder, self: Self;

    /// Sets the directory for this node's part of the view log. `{id}` in it stands for the node's id.
    storage(directory: impl Into<PathBuf>);
    /// Sets the file of the key with which this node signs its durable groups' logs, as `squall keys log` makes it.
    /// `{id}` in it stands for the node's id.
    sign_log(key: impl Into<PathBuf>);
    /// Names the rack in which this node stands: nodes of one rack may fail together.
    rack(name: impl Into<String>);
    /// Sets the time for which the node waits until all members have appeared.
    formation_timeout(timeout: Duration);
    /// Sets the most by which this node's wall clock may be ahead of those of more than half of the other members
    /// before it submits nothing.
    clock_limit(limit: Duration);
    /// Sets the time of silence after which a member is suspected; at least 20 ms.
    failure_timeout(timeout: Duration);
    /// Sets the time for which members that come back with their disks after a total failure wait for the others, once
    /// they are more than half.
    restart_wait(wait: Duration);
    /// Sets the number of bytes of its logs that a node reads again per second, to find what its disk has damaged; 0
    /// for none.
    scrub_bytes_per_second(bytes: usize);
    /// Sets the time for which the others wait for a member whose disk hangs before they give it up; 0 for ever.
    disk_timeout(timeout: Duration);
    /// Sets the time for which the others wait for a member whose application hangs in a call before they give it up; 0
    /// for ever.
    apply_timeout(timeout: Duration);
    /// Sets the time for which a member that all others have vouched for answers linearizable reads by itself; 0 for
    /// never.
    read_lease(lease: Duration);
    /// Sets the behavior of threads that have nothing to do: spin, yield or sleep.
    spin(spin: Spin);
    /// Sets the length of a group's calls above which it gets a thread of its own.
    short_limit(limit: Duration);
    /// Sets the number of bytes that this node holds for clients, over all connections: at least 1 MiB.
    client_bytes(bytes: usize);
    /// Sets the number of shards that move to a node at a time.
    moves_at_once(shards: u32);
    /// Sets the transport of the messages.
    backend(backend: Backend);
}

setters! {
    impl GroupBuilder<'_>, self: &mut Self;

    /// Sets the delivery mode. [`Mode::Durable`] needs a [storage](ConfigBuilder::storage).
    mode(mode: Mode);
    /// Sets the size of each sender's ring, in bytes: a power of two.
    ring_bytes(bytes: usize);
    /// Sets the size in bytes above which a message is a bulk message.
    bulk_threshold(bytes: usize);
    /// Sets the memory that each member reserves for each sender's bulk messages, in bytes: no message may be larger.
    bulk_reserve(bytes: usize);
    /// Sets the number of the group's shards.
    shards(count: u32);
    /// Sets the bytes of log after which a durable group's state is written to disk again.
    snapshot_bytes(bytes: usize);
    /// Sets the bytes of a durable group's log that are kept before the newest state on disk; else all is kept.
    retain(bytes: usize);
    /// Sets the number of submits of this node that may wait for their replies.
    max_waiting(count: usize);
}
