//! G4: the meaning of a local completion.

use squall_fabric::{Op, RegionKind, Source, Token};

use crate::rig::{Rig, Verdict, bytes_of, ensure, inline, slice};

/// After success the source may be used for something else.
pub(crate) fn a_buffer_is_free_after_done(rig: &mut Rig<'_>) -> Verdict {
    for (kind, len) in [(RegionKind::Polled, 512), (RegionKind::Bulk, 3001), (RegionKind::Bulk, 20_000)] {
        const SLOTS: usize = 6;
        let table = rig.region(1, kind, SLOTS * len)?;
        let staging = rig.region(0, kind, len)?;
        let pair = rig.pair(std::slice::from_ref(&table))?;
        for slot in 0..SLOTS {
            staging.write(0, &vec![slot as u8 + 1; len]);
            let source = Source::Region(slice(&staging, 0, len));
            let write = Op::Write { source, target: pair.at(0, 0, slot * len) };
            let token = rig.post_signaled(0, pair.ends[0], write)?;
            rig.done(0, pair.ends[0], token)?;
            staging.write(0, &vec![0xee; len]);
        }
        let last = SLOTS * len - len;
        rig.until("the last write", |_| Ok(bytes_of(&table)[last..].iter().all(|byte| *byte != 0)))?;
        for (slot, bytes) in bytes_of(&table).chunks(len).enumerate() {
            let wrong = bytes.iter().filter(|byte| **byte != slot as u8 + 1).count();
            ensure!(wrong == 0, "G4: {wrong} bytes of write {slot} were fetched after it was done");
        }
    }
    Ok(())
}

/// A completion vouches as well for all work that was posted before it on its endpoint, signaled or not.
pub(crate) fn done_vouches_for_earlier_work(rig: &mut Rig<'_>) -> Verdict {
    const SLOTS: usize = 12;
    const LEN: usize = 800;
    let table = rig.region(1, RegionKind::Polled, SLOTS * LEN)?;
    let staging = rig.region(0, RegionKind::Polled, SLOTS * LEN)?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    for slot in 0..SLOTS {
        staging.write(slot * LEN, &[slot as u8 + 1; LEN]);
        let source = Source::Region(slice(&staging, slot * LEN, LEN));
        let write = Op::Write { source, target: pair.at(0, 0, slot * LEN) };
        rig.post(0, pair.ends[0], write, Token::UNSIGNALED)?;
    }
    let last = Op::Write { source: inline(&[SLOTS as u8; 8]), target: pair.at(0, 0, SLOTS * LEN - LEN) };
    let token = rig.post_signaled(0, pair.ends[0], last)?;
    rig.done(0, pair.ends[0], token)?;
    staging.write(0, &[0xee; SLOTS * LEN]);
    let last = SLOTS * LEN - LEN;
    rig.until("the last write", |_| Ok(bytes_of(&table)[last..].iter().all(|byte| *byte != 0)))?;
    for (slot, bytes) in bytes_of(&table).chunks(LEN).enumerate() {
        let wrong = bytes.iter().filter(|byte| **byte != slot as u8 + 1).count();
        ensure!(wrong == 0, "G4: {wrong} bytes of write {slot} were fetched after later work was done");
    }
    Ok(())
}

/// Unsignaled work is not reported; the monitor knows which work that is.
pub(crate) fn unsignaled_work_is_not_reported(rig: &mut Rig<'_>) -> Verdict {
    let table = rig.region(1, RegionKind::Polled, 64)?;
    let mine = rig.region(0, RegionKind::Polled, 64)?;
    let inbox = rig.region(1, RegionKind::Bulk, 64)?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    for round in 0..6 {
        let recv = rig.token();
        rig.post(1, pair.ends[1], Op::Recv { into: slice(&inbox, 0, 64) }, recv)?;
        let write = Op::Write { source: inline(&[1; 8]), target: pair.at(0, 0, 8 * round) };
        rig.post(0, pair.ends[0], write, Token::UNSIGNALED)?;
        let read = Op::Read { from: pair.at(0, 0, 0), into: slice(&mine, 0, 64) };
        rig.post(0, pair.ends[0], read, Token::UNSIGNALED)?;
        let send = Op::Send { source: inline(&[2; 8]), imm: None };
        rig.post(0, pair.ends[0], send, Token::UNSIGNALED)?;
    }
    rig.received(1, pair.ends[1], 6)?;
    rig.settle()?;
    let done = &rig.endpoint(0, pair.ends[0]).done;
    ensure!(done.is_empty(), "unsignaled work was reported as {done:?}");
    Ok(())
}

/// Work of one endpoint is reported in the order of its posts, whatever it is.
pub(crate) fn done_comes_in_order(rig: &mut Rig<'_>) -> Verdict {
    let table = rig.region(1, RegionKind::Polled, 8192)?;
    let mine = rig.region(0, RegionKind::Polled, 8192)?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    let mut tokens = Vec::new();
    for _ in 0..40 {
        let len = 8 * rig.rng.usize(1..=1024);
        let op = match rig.rng.u8(..4) {
            0 => Op::Read { from: pair.at(0, 0, 0), into: slice(&mine, 0, len) },
            1 => Op::Write { source: Source::Region(slice(&mine, 0, len)), target: pair.at(0, 0, 0) },
            _ => Op::Write { source: inline(&[3; 8]), target: pair.at(0, 0, 0) },
        };
        if rig.rng.u8(..4) == 0 {
            rig.post(0, pair.ends[0], op, Token::UNSIGNALED)?;
        } else {
            tokens.push(rig.post_signaled(0, pair.ends[0], op)?);
        }
    }
    rig.until("all completions", |rig| Ok(rig.endpoint(0, pair.ends[0]).done.len() == tokens.len()))?;
    ensure!(rig.endpoint(0, pair.ends[0]).done == tokens, "G4: work was not reported in the order of its posts");
    Ok(())
}

/// The bytes of a read that is done are there, and do not change any more.
pub(crate) fn a_read_is_in_place_when_done(rig: &mut Rig<'_>) -> Verdict {
    for (kind, len) in [(RegionKind::Polled, 1024), (RegionKind::Bulk, 777), (RegionKind::Bulk, 30_000)] {
        let theirs = rig.region(1, kind, len)?;
        let mine = rig.region(0, kind, len + 64)?;
        let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        theirs.write(0, &bytes);
        let pair = rig.pair(std::slice::from_ref(&theirs))?;
        let read = Op::Read { from: pair.at(0, 0, 0), into: slice(&mine, 32, len) };
        let token = rig.post_signaled(0, pair.ends[0], read)?;
        rig.done(0, pair.ends[0], token)?;
        ensure!(bytes_of(&mine)[32..32 + len] == bytes, "a read of {len} bytes was done before they were in place");
        let round = vec![9; len + 64];
        mine.write(0, &round);
        rig.settle()?;
        ensure!(bytes_of(&mine) == round, "a read of {len} bytes went on after it was done");
    }
    Ok(())
}
