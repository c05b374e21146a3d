//! The commands, replies, queries and answers of replicas that take part in transactions.

use rkyv::{Archive, Deserialize, Serialize};

/// The identity of one attempt at a transaction.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId {
    /// The random number of its coordinator.
    pub coordinator: u128,
    /// The coordinator's number of the attempt.
    pub number: u64,
}

/// A transaction, as far as all of its shards must know it: enough for anyone to end it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Its identity.
    pub id: TransactionId,
    /// The shards that take part, in ascending order.
    pub shards: Vec<u32>,
    /// The group's time, in nanoseconds since 1970, after which no shard prepares it any more.
    pub expires: u64,
}

/// A transaction that stands in the way of another.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The transaction.
    pub scope: Scope,
    /// The time for which it has been prepared in this shard, in nanoseconds.
    pub age: u64,
}

/// A command of a [`Transactional`](super::Transactional) replica. The service's commands are in it as bytes, since a
/// prepared transaction keeps them.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum TransactionCommand {
    /// Commands of this shard alone, which are applied at once.
    Apply(Vec<Vec<u8>>),
    /// A shard's part of a transaction, on which the shard votes.
    Prepare {
        /// The transaction.
        scope: Scope,
        /// The part's commands.
        commands: Vec<Vec<u8>>,
    },
    /// The outcome of a transaction, as it follows from the votes.
    Decide {
        /// The transaction.
        id: TransactionId,
        /// Whether all shards have voted for it.
        commits: bool,
    },
    /// The question for the shard's vote. A shard that has none votes against the transaction.
    Settle(Scope),
    /// Transactions that took effect in all of their shards, so that nobody asks for them any more.
    Forget {
        /// The transactions.
        ids: Vec<TransactionId>,
        /// Whether their coordinator says so. Another may have them forgotten only when they have expired.
        by_coordinator: bool,
    },
}

/// A reply of a [`Transactional`](super::Transactional) replica.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum TransactionReply {
    /// The commands were applied, now or before, with these replies.
    Applied(Vec<Vec<u8>>),
    /// The shard has voted for the transaction.
    Prepared,
    /// The commands are not applied; of a transaction: the shard has voted against it.
    Refused(Refusal),
    /// The message is carried out.
    Done,
    /// The transaction has expired, and the shard knows nothing of it.
    Gone,
    /// The shard has carried the transaction out before. Its outcome is answered with the replies.
    Committed,
}

/// A reason for which a shard does not apply commands.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The service refuses the command at this place of the part, with this reply.
    Service {
        /// The place.
        command: u32,
        /// The service's reply.
        reply: Vec<u8>,
    },
    /// Another transaction has locked one of its keys.
    Busy(Holder),
    /// Another client has ended the transaction before it was prepared here.
    Settled,
    /// The transaction came after it had expired, or expires too far in the future, by the shard's time.
    Expired {
        /// The shard's time, in nanoseconds since 1970.
        time: u64,
    },
    /// The command at this place of the part uses a key that an earlier one of the part writes.
    Overlap {
        /// The place.
        command: u32,
    },
    /// The shard has as many transactions in its memory as it may.
    Full,
    /// The bytes are no command of the service, or the transaction's shards are none of which this is one.
    Invalid,
}

/// A query of a [`Transactional`](super::Transactional) replica.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum TransactionQuery {
    /// A query of the service.
    Ask {
        /// The query.
        query: Vec<u8>,
        /// Whether it is answered although a transaction has locked what it reads.
        ignores_locks: bool,
    },
    /// The question for transactions that somebody should end.
    Stale {
        /// A random number, which says where to begin if there are too many for one answer.
        start: u64,
    },
}

/// An answer of a [`Transactional`](super::Transactional) replica.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum TransactionAnswer {
    /// The service's answer.
    Answered(Vec<u8>),
    /// A transaction has locked what the query reads.
    Busy(Holder),
    /// The bytes are no query of the service.
    Invalid,
    /// Transactions whose locks are old, and some that were carried out here and have expired.
    Stale(Vec<Scope>),
}
