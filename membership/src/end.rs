//! The causes for which a view ends, or a node's part in a group.

use std::time::Duration;

use squall_fabric::{BreakReason, NodeId, RegisterError};

use crate::{stall::WaitsFor, view::ShardId};

/// The reason for which this node's part in a group is over, for good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndReason {
    /// The lack of a first view, which was not formed in time.
    #[error("the first view was not formed within {waited:?}: {}", list(missing))]
    NotFormed {
        /// The missing nodes, each with the reason if that is known.
        missing: Vec<(NodeId, Option<String>)>,
        /// The time for which this node waited.
        waited: Duration,
    },
    /// A member that can't take part, which waiting does not mend.
    #[error("{node} can't take part: {why}")]
    Incompatible {
        /// The member.
        node: NodeId,
        /// A sentence that says why.
        why: String,
    },
    /// A view that could not be installed.
    #[error("a view could not be installed: {0}")]
    NoMemory(#[from] RegisterError),
    /// A failure of this node's disk: its data may not survive a crash here.
    #[error("this node's disk failed: {0}")]
    Storage(String),
    /// A departure: this node was asked to leave, or all members were.
    #[error("this node has left the group")]
    Left,
    /// A panic of this node's application, so that its replica is like no other.
    #[error("this node's application panicked")]
    Panicked,
    /// A panic of this node's application on a command that its log has, so that it would panic again. The sentence
    /// names the command, and says what can be done.
    #[error("{0}")]
    Poison(String),
    /// A log of this node that skips other commands than the others' logs, on an operator's word. The sentence names
    /// them, and says what can be done.
    #[error("{0}")]
    Skips(String),
    /// A shutdown of this node.
    #[error("this node is shutting down")]
    ShutDown,
}

/// The cause for which a view is wedged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// A break of a member's connection.
    #[error("{node} was lost: {reason}")]
    Lost {
        /// The member.
        node: NodeId,
        /// The reason for which its connection broke.
        reason: BreakReason,
    },
    /// A member that has given this node up, as one that was stopped or cut off.
    #[error("{by} has given this node up (was it stopped, or cut off from the others?)")]
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
    /// A member that did not appear in the view.
    #[error("{node} did not appear in the view, and nothing came about in it for {waited:?}")]
    Missing {
        /// The member.
        node: NodeId,
        /// The time for which this node waited.
        waited: Duration,
    },
    /// A view of which not all of the shards' connections came up.
    #[error("the shards' connections did not all come up within {waited:?}")]
    NotConnected {
        /// The time for which this node waited.
        waited: Duration,
    },
    /// A member that has begun another life.
    #[error("{node} has started anew")]
    Restarted {
        /// The member.
        node: NodeId,
    },
    /// An operator's word that a member is to be given up.
    #[error("an operator suspects {node}")]
    Operator {
        /// The member.
        node: NodeId,
    },
    /// A member whose heartbeat moves, and that makes no progress.
    #[error("{node} is given up: in {shard} it has waited for its {waits_for} for {waited:?}")]
    Late {
        /// The member.
        node: NodeId,
        /// The shard for which others wait.
        shard: ShardId,
        /// The thing for which it waits.
        waits_for: WaitsFor,
        /// The time for which it has stood still.
        waited: Duration,
    },
    /// A member that took too long to clean up the view before.
    #[error(
        "{node} has not come from the view before within {waited:?}: its disk or its application hangs, or \
        it has too much to deliver"
    )]
    Lingers {
        /// The member.
        node: NodeId,
        /// The time for which this node waited.
        waited: Duration,
    },
    /// A member that sent something that no correct member sends.
    #[error("{node} is faulty: {why}")]
    Faulty {
        /// The member.
        node: NodeId,
        /// The wrong that it did.
        why: String,
    },
    /// Another member wedged the view.
    #[error("{node} ended the view{}", accusing(accused))]
    WedgedBy {
        /// The member.
        node: NodeId,
        /// The members that it suspects, as far as is known.
        accused: Vec<NodeId>,
    },
    /// Nodes that ask to join, or have become complete.
    #[error("the members are to change")]
    Asked,
    /// A departure of this node.
    #[error("this node leaves")]
    Leaving,
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
