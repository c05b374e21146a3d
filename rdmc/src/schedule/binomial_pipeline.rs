//! Binomial pipeline: blocks are exchanged along the dimensions of a hypercube, in turn.
//!
//! With n = 2ˡ, each rank is a vertex, and in step j it exchanges a block with its neighbour along dimension j mod l.
//! The root sends block j, every other rank the highest block that it has (Ganesan and Seshadri; RDMC, DSN 2018, §4.4,
//! which has this closed form for that block).
//!
//! For any other n, l = ⌊log₂ n⌋ and each further rank shares a vertex, never the root's, with another (RDMC 2017,
//! appendix A). Outwards a vertex behaves as one node. Of the two that share one, in each step
//!
//! - the *speaker* has the vertex' highest block and sends it out;
//! - the *listener* receives what comes in, and sends the speaker the block that only the listener has: in step j, that
//!   is block j − l − 1.
//!
//! The block that the vertex gets in a step is its highest just if the vertex' number has the bit of that step's
//! dimension; then the two change roles. So the parity of such steps so far says which of the two speaks, and nothing
//! has to be simulated. One more step of the same kind, in which only listeners receive, leaves no rank without any
//! block: ⌈log₂ n⌉ + k − 1 steps for every n.

use super::{FirstBlock, Rank, Step, Transfer};

/// The cube's dimension.
fn dimension(n: u32) -> u32 {
    n.ilog2()
}

pub(super) fn steps(n: u32, k: u32) -> u64 {
    if n == 1 { 0 } else { u64::from(n.next_power_of_two().trailing_zeros()) + u64::from(k) - 1 }
}

/// The lag of the slowest rank: every rank has block b once step b + lag − 1 is over.
pub(super) fn lag(n: u32) -> u64 {
    u64::from(dimension(n)) + if n.is_power_of_two() { 1 } else { 2 }
}

/// The vertex of a rank.
fn vertex(n: u32, rank: u32) -> u32 {
    let vertices = 1 << dimension(n);
    if rank < vertices { rank } else { rank - vertices + 1 }
}

/// The second rank of a vertex, which shares it with the rank of the same number, if there is one.
fn second(n: u32, vertex: u32) -> Option<u32> {
    let vertices = 1 << dimension(n);
    (vertex > 0).then(|| vertices + vertex - 1).filter(|&rank| rank < n)
}

/// The ranks on a vertex that speak and listen in a step. A rank that is alone does both.
fn speaker_and_listener(n: u32, vertex: u32, step: u64) -> (u32, u32) {
    let Some(second) = second(n, vertex) else { return (vertex, vertex) };
    let l = u64::from(dimension(n));
    // Steps before this one whose dimension's bit is set in the vertex' number.
    let rounds = (step / l) as u32 & 1;
    let changes = vertex.count_ones() * rounds + (vertex & ((1 << (step % l)) - 1)).count_ones();
    // The first block, in the step of the highest bit, goes to the rank whose number is the vertex'.
    let first_speaks = changes & 1 == vertex.count_ones() & 1;
    if first_speaks { (vertex, second) } else { (second, vertex) }
}

/// The block that a vertex sends in a step, if it has one.
fn highest(n: u32, vertex: u32, k: u32, step: u64) -> Option<u32> {
    let l = dimension(n);
    let last = u64::from(k - 1);
    if vertex == 0 {
        return Some(step.min(last) as u32);
    }
    // The distance from this step's dimension to the next bit that is set, around the l bits.
    let dimension = (step % u64::from(l)) as u32;
    let ahead = vertex >> dimension;
    let distance = if ahead == 0 { l - dimension + vertex.trailing_zeros() } else { ahead.trailing_zeros() };
    let block = (step + u64::from(distance)).checked_sub(u64::from(l))?;
    Some(block.min(last) as u32)
}

pub(super) fn at(n: u32, me: u32, k: u32, step: u64) -> Step {
    let l = dimension(n);
    let here = vertex(n, me);
    let there = here ^ (1 << (step % u64::from(l)));
    let (speaker, listener) = speaker_and_listener(n, here, step);
    let (their_speaker, their_listener) = speaker_and_listener(n, there, step);
    // Once a vertex of one node has received in k steps, it has everything.
    let closing = step >= u64::from(l) + u64::from(k) - 1;
    let takes_in = |vertex: u32| vertex > 0 && (!closing || second(n, vertex).is_some());

    let mut result = Step::default();
    if me == speaker && takes_in(there) {
        let block = highest(n, here, k, step);
        result.send = block.map(|block| Transfer { peer: Rank(their_listener), block });
    }
    if me == listener && takes_in(here) {
        let block = highest(n, there, k, step);
        result.receive = block.map(|block| Transfer { peer: Rank(their_speaker), block });
    }
    if speaker != listener
        && let Some(block) = step.checked_sub(u64::from(l) + 1)
    {
        let block = block as u32;
        if me == listener {
            result.send = Some(Transfer { peer: Rank(speaker), block });
        } else {
            result.receive = Some(Transfer { peer: Rank(listener), block });
        }
    }
    result
}

pub(super) fn first_block(n: u32, me: u32) -> FirstBlock {
    let here = vertex(n, me);
    // The step in which the vertex' first rank gets its block is that of its highest bit; the second rank listens first
    // in step l.
    let step = if me == here { u64::from(here.ilog2()) } else { u64::from(dimension(n)) };
    let receive = at(n, me, u32::MAX, step).receive.expect("a block comes in this step");
    FirstBlock { from: receive.peer, block: receive.block }
}

pub(super) fn peers(n: u32, me: u32) -> Vec<u32> {
    if n == 1 {
        return Vec::new();
    }
    let here = vertex(n, me);
    let on = |vertex: u32| [Some(vertex), second(n, vertex)].into_iter().flatten();
    (0..dimension(n)).flat_map(|d| on(here ^ (1 << d))).chain(on(here)).filter(|&peer| peer != me).collect()
}
