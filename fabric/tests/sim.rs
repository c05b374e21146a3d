//! The simulated network itself: it is as weak as it claims to be, and as fast as its rates say.

use std::{cell::RefCell, rc::Rc, time::Duration};

use squall_fabric::{
    BreakReason, Completion, EndpointId, Fabric, GroupTag, NodeId, Op, Region, RegionKind, Slice, Source, Target, Time,
    Token, WorkGraph,
    sim::{LinkProperties, Racks, SimConfig, SimFabric, SimNet, TraceEvent},
};

const TAG: GroupTag = GroupTag { layer: 1, group: 1, epoch: 1 };

/// Some nodes, all connected with each other; each exposes the same regions to all.
struct Cluster {
    net: SimNet,
    nodes: Vec<SimFabric>,
    /// The endpoints of each node, to each other.
    ends: Vec<Vec<EndpointId>>,
    regions: Vec<Vec<Region>>,
    seen: Vec<Vec<Completion>>,
}

impl Cluster {
    fn new(config: SimConfig, seed: u64, nodes: u32, regions: &[(RegionKind, usize)]) -> Cluster {
        let net = SimNet::new(config, seed);
        let mut fabrics: Vec<SimFabric> = (0..nodes).map(|id| net.fabric(NodeId(id))).collect();
        let exposed: Vec<Vec<Region>> = fabrics
            .iter_mut()
            .map(|fabric| regions.iter().map(|(kind, len)| fabric.register(*kind, *len).expect("a size")).collect())
            .collect();
        let ends = fabrics
            .iter_mut()
            .enumerate()
            .map(|(i, fabric)| {
                (0..nodes).map(|peer| fabric.connect(NodeId(peer), TAG, &exposed[i], b"")).collect::<Vec<_>>()
            })
            .collect();
        let seen = vec![Vec::new(); nodes as usize];
        let mut cluster = Cluster { net, nodes: fabrics, ends, regions: exposed, seen };
        for node in 0..nodes as usize {
            cluster.poll(node);
        }
        let all = (nodes * (nodes - 1)) as usize;
        cluster.until(|c| {
            c.seen.iter().flatten().filter(|done| matches!(done, Completion::Connected { .. })).count() == all
        });
        cluster.seen.iter_mut().for_each(Vec::clear);
        cluster
    }

    fn poll(&mut self, node: usize) {
        self.nodes[node].poll(self.net.now(), &mut self.seen[node]);
    }

    /// Steps once; returns false when nothing is left to happen.
    fn step(&mut self) -> bool {
        let mut ready = Vec::new();
        self.net.advance(Time::MAX, &mut ready);
        ready.iter().for_each(|node| self.poll(node.0 as usize));
        !ready.is_empty()
    }

    fn until(&mut self, mut holds: impl FnMut(&Cluster) -> bool) {
        while !holds(self) {
            assert!(self.step() || holds(self), "nothing is left to happen");
        }
    }

    fn target(&self, to: usize, region: usize, offset: usize) -> Target {
        Target { region: self.regions[to][region].key(), offset }
    }

    fn write(&mut self, from: usize, to: usize, source: Source<'_>, region: usize, offset: usize, token: Token) {
        let target = self.target(to, region, offset);
        let end = self.ends[from][to];
        self.nodes[from].post(end, Op::Write { source, target }, token).expect("a post");
        self.poll(from);
    }

    fn done(&self, node: usize, token: Token) -> bool {
        self.seen[node].iter().any(|c| matches!(c, Completion::Done { token: t, .. } if *t == token))
    }

    fn broken(&self, node: usize) -> Option<BreakReason> {
        self.seen[node].iter().find_map(|c| match c {
            // The endpoint to itself is refused from the start.
            Completion::Broken { reason, peer, .. } if peer.0 as usize != node => Some(reason.clone()),
            _ => None,
        })
    }
}

fn polled(words: usize) -> (RegionKind, usize) {
    (RegionKind::Polled, 8 * words)
}

/// Checks that `what` happens from at least one seed.
fn happens(what: &str, mut run: impl FnMut(u64) -> bool) {
    assert!((0..300).any(&mut run), "{what}: from none of 300 seeds");
}

#[test]
fn a_write_lands_in_pieces_in_any_order() {
    happens("the last word lands before the first", |seed| {
        let mut c = Cluster::new(SimConfig::fast(), seed, 2, &[polled(8)]);
        c.write(0, 1, Source::Inline(&[1; 64]), 0, 0, Token::UNSIGNALED);
        let table = c.regions[1][0].clone();
        let mut backwards = false;
        c.until(|_| {
            backwards |= table.load(0) == 0 && table.load(56) != 0;
            table.load(0) != 0 && table.load(56) != 0
        });
        backwards
    });
}

#[test]
fn a_source_is_fetched_word_by_word_until_it_is_done() {
    let (mut old, mut new, mut mixed) = (0, 0, 0);
    for seed in 0..200 {
        let mut c = Cluster::new(SimConfig::fast(), seed, 2, &[polled(8)]);
        let [mine, table] = [0, 1].map(|node| c.regions[node][0].clone());
        mine.write(0, &[1; 64]);
        let source = Source::Region(Slice { region: &mine, offset: 0, len: 64 });
        c.write(0, 1, source, 0, 0, Token(1));
        mine.write(0, &[2; 64]);
        c.until(|c| c.done(0, Token(1)) && (0..8).all(|i| table.load(8 * i) != 0));
        match (0..8).filter(|i| table.load(8 * i) as u8 == 2).count() {
            0 => old += 1,
            8 => new += 1,
            _ => mixed += 1,
        }
    }
    assert!(old > 20 && new > 20 && mixed > 20, "{old} as of the post, {new} as of the landing, {mixed} mixed");
}

#[test]
fn a_local_completion_says_nothing_about_the_target() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..100 {
        let mut c = Cluster::new(SimConfig::fast(), seed, 2, &[polled(1)]);
        let table = c.regions[1][0].clone();
        c.write(0, 1, Source::Inline(&[1; 8]), 0, 0, Token(1));
        let mut landed_first = false;
        c.until(|c| {
            let done = c.done(0, Token(1));
            landed_first |= table.load(0) != 0 && !done;
            done
        });
        if landed_first { after += 1 } else { before += 1 }
    }
    assert!(before > 10 && after > 10, "{before} before, {after} after");
}

#[test]
fn endpoints_are_not_ordered_among_each_other() {
    happens("the write that was posted later lands first", |seed| {
        let mut c = Cluster::new(SimConfig::fast(), seed, 3, &[polled(1)]);
        let [first, second] = [1, 2].map(|node| c.regions[node][0].clone());
        c.write(0, 1, Source::Inline(&[1; 8]), 0, 0, Token::UNSIGNALED);
        c.write(0, 2, Source::Inline(&[1; 8]), 0, 0, Token::UNSIGNALED);
        let mut reversed = false;
        c.until(|_| {
            reversed |= first.load(0) == 0 && second.load(0) != 0;
            first.load(0) != 0 && second.load(0) != 0
        });
        reversed
    });
}

#[test]
fn a_read_may_see_later_writes() {
    happens("a read is served after a write that was posted later", |seed| {
        let mut c = Cluster::new(SimConfig::fast(), seed, 2, &[polled(1)]);
        let mine = c.regions[0][0].clone();
        let from = c.target(1, 0, 0);
        let (end, into) = (c.ends[0][1], Slice { region: &mine, offset: 0, len: 8 });
        c.nodes[0].post(end, Op::Read { from, into }, Token(1)).expect("a post");
        c.write(0, 1, Source::Inline(&[1; 8]), 0, 0, Token::UNSIGNALED);
        c.until(|c| c.done(0, Token(1)));
        mine.load(0) != 0
    });
}

#[test]
fn a_crash_leaves_a_prefix_and_a_torn_write() {
    let mut lengths = [0; 5];
    let mut torn = 0;
    for seed in 0..300 {
        let mut c = Cluster::new(SimConfig::fast(), seed, 2, &[polled(32)]);
        let table = c.regions[1][0].clone();
        for i in 0..4 {
            c.write(0, 1, Source::Inline(&[1; 64]), 0, 64 * i, Token::UNSIGNALED);
        }
        c.net.crash(NodeId(0));
        let since = c.net.now();
        c.until(|c| c.broken(1).is_some());
        assert_eq!(c.broken(1), Some(BreakReason::ProcessGone));
        assert!(c.net.now().since(since) <= SimConfig::fast().failure_timeout);
        let landed: Vec<usize> = (0..4).map(|i| (0..8).filter(|w| table.load(64 * i + 8 * w) != 0).count()).collect();
        let whole = landed.iter().take_while(|words| **words == 8).count();
        lengths[whole] += 1;
        torn += usize::from(landed.get(whole).is_some_and(|words| *words > 0));
        assert!(landed.iter().skip(whole + 1).all(|words| *words == 0), "no prefix: {landed:?}");
    }
    assert!(lengths.iter().all(|count| *count > 5) && torn > 30, "prefixes {lengths:?}, {torn} torn");
}

#[test]
fn a_paused_node_is_written_but_not_stepped() {
    let mut c = Cluster::new(SimConfig::fast(), 1, 2, &[polled(1)]);
    let table = c.regions[1][0].clone();
    c.net.pause(NodeId(1));
    c.write(0, 1, Source::Inline(&[1; 8]), 0, 0, Token::UNSIGNALED);
    let mut ready = Vec::new();
    let limit = c.net.now() + Duration::from_millis(100);
    while c.net.now() < limit {
        c.net.advance(limit, &mut ready);
        assert!(!ready.contains(&NodeId(1)));
        // Time passes only while no node is to be stepped.
        ready.clear();
    }
    assert!(!c.net.runs(NodeId(1)) && c.net.is_up(NodeId(1)));
    assert_ne!(table.load(0), 0);
    c.net.resume(NodeId(1));
    c.net.advance(Time::MAX, &mut ready);
    assert_eq!(ready, [NodeId(1)]);
    assert_eq!(c.broken(0), None);
}

#[test]
fn a_restarted_node_starts_with_nothing() {
    for seed in 0..50 {
        let mut c = Cluster::new(SimConfig::fast(), seed, 2, &[polled(1)]);
        let old_end = c.ends[1][0];
        if seed % 2 == 0 {
            c.net.crash(NodeId(1));
        } else {
            c.net.power_off(NodeId(1));
        }
        let mut old = std::mem::replace(&mut c.nodes[1], c.net.restart(NodeId(1)));
        assert_eq!((old.incarnation(), c.nodes[1].incarnation()), (1, 2));
        let send = Op::Send { source: Source::Inline(b"ghost"), imm: None };
        assert!(old.post(old_end, send, Token(1)).is_err());
        assert!(c.nodes[1].post(old_end, send, Token(1)).is_err());

        c.until(|c| c.broken(0).is_some());
        let why = if seed % 2 == 0 { BreakReason::ProcessGone } else { BreakReason::Unreachable };
        assert_eq!(c.broken(0), Some(why));
        let table = c.nodes[1].register(RegionKind::Polled, 8).expect("a size");
        let next = GroupTag { epoch: 2, ..TAG };
        c.nodes[0].connect(NodeId(1), next, &[], b"");
        c.nodes[1].connect(NodeId(0), next, &[table], b"");
        [0, 1].into_iter().for_each(|node| c.poll(node));
        let up = |seen: &[Completion]| seen.iter().any(|c| matches!(c, Completion::Connected { .. }));
        c.until(|c| c.seen.iter().all(|seen| up(seen)));
    }
}

#[test]
fn one_way_cuts_break_both_sides() {
    for seed in 0..50 {
        let mut c = Cluster::new(SimConfig::fast(), seed, 2, &[polled(1)]);
        c.net.cut_one_way(NodeId(0), NodeId(1));
        let since = c.net.now();
        c.until(|c| c.broken(0).is_some() && c.broken(1).is_some());
        assert!(c.net.now().since(since) <= SimConfig::fast().failure_timeout);
        assert_eq!((c.broken(0), c.broken(1)), (Some(BreakReason::Unreachable), Some(BreakReason::Unreachable)));
    }
}

/// The bytes that a phantom transfer moves per second of virtual time, with `count` posts of `len` bytes each.
fn rate(c: &mut Cluster, pairs: &[(usize, usize)], len: usize, count: u64) -> f64 {
    c.seen.iter_mut().for_each(Vec::clear);
    let since = c.net.now();
    for i in 0..count {
        for &(from, to) in pairs {
            let region = c.regions[from][0].clone();
            let source = Source::Region(Slice { region: &region, offset: 0, len });
            c.write(from, to, source, 0, 0, Token(i));
        }
    }
    c.until(|c| pairs.iter().all(|(from, _)| c.done(*from, Token(count - 1))));
    (len as u64 * count) as f64 * pairs.len() as f64 / c.net.now().since(since).as_secs_f64()
}

#[test]
fn interfaces_are_full_duplex_and_shared() {
    const RATE: u64 = 10_000_000_000;
    let config = SimConfig::ideal(RATE, Duration::from_micros(2));
    rates_are_shared(RATE, config.clone());
    rates_are_shared(RATE, SimConfig { segment_bytes: 8 << 20, ..config });
}

fn rates_are_shared(rate_of_each: u64, config: SimConfig) {
    const BLOCK: usize = 1 << 30;
    let cluster = |config: &SimConfig| Cluster::new(config.clone(), 1, 4, &[(RegionKind::Phantom, BLOCK)]);
    let share = |config: &SimConfig, pairs: &[(usize, usize)]| {
        rate(&mut cluster(config), pairs, BLOCK, 20) / rate_of_each as f64
    };
    let near = |got: f64, expected: f64| assert!((got / expected - 1.0).abs() < 0.01, "{got} instead of {expected}");
    near(share(&config, &[(0, 1)]), 1.0);
    near(share(&config, &[(0, 1), (1, 0)]), 2.0);
    near(share(&config, &[(0, 1), (1, 2), (2, 3), (3, 0)]), 4.0);
    near(share(&config, &[(0, 2), (1, 2)]), 1.0);
    near(share(&config, &[(0, 1), (2, 3)]), 2.0);
    // There are two racks of two nodes, whose uplink carries half of the rate of one node.
    let racks = Some(Racks { nodes_per_rack: 2, uplink_bytes_per_s: rate_of_each / 2 });
    let racked = SimConfig { racks, ..config };
    near(share(&racked, &[(0, 1), (2, 3)]), 2.0);
    near(share(&racked, &[(0, 2), (1, 3)]), 0.5);
    // A slow link slows down what passes it, and nothing else.
    let mut c = cluster(&SimConfig { racks: None, ..racked });
    c.net.set_link(NodeId(0), NodeId(1), LinkProperties { bytes_per_s: Some(rate_of_each / 4), latency: None });
    near(rate(&mut c, &[(0, 1)], BLOCK, 20) / rate_of_each as f64, 0.25);
    near(rate(&mut c, &[(0, 2)], BLOCK, 20) / rate_of_each as f64, 1.0);
}

#[test]
fn endpoints_of_one_node_take_turns() {
    const BLOCK: usize = 1 << 20;
    let config = SimConfig::ideal(1_000_000_000, Duration::from_micros(2));
    let mut c = Cluster::new(config, 1, 3, &[(RegionKind::Phantom, BLOCK)]);
    let phantom = c.regions[0][0].clone();
    let source = Source::Region(Slice { region: &phantom, offset: 0, len: BLOCK });
    for i in 0..30 {
        c.write(0, 1, source, 0, 0, Token(i));
    }
    for i in 0..3 {
        c.write(0, 2, source, 0, 0, Token(100 + i));
    }
    c.until(|c| c.done(0, Token(102)));
    let ahead = (0..30).filter(|i| c.done(0, Token(*i))).count();
    assert!(ahead <= 4, "{ahead} blocks to one peer went before 3 to the other");
}

/// The times that two blocks that meet at a target's interface take, in block times.
fn meeting(segment_bytes: usize) -> [f64; 2] {
    const RATE: u64 = 1_000_000_000;
    const BLOCK: usize = 1 << 20;
    let config = SimConfig { segment_bytes, ..SimConfig::ideal(RATE, Duration::from_micros(2)) };
    let mut c = Cluster::new(config, 1, 3, &[(RegionKind::Phantom, BLOCK)]);
    let since = c.net.now();
    for from in [0, 1] {
        let phantom = c.regions[from][0].clone();
        c.write(from, 2, Source::Region(Slice { region: &phantom, offset: 0, len: BLOCK }), 0, 0, Token(0));
    }
    [0, 1].map(|from| {
        c.until(|c| c.done(from, Token(0)));
        c.net.now().since(since).as_secs_f64() * RATE as f64 / BLOCK as f64
    })
}

#[test]
fn whole_operations_queue_where_they_meet_and_segments_take_turns() {
    let near = |got: [f64; 2], expected: [f64; 2]| {
        let off = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f64::max);
        assert!(off < 0.1, "{got:?} instead of {expected:?}");
    };
    near(meeting(0), [1.0, 2.0]);
    near(meeting(64 << 10), [2.0, 2.0]);
}

#[test]
fn a_segment_that_is_held_up_leaves_the_ports_before_it_to_others() {
    const RATE: u64 = 1_000_000_000;
    const BLOCK: usize = 1 << 20;
    let config = SimConfig { segment_bytes: 64 << 10, ..SimConfig::ideal(RATE, Duration::from_micros(2)) };
    let mut c = Cluster::new(config, 1, 3, &[(RegionKind::Phantom, BLOCK)]);
    c.net.set_link(NodeId(0), NodeId(1), LinkProperties { bytes_per_s: Some(RATE / 10), latency: None });
    let phantom = c.regions[0][0].clone();
    let source = Source::Region(Slice { region: &phantom, offset: 0, len: BLOCK });
    let since = c.net.now();
    c.write(0, 1, source, 0, 0, Token(1));
    c.write(0, 2, source, 0, 0, Token(2));
    c.until(|c| c.done(0, Token(2)));
    let blocks = c.net.now().since(since).as_secs_f64() * RATE as f64 / BLOCK as f64;
    assert!(blocks < 1.25, "the block beside the slow link took {blocks} block times");
}

#[test]
fn small_writes_pass_between_large_ones() {
    const BLOCK: usize = 100 << 20;
    let config = SimConfig::ideal(1_000_000_000, Duration::from_micros(2));
    let mut c = Cluster::new(config, 1, 3, &[(RegionKind::Phantom, BLOCK), polled(1)]);
    let phantom = c.regions[0][0].clone();
    let source = Source::Region(Slice { region: &phantom, offset: 0, len: BLOCK });
    c.write(0, 1, source, 0, 0, Token(1));
    let since = c.net.now();
    c.write(0, 2, Source::Inline(&[1; 8]), 1, 0, Token::UNSIGNALED);
    let table = c.regions[2][1].clone();
    c.until(|_| table.load(0) != 0);
    assert!(c.net.now().since(since) < Duration::from_micros(10));
}

/// A graph is the interface's work: it goes on while its node's process does not run.
#[test]
fn a_graph_goes_on_while_its_process_is_paused() {
    for seed in 0..100 {
        let mut c = Cluster::new(SimConfig::nasty(), seed, 3, &[(RegionKind::Bulk, 64)]);
        let [from, via, to] = [0, 1, 2].map(|node| c.regions[node][0].clone());
        from.write(0, &[7; 64]);
        let whole = |region| Slice { region, offset: 0, len: 64 };
        let mut relay = WorkGraph::new();
        let received = relay.add(c.ends[1][0], Op::Recv { into: whole(&via) }, &[]).expect("an operation");
        let send = Op::Send { source: Source::Region(whole(&via)), imm: None };
        relay.add(c.ends[1][2], send, &[received]).expect("an operation");
        c.nodes[1].post_graph(relay, Token(1)).expect("a graph");
        c.nodes[2].post(c.ends[2][1], Op::Recv { into: whole(&to) }, Token(2)).expect("a post");
        c.poll(2);
        c.net.pause(NodeId(1));
        c.nodes[0]
            .post(c.ends[0][1], Op::Send { source: Source::Region(whole(&from)), imm: None }, Token(3))
            .expect("a post");
        c.poll(0);
        c.until(|c| c.seen[2].iter().any(|seen| matches!(seen, Completion::Received { token: Token(2), .. })));
        assert!(c.seen[1].is_empty(), "seed {seed}: a paused process heard of it");
        let mut came = [0; 64];
        to.read(0, &mut came);
        assert_eq!(came, [7; 64], "seed {seed}");
        c.net.resume(NodeId(1));
        c.until(|c| c.seen[1] == [Completion::GraphDone { token: Token(1), result: Ok(()) }]);
    }
}

#[test]
fn a_trace_tells_what_happened() {
    let mut c = Cluster::new(SimConfig::fast(), 5, 2, &[polled(1)]);
    let events = Rc::new(RefCell::new(Vec::new()));
    let sink = events.clone();
    c.net.set_trace(Some(Box::new(move |time, event: &TraceEvent| {
        sink.borrow_mut().push(format!("{time} {event}"));
    })));
    c.write(0, 1, Source::Inline(&[1; 8]), 0, 0, Token(1));
    c.until(|c| c.done(0, Token(1)));
    c.net.crash(NodeId(0));
    c.until(|c| c.broken(1).is_some());
    let told = events.borrow().join("\n");
    for part in
        ["node 0 posts write of 8 bytes to node 1", "node 0 crashes", "node 1 loses node 0: its process is gone"]
    {
        assert!(told.contains(part), "no {part:?} in\n{told}");
    }
}
