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

impl Record {
    /// The replies, if the client was told.
    pub fn replies(&self) -> Option<&[Reply]> {
        match &self.seen {
            KnownOutcome::Committed(outcome) => Some(&outcome.replies),
            KnownOutcome::Aborted | KnownOutcome::Unknown => None,
        }
    }
}

/// A client's knowledge of a transaction's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KnownOutcome {
    /// An outcome that took effect.
    Committed(Outcome),
    /// A recall.
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

/// The effect of one transaction: what the replicas of each shard have carried out, which is the same at all of them,
/// and the members that have.
type Effect = BTreeMap<ShardId, (Execution, BTreeSet<usize>)>;

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
        for execution in executions {
            let Execution { at, number, shard, .. } = execution;
            match last.insert(shard, at) {
                Some(later) if later >= at => return Err(Violation::OutOfOrder { shard, earlier: at, later }),
                _ => {}
            }
            let effect = self.effects.entry(at).or_default();
            let is_same = |(other, _): &(Execution, _)| (other.number, &other.shards) == (number, &execution.shards);
            let is_known = effect.values().all(is_same);
            let (done, by) = effect.entry(shard).or_insert_with(|| (execution.clone(), BTreeSet::new()));
            if !is_known || *done != execution {
                return Err(Violation::Torn { shard, at });
            }
            by.insert(member);
            let first = *self.moments.entry((at.sender, number)).or_insert(at);
            if first != at {
                return Err(Violation::Twice { first, second: at });
            }
        }
        Ok(())
    }

    /// All transactions of which it is not certain that they had no effect, each with the moment at which it took
    /// effect, by the store's own order. That is `None` if no replica that was looked at has carried it out.
    ///
    /// A client that has failed leaves no records. Its transactions that took effect have records of an unknown end,
    /// submitted at the time 0.
    pub fn entries(&self) -> Vec<(Cow<'_, Record>, Option<Moment>)> {
        let mut unclaimed = self.moments.clone();
        let mut entries = Vec::with_capacity(self.records.len());
        for record in &self.records {
            let effect = unclaimed.remove(&(record.client, record.number));
            let at = match &record.seen {
                KnownOutcome::Committed(outcome) => Some(outcome.at),
                KnownOutcome::Unknown => effect,
                KnownOutcome::Aborted => continue,
            };
            entries.push((Cow::Borrowed(record), at));
        }
        for ((client, number), at) in unclaimed {
            let transaction = self.effects[&at].values().flat_map(|(done, _)| done.operations.clone()).collect();
            let (submitted, ended, seen) = (0, u64::MAX, KnownOutcome::Unknown);
            entries.push((Cow::Owned(Record { client, number, submitted, ended, transaction, seen }), Some(at)));
        }
        entries
    }

    /// Checks that the order of moments explains all that clients saw and replicas did.
    pub fn check(&self) -> Result<Checked, Violation> {
        let aborted = self.check_aborted()?;
        let mut entries: Vec<_> = self.entries().into_iter().filter_map(|(record, at)| Some((at?, record))).collect();
        entries.sort_by_key(|(at, _)| *at);
        let mut checked = Checked { aborted, ..Checked::default() };
        let mut keyspace = Keyspace::default();
        let mut last = None;
        // The latest submission among the transactions that took effect before, with its moment.
        let mut newest: Option<(u64, Moment)> = None;
        for (at, record) in entries {
            if last.replace(at) == Some(at) {
                return Err(Violation::SameMoment(at));
            }
            match newest {
                Some((submitted, by)) if record.ended < submitted => {
                    return Err(Violation::AgainstTime { ended: at, submitted: by });
                }
                _ => newest = newest.max(Some((record.submitted, at))),
            }
            let expected = keyspace.apply(&record.transaction, &self.placement);
            match record.replies() {
                Some(told) => compare(at, record.transaction.operations(), told, &expected)?,
                None => checked.untold += 1,
            }
            self.check_effect(at, &record, &expected)?;
            checked.committed += usize::from(record.replies().is_some());
        }
        Ok(checked)
    }

    /// Checks that all replicas that were looked at have carried out their parts of a transaction, at that moment and
    /// with the replies of its replay.
    fn check_effect(&self, at: Moment, record: &Record, expected: &[Reply]) -> Result<(), Violation> {
        let executions = self.effects.get(&at).into_iter().flat_map(BTreeMap::values);
        let effect: Vec<_> = executions.filter(|(done, _)| done.number == record.number).collect();
        let parts: BTreeMap<ShardId, Vec<usize>> = record.transaction.parts(&self.placement).into_iter().collect();
        let carried_out = effect.iter().flat_map(|(done, _)| done.shards.iter().chain([&done.shard]));
        let shards: BTreeSet<ShardId> = parts.keys().chain(carried_out).copied().collect();
        for shard in shards {
            let part = parts.get(&shard).map_or(&[][..], Vec::as_slice);
            let asked = part.iter().map(|&place| &record.transaction.operations()[place]);
            let done = effect.iter().find(|(done, _)| done.shard == shard && done.operations.iter().eq(asked.clone()));
            let mut replicas = self.placement.replicas_of(shard).filter(|replica| self.learnt.contains(replica));
            if let Some(member) = replicas.find(|replica| done.is_none_or(|(_, by)| !by.contains(replica))) {
                return Err(Violation::Partial { at, shard, member });
            }
            if let Some((done, _)) = done {
                let expected: Vec<Reply> = part.iter().map(|&place| expected[place].clone()).collect();
                compare(at, &done.operations, &done.replies, &expected)?;
            }
        }
        Ok(())
    }

    /// The number of recalled transactions. It is an error if a replica has carried one out.
    fn check_aborted(&self) -> Result<usize, Violation> {
        let aborted = self.records.iter().filter(|record| record.seen == KnownOutcome::Aborted);
        let effect = |record: &Record| self.moments.get(&(record.client, record.number));
        aborted.map(|record| effect(record).map_or(Ok(1), |&at| Err(Violation::Recalled(at)))).sum()
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
