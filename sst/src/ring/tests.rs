//! Rings against a model, and against bytes that no sender writes.

use std::{collections::VecDeque, sync::Arc};

use proptest::prelude::*;
use squall_fabric::{Fabric, Op as Post, Region, RegionKey, RegionKind, Source, Target, Token};

use super::*;
use crate::{mesh::Mesh, testing::HandFabric};

const RING_BYTES: usize = MIN_BYTES;

fn heap_ring(bytes: usize) -> Arc<Ring> {
    Arc::new(Ring::new(Region::heap(RegionKind::Polled, RegionKey(0), bytes), bytes))
}

fn untimed(ticket: u32) -> Tag {
    Tag { ticket, time: 0 }
}

/// A turn as its sender meant it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Meant {
    Null,
    Message(Vec<u8>, Tag),
    Bulk(Bulk, Tag),
}

impl Meant {
    fn tag(&self) -> Option<Tag> {
        match self {
            Meant::Null => None,
            Meant::Message(_, tag) | Meant::Bulk(_, tag) => Some(*tag),
        }
    }

    /// As other members see it.
    fn without_ticket(self) -> Meant {
        match self {
            Meant::Null => Meant::Null,
            Meant::Message(bytes, tag) => Meant::Message(bytes, Tag { ticket: 0, ..tag }),
            Meant::Bulk(bulk, tag) => Meant::Bulk(bulk, Tag { ticket: 0, ..tag }),
        }
    }
}

/// A reader's turns, with each run of nulls taken apart.
struct Turns {
    reader: Reader,
    nulls: u64,
    read: u64,
}

impl Turns {
    fn of(reader: Reader) -> Turns {
        Turns { reader, nulls: 0, read: 0 }
    }

    fn next(&mut self) -> Result<Meant, Corrupt> {
        self.read += 1;
        if self.nulls > 0 {
            self.nulls -= 1;
            return Ok(Meant::Null);
        }
        match self.reader.next_turn()? {
            Turn::Nulls(more) => {
                self.nulls = more;
                Ok(Meant::Null)
            }
            Turn::Message(payload, tag) => {
                let mut bytes = vec![0xee; 3];
                payload.copy_to(&mut bytes);
                for (i, chunk) in bytes.chunks(8).enumerate() {
                    assert_eq!(payload.word(i).to_ne_bytes()[..chunk.len()], *chunk);
                }
                assert_eq!((payload.len(), payload.is_empty()), (bytes.len(), bytes.is_empty()));
                Ok(Meant::Message(bytes, tag))
            }
            Turn::Bulk(bulk, tag) => Ok(Meant::Bulk(bulk, tag)),
        }
    }
}

/// A sender, a receiver, and a network between them that moves when the test says so.
struct World {
    fabric: HandFabric,
    mesh: Mesh,
    ring: Arc<Ring>,
    outbox: Outbox,
    copy: RegionKey,
    /// The receiver's copy of the counter that announces turns.
    announced: Region,
    own: Turns,
    copied: Turns,
    /// All turns that are not freed, and the number of those that are.
    meant: VecDeque<Meant>,
    freed: u64,
    tickets: u32,
    /// The latest time that was pushed.
    time: u64,
}

#[derive(Clone, Debug)]
enum Do {
    Push(usize),
    Bulk,
    Nulls(u64),
    /// Scans and pushes, if the network takes that many posts.
    Send(usize),
    Land(usize),
    ReadOwn(u64),
    ReadCopy(u64),
    Free,
}

fn doing() -> impl Strategy<Value = Do> {
    let bytes = prop_oneof![
        4 => 0..64usize,
        2 => Just(0),
        1 => 0..=max_payload(RING_BYTES),
        1 => Just(max_payload(RING_BYTES)),
        1 => Just(max_payload(RING_BYTES) + 1),
    ];
    prop_oneof![
        6 => bytes.prop_map(Do::Push),
        1 => Just(Do::Bulk),
        1 => (1..5u64).prop_map(Do::Nulls),
        3 => (0..5usize).prop_map(Do::Send),
        3 => (1..8usize).prop_map(Do::Land),
        3 => (1..9u64).prop_map(Do::ReadOwn),
        3 => (1..9u64).prop_map(Do::ReadCopy),
        2 => Just(Do::Free),
    ]
}

impl World {
    fn new() -> World {
        let mut fabric = HandFabric::default();
        let (memory, copy) = (fabric.polled(RING_BYTES), fabric.polled(RING_BYTES));
        let announced = fabric.polled(8);
        let mesh = fabric.mesh(1);
        let ring = Arc::new(Ring::new(memory, RING_BYTES));
        World {
            outbox: Outbox::new(Arc::clone(&ring), 2),
            own: Turns::of(Reader::of_own(Arc::clone(&ring))),
            copied: Turns::of(Reader::of_copy(copy.clone())),
            copy: copy.key(),
            fabric,
            mesh,
            ring,
            announced,
            meant: VecDeque::new(),
            freed: 0,
            tickets: 0,
            time: 0,
        }
    }

    fn turns(&self) -> u64 {
        self.freed + self.meant.len() as u64
    }

    /// The tag of the next message. Clocks have ticks, and go back.
    fn tag(&mut self) -> Tag {
        self.tickets += 1;
        Tag { ticket: self.tickets, time: u64::from(self.tickets / 3 * 2 + self.tickets % 2) }
    }

    /// The tag that is read of a message that was pushed with `tag`.
    fn sent(&mut self, tag: Tag) -> Tag {
        self.time = self.time.max(tag.time);
        Tag { time: self.time, ..tag }
    }

    fn act(&mut self, what: &Do) {
        match *what {
            Do::Push(bytes) => {
                let tag = self.tag();
                let payload: Vec<u8> = (0..bytes).map(|i| (i as u32 ^ self.tickets) as u8).collect();
                match self.ring.push(&payload, tag) {
                    Ok(()) => {
                        let tag = self.sent(tag);
                        self.meant.push_back(Meant::Message(payload, tag));
                    }
                    Err(PushError::TooLarge { .. }) => assert!(bytes > max_payload(RING_BYTES)),
                    Err(PushError::Full) => assert!(self.ring.room() < RING_BYTES, "an empty ring takes any message"),
                    Err(PushError::Closed) => unreachable!("it was not closed"),
                }
            }
            Do::Bulk => {
                let tag = self.tag();
                let bulk = Bulk { number: self.tickets.into(), len: u64::MAX - u64::from(self.tickets) };
                if self.ring.push_bulk(bulk, tag).is_ok() {
                    let tag = self.sent(tag);
                    self.meant.push_back(Meant::Bulk(bulk, tag));
                }
            }
            Do::Nulls(more) => {
                let before = self.turns();
                self.outbox.fill(before + more);
                let turns = self.outbox.turns();
                assert!(turns == before || turns == before + more);
                self.meant.extend((before..turns).map(|_| Meant::Null));
            }
            Do::Send(room) => {
                self.outbox.scan();
                self.fabric.room = room;
                if self.outbox.push(&mut self.fabric, &self.mesh, 1, self.copy) {
                    let counter = self.outbox.turns().to_ne_bytes();
                    let target = Target { region: self.announced.key(), offset: 0 };
                    let post = Post::Write { source: Source::Inline(&counter), target };
                    // If there is no room for the write, a later one announces these turns.
                    let _ = self.fabric.post(self.mesh.link(1).expect("it is up").0, post, Token::UNSIGNALED);
                }
            }
            Do::Land(count) => {
                self.fabric.land(count);
            }
            Do::ReadOwn(count) => {
                let end = (self.own.read + count).min(self.outbox.turns());
                while self.own.read < end {
                    let meant = &self.meant[(self.own.read - self.freed) as usize];
                    assert_eq!(self.own.next().as_ref(), Ok(meant));
                }
            }
            Do::ReadCopy(count) => {
                let end = (self.copied.read + count).min(self.announced.load(0));
                while self.copied.read < end {
                    let meant = self.meant[(self.copied.read - self.freed) as usize].clone();
                    assert_eq!(self.copied.next(), Ok(meant.without_ticket()));
                }
            }
            Do::Free => {
                let delivered = self.own.read.min(self.copied.read);
                let room = self.ring.room();
                let bulk = self.outbox.freed_bulk();
                assert_eq!(self.outbox.free(delivered), self.ring.room() > room);
                let freed = self.meant.drain(..(delivered - self.freed) as usize);
                let freed_bulk = freed.filter(|meant| matches!(meant, Meant::Bulk(..))).count() as u64;
                assert_eq!(self.outbox.freed_bulk() - bulk, freed_bulk);
                self.freed = delivered;
            }
        }
    }

    /// Does everything that was left undone.
    fn finish(&mut self) {
        for what in
            [Do::Land(usize::MAX), Do::Send(4), Do::Land(4), Do::ReadOwn(1 << 20), Do::ReadCopy(1 << 20), Do::Free]
        {
            self.act(&what);
        }
        assert_eq!((self.own.read, self.copied.read, self.meant.len()), (self.freed, self.freed, 0));
        assert_eq!(self.fabric.in_flight(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Readers see this through wrap-arounds, pads, a network that is full, and bytes that are fetched as late as they
    /// may be.
    #[test]
    fn readers_see_exactly_what_was_pushed(what in prop::collection::vec(doing(), 1..300)) {
        let mut world = World::new();
        what.iter().for_each(|what| world.act(what));
        world.finish();
    }

    #[test]
    fn what_was_not_delivered_is_found_again(what in prop::collection::vec(doing(), 1..100), closing in any::<bool>()) {
        let mut world = World::new();
        what.iter().for_each(|what| world.act(what));
        if closing {
            world.ring.close();
        }
        assert!(world.outbox.drain());
        assert_eq!(world.ring.push(b"", untimed(1)), Err(PushError::Closed));
        let delivered = world.own.read;
        let tag = |turn: &Turn<'_>| match *turn {
            Turn::Message(_, tag) | Turn::Bulk(_, tag) => tag,
            Turn::Nulls(_) => unreachable!("no message"),
        };
        let found: Vec<(u64, Tag)> = world.outbox.undelivered(delivered).map(|(at, turn)| (at, tag(&turn))).collect();
        let skip = (delivered - world.freed) as usize;
        let meant = (delivered..).zip(world.meant.iter().skip(skip));
        let expected: Vec<(u64, Tag)> = meant.filter_map(|(turn, m)| m.tag().map(|tag| (turn, tag))).collect();
        prop_assert_eq!(found, expected);
    }

    /// A reader takes any bytes for valid turns or for corrupt, and stays within the ring.
    #[test]
    fn random_bytes_harm_nothing(words in prop::collection::vec(any::<u64>(), RING_BYTES / 8), honest in any::<bool>()) {
        let region = Region::heap(RegionKind::Polled, RegionKey(0), RING_BYTES);
        for (i, &word) in words.iter().enumerate() {
            // Random words are seldom like a header: make the odd ones look like one.
            let position = i as u64 * 8 / ALIGN;
            let like = word & 0x1ff | (word >> 62) << 32 | position << 40;
            region.store(i * 8, if honest && word & 0x200 != 0 { like } else { word });
        }
        let mut turns = Turns::of(Reader::of_copy(region));
        for _ in 0..1000 {
            turns.nulls = turns.nulls.min(2);
            if turns.next().is_err() {
                break;
            }
        }
    }

    /// Kind and position of every record are checked.
    #[test]
    fn a_damaged_header_is_noticed(lens in prop::collection::vec(0..100usize, 1..10), which in any::<usize>(), bit in 32..64) {
        let ring = heap_ring(2 * RING_BYTES);
        let mut headers = Vec::new();
        for &len in &lens {
            headers.push(ring.end());
            ring.push(&vec![1; len], untimed(0)).expect("there is room");
        }
        let which = which % lens.len();
        let offset = headers[which] as usize;
        let word = ring.memory().load(offset);
        ring.memory().store(offset, word ^ 1u64 << bit);
        let mut turns = Turns::of(Reader::of_own(Arc::clone(&ring)));
        for len in &lens[..which] {
            prop_assert_eq!(turns.next(), Ok(Meant::Message(vec![1; *len], untimed(0))));
        }
        prop_assert_eq!(turns.next(), Err(Corrupt { position: headers[which], word: word ^ 1u64 << bit }));
        prop_assert!(turns.next().is_err(), "nothing can be read after it");
    }
}

#[test]
fn only_records_of_a_ring_are_decoded() {
    let capacity = 1024;
    let word = |kind: u64, value: u64, position: u64| value | kind << 32 | (position / 16) << 40;
    let kind = |word, position| Header::decode(word, position, capacity).map(|header| header.kind);
    assert_eq!(kind(word(1, 256, 0), 0), Some(Kind::Inline));
    assert_eq!(kind(word(1, 257, 0), 0), None, "longer than a quarter of the ring");
    assert_eq!(kind(word(1, 8, 1008), 1008), Some(Kind::Inline));
    assert_eq!(kind(word(1, 9, 1008), 1008), None, "beyond the ring's end");
    assert_eq!(kind(word(2, 1, 16), 16), Some(Kind::NullRun));
    assert_eq!(kind(word(2, 0, 16), 16), None, "no turns");
    assert_eq!(kind(word(3, 256, 768), 768), Some(Kind::Pad));
    assert_eq!(kind(word(3, 240, 768), 768), None, "not up to the ring's end");
    assert_eq!(kind(word(3, 272, 752), 752), Some(Kind::Pad), "a long record and its time would not have fitted");
    assert_eq!(kind(word(3, 288, 736), 736), None, "any record would have fitted");
    assert_eq!(kind(word(7, 8, 1008), 1008), Some(Kind::Time));
    assert_eq!(kind(word(7, 16, 16), 16), None, "a time is a word");
    assert_eq!(kind(word(3, 1024, 0), 0), None, "the whole ring");
    assert_eq!(kind(word(4, 16, 992), 992), Some(Kind::Bulk));
    assert_eq!(kind(word(4, 16, 1008), 1008), None, "beyond the ring's end");
    assert_eq!(kind(word(4, 8, 0), 0), None, "no number and length");
    assert_eq!(kind(word(0, 0, 0), 0), None, "nothing was written");
    assert_eq!(kind(word(1, 8, 0), 1024), None, "what the lap before left");
    assert_eq!(kind(word(1, 8, 16 << 24), 0), Some(Kind::Inline), "positions are told apart up to 256 MiB");
}

/// Otherwise a faulty sender could have its readers walk for ever without a turn.
#[test]
fn behind_a_time_stands_a_message() {
    let ring = heap_ring(1024);
    ring.push(b"x", Tag { ticket: 0, time: 5 }).expect("there is room");
    let header = |kind, value| Header { kind, value }.encode(16);
    for (kind, value) in [(Kind::Time, 8), (Kind::NullRun, 1), (Kind::Bulk, 16)] {
        ring.memory().store(16, header(kind, value));
        let mut reader = Reader::of_copy(ring.memory().clone());
        let turn = reader.next_turn().map(|turn| matches!(turn, Turn::Bulk(_, Tag { time: 5, .. })));
        let corrupt = Err(Corrupt { position: 16, word: header(kind, value) });
        assert_eq!(turn, if kind == Kind::Bulk { Ok(true) } else { corrupt });
    }
}

#[test]
fn a_ring_takes_what_it_has_room_for() {
    let ring = heap_ring(1024);
    let mut outbox = Outbox::new(Arc::clone(&ring), 1);
    assert_eq!(ring.push(&[0; 257], untimed(0)), Err(PushError::TooLarge { bytes: 257, max: 256 }));
    for ticket in 1..=3 {
        ring.push(&[0; 256], untimed(ticket)).expect("272 bytes each");
    }
    // 208 bytes are left, and a record may not straddle the end.
    assert_eq!(ring.push(&[0; 256], untimed(4)), Err(PushError::Full));
    ring.push(&[0; 200], untimed(5)).expect("208 bytes");
    assert_eq!((ring.room(), ring.push(&[], untimed(6))), (0, Err(PushError::Full)));
    assert_eq!(outbox.scan(), 4);
    outbox.fill(9);
    assert_eq!(outbox.turns(), 4, "nulls need room too");
    assert!(!outbox.free(0));
    assert!(outbox.free(1));
    ring.push(&[0; 256], untimed(6)).expect("the first record's place");
    ring.close();
    assert_eq!(ring.push(&[], untimed(7)), Err(PushError::Closed));
    assert!(outbox.free(2));
    outbox.fill(7);
    assert_eq!(outbox.turns(), 7, "others wait for the turns of a closed ring too");
    assert_eq!(ring.push_accepted(&[0; 100], untimed(8)), Ok(()), "it was accepted before");
    assert_eq!(ring.push_bulk(Bulk { number: 0, len: 1 }, untimed(9)), Ok(()));
    assert_eq!(outbox.scan(), 9);
}

/// A reader that has delivered the record before a pad has not passed the pad.
#[test]
fn a_pad_is_freed_with_the_record_behind_it() {
    let ring = heap_ring(1024);
    let (mut outbox, mut reader) = (Outbox::new(Arc::clone(&ring), 1), Reader::of_own(Arc::clone(&ring)));
    let mut read_ticket = || match reader.next_turn() {
        Ok(Turn::Message(_, tag)) => tag.ticket,
        other => panic!("{other:?}"),
    };
    for ticket in 1..=3 {
        ring.push(&[0; 256], untimed(ticket)).expect("272 bytes each");
        assert_eq!(read_ticket(), ticket);
    }
    outbox.scan();
    outbox.free(2);
    ring.push(&[0; 256], untimed(4)).expect("a pad of 208 bytes, and the first record's place");
    outbox.scan();
    assert!(outbox.free(3));
    while ring.push(&[0; 32], untimed(5)).is_ok() {}
    assert_eq!(read_ticket(), 4, "the pad was still there");
}

#[test]
fn room_is_what_nobody_has_reserved() {
    let ring = heap_ring(RING_BYTES);
    assert_eq!(ring.room(), RING_BYTES);
    ring.push(&[0; 20], untimed(0)).unwrap();
    assert_eq!(ring.room(), RING_BYTES - 32);
    ring.close();
    assert_eq!(ring.room(), RING_BYTES - 32, "the mark of a closed ring takes no room");
    ring.free(32);
    assert_eq!(ring.room(), RING_BYTES);
}
