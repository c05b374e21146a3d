//! The requests of callers, and their results.

use super::message::Refusal;
use crate::clients::{client::ClientError, wire::Consistency};

/// The commands of one shard in a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardCommands {
    pub(crate) shard: u32,
    pub(crate) commands: Vec<Vec<u8>>,
}

/// The content of a request.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// Commands, by shard in ascending order.
    Commands(Vec<ShardCommands>),
    Query {
        shard: u32,
        query: Vec<u8>,
        consistency: Consistency,
    },
}

/// A result that a caller gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestSuccess {
    /// The replies, by part and command.
    Applied(Vec<Vec<Vec<u8>>>),
    Answered(Vec<u8>),
}

/// A failure that a caller gets, with the shard that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestFailure {
    /// Nothing was applied, and it is of no use to try again as it is.
    Refused(u32, Refusal),
    /// Nothing was applied, since other transactions were in the way until the deadline.
    Busy(u32),
    /// Nothing was applied.
    NotApplied(u32, ClientError),
    /// It is unknown whether all was applied, or nothing.
    Unknown(u32, String),
    /// All was or will be applied, and a reply has not come.
    NoReplies(u32),
}
