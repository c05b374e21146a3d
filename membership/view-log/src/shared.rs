//! The state that the log's task shares with its owner.

use std::{
    collections::VecDeque,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use squall_fabric::{NodeId, sync::Lock};
use squall_membership::{ClusterId, Epoch, Member, Proposal, ViewEvent, VoterId};

use crate::settings::Failure;

/// The most bytes of messages that may wait for the log's task, which may be writing to a slow disk.
const MAX_WAITING: usize = 32 << 20;

/// The state of a node's log, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewLogStatus {
    /// The cluster's life, once it is known.
    pub cluster: Option<ClusterId>,
    /// The current view's epoch, as far as this node knows.
    pub epoch: Option<Epoch>,
    /// The voters.
    pub voters: Vec<(NodeId, VoterId)>,
    /// The learners: nodes that are told of decisions and don't vote.
    pub learners: Vec<(NodeId, VoterId)>,
    /// The leader.
    pub leader: Option<NodeId>,
    /// Raft's term.
    pub term: u64,
    /// The last entry that was applied.
    pub applied: u64,
    /// The nodes that ask to join.
    pub candidates: Vec<NodeId>,
    /// The views that operators have forced, in words.
    pub forced: Vec<String>,
    /// A node of another life, which an operator forced, that this one does not go over to by itself: it holds what
    /// that life lacks, or can go on.
    pub other_life: Option<NodeId>,
    /// The voters of which nothing is heard, while this node is back and too few are there to decide.
    pub waits_for: Vec<NodeId>,
    /// Sentences of nodes that know more of the group than the group does, since it goes on from old copies of storage.
    pub went_back: Vec<String>,
    /// The last view that this node knows of, while it is in none.
    pub outside: Option<Proposal>,
    /// The reason for which nothing can be decided without an operator, and what to do, if that is so.
    pub stuck: Option<String>,
    /// The voters of which nothing was heard for long, while this node leads, or misses a leader and asks them. Else
    /// empty: nodes that do not lead say nothing to each other.
    pub silent: Vec<NodeId>,
    /// The node's search for its place, while it has none.
    pub search: Option<SearchStatus>,
}

/// A node's search for its place in a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchStatus {
    /// The time for which it has searched.
    pub waited: Duration,
    /// The nodes for which a group that forms waits, as far as this node knows.
    pub missing: Vec<NodeId>,
    /// The latest answer of each node that gave one a moment ago, in words to be read behind a colon.
    pub answers: Vec<(NodeId, String)>,
    /// The nodes that are asked and do not answer, each by its name, or by its addresses if it has no name yet.
    pub silent: Vec<String>,
}

/// The news that the log's task leaves for its owner.
pub(crate) struct OwnerMailbox {
    state: Lock<MailboxState>,
    /// Whether there may be an event: the owner looks millions of times a second.
    has_events: AtomicBool,
    wake: Arc<dyn Fn() + Send + Sync>,
    /// The bytes of messages that wait for the log's task.
    waiting: AtomicUsize,
}

/// The bytes that a message takes up while it waits for the log's task.
pub(crate) struct QueuedBytes(Arc<OwnerMailbox>, usize);

impl Drop for QueuedBytes {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(self.1, Ordering::Relaxed);
    }
}

pub(crate) struct MailboxState {
    pub(crate) events: VecDeque<ViewEvent>,
    pub(crate) me: Member,
    pub(crate) status: ViewLogStatus,
    pub(crate) failure: Option<Failure>,
}

impl OwnerMailbox {
    pub(crate) fn new(me: Member, wake: Arc<dyn Fn() + Send + Sync>) -> OwnerMailbox {
        let state = MailboxState { events: VecDeque::new(), me, status: ViewLogStatus::default(), failure: None };
        OwnerMailbox { state: Lock::new(state), has_events: AtomicBool::new(false), wake, waiting: AtomicUsize::new(0) }
    }

    /// Room for a message of this many bytes. None if too many wait: the message is lost, as messages may be.
    pub(crate) fn room(self: &Arc<Self>, bytes: usize) -> Option<QueuedBytes> {
        let before = self.waiting.fetch_add(bytes, Ordering::Relaxed);
        let room = QueuedBytes(Arc::clone(self), bytes);
        (before + bytes <= MAX_WAITING).then_some(room)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock()
    }

    pub(crate) fn push(&self, event: ViewEvent) {
        {
            let mut state = self.lock();
            state.events.push_back(event);
            self.has_events.store(true, Ordering::Release);
        }
        (self.wake)();
    }

    pub(crate) fn pop(&self) -> Option<ViewEvent> {
        if !self.has_events.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.lock();
        let event = state.events.pop_front();
        self.has_events.store(!state.events.is_empty(), Ordering::Release);
        event
    }

    /// Whether [`pop`](OwnerMailbox::pop) has something.
    #[cfg(feature = "sim")]
    pub(crate) fn has_events(&self) -> bool {
        self.has_events.load(Ordering::Acquire)
    }

    /// Stops the log. The first reason is the one that counts.
    pub(crate) fn fail(&self, failure: Failure) {
        self.lock().failure.get_or_insert(failure);
        (self.wake)();
    }
}

#[cfg(test)]
mod tests {
    use squall_membership::Incarnation;

    use super::*;

    #[test]
    fn messages_wait_only_as_far_as_there_is_room_for_them() {
        let shared = Arc::new(OwnerMailbox::new(Member::new(NodeId(1), Incarnation(1)), Arc::new(|| {})));
        let waiting = shared.room(MAX_WAITING - 1).expect("room");
        assert!(shared.room(2).is_none());
        let last = shared.room(1);
        assert!(last.is_some());
        drop(waiting);
        assert!(shared.room(MAX_WAITING - 1).is_some());
    }
}
