//! The columns of a shard's table.

use std::sync::Arc;

use squall_sst::{Counter, Counters, Layout};

use crate::config::Mode;

/// The columns of a shard's table. Columns that change with every message lie together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    /// The turns that the member, as a sender, has used.
    pub(super) sent: Counter,
    pub(super) order: OrderColumns,
    /// The number of each sender's bulk messages that the member holds.
    pub(super) bulk: Counters,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum OrderColumns {
    Ordered {
        /// The member's longest gap-free prefix of the order.
        received: Counter,
        /// The places of the order that the member has delivered.
        delivered: Counter,
        /// Durable mode: the version up to which the member has the order on disk; 0 as long as it does not count.
        persisted: Option<Counter>,
        /// Durable mode: the version up to which the member has given the order to its log; 0 as long as it does not
        /// count.
        logged: Option<Counter>,
        /// The member's clock when it last asked the others whether it is still one of them.
        stamp: Counter,
        /// The last stamp of each member that this member saw while it was not wedged.
        echo: Counters,
    },
    Unordered {
        /// The number of each sender's turns that have arrived.
        held: Counters,
        /// The number of each sender's turns that the member has delivered.
        taken: Counters,
    },
}

impl Columns {
    pub(super) fn declare(mode: Mode, members: usize, senders: usize, bulk_senders: usize) -> (Columns, Arc<Layout>) {
        let mut layout = Layout::builder();
        let sent = layout.counter("sent");
        let order = match mode {
            Mode::Ordered | Mode::Durable => OrderColumns::Ordered {
                received: layout.counter("received"),
                delivered: layout.counter("delivered"),
                persisted: (mode == Mode::Durable).then(|| layout.counter("persisted")),
                logged: (mode == Mode::Durable).then(|| layout.counter("logged")),
                stamp: layout.counter("stamp"),
                echo: layout.counters("echo", members),
            },
            Mode::Unordered => OrderColumns::Unordered {
                held: layout.counters("held", senders),
                taken: layout.counters("taken", senders),
            },
        };
        let bulk = layout.counters("bulk", bulk_senders);
        (Columns { sent, order, bulk }, layout.build())
    }

    /// Returns the columns of a durable shard: of the persisted version, and of the logged one.
    pub(super) fn durable(&self) -> Option<(Counter, Counter)> {
        match self.order {
            OrderColumns::Ordered { persisted, logged, .. } => persisted.zip(logged),
            OrderColumns::Unordered { .. } => None,
        }
    }
}
