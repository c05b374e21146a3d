//! The peers that a fabric is connected with, as its polling thread sees them.

use std::{
    collections::HashMap,
    sync::atomic::{Ordering, fence},
};

use super::{doorbell::PeerBell, memory::PeerMemory, share::SharedCopy, stats::ShmStats};
use crate::{NodeId, RegionKey};

/// One connection between two processes, never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LinkId(pub(super) u64);

/// The place of a peer in [`Peers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerIx(usize);

/// Memory that a peer has sends pulled from, or why it could not be mapped.
pub(super) type Source = Result<PeerMemory, String>;

pub(super) struct Peer {
    pub(super) link: LinkId,
    pub(super) node: NodeId,
    pub(super) sources: HashMap<RegionKey, Source>,
    /// Sealed memory that the peer shares, until it is taken; or why it could not be mapped.
    pub(super) shares: HashMap<RegionKey, Result<SharedCopy, String>>,
    bell: PeerBell,
    touched: bool,
}

/// All connected peers.
#[derive(Default)]
pub(super) struct Peers {
    slots: Vec<Option<Peer>>,
    /// Whom this node gave work to since it last rang.
    touched: Vec<PeerIx>,
}

impl Peers {
    pub(super) fn add(&mut self, link: LinkId, node: NodeId, bell: PeerBell) {
        let peer = Peer { link, node, sources: HashMap::new(), shares: HashMap::new(), bell, touched: false };
        match self.slots.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(peer),
            None => self.slots.push(Some(peer)),
        }
    }

    pub(super) fn remove(&mut self, link: LinkId) {
        if let Some(PeerIx(ix)) = self.find(link) {
            self.slots[ix] = None;
        }
    }

    pub(super) fn find(&self, link: LinkId) -> Option<PeerIx> {
        self.slots.iter().position(|slot| slot.as_ref().is_some_and(|peer| peer.link == link)).map(PeerIx)
    }

    #[inline]
    pub(super) fn get(&self, PeerIx(ix): PeerIx) -> Option<&Peer> {
        self.slots.get(ix)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, PeerIx(ix): PeerIx) -> Option<&mut Peer> {
        self.slots.get_mut(ix)?.as_mut()
    }

    pub(super) fn by_link(&mut self, link: LinkId) -> Option<&mut Peer> {
        self.slots.iter_mut().flatten().find(|peer| peer.link == link)
    }

    /// Notes that a peer has something to look at.
    #[inline]
    pub(super) fn touch(&mut self, ix: PeerIx) {
        if let Some(Some(peer)) = self.slots.get_mut(ix.0)
            && !peer.touched
        {
            peer.touched = true;
            self.touched.push(ix);
        }
    }

    /// Wakes those that sleep among the peers that were touched.
    #[inline]
    pub(super) fn ring(&mut self, stats: &mut ShmStats) {
        if self.touched.is_empty() {
            return;
        }
        // Between the work and the look at who sleeps: see the `doorbell` module.
        fence(Ordering::SeqCst);
        for PeerIx(ix) in self.touched.drain(..) {
            // A peer may have gone since, and another taken its place, which then is rung in vain.
            let Some(peer) = &mut self.slots[ix] else { continue };
            peer.touched = false;
            match peer.bell.ring() {
                true => stats.doorbells_rung += 1,
                false => stats.doorbells_skipped += 1,
            }
        }
    }
}
