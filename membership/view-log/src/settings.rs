//! The settings of a log, and the reasons for which one stops.

use std::time::Duration;

use squall_fabric::NodeId;
use squall_membership::{Epoch, Layout, LayoutPolicy, Member, Parameters};

use crate::wire::Contact;

/// The settings of a node's log.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cluster's name. Nodes that name another are refused.
    pub cluster: String,
    /// This node, as it wants to be known. The log itself chooses `voter` and `fingerprint`, and raises `incarnation`
    /// above what the cluster remembers of the node: [`Monitor::me`](crate::Monitor::me) returns the result.
    pub me: Member,
    /// The layout of shards: alike at all nodes.
    pub layout: Layout,
    /// The application's say in where shards lie, for a first view that this node writes.
    pub policy: LayoutPolicy,
    /// Whatever else must be alike at all nodes, but witnesses. Members refuse a node whose parameters differ.
    pub parameters: Parameters,
    /// The node's way into a group.
    pub start: Start,
    /// The voters, by configuration; witnesses may be among them. None: as many members as make an odd number up to
    /// five, in the order of their ranks.
    pub voters: Option<Vec<NodeId>>,
    /// The times of the log.
    pub timing: Timing,
}

/// A node's way into a group.
#[derive(Clone, Debug)]
pub enum Start {
    /// A node that is one of the founders, if there is no group, and else joins.
    List {
        /// The first view's members by rank, this node among them.
        members: Vec<Contact>,
        /// Nodes that run a log only.
        witnesses: Vec<Contact>,
    },
    /// A node that asks to join.
    Join {
        /// Nodes that may know of the group.
        contacts: Vec<Contact>,
    },
    /// A node that runs a log and is never a member. It votes if the log's leader has it in [`Settings::voters`].
    Witness {
        /// Nodes that may know of the group.
        contacts: Vec<Contact>,
    },
}

impl Start {
    /// The node that begins the log, where there is a list.
    pub(crate) fn founder(&self) -> Option<NodeId> {
        match self {
            Start::List { members, .. } => members.first()?.node,
            Start::Join { .. } | Start::Witness { .. } => None,
        }
    }

    /// The nodes of the list, if there is one.
    pub(crate) fn listed(&self) -> Option<Vec<NodeId>> {
        match self {
            Start::List { members, .. } => Some(nodes(members)),
            Start::Join { .. } | Start::Witness { .. } => None,
        }
    }

    pub(crate) fn contacts(&self) -> impl Iterator<Item = &Contact> {
        let (first, second): (&[Contact], &[Contact]) = match self {
            Start::List { members, witnesses } => (members, witnesses),
            Start::Join { contacts } | Start::Witness { contacts } => (contacts, &[]),
        };
        first.iter().chain(second)
    }
}

pub(crate) fn nodes(contacts: &[Contact]) -> Vec<NodeId> {
    contacts.iter().filter_map(|contact| contact.node).collect()
}

/// The times of a log.
#[derive(Clone, Debug)]
pub struct Timing {
    /// The time between two heartbeats of the log's leader, for a while after something happened; three times as long
    /// else.
    pub heartbeat: Duration,
    /// The silence of a leader after which a node takes it for lost: the first if it waits for a decision, else the
    /// second. When a leader is [known to be gone](squall_membership::ViewLog::peer_gone), no node waits for it.
    /// Another is elected once most of the voters take it for lost. A leader steps aside if for as long as the second
    /// nothing that it has written is decided.
    pub election: (Duration, Duration),
    /// The time between two questions of a node that is in no group.
    pub hello: Duration,
    /// The time for which nothing may be decided before [`NoQuorum`](squall_membership::ViewEvent::NoQuorum) is
    /// reported.
    pub no_quorum: Duration,
    /// The time after which a node without a first view fails with [`Failure::NotFormed`] or [`Failure::NotAdmitted`].
    /// None: never.
    pub formation: Option<Duration>,
    /// The time for which nothing may be heard of a node that asks to join, before it counts as one that asks no more.
    pub withdraw: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            heartbeat: Duration::from_millis(300),
            election: (Duration::from_millis(900), Duration::from_millis(1500)),
            hello: Duration::from_millis(100),
            no_quorum: Duration::from_secs(2),
            formation: None,
            withdraw: Duration::from_secs(3),
        }
    }
}

/// The reason for which a log can't be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A list of nodes, with which this node was started, that does not name it.
    #[error("{node} is not among the members that it was configured with ({members:?}): add it, or let it join")]
    NotListed {
        /// The node.
        node: NodeId,
        /// The configured members.
        members: Vec<NodeId>,
    },
    /// The times contradict each other.
    #[error(
        "the view log's times don't fit together ({0}): the heartbeat must be shorter than the election times, in rising order"
    )]
    Timing(String),
    /// The store can't be used.
    #[error(transparent)]
    Storage(#[from] crate::StorageError),
    /// The start of another life of the node can't be stored.
    #[error("the view log can't be kept: {0}")]
    NotStored(std::io::Error),
    /// The thread could not be started.
    #[error("the view log's thread can't be started: {0}")]
    Thread(std::io::Error),
}

/// The reason for which a log has stopped: its node can't go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The end of the given time before a group came about.
    #[error("no group in {waited_ms} ms: {}", absent(missing))]
    NotFormed {
        /// The time that it waited, in milliseconds.
        waited_ms: u64,
        /// Nodes of the list from which nothing came.
        missing: Vec<NodeId>,
    },
    /// The end of the given time before the group that there is took this node in.
    #[error("the group is in epoch {epoch}, and has not taken this node in for {waited_ms} ms: {}", undecided(silent))]
    NotAdmitted {
        /// The time that it waited, in milliseconds.
        waited_ms: u64,
        /// The epoch of the group's view, as a member has told it.
        epoch: u64,
        /// Members of that view of which nothing is heard.
        silent: Vec<NodeId>,
    },
    /// A group was begun that can't go on without an operator.
    #[error("the group can't go on, as {with} says: {}", forgotten(nodes))]
    Forgotten {
        /// The node that says so.
        with: NodeId,
        /// The voters that have forgotten how they voted.
        nodes: Vec<NodeId>,
    },
    /// A difference between the configurations of this node and the others.
    #[error("{with} refuses this node: {why}")]
    Mismatch {
        /// The node that says so.
        with: NodeId,
        /// The difference.
        why: String,
    },
    /// The group has begun anew, and what this node has stored of it is of another life.
    #[error(
        "the group has begun anew without this node ({with} says so): start it again with an empty directory, to join"
    )]
    OtherLife {
        /// The node that says so.
        with: NodeId,
    },
    /// This node's storage lacks what it once had.
    #[error(
        "the storage in {directory} is an old copy, as {with} says, which knows what this node has done with a newer one: it \
         lacks what the node has decided and acknowledged since. Put the newer directory back; if that is lost, move this one \
         away and start the node with an empty one, to join"
    )]
    OldStorage {
        /// The node that says so.
        with: NodeId,
        /// The directory.
        directory: String,
    },
    /// A group most of whose voters went on from old copies of their storage, without what this node knows.
    #[error(
        "the group has gone back: {with} goes on at epoch {} from an old copy of its storage, and lacks what was decided and \
         acknowledged up to epoch {}, which this node has. Nothing in {directory} was changed, and `squall log read` shows the records \
         in it. End the others and put their newer directories back, if there are any. To go on without what this node has, move \
         {directory} away, and start this node with an empty one, to join",
        goes_on.0, known.0
    )]
    GroupWentBack {
        /// A member of the group that goes on.
        with: NodeId,
        /// The epoch of its view.
        goes_on: Epoch,
        /// The epoch of the last view that this node knows.
        known: Epoch,
        /// The directory in which this node keeps its data.
        directory: String,
    },
    /// Operators have forced two nodes to go on from the same life, each without the other. Only one of the two may.
    #[error(
        "operators forced both this node and {with} to go on without each other, and only the life of {with} counts: what this \
         node has accepted since then is not in it; start this node again, to join"
    )]
    Rival {
        /// The node that says so.
        with: NodeId,
    },
    /// The log can't be stored any more, or is damaged.
    #[error("the view log can't be kept any more: {0}")]
    Storage(String),
}

fn listed(nodes: &[NodeId]) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}

fn absent(missing: &[NodeId]) -> String {
    match missing {
        [] => "all could be reached, and no first view was decided (is one of them started again and again?)".into(),
        _ => format!("nothing was heard of {} (are they started, and can they be reached?)", listed(missing)),
    }
}

fn undecided(silent: &[NodeId]) -> String {
    match silent {
        [] => "its members answer, and decide nothing (does it have room for another, and do their clocks and disks work?)".into(),
        _ => format!(
            "nothing is heard of its members {}; if too few voters are left, start them, or force one that is left to go on \
             (`squall recover --force --reason TEXT`)",
            listed(silent)
        ),
    }
}

/// A sentence for a group of which too many voters have forgotten their votes: the case, and what to do.
pub(crate) fn forgotten(nodes: &[NodeId]) -> String {
    format!(
        "what {} voted is lost with the process, so too few voters are left to decide, for good: `squall recover \
         --force --reason TEXT` at a member that still runs lets it go on alone, and the others join it; with `storage`, votes outlive a process",
        listed(nodes)
    )
}

/// The reason for which a node does not begin another life of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotForced {
    /// A force of another node before.
    #[error(
        "{with} was forced before it, and goes on: this node joins it by itself, if it holds nothing that {with} lacks"
    )]
    Begun {
        /// That node, or one that has joined it.
        with: NodeId,
    },
    /// A force of another node at this moment.
    #[error("{with} is being forced to go on at the same moment, and goes first: this node joins it by itself")]
    AtOnce {
        /// That node.
        with: NodeId,
    },
    /// A decision of what follows the view, so that there is nothing to force any more.
    #[error("what follows its view was decided meanwhile: nothing is to be forced")]
    Decided,
    /// A log that can't be begun anew.
    #[error("the view log can't be begun anew: {0}")]
    Failed(String),
}
