//! Linearizable reads by confirmation.
//!
//! Whatever anyone has delivered, every member of the shard has received. So a member that is still a member notes its own
//! `received` after a read came in, and may answer once its state has reached it. That it is still one it learns from the
//! others: it raises a nonce in its row, and every other member, unless wedged, echoes it. All reads that wait share a round.

use std::collections::VecDeque;

/// A member's reads between being asked for and being answerable. All counts are of reads since the shard began.
#[derive(Debug, Default)]
pub(crate) struct Confirm {
    /// The own nonce: the number of rounds begun.
    nonce: u64,
    /// The round under way.
    round: Option<Round>,
    /// The reads of all rounds, the one under way included.
    taken: u64,
    /// Confirmed rounds whose state has not been reached.
    confirmed: VecDeque<Round>,
}

/// Some reads, and the state that answers them.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// All reads up to this one.
    upto: u64,
    /// The state: the first places of the order.
    at: u64,
}

impl Confirm {
    /// Begins a round if reads wait and none is under way. `received` is the member's own, as of now; `asked` was loaded
    /// before it. Returns the nonce to raise.
    pub(crate) fn begin(&mut self, asked: u64, received: u64) -> Option<u64> {
        if self.round.is_some() || asked == self.taken {
            return None;
        }
        self.round = Some(Round { upto: asked, at: received });
        self.taken = asked;
        self.nonce += 1;
        Some(self.nonce)
    }

    /// Ends the round if every other member has echoed the nonce; `echoed` is the smallest echo (`u64::MAX` if there is no
    /// other member).
    pub(crate) fn echo(&mut self, echoed: u64) {
        if echoed >= self.nonce {
            self.confirmed.extend(self.round.take());
        }
    }

    /// How many reads may be answered once the first `delivered` places are delivered, if that is news.
    pub(crate) fn answerable(&mut self, delivered: u64) -> Option<u64> {
        let mut upto = None;
        while let Some(round) = self.confirmed.front().filter(|round| round.at <= delivered) {
            upto = Some(round.upto);
            self.confirmed.pop_front();
        }
        upto
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_its_own_round_and_for_the_state() {
        let mut reads = Confirm::default();
        assert_eq!(reads.begin(0, 7), None, "nobody reads");
        assert_eq!(reads.begin(2, 7), Some(1));
        assert_eq!(reads.begin(3, 9), None, "the third read waits for the next round");
        reads.echo(0);
        assert_eq!(reads.answerable(100), None, "not confirmed");
        reads.echo(1);
        assert_eq!(reads.begin(3, 9), Some(2));
        assert_eq!(reads.answerable(6), None, "the state was not reached");
        assert_eq!(reads.answerable(7), Some(2));
        reads.echo(1);
        assert_eq!(reads.answerable(100), None, "an old echo confirms no later round");
        reads.echo(2);
        assert_eq!(reads.answerable(9), Some(3));
        assert_eq!(reads.begin(3, 9), None);
    }
}
