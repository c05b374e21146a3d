//! Where the successor of a view is decided.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use squall_fabric::{NodeId, Time};

use crate::{
    restart::{Back, Ends},
    view::{Epoch, Member, Seq, ShardId, View},
};

/// What a member that is wedged has of a shard. It does not change any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Final {
    /// The member.
    pub node: NodeId,
    /// How much of the shard's order it has received; or how far it may go, of a shard that [counts so](crate::Counts::Passed).
    pub count: Seq,
    /// Whether it holds the shard's whole state.
    pub complete: bool,
    /// Whether its disk is known to have all that it had delivered when the view began, so that its log reaches the place from which
    /// on it has been complete. Only of one that the view calls complete; always, if the shard is not durable.
    pub on_disk: bool,
}

/// What members that are wedged have, by shard; of each shard in the order of its members.
pub type Finals = BTreeMap<ShardId, Vec<Final>>;

/// How far each shard delivers in a view that ends: a count of places of its order. A shard of which no complete member stays
/// is not in it.
pub type Trims = BTreeMap<ShardId, Seq>;

/// What a leader asks for: the next view, and what each shard still delivers of the old one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// Who proposes it.
    pub by: NodeId,
    /// The next view; its epoch is the current one's plus 1.
    pub view: Arc<View>,
    /// Whether it follows as a [restart](crate::restart), and not as a [successor](crate::successor).
    pub restart: bool,
    /// The final counts of all members that stay; of a restart's members, those that still run.
    pub finals: Finals,
    /// Each shard's trim: the smallest final count of its complete members that stay, or the greatest, as it
    /// [counts](crate::Counts); or where a restart lets the old view end.
    pub trims: Trims,
    /// Where shards go on that a restart, or a last holder's return, lets go on.
    pub ends: Ends,
}

/// What a wedged member tells the others by the view log's own network, for when tables don't reach far enough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The view that is wedged.
    pub epoch: Epoch,
    /// Who reports.
    pub member: Member,
    /// Its own final counts: one for each shard that it is a member of.
    pub finals: BTreeMap<ShardId, Final>,
}

/// What a view log has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewEvent {
    /// The successor of a view, which nothing will change any more; the first view has an empty set of trims. Nobody acts on
    /// one that is not committed. Views come in the order of their epochs, from the one on that is current when this
    /// node comes in contact with the log; that one may come alone, without those before it.
    Committed(Proposal),
    /// Who asks to join, instead of what was said before: in the order in which they asked. The log can reach them.
    Candidates(Vec<Member>),
    /// A wedged member's final counts.
    Reported(Report),
    /// Who is back, of the members of the current view, instead of what was said before. A later view ends it.
    Backs(Vec<Back>),
    /// Nothing could be decided for so long that callers should not wait: too few of those who decide can be reached. It may
    /// be over at any time; then whatever is decided comes as usual.
    NoQuorum,
}

/// Decides which view follows another.
///
/// # To ensure correctness
///
/// Each epoch has at most one committed successor, the same at every member, whoever proposed: what
/// [`Register`](crate::Register) accepts. A committed entry is reported to every member that can be reached, also to
/// those that did not propose.
pub trait ViewLog: Send {
    /// Asks for a successor. The answer comes through [`poll`](ViewLog::poll): it may be another member's proposal. What is
    /// refused is not answered; propose again, if nothing comes for a while.
    fn propose(&mut self, proposal: Proposal);

    /// Asks that this node become a member, as this one, until a view has it or another call takes its place.
    fn join(&mut self, me: Member);

    /// Tells the members of a view, as far as they can be reached, what this one has.
    fn report(&mut self, to: &View, report: Report);

    /// Says what this node has that comes back, until a later view is decided or another call takes its place. It holds beside a
    /// call of [`join`](ViewLog::join): the node becomes a member in whichever way is decided first.
    fn back(&mut self, back: Back);

    /// This node knows that a member can't be reached, or that its process has ended: if it leads the log, others need not wait
    /// for it.
    fn peer_gone(&mut self, node: NodeId);

    /// What was decided, if anything.
    fn poll(&mut self, now: Time) -> Option<ViewEvent>;

    /// When [`poll`](ViewLog::poll) must be called next, if nobody wakes this node before: for logs in virtual time.
    fn deadline(&self) -> Time {
        Time::MAX
    }
}
