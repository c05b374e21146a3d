//! Clients that know no types of a service: its bytes, in a codec. Libraries for other languages are made of these.

use std::{sync::Arc, time::Duration};

use super::{
    call::{Call, Resolve},
    config::ClientConfig,
    effect::Ask,
    error::ClientError,
    lazy_driver::LazyDriver,
};
use crate::clients::{
    partition::shard_of_bytes,
    wire::{Consistency, ShardName},
};

/// The form in which commands, replies, queries and answers travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// The group's own form. All groups have it.
    Rkyv,
    /// The form of serde's implementations in JSON. A group has it by its service's
    /// [`QueryService::JSON`](crate::QueryService::JSON).
    #[default]
    Json,
}

impl Codec {
    /// Its name in a client's first message.
    fn name(self) -> &'static str {
        match self {
            Codec::Rkyv => "rkyv",
            Codec::Json => "json",
        }
    }
}

/// A [`Client`](super::Client) of a group's shard whose commands and queries, replies and answers are bytes.
#[derive(Clone, derive_more::Debug)]
#[debug("RawClient {{ timeout: {timeout:?} }}")]
pub struct RawClient {
    driver: Arc<LazyDriver>,
    timeout: Duration,
}

impl RawClient {
    /// Makes a client whose threads begin with the first call.
    fn lazy(config: &ClientConfig, group: &str, shard: u32, codec: Codec) -> RawClient {
        let driver = LazyDriver::new(ShardName::in_codec(group, shard, codec.name()));
        driver.start(config.caller().clone(), config.contacts(), config.max_waiting, config.checked_silence());
        RawClient { driver: Arc::new(driver), timeout: config.timeout }
    }

    /// Returns a handle whose calls have this long until their deadlines.
    pub fn within(&self, timeout: Duration) -> RawClient {
        RawClient { timeout, ..self.clone() }
    }

    /// Submits a command, as [`Client::submit`](super::Client::submit) does.
    pub fn submit(&self, command: Vec<u8>) -> Call<Vec<u8>> {
        self.call(Ask::Command(command))
    }

    /// Asks a query, as [`Client::query_as`](super::Client::query_as) does.
    pub fn query(&self, consistency: Consistency, query: Vec<u8>) -> Call<Vec<u8>> {
        self.call(Ask::Query(consistency, query))
    }

    fn call(&self, ask: Ask) -> Call<Vec<u8>> {
        let (call, resolve) = Resolve::raw();
        self.driver.call_into(ask, self.timeout, resolve);
        call
    }
}

/// A [`RawClient`] for each shard of a group, of which there may be one.
#[derive(Clone, Debug)]
pub struct RawShards(Arc<[RawClient]>);

impl RawShards {
    /// Makes a client of the group of this name. Blocks this thread until a member has told how many shards it has, or
    /// until the configuration's timeout has passed. Fails with [`ClientError::Denied`] if the group does not have the
    /// codec.
    pub fn connect(config: &ClientConfig, group: &str, codec: Codec) -> Result<RawShards, ClientError> {
        let first = RawClient::lazy(config, group, 0, codec);
        let shards = first.call(Ask::Shards).wait()?;
        let shards = shards.try_into().map(u32::from_le_bytes);
        let shards = shards.map_err(|_| ClientError::Reply("it is no number of shards".to_owned()))?;
        let others = (1..shards).map(|shard| RawClient::lazy(config, group, shard, codec));
        Ok(RawShards([first].into_iter().chain(others).collect()))
    }

    /// Returns the number of shards.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns a shard, from 0 on. None if there are fewer.
    pub fn shard(&self, index: usize) -> Option<&RawClient> {
        self.0.get(index)
    }

    /// Returns the number of the shard that has a key, in a group that divides its keys by
    /// [`shard_of_bytes`](crate::shard_of_bytes).
    pub fn shard_of(&self, key: &[u8]) -> usize {
        shard_of_bytes(key, self.len() as u32) as usize
    }
}
