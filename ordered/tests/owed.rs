//! Members that keep back their receipts or their turns. The others see who does, and members that keep the rules owe
//! nothing.

use std::time::Duration;

use squall_fabric::{
    Fabric, Time,
    hostile::{HostileFabric, Hostility},
    sim::{SimConfig, SimFabric, SimNet},
};
use squall_membership::{Epoch, Rank};
use squall_ordered::{Deliver, Deliverer, Message, Mode, Owed, Shard, ShardConfig, Submitter, Tag, create};

use crate::world::{SHARD, node, view};

const ALL: [usize; 4] = [0, 1, 2, 3];
const MODES: [Mode; 2] = [Mode::Ordered, Mode::Unordered];

/// The layer of a shard's rows and rings.
const SHARDS: u32 = 2;

struct App;

impl Deliver for App {
    fn deliver(&mut self, _message: Message<'_>) {}

    fn answer(&mut self, _count: u64) {}
}

struct Member {
    fabric: HostileFabric<SimFabric>,
    submitter: Submitter,
    shard: Shard,
    deliverer: Deliverer,
    /// Whether its application returns from no call.
    hangs: bool,
}

struct World {
    net: SimNet,
    now: Time,
    members: Vec<Member>,
}

impl World {
    fn new(mode: Mode, senders: &[usize]) -> World {
        let net = SimNet::new(SimConfig::fast(), 1);
        let view = view(Epoch::FIRST, &ALL, senders, &ALL);
        let config = ShardConfig { mode, ring_bytes: 1024, bulk_reserve_bytes: 0, ..ShardConfig::default() };
        let member = |index: usize| {
            let mut fabric = HostileFabric::new(net.fabric(node(index)));
            let (submitter, shard, deliverer) = create(&mut fabric, &view, SHARD, &config).expect("a valid shard");
            Member { fabric, submitter, shard, deliverer, hangs: false }
        };
        let mut world = World { members: ALL.map(member).into(), now: Time::ZERO, net };
        world.send(senders);
        world.owes_nothing();
        world
    }

    /// Lets these send a message each, if they have room, and all members work on it.
    fn send(&mut self, senders: &[usize]) {
        for &sender in senders {
            let _ = self.members[sender].submitter.submit(&[sender as u8; 10], Tag::default());
        }
        (0..400).for_each(|_| self.step());
    }

    fn step(&mut self) {
        self.now = self.net.advance(self.now + Duration::from_nanos(500), &mut Vec::new());
        self.members.iter_mut().for_each(|member| member.step(self.now));
    }

    fn withhold(&mut self, member: usize, from: Option<usize>) {
        let hostility = Hostility::Withholds { layer: SHARDS, from: from.map(node) };
        self.members[member].fabric.turn(hostility, self.now, Duration::ZERO, 1);
    }

    /// The things that one member is owed by another.
    fn owed(&self, to: usize, by: usize) -> Owed {
        self.members[to].shard.owed(Rank(by as u32))
    }

    /// Lets the members work until none of them owes another anything.
    fn owes_nothing(&mut self) {
        let pairs = || ALL.into_iter().flat_map(|to| ALL.map(|by| (to, by)));
        for _ in 0..10_000 {
            if pairs().all(|(to, by)| self.owed(to, by) == Owed::default()) {
                return;
            }
            self.step();
        }
        let owed: Vec<_> = pairs().map(|(to, by)| (to, by, self.owed(to, by))).collect();
        panic!("not all have what they are owed: {owed:?}");
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
        while !self.hangs && self.deliverer.run(8, &mut App).expect("all senders keep the rules").more {}
    }
}

#[test]
fn members_whose_applications_hang_owe_nothing_though_rings_are_full() {
    for mode in MODES {
        for sends in [&[0][..], &[0, 1], &ALL] {
            let mut world = World::new(mode, &ALL);
            world.members[2].hangs = true;
            (0..60).for_each(|_| world.send(sends));
            // Of those that fill their rings, one has more records of a ring's size than another.
            world.send(&[3]);
            world.owes_nothing();
        }
    }
}

#[test]
fn a_member_that_keeps_back_its_receipts_owes_them_and_no_progress_is_seen() {
    for mode in MODES {
        let mut world = World::new(mode, &[0, 1]);
        world.withhold(3, None);
        world.send(&[0, 1]);
        let owed = world.owed(0, 3);
        assert_eq!(owed, Owed { receipts: Some(2), turns: None }, "{mode:?}");
        (0..5).for_each(|_| world.send(&[0, 1]));
        for to in [0, 1, 2] {
            assert_eq!(world.owed(to, 3), owed, "{mode:?}");
            let others = ALL.into_iter().filter(|&by| by != 3);
            assert!(others.clone().all(|by| world.owed(to, by) == Owed::default()), "{mode:?}");
        }
    }
}

#[test]
fn a_sender_that_keeps_its_messages_from_one_member_owes_that_one_its_turns() {
    for mode in MODES {
        let mut world = World::new(mode, &[0, 1]);
        world.withhold(0, Some(2));
        world.send(&[0]);
        assert_eq!(world.owed(2, 0), Owed { receipts: None, turns: Some(1) }, "{mode:?}");
        // The others can't tell that one from a member that keeps back its receipts.
        assert_eq!(world.owed(3, 2), Owed { receipts: Some(2), turns: None }, "{mode:?}");
        assert_eq!(world.owed(3, 0), Owed::default(), "{mode:?}");
    }
}

#[test]
fn a_sender_that_gives_up_no_turns_owes_them_to_all() {
    let mut world = World::new(Mode::Ordered, &[0, 1]);
    world.withhold(0, None);
    world.send(&[]);
    world.owes_nothing();
    world.send(&[1]);
    for to in [1, 2, 3] {
        assert_eq!(world.owed(to, 0), Owed { receipts: None, turns: Some(1) });
        assert_eq!([1, 2, 3].map(|by| world.owed(to, by)), [Owed::default(); 3]);
    }
}
