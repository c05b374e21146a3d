//! Raft's calls, over messages that may be lost.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use openraft::{
    OptionalSend, RaftNetworkFactory, RaftNetworkV2,
    entry::RaftEntry,
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{Backoff, RPCOption},
    raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse},
    type_config::TypeConfigExt,
};
use squall_fabric::{NodeId, sync::Lock};
use squall_membership::{ClusterId, Incarnation, Member, VoterId};
use tokio::sync::oneshot;

use crate::{
    types::{LogId, LogNode, Snapshot, Types, Vote},
    wire::{Answer, Body, Call, Contact, Envelope, Transport},
};

/// The way out for this node's messages, with the calls that wait for an answer.
pub(crate) struct LogNetwork {
    transport: Arc<dyn Transport>,
    state: Lock<LogNetworkState>,
}

struct LogNetworkState {
    cluster: Option<ClusterId>,
    me: Member,
    /// The lives that this node's storage remembers.
    lives: Vec<Incarnation>,
    addresses: BTreeMap<NodeId, Vec<String>>,
    next_call: u64,
    /// The calls whose answers are waited for.
    calls: BTreeMap<u64, PendingCall>,
    /// The last entry up to which a voter's log is known to match this node's, while this node led by that vote.
    matched: BTreeMap<VoterId, (Vote, LogId)>,
}

/// A call whose answer is waited for.
struct PendingCall {
    node: NodeId,
    voter: VoterId,
    waiter: oneshot::Sender<Result<Answer, String>>,
    /// The vote by which this node leads, and the last entry that the answer to a call with entries confirms.
    reaches: Option<(Vote, LogId)>,
    /// Whether the other has said before that it has what these entries follow.
    is_known: bool,
}

impl LogNetwork {
    pub(crate) fn new(transport: Arc<dyn Transport>, me: Member) -> LogNetwork {
        let (addresses, calls, matched) = Default::default();
        let state = LogNetworkState { cluster: None, me, lives: Vec::new(), addresses, next_call: 0, calls, matched };
        LogNetwork { transport, state: Lock::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, LogNetworkState> {
        self.state.lock()
    }

    /// Counts calls from here on. No earlier life of this node must have counted from there: an answer to one of its
    /// calls may still come.
    pub(crate) fn count_from(&self, first: u64) {
        self.lock().next_call = first;
    }

    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.lock().cluster
    }

    /// Takes part in this life of the group from now on. In another life nothing was asked or said yet, also if this
    /// node leads by the same vote.
    pub(crate) fn set_cluster(&self, cluster: Option<ClusterId>) {
        let mut state = self.lock();
        if state.cluster != cluster {
            (state.calls, state.matched) = Default::default();
        }
        state.cluster = cluster;
    }

    pub(crate) fn me(&self) -> Member {
        self.lock().me.clone()
    }

    pub(crate) fn set_me(&self, me: Member) {
        self.lock().me = me;
    }

    /// Sets the lives that this node's storage remembers.
    pub(crate) fn set_lives(&self, lives: Vec<Incarnation>) {
        self.lock().lives = lives;
    }

    /// Takes note of a node's own addresses: they may be newer than those in the log.
    pub(crate) fn learn(&self, member: &Member) {
        if !member.addresses.is_empty() {
            self.lock().addresses.insert(member.node, member.addresses.clone());
        }
    }

    /// Sends a message, if it is not too long.
    pub(crate) fn send(&self, to: &Contact, body: Body) {
        let mut contact = to.clone();
        let envelope = {
            let state = self.lock();
            if let Some(addresses) = to.node.and_then(|node| state.addresses.get(&node)) {
                contact.addresses.clone_from(addresses);
            }
            Envelope { cluster: state.cluster, from: state.me.clone(), lives: state.lives.clone(), body }
        };
        match envelope.encode() {
            Some(bytes) => self.transport.send(&contact, bytes),
            None => tracing::error!(?contact, "a message of the view log is longer than any may be, so it is not sent"),
        }
    }

    /// Hands a node's answer to the call that waits for it. False if the node lacks entries that it has acknowledged:
    /// nothing is handed on.
    pub(crate) fn answer(&self, from: NodeId, id: u64, answer: Result<Answer, String>) -> bool {
        let mut state = self.lock();
        if state.calls.get(&id).is_none_or(|waiting| waiting.node != from) {
            return true;
        }
        let Some(PendingCall { voter, waiter, reaches, is_known, .. }) = state.calls.remove(&id) else { return true };
        let matched = match &answer {
            Ok(Answer::Conflict) if is_known => return false,
            Ok(Answer::Appended) => reaches,
            Ok(Answer::AppendedTo(Some(last))) => reaches.map(|(vote, _)| (vote, *last)),
            _ => None,
        };
        if let Some((vote, last)) = matched {
            let known = state.matched.entry(voter).or_insert((vote, last));
            *known = if known.0 == vote { (vote, last.max(known.1)) } else { (vote, last) };
        }
        // The caller may have given up in the meantime.
        let _ = waiter.send(answer);
        true
    }
}

/// The factory of clients for the parts in the log.
pub(crate) struct Clients(pub(crate) Arc<LogNetwork>);

/// A client of one part in the log.
pub(crate) struct LogNetworkClient {
    network: Arc<LogNetwork>,
    node: NodeId,
    to: Contact,
    voter: VoterId,
}

/// A call that waits; dropping it forgets the call.
struct CallGuard<'a>(&'a LogNetwork, u64);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().calls.remove(&self.1);
    }
}

impl LogNetworkClient {
    pub(crate) fn new(network: &Arc<LogNetwork>, voter: u64, peer: &LogNode) -> LogNetworkClient {
        let (node, to) = (peer.member.node, Contact::from(&peer.member));
        LogNetworkClient { network: Arc::clone(network), node, to, voter: VoterId(voter) }
    }

    /// Asks whether this node, whose log ends here, may lead. None: no answer.
    pub(crate) async fn may_lead<C: Types>(&self, last: Option<LogId>, patience: Duration) -> Option<bool> {
        match self.call::<C>(Call::MayLead(last), RPCOption::new(patience)).await {
            Ok(Answer::MayLead(agrees)) => Some(agrees),
            Ok(_) | Err(_) => None,
        }
    }

    async fn call<C: Types>(&self, call: Call, option: RPCOption) -> Result<Answer, Unreachable<C>> {
        let (answer, answered) = oneshot::channel();
        let id = {
            let mut state = self.network.lock();
            let id = state.next_call;
            state.next_call = id.wrapping_add(1);
            let (mut reaches, mut is_known) = (None, false);
            if let Call::Append { vote, previous, entries, .. } = &call {
                reaches = entries.last().map(|entry| entry.log_id()).or(*previous).map(|last| (*vote, last));
                let matched = state.matched.get(&self.voter).filter(|(of, _)| of == vote);
                is_known = matched.is_some_and(|(_, last)| *previous <= Some(*last));
            }
            state
                .calls
                .insert(id, PendingCall { node: self.node, voter: self.voter, waiter: answer, reaches, is_known });
            id
        };
        let _pending = CallGuard(&self.network, id);
        self.network.send(&self.to, Body::Call { id, to: self.voter, call });
        match C::timeout(option.hard_ttl(), answered).await {
            Ok(Ok(Ok(answer))) => Ok(answer),
            Ok(Ok(Err(why))) => Err(Unreachable::from_string(why)),
            Ok(Err(_)) | Err(_) => Err(Unreachable::from_string(format!("no answer from {:?}", self.to))),
        }
    }

    fn unexpected<C: Types>() -> Unreachable<C> {
        Unreachable::from_string("an answer to another question")
    }
}

impl<C: Types> RaftNetworkV2<C> for LogNetworkClient {
    type SnapshotData = Vec<u8>;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<C>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<C>, RPCError<C>> {
        let answer = self.call::<C>(rpc.into(), option).await?;
        answer.appended().ok_or_else(|| Self::unexpected::<C>().into())
    }

    async fn vote(&mut self, rpc: VoteRequest<C>, option: RPCOption) -> Result<VoteResponse<C>, RPCError<C>> {
        let answer = self.call::<C>(Call::Vote(rpc.into()), option).await?;
        answer.voted().ok_or_else(|| Self::unexpected::<C>().into())
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<C>, StreamingError<C>> {
        let call = Call::Snapshot { vote, meta: snapshot.meta, data: snapshot.snapshot };
        let answer = self.call::<C>(call, option).await?;
        answer.installed().ok_or_else(|| Self::unexpected::<C>().into())
    }

    fn backoff(&self) -> Option<Backoff> {
        None
    }
}

impl<C: Types> RaftNetworkFactory<C> for Clients {
    type Network = LogNetworkClient;

    async fn new_client(&mut self, target: u64, peer: &LogNode) -> LogNetworkClient {
        LogNetworkClient::new(&self.0, target, peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nowhere;

    impl Transport for Nowhere {
        fn send(&self, _: &Contact, _: Vec<u8>) {}
    }

    #[test]
    fn an_answer_counts_only_from_whom_it_was_asked() {
        let network = LogNetwork::new(Arc::new(Nowhere), Member::new(NodeId(1), Incarnation(1)));
        let (answer, mut answered) = oneshot::channel();
        let (node, voter) = (NodeId(2), VoterId(2));
        network.lock().calls.insert(7, PendingCall { node, voter, waiter: answer, reaches: None, is_known: false });
        assert!(network.answer(NodeId(3), 7, Ok(Answer::Appended)));
        assert!(network.answer(NodeId(2), 8, Ok(Answer::Appended)));
        assert!(answered.try_recv().is_err());
        assert!(network.answer(NodeId(2), 7, Ok(Answer::Conflict)));
        assert!(matches!(answered.try_recv(), Ok(Ok(Answer::Conflict))));
    }
}
