//! The transactions that one shard has voted on: replicated state.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rkyv::{Archive, Deserialize, Serialize};

use super::{
    keys::{Keys, Locks},
    message::{Holder, Refusal, Scope, TransactionId, TransactionReply},
};

/// The age from which on locks are settled by anyone that finds them.
pub(crate) const STALE: Duration = Duration::from_millis(100);

/// The time within which all shards of a transaction must prepare it.
pub(crate) const LIFE: Duration = Duration::from_secs(30);

/// The longest time until a transaction's expiry that a shard accepts: the time for which a refusal may be kept.
const LONGEST: Duration = Duration::from_secs(120);

/// The limits of a shard's memory of transactions. They are alike at all replicas.
const MOST_RECORDS: usize = 1 << 16;
const MOST_BYTES: usize = 64 << 20;

/// The bytes that a record counts as, besides its shards, commands and replies.
const RECORD_BYTES: usize = 256;

/// The number of prepared transactions that one answer names as stale, and of those that were carried out.
const MOST_STALE: usize = 64;

/// The transactions that a shard has to remember, and their locks.
///
/// A shard that has no record of a transaction has not voted for it, or all shards have carried it out. So only these
/// have records: prepared transactions; those that were carried out, until all shards have; and refusals by
/// [settling](Table::settle), until the transaction has expired. A refused [`prepare`](Table::prepare) needs none:
/// it is submitted once, and a group applies a client's command once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// The group's time of the latest message.
    now: u64,
    records: BTreeMap<TransactionId, TransactionRecord>,
    locks: Locks,
    /// The prepared transactions, by the time at which they were.
    prepared: BTreeSet<(u64, TransactionId)>,
    /// The transactions that were carried out, by their expiry.
    applied: BTreeSet<(u64, TransactionId)>,
    /// The refusals, by the expiry of their transactions.
    refused: BTreeSet<(u64, TransactionId)>,
    bytes: usize,
}

/// A transaction that a shard remembers.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransactionRecord {
    scope: Scope,
    state: RecordState,
}

#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
enum RecordState {
    /// The shard has voted for it at that time, and keeps its commands.
    Prepared { since: u64, commands: Vec<Vec<u8>> },
    /// It was carried out, with these replies.
    Applied(Vec<Vec<u8>>),
    /// The shard has voted against it before it came.
    Refused,
}

/// The bytes that the memory of a transaction counts as. All replicas count alike, however they were compiled.
fn bytes_of(scope: &Scope, texts: &[Vec<u8>]) -> usize {
    RECORD_BYTES + 4 * scope.shards.len() + texts.iter().map(|text| 24 + text.len()).sum::<usize>()
}

impl TransactionRecord {
    fn bytes(&self) -> usize {
        let texts = match &self.state {
            RecordState::Prepared { commands: texts, .. } | RecordState::Applied(texts) => &texts[..],
            RecordState::Refused => &[],
        };
        bytes_of(&self.scope, texts)
    }
}

impl Table {
    /// Takes note of the group's time, and forgets refusals that are not needed any more.
    pub(crate) fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some(&(_, id)) = self.refused.first().filter(|(expires, _)| *expires < self.now) {
            self.remove(id);
        }
    }

    /// Whether no key is locked.
    pub(crate) fn is_unlocked(&self) -> bool {
        self.locks.is_empty()
    }

    /// Returns a transaction that forbids the use of these keys, if there is one.
    pub(crate) fn conflict(&self, keys: &Keys) -> Option<Holder> {
        self.holder(self.locks.conflict(keys)?)
    }

    /// Returns the transaction that has been prepared for longest.
    pub(crate) fn oldest(&self) -> Option<Holder> {
        self.holder(self.prepared.first()?.1)
    }

    fn holder(&self, id: TransactionId) -> Option<Holder> {
        let record = self.records.get(&id)?;
        let RecordState::Prepared { since, .. } = record.state else { return None };
        Some(Holder { scope: record.scope.clone(), age: self.now.saturating_sub(since) })
    }

    /// Returns the vote on a transaction, if the shard has voted.
    pub(crate) fn vote(&self, scope: &Scope) -> Option<TransactionReply> {
        self.records.get(&scope.id).map(vote)
    }

    /// Whether this transaction may be prepared, as far as this table knows. It is an error if not, with the reply.
    pub(crate) fn admit(&self, scope: &Scope, commands: &[Vec<u8>]) -> Result<(), TransactionReply> {
        if let Some(vote) = self.vote(scope) {
            return Err(vote);
        }
        if scope.expires < self.now || self.is_too_late(scope) {
            return Err(TransactionReply::Refused(Refusal::Expired { time: self.now }));
        }
        if self.is_full(bytes_of(scope, commands)) {
            return Err(TransactionReply::Refused(Refusal::Full));
        }
        Ok(())
    }

    /// Whether a transaction expires later than any that comes with a right clock.
    fn is_too_late(&self, scope: &Scope) -> bool {
        scope.expires > self.now.saturating_add(LONGEST.as_nanos() as u64)
    }

    fn is_full(&self, more: usize) -> bool {
        self.records.len() >= MOST_RECORDS || self.bytes + more > MOST_BYTES
    }

    /// Votes for a transaction that was [admitted](Table::admit), and locks its keys, which must not be in conflict.
    pub(crate) fn prepare(&mut self, scope: Scope, commands: Vec<Vec<u8>>, keys: &Keys) {
        let since = self.now;
        self.locks.lock(scope.id, keys);
        self.prepared.insert((since, scope.id));
        self.insert(TransactionRecord { scope, state: RecordState::Prepared { since, commands } });
    }

    /// Takes the commands of a prepared transaction, which is decided. Its keys stay locked until
    /// [`unlock`](Table::unlock). It is an error, with the reply, if it is not prepared.
    pub(crate) fn decide(&mut self, id: TransactionId) -> Result<(Scope, Vec<Vec<u8>>), TransactionReply> {
        let record = self.records.get(&id).ok_or(TransactionReply::Gone)?;
        match &record.state {
            RecordState::Prepared { .. } => {}
            RecordState::Applied(replies) => return Err(TransactionReply::Applied(replies.clone())),
            RecordState::Refused => return Err(vote(record)),
        }
        match self.remove(id) {
            Some(TransactionRecord { scope, state: RecordState::Prepared { commands, .. } }) => Ok((scope, commands)),
            _ => Err(TransactionReply::Gone),
        }
    }

    /// Takes back a transaction's locks on these keys.
    pub(crate) fn unlock(&mut self, id: TransactionId, keys: &Keys) {
        self.locks.unlock(id, keys);
    }

    /// Keeps the replies of a transaction that was carried out.
    pub(crate) fn applied(&mut self, scope: Scope, replies: Vec<Vec<u8>>) {
        self.applied.insert((scope.expires, scope.id));
        self.insert(TransactionRecord { scope, state: RecordState::Applied(replies) });
    }

    /// Returns the vote on a transaction. If there is none yet, the shard votes against it, unless it has no memory for
    /// that vote, or would have to keep it for too long.
    pub(crate) fn settle(&mut self, scope: Scope) -> TransactionReply {
        if let Some(vote) = self.vote(&scope) {
            return vote;
        }
        if scope.expires < self.now {
            // It can't be prepared any more, so no vote needs to be kept.
            return TransactionReply::Gone;
        }
        if self.is_too_late(&scope) {
            return TransactionReply::Refused(Refusal::Expired { time: self.now });
        }
        let record = TransactionRecord { scope, state: RecordState::Refused };
        if self.is_full(record.bytes()) {
            return TransactionReply::Refused(Refusal::Full);
        }
        self.refused.insert((record.scope.expires, record.scope.id));
        self.insert(record);
        TransactionReply::Refused(Refusal::Settled)
    }

    /// Forgets a transaction that all of its shards have carried out. Until its expiry only its coordinator may say so,
    /// since the coordinator may still ask for its outcome.
    pub(crate) fn forget(&mut self, id: TransactionId, by_coordinator: bool) {
        let Some(record) = self.records.get(&id) else { return };
        let is_over = by_coordinator || record.scope.expires < self.now;
        if is_over && matches!(record.state, RecordState::Applied(_)) {
            self.remove(id);
        }
    }

    /// The time at which a transaction becomes stale next.
    pub(crate) fn wake_at(&self) -> Option<u64> {
        let stale = STALE.as_nanos() as u64;
        let since = (self.now.saturating_sub(stale).saturating_add(1), FIRST);
        let prepared = self.prepared.range(since..).next().map(|(since, _)| since.saturating_add(stale));
        let expiry = |set: &BTreeSet<(u64, TransactionId)>| {
            set.range((self.now, FIRST)..).next().map(|(expires, _)| expires.saturating_add(1))
        };
        prepared.into_iter().chain(expiry(&self.applied)).chain(expiry(&self.refused)).min()
    }

    /// Returns some transactions that somebody should end: those whose locks are old, and those that were carried out
    /// here, whose coordinator has not had them forgotten in time. `start` is a random number, so that those that can't
    /// be ended now do not hide the others.
    pub(crate) fn stale(&self, start: u64) -> Vec<Scope> {
        let some = |set: &BTreeSet<(u64, TransactionId)>, before| {
            let ids = set.range(..(before, FIRST));
            let count = ids.clone().count();
            let from = start.checked_rem(count as u64).unwrap_or_default() as usize;
            ids.cycle().skip(from).take(count.min(MOST_STALE)).copied().collect::<Vec<_>>()
        };
        let before = self.now.saturating_sub(STALE.as_nanos() as u64).saturating_add(1);
        let ids = some(&self.prepared, before).into_iter().chain(some(&self.applied, self.now));
        ids.filter_map(|(_, id)| self.records.get(&id)).map(|record| record.scope.clone()).collect()
    }

    fn insert(&mut self, record: TransactionRecord) {
        self.bytes += record.bytes();
        self.records.insert(record.scope.id, record);
    }

    fn remove(&mut self, id: TransactionId) -> Option<TransactionRecord> {
        let record = self.records.remove(&id)?;
        self.bytes -= record.bytes();
        match record.state {
            RecordState::Prepared { since, .. } => _ = self.prepared.remove(&(since, id)),
            RecordState::Applied(_) => _ = self.applied.remove(&(record.scope.expires, id)),
            RecordState::Refused => _ = self.refused.remove(&(record.scope.expires, id)),
        }
        Some(record)
    }

    /// All records, for a snapshot, with the time.
    pub(crate) fn save(&self) -> (u64, Vec<TransactionRecord>) {
        (self.now, self.records.values().cloned().collect())
    }

    /// Makes a table of what [`save`](Table::save) has returned. `keys` are those of a part's commands.
    pub(crate) fn restore(now: u64, records: Vec<TransactionRecord>, keys: impl Fn(&[Vec<u8>]) -> Keys) -> Table {
        let mut table = Table { now, ..Table::default() };
        for record in records {
            let id = record.scope.id;
            match &record.state {
                RecordState::Prepared { since, commands } => {
                    table.locks.lock(id, &keys(commands));
                    table.prepared.insert((*since, id));
                }
                RecordState::Applied(_) => _ = table.applied.insert((record.scope.expires, id)),
                RecordState::Refused => _ = table.refused.insert((record.scope.expires, id)),
            }
            table.insert(record);
        }
        table
    }
}

/// The first identity, before all others.
const FIRST: TransactionId = TransactionId { coordinator: 0, number: 0 };

/// The vote on a transaction.
fn vote(record: &TransactionRecord) -> TransactionReply {
    match &record.state {
        RecordState::Prepared { .. } => TransactionReply::Prepared,
        RecordState::Applied(_) => TransactionReply::Committed,
        RecordState::Refused => TransactionReply::Refused(Refusal::Settled),
    }
}
