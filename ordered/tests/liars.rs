//! A sender whose records make no sense: the others count what was before them, suspect it, and deliver without error.

use std::time::Duration;

use squall_fabric::{
    Completion, EndpointId, Fabric, GroupTag, NodeId, Op, PostError, Region, RegionKind, RegisterError, Slice, Source,
    Time, Token,
    sim::{SimConfig, SimFabric, SimNet},
};
use squall_membership::{Epoch, Rank, Seq};
use squall_ordered::{Deliver, Deliverer, Message, Mode, Shard, ShardConfig, Submitter, Tag, create};

use crate::world::{SHARD, node, view};

const MEMBERS: [usize; 3] = [0, 1, 2];
const RING_BYTES: usize = 1024;

/// The kinds of records, as they stand in bits 32 to 39 of a record's first word.
const INLINE: u64 = 1;
const NULLS: u64 = 2;
const BULK: u64 = 4;

/// A change of a record in a sender's ring: its kind, the index of its word, and the difference.
#[derive(Clone, Copy, Debug)]
struct Lie {
    kind: u64,
    word: usize,
    add: u64,
}

/// A fabric that distorts the next record of a kind that goes into any ring, and all copies of it.
struct Liar {
    inner: SimFabric,
    /// The ring as the others see it.
    told: Option<Region>,
    lie: Option<Lie>,
    /// The position of the record that is distorted.
    at: Option<usize>,
}

impl Liar {
    /// Copies records of the ring, with the lie.
    fn tell(&mut self, records: Slice<'_>) {
        let Slice { region, offset, len } = records;
        let told =
            self.told.get_or_insert_with(|| self.inner.register(RegionKind::Polled, RING_BYTES).expect("memory"));
        let words = (offset..offset + len).step_by(8);
        words.clone().for_each(|at| told.store(at, region.load(at)));
        let Some(Lie { kind, word, add }) = self.lie else { return };
        let is_first = |at: &usize| region.load(*at) >> 32 == kind | (*at as u64 / 16) << 8;
        if self.at.is_none() {
            self.at = words.step_by(2).find(is_first);
        }
        if let Some(at) = self.at.filter(|at| (offset..offset + len).contains(at)) {
            told.store(at + 8 * word, region.load(at + 8 * word).wrapping_add(add));
        }
    }
}

// SAFETY: the memory that it registers is the inner fabric's.
unsafe impl Fabric for Liar {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    fn register(&mut self, kind: RegionKind, bytes: usize) -> Result<Region, RegisterError> {
        self.inner.register(kind, bytes)
    }

    fn connect(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId {
        self.inner.connect(peer, tag, expose, hello)
    }

    fn disconnect(&mut self, on: EndpointId) {
        self.inner.disconnect(on);
    }

    fn post(&mut self, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError> {
        match op {
            Op::Write { source: Source::Region(records), target } if records.region.len() == RING_BYTES => {
                self.tell(records);
                let region = self.told.as_ref().expect("it was just written");
                let source = Source::Region(Slice { region, ..records });
                self.inner.post(on, Op::Write { source, target }, token)
            }
            op => self.inner.post(on, op, token),
        }
    }

    fn poll(&mut self, now: Time, out: &mut Vec<Completion>) {
        self.inner.poll(now, out);
    }
}

#[derive(Default)]
struct App(Vec<(u64, NodeId, Vec<u8>)>);

impl Deliver for App {
    fn deliver(&mut self, message: Message<'_>) {
        let mut bytes = Vec::new();
        message.payload.copy_to(&mut bytes);
        self.0.push((message.seq.0, message.sender, bytes));
    }

    fn answer(&mut self, _count: u64) {}
}

struct Member {
    fabric: Liar,
    submitter: Submitter,
    shard: Shard,
    deliverer: Deliverer,
    app: App,
    blames: Vec<(NodeId, String)>,
}

struct World {
    net: SimNet,
    now: Time,
    members: Vec<Member>,
}

impl World {
    fn new() -> World {
        let net = SimNet::new(SimConfig::fast(), 1);
        let view = view(Epoch::FIRST, &MEMBERS, &MEMBERS, &MEMBERS);
        let config = ShardConfig {
            mode: Mode::Ordered,
            ring_bytes: RING_BYTES,
            bulk_threshold: 100,
            bulk_reserve_bytes: 4096,
            bulk_block_bytes: 64,
            ..ShardConfig::default()
        };
        let member = |index: usize| {
            let mut fabric = Liar { inner: net.fabric(node(index)), told: None, lie: None, at: None };
            let (submitter, shard, deliverer) = create(&mut fabric, &view, SHARD, &config).expect("a valid shard");
            Member { fabric, submitter, shard, deliverer, app: App::default(), blames: Vec::new() }
        };
        World { members: MEMBERS.map(member).into(), now: Time::ZERO, net }
    }

    /// Lets all members send, and work on it until nothing changes.
    fn send(&mut self, bytes: usize, senders: &[usize]) {
        for &sender in senders {
            self.members[sender].submitter.submit(&vec![sender as u8; bytes], Tag::default()).expect("there is room");
        }
        for _ in 0..400 {
            self.now = self.net.advance(self.now + Duration::from_nanos(500), &mut Vec::new());
            self.members.iter_mut().for_each(|member| member.step(self.now));
        }
    }
}

impl Member {
    fn step(&mut self, now: Time) {
        let mut completions = Vec::new();
        self.fabric.poll(now, &mut completions);
        for completion in &completions {
            self.shard.on_completion(&mut self.fabric, completion);
        }
        while self.shard.step(&mut self.fabric, now).busy {}
        self.blames.extend(self.shard.take_faulty());
        while self.deliverer.run(8, &mut self.app).expect("what was counted is good").more {}
    }
}

/// Member 0 tells the lie with its first record of the kind that `sends` has it write. The others blame it, and end
/// their view at what they have counted.
fn is_found_out(lie: Lie, sends: impl Fn(&mut World), why: &str) {
    let mut world = World::new();
    world.send(10, &MEMBERS);
    assert!(world.members.iter().all(|member| member.app.0.len() == 3), "all is well so far");
    world.members[0].fabric.lie = Some(lie);
    sends(&mut world);
    world.send(10, &MEMBERS);
    let honest = &mut world.members[1..];
    for member in honest.iter_mut() {
        let [(blamed, because)] = &member.blames[..] else { panic!("{lie:?}: it blames {:?}", member.blames) };
        assert_eq!(*blamed, node(0));
        assert!(because.contains(why), "{because}");
    }
    let trim: Seq = honest.iter_mut().map(|member| member.shard.wedge()).min().expect("two members");
    honest.iter_mut().for_each(|member| member.shard.clean_up(trim, true));
    world.send(0, &[]);
    let honest = &world.members[1..];
    assert!(honest.iter().all(|member| member.shard.is_ended()));
    assert_eq!(honest[0].app.0, honest[1].app.0);
    assert_eq!(honest[0].shard.row(Rank(1)).delivered, trim.0);
}

#[test]
fn a_record_that_makes_no_sense_is_not_counted() {
    let small = |world: &mut World| world.send(10, &[0]);
    let no_record = "no valid record";
    // Another kind, one of a lap before, and one that is longer than a ring takes.
    for add in [8 << 32, 0u64.wrapping_sub((RING_BYTES as u64 / 16) << 40), RING_BYTES as u64] {
        is_found_out(Lie { kind: INLINE, word: 0, add }, small, no_record);
    }
}

/// A record that is longer than it was, but not too long, moves the next one to where there is none.
#[test]
fn what_follows_a_wrong_length_is_not_counted() {
    is_found_out(Lie { kind: INLINE, word: 0, add: 16 }, |world| world.send(10, &[0]), "no valid record");
}

#[test]
fn a_run_of_nulls_beyond_what_was_announced_is_not_counted() {
    // Others send, so that member 0 gives up its turns.
    is_found_out(Lie { kind: NULLS, word: 0, add: 1 }, |world| world.send(10, &[1, 2]), "run of nulls");
}

#[test]
fn a_bulk_message_that_is_not_the_next_is_not_counted() {
    for word in [1, 2] {
        is_found_out(Lie { kind: BULK, word, add: 1 }, |world| world.send(300, &[0]), "bulk message");
    }
}
