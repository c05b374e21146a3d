//! Why a group ends.

use std::time::Duration;

use squall_fabric::{BreakReason, NodeId};

use crate::view::Epoch;

/// Why this node's part in a group is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndReason {
    /// The first view was not formed in time.
    #[error("the first view was not formed within {waited:?}: {}", list(missing))]
    NotFormed {
        /// Who was missing, and why if that is known.
        missing: Vec<(NodeId, Option<String>)>,
        /// How long this node waited.
        waited: Duration,
    },
    /// A member can't take part, which waiting does not mend.
    #[error("{node} can't take part: {why}")]
    Incompatible {
        /// The member.
        node: NodeId,
        /// A sentence that says why.
        why: String,
    },
    /// A member's connection broke.
    #[error("{node} was lost: {reason}")]
    Lost {
        /// The member.
        node: NodeId,
        /// Why its connection broke.
        reason: BreakReason,
    },
    /// A member has given this node up, as one that was stopped or cut off. The others go on without it, or have ended; what
    /// it does reaches nobody any more.
    #[error("this node is fenced off: {by} has given it up (was it stopped, or cut off from the others?); restart it")]
    GivenUp {
        /// The member.
        by: NodeId,
    },
    /// A member's heartbeat stood still.
    #[error("{node} is suspected: its heartbeat stood still for {timeout:?}")]
    Silent {
        /// The member.
        node: NodeId,
        /// The configured timeout.
        timeout: Duration,
    },
    /// Another member wedged the view.
    #[error("{node} ended the view{}", accusing(accused))]
    EndedBy {
        /// The member.
        node: NodeId,
        /// Whom it suspects, as far as is known.
        accused: Vec<NodeId>,
    },
    /// The view's successor is committed, and this node is not in it.
    #[error("this node was dropped from the group at {epoch}")]
    Dropped {
        /// The successor's epoch.
        epoch: Epoch,
    },
    /// A member sent what no correct member sends.
    #[error("{node} is faulty: {why}")]
    Faulty {
        /// The member.
        node: NodeId,
        /// What it did.
        why: String,
    },
    /// The view's successor is committed and everything up to its trims is delivered. This version does not install it.
    #[error("{epoch} is over, and was cleaned up")]
    CleanedUp {
        /// The epoch that ended.
        epoch: Epoch,
    },
    /// This node's application panicked, so its replica is like no other.
    #[error("this node's application panicked")]
    Panicked,
    /// This node is shutting down.
    #[error("this node is shutting down")]
    ShutDown,
}

impl EndReason {
    /// Whether it only says that somebody went, and not why.
    pub(crate) fn says_little(&self) -> bool {
        match self {
            EndReason::EndedBy { accused, .. } => accused.is_empty(),
            EndReason::Lost { reason, .. } => *reason == BreakReason::PeerClosed,
            _ => false,
        }
    }
}

fn list(missing: &[(NodeId, Option<String>)]) -> String {
    if missing.is_empty() {
        return "all members appeared, but not all of their connections came up".into();
    }
    let one = |(node, why): &(NodeId, Option<String>)| match why {
        Some(why) => format!("{node} is missing ({why})"),
        None => format!("{node} never appeared"),
    };
    missing.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn accusing(accused: &[NodeId]) -> String {
    if accused.is_empty() {
        return String::new();
    }
    let names: Vec<_> = accused.iter().map(NodeId::to_string).collect();
    format!(", since it suspects {}", names.join(", "))
}
