//! The errors of reading a log.

use std::time::Duration;

use squall_fabric::NodeId;

/// A reason for which a durable group's log was not read from afar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The failure of all members that were asked to answer.
    #[error("the log of group {group:?} was not read within {} s. The last trouble was: {trouble}", limit.as_secs_f64())]
    Unreachable {
        /// The group.
        group: String,
        /// The time for which it was tried.
        limit: Duration,
        /// The last trouble.
        trouble: String,
    },
    /// The reader's certificate does not permit it to read logs.
    #[error("the log can't be read: {why}")]
    Denied {
        /// The reason, in a sentence.
        why: String,
    },
    /// A member refuses, and no other would do better.
    #[error("{node} refuses: {why}")]
    Refused {
        /// The member.
        node: NodeId,
        /// The reason, in a sentence.
        why: String,
    },
    /// A request for records that are older than those of any member that was asked.
    #[error("the log's beginning was trimmed: version {first} is the first that can still be read")]
    Trimmed {
        /// The first version that some member has.
        first: u64,
    },
    /// The record is no command of this kind.
    #[error("version {version} is no such record, so this is the log of another service: {why}")]
    Command {
        /// Its number.
        version: u64,
        /// The problem.
        why: String,
    },
    /// The answer belongs to another request.
    #[error("{node} gives an answer that was not asked for: run the same version at both ends")]
    Unexpected {
        /// The member.
        node: NodeId,
    },
}
