//! Plans: the blocks that members send each other so that an interrupted message becomes whole everywhere.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    block_set::BlockSet,
    schedule::{Rank, Step, Transfer},
};

/// One member's part in completing a message. All members compute their parts from the same holdings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<Step>,
}

/// The blocks that no member holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{count} blocks of the message, from block {first} on, are held by no member: it must come from its source again"
)]
pub struct Lost {
    /// The first lost block.
    pub first: u32,
    /// The number of lost blocks.
    pub count: u32,
}

/// A node's next free steps.
#[derive(Clone, Copy, Default)]
struct Free {
    send: u64,
    receive: u64,
}

impl Plan {
    /// The part of `rank`, where `held` has each member's blocks, by rank.
    ///
    /// Each member receives each block that it lacks once. Blocks that few hold go first, so that they spread while
    /// others travel. Each transfer takes the earliest step at which a member that holds the block can send and the
    /// other receive.
    ///
    /// Fails if some blocks are held by no member.
    ///
    /// # Panics
    ///
    /// If the members differ in the number of blocks, or there are no members.
    pub fn new(held: &[BlockSet], rank: Rank) -> Result<Plan, Lost> {
        let blocks = held[0].blocks();
        assert!(held.iter().all(|set| set.blocks() == blocks), "holdings of one message");
        let holders = |block: u32| held.iter().filter(|set| set.contains(block)).count();
        let mut order: Vec<(usize, u32)> =
            (0..blocks).map(|block| (holders(block), block)).filter(|&(count, _)| count < held.len()).collect();
        order.sort_unstable();
        let lost = order.iter().take_while(|(count, _)| *count == 0).count() as u32;
        if lost > 0 {
            return Err(Lost { first: order[0].1, count: lost });
        }

        let mut free = vec![Free::default(); held.len()];
        let mut own: BTreeMap<u64, Step> = BTreeMap::new();
        for (_, block) in order {
            // The members that have it, each with the step from which on, and those that lack it.
            let (mut have, mut lack): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
            for (member, set) in held.iter().enumerate() {
                if set.contains(block) { have.push((member, 0)) } else { lack.push(member) }
            }
            lack.sort_by_key(|&member| free[member].receive);
            for to in lack {
                let start = |&(from, since): &(usize, u64)| free[from].send.max(since).max(free[to].receive);
                let &source = have.iter().min_by_key(|source| (start(source), source.0)).expect("a member has it");
                let (step, from) = (start(&source), source.0);
                free[from].send = step + 1;
                free[to].receive = step + 1;
                have.push((to, step + 1));
                let transfer = |peer: usize| Some(Transfer { peer: Rank(peer as u32), block });
                if from == rank.index() {
                    own.entry(step).or_default().send = transfer(to);
                } else if to == rank.index() {
                    own.entry(step).or_default().receive = transfer(from);
                }
            }
        }
        Ok(Plan { steps: own.into_values().collect() })
    }

    /// The member's steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The members with which it exchanges blocks, in order of ranks.
    pub fn peers(&self) -> Vec<Rank> {
        let peers = self.steps.iter().flat_map(|step| [step.send, step.receive]).flatten().map(|at| at.peer);
        peers.collect::<BTreeSet<Rank>>().into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_holdings(rng: &mut fastrand::Rng) -> Vec<BlockSet> {
        let (n, k) = (rng.usize(1..9), rng.u32(1..40));
        let mut held: Vec<BlockSet> = (0..n).map(|_| BlockSet::new(k)).collect();
        for block in 0..k {
            let one = rng.usize(..n);
            for (member, set) in held.iter_mut().enumerate() {
                if member == one || rng.u8(..3) == 0 {
                    set.insert(block);
                }
            }
        }
        held
    }

    #[test]
    fn a_plan_moves_each_missing_block_once_from_who_holds_it() {
        for seed in 0..2000 {
            let mut held = random_holdings(&mut fastrand::Rng::with_seed(seed));
            let missing: u32 = held.iter().map(|set| set.blocks() - set.count()).sum();
            let plans: Vec<Plan> =
                (0..held.len() as u32).map(|rank| Plan::new(&held, Rank(rank)).expect("nothing is lost")).collect();
            // Each member goes on to its next step once it has sent and received what the one before says.
            let mut next = vec![(0, false, false); plans.len()];
            let mut sent: Vec<(usize, usize, u32)> = Vec::new();
            let mut moved = 0;
            loop {
                let before = (next.clone(), sent.len());
                for (member, plan) in plans.iter().enumerate() {
                    let (at, has_sent, has_received) = &mut next[member];
                    let Some(step) = plan.steps().get(*at) else { continue };
                    match step.send {
                        Some(Transfer { peer, block }) if !*has_sent => {
                            assert!(
                                held[member].contains(block),
                                "seed {seed}: block {block} is sent before it is there"
                            );
                            sent.push((member, peer.index(), block));
                        }
                        _ => {}
                    }
                    *has_sent = true;
                    match step.receive {
                        Some(Transfer { peer, block }) if !*has_received => {
                            let from_peer = |&(from, to, _): &(usize, usize, u32)| (from, to) == (peer.index(), member);
                            if let Some(at) = sent.iter().position(from_peer) {
                                assert_eq!(sent.remove(at).2, block, "seed {seed}: the two ends differ in their order");
                                assert!(held[member].insert(block), "seed {seed}: block {block} comes twice");
                                moved += 1;
                                *has_received = true;
                            }
                        }
                        _ => *has_received = true,
                    }
                    if *has_received {
                        next[member] = (*at + 1, false, false);
                    }
                }
                if (next.clone(), sent.len()) == before {
                    break;
                }
            }
            assert!(held.iter().all(BlockSet::is_full), "seed {seed}: a member lacks a block");
            assert_eq!(moved, missing, "seed {seed}");
        }
    }

    #[test]
    fn blocks_that_nobody_holds_are_named() {
        let mut held = vec![BlockSet::new(5), BlockSet::new(5)];
        held[0].insert(0);
        held[1].insert(3);
        assert_eq!(Plan::new(&held, Rank(0)), Err(Lost { first: 1, count: 3 }));
    }

    #[test]
    fn nothing_to_do_is_no_step() {
        let held = vec![BlockSet::full(3); 4];
        assert!(Plan::new(&held, Rank(2)).is_ok_and(|plan| plan.steps().is_empty() && plan.peers().is_empty()));
    }
}
