//! Ranks that fail, and the settlement of their messages.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use squall_fabric::{BreakReason, Fabric, Time};

use super::Engine;
use crate::{
    Controller, Directive, Mode, PipeEvent, ScatteringId, Settlement,
    barrier::{BarrierPlace, Barriers},
    links::PeerState,
    stamps::Stamps,
};

impl<S: Stamps> Engine<S> {
    /// Stops hearing a rank.
    pub(super) fn suspect(&mut self, rank: usize, reason: BreakReason) {
        // A group that is not formed yet loses no rank by a mistake in its configuration.
        if self.links.peers[rank].refused().is_none() {
            self.suspects.push((rank, None));
        }
        self.events.push_back(PipeEvent::Broken { rank, reason });
    }

    pub(crate) fn attend(&mut self, fabric: &mut impl Fabric, now: Time, controller: &mut impl Controller) -> bool {
        let is_mine = controller.gate().is_none_or(|gate| Arc::ptr_eq(gate, &self.gate));
        assert!(
            is_mine,
            "the controller closes another gate than this rank's: make the rank with `OnePipe::with_gate`"
        );
        let mut progress = false;
        while !self.has_ended {
            for (rank, told) in &mut self.suspects {
                if told.replace(self.epoch) != Some(self.epoch) {
                    controller.suspect(self.epoch, *rank);
                }
            }
            match controller.poll(now) {
                Some(Directive::Wedge { epoch }) if epoch == self.epoch => {
                    controller.report(epoch, self.gate.close(epoch));
                }
                Some(Directive::Settle(settlement)) if settlement.epoch > self.epoch => {
                    self.settle(fabric, now, &settlement);
                }
                Some(_) => {}
                None => break,
            }
            progress = true;
        }
        progress
    }

    pub(super) fn settle(&mut self, fabric: &mut impl Fabric, now: Time, settlement: &Settlement) {
        if settlement.failed.contains(&self.links.me) {
            self.disconnect(fabric);
            return self.events.push_back(PipeEvent::Ended);
        }
        let is_new = |rank: &usize| self.links.peers.get(*rank).is_some_and(|peer| peer.state != PeerState::Removed);
        let failed: BTreeSet<usize> = settlement.failed.iter().copied().filter(is_new).collect();
        self.advance(now);
        self.give_back(&failed);
        // No rank has accepted a barrier beyond this rank's own, whatever the ranks that stay have reported.
        let failure_timestamp = settlement.failure_timestamp.min(self.barriers.own(Mode::Reliable));
        for &rank in &failed {
            // All messages below the timestamp have come before they were acknowledged.
            self.orders[Mode::Reliable.index()].close(rank, failure_timestamp);
            self.orders[Mode::BestEffort.index()].close(rank, u64::MAX);
            self.links.remove(fabric, rank);
            self.recalls.abandon(rank);
            self.events.push_back(PipeEvent::Removed { rank, failure_timestamp });
        }
        self.drop_waiting();
        self.tell_recalled();
        self.suspects.retain(|(rank, _)| !failed.contains(rank));
        self.begin_epoch(now, settlement.epoch);
    }

    fn begin_epoch(&mut self, now: Time, epoch: u64) {
        self.epoch = epoch;
        self.gate.open(epoch);
        let left: Vec<bool> = self.links.peers.iter().map(|peer| peer.state != PeerState::Removed).collect();
        let place = BarrierPlace::of(self.links.me, &self.config.topology, &left);
        let own = Mode::ALL.map(|mode| self.barriers.own(mode));
        self.barriers = Barriers::new(self.links.me, place, &left);
        // What this rank has promised holds on.
        Mode::ALL.into_iter().for_each(|mode| self.barriers.set_own(mode, own[mode.index()]));
        // Words that others have already written in this epoch count from now on.
        self.links.peers.iter_mut().for_each(|peer| peer.seen.fill(0));
        self.beacon.begin_epoch();
        self.beacon.activate(now, &self.config);
        self.deadline = Time::ZERO;
    }

    /// Handles the messages that may not have come to ranks that have failed: recalls reliable scatterings from their
    /// other receivers, and reports the others that are concerned.
    fn give_back(&mut self, failed: &BTreeSet<usize>) {
        let near = self.stamps.near();
        let lost = |mode: Mode| -> BTreeMap<u64, ScatteringId> {
            let mirrors = failed.iter().map(|&rank| &self.links.peers[rank].out[mode.index()]);
            let records = mirrors.flat_map(|mirror| mirror.on_their_way(near));
            records.map(|(stamp, ticket)| (stamp, self.id_of(ticket))).collect()
        };
        let (best_effort, reliable) = (lost(Mode::BestEffort), lost(Mode::Reliable));
        for (stamp, id) in best_effort {
            self.events.push_back(PipeEvent::Undeliverable { id, mode: Mode::BestEffort, stamp: Some(stamp) });
        }
        // No rank has delivered them, so they are all there: a barrier can't have passed them.
        let mut receivers: BTreeMap<u64, Vec<usize>> = reliable.keys().map(|&stamp| (stamp, Vec::new())).collect();
        for (rank, peer) in self.links.peers.iter().enumerate() {
            if failed.contains(&rank) || peer.state == PeerState::Removed {
                continue;
            }
            for (stamp, _) in peer.out[Mode::Reliable.index()].not_freed(near) {
                if let Some(receivers) = receivers.get_mut(&stamp) {
                    receivers.push(rank);
                }
            }
        }
        self.recalls.forget_below(self.barriers.own(Mode::Reliable));
        let me = self.links.me;
        for (stamp, id) in reliable {
            let mut others = receivers.remove(&stamp).unwrap_or_default();
            if others.contains(&me) {
                let recalled = self.orders[Mode::Reliable.index()].rings[me].recall(stamp);
                debug_assert_eq!(recalled, Ok(()));
                others.retain(|&rank| rank != me);
            }
            self.recalls.add(stamp, id, &others);
        }
    }

    /// The scattering whose low bits are in a record's ticket.
    fn id_of(&self, ticket: u32) -> ScatteringId {
        let ago = (self.next.0 as u32).wrapping_sub(ticket);
        ScatteringId(self.next.0 - u64::from(ago))
    }

    /// Gives back the scatterings that wait to be sent to ranks that were removed.
    fn drop_waiting(&mut self) {
        let peers = &mut self.links.peers;
        let removed: Vec<bool> = peers.iter().map(|peer| peer.state == PeerState::Removed).collect();
        let release = |mode: Mode, to: usize, bytes| peers[to].out[mode.index()].release(bytes);
        for (id, mode) in self.waiting.drop_removed(|rank| removed[rank], release) {
            self.events.push_back(PipeEvent::Undeliverable { id, mode, stamp: None });
        }
    }

    /// Reports the reliable scatterings that no rank will deliver.
    pub(super) fn tell_recalled(&mut self) {
        while let Some((stamp, id)) = self.recalls.take_done() {
            self.events.push_back(PipeEvent::Undeliverable { id, mode: Mode::Reliable, stamp: Some(stamp) });
        }
    }
}
