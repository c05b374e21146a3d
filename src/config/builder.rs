//! Configurations made by a program.

use std::time::Duration;

use squall_ordered::Mode;

use super::{
    Backend, Config, ConfigError, Place, Spin,
    draft::{Draft, Given, GroupDraft},
};

/// Makes a [`Config`]. What is not set has the default that [the module](crate::config) lists.
#[derive(Clone, Debug)]
#[must_use]
pub struct ConfigBuilder {
    draft: Draft,
}

/// Makes a group's options.
#[derive(Debug)]
pub struct GroupBuilder<'a> {
    group: &'a mut GroupDraft,
}

fn built<T>(value: T) -> Option<Given<T>> {
    Some(Given { value, place: Place::Builder })
}

impl ConfigBuilder {
    pub(super) fn new(cluster: String, id: u32) -> ConfigBuilder {
        let mut draft = Draft::new(Place::Builder);
        draft.cluster = built(cluster);
        draft.id = built(id);
        ConfigBuilder { draft }
    }

    /// Lists all members, this node among them. Required.
    pub fn members(mut self, ids: impl IntoIterator<Item = u32>) -> ConfigBuilder {
        self.draft.members = built(ids.into_iter().collect());
        self
    }

    /// Sets how long the node waits until all members have appeared.
    pub fn formation_timeout(mut self, timeout: Duration) -> ConfigBuilder {
        self.draft.formation_timeout = built(timeout);
        self
    }

    /// Sets for how long a member must be silent to be suspected; at least 20 ms.
    pub fn failure_timeout(mut self, timeout: Duration) -> ConfigBuilder {
        self.draft.failure_timeout = built(timeout);
        self
    }

    /// Sets how long a member that all others have vouched for answers linearizable reads by itself; 0 for never.
    pub fn read_lease(mut self, lease: Duration) -> ConfigBuilder {
        self.draft.read_lease = built(lease);
        self
    }

    /// Sets who spins, who yields and who sleeps.
    pub fn spin(mut self, spin: Spin) -> ConfigBuilder {
        self.draft.spin = built(spin);
        self
    }

    /// Sets how long a group's calls may be before it gets a thread of its own.
    pub fn short_limit(mut self, limit: Duration) -> ConfigBuilder {
        self.draft.short_limit = built(limit);
        self
    }

    /// Sets what carries the messages.
    pub fn backend(mut self, backend: Backend) -> ConfigBuilder {
        self.draft.backend = built(backend);
        self
    }

    /// Sets options of a group.
    pub fn group(mut self, name: impl Into<String>, set: impl FnOnce(&mut GroupBuilder<'_>)) -> ConfigBuilder {
        let fresh = || Given { value: GroupDraft::default(), place: Place::Builder };
        let group = &mut self.draft.groups.entry(name.into()).or_insert_with(fresh).value;
        set(&mut GroupBuilder { group });
        self
    }

    /// Checks everything.
    pub fn build(self) -> Result<Config, ConfigError> {
        self.draft.check()
    }
}

impl GroupBuilder<'_> {
    /// Sets the delivery mode.
    pub fn mode(&mut self, mode: Mode) -> &mut Self {
        self.group.mode = built(mode);
        self
    }

    /// Sets the size of each sender's ring, in bytes: a power of two.
    pub fn ring_bytes(&mut self, bytes: usize) -> &mut Self {
        self.group.ring_bytes = built(bytes);
        self
    }

    /// Sets above how many bytes a message is a bulk message.
    pub fn bulk_threshold(&mut self, bytes: usize) -> &mut Self {
        self.group.bulk_threshold = built(bytes);
        self
    }

    /// Sets how much memory each member reserves for each sender's bulk messages, in bytes: no message may be larger.
    pub fn bulk_reserve(&mut self, bytes: usize) -> &mut Self {
        self.group.bulk_reserve = built(bytes);
        self
    }

    /// Lists those of the members that may send.
    pub fn senders(&mut self, ids: impl IntoIterator<Item = u32>) -> &mut Self {
        self.group.senders = built(ids.into_iter().collect());
        self
    }

    /// Sets how many submits of this node may wait for their replies.
    pub fn max_waiting(&mut self, count: usize) -> &mut Self {
        self.group.max_waiting = built(count);
        self
    }
}
