//! Processes that connect to a node's socket and are no nodes of its cluster.

use std::{
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with},
};
use squall_fabric::{BreakReason, NodeId, RegionKind, local_name::connect_name, shm::ShmConfig};

use super::world::{Node, PATIENCE, cluster, until};

fn dial(cluster: &str, node: u32) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect_name(&socket, "squall", &format!("{cluster}/{node}")).unwrap();
    socket
}

/// Waits until the node has closed the connection.
#[track_caller]
fn wait_closed(socket: &OwnedFd) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match recv(socket, &mut [0; 4096][..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(Errno::CONNRESET | Errno::PIPE) => return,
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < deadline, "the connection stays open");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that two nodes can still meet.
#[track_caller]
fn check_undisturbed(nodes: &mut [Node]) {
    let region = nodes[1].region(RegionKind::Polled, 64);
    let ends = [nodes[0].connect(2, &[]), nodes[1].connect(1, &[region])];
    until(nodes, "a connection", |nodes| (0..2).all(|i| nodes[i].remote(ends[i]).is_some()));
}

#[test]
fn strangers_that_send_rubbish_are_closed_and_disturb_nobody() {
    let cluster = cluster();
    let mut nodes = vec![Node::open(&cluster, 1), Node::open(&cluster, 2)];
    let mut rng = fastrand::Rng::with_seed(1);
    let strangers = 200;
    for number in 0..strangers {
        let socket = dial(&cluster, 2);
        let mut bytes: Vec<u8> = (0..rng.usize(1..9000)).map(|_| rng.u8(..)).collect();
        if number % 2 == 0 {
            // It begins well: a greeting, with the right magic.
            bytes.splice(0..1, [1].into_iter().chain(u64::from_be_bytes(*b"squallSM").to_le_bytes()));
        }
        // The node may have closed its end before all is sent.
        let _ = send(&socket, &bytes, SendFlags::NOSIGNAL);
        wait_closed(&socket);
    }
    assert_eq!(nodes[1].fabric.stats().connections_refused, strangers);
    check_undisturbed(&mut nodes);
}

#[test]
fn silent_strangers_are_closed_after_a_while_or_when_there_are_too_many() {
    let cluster = cluster();
    let mut config = ShmConfig::new(cluster.as_str(), NodeId(2));
    config.max_pending_peers = 4;
    config.handshake_timeout = Duration::from_millis(500);
    let mut nodes = vec![Node::open(&cluster, 1), Node::with(config)];
    let strangers: Vec<OwnedFd> = (0..40).map(|_| dial(&cluster, 2)).collect();
    check_undisturbed(&mut nodes);
    strangers.iter().for_each(wait_closed);
    assert_eq!(nodes[1].fabric.stats().connections_refused, 40);
}

/// The reasons by which each node is told of the other: node 1 as configured, and node 2 as the callback makes it.
fn refusals(cluster: &str, other: impl Fn(&mut ShmConfig)) -> [String; 2] {
    for late in [false, true] {
        let mut config = ShmConfig::new(cluster, NodeId(2));
        other(&mut config);
        let mut nodes = vec![Node::open(cluster, 1), Node::with(config)];
        let first = nodes[0].connect(2, &[]);
        let second = if late {
            // Node 2 wants to connect only after node 1 was refused.
            nodes[0].until("the refusal", |node| node.broken(first).is_some());
            nodes[1].connect(1, &[])
        } else {
            let second = nodes[1].connect(1, &[]);
            nodes[1].poll();
            second
        };
        let ends = [first, second];
        until(&mut nodes, "refusals", |nodes| (0..2).all(|i| nodes[i].broken(ends[i]).is_some()));
        let sentences = [0, 1].map(|i| match nodes[i].broken(ends[i]) {
            Some(BreakReason::Refused(sentence)) => sentence.clone(),
            other => panic!("{other:?}"),
        });
        if late {
            return sentences;
        }
    }
    unreachable!()
}

#[test]
fn another_protocol_version_is_refused_on_both_sides() {
    let ours = ShmConfig::new("any", NodeId(1)).protocol;
    let theirs = ours + 1;
    assert_eq!(
        refusals(&cluster(), |config| config.protocol = theirs),
        [
            format!("node 2 speaks protocol {theirs}, this node {ours}: run the same release of Squall on both"),
            format!("node 1 speaks protocol {ours}, this node {theirs}: run the same release of Squall on both"),
        ]
    );
}

#[test]
fn another_cluster_is_refused_on_both_sides() {
    let cluster = cluster();
    let sentences = refusals(&cluster, |config| {
        config.rendezvous = Some(config.cluster.clone());
        config.cluster = "other".to_owned();
    });
    assert_eq!(
        sentences,
        [
            format!("node 2 belongs to cluster \"other\", this node to {cluster:?}: give both the same cluster name"),
            format!("node 1 belongs to cluster {cluster:?}, this node to \"other\": give both the same cluster name"),
        ]
    );
}

#[test]
fn what_can_not_be_a_name_is_refused() {
    for name in ["", &"x".repeat(65)] {
        let error = squall_fabric::shm::ShmFabric::open(ShmConfig::new(name, NodeId(1))).unwrap_err();
        assert!(error.to_string().contains("take 1 to 64"), "{error}");
    }
    squall_fabric::shm::ShmFabric::open(ShmConfig::new("x".repeat(64), NodeId(u32::MAX))).unwrap();
}
