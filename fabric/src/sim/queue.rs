//! Virtual time: the events that are to come, in order.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::{EndpointId, Time};

/// A node, by its place in the world's list.
pub(super) type NodeIx = u32;

/// An event that is to come. All are cheap to ignore when their endpoint is gone by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// Look at the first operation that travels towards this endpoint.
    Land(EndpointId),
    /// A large operation towards this endpoint has left the bottleneck: the next may go.
    Pump(EndpointId),
    /// A segment of a large operation towards this endpoint comes to its next port.
    Hop(EndpointId),
    /// The first outstanding work of this endpoint may be complete.
    Done(EndpointId),
    /// The moment from which this endpoint and its counterpart may meet.
    Meet(EndpointId),
    /// Report `Connected`.
    Connected(EndpointId),
    /// Serve a read at the endpoint that it reached.
    Serve(EndpointId, u64),
    /// The bytes of a read come back to the endpoint that asked.
    Return(EndpointId, u64),
    /// The silence of this endpoint's peer since the partition with this number.
    Unreachable(EndpointId, u64),
    /// Sabotaged: this endpoint has waited long enough for its counterpart.
    GiveUp(EndpointId),
    /// Sabotaged: this endpoint, which was closed, ends.
    Close(EndpointId),
    /// A node has something to look at.
    Notice(NodeIx),
    /// A node's interface goes on with its graphs.
    Graphs(NodeIx),
}

#[derive(Debug, Default)]
pub(super) struct EventQueue {
    heap: BinaryHeap<Reverse<(Time, u64, Event)>>,
    /// The number of events scheduled so far, which orders events of one instant.
    scheduled: u64,
}

impl EventQueue {
    pub(super) fn at(&mut self, time: Time, event: Event) {
        self.scheduled += 1;
        self.heap.push(Reverse((time, self.scheduled, event)));
    }

    pub(super) fn next_time(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((time, ..))| *time)
    }

    pub(super) fn pop_until(&mut self, limit: Time) -> Option<(Time, Event)> {
        if self.next_time()? > limit {
            return None;
        }
        self.heap.pop().map(|Reverse((time, _, event))| (time, event))
    }
}
