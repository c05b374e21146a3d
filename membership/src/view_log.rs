//! Where the successor of a view is decided.

use std::sync::Arc;

use squall_fabric::{NodeId, Time};

use crate::{machine::Trims, view::View};

/// What a leader asks for: the next view, and what each shard still delivers of the old one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The next view; its epoch is the current one's plus 1.
    pub view: Arc<View>,
    /// Each shard's trim: the smallest final count of the members that stay.
    pub trims: Trims,
}

/// What a view log has decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewEvent {
    /// The successor of the current view. Nobody acts on one that is not committed.
    Committed(Proposal),
    /// Nothing can be decided: too few of those who decide can be reached.
    NoQuorum,
}

/// Decides which view follows another.
///
/// # To ensure correctness
///
/// Each epoch has at most one committed successor, the same at every member, whoever proposed. A committed entry is
/// reported to every member that can be reached, also to those that did not propose.
pub trait ViewLog: Send {
    /// Asks for a successor. The answer comes through [`poll`](ViewLog::poll): it may be another member's proposal.
    fn propose(&mut self, proposal: Proposal);

    /// This node knows that a member's process has ended.
    fn peer_gone(&mut self, node: NodeId);

    /// What was decided, if anything.
    fn poll(&mut self, now: Time) -> Option<ViewEvent>;
}
