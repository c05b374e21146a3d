//! Tests that need several fabrics as one: a wait that spans them, and endpoints without a fabric.

use std::{
    thread,
    time::{Duration, Instant},
};

use squall_fabric::{
    BreakReason, Completion, EndpointId, Fabric, GroupTag, NodeId, Op, Region, RegionKind, Slice, Source, Target, Time,
    Token, Wait, WorkGraph,
    mixed::{MixedFabric, Transport},
    net::NetConfig,
    shm::{ShmConfig, ShmFabric},
    tcp::{TcpConfig, TcpFabric},
};

const PATIENCE: Duration = Duration::from_secs(20);

const TAG: GroupTag = GroupTag { layer: 9, group: 1, epoch: 1 };

fn shm(cluster: &str, node: u32) -> ShmFabric {
    ShmFabric::open(ShmConfig::new(cluster, NodeId(node))).expect("shared memory")
}

fn tcp(cluster: &str, node: u32) -> TcpFabric {
    let mut net = NetConfig::new(cluster, NodeId(node));
    net.listen = vec!["127.0.0.1:0".to_owned()];
    TcpFabric::open(TcpConfig::new(net)).expect("sockets")
}

/// Node 0 with shared memory and TCP; node 1 beside it, and node 2 over the network.
fn nodes(name: &str) -> [MixedFabric; 3] {
    let cluster = format!("{name}-{}", std::process::id());
    let (mut near, far) = (tcp(&cluster, 0), tcp(&cluster, 2));
    near.learn(NodeId(2), &far.local_addrs().iter().map(ToString::to_string).collect::<Vec<_>>());
    let mut middle = MixedFabric::new(NodeId(0), Transport::Shm).with_shm(shm(&cluster, 0)).with_tcp(near);
    middle.route(NodeId(2), Transport::Tcp);
    let beside = MixedFabric::new(NodeId(1), Transport::Shm).with_shm(shm(&cluster, 1));
    let remote = MixedFabric::new(NodeId(2), Transport::Tcp).with_tcp(far);
    [middle, beside, remote]
}

/// Connects node 0 with the two others. Returns its endpoints, and those of the others with what they reach at node 0.
fn connect(nodes: &mut [MixedFabric; 3], regions: &[Region; 3]) -> (Vec<EndpointId>, Vec<(EndpointId, Target)>) {
    let mut own = Vec::new();
    for peer in [1, 2] {
        own.push(nodes[0].connect(NodeId(peer), TAG, std::slice::from_ref(&regions[0]), b""));
        nodes[peer as usize].connect(NodeId(0), TAG, std::slice::from_ref(&regions[peer as usize]), b"");
    }
    let (mut ends, until) = (Vec::new(), Instant::now() + PATIENCE);
    let mut theirs = [None; 3];
    while ends.len() < 2 || theirs[1].is_none() || theirs[2].is_none() {
        for (index, node) in nodes.iter_mut().enumerate() {
            let mut out = Vec::new();
            node.poll(Time::boot_clock(), &mut out);
            for completion in out {
                let Completion::Connected { endpoint, remote, .. } = completion else { panic!("{completion:?}") };
                let target = (endpoint, Target { region: remote[0].key, offset: 0 });
                if index == 0 { ends.push(target) } else { theirs[index] = Some(target) }
            }
        }
        assert!(Instant::now() < until, "the nodes don't meet");
    }
    (own, theirs.into_iter().flatten().collect())
}

#[test]
fn one_wait_spans_all_fabrics_and_the_waker() {
    let mut nodes = nodes("mixed-wait");
    let regions = [0, 1, 2].map(|node: usize| nodes[node].register(RegionKind::Polled, 64).expect("memory"));
    let (_, theirs) = connect(&mut nodes, &regions);
    let [mut middle, mut beside, mut remote] = nodes;
    let waker = middle.waker();
    for round in 1..=20u64 {
        let source = round.to_ne_bytes();
        let write = |fabric: &mut MixedFabric, (on, target): (EndpointId, Target)| {
            fabric.post(on, Op::Write { source: Source::Inline(&source), target }, Token::UNSIGNALED).expect("room");
            fabric.poll(Time::boot_clock(), &mut Vec::new());
        };
        for way in 0..3 {
            regions[0].store(0, 0);
            middle.arm();
            middle.poll(Time::boot_clock(), &mut Vec::new());
            thread::scope(|scope| {
                scope.spawn(|| match way {
                    0 => write(&mut beside, theirs[0]),
                    1 => write(&mut remote, theirs[1]),
                    _ => waker.wake(),
                });
                let until = Time::boot_clock() + PATIENCE;
                middle.wait(until);
                assert!(Time::boot_clock() < until, "way {way} did not end the wait of round {round}");
            });
            let until = Instant::now() + PATIENCE;
            while way < 2 && regions[0].load(0) != round {
                middle.poll(Time::boot_clock(), &mut Vec::new());
                assert!(Instant::now() < until, "the write of way {way} is lost");
            }
        }
    }
}

#[test]
fn memory_of_one_fabric_is_reached_through_another() {
    let mut nodes = nodes("mixed-memory");
    // Shared memory makes the regions of nodes 0 and 1, TCP that of node 2.
    let regions = [0, 1, 2].map(|node: usize| nodes[node].register(RegionKind::Bulk, 1 << 20).expect("memory"));
    let (_, theirs) = connect(&mut nodes, &regions);
    for (from, (on, target)) in [(1, theirs[0]), (2, theirs[1])] {
        let payload = vec![from as u8; 1 << 20];
        regions[from].write(0, &payload);
        let source = Source::Region(Slice { region: &regions[from], offset: 0, len: payload.len() });
        nodes[from].post(on, Op::Write { source, target }, Token(1)).expect("room");
        let (mut read, until) = (vec![0; payload.len()], Instant::now() + PATIENCE);
        while read != payload {
            nodes.iter_mut().for_each(|node| node.poll(Time::boot_clock(), &mut Vec::new()));
            regions[0].read(0, &mut read);
            assert!(Instant::now() < until, "the bytes of node {from} did not come");
        }
    }
}

#[test]
fn an_endpoint_without_a_fabric_breaks_with_a_reason() {
    let [mut middle, mut beside, _remote] = nodes("mixed-route");
    beside.route(NodeId(0), Transport::Tcp);
    let lost = beside.connect(NodeId(0), TAG, &[], b"");
    let closed = beside.connect(NodeId(0), TAG, &[], b"");
    beside.disconnect(closed);
    let mut out = Vec::new();
    beside.poll(Time::boot_clock(), &mut out);
    assert_eq!(out.len(), 1, "{out:?}");
    let Completion::Broken { endpoint, reason: BreakReason::Failed(why), .. } = &out[0] else { panic!("{out:?}") };
    assert_eq!(*endpoint, lost);
    assert!(why.contains("TCP, which this node does not use"), "{why}");
    middle.poll(Time::boot_clock(), &mut out);
}

/// Node 0 was opened alone. Node 1 says that it is on the same host, node 2 that it is not.
#[test]
fn who_joins_is_reached_where_its_addresses_say() {
    let cluster = format!("mixed-joins-{}", std::process::id());
    let mut addresses = Vec::new();
    let mut nodes: Vec<MixedFabric> = (0..3)
        .map(|id| {
            let tcp = tcp(&cluster, id);
            addresses.push(tcp.local_addrs().iter().map(ToString::to_string).collect::<Vec<_>>());
            MixedFabric::new(NodeId(id), Transport::Network).with_shm(shm(&cluster, id)).with_tcp(tcp)
        })
        .collect();
    // No node dials node 0.
    addresses[0] = vec!["192.0.2.1:1".to_owned()];
    addresses[1].push("192.0.2.1:2".to_owned());
    let mut ends = Vec::new();
    for joiner in 1..3 {
        for (one, other) in [(0, joiner), (joiner, 0)] {
            for node in [one, other] {
                nodes[one].learn(NodeId(node as u32), &addresses[node]);
            }
            let end = nodes[one].connect(NodeId(other as u32), TAG, &[], b"");
            ends.push((one, end));
        }
    }
    let (mut connected, until) = (Vec::new(), Instant::now() + PATIENCE);
    while connected.len() < ends.len() {
        for (index, node) in nodes.iter_mut().enumerate() {
            let mut out = Vec::new();
            node.poll(Time::boot_clock(), &mut out);
            connected.extend(out.into_iter().map(|completion| match completion {
                Completion::Connected { endpoint, .. } => (index, endpoint),
                other => panic!("{other:?}"),
            }));
        }
        assert!(Instant::now() < until, "the nodes don't meet");
    }
    let dials = nodes[0].tcp().expect("it was added").port().stats().dials;
    assert!(dials > 0, "node 2 is reached over the network");
    assert_eq!(nodes[1].tcp().expect("it was added").port().stats().links_up, 0, "node 1 is not");
}

/// Polls, and sleeps whenever that brings nothing, as an engine does, until `is_end`.
fn sleep_until(fabric: &mut MixedFabric, is_end: impl Fn(&Completion) -> bool) {
    let (mut out, until) = (Vec::new(), Time::boot_clock() + PATIENCE);
    while !out.iter().any(&is_end) {
        assert!(Time::boot_clock() < until, "a node slept over its work");
        let before = out.len();
        fabric.arm();
        fabric.poll(Time::boot_clock(), &mut out);
        if out.len() == before { fabric.wait(until) } else { fabric.disarm() }
    }
}

/// Sends what a work graph posts late in a poll, though its node and the receiver fall asleep: node 0 passes on a
/// message of node 2 to node 1.
fn relays_asleep(mut nodes: [MixedFabric; 3]) {
    let regions = [0, 1, 2].map(|node: usize| nodes[node].register(RegionKind::Bulk, 8).expect("memory"));
    let (own, theirs) = connect(&mut nodes, &regions);
    let whole = |region| Slice { region, offset: 0, len: 8 };
    let send = |region| Op::Send { source: Source::Region(whole(region)), imm: None };
    let mut graph = WorkGraph::new();
    let received = graph.add(own[1], Op::Recv { into: whole(&regions[0]) }, &[]).expect("a sound graph");
    graph.add(own[0], send(&regions[0]), &[received]).expect("a sound graph");
    nodes[0].post_graph(graph, Token(1)).expect("a sound graph");
    nodes[1].post(theirs[0].0, Op::Recv { into: whole(&regions[1]) }, Token(2)).expect("room");
    let [relay, receiver, sender] = &mut nodes;
    thread::scope(|scope| {
        scope.spawn(|| sleep_until(relay, |completion| matches!(completion, Completion::GraphDone { .. })));
        scope.spawn(|| sleep_until(receiver, |completion| matches!(completion, Completion::Received { .. })));
        // Both are asleep by then, mostly.
        thread::sleep(Duration::from_millis(100));
        sender.post(theirs[1].0, send(&regions[2]), Token(3)).expect("room");
        sleep_until(sender, |completion| matches!(completion, Completion::Done { .. }));
    });
}

#[test]
fn no_node_sleeps_over_what_its_work_graphs_post() {
    relays_asleep(nodes("mixed-relay"));
    let cluster = format!("mixed-relay-alone-{}", std::process::id());
    relays_asleep([0, 1, 2].map(|node| MixedFabric::new(NodeId(node), Transport::Shm).with_shm(shm(&cluster, node))));
}
