//! This member's own transactions: sent to the shards, and over once these have answered.

use std::collections::{BTreeMap, VecDeque};

use squall_onepipe::{Mode, ScatteringId};

use crate::{
    Moment, Outcome, Reply, Scattering, ShardId, StoreConfig, Transaction, TransactionError,
    message::{RequestHeader, TransactionAnswer, TransactionPart, answer_bytes, append, longest_value},
};

/// The number of a transaction of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u64);

/// A transaction that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The transaction.
    pub id: TransactionId,
    /// The transaction's outcome, or the reason why it is not known.
    pub result: Result<Outcome, TransactionError>,
}

/// The reason why a transaction was not accepted. It has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many transactions are under way as may be.
    #[error("{window} transactions are under way already: wait until one is over, or raise `StoreConfig::window`")]
    Busy {
        /// The limit.
        window: usize,
    },
    /// The transaction has no operations.
    #[error("the transaction has no operations: give it one")]
    Empty,
    /// A value is too long.
    #[error(
        "a value has {bytes} bytes, and may have {most}: split it, or raise `StoreConfig::value_bytes` at all members"
    )]
    ValueTooLong {
        /// The value's length, in bytes.
        bytes: usize,
        /// The limit, in bytes.
        most: usize,
    },
    /// The transaction's operations, or the possible replies, do not fit into a message.
    #[error(
        "the transaction needs messages of {bytes} bytes, and they may have {most}: split it, or raise `StoreConfig::message_bytes`"
    )]
    TooLong {
        /// The length that a message would have, in bytes.
        bytes: usize,
        /// The limit, in bytes.
        most: usize,
    },
    /// All replicas of a shard have failed.
    #[error("all replicas of {0} have failed: its keys are lost")]
    Lost(ShardId),
    /// The other members have removed this one.
    #[error("the other members have gone on without this one: start it again in a new group")]
    Ended,
}

/// A transaction that not all replicas have answered.
#[derive(Debug)]
struct PendingTransaction {
    /// `None` while the request waits to be sent.
    scattering: Option<ScatteringId>,
    operations: usize,
    parts: Vec<Awaited>,
    stamp: u64,
}

/// The answers of one shard.
#[derive(Debug)]
struct Awaited {
    shard: ShardId,
    /// The places of its operations in the transaction.
    operations: Vec<usize>,
    /// The replicas that live, by rank, and their answers.
    answers: Vec<(usize, Option<Vec<Reply>>)>,
}

#[derive(Debug)]
pub(crate) struct TransactionClient {
    config: StoreConfig,
    me: usize,
    /// By rank.
    alive: Vec<bool>,
    ended: bool,
    next: u64,
    pending: BTreeMap<u64, PendingTransaction>,
    /// The requests still to be sent, with the transactions' numbers.
    requests: VecDeque<(u64, Scattering)>,
    completed: VecDeque<Completed>,
}

impl TransactionClient {
    pub(crate) fn new(config: StoreConfig, me: usize) -> TransactionClient {
        let alive = vec![true; config.placement.members()];
        let (pending, requests, completed) = (BTreeMap::new(), VecDeque::new(), VecDeque::new());
        TransactionClient { config, me, alive, ended: false, next: 0, pending, requests, completed }
    }

    pub(crate) fn submit(&mut self, transaction: &Transaction) -> Result<TransactionId, SubmitError> {
        self.accepts(transaction)?;
        let number = self.next;
        let mut messages: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        let mut parts = Vec::new();
        let of_shards = transaction.parts(&self.config.placement);
        let shards = of_shards.iter().map(|(shard, _)| *shard).collect();
        let header = append(&RequestHeader { number, shards }, Vec::new());
        for (shard, operations) in of_shards {
            let replicas = self.config.placement.replicas_of(shard).filter(|&rank| self.alive[rank]);
            let answers: Vec<_> = replicas.map(|rank| (rank, None)).collect();
            if answers.is_empty() {
                return Err(SubmitError::Lost(shard));
            }
            let items = operations.iter().map(|&at| transaction.operations()[at].clone()).collect();
            let part = append(&TransactionPart { shard, items }, Vec::new());
            for &(rank, _) in &answers {
                messages.entry(rank).or_insert_with(|| header.clone()).extend_from_slice(&part);
            }
            parts.push(Awaited { shard, operations, answers });
        }
        let (bytes, most) = (messages.values().map(Vec::len).max().unwrap_or(0), self.config.message_bytes);
        if bytes > most {
            return Err(SubmitError::TooLong { bytes, most });
        }
        let messages = messages.into_iter().collect();
        self.next += 1;
        let operations = transaction.operations().len();
        self.pending.insert(number, PendingTransaction { scattering: None, operations, parts, stamp: 0 });
        self.requests.push_back((number, Scattering { mode: Mode::Reliable, messages }));
        Ok(TransactionId(number))
    }

    fn accepts(&self, transaction: &Transaction) -> Result<(), SubmitError> {
        let operations = transaction.operations();
        if self.ended {
            return Err(SubmitError::Ended);
        }
        if operations.is_empty() {
            return Err(SubmitError::Empty);
        }
        let (bytes, most) = (longest_value(operations), self.config.value_bytes);
        if bytes > most {
            return Err(SubmitError::ValueTooLong { bytes, most });
        }
        let (bytes, most) = (answer_bytes(operations, self.config.value_bytes), self.config.message_bytes);
        if bytes > most {
            return Err(SubmitError::TooLong { bytes, most });
        }
        let window = self.config.window;
        if self.pending.len() >= window { Err(SubmitError::Busy { window }) } else { Ok(()) }
    }

    /// The request to be sent next.
    pub(crate) fn request(&self) -> Option<&Scattering> {
        self.requests.front().map(|(_, scattering)| scattering)
    }

    /// Notes that the request was sent.
    pub(crate) fn sent(&mut self, scattering: ScatteringId) {
        let sent = self.requests.pop_front().and_then(|(number, _)| self.pending.get_mut(&number));
        if let Some(pending) = sent {
            pending.scattering = Some(scattering);
        }
    }

    /// Takes a replica's answer.
    pub(crate) fn on_answer(&mut self, from: usize, answer: TransactionAnswer) {
        let Some(pending) = self.pending.get_mut(&answer.number) else { return };
        pending.stamp = answer.stamp;
        for TransactionPart { shard, items } in answer.parts {
            let part = pending.parts.iter_mut().find(|part| part.shard == shard);
            let Some(part) = part.filter(|part| part.operations.len() == items.len()) else { continue };
            // A removed replica is not waited for, and what it has carried out may be undone: see the crate's page.
            if let Some((_, answered)) = part.answers.iter_mut().find(|(rank, _)| *rank == from) {
                *answered = Some(items);
            }
        }
        self.complete(answer.number);
    }

    /// Aborts the transaction whose scattering was recalled.
    pub(crate) fn on_undeliverable(&mut self, scattering: ScatteringId) {
        let recalled = self.pending.iter().find(|(_, pending)| pending.scattering == Some(scattering));
        if let Some((&number, _)) = recalled {
            self.end(number, Err(TransactionError::Aborted));
        }
    }

    /// Takes the members that one settlement has removed, all at once.
    pub(crate) fn on_removed(&mut self, ranks: &[usize]) {
        for &rank in ranks {
            self.alive[rank] = false;
        }
        for (_, scattering) in &mut self.requests {
            scattering.remove(ranks);
        }
        let numbers: Vec<u64> = self.pending.keys().copied().collect();
        for number in numbers {
            let pending = self.pending.get_mut(&number).expect("its number was there");
            for part in &mut pending.parts {
                part.answers.retain(|(rank, _)| !ranks.contains(rank));
            }
            let lost = pending.parts.iter().find(|part| part.answers.is_empty()).map(|part| part.shard);
            match (lost, pending.scattering) {
                (Some(_), None) => self.end(number, Err(TransactionError::Aborted)),
                (Some(shard), Some(_)) => self.end(number, Err(TransactionError::Lost(shard))),
                (None, _) => self.complete(number),
            }
        }
    }

    /// Ends all transactions: the others go on without this member.
    pub(crate) fn on_ended(&mut self) {
        self.ended = true;
        while let Some((&number, pending)) = self.pending.first_key_value() {
            let never_sent = pending.scattering.is_none();
            self.end(number, Err(if never_sent { TransactionError::Aborted } else { TransactionError::Ended }));
        }
    }

    /// Ends a transaction if all replicas that live have answered.
    fn complete(&mut self, number: u64) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        if !pending.parts.iter().flat_map(|part| &part.answers).all(|(_, answer)| answer.is_some()) {
            return;
        }
        let mut replies = vec![Reply::Skipped; pending.operations];
        for part in &mut pending.parts {
            // All replicas of a shard give the same answer.
            let answer = part.answers.pop().and_then(|(_, answer)| answer).unwrap_or_default();
            for (&at, reply) in part.operations.iter().zip(answer) {
                replies[at] = reply;
            }
        }
        let at = Moment { stamp: pending.stamp, sender: self.me };
        self.end(number, Ok(Outcome { at, replies }));
    }

    fn end(&mut self, number: u64, result: Result<Outcome, TransactionError>) {
        self.pending.remove(&number);
        self.requests.retain(|(waiting, _)| *waiting != number);
        self.completed.push_back(Completed { id: TransactionId(number), result });
    }

    pub(crate) fn completed(&mut self) -> Option<Completed> {
        self.completed.pop_front()
    }

    pub(crate) fn is_alive(&self, rank: usize) -> bool {
        self.alive.get(rank) == Some(&true)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }
}
