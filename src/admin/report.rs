//! How a node sees its cluster.

use std::fmt;

use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;
use squall_membership::WaitsFor;
use squall_view_log::Monitor;

use crate::{
    error::Nodes,
    status::{Fetching, LogStatus},
};

/// How a node sees its cluster, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The cluster's name.
    pub cluster: String,
    /// Who answers.
    pub node: NodeId,
    /// Its version of Squall.
    pub version: String,
    /// How it stands.
    pub standing: Standing,
    /// A sentence if its wall clock differs from those of most other members by more than its `clock_limit_ms`.
    pub clock: Option<String>,
    /// The number of its view, from 1; None before its first.
    pub epoch: Option<u64>,
    /// The lowest-ranked member that it does not suspect: who leads when the view must change.
    pub leader: Option<NodeId>,
    /// The view's members, by rank.
    pub members: Vec<MemberReport>,
    /// Who was new in this view.
    pub joined: Vec<NodeId>,
    /// Who was in the view before and is not in this one.
    pub left: Vec<NodeId>,
    /// The shards.
    pub shards: Vec<ShardReport>,
    /// Members of these that stand still, though they have something to do, so that others wait for them.
    pub stalls: Vec<StallReport>,
    /// The view log, as its part at this node knows it.
    pub view_log: Option<ViewLogReport>,
    /// Who asks to join, in the order in which they asked.
    pub candidates: Vec<CandidateReport>,
    /// What operators have forced, in words, oldest first.
    pub forced: Vec<String>,
    /// Sentences of nodes that know more than the group, since it goes on from old copies of storage.
    pub went_back: Vec<String>,
}

/// How a node stands to its group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It waits for the other members of the first view.
    Forming,
    /// It asks to join, for the first time or after it was dropped.
    Joining,
    /// It was dropped again soon after it had joined, so it waits before it asks again.
    Waiting {
        /// How long, in milliseconds.
        rejoins_in_ms: u64,
    },
    /// It is a member of the view, and works.
    Member,
    /// The view is about to change: nothing is accepted for a moment.
    Wedged,
    /// Nothing can be decided; a sentence says why. It goes on when enough of those who decide can be reached.
    Stalled(String),
    /// Its part is over; a sentence says why.
    Ended(String),
    /// It votes on views, and is in no group.
    Witness,
}

/// A member of the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// The node.
    pub node: NodeId,
    /// Which of its lives: a later one has a higher number.
    pub incarnation: u64,
    /// Where it can be dialed.
    pub addresses: Vec<String>,
    /// Where it stands; empty if that is not said.
    pub rack: String,
    /// How long ago its heartbeat moved, in milliseconds; None for who answers.
    pub heartbeat_age_ms: Option<u64>,
    /// By how much its wall clock is ahead of that of who answers, in milliseconds, negative if it is behind; None if that is not known.
    pub clock_ahead_ms: Option<i64>,
    /// Who answers suspects it.
    pub suspected: bool,
    /// Its row says that it has wedged.
    pub wedged: bool,
    /// It asks to leave.
    pub leaving: bool,
}

/// A shard of the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardReport {
    /// Its number.
    pub shard: u32,
    /// Its group's name.
    pub group: String,
    /// What it can do.
    pub condition: ShardCondition,
    /// The state that who answers lacks, while it is on its way.
    pub fetching: Option<Fetching>,
    /// The log of who answers, if the group is durable.
    pub log: Option<LogStatus>,
    /// Its members' rows, by rank. Counts are those of a node that is a member of the shard; others know none.
    pub rows: Vec<RowReport>,
}

/// A shard that starts empty, or from an earlier place, since an operator lets a node go on alone that does not hold its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptiedShard {
    /// Its number.
    pub shard: u32,
    /// Its group's name.
    pub group: String,
    /// The version from which it goes on: the last one in this node's log. 0 if it starts empty.
    pub version: u64,
    /// The nodes that held its state last, as far as the view says. Some may still run, or have it on disk: it is not used any more.
    pub held_by: Vec<NodeId>,
}

impl fmt::Display for EmptiedShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EmptiedShard { shard, group, version, held_by } = self;
        match version {
            0 => write!(f, "shard {shard} of {group:?} starts empty: this node did not hold its state")?,
            _ => write!(
                f,
                "shard {shard} of {group:?} goes on from version {version}, the last in this node's log: it did not hold its state"
            )?,
        }
        match held_by.as_slice() {
            [] => Ok(()),
            held_by => write!(f, ", which {} held last", Nodes(held_by)),
        }
    }
}

/// What a shard can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardCondition {
    /// All that it is there for.
    Active,
    /// It has too few members that hold its state, and refuses work until others join.
    Inadequate,
    /// None of those who held its state is a member. It goes on when one of these returns with it.
    Suspended {
        /// They, and former holders with whose copies it may go on.
        last_holders: Vec<NodeId>,
        /// The version up to which messages were acknowledged, as far as the logs say of those who are back; 0 if they say nothing.
        acknowledged: u64,
        /// All of these are members. If it does not go on within seconds, none of them has its state any more.
        all_back: bool,
    },
}

/// A member's row of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowReport {
    /// The member.
    pub node: NodeId,
    /// It may send.
    pub sender: bool,
    /// It holds the shard's whole state.
    pub complete: bool,
    /// Turns that it has used as a sender, nulls included.
    pub sent: u64,
    /// Places of the order that it has received.
    pub received: u64,
    /// Places of the order that it has delivered.
    pub delivered: u64,
    /// In a durable group: the last version that it has on disk; 0 as long as it does not count.
    pub persisted: Option<u64>,
    /// How many places that some member has received it has not delivered.
    pub lag: u64,
}

/// A member that stands still, though it has something to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallReport {
    /// The member.
    pub node: NodeId,
    /// The shard's number.
    pub shard: u32,
    /// Its group's name.
    pub group: String,
    /// For what the member waits.
    pub waits_for: WaitsFor,
    /// For how long, in milliseconds.
    pub for_ms: u64,
}

/// The view log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewLogReport {
    /// Who votes.
    pub voters: Vec<NodeId>,
    /// Who only follows.
    pub learners: Vec<NodeId>,
    /// Who leads, if that is known.
    pub leader: Option<NodeId>,
    /// The leader's term.
    pub term: u64,
    /// The last entry that was applied.
    pub applied: Option<u64>,
    /// Where this node keeps it; None if in memory.
    pub storage: Option<String>,
}

/// A node that asks to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateReport {
    /// The node.
    pub node: NodeId,
    /// Which of its lives.
    pub incarnation: u64,
    /// Where it can be dialed.
    pub addresses: Vec<String>,
}

impl StatusReport {
    /// What the view log's part at a node knows, which has no view.
    pub(crate) fn of_log(cluster: &str, node: NodeId, log: &Monitor, storage: Option<String>) -> StatusReport {
        let status = log.status();
        let nodes = |parts: &[(NodeId, _)]| {
            let mut nodes: Vec<NodeId> = parts.iter().map(|(node, _)| *node).collect();
            nodes.sort_unstable();
            nodes
        };
        StatusReport {
            cluster: cluster.to_owned(),
            node,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            standing: Standing::Forming,
            clock: None,
            epoch: None,
            leader: None,
            members: Vec::new(),
            joined: Vec::new(),
            left: Vec::new(),
            shards: Vec::new(),
            stalls: Vec::new(),
            view_log: status.cluster.map(|_| ViewLogReport {
                voters: nodes(&status.voters),
                learners: nodes(&status.learners),
                leader: status.leader,
                term: status.term,
                applied: Some(status.applied).filter(|&applied| applied > 0),
                storage,
            }),
            candidates: Vec::new(),
            forced: status.forced,
            went_back: status.went_back,
        }
    }
}

impl ShardReport {
    /// Works out how far each member lags.
    pub(crate) fn with_lags(mut self) -> ShardReport {
        let most = self.rows.iter().map(|row| row.received).max().unwrap_or(0);
        self.rows.iter_mut().for_each(|row| row.lag = most.saturating_sub(row.delivered));
        self
    }
}
