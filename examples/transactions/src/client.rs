//! This member's own transactions: sent to the shards, and over once these have answered.

use std::collections::{BTreeMap, VecDeque};

use squall_onepipe::ScatteringId;

use crate::{
    Moment, Outcome, Reply, ShardId, StoreConfig, Transaction, TransactionError,
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
    /// A refusal, since as many transactions are under way as may be.
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
    /// A shard whose replicas have all failed.
    #[error("all replicas of {0} have failed: its keys are lost")]
    Lost(ShardId),
    /// The other members have removed this one.
    #[error("the other members have gone on without this one: start it again in a new group")]
    Ended,
}

/// A transaction that not all replicas have answered.
#[derive(Debug)]
pub(crate) struct PendingTransaction {
    /// `None` while the request waits to be sent.
    scattering: Option<ScatteringId>,
    operations: usize,
    /// The shards that it concerns, each with the places of its operations.
    parts: Vec<(ShardId, Vec<usize>)>,
    /// The members with replicas that live, by rank, and their answers.
    answers: BTreeMap<usize, Option<TransactionAnswer>>,
}

/// A message for each of the receivers' ranks.
type Request = Vec<(usize, Vec<u8>)>;

#[derive(Debug)]
pub(crate) struct TransactionClient {
    config: StoreConfig,
    me: usize,
    /// Whether the rank is alive, by rank.
    pub(crate) alive: Vec<bool>,
    pub(crate) ended: bool,
    next: u64,
    pub(crate) pending: BTreeMap<u64, PendingTransaction>,
    /// The requests still to be sent, with the transactions' numbers.
    pub(crate) requests: VecDeque<(u64, Request)>,
    pub(crate) completed: VecDeque<Completed>,
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
        let parts = transaction.parts(&self.config.placement);
        let shards = parts.iter().map(|(shard, _)| *shard).collect();
        let header = append(&RequestHeader { number, shards }, Vec::new());
        for (shard, places) in &parts {
            let items = places.iter().map(|&at| transaction.operations()[at].clone()).collect();
            let part = append(&TransactionPart { shard: *shard, items }, Vec::new());
            let mut replicas = self.config.placement.replicas_of(*shard).filter(|&rank| self.alive[rank]).peekable();
            if replicas.peek().is_none() {
                return Err(SubmitError::Lost(*shard));
            }
            for rank in replicas {
                messages.entry(rank).or_insert_with(|| header.clone()).extend_from_slice(&part);
            }
        }
        let (bytes, most) = (messages.values().map(Vec::len).max().unwrap_or(0), self.config.message_bytes);
        if bytes > most {
            return Err(SubmitError::TooLong { bytes, most });
        }
        self.next += 1;
        let operations = transaction.operations().len();
        let answers = messages.keys().map(|&rank| (rank, None)).collect();
        self.pending.insert(number, PendingTransaction { scattering: None, operations, parts, answers });
        self.requests.push_back((number, messages.into_iter().collect()));
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

    /// Notes that the first of the requests was sent.
    pub(crate) fn sent(&mut self, scattering: ScatteringId) {
        let sent = self.requests.pop_front().and_then(|(number, _)| self.pending.get_mut(&number));
        if let Some(pending) = sent {
            pending.scattering = Some(scattering);
        }
    }

    /// Takes a member's answer. One that does not fit what the member was asked for has no effect.
    pub(crate) fn on_answer(&mut self, from: usize, answer: TransactionAnswer) {
        let Some(pending) = self.pending.get_mut(&answer.number) else { return };
        let placement = &self.config.placement;
        let asked = pending.parts.iter().filter(|(shard, _)| placement.replicas_of(*shard).any(|rank| rank == from));
        let asked = asked.map(|(shard, places)| (*shard, places.len()));
        let fits = asked.eq(answer.parts.iter().map(|part| (part.shard, part.items.len())));
        // A removed replica is not waited for, and what it has carried out may be undone: see the crate's page.
        if let Some(place) = pending.answers.get_mut(&from).filter(|_| fits) {
            let number = answer.number;
            *place = Some(answer);
            self.complete(number);
        }
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
        for (_, messages) in &mut self.requests {
            messages.retain(|(rank, _)| !ranks.contains(rank));
        }
        let numbers: Vec<u64> = self.pending.keys().copied().collect();
        for number in numbers {
            let pending = self.pending.get_mut(&number).expect("its number was there");
            pending.answers.retain(|rank, _| !ranks.contains(rank));
            let mut shards = pending.parts.iter().map(|(shard, _)| *shard);
            let lost = shards.find(|&shard| !self.config.placement.replicas_of(shard).any(|rank| self.alive[rank]));
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
        let is_over = |pending: &PendingTransaction| pending.answers.values().all(Option::is_some);
        if !self.pending.get(&number).is_some_and(is_over) {
            return;
        }
        let Some(pending) = self.pending.remove(&number) else { return };
        let mut replies = vec![Reply::Skipped; pending.operations];
        let mut stamp = 0;
        // All replicas of a shard give the same answer.
        for answer in pending.answers.into_values().flatten() {
            stamp = answer.stamp;
            for TransactionPart { shard, items } in answer.parts {
                let places = pending.parts.iter().filter(|(of, _)| *of == shard).flat_map(|(_, places)| places);
                places.zip(items).for_each(|(&at, reply)| replies[at] = reply);
            }
        }
        let at = Moment { stamp, sender: self.me };
        self.end(number, Ok(Outcome { at, replies }));
    }

    fn end(&mut self, number: u64, result: Result<Outcome, TransactionError>) {
        self.pending.remove(&number);
        self.requests.retain(|(waiting, _)| *waiting != number);
        self.completed.push_back(Completed { id: TransactionId(number), result });
    }
}
