//! Reads: served at any time after they have reached their target in order, and answered on their own.

use super::{
    endpoint::{Read, Work, WorkKind},
    queue::Event,
    trace::TraceEvent,
    world::World,
};
use crate::{EndpointId, Region, RegionKind};

/// The multiple at which a read of these two regions can be cut.
fn grain(from: &Region, into: &Region) -> usize {
    if from.kind() == RegionKind::Polled || into.kind() == RegionKind::Polled { 8 } else { 1 }
}

impl World {
    /// Begins a read that has reached its target `e`: all work that was posted before it has taken effect there.
    pub(super) fn start_read(&mut self, e: EndpointId, work: Work) {
        let WorkKind::Read { from, into, into_offset, len } = work.kind else { return };
        if work.torn {
            return;
        }
        let Some(region) = self.readable(e, from, len) else { return };
        let at = self.now + self.random(self.config.jitter);
        let phantom = region.kind() == RegionKind::Phantom || into.kind() == RegionKind::Phantom;
        self.reads += 1;
        let id = self.reads;
        if let Some(side) = self.side(e) {
            side.serving.push(Read {
                id,
                seq: work.seq,
                from: (region, from.offset),
                into: (into, into_offset),
                len,
                rest: len,
                bytes: if phantom { Vec::new() } else { vec![0; len] },
                stalled: false,
            });
            self.queue.at(at, Event::Serve(e, id));
        }
    }

    /// Fetches a read's bytes, or some of them, and sends them back.
    pub(super) fn serve_read(&mut self, e: EndpointId, id: u64) {
        let split = self.chance(self.config.split_chance);
        let gap = self.random(self.config.split_gap);
        let jitter = self.jitter();
        let Some(side) = self.sides.get_mut(e.0 as usize).and_then(Option::as_deref_mut) else { return };
        let Some(index) = side.serving.iter().position(|read| read.id == id) else { return };
        let read = &mut side.serving[index];
        let grain = grain(&read.from.0, &read.into.0);
        let start = if split && read.rest == read.len { self.rng.usize(0..=read.len / grain) * grain } else { 0 };
        if !read.bytes.is_empty() {
            read.from.0.read(read.from.1 + start, &mut read.bytes[start..read.rest]);
        }
        read.rest = start;
        if start > 0 {
            self.queue.at(self.now + gap, Event::Serve(e, id));
            return;
        }
        let mut read = side.serving.swap_remove(index);
        let (node, to, Some(peer)) = (side.node, side.peer_ix, side.peer) else { return };
        read.rest = read.len;
        let passage = self.network.send(self.now, node, to, read.len, &self.config);
        if let Some(reader) = self.side(peer) {
            reader.returning.push(read);
            self.queue.at(passage.arrive + jitter, Event::Return(peer, id));
        }
    }

    /// Places a read's bytes, or some of them, in the reader's memory.
    pub(super) fn return_read(&mut self, e: EndpointId, id: u64) {
        let split = self.chance(self.config.split_chance);
        let gap = self.random(self.config.split_gap);
        let Some(side) = self.sides.get_mut(e.0 as usize).and_then(Option::as_deref_mut) else { return };
        let (node, from) = (side.node, side.peer_node);
        let Some(index) = side.returning.iter().position(|read| read.id == id) else { return };
        let read = &mut side.returning[index];
        read.stalled = self.network.is_cut(from, self.nodes[node as usize].id).is_some();
        if read.stalled {
            return;
        }
        let grain = grain(&read.from.0, &read.into.0);
        let start = if split && read.rest == read.len { self.rng.usize(0..=read.len / grain) * grain } else { 0 };
        if !read.bytes.is_empty() {
            read.into.0.write(read.into.1 + start, &read.bytes[start..read.rest]);
        }
        let bytes = read.rest - start;
        read.rest = start;
        if start > 0 {
            self.queue.at(self.now + gap, Event::Return(e, id));
        } else {
            let read = side.returning.swap_remove(index);
            let at = self.now + self.random(self.config.jitter);
            self.set_ready(e, read.seq, at);
        }
        self.trace(|w| TraceEvent::Landed { from, to: w.id(node), endpoint: e, op: "read", bytes, whole: start == 0 });
        self.notice(node);
    }
}
