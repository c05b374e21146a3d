//! Sequential send: everything comes from the root, to one receiver after another.

use super::{Rank, Step, Transfer};

pub(super) fn steps(n: u32, k: u32) -> u64 {
    u64::from(n - 1) * u64::from(k)
}

/// Sends the whole message to each receiver in turn.
pub(super) fn one_by_one(_n: u32, me: u32, k: u32, step: u64) -> Step {
    let (receiver, block) = ((step / u64::from(k)) as u32 + 1, (step % u64::from(k)) as u32);
    from_root(me, receiver, block)
}

/// Sends each block to all receivers in turn.
pub(super) fn interleaved(n: u32, me: u32, _k: u32, step: u64) -> Step {
    let (block, receiver) = ((step / u64::from(n - 1)) as u32, (step % u64::from(n - 1)) as u32 + 1);
    from_root(me, receiver, block)
}

fn from_root(me: u32, receiver: u32, block: u32) -> Step {
    Step {
        send: (me == 0).then_some(Transfer { peer: Rank(receiver), block }),
        receive: (me == receiver).then_some(Transfer { peer: Rank::ROOT, block }),
    }
}
