//! What travels through the group.

// What rkyv derives has no documentation.
#![allow(missing_docs)]

use rkyv::{Archive, Serialize};

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
    },
    /// Several requests, at one moment, unless a watched key has changed.
    Transaction {
        /// When it was sent.
        at_ms: u64,
        /// The keys that are watched.
        watched: Vec<Watched>,
        /// The words of each request.
        requests: Vec<Vec<u8>>,
    },
    /// Only the time, so that keys expire where nothing else happens.
    Tick {
        /// When it was sent.
        at_ms: u64,
    },
}

/// A key that a transaction watches.
#[derive(Archive, Serialize, Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// The key.
    pub key: Vec<u8>,
    /// Whether it was there.
    pub present: bool,
    /// Its version, or, if it was absent, that of the whole.
    pub version: u64,
}
