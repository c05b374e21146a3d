//! The fat tree of the testbed: racks of eight hosts, pods of two racks and two spines, two cores.

use super::Profile;

/// The number of all hosts.
pub(super) const HOSTS: usize = 32;

/// The number of hosts in a rack.
pub(super) const RACK: usize = 8;
/// The number of racks, and of spines, in a pod.
const POD: usize = 2;
const CORES: usize = 2;

/// A node's index in the lists.
pub(super) type Node = usize;

/// The kind of a node. Each switch is two nodes, one for each direction, up and down, so that links make no circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopologyNode {
    Host(usize),
    RackUp(usize),
    SpineUp(usize),
    Core(usize),
    SpineDown(usize),
    RackDown(usize),
}

/// A connection in one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cable {
    pub(super) from: Node,
    pub(super) to: Node,
    pub(super) delay_ns: u64,
    /// The number of parallel links; 0 inside a switch.
    pub(super) links: u64,
}

/// Nodes and cables. Racks, spines and cores that are not needed are left out.
#[derive(Debug)]
pub(super) struct Topology {
    pub(super) places: Vec<TopologyNode>,
    pub(super) cables: Vec<Cable>,
    /// The cables that begin at a node, and those that end there, by node.
    pub(super) outputs: Vec<Vec<usize>>,
    pub(super) inputs: Vec<Vec<usize>>,
    /// The rack of each host.
    rack_of: Vec<usize>,
    levels: usize,
    profile: Profile,
}

impl Topology {
    /// Builds the network of hosts in the given racks.
    pub(super) fn new(rack_of: Vec<usize>, profile: Profile) -> Topology {
        let mut racks = rack_of.clone();
        racks.sort_unstable();
        racks.dedup();
        let mut pods: Vec<usize> = racks.iter().map(|rack| rack / POD).collect();
        pods.dedup();
        let levels = if pods.len() > 1 { 3 } else { racks.len().min(2) };
        let mut topology = Topology {
            places: Vec::new(),
            cables: Vec::new(),
            outputs: Vec::new(),
            inputs: Vec::new(),
            rack_of,
            levels,
            profile,
        };
        let spines: Vec<usize> = pods.iter().flat_map(|pod| (0..POD).map(move |i| pod * POD + i)).collect();
        let mut places: Vec<TopologyNode> = (0..topology.rack_of.len()).map(TopologyNode::Host).collect();
        places.extend(racks.iter().flat_map(|&rack| [TopologyNode::RackUp(rack), TopologyNode::RackDown(rack)]));
        if levels > 1 {
            places.extend(
                spines.iter().flat_map(|&spine| [TopologyNode::SpineUp(spine), TopologyNode::SpineDown(spine)]),
            );
        }
        if levels > 2 {
            places.extend((0..CORES).map(TopologyNode::Core));
        }
        topology.outputs = vec![Vec::new(); places.len()];
        topology.inputs = vec![Vec::new(); places.len()];
        for (from, &a) in places.iter().enumerate() {
            for (to, &b) in places.iter().enumerate() {
                topology.join((from, a), (to, b));
            }
        }
        topology.places = places;
        topology
    }

    fn join(&mut self, (from, a): (Node, TopologyNode), (to, b): (Node, TopologyNode)) {
        use TopologyNode::{Core, Host, RackDown, RackUp, SpineDown, SpineUp};
        let Profile { host_hop_ns, switch_hop_ns, parallel_links, .. } = self.profile;
        let (delay_ns, links) = match (a, b) {
            (Host(host), RackUp(rack)) | (RackDown(rack), Host(host)) if self.rack_of[host] == rack => (host_hop_ns, 1),
            (RackUp(r), SpineUp(s)) | (SpineDown(s), RackDown(r)) if r / POD == s / POD => {
                (switch_hop_ns, parallel_links)
            }
            (SpineUp(_), Core(_)) | (Core(_), SpineDown(_)) => (switch_hop_ns, parallel_links),
            (RackUp(i), RackDown(j)) | (SpineUp(i), SpineDown(j)) if i == j => (0, 0),
            _ => return,
        };
        self.outputs[from].push(self.cables.len());
        self.inputs[to].push(self.cables.len());
        self.cables.push(Cable { from, to, delay_ns, links });
    }

    /// The node at a place that exists.
    fn node(&self, place: TopologyNode) -> Node {
        self.places.iter().position(|&other| other == place).expect("the route leads to places that exist")
    }

    /// The number of switches between two hosts.
    pub(super) fn hops(&self, a: usize, b: usize) -> usize {
        let (a, b) = (self.rack_of[a], self.rack_of[b]);
        if a == b {
            1
        } else if a / POD == b / POD {
            3
        } else {
            5
        }
    }

    /// The largest number of switches between any two hosts.
    pub(super) fn most_hops(&self) -> usize {
        2 * self.levels - 1
    }

    /// The time of a path with `hops` switches without any queue.
    pub(super) fn path_ns(&self, hops: usize) -> u64 {
        2 * self.profile.host_hop_ns + (hops as u64 - 1) * self.profile.switch_hop_ns
    }

    /// The switch that a sequencer of all traffic runs on: the first of the highest layer.
    pub(super) fn top(&self) -> Node {
        let top = |place: &TopologyNode| match self.levels {
            1 => matches!(place, TopologyNode::RackUp(_)),
            2 => matches!(place, TopologyNode::SpineUp(_)),
            _ => matches!(place, TopologyNode::Core(_)),
        };
        self.places.iter().position(top).expect("there is a switch")
    }

    /// The cable by which a packet goes on from `node` to a host, or to the sequencer's switch. Of equal ways, `flow`
    /// chooses one.
    pub(super) fn next(&self, node: Node, to: Option<usize>, flow: u64) -> usize {
        use TopologyNode::{Core, Host, RackDown, RackUp, SpineDown, SpineUp};
        let ways = &self.outputs[node];
        let leads = |place: &dyn Fn(TopologyNode) -> bool| {
            let fit = |way: &&usize| place(self.places[self.cables[**way].to]);
            let count = ways.iter().filter(fit).count() as u64;
            let chosen = ways.iter().filter(fit).nth((flow % count.max(1)) as usize);
            *chosen.expect("there is a way on from every switch")
        };
        let Some(host) = to else {
            let top = self.top();
            return leads(&|place| matches!(place, RackUp(_) | SpineUp(_) | Core(_)) && self.leads_up(place, top));
        };
        let rack = self.rack_of[host];
        match self.places[node] {
            Host(_) => ways[0],
            RackUp(here) if here == rack => leads(&|place| place == RackDown(rack)),
            RackUp(_) => leads(&|place| matches!(place, SpineUp(_))),
            SpineUp(spine) if spine / POD == rack / POD => leads(&|place| place == SpineDown(spine)),
            SpineUp(_) => leads(&|place| matches!(place, Core(_))),
            Core(_) => leads(&|place| matches!(place, SpineDown(spine) if spine / POD == rack / POD)),
            SpineDown(_) => leads(&|place| place == RackDown(rack)),
            RackDown(_) => leads(&|place| place == Host(host)),
        }
    }

    /// Whether a switch is the sequencer's, or lies below it.
    fn leads_up(&self, place: TopologyNode, top: Node) -> bool {
        let goal = self.places[top];
        place == goal || std::mem::discriminant(&place) != std::mem::discriminant(&goal)
    }

    /// The cable into a host.
    pub(super) fn link_to_host(&self, host: usize) -> usize {
        self.inputs[self.node(TopologyNode::Host(host))][0]
    }

    /// The nodes of a rack's switch.
    pub(super) fn rack_switch(&self, rack: usize) -> [Node; 2] {
        [self.node(TopologyNode::RackUp(rack)), self.node(TopologyNode::RackDown(rack))]
    }

    pub(super) fn rack_of(&self, host: usize) -> usize {
        self.rack_of[host]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network whose hosts fill one rack after another.
    fn packed(hosts: usize) -> Topology {
        Topology::new((0..hosts).map(|host| host / RACK).collect(), Profile::TESTBED)
    }

    /// The number of switches on the way from host to host, and the time that it takes.
    fn walk(topology: &Topology, from: usize, to: usize, flow: u64) -> (usize, u64) {
        let (mut node, mut switches, mut time) = (topology.node(TopologyNode::Host(from)), 0, 0);
        loop {
            let cable = topology.cables[topology.next(node, Some(to), flow)];
            time += cable.delay_ns;
            node = cable.to;
            match topology.places[node] {
                TopologyNode::Host(host) => {
                    assert_eq!(host, to);
                    return (switches, time);
                }
                // A turn inside a switch passes the same switch.
                _ => switches += usize::from(cable.links > 0),
            }
        }
    }

    #[test]
    fn every_route_takes_as_many_switches_as_the_paper_counts() {
        for (hosts, most) in [(1, 1), (8, 1), (16, 3), (32, 5)] {
            let topology = packed(hosts);
            assert_eq!(topology.most_hops(), most);
            for (from, to, flow) in
                (0..hosts).flat_map(|a| (0..hosts).flat_map(move |b| (0..3).map(move |f| (a, b, f))))
            {
                let hops = topology.hops(from, to);
                assert_eq!(walk(&topology, from, to, flow), (hops, topology.path_ns(hops)), "{from} to {to}");
            }
        }
    }

    #[test]
    fn ways_to_the_sequencer_end_at_one_switch() {
        for hosts in [4, 16, 32] {
            let topology = packed(hosts);
            for (from, flow) in (0..hosts).flat_map(|host| (0..4).map(move |flow| (host, flow))) {
                let mut node = topology.node(TopologyNode::Host(from));
                for _ in 0..topology.most_hops().div_ceil(2) {
                    node = topology.cables[topology.next(node, None, flow)].to;
                }
                assert_eq!(node, topology.top());
            }
        }
    }

    #[test]
    fn a_round_trip_takes_two_to_ten_microseconds() {
        let topology = packed(32);
        assert_eq!((2 * topology.path_ns(1), 2 * topology.path_ns(5)), (2_000, 10_000));
    }
}
