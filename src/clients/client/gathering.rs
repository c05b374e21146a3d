//! The replies of all members to one command, on their way to the caller.

use std::{
    collections::{BTreeSet, VecDeque},
    task::{Context, Poll, Waker},
};

use squall_fabric::{NodeId, sync::Lock};
use squall_runtime::blocking;

use super::error::ClientError;

/// The replies that have come, and the members whose replies have not.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    state: Lock<GatheringState>,
}

#[derive(Debug, Default)]
struct GatheringState {
    /// The members that answer, once the command was sent, or the reason for which it was not.
    members: Option<Result<Vec<NodeId>, ClientError>>,
    waiting: BTreeSet<NodeId>,
    come: VecDeque<(NodeId, Result<Vec<u8>, ClientError>)>,
    waker: Option<Waker>,
}

/// The reply of a member, or the reason for which it has none.
type MemberReply = (NodeId, Result<Vec<u8>, ClientError>);

impl Gathering {
    /// Notes that the command was sent, and that these members answer.
    pub(crate) fn sent(&self, members: Vec<NodeId>) {
        self.change(|state| {
            state.waiting = members.iter().copied().collect();
            state.members = Some(Ok(members));
        });
    }

    /// Takes the reply of a member.
    pub(crate) fn reply(&self, node: NodeId, reply: Result<Vec<u8>, ClientError>) {
        self.change(|state| {
            if state.waiting.remove(&node) {
                state.come.push_back((node, reply));
            }
        });
    }

    /// Ends the wait with an error, for each member that has not answered.
    pub(crate) fn fail(&self, error: &ClientError) {
        self.change(|state| {
            state.members.get_or_insert_with(|| Err(error.clone()));
            let waiting = std::mem::take(&mut state.waiting);
            state.come.extend(waiting.into_iter().map(|node| (node, Err(error.clone()))));
        });
    }

    fn change(&self, change: impl FnOnce(&mut GatheringState)) {
        let mut state = self.state.lock();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Polls for the members that answer.
    pub(super) fn poll_members(&self, context: &Context<'_>) -> Poll<Result<Vec<NodeId>, ClientError>> {
        let mut state = self.state.lock();
        match &state.members {
            Some(members) => Poll::Ready(members.clone()),
            None if blocking::is_applying() => Poll::Ready(Err(ClientError::InsideApply)),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Polls for the next reply. None once each member has one.
    pub(super) fn poll_next(&self, context: &Context<'_>) -> Poll<Option<MemberReply>> {
        let mut state = self.state.lock();
        if let Some(come) = state.come.pop_front() {
            return Poll::Ready(Some(come));
        }
        if state.waiting.is_empty() {
            return Poll::Ready(None);
        }
        if blocking::is_applying() {
            return Poll::Ready(state.waiting.pop_first().map(|node| (node, Err(ClientError::InsideApply))));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
