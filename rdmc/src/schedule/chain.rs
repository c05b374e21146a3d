//! Chain send: a bucket brigade in order of ranks. Block b leaves rank r in step b + r.

use super::{Rank, Step, Transfer};

pub(super) fn steps(n: u32, k: u32) -> u64 {
    if n == 1 { 0 } else { u64::from(n) + u64::from(k) - 2 }
}

pub(super) fn at(n: u32, me: u32, k: u32, step: u64) -> Step {
    let leaves_at = |rank: u32| step.checked_sub(u64::from(rank)).filter(|&b| b < u64::from(k)).map(|b| b as u32);
    Step {
        send: leaves_at(me).filter(|_| me + 1 < n).map(|block| Transfer { peer: Rank(me + 1), block }),
        receive: me.checked_sub(1).and_then(|before| Some(Transfer { peer: Rank(before), block: leaves_at(before)? })),
    }
}
