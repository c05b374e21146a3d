//! Whether what clients saw is strictly serializable: could have come from one transaction after the other, in an order in
//! which none is before one that had ended when it was submitted.
//!
//! The store itself says which order that is: that of [`Moment`]s. [`History::check`] carries all transactions out again in
//! this order, on one [`Keyspace`], and compares. The package's tests also look for any such order without being told one.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
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
    /// What replicas have carried out.
    effects: BTreeMap<Moment, Effect>,
}

#[derive(Clone, Debug)]
struct Effect {
    number: u64,
    parts: BTreeMap<ShardId, Vec<Operation>>,
}

/// A transaction of which it is not certain that it had no effect.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// The client's rank.
    pub client: usize,
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
    #[error("replicas of {shard} were told different things for the transaction at {at}")]
    Torn {
        /// The shard.
        shard: ShardId,
        /// The transaction.
        at: Moment,
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
    /// A client was told something that no such order explains.
    #[error("at {at}, {operation:?} was answered {told:?}, which would have to be {expected:?}")]
    Reply {
        /// The transaction.
        at: Moment,
        /// Which of its operations.
        operation: Operation,
        /// What the client was told.
        told: Option<Reply>,
        /// What comes out if all transactions are carried out one after the other.
        expected: Reply,
    },
}

impl History {
    /// One without transactions, of a store that is empty at first.
    pub fn new(placement: Placement) -> History {
        History { placement, records: Vec::new(), effects: BTreeMap::new() }
    }

    /// Adds what a client saw.
    pub fn record(&mut self, record: Record) {
        self.records.push(record);
    }

    /// Adds what one member has [carried out](crate::Store::take_executions), all of it in its order. So it becomes known which
    /// of the transactions took effect of whose end no client knows.
    ///
    /// Only members count that have not failed: what one did that has failed is undone, if nobody else did it.
    pub fn learn(&mut self, executions: impl IntoIterator<Item = Execution>) -> Result<(), Violation> {
        let mut last: HashMap<ShardId, Moment> = HashMap::new();
        for Execution { at, number, shard, operations, .. } in executions {
            match last.insert(shard, at) {
                Some(later) if later >= at => return Err(Violation::OutOfOrder { shard, earlier: at, later }),
                _ => {}
            }
            let effect = self.effects.entry(at).or_insert(Effect { number, parts: BTreeMap::new() });
            let known = effect.parts.entry(shard).or_insert_with(|| operations.clone());
            if effect.number != number || *known != operations {
                return Err(Violation::Torn { shard, at });
            }
        }
        Ok(())
    }

    /// All transactions that may have had an effect.
    pub fn entries(&self) -> Vec<Entry<'_>> {
        let mut unclaimed: HashMap<(usize, u64), (Moment, &Effect)> =
            self.effects.iter().map(|(&at, effect)| ((at.sender, effect.number), (at, effect))).collect();
        let mut entries = Vec::with_capacity(self.records.len());
        for record in &self.records {
            let effect = unclaimed.remove(&(record.client, record.number)).map(|(at, _)| at);
            let (ended, replies, at) = match &record.seen {
                Seen::Committed(outcome) => (record.ended, Some(&outcome.replies[..]), Some(outcome.at)),
                Seen::Unknown => (u64::MAX, None, effect),
                Seen::Aborted => continue,
            };
            let (client, submitted) = (record.client, record.submitted);
            entries.push(Entry {
                client,
                submitted,
                ended,
                transaction: Cow::Borrowed(&record.transaction),
                replies,
                at,
            });
        }
        // Those of clients that have taken their records with them.
        for ((client, _), (at, effect)) in unclaimed {
            let transaction = Cow::Owned(effect.parts.values().flatten().cloned().collect());
            entries.push(Entry { client, submitted: 0, ended: u64::MAX, transaction, replies: None, at: Some(at) });
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
                Some(told) => compare(at, &entry.transaction, told, expected)?,
                None => checked.untold += 1,
            }
            checked.committed += usize::from(entry.replies.is_some());
        }
        Ok(checked)
    }

    /// How many transactions were recalled. Nobody may have carried them out.
    fn check_aborted(&self) -> Result<usize, Violation> {
        let effects: HashMap<(usize, u64), Moment> =
            self.effects.iter().map(|(&at, effect)| ((at.sender, effect.number), at)).collect();
        let aborted = self.records.iter().filter(|record| record.seen == Seen::Aborted);
        aborted
            .map(|record| match effects.get(&(record.client, record.number)) {
                Some(&at) => Err(Violation::Recalled(at)),
                None => Ok(1),
            })
            .sum()
    }
}

fn compare(at: Moment, transaction: &Transaction, told: &[Reply], expected: Vec<Reply>) -> Result<(), Violation> {
    let operations = transaction.operations().iter().zip(expected).enumerate();
    for (index, (operation, expected)) in operations {
        let told = told.get(index);
        if told != Some(&expected) {
            return Err(Violation::Reply { at, operation: operation.clone(), told: told.cloned(), expected });
        }
    }
    Ok(())
}
