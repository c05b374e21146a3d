//! A token ring: one rank after another may send.

use squall_fabric::{Completion, Fabric, Time};

use super::{TotalOrder, total_order_by};
use crate::{
    CreateError, Delivery, Message, Mode, OnePipeConfig, ScatterError, ScatteringId, Topology, engine::Engine,
    stamps::Stamps,
};

/// A rank of a token ring: rank k sends in the turns that are k modulo the number of ranks.
///
/// It is the flat order of timestamps that stand for turns. A rank promises its next turn when one is over; a rank that
/// sees that promise of its predecessor has the token. All waiting scatterings go out in a turn, up to a bound.
#[derive(Debug)]
pub struct TokenRing {
    engine: Engine<Turns>,
}

impl TokenRing {
    /// Registers the memory, and starts to connect this node to all others. The topology is flat, whatever the
    /// configuration says.
    pub fn create(fabric: &mut impl Fabric, config: OnePipeConfig) -> Result<TokenRing, CreateError> {
        let me = config.check(fabric.node())?;
        let turns = Turns::new(me, config.nodes.len());
        let config = OnePipeConfig { topology: Topology::Flat, ..config };
        Ok(TokenRing { engine: Engine::create(fabric, config, turns, "squall token ring 1")? })
    }
}

total_order_by!(TokenRing, engine);

/// The number of low bits of a timestamp that count the scatterings of a turn, from 1 on.
const INDEX_BITS: u32 = 16;

/// The largest number of scatterings that go out in a turn.
const PER_TURN: u64 = 1 << 12;

/// Timestamps of a rank that sends in its turns.
#[derive(Debug)]
struct Turns {
    me: usize,
    ranks: usize,
    /// The turn that this rank has, or has next.
    turn: u64,
    /// The number of scatterings that have gone out in it.
    used: u64,
    /// The turn that the predecessor has next.
    predecessors: u64,
}

impl Turns {
    fn new(me: usize, ranks: usize) -> Turns {
        Turns { me, ranks, turn: me as u64, used: 0, predecessors: 0 }
    }

    fn has_token(&self) -> bool {
        self.turn == 0 || self.ranks == 1 || self.predecessors > self.turn
    }
}

impl Stamps for Turns {
    const GROWS_WITH_TIME: bool = false;
    const IS_URGENT: bool = true;

    fn advance(&mut self, _: Time) {}

    fn hear(&mut self, from: usize, promise: u64) {
        if (from + 1) % self.ranks == self.me {
            self.predecessors = self.predecessors.max(promise >> INDEX_BITS);
        }
    }

    fn hear_want(&mut self, _: u64) {}

    #[inline]
    fn stamp(&mut self) -> Option<u64> {
        if !self.has_token() || self.used == PER_TURN {
            return None;
        }
        self.used += 1;
        Some(self.turn << INDEX_BITS | self.used)
    }

    fn promise(&mut self) -> u64 {
        if self.has_token() {
            self.turn += self.ranks as u64;
            self.used = 0;
        }
        self.turn << INDEX_BITS
    }

    #[inline]
    fn near(&self) -> u64 {
        self.turn << INDEX_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_goes_around() {
        let mut ranks = [0, 1, 2].map(|me| Turns::new(me, 3));
        let mut stamps = Vec::new();
        for turn in 0..9 {
            let holders: Vec<usize> = (0..3).filter(|&rank| ranks[rank].has_token()).collect();
            assert_eq!(holders, [turn % 3]);
            let stamp = ranks[turn % 3].stamp().expect("it is its turn");
            stamps.extend([stamp, ranks[turn % 3].stamp().expect("it still is")]);
            let promise = ranks[turn % 3].promise();
            assert!(promise > stamp);
            ranks.iter_mut().for_each(|rank| rank.hear(turn % 3, promise));
        }
        assert!(stamps.is_sorted_by(|a, b| a < b), "{stamps:?}");
    }

    #[test]
    fn a_turn_has_an_end() {
        let mut turns = Turns::new(0, 2);
        let sent = std::iter::from_fn(|| turns.stamp()).count();
        assert_eq!(sent as u64, PER_TURN);
        const { assert!(PER_TURN < 1 << INDEX_BITS) };
    }
}
