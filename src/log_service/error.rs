//! Why a log was not read.

use std::time::Duration;

use squall_fabric::NodeId;

/// Why a durable group's log was not read from afar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// No member that was asked could answer.
    #[error("the log of group {group:?} was not read within {} s. The last trouble was: {trouble}", limit.as_secs_f64())]
    Unreachable {
        /// The group.
        group: String,
        /// How long it was tried.
        limit: Duration,
        /// What last went wrong.
        trouble: String,
    },
    /// A member refuses, and no other would do better.
    #[error("{node} refuses: {why}")]
    Refused {
        /// The member.
        node: NodeId,
        /// A sentence.
        why: String,
    },
    /// No member that was asked has so old records.
    #[error("the log's beginning was trimmed: version {first} is the first that can still be read")]
    Trimmed {
        /// The first version that some member has.
        first: u64,
    },
    /// It is no command of this kind.
    #[error("version {version} is no such record, so this is the log of another service: {why}")]
    Command {
        /// Its number.
        version: u64,
        /// What is wrong.
        why: String,
    },
    /// The answer belongs to another question.
    #[error("{node} gives an answer that was not asked for: run the same version at both ends")]
    Unexpected {
        /// The member.
        node: NodeId,
    },
}
