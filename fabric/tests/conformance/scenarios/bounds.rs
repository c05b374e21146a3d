//! G7: the effect of a wrong access.

use squall_fabric::{BreakReason, Op, RegionKey, RegionKind, Source, Target, Token};

use crate::rig::{Rig, Verdict, bytes_of, ensure, inline, slice};

/// Tries an access of each kind that `make` spoils: the endpoint breaks on both sides, and nothing else happens.
fn denied(rig: &mut Rig<'_>, make: impl Fn(&mut Rig<'_>, Target) -> Target) -> Verdict {
    for kind in [RegionKind::Polled, RegionKind::Bulk] {
        for what in ["write", "immediate", "word", "announced", "read"] {
            let table = rig.region(1, kind, 256)?;
            let words = rig.region(1, RegionKind::Polled, 256)?;
            let neighbour = rig.region(1, kind, 256)?;
            let inbox = rig.region(1, RegionKind::Bulk, 8)?;
            let mine = rig.region(0, kind, 64)?;
            let pair = rig.pair(&[table.clone(), words.clone()])?;
            for region in [&table, &words, &neighbour] {
                region.write(0, &[0xaa; 256]);
            }
            mine.write(0, &[0xbb; 64]);
            let recv = rig.token();
            rig.post(1, pair.ends[1], Op::Recv { into: slice(&inbox, 0, 8) }, recv)?;
            let (good, good_word) = (pair.at(0, 0, 0), pair.at(0, 1, 0));
            let source = inline(&[0xcc; 64]);
            let op = match what {
                "write" => Op::Write { source, target: make(rig, good) },
                "immediate" => Op::WriteWithImm { source, target: make(rig, good), imm: 1 },
                "word" => Op::WriteThenWord { source, target: good, word: 1, word_target: make(rig, good_word) },
                "announced" => Op::WriteThenWord { source, target: make(rig, good), word: 1, word_target: good_word },
                _ => Op::Read { from: make(rig, good), into: slice(&mine, 0, 64) },
            };
            let token = rig.token();
            rig.post(0, pair.ends[0], op, token)?;
            rig.both_broken(&pair, &BreakReason::Access)?;
            rig.settle()?;
            // The good part of an operation whose other part is wrong may take effect.
            let harmed = [&table, &words, &neighbour].into_iter().filter(|r| bytes_of(r) != [0xaa; 256]);
            ensure!(what == "word" || harmed.count() == 0, "G7: a denied {what} changed the target's memory");
            ensure!(bytes_of(&words) == [0xaa; 256], "G7: a denied {what} stored a word");
            ensure!(bytes_of(&mine) == [0xbb; 64], "G7: a denied {what} brought bytes");
        }
    }
    Ok(())
}

/// A key that the endpoint was not given breaks it.
pub(crate) fn a_wrong_key_breaks(rig: &mut Rig<'_>) -> Verdict {
    denied(rig, |rig, target| {
        let flipped = 1 << rig.rng.u32(..64);
        Target { region: RegionKey(target.region.0 ^ flipped), ..target }
    })
}

/// A place that lies partly or wholly outside of its region breaks the endpoint.
pub(crate) fn outside_of_a_region_breaks(rig: &mut Rig<'_>) -> Verdict {
    denied(rig, |rig, target| {
        let offsets = [256, 264, 1 << 20, 1 << 40, usize::MAX - 7, usize::MAX - 63];
        Target { offset: *rig.rng.choice(&offsets).unwrap_or(&256), ..target }
    })?;
    denied_partly(rig)
}

fn denied_partly(rig: &mut Rig<'_>) -> Verdict {
    let table = rig.region(1, RegionKind::Polled, 256)?;
    let pair = rig.pair(std::slice::from_ref(&table))?;
    let write = Op::Write { source: inline(&[1; 64]), target: pair.at(0, 0, 200) };
    rig.post(0, pair.ends[0], write, Token::UNSIGNALED)?;
    rig.both_broken(&pair, &BreakReason::Access)?;
    ensure!(bytes_of(&table) == [0; 256], "G7: the part of a write that lies inside of the region landed");
    Ok(())
}

/// A lent region is read by its peers. A write of it breaks the endpoint, whatever the write carries besides.
pub(crate) fn a_lent_region_is_read_and_not_written(rig: &mut Rig<'_>) -> Verdict {
    const LEN: usize = 6000;
    for what in ["short", "long", "immediate", "announced", "word"] {
        let lent = rig.region(1, RegionKind::Lent, LEN)?;
        let words = rig.region(1, RegionKind::Polled, 8)?;
        let inbox = rig.region(1, RegionKind::Bulk, 8)?;
        let [mine, source] = [rig.region(0, RegionKind::Bulk, LEN)?, rig.region(0, RegionKind::Bulk, LEN)?];
        let pair = rig.pair(&[lent.clone(), words.clone()])?;
        let kind = pair.remote[0][0].kind;
        ensure!(kind == RegionKind::Lent, "a lent region was told as {kind:?}");
        lent.write(0, &[0xaa; LEN]);
        let read = Op::Read { from: pair.at(0, 0, 3), into: slice(&mine, 0, LEN - 3) };
        let read = rig.post_signaled(0, pair.ends[0], read)?;
        rig.done(0, pair.ends[0], read)?;
        ensure!(bytes_of(&mine)[..LEN - 3] == [0xaa; LEN - 3], "a lent region was not read");
        let recv = rig.token();
        rig.post(1, pair.ends[1], Op::Recv { into: slice(&inbox, 0, 8) }, recv)?;
        let (target, word_target) = (pair.at(0, 0, 8), pair.at(0, 1, 0));
        let short = inline(&[0xcc; 64]);
        let op = match what {
            "short" => Op::Write { source: short, target },
            "long" => Op::Write { source: Source::Region(slice(&source, 0, LEN - 8)), target },
            "immediate" => Op::WriteWithImm { source: short, target, imm: 1 },
            "announced" => Op::WriteThenWord { source: short, target, word: 1, word_target },
            _ => Op::WriteThenWord { source: inline(&[]), target, word: 1, word_target: target },
        };
        let token = rig.token();
        rig.post(0, pair.ends[0], op, token)?;
        rig.both_broken(&pair, &BreakReason::Access)?;
        rig.settle()?;
        ensure!(bytes_of(&lent) == [0xaa; LEN], "G7: a {what} write of a lent region took effect");
        ensure!(words.load(0) == 0, "G7: a denied write of a lent region was announced");
    }
    Ok(())
}
