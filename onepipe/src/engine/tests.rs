//! The words of peers are read in the right order, and a peer that writes what makes no sense is found.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use squall_fabric::{
    GroupTag, NodeId,
    sim::{SimConfig, SimFabric, SimNet},
};

use super::*;
use crate::{
    HostClock, Settlement,
    layout::STATUS,
    record::{HEADER, Header, Label},
    ring::Ring,
    stamps::Clocked,
    status::{self, StatusWord},
    timestamp::Timestamp,
};

type Pipe = Engine<Clocked<HostClock>>;

fn ranks(net: &SimNet, n: u32) -> Vec<(SimFabric, Pipe)> {
    let nodes: Vec<NodeId> = (0..n).map(NodeId).collect();
    let config = OnePipeConfig::new(nodes.clone(), GroupTag { layer: 10, group: 0, epoch: 1 });
    let config = OnePipeConfig { ring_bytes: 1024, ..config };
    let rank = |node| {
        let mut fabric = net.fabric(node);
        let stamps = Clocked::new(HostClock::default());
        let engine = Engine::create(&mut fabric, config.clone(), stamps, "a test").expect("a sound configuration");
        (fabric, engine)
    };
    nodes.into_iter().map(rank).collect()
}

/// A peer writes a record, the tail, and a barrier behind it, all the time. Whatever barrier is read, the messages
/// below it are there.
#[test]
fn barriers_are_read_before_what_they_cover() {
    const MODE: Mode = Mode::BestEffort;
    const RECORDS: u64 = 300_000;
    let net = SimNet::new(SimConfig::fast(), 1);
    let (mut fabric, mut engine) = ranks(&net, 2).swap_remove(0);
    let (region, layout) = (engine.links.peers[1].region.clone(), engine.links.layout);
    let ring = Ring::new(region.clone(), layout.ring(MODE), layout.ring_bytes);
    let (taken, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let late = thread::scope(|scope| {
        scope.spawn(|| {
            let mut written = 0;
            for stamp in 1..=RECORDS {
                while written + HEADER as u64 > taken.load(Ordering::Acquire) + layout.ring_bytes as u64 {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    thread::yield_now();
                }
                let header = Header { stamp: Timestamp::from_nanos(stamp), label: Label::new(0, 0) };
                ring.write(written, header, &[]);
                written += HEADER as u64;
                region.store(layout.tail(MODE), written);
                region.store(STATUS + 8 * StatusWord::Barrier(MODE).index(), status::encode(1, stamp + 1));
            }
        });
        let (mut next, mut late) = (1, None);
        while next <= RECORDS && late.is_none() {
            let barrier = engine.barrier(MODE);
            engine.step(&mut fabric, Time::from_nanos(1 << 40));
            engine.deliver(MODE, usize::MAX, &mut |delivery| {
                assert_eq!(delivery.stamp, next);
                late = late.or((delivery.stamp < barrier).then_some((delivery.stamp, barrier)));
                next += 1;
            });
            taken.store(engine.orders[MODE.index()].rings[1].taken(), Ordering::Release);
            late = late.or(engine.next_event().map(|_| (next, barrier)));
            if engine.orders[MODE.index()].rings[1].tail() == taken.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        late
    });
    assert_eq!(late, None, "a message that comes after the barrier above it");
}

/// A word that may mean something.
fn word(random: &mut fastrand::Rng, near: u64) -> u64 {
    match random.u8(..5) {
        0 => random.u64(..),
        1 => random.u64(..300),
        2 => 8 * random.u64(..300),
        3 => status::encode(random.u64(..3), near.wrapping_add_signed(random.i64(-100_000..100_000))),
        _ => near.wrapping_add_signed(random.i64(-100_000..100_000)) << 16 | random.u64(..128),
    }
}

#[test]
fn who_writes_garbage_is_accused_and_nobody_else() {
    let mut accused = 0;
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let net = SimNet::new(SimConfig::fast(), seed);
        let mut ranks = ranks(&net, 3);
        let turn = |ranks: &mut Vec<(SimFabric, Pipe)>| {
            let later = net.now() + Duration::from_micros(20);
            while net.advance(later, &mut Vec::new()) < later {}
            for (fabric, engine) in ranks {
                let mut completions = Vec::new();
                fabric.poll(later, &mut completions);
                for completion in &completions {
                    engine.on_completion(fabric, later, completion);
                }
                engine.step(fabric, later);
                for mode in Mode::ALL {
                    engine.deliver(mode, usize::MAX, &mut |_| {});
                }
            }
        };
        while !ranks.iter().all(|(_, engine)| engine.is_connected()) {
            turn(&mut ranks);
        }
        for _ in 0..40 {
            for (_, engine) in &mut ranks {
                let (mode, bytes) = (Mode::ALL[random.usize(..2)], vec![7; random.usize(..200)]);
                let messages = [0, 1, 2].map(|to| Message { to, bytes: &bytes });
                // Some may be refused for lack of room.
                let _ = engine.scatter(net.now(), mode, &messages[random.usize(..3)..]);
            }
            let region = &ranks[0].1.links.peers[2].region;
            // Rings begin behind the first 48 words.
            let words = if random.u8(..4) == 0 { region.len() / 8 } else { 48 };
            region.store(8 * random.usize(..words), word(&mut random, net.now().as_nanos()));
            turn(&mut ranks);
        }
        let failure_timestamp = ranks[..2].iter().map(|(_, engine)| engine.barrier(Mode::Reliable)).max().unwrap_or(0);
        let settlement = Settlement { epoch: 2, failed: vec![2], failure_timestamp };
        for (fabric, engine) in &mut ranks[..2] {
            engine.settle(fabric, net.now(), &settlement);
        }
        (0..20).for_each(|_| turn(&mut ranks));
        for (me, (_, engine)) in ranks[..2].iter_mut().enumerate() {
            while let Some(event) = engine.next_event() {
                if let PipeEvent::Broken { rank, reason } = event {
                    assert_eq!(rank, 2, "seed {seed}: accused by {me}: {reason}");
                    accused += 1;
                }
            }
        }
    }
    assert!(accused > 100, "only {accused} were accused");
}
