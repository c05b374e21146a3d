//! A check that a history is strictly serializable: that one order of the transactions explains all that clients saw.
//! In that order, no transaction precedes one that had ended when it was submitted.
//!
//! The order is the store's own, that of [`Moment`]s. [`History::check`] carries all transactions out again in this
//! order, on one [`Keyspace`], and compares. The package's tests also search for any such order without being told one.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use serde::{Deserialize, Serialize};

use crate::{Execution, Keyspace, Moment, Operation, Outcome, Placement, Reply, ShardId, Transaction};

/// A transaction, as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The client's rank.
    pub client: usize,
    /// The transaction's number at its client.
    pub number: u64,
    /// The time of submission, on a clock that all clients share, in any unit.
    pub submitted: u64,
    /// The time of the end, on the same clock; [`u64::MAX`] if that is not known.
    pub ended: u64,
    /// The operations.
    pub transaction: Transaction,
    /// The result, as far as the client knows it.
    pub seen: KnownOutcome,
}

/// A client's knowledge of a transaction's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KnownOutcome {
    /// It took effect.
    Committed(Outcome),
    /// It was recalled.
    Aborted,
    /// Its end is not known.
    Unknown,
}

/// All transactions of a run.
#[derive(Clone, Debug)]
pub struct History {
    placement: Placement,
    records: Vec<Record>,
    /// The members whose executions were added.
    learnt: BTreeSet<usize>,
    /// The effects that their replicas have carried out.
    effects: BTreeMap<Moment, Effect>,
    /// The moment of each effect, by client and number.
    moments: HashMap<(usize, u64), Moment>,
}

/// The effect of a transaction, as the replicas report it.
#[derive(Clone, Debug)]
struct Effect {
    number: u64,
    /// The shards that it concerns.
    shards: Vec<ShardId>,
    parts: BTreeMap<ShardId, Done>,
}

/// The part that the replicas of one shard have carried out; the same at all of them.
#[derive(Clone, Debug)]
struct Done {
    operations: Vec<Operation>,
    replies: Vec<Reply>,
    by: BTreeSet<usize>,
}

/// A transaction of which it is not certain that it had no effect.
#[derive(Clone, Debug)]
pub struct HistoryEntry<'a> {
    /// The client's rank.
    pub client: usize,
    /// The transaction's number at its client.
    pub number: u64,
    /// The time of submission; 0 if that is not known.
    pub submitted: u64,
    /// The time of the end, or [`u64::MAX`].
    pub ended: u64,
    /// The operations.
    pub transaction: Cow<'a, Transaction>,
    /// The replies, if the client was told.
    pub replies: Option<&'a [Reply]>,
    /// The moment at which it took effect, by the store's own order. `None` if no replica that was looked at has
    /// carried it out.
    pub at: Option<Moment>,
}

/// The counts of a history that was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// The transactions that took effect and whose clients were told so.
    pub committed: usize,
    /// The transactions that took effect without their clients being told.
    pub untold: usize,
    /// The transactions that were recalled.
    pub aborted: usize,
}

/// A reason for which a history is not strictly serializable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Two transactions took effect at one moment.
    #[error("two transactions took effect at {0}")]
    SameMoment(Moment),
    /// A replica did not keep to the order.
    #[error("a replica of {shard} carried out the transaction at {later} before that at {earlier}")]
    OutOfOrder {
        /// The shard.
        shard: ShardId,
        /// The moment of the transaction that it carried out second.
        earlier: Moment,
        /// The moment of the transaction that it carried out first.
        later: Moment,
    },
    /// Two replicas of a shard differ.
    #[error("replicas of {shard} were told, or have answered, different things for the transaction at {at}")]
    Torn {
        /// The shard.
        shard: ShardId,
        /// The transaction's moment.
        at: Moment,
    },
    /// One transaction took effect twice.
    #[error("the transaction at {first} was carried out at {second} too")]
    Twice {
        /// The one moment.
        first: Moment,
        /// The other one.
        second: Moment,
    },
    /// A transaction took effect only in part.
    #[error("member {member} has not carried out what {shard} was asked for by the transaction at {at}")]
    Partial {
        /// The transaction's moment.
        at: Moment,
        /// The shard.
        shard: ShardId,
        /// A member with a replica of the shard.
        member: usize,
    },
    /// A client was told that a transaction had no effect, but it had one.
    #[error("the transaction at {0} was recalled, and took effect")]
    Recalled(Moment),
    /// The order contradicts time.
    #[error(
        "the transaction at {ended} was over before the one at {submitted} was submitted, and takes effect after it"
    )]
    AgainstTime {
        /// The moment of the transaction that was over.
        ended: Moment,
        /// The moment of the transaction that was submitted afterwards.
        submitted: Moment,
    },
    /// A client was told, or a replica has answered, something that the order does not explain.
    #[error("at {at}, {operation:?} was answered {told:?}, which would have to be {expected:?}")]
    Reply {
        /// The transaction's moment.
        at: Moment,
        /// The operation of the transaction.
        operation: Operation,
        /// The reply that was given.
        told: Option<Reply>,
        /// The reply that comes out if all transactions are carried out one after the other.
        expected: Reply,
    },
}

impl History {
    /// A history without transactions, of a store that is empty at first.
    pub fn new(placement: Placement) -> History {
        let (effects, moments) = (BTreeMap::new(), HashMap::new());
        History { placement, records: Vec::new(), learnt: BTreeSet::new(), effects, moments }
    }

    /// Adds a transaction as its client saw it.
    pub fn record(&mut self, record: Record) {
        self.records.push(record);
    }

    /// Adds what the member with this rank has [carried out](crate::Store::take_executions): all of it, in its order,
    /// once it has nothing more to carry out. This shows which transactions without a known end took effect, and
    /// whether the others took effect as their clients were told.
    ///
    /// Add only members that have not failed. What a failed member carried out is undone if no other member carried it
    /// out.
    pub fn learn(&mut self, member: usize, executions: impl IntoIterator<Item = Execution>) -> Result<(), Violation> {
        self.learnt.insert(member);
        let mut last: HashMap<ShardId, Moment> = HashMap::new();
        for Execution { at, number, shard, shards, operations, replies } in executions {
            match last.insert(shard, at) {
                Some(later) if later >= at => return Err(Violation::OutOfOrder { shard, earlier: at, later }),
                _ => {}
            }
            let effect = self.effects.entry(at).or_insert_with(|| Effect {
                number,
                shards: shards.clone(),
                parts: BTreeMap::new(),
            });
            let is_known = (effect.number, &effect.shards) == (number, &shards);
            let done = effect.parts.entry(shard).or_insert_with(|| Done {
                operations: operations.clone(),
                replies: replies.clone(),
                by: BTreeSet::new(),
            });
            if !is_known || (&done.operations, &done.replies) != (&operations, &replies) {
                return Err(Violation::Torn { shard, at });
            }
            done.by.insert(member);
            let first = *self.moments.entry((at.sender, number)).or_insert(at);
            if first != at {
                return Err(Violation::Twice { first, second: at });
            }
        }
        Ok(())
    }

    /// All transactions that may have had an effect.
    pub fn entries(&self) -> Vec<HistoryEntry<'_>> {
        let mut unclaimed = self.moments.clone();
        let mut entries = Vec::with_capacity(self.records.len());
        for record in &self.records {
            let effect = unclaimed.remove(&(record.client, record.number));
            let (ended, replies, at) = match &record.seen {
                KnownOutcome::Committed(outcome) => (record.ended, Some(&outcome.replies[..]), Some(outcome.at)),
                KnownOutcome::Unknown => (u64::MAX, None, effect),
                KnownOutcome::Aborted => continue,
            };
            let (client, number, submitted) = (record.client, record.number, record.submitted);
            let transaction = Cow::Borrowed(&record.transaction);
            entries.push(HistoryEntry { client, number, submitted, ended, transaction, replies, at });
        }
        // Transactions whose records are missing, since their clients have failed.
        for ((client, number), at) in unclaimed {
            let operations = self.effects[&at].parts.values().flat_map(|done| &done.operations);
            let (transaction, at) = (Cow::Owned(operations.cloned().collect()), Some(at));
            entries.push(HistoryEntry {
                client,
                number,
                submitted: 0,
                ended: u64::MAX,
                transaction,
                replies: None,
                at,
            });
        }
        entries
    }

    /// Checks that the order of moments explains all that clients saw and replicas did.
    pub fn check(&self) -> Result<Checked, Violation> {
        let aborted = self.check_aborted()?;
        let mut entries: Vec<_> = self.entries().into_iter().filter_map(|entry| Some((entry.at?, entry))).collect();
        entries.sort_by_key(|(at, _)| *at);
        let mut checked = Checked { aborted, ..Checked::default() };
        let mut keyspace = Keyspace::default();
        let mut last = None;
        // The latest submission among the transactions that took effect before, with its moment.
        let mut newest: Option<(u64, Moment)> = None;
        for (at, entry) in entries {
            if last.replace(at) == Some(at) {
                return Err(Violation::SameMoment(at));
            }
            match newest {
                Some((submitted, by)) if entry.ended < submitted => {
                    return Err(Violation::AgainstTime { ended: at, submitted: by });
                }
                _ => newest = newest.max(Some((entry.submitted, at))),
            }
            let expected = keyspace.apply(&entry.transaction, &self.placement);
            match entry.replies {
                Some(told) => compare(at, entry.transaction.operations(), told, &expected)?,
                None => checked.untold += 1,
            }
            self.check_effect(at, &entry, &expected)?;
            checked.committed += usize::from(entry.replies.is_some());
        }
        Ok(checked)
    }

    /// Checks that all replicas that were looked at have carried out their parts of a transaction, at that moment and
    /// with the replies of its replay.
    fn check_effect(&self, at: Moment, entry: &HistoryEntry<'_>, expected: &[Reply]) -> Result<(), Violation> {
        let effect = self.effects.get(&at).filter(|effect| effect.number == entry.number);
        let parts: BTreeMap<ShardId, Vec<usize>> = entry.transaction.parts(&self.placement).into_iter().collect();
        let carried_out = effect.into_iter().flat_map(|effect| effect.shards.iter().chain(effect.parts.keys()));
        let shards: BTreeSet<ShardId> = parts.keys().chain(carried_out).copied().collect();
        for shard in shards {
            let part = parts.get(&shard).map_or(&[][..], Vec::as_slice);
            let asked = part.iter().map(|&place| &entry.transaction.operations()[place]);
            let done = effect.and_then(|effect| effect.parts.get(&shard));
            let done = done.filter(|done| done.operations.iter().eq(asked));
            let mut replicas = self.placement.replicas_of(shard).filter(|replica| self.learnt.contains(replica));
            if let Some(member) = replicas.find(|replica| done.is_none_or(|done| !done.by.contains(replica))) {
                return Err(Violation::Partial { at, shard, member });
            }
            if let Some(done) = done {
                let expected: Vec<Reply> = part.iter().map(|&place| expected[place].clone()).collect();
                compare(at, &done.operations, &done.replies, &expected)?;
            }
        }
        Ok(())
    }

    /// The number of recalled transactions. It is an error if a replica has carried one out.
    fn check_aborted(&self) -> Result<usize, Violation> {
        let aborted = self.records.iter().filter(|record| record.seen == KnownOutcome::Aborted);
        aborted
            .map(|record| match self.moments.get(&(record.client, record.number)) {
                Some(&at) => Err(Violation::Recalled(at)),
                None => Ok(1),
            })
            .sum()
    }
}

fn compare(at: Moment, operations: &[Operation], told: &[Reply], expected: &[Reply]) -> Result<(), Violation> {
    for (index, (operation, expected)) in operations.iter().zip(expected).enumerate() {
        let told = told.get(index);
        if told != Some(expected) {
            let (operation, expected) = (operation.clone(), expected.clone());
            return Err(Violation::Reply { at, operation, told: told.cloned(), expected });
        }
    }
    Ok(())
}
