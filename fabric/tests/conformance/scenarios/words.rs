//! G2: words in polled memory, and inline data.

use squall_fabric::{INLINE_BYTES, Op, RegionKind, Source, Token};

use crate::rig::{Rig, Verdict, bytes_of, ensure, inline, slice};

/// A word whose eight bytes are alike.
fn uniform(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// No reader ever sees a part of a word, also where the source changes while it is fetched.
pub(crate) fn words_are_whole(rig: &mut Rig<'_>) -> Verdict {
    const WORDS: usize = 64;
    let table = rig.region(1, RegionKind::Polled, 8 * WORDS)?;
    let staging = rig.region(0, RegionKind::Polled, 8 * WORDS)?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    let check = || -> Result<bool, String> {
        let mut last = true;
        for i in 0..WORDS {
            let word = table.load(8 * i);
            ensure!(word == uniform(word as u8), "G2: a word is {word:016x}, which no node wrote");
            last &= word == uniform(40);
        }
        Ok(last)
    };
    for value in 1..=40u8 {
        for i in 0..WORDS {
            staging.store(8 * i, uniform(value));
        }
        let at = pair.at(0, 0, 8 * rig.rng.usize(..WORDS - 1));
        rig.write(0, pair.ends[0], &[255 - value; 16], at)?;
        let whole = Op::Write { source: Source::Region(slice(&staging, 0, 8 * WORDS)), target: pair.at(0, 0, 0) };
        rig.post(0, pair.ends[0], whole, Token::UNSIGNALED)?;
        rig.step()?;
        check()?;
    }
    rig.until("the last write", |_| check())
}

/// Inline bytes are those that the poster had at the post, whatever it posts next.
pub(crate) fn inline_is_captured(rig: &mut Rig<'_>) -> Verdict {
    const SLOTS: usize = 40;
    let table = rig.region(1, RegionKind::Polled, 8 * SLOTS)?;
    let words = rig.region(1, RegionKind::Polled, 8 * SLOTS)?;
    let pair = rig.pair(&[table.clone(), words.clone()])?;
    let mut buffer = [0; 8];
    for i in 0..SLOTS {
        buffer.copy_from_slice(&(i as u64 + 1).to_ne_bytes());
        let op = Op::WriteThenWord {
            source: inline(&buffer),
            target: pair.at(0, 0, 8 * i),
            word: i as u64 + 1,
            word_target: pair.at(0, 1, 8 * i),
        };
        rig.post(0, pair.ends[0], op, Token::UNSIGNALED)?;
        buffer.fill(0xee);
    }
    rig.until("the last word", |_| Ok(words.load(8 * (SLOTS - 1)) != 0))?;
    for i in 0..SLOTS {
        let (value, word) = (table.load(8 * i), words.load(8 * i));
        ensure!(value == i as u64 + 1, "G2: {} was posted inline, and {value} came", i + 1);
        ensure!(word == i as u64 + 1, "G2: the word {} was posted, and {word} came", i + 1);
    }
    Ok(())
}

/// Every backend takes `INLINE_BYTES` inline, of writes and sends.
pub(crate) fn inline_takes_its_limit(rig: &mut Rig<'_>) -> Verdict {
    let table = rig.region(1, RegionKind::Bulk, INLINE_BYTES)?;
    let inbox = rig.region(1, RegionKind::Bulk, INLINE_BYTES)?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    let recv = rig.token();
    rig.post(1, pair.ends[1], Op::Recv { into: slice(&inbox, 0, INLINE_BYTES) }, recv)?;
    let bytes: Vec<u8> = (0..INLINE_BYTES).map(|i| i as u8 ^ 0x5a).collect();
    rig.write(0, pair.ends[0], &bytes, pair.at(0, 0, 0))?;
    rig.post(0, pair.ends[0], Op::Send { source: inline(&bytes), imm: None }, Token::UNSIGNALED)?;
    rig.received(1, pair.ends[1], 1)?;
    ensure!(bytes_of(&table) == bytes, "an inline write of {INLINE_BYTES} bytes came as {:?}", bytes_of(&table));
    ensure!(bytes_of(&inbox) == bytes, "an inline send of {INLINE_BYTES} bytes came as {:?}", bytes_of(&inbox));
    Ok(())
}
