//! Tests of the membership table, and the tables of a view for the tests of others.

use std::sync::Arc;

use squall_fabric::{
    Fabric, NodeId, Time,
    sim::{SimConfig, SimFabric, SimNet},
};

use crate::{
    ClusterId, Epoch, Incarnation, Member, Seq, ShardId, View, exposed::Exposed, membership_table::MembershipTable,
    view::ShardView,
};

/// A view of these nodes, with one shard.
pub(crate) fn view(epoch: Epoch, nodes: &[NodeId]) -> Arc<View> {
    let members = nodes.iter().map(|&node| Member::new(node, Incarnation(1))).collect();
    let shards = vec![ShardView::whole(ShardId(0), nodes.to_vec(), nodes.to_vec())];
    Arc::new(View {
        life: ClusterId(1),
        epoch,
        members,
        shards,
        joined: Vec::new(),
        left: Vec::new(),
        preferred: Default::default(),
    })
}

/// The tables of a view at those of its members that come.
pub(crate) struct Connected {
    net: SimNet,
    fabrics: Vec<SimFabric>,
    pub(crate) tables: Vec<MembershipTable>,
}

impl Connected {
    pub(crate) fn new(view: &Arc<View>, coming: usize) -> Connected {
        let net = SimNet::new(SimConfig::fast(), 1);
        let mut fabrics: Vec<SimFabric> = view.members[..coming].iter().map(|member| net.fabric(member.node)).collect();
        let connect = |(me, fabric)| MembershipTable::connect(fabric, Arc::clone(view), me, 0).expect("memory");
        let tables = fabrics.iter_mut().enumerate().map(connect).collect();
        let mut connected = Connected { net, fabrics, tables };
        connected.run();
        let reached = |table: &MembershipTable| (0..coming).all(|member| table.was_reached(member));
        assert!(connected.tables.iter().all(reached), "they are connected");
        connected
    }

    /// Lets all that was written arrive.
    pub(crate) fn run(&mut self) {
        let until = Time::from_nanos(self.net.now().as_nanos() + 200_000);
        let (mut ready, mut completions) = (Vec::new(), Vec::new());
        loop {
            for (fabric, table) in self.fabrics.iter_mut().zip(&mut self.tables) {
                fabric.poll(self.net.now(), &mut completions);
                completions.drain(..).for_each(|completion| _ = table.on_completion(fabric, &completion));
                table.refresh();
                table.push(fabric);
            }
            if self.net.now() >= until {
                break;
            }
            ready.clear();
            self.net.advance(until, &mut ready);
        }
    }
}

#[test]
fn no_two_members_are_given_the_same_memory() {
    let nodes = [1, 2, 3, 4].map(NodeId);
    let mut fabric = Exposed::new(SimNet::new(SimConfig::fast(), 1).fabric(nodes[0]));
    MembershipTable::connect(&mut fabric, view(Epoch::FIRST, &nodes), 0, 0).expect("memory");
    assert_eq!(fabric.shared(&nodes[1..]), 0);
}

#[test]
fn a_final_count_below_one_that_was_published_is_noticed() {
    for (count, is_noticed) in [(4, true), (5, false), (6, false)] {
        let mut connected = Connected::new(&view(Epoch::FIRST, &[1, 2].map(NodeId)), 2);
        connected.tables[0].freeze(0, (Seq(7), Seq(5)));
        connected.tables[1].freeze(0, (Seq(count), Seq(0)));
        connected.run();
        assert_eq!(connected.tables[0].falls_back(1), None, "it has not wedged");
        connected.tables[1].wedge();
        connected.run();
        assert!(connected.tables[0].is_wedged(1));
        assert_eq!(connected.tables[0].falls_back(1).is_some(), is_noticed, "{count}");
    }
}
