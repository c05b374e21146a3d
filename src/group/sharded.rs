//! The handles of a group that has shards.

use std::ops::Index;

use crate::{group::handle::Group, replica::service::Service};

/// Handles to the shards of a group, each a [`Group`] with an order, members and a state of its own. The application
/// decides which command belongs to which shard.
///
/// Every node has a handle to each shard, and a replica that is used as long as the node is one of the shard's members.
/// On other nodes all calls but [`peek`](Group::peek) fail with
/// [`Unavailable::Elsewhere`](crate::Unavailable::Elsewhere), which names the members.
#[derive(derive_more::Debug)]
#[debug("Sharded({name:?}, {})", self.len())]
pub struct Sharded<R: Service> {
    name: String,
    shards: Vec<Group<R>>,
}

impl<R: Service> Sharded<R> {
    pub(crate) fn new(name: &str, shards: Vec<Group<R>>) -> Sharded<R> {
        Sharded { name: name.to_owned(), shards }
    }

    /// The group's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of shards: `[groups.NAME] shards`.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.shards.len()
    }

    /// Returns a shard, from 0 on.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub fn shard(&self, index: usize) -> &Group<R> {
        &self.shards[index]
    }

    /// Iterates over all shards, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Group<R>> {
        self.shards.iter()
    }
}

impl<R: Service> Index<usize> for Sharded<R> {
    type Output = Group<R>;

    fn index(&self, index: usize) -> &Group<R> {
        self.shard(index)
    }
}

impl<R: Service> Clone for Sharded<R> {
    fn clone(&self) -> Sharded<R> {
        Sharded { name: self.name.clone(), shards: self.shards.clone() }
    }
}
