//! The side of a sender's ring that its node's thread drives: it finds complete records, pushes them, and frees the
//! used ones.

use std::sync::Arc;

use squall_fabric::{Fabric, Op, PostError, Region, RegionKey, Slice, Source, Target, Token};

use super::{
    Bulk, HEADER, Kind, Payload, Tag, Turn, place,
    producer::{Ring, RingMemory},
};
use crate::mesh::Mesh;

/// Pushes a [`Ring`]'s complete records to the other members, in runs, and frees them when all members are done with
/// them.
#[derive(Debug)]
pub struct Outbox<M = Region> {
    ring: Arc<Ring<M>>,
    /// The position before which every record is complete.
    scanned: u64,
    /// The turns of everything before `scanned`.
    turns: u64,
    freed: u64,
    freed_turns: u64,
    freed_bulk: u64,
    /// The time of the messages from `freed` on.
    freed_time: u64,
    /// The position up to which each member was pushed the ring.
    pushed: Vec<u64>,
}

impl<M: RingMemory> Outbox<M> {
    /// The outbox of a new ring, for a group of `members`.
    pub fn new(ring: Arc<Ring<M>>, members: usize) -> Outbox<M> {
        let pushed = vec![0; members];
        Outbox { ring, scanned: 0, turns: 0, freed: 0, freed_turns: 0, freed_bulk: 0, freed_time: 0, pushed }
    }

    /// The ring.
    pub fn ring(&self) -> &Arc<Ring<M>> {
        &self.ring
    }

    /// Looks for records that have been completed. Returns the turns that all complete records take since the ring
    /// began: this member's own turns.
    ///
    /// Records are taken in the order of their positions: one that a thread has reserved and not completed holds up the
    /// records behind it.
    pub fn scan(&mut self) -> u64 {
        while let Some(header) = self.ring.committed(self.scanned) {
            self.scanned += header.stride();
            self.turns += header.turns();
        }
        self.turns
    }

    /// Scans, then gives up turns as nulls so that this member's turns become `turns`, if they are fewer.
    ///
    /// They stay fewer if the ring is full, or while a thread is completing a record: nothing behind such a record
    /// counts.
    pub fn fill(&mut self, turns: u64) {
        let missing = turns.saturating_sub(self.scan());
        // Behind a record that is not complete, each call would add another run.
        if missing > 0 && self.ring.end() == self.scanned {
            let run = u32::try_from(missing).unwrap_or(u32::MAX);
            if self.ring.push_nulls(run).is_ok() {
                self.scan();
            }
        }
    }

    /// Closes the ring and finds its last records. Returns false while a thread is still completing one.
    pub fn drain(&mut self) -> bool {
        self.ring.close();
        self.scan();
        self.scanned == self.ring.end()
    }

    /// The turns found by the last [`scan`](Outbox::scan).
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// The number of bulk messages that every member has delivered, as far as their records have been
    /// [freed](Outbox::free).
    pub fn freed_bulk(&self) -> u64 {
        self.freed_bulk
    }

    /// Lets the records of the first `turns` turns be overwritten: every member has delivered them. Returns whether
    /// that freed anything.
    ///
    /// A run of nulls is freed once all its turns are. A record that takes no turn is freed with the record behind it:
    /// a member that has delivered the record before it need not have passed it yet.
    pub fn free(&mut self, turns: u64) -> bool {
        let before = self.freed;
        let (mut at, mut time) = (before, self.freed_time);
        while at < self.scanned {
            let header = self.ring.committed(at).expect("what was scanned is complete until it is freed");
            if self.freed_turns + header.turns() > turns {
                break;
            }
            if header.kind == Kind::Time {
                time = time.max(self.time(at));
            }
            at += header.stride();
            if header.turns() > 0 {
                (self.freed, self.freed_time) = (at, time);
                self.freed_turns += header.turns();
                self.freed_bulk += u64::from(header.kind == Kind::Bulk);
            }
        }
        if self.freed == before {
            return false;
        }
        self.ring.free(self.freed);
        true
    }

    /// The time in the record at `at`.
    fn time(&self, at: u64) -> u64 {
        let offset = place(at, self.ring.capacity() as u64) + HEADER;
        self.ring.memory().load(offset as usize)
    }
}

impl Outbox<Region> {
    /// Pushes the records that one member was not sent yet. Returns whether it has been sent everything scanned.
    ///
    /// `remote` is the member's copy of this ring. If its queue is full, the rest goes out with the next call.
    pub fn push(&mut self, fabric: &mut impl Fabric, mesh: &Mesh, member: usize, remote: RegionKey) -> bool {
        let Some((endpoint, _)) = mesh.link(member) else { return false };
        let capacity = self.ring.capacity() as u64;
        let at = &mut self.pushed[member];
        while *at < self.scanned {
            let offset = place(*at, capacity);
            let (offset, len) = (offset as usize, (self.scanned - *at).min(capacity - offset) as usize);
            // The records don't change until every member has delivered them, and so not before they have been fetched.
            let source = Source::Region(Slice { region: self.ring.memory(), offset, len });
            let target = Target { region: remote, offset };
            match fabric.post(endpoint, Op::Write { source, target }, Token::UNSIGNALED) {
                Ok(()) => *at += len as u64,
                Err(PostError::Full | PostError::Broken) => return false,
                Err(other) => unreachable!("a push is well-formed: {other}"),
            }
        }
        true
    }

    /// The messages at turn `turns` or later, which the group did not deliver, each with the number of its turn, oldest
    /// first.
    pub fn undelivered(&self, turns: u64) -> impl Iterator<Item = (u64, Turn<'_>)> {
        let capacity = self.ring.capacity() as u64;
        let (mut at, mut turn, mut time) = (self.freed, self.freed_turns, self.freed_time);
        std::iter::from_fn(move || {
            while at < self.scanned {
                let header = self.ring.committed(at).expect("what was scanned is complete until it is freed");
                let (here, first) = (at, turn);
                at += header.stride();
                turn += header.turns();
                let (offset, tag) = (place(here, capacity) as usize, Tag { ticket: self.ring.ticket(here), time });
                let message = match header.kind {
                    Kind::Inline => {
                        let offset = offset + HEADER as usize;
                        let payload = Payload { region: self.ring.memory(), offset, len: header.value as usize };
                        Turn::Message(payload, tag)
                    }
                    Kind::Bulk => Turn::Bulk(Bulk::load(self.ring.memory(), offset), tag),
                    Kind::Time => {
                        time = time.max(self.time(here));
                        continue;
                    }
                    Kind::NullRun | Kind::Pad => continue,
                };
                if first >= turns {
                    return Some((first, message));
                }
            }
            None
        })
    }
}
