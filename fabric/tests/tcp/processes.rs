//! Processes that end, and come back.

use std::time::{Duration, Instant};

use squall_fabric::{BreakReason, Completion, Fabric, Flushed, NodeId, Op, RegionKind, Target, Token};

use super::world::{Node, cluster, inline, whole};
use crate::child::{self, Process};

/// A node 2 that dials node 1 and connects, until it learns the reason for which the connection has ended.
#[test]
fn child_that_is_given_up() {
    let Some(argument) = child::argument() else { return };
    let (cluster, address) = argument.split_once(' ').unwrap();
    let mut node = Node::with(cluster, 2, |config| config.net.listen.clear());
    node.fabric.learn(NodeId(1), &[address.to_owned()]);
    let end = node.connect(1, &[]);
    node.until("a connection", |node| node.remote(end).is_some());
    let target = Target { region: node.remote(end).unwrap()[0].key, offset: 0 };
    node.post(end, Op::Write { source: inline(&1u64.to_ne_bytes()), target }, 1);
    node.until("the end", |node| node.broken(end).is_some());
    assert_eq!(node.broken(end), Some(&BreakReason::GivenUp));
}

#[test]
fn a_stopped_process_is_given_up_in_time_and_learns_of_it_when_it_goes_on() {
    let cluster = cluster();
    let mut node = Node::open(&cluster, 1);
    let argument = format!("{cluster} {}", node.addresses()[0]);
    let child = Process::start("tcp::processes::child_that_is_given_up", &argument);
    let region = node.region(RegionKind::Polled, 8);
    let end = node.connect(2, std::slice::from_ref(&region));
    // Node 2 knows of its connection by then, too.
    node.until("a write", |_| region.load(0) == 1);
    let pid = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let began = Instant::now();
    node.until("a break", |node| node.broken(end).is_some());
    // The failure timeout, and as much again for a machine that is busy.
    assert!(began.elapsed() < Duration::from_secs(2), "noticed after {:?}", began.elapsed());
    assert_eq!(node.broken(end), Some(&BreakReason::Unreachable));
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    child.succeed();
}

/// A node 2 that dials node 1, connects, and then does nothing, until it is killed.
#[test]
fn child_that_connects() {
    let Some(argument) = child::argument() else { return };
    let (cluster, address) = argument.split_once(' ').unwrap();
    let mut node = Node::with(cluster, 2, |config| config.net.listen.clear());
    node.fabric.learn(NodeId(1), &[address.to_owned()]);
    let region = node.region(RegionKind::Polled, 64);
    let into = node.region(RegionKind::Bulk, 64);
    let end = node.connect(1, &[region]);
    node.post(end, Op::Recv { into: whole(&into) }, 1);
    node.until("a connection", |node| node.remote(end).is_some());
    loop {
        std::thread::park();
    }
}

#[test]
fn the_death_of_a_process_flushes_work_and_breaks_its_endpoints_without_delay() {
    const FAILURE_TIMEOUT: Duration = Duration::from_secs(10);
    let cluster = cluster();
    let mut node = Node::with(&cluster, 1, |config| config.net.failure_timeout = FAILURE_TIMEOUT);
    let argument = format!("{cluster} {}", node.addresses()[0]);
    let mut child = Process::start("tcp::processes::child_that_connects", &argument);
    let end = node.connect(2, &[]);
    node.until("a connection", |node| node.remote(end).is_some());
    let into = node.region(RegionKind::Bulk, 64);
    node.post(end, Op::Recv { into: whole(&into) }, 1);
    // The child does not poll, so a read stays outstanding.
    let from = Target { region: node.remote(end).unwrap()[0].key, offset: 0 };
    node.post(end, Op::Read { from, into: whole(&into) }, 2);
    node.fabric.post(end, Op::Send { source: inline(b"two"), imm: None }, Token::UNSIGNALED).unwrap();
    node.post(end, Op::Send { source: inline(b"three"), imm: None }, 3);
    for _ in 0..100 {
        node.poll();
    }
    assert_eq!(node.seen.len(), 1, "only connected so far");
    child.kill();
    let began = Instant::now();
    node.until("a break", |node| node.broken(end).is_some());
    assert!(began.elapsed() < FAILURE_TIMEOUT / 4, "noticed after {:?}", began.elapsed());
    let flushed = |token| Completion::Done { endpoint: end, token: Token(token), result: Err(Flushed) };
    assert_eq!(node.seen[1..4], [flushed(2), flushed(3), flushed(1)]);
    let reason = node.broken(end).unwrap();
    assert!(matches!(reason, BreakReason::Lost(_)), "{reason:?}");
    for _ in 0..100 {
        node.poll();
    }
    assert_eq!(node.seen.len(), 5, "nothing is reported after");

    // The next life of the process meets a new endpoint of the same tag.
    let end = node.connect(2, &[]);
    let _child = Process::start("tcp::processes::child_that_connects", &argument);
    node.until("a connection with the next life", |node| node.remote(end).is_some());
}
