//! In steady state neither the thread that submits nor the one that delivers allocates memory for a message.
//!
//! A program of its own, since it counts what its allocator is asked for.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::VecDeque,
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use rkyv::Archived;
use squall::{Applied, Config, Group, Node, Replicated};

const WARM_UP: u64 = 2_000;
const MESSAGES: u64 = 10_000;

/// The submits under way: fewer than may wait for their replies.
const UNDER_WAY: usize = 100;

/// An allocator that counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn allocations() -> u64 {
    ALLOCATIONS.get()
}

fn count() {
    // A thread that is ending has no count any more.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The number of allocations of the delivering thread when it applied messages.
#[derive(Default)]
struct Seen {
    /// At the first message after the warm-up.
    first: AtomicU64,
    last: AtomicU64,
}

/// A sum of the numbers that it was given.
struct Sum {
    applied: u64,
    sum: u64,
    seen: Arc<Seen>,
}

impl Replicated for Sum {
    type Command = (u64, [u8; 92]);
    type Reply = u64;

    fn apply(&mut self, command: &Archived<Self::Command>, _at: &Applied) -> u64 {
        self.sum += command.0.to_native();
        self.applied += 1;
        if self.applied == WARM_UP {
            self.seen.first.store(allocations(), Ordering::Relaxed);
        }
        self.seen.last.store(allocations(), Ordering::Relaxed);
        self.sum
    }
}

/// Submits `count` numbers, of which some are under way at any time, and waits for all replies. Every other one is sent
/// without asking for a reply.
fn submit(group: &Group<Sum>, count: u64) {
    let mut under_way = VecDeque::with_capacity(UNDER_WAY);
    for number in 0..count / 2 {
        if under_way.len() == UNDER_WAY {
            let oldest: squall::Submit<u64> = under_way.pop_front().expect("it is full");
            oldest.wait().expect("the group goes on");
        }
        under_way.push_back(group.submit(&(number, [7; 92])));
        group.send(&(number, [8; 92])).wait().expect("the group goes on");
    }
    for submit in under_way {
        submit.wait().expect("the group goes on");
    }
}

fn start(cluster: &str, id: u32, members: u32, senders: u32) -> (Node, Group<Sum>, Arc<Seen>) {
    let config = Config::builder(format!("{cluster}-{}", std::process::id()), id)
        .members(0..members)
        .group("sum", |group| _ = group.senders(0..senders))
        .build()
        .expect("the configuration is valid");
    let seen = Arc::new(Seen::default());
    let mut node = Node::builder(config);
    let group = node.group("sum", Sum { applied: 0, sum: 0, seen: Arc::clone(&seen) });
    (node.start().expect("the group is formed"), group, seen)
}

/// Runs a group of `nodes` nodes, each in a thread of its own, of which the first `senders` submit.
fn check(cluster: &'static str, nodes: u32, senders: u32) {
    let over = Arc::new(std::sync::Barrier::new(nodes as usize));
    let threads: Vec<_> = (0..nodes)
        .map(|id| {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                let (node, group, seen) = start(cluster, id, nodes, senders);
                let mut submitted = 0;
                if id < senders {
                    submit(&group, WARM_UP);
                    let before = allocations();
                    submit(&group, MESSAGES);
                    // The queue of submits under way is this test's own.
                    submitted = allocations() - before - 1;
                }
                // All have submitted; a read sees the effects that all replies have shown.
                over.wait();
                let applied = group.read(|sum| sum.applied).wait().expect("the group goes on");
                assert_eq!(applied, u64::from(senders) * (WARM_UP + MESSAGES) / 2 * 2);
                over.wait();
                node.shutdown();
                (submitted, seen.last.load(Ordering::Relaxed) - seen.first.load(Ordering::Relaxed))
            })
        })
        .collect();
    for (id, thread) in threads.into_iter().enumerate() {
        let (submitting, delivering) = thread.join().expect("every node ends well");
        assert_eq!(submitting, 0, "allocations of node {id}'s submitting thread, for {MESSAGES} messages");
        assert_eq!(delivering, 0, "allocations of node {id}'s delivering thread, for {MESSAGES} messages and more");
    }
}

#[test]
fn allocations_are_counted() {
    let before = allocations();
    black_box(Box::new(1));
    assert_eq!(allocations() - before, 1);
}

#[test]
fn a_node_alone_allocates_nothing_for_a_message() {
    check("no-allocation-1", 1, 1);
}

#[test]
fn two_nodes_that_both_submit_allocate_nothing_for_a_message() {
    check("no-allocation-2", 2, 2);
}

#[test]
fn a_node_that_only_delivers_allocates_nothing_for_a_message() {
    check("no-allocation-3", 2, 1);
}
