//! Binomial tree: in round i, every rank r < 2ⁱ, which has the whole message, sends it to rank r + 2ⁱ.

use super::{Rank, Step, Transfer};

fn rounds(n: u32) -> u32 {
    n.next_power_of_two().trailing_zeros()
}

pub(super) fn steps(n: u32, k: u32) -> u64 {
    u64::from(rounds(n)) * u64::from(k)
}

/// The rank that sends the message to this one, which is not 0.
pub(super) fn parent(me: u32) -> u32 {
    me - (1 << me.ilog2())
}

pub(super) fn at(n: u32, me: u32, k: u32, step: u64) -> Step {
    let (round, block) = ((step / u64::from(k)) as u32, (step % u64::from(k)) as u32);
    let child = (me < 1 << round).then(|| me + (1 << round)).filter(|&child| child < n);
    let receives = me > 0 && me.ilog2() == round;
    Step {
        send: child.map(|child| Transfer { peer: Rank(child), block }),
        receive: receives.then(|| Transfer { peer: Rank(parent(me)), block }),
    }
}

pub(super) fn peers(n: u32, me: u32) -> Vec<u32> {
    let children = (0..rounds(n)).filter(|&round| me < 1 << round).map(|round| me + (1 << round));
    let children = children.filter(|&child| child < n);
    (me > 0).then(|| parent(me)).into_iter().chain(children).collect()
}
