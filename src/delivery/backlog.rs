//! The messages and views that are delivered to a member before it has its group's state.

use std::{collections::VecDeque, sync::Arc};

use squall_fabric::NodeId;
use squall_membership::{Epoch, Seq};
use squall_ordered::{Message, log::Hlc};

use crate::{capture::state::Frontier, replica::view_change::NewView};

/// The number of bytes that are kept at most. Beyond it, all entries are dropped, and only a newer state is of use.
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// The size of an entry besides its payload, in bytes.
const OVERHEAD: usize = 64;

/// An event that a replica must be told of once it has its state.
#[derive(Debug)]
pub(crate) enum BacklogEntry {
    Message { epoch: Epoch, seq: Seq, sender: NodeId, time: Hlc, payload: Box<[u8]> },
    View(Arc<NewView>),
}

/// Messages and views without a gap from some place on.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// A state that lacks something before this place is of no use.
    from: Frontier,
    /// The place behind the newest entry.
    to: Frontier,
    entries: VecDeque<BacklogEntry>,
    bytes: usize,
    max_bytes: usize,
}

impl Backlog {
    /// An empty backlog of a view that begins.
    pub(crate) fn new(epoch: Epoch, senders: usize, max_bytes: usize) -> Backlog {
        let from = Frontier::begin(epoch, senders);
        Backlog { to: from.clone(), from, entries: VecDeque::new(), bytes: 0, max_bytes }
    }

    /// Keeps a message. Returns false if that was too much, and all entries were dropped.
    pub(crate) fn push(&mut self, message: &Message<'_>) -> bool {
        let &Message { epoch, seq, sender, time, .. } = message;
        let mut payload = vec![0; message.payload.len()].into_boxed_slice();
        message.payload.read(&mut payload);
        self.to.pass(seq);
        self.bytes += payload.len() + OVERHEAD;
        self.entries.push_back(BacklogEntry::Message { epoch, seq, sender, time, payload });
        let fits = self.bytes <= self.max_bytes;
        if !fits {
            self.from = self.to.clone();
            self.entries = VecDeque::new();
            self.bytes = 0;
        }
        fits
    }

    /// Goes on in the view that follows.
    pub(crate) fn push_view(&mut self, view: Arc<NewView>) {
        self.to = Frontier::begin(view.change.epoch, view.change.senders.len());
        self.bytes += OVERHEAD;
        self.entries.push_back(BacklogEntry::View(view));
    }

    /// Whether it begins no later than the end of `state`.
    pub(crate) fn joins(&self, state: &Frontier) -> bool {
        state.covers(&self.from)
    }

    /// Takes the oldest entry that `state` lacks.
    pub(crate) fn pop(&mut self, state: &Frontier) -> Option<BacklogEntry> {
        loop {
            let entry = self.entries.pop_front()?;
            self.bytes -= OVERHEAD;
            let lacks = match &entry {
                BacklogEntry::Message { epoch, seq, payload, .. } => {
                    self.bytes -= payload.len();
                    self.from.pass(*seq);
                    !state.includes(*epoch, *seq)
                }
                BacklogEntry::View(view) => {
                    let change = &view.change;
                    self.from = Frontier::begin(change.epoch, change.senders.len());
                    change.epoch > state.epoch
                }
            };
            if lacks {
                return Some(entry);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the place behind the newest message that was kept, or that at the beginning of its view.
    pub(crate) fn to(&self) -> &Frontier {
        &self.to
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use squall_membership::ClusterId;
    use squall_ordered::{Payload, log::Position};

    use super::*;
    use crate::replica::view_change::ViewChange;

    const NODE: NodeId = NodeId(1);

    fn frontier(epoch: u64, turns: &[u64]) -> Frontier {
        Frontier { epoch: Epoch(epoch), turns: turns.to_vec() }
    }

    fn view(epoch: u64) -> Arc<NewView> {
        let (members, senders) = (vec![NODE], vec![NODE, NodeId(2)]);
        let change = ViewChange { epoch: Epoch(epoch), members, senders, joined: Vec::new(), left: Vec::new() };
        Arc::new(NewView { change, life: ClusterId(1), ended: Position::START, complete: Vec::new() })
    }

    fn message(epoch: u64, seq: u64, bytes: &[u8]) -> Message<'_> {
        let (epoch, seq, payload) = (Epoch(epoch), Seq(seq), Payload::kept(bytes));
        Message { epoch, seq, sender: NODE, time: Hlc(0), payload, ticket: 0 }
    }

    /// Places 0, 1 and 4 of view 3, and place 1 of view 4, of two senders.
    fn backlog(max_bytes: usize) -> Backlog {
        let mut backlog = Backlog::new(Epoch(3), 2, max_bytes);
        for seq in [0, 1, 4] {
            backlog.push(&message(3, seq, &[seq as u8]));
        }
        backlog.push_view(view(4));
        backlog.push(&message(4, 1, &[11]));
        backlog
    }

    /// The entries beyond a state: messages by their byte, views by 100 times their epoch.
    fn beyond(mut backlog: Backlog, state: &Frontier) -> Vec<u64> {
        let name = |entry| match entry {
            BacklogEntry::Message { payload, .. } => u64::from(payload[0]),
            BacklogEntry::View(view) => 100 * view.change.epoch.0,
        };
        std::iter::from_fn(|| backlog.pop(state)).map(name).collect()
    }

    #[test]
    fn a_state_is_followed_by_what_it_lacks() {
        for (state, lacks) in [
            (frontier(3, &[0, 0]), vec![0, 1, 4, 400, 11]),
            (frontier(3, &[1, 0]), vec![1, 4, 400, 11]),
            (frontier(3, &[3, 1]), vec![400, 11]),
            (frontier(4, &[0, 0]), vec![11]),
            (frontier(4, &[0, 1]), vec![]),
        ] {
            let backlog = backlog(MAX_BYTES);
            assert!(backlog.joins(&state));
            assert_eq!(beyond(backlog, &state), lacks, "{state:?}");
        }
    }

    #[test]
    fn a_state_of_an_earlier_view_leaves_a_gap() {
        assert!(!backlog(MAX_BYTES).joins(&frontier(2, &[9, 9])));
    }

    #[test]
    fn what_is_too_much_is_dropped_and_needs_a_newer_state() {
        let backlog = backlog(3 * OVERHEAD);
        assert!(!backlog.joins(&frontier(3, &[2, 1])), "place 4 is gone");
        let state = frontier(3, &[3, 1]);
        assert!(backlog.joins(&state));
        assert_eq!(beyond(backlog, &state), [400, 11]);
    }
}
