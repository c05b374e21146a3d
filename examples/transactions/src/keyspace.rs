//! The keys of one shard, and the meaning of a transaction on them when it runs alone.

use std::{collections::BTreeMap, mem};

use serde::{Deserialize, Serialize};

use crate::{Key, Operation, Placement, Reply, Transaction, Value};

/// Keys and their values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Keyspace {
    values: BTreeMap<Key, Value>,
}

impl Keyspace {
    fn get(&self, key: &Key) -> Option<&Value> {
        self.values.get(key)
    }

    /// Carries out a whole transaction, as if all keys were here. This defines its meaning when no other is under way.
    pub fn apply(&mut self, transaction: &Transaction, placement: &Placement) -> Vec<Reply> {
        let operations = transaction.operations();
        let mut replies = vec![Reply::Skipped; operations.len()];
        for (_, part) in transaction.parts(placement) {
            let of_part: Vec<_> = part.iter().map(|&at| operations[at].clone()).collect();
            for (at, reply) in part.into_iter().zip(self.execute(&of_part)) {
                replies[at] = reply;
            }
        }
        replies
    }

    /// Carries out the operations of a transaction on one shard, or only its reads if its conditions don't hold.
    /// Returns a reply for each.
    pub(crate) fn execute(&mut self, operations: &[Operation]) -> Vec<Reply> {
        let holds = operations.iter().all(|operation| match operation {
            Operation::Check(key, condition) => condition.holds(self.get(key)),
            _ => true,
        });
        let refused = match holds.then(|| self.run(operations)) {
            Some(Ok(replies)) => return replies,
            Some(Err(refused)) => Some(refused),
            None => None,
        };
        let unchanged = |(at, operation): (usize, &Operation)| match operation {
            Operation::Get(key) => Reply::Value(self.get(key).cloned()),
            Operation::Check(key, condition) => Reply::Held(condition.holds(self.get(key))),
            _ if refused == Some(at) => Reply::Refused,
            _ => Reply::Skipped,
        };
        operations.iter().enumerate().map(unchanged).collect()
    }

    /// Carries out all operations. If an add cannot be carried out, it carries out none, and returns that add's place.
    fn run(&mut self, operations: &[Operation]) -> Result<Vec<Reply>, usize> {
        let mut replies = Vec::with_capacity(operations.len());
        let mut before: Vec<(&Key, Option<Value>)> = Vec::new();
        for (at, operation) in operations.iter().enumerate() {
            let (value, reply) = match operation {
                Operation::Get(key) => {
                    replies.push(Reply::Value(self.get(key).cloned()));
                    continue;
                }
                Operation::Check(..) => {
                    replies.push(Reply::Held(true));
                    continue;
                }
                Operation::Put(_, value) => (Some(value.clone()), Reply::Done),
                Operation::Delete(_) => (None, Reply::Done),
                Operation::Add(key, amount) => match self.sum(key, *amount) {
                    Some(sum) => (Some(Value::Number(sum)), Reply::Sum(sum)),
                    None => {
                        for (key, value) in before.into_iter().rev() {
                            self.replace(key, value);
                        }
                        return Err(at);
                    }
                },
            };
            before.push((operation.key(), self.replace(operation.key(), value)));
            replies.push(reply);
        }
        Ok(replies)
    }

    fn sum(&self, key: &Key, amount: i64) -> Option<i64> {
        match self.get(key) {
            None => Some(amount),
            Some(Value::Number(number)) => number.checked_add(amount),
            Some(Value::Bytes(_)) => None,
        }
    }

    /// Gives a key a value, or removes it. Returns its old value.
    fn replace(&mut self, key: &Key, value: Option<Value>) -> Option<Value> {
        match (value, self.values.get_mut(key)) {
            (Some(value), Some(place)) => Some(mem::replace(place, value)),
            (Some(value), None) => self.values.insert(key.clone(), value),
            (None, _) => self.values.remove(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Condition;

    fn run(keyspace: &mut Keyspace, transaction: Transaction) -> Vec<Reply> {
        keyspace.execute(transaction.operations())
    }

    fn found(value: impl Into<Value>) -> Reply {
        Reply::Value(Some(value.into()))
    }

    #[test]
    fn each_operation_sees_what_the_one_before_has_left() {
        let mut keyspace = Keyspace::default();
        let transaction = Transaction::new().get("a").put("a", 2).add("a", 3).get("a").delete("a").get("a").add("a", 1);
        let replies = run(&mut keyspace, transaction);
        let none = Reply::Value(None);
        assert_eq!(replies, [none.clone(), Reply::Done, Reply::Sum(5), found(5), Reply::Done, none, Reply::Sum(1)]);
        assert_eq!(keyspace.get(&"a".into()), Some(&Value::Number(1)));
    }

    #[test]
    fn conditions_are_about_what_was_there_before() {
        let mut keyspace = Keyspace::default();
        let booking = |guest| Transaction::new().put("guest", guest).check("guest", Condition::Absent).add("nights", 3);
        assert_eq!(run(&mut keyspace, booking("eve")), [Reply::Done, Reply::Held(true), Reply::Sum(3)]);
        assert_eq!(run(&mut keyspace, booking("bob")), [Reply::Skipped, Reply::Held(false), Reply::Skipped]);
        assert_eq!(run(&mut keyspace, Transaction::new().get("guest").get("nights")), [found("eve"), found(3)]);
    }

    #[test]
    fn conditions_hold_for_what_they_say() {
        let (number, bytes) = (Value::Number(5), Value::from("five"));
        let cases = [
            (Condition::Absent, [true, false, false]),
            (Condition::Present, [false, true, true]),
            (Condition::Equals(number.clone()), [false, true, false]),
            (Condition::AtLeast(0), [true, true, false]),
            (Condition::AtLeast(5), [false, true, false]),
            (Condition::AtLeast(6), [false, false, false]),
        ];
        for (condition, holds) in cases {
            let values = [None, Some(&number), Some(&bytes)];
            assert_eq!(values.map(|value| condition.holds(value)), holds, "{condition:?}");
        }
    }

    #[test]
    fn a_refused_add_leaves_nothing_behind() {
        let mut keyspace = Keyspace::default();
        run(&mut keyspace, Transaction::new().put("full", i64::MAX).put("text", "x").put("old", 1));
        let before = keyspace.clone();
        for target in ["full", "text"] {
            let transaction = Transaction::new().put("new", 1).delete("old").put("old", 9).add(target, 1).get("old");
            let skipped = Reply::Skipped;
            let expected = [skipped.clone(), skipped.clone(), skipped, Reply::Refused, found(1)];
            assert_eq!(run(&mut keyspace, transaction), expected);
            assert_eq!(keyspace, before);
        }
    }
}
