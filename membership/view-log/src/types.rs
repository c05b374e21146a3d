//! The types that openraft works with, for one runtime or another.

use std::fmt;

use openraft::{EntryPayload, RaftTypeConfig, impls};
use serde::{Deserialize, Serialize};
use squall_membership::{Applied, Entry, Member, Refused};

/// A leader of a term; a later leader of the same term may take its place.
pub(crate) type LeaderId = impls::leader_id_adv::LeaderId<u64, u64>;
pub(crate) type Committed = <LeaderId as openraft::vote::RaftLeaderId>::Committed;
pub(crate) type Vote = impls::Vote<LeaderId>;
pub(crate) type LogId = openraft::LogId<Committed>;
pub(crate) type Payload = EntryPayload<AppRequest, u64, LogNode>;
pub(crate) type LogEntry = openraft::Entry<Committed, Payload>;
#[cfg(feature = "sim")]
pub(crate) type Membership = openraft::Membership<u64, LogNode>;
pub(crate) type StoredMembership = openraft::StoredMembership<Committed, u64, LogNode>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<Committed, u64, LogNode>;
pub(crate) type Snapshot = openraft::Snapshot<Committed, u64, LogNode, Vec<u8>>;

/// The openraft types of this crate: all but the runtime is the same everywhere.
pub(crate) trait Types:
    RaftTypeConfig<
        D = AppRequest,
        R = AppResponse,
        NodeId = u64,
        Node = LogNode,
        Term = u64,
        LeaderId = LeaderId,
        Vote = Vote,
        Payload = Payload,
        Entry = LogEntry,
    >
{
}

openraft::declare_raft_types!(
    /// A runtime on tokio.
    pub(crate) Real:
        D = AppRequest,
        R = AppResponse,
        NodeId = u64,
        Node = LogNode,
        AsyncRuntime = openraft_rt_tokio::TokioRuntime,
);

impl Types for Real {}

/// The node that has a part in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogNode {
    pub(crate) member: Member,
    /// Whether it is a witness, which is never a member of a view.
    pub(crate) witness: bool,
}

impl Default for LogNode {
    fn default() -> LogNode {
        LogNode { member: Member::new(squall_fabric::NodeId(0), squall_membership::Incarnation(0)), witness: false }
    }
}

/// An entry of the view log, as openraft wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AppRequest(pub(crate) Entry);

impl fmt::Display for AppRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Entry::First { members, .. } => write!(f, "the first view, of {} members", members.len()),
            Entry::Candidate(member) => write!(f, "{} asks to join", member.node),
            Entry::Withdraw(node, _) => write!(f, "{node} asks no more"),
            Entry::Successor(proposal) => write!(f, "{}, by {}", proposal.view.epoch, proposal.by),
            Entry::Return(back) => write!(f, "{} is back, of {}", back.member.node, back.epoch),
            Entry::Force { proposal, .. } => write!(f, "{}, forced", proposal.view.epoch),
        }
    }
}

/// The outcome of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AppResponse {
    /// The entry counts, or has no effect on the view log's state.
    Taken,
    Refused(Refused),
}

impl From<&Applied> for AppResponse {
    fn from(applied: &Applied) -> AppResponse {
        match applied {
            Applied::View(_) | Applied::Candidates | Applied::Returns => AppResponse::Taken,
            Applied::Refused(refused) => AppResponse::Refused(refused.clone()),
        }
    }
}
