//! The errors of a client's calls.

use crate::{calls::error::SubmitError, clients::wire::WireOutcome};

/// A reason for which a command or a query of a client failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The client has as many waiting calls as may be. Nothing was sent.
    #[error("{max} calls of this client wait already, as many as may: wait for some, or set a larger `max_waiting`")]
    Full {
        /// The limit.
        max: usize,
    },
    /// rkyv could not serialize the command or query, for the reason in this sentence. Nothing was sent.
    #[error("the command or query could not be serialized: {0}")]
    Serialize(String),
    /// The group does not take the command, for this reason. No member applies it.
    #[error("the command was not taken: {0}")]
    Rejected(String),
    /// The client's certificate does not permit the call, or the group does not speak the client's codec, for this
    /// reason. Nothing was applied.
    #[error("the group does not permit the call: {0}")]
    Denied(String),
    /// The command was delivered, but what arrived is no command of the group, so no member applied it.
    #[error(
        "the command's bytes are no command of this group, so no member applied them: the client has another version"
    )]
    Invalid,
    /// The command was delivered, but the group goes on without applying it: the service panicked with it, and an
    /// operator has listed it as skipped.
    #[error(
        "no member applies the command, as an operator of the group has said: the service panicked with it, so don't submit it again"
    )]
    Skipped,
    /// The command was applied, but its reply is longer than the group keeps for a client, or could not be serialized.
    #[error(
        "the command was applied, but its reply was too long to be kept for clients, or has no form in their codec: set a larger \
         `reply_bytes`"
    )]
    NoReply,
    /// The reply or answer is none of this group's. A command was applied.
    #[error("the reply could not be read, so the client has another version of the service than the group: {0}")]
    Reply(String),
    /// The member could not answer the query, for the reason in this sentence.
    #[error("the query was not answered: {0}")]
    Query(String),
    /// The deadline passed without an answer.
    #[error(
        "the deadline has passed; {}. The last trouble was: {trouble}",
        if *sent { "the command was sent, and it is unknown whether it was applied" } else { "nothing was applied" }
    )]
    Deadline {
        /// Whether the call was a command that was sent. It may have been applied; if not, it may yet be.
        sent: bool,
        /// The last trouble, if there was any.
        trouble: String,
    },
    /// The group has ended the client's session, mostly since nothing came from the client for long. Copies of the
    /// command had been sent before.
    #[error(
        "the session has ended, and it is unknown whether the command was applied before: reconnecting took too long"
    )]
    SessionEnded,
    /// A copy of the command was refused, while an earlier one may have been applied; or the caller's own node has sent
    /// it, and has learnt no more.
    #[error("the command was not answered ({0}); it is unknown whether it, or an earlier copy, was applied")]
    Unknown(String),
    /// The caller may not wait here: inside `apply` or a read's closure that might never end. The call continues.
    #[error("waiting inside `apply` or a read's closure could wait for ever: wait on another thread")]
    InsideApply,
    /// The client was dropped before there was an answer.
    #[error("the client was closed; {}", if *sent { "it is unknown whether the command was applied" } else { "nothing was applied" })]
    Closed {
        /// Whether the call was a command that was sent.
        sent: bool,
    },
    /// The member has no answer of its own to a command, for the reason in this sentence. Others may have applied it.
    #[error("this member gives no answer of its own: {0}")]
    Gone(String),
    /// The system gave no thread, or the client's arguments can't be right.
    #[error("the client could not start: {0}")]
    Start(String),
    /// The member could not begin the watch, or answer its query, for the reason in this sentence.
    #[error("the watch did not begin: {0}")]
    NotWatched(String),
    /// The group does not keep the next change of the watch any more.
    #[error(
        "the watch is too far behind: the next change is number {needed}, and the group keeps those from {oldest} on: take a new copy \
         with `watch_with_query`, or keep more (`change_bytes`)"
    )]
    TooFarBehind {
        /// The number of the next change.
        needed: u64,
        /// The number of the oldest change that is kept.
        oldest: u64,
    },
    /// The place behind which the watch was to go on is of another group, or of one that has begun anew since.
    #[error(
        "the watch can't go on behind change {number}: the group's history is another one, so take a new copy with `watch_with_query`"
    )]
    OtherHistory {
        /// The number of the change at that place.
        number: u64,
    },
}

impl From<SubmitError> for ClientError {
    /// The error of a command that the caller's own node has sent, or has not.
    fn from(error: SubmitError) -> ClientError {
        match error {
            SubmitError::Full | SubmitError::Deadline => {
                ClientError::Deadline { sent: error == SubmitError::Deadline, trouble: error.to_string() }
            }
            SubmitError::Serialize(why) => ClientError::Serialize(why),
            SubmitError::Invalid => ClientError::Invalid,
            SubmitError::InsideApply => ClientError::InsideApply,
            SubmitError::NotStarted => ClientError::Start(error.to_string()),
            _ if error.is_not_applied() => ClientError::Rejected(error.to_string()),
            _ => ClientError::Unknown(error.to_string()),
        }
    }
}

impl ClientError {
    /// Returns the reply of a command that was delivered, or the reason for which there is none.
    pub(super) fn of_outcome(outcome: WireOutcome) -> Result<Vec<u8>, ClientError> {
        match outcome {
            WireOutcome::Reply(bytes) => Ok(bytes),
            WireOutcome::NoCommand => Err(ClientError::Invalid),
            WireOutcome::NoReply => Err(ClientError::NoReply),
            WireOutcome::Skipped => Err(ClientError::Skipped),
        }
    }

    /// Makes the error of a command that is longer than the group takes of a client.
    pub(super) fn too_long(max: usize) -> ClientError {
        ClientError::Rejected(format!(
            "it is longer than {max} bytes, the most that the group takes of a client; divide it, or raise `request_bytes` \
             of its `ServeOptions`, up to what it takes of a member (`bulk_reserve`)"
        ))
    }

    /// Tells whether it is certain that no member applies the command, so that it may be submitted again, unless it is
    /// [`Skipped`](ClientError::Skipped).
    pub fn is_not_applied(&self) -> bool {
        match self {
            ClientError::Full { .. }
            | ClientError::Serialize(_)
            | ClientError::Rejected(_)
            | ClientError::Denied(_)
            | ClientError::Invalid
            | ClientError::Skipped
            | ClientError::Query(_)
            | ClientError::Start(_)
            | ClientError::NotWatched(_)
            | ClientError::TooFarBehind { .. }
            | ClientError::OtherHistory { .. } => true,
            ClientError::Deadline { sent, .. } | ClientError::Closed { sent } => !sent,
            ClientError::NoReply
            | ClientError::Reply(_)
            | ClientError::SessionEnded
            | ClientError::InsideApply
            | ClientError::Gone(_)
            | ClientError::Unknown(_) => false,
        }
    }
}
