//! The inputs and effects of a [`Membership`](crate::Membership).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use squall_fabric::{BreakReason, NodeId, Time};

use crate::{
    end::EndReason,
    layout::Layout,
    layout_policy::LayoutPolicy,
    return_report::{HeldCopy, ReturnReport},
    stall::{Stall, StallLimits, Waits},
    view::{Member, OrderEnd, Seq, ShardId, View},
    view_log::{Proposal, Report, Trims, ViewEvent},
};

/// The configuration of membership.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A number that differs if the members differ in something that they must agree on besides their view (modes,
    /// sizes).
    pub fingerprint: u64,
    /// The layout of shards: the same at all members, and in the view log.
    pub layout: Layout,
    /// The application's say in where shards lie, for the views that this node proposes.
    pub policy: LayoutPolicy,
    /// The time for which a heartbeat may stand still.
    pub failure_timeout: Duration,
    /// The time for which no endpoint of an installed view may come about until members that have not appeared are
    /// given up.
    pub connect_timeout: Duration,
    /// The longest time for which a member of a shard may read after another has vouched for it.
    pub read_lease: Duration,
    /// The time for which members that come back, when they are more than half, wait for the others. No shorter than a
    /// lease can last on any clock: [`read_lease`](Settings::read_lease) and a fifth of it.
    pub restart_wait: Duration,
    /// The time for which a member that has something to do may stand still.
    pub stall_limits: StallLimits,
}

/// An event. Whatever it says of shards and endpoints is of the view that was installed last.
#[derive(Clone, Debug)]
pub enum Input {
    /// The break of an endpoint to a member, of whatever layer.
    Broken(NodeId, BreakReason),
    /// A member that sent something that no correct member sends; the sentence names it.
    Faulty(NodeId, String),
    /// A member that has stood still for longer than its limit.
    Late {
        /// The member, and the disk or application for which it waits.
        stall: Stall,
        /// The time for which it has stood still.
        waited: Duration,
    },
    /// A shard that is wedged.
    Frozen {
        /// The shard.
        shard: ShardId,
        /// Its final count.
        count: Seq,
        /// The count that all its members had said by then that they have received; 0 where they don't.
        stable: Seq,
        /// The members that this node has vouched for, so that they may still read. It vouches for no member any more.
        leased: Vec<NodeId>,
    },
    /// The disk or the application that the clean-up of each shard waits for, of shards that have not ended. It must be
    /// said anew as that changes.
    CleansUp(BTreeMap<ShardId, Waits>),
    /// A shard that has delivered everything up to its trim, as far as it has received that.
    Ended(ShardId),
    /// An event of the view log.
    ViewLog(ViewEvent),
    /// A new endpoint of a shard.
    Connected,
    /// The connection of the endpoints of all shards.
    ShardsConnected,
    /// The completeness of this node, which holds a shard's whole state now. Its disk has that, too, with all that was
    /// delivered before the view. It can't be said in a view once that is wedged: say it in the next, if it still
    /// holds. Say it as well where the view calls this node complete. Up to then, the other members remember the
    /// earlier holders of the state.
    Complete(ShardId),
    /// The copies of shards that this node's disk holds. To be said before its first step, if it has a disk that may
    /// have been that of a member before, and anew after each [`Effect::Dropped`].
    Held(BTreeMap<ShardId, HeldCopy>),
    /// Copies that this node keeps in memory, after [`Effect::Dropped`], of suspended shards of which it was complete.
    /// Its shards are wedged, and vouch for no member any more.
    Kept(BTreeMap<ShardId, HeldCopy>),
    /// Whether this node's storage is short of room, which the other members are told.
    ShortOfRoom(bool),
    /// An operator wants a member to be given up.
    Suspect(NodeId),
    /// A request that the node leave.
    Leave,
    /// The end of the group: all members are to leave, each as if it were asked to.
    Close,
    /// A request that the node stop, without waiting for others.
    Stop,
    /// The loss of what the view at hand delivers, which others may have delivered: this node can't come to the view's
    /// end. It leaves the view as if it had failed, and joins again. Where the next view has no other member, its part
    /// ends for this reason.
    DropOut(EndReason),
    /// A failure with which the node can't go on.
    Failed(EndReason),
}

/// A node's knowledge of a member of its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberEvidence {
    /// The time at which its heartbeat was last found to have moved. It is looked at four times within the failure
    /// timeout.
    pub heartbeat: Time,
    /// Whether this node suspects it.
    pub suspected: bool,
    /// Whether its row says that it is wedged.
    pub wedged: bool,
    /// Whether its row says that it wants to leave.
    pub leaving: bool,
    /// Whether its row says that its storage is short of room.
    pub short_of_room: bool,
}

/// An action that the layers must take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Asks to take apart the shards of the view before, to call [`Membership::install`](crate::Membership::install),
    /// and to create the shards of this view that have this node as a member.
    Install(Arc<View>),
    /// The view that was installed is connected.
    Installed(Arc<View>),
    /// Asks to wedge all shards, and to answer with [`Input::Frozen`] for each.
    Wedge,
    /// A proposal for the view log.
    Propose(Proposal),
    /// A report for the view log.
    Report {
        /// The view whose members are to get it.
        to: Arc<View>,
        /// The final counts of this one.
        report: Report,
    },
    /// News for the view log: a member is gone, as far as this node can see.
    PeerGone(NodeId),
    /// A request to the view log to make this node a member, as this one.
    Join(Member),
    /// Asks to clean up the shards, and to answer [`Input::Ended`] for each of these.
    CleanUp {
        /// The count of places up to which each delivers.
        trims: Trims,
        /// The shards whose trim was computed with this node's final count, so that it is no smaller.
        counted: BTreeSet<ShardId>,
    },
    /// Others went on without this node: its shards stop at once, and what they hold is discarded. Excepted are shards
    /// that are suspended and of whose [last holders](crate::ShardState::Suspended) this node is one: see
    /// [`Input::Kept`].
    Dropped {
        /// A view without this node.
        next: Arc<View>,
        /// The trims up to which the members that went on delivered in the last view with this node; None if they are
        /// not known.
        trims: Option<Trims>,
        /// The time on this node's clock until which another node without a place in that view may still read a state
        /// without anything that others deliver without this node; [`Time::MAX`] if that is not known.
        readable_until: Time,
    },
    /// A stall: no successor of the view can be decided for now; the sentence says why. That may end at any time: then
    /// whatever is decided comes as usual.
    Stalled(String),
    /// A request for what this node's disk holds of a suspended shard, whose state it may have, as one that was
    /// complete before. The answer is [`Input::Held`].
    Gather,
    /// A report for the view log, of this node's copies.
    Return(ReturnReport),
    /// More than half of the last view's members, or less, are back after it ended, and these are missing. After
    /// [`Settings::restart_wait`] more than half go on without the others.
    WaitsFor(Vec<NodeId>),
    /// This node's copy of a shard is void beyond this end. A log on disk is to be cut there, for good, and a state in
    /// memory that goes further is to be discarded, before the view is installed that [`Effect::Install`] names next.
    CutTo {
        /// The shard.
        shard: ShardId,
        /// The place where it goes on.
        end: OrderEnd,
    },
    /// This node's part is over: everything that waits must fail.
    End(EndReason),
}
