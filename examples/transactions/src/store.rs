//! One member of the store, as a state machine.

use std::collections::BTreeMap;

use squall_onepipe::{Clock, Delivery, Message, Mode, OnePipe, PipeEvent, ScatterError, ScatteringId};

use crate::{
    Completed, Execution, Keyspace, Moment, ShardId, StoreConfig, SubmitError, Transaction, TransactionId,
    client::TransactionClient, message::take, server::TransactionServer,
};

/// The reason why a store and a pipe don't go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PipeMismatch {
    /// The store's placement and the pipe have different numbers of members.
    #[error("the store is placed on {members} members, and the pipe has {ranks} ranks: give both the same")]
    Members {
        /// The members of the placement.
        members: usize,
        /// The ranks of the pipe.
        ranks: usize,
    },
    /// The pipe cannot take the store's longest messages.
    #[error(
        "`StoreConfig::message_bytes` is {message_bytes}, and the pipe takes {most}: lower it, or raise the pipe's `ring_bytes`"
    )]
    MessageBytes {
        /// The store's longest message, in bytes.
        message_bytes: usize,
        /// The pipe's longest message, in bytes.
        most: usize,
    },
}

/// One member: the transactions that it submits, and its copies of shards. It is pure: what the pipe delivers goes in,
/// and what is to be scattered comes out.
///
/// Its caller [joins it with a pipe](crate#how-a-member-is-driven). It hands over [events](Store::on_events) before any
/// message that the pipe delivers after them.
#[derive(Debug)]
pub struct Store {
    client: TransactionClient,
    server: TransactionServer,
    me: usize,
}

impl Store {
    /// The member of this rank, in a store that is empty.
    pub fn new(config: StoreConfig, me: usize) -> Store {
        Store { client: TransactionClient::new(config.clone(), me), server: TransactionServer::new(config, me), me }
    }

    /// The member of a pipe's rank, in a store that is empty.
    pub fn of_pipe<C: Clock>(config: StoreConfig, pipe: &OnePipe<C>) -> Result<Store, PipeMismatch> {
        let (members, ranks) = (config.placement.members(), pipe.ranks());
        if members != ranks {
            return Err(PipeMismatch::Members { members, ranks });
        }
        let (message_bytes, most) = (config.message_bytes, pipe.max_message());
        if message_bytes > most {
            return Err(PipeMismatch::MessageBytes { message_bytes, most });
        }
        Ok(Store::new(config, pipe.rank()))
    }

    /// Begins a transaction.
    pub fn submit(&mut self, transaction: &Transaction) -> Result<TransactionId, SubmitError> {
        self.client.submit(transaction)
    }

    /// Gives the pipe the answers and transactions that it has room for: `scatter` is the pipe's method. Returns
    /// whether it took any.
    pub fn scatter(
        &mut self,
        mut scatter: impl FnMut(Mode, &[Message<'_>]) -> Result<ScatteringId, ScatterError>,
    ) -> bool {
        let mut any = false;
        for mode in [Mode::BestEffort, Mode::Reliable] {
            while let Some(messages) = self.outgoing(mode) {
                match scatter(mode, &messages) {
                    Ok(id) if mode == Mode::Reliable => self.client.sent(id),
                    Ok(_) => self.server.next = None,
                    // A pipe that makes progress as it scatters has an event about the ranks that it has removed.
                    Err(ScatterError::Full { .. } | ScatterError::Removed { .. } | ScatterError::Ended) => break,
                    Err(error) => unreachable!("the store sends only what the pipe takes: {error}"),
                }
                any = true;
            }
        }
        any
    }

    /// The next scattering in this mode. It stays the next until it was sent.
    fn outgoing(&mut self, mode: Mode) -> Option<Vec<Message<'_>>> {
        match mode {
            Mode::Reliable => {
                let (_, messages) = self.client.requests.front()?;
                Some(messages.iter().map(|(to, bytes)| Message { to: *to, bytes }).collect())
            }
            Mode::BestEffort => self.server.answers().map(|(to, bytes)| vec![Message { to: *to, bytes }]),
        }
    }

    /// Takes a message. A part that is garbled has no effect.
    pub fn on_delivery(&mut self, delivery: &Delivery<'_>) {
        let mut rest = delivery.bytes;
        match delivery.mode {
            Mode::Reliable => {
                let at = Moment { stamp: delivery.stamp, sender: delivery.sender };
                if let Some(answer) = self.server.on_request(at, rest) {
                    self.client.on_answer(self.me, answer);
                }
            }
            Mode::BestEffort => {
                while let Some(answer) = take(&mut rest) {
                    self.client.on_answer(delivery.sender, answer);
                }
            }
        }
    }

    /// Takes all events that the pipe has: the members that one settlement removes go together. Returns whether there
    /// were any.
    pub fn on_events(&mut self, events: impl Iterator<Item = PipeEvent>) -> bool {
        let (mut any, mut removed) = (false, Vec::new());
        for event in events {
            any = true;
            match event {
                PipeEvent::Undeliverable { id, mode: Mode::Reliable, .. } => self.client.on_undeliverable(id),
                // A client that does not get an answer has failed, so lost answers need no action.
                PipeEvent::Undeliverable { .. } | PipeEvent::Broken { .. } => {}
                PipeEvent::Removed { rank, .. } => removed.push(rank),
                PipeEvent::Ended => self.client.on_ended(),
            }
        }
        if !removed.is_empty() {
            self.server.on_removed(&removed);
            self.client.on_removed(&removed);
        }
        any
    }

    /// The next transaction that is over.
    pub fn completed(&mut self) -> Option<Completed> {
        self.client.completed.pop_front()
    }

    /// Whether no transaction of this member is under way.
    pub fn is_idle(&self) -> bool {
        self.client.pending.is_empty()
    }

    /// Whether the other members have gone on without this one.
    pub fn has_ended(&self) -> bool {
        self.client.ended
    }

    /// Whether a member is there: no settlement has removed it.
    pub fn is_alive(&self, rank: usize) -> bool {
        self.client.alive.get(rank) == Some(&true)
    }

    /// Its copies of shards, to compare them with those of other members.
    pub fn copies(&self) -> &BTreeMap<ShardId, Keyspace> {
        &self.server.shards
    }

    /// Takes the executions of its copies since the last call, in order, if the configuration says that they are
    /// recorded.
    pub fn take_executions(&mut self) -> Vec<Execution> {
        std::mem::take(&mut self.server.executions)
    }
}
