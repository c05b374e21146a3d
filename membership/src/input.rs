//! What goes into a [`Membership`](crate::Membership), and what comes out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use squall_fabric::{BreakReason, NodeId, Time};

use crate::{
    end::EndReason,
    layout::Layout,
    restart::{Back, End, Held},
    stall::{Patience, Stall, Waits},
    view::{Member, Seq, ShardId, View},
    view_log::{Proposal, Report, Trims, ViewEvent},
};

/// What membership is configured with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A number that differs if what the members must agree on, besides their view, differs (modes, sizes).
    pub fingerprint: u64,
    /// How shards are laid out: the same at all members, and in the view log.
    pub layout: Layout,
    /// How long a heartbeat may stand still.
    pub failure_timeout: Duration,
    /// The time for which no endpoint of an installed view may come about until those who have not appeared are given up.
    pub connect_timeout: Duration,
    /// The longest that a member of a shard may read after another has vouched for it.
    pub read_lease: Duration,
    /// How long members that come back, when they are more than half, wait for the others. No shorter than a lease can last on
    /// any clock: [`read_lease`](Settings::read_lease) and a fifth of it.
    pub restart_wait: Duration,
    /// The time for which a member may stand still that has something to do.
    pub patience: Patience,
}

/// What happened. Whatever it says of shards and endpoints is of the view that was installed last.
#[derive(Clone, Debug)]
pub enum Input {
    /// An endpoint to a member broke, of whatever layer.
    Broken(NodeId, BreakReason),
    /// A member sent what no correct member sends; the sentence says what.
    Faulty(NodeId, String),
    /// A member has stood still for longer than others have patience.
    Late {
        /// The member, and the disk or application for which it waits.
        stall: Stall,
        /// The time for which it has stood still.
        waited: Duration,
    },
    /// A shard is wedged.
    Frozen {
        /// Which one.
        shard: ShardId,
        /// Its final count.
        count: Seq,
        /// The members that this one has vouched for, so that they may still read. It vouches for nobody any more.
        leased: Vec<NodeId>,
    },
    /// The disk or the application that the clean-up of each shard waits for, of those that have not ended. To be said anew as that changes.
    CleansUp(BTreeMap<ShardId, Waits>),
    /// A shard has delivered everything up to its trim, as far as it has received that.
    Ended(ShardId),
    /// The view log has something to say.
    ViewLog(ViewEvent),
    /// An endpoint of a shard has come about.
    Connected,
    /// The endpoints of all shards are connected.
    ShardsConnected,
    /// This node holds a shard's whole state now, and its disk has that, too, with all that was delivered before the view. Once it
    /// is wedged that can't be said in the same view: say it in the next, if it still holds. Say it as well where the view calls
    /// this node complete: up to then others keep in mind who held the state before.
    Complete(ShardId),
    /// What this node's disk holds of its shards: to be said before its first step, if it has a disk that may have been that of a
    /// member before, and anew after each [`Effect::Dropped`].
    Held(BTreeMap<ShardId, Held>),
    /// Copies that this node keeps in memory, after [`Effect::Dropped`], of suspended shards of which it was complete: its shards are
    /// wedged, and vouch for nobody any more.
    Kept(BTreeMap<ShardId, Held>),
    /// An operator wants a member to be given up.
    Suspect(NodeId),
    /// The node is asked to leave.
    Leave,
    /// All members are to leave, each as if it was asked to: the group is to end.
    Close,
    /// The node is asked to stop, without waiting for others.
    Stop,
    /// The node can't go on.
    Failed(EndReason),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Take apart the shards of the view before, call [`Membership::install`](crate::Membership::install), and create the shards
    /// of this view that have this node as a member.
    Install(Arc<View>),
    /// The view that was installed is connected.
    Installed(Arc<View>),
    /// Wedge all shards, and answer with [`Input::Frozen`] for each.
    Wedge,
    /// Give this to the view log.
    Propose(Proposal),
    /// Give this to the view log.
    Report {
        /// The view whose members are to get it.
        to: Arc<View>,
        /// What this one has.
        report: Report,
    },
    /// Tell the view log that a member is gone, as far as this node can see.
    PeerGone(NodeId),
    /// Ask the view log to make this node a member, as this one.
    Join(Member),
    /// Clean up the shards, and answer [`Input::Ended`] for each of these.
    CleanUp {
        /// How far each delivers.
        trims: Trims,
        /// Those whose trim was computed with this node's final count, which so is no smaller.
        counted: BTreeSet<ShardId>,
    },
    /// Others went on without this node: its shards stop at once, and what they hold is discarded, but for those that are suspended
    /// and of whose [last holders](crate::ShardState::Suspended) this node is one: see [`Input::Kept`].
    Dropped {
        /// A view without this node.
        next: Arc<View>,
        /// How far each shard delivered in the last view with this node, by those who went on; None if that is not known.
        trims: Option<Trims>,
        /// Until when, on this node's clock, another node without a place in that view may still read a state in which nothing of
        /// what others deliver without this node is seen; [`Time::MAX`] if that is not known.
        readable_until: Time,
    },
    /// What follows the view can't be decided for now; the sentence says why. It may be over at any time: then whatever is decided
    /// comes as usual.
    Stalled(String),
    /// This node may have the state of a suspended shard, as one that was complete before: say what its disk holds, with
    /// [`Input::Held`].
    Gather,
    /// Give this to the view log.
    Back(Back),
    /// More than half of the last view's members, or less, are back after it ended, and these are missing. After
    /// [`Settings::restart_wait`] more than half go on without the others.
    WaitsFor(Vec<NodeId>),
    /// What this node has of a shard beyond this, if anything, is void: a log on disk is to be cut, for good, and a state in memory that
    /// goes further to be discarded, before the view is installed that [`Effect::Install`] names next.
    CutTo {
        /// The shard.
        shard: ShardId,
        /// Where it goes on.
        end: End,
    },
    /// This node's part is over: fail whatever waits.
    End(EndReason),
}
