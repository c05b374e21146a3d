//! Checking a copy of a ring ahead of its reader.

use squall_fabric::Region;

use super::{
    Bulk, Kind,
    walk::{Corrupt, Record, Walk},
};

/// A fault of a ring's sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Its ring holds something that is not a record.
    #[error(transparent)]
    Ring(#[from] Corrupt),
    /// A record that lies where others lie that were not read.
    #[error("the record at position {position} goes beyond what the ring takes, of which {read} bytes were read")]
    Overwritten {
        /// The record's position, in bytes since the ring began.
        position: u64,
        /// The position up to which the ring was read.
        read: u64,
    },
    /// A run of nulls that goes beyond the turns that its counter announced.
    #[error("a run of nulls ends at turn {turns}, and it announced {announced}")]
    Nulls {
        /// The number of turns up to the run's end.
        turns: u64,
        /// The number of turns that it announced.
        announced: u64,
    },
    /// A turn of a bulk message that did not come, or of another than the next.
    #[error("it announced bulk message {number} of {bytes} bytes, which is not the next that came")]
    Bulk {
        /// The message's number.
        number: u64,
        /// Its length, in bytes.
        bytes: u64,
    },
}

/// A check of the turns that have arrived in one member's copy of a ring. As long as the sender does not change them
/// afterwards, the [`Reader`](super::Reader) meets no error in them.
#[derive(Debug)]
pub struct Checker {
    walk: Walk,
    turns: u64,
    /// The position up to which there was room for records when it was last known how far the ring was read.
    room_until: u64,
}

impl Checker {
    /// Begins at the start of a copy that a peer writes. Its capacity is the region's size.
    ///
    /// # Panics
    ///
    /// If the size is not a power of two.
    pub fn new(copy: Region) -> Checker {
        let bytes = copy.len();
        Checker { walk: Walk::new(copy, bytes), turns: 0, room_until: bytes as u64 }
    }

    /// The number of turns that were found to be good.
    #[inline]
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Checks the turns up to `announced`, the sender's count of its turns, which must have arrived. `read` says how
    /// far this member's reader [has come](super::Reader::position); `is_next` whether a bulk message is the next one,
    /// and has come.
    ///
    /// After an error it must not be called again: nothing behind the fault counts.
    #[inline]
    pub fn check(
        &mut self,
        announced: u64,
        read: impl Fn() -> u64,
        mut is_next: impl FnMut(Bulk) -> bool,
    ) -> Result<(), Fault> {
        while self.turns < announced {
            let Record { header, at, offset } = self.walk.next()?;
            if self.walk.position() > self.room_until {
                self.make_room(at, read())?;
            }
            if header.kind == Kind::Bulk {
                let bulk = Bulk::load(self.walk.region(), offset);
                if !is_next(bulk) {
                    return Err(Fault::Bulk { number: bulk.number, bytes: bulk.len });
                }
            }
            let turns = self.turns + header.turns();
            // A correct sender announces a run as a whole.
            if turns > announced {
                return Err(Fault::Nulls { turns, announced });
            }
            self.turns = turns;
        }
        Ok(())
    }

    /// Checks that the record at `at` fits behind what was read of the ring.
    #[cold]
    fn make_room(&mut self, at: u64, read: u64) -> Result<(), Fault> {
        self.room_until = read + self.walk.capacity();
        if self.walk.position() > self.room_until { Err(Fault::Overwritten { position: at, read }) } else { Ok(()) }
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use squall_fabric::{RegionKey, RegionKind};

    use super::*;
    use crate::ring::{Header, MIN_BYTES, Outbox, Reader, Ring, Tag, Turn, max_payload, place};

    const CAPACITY: u64 = MIN_BYTES as u64;

    /// A sender, and a member's copy of its ring.
    struct World {
        ring: Arc<Ring>,
        outbox: Outbox,
        /// The position up to which the copy was written.
        sent: u64,
        copy: Region,
        checker: Checker,
        reader: Reader,
        /// The turns that were read, and the bulk messages that were pushed, checked and read.
        read: u64,
        bulk: [u64; 3],
    }

    impl World {
        fn new() -> World {
            let region = |key| Region::heap(RegionKind::Polled, RegionKey(key), MIN_BYTES);
            let (ring, copy) = (Arc::new(Ring::new(region(1), MIN_BYTES)), region(2));
            let (checker, reader) = (Checker::new(copy.clone()), Reader::of_copy(copy.clone()));
            let outbox = Outbox::new(Arc::clone(&ring), 1);
            World { ring, outbox, sent: 0, copy, checker, reader, read: 0, bulk: [0; 3] }
        }

        fn push(&self, bytes: usize, time: u64) {
            // A full ring takes nothing.
            let _ = self.ring.push(&vec![1; bytes], Tag { ticket: 0, time });
        }

        fn push_bulk(&mut self, time: u64) {
            let bulk = Bulk { number: self.bulk[0], len: 7 };
            self.bulk[0] += u64::from(self.ring.push_bulk(bulk, Tag { ticket: 0, time }).is_ok());
        }

        /// Writes the copy as far as records are complete. `change` is told each word, and says what is written.
        fn send(&mut self, mut change: impl FnMut(u64) -> u64) {
            self.outbox.scan();
            while self.sent < self.ring.end() {
                let offset = place(self.sent, CAPACITY) as usize;
                self.copy.store(offset, change(self.ring.memory().load(offset)));
                self.sent += 8;
            }
        }

        fn check(&mut self, announced: u64) -> Result<(), Fault> {
            let (reader, next) = (&self.reader, &mut self.bulk[1]);
            self.checker.check(
                announced,
                || reader.position(),
                |bulk| {
                    let is_next = bulk == Bulk { number: *next, len: 7 };
                    *next += u64::from(is_next);
                    is_next
                },
            )
        }

        /// Reads the next `turns` turns of those that were checked, and frees them at the sender.
        fn read(&mut self, turns: u64) {
            let end = self.checker.turns().min(self.read.saturating_add(turns));
            while self.read < end {
                self.read += match self.reader.next_turn().expect("it was checked") {
                    Turn::Nulls(more) => 1 + more,
                    Turn::Bulk(bulk, _) => {
                        assert_eq!(bulk, Bulk { number: self.bulk[2], len: 7 });
                        self.bulk[2] += 1;
                        1
                    }
                    Turn::Message(..) => 1,
                };
            }
            assert!(self.read <= self.checker.turns(), "a run was checked as a whole");
            self.outbox.free(self.read);
        }
    }

    /// A sender's records of one step, with the change of a word before it is sent, and the turns that are claimed
    /// beyond them; and the turns that the member reads.
    #[derive(Clone, Debug)]
    struct Step {
        pushes: Vec<(u8, usize)>,
        change: Option<(usize, u64)>,
        claims: u64,
        reads: u64,
    }

    fn step(lies: bool) -> impl Strategy<Value = Step> {
        let bytes = prop_oneof![4 => 0..64usize, 1 => 0..=max_payload(MIN_BYTES)];
        let pushes = prop::collection::vec((0..8u8, bytes), 0..6);
        let word = prop_oneof![(0..64u32).prop_map(|bit| 1 << bit), any::<u64>(), Just(0)];
        let change = if lies { prop::option::weighted(0.2, (0..128usize, word)).boxed() } else { Just(None).boxed() };
        let claims = if lies { prop_oneof![9 => Just(0), 1 => 1..4u64].boxed() } else { Just(0).boxed() };
        (pushes, change, claims, 0..20u64).prop_map(|(pushes, change, claims, reads)| Step {
            pushes,
            change,
            claims,
            reads,
        })
    }

    /// Runs the steps up to the first fault, and reads what was found to be good.
    fn run(steps: &[Step]) -> Result<(), Fault> {
        let mut world = World::new();
        let mut result = Ok(());
        for (now, Step { pushes, change, claims, reads }) in steps.iter().enumerate() {
            for &(what, bytes) in pushes {
                match what {
                    0 => world.push_bulk(now as u64 / 2),
                    1 => world.outbox.fill(world.outbox.turns() + bytes as u64),
                    _ => world.push(bytes, now as u64 / 2),
                }
            }
            let mut left = change.map_or(usize::MAX, |(index, _)| index);
            world.send(|word| {
                let is_it = left == 0;
                left = left.wrapping_sub(1);
                if is_it { word ^ change.map_or(0, |(_, bits)| bits) } else { word }
            });
            result = world.check(world.outbox.turns() + claims);
            if result.is_err() {
                break;
            }
            world.read(*reads);
        }
        world.read(u64::MAX);
        result
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn a_correct_sender_is_never_blamed(steps in prop::collection::vec(step(false), 1..60)) {
            prop_assert_eq!(run(&steps), Ok(()));
        }

        /// Whatever the sender writes: the reader fails in [`run`] if it meets an error.
        #[test]
        fn what_was_checked_is_read_without_error(steps in prop::collection::vec(step(true), 1..60)) {
            let _ = run(&steps);
        }
    }

    #[test]
    fn a_run_of_nulls_counts_as_a_whole_or_not_at_all() {
        let mut world = World::new();
        world.push(1, 0);
        world.outbox.fill(6);
        world.send(|word| word);
        assert_eq!(world.check(4), Err(Fault::Nulls { turns: 6, announced: 4 }));
        assert_eq!(world.checker.turns(), 1);
    }

    #[test]
    fn what_was_not_announced_is_not_looked_at() {
        let mut world = World::new();
        world.push(1, 0);
        world.push(1, 0);
        world.outbox.scan();
        let second = Header::encode(Header { kind: Kind::Inline, value: 1 }, 16);
        world.send(|word| if word == second { 0 } else { word });
        assert_eq!(world.check(1), Ok(()));
        assert_eq!(world.check(2), Err(Corrupt { position: 16, word: 0 }.into()));
        assert_eq!(world.checker.turns(), 1);
    }

    /// A record of the next lap, whose position and kind are right, over one that was not read.
    #[test]
    fn what_was_not_read_is_not_written_over() {
        for reads in [0, 1] {
            let mut world = World::new();
            for _ in 0..CAPACITY / 16 {
                world.push(8, 0);
            }
            world.send(|word| word);
            assert_eq!(world.check(CAPACITY / 16), Ok(()));
            world.read(reads);
            world.outbox.free(1);
            world.push(8, 0);
            world.send(|word| word);
            let overwritten = Err(Fault::Overwritten { position: CAPACITY, read: 0 });
            assert_eq!(world.check(CAPACITY / 16 + 1), if reads == 0 { overwritten } else { Ok(()) });
        }
    }

    #[test]
    fn a_bulk_message_must_be_the_next_that_came() {
        let mut world = World::new();
        world.push_bulk(1);
        world.bulk[0] = 5;
        world.push_bulk(1);
        world.send(|word| word);
        assert_eq!(world.check(2), Err(Fault::Bulk { number: 5, bytes: 7 }));
        assert_eq!(world.checker.turns(), 1);
    }
}
