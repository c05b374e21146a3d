//! The messages that a rank receives in one mode, in the order of (timestamp, sender).
//!
//! Senders' rings are in the order of their timestamps, so only the first record of each has to be merged. No record is
//! copied before its turn.

use crate::{Delivery, Mode, error::Misbehaved, inbound::Inbound, tournament::Tournament};

#[derive(Debug)]
pub(crate) struct DeliveryOrder {
    mode: Mode,
    /// Indexed by sender.
    pub(crate) rings: Vec<Inbound>,
    /// The wide timestamp of each ring's first record; [`u64::MAX`] where there is none.
    heads: Tournament,
    /// The timestamp strictly below which messages are delivered.
    barrier: u64,
    /// The timestamp next to which timestamps are extended.
    pub(crate) near: u64,
    /// The place of the message that was delivered last.
    last: Option<(u64, usize)>,
    payload: Vec<u8>,
    /// The senders whose records were found to be wrong.
    misbehaved: Vec<usize>,
}

impl DeliveryOrder {
    pub(crate) fn new(mode: Mode, rings: Vec<Inbound>) -> DeliveryOrder {
        let heads = Tournament::new(rings.len(), u64::MAX);
        let (payload, misbehaved) = (Vec::new(), Vec::new());
        DeliveryOrder { mode, rings, heads, barrier: 0, near: 0, last: None, payload, misbehaved }
    }

    #[inline]
    pub(crate) fn barrier(&self) -> u64 {
        self.barrier
    }

    /// Raises the barrier. One that is not higher changes nothing.
    #[inline]
    pub(crate) fn accept(&mut self, barrier: u64) -> bool {
        let is_higher = barrier > self.barrier;
        self.barrier = self.barrier.max(barrier);
        is_higher
    }

    /// The wide timestamp of the first message that waits for the barrier.
    #[inline]
    pub(crate) fn first_waiting(&self) -> Option<u64> {
        let first = self.heads.least();
        (first != u64::MAX && first >= self.barrier).then_some(first)
    }

    /// Takes note that a sender's ring is filled up to `tail`.
    #[inline]
    pub(crate) fn arrive(&mut self, from: usize, tail: u64) -> Result<(), Misbehaved> {
        self.rings[from].arrive(tail)?;
        if self.heads.get(from) == u64::MAX {
            self.look(from)?;
        }
        Ok(())
    }

    #[inline]
    fn look(&mut self, from: usize) -> Result<(), Misbehaved> {
        let head = self.rings[from].look(self.near)?;
        self.heads.set(from, head);
        Ok(())
    }

    /// Closes a sender's ring: nothing more comes, and records from `limit` on are not to be delivered.
    pub(crate) fn close(&mut self, from: usize, limit: u64) {
        self.rings[from].close(limit);
        if self.look(from).is_err() {
            self.heads.set(from, u64::MAX);
        }
    }

    /// Hands out the messages below the barrier, at most `max`. Returns how many, and whether the next step has
    /// something to report: room that is free again, also of recalled messages, or a sender that misbehaved.
    pub(crate) fn deliver(&mut self, max: usize, sink: &mut impl FnMut(Delivery<'_>)) -> (usize, bool) {
        let (mut delivered, mut is_news) = (0, false);
        while delivered < max {
            let (mut stamp, sender) = (self.heads.least(), self.heads.first());
            if stamp >= self.barrier {
                break;
            }
            is_news = true;
            // A sender whose message comes too late has broken a promise.
            if Some((stamp, sender)) <= self.last {
                self.heads.set(sender, u64::MAX);
                self.misbehaved.push(sender);
                continue;
            }
            // One sender's messages are handed out in one go, without comparisons, until it is another sender's turn.
            let (second, other) = self.heads.second();
            let limit = second.saturating_add(u64::from(sender < other)).min(self.barrier);
            let ring = &mut self.rings[sender];
            let mode = self.mode;
            let hand_out = |stamp, bytes: &[u8]| sink(Delivery { mode, stamp, sender, bytes });
            let (count, next) = ring.take_below(limit, (self.near, max - delivered), &mut self.payload, hand_out);
            delivered += count;
            self.last = ring.last().map(|stamp| (stamp, sender));
            stamp = next.unwrap_or_else(|Misbehaved| {
                self.misbehaved.push(sender);
                u64::MAX
            });
            self.heads.set(sender, stamp);
        }
        (delivered, is_news)
    }

    /// Takes a sender whose records were found to be wrong.
    pub(crate) fn take_misbehaved(&mut self) -> Option<usize> {
        self.misbehaved.pop()
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::{Region, RegionKey, RegionKind};

    use super::*;
    use crate::{mirror::Mirror, ring::Ring};

    const BYTES: usize = 1024;

    /// Rings in this process, and their writers.
    fn order(senders: usize) -> (DeliveryOrder, Vec<Mirror>, Vec<Region>) {
        let region = |sender: usize| Region::heap(RegionKind::Polled, RegionKey(sender as u64), BYTES);
        let regions: Vec<Region> = (0..senders).map(region).collect();
        let ring = |region: &Region| Ring::new(region.clone(), 0, BYTES);
        let order =
            DeliveryOrder::new(Mode::BestEffort, regions.iter().map(|region| Inbound::new(ring(region))).collect());
        (order, regions.iter().map(|region| Mirror::new(ring(region))).collect(), regions)
    }

    fn send(order: &mut DeliveryOrder, mirrors: &mut [Mirror], from: usize, stamp: u64, bytes: &[u8]) {
        mirrors[from].write(stamp, 0, bytes);
        order.arrive(from, mirrors[from].written()).expect("a sound record");
    }

    fn delivered(order: &mut DeliveryOrder, max: usize) -> Vec<(u64, usize, Vec<u8>)> {
        let mut delivered = Vec::new();
        let (count, _) = order.deliver(max, &mut |d| delivered.push((d.stamp, d.sender, d.bytes.to_vec())));
        assert_eq!(count, delivered.len());
        delivered
    }

    fn stamps(order: &mut DeliveryOrder) -> Vec<(u64, usize)> {
        delivered(order, usize::MAX).into_iter().map(|(stamp, sender, _)| (stamp, sender)).collect()
    }

    #[test]
    fn messages_come_in_the_order_of_stamps_and_ties_by_sender() {
        let (mut order, mut mirrors, _regions) = order(3);
        for (from, stamp) in [(2, 5), (2, 9), (1, 5), (0, 7), (0, 9), (1, 6)] {
            send(&mut order, &mut mirrors, from, stamp, &[stamp as u8, from as u8]);
        }
        order.accept(100);
        let bytes = |(stamp, sender)| (stamp, sender, vec![stamp as u8, sender as u8]);
        assert_eq!(delivered(&mut order, 2), [(5, 1), (5, 2)].map(bytes));
        assert_eq!(delivered(&mut order, 9), [(6, 1), (7, 0), (9, 0), (9, 2)].map(bytes));
    }

    #[test]
    fn a_tie_within_a_run_ends_it() {
        let (mut order, mut mirrors, _regions) = order(2);
        for (from, stamp) in [(1, 5), (1, 6), (0, 6)] {
            send(&mut order, &mut mirrors, from, stamp, b"");
        }
        order.accept(100);
        assert_eq!(stamps(&mut order), [(5, 1), (6, 0), (6, 1)]);
    }

    #[test]
    fn no_more_is_recalled_than_a_ring_holds() {
        let (mut order, ..) = order(1);
        let most = BYTES as u64 / 16;
        (0..most).for_each(|stamp| order.rings[0].recall(stamp).expect("as much fits"));
        assert_eq!(order.rings[0].recall(0), Ok(()), "one of them again");
        assert_eq!(order.rings[0].recall(most), Err(Misbehaved));
    }

    #[test]
    fn only_what_lies_strictly_below_the_barrier_is_delivered() {
        let (mut order, mut mirrors, _regions) = order(2);
        send(&mut order, &mut mirrors, 0, 5, b"");
        send(&mut order, &mut mirrors, 1, 6, b"");
        assert_eq!(stamps(&mut order), []);
        assert!(order.accept(5));
        assert_eq!(stamps(&mut order), []);
        assert_eq!(order.first_waiting(), Some(5));
        assert!(order.accept(6));
        assert_eq!(stamps(&mut order), [(5, 0)]);
        assert!(!order.accept(3), "a barrier does not go back");
        assert!(order.accept(7));
        assert_eq!(stamps(&mut order), [(6, 1)]);
        assert_eq!(order.first_waiting(), None);
    }

    #[test]
    fn a_closed_ring_ends_before_its_limit() {
        let (mut order, mut mirrors, _regions) = order(2);
        for stamp in [4, 5, 6] {
            send(&mut order, &mut mirrors, 0, stamp, b"");
        }
        send(&mut order, &mut mirrors, 1, 9, b"");
        order.close(0, 5);
        order.accept(100);
        assert_eq!(stamps(&mut order), [(4, 0), (9, 1)]);
    }

    #[test]
    fn what_is_recalled_is_passed_over_whether_it_is_there_or_not() {
        let (mut order, mut mirrors, _regions) = order(1);
        send(&mut order, &mut mirrors, 0, 4, b"");
        order.rings[0].recall(4).expect("it was sent");
        order.rings[0].recall(6).expect("it may have been");
        for stamp in [5, 6, 7] {
            send(&mut order, &mut mirrors, 0, stamp, b"");
        }
        order.accept(100);
        assert_eq!(stamps(&mut order), [(5, 0), (7, 0)]);
        assert_eq!(order.rings[0].taken(), order.rings[0].tail());
    }

    #[test]
    fn what_no_correct_sender_writes_is_found_and_others_go_on() {
        type Wrong = fn(&mut DeliveryOrder, &mut [Mirror], &[Region]);
        let wrongs: [(&str, Wrong); 4] = [
            ("no record", |_, _, regions| regions[0].store(0, u64::MAX)),
            ("longer than what has come", |_, _, regions| regions[0].store(8, 200)),
            ("a timestamp that goes back", |order, mirrors, _| {
                send(order, mirrors, 0, 5, b"");
                send(order, mirrors, 0, 4, b"");
            }),
            ("a timestamp below the barrier", |order, mirrors, _| {
                send(order, mirrors, 1, 8, b"");
                order.accept(9);
                order.deliver(9, &mut |_| {});
                send(order, mirrors, 0, 7, b"");
            }),
        ];
        for (what, wrong) in wrongs {
            let (mut order, mut mirrors, regions) = order(2);
            if what.starts_with('a') {
                wrong(&mut order, &mut mirrors, &regions);
                send(&mut order, &mut mirrors, 1, 10, b"");
            } else {
                mirrors[0].write(5, 0, b"");
                mirrors[1].write(6, 0, b"");
                wrong(&mut order, &mut mirrors, &regions);
                assert_eq!(order.arrive(0, 16), Err(Misbehaved), "{what}");
                order.arrive(1, 16).expect("a sound record");
                order.misbehaved.push(0);
            }
            order.accept(100);
            assert_eq!(delivered(&mut order, 9).last().map(|last| last.1), Some(1), "{what}");
            assert_eq!(order.take_misbehaved(), Some(0), "{what}");
        }
        let (mut order, ..) = order(1);
        for tail in [7, 1032, u64::MAX - 7] {
            assert_eq!(order.arrive(0, tail), Err(Misbehaved), "{tail}");
        }
    }

    #[test]
    fn credit_is_told_in_time_and_not_for_every_message() {
        let (mut order, mut mirrors, _regions) = order(1);
        order.accept(u64::MAX);
        let mut told = 0;
        for stamp in 1..=1000 {
            let ring = &mut order.rings[0];
            if let Some(freed) = ring.credit(false) {
                mirrors[0].keep_locally(freed);
                told += 1;
            }
            // The longest record always finds room once all sent records are taken.
            assert!(mirrors[0].room() >= BYTES as u64 / 4);
            send(&mut order, &mut mirrors, 0, stamp, &[7; 24]);
            order.deliver(1, &mut |_| {});
        }
        assert!((100..=200).contains(&told), "told {told} times");
    }
}
