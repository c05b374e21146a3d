//! What travels through the group, and what is asked of it by those who are no members.

// What rkyv derives has no documentation.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize};

use crate::Reply;

/// A message of the group. Times are the sender's clock, in milliseconds since 1970; the state's time is the
/// latest that was applied.
#[derive(Archive, Serialize, Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// One request.
    Run {
        /// When it was sent.
        at_ms: u64,
        /// Its [`words`](crate::words).
        request: Vec<u8>,
        /// Who answers it, if it only looks.
        answered_by: AnsweredBy,
    },
    /// Several requests, at one moment, unless a watched key has changed.
    Transaction {
        /// When it was sent.
        at_ms: u64,
        /// The keys that are watched.
        watched: Vec<Watched>,
        /// The words of each request.
        requests: Vec<Vec<u8>>,
        /// Who answers those that only look.
        answered_by: AnsweredBy,
    },
    /// Only the time, so that keys expire where nothing else happens.
    Tick {
        /// When it was sent.
        at_ms: u64,
    },
}

impl Command {
    /// The bytes of the requests and keys in it.
    pub fn bytes(&self) -> usize {
        match self {
            Command::Run { request, .. } => request.len(),
            Command::Transaction { watched, requests, .. } => {
                let keys = watched.iter().map(|watched| watched.key.len());
                requests.iter().map(Vec::len).chain(keys).sum()
            }
            Command::Tick { .. } => 0,
        }
    }
}

/// Who answers requests that only look. What changes the state all replicas carry out.
#[derive(Archive, Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The replica that it was submitted at: no other's answer is seen.
    Sender,
    /// All, since any of them may be asked for the answer: that of a front end's request.
    All,
}

/// What a front end asks a replica, beside the order.
#[derive(Archive, Serialize, Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Answers to requests that only look, all of one state.
    Look {
        /// The asker's clock.
        clock_ms: u64,
        /// The words of each request.
        requests: Vec<Vec<u8>>,
    },
    /// The state of keys that a transaction is to watch.
    Watch {
        /// The asker's clock.
        clock_ms: u64,
        /// The keys.
        keys: Vec<Vec<u8>>,
    },
}

/// What a replica says to a [`Query`].
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Answer {
    /// The first of the answers: where they are long, the rest must be asked for again.
    Looked(Vec<Reply>),
    /// The keys, in the order in which they were asked for.
    Watched(Vec<Watched>),
}

/// A key that a transaction watches.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// The key.
    pub key: Vec<u8>,
    /// Whether it was there.
    pub present: bool,
    /// Its version, or, if it was absent, that of the whole.
    pub version: u64,
}
