//! Nodes that sleep are woken, always.

use std::{
    thread,
    time::{Duration, Instant},
};

use squall_fabric::{
    Completion, EndpointId, Fabric, NodeId, Op, Region, RegionKey, RegionKind, Slice, Source, Target, Time, Token,
    Wait, WorkGraph, shm::ShmConfig,
};

use super::world::{Node, PATIENCE, TAG, cluster, inline, pair, pattern, whole};
use crate::child::{self, Process};

const ROUNDS: u64 = 100_000;

/// A node that exchanges a word with another.
struct Player {
    node: Node,
    end: EndpointId,
    mine: Region,
    theirs: Target,
}

impl Player {
    fn join(cluster: &str, id: u32, peer: u32) -> Player {
        let mut node = Node::open(cluster, id);
        let mine = node.region(RegionKind::Polled, 64);
        let end = node.fabric.connect(NodeId(peer), TAG, std::slice::from_ref(&mine), b"");
        node.until("a connection", |node| node.remote(end).is_some());
        let theirs = Target { region: node.remote(end).unwrap()[0].key, offset: 0 };
        Player { node, end, mine, theirs }
    }

    fn write(&mut self, word: u64) {
        let word = word.to_ne_bytes();
        let op = Op::Write { source: inline(&word), target: self.theirs };
        self.node.fabric.post(self.end, op, Token::UNSIGNALED).unwrap();
        self.node.poll();
    }

    /// Sleeps until the other has written `word`.
    #[track_caller]
    fn sleep_until(&mut self, word: u64) {
        self.node.sleep_until(&word.to_string(), |_| self.mine.load(0) >= word);
    }

    fn spin_until(&mut self, word: u64) {
        while self.mine.load(0) < word {
            self.node.poll();
            std::hint::spin_loop();
        }
    }

    /// Writes first what the other echoes, and measures a round trip.
    fn serve(&mut self, how: &str, wait: fn(&mut Player, u64)) {
        let began = Instant::now();
        for word in 1..=ROUNDS {
            self.write(word);
            wait(self, word);
        }
        let nanos = began.elapsed().as_nanos() / u128::from(ROUNDS);
        let stats = self.node.fabric.stats();
        eprintln!("{how}: {nanos} ns for a round trip, {} doorbells rung", stats.doorbells_rung);
    }

    fn echo(&mut self, wait: fn(&mut Player, u64)) {
        for word in 1..=ROUNDS {
            wait(self, word);
            self.write(word);
        }
    }
}

#[test]
fn threads_that_sleep_after_each_word_are_always_woken() {
    let cluster = cluster();
    let echo = {
        let cluster = cluster.clone();
        thread::spawn(move || Player::join(&cluster, 2, 1).echo(Player::sleep_until))
    };
    Player::join(&cluster, 1, 2).serve("two threads that sleep", Player::sleep_until);
    echo.join().unwrap();
}

#[test]
fn child_that_echoes() {
    let Some(argument) = child::argument() else { return };
    let (how, cluster) = argument.split_once(' ').unwrap();
    Player::join(cluster, 2, 1).echo(if how == "sleep" { Player::sleep_until } else { Player::spin_until });
}

#[test]
fn processes_that_sleep_after_each_word_are_always_woken() {
    let cluster = cluster();
    let child = Process::start("shm::waking::child_that_echoes", &format!("sleep {cluster}"));
    Player::join(&cluster, 1, 2).serve("two processes that sleep", Player::sleep_until);
    child.succeed();
}

#[test]
#[ignore = "measures; needs two idle cores"]
fn processes_that_spin() {
    let cluster = cluster();
    let child = Process::start("shm::waking::child_that_echoes", &format!("spin {cluster}"));
    Player::join(&cluster, 1, 2).serve("two processes that spin", Player::spin_until);
    child.succeed();
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
    }
    node.fabric.arm();
    waker.wake();
    node.fabric.wait(Time::MAX);
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let mut node = Node::open(&cluster(), 1);
    let until = Time::boot_clock() + Duration::from_millis(20);
    node.fabric.arm();
    node.fabric.wait(until);
    assert!(Time::boot_clock() >= until);
    // A fabric that is not armed does not sleep at all.
    node.fabric.wait(Time::MAX);
}

#[test]
fn events_end_a_wait() {
    let cluster = cluster();
    let mut first = Node::open(&cluster, 1);
    let end = first.connect(2, &[]);
    first.poll();
    let other = thread::spawn(move || {
        let mut node = Node::open(&cluster, 2);
        let end = node.connect(1, &[]);
        node.until("a connection", |node| node.remote(end).is_some());
    });
    first.sleep_until("a connection", |node| node.remote(end).is_some());
    first.sleep_until("a break", |node| node.broken(end).is_some());
    other.join().unwrap();
}

/// A node that exchanges messages, and sleeps whenever there is nothing to do.
struct Correspondent {
    node: Node,
    end: EndpointId,
    source: Region,
    into: Region,
}

/// A length beyond the bytes that one poll pulls.
const MESSAGE: usize = 3 << 20;

impl Correspondent {
    fn join(cluster: &str, id: u32, peer: u32) -> Correspondent {
        let mut config = ShmConfig::new(cluster, NodeId(id));
        config.queue_depth = 4;
        let mut node = Node::with(config);
        let (source, into) = (node.region(RegionKind::Bulk, MESSAGE), node.region(RegionKind::Bulk, MESSAGE));
        let end = node.connect(peer, &[]);
        node.post(end, Op::Recv { into: whole(&into) }, 0);
        let mut correspondent = Correspondent { node, end, source, into };
        correspondent.sleep_until("a connection", |seen| matches!(seen, Completion::Connected { .. }));
        correspondent
    }

    /// Sleeps until a completion is reported, and takes it.
    #[track_caller]
    fn sleep_until(&mut self, what: &str, wanted: impl Fn(&Completion) -> bool) {
        self.node.sleep_until(what, |node| {
            let at = node.seen.iter().position(&wanted);
            at.map(|at| node.seen.remove(at)).is_some()
        });
    }

    fn say(&mut self, round: u64) {
        let len = if round.is_multiple_of(500) { MESSAGE } else { 1 + round as usize % 600 };
        self.source.write(0, &pattern(len));
        let source = Source::Region(Slice { region: &self.source, offset: 0, len });
        self.node.post(self.end, Op::Send { source, imm: Some(round as u32) }, round);
    }

    fn hear(&mut self, round: u64) {
        self.sleep_until(
            "a message",
            |seen| matches!(seen, Completion::Received { imm, .. } if *imm == Some(round as u32)),
        );
        self.node.post(self.end, Op::Recv { into: whole(&self.into) }, round);
    }

    fn sent(&mut self, round: u64) {
        self.sleep_until(
            "the completion of a send",
            |seen| matches!(seen, Completion::Done { token, result: Ok(()), .. } if token.0 == round),
        );
    }
}

#[test]
fn messages_of_all_lengths_wake_their_receivers_and_their_senders() {
    const ROUNDS: u64 = 10_000;
    let cluster = cluster();
    let echo = {
        let cluster = cluster.clone();
        thread::spawn(move || {
            let mut node = Correspondent::join(&cluster, 2, 1);
            for round in 1..=ROUNDS {
                node.hear(round);
                node.say(round);
                node.sent(round);
            }
        })
    };
    let mut node = Correspondent::join(&cluster, 1, 2);
    for round in 1..=ROUNDS {
        node.say(round);
        node.sent(round);
        node.hear(round);
    }
    // The other side's last completion may be on its way.
    while !echo.is_finished() {
        node.node.poll();
        thread::yield_now();
    }
    echo.join().unwrap();
}

/// A post of a graph late in a poll may end its endpoint at once, and no signal would tell.
#[test]
fn nobody_sleeps_on_a_graph_that_breaks_its_endpoint() {
    let (mut pair, _) = pair(|_| Vec::new());
    let inbox = pair.nodes[1].region(RegionKind::Bulk, 8);
    let of_nobody = Region::heap(RegionKind::Bulk, RegionKey(1), 1024);
    let mut graph = WorkGraph::new();
    let received = graph.add(pair.ends[1], Op::Recv { into: whole(&inbox) }, &[]).unwrap();
    let send = Op::Send { source: Source::Region(whole(&of_nobody)), imm: None };
    graph.add(pair.ends[1], send, &[received]).unwrap();
    pair.nodes[1].fabric.post_graph(graph, Token(1)).unwrap();
    pair.post(0, Op::Send { source: inline(&[7; 8]), imm: None }, 1);
    pair.nodes[0].poll();

    let end = pair.ends[1];
    pair.nodes[1].sleep_until("the break", |node| node.broken(end).is_some());
}
