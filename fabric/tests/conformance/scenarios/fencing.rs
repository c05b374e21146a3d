//! G6: an ended connection stays ended, and groups do not reach each other.

use squall_fabric::{BreakReason, Op, Region, RegionKind, Source, Token};

use crate::rig::{Rig, Verdict, bytes_of, ensure, inline, slice, tag};

/// Once a side has closed its endpoint, work that its peer had posted reaches no memory that the side registers
/// afterwards. Where the backend fences memory, it does not reach the regions either that the endpoint had exposed.
pub(crate) fn no_write_after_disconnect(rig: &mut Rig<'_>) -> Verdict {
    let table = rig.region(1, RegionKind::Polled, 4096)?;
    let staging = rig.region(0, RegionKind::Polled, 4096)?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    let stop = rig.rng.usize(8..60);
    for i in 0..stop {
        staging.write(0, &[i as u8 + 1; 4096]);
        let write = Op::Write { source: Source::Region(slice(&staging, 0, 4096)), target: pair.at(0, 0, 0) };
        // Writes that do not fit are not needed.
        rig.try_post(0, pair.ends[0], write, Token::UNSIGNALED)?.ok();
        if rig.rng.u8(..4) == 0 {
            rig.step()?;
        }
    }
    rig.disconnect(1, pair.ends[1]);
    let before = bytes_of(&table);
    let next = rig.region(1, RegionKind::Polled, 4096)?;
    staging.write(0, &[0xee; 4096]);
    let fenced = rig.can().fences_memory;
    let write = Op::Write { source: Source::Region(slice(&staging, 0, 4096)), target: pair.at(0, 0, 0) };
    rig.try_post(0, pair.ends[0], write, Token::UNSIGNALED)?.ok();
    let settled = rig.can().settled;
    rig.throughout(settled, |_| {
        ensure!(!fenced || bytes_of(&table) == before, "G6: a write landed after the endpoint was closed");
        ensure!(bytes_of(&next).iter().all(|byte| *byte == 0), "G6: a late write landed in a later group's memory");
        Ok(())
    })
}

/// Messages that the peer still receives of a side that has closed its endpoint have the bytes that the buffers had by
/// then.
pub(crate) fn what_is_left_behind_keeps_its_bytes(rig: &mut Rig<'_>) -> Verdict {
    const LEN: usize = 6000;
    const SENDS: usize = 4;
    let inbox = rig.region(1, RegionKind::Bulk, SENDS * LEN)?;
    let staging = rig.region(0, RegionKind::Bulk, SENDS * LEN)?;
    let pair = rig.pair(&[])?;
    let (a, b) = (pair.ends[0], pair.ends[1]);
    staging.write(0, &[5; SENDS * LEN]);
    for i in 0..SENDS {
        let recv = rig.token();
        rig.post(1, b, Op::Recv { into: slice(&inbox, i * LEN, LEN) }, recv)?;
        let send = Op::Send { source: Source::Region(slice(&staging, i * LEN, LEN)), imm: None };
        rig.post(0, a, send, Token::UNSIGNALED)?;
    }
    for _ in 0..rig.rng.usize(..8) {
        rig.step()?;
    }
    rig.disconnect(0, a);
    staging.write(0, &[0xee; SENDS * LEN]);
    rig.until("the peer to learn of it", |rig| Ok(rig.endpoint(1, b).broken.is_some()))?;
    let received = rig.endpoint(1, b).received.len();
    let changed = bytes_of(&inbox)[..received * LEN].iter().filter(|byte| **byte != 5).count();
    ensure!(changed == 0, "G6: {changed} bytes of {received} messages were fetched after the endpoint was closed");
    Ok(())
}

/// The buffers of receives and reads belong to the application again once they were reported, flushed, or closed.
pub(crate) fn no_bytes_in_memory_given_back(rig: &mut Rig<'_>) -> Verdict {
    const LEN: usize = 6000;
    let inbox = rig.region(1, RegionKind::Bulk, 4 * LEN)?;
    let theirs = rig.region(0, RegionKind::Bulk, LEN)?;
    let mine = rig.region(1, RegionKind::Bulk, LEN)?;
    let group = rig.rng.u32(..);
    let mut pair = rig.open([0, 1], tag(group), [std::slice::from_ref(&theirs), &[]])?;
    for i in 0..4 {
        let recv = rig.token();
        rig.post(1, pair.ends[1], Op::Recv { into: slice(&inbox, i * LEN, LEN) }, recv)?;
    }
    rig.up(&mut pair)?;
    theirs.write(0, &[5; LEN]);
    rig.post_signaled(1, pair.ends[1], Op::Read { from: pair.at(1, 0, 0), into: slice(&mine, 0, LEN) })?;
    for _ in 0..3 {
        let send = Op::Send { source: Source::Region(slice(&theirs, 0, LEN)), imm: None };
        rig.post_signaled(0, pair.ends[0], send)?;
    }
    for _ in 0..rig.rng.usize(..8) {
        rig.step()?;
    }
    // One side closes; the other learns of it.
    let closer = rig.rng.usize(..2);
    rig.disconnect(closer, pair.ends[closer]);
    if closer == 0 {
        rig.until("a break", |rig| Ok(rig.broken(1, pair.ends[1]).is_some()))?;
    }
    let marks: [&Region; 2] = [&inbox, &mine];
    for region in marks {
        region.write(0, &vec![0xaa; region.len()]);
    }
    let settled = rig.can().settled;
    rig.throughout(settled, |_| {
        for region in marks {
            ensure!(bytes_of(region).iter().all(|b| *b == 0xaa), "G6: bytes landed in memory that was given back");
        }
        Ok(())
    })
}

/// An endpoint reaches the regions that were exposed through it, and none of another connection of the same nodes.
pub(crate) fn an_endpoint_keeps_to_its_regions(rig: &mut Rig<'_>) -> Verdict {
    let regions = [rig.region(1, RegionKind::Polled, 64)?, rig.region(1, RegionKind::Polled, 64)?];
    let mut first = rig.open([0, 1], tag(1), [&[], &regions[..1]])?;
    let mut second = rig.open([0, 1], tag(2), [&[], &regions[1..]])?;
    rig.up(&mut first)?;
    rig.up(&mut second)?;
    let write = |target| Op::Write { source: inline(&[1; 8]), target };
    rig.post(0, first.ends[0], write(second.at(0, 0, 0)), Token::UNSIGNALED)?;
    rig.both_broken(&first, &BreakReason::Access)?;
    ensure!(regions[1].load(0) == 0, "G6: an endpoint reached a region of another group");
    rig.post(0, second.ends[0], write(second.at(0, 0, 8)), Token::UNSIGNALED)?;
    rig.until("a write on the other endpoint", |_| Ok(regions[1].load(8) != 0))
}

/// A node reaches the regions that were exposed to it, and none that were exposed to another node.
pub(crate) fn a_peer_keeps_to_its_regions(rig: &mut Rig<'_>) -> Verdict {
    let regions = [rig.region(1, RegionKind::Polled, 64)?, rig.region(1, RegionKind::Polled, 64)?];
    let mut first = rig.open([0, 1], tag(1), [&[], &regions[..1]])?;
    let mut second = rig.open([2, 1], tag(1), [&[], &regions[1..]])?;
    rig.up(&mut first)?;
    rig.up(&mut second)?;
    let write = |target| Op::Write { source: inline(&[1; 8]), target };
    rig.post(0, first.ends[0], write(first.at(0, 0, 56)), Token::UNSIGNALED)?;
    rig.until("a write of the own region", |_| Ok(regions[0].load(56) != 0))?;
    rig.post(0, first.ends[0], write(second.at(0, 0, 0)), Token::UNSIGNALED)?;
    rig.both_broken(&first, &BreakReason::Access)?;
    ensure!(regions[1].load(0) == 0, "G6: a node reached a region of another node");
    rig.post(2, second.ends[0], write(second.at(0, 0, 8)), Token::UNSIGNALED)?;
    rig.until("the other node's write", |_| Ok(regions[1].load(8) != 0))
}
