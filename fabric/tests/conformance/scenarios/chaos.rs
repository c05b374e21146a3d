//! Everything at once: whatever nodes do, in any order, the monitor's rules hold.

use squall_fabric::{EndpointId, Op, PostError, Region, RegionKey, RegionKind, Source, Target, Token};

use crate::rig::{Rig, Verdict, inline, slice, tag};

const ACTIONS: usize = 250;

/// Three nodes connect, post right and wrong work, close, and are cut off at random.
pub(crate) fn any_use_keeps_the_rules(rig: &mut Rig<'_>) -> Verdict {
    let mut regions: Vec<[Region; 2]> = Vec::new();
    for node in 0..3 {
        regions.push([rig.region(node, RegionKind::Polled, 8192)?, rig.region(node, RegionKind::Bulk, 8192)?]);
    }
    let mut ends: Vec<(usize, EndpointId)> = Vec::new();
    let mut cuts: Vec<(usize, usize)> = Vec::new();
    for _ in 0..ACTIONS {
        let node = rig.rng.usize(..3);
        match rig.rng.u8(..16) {
            0..=1 => {
                let peer = (node + rig.rng.usize(1..3)) % 3;
                let group = rig.rng.u32(..4);
                // The tag may be in use, and the peer may never call.
                ends.push((node, rig.connect(node, peer, tag(group), &regions[node], b"hello")?));
            }
            2 if ends.len() > 8 => {
                let (node, e) = ends.swap_remove(rig.rng.usize(..ends.len()));
                rig.disconnect(node, e);
            }
            3 if rig.can().cut && cuts.len() < 2 && rig.rng.bool() => {
                cuts.push((node, (node + 1) % 3));
                rig.cut(node, (node + 1) % 3);
            }
            4 => cuts.drain(..).for_each(|(a, b)| rig.heal(a, b)),
            5..=7 => rig.poll(node)?,
            8..=10 => rig.step()?,
            _ if ends.is_empty() => {}
            _ => {
                let (node, e) = ends[rig.rng.usize(..ends.len())];
                post_anything(rig, node, e, &regions[node])?;
            }
        }
    }
    cuts.into_iter().for_each(|(a, b)| rig.heal(a, b));
    rig.settle()?;
    // Each connection is closed by one side or by both.
    for (node, e) in ends {
        if rig.rng.bool() {
            rig.disconnect(node, e);
        }
    }
    rig.settle()
}

/// Posts work that is right for the most part; most breaches end the connection, and the run goes on with others.
fn post_anything(rig: &mut Rig<'_>, node: usize, e: EndpointId, regions: &[Region; 2]) -> Verdict {
    let remote: Vec<RegionKey> = match &rig.endpoint(node, e).connected {
        Some((remote, _)) => remote.iter().map(|region| region.key).collect(),
        None => Vec::new(),
    };
    let most_words = if rig.rng.bool() { 32 } else { 1024 };
    let len = 8 * rig.rng.usize(0..=most_words);
    let which = rig.rng.usize(..2);
    let slack = if rig.rng.u8(..40) == 0 { 16 } else { 0 };
    let mut target = |region: usize, len: usize| Target {
        region: remote.get(region).copied().unwrap_or(RegionKey(1)),
        offset: 8 * rig.rng.usize(0..=(8192 + slack - len) / 8),
    };
    let (to, word_target) = (target(which, len), target(0, 8));
    let bytes = vec![7; len.min(256)];
    let here = slice(&regions[rig.rng.usize(..2)], 0, len);
    let source = if len <= 256 && rig.rng.bool() { inline(&bytes) } else { Source::Region(here) };
    let op = match rig.rng.u8(..12) {
        0 => Op::Read { from: to, into: here },
        1 => Op::WriteWithImm { source, target: to, imm: 3 },
        2 => Op::Send { source, imm: None },
        3 => Op::WriteThenWord { source, target: to, word: 5, word_target },
        4..=7 => Op::Recv { into: slice(&regions[1], 0, 8192) },
        _ => Op::Write { source, target: to },
    };
    let token = if rig.rng.bool() || matches!(op, Op::Recv { .. }) { rig.token() } else { Token::UNSIGNALED };
    match rig.try_post(node, e, op, token)? {
        Ok(()) | Err(PostError::Full | PostError::Broken | PostError::NotConnected) => Ok(()),
        Err(other) => Err(format!("{op:?} gave {other}")),
    }
}
