//! The wake-up of a thread that sleeps when a peer has written polled memory.
//!
//! The device reports messages to a thread that sleeps, but not one-sided writes. So a node that is about to sleep
//! *announces* it: on each endpoint through which a peer may write polled memory, it writes a growing count into a word
//! of that peer's, the endpoint's *watch*. The peer looks at the watch whenever its writes to polled memory are
//! complete, and wakes the sleeper, once for each count: by its bell (see `bell`), or else over the control plane.
//!
//! # No wake-up is lost
//!
//! A node sleeps only if its last announcement is complete, thus in the peer's memory, if it has looked for work after
//! that, and if no peer has told since it armed. The peer looks at its watch only after its write is complete, thus in
//! the node's memory. Either the peer finds the announcement and tells; or it looked before that was complete, and then
//! the node's look came after the write.
//!
//! An announcement stays good until the peer has told: a node that wakes for other reasons and sleeps again need not
//! announce anew. A peer that writes all the time tells once for each sleep.

use std::io;

use super::{memory::Memories, post, queue::Qp};
use crate::{Region, RegionKind, region::PeerAccess};

/// The announcement of one endpoint to its peer.
#[derive(Debug, Default)]
pub(super) struct Announcement {
    count: u64,
    /// Whether the peer has told since, or nothing was announced yet.
    pub(super) used: bool,
    /// The position of the send queue at which it is complete.
    pub(super) end: u64,
}

impl Announcement {
    /// The next count.
    pub(super) fn next(&mut self) -> u64 {
        self.used = false;
        self.count += 1;
        self.count
    }

    /// Whether the peer would not tell now, so that an announcement is due.
    pub(super) fn is_due(&self) -> bool {
        self.used || self.count == 0
    }
}

/// Words that peers announce in.
#[derive(Default)]
pub(super) struct Watches {
    slabs: Vec<Region>,
    free: Vec<Watch>,
}

/// The word of one endpoint.
pub(super) struct Watch {
    slab: Region,
    offset: usize,
    /// The last count for which the peer was told.
    told: u64,
}

const SLAB_BYTES: usize = 4096;

impl Watches {
    pub(super) fn take(&mut self, memories: &Memories) -> io::Result<Watch> {
        if self.free.is_empty() {
            let slab = memories.register(RegionKind::Polled, SLAB_BYTES)?;
            let watch = |offset| Watch { slab: slab.clone(), offset, told: 0 };
            self.free.extend((0..SLAB_BYTES).step_by(8).map(watch));
            self.slabs.push(slab);
        }
        let mut watch = self.free.pop().ok_or(io::ErrorKind::OutOfMemory)?;
        watch.slab.store(watch.offset, 0);
        watch.told = 0;
        Ok(watch)
    }

    /// Takes the word of an endpoint whose queue pair is no more.
    pub(super) fn give_back(&mut self, watch: Watch) {
        self.free.push(watch);
    }
}

impl Watch {
    /// Exposes it to the peer of a queue pair. Returns the address that the peer writes, and its key.
    pub(super) fn expose(&self, qp: &mut Qp, memories: &mut Memories) -> io::Result<(u64, u32)> {
        let addr = post::address(&self.slab, self.offset, 8);
        Ok((addr, qp.add_window(memories.registration(&self.slab)?, addr, 8, PeerAccess::Write)?))
    }

    /// Whether the peer sleeps, or is about to, and must be told now.
    pub(super) fn must_tell(&mut self) -> bool {
        let count = self.slab.load(self.offset);
        let must = count > self.told;
        self.told = self.told.max(count);
        must
    }
}
