//! Tests that need several fabrics as one: a wait that spans them, and endpoints without a fabric.

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketType, listen, socket};
use squall_fabric::{
    BreakReason, Completion, EndpointId, Fabric, GroupTag, NodeId, Op, Region, RegionKind, Slice, Source, Target, Time,
    Token, Wait, WorkGraph,
    local_name::bind_name,
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

/// A node that finds out how it reaches its peers. Its socket for shared memory is in the place of that name.
fn finder(cluster: &str, node: u32, place: &str) -> MixedFabric {
    let mut config = ShmConfig::new(cluster, NodeId(node));
    config.rendezvous = Some(format!("{place}-{cluster}"));
    let memory = ShmFabric::open(config).expect("shared memory");
    MixedFabric::new(NodeId(node), Transport::Best).with_tcp(tcp(cluster, node)).with_shm(memory)
}

/// Tells all nodes where the others listen.
fn introduce(nodes: &mut [MixedFabric]) {
    let local = |node: &MixedFabric| node.tcp().expect("it was added").local_addrs().to_vec();
    let addresses: Vec<_> = nodes.iter().map(|node| (node.node(), local(node))).collect();
    for node in nodes {
        let own = node.node();
        for (peer, list) in addresses.iter().filter(|(peer, _)| *peer != own) {
            node.learn(*peer, &list.iter().map(ToString::to_string).collect::<Vec<_>>());
        }
    }
}

/// Polls all nodes until each has so many completions.
fn poll_until(nodes: &mut [MixedFabric], count: usize) -> Vec<Vec<Completion>> {
    let (mut seen, until) = (vec![Vec::new(); nodes.len()], Instant::now() + PATIENCE);
    while seen.iter().any(|seen| seen.len() < count) {
        nodes.iter_mut().zip(&mut seen).for_each(|(node, seen)| node.poll(Time::boot_clock(), seen));
        assert!(Instant::now() < until, "too little happens: {seen:?}");
    }
    seen
}

/// Has each node connect with all others, under a tag.
fn connect_all(nodes: &mut [MixedFabric], epoch: u64) {
    let ids: Vec<NodeId> = nodes.iter().map(Fabric::node).collect();
    for node in nodes.iter_mut() {
        for peer in ids.iter().filter(|peer| **peer != node.node()).copied().collect::<Vec<_>>() {
            node.connect(peer, GroupTag { epoch, ..TAG }, &[], b"");
        }
    }
    for completion in poll_until(nodes, ids.len() - 1).into_iter().flatten() {
        assert!(matches!(completion, Completion::Connected { .. }), "{completion:?}");
    }
}

/// The transport from one node to another, which must be the same from both sides, as must be the reason why it is not
/// shared memory.
fn transport(nodes: &[MixedFabric], one: usize, other: usize) -> (Option<Transport>, Option<&str>) {
    let found = nodes[one].transport(nodes[other].node());
    assert_eq!(found, nodes[other].transport(nodes[one].node()));
    found
}

#[test]
fn memory_is_shared_where_each_finds_the_other_and_else_both_take_the_network() {
    let cluster = format!("mixed-finds-{}", std::process::id());
    let places = ["here", "here", "there"];
    let mut nodes: Vec<_> = places.iter().zip(0..).map(|(place, node)| finder(&cluster, node, place)).collect();
    nodes.push(MixedFabric::new(NodeId(3), Transport::Best).with_tcp(tcp(&cluster, 3)));
    introduce(&mut nodes);
    for epoch in 1..=2 {
        connect_all(&mut nodes, epoch);
        assert_eq!(transport(&nodes, 0, 1), (Some(Transport::Shm), None));
        for node in [0, 1] {
            let (found, why) = transport(&nodes, node, 2);
            assert_eq!(found, Some(Transport::Tcp));
            assert!(why.is_some_and(|why| why.contains("not in this process's directory of names")), "{why:?}");
        }
        for node in 0..3 {
            assert_eq!(transport(&nodes, node, 3), (Some(Transport::Tcp), None), "it has no shared memory");
        }
    }
}

#[test]
fn a_process_that_has_a_peer_s_name_and_is_another_is_found_out() {
    let cluster = format!("mixed-other-{}", std::process::id());
    let mut nodes = vec![finder(&cluster, 0, "here"), finder(&cluster, 1, "there")];
    let _other = finder(&cluster, 1, "here");
    introduce(&mut nodes);
    connect_all(&mut nodes, 1);
    assert_eq!(transport(&nodes, 0, 1), (Some(Transport::Tcp), Some("another process has its name on this host")));
}

/// A socket that takes connections, and at which no process answers.
#[test]
fn a_peer_that_does_not_answer_in_shared_memory_is_reached_over_the_network() {
    let cluster = format!("mixed-silent-{}", std::process::id());
    let mut nodes = vec![finder(&cluster, 0, "here"), finder(&cluster, 1, "there")];
    let silent = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    let _held = bind_name(&silent, "squall", &format!("here-{cluster}/1")).expect("a free name");
    listen(&silent, 100).expect("a socket that listens");
    introduce(&mut nodes);
    connect_all(&mut nodes, 1);
    assert_eq!(transport(&nodes, 0, 1), (Some(Transport::Tcp), Some("it did not answer in time")));
}

#[test]
fn a_peer_that_comes_back_elsewhere_is_asked_again_and_what_waited_for_it_breaks() {
    let cluster = format!("mixed-returns-{}", std::process::id());
    // Once the peer dials in shared memory, and once it is dialed.
    for (own, other) in [(0, 1), (1, 0)] {
        let mut nodes = vec![finder(&cluster, own, "here"), finder(&cluster, other, "here")];
        introduce(&mut nodes);
        connect_all(&mut nodes, 1);
        assert_eq!(transport(&nodes, 0, 1), (Some(Transport::Shm), None));
        let waits = nodes[0].connect(NodeId(other), GroupTag { epoch: 2, ..TAG }, &[], b"");
        nodes[0].poll(Time::boot_clock(), &mut Vec::new());
        drop(nodes.pop());
        let ended = poll_until(&mut nodes, 2).remove(0);
        let is_broken = |seen: &Completion| matches!(seen, Completion::Broken { endpoint, .. } if *endpoint == waits);
        assert!(ended.iter().any(is_broken), "{ended:?}");
        nodes.push(finder(&cluster, other, "there"));
        introduce(&mut nodes);
        connect_all(&mut nodes, 3);
        assert_eq!(transport(&nodes, 0, 1).0, Some(Transport::Tcp));
    }
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
