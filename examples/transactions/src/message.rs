//! The messages of members.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{Operation, Reply, ShardId, Value};

/// The head of a request. The parts of all shards of which the receiver has a copy follow.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RequestHeader {
    /// The transaction's number at its client.
    pub(crate) number: u64,
    /// All shards that the transaction concerns, so that each replica knows the whole of it.
    pub(crate) shards: Vec<ShardId>,
}

/// The part of a transaction that concerns one shard.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TransactionPart<T> {
    pub(crate) shard: ShardId,
    /// Operations on the way to a shard; replies on the way back.
    pub(crate) items: Vec<T>,
}

/// A member's answer to a transaction that it has carried out. A message may hold several, one after the other.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TransactionAnswer {
    pub(crate) number: u64,
    /// The transaction's time stamp.
    pub(crate) stamp: u64,
    pub(crate) parts: Vec<TransactionPart<Reply>>,
}

/// The most bytes that an operation or reply takes besides a key and a value.
const ITEM_BYTES: usize = 16;

/// The most bytes around the items of one shard, and around a whole answer.
const PART_BYTES: usize = 16;
const ANSWER_BYTES: usize = 32;

/// The most bytes that the answer to these operations takes, if no value is longer than `value_bytes`.
pub(crate) fn answer_bytes(operations: &[Operation], value_bytes: usize) -> usize {
    let reply_bytes = |operation: &Operation| match operation {
        Operation::Get(_) => ITEM_BYTES + value_bytes,
        _ => ITEM_BYTES,
    };
    // Each operation may be on another shard.
    ANSWER_BYTES + operations.iter().map(|operation| PART_BYTES + reply_bytes(operation)).sum::<usize>()
}

/// The longest value that an operation has in it, in bytes.
pub(crate) fn longest_value(operations: &[Operation]) -> usize {
    let length = |operation: &Operation| match operation {
        Operation::Put(_, value) => Value::len(value),
        _ => 0,
    };
    operations.iter().map(length).max().unwrap_or(0)
}

/// Appends a part to a message.
pub(crate) fn append<T: Serialize>(thing: &T, to: Vec<u8>) -> Vec<u8> {
    match postcard::to_extend(thing, to) {
        Ok(message) => message,
        Err(error) => unreachable!("plain data in memory that grows: {error}"),
    }
}

/// Takes the first part off a message. `None` if there is none, or it is garbled.
pub(crate) fn take<T: DeserializeOwned>(from: &mut &[u8]) -> Option<T> {
    let (thing, rest) = postcard::take_from_bytes(from).ok()?;
    *from = rest;
    Some(thing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Transaction;

    #[test]
    fn things_follow_each_other_in_a_message() {
        let parts =
            [0, 7].map(|shard| TransactionPart { shard: ShardId(shard), items: vec![Reply::Sum(-1), Reply::Done] });
        let message = parts.iter().fold(Vec::new(), |message, part| append(part, message));
        let mut rest = &message[..];
        for part in parts {
            assert_eq!(take(&mut rest), Some(part));
        }
        assert_eq!(take::<TransactionPart<Reply>>(&mut rest), None);
        assert_eq!(take::<TransactionPart<Reply>>(&mut &message[..3]), None, "it is cut off");
    }

    #[test]
    fn no_answer_is_longer_than_was_foreseen() {
        let long = Value::from(vec![0; 1000]);
        let replies = [Reply::Value(Some(long)), Reply::Sum(i64::MIN), Reply::Held(true)];
        let asked = Transaction::new().get("a").add("a", 1).check("a", crate::Condition::Present);
        let part = |reply: &Reply| TransactionPart { shard: ShardId(u32::MAX), items: vec![reply.clone()] };
        let answer = TransactionAnswer { number: u64::MAX, stamp: u64::MAX, parts: replies.iter().map(part).collect() };
        assert!(append(&answer, Vec::new()).len() <= answer_bytes(asked.operations(), 1000));
    }
}
