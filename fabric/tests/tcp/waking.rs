//! Nodes that sleep are woken, always.

use std::{
    thread,
    time::{Duration, Instant},
};

use squall_fabric::{EndpointId, Fabric, NodeId, Op, Region, RegionKind, Source, Target, Time, Token, Wait};

use super::world::{Node, PATIENCE, TAG, cluster, inline, pair, two, whole};

const ROUNDS: u64 = 20_000;

/// A node that exchanges a word with another.
struct Player {
    node: Node,
    end: EndpointId,
    mine: Region,
    theirs: Target,
}

impl Player {
    /// A player that has connected; it sleeps all the time, connecting included.
    fn join(mut node: Node, peer: u32) -> Player {
        let mine = node.region(RegionKind::Polled, 64);
        let end = node.fabric.connect(NodeId(peer), TAG, std::slice::from_ref(&mine), b"");
        node.sleep_until("a connection", |node| node.remote(end).is_some());
        let theirs = Target { region: node.remote(end).unwrap()[0].key, offset: 0 };
        Player { node, end, mine, theirs }
    }

    fn write(&mut self, word: u64) {
        let word = word.to_ne_bytes();
        let op = Op::Write { source: inline(&word), target: self.theirs };
        self.node.fabric.post(self.end, op, Token::UNSIGNALED).unwrap();
        self.node.poll();
    }

    #[track_caller]
    fn wait(&mut self, word: u64) {
        let mine = self.mine.clone();
        self.node.sleep_until("a word", |_| mine.load(0) >= word);
    }
}

#[test]
fn threads_that_sleep_after_each_word_are_always_woken() {
    let mut nodes = two(|_| ());
    let (two, one) = (nodes.pop().unwrap(), nodes.pop().unwrap());
    let echo = thread::spawn(move || {
        let mut player = Player::join(two, 1);
        for word in 1..=ROUNDS {
            player.wait(word);
            player.write(word);
        }
    });
    let mut player = Player::join(one, 2);
    let began = Instant::now();
    for word in 1..=ROUNDS {
        player.write(word);
        player.wait(word);
    }
    eprintln!("two threads that sleep: {} ns for a round trip", began.elapsed().as_nanos() / u128::from(ROUNDS));
    echo.join().unwrap();
}

#[test]
fn a_long_write_passes_between_nodes_that_sleep_while_buffers_are_full() {
    const BYTES: usize = 5_000_000;
    let mut nodes = two(|config| config.send_buffer_bytes = Some(4 << 10));
    let (mut two, one) = (nodes.pop().unwrap(), nodes.pop().unwrap());
    let reader = thread::spawn(move || {
        let table = two.region(RegionKind::Polled, BYTES);
        two.fabric.connect(NodeId(1), TAG, std::slice::from_ref(&table), b"");
        two.sleep_until("the last word", |_| table.load(BYTES - 8) == 1);
    });
    let mut one = one;
    let source = one.region(RegionKind::Polled, BYTES);
    source.store(BYTES - 8, 1);
    let end = one.fabric.connect(NodeId(2), TAG, &[], b"");
    one.sleep_until("a connection", |node| node.remote(end).is_some());
    let target = Target { region: one.remote(end).unwrap()[0].key, offset: 0 };
    one.post(end, Op::Write { source: Source::Region(whole(&source)), target }, 1);
    one.sleep_until("its end", |node| node.done(end, 1));
    reader.join().unwrap();
}

#[test]
fn a_waker_ends_a_wait_from_any_thread_and_before_it_begins() {
    let mut node = Node::open(&cluster(), 1);
    let waker = node.fabric.waker();
    for _ in 0..1000 {
        node.fabric.arm();
        let remote = waker.clone();
        let thread = thread::spawn(move || remote.wake());
        node.fabric.wait(Time::boot_clock() + PATIENCE);
        thread.join().unwrap();
        node.poll();
    }
    for polls in 0..3 {
        node.fabric.arm();
        waker.wake();
        // A poll in between takes the signal, and the wait must know of it.
        (0..polls).for_each(|_| node.poll());
        node.fabric.wait(Time::MAX);
        node.poll();
    }
}

#[test]
fn what_was_posted_and_not_polled_ends_a_wait() {
    let (mut pair, _) = pair(|_| (), |node| vec![node.region(RegionKind::Polled, 64)]);
    let target = pair.target(0, 0, 0);
    pair.until("quiet", |_, _| true);
    pair.nodes[0].fabric.arm();
    pair.nodes[0].poll();
    pair.post(0, Op::Write { source: inline(&[1; 8]), target }, 1);
    pair.nodes[0].fabric.wait(Time::MAX);
}

#[test]
fn a_wait_ends_at_its_deadline_and_one_that_is_not_armed_at_once() {
    let mut node = Node::open(&cluster(), 1);
    node.poll();
    let began = Instant::now();
    node.fabric.wait(Time::MAX);
    node.fabric.arm();
    node.poll();
    node.fabric.wait(Time::boot_clock() + Duration::from_millis(20));
    assert!(began.elapsed() >= Duration::from_millis(20) || node.fabric.stats().ready_calls > 2);
}
