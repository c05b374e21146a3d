//! Linearizable reads: by confirmation, and by the lease that each confirmation gives.
//!
//! Every member of the shard has received each message that any member has delivered. So a member that is still a
//! member notes its own `received` after a read came in, and may answer once its state has reached it. It learns from
//! the others that it is still a member: it raises a *stamp* in its row, its own clock, and every other member, unless
//! wedged, echoes it.
//!
//! - *Confirm*: a stamp that was raised after a read came in, and that all have echoed, vouches for that read. No clock
//!   matters, since a stamp is only compared with its echo. All reads that wait share a round.
//! - *Lease*: for a fixed time after a stamp that all have echoed, reads need no round. A member that goes on without
//!   this one first lets that time pass, since it echoed the stamp.
//!
//! The clock of a member may stop while the others' clocks go on, as the clock of a virtual machine that is paused
//! does. Such a member takes no lease, and confirms each read. It vouches for other members all the same, since such a
//! promise ends when they say so.
//!
//! A clock that is read before a thread loses its core says nothing of the reads that came in meanwhile. So a lease
//! covers only reads that were seen before the clock was read.

use std::{collections::VecDeque, time::Duration};

use squall_fabric::Time;

/// A member's reads between being asked for and being answerable. All counts are of reads since the shard began.
#[derive(Debug)]
pub(crate) struct Reads {
    /// The time for which a stamp that was echoed gives a lease; 0 if it gives none.
    lease: Duration,
    /// The own stamp, in nanoseconds of the own clock.
    stamp: u64,
    /// The newest own stamp that all others have echoed; `u64::MAX` if there are no others.
    echoed: u64,
    /// The round under way.
    round: Option<Round>,
    /// The reads of all rounds, the one under way included.
    taken: u64,
    /// The confirmed rounds whose state has not been reached.
    confirmed: VecDeque<Round>,
}

/// Reads that are confirmed and answered together.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// The stamp that vouches for the reads.
    stamp: u64,
    /// The count of reads up to the last one of the round.
    upto: u64,
    /// The state that answers the reads, as a count of the first places of the order.
    at: u64,
}

impl Reads {
    pub(crate) fn new(lease: Duration) -> Reads {
        Reads { lease, stamp: 0, echoed: 0, round: None, taken: 0, confirmed: VecDeque::new() }
    }

    /// Takes note of the smallest echo of the own stamp; None if there is no other member.
    pub(crate) fn echo(&mut self, echoed: Option<u64>) {
        // A faulty member may echo a stamp that was never raised.
        self.echoed = echoed.map_or(u64::MAX, |echoed| echoed.min(self.stamp));
        self.confirm();
    }

    fn confirm(&mut self) {
        if self.round.is_some_and(|round| round.stamp <= self.echoed) {
            self.confirmed.extend(self.round.take());
        }
    }

    /// Takes the reads that came in: `asked`, of which `before` were seen before the clock said `now`. Both were loaded
    /// before the own `received`. `renew` says that reads go on under the lease. Returns a new stamp to raise.
    pub(crate) fn take(&mut self, now: Time, before: u64, asked: u64, renew: bool, received: u64) -> Option<u64> {
        let reading = renew || asked > self.taken;
        let held = now < self.lease_until();
        if held {
            // The lease covers a round that began earlier as well.
            self.confirmed.extend(self.round.take());
            if before > self.taken {
                self.taken = before;
                self.confirmed.push_back(Round { stamp: self.stamp, upto: before, at: received });
            }
        }
        let begin = !held && self.round.is_none() && asked > self.taken;
        let renew = reading && now >= self.renew_at();
        if !begin && !renew {
            return None;
        }
        self.stamp = now.as_nanos().max(self.stamp + 1);
        if begin {
            self.taken = asked;
            self.round = Some(Round { stamp: self.stamp, upto: asked, at: received });
            // A member that is alone has no echo to wait for.
            self.confirm();
        }
        Some(self.stamp)
    }

    /// Returns the time until which reads need no round, on the own clock.
    pub(crate) fn lease_until(&self) -> Time {
        match self.echoed {
            0 => Time::ZERO,
            _ if self.lease.is_zero() => Time::ZERO,
            u64::MAX => Time::MAX,
            stamp => Time::from_nanos(stamp) + self.lease,
        }
    }

    /// Returns the time at which to renew the lease, if reads go on.
    pub(crate) fn renew_at(&self) -> Time {
        let alone = self.echoed == u64::MAX;
        if alone || self.lease.is_zero() { Time::MAX } else { Time::from_nanos(self.stamp) + self.lease / 2 }
    }

    /// Returns the number of reads that may be answered once the first `delivered` places are delivered, if it has
    /// grown.
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

    const LEASE: Duration = Duration::from_millis(10);

    fn at(ms: u64) -> Time {
        Time::from_nanos(1_000_000 * ms)
    }

    fn stamp(ms: u64) -> u64 {
        at(ms).as_nanos()
    }

    #[test]
    fn without_a_lease_a_read_waits_for_its_own_round_and_for_the_state() {
        let mut reads = Reads::new(Duration::ZERO);
        assert_eq!(reads.take(at(1), 0, 0, false, 7), None, "no reader waits");
        assert_eq!(reads.take(at(1), 0, 2, false, 7), Some(stamp(1)));
        assert_eq!(reads.take(at(2), 2, 3, false, 9), None, "the third read waits for the next round");
        reads.echo(Some(0));
        assert_eq!(reads.answerable(100), None, "not confirmed");
        reads.echo(Some(stamp(1)));
        assert_eq!(reads.take(at(3), 3, 3, false, 9), Some(stamp(3)));
        assert_eq!(reads.answerable(6), None, "the state was not reached");
        assert_eq!(reads.answerable(7), Some(2));
        reads.echo(Some(stamp(1)));
        assert_eq!(reads.answerable(100), None, "an old echo confirms no later round");
        reads.echo(Some(stamp(3)));
        assert_eq!(reads.answerable(9), Some(3));
        assert_eq!(reads.take(at(4), 3, 3, false, 9), None);
    }

    #[test]
    fn an_echo_covers_the_reads_of_a_while() {
        let mut reads = Reads::new(LEASE);
        assert_eq!(reads.take(at(100), 0, 1, false, 7), Some(stamp(100)));
        reads.echo(Some(stamp(100)));
        assert_eq!(reads.answerable(7), Some(1));
        assert_eq!(reads.lease_until(), at(110));
        assert_eq!(reads.take(at(104), 2, 2, false, 8), None, "no round");
        assert_eq!(reads.answerable(7), None, "the state was not reached");
        assert_eq!(reads.answerable(8), Some(2));
        assert_eq!(reads.take(at(110), 3, 3, false, 8), Some(stamp(110)), "it has lapsed");
        assert_eq!(reads.answerable(8), None);
    }

    #[test]
    fn a_lease_covers_no_read_that_was_seen_after_the_clock() {
        let mut reads = Reads::new(LEASE);
        reads.take(at(100), 0, 1, false, 7);
        reads.echo(Some(stamp(100)));
        assert_eq!(reads.answerable(7), Some(1));
        assert_eq!(reads.take(at(102), 1, 2, false, 7), None);
        assert_eq!(reads.answerable(7), None, "the thread may have stood still since it read the clock");
        assert_eq!(reads.take(at(103), 2, 2, false, 7), None);
        assert_eq!(reads.answerable(7), Some(2));
    }

    #[test]
    fn a_lease_is_renewed_at_half_its_time_while_reads_go_on() {
        let mut reads = Reads::new(LEASE);
        reads.take(at(100), 0, 1, false, 7);
        reads.echo(Some(stamp(100)));
        assert_eq!(reads.take(at(104), 1, 1, true, 7), None, "it is young");
        assert_eq!(reads.take(at(106), 1, 1, false, 7), None, "no reader waits");
        assert_eq!(reads.take(at(106), 1, 1, true, 7), Some(stamp(106)));
        assert_eq!(reads.take(at(107), 1, 1, true, 7), None, "it is under way");
        assert_eq!(reads.lease_until(), at(110));
        reads.echo(Some(stamp(106)));
        assert_eq!(reads.lease_until(), at(116));
    }

    #[test]
    fn who_is_alone_needs_nobody_and_who_echoes_too_much_gives_nothing() {
        let mut alone = Reads::new(LEASE);
        alone.echo(None);
        assert_eq!(alone.lease_until(), Time::MAX);
        let mut reads = Reads::new(LEASE);
        reads.take(at(100), 0, 1, false, 7);
        for absurd in [stamp(900), u64::MAX] {
            reads.echo(Some(absurd));
            assert_eq!(reads.lease_until(), at(110), "no longer than from the stamp that was raised");
        }
    }
}
