//! Whether what clients saw is strictly serializable: could have come from one transaction after the other, in an order in
//! which none is before one that had ended when it was submitted.
//!
//! The store itself says which order that is: that of [`Moment`]s. [`History::check`] carries all transactions out again in
//! this order, on one [`Keyspace`], and compares. The package's tests also look for any such order without being told one.

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
    /// The transaction's number there.
    pub number: u64,
    /// When it was submitted, on a clock that all clients share, in any unit.
    pub submitted: u64,
    /// When it was over, on the same clock; [`u64::MAX`] if that is not known.
    pub ended: u64,
    /// What was asked for.
    pub transaction: Transaction,
    /// What came of it.
    pub seen: Seen,
}

/// What a client knows of a transaction at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seen {
    /// It took effect.
    Committed(Outcome),
    /// It was recalled.
    Aborted,
    /// Nothing.
    Unknown,
}

/// All transactions of a run.
#[derive(Clone, Debug)]
pub struct History {
    placement: Placement,
    records: Vec<Record>,
    /// The members that were looked at.
    learnt: BTreeSet<usize>,
    /// What their replicas have carried out.
    effects: BTreeMap<Moment, Effect>,
    /// When that was, by client and number.
    moments: HashMap<(usize, u64), Moment>,
}

/// What is known of a transaction from the replicas.
#[derive(Clone, Debug)]
struct Effect {
    number: u64,
    /// Those that it concerns.
    shards: Vec<ShardId>,
    parts: BTreeMap<ShardId, Done>,
}

/// What replicas of one shard have carried out, all the same.
#[derive(Clone, Debug)]
struct Done {
    operations: Vec<Operation>,
    replies: Vec<Reply>,
    by: BTreeSet<usize>,
}

/// A transaction of which it is not certain that it had no effect.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// The client's rank.
    pub client: usize,
    /// The transaction's number there.
    pub number: u64,
    /// When it was submitted; 0 if that is not known.
    pub submitted: u64,
    /// When it was over, or [`u64::MAX`].
    pub ended: u64,
    /// What was asked for.
    pub transaction: Cow<'a, Transaction>,
    /// What came of it, if its client was told.
    pub replies: Option<&'a [Reply]>,
    /// When it took effect, by the store's own order. None if no replica that was looked at has carried it out.
    pub at: Option<Moment>,
}

/// What a history holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Transactions that took effect, as their clients were told.
    pub committed: usize,
    /// Those that took effect, and nobody was told.
    pub untold: usize,
    /// Those that were recalled.
    pub aborted: usize,
}

/// Why a history is not strictly serializable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The order is none.
    #[error("two transactions took effect at {0}")]
    SameMoment(Moment),
    /// A replica did not keep to the order.
    #[error("a replica of {shard} carried out the transaction at {later} before that at {earlier}")]
    OutOfOrder {
        /// The shard.
        shard: ShardId,
        /// What it carried out second.
        earlier: Moment,
        /// What it carried out first.
        later: Moment,
    },
    /// Two replicas differ.
    #[error("replicas of {shard} were told, or have answered, different things for the transaction at {at}")]
    Torn {
        /// The shard.
        shard: ShardId,
        /// The transaction.
        at: Moment,
    },
    /// One transaction had two effects.
    #[error("the transaction at {first} was carried out at {second} too")]
    Twice {
        /// The one moment.
        first: Moment,
        /// The other one.
        second: Moment,
    },
    /// A transaction had an effect, and not all of it.
    #[error("member {member} has not carried out what {shard} was asked for by the transaction at {at}")]
    Partial {
        /// The transaction.
        at: Moment,
        /// The shard.
        shard: ShardId,
        /// A replica of it.
        member: usize,
    },
    /// A client was told that a transaction had no effect, and it had.
    #[error("the transaction at {0} was recalled, and took effect")]
    Recalled(Moment),
    /// The order is not that of time.
    #[error(
        "the transaction at {ended} was over before the one at {submitted} was submitted, and takes effect after it"
    )]
    AgainstTime {
        /// The one that was over.
        ended: Moment,
        /// The one that was submitted then.
        submitted: Moment,
    },
    /// A client was told something that no such order explains, or a replica has answered it.
    #[error("at {at}, {operation:?} was answered {told:?}, which would have to be {expected:?}")]
    Reply {
        /// The transaction.
        at: Moment,
        /// Which of its operations.
        operation: Operation,
        /// What the answer was.
        told: Option<Reply>,
        /// What comes out if all transactions are carried out one after the other.
        expected: Reply,
    },
}

impl History {
    /// One without transactions, of a store that is empty at first.
    pub fn new(placement: Placement) -> History {
        let (effects, moments) = (BTreeMap::new(), HashMap::new());
        History { placement, records: Vec::new(), learnt: BTreeSet::new(), effects, moments }
    }

    /// Adds what a client saw.
    pub fn record(&mut self, record: Record) {
        self.records.push(record);
    }

    /// Adds what the member with this rank has [carried out](crate::Store::take_executions): all of it, in its order, once it
    /// has nothing more to carry out. So it becomes known which of the transactions took effect of whose end no client
    /// knows, and whether others did as their clients were told.
    ///
    /// Only members count that have not failed: what one did that has failed is undone, if nobody else did it.
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
    pub fn entries(&self) -> Vec<Entry<'_>> {
        let mut unclaimed = self.moments.clone();
        let mut entries = Vec::with_capacity(self.records.len());
        for record in &self.records {
            let effect = unclaimed.remove(&(record.client, record.number));
            let (ended, replies, at) = match &record.seen {
                Seen::Committed(outcome) => (record.ended, Some(&outcome.replies[..]), Some(outcome.at)),
                Seen::Unknown => (u64::MAX, None, effect),
                Seen::Aborted => continue,
            };
            let (client, number, submitted) = (record.client, record.number, record.submitted);
            let transaction = Cow::Borrowed(&record.transaction);
            entries.push(Entry { client, number, submitted, ended, transaction, replies, at });
        }
        // Those of clients that have taken their records with them.
        for ((client, number), at) in unclaimed {
            let operations = self.effects[&at].parts.values().flat_map(|done| &done.operations);
            let (transaction, at) = (Cow::Owned(operations.cloned().collect()), Some(at));
            entries.push(Entry { client, number, submitted: 0, ended: u64::MAX, transaction, replies: None, at });
        }
        entries
    }

    /// Whether the order of moments explains everything.
    pub fn check(&self) -> Result<Checked, Violation> {
        let aborted = self.check_aborted()?;
        let mut entries: Vec<_> = self.entries().into_iter().filter_map(|entry| Some((entry.at?, entry))).collect();
        entries.sort_by_key(|(at, _)| *at);
        let mut checked = Checked { aborted, ..Checked::default() };
        let mut keyspace = Keyspace::default();
        let mut last = None;
        // The one that was submitted last, of those that took effect before.
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

    /// All replicas that were looked at must have carried out their parts of a transaction, at that moment and as its replay
    /// does.
    fn check_effect(&self, at: Moment, entry: &Entry<'_>, expected: &[Reply]) -> Result<(), Violation> {
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

    /// How many transactions were recalled. Nobody may have carried them out.
    fn check_aborted(&self) -> Result<usize, Violation> {
        let aborted = self.records.iter().filter(|record| record.seen == Seen::Aborted);
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
