//! The peers that a fabric is connected with, as its polling thread sees them.

use std::{
    collections::HashMap,
    sync::atomic::{Ordering, fence},
};

use super::{
    doorbell::{Doorbell, PeerBell},
    memory::PeerMemory,
    share::SharedCopy,
    stats::ShmStats,
};
use crate::{EndpointId, NodeId, RegionKey, control::LinkId};

/// The place of a peer in [`Peers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerIx(usize);

/// Memory that a peer has sends pulled from, or the reason for which it could not be mapped.
pub(super) type Source = Result<PeerMemory, String>;

pub(super) struct Peer {
    pub(super) link: LinkId,
    pub(super) node: NodeId,
    pub(super) sources: HashMap<RegionKey, Source>,
    /// Sealed memory that the peer shares, until it is taken; or the reason for which it could not be mapped.
    pub(super) shares: HashMap<RegionKey, Result<SharedCopy, String>>,
    /// The endpoints that are connected with it.
    pub(super) endpoints: Vec<EndpointId>,
    bell: PeerBell,
    touched: bool,
    /// Whether it was handed descriptors since this node last rang.
    handed: bool,
}

/// All connected peers.
#[derive(Default)]
pub(super) struct Peers {
    slots: Vec<Option<Peer>>,
    /// The peers that this node gave work to since it last rang.
    touched: Vec<PeerIx>,
}

impl Peers {
    pub(super) fn add(&mut self, link: LinkId, node: NodeId, bell: PeerBell) {
        let peer = Peer {
            link,
            node,
            sources: HashMap::new(),
            shares: HashMap::new(),
            endpoints: Vec::new(),
            bell,
            touched: false,
            handed: false,
        };
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

    /// The endpoints of peers that have handed over descriptors since the last time.
    #[inline]
    pub(super) fn with_news(&mut self) -> impl Iterator<Item = EndpointId> {
        let peers = self.slots.iter_mut().flatten();
        peers.filter_map(|peer| peer.bell.has_news().then_some(&peer.endpoints)).flatten().copied()
    }

    /// Notes that a peer was handed descriptors.
    #[inline]
    pub(super) fn hand(&mut self, ix: PeerIx) {
        if let Some(peer) = self.get_mut(ix) {
            peer.handed = true;
        }
        self.touch(ix);
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

    /// Tells the peers that were touched of the descriptors that they were handed, and wakes those that sleep.
    #[inline]
    pub(super) fn ring(&mut self, bell: &Doorbell, stats: &mut ShmStats) {
        if self.touched.is_empty() {
            return;
        }
        for ix in &self.touched {
            if let Some(peer) = &mut self.slots[ix.0]
                && std::mem::take(&mut peer.handed)
            {
                bell.tell(peer.node);
            }
        }
        // The fence between the work and the look at the watches: see the `doorbell` module.
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
