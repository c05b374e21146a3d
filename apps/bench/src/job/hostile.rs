//! The job of each process of `squall-bench hostile`, and its parent's commands.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::places::WorkerNode;

/// The harm that the hostile member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Harm {
    /// It reaches for what it was not given; what it says as a member is true
    Intrudes,
    /// It also lies where it may write: in its rows, its rings and its messages
    Lies,
}

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// A member with a caller, whose calls are measured.
    Honest,
    /// A member that does harm once it is told to.
    Hostile,
    /// A process outside of the cluster, without keys, which connects to all members.
    Stranger,
}

/// The job of one process of the run.
#[derive(Clone, Debug, Serialize, Deserialize, derive_more::Deref)]
pub(crate) struct HostileJob {
    #[deref]
    pub(crate) worker: WorkerNode,
    pub(crate) role: Role,
    pub(crate) harm: Harm,
    pub(crate) pause_ms: u64,
    pub(crate) failure_timeout_ms: u64,
}

/// A command to a process of the run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HostileCommand {
    /// Do harm from now on, if that is the role.
    Begin,
    /// Say [`Borne`](super::WorkerReport::Borne) for the time since the last such command.
    Tell,
}

/// The experience of a member's caller.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Borne {
    pub(crate) answered: u64,
    pub(crate) refused: u64,
    /// A histogram of nanoseconds: (value, count).
    pub(crate) latencies: Vec<(u64, u64)>,
    /// The longest time without an answer, in nanoseconds.
    pub(crate) longest: u64,
    /// The memory that the process has in use.
    pub(crate) resident_bytes: u64,
    /// The times that the node's part was over, and it was started again.
    pub(crate) starts: u64,
    /// The number of its newest view.
    pub(crate) epoch: u64,
}
