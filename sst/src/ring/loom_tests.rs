//! The ring under loom: every interleaving (up to a bound of preemptions) of a few threads on a tiny ring.
//!
//! `RUSTFLAGS="--cfg squall_loom" cargo test --release -p squall-sst --lib loom`
//!
//! The ring's bytes are cells that loom watches, not atomics. Loom reports a race if a record is read while it is
//! written, before it, or without knowing of it. So a model that passes proves the marks and counters alone sufficient.

use std::sync::Arc;

use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use super::{HEADER, Kind, Outbox, PushError, Ring, Tag, producer::RingMemory};

/// Holds four records of the shortest kind.
const RING_BYTES: u64 = 64;

struct Watched(Vec<UnsafeCell<u64>>);

// SAFETY: loom fails the model if a cell is accessed while, or without knowing that, another thread writes it.
unsafe impl Sync for Watched {}
// SAFETY: as above.
unsafe impl Send for Watched {}

impl Watched {
    fn put(&self, word: usize, value: u64) {
        // SAFETY: see the implementation of Sync.
        self.0[word].with_mut(|cell| unsafe { *cell = value });
    }

    fn get(&self, word: usize) -> u64 {
        // SAFETY: see the implementation of Sync.
        self.0[word].with(|cell| unsafe { *cell })
    }
}

impl RingMemory for Watched {
    fn store(&self, offset: usize, word: u64) {
        self.put(offset / 8, word);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        for (i, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.put(offset / 8 + i, u64::from_le_bytes(word));
        }
    }

    fn load(&self, offset: usize) -> u64 {
        self.get(offset / 8)
    }
}

type TinyRing = Arc<Ring<Watched>>;

fn ring() -> TinyRing {
    let words = (0..RING_BYTES / 8).map(|_| UnsafeCell::new(0)).collect();
    Arc::new(Ring::with_capacity(Watched(words), RING_BYTES))
}

fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(preemptions));
    model.check(run);
}

/// Pushes a message of `words` words that all are the name of its writer, which its ticket is too.
fn push(ring: &TinyRing, words: usize, name: u32) -> Result<(), PushError> {
    let bytes = u64::from(name).to_le_bytes().repeat(words);
    ring.push(&bytes, Tag { ticket: name, time: 0 })
}

/// Pushes the records that there is room for, each of so many words, and returns the names of those that were accepted.
/// (A thread that tries until there is room would have no end of interleavings.)
fn push_each(ring: &TinyRing, records: &[(usize, u32)]) -> Vec<u32> {
    let accepted = |&(words, name): &(usize, u32)| match push(ring, words, name) {
        Ok(()) => Some(name),
        Err(PushError::Full) => None,
        Err(other) => panic!("{other}"),
    };
    records.iter().filter_map(accepted).collect()
}

fn sorted(mut names: Vec<u32>) -> Vec<u32> {
    names.sort_unstable();
    names
}

/// A reader's view of the ring: messages by name, and nulls as [`NULL`].
struct Walk {
    ring: TinyRing,
    at: u64,
    turns: u64,
    seen: Vec<u32>,
    time: u64,
    /// The name of each message, and the time that was read with it.
    times: Vec<(u32, u64)>,
}

const NULL: u32 = 0;

impl Walk {
    fn new(ring: &TinyRing) -> Walk {
        Walk { ring: Arc::clone(ring), at: 0, turns: 0, seen: Vec::new(), time: 0, times: Vec::new() }
    }

    /// Reads on until `turns` turns were read, which must be complete, and checks each record's words against its
    /// ticket.
    fn to(&mut self, turns: u64) {
        while self.turns < turns {
            let header = self.ring.committed(self.at).expect("the turn has been announced");
            match header.kind {
                Kind::Inline => {
                    let name = self.ring.ticket(self.at);
                    let first = ((self.at % RING_BYTES + HEADER) / 8) as usize;
                    for word in first..first + header.value as usize / 8 {
                        assert_eq!(
                            self.ring.memory().get(word),
                            u64::from(name),
                            "a word that its ticket does not name"
                        );
                    }
                    self.seen.push(name);
                    self.times.push((name, self.time));
                }
                Kind::NullRun => self.seen.extend((0..header.value).map(|_| NULL)),
                Kind::Pad => {}
                Kind::Time => {
                    self.time = self.time.max(self.ring.memory().get(((self.at % RING_BYTES + HEADER) / 8) as usize))
                }
                Kind::Bulk => unreachable!("no thread here commits one"),
            }
            self.at += header.stride();
            self.turns += header.turns();
        }
        assert_eq!(self.turns, turns, "turns end with a record");
    }
}

#[test]
fn two_producers_lose_and_tear_nothing() {
    model(3, || {
        let ring = ring();
        let producers = [1, 2].map(|name| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || push(&ring, 1, name).expect("there is room"))
        });
        let (mut outbox, mut walk) = (Outbox::new(Arc::clone(&ring), 1), Walk::new(&ring));
        // While the producers push, only complete records are found.
        walk.to(outbox.scan());
        producers.into_iter().for_each(|producer| producer.join().expect("no panic"));
        walk.to(outbox.scan());
        assert_eq!(sorted(walk.seen), [1, 2]);
    });
}

/// A producer that finds its time in the ring places its message behind the record of that time.
#[test]
fn no_message_stands_before_its_time() {
    model(3, || {
        let ring = ring();
        let producers = [1, 2].map(|name| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.push(&[], Tag { ticket: name, time: 7 }).expect("there is room"))
        });
        let (mut outbox, mut walk) = (Outbox::new(Arc::clone(&ring), 1), Walk::new(&ring));
        walk.to(outbox.scan());
        producers.into_iter().for_each(|producer| producer.join().expect("no panic"));
        walk.to(outbox.scan());
        assert_eq!(sorted(walk.seen), [1, 2]);
        assert!(walk.times.iter().all(|&(_, time)| time == 7), "{:?}", walk.times);
    });
}

/// This covers the case of a producer that has read its place, and goes on only when the ring was filled and freed past
/// that place.
#[test]
fn laps_reuse_what_was_freed_and_nothing_else() {
    model(3, || {
        let ring = ring();
        // Full: two records of half the ring.
        assert_eq!(push_each(&ring, &[(2, 1), (2, 2)]), [1, 2]);
        let (mut outbox, mut walk) = (Outbox::new(Arc::clone(&ring), 1), Walk::new(&ring));
        let producers = [vec![(2, 3)], vec![(2, 4), (2, 5)]].map(|records| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || push_each(&ring, &records))
        });
        for _ in 0..2 {
            walk.to(outbox.scan());
            outbox.free(walk.turns);
        }
        let accepted = producers.map(|producer| producer.join().expect("no panic")).concat();
        walk.to(outbox.scan());
        walk.seen[2..].sort_unstable();
        assert_eq!(walk.seen, [&[1, 2], sorted(accepted).as_slice()].concat());
    });
}

/// The delivering thread is not the one that scans. It learns its limit for reading through one word, and tells its
/// progress through another. A pad takes no turn, so it is known to be passed once the turn behind it is.
#[test]
fn a_pad_stays_until_the_delivering_thread_has_passed_it() {
    model(2, || {
        let ring = ring();
        let (limit, delivered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (mut outbox, mut walk) = (Outbox::new(Arc::clone(&ring), 1), Walk::new(&ring));
        // 32 and 16 bytes, and 16 that become a pad once a record of 32 has come.
        assert_eq!(push_each(&ring, &[(2, 1), (1, 2)]), [1, 2]);
        walk.to(outbox.scan());
        outbox.free(1);
        let producer = {
            let ring = Arc::clone(&ring);
            // Behind the pad, then over what lay before the pad, then over the pad.
            thread::spawn(move || push_each(&ring, &[(2, 3), (1, 4), (1, 5)]))
        };
        let deliverer = {
            let (limit, delivered) = (Arc::clone(&limit), Arc::clone(&delivered));
            thread::spawn(move || {
                for _ in 0..2 {
                    walk.to(limit.load(Ordering::Acquire).max(walk.turns));
                    delivered.store(walk.turns, Ordering::Release);
                }
                walk
            })
        };
        for _ in 0..2 {
            limit.store(outbox.scan(), Ordering::Release);
            outbox.free(delivered.load(Ordering::Acquire));
        }
        let accepted = producer.join().expect("no panic");
        let mut walk = deliverer.join().expect("no panic");
        walk.to(outbox.scan());
        assert_eq!(walk.seen, [&[1, 2], accepted.as_slice()].concat());
    });
}

#[test]
fn a_closed_ring_keeps_exactly_what_it_accepted() {
    model(3, || {
        let ring = ring();
        let producers = [1, 2].map(|name| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || match push(&ring, 1, name) {
                Ok(()) => Some(name),
                Err(PushError::Closed) => None,
                Err(other) => panic!("{other}"),
            })
        });
        let (mut outbox, mut walk) = (Outbox::new(Arc::clone(&ring), 1), Walk::new(&ring));
        while !outbox.drain() {
            thread::yield_now();
        }
        let drained = outbox.turns();
        walk.to(drained);
        let accepted = producers.into_iter().filter_map(|producer| producer.join().expect("no panic")).collect();
        assert_eq!(outbox.scan(), drained, "nothing comes after the end");
        assert_eq!(sorted(walk.seen), sorted(accepted));
    });
}

/// Nulls go into a closed ring too. They do not pile up behind a record that a thread is completing.
#[test]
fn nulls_fill_up_while_threads_push_and_close() {
    model(3, || {
        let ring = ring();
        let producer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || push(&ring, 1, 7).is_ok())
        };
        let closer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.close())
        };
        let mut outbox = Outbox::new(Arc::clone(&ring), 1);
        while outbox.turns() < 2 {
            outbox.fill(2);
            outbox.fill(2);
            thread::yield_now();
        }
        let pushed = producer.join().expect("no panic");
        closer.join().expect("no panic");
        assert!(outbox.drain());
        let mut walk = Walk::new(&ring);
        walk.to(outbox.turns());
        let nulls = walk.seen.iter().filter(|&&name| name == NULL).count();
        assert_eq!(walk.seen.len() - nulls, usize::from(pushed));
        assert!((1..=2).contains(&nulls), "{nulls} nulls for two turns");
    });
}
