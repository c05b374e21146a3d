//! A member that breaks off the bulk messages of a sender, and lives on.

use std::collections::BTreeMap;

use squall_fabric::{
    Op, RegionKey, Source, Target, Token,
    sim::{SimConfig, SimFabric, SimNet},
};
use squall_membership::ShardId;
use squall_sst::Layout;

use super::*;

const MEMBERS: u32 = 4;
const SENDER: NodeId = NodeId(0);
const PATIENCE: Duration = Duration::from_millis(100);
/// The time between two steps of a member that has nothing to do: its heartbeats have it look as often.
const LOOKS: Duration = Duration::from_millis(25);
/// The place of the word in a member's memory by which a peer says that one failed.
const FAILED: usize = 8;

/// A member of a shard, as far as bulk messages are concerned.
struct BulkMember {
    fabric: SimFabric,
    bulk: ShardBulk,
    table: Table,
    held: Counters,
    /// The first memory that a peer exposed, by endpoint.
    remote: BTreeMap<EndpointId, RegionKey>,
    lost: Vec<NodeId>,
    faulty: Vec<(NodeId, String)>,
}

impl BulkMember {
    fn new(net: &SimNet, me: NodeId) -> BulkMember {
        let shard = ShardView::whole(ShardId(0), (0..MEMBERS).map(NodeId).collect(), vec![SENDER]);
        let config = ShardConfig { bulk_patience: PATIENCE, ..ShardConfig::default() };
        let mut fabric = net.fabric(me);
        let BulkParts { mut bulk, .. } = reserve(&mut fabric, Epoch::FIRST, &shard, &config, None).expect("memory");
        let mut layout = Layout::builder();
        let held = layout.counters("bulk", 1);
        let table = Table::register(&mut fabric, layout.build(), MEMBERS as usize, me.0 as usize).expect("memory");
        let mut faulty = Vec::new();
        bulk.connect(&mut fabric, 0, &mut faulty);
        BulkMember { fabric, bulk, table, held, remote: BTreeMap::new(), lost: Vec::new(), faulty }
    }

    fn step(&mut self, now: Time) {
        let mut completions = Vec::new();
        self.fabric.poll(now, &mut completions);
        for completion in &completions {
            if let Completion::Connected { endpoint, remote, .. } = completion {
                self.remote.extend(remote.first().map(|region| (*endpoint, region.key)));
            }
            self.lost.extend(self.bulk.on_completion(&mut self.fabric, completion).map(|(node, _)| node));
        }
        while self.bulk.step(&mut self.fabric, now, &mut self.table, self.held, &mut self.faulty) {}
    }

    /// The group's endpoints: those to the root, or to all others at the root; then two to each neighbour.
    fn endpoints(&mut self) -> Vec<EndpointId> {
        let id = self.bulk.lanes[0].group.id().expect("the group is there");
        self.bulk.rdmc.group(id).expect("the group is there").endpoints().collect()
    }

    /// Writes a word into the memory that a peer gave on an endpoint.
    fn say(&mut self, endpoint: EndpointId, offset: usize, word: u64) {
        let target = Target { region: self.remote[&endpoint], offset };
        let op = Op::WriteWithImm { source: Source::Inline(&word.to_ne_bytes()), target, imm: 0 };
        self.fabric.post(endpoint, op, Token::UNSIGNALED).expect("it is connected");
    }
}

struct World {
    net: SimNet,
    members: Vec<BulkMember>,
}

impl World {
    fn new(seed: u64) -> World {
        let net = SimNet::new(SimConfig::fast(), seed);
        let members = (0..MEMBERS).map(|me| BulkMember::new(&net, NodeId(me))).collect();
        let mut world = World { net, members };
        world.run_for(LOOKS);
        world
    }

    /// Lets time pass, and steps the members when something happens to them and at the end.
    fn run_for(&mut self, time: Duration) {
        let end = self.net.now() + time;
        let mut ready = Vec::new();
        while self.net.now() < end {
            let now = self.net.advance(end, &mut ready);
            ready.drain(..).for_each(|node| self.members[node.0 as usize].step(now));
        }
        let alive = self.members.iter_mut().filter(|member| self.net.is_up(member.fabric.node()));
        alive.for_each(|member| member.step(end));
    }

    fn run_for_looks(&mut self, looks: u32) {
        (0..looks).for_each(|_| self.run_for(LOOKS));
    }

    /// Runs until one of the members but `liar` suspects another, and returns who suspects whom, and after how long.
    fn until_blamed(&mut self, liar: usize) -> (Vec<(usize, NodeId)>, Duration) {
        let begin = self.net.now();
        loop {
            self.run_for(LOOKS);
            let honest = self.members.iter().enumerate().filter(|&(me, _)| me != liar);
            let blames = honest.flat_map(|(me, member)| {
                let faulty = member.faulty.iter().map(|(node, _)| node);
                member.lost.iter().chain(faulty).map(move |&node| (me, node))
            });
            let blames: Vec<_> = blames.collect();
            let after = self.net.now().since(begin);
            if !blames.is_empty() {
                return (blames, after);
            }
            assert!(after < 10 * PATIENCE, "nobody is blamed");
        }
    }
}

#[test]
fn a_member_that_closes_an_endpoint_of_a_transfer_is_the_first_to_be_blamed() {
    for liar in 0..MEMBERS as usize {
        for endpoint in 0.. {
            let mut world = World::new(endpoint as u64);
            let Some(&closes) = world.members[liar].endpoints().get(endpoint) else { break };
            world.members[liar].fabric.disconnect(closes);
            let (blames, after) = world.until_blamed(liar);
            assert!(blames.iter().all(|&(_, node)| node == NodeId(liar as u32)), "{liar}, {endpoint}: {blames:?}");
            // No member that lives closes the endpoints between the root and the others.
            let lines = if liar == 0 { MEMBERS as usize - 1 } else { 1 };
            assert_eq!(after > PATIENCE, endpoint >= lines, "{liar}, {endpoint}: {after:?}");
        }
    }
}

#[test]
fn a_member_that_says_that_one_failed_is_the_first_to_be_blamed() {
    for liar in 0..MEMBERS as usize {
        // Each member by its rank, one that there is not, and one that is said to have told it.
        for word in [1, 2, 3, 4, 5, u64::MAX, 2 << 32 | 5, 3 << 32 | 4] {
            let mut world = World::new(word);
            let member = &mut world.members[liar];
            let lines = if liar == 0 { MEMBERS as usize - 1 } else { 1 };
            for line in member.endpoints().into_iter().take(lines) {
                member.say(line, FAILED, word);
            }
            let (blames, after) = world.until_blamed(liar);
            assert!(blames.iter().all(|&(_, node)| node == NodeId(liar as u32)), "{liar}, {word:#x}: {blames:?}");
            assert!(after > PATIENCE, "{liar}, {word:#x}: {after:?}");
        }
    }
}

#[test]
fn a_sender_that_says_that_its_group_is_over_is_blamed_at_once() {
    let mut world = World::new(1);
    let sender = &mut world.members[0];
    // No message was sent; all that there are have come.
    for line in sender.endpoints().into_iter().take(MEMBERS as usize - 1) {
        sender.say(line, 16, 1);
        sender.say(line, 32, 1);
    }
    let (blames, after) = world.until_blamed(0);
    assert!(blames.iter().all(|&(_, node)| node == SENDER) && after < PATIENCE, "{blames:?} after {after:?}");
}

#[test]
fn a_crash_has_nobody_else_blamed_while_the_view_has_time_to_end() {
    for crashed in 0..MEMBERS as usize {
        let mut world = World::new(crashed as u64);
        world.net.crash(NodeId(crashed as u32));
        world.run_for_looks(4);
        let others = || world.members.iter().enumerate().filter(|&(me, _)| me != crashed).map(|(_, member)| member);
        assert!(others().flat_map(|member| &member.lost).any(|&node| node == NodeId(crashed as u32)), "it is noticed");
        assert!(others().flat_map(|member| &member.lost).all(|&node| node == NodeId(crashed as u32)));
        assert!(others().all(|member| member.faulty.is_empty()));
    }
}

#[test]
fn own_stalls_accuse_nobody() {
    let mut world = World::new(1);
    let line = world.members[1].endpoints()[0];
    world.members[1].say(line, FAILED, 5);
    world.run_for(LOOKS);
    let root = &mut world.members[0];
    assert!(root.bulk.rdmc.hearsay(root.bulk.lanes[0].group.id().expect("it is there")).is_some());
    let end = world.net.now() + 100 * PATIENCE;
    while world.net.advance(end, &mut Vec::new()) < end {}
    root.step(end);
    assert!(root.faulty.is_empty(), "it did not look for so long: {:?}", root.faulty);
    world.run_for_looks(13);
    let root = &world.members[0];
    assert_eq!(root.faulty.len(), 1, "and then it did: {:?}", root.faulty);
    assert_eq!(root.faulty[0].1, "it broke off the bulk messages of node 0, and no member has failed");
}
