//! Connections: the knowledge of both sides, tags, and times.

use squall_fabric::{BreakReason, HELLO_BYTES, Region, RegionKind};

use crate::rig::{Pair, Rig, Verdict, ensure, tag};

fn learned(rig: &Rig<'_>, pair: &Pair, side: usize) -> Option<(Vec<squall_fabric::RemoteRegion>, Vec<u8>)> {
    rig.endpoint(pair.nodes[side], pair.ends[side]).connected.clone()
}

/// Each side learns the other's regions, in their order, and as much of its private data as travels.
pub(crate) fn connected_brings_regions_and_hello(rig: &mut Rig<'_>) -> Verdict {
    let kinds = [RegionKind::Bulk, RegionKind::Polled, RegionKind::Bulk, RegionKind::Polled];
    let mut regions: [Vec<Region>; 2] = [Vec::new(), Vec::new()];
    for (node, list) in regions.iter_mut().enumerate() {
        for (i, kind) in kinds.into_iter().enumerate() {
            list.push(rig.region(node, kind, 64 * (i + 1))?);
        }
    }
    let hellos = [vec![7u8; 5], (0..HELLO_BYTES as u8 + 9).collect::<Vec<u8>>()];
    let a = rig.connect(0, 1, tag(1), &regions[0], &hellos[0])?;
    let b = rig.connect(1, 0, tag(1), &regions[1], &hellos[1])?;
    let mut pair = Pair { nodes: [0, 1], ends: vec![a, b], remote: Default::default() };
    rig.up(&mut pair)?;
    for side in 0..2 {
        let (remote, hello) = learned(rig, &pair, side).unwrap_or_default();
        let exposed: Vec<_> = regions[1 - side].iter().map(Region::describe).collect();
        ensure!(remote == exposed, "node {side} learned {remote:?} instead of {exposed:?}");
        let said = &hellos[1 - side][..hellos[1 - side].len().min(HELLO_BYTES)];
        ensure!(hello == said, "node {side} was greeted with {hello:?} instead of {said:?}");
    }
    Ok(())
}

/// Two connections of the same nodes meet by their tags, whatever the order of the calls.
pub(crate) fn tags_keep_connections_apart(rig: &mut Rig<'_>) -> Verdict {
    let mut regions = Vec::new();
    for node in [0, 0, 1, 1] {
        regions.push(rig.region(node, RegionKind::Polled, 64)?);
    }
    let a = [0, 1].map(|i| rig.connect(0, 1, tag(i as u32), &regions[i..=i], &[i as u8]));
    let b = [1, 0].map(|i| rig.connect(1, 0, tag(i as u32), &regions[2 + i..=2 + i], &[i as u8]));
    let ([a0, a1], [b1, b0]) = (a, b);
    for (i, ends) in [vec![a0?, b0?], vec![a1?, b1?]].into_iter().enumerate() {
        let mut pair = Pair { nodes: [0, 1], ends, remote: Default::default() };
        rig.up(&mut pair)?;
        let theirs = [regions[2 + i].describe(), regions[i].describe()];
        for (side, region) in theirs.into_iter().enumerate() {
            let learned = learned(rig, &pair, side);
            ensure!(learned == Some((vec![region], vec![i as u8])), "connection {i} brought {learned:?}");
        }
    }
    Ok(())
}

/// While a connection lives, or waits for its peer, its tag can't name another one.
pub(crate) fn a_tag_in_use_breaks_the_new_endpoint(rig: &mut Rig<'_>) -> Verdict {
    let table = rig.region(1, RegionKind::Polled, 64)?;
    let mut pair = rig.open([0, 1], tag(3), [&[], std::slice::from_ref(&table)])?;
    let when = rig.rng.u8(..3);
    let again = |rig: &mut Rig<'_>| -> Verdict {
        let second = rig.connect(0, 1, tag(3), &[], b"")?;
        rig.until("the second endpoint to break", |rig| Ok(rig.broken(0, second).is_some()))?;
        let why = rig.broken(0, second);
        ensure!(why == Some(BreakReason::TagInUse), "the second endpoint broke as {why:?}");
        Ok(())
    };
    if when == 0 {
        again(rig)?;
    }
    rig.up(&mut pair)?;
    if when > 0 {
        again(rig)?;
    }
    rig.write(0, pair.ends[0], &5u64.to_ne_bytes(), pair.at(0, 0, 8))?;
    rig.until("a write on the first endpoint", |_| Ok(table.load(8) == 5))
}

/// Once a connection has ended on both sides, its tag may be used again, and nothing of the old one is left.
pub(crate) fn a_tag_is_free_after_the_end(rig: &mut Rig<'_>) -> Verdict {
    for round in 1..=3u64 {
        let table = rig.region(1, RegionKind::Polled, 64)?;
        let mut pair = rig.open([0, 1], tag(4), [&[], std::slice::from_ref(&table)])?;
        rig.up(&mut pair)?;
        rig.write(0, pair.ends[0], &round.to_ne_bytes(), pair.at(0, 0, 0))?;
        rig.until("a write", |_| Ok(table.load(0) == round))?;
        let closer = rig.rng.usize(..2);
        rig.disconnect(closer, pair.ends[closer]);
        let (other, e) = (1 - closer, pair.ends[1 - closer]);
        rig.until("the other side to learn of it", |rig| Ok(rig.broken(other, e).is_some()))?;
    }
    Ok(())
}

/// `connect` goes on trying until the peer connects too.
pub(crate) fn connect_waits_for_the_peer(rig: &mut Rig<'_>) -> Verdict {
    let first = rig.rng.usize(..2);
    let early = rig.connect(first, 1 - first, tag(5), &[], b"early")?;
    rig.settle()?;
    ensure!(rig.endpoint(first, early).connected.is_none(), "connected, but the peer has not called connect");
    ensure!(rig.broken(first, early).is_none(), "broken, while it waited for its peer");
    let late = rig.connect(1 - first, first, tag(5), &[], b"late")?;
    let mut pair = Pair { nodes: [first, 1 - first], ends: vec![early, late], remote: Default::default() };
    rig.up(&mut pair)
}

/// A side that is connected may write, even if its peer has not been told yet; the peer loses nothing of it.
pub(crate) fn a_write_may_precede_connected(rig: &mut Rig<'_>) -> Verdict {
    let table = rig.region(1, RegionKind::Polled, 64)?;
    let mut pair = rig.open([0, 1], tag(6), [&[], std::slice::from_ref(&table)])?;
    rig.poll(1)?;
    rig.slow_down(1);
    let (a, b) = (pair.ends[0], pair.ends[1]);
    rig.until("node 0 to be connected", |rig| Ok(rig.endpoint(0, a).connected.is_some()))?;
    pair.remote[0] = vec![table.describe()];
    rig.write(0, a, &9u64.to_ne_bytes(), pair.at(0, 0, 56))?;
    rig.until("the write", |_| Ok(table.load(56) == 9))?;
    rig.until("node 1 to be connected", |rig| Ok(rig.endpoint(1, b).connected.is_some()))
}
