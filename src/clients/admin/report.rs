//! A node's report of its cluster.

use std::{
    collections::BTreeMap,
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use squall_fabric::{
    NodeId, NodeList,
    net::{Expiry, Identity, PortMonitor},
};
use squall_membership::WaitsFor;
use squall_view_log::{Monitor, SearchStatus};

use crate::{
    durable::{room::RoomStatus, status::LogStatus},
    state_transfer::fetcher::Fetching,
};

/// A node's report of its cluster, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The cluster's name.
    pub cluster: String,
    /// The node that answers.
    pub node: NodeId,
    /// The node's version of Squall.
    pub version: String,
    /// The condition of the node in its group.
    pub condition: NodeCondition,
    /// The things for which the node itself waits, so that it does not do its work, or does not do it alone.
    pub waits: Vec<WaitReport>,
    /// The time since the node's start, in milliseconds: totals are counted from there. None if its engine does not
    /// answer.
    pub up_ms: Option<u64>,
    /// A sentence if the node's wall clock differs from those of most other members by more than its `clock_limit_ms`.
    pub clock: Option<String>,
    /// The room on the node's storage, if it keeps logs there.
    pub room: Option<RoomStatus>,
    /// The number of the node's view, from 1; None before its first.
    pub epoch: Option<u64>,
    /// The number of views that the node has installed since its start.
    pub views_installed: u64,
    /// The members that the node's configuration lists; empty if it lists none, as for a node that joins.
    pub configured: Vec<NodeId>,
    /// The lowest-ranked member that the node does not suspect: it leads when the view must change.
    pub leader: Option<NodeId>,
    /// The view's members, by rank.
    pub members: Vec<MemberReport>,
    /// The members that were new in this view.
    pub joined: Vec<NodeId>,
    /// The members that were in the view before and are not in this one.
    pub left: Vec<NodeId>,
    /// The shards.
    pub shards: Vec<ShardReport>,
    /// Members of these shards that stand still, though they have something to do, so that others wait for them.
    pub stalls: Vec<StallReport>,
    /// The clients that this node serves, and their calls; None if its program serves none.
    pub clients: Option<ClientsReport>,
    /// The view log, as this node's part of it knows it.
    pub view_log: Option<ViewLogReport>,
    /// The nodes that ask to join, in the order in which they asked.
    pub candidates: Vec<CandidateReport>,
    /// The decisions that operators have forced, in words, oldest first.
    pub forced: Vec<String>,
    /// Sentences about nodes that know more than the group, since the group goes on from old copies of storage.
    pub went_back: Vec<String>,
    /// The node's keys; None if it has none.
    pub keys: Option<KeysReport>,
    /// The refusals at the node's port; None if it has none.
    pub port: Option<PortReport>,
}

/// The keys of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysReport {
    /// The owner of the certificate.
    pub owner: String,
    /// The ends of the certificates that the node uses.
    pub certificates: Vec<CertificateReport>,
    /// The reason for which the keys that are in the files now are not used; None if they are.
    pub problem: Option<String>,
}

/// The end of a certificate, or of the first of several in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateReport {
    /// The certificate's file.
    pub certificate: String,
    /// Its last second, counted from 1970.
    pub until_unix_s: u64,
    /// The time that is left, in seconds; negative if it has passed.
    pub left_s: i64,
    /// Whether it should be renewed: in its last 30 days, or after two thirds of a shorter life than 90 days.
    pub ends_soon: bool,
}

/// The refusals at a node's port, since its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// The connections that were refused.
    pub refused: Vec<RefusedReport>,
    /// The calls that certificates did not permit.
    pub denied: Vec<DeniedReport>,
}

/// Connections that were refused for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedReport {
    /// The reason, in words.
    pub reason: String,
    /// The number of these connections.
    pub count: u64,
}

/// Calls that the certificates of a role do not permit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedReport {
    /// The role of the callers.
    pub role: String,
    /// The call.
    pub call: String,
    /// The number of these calls.
    pub count: u64,
}

/// The condition of a node in its group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeCondition {
    /// A node that waits for the other members of the first view.
    Forming,
    /// A node that asks to join, for the first time or after it was dropped.
    Joining,
    /// A node that was dropped again soon after it had joined, so that it waits before it asks again.
    Waiting {
        /// The time until it asks again, in milliseconds.
        rejoins_in_ms: u64,
    },
    /// A node that is a member of the view, and takes part.
    Member,
    /// A node whose view is about to change: nothing is accepted for a moment.
    Wedged,
    /// A stall: nothing can be decided, for the reason in the sentence. The node continues when enough voters can be
    /// reached.
    Stalled(String),
    /// The end of the node's part; a sentence says why.
    Ended(String),
    /// A node that votes on views, and is in no group.
    Witness,
}

/// A thing for which a node waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitReport {
    /// The thing, in words to be read behind "it waits for".
    pub waits_for: String,
    /// The nodes on which it depends, as far as they are known.
    pub nodes: Vec<NodeId>,
    /// The time for which the node has waited, in milliseconds, if it is known.
    pub for_ms: Option<u64>,
}

/// The clients of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientsReport {
    /// The clients that are connected.
    pub connected: u64,
    /// Their requests and queries since the node's start.
    pub calls: u64,
    /// The rate of these: an average that counts the last 10 seconds most.
    pub calls_per_second: u64,
}

/// The messages of a shard at a node. Totals are counted since the node's start, over all views. Rates are averages
/// that count the last 10 seconds most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficReport {
    /// Messages that were delivered to this node's replica.
    pub delivered: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// The messages of this node among them.
    pub submitted: u64,
    /// Their bytes.
    pub submitted_bytes: u64,
    /// Messages that were no commands, so that all members skipped them.
    pub skipped: u64,
    /// Reads that this node's replica answered.
    pub reads: u64,
    /// Messages delivered per second.
    pub delivered_per_second: u64,
    /// Their bytes per second.
    pub delivered_bytes_per_second: u64,
    /// The messages of this node among them, per second.
    pub submitted_per_second: u64,
    /// Their bytes per second.
    pub submitted_bytes_per_second: u64,
    /// Reads answered per second.
    pub reads_per_second: u64,
}

/// A member of the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// The node.
    pub node: NodeId,
    /// The number of the node's life: a later life has a higher number.
    pub incarnation: u64,
    /// The addresses at which it can be dialed.
    pub addresses: Vec<String>,
    /// The rack in which it stands; empty if none is configured.
    pub rack: String,
    /// The transport of messages to it, in words; None for the node that answers, and while it is not chosen.
    pub transport: Option<String>,
    /// The reason for which that is not shared memory, though both are processes of one user on one host.
    pub unshared: Option<String>,
    /// The time since its heartbeat moved, in milliseconds; None for the node that answers.
    pub heartbeat_age_ms: Option<u64>,
    /// The time by which its wall clock is ahead of that of the node that answers, in milliseconds, negative if it is
    /// behind; None if that is not known.
    pub clock_ahead_ms: Option<i64>,
    /// Whether the node that answers suspects it.
    pub suspected: bool,
    /// Whether its row says that it has wedged.
    pub wedged: bool,
    /// Whether it asks to leave.
    pub leaving: bool,
    /// Whether its storage is short of room.
    pub short_of_room: bool,
}

/// A shard of the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardReport {
    /// Its number.
    pub shard: u32,
    /// Its group's name.
    pub group: String,
    /// The shard's ability to work.
    pub condition: ShardCondition,
    /// The messages at the node that answers.
    pub traffic: TrafficReport,
    /// The state that the node that answers lacks, while it is on its way.
    pub fetching: Option<Fetching>,
    /// The log of the node that answers, if the group is durable.
    pub log: Option<LogStatus>,
    /// Its members' rows, by rank. Counts are those of a node that is a member of the shard; other nodes know none.
    pub rows: Vec<RowReport>,
}

/// A shard that starts empty, or from an earlier place, since an operator lets a node go on alone that does not hold
/// its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptiedShard {
    /// Its number.
    pub shard: u32,
    /// Its group's name.
    pub group: String,
    /// The version from which it goes on: the last one in this node's log. 0 if it starts empty.
    pub version: u64,
    /// The nodes that held its state last, as far as the view says. Some may still run, or have the state on disk: it
    /// is not used any more.
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
            held_by => write!(f, ", which {} held last", NodeList(held_by)),
        }
    }
}

/// The ability of a shard to work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardCondition {
    /// A shard that does all its work.
    Active,
    /// A shard that has too few members that hold its state, and refuses work until others join.
    Inadequate,
    /// The absence of all nodes that held the shard's state. The shard continues when one of these returns with the
    /// state.
    Suspended {
        /// The nodes that held the state, and former holders with whose copies it may go on.
        last_holders: Vec<NodeId>,
        /// The version up to which messages were acknowledged, according to the logs of the nodes that are back; 0 if
        /// they do not say.
        acknowledged: u64,
        /// Whether all of these are members. If the shard does not continue within seconds, none of them has its state
        /// any more.
        all_back: bool,
    },
}

/// A member's row of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowReport {
    /// The member.
    pub node: NodeId,
    /// Whether it may send.
    pub sender: bool,
    /// Whether it holds the shard's whole state.
    pub complete: bool,
    /// Whether it is a member only until the others hold the state: the shard moves from it.
    pub goes: bool,
    /// Turns that it has used as a sender, nulls included.
    pub sent: u64,
    /// Places of the order that it has received.
    pub received: u64,
    /// Places of the order that it has delivered.
    pub delivered: u64,
    /// The last version that it has on disk, in a durable group; 0 as long as it does not count.
    pub persisted: Option<u64>,
    /// The number of places that some member has received and it has not delivered.
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
    /// The cause for which the member waits.
    pub waits_for: WaitsFor,
    /// The time for which it has waited, in milliseconds.
    pub for_ms: u64,
}

/// The view log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewLogReport {
    /// The nodes that vote.
    pub voters: Vec<NodeId>,
    /// The voters of which the node that answers has heard nothing for long, while it leads or misses a leader.
    pub silent: Vec<NodeId>,
    /// The nodes that follow without a vote.
    pub learners: Vec<NodeId>,
    /// The node that leads, if it is known.
    pub leader: Option<NodeId>,
    /// The leader's term.
    pub term: u64,
    /// The last entry that was applied.
    pub applied: Option<u64>,
    /// The directory in which this node keeps the log; None if it is in memory.
    pub storage: Option<String>,
}

/// A node that asks to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateReport {
    /// The node.
    pub node: NodeId,
    /// The number of the node's life.
    pub incarnation: u64,
    /// The addresses at which it can be dialed.
    pub addresses: Vec<String>,
}

impl StatusReport {
    /// Reports the knowledge of a node that has a part in the view log and no view.
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
            condition: NodeCondition::Forming,
            waits: status.search.iter().map(WaitReport::of_search).collect(),
            up_ms: None,
            clock: None,
            room: None,
            epoch: None,
            views_installed: 0,
            configured: Vec::new(),
            leader: None,
            members: Vec::new(),
            joined: Vec::new(),
            left: Vec::new(),
            shards: Vec::new(),
            stalls: Vec::new(),
            clients: None,
            view_log: status.cluster.map(|_| ViewLogReport {
                voters: nodes(&status.voters),
                silent: status.silent,
                learners: nodes(&status.learners),
                leader: status.leader,
                term: status.term,
                applied: Some(status.applied).filter(|&applied| applied > 0),
                storage,
            }),
            candidates: Vec::new(),
            forced: status.forced,
            went_back: status.went_back,
            keys: None,
            port: None,
        }
    }

    /// Adds what a node's keys and its port say.
    pub(crate) fn with_port(self, keys: Option<&Identity>, port: Option<&PortMonitor>) -> StatusReport {
        StatusReport { keys: keys.map(KeysReport::of), port: port.map(PortReport::of), ..self }
    }
}

impl KeysReport {
    fn of(keys: &Identity) -> KeysReport {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let report = |Expiry { certificate, at, renew_from }: Expiry| CertificateReport {
            certificate,
            until_unix_s: at,
            left_s: at.cast_signed().saturating_sub(now.cast_signed()),
            ends_soon: renew_from <= now,
        };
        KeysReport {
            owner: keys.principal().to_string(),
            certificates: keys.expiries().into_iter().map(report).collect(),
            problem: keys.problem().map(|problem| problem.to_string()),
        }
    }
}

impl PortReport {
    fn of(port: &PortMonitor) -> PortReport {
        let refused = port.stats().refused.by_reason();
        let refused = refused.into_iter().filter(|&(_, count)| count > 0);
        let denied = port.denied().into_iter();
        let denied =
            denied.map(|(role, call, count)| DeniedReport { role: role.to_string(), call: call.to_string(), count });
        PortReport {
            refused: refused.map(|(reason, count)| RefusedReport { reason: reason.to_owned(), count }).collect(),
            denied: denied.collect(),
        }
    }
}

impl WaitReport {
    /// Reports the search of a node for its place.
    fn of_search(search: &SearchStatus) -> WaitReport {
        let SearchStatus { waited, missing, answers, silent } = search;
        let mut waits_for = match missing.as_slice() {
            [] => "a place in the group".to_owned(),
            missing => format!("the first view: nothing is heard of {}", NodeList(missing)),
        };
        let mut by_words: BTreeMap<&str, Vec<NodeId>> = BTreeMap::new();
        for (node, words) in answers {
            by_words.entry(words).or_default().push(*node);
        }
        for (words, nodes) in by_words {
            waits_for += &format!("; {}: {words}", NodeList(&nodes));
        }
        let is_missing = |name: &&String| missing.iter().any(|node| node.to_string() == **name);
        let silent: Vec<&str> = silent.iter().filter(|name| !is_missing(name)).map(String::as_str).collect();
        if !silent.is_empty() {
            waits_for += &format!("; no answer of {}", silent.join(", "));
        }
        WaitReport { waits_for, nodes: missing.clone(), for_ms: Some(waited.as_millis() as u64) }
    }
}

impl ShardReport {
    /// Computes the lag of each member.
    pub(crate) fn with_lags(mut self) -> ShardReport {
        let most = self.rows.iter().map(|row| row.received).max().unwrap_or(0);
        self.rows.iter_mut().for_each(|row| row.lag = most.saturating_sub(row.delivered));
        self
    }
}
