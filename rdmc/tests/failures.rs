//! A member dies in the middle: every survivor learns it once, knows which blocks it holds, and a new group completes
//! the message.

use std::sync::Arc;

use squall_fabric::{
    Fabric, NodeId, RegionKind,
    sim::{SimConfig, SimFabric},
};
use squall_rdmc::{
    BlockSet, Buffer, GroupConfig, GroupId, Interrupted,
    schedule::{Algorithm, Outer, Racks},
};

use crate::world::{GROUP, Member, World, config, content};

const BLOCK: usize = 64;

/// The blocks that a member holds of message 0, by its events, with memory for the rest.
fn holdings(member: &Member, root: Option<&Arc<Buffer>>, len: usize, k: u32) -> Interrupted {
    let interrupted = member.failures.iter().flat_map(|failure| &failure.interrupted).find(|at| at.message == 0);
    let whole = |buffer: &Arc<Buffer>| Interrupted {
        message: 0,
        blocks: k,
        len: Some(len),
        held: BlockSet::full(k),
        buffer: Some(Arc::clone(buffer)),
    };
    if let Some(buffer) = root {
        return whole(buffer);
    }
    if let Some((_, buffer, _)) = member.received.first() {
        return whole(buffer);
    }
    interrupted.cloned().unwrap_or(Interrupted {
        message: 0,
        blocks: k,
        len: None,
        held: BlockSet::new(k),
        buffer: None,
    })
}

fn with_memory(mut what: Interrupted, fabric: &mut SimFabric) -> Interrupted {
    let bytes = what.blocks as usize * BLOCK;
    what.buffer.get_or_insert_with(|| {
        let region = fabric.register(RegionKind::Bulk, bytes).expect("memory");
        // SAFETY: nothing else has the region.
        Arc::new(unsafe { Buffer::part(region, 0, bytes) })
    });
    what
}

/// Checks that all blocks that a member reports as held are right.
fn check_content(what: &Interrupted, len: usize, context: &str) {
    let Some(buffer) = &what.buffer else { return assert!(what.held.is_empty(), "{context}: blocks without memory") };
    let expected = content(0, len);
    for block in (0..what.blocks).filter(|&block| what.held.contains(block)) {
        let range = block as usize * BLOCK..((block as usize + 1) * BLOCK).min(len);
        assert!(buffer[range.clone()] == expected[range], "{context}: block {block} is not what it should be");
    }
}

struct Case {
    n: usize,
    k: u32,
    algorithm: Algorithm,
    sim: SimConfig,
    seed: u64,
    destroy: bool,
}

impl Case {
    fn len(&self) -> usize {
        // The last block is shorter.
        self.k as usize * BLOCK - 5
    }

    /// Runs a transfer in which a node dies after so many steps of the world. Returns false if it was over before.
    fn run(&self, victim: usize, after: usize) -> bool {
        let &Case { n, k, seed, .. } = self;
        let context = format!("seed {seed}, {n} nodes, {k} blocks, {:?}: {victim} dies after {after}", self.algorithm);
        let config = GroupConfig {
            algorithm: self.algorithm.clone(),
            block_bytes: BLOCK,
            receives_ahead: 3,
            sends_in_flight: 2,
            steps_ahead: if seed % 2 == 0 { u64::MAX } else { 1 },
            ..config(n)
        };
        let mut world = World::new(self.sim.clone(), seed, &config);
        world.connect();
        let source = world.send(self.len());
        if self.destroy {
            world.root().group().destroy().expect("the root may");
        }
        world.kick();
        if !(0..after).all(|_| world.step()) || world.alive().all(Member::has_ended) {
            return false;
        }
        world.crash(victim);
        world.run_dry();
        // Each survivor hears one failure, with the same suspect.
        for member in world.alive() {
            let node = member.fabric.node();
            assert_eq!(member.failures.len() + member.destroyed, 1, "{context}: {node} {:?}", member.failures);
            for failure in &member.failures {
                assert_eq!(failure.suspect, Some(NodeId(victim as u32)), "{context}: {node} says {failure:?}");
            }
        }
        let root = |member: &Member| (member.fabric.node() == NodeId(0)).then_some(&source);
        let held: Vec<(NodeId, Interrupted)> =
            world.alive().map(|member| (member.fabric.node(), holdings(member, root(member), self.len(), k))).collect();
        held.iter().for_each(|(node, what)| check_content(what, self.len(), &format!("{context}: {node}")));
        if world.alive().any(|member| member.destroyed > 0) {
            assert!(
                held.iter().all(|(_, what)| what.held.is_full()),
                "{context}: destroyed, and a member lacks a block"
            );
        }
        self.resume(world, held, &context);
        true
    }

    fn resume(&self, world: World, held: Vec<(NodeId, Interrupted)>, context: &str) {
        let survivors: Vec<NodeId> = held.iter().map(|(node, _)| *node).collect();
        let lost = (0..self.k).any(|block| held.iter().all(|(_, what)| !what.held.contains(block)));
        let config = GroupConfig {
            id: GroupId { instance: GROUP.instance + 1, ..GROUP },
            block_bytes: BLOCK,
            receives_ahead: 2,
            ..GroupConfig::new(GROUP, survivors)
        };
        let mut held = held.into_iter();
        let mut world = world.resume(&config, |_, fabric| {
            let (_, what) = held.next().expect("one for each survivor");
            with_memory(what, fabric)
        });
        if let Some(first) = world.members.iter_mut().flatten().next() {
            first.group().destroy().expect("the first survivor is the new root");
        }
        world.run();
        for member in world.alive() {
            let context = format!("{context}, resumed: {}", member.fabric.node());
            if lost {
                assert_eq!((member.failures.len(), member.destroyed), (1, 0), "{context}");
                assert!(member.failures[0].reason.contains("held by no member"), "{context}");
                continue;
            }
            assert!(member.failures.is_empty() && member.destroyed == 1, "{context}: {:?}", member.failures);
            let [(0, buffer, len)] = &member.received[..] else { panic!("{context}: {:?}", member.received) };
            assert!(*len == self.len() && buffer[..*len] == content(0, *len), "{context}: the message differs");
        }
    }

    /// Kills each node after each step of the world, `stride` apart.
    fn run_all(&self, stride: usize) -> usize {
        let mut runs = 0;
        for victim in 0..self.n {
            let mut after = 0;
            while self.run(victim, after) {
                after += stride;
                runs += 1;
            }
        }
        runs
    }
}

#[test]
fn each_node_may_die_at_each_step_of_a_pipeline() {
    let mut runs = 0;
    for n in 2..=8 {
        for k in 1..=8 {
            for destroy in [false, true] {
                // Steps of the world are finer than those of the schedule: each event at a node is one.
                let seed = (n as u64) << 32 | u64::from(k) << 8;
                let case = Case { n, k, algorithm: Algorithm::BinomialPipeline, sim: SimConfig::fast(), seed, destroy };
                runs += case.run_all(if n <= 4 { 1 } else { 3 });
            }
        }
    }
    assert!(runs > 5_000, "{runs} runs");
}

#[test]
fn each_node_may_die_at_each_step_of_any_schedule() {
    let racks = |rack_of: &[u8], outer| Algorithm::Hybrid(Racks::new(rack_of, outer).expect("there is a root"));
    let algorithms = [
        Algorithm::Sequential,
        Algorithm::Interleaved,
        Algorithm::Chain,
        Algorithm::BinomialTree,
        racks(&[0, 1, 0, 1, 2, 2], Outer::Chain),
        racks(&[0, 0, 1, 1, 2, 2], Outer::BinomialPipeline),
    ];
    for algorithm in algorithms {
        for (seed, sim) in [(1, SimConfig::fast()), (2, SimConfig::nasty())] {
            let case = Case { n: 6, k: 5, algorithm: algorithm.clone(), sim, seed, destroy: seed == 1 };
            case.run_all(5);
        }
    }
}

#[test]
fn whatever_fails_each_survivor_hears_one_end_and_success_is_never_wrong() {
    for seed in 0..1000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let n = rng.usize(2..=9);
        let config = GroupConfig { block_bytes: BLOCK, ..config(n) };
        let mut world = World::new(SimConfig::fast(), seed, &config);
        world.connect();
        let lens: Vec<usize> = (0..rng.usize(1..4)).map(|_| rng.usize(..20 * BLOCK)).collect();
        let _sources: Vec<_> = lens.iter().map(|&len| world.send(len)).collect();
        world.root().group().destroy().expect("the root may");
        world.kick();
        let any = |rng: &mut fastrand::Rng| NodeId(rng.u32(..n as u32));
        for _ in 0..rng.usize(1..=3) {
            (0..rng.usize(..150)).for_each(|_| _ = world.step());
            let (a, b) = (any(&mut rng), any(&mut rng));
            match rng.u8(..5) {
                0 | 1 if world.members[a.0 as usize].is_some() => world.crash(a.0 as usize),
                2 if a != b => world.net.cut(a, b),
                3 if a != b => world.net.cut_one_way(a, b),
                _ => world.net.pause(a),
            }
        }
        world.run_dry();
        (0..n as u32).for_each(|node| world.net.resume(NodeId(node)));
        world.run_dry();
        let everybody_alive = world.alive().count() == n;
        let whole = |member: &Member| member.received.iter().map(|(_, _, len)| *len).eq(lens.iter().copied());
        let destroyed = world.alive().any(|member| member.destroyed > 0);
        for member in world.alive() {
            let node = member.fabric.node();
            assert!(member.has_ended(), "seed {seed}: {node} hears nothing");
            assert!(!destroyed || node == NodeId(0) || whole(member), "seed {seed}: {node} lacks a message");
            for (number, buffer, len) in &member.received {
                assert!(buffer[..*len] == content(*number, *len), "seed {seed}: message {number} differs at {node}");
            }
            let suspect = member.failures.iter().find_map(|failure| failure.suspect);
            assert!(everybody_alive || suspect.is_some() || member.destroyed > 0, "seed {seed}: there is no suspect");
        }
    }
}

/// A node dies, another dies while the rest completes the message, and so on. A member that waits for a node that died
/// before it was connected leaves.
#[test]
fn a_resume_may_be_resumed() {
    for seed in 0..600 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (n, k) = (rng.usize(3..=8), rng.u32(1..=30));
        let len = k as usize * BLOCK - 9;
        let ahead = [1, u64::MAX][rng.usize(..2)];
        let config = GroupConfig { block_bytes: BLOCK, steps_ahead: ahead, ..config(n) };
        let mut world = World::new(SimConfig::fast(), seed, &config);
        world.connect();
        let source = world.send(len);
        world.kick();
        let mut instance = GROUP.instance;
        while world.alive().count() > 1 {
            (0..rng.usize(..120)).for_each(|_| _ = world.step());
            let alive: Vec<u32> = world.alive().map(|member| member.fabric.node().0).collect();
            world.crash(alive[rng.usize(..alive.len())] as usize);
            world.run_dry();
            let mut held = Vec::new();
            for member in world.members.iter_mut().flatten() {
                let left = member.group().is_ended();
                let left = if left { Vec::new() } else { member.rdmc.remove(&mut member.fabric, member.id) };
                assert!(left.is_empty() || !member.has_ended(), "seed {seed}: told twice");
                let root = (member.fabric.node() == NodeId(0)).then_some(&source);
                let mut what = holdings(member, root, len, k);
                what = left.into_iter().next().filter(|_| what.held.is_empty()).unwrap_or(what);
                check_content(&what, len, &format!("seed {seed}: {}", member.fabric.node()));
                held.push((member.fabric.node(), what));
            }
            instance += 1;
            let survivors = held.iter().map(|(node, _)| *node).collect();
            let id = GroupId { instance, ..GROUP };
            let config = GroupConfig { block_bytes: BLOCK, steps_ahead: ahead, ..GroupConfig::new(id, survivors) };
            let mut held = held.into_iter();
            world = world.resume(&config, |_, fabric| with_memory(held.next().expect("one each").1, fabric));
            world.kick();
        }
        world.run_dry();
        let last = world.alive().next().expect("the last survivor");
        let received = last.received.first().is_some_and(|(_, buffer, len)| buffer[..*len] == content(0, *len));
        let lost = last.failures.iter().any(|failure| failure.reason.contains("held by no member"));
        assert!(received != lost, "seed {seed}: {:?} {:?}", last.received, last.failures);
    }
}

#[test]
fn what_a_survivor_holds_does_not_change_after_it_was_told() {
    for seed in 0..200 {
        let n = 6;
        let config = GroupConfig { block_bytes: 4096, algorithm: Algorithm::BinomialPipeline, ..config(n) };
        let mut world = World::new(SimConfig::nasty(), seed, &config);
        world.connect();
        world.send(100_000);
        world.kick();
        (0..80).for_each(|_| _ = world.step());
        world.crash(3);
        let mut seen: Vec<Option<Vec<u8>>> = vec![None; n];
        let bytes = |member: &Member| {
            let interrupted = member.failures.first()?.interrupted.first()?;
            Some(interrupted.buffer.as_ref()?.to_vec())
        };
        let mut more = true;
        while more {
            more = world.step();
            for (seen, member) in seen.iter_mut().zip(&world.members) {
                let now = member.as_ref().and_then(bytes);
                match seen {
                    Some(seen) => assert!(Some(&*seen) == now.as_ref(), "seed {seed}: something landed afterwards"),
                    None => *seen = now,
                }
            }
        }
    }
}
