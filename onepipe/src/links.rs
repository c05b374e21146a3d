//! The connections to the other ranks, and the memory behind them.

use squall_fabric::{BreakReason, Completion, Fabric, Region, RegionKind, RegisterError};
use squall_sst::{Mesh, MeshEvent};

use crate::{
    Mode, OnePipeConfig,
    inbound::Inbound,
    layout::Layout,
    mirror::Mirror,
    peer_link::PeerLink,
    ring::Ring,
    status::{Status, Words},
};

/// The state of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    /// A peer that is connected, or will be.
    Live,
    /// A peer that is not heard any more, but counts until it is removed.
    Broken,
    /// A peer that was removed.
    Removed,
}

/// One other rank; or this rank itself, which has no link.
#[derive(Debug)]
pub(crate) struct RankPeer {
    /// The region that the peer writes into.
    pub(crate) region: Region,
    /// The link; None while the rank can't be reached.
    pub(crate) link: Option<PeerLink>,
    pub(crate) state: PeerState,
    /// Whether there was a link.
    was_reached: bool,
    /// The reason why there never was a link, if there can't be one.
    refused: Option<String>,
    /// The rings towards it, by mode.
    pub(crate) out: [Mirror; 2],
    /// The words that the peer is told.
    pub(crate) status: Status,
    /// The words that the peer has told, as they were read last.
    pub(crate) seen: Words,
}

impl RankPeer {
    /// Whether the peer's writes count.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.state == PeerState::Live
    }

    /// The reason why there never was nor will be a link to the peer, if that is so and the peer still counts.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.refused.as_deref().filter(|_| self.state == PeerState::Broken)
    }
}

/// A change of a connection.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    Up,
    Broken(usize, BreakReason),
}

/// The connections of one rank, and the memory behind them.
#[derive(Debug)]
pub(crate) struct RankLinks {
    pub(crate) me: usize,
    pub(crate) layout: Layout,
    mesh: Mesh,
    /// Indexed by rank.
    pub(crate) peers: Vec<RankPeer>,
}

impl RankLinks {
    /// Registers the memory, and starts to connect rank `me` to all others, which must speak the same protocol.
    pub(crate) fn create(
        fabric: &mut impl Fabric,
        config: &OnePipeConfig,
        me: usize,
        protocol: &str,
    ) -> Result<RankLinks, RegisterError> {
        let layout = config.layout();
        let peers = (0..config.nodes.len())
            .map(|rank| {
                let region = fabric.register(RegionKind::Polled, layout.region_bytes())?;
                // A rank's own ring needs no copy.
                let (copies, base) = match rank == me {
                    true => (region.clone(), layout.ring(Mode::BestEffort)),
                    false => (fabric.register(RegionKind::Polled, 2 * layout.ring_bytes)?, 0),
                };
                let out = Mode::ALL.map(|mode| {
                    let base = base + mode.index() * layout.ring_bytes;
                    Mirror::new(Ring::new(copies.clone(), base, layout.ring_bytes))
                });
                let (status, seen) = (Status::default(), [0; Status::WORDS]);
                Ok(RankPeer {
                    region,
                    link: None,
                    state: PeerState::Live,
                    was_reached: false,
                    refused: None,
                    out,
                    status,
                    seen,
                })
            })
            .collect::<Result<Vec<RankPeer>, RegisterError>>()?;
        let hello = config.fingerprint(protocol).to_le_bytes();
        let mesh =
            Mesh::connect(fabric, &config.nodes, me, config.tag, &hello, |rank| vec![peers[rank].region.clone()]);
        Ok(RankLinks { me, layout, mesh, peers })
    }

    /// The rings of a mode from all ranks.
    pub(crate) fn inbound(&self, mode: Mode) -> Vec<Inbound> {
        let layout = self.layout;
        let ring = |peer: &RankPeer| Ring::new(peer.region.clone(), layout.ring(mode), layout.ring_bytes);
        self.peers.iter().map(|peer| Inbound::new(ring(peer))).collect()
    }

    /// Whether a completion is one of these connections'.
    pub(crate) fn is_mine(&self, completion: &Completion) -> bool {
        completion.endpoint().is_some_and(|of| self.mesh.endpoints().any(|endpoint| endpoint == of))
    }

    pub(crate) fn on_completion(&mut self, fabric: &mut impl Fabric, completion: &Completion) -> Option<LinkEvent> {
        match self.mesh.on_completion(fabric, completion)? {
            MeshEvent::Up(rank) => {
                let (endpoint, remote) = self.mesh.link(rank)?;
                match remote {
                    &[region] if (region.kind, region.bytes) == (RegionKind::Polled, self.layout.region_bytes()) => {
                        let peer = &mut self.peers[rank];
                        peer.link = Some(PeerLink { endpoint, region: region.key });
                        peer.was_reached = true;
                        Some(LinkEvent::Up)
                    }
                    _ => self.lose(fabric, rank, BreakReason::Refused("it exposes other memory".into())),
                }
            }
            MeshEvent::Down(rank, reason) => self.lose(fabric, rank, reason),
            MeshEvent::Room(_) => None,
        }
    }

    /// Stops hearing a peer. None if that was done before.
    pub(crate) fn lose(&mut self, fabric: &mut impl Fabric, rank: usize, reason: BreakReason) -> Option<LinkEvent> {
        self.mesh.disconnect_member(fabric, rank);
        let peer = &mut self.peers[rank];
        peer.link = None;
        if !peer.is_live() {
            return None;
        }
        peer.state = PeerState::Broken;
        if let (false, BreakReason::Refused(why)) = (peer.was_reached, &reason) {
            peer.refused = Some(why.clone());
        }
        Some(LinkEvent::Broken(rank, reason))
    }

    /// Removes a peer.
    pub(crate) fn remove(&mut self, fabric: &mut impl Fabric, rank: usize) {
        self.lose(fabric, rank, BreakReason::PeerClosed);
        let peer = &mut self.peers[rank];
        peer.state = PeerState::Removed;
        peer.out.iter_mut().for_each(Mirror::abandon);
    }

    /// Posts the records that were written for a rank. Returns whether there were any.
    #[inline]
    pub(crate) fn push(&mut self, fabric: &mut impl Fabric, rank: usize, mode: Mode) -> bool {
        let peer = &mut self.peers[rank];
        match &peer.link {
            Some(link) => peer.out[mode.index()].push(fabric, link, self.layout, mode),
            None => false,
        }
    }

    /// Whether a rank is this one, or was reached and is not lost.
    pub(crate) fn is_reached(&self, rank: usize) -> bool {
        rank == self.me || self.peers.get(rank).is_some_and(|peer| peer.link.is_some())
    }

    /// Whether all ranks that were not removed are reached.
    pub(crate) fn is_connected(&self) -> bool {
        let is_there = |(rank, peer): (usize, &RankPeer)| peer.state == PeerState::Removed || self.is_reached(rank);
        self.peers.iter().enumerate().all(is_there)
    }

    /// Closes all connections.
    pub(crate) fn disconnect(&mut self, fabric: &mut impl Fabric) {
        self.mesh.disconnect(fabric);
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            peer.link = None;
            if rank != self.me {
                peer.state = PeerState::Removed;
            }
        }
    }
}
