//! One algorithm among some of a group's members.

use super::{
    Algorithm, FirstBlock, Members, Rank, Step, Transfer, binomial_pipeline, binomial_tree, chain, sequential,
};

/// An algorithm that is not composed of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flat {
    Sequential,
    Interleaved,
    Chain,
    BinomialTree,
    BinomialPipeline,
}

impl Flat {
    pub(super) fn of(algorithm: &Algorithm) -> Option<Flat> {
        match algorithm {
            Algorithm::Sequential => Some(Flat::Sequential),
            Algorithm::Interleaved => Some(Flat::Interleaved),
            Algorithm::Chain => Some(Flat::Chain),
            Algorithm::BinomialTree => Some(Flat::BinomialTree),
            Algorithm::BinomialPipeline => Some(Flat::BinomialPipeline),
            Algorithm::Hybrid(_) => None,
        }
    }

    /// The number of steps after block b's own number by which the node with this rank has block b at the latest.
    pub(super) fn lag(self, n: u32, rank: u32) -> u64 {
        match self {
            _ if rank == 0 => 0,
            Flat::Chain => u64::from(rank),
            Flat::BinomialPipeline => binomial_pipeline::lag(n),
            Flat::Sequential | Flat::Interleaved | Flat::BinomialTree => unreachable!("not an outer schedule"),
        }
    }
}

/// One algorithm among all members of a group, or some of them: one node's part.
#[derive(Clone, Debug)]
pub struct SubSchedule {
    flat: Flat,
    members: Members,
    /// This node's rank among these members.
    local: u32,
    /// The part's first step.
    begins: u64,
}

impl SubSchedule {
    pub(super) fn whole(flat: Flat, n: u32, rank: Rank) -> SubSchedule {
        SubSchedule { flat, members: Members::All(n), local: rank.0, begins: 0 }
    }

    pub(super) fn among(flat: Flat, members: Members, local: u32, begins: u64) -> SubSchedule {
        SubSchedule { flat, members, local, begins }
    }

    /// The number of steps, counted from the whole schedule's first, after which the part is over for a message of
    /// `blocks` blocks.
    pub fn steps(&self, blocks: u32) -> u64 {
        let (n, k) = (self.members.len(), blocks);
        let steps = match self.flat {
            Flat::Sequential | Flat::Interleaved => sequential::steps(n, k),
            Flat::Chain => chain::steps(n, k),
            Flat::BinomialTree => binomial_tree::steps(n, k),
            Flat::BinomialPipeline => binomial_pipeline::steps(n, k),
        };
        if steps == 0 { 0 } else { self.begins + steps }
    }

    /// This node's send and receive in a step, for a message of `blocks` blocks (at least one).
    pub fn at(&self, blocks: u32, step: u64) -> Step {
        let (n, me, k) = (self.members.len(), self.local, blocks);
        let Some(step) = step.checked_sub(self.begins).filter(|_| self.steps(k) > step) else { return Step::default() };
        let Step { send, receive } = match self.flat {
            Flat::Sequential => sequential::one_by_one(n, me, k, step),
            Flat::Interleaved => sequential::interleaved(n, me, k, step),
            Flat::Chain => chain::at(n, me, k, step),
            Flat::BinomialTree => binomial_tree::at(n, me, k, step),
            Flat::BinomialPipeline => binomial_pipeline::at(n, me, k, step),
        };
        let named = |transfer: Transfer| Transfer { peer: self.members.rank(transfer.peer.0), ..transfer };
        Step { send: send.map(named), receive: receive.map(named) }
    }

    /// The block that this node gets first here; none at this part's root.
    pub fn first_block(&self) -> Option<FirstBlock> {
        let (n, me) = (self.members.len(), self.local);
        if me == 0 {
            return None;
        }
        let first = match self.flat {
            Flat::Sequential | Flat::Interleaved => FirstBlock { from: Rank::ROOT, block: 0 },
            Flat::Chain => FirstBlock { from: Rank(me - 1), block: 0 },
            Flat::BinomialTree => FirstBlock { from: Rank(binomial_tree::parent(me)), block: 0 },
            Flat::BinomialPipeline => binomial_pipeline::first_block(n, me),
        };
        Some(FirstBlock { from: self.members.rank(first.from.0), ..first })
    }

    /// The ranks that this node exchanges blocks with here, for some number of blocks.
    pub(super) fn peers(&self) -> Vec<Rank> {
        let (n, me) = (self.members.len(), self.local);
        let peers = match self.flat {
            Flat::Sequential | Flat::Interleaved if me == 0 => (1..n).collect(),
            Flat::Sequential | Flat::Interleaved => vec![0],
            Flat::Chain => [me.checked_sub(1), (me + 1 < n).then_some(me + 1)].into_iter().flatten().collect(),
            Flat::BinomialTree => binomial_tree::peers(n, me),
            Flat::BinomialPipeline => binomial_pipeline::peers(n, me),
        };
        peers.into_iter().map(|local| self.members.rank(local)).collect()
    }
}
