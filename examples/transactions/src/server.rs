//! This member's copies of shards, which carry out what is delivered, and answer.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    Keyspace, Moment, Operation, Reply, ShardId, StoreConfig,
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

#[derive(Debug)]
pub(crate) struct TransactionServer {
    config: StoreConfig,
    me: usize,
    /// Its copies.
    pub(crate) shards: BTreeMap<ShardId, Keyspace>,
    /// The answers that are still to be sent, by rank; `None` for a rank that was removed.
    answers: Vec<Option<VecDeque<Vec<u8>>>>,
    /// The client whose answers were offered to the pipe and not taken yet, and the answers.
    pub(crate) next: Option<(usize, Vec<u8>)>,
    last: usize,
    pub(crate) executions: Vec<Execution>,
}

impl TransactionServer {
    pub(crate) fn new(config: StoreConfig, me: usize) -> TransactionServer {
        let shards = config.placement.shards_on(me).map(|shard| (shard, Keyspace::default())).collect();
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
            let Some(keyspace) = self.shards.get_mut(&id) else { continue };
            let replies = keyspace.execute(&operations);
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

    /// The answers to be sent next, and their client: as many of one client's as fit into a message, of each client in
    /// turn.
    ///
    /// Clients share no scattering: one that has failed would take the others' answers with it.
    pub(crate) fn answers(&mut self) -> Option<&(usize, Vec<u8>)> {
        if self.next.is_none() {
            let (ranks, last) = (self.answers.len(), self.last);
            let mut clients = (1..=ranks).map(|ahead| (last + ahead) % ranks);
            self.next = clients.find_map(|client| {
                let waiting = self.answers[client].as_mut()?;
                let mut message = waiting.pop_front()?;
                let most = self.config.message_bytes;
                while let Some(answer) = waiting.pop_front_if(|answer| message.len() + answer.len() <= most) {
                    message.extend_from_slice(&answer);
                }
                self.last = client;
                Some((client, message))
            });
        }
        self.next.as_ref()
    }

    pub(crate) fn on_removed(&mut self, ranks: &[usize]) {
        for &rank in ranks {
            self.answers[rank] = None;
        }
        self.next.take_if(|(client, _)| ranks.contains(client));
    }
}
