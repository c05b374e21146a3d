//! The events at a node's log.

use std::time::Duration;

use squall_fabric::NodeId;
use squall_membership::{Applied, Member, Proposal, Report, ReturnReport};

use super::force::Forcing;
use crate::{shared::QueuedBytes, types::AppResponse};

/// An event at a node's log.
pub(crate) enum Input {
    /// A message, with the room that it takes while it waits.
    Message {
        from: NodeId,
        /// Whether the sender may not be a member.
        only_votes: bool,
        bytes: Vec<u8>,
        _room: Option<QueuedBytes>,
    },
    Propose(Proposal),
    Join(Member),
    Report(Vec<Member>, Report),
    Return(ReturnReport),
    PeerGone(NodeId),
    Force(Forcing),
    /// The group lacks what this node has: the others are to be told.
    WentBack,
    /// An entry was applied.
    Applied(Applied),
    /// The leader or the voters have changed.
    Raft,
    /// The outcome of a proposal that was written.
    Written(Proposal, Result<AppResponse, String>),
    /// A change of voters and learners has ended; whether it took place.
    Changed(bool),
    /// Whether a voter agrees that this node leads, as it was asked at this time.
    Agreed(u64, Duration, bool),
    /// Whether a candidate, a withdrawal or a report of this node was written.
    Noted(NodeId, bool),
    Stop,
}
