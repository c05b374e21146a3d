//! One member of the store, as a state machine.

use squall_onepipe::{Delivery, Mode, ScatteringId};

use crate::{
    Completed, Digest, Execution, Keyspace, Moment, Placement, ShardId, SubmitError, Transaction, TransactionId,
    client::TransactionClient, message::take, server::TransactionServer,
};

/// The settings of a store. All but `window` and `record` are the same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The placement of keys and shards.
    pub placement: Placement,
    /// The longest message, in bytes. The pipe has to take messages of this length.
    pub message_bytes: usize,
    /// The longest value, in bytes.
    pub value_bytes: usize,
    /// The most transactions of this member that may be under way at a time.
    pub window: usize,
    /// Whether to [keep](Store::take_executions) what is carried out, for a check.
    pub record: bool,
}

impl StoreConfig {
    /// The defaults: messages of up to 16 KiB, values of up to 1 KiB, and 64 transactions at a time.
    pub fn new(placement: Placement) -> StoreConfig {
        StoreConfig { placement, message_bytes: 16 << 10, value_bytes: 1 << 10, window: 64, record: false }
    }
}

/// Messages that are to be sent as one scattering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scattering {
    /// The mode in which they are sent.
    pub mode: Mode,
    /// The receivers' ranks, and the message for each.
    pub messages: Vec<(usize, Vec<u8>)>,
}

impl Scattering {
    /// Removes the messages for these ranks.
    pub(crate) fn remove(&mut self, ranks: &[usize]) {
        self.messages.retain(|(rank, _)| !ranks.contains(rank));
    }
}

/// One member: the transactions that it submits, and its copies of shards. It is pure: what the pipe delivers goes in,
/// and what is to be scattered comes out.
///
/// [`Member`](crate::Member) joins it with a pipe. A caller that joins them itself hands over
/// [removals](Store::on_removed) before any message that the pipe delivers after them. It does so before it asks for
/// the next scattering, too.
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

    /// Begins a transaction.
    pub fn submit(&mut self, transaction: &Transaction) -> Result<TransactionId, SubmitError> {
        self.client.submit(transaction)
    }

    /// The next scattering in this mode, if there is one. It stays the next until it was [sent](Store::sent).
    pub fn outgoing(&mut self, mode: Mode) -> Option<&Scattering> {
        match mode {
            Mode::Reliable => self.client.request(),
            Mode::BestEffort => self.server.answers(),
        }
    }

    /// Notes that the pipe has taken the next scattering of this mode, under the number `id`.
    pub fn sent(&mut self, mode: Mode, id: ScatteringId) {
        match mode {
            Mode::Reliable => self.client.sent(id),
            Mode::BestEffort => self.server.sent(),
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

    /// Notes that a scattering was recalled, or may not have arrived at a member that has failed.
    pub fn on_undeliverable(&mut self, mode: Mode, id: ScatteringId) {
        // A client that does not get an answer has failed, so lost answers need no action.
        if mode == Mode::Reliable {
            self.client.on_undeliverable(id);
        }
    }

    /// Removes the members of one settlement, all at once.
    pub fn on_removed(&mut self, ranks: &[usize]) {
        self.server.on_removed(ranks);
        self.client.on_removed(ranks);
    }

    /// Ends this member's part: the other members go on without it.
    pub fn on_ended(&mut self) {
        self.client.on_ended();
    }

    /// The next transaction that is over.
    pub fn completed(&mut self) -> Option<Completed> {
        self.client.completed()
    }

    /// Whether no transaction of this member is under way.
    pub fn is_idle(&self) -> bool {
        self.client.is_idle()
    }

    /// Whether the other members have gone on without this one.
    pub fn has_ended(&self) -> bool {
        self.client.has_ended()
    }

    /// Whether a member is there: it was not [removed](Store::on_removed).
    pub fn is_alive(&self, rank: usize) -> bool {
        self.client.is_alive(rank)
    }

    /// This member's copy of a shard, if it has one.
    pub fn keyspace(&self, shard: ShardId) -> Option<&Keyspace> {
        self.server.keyspace(shard)
    }

    /// A digest of each of its copies, to compare them with those of other members.
    pub fn digests(&self) -> Vec<Digest> {
        self.server.digests()
    }

    /// Takes the executions of its copies since the last call, in order, if the configuration says that they are
    /// recorded.
    pub fn take_executions(&mut self) -> Vec<Execution> {
        self.server.take_executions()
    }
}
