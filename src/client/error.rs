//! Why a client's calls fail.

/// Why a command or a query of a client failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// As many calls wait as may. Nothing was sent.
    #[error("{max} calls of this client wait already, as many as may: wait for some, or set a larger `max_waiting`")]
    Full {
        /// The limit.
        max: usize,
    },
    /// rkyv could not serialize the command or query; the sentence says why. Nothing was sent.
    #[error("the command or query could not be serialized: {0}")]
    Serialize(String),
    /// The group does not take the command, and why. Nobody applies it.
    #[error("the command was not taken: {0}")]
    Rejected(String),
    /// The command was delivered, but what arrived is no command of the group, so no member applied it.
    #[error(
        "the command's bytes are no command of this group, so no member applied them: the client has another version"
    )]
    Invalid,
    /// The command was delivered, and the group goes on without applying it, since an operator has said so: the service panicked with it.
    #[error(
        "no member applies the command, as an operator of the group has said: the service panicked with it, so don't submit it again"
    )]
    Skipped,
    /// The command was applied, but its reply is longer than the group keeps for a client, or could not be serialized.
    #[error("the command was applied, but its reply was too long to be kept for clients: set a larger `reply_bytes`")]
    NoReply,
    /// The reply or answer that came is none of this group's. A command was applied.
    #[error("the reply could not be read, so the client has another version of the service than the group: {0}")]
    Reply(String),
    /// The member could not answer the query; the sentence says why.
    #[error("the query was not answered: {0}")]
    Query(String),
    /// There was no answer in time.
    #[error(
        "the deadline has passed; {}. The last trouble was: {trouble}",
        if *sent { "the command was sent, and it is unknown whether it was applied" } else { "nothing was applied" }
    )]
    Deadline {
        /// Whether it was a command, and was sent. It may have been applied; if not, it may yet be.
        sent: bool,
        /// What last went wrong, if anything did.
        trouble: String,
    },
    /// The client's session was ended by the group, mostly since nothing came of the client for long. Copies of the command had
    /// been sent before.
    #[error(
        "the session has ended, and it is unknown whether the command was applied before: reconnecting took too long"
    )]
    SessionEnded,
    /// A copy of the command was refused, while an earlier one may have been applied.
    #[error("a copy of the command was refused ({0}); it is unknown whether an earlier one was applied")]
    Unknown(String),
    /// Waiting was asked for where it might never end: inside `apply` or a read's closure. The call goes its way.
    #[error("waiting inside `apply` or a read's closure could wait for ever: wait on another thread")]
    InsideApply,
    /// The client was dropped before there was an answer.
    #[error("the client was closed; {}", if *sent { "it is unknown whether the command was applied" } else { "nothing was applied" })]
    Closed {
        /// Whether it was a command, and was sent.
        sent: bool,
    },
    /// The system gave no thread, or what the client was given can't be right.
    #[error("the client could not start: {0}")]
    Start(String),
}

impl ClientError {
    /// Whether it is certain that no member applies the command, so that it may be submitted again.
    pub fn is_not_applied(&self) -> bool {
        match self {
            ClientError::Full { .. }
            | ClientError::Serialize(_)
            | ClientError::Rejected(_)
            | ClientError::Invalid
            | ClientError::Skipped
            | ClientError::Query(_)
            | ClientError::Start(_) => true,
            ClientError::Deadline { sent, .. } | ClientError::Closed { sent } => !sent,
            ClientError::NoReply
            | ClientError::Reply(_)
            | ClientError::SessionEnded
            | ClientError::InsideApply
            | ClientError::Unknown(_) => false,
        }
    }
}
