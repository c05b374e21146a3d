//! The recall of reliable scatterings that can't be delivered everywhere.
//!
//! A batch of timestamps is written into the receiver's memory, behind it its number. Once the receiver has
//! acknowledged that it will not deliver these, the next batch follows. So recalls need no room in a ring, which may be
//! full of messages that wait for this very recall.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use squall_fabric::{Fabric, INLINE_BYTES, Op, Region, Source, Target};

use crate::{
    ScatteringId,
    error::Misbehaved,
    layout::{RECALL_BATCH, RECALL_NUMBER},
    peer_link::PeerLink,
    timestamp::Timestamp,
};

/// The largest number of timestamps in a batch: behind their count, they are posted inline.
const BATCH: usize = INLINE_BYTES / 8 - 1;

/// A sender's recalls.
#[derive(Debug)]
pub(crate) struct Recalls {
    /// The scatterings whose recall some receivers have not carried out, by wide timestamp.
    open: BTreeMap<u64, Open>,
    /// The wide timestamps of recalled scatterings that this rank's barrier may not have passed, carried out or not.
    known: BTreeSet<u64>,
    /// The scatterings whose recall was carried out, until they are taken.
    done: VecDeque<(u64, ScatteringId)>,
    /// The recalls to each rank.
    to: Vec<RecallQueue>,
}

#[derive(Debug)]
struct Open {
    id: ScatteringId,
    /// The number of receivers that have not carried it out.
    awaited: usize,
}

/// The recalls to one receiver.
#[derive(Debug, Default)]
struct RecallQueue {
    later: VecDeque<u64>,
    /// The batch that is on its way.
    batch: Vec<u64>,
    number: u64,
    is_posted: bool,
}

impl Recalls {
    pub(crate) fn new(ranks: usize) -> Recalls {
        let to = (0..ranks).map(|_| RecallQueue::default()).collect();
        Recalls { open: BTreeMap::new(), known: BTreeSet::new(), done: VecDeque::new(), to }
    }

    /// Recalls a scattering from its other receivers. One that was recalled before is left alone.
    pub(crate) fn add(&mut self, stamp: u64, id: ScatteringId, receivers: &[usize]) {
        if !self.known.insert(stamp) {
            return;
        }
        for &rank in receivers {
            self.to[rank].later.push_back(stamp);
        }
        match receivers.len() {
            0 => self.done.push_back((stamp, id)),
            awaited => drop(self.open.insert(stamp, Open { id, awaited })),
        }
    }

    /// The lowest wide timestamp that this rank's barrier may not pass.
    #[inline]
    pub(crate) fn hold(&self) -> Option<u64> {
        self.open.first_key_value().map(|(&stamp, _)| stamp)
    }

    /// A receiver that has not carried out its recalls.
    pub(crate) fn waits_for(&self) -> Option<usize> {
        self.to.iter().position(|to| !to.batch.is_empty() || !to.later.is_empty())
    }

    /// Forgets the recalls that the barrier has passed.
    pub(crate) fn forget_below(&mut self, barrier: u64) {
        self.known = self.known.split_off(&barrier);
    }

    /// Takes a scattering whose recall was carried out everywhere.
    pub(crate) fn take_done(&mut self) -> Option<(u64, ScatteringId)> {
        self.done.pop_front()
    }

    /// Takes note that a receiver has carried out all batches up to this number.
    pub(crate) fn acknowledged(&mut self, rank: usize, number: u64) -> Result<(), Misbehaved> {
        let to = &mut self.to[rank];
        if number > to.number {
            return Err(Misbehaved);
        }
        if number == to.number {
            for stamp in std::mem::take(&mut to.batch) {
                self.carried_out(stamp);
            }
        }
        Ok(())
    }

    fn carried_out(&mut self, stamp: u64) {
        let Some(open) = self.open.get_mut(&stamp) else { return };
        open.awaited -= 1;
        if open.awaited == 0 {
            let id = open.id;
            self.open.remove(&stamp);
            self.done.push_back((stamp, id));
        }
    }

    /// Gives up a rank, from which nothing is awaited any more.
    pub(crate) fn abandon(&mut self, rank: usize) {
        let RecallQueue { later, batch, .. } = std::mem::take(&mut self.to[rank]);
        batch.into_iter().chain(later).for_each(|stamp| self.carried_out(stamp));
    }

    /// Posts the next batch for a receiver, if there is one and the last was carried out.
    #[inline]
    pub(crate) fn post(&mut self, fabric: &mut impl Fabric, rank: usize, link: &PeerLink) {
        let to = &mut self.to[rank];
        if !to.batch.is_empty() || !to.later.is_empty() {
            to.post(fabric, link);
        }
    }
}

impl RecallQueue {
    #[cold]
    fn post(&mut self, fabric: &mut impl Fabric, link: &PeerLink) {
        if self.batch.is_empty() {
            self.batch.extend(self.later.drain(..self.later.len().min(BATCH)));
            self.number += 1;
            self.is_posted = false;
        }
        if self.is_posted {
            return;
        }
        let mut bytes = [0; INLINE_BYTES];
        let stamps = self.batch.iter().map(|&stamp| Timestamp::from_nanos(stamp).as_nanos());
        let words = std::iter::once(self.batch.len() as u64).chain(stamps);
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        let target = |offset| Target { region: link.region, offset };
        let op = Op::WriteThenWord {
            source: Source::Inline(&bytes[..8 * (1 + self.batch.len())]),
            target: target(RECALL_BATCH),
            word: self.number,
            word_target: target(RECALL_NUMBER),
        };
        self.is_posted = link.post(fabric, op);
    }
}

/// The timestamps that a peer recalls, if it has written another batch than number `seen`.
#[inline]
pub(crate) fn read(region: &Region, seen: u64, near: u64) -> Result<Option<Vec<u64>>, Misbehaved> {
    match region.load(RECALL_NUMBER) {
        number if number == seen => Ok(None),
        number if number == seen + 1 => read_batch(region, near).map(Some),
        _ => Err(Misbehaved),
    }
}

#[cold]
fn read_batch(region: &Region, near: u64) -> Result<Vec<u64>, Misbehaved> {
    let count = region.load(RECALL_BATCH) as usize;
    if count > BATCH {
        return Err(Misbehaved);
    }
    let stamp = |at: usize| Timestamp::from_nanos(region.load(RECALL_BATCH + 8 * at)).widen(near);
    Ok((1..=count).map(stamp).collect())
}

#[cfg(test)]
mod tests {
    use squall_fabric::{RegionKey, RegionKind};

    use super::*;

    fn done(recalls: &mut Recalls) -> Vec<u64> {
        std::iter::from_fn(|| recalls.take_done()).map(|(stamp, _)| stamp).collect()
    }

    /// The next batch for a rank, which counts as posted.
    fn batch(recalls: &mut Recalls, rank: usize) -> Vec<u64> {
        let to = &mut recalls.to[rank];
        if to.batch.is_empty() && !to.later.is_empty() {
            to.batch.extend(to.later.drain(..to.later.len().min(BATCH)));
            to.number += 1;
        }
        to.batch.clone()
    }

    #[test]
    fn a_recall_is_done_when_all_receivers_have_carried_it_out() {
        let mut recalls = Recalls::new(3);
        recalls.add(7, ScatteringId(1), &[0, 2]);
        recalls.add(5, ScatteringId(0), &[2]);
        recalls.add(9, ScatteringId(2), &[]);
        assert_eq!(done(&mut recalls), [9], "no other node is to receive it");
        assert_eq!(recalls.hold(), Some(5));
        assert_eq!((batch(&mut recalls, 0), batch(&mut recalls, 2)), (vec![7], vec![7, 5]));
        assert_eq!(recalls.acknowledged(0, 2), Err(Misbehaved), "there is no such batch");
        recalls.acknowledged(0, 1).expect("there is");
        assert_eq!(done(&mut recalls), []);
        recalls.acknowledged(2, 1).expect("there is");
        assert_eq!(done(&mut recalls), [7, 5]);
        assert_eq!(recalls.hold(), None);
    }

    #[test]
    fn who_fails_is_not_waited_for() {
        let mut recalls = Recalls::new(2);
        for stamp in 0..100 {
            recalls.add(stamp, ScatteringId(stamp), &[0, 1]);
        }
        assert_eq!(batch(&mut recalls, 0).len(), BATCH);
        recalls.abandon(0);
        assert_eq!(recalls.hold(), Some(0));
        let mut number = 0;
        while !batch(&mut recalls, 1).is_empty() {
            number += 1;
            recalls.acknowledged(1, number).expect("there is");
        }
        assert_eq!(number, 100_u64.div_ceil(BATCH as u64));
        assert_eq!(done(&mut recalls).len(), 100);
    }

    #[test]
    fn what_was_recalled_is_not_recalled_again_until_the_barrier_has_passed_it() {
        let mut recalls = Recalls::new(1);
        recalls.add(5, ScatteringId(0), &[]);
        recalls.add(5, ScatteringId(0), &[]);
        assert_eq!(done(&mut recalls), [5]);
        recalls.forget_below(5);
        recalls.add(5, ScatteringId(0), &[]);
        assert_eq!(done(&mut recalls), []);
        recalls.forget_below(6);
        assert!(recalls.known.is_empty());
    }

    #[test]
    fn batches_are_read_once_and_wrong_ones_refused() {
        let region = Region::heap(RegionKind::Polled, RegionKey(1), 1024);
        assert_eq!(read(&region, 0, 50), Ok(None));
        for (at, word) in [2, 40, (1 << 48) - 1].into_iter().enumerate() {
            region.store(RECALL_BATCH + 8 * at, word);
        }
        region.store(RECALL_NUMBER, 1);
        assert_eq!(read(&region, 0, 1 << 48), Ok(Some(vec![(1 << 48) + 40, (1 << 48) - 1])));
        assert_eq!(read(&region, 1, 1 << 48), Ok(None));
        region.store(RECALL_NUMBER, 3);
        assert_eq!(read(&region, 1, 1 << 48), Err(Misbehaved));
        region.store(RECALL_BATCH, BATCH as u64 + 1);
        assert_eq!(read(&region, 2, 1 << 48), Err(Misbehaved));
    }
}
