//! Reading the words and rings that peers have written.

use squall_fabric::{BreakReason, Fabric, Time};

use super::Engine;
use crate::{
    Mode,
    error::Misbehaved,
    links::LinkEvent,
    recall,
    stamps::Stamps,
    status::{self, Status, StatusWord, Words},
};

impl<S: Stamps> Engine<S> {
    /// Reads what has come. Returns whether there was anything.
    pub(super) fn read(&mut self, fabric: &mut impl Fabric, now: Time) -> bool {
        let near = self.stamps.near();
        let mut progress = false;
        for mode in Mode::ALL {
            while let Some(rank) = self.orders[mode.index()].take_misbehaved() {
                self.accuse(fabric, rank);
            }
        }
        let me = self.links.me;
        for rank in 0..self.links.peers.len() {
            if rank == me {
                self.read_own();
                continue;
            }
            if !self.links.peers[rank].is_live() {
                continue;
            }
            match self.read_from(rank, near, now) {
                Ok(news) => progress |= news,
                Err(Misbehaved) => self.accuse(fabric, rank),
            }
        }
        progress
    }

    /// A rank's messages to itself have arrived when they are written.
    #[inline]
    fn read_own(&mut self) {
        let me = self.links.me;
        for (mirror, order) in self.links.peers[me].out.iter_mut().zip(&self.orders) {
            mirror.keep_locally(order.rings[me].taken());
        }
    }

    #[inline]
    fn read_from(&mut self, rank: usize, near: u64, now: Time) -> Result<bool, Misbehaved> {
        let peer = &mut self.links.peers[rank];
        // The words are read before the tails: the messages that a barrier covers are then in the rings.
        let words = Status::load(&peer.region);
        let recalls = recall::read(&peer.region, self.recalled[rank], near)?;
        let mut news = words != peer.seen;
        if news {
            let before = std::mem::replace(&mut peer.seen, words);
            self.heed(rank, &before, &words, near)?;
        }
        for mode in Mode::ALL {
            let peer = &mut self.links.peers[rank];
            let order = &mut self.orders[mode.index()];
            let tail = peer.region.load(self.links.layout.tail(mode));
            if tail != order.rings[rank].tail() {
                order.arrive(rank, tail)?;
                self.beacon.activate(now, &self.config);
                if self.acknowledges(mode) {
                    self.links.peers[rank].status.set(StatusWord::Arrived(mode), tail);
                }
                news = true;
            }
        }
        if let Some(stamps) = recalls {
            let ring = &mut self.orders[Mode::Reliable.index()].rings[rank];
            stamps.into_iter().try_for_each(|stamp| ring.recall(stamp))?;
            self.recalled[rank] += 1;
            self.links.peers[rank].status.set(StatusWord::Recalled, self.recalled[rank]);
            news = true;
        }
        Ok(news)
    }

    /// Takes note of status words that have changed.
    fn heed(&mut self, rank: usize, before: &Words, words: &Words, near: u64) -> Result<(), Misbehaved> {
        let changed = |word: StatusWord| {
            let at = word.index();
            (words[at] != before[at]).then_some(words[at])
        };
        for mode in Mode::ALL {
            let stamp = |word: StatusWord| status::decode(self.epoch, changed(word)?, near);
            if let Some(want) = stamp(StatusWord::Want(mode)) {
                self.stamps.hear_want(want);
                self.beacon.want(mode, want);
            }
            if let Some(barrier) = stamp(StatusWord::Barrier(mode)) {
                self.stamps.hear(rank, barrier);
                self.barriers.hear(mode, rank, barrier);
            }
            if let Some(barrier) = stamp(StatusWord::Down(mode)) {
                self.barriers.hear_down(mode, rank, barrier);
            }
            let is_acknowledged = self.acknowledges(mode);
            let mirror = &mut self.links.peers[rank].out[mode.index()];
            if let Some(arrived) = changed(StatusWord::Arrived(mode)) {
                mirror.acknowledge(arrived)?;
            }
            if let Some(freed) = changed(StatusWord::Freed(mode)) {
                match is_acknowledged {
                    true => mirror.free(freed)?,
                    false => mirror.free_unacknowledged(freed)?,
                }
            }
        }
        match changed(StatusWord::Recalled) {
            Some(number) => {
                self.recalls.acknowledged(rank, number)?;
                self.tell_recalled();
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Takes note that a peer does not keep the protocol.
    #[cold]
    fn accuse(&mut self, fabric: &mut impl Fabric, rank: usize) {
        let reason = BreakReason::Refused("it wrote what no rank that keeps the protocol writes".into());
        if let Some(LinkEvent::Broken(rank, reason)) = self.links.lose(fabric, rank, reason) {
            self.suspect(rank, reason);
        }
    }
}
