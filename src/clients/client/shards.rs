//! Handles to all shards of a group, for members and for clients.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use super::{Client, call::Call, config::ClientConfig, effect::Ask, error::ClientError};
use crate::clients::{partition::Partitioned, query::QueryService, wire::ShardName};

/// Handles to the shards of a group that serves clients, each a [`Client`] of it.
///
/// A client [connects](Shards::connect) to them; a member has them from
/// [`NodeBuilder::serve_sharded`](crate::NodeBuilder::serve_sharded). The calls are the same, and go to a member of the
/// shard from anywhere: through this process' own node where that is one, else straight to one.
#[derive(derive_more::Debug)]
#[debug("Shards({name:?}, {})", self.len())]
pub struct Shards<R: QueryService> {
    name: String,
    shards: Arc<[Client<R>]>,
}

impl<R: QueryService> Shards<R> {
    pub(crate) fn new(name: &str, shards: impl IntoIterator<Item = Client<R>>) -> Shards<R> {
        Shards { name: name.to_owned(), shards: shards.into_iter().collect() }
    }

    /// Makes a client of the group of this name, once any member has told how many shards it has. The calls to each
    /// shard have a session and a connection of their own, from the first on.
    pub fn connect(config: &ClientConfig, group: &str) -> Connecting<R> {
        let first = Client::lazy(config, &ShardName::of(group, 0));
        let shards = first.driver.call(Ask::Shards, config.timeout);
        Connecting { group: group.to_owned(), config: config.clone(), first, shards }
    }

    /// The group's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of shards.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.shards.len()
    }

    /// Returns a shard, from 0 on.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub fn shard(&self, index: usize) -> &Client<R> {
        &self.shards[index]
    }

    /// Iterates over all shards, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Client<R>> {
        self.shards.iter()
    }
}

impl<R: Partitioned> Shards<R> {
    /// Returns the shard of a key.
    ///
    /// # Panics
    ///
    /// If the service's [`Partitioned::shard_of`] returns a shard that there is not.
    pub fn of(&self, key: &R::Key) -> &Client<R> {
        self.shard(R::shard_of(key, self.len() as u32) as usize)
    }
}

impl<R: QueryService> Clone for Shards<R> {
    fn clone(&self) -> Shards<R> {
        Shards { name: self.name.clone(), shards: Arc::clone(&self.shards) }
    }
}

/// A client that asks for the number of a group's shards, and the [`Shards`] that it becomes.
///
/// It is a future for any executor; a plain thread calls [`wait`](Connecting::wait). It fails by the configuration's
/// timeout.
#[derive(derive_more::Debug)]
#[debug("Connecting({group:?})")]
#[must_use = "the client is its result"]
pub struct Connecting<R: QueryService> {
    group: String,
    config: ClientConfig,
    first: Client<R>,
    shards: Call<u32>,
}

impl<R: QueryService> Connecting<R> {
    /// Blocks this thread until a member has answered.
    pub fn wait(self) -> Result<Shards<R>, ClientError> {
        let Connecting { group, config, first, shards } = self;
        Ok(all(&group, &config, first, shards.wait()?))
    }
}

impl<R: QueryService> Future for Connecting<R> {
    type Output = Result<Shards<R>, ClientError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Shards<R>, ClientError>> {
        let shards = std::task::ready!(Pin::new(&mut self.shards).poll(context));
        Poll::Ready(shards.map(|shards| all(&self.group, &self.config, self.first.clone(), shards)))
    }
}

fn all<R: QueryService>(group: &str, config: &ClientConfig, first: Client<R>, shards: u32) -> Shards<R> {
    let others = (1..shards).map(|shard| Client::lazy(config, &ShardName::of(group, shard)));
    Shards::new(group, [first].into_iter().chain(others))
}
