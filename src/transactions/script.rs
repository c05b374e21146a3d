//! The commands of a transaction, as a caller gives them, and the way from its result to the caller's replies.

use std::collections::BTreeMap;

use rkyv::{rancor, util::AlignedVec};

use super::{
    error::TransactionError,
    request::{Ask, RequestFailure, RequestSuccess, ShardCommands},
};
use crate::{
    clients::{client::encode, query::Portable},
    replica::command::Command,
};

/// The commands of a transaction in the caller's order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    commands: Vec<(u32, Vec<u8>)>,
    /// The reason for which it can't be sent.
    trouble: Option<String>,
}

impl Script {
    /// Adds a command of a shard, of `shards` in all.
    pub(crate) fn add(&mut self, shard: u32, shards: usize, command: &impl Command) {
        if shard as usize >= shards {
            let why = format!("there is no shard {shard}, since the group has {shards}");
            _ = self.trouble.get_or_insert(why);
            return;
        }
        match encode(command) {
            Ok(command) => self.commands.push((shard, command)),
            Err(error) => _ = self.trouble.get_or_insert(error.to_string()),
        }
    }

    /// The request for the commands, with the places of the replies.
    pub(crate) fn ask(self) -> Result<(Ask, ReplyPlaces), String> {
        if let Some(trouble) = self.trouble {
            return Err(trouble);
        }
        let mut parts: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
        let mut places = Vec::new();
        for (shard, command) in self.commands {
            let part = parts.entry(shard).or_default();
            places.push((shard, part.len() as u32));
            part.push(command);
        }
        let shards = parts.keys().copied().collect();
        let parts = parts.into_iter().map(|(shard, commands)| ShardCommands { shard, commands }).collect();
        Ok((Ask::Commands(parts), ReplyPlaces { shards, commands: places }))
    }
}

/// The places of a caller's commands in the parts of a transaction: the shard, and the number in its part.
#[derive(Clone, Debug)]
pub(crate) struct ReplyPlaces {
    shards: Vec<u32>,
    commands: Vec<(u32, u32)>,
}

impl ReplyPlaces {
    /// The replies of a transaction, in the order of its commands.
    pub(crate) fn replies<R: Portable>(
        &self,
        result: Result<RequestSuccess, RequestFailure>,
    ) -> Result<Vec<R>, TransactionError<R>> {
        let parts = match result {
            Ok(RequestSuccess::Applied(parts)) => parts,
            Ok(RequestSuccess::Answered(_)) => Vec::new(),
            Err(failure) => return Err(TransactionError::of(failure, decode, |shard, place| self.place(shard, place))),
        };
        let reply = |&(shard, place): &(u32, u32)| {
            let part = self.shards.binary_search(&shard).ok()?;
            decode(parts.get(part)?.get(place as usize)?)
        };
        let reply = |at: &(u32, u32)| reply(at).ok_or(TransactionError::NoReplies { shard: at.0 });
        self.commands.iter().map(reply).collect()
    }

    fn place(&self, shard: u32, place: u32) -> usize {
        self.commands.iter().position(|at| *at == (shard, place)).unwrap_or_default()
    }
}

/// Decodes a reply or an answer.
pub(crate) fn decode<T: Portable>(bytes: &[u8]) -> Option<T> {
    let mut aligned: AlignedVec = AlignedVec::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    rkyv::from_bytes::<T, rancor::Error>(&aligned).ok()
}
