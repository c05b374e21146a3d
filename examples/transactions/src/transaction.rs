//! Transactions, and their results.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Key, Placement, ShardId, Value};

/// Operations on any keys of any shards that take effect at one [`Moment`].
///
/// ```
/// use squall_transactions::{Condition, Transaction};
///
/// let transfer = Transaction::new().add("alice", -5).add("bob", 5);
/// let both = Transaction::new().get("alice").get("bob");
/// // The two keys are in one shard, so the condition guards both writes.
/// let booking = Transaction::new()
///     .check("{room 7}/guest", Condition::Absent)
///     .put("{room 7}/guest", "eve")
///     .add("{room 7}/nights", 3);
/// ```
///
/// Operations on keys of one shard are carried out in the order given, each on the result of the one before. Operations
/// on different shards don't see each other.
///
/// # What conditions guard
///
/// All parts of a transaction are sent at once, and no shard waits for another's decision. A
/// [`check`](Transaction::check) therefore guards the operations **of its own key's shard**, and nothing else. If it
/// does not hold, no write of that shard is carried out, and those of other shards are. Keys that a condition has to
/// guard together belong into one shard: give their names the same [part in braces](Placement::shard_of).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    operations: Vec<Operation>,
}

/// One step of a [`Transaction`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Reads a key: [`Reply::Value`].
    Get(Key),
    /// Gives a key a value, whether or not it had one.
    Put(Key, Value),
    /// Removes a key, if it is there.
    Delete(Key),
    /// Adds to a number; a key that is not there counts as 0. Refused if the key holds bytes, or the sum does not fit
    /// into 64 bits.
    Add(Key, i64),
    /// Guards the writes of the key's shard. They are carried out only if the condition held before the transaction.
    Check(Key, Condition),
}

/// A condition on a key's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// The key is not there.
    Absent,
    /// The key has a value.
    Present,
    /// The key has this value.
    Equals(Value),
    /// The key's value is a number, and at least this; a key that is not there counts as 0.
    AtLeast(i64),
}

/// The result of one [`Operation`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The value that a get has found.
    Value(Option<Value>),
    /// The put or delete was carried out.
    Done,
    /// The add was carried out, with this sum.
    Sum(i64),
    /// Whether the condition held.
    Held(bool),
    /// The add could not be carried out, so no write of its shard was.
    Refused,
    /// A write that was not carried out: a condition of its shard did not hold, or an add was refused.
    Skipped,
}

/// A transaction's place in the one order of all transactions: by time stamp, ties by sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Moment {
    /// The time stamp, in nanoseconds of its sender's clock.
    pub stamp: u64,
    /// The rank of the client.
    pub sender: usize,
}

/// The effect of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The moment at which all its operations took effect.
    pub at: Moment,
    /// One for each operation, in their order.
    pub replies: Vec<Reply>,
}

/// The reason why a transaction has no [`Outcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum TransactionError {
    /// A recall, since a replica that it concerned has failed. It had no effect anywhere.
    #[error("recalled after a failure, and without any effect: submit it again")]
    Aborted,
    /// A shard whose replicas have all failed before they all answered.
    #[error("all replicas of {0} have failed: whether the transaction took effect is not known")]
    Lost(ShardId),
    /// The other members have removed this one.
    #[error("the other members have gone on without this one: whether the transaction took effect is not known")]
    Ended,
}

impl Transaction {
    /// A transaction without operations.
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// Reads a key.
    #[must_use]
    pub fn get(self, key: impl Into<Key>) -> Transaction {
        self.then(Operation::Get(key.into()))
    }

    /// Gives a key a value.
    #[must_use]
    pub fn put(self, key: impl Into<Key>, value: impl Into<Value>) -> Transaction {
        self.then(Operation::Put(key.into(), value.into()))
    }

    /// Removes a key.
    #[must_use]
    pub fn delete(self, key: impl Into<Key>) -> Transaction {
        self.then(Operation::Delete(key.into()))
    }

    /// Adds to a number.
    #[must_use]
    pub fn add(self, key: impl Into<Key>, amount: i64) -> Transaction {
        self.then(Operation::Add(key.into(), amount))
    }

    /// Guards the writes of the key's shard, and [only those](Transaction#what-conditions-guard).
    #[must_use]
    pub fn check(self, key: impl Into<Key>, condition: Condition) -> Transaction {
        self.then(Operation::Check(key.into(), condition))
    }

    fn then(mut self, operation: Operation) -> Transaction {
        self.operations.push(operation);
        self
    }

    /// The operations, in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The shards that it concerns, each with the places of its operations.
    pub(crate) fn parts(&self, placement: &Placement) -> Vec<(ShardId, Vec<usize>)> {
        let mut parts: Vec<(ShardId, Vec<usize>)> = Vec::new();
        for (at, operation) in self.operations.iter().enumerate() {
            let shard = placement.shard_of(operation.key());
            match parts.iter_mut().find(|(of, _)| *of == shard) {
                Some((_, operations)) => operations.push(at),
                None => parts.push((shard, vec![at])),
            }
        }
        parts
    }
}

impl FromIterator<Operation> for Transaction {
    fn from_iter<I: IntoIterator<Item = Operation>>(operations: I) -> Transaction {
        Transaction { operations: operations.into_iter().collect() }
    }
}

impl Operation {
    /// The key of the operation.
    pub fn key(&self) -> &Key {
        match self {
            Operation::Get(key)
            | Operation::Put(key, _)
            | Operation::Delete(key)
            | Operation::Add(key, _)
            | Operation::Check(key, _) => key,
        }
    }
}

impl Condition {
    /// Whether the condition holds for a key's value.
    pub(crate) fn holds(&self, value: Option<&Value>) -> bool {
        match (self, value) {
            (Condition::Absent, value) => value.is_none(),
            (Condition::Present, value) => value.is_some(),
            (Condition::Equals(expected), value) => value == Some(expected),
            (Condition::AtLeast(least), None) => *least <= 0,
            (Condition::AtLeast(least), Some(Value::Number(number))) => number >= least,
            (Condition::AtLeast(_), Some(Value::Bytes(_))) => false,
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns of rank {}", self.stamp, self.sender)
    }
}
