//! The error of a node that does not start.

use squall_fabric::NodeId;
use squall_membership::EndReason;
use squall_services::ControlError;

use super::plan::PlanError;
use crate::{durable::recovery::RecoverError, fabric::FabricError};

/// The reason for which a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The declared groups do not fit the configuration.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The fabric could not be opened.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The view log could not be started.
    #[error(transparent)]
    ViewLog(#[from] squall_view_log::StartError),
    /// A durable group can't be taken up where it was.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// The system gave no thread.
    #[error("the engine's thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
    /// The node is to be a witness, and the configuration does not say so.
    #[error("{node} is not among the configuration's `witnesses` ({witnesses:?}): add it there, at all nodes")]
    NoWitness {
        /// The node.
        node: NodeId,
        /// The configuration's witnesses.
        witnesses: Vec<NodeId>,
    },
    /// The node is a witness by its configuration, so it can't be a member.
    #[error(
        "{0} is one of the configuration's `witnesses`, which have no part in any group: run `squall witness`, or give another id"
    )]
    IsWitness(NodeId),
    /// An unordered group that should serve clients. Its replicas differ, so it can't be known what was applied once.
    #[error(
        "group {0:?} is unordered, and can't serve clients: declare it with `group`, or configure mode = \"ordered\""
    )]
    ServesUnordered(String),
    /// Other processes of this host could not be let in.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The group ended before its first view was formed; mostly [`EndReason::NotFormed`], which names the missing
    /// members.
    #[error(transparent)]
    NotFormed(EndReason),
}
