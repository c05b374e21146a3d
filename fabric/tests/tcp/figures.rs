//! The costs of operations. These tests print figures, and are run by hand on an idle host:
//! `cargo test --release -p squall-fabric --test all tcp::figures:: -- --ignored --nocapture --test-threads=1`

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use squall_fabric::{Completion, Fabric, Op, PostError, RegionKind, Source, Target, Time, Token, Wait};

use super::world::{Node, cluster, inline, pair, whole};
use crate::child::Process;

/// The time for which each figure is measured.
const SPELL: Duration = Duration::from_secs(1);

/// The number of long writes that are outstanding.
const OUTSTANDING: usize = 4;

/// The number of polls without news that go before a sleep.
const IDLE_POLLS: u32 = 20;

/// Polls, and sleeps when there has been nothing to do for a while.
fn go_on(node: &mut Node, idle: &mut u32, out: &mut Vec<Completion>) {
    let before = node.fabric.stats();
    node.fabric.poll(Time::ZERO, out);
    let is_idle = |node: &Node| {
        let now = node.fabric.stats();
        (now.bytes_received, now.bytes_sent) == (before.bytes_received, before.bytes_sent)
    };
    *idle = if is_idle(node) { *idle + 1 } else { 0 };
    if *idle > IDLE_POLLS {
        node.fabric.arm();
        node.fabric.poll(Time::ZERO, out);
        match is_idle(node) && out.is_empty() {
            true => node.fabric.wait(Time::boot_clock() + Duration::from_millis(10)),
            false => node.fabric.disarm(),
        }
    }
}

/// Polls node 2 in a thread of its own while node 1 does something.
fn against_a_polled_peer(mut peer: Node, run: impl FnOnce()) -> Node {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let polls = scope.spawn(|| {
            let mut idle = 0;
            while !over.load(Ordering::Relaxed) {
                go_on(&mut peer, &mut idle, &mut Vec::new());
            }
            peer
        });
        run();
        over.store(true, Ordering::Relaxed);
        polls.join().unwrap()
    })
}

/// The processor time of this process's threads, which other processes on the host do not add to.
fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

#[test]
#[ignore = "measures"]
fn a_round_trip_of_a_word() {
    const ROUNDS: u64 = 50_000;
    let (pair, regions) = pair(|_| (), |node| vec![node.region(RegionKind::Polled, 64)]);
    let targets = [pair.target(0, 0, 0), pair.target(1, 0, 0)];
    let (ends, [mut one, mut two]) = (pair.ends, <[Node; 2]>::try_from(pair.nodes).ok().unwrap());
    let write = |node: &mut Node, side: usize, word: u64| {
        let word = word.to_ne_bytes();
        let op = Op::Write { source: inline(&word), target: targets[side] };
        node.fabric.post(ends[side], op, Token::UNSIGNALED).unwrap();
        node.poll();
    };
    let wait = |node: &mut Node, side: usize, word: u64| {
        while regions[side][0].load(0) < word {
            node.poll();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for word in 1..=ROUNDS {
                wait(&mut two, 1, word);
                write(&mut two, 1, word);
            }
        });
        let began = Instant::now();
        for word in 1..=ROUNDS {
            write(&mut one, 0, word);
            wait(&mut one, 0, word);
        }
        eprintln!("a round trip of a word: {} ns", began.elapsed().as_nanos() / u128::from(ROUNDS));
    });
}

#[test]
#[ignore = "measures"]
fn a_stream_of_short_writes() {
    const SLOTS: usize = 4096;
    for (bytes, batch) in [(8, 1), (8, 64), (104, 1), (104, 64), (104, 512)] {
        let (pair, _) = pair(|_| (), |node| vec![node.region(RegionKind::Polled, 256 * SLOTS)]);
        let key = pair.target(0, 0, 0).region;
        let (end, mut nodes) = (pair.ends[0], pair.nodes);
        let (peer, mut node) = (nodes.pop().unwrap(), nodes.pop().unwrap());
        let mut posted = 0;
        let mut time = Duration::ZERO;
        let (before, cpu_before) = (node.fabric.stats(), cpu_time());
        let peer = against_a_polled_peer(peer, || {
            let (began, mut idle, mut out) = (Instant::now(), 0, Vec::new());
            while began.elapsed() < SPELL {
                for _ in 0..batch {
                    let target = Target { region: key, offset: 256 * (posted % SLOTS) };
                    let op = Op::Write { source: inline(&[1; 256][..bytes]), target };
                    match node.fabric.post(end, op, Token::UNSIGNALED) {
                        Ok(()) => posted += 1,
                        Err(PostError::Full) => break,
                        Err(other) => panic!("{other}"),
                    }
                }
                go_on(&mut node, &mut idle, &mut out);
                out.clear();
            }
            time = began.elapsed();
        });
        let (sent, came) = (node.fabric.stats(), peer.fabric.stats());
        eprintln!(
            "writes of {bytes} bytes, {batch} for each poll: {:.2} M/s, {} ns of a processor, {:.3} calls each to send, {:.3} to receive",
            posted as f64 / time.as_secs_f64() / 1e6,
            (cpu_time() - cpu_before).as_nanos() / posted as u128,
            (sent.send_calls - before.send_calls) as f64 / posted as f64,
            came.receive_calls as f64 / came.frames_received as f64,
        );
    }
}

/// The rate of one stream of the system without a fabric, in GB/s, and the microseconds of a processor for 1 MB.
fn plain_stream(bytes: usize) -> (f64, f64) {
    let cpu = cpu_time();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut to = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut from = listener.accept().unwrap().0;
    // The memory is as large as that of the writes, since much of the cost is that it is not in a cache.
    let (source, mut target) = (vec![1; bytes], vec![1; bytes * OUTSTANDING]);
    let reader = thread::spawn(move || {
        let mut at = 0;
        loop {
            let end = target.len().min(at + (256 << 10));
            match from.read(&mut target[at..end]).unwrap() {
                0 => return,
                came => at = (at + came) % target.len(),
            }
        }
    });
    let (began, mut sent) = (Instant::now(), 0);
    while began.elapsed() < SPELL {
        to.write_all(&source).unwrap();
        sent += bytes;
    }
    drop(to);
    reader.join().unwrap();
    let bytes = sent as f64;
    (bytes / began.elapsed().as_secs_f64() / 1e9, (cpu_time() - cpu).as_secs_f64() * 1e12 / bytes)
}

#[test]
#[ignore = "measures"]
fn a_stream_of_long_writes() {
    for (kind, bytes) in [
        (RegionKind::Bulk, 10 << 10),
        (RegionKind::Bulk, 64 << 10),
        (RegionKind::Bulk, 1 << 20),
        (RegionKind::Bulk, 16 << 20),
        (RegionKind::Polled, 10 << 10),
        (RegionKind::Polled, 1 << 20),
    ] {
        let (pair, regions) = pair(|_| (), |node| vec![node.region(kind, bytes * OUTSTANDING)]);
        let key = pair.target(0, 0, 0).region;
        let (end, mut nodes) = (pair.ends[0], pair.nodes);
        let (peer, mut node) = (nodes.pop().unwrap(), nodes.pop().unwrap());
        let source = node.region(kind, bytes);
        // The system gives pages when they are first used.
        source.write(0, &vec![1; bytes]);
        regions[1][0].write(0, &vec![1; bytes * OUTSTANDING]);
        let (mut posted, mut done, mut time) = (0, 0, Duration::ZERO);
        let before = cpu_time();
        let peer = against_a_polled_peer(peer, || {
            let (began, mut idle, mut out) = (Instant::now(), 0, Vec::new());
            while began.elapsed() < SPELL {
                while posted < done + OUTSTANDING {
                    let target = Target { region: key, offset: bytes * (posted % OUTSTANDING) };
                    let op = Op::Write { source: Source::Region(whole(&source)), target };
                    node.fabric.post(end, op, Token(posted as u64)).unwrap();
                    posted += 1;
                }
                go_on(&mut node, &mut idle, &mut out);
                done += out.drain(..).filter(|c| matches!(c, Completion::Done { .. })).count();
            }
            time = began.elapsed();
        });
        let (sent, came) = (node.fabric.stats(), peer.fabric.stats());
        let cpu = cpu_time() - before;
        let (plain, plain_cpu) = plain_stream(bytes);
        eprintln!(
            "{kind:?} writes of {bytes} bytes: {:.2} GB/s (a plain stream {plain:.2}), {:.0} us of a processor for 1 MB (a \
             plain stream {plain_cpu:.0}), {:.2} calls each to send, {:.2} to \
             receive, {:.0} % in place",
            (done * bytes) as f64 / time.as_secs_f64() / 1e9,
            cpu.as_secs_f64() * 1e12 / (done * bytes) as f64,
            sent.send_calls as f64 / done as f64,
            came.receive_calls as f64 / done as f64,
            100.0 * came.bytes_in_place as f64 / came.bytes_received as f64,
        );
    }
}

#[test]
#[ignore = "measures"]
fn noticing_a_death() {
    let mut times: Vec<Duration> = (0..20)
        .map(|_| {
            let cluster = cluster();
            let mut node = Node::open(&cluster, 1);
            let argument = format!("{cluster} {}", node.addresses()[0]);
            let mut child = Process::start("tcp::processes::child_that_connects", &argument);
            let end = node.connect(2, &[]);
            node.until("a connection", |node| node.remote(end).is_some());
            let began = Instant::now();
            child.0.kill().unwrap();
            node.sleep_until_broken(end);
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    eprintln!("from `kill -9` to a break, of 20: median {:?}, at most {:?}", times[10], times[19]);
}
