//! The thing for which a view change waits at a node, for operators.

use squall_fabric::NodeId;

use super::{ActiveView, Phase};
use crate::{lead::staying, stall::WaitsFor, view::ShardId};

/// The thing for which the way of a node from one view to the next waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewChangeWait {
    /// The shards of this node, which are to stop and to say how far they have come.
    OwnShards,
    /// These members, which this node would keep and whose rows do not say that they have wedged.
    Wedge(Vec<NodeId>),
    /// The view log's decision, which this member proposes first. All that it would keep have wedged.
    Decision(Option<NodeId>),
    /// The end of the time for which members that are dropped may still read.
    Leases,
    /// The delivery of all that the view delivers, in these shards of this node, each with what keeps it.
    Delivery(Vec<(ShardId, Option<WaitsFor>)>),
    /// The shards of this node, which are to hand out what they have not delivered, and to cut their logs.
    HandOver,
    /// The connections of the new view. Of these members none has come about.
    Connections(Vec<NodeId>),
}

impl ActiveView {
    /// The thing for which this node waits in a view change; None in a view that goes on as it is.
    pub(crate) fn awaits(&self) -> Option<ViewChangeWait> {
        let table = &self.table;
        let nodes = |members: &mut dyn Iterator<Item = usize>| members.map(|member| table.node(member)).collect();
        match self.phase {
            Phase::Running => None,
            Phase::Connecting => {
                let mut absent = (0..table.len()).filter(|&member| !table.was_reached(member));
                Some(ViewChangeWait::Connections(nodes(&mut absent)))
            }
            Phase::Wedged if !self.is_frozen() => Some(ViewChangeWait::OwnShards),
            Phase::Wedged => {
                let stay = staying(&table.accusations());
                let mut late = stay.iter().copied().filter(|&member| !table.is_wedged(member));
                let late: Vec<NodeId> = nodes(&mut late);
                let leader = stay.first().map(|&member| table.node(member));
                Some(if late.is_empty() { ViewChangeWait::Decision(leader) } else { ViewChangeWait::Wedge(late) })
            }
            Phase::Waiting => Some(ViewChangeWait::Leases),
            Phase::CleaningUp => {
                let waits = self.cleaning.iter().map(|(&shard, waits)| (shard, waits.map(|waits| waits.waits_for)));
                Some(ViewChangeWait::Delivery(waits.collect()))
            }
            Phase::Over => Some(ViewChangeWait::HandOver),
        }
    }
}
