//! G5: the breaking of connections, and its reports.

use squall_fabric::{BreakReason, Op, RegionKind, Source, Token};

use crate::rig::{Pair, Rig, Verdict, ensure, inline, slice};

/// Posts signaled work that may be outstanding when the connection ends, and receives, on both sides.
fn make_busy(rig: &mut Rig<'_>) -> Result<Pair, String> {
    let regions = [rig.region(0, RegionKind::Bulk, 4096)?, rig.region(1, RegionKind::Bulk, 4096)?];
    let group = rig.rng.u32(..);
    let expose = [std::slice::from_ref(&regions[0]), std::slice::from_ref(&regions[1])];
    let mut pair = rig.open([0, 1], crate::rig::tag(group), expose)?;
    rig.up(&mut pair)?;
    for (side, region) in regions.iter().enumerate() {
        let e = pair.ends[side];
        for i in 0..3 {
            let recv = rig.token();
            rig.post(side, e, Op::Recv { into: slice(region, 64 * i, 64) }, recv)?;
        }
        for _ in 0..rig.rng.usize(..12) {
            let source = Source::Region(slice(region, 1024, 1024));
            rig.post_signaled(side, e, Op::Write { source, target: pair.at(side, 0, 2048) })?;
            rig.post(side, e, Op::Write { source, target: pair.at(side, 0, 3072) }, Token::UNSIGNALED)?;
        }
        if rig.rng.bool() {
            rig.step()?;
        }
    }
    Ok(pair)
}

/// The other side learns that this one was closed; its outstanding work is flushed before that, and nothing follows.
pub(crate) fn disconnect_breaks_the_peer(rig: &mut Rig<'_>) -> Verdict {
    let pair = make_busy(rig)?;
    rig.disconnect(0, pair.ends[0]);
    let since = rig.now();
    rig.until("a break", |rig| Ok(rig.broken(1, pair.ends[1]).is_some()))?;
    ensure!(rig.now().since(since) <= rig.can().failure_timeout, "G5: the break was reported late");
    let why = rig.broken(1, pair.ends[1]);
    ensure!(why == Some(BreakReason::PeerClosed), "G5: the peer closed, and the endpoint broke as {why:?}");
    for (node, e) in [(0, pair.ends[0]), (1, pair.ends[1])] {
        // The monitor has to see `Broken`.
        rig.try_post(node, e, Op::Send { source: inline(b"late"), imm: None }, Token::UNSIGNALED)?.err();
    }
    rig.settle()
}

/// A side that closes an endpoint hears no more of it, not even of work that was complete before.
pub(crate) fn nothing_is_reported_after_disconnect(rig: &mut Rig<'_>) -> Verdict {
    let pair = make_busy(rig)?;
    let time = rig.rng.u64(0..40_000);
    let limit = rig.now() + std::time::Duration::from_nanos(time);
    // The node is not polled meanwhile, so that there is something to report.
    while rig.now() < limit {
        rig.idle();
    }
    rig.disconnect(0, pair.ends[0]);
    rig.poll(0)?;
    rig.settle()
}

/// Receives and signaled work that are outstanding when an endpoint breaks are reported as flushed, each once, and then
/// the break.
pub(crate) fn outstanding_work_is_flushed(rig: &mut Rig<'_>) -> Verdict {
    let pair = make_busy(rig)?;
    // A breach: no receive is left for the fourth message.
    for _ in 0..4 {
        rig.post_signaled(0, pair.ends[0], Op::Send { source: inline(b"message"), imm: None })?;
    }
    rig.both_broken(&pair, &BreakReason::ReceiverNotReady)?;
    let receives = &rig.endpoint(0, pair.ends[0]).flushed;
    ensure!(receives.len() >= 3, "G5: three receives were outstanding, and flushed was {receives:?}");
    rig.settle()
}

/// The peers of a dead process learn of its death.
pub(crate) fn a_dead_peer_breaks(rig: &mut Rig<'_>) -> Verdict {
    if !rig.can().kill {
        return Ok(());
    }
    let pair = make_busy(rig)?;
    rig.kill(0);
    let since = rig.now();
    rig.until("a break", |rig| Ok(rig.broken(1, pair.ends[1]).is_some()))?;
    ensure!(rig.now().since(since) <= rig.can().failure_timeout, "G5: the break was reported late");
    let why = rig.broken(1, pair.ends[1]);
    ensure!(why == Some(BreakReason::ProcessGone), "G5: the peer's process died, and the endpoint broke as {why:?}");
    rig.settle()
}

/// Both sides of a partition break, within the failure timeout; others go on.
pub(crate) fn a_partition_breaks_both_sides(rig: &mut Rig<'_>) -> Verdict {
    if !rig.can().cut {
        return Ok(());
    }
    let pair = make_busy(rig)?;
    let table = rig.region(2, RegionKind::Polled, 64)?;
    let mut other = rig.open([0, 2], crate::rig::tag(77), [&[], std::slice::from_ref(&table)])?;
    rig.up(&mut other)?;
    rig.cut(0, 1);
    let since = rig.now();
    rig.both_broken(&pair, &BreakReason::Unreachable)?;
    ensure!(rig.now().since(since) <= rig.can().failure_timeout, "G5: a break was reported late");
    rig.heal(0, 1);
    rig.settle()?;
    let write = Op::Write { source: inline(&[1; 8]), target: other.at(0, 0, 0) };
    rig.post(0, other.ends[0], write, Token::UNSIGNALED)?;
    rig.until("a write to a third node", |_| Ok(table.load(0) != 0))
}

/// A partition that ends before the timeout delays operations on their way, and loses and reorders none.
pub(crate) fn a_short_partition_loses_nothing(rig: &mut Rig<'_>) -> Verdict {
    if !rig.can().cut {
        return Ok(());
    }
    const WRITES: usize = 30;
    let table = rig.region(1, RegionKind::Polled, 8 * WRITES)?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    let cut_at = rig.rng.usize(..WRITES);
    let (mut posted, mut before) = (0, 0);
    for i in 0..WRITES {
        if i == cut_at {
            rig.cut(0, 1);
            before = posted;
        }
        let write = Op::Write { source: inline(&[1; 8]), target: pair.at(0, 0, 8 * posted) };
        // A queue may fill meanwhile.
        posted += usize::from(rig.try_post(0, pair.ends[0], write, Token::UNSIGNALED)?.is_ok());
        rig.step()?;
    }
    let meanwhile = rig.can().failure_timeout / 4;
    rig.throughout(meanwhile, |_| Ok(()))?;
    ensure!((before..posted).all(|i| table.load(8 * i) == 0), "a write got through a partition");
    rig.heal(0, 1);
    rig.until("the last write", |_| {
        // It looks from the back: words that land meanwhile must not look like a gap.
        let Some(last) = (0..posted).rev().find(|i| table.load(8 * i) != 0) else { return Ok(false) };
        ensure!((0..last).all(|i| table.load(8 * i) != 0), "G1: a write is missing after a partition");
        Ok(last + 1 == posted)
    })
}
