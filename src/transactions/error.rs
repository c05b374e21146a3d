//! The errors of transactions.

use super::{message::Refusal, request::RequestFailure};
use crate::clients::client::ClientError;

/// A reason for which a transaction failed, or is not known to have taken effect. `R` is the service's reply.
#[derive(Clone, derive_more::Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError<R> {
    /// The service refuses one of the commands, with this reply. Nothing was applied.
    #[error("the service refuses command {command} of the transaction, at shard {shard}; nothing was applied")]
    Aborted {
        /// The shard.
        shard: u32,
        /// The place of the command among all commands of the transaction, from 0 on.
        command: usize,
        /// The reply.
        #[debug(skip)]
        reply: R,
    },
    /// Other transactions used the same keys until the deadline. Nothing was applied.
    #[error("other transactions used the same keys of shard {shard} until the deadline; nothing was applied")]
    Busy {
        /// The shard.
        shard: u32,
    },
    /// The command uses a key that an earlier one of the transaction writes. Nothing was applied.
    #[error(
        "command {command} of the transaction uses a key that an earlier one writes; nothing was applied: give the \
         service one command that does both"
    )]
    Overlap {
        /// The place of the command among all commands of the transaction, from 0 on.
        command: usize,
    },
    /// The shard has too many transactions in its memory. Nothing was applied.
    #[error(
        "shard {shard} remembers as many transactions as it may; nothing was applied: see that all shards are active, \
         since a transaction is remembered until all of its shards have carried it out"
    )]
    Full {
        /// The shard.
        shard: u32,
    },
    /// The clocks of the shards, or of the client, are too far apart. Nothing was applied.
    #[error(
        "the time of shard {shard} is more than 30 s from that of another shard of the transaction; nothing was \
         applied: set the clocks of the nodes"
    )]
    Clocks {
        /// The shard.
        shard: u32,
    },
    /// The group's service has no such command or query. Nothing was applied.
    #[error("shard {shard} has no such command or query, so the client has another version; nothing was applied")]
    Invalid {
        /// The shard.
        shard: u32,
    },
    /// A message to the shard failed. Nothing was applied.
    #[error("shard {shard} can't be used; nothing was applied: {error}")]
    NotApplied {
        /// The shard.
        shard: u32,
        /// The message's error.
        error: ClientError,
    },
    /// The group has no such shard, or the command could not be serialized, for the reason in this sentence. Nothing
    /// was sent.
    #[error("the transaction can't be sent: {0}")]
    Unsendable(String),
    /// Whether the transaction takes effect is not known: wholly, or not at all.
    #[error("it is unknown whether the transaction took effect: shard {shard} has not told ({trouble})")]
    Unknown {
        /// The shard.
        shard: u32,
        /// The last trouble.
        trouble: String,
    },
    /// The transaction takes effect, and a shard's replies have not come, or could not be read.
    #[error("the transaction takes effect, but the replies of shard {shard} have not come")]
    NoReplies {
        /// The shard.
        shard: u32,
    },
    /// The thread that carries transactions out has ended. Whether this one takes effect is not known.
    #[error("it is unknown whether the transaction took effect: the handle was closed")]
    Closed,
    /// The caller may not wait here: inside `apply` or a read's closure that might never end. The transaction goes on.
    #[error("waiting inside `apply` or a read's closure could wait for ever: wait on another thread")]
    InsideApply,
}

impl<R> TransactionError<R> {
    /// Tells whether it is certain that nothing of the transaction takes effect, so that it may be submitted again.
    pub fn is_not_applied(&self) -> bool {
        match self {
            TransactionError::Aborted { .. }
            | TransactionError::Busy { .. }
            | TransactionError::Overlap { .. }
            | TransactionError::Full { .. }
            | TransactionError::Clocks { .. }
            | TransactionError::Invalid { .. }
            | TransactionError::NotApplied { .. }
            | TransactionError::Unsendable(_) => true,
            TransactionError::Unknown { .. }
            | TransactionError::NoReplies { .. }
            | TransactionError::Closed
            | TransactionError::InsideApply => false,
        }
    }

    /// The error of a failure. `decode` reads a reply, and `place` finds a command of a shard's part among all.
    pub(crate) fn of(
        failure: RequestFailure,
        decode: impl FnOnce(&[u8]) -> Option<R>,
        place: impl Fn(u32, u32) -> usize,
    ) -> TransactionError<R> {
        match failure {
            RequestFailure::Refused(shard, refusal) => match refusal {
                Refusal::Service { command, reply } => match decode(&reply) {
                    Some(reply) => TransactionError::Aborted { shard, command: place(shard, command), reply },
                    None => TransactionError::Invalid { shard },
                },
                Refusal::Overlap { command } => TransactionError::Overlap { command: place(shard, command) },
                Refusal::Full => TransactionError::Full { shard },
                Refusal::Expired { .. } => TransactionError::Clocks { shard },
                Refusal::Invalid => TransactionError::Invalid { shard },
                Refusal::Busy(_) | Refusal::Settled => TransactionError::Busy { shard },
            },
            RequestFailure::Busy(shard) => TransactionError::Busy { shard },
            RequestFailure::NotApplied(shard, error) => TransactionError::NotApplied { shard, error },
            RequestFailure::Unknown(shard, trouble) => TransactionError::Unknown { shard, trouble },
            RequestFailure::NoReplies(shard) => TransactionError::NoReplies { shard },
        }
    }
}
