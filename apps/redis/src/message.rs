//! The messages of the group, and the queries of front ends, which are no members of it.

// The types that rkyv derives have no documentation.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize};

use crate::Reply;

/// A message of the group. Times are the sender's clock, in milliseconds since 1970; the state's time is the
/// latest that was applied.
#[derive(Archive, Serialize, Clone, Debug, PartialEq, Eq)]
pub enum StoreCommand {
    /// One request.
    Run {
        /// The time of sending.
        at_ms: u64,
        /// Its [`words`](crate::words).
        request: Vec<u8>,
        /// The replicas that answer it, if it only looks.
        answered_by: AnsweredBy,
    },
    /// Several requests, at one moment, unless a watched key has changed.
    Transaction {
        /// The time of sending.
        at_ms: u64,
        /// The keys that are watched.
        watched: Vec<WatchedKey>,
        /// The words of each request.
        requests: Vec<Vec<u8>>,
        /// The replicas that answer the requests that only look.
        answered_by: AnsweredBy,
    },
    /// One request that waits if there is nothing to take. Its answer is then [`Reply::Waiting`], and the sender's
    /// replica tells of the wait's end.
    Wait {
        /// The time of sending.
        at_ms: u64,
        /// The sender's number for it.
        ticket: u64,
        /// Its words.
        request: Vec<u8>,
    },
    /// The end of some of the sender's waits. The answer is the number of those that had not ended before.
    CancelWaits {
        /// The time of sending.
        at_ms: u64,
        /// The sender's numbers for them.
        tickets: Vec<u64>,
    },
    /// The time alone, so that keys expire where nothing else happens.
    Tick {
        /// The time of sending.
        at_ms: u64,
    },
}

impl StoreCommand {
    /// The bytes of the requests and keys in it.
    pub fn bytes(&self) -> usize {
        match self {
            StoreCommand::Run { request, .. } | StoreCommand::Wait { request, .. } => request.len(),
            StoreCommand::Transaction { watched, requests, .. } => {
                let keys = watched.iter().map(|watched| watched.key.len());
                requests.iter().map(Vec::len).chain(keys).sum()
            }
            StoreCommand::CancelWaits { tickets, .. } => size_of_val(&**tickets),
            StoreCommand::Tick { .. } => 0,
        }
    }
}

/// The replicas that answer requests that only look. Requests that change the state are carried out by all replicas.
#[derive(Archive, Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The replica at which it was submitted: no other's answer is seen.
    Sender,
    /// All replicas, since any of them may be asked for the answer to a front end's request.
    All,
}

/// A front end's query to a replica, outside of the order.
#[derive(Archive, Serialize, Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Answers to requests that only look, all of one state.
    Look {
        /// The front end's clock, in milliseconds since 1970.
        clock_ms: u64,
        /// The words of each request.
        requests: Vec<Vec<u8>>,
    },
    /// The state of keys that a transaction is to watch.
    Watch {
        /// The front end's clock, in milliseconds since 1970.
        clock_ms: u64,
        /// The keys.
        keys: Vec<Vec<u8>>,
    },
    /// Whether the replica has more memory in use than its limit.
    Memory,
}

/// A replica's answer to a [`Query`].
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum QueryAnswer {
    /// The first of the answers: where they are long, the rest must be asked for again.
    Looked(Vec<Reply>),
    /// The keys, in the order in which they were asked for.
    Watched(Vec<WatchedKey>),
    /// Whether the replica has more memory in use than its limit.
    Memory {
        /// Whether it refuses its own clients' writes that need memory.
        is_exceeded: bool,
    },
}

/// A key that a transaction watches.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct WatchedKey {
    /// The key.
    pub key: Vec<u8>,
    /// Whether the key was there.
    pub present: bool,
    /// The key's version, or, if it was absent, that of the keyspace.
    pub version: u64,
}
