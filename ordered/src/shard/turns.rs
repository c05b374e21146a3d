//! The turns of the other senders, which count once their records were found to be good.

use squall_fabric::Region;
use squall_sst::ring::Checker;

use super::Shard;
use crate::config::Mode;

/// The turns of a sender that have been taken.
#[derive(Debug)]
pub(super) struct TakenTurns {
    checker: Checker,
    /// Whether it has claimed turns that it can't have, or that are not good. No more turns of it are taken.
    is_faulty: bool,
}

impl TakenTurns {
    pub(super) fn new(ring: &Region) -> TakenTurns {
        TakenTurns { checker: Checker::new(ring.clone()), is_faulty: false }
    }
}

impl Shard {
    /// Takes the turns that senders say they have used. Those of a faulty sender are taken up to its fault, since what
    /// is counted here may be delivered elsewhere, and must be found here then.
    ///
    /// One that says that it has used more than it can have is faulty: to wait for such turns, or to give up as many,
    /// would take for ever. Only a message opens a turn that no sender has reached
    /// ([`turns_due`](crate::order::turns_due)), and stays in its ring until this member has delivered it.
    pub(super) fn take_turns(&mut self) {
        for (sender, taken) in self.turns.iter_mut().enumerate() {
            let member = self.senders[sender];
            let turns = self.table.get(member, self.columns.sent);
            if turns <= taken.checker.turns() || taken.is_faulty || member == self.table.me() {
                continue;
            }
            let delivered = match self.mode {
                Mode::Ordered | Mode::Durable => self.progress.delivered(0) / self.senders.len() as u64,
                Mode::Unordered => self.progress.delivered(sender),
            };
            // Turns are given up as far as a ring's worth, and messages may follow before others have been delivered.
            let checked = if turns > delivered + 3 * self.ring_turns + 4 {
                Err(format!("it says that it has used {turns} turns, of which others have delivered {delivered}"))
            } else {
                let (progress, bulk) = (&self.progress, &mut self.bulk);
                let read = || progress.read(sender);
                taken.checker.check(turns, read, |message| bulk.is_next(sender, message)).map_err(|why| why.to_string())
            };
            if let Err(why) = checked {
                taken.is_faulty = true;
                self.faulty.push((self.mesh.node(member), why));
            }
        }
    }

    /// Returns the number of turns of a sender that have arrived here.
    pub(super) fn turns(&self, sender: usize) -> u64 {
        match &self.own {
            Some(own) if own.rank == sender => own.outbox.turns(),
            _ => self.turns[sender].checker.turns(),
        }
    }
}
