//! Scatterings that wait for room at their receivers.
//!
//! Each keeps the room that it has got. Room at a receiver goes to the earliest scattering that needs it, so that a
//! later one can overtake only with room for which no earlier one waits. So large scatterings are not starved (the
//! paper's §6.1), and the earliest of all waits for receivers alone.

use std::collections::VecDeque;

use crate::{Message, Mode, ScatteringId, mirror::Mirror, record::record_bytes};

/// A scattering that waits.
#[derive(Debug)]
pub(crate) struct Scattering {
    pub(crate) id: ScatteringId,
    pub(crate) mode: Mode,
    parts: Vec<ScatteringPart>,
    bytes: Vec<u8>,
    /// The number of parts that have no room yet.
    missing: usize,
    /// Whether it waits, or is ready; false for a slot that is not in use.
    is_used: bool,
}

#[derive(Clone, Copy, Debug)]
struct ScatteringPart {
    to: usize,
    bytes: usize,
    has_room: bool,
}

impl Scattering {
    /// The scattering's messages.
    pub(crate) fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        let mut at = 0;
        self.parts.iter().map(move |part| {
            let start = at;
            at += part.bytes;
            Message { to: part.to, bytes: &self.bytes[start..at] }
        })
    }

    fn record_bytes(&self) -> usize {
        self.parts.iter().map(|part| record_bytes(part.bytes) as usize).sum()
    }
}

/// All waiting scatterings, in both modes.
#[derive(Debug)]
pub(crate) struct WaitingScatterings {
    /// The slots of scatterings, kept with their memory for later ones.
    slots: Vec<Scattering>,
    unused: Vec<usize>,
    /// Slots and parts that have no room at a receiver, the earliest first, by mode and receiver.
    queues: [Vec<VecDeque<(usize, usize)>>; 2],
    /// Slots that have all their room, in the order in which they got it.
    ready: VecDeque<usize>,
    /// The bytes of records that wait, by mode.
    bytes: [usize; 2],
}

impl WaitingScatterings {
    pub(crate) fn new(ranks: usize) -> WaitingScatterings {
        let queues = Mode::ALL.map(|_| vec![VecDeque::new(); ranks]);
        WaitingScatterings { slots: Vec::new(), unused: Vec::new(), queues, ready: VecDeque::new(), bytes: [0; 2] }
    }

    /// The bytes of records that wait in a mode.
    #[inline]
    pub(crate) fn bytes(&self, mode: Mode) -> usize {
        self.bytes[mode.index()]
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == [0; 2]
    }

    /// Whether no scattering waits for room at a receiver.
    #[inline]
    pub(crate) fn is_clear(&self, mode: Mode, to: usize) -> bool {
        self.queues[mode.index()][to].is_empty()
    }

    /// A receiver without room for a scattering that waits.
    pub(crate) fn waits_for(&self, mode: Mode) -> Option<usize> {
        self.queues[mode.index()].iter().position(|queue| !queue.is_empty())
    }

    /// Adds a scattering, and takes the room for it that no other waits for. `mirror` finds the ring of its mode
    /// towards a rank.
    pub(crate) fn add<'m>(
        &mut self,
        id: ScatteringId,
        mode: Mode,
        messages: &[Message<'_>],
        mut hold: impl FnMut(usize, u64) -> bool + 'm,
    ) {
        let slot = self.unused.pop().unwrap_or_else(|| {
            let (parts, bytes) = (Vec::new(), Vec::new());
            self.slots.push(Scattering { id, mode, parts, bytes, missing: 0, is_used: false });
            self.slots.len() - 1
        });
        let scattering = &mut self.slots[slot];
        (scattering.id, scattering.mode, scattering.is_used) = (id, mode, true);
        scattering.parts.clear();
        scattering.bytes.clear();
        scattering.missing = 0;
        for (part, message) in messages.iter().enumerate() {
            let queue = &mut self.queues[mode.index()][message.to];
            let has_room = queue.is_empty() && hold(message.to, record_bytes(message.bytes.len()));
            if !has_room {
                queue.push_back((slot, part));
                scattering.missing += 1;
            }
            scattering.parts.push(ScatteringPart { to: message.to, bytes: message.bytes.len(), has_room });
            scattering.bytes.extend_from_slice(message.bytes);
        }
        self.bytes[mode.index()] += scattering.record_bytes();
        if scattering.missing == 0 {
            self.ready.push_back(slot);
        }
    }

    /// Gives the room at a receiver to the scatterings that wait for it.
    #[inline]
    pub(crate) fn grant(&mut self, mode: Mode, to: usize, mirror: &mut Mirror) {
        let queue = &mut self.queues[mode.index()][to];
        while let Some(&(slot, part)) = queue.front() {
            let scattering = &mut self.slots[slot];
            let part = &mut scattering.parts[part];
            if !mirror.hold(record_bytes(part.bytes)) {
                break;
            }
            part.has_room = true;
            scattering.missing -= 1;
            queue.pop_front();
            if scattering.missing == 0 {
                self.ready.push_back(slot);
            }
        }
    }

    /// The first scattering that has all its room.
    #[inline]
    pub(crate) fn first_ready(&self) -> Option<&Scattering> {
        self.ready.front().map(|&slot| &self.slots[slot])
    }

    /// Removes the first ready scattering. The caller has given up its room.
    #[inline]
    pub(crate) fn remove_first_ready(&mut self) {
        if let Some(slot) = self.ready.pop_front() {
            self.give_up(slot);
        }
    }

    fn give_up(&mut self, slot: usize) {
        let scattering = &mut self.slots[slot];
        self.bytes[scattering.mode.index()] -= scattering.record_bytes();
        scattering.is_used = false;
        self.unused.push(slot);
    }

    /// Drops scatterings with a message to a rank that `is_removed`, and returns them. `release` gives up room towards
    /// a rank.
    pub(crate) fn drop_removed(
        &mut self,
        is_removed: impl Fn(usize) -> bool,
        mut release: impl FnMut(Mode, usize, u64),
    ) -> Vec<(ScatteringId, Mode)> {
        let mut dropped = Vec::new();
        for slot in 0..self.slots.len() {
            let scattering = &self.slots[slot];
            if !scattering.is_used || !scattering.parts.iter().any(|part| is_removed(part.to)) {
                continue;
            }
            for part in scattering.parts.iter().filter(|part| part.has_room && !is_removed(part.to)) {
                release(scattering.mode, part.to, record_bytes(part.bytes));
            }
            dropped.push((scattering.id, scattering.mode));
            self.queues.iter_mut().flatten().for_each(|queue| queue.retain(|&(waiting, _)| waiting != slot));
            self.ready.retain(|&ready| ready != slot);
            self.give_up(slot);
        }
        dropped.sort_unstable();
        dropped
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::{Region, RegionKey, RegionKind};

    use super::*;
    use crate::ring::Ring;

    const MODE: Mode = Mode::BestEffort;

    /// Rings of 1 KiB, of which `used` bytes are in use.
    fn mirrors<const N: usize>(used: [usize; N]) -> Vec<Mirror> {
        let mirror = |used: usize| {
            let ring = Ring::new(Region::heap(RegionKind::Polled, RegionKey(0), 1024), 0, 1024);
            let mut mirror = Mirror::new(ring);
            if used > 0 {
                mirror.write(0, 0, &vec![0; used - 16]);
            }
            mirror
        };
        used.into_iter().map(mirror).collect()
    }

    fn add(waiting: &mut WaitingScatterings, mirrors: &mut [Mirror], id: u64, messages: &[(usize, usize)]) {
        let bytes = [7; 256];
        let messages: Vec<Message<'_>> =
            messages.iter().map(|&(to, record)| Message { to, bytes: &bytes[..record - 16] }).collect();
        waiting.add(ScatteringId(id), MODE, &messages, |to, bytes| mirrors[to].hold(bytes));
    }

    fn ready(waiting: &mut WaitingScatterings) -> Vec<u64> {
        let mut ready = Vec::new();
        while let Some(first) = waiting.first_ready() {
            ready.push(first.id.0);
            waiting.remove_first_ready();
        }
        ready
    }

    #[test]
    fn a_large_scattering_is_not_starved_by_small_ones() {
        let mut mirrors = mirrors([0, 1000]);
        let mut waiting = WaitingScatterings::new(2);
        add(&mut waiting, &mut mirrors, 0, &[(0, 256), (1, 256)]);
        assert_eq!(mirrors[0].room(), 1024 - 256, "it keeps what it has got");
        for id in 1..10 {
            add(&mut waiting, &mut mirrors, id, &[(1, 24)]);
        }
        assert_eq!(ready(&mut waiting), [], "there is room for a small one, but another waits for it");
        mirrors[1].keep_locally(0);
        mirrors[1].keep_locally(1000);
        waiting.grant(MODE, 1, &mut mirrors[1]);
        assert_eq!(ready(&mut waiting), (0..10).collect::<Vec<u64>>());
        assert!(waiting.is_empty());
    }

    #[test]
    fn who_needs_no_room_that_others_wait_for_overtakes() {
        let mut mirrors = mirrors([0, 1000]);
        let mut waiting = WaitingScatterings::new(2);
        add(&mut waiting, &mut mirrors, 0, &[(1, 256), (0, 256)]);
        add(&mut waiting, &mut mirrors, 1, &[(0, 256)]);
        assert_eq!(ready(&mut waiting), [1]);
        assert_eq!(waiting.bytes(MODE), 512);
        let first: Vec<(usize, usize)> = waiting.slots[0].messages().map(|m| (m.to, m.bytes.len())).collect();
        assert_eq!(first, [(1, 240), (0, 240)]);
    }

    #[test]
    fn two_that_need_each_others_room_do_not_block_each_other() {
        let mut mirrors = mirrors([824, 824]);
        let mut waiting = WaitingScatterings::new(2);
        add(&mut waiting, &mut mirrors, 0, &[(0, 200), (1, 208)]);
        add(&mut waiting, &mut mirrors, 1, &[(1, 200), (0, 208)]);
        assert_eq!(mirrors[1].room(), 200, "the later one does not take what the earlier one waits for");
        for to in [1, 0] {
            mirrors[to].keep_locally(824);
            waiting.grant(MODE, to, &mut mirrors[to]);
        }
        assert_eq!(ready(&mut waiting), [0, 1]);
    }

    #[test]
    fn those_to_a_removed_rank_are_dropped_with_what_they_hold() {
        let mut mirrors = mirrors([0, 1000, 0]);
        let mut waiting = WaitingScatterings::new(3);
        add(&mut waiting, &mut mirrors, 0, &[(0, 256), (1, 256)]);
        add(&mut waiting, &mut mirrors, 1, &[(1, 256), (2, 64)]);
        add(&mut waiting, &mut mirrors, 2, &[(2, 64)]);
        let release = |mode: Mode, to: usize, bytes| {
            assert_eq!(mode, MODE);
            mirrors[to].release(bytes);
        };
        assert_eq!(waiting.drop_removed(|rank| rank == 0, release), [(ScatteringId(0), MODE)]);
        assert_eq!(mirrors[2].room(), 1024 - 128);
        let dropped = waiting.drop_removed(|rank| rank == 1, |_, to, bytes| mirrors[to].release(bytes));
        assert_eq!(dropped, [(ScatteringId(1), MODE)]);
        assert_eq!(mirrors[2].room(), 1024 - 64);
        assert_eq!(ready(&mut waiting), [2]);
        assert!(waiting.is_empty());
        // Slots are used again.
        add(&mut waiting, &mut mirrors, 3, &[(2, 24)]);
        assert_eq!((waiting.slots.len(), ready(&mut waiting)), (3, vec![3]));
    }
}
