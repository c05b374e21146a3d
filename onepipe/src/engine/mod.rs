//! A rank's part in a group, for any source of timestamps.
//!
//! A step goes once around: [read](reading) what has come, send what waits, push it, tell [barriers](beacon),
//! acknowledge. [Failures](failures) are settled between steps.

mod beacon;
mod failures;
mod reading;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, sync::Arc};

use squall_fabric::{Completion, Fabric, Time};

use crate::{
    CreateError, Delivery, Gate, Message, Mode, OnePipeConfig, PipeEvent, ScatterError, ScatteringId, Topology,
    barrier::{BarrierPlace, Barriers},
    links::{LinkEvent, PeerState, RankLinks, RankPeer},
    order::DeliveryOrder,
    recall::Recalls,
    record::{max_payload, record_bytes},
    stamps::Stamps,
    waiting::WaitingScatterings,
};
use beacon::Beacon;

#[derive(Debug)]
pub(crate) struct Engine<S> {
    pub(crate) config: OnePipeConfig,
    pub(crate) stamps: S,
    links: RankLinks,
    /// The received messages, by mode.
    orders: [DeliveryOrder; 2],
    waiting: WaitingScatterings,
    barriers: Barriers,
    beacon: Beacon,
    recalls: Recalls,
    /// The last batch of recalls that was carried out, by sender.
    recalled: Vec<u64>,
    epoch: u64,
    /// The gate that the barrier of reliable messages passes.
    gate: Arc<Gate>,
    has_ended: bool,
    next: ScatteringId,
    /// The number of lists of messages that were checked.
    lists: u64,
    /// The last list that has a message for a rank, by rank, for finding a second one.
    named: Vec<u64>,
    events: VecDeque<PipeEvent>,
    /// The ranks that are not heard any more, and the epoch in which the controller was told.
    suspects: Vec<(usize, Option<u64>)>,
    deadline: Time,
}

impl<S: Stamps> Engine<S> {
    pub(crate) fn create(
        fabric: &mut impl Fabric,
        config: OnePipeConfig,
        stamps: S,
        protocol: &str,
    ) -> Result<Engine<S>, CreateError> {
        let me = config.check(fabric.node())?;
        let ranks = config.nodes.len();
        let links = RankLinks::create(fabric, &config, me, protocol)?;
        let place = BarrierPlace::of(me, &config.topology, &vec![true; ranks]);
        Ok(Engine {
            stamps,
            orders: Mode::ALL.map(|mode| DeliveryOrder::new(mode, links.inbound(mode))),
            waiting: WaitingScatterings::new(ranks),
            barriers: Barriers::new(me, place, &vec![true; ranks]),
            beacon: Beacon::new(ranks),
            recalls: Recalls::new(ranks),
            recalled: vec![0; ranks],
            epoch: config.epoch,
            gate: Arc::default(),
            has_ended: false,
            next: ScatteringId(0),
            lists: 0,
            named: vec![0; ranks],
            events: VecDeque::new(),
            suspects: Vec::new(),
            deadline: Time::MAX,
            links,
            config,
        })
    }

    /// Replaces the gate, before anything has come.
    pub(crate) fn with_gate(self, gate: Arc<Gate>) -> Engine<S> {
        Engine { gate, ..self }
    }

    #[inline]
    pub(crate) fn rank(&self) -> usize {
        self.links.me
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn barrier(&self, mode: Mode) -> u64 {
        self.orders[mode.index()].barrier()
    }

    pub(crate) fn max_message(&self) -> usize {
        max_payload(self.config.ring_bytes)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(crate) fn refused(&self) -> Option<(usize, &str)> {
        let refused = |(rank, peer)| Some((rank, RankPeer::refused(peer)?));
        self.links.peers.iter().enumerate().find_map(refused)
    }

    pub(crate) fn is_connected(&self) -> bool {
        !self.has_ended && self.links.is_connected()
    }

    pub(crate) fn is_reached(&self, rank: usize) -> bool {
        !self.has_ended && self.links.is_reached(rank)
    }

    pub(crate) fn deadline(&self) -> Time {
        self.deadline
    }

    pub(crate) fn next_event(&mut self) -> Option<PipeEvent> {
        self.events.pop_front()
    }

    pub(crate) fn scatter(
        &mut self,
        now: Time,
        mode: Mode,
        messages: &[Message<'_>],
    ) -> Result<ScatteringId, ScatterError> {
        let has_room = self.has_room(mode, messages);
        if !has_room {
            self.check(mode, messages)?;
        }
        let id = self.next;
        self.next = ScatteringId(id.0 + 1);
        self.deadline = Time::ZERO;
        self.advance(now);
        self.beacon.activate(now, &self.config);
        if has_room && let Some(stamp) = self.stamps.stamp() {
            self.beacon.stamped(mode, stamp);
            for message in messages {
                write(&mut self.links, &mut self.orders, (mode, stamp, id), *message);
            }
        } else {
            self.wait_for_room(id, mode, messages);
        }
        Ok(id)
    }

    #[cold]
    fn wait_for_room(&mut self, id: ScatteringId, mode: Mode, messages: &[Message<'_>]) {
        let peers = &mut self.links.peers;
        let hold = |to: usize, bytes| peers[to].out[mode.index()].hold(bytes);
        self.waiting.add(id, mode, messages, hold);
    }

    /// Whether a scattering is sound and can be sent at once: there is room for all of it, and no other scattering
    /// waits for that room.
    #[inline]
    fn has_room(&mut self, mode: Mode, messages: &[Message<'_>]) -> bool {
        let limit = self.max_message();
        let nobody_waits = self.waiting.is_empty();
        self.lists += 1;
        let mut has_room = !self.has_ended && !messages.is_empty() && self.waiting.first_ready().is_none();
        for Message { to, bytes } in messages {
            let (Some(peer), Some(named)) = (self.links.peers.get(*to), self.named.get_mut(*to)) else { return false };
            has_room &= bytes.len() <= limit
                && std::mem::replace(named, self.lists) != self.lists
                // There is no room towards a rank that was removed.
                && record_bytes(bytes.len()) <= peer.out[mode.index()].room()
                && (nobody_waits || self.waiting.is_clear(mode, *to));
        }
        has_room
    }

    /// Checks a scattering. Fails with the reason for which it is not taken.
    #[cold]
    fn check(&mut self, mode: Mode, messages: &[Message<'_>]) -> Result<(), ScatterError> {
        if self.has_ended {
            return Err(ScatterError::Ended);
        }
        if messages.is_empty() {
            return Err(ScatterError::Empty);
        }
        let (ranks, limit) = (self.links.peers.len(), self.max_message());
        self.lists += 1;
        let mut bytes = 0;
        for message in messages {
            let rank = message.to;
            if rank >= ranks {
                return Err(ScatterError::Rank { rank, ranks });
            }
            if self.links.peers[rank].state == PeerState::Removed {
                return Err(ScatterError::Removed { rank });
            }
            if message.bytes.len() > limit {
                return Err(ScatterError::TooLong { bytes: message.bytes.len(), limit });
            }
            if std::mem::replace(&mut self.named[rank], self.lists) == self.lists {
                return Err(ScatterError::Twice { rank });
            }
            bytes += record_bytes(message.bytes.len()) as usize;
        }
        // A scattering that is larger than the bound may wait alone.
        let waiting_bytes = self.waiting.bytes(mode);
        if waiting_bytes > 0 && waiting_bytes + bytes > self.config.waiting_bytes {
            return Err(ScatterError::Full { waiting_bytes });
        }
        Ok(())
    }

    pub(crate) fn step(&mut self, fabric: &mut impl Fabric, now: Time) -> bool {
        if self.has_ended {
            return false;
        }
        self.advance(now);
        let mut progress = self.read(fabric, now);
        progress |= self.send_waiting(now);
        progress |= self.push(fabric);
        progress |= self.beacon(now);
        self.report(fabric);
        self.deadline = self.next_beacon(now);
        progress
    }

    /// Sets the time, for this rank's timestamps, and for those that are extended next to its clock.
    #[inline]
    fn advance(&mut self, now: Time) {
        self.stamps.advance(now);
        let near = self.stamps.near();
        self.orders.iter_mut().for_each(|order| order.near = near);
    }

    /// Gives room to scatterings that wait for it, and sends those that have all theirs.
    fn send_waiting(&mut self, now: Time) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        for mode in Mode::ALL {
            for (rank, peer) in self.links.peers.iter_mut().enumerate() {
                self.waiting.grant(mode, rank, &mut peer.out[mode.index()]);
            }
        }
        let mut progress = false;
        while let Some(scattering) = self.waiting.first_ready() {
            let Some(stamp) = self.stamps.stamp() else {
                // This rank's turn comes when all barriers have passed the turns before.
                self.beacon.want(scattering.mode, self.stamps.near());
                break;
            };
            for message in scattering.messages() {
                let mirror = &mut self.links.peers[message.to].out[scattering.mode.index()];
                mirror.release(record_bytes(message.bytes.len()));
                write(&mut self.links, &mut self.orders, (scattering.mode, stamp, scattering.id), message);
            }
            self.beacon.stamped(scattering.mode, stamp);
            self.waiting.remove_first_ready();
            progress = true;
        }
        if progress {
            self.beacon.activate(now, &self.config);
        }
        progress
    }

    /// Posts the written records.
    fn push(&mut self, fabric: &mut impl Fabric) -> bool {
        let mut progress = false;
        for rank in 0..self.links.peers.len() {
            for mode in Mode::ALL {
                let pushed = self.links.push(fabric, rank, mode);
                self.beacon.pushed(rank, pushed);
                progress |= pushed;
            }
        }
        progress
    }

    pub(crate) fn on_completion(&mut self, fabric: &mut impl Fabric, now: Time, completion: &Completion) -> bool {
        let is_mine = self.links.is_mine(completion);
        if is_mine && !self.has_ended {
            match self.links.on_completion(fabric, completion) {
                Some(LinkEvent::Up) => self.beacon.activate(now, &self.config),
                Some(LinkEvent::Broken(rank, reason)) => self.suspect(rank, reason),
                None => {}
            }
            self.deadline = Time::ZERO;
        }
        is_mine
    }

    pub(crate) fn deliver(&mut self, mode: Mode, max: usize, sink: &mut impl FnMut(Delivery<'_>)) -> usize {
        if self.has_ended {
            return 0;
        }
        let (delivered, is_news) = self.orders[mode.index()].deliver(max, sink);
        if is_news {
            self.deadline = Time::ZERO;
        }
        delivered
    }

    pub(crate) fn disconnect(&mut self, fabric: &mut impl Fabric) {
        self.links.disconnect(fabric);
        self.has_ended = true;
        self.deadline = Time::MAX;
    }

    /// Whether receivers acknowledge the messages of a mode, because their sender's barrier depends on it.
    #[inline]
    fn acknowledges(&self, mode: Mode) -> bool {
        mode == Mode::Reliable || self.config.topology != Topology::Flat
    }
}

/// Writes a message into the ring towards its receiver, where there is room.
#[inline]
fn write(
    links: &mut RankLinks,
    orders: &mut [DeliveryOrder; 2],
    (mode, stamp, id): (Mode, u64, ScatteringId),
    Message { to, bytes }: Message<'_>,
) {
    let mirror = &mut links.peers[to].out[mode.index()];
    // The low bits of the scattering's number are enough to find it again.
    mirror.write(stamp, id.0 as u32, bytes);
    if to == links.me {
        // The message must arrive before any barrier passes it.
        let arrived = orders[mode.index()].arrive(to, mirror.written());
        debug_assert_eq!(arrived, Ok(()));
    }
}
