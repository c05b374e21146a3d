//! G1: the effects that a target sees, and their order.

use squall_fabric::{Op, RegionKind, Source, Token};

use crate::rig::{Pair, Rig, Verdict, bytes_of, ensure, inline, slice};

const SLOTS: usize = 48;
const SLOT_WORDS: usize = 16;

/// A reader that sees any word of a write sees all of every earlier one.
pub(crate) fn writes_land_in_order(rig: &mut Rig<'_>) -> Verdict {
    let table = rig.region(1, RegionKind::Polled, 8 * SLOTS * SLOT_WORDS)?;
    let staging = rig.region(0, RegionKind::Polled, table.len())?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    let lens: Vec<usize> = (0..SLOTS).map(|_| rig.rng.usize(1..=SLOT_WORDS)).collect();
    let check = |highest: &mut usize| -> Verdict {
        // It looks from the back: words that land meanwhile must not look like a gap.
        let slot = |i: usize| (0..lens[i]).rev().map(move |w| (i, w));
        let seen = |(i, w): (usize, usize)| table.load(8 * (i * SLOT_WORDS + w));
        let Some(top) = (0..SLOTS).rev().find(|&i| slot(i).any(|at| seen(at) != 0)) else { return Ok(()) };
        for at in (0..top).rev().flat_map(slot) {
            let word = seen(at);
            ensure!(word == at.0 as u64 + 1, "G1: write {top} is seen, but of write {} a word is {word}", at.0);
        }
        *highest = top;
        Ok(())
    };
    let mut highest = 0;
    for (i, &words) in lens.iter().enumerate() {
        let (offset, len) = (8 * i * SLOT_WORDS, 8 * words);
        let bytes = (i as u64 + 1).to_ne_bytes().repeat(words);
        staging.write(offset, &bytes);
        let region = rig.rng.bool();
        let source = if region { Source::Region(slice(&staging, offset, len)) } else { inline(&bytes) };
        rig.post(0, pair.ends[0], Op::Write { source, target: pair.at(0, 0, offset) }, Token::UNSIGNALED)?;
        check(&mut highest)?;
        if rig.rng.u8(..8) == 0 {
            rig.step()?;
            check(&mut highest)?;
        }
    }
    rig.until("the last write", |_| check(&mut highest).map(|()| highest == SLOTS - 1))?;
    rig.settle()?;
    check(&mut highest)
}

/// A place that is written again and again never goes back.
pub(crate) fn overwrites_land_in_order(rig: &mut Rig<'_>) -> Verdict {
    const LAST: u64 = 60;
    let table = rig.region(1, RegionKind::Polled, 16)?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    let mut seen = 0;
    let mut check = || -> Result<u64, String> {
        let (second, first) = (table.load(8), table.load(0));
        ensure!(first >= seen, "G1: a word went back from {seen} to {first}");
        ensure!(first + 1 >= second, "G1: the second word is {second}, the first {first}");
        seen = first;
        Ok(first.min(second))
    };
    for value in 1..=LAST {
        let bytes = value.to_ne_bytes();
        for offset in [0, 8] {
            rig.write(0, pair.ends[0], &bytes, pair.at(0, 0, offset))?;
        }
        if rig.rng.u8(..4) == 0 {
            rig.step()?;
        }
        check()?;
    }
    rig.until("the last write", |_| Ok(check()? == LAST))
}

/// All writes that were posted before a message are there when the message is reported.
pub(crate) fn a_receive_implies_earlier_writes(rig: &mut Rig<'_>) -> Verdict {
    const ROUNDS: usize = 12;
    let table = rig.region(1, RegionKind::Polled, 1024)?;
    let body = rig.region(1, RegionKind::Bulk, 3000)?;
    let inbox = rig.region(1, RegionKind::Bulk, 8)?;
    let staging = rig.region(0, RegionKind::Bulk, 3000)?;
    let pair = rig.pair(&[table.clone(), body.clone()])?;
    let [a, b] = [pair.ends[0], pair.ends[1]];
    for round in 1..=ROUNDS {
        let recv = rig.token();
        rig.post(1, b, Op::Recv { into: slice(&inbox, 0, 8) }, recv)?;
        let value = round as u8;
        staging.write(0, &vec![value; 3000]);
        let words = [value; 64];
        for offset in (0..1024).step_by(64) {
            rig.write(0, a, &words, pair.at(0, 0, offset))?;
        }
        let whole = Op::Write { source: Source::Region(slice(&staging, 0, 3000)), target: pair.at(0, 1, 0) };
        rig.post(0, a, whole, Token::UNSIGNALED)?;
        let token = if rig.rng.bool() {
            rig.post_signaled(0, a, Op::Send { source: inline(&[value]), imm: None })?
        } else {
            let op = Op::WriteWithImm { source: inline(&words), target: pair.at(0, 0, 0), imm: 1 };
            rig.post_signaled(0, a, op)?
        };
        rig.received(1, b, round)?;
        for (name, region) in [("polled", &table), ("bulk", &body)] {
            let stale = bytes_of(region).iter().filter(|byte| **byte != value).count();
            ensure!(stale == 0, "G1: round {round} was reported, but {stale} bytes of the {name} region are older");
        }
        rig.done(0, a, token)?;
    }
    Ok(())
}

/// A reader that sees an announcing word sees all the bytes that it announces.
pub(crate) fn a_word_announces_its_bytes(rig: &mut Rig<'_>) -> Verdict {
    const ROUNDS: u64 = 16;
    let body = rig.region(1, RegionKind::Bulk, 5000)?;
    let flags = rig.region(1, RegionKind::Polled, 64)?;
    let staging = rig.region(0, RegionKind::Bulk, 5000)?;
    let pair = rig.pair(&[body.clone(), flags.clone()])?;
    for round in 1..=ROUNDS {
        let len = rig.rng.usize(1..=5000);
        let start = rig.rng.usize(0..=5000 - len);
        staging.write(0, &vec![round as u8; 5000]);
        let small = len <= 200 && rig.rng.bool();
        let bytes = vec![round as u8; if small { len } else { 0 }];
        let source = if small { inline(&bytes) } else { Source::Region(slice(&staging, start, len)) };
        let (target, word_target) = (pair.at(0, 0, start), pair.at(0, 1, 24));
        let token =
            rig.post_signaled(0, pair.ends[0], Op::WriteThenWord { source, target, word: round, word_target })?;
        rig.until("an announcement", |_| Ok(flags.load(24) == round))?;
        let stale = bytes_of(&body)[start..start + len].iter().filter(|byte| **byte != round as u8).count();
        ensure!(stale == 0, "G1: word {round} is there, but {stale} of {len} bytes are not");
        rig.done(0, pair.ends[0], token)?;
    }
    Ok(())
}

/// A read sees the writes that were posted before it on its endpoint.
pub(crate) fn a_read_sees_earlier_writes(rig: &mut Rig<'_>) -> Verdict {
    let kind = if rig.rng.bool() { RegionKind::Polled } else { RegionKind::Bulk };
    let theirs = rig.region(1, kind, 4096)?;
    let mine = rig.region(0, kind, 4096)?;
    let pair: Pair = rig.pair(std::slice::from_ref(&theirs))?;
    let e = pair.ends[0];
    for round in 1..=10u8 {
        for offset in (0..4096).step_by(256) {
            rig.write(0, e, &[round; 256], pair.at(0, 0, offset))?;
        }
        let read = Op::Read { from: pair.at(0, 0, 0), into: slice(&mine, 0, 4096) };
        let token = rig.post_signaled(0, e, read)?;
        rig.done(0, e, token)?;
        let stale = bytes_of(&mine).iter().filter(|byte| **byte != round).count();
        ensure!(stale == 0, "G1: a read missed {stale} bytes that were written before it");
    }
    Ok(())
}
