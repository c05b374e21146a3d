//! Real threads that submit small and bulk messages while the shard is driven. Each thread's order is kept. At any end
//! of the view, each message that was accepted was delivered or is handed back, once. In durable mode another thread
//! writes the log.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use fastrand::Rng;
use squall_fabric::{
    NodeId, Time,
    sim::{SimConfig, SimNet},
};
use squall_membership::{ClusterId, Epoch, Incarnation, Member, ShardId, ShardView, View};
use squall_ordered::{Deliver, Message, Mode, Persisted, ShardConfig, SubmitRefused, Submitter, Tag};

const THREADS: usize = 3;
const THRESHOLD: usize = 100;
const LONGEST: usize = 3000;

/// The number of messages that may be delivered and not persisted, in durable mode.
const ROOM: u64 = 20;

/// The tickets of the messages that were delivered.
#[derive(Default)]
struct Log<'a> {
    tickets: Vec<u32>,
    disk: Option<&'a Disk>,
}

/// The numbers of messages that were appended and written.
#[derive(Default)]
struct Disk {
    appended: AtomicU64,
    written: AtomicU64,
}

impl Disk {
    /// Writes the messages that were appended, again and again.
    fn write(&self, persisted: &Persisted, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            let appended = self.appended.load(Ordering::Relaxed);
            self.written.store(appended, Ordering::Relaxed);
            persisted.set(appended);
            thread::yield_now();
        }
    }
}

impl Deliver for Log<'_> {
    fn deliver(&mut self, message: Message<'_>) {
        let mut bytes = Vec::new();
        message.payload.copy_to(&mut bytes);
        assert_eq!(bytes, payload(message.ticket), "message {}", message.ticket);
        self.tickets.push(message.ticket);
        if let Some(disk) = self.disk {
            disk.appended.store(self.tickets.len() as u64, Ordering::Relaxed);
        }
    }

    fn answer(&mut self, _count: u64) {}

    fn has_room(&mut self) -> bool {
        let written = |disk: &Disk| disk.written.load(Ordering::Relaxed);
        self.disk.is_none_or(|disk| (self.tickets.len() as u64) < written(disk) + ROOM)
    }

    fn globally_persisted(&mut self, version: u64) {
        assert!(self.disk.is_some_and(|disk| version <= disk.written.load(Ordering::Relaxed)), "{version}");
    }
}

/// A message's bytes, which follow from its ticket: one in eight is a bulk message.
fn payload(ticket: u32) -> Vec<u8> {
    let mut rng = Rng::with_seed(u64::from(ticket));
    let most = if rng.u8(0..8) == 0 { LONGEST } else { THRESHOLD };
    let len = rng.usize(0..=most);
    vec![ticket as u8; len]
}

fn ticket(thread: usize, number: u32) -> u32 {
    ((thread as u32) << 24) | (number + 1)
}

/// Submits until a message is refused. Returns the number of messages that were accepted.
fn submit(submitter: &Submitter, thread: usize, is_over: &AtomicBool) -> u32 {
    for number in 0.. {
        let ticket = ticket(thread, number);
        let bytes = payload(ticket);
        loop {
            match submitter.submit(&bytes, Tag { ticket, time: 0 }) {
                Ok(()) => break,
                Err(SubmitRefused::Full) if !is_over.load(Ordering::Relaxed) => thread::yield_now(),
                Err(SubmitRefused::Full | SubmitRefused::Closed) => return number,
                Err(other) => panic!("message {ticket}: {other}"),
            }
        }
    }
    unreachable!("the view ends")
}

/// The view of one member, with one shard.
fn alone(node: NodeId, shard: ShardId) -> View {
    View {
        life: ClusterId(1),
        epoch: Epoch::FIRST,
        members: vec![Member::new(node, Incarnation(1))],
        shards: vec![ShardView::whole(shard, vec![node], vec![node])],
        joined: vec![node],
        left: Vec::new(),
        preferred: BTreeMap::new(),
    }
}

/// A member whose host's clock may stop takes no lease, not even where no other member could go on without it.
#[test]
fn a_member_that_does_not_read_alone_has_no_lease() {
    for reads_alone in [true, false] {
        let (node, shard) = (NodeId(1), ShardId(0));
        let config = ShardConfig { reads_alone, ..ShardConfig::default() };
        let mut fabric = SimNet::new(SimConfig::fast(), 1).fabric(node);
        let (submitter, mut shard, _deliverer) =
            squall_ordered::create(&mut fabric, &alone(node, shard), shard, &config).expect("a valid shard");
        shard.step(&mut fabric, Time::ZERO);
        assert_eq!(submitter.lease(Time::ZERO).is_some(), reads_alone);
    }
}

fn run(mode: Mode, deliveries: usize, seed: u64) {
    let (node, shard) = (NodeId(1), ShardId(0));
    let view = alone(node, shard);
    let config = ShardConfig {
        mode,
        ring_bytes: 1024,
        bulk_threshold: THRESHOLD,
        bulk_reserve_bytes: 2 * 3072,
        bulk_block_bytes: 512,
        ..ShardConfig::default()
    };
    let mut fabric = SimNet::new(SimConfig::fast(), seed).fabric(node);
    let (submitter, mut shard, mut deliverer) =
        squall_ordered::create(&mut fabric, &view, shard, &config).expect("a valid shard");
    let (disk, is_over) = (Disk::default(), AtomicBool::new(false));
    let mut log = Log { tickets: Vec::new(), disk: (mode == Mode::Durable).then_some(&disk) };
    let (accepted, undelivered) = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let (submitter, is_over) = (&submitter, &is_over);
                    move || submit(submitter, thread, is_over)
                })
            })
            .collect();
        if mode == Mode::Durable {
            deliverer.begin(0);
            let (disk, is_over, persisted) = (&disk, &is_over, deliverer.persisted());
            scope.spawn(move || disk.write(&persisted, is_over));
        }
        let mut now = Time::ZERO;
        while log.tickets.len() < deliveries {
            now = Time::from_nanos(now.as_nanos() + 1000);
            let stepped = shard.step(&mut fabric, now);
            // The deliverer runs only when the shard or the deliverer says that it is due.
            let messages = if stepped.deliver || deliverer.is_due() {
                deliverer.run(7, &mut log).expect("no member is faulty").messages
            } else {
                0
            };
            if !stepped.busy && messages == 0 {
                thread::yield_now();
            }
        }
        let received = shard.wedge();
        shard.clean_up(received, true);
        shard.step(&mut fabric, now);
        while !shard.is_ended() {
            deliverer.run(7, &mut log).expect("no member is faulty");
            shard.step(&mut fabric, now);
        }
        let undelivered = loop {
            if let Some(undelivered) = shard.undelivered() {
                break undelivered;
            }
            thread::yield_now();
        };
        is_over.store(true, Ordering::Relaxed);
        let accepted: Vec<u32> =
            threads.into_iter().map(|thread| thread.join().expect("it submits and returns")).collect();
        (accepted, undelivered)
    });
    let all: Vec<u32> =
        log.tickets.iter().copied().chain(undelivered.iter().map(|message| message.tag.ticket)).collect();
    let mut next: BTreeMap<u32, u32> = BTreeMap::new();
    for ticket in all {
        let due = next.entry(ticket >> 24).or_insert(1);
        assert_eq!(ticket & 0xff_ffff, *due, "thread {} in seed {seed}, {mode:?}", ticket >> 24);
        *due += 1;
    }
    for (thread, accepted) in accepted.into_iter().enumerate() {
        assert_eq!(
            next.get(&(thread as u32)).map_or(0, |due| due - 1),
            accepted,
            "thread {thread} in seed {seed}, {mode:?}"
        );
    }
}

#[test]
fn each_threads_messages_keep_their_order_and_none_is_lost_or_repeated() {
    let seed = fastrand::u64(..);
    let mut rng = Rng::with_seed(seed);
    for round in 0..600 {
        let mode = [Mode::Ordered, Mode::Durable, Mode::Unordered][round % 3];
        run(mode, rng.usize(0..1500), seed);
    }
}
