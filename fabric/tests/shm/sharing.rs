//! Memory that is shared copy-on-write.

use rustix::process::{Pid, Signal, kill_process};
use squall_fabric::{
    BreakReason, Completion, Op, PostError, Region, RegionKey, RegionKind, Source, Token,
    shm::{SealError, SealedMemory, SharedCopy},
};

use super::world::{Node, Pair, bytes_of, cluster, inline, pair, pattern, whole};
use crate::child::{self, Process};

/// A length that is not of whole pages.
const LEN: usize = 100_000;

fn filled(node: &mut Node) -> Region {
    let region = node.region(RegionKind::Bulk, LEN);
    region.write(0, &pattern(LEN));
    region
}

fn sealed(node: &mut Node) -> SealedMemory {
    let region = filled(node);
    node.fabric.seal(region).unwrap()
}

/// Polls until a receive is complete, and takes the copy that was shared there.
#[track_caller]
fn take(pair: &mut Pair, node: usize, recv: u64) -> Option<SharedCopy> {
    let mut taken = None;
    pair.until("a share", |nodes, ends| {
        let received = |c: &Completion| matches!(c, Completion::Received { token, .. } if token.0 == recv);
        let is_here = nodes[node].seen.iter().any(received);
        if is_here && taken.is_none() {
            taken = Some(nodes[node].fabric.take_shared(ends[node], Token(recv)));
        }
        is_here
    });
    taken.flatten()
}

#[test]
fn a_share_takes_a_receive_and_moves_no_bytes() {
    let (mut pair, _) = pair(|_| Vec::new());
    let buffer = pair.nodes[1].region(RegionKind::Bulk, 8);
    pair.post(1, Op::Recv { into: whole(&buffer) }, 1);
    let memory = sealed(&mut pair.nodes[0]);
    pair.nodes[0].fabric.share(pair.ends[0], &memory, Some(7), Token(2)).unwrap();
    let copy = take(&mut pair, 1, 1).unwrap();
    assert!(*copy == *pattern(LEN));
    let received = Completion::Received { endpoint: pair.ends[1], token: Token(1), bytes: 0, imm: Some(7) };
    assert_eq!(pair.nodes[1].seen[1..], [received]);
    pair.done(0, 2);
    assert_eq!(pair.nodes[1].fabric.stats().bytes_pulled, 0);
    assert_eq!(bytes_of(&buffer), [0; 8]);
}

#[test]
fn shares_and_sends_arrive_in_the_order_of_their_posts() {
    let (mut pair, _) = pair(|_| Vec::new());
    let buffers: Vec<_> = (0..4).map(|_| pair.nodes[1].region(RegionKind::Bulk, 8)).collect();
    for (token, buffer) in buffers.iter().enumerate() {
        pair.post(1, Op::Recv { into: whole(buffer) }, token as u64);
    }
    let memory = sealed(&mut pair.nodes[0]);
    let end = pair.ends[0];
    for token in [0, 2] {
        pair.post(0, Op::Send { source: inline(b"send"), imm: Some(token) }, token.into());
        pair.nodes[0].fabric.share(end, &memory, Some(token + 1), Token((token + 1).into())).unwrap();
    }
    pair.done(0, 3);
    let received: Vec<_> = pair.nodes[1]
        .seen
        .iter()
        .filter_map(|completion| match completion {
            Completion::Received { token, bytes, imm, .. } => Some((token.0, *bytes, *imm)),
            _ => None,
        })
        .collect();
    assert_eq!(received, [(0, 4, Some(0)), (1, 0, Some(1)), (2, 4, Some(2)), (3, 0, Some(3))]);
}

#[test]
fn what_a_holder_writes_is_its_own() {
    let (mut pair, _) = pair(|_| Vec::new());
    let buffer = pair.nodes[1].region(RegionKind::Bulk, 8);
    let memory = sealed(&mut pair.nodes[0]);
    let mut copies: Vec<_> = (1..=2)
        .map(|token| {
            pair.post(1, Op::Recv { into: whole(&buffer) }, token);
            pair.nodes[0].fabric.share(pair.ends[0], &memory, None, Token(token)).unwrap();
            take(&mut pair, 1, token).unwrap()
        })
        .collect();
    copies.push(memory.to_copy().unwrap());
    for (number, copy) in copies.iter_mut().enumerate() {
        copy[LEN - 1] = 200 + number as u8;
        copy[0] = 100 + number as u8;
    }
    for (number, copy) in copies.iter().enumerate() {
        assert_eq!((copy[0], copy[LEN - 1]), (100 + number as u8, 200 + number as u8));
        assert!(copy[1..LEN - 1] == pattern(LEN)[1..LEN - 1]);
    }
    assert!(*memory == *pattern(LEN));
}

#[test]
fn what_is_not_taken_before_the_next_poll_is_let_go() {
    let (mut pair, _) = pair(|_| Vec::new());
    let buffer = pair.nodes[1].region(RegionKind::Bulk, 8);
    pair.post(1, Op::Recv { into: whole(&buffer) }, 1);
    let memory = sealed(&mut pair.nodes[0]);
    pair.nodes[0].fabric.share(pair.ends[0], &memory, None, Token(1)).unwrap();
    pair.done(0, 1);
    pair.nodes[1].poll();
    assert!(pair.nodes[1].fabric.take_shared(pair.ends[1], Token(1)).is_none());
}

#[test]
fn a_share_without_a_receive_breaks_both_sides() {
    let (mut pair, _) = pair(|_| Vec::new());
    let memory = sealed(&mut pair.nodes[0]);
    pair.nodes[0].fabric.share(pair.ends[0], &memory, None, Token(1)).unwrap();
    pair.both_broken(&BreakReason::ReceiverNotReady);
    assert_eq!(pair.nodes[0].fabric.share(pair.ends[0], &memory, None, Token(2)), Err(PostError::Broken));
}

#[test]
fn a_share_has_no_token_of_the_fabric() {
    let (mut pair, _) = pair(|_| Vec::new());
    let memory = sealed(&mut pair.nodes[0]);
    let refused = pair.nodes[0].fabric.share(pair.ends[0], &memory, None, Token::RESERVED);
    assert_eq!(refused, Err(PostError::ReservedToken { token: 1 << 63 }));
}

#[test]
fn what_can_not_be_sealed_comes_back_as_it_was() {
    let (mut pair, _) = pair(|_| Vec::new());
    let node = &mut pair.nodes[0];
    let bulk = filled(node);
    let polled = node.region(RegionKind::Polled, 64);
    let foreign = Region::heap(RegionKind::Bulk, RegionKey(1), 64);
    for (region, text) in [(bulk.clone(), "in use"), (polled, "no bulk region"), (foreign, "no bulk region")] {
        let described = region.describe();
        let error = node.fabric.seal(region).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        let SealError::Unsuitable { region, .. } = error else { panic!("{error}") };
        assert_eq!(region.describe(), described);
    }
    let memory = node.fabric.seal(bulk).unwrap();
    assert!(*memory == *pattern(LEN), "once it is the only handle");
}

#[test]
fn memory_that_was_sent_from_is_sealed_or_its_bytes_come_back() {
    let (mut pair, _) = pair(|_| Vec::new());
    let buffer = pair.nodes[1].region(RegionKind::Bulk, LEN);
    pair.post(1, Op::Recv { into: whole(&buffer) }, 1);
    let region = filled(&mut pair.nodes[0]);
    pair.post(0, Op::Send { source: Source::Region(whole(&region)), imm: None }, 1);
    pair.done(0, 1);
    // Before Linux 6.7 the peer's mapping, though read-only, forbids it.
    match pair.nodes[0].fabric.seal(region) {
        Ok(memory) => assert!(*memory == *pattern(LEN)),
        Err(SealError::Refused { bytes, .. }) => assert!(*bytes == *pattern(LEN)),
        Err(error) => panic!("{error}"),
    }
}

/// A node 2 that shares with node 1, and then does nothing until it is killed.
#[test]
fn child_that_shares() {
    let Some(cluster) = child::argument() else { return };
    let mut node = Node::open(&cluster, 2);
    let end = node.connect(1, &[]);
    node.until("a connection", |node| node.remote(end).is_some());
    let memory = sealed(&mut node);
    node.fabric.share(end, &memory, None, Token(1)).unwrap();
    loop {
        node.poll();
        std::thread::yield_now();
    }
}

#[test]
fn a_copy_outlives_a_peer_that_is_stopped_and_killed_and_its_own_fabric() {
    let cluster = cluster();
    let mut child = Process::start("shm::sharing::child_that_shares", &cluster);
    let mut node = Node::open(&cluster, 1);
    let buffer = node.region(RegionKind::Bulk, 8);
    let end = node.connect(2, &[]);
    node.post(end, Op::Recv { into: whole(&buffer) }, 1);
    let mut copy = None;
    node.until("a share", |node| {
        copy = node.fabric.take_shared(end, Token(1));
        copy.is_some()
    });
    let mut copy = copy.unwrap();
    copy[0] = !copy[0];
    let mut expected = pattern(LEN);
    expected[0] = !expected[0];
    kill_process(Pid::from_child(&child.0), Signal::STOP).unwrap();
    assert!(*copy == *expected);
    child.kill();
    node.until("a break", |node| node.broken(end).is_some());
    assert!(*copy == *expected);
    drop(node);
    copy[1] = !copy[1];
    expected[1] = !expected[1];
    assert!(*copy == *expected);
}
