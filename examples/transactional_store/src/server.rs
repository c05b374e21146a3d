//! This member's copies of shards, which carry out what is delivered, and answer.

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::Fingerprint;
use squall_onepipe::Mode;

use crate::{
    Keyspace, Moment, Operation, Reply, Scattering, ShardId, StoreConfig,
    message::{RequestHeader, TransactionAnswer, TransactionPart, append, take},
};

/// One replica's part in one transaction.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Execution {
    /// The transaction's moment.
    pub at: Moment,
    /// The [transaction's number](crate::TransactionId) at its sender.
    pub number: u64,
    /// The shard.
    pub shard: ShardId,
    /// All shards that the transaction concerns.
    pub shards: Vec<ShardId>,
    /// The operations that this shard was asked for.
    pub operations: Vec<Operation>,
    /// The replies.
    pub replies: Vec<Reply>,
}

/// A digest of a shard. It is the same at all replicas that have carried out the same transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Digest {
    /// The shard.
    pub shard: ShardId,
    /// The number of transactions that the replica has carried out.
    pub executed: u64,
    /// A fingerprint of these transactions in their order.
    pub order: u64,
    /// A fingerprint of the keys and values.
    pub contents: u64,
}

/// One copy of a shard.
#[derive(Debug, Default)]
struct Shard {
    keyspace: Keyspace,
    executed: u64,
    order: Fingerprint,
}

#[derive(Debug)]
pub(crate) struct TransactionServer {
    config: StoreConfig,
    me: usize,
    shards: BTreeMap<ShardId, Shard>,
    /// By rank, the answers that are still to be sent; `None` for a rank that was removed.
    answers: Vec<Option<VecDeque<Vec<u8>>>>,
    /// The answers that were offered to the pipe and not taken yet, and the client that they are for.
    next: Option<Scattering>,
    last: usize,
    executions: Vec<Execution>,
}

impl TransactionServer {
    pub(crate) fn new(config: StoreConfig, me: usize) -> TransactionServer {
        let shards = config.placement.shards_on(me).map(|shard| (shard, Shard::default())).collect();
        let answers = vec![Some(VecDeque::new()); config.placement.members()];
        TransactionServer { config, me, shards, answers, next: None, last: 0, executions: Vec::new() }
    }

    /// Carries out a request. Returns the answer if it is for this member itself.
    pub(crate) fn on_request(&mut self, at: Moment, mut request: &[u8]) -> Option<TransactionAnswer> {
        let RequestHeader { number, shards } = take(&mut request)?;
        let mut answer = TransactionAnswer { number, stamp: at.stamp, parts: Vec::new() };
        while let Some(TransactionPart { shard: id, items: operations }) =
            take::<TransactionPart<Operation>>(&mut request)
        {
            let Some(shard) = self.shards.get_mut(&id) else { continue };
            let replies = shard.keyspace.execute(&operations);
            shard.executed += 1;
            shard.order.number(at.stamp).number(at.sender as u64).number(number);
            if self.config.record {
                let (shards, replies) = (shards.clone(), replies.clone());
                self.executions.push(Execution { at, number, shard: id, shards, operations, replies });
            }
            answer.parts.push(TransactionPart { shard: id, items: replies });
        }
        if at.sender == self.me {
            return Some(answer);
        }
        if let Some(Some(answers)) = self.answers.get_mut(at.sender) {
            answers.push_back(append(&answer, Vec::new()));
        }
        None
    }

    /// The answers to be sent next: as many of one client's as fit into a message, of each client in turn.
    ///
    /// Clients share no scattering: one that has failed would take the others' answers with it.
    pub(crate) fn answers(&mut self) -> Option<&Scattering> {
        if self.next.is_none() {
            let ranks = self.answers.len();
            let mut clients = (1..=ranks).map(|ahead| (self.last + ahead) % ranks);
            let has_answers =
                |client: &usize| self.answers[*client].as_ref().is_some_and(|answers| !answers.is_empty());
            let client = clients.find(has_answers)?;
            self.last = client;
            let message = gather(self.answers[client].as_mut()?, self.config.message_bytes);
            let messages = vec![(client, message)];
            self.next = Some(Scattering { mode: Mode::BestEffort, messages });
        }
        self.next.as_ref()
    }

    /// Notes that the answers were sent.
    pub(crate) fn sent(&mut self) {
        self.next = None;
    }

    pub(crate) fn on_removed(&mut self, ranks: &[usize]) {
        for &rank in ranks {
            self.answers[rank] = None;
        }
        if let Some(next) = &mut self.next {
            next.remove(ranks);
        }
        self.next.take_if(|next| next.messages.is_empty());
    }

    pub(crate) fn keyspace(&self, shard: ShardId) -> Option<&Keyspace> {
        self.shards.get(&shard).map(|shard| &shard.keyspace)
    }

    pub(crate) fn digests(&self) -> Vec<Digest> {
        let digest = |(&shard, of): (&ShardId, &Shard)| {
            let (order, contents) = (of.order.value(), of.keyspace.fingerprint());
            Digest { shard, executed: of.executed, order, contents }
        };
        self.shards.iter().map(digest).collect()
    }

    pub(crate) fn take_executions(&mut self) -> Vec<Execution> {
        std::mem::take(&mut self.executions)
    }
}

/// Takes answers while there is room for them in one message.
fn gather(waiting: &mut VecDeque<Vec<u8>>, message_bytes: usize) -> Vec<u8> {
    let mut message = waiting.pop_front().unwrap_or_default();
    while let Some(answer) = waiting.pop_front_if(|answer| message.len() + answer.len() <= message_bytes) {
        message.extend_from_slice(&answer);
    }
    message
}
