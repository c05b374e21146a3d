//! The interface to the log that decides each view's successor.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use squall_fabric::{NodeId, Time};

use crate::{
    return_report::ReturnReport,
    view::{Epoch, Member, OrderEnd, Seq, ShardId, View},
};

/// The final count of a shard at a wedged member. It does not change any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Final {
    /// The member.
    pub node: NodeId,
    /// The number of messages of the shard's order that it has received; or the place up to which it may go, of a shard
    /// that [counts so](crate::Counts::Passed).
    pub count: Seq,
    /// Whether it holds the shard's whole state.
    pub complete: bool,
    /// Whether its disk is known to have all that it had delivered when the view began, so that its log reaches the
    /// place from which on it has been complete. Only of a member that the view calls complete; always, if the shard is
    /// not durable.
    pub on_disk: bool,
}

/// The final counts of wedged members, by shard; of each shard in the order of its members.
pub type Finals = BTreeMap<ShardId, Vec<Final>>;

/// The trim of each shard in a view that ends: the count of places of its order that it delivers. A shard of which no
/// complete member stays has none.
pub type Trims = BTreeMap<ShardId, Seq>;

/// The places where shards go on whose order does not go on at a trim, but at the end of a copy that came back. What
/// lies behind, in any log or memory, is void.
pub type Ends = BTreeMap<ShardId, OrderEnd>;

/// A leader's request: the next view, and the part of the old one that each shard still delivers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The proposer.
    pub by: NodeId,
    /// The next view; its epoch is the current one's plus 1.
    pub view: Arc<View>,
    /// Whether it follows as a restart, and not as a successor.
    pub restart: bool,
    /// The final counts of all members that stay; of a restart's members, those that still run.
    pub finals: Finals,
    /// Each shard's trim: the smallest final count of its complete members that stay, or the greatest, as it
    /// [counts](crate::Counts); or the place at which a restart lets the old view end.
    pub trims: Trims,
    /// The places where shards go on that a restart, or a last holder's return, lets go on.
    pub ends: Ends,
}

/// The reason for which an entry does nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refused {
    /// A proposal of a first view where there is one already, or of a later one where there is none yet.
    #[error("the cluster has been begun already, or not yet")]
    OutOfPlace,
    /// A proposal that follows another view than the current one.
    #[error("it follows another view: the current one is of {current}")]
    NotCurrent {
        /// The current view's epoch.
        current: Epoch,
    },
    /// A proposal that breaks a rule for successors; the sentence says which.
    #[error("{0}")]
    Rule(String),
}

/// A wedged member's final counts for the others, sent by the view log's own network for when tables don't reach far
/// enough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The view that is wedged.
    pub epoch: Epoch,
    /// The member that reports.
    pub member: Member,
    /// Its own final counts: one for each shard that it is a member of.
    pub finals: BTreeMap<ShardId, Final>,
}

/// The news of a view log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewEvent {
    /// The successor of a view, which nothing will change any more; the first view has an empty set of trims. No node
    /// acts on a successor that is not committed. Views come in the order of their epochs, from the one on that is
    /// current when this node comes in contact with the log; that one may come alone, without those before it.
    Committed(Proposal),
    /// The nodes that ask to join, in the order in which they asked. It replaces an earlier list. The log can reach
    /// them.
    Candidates(Vec<Member>),
    /// A wedged member's final counts.
    Reported(Report),
    /// The members of the current view that are back. It replaces an earlier list. A later view discards it.
    Returns(Vec<ReturnReport>),
    /// A lack of voters that can be reached: nothing could be decided for so long that callers should not wait. That
    /// may end at any time; then whatever is decided comes as usual.
    NoQuorum,
}

/// The log that decides which view follows another.
///
/// # To ensure correctness
///
/// Each epoch has at most one committed successor, the same at every member, whichever member proposed it: one that
/// [`ViewLogState`](crate::ViewLogState) accepts. A committed entry is reported to every member that can be reached,
/// also to members that did not propose.
pub trait ViewLog: Send {
    /// Asks for a successor. The answer comes through [`poll`](ViewLog::poll): it may be another member's proposal. A
    /// proposal that is refused is not answered; propose again, if nothing comes for a while.
    fn propose(&mut self, proposal: Proposal);

    /// Asks that this node become a member, as this one, until a view has it or another call takes its place.
    fn join(&mut self, me: Member);

    /// Tells the members of a view, as far as they can be reached, this one's final counts.
    fn report(&mut self, to: &View, report: Report);

    /// Reports the copies of this node, which comes back, until a later view is decided or another call takes its
    /// place. It holds beside a call of [`join`](ViewLog::join): the node becomes a member in whichever way is decided
    /// first.
    fn report_return(&mut self, back: ReturnReport);

    /// Tells the log that a member can't be reached, or that its process has ended: if it leads the log, others need
    /// not wait for it.
    fn peer_gone(&mut self, node: NodeId);

    /// The next decision or news, if there is any.
    fn poll(&mut self, now: Time) -> Option<ViewEvent>;

    /// The time at which [`poll`](ViewLog::poll) must be called next, if nothing wakes this node before: for logs in
    /// virtual time.
    fn deadline(&self) -> Time {
        Time::MAX
    }
}
