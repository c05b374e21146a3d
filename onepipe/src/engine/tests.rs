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

fn ranks(net: &SimNet, n: u32, topology: &Topology) -> Vec<(SimFabric, Pipe)> {
    let nodes: Vec<NodeId> = (0..n).map(NodeId).collect();
    let config = OnePipeConfig::new(nodes.clone(), GroupTag { layer: 10, group: 0, epoch: 1 });
    let config = OnePipeConfig { ring_bytes: 1024, topology: topology.clone(), ..config };
    let rank = |node| {
        let mut fabric = net.fabric(node);
        let stamps = Clocked::new(HostClock::default());
        let engine = Engine::create(&mut fabric, config.clone(), stamps, "a test").expect("a sound configuration");
        (fabric, engine)
    };
    nodes.into_iter().map(rank).collect()
}

/// Lets some time pass, and steps all ranks once. None accepts more than it has promised itself.
fn turn(net: &SimNet, ranks: &mut [(SimFabric, Pipe)]) {
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
            let (barrier, own) = (engine.barrier(mode), engine.barriers.own(mode));
            assert!(barrier <= own, "{mode:?}: accepts {barrier}, and has promised {own}");
            engine.deliver(mode, usize::MAX, &mut |_| {});
        }
    }
}

fn connect(net: &SimNet, ranks: &mut [(SimFabric, Pipe)]) {
    while !ranks.iter().all(|(_, engine)| engine.is_connected()) {
        turn(net, ranks);
    }
}

/// A hierarchy below rank 2, or rank 2 between the others.
fn below_two(is_root: bool) -> Topology {
    let racks = if is_root { vec![vec![2], vec![0], vec![1]] } else { vec![vec![0], vec![2], vec![1]] };
    Topology::Hierarchy { racks, degree: if is_root { 2 } else { 1 } }
}

/// A peer writes a record, the tail, and a barrier behind it, all the time. Whatever barrier is read, the messages
/// below it are there.
#[test]
fn barriers_are_read_before_what_they_cover() {
    const MODE: Mode = Mode::BestEffort;
    const RECORDS: u64 = 300_000;
    let net = SimNet::new(SimConfig::fast(), 1);
    let (mut fabric, mut engine) = ranks(&net, 2, &Topology::Flat).swap_remove(0);
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

/// Lets rank 2 write garbage into rank 0's memory, between the traffic of three ranks, and removes it. Returns which
/// ranks are accused, and by which.
fn garbage(seed: u64, topology: &Topology) -> Vec<(usize, usize)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let net = SimNet::new(SimConfig::fast(), seed);
    let mut ranks = ranks(&net, 3, topology);
    connect(&net, &mut ranks);
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
        turn(&net, &mut ranks);
    }
    let failure_timestamp = match random.bool() {
        true => ranks[..2].iter().map(|(_, engine)| engine.barrier(Mode::Reliable)).max().unwrap_or(0),
        false => word(&mut random, net.now().as_nanos()),
    };
    let settlement = Settlement { epoch: 2, failed: vec![2], failure_timestamp };
    for (fabric, engine) in &mut ranks[..2] {
        engine.settle(fabric, net.now(), &settlement);
    }
    (0..20).for_each(|_| turn(&net, &mut ranks));
    let mut accused = Vec::new();
    for (me, (_, engine)) in ranks[..2].iter_mut().enumerate() {
        while let Some(event) = engine.next_event() {
            if let PipeEvent::Broken { rank, .. } = event {
                accused.push((rank, me));
            }
        }
    }
    accused
}

#[test]
fn who_writes_garbage_is_accused_and_nobody_else() {
    let accused: Vec<_> = (0..200).flat_map(|seed| garbage(seed, &Topology::Flat)).collect();
    assert!(accused.iter().all(|&(rank, _)| rank == 2), "{accused:?}");
    assert!(accused.len() > 100, "only {} were accused", accused.len());
}

/// Messages that come too late below a barrier from the parent tell against their senders, but never against a rank's
/// own.
#[test]
fn whatever_a_parent_writes_no_rank_accuses_itself_or_passes_its_own_promise() {
    for seed in 0..200 {
        let accused = garbage(seed, &below_two(seed % 2 == 0));
        assert!(accused.iter().all(|(rank, me)| rank != me), "seed {seed}: {accused:?}");
    }
}

/// A parent claims that all ranks have gone far ahead.
#[test]
fn a_barrier_from_the_parent_does_not_pass_what_a_rank_is_still_to_send() {
    for mode in Mode::ALL {
        let net = SimNet::new(SimConfig::fast(), 1);
        let mut ranks = ranks(&net, 3, &below_two(true));
        connect(&net, &mut ranks);
        let ahead = net.now().as_nanos() + 1_000_000_000;
        let region = ranks[0].1.links.peers[2].region.clone();
        region.store(STATUS + 8 * StatusWord::Down(mode).index(), status::encode(1, ahead));
        let (mut sent, mut received) = (0, 0);
        for _ in 0..50 {
            let now = net.now();
            let (fabric, engine) = &mut ranks[0];
            engine.step(fabric, now);
            sent += u32::from(engine.scatter(now, mode, &[Message { to: 0, bytes: b"" }]).is_ok());
            turn(&net, &mut ranks[1..]);
            let (fabric, engine) = &mut ranks[0];
            engine.step(fabric, net.now());
            assert!(engine.barrier(mode) < ahead);
            engine.deliver(mode, usize::MAX, &mut |_| received += 1);
            assert_eq!(engine.next_event(), None, "{mode:?}");
        }
        assert!(sent == 50 && received > 0, "{mode:?}: {received} of {sent}");
    }
}

/// A member that stays reports a barrier that no rank has told, and the greatest that is reported counts.
#[test]
fn a_settlement_reaches_no_further_than_a_rank_has_promised() {
    let net = SimNet::new(SimConfig::fast(), 1);
    let mut ranks = ranks(&net, 3, &Topology::Flat);
    connect(&net, &mut ranks);
    let ahead = net.now() + Duration::from_secs(1);
    let (fabric, engine) = &mut ranks[2];
    engine.scatter(ahead, Mode::Reliable, &[Message { to: 0, bytes: b"" }]).expect("there is room");
    engine.step(fabric, ahead);
    for _ in 0..5 {
        turn(&net, &mut ranks[..2]);
    }
    let (fabric, engine) = &mut ranks[0];
    assert_ne!(engine.orders[Mode::Reliable.index()].rings[2].tail(), 0, "the message is there");
    let settlement = Settlement { epoch: 2, failed: vec![2], failure_timestamp: u64::MAX };
    engine.settle(fabric, net.now(), &settlement);
    let bound = engine.barriers.own(Mode::Reliable);
    let removed = std::iter::from_fn(|| engine.next_event()).last();
    assert_eq!(removed, Some(PipeEvent::Removed { rank: 2, failure_timestamp: bound }));
    let later = Settlement { epoch: 3, failed: Vec::new(), failure_timestamp: u64::MAX };
    engine.settle(fabric, net.now(), &later);
    assert_eq!(engine.barriers.own(Mode::Reliable), bound, "a promise outlives its epoch");
    assert_eq!(engine.orders[Mode::Reliable.index()].first_waiting(), None, "the message does not count");
}
