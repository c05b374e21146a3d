//! The builder with which a program makes a configuration.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use squall_ordered::Mode;

use super::{
    Backend, Config, ConfigError, KeyFiles, Security, Spin, TcpOptions, ValuePlace, VerbsOptions,
    draft::{Draft, Given, GroupDraft},
    security::Protection,
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

fn built<T>(value: T) -> Option<Given<T>> {
    Some(Given { value, place: ValuePlace::Builder })
}

impl ConfigBuilder {
    pub(super) fn new(cluster: String, id: u32) -> ConfigBuilder {
        let mut draft = Draft::new(ValuePlace::Builder);
        draft.cluster = built(cluster);
        draft.id = built(id);
        ConfigBuilder { draft }
    }

    /// Lists the members of the first view. Required, unless this node [joins](ConfigBuilder::join).
    pub fn members(mut self, ids: impl IntoIterator<Item = u32>) -> ConfigBuilder {
        self.draft.members = built(ids.into_iter().collect());
        self
    }

    /// Lets this node join a running group, if it is not among the members. Names the nodes that it asks, each as
    /// `host:port`, or as the id of a node that is on this host or has an address.
    pub fn join<S: Into<String>>(mut self, contacts: impl IntoIterator<Item = S>) -> ConfigBuilder {
        self.draft.membership.join = built(contacts.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the directory for this node's part of the view log. `{id}` in it stands for the node's id.
    pub fn storage(mut self, directory: impl Into<PathBuf>) -> ConfigBuilder {
        self.draft.membership.storage = built(directory.into());
        self
    }

    /// Sets the file of the key with which this node signs its durable groups' logs, as `squall keys log` makes it.
    /// `{id}` in it stands for the node's id.
    pub fn sign_log(mut self, key: impl Into<PathBuf>) -> ConfigBuilder {
        self.draft.membership.sign_log = built(key.into());
        self
    }

    /// Lists the voters of the view log, an odd number. They stay the same in all views.
    pub fn voters(mut self, ids: impl IntoIterator<Item = u32>) -> ConfigBuilder {
        self.draft.membership.voters = built(ids.into_iter().collect());
        self
    }

    /// Lists nodes that take part in the view log alone.
    pub fn witnesses(mut self, ids: impl IntoIterator<Item = u32>) -> ConfigBuilder {
        self.draft.membership.witnesses = built(ids.into_iter().collect());
        self
    }

    /// Names the rack in which this node stands: nodes of one rack may fail together.
    pub fn rack(mut self, name: impl Into<String>) -> ConfigBuilder {
        self.draft.membership.rack = built(name.into());
        self
    }

    /// Lists the addresses at which a member listens, each as `host:port`, in the order in which they are tried.
    /// Members of one host need none. Members of several hosts do, except for one, which then dials all others.
    pub fn addresses<S: Into<String>>(mut self, id: u32, at: impl IntoIterator<Item = S>) -> ConfigBuilder {
        let table =
            self.draft.network.addresses.get_or_insert(Given { value: BTreeMap::new(), place: ValuePlace::Builder });
        let value = at.into_iter().map(Into::into).collect();
        table.value.insert(id, Given { value, place: ValuePlace::Builder });
        self
    }

    /// Sets the addresses at which this node listens, each as `host:port`, if the others dial it elsewhere.
    pub fn listen<S: Into<String>>(mut self, at: impl IntoIterator<Item = S>) -> ConfigBuilder {
        self.draft.network.listen = built(at.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the protection of the node's port. `{id}` in a path stands for the node's id.
    pub fn security(mut self, security: Security) -> ConfigBuilder {
        let network = &mut self.draft.network;
        (network.security, network.ca, network.certificate, network.key) = match security {
            Security::LoopbackOnly => (None, None, None, None),
            Security::None => (built(Protection::None), None, None, None),
            Security::Tls(KeyFiles { ca, certificate, key }) => {
                (built(Protection::Tls), built(ca), built(certificate), built(key))
            }
        };
        self
    }

    /// Sets options of sockets.
    pub fn tcp(mut self, options: TcpOptions) -> ConfigBuilder {
        self.draft.network.send_buffer_bytes = options.send_buffer_bytes.and_then(built);
        self.draft.network.receive_buffer_bytes = options.receive_buffer_bytes.and_then(built);
        self
    }

    /// Chooses the RDMA device.
    pub fn verbs(mut self, options: VerbsOptions) -> ConfigBuilder {
        self.draft.network.device = options.device.and_then(built);
        self.draft.network.port = options.port.and_then(built);
        self.draft.network.gid_index = options.gid_index.and_then(built);
        self
    }

    /// Sets the time for which the node waits until all members have appeared.
    pub fn formation_timeout(mut self, timeout: Duration) -> ConfigBuilder {
        self.draft.formation_timeout = built(timeout);
        self
    }

    /// Sets the most by which this node's wall clock may be ahead of those of more than half of the other members
    /// before it submits nothing.
    pub fn clock_limit(mut self, limit: Duration) -> ConfigBuilder {
        self.draft.clock_limit = built(limit);
        self
    }

    /// Sets the time of silence after which a member is suspected; at least 20 ms.
    pub fn failure_timeout(mut self, timeout: Duration) -> ConfigBuilder {
        self.draft.failure_timeout = built(timeout);
        self
    }

    /// Sets the time for which members that come back with their disks after a total failure wait for the others, once
    /// they are more than half.
    pub fn restart_wait(mut self, wait: Duration) -> ConfigBuilder {
        self.draft.restart_wait = built(wait);
        self
    }

    /// Sets the number of bytes of its logs that a node reads again per second, to find what its disk has damaged; 0
    /// for none.
    pub fn scrub_bytes_per_second(mut self, bytes: usize) -> ConfigBuilder {
        self.draft.scrub_bytes_per_second = built(bytes);
        self
    }

    /// Sets the time for which the others wait for a member whose disk hangs before they give it up; 0 for ever.
    pub fn disk_timeout(mut self, timeout: Duration) -> ConfigBuilder {
        self.draft.disk_timeout = built(timeout);
        self
    }

    /// Sets the time for which the others wait for a member whose application hangs in a call before they give it up; 0
    /// for ever.
    pub fn apply_timeout(mut self, timeout: Duration) -> ConfigBuilder {
        self.draft.apply_timeout = built(timeout);
        self
    }

    /// Sets the time for which a member that all others have vouched for answers linearizable reads by itself; 0 for
    /// never.
    pub fn read_lease(mut self, lease: Duration) -> ConfigBuilder {
        self.draft.read_lease = built(lease);
        self
    }

    /// Sets the behavior of threads that have nothing to do: spin, yield or sleep.
    pub fn spin(mut self, spin: Spin) -> ConfigBuilder {
        self.draft.spin = built(spin);
        self
    }

    /// Sets the length of a group's calls above which it gets a thread of its own.
    pub fn short_limit(mut self, limit: Duration) -> ConfigBuilder {
        self.draft.short_limit = built(limit);
        self
    }

    /// Sets the number of bytes that this node holds for clients, over all connections: at least 1 MiB.
    pub fn client_bytes(mut self, bytes: usize) -> ConfigBuilder {
        self.draft.client_bytes = built(bytes);
        self
    }

    /// Sets the transport of the messages.
    pub fn backend(mut self, backend: Backend) -> ConfigBuilder {
        self.draft.network.backend = built(backend);
        self
    }

    /// Sets options of a group.
    pub fn group(mut self, name: impl Into<String>, set: impl FnOnce(&mut GroupBuilder<'_>)) -> ConfigBuilder {
        let fresh = || Given { value: GroupDraft::default(), place: ValuePlace::Builder };
        let group = &mut self.draft.groups.entry(name.into()).or_insert_with(fresh).value;
        set(&mut GroupBuilder { group });
        self
    }

    /// Checks everything, and returns the configuration.
    pub fn build(self) -> Result<Config, ConfigError> {
        self.draft.check()
    }
}

impl GroupBuilder<'_> {
    /// Sets the delivery mode. [`Mode::Durable`] needs a [storage](ConfigBuilder::storage).
    pub fn mode(&mut self, mode: Mode) -> &mut Self {
        self.group.mode = built(mode);
        self
    }

    /// Sets the size of each sender's ring, in bytes: a power of two.
    pub fn ring_bytes(&mut self, bytes: usize) -> &mut Self {
        self.group.ring_bytes = built(bytes);
        self
    }

    /// Sets the size in bytes above which a message is a bulk message.
    pub fn bulk_threshold(&mut self, bytes: usize) -> &mut Self {
        self.group.bulk_threshold = built(bytes);
        self
    }

    /// Sets the memory that each member reserves for each sender's bulk messages, in bytes: no message may be larger.
    pub fn bulk_reserve(&mut self, bytes: usize) -> &mut Self {
        self.group.bulk_reserve = built(bytes);
        self
    }

    /// Lists the members that may send.
    pub fn senders(&mut self, ids: impl IntoIterator<Item = u32>) -> &mut Self {
        self.group.senders = built(ids.into_iter().collect());
        self
    }

    /// Sets the number of the group's shards.
    pub fn shards(&mut self, count: u32) -> &mut Self {
        self.group.shards = built(count);
        self
    }

    /// Sets the number of a shard's members. With fewer than `min` that hold its whole state it refuses work, and it
    /// has at most `max`, or all if that is None.
    pub fn replicas(&mut self, min: u32, max: Option<u32>) -> &mut Self {
        self.group.min_replicas = built(min);
        self.group.max_replicas = max.and_then(built);
        self
    }

    /// Sets the bytes of log after which a durable group's state is written to disk again.
    pub fn snapshot_bytes(&mut self, bytes: usize) -> &mut Self {
        self.group.snapshot_bytes = built(bytes);
        self
    }

    /// Sets the bytes of a durable group's log that are kept before the newest state on disk; else all is kept.
    pub fn retain(&mut self, bytes: usize) -> &mut Self {
        self.group.retain = built(bytes);
        self
    }

    /// Sets the number of submits of this node that may wait for their replies.
    pub fn max_waiting(&mut self, count: usize) -> &mut Self {
        self.group.max_waiting = built(count);
        self
    }
}
