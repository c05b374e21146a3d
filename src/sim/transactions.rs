//! Clients that submit transactions in a simulated cluster: the real rules, over simulated clients of the shards.

use std::{
    collections::BTreeMap,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use fastrand::Rng;

use super::{client::Client, cluster::Cluster};
use crate::{
    clients::{
        client::{Call, encode},
        wire::Consistency,
    },
    transactions::{
        Coordinator, Effect, ReplyPlaces, Script, TransactionAnswer, TransactionError, TransactionQuery,
        TransactionReply, TransactionService, Transactional, decode,
    },
};

/// A program that submits transactions to a simulated cluster, and is no member. See [`Cluster::transactions`].
///
/// It does something only in its [turns](Transactions::turn), so a test calls these often. One that is dropped is a
/// program that has ended: what it has sent may still arrive.
pub struct Transactions<S: TransactionService> {
    shards: Vec<Client<Transactional<S>>>,
    coordinator: Coordinator,
    calls: BTreeMap<u64, PendingMessage>,
    places: BTreeMap<u64, ReplyPlaces>,
}

enum PendingMessage {
    Command(Call<TransactionReply>),
    Query(Call<TransactionAnswer>),
}

/// A transaction's number and result.
pub type TransactionEnd<R> = (u64, Result<Vec<R>, TransactionError<R>>);

impl Cluster {
    /// Creates a client of all shards of a group that nodes [serve](Cluster::serve_sharded) as [`Transactional`].
    pub fn transactions<S: TransactionService>(&mut self, group: &str) -> Transactions<S> {
        let shards = self.clients_of_shards(group);
        let (id, rng) = (self.rng.u128(..), Rng::with_seed(self.rng.u64(..)));
        let coordinator = Coordinator::new(id, shards.len() as u32, self.now(), self.true_time(), rng);
        Transactions { shards, coordinator, calls: BTreeMap::new(), places: BTreeMap::new() }
    }
}

impl<S: TransactionService> Transactions<S> {
    /// The clients of the shards.
    pub fn shards(&self) -> &[Client<Transactional<S>>] {
        &self.shards
    }

    /// Submits a transaction of these commands, each of a shard, and returns its number.
    ///
    /// # Panics
    ///
    /// If there is no such shard, or if a command can't be serialized.
    pub fn submit(&mut self, cluster: &mut Cluster, commands: &[(u32, S::Command)], limit: Duration) -> u64 {
        let mut script = Script::default();
        commands.iter().for_each(|(shard, command)| script.add(*shard, self.shards.len(), command));
        let (ask, places) = script.ask().expect("the transaction can be sent");
        let number = self.coordinator.request(cluster.now(), ask, limit);
        self.places.insert(number, places);
        number
    }

    /// Asks a linearizable query of a shard. Returns None if it has no answer in time, or if a transaction has locked
    /// what it reads.
    pub fn query(&self, cluster: &mut Cluster, shard: u32, query: &S::Query, limit: Duration) -> Option<S::Answer> {
        let query = TransactionQuery::Ask { query: encode(query).ok()?, ignores_locks: false };
        let answer = self.shards[shard as usize].query(cluster, Consistency::Linearizable, &query, limit);
        match cluster.wait(limit, answer) {
            Some(Ok(TransactionAnswer::Answered(answer))) => decode(&answer),
            _ => None,
        }
    }

    /// Looks for transactions that nobody ends, in all shards, and settles them, as members do.
    pub fn watch(&mut self) {
        (0..self.shards.len() as u32).for_each(|shard| self.coordinator.watch(shard));
    }

    /// Does what there is to do, and returns the results that have come.
    pub fn turn(&mut self, cluster: &mut Cluster) -> Vec<TransactionEnd<S::Reply>> {
        let (mut ends, mut context) = (Vec::new(), Context::from_waker(Waker::noop()));
        self.coordinator.tick(cluster.now());
        let (coordinator, now) = (&mut self.coordinator, cluster.now());
        self.calls.retain(|&call, pending| match pending {
            PendingMessage::Command(reply) => match Pin::new(reply).poll(&mut context) {
                Poll::Ready(reply) => {
                    coordinator.replied(now, call, reply);
                    false
                }
                Poll::Pending => true,
            },
            PendingMessage::Query(answer) => match Pin::new(answer).poll(&mut context) {
                Poll::Ready(answer) => {
                    coordinator.answered(now, call, answer);
                    false
                }
                Poll::Pending => true,
            },
        });
        for effect in self.coordinator.take_effects() {
            match effect {
                Effect::Command { call, shard, command, limit } => {
                    let reply = self.shards[shard as usize].submit(cluster, &command, limit);
                    self.calls.insert(call, PendingMessage::Command(reply));
                }
                Effect::Query { call, shard, query, consistency, limit } => {
                    let answer = self.shards[shard as usize].query(cluster, consistency, &query, limit);
                    self.calls.insert(call, PendingMessage::Query(answer));
                }
                Effect::Resolve { request, result } => {
                    let places = self.places.remove(&request);
                    ends.extend(places.map(|places| (request, places.replies(result))));
                }
            }
        }
        ends
    }
}
