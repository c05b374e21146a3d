//! Writes, sends and reads of all kinds and lengths arrive.

use squall_fabric::{
    BreakReason, Completion, Fabric, GroupTag, NodeId, Op, Region, RegionKey, RegionKind, Slice, Source, Target, Token,
};

use super::world::{bytes_of, inline, pair, pattern, whole};

/// A length beyond inline bytes, and beyond the bytes that one poll copies.
const LONG: usize = 5 << 20;

#[test]
fn writes_of_all_kinds_arrive_in_order() {
    let (mut pair, regions) =
        pair(|node| vec![node.region(RegionKind::Polled, 4096), node.region(RegionKind::Bulk, LONG)]);
    let (polled, bulk) = (pair.target(0, 0, 0), pair.target(0, 1, 0));
    let source = pair.nodes[0].region(RegionKind::Bulk, LONG);
    source.write(0, &pattern(LONG));

    pair.post(0, Op::Write { source: inline(&7u64.to_ne_bytes()), target: polled }, 1);
    assert_eq!(regions[1][0].load(0), 7, "bytes for polled memory are pushed by the post");
    pair.post(0, Op::Write { source: Source::Region(whole(&source)), target: bulk }, 2);
    pair.post(0, Op::Write { source: inline(&8u64.to_ne_bytes()), target: polled }, 3);
    assert_eq!(regions[1][0].load(0), 7, "not ahead of the bulk bytes");
    pair.done(0, 3);
    assert_eq!(regions[1][0].load(0), 8);
    assert!(bytes_of(&regions[1][1]) == pattern(LONG));

    source.write(0, b"changed");
    let word_target = Target { offset: 8, ..polled };
    let op = Op::WriteThenWord { source: Source::Region(whole(&source)), target: bulk, word: 9, word_target };
    pair.post(0, op, 4);
    pair.done(0, 4);
    assert_eq!(regions[1][0].load(8), 9);
    assert_eq!(bytes_of(&regions[1][1])[..7], *b"changed");
}

#[test]
fn sends_arrive_in_receives() {
    let (mut pair, _) = pair(|_| Vec::new());
    let into: Vec<_> = (0..3).map(|_| pair.nodes[1].region(RegionKind::Bulk, LONG)).collect();
    for (token, region) in into.iter().enumerate() {
        pair.post(1, Op::Recv { into: whole(region) }, token as u64);
    }
    let source = pair.nodes[0].region(RegionKind::Bulk, LONG);
    source.write(0, &pattern(LONG));
    pair.post(0, Op::Send { source: inline(b"short"), imm: None }, 10);
    pair.post(0, Op::Send { source: Source::Region(whole(&source)), imm: Some(5) }, 11);
    pair.post(0, Op::Send { source: inline(&[]), imm: Some(6) }, 12);
    pair.done(0, 12);
    let endpoint = pair.ends[1];
    let expected = [(0, 5, None), (1, LONG, Some(5)), (2, 0, Some(6))]
        .map(|(token, bytes, imm)| Completion::Received { endpoint, token: Token(token), bytes, imm });
    assert_eq!(pair.nodes[1].seen[1..], expected);
    assert_eq!(bytes_of(&into[0])[..5], *b"short");
    assert!(bytes_of(&into[1]) == pattern(LONG));
}

#[test]
fn a_read_sees_what_was_written_before_it() {
    let (mut pair, _) = pair(|node| vec![node.region(RegionKind::Bulk, LONG)]);
    let target = pair.target(0, 0, 0);
    let source = pair.nodes[0].region(RegionKind::Bulk, LONG);
    source.write(0, &pattern(LONG));
    let back = pair.nodes[0].region(RegionKind::Bulk, LONG);
    pair.post(0, Op::Write { source: Source::Region(whole(&source)), target }, 1);
    pair.post(0, Op::Read { from: target, into: whole(&back) }, 2);
    pair.post(0, Op::Write { source: inline(b"later"), target }, 3);
    pair.done(0, 2);
    assert!(bytes_of(&back) == pattern(LONG));
    pair.done(0, 3);
}

#[test]
fn a_wrong_access_breaks_both_sides_and_harms_nothing() {
    let bytes = 64;
    for (what, target) in [
        ("a wrong key", Target { region: RegionKey(1), offset: 0 }),
        ("behind the end", Target { region: RegionKey(0), offset: bytes - 8 }),
        ("far behind", Target { region: RegionKey(0), offset: usize::MAX - 7 }),
    ] {
        for kind in [RegionKind::Polled, RegionKind::Bulk] {
            let (mut pair, regions) = pair(|node| vec![node.region(kind, bytes)]);
            let target =
                if target.region.0 == 0 { Target { offset: target.offset, ..pair.target(0, 0, 0) } } else { target };
            pair.post(0, Op::Write { source: inline(&[1; 16]), target }, 1);
            pair.both_broken(&BreakReason::Access);
            assert!(bytes_of(&regions[1][0]).iter().all(|&b| b == 0), "{what}");
        }
    }
}

#[test]
fn a_message_without_a_receive_breaks_both_sides() {
    let (mut pair, _) = pair(|_| Vec::new());
    pair.post(0, Op::Send { source: inline(b"nobody"), imm: None }, 1);
    pair.both_broken(&BreakReason::ReceiverNotReady);
}

#[test]
fn many_regions_are_exposed_in_order() {
    // The regions are more than one packet carries.
    let (mut pair, regions) = pair(|node| {
        (0..150).map(|i| node.region([RegionKind::Polled, RegionKind::Bulk][i % 2], 8 * (i + 1))).collect()
    });
    for side in 0..2 {
        let described: Vec<_> = regions[1 - side].iter().map(Region::describe).collect();
        assert_eq!(pair.nodes[side].remote(pair.ends[side]), Some(described.as_slice()));
    }
    for (index, region) in regions[1].iter().enumerate() {
        let word = (index as u64 + 1).to_ne_bytes();
        pair.post(0, Op::Write { source: inline(&word), target: pair.target(0, index, 8 * index) }, index as u64);
        pair.done(0, index as u64);
        assert_eq!(bytes_of(region)[8 * index..], word);
    }
}

#[test]
fn what_this_backend_can_not_carry_is_refused_with_a_sentence() {
    let error = pair(|_| Vec::new()).0.nodes[0].fabric.register(RegionKind::Phantom, 64).unwrap_err();
    assert!(error.to_string().contains("only the simulator moves"), "{error}");

    let foreign = Region::heap(RegionKind::Bulk, RegionKey(1), 4096);
    let (mut pair, _) = pair(|node| vec![node.region(RegionKind::Bulk, 4096)]);
    let target = pair.target(0, 0, 0);
    // A short range is copied; a long one would have to be mapped by the peer.
    pair.post(0, Op::Write { source: Source::Region(Slice { region: &foreign, offset: 0, len: 100 }), target }, 1);
    pair.done(0, 1);
    pair.post(0, Op::Write { source: Source::Region(whole(&foreign)), target }, 2);
    pair.until("a break", |nodes, ends| nodes[0].broken(ends[0]).is_some());
    let Some(BreakReason::Failed(text)) = pair.nodes[0].broken(pair.ends[0]) else { panic!() };
    assert!(text.contains("must lie in a region that was registered with this fabric"), "{text}");

    let phantom = Region::heap(RegionKind::Phantom, RegionKey(1), 4096);
    let end = pair.nodes[0].fabric.connect(NodeId(2), GroupTag { layer: 9, group: 9, epoch: 9 }, &[phantom], b"");
    pair.until("a break", |nodes, _| nodes[0].broken(end).is_some());
    let end = pair.nodes[0].connect(1, &[]);
    pair.until("a break", |nodes, _| nodes[0].broken(end).is_some());
}
