//! Sleepers that are woken by a ring, or else over the control plane; and peers that misuse a bell.
//!
//! They run as those of `device_tests` do.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{
    VerbsFabric,
    bell::{BELL, RINGS},
    device_tests::{PATIENCE, connect, nodes, until},
    endpoint::{ConnectionStage, Endpoint},
    events::DeviceReport,
    setup::SetUp,
};
use crate::{
    Completion, EndpointId, Fabric, GroupTag, NodeId, Op, Region, RegionKind, Source, Target, Time, Token, Wait,
    endpoints::slot_of,
};

fn bell(node: &mut VerbsFabric, peer: u32) -> Option<&mut Endpoint> {
    let (id, _) = node.endpoints.get_named((NodeId(peer), BELL))?;
    node.endpoints.get_mut(id)
}

fn has_bell(node: &mut VerbsFabric, peer: u32) -> bool {
    bell(node, peer).is_some_and(|bell| bell.up().is_some())
}

/// Polls all nodes until `done`.
#[track_caller]
fn poll_until(nodes: &mut [VerbsFabric], mut done: impl FnMut(&mut [VerbsFabric]) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done(nodes) {
        nodes.iter_mut().for_each(|node| node.poll(Time::boot_clock(), &mut Vec::new()));
        assert!(Instant::now() < deadline, "waited in vain");
        thread::yield_now();
    }
}

/// Nodes of which the second writes a table of the first, and that have a bell; with their endpoint, the second's
/// first, and the table.
fn with_a_bell(test: &str) -> Option<([VerbsFabric; 2], [EndpointId; 2], Region)> {
    let mut nodes = nodes::<2>(test)?;
    let table = nodes[0].register(RegionKind::Polled, 64).expect("memory");
    let ends = connect(&mut nodes, 1, 1, std::slice::from_ref(&table));
    poll_until(&mut nodes, |nodes| has_bell(&mut nodes[0], 1) && has_bell(&mut nodes[1], 0));
    Some((nodes, ends, table))
}

/// Has the first node ready to sleep: it is armed, and its announcement is complete.
fn announce(nodes: &mut [VerbsFabric; 2], on: EndpointId) {
    let before = nodes[0].core.stats.announced;
    poll_until(nodes, |nodes| {
        nodes[0].arm();
        let endpoint = nodes[0].endpoints.get_mut(on).expect("an endpoint");
        let is_complete = endpoint.sending.completed >= endpoint.announcement.end && !endpoint.announcement.is_due();
        is_complete && nodes[0].core.stats.announced > before
    });
    nodes[0].poll(Time::boot_clock(), &mut Vec::new());
    assert!(!nodes[0].core.look_again, "there was something new");
}

/// Has the second node write the table, and poll alone until it has woken the other.
fn write(nodes: &mut [VerbsFabric; 2], on: EndpointId, table: &Region, word: u64) {
    let before = woken(&nodes[1]);
    let target = Target { region: table.key(), offset: 0 };
    nodes[1].post(on, Op::Write { source: Source::Inline(&word.to_ne_bytes()), target }, Token(1)).expect("a post");
    poll_until(&mut nodes[1..], |nodes| woken(&nodes[0]) > before);
}

fn woken(node: &VerbsFabric) -> u64 {
    node.core.stats.rung + node.core.stats.told
}

/// The first node sleeps, until what the peer did wakes it, and finds the word.
fn wakes(nodes: &mut [VerbsFabric; 2], on: EndpointId, table: &Region, word: u64) {
    let deadline = Time::boot_clock() + PATIENCE;
    let is_told = |node: &mut VerbsFabric| node.endpoints.get_mut(on).is_none_or(|endpoint| endpoint.announcement.used);
    while !is_told(&mut nodes[0]) {
        nodes[0].wait(deadline);
        assert!(Time::boot_clock() < deadline, "slept through a write");
        nodes[0].doorbell.arm();
        nodes[0].completions.announce_next();
        nodes[0].poll(Time::boot_clock(), &mut Vec::new());
    }
    assert!(nodes[0].core.look_again, "it may sleep before it looks again");
    assert_eq!(table.load(0), word);
    nodes[0].disarm();
}

/// Has the bell of a node fail, and polls until it is gone on both sides.
fn fail_bell(nodes: &mut [VerbsFabric; 2], at: usize) {
    let number = bell(&mut nodes[at], 1 - at as u32).expect("a bell").qp.number();
    nodes[at].on_report(DeviceReport::QpFailed { number }, Time::boot_clock());
    poll_until(nodes, |nodes| bell(&mut nodes[0], 1).is_none() && bell(&mut nodes[1], 0).is_none());
}

#[test]
fn a_ring_wakes() {
    let Some((mut nodes, [writer, sleeper], table)) = with_a_bell("ring") else { return };
    for word in 1..=3 * RINGS as u64 {
        announce(&mut nodes, sleeper);
        write(&mut nodes, writer, &table, word);
        assert_eq!((nodes[1].core.stats.rung, nodes[1].core.stats.told), (word, 0));
        wakes(&mut nodes, sleeper, &table, word);
    }
}

/// A bell that fails takes no endpoint with it, and the control plane takes its place; the next endpoint has one anew.
#[test]
fn without_a_bell_the_control_plane_wakes() {
    let Some((mut nodes, [writer, sleeper], table)) = with_a_bell("link") else { return };
    for at in [0, 1] {
        fail_bell(&mut nodes, at);
        let told = nodes[1].core.stats.told;
        announce(&mut nodes, sleeper);
        write(&mut nodes, writer, &table, 1 + at as u64);
        assert_eq!((nodes[1].core.stats.rung, nodes[1].core.stats.told), (0, told + 1));
        wakes(&mut nodes, sleeper, &table, 1 + at as u64);
        connect(&mut nodes, 1, 2 + at as u64, &[]);
        poll_until(&mut nodes, |nodes| has_bell(&mut nodes[0], 1) && has_bell(&mut nodes[1], 0));
    }
}

/// A ring that may be lost with its bell is made up for, whichever side's bell ends.
#[test]
fn a_ring_outlives_its_bell() {
    for at in [1, 0] {
        let Some((mut nodes, [writer, sleeper], table)) = with_a_bell("lost") else { return };
        announce(&mut nodes, sleeper);
        write(&mut nodes, writer, &table, 5);
        assert_eq!((nodes[1].core.stats.rung, nodes[1].core.stats.told), (1, 0));
        let ending = bell(&mut nodes[at], 1 - at as u32).expect("a bell").id;
        nodes[at].disconnect(ending);
        if at == 1 {
            poll_until(&mut nodes[1..], |nodes| nodes[0].core.stats.told == 1);
        }
        // The sleeper's bell takes along the ring that this node has not taken.
        wakes(&mut nodes, sleeper, &table, 5);
        poll_until(&mut nodes, |nodes| bell(&mut nodes[0], 1).is_none() && bell(&mut nodes[1], 0).is_none());
        assert_eq!(nodes[1].core.stats.told, 1);
    }
}

/// Rings that find no receive wait, a poll takes few of them, and endpoints go on.
#[test]
fn a_peer_that_rings_all_the_time_does_no_harm() {
    let Some((mut nodes, [writer, sleeper], table)) = with_a_bell("flood") else { return };
    let mut rings = 0;
    let mut ring_all = |nodes: &mut [VerbsFabric]| {
        while bell(&mut nodes[0], 0).expect("a bell").can_ring() {
            let id = bell(&mut nodes[0], 0).expect("a bell").id;
            let VerbsFabric { endpoints, core, .. } = &mut nodes[0];
            endpoints.get_mut(id).expect("a bell").ring(core, slot_of(sleeper), Token(writer.0));
            rings += 1;
        }
        rings
    };
    // The other node does not poll: its receives run out, and then the queue here is full.
    poll_until(&mut nodes[1..], |nodes| ring_all(nodes) == 2 * RINGS as u64);
    for _ in 0..1000 {
        nodes[1].poll(Time::boot_clock(), &mut Vec::new());
    }
    assert_eq!(ring_all(&mut nodes[1..]), 2 * RINGS as u64);
    nodes[1].core.bells.to_wake.push(writer);
    nodes[1].poll(Time::boot_clock(), &mut Vec::new());
    assert_eq!((nodes[1].core.stats.rung, nodes[1].core.stats.told), (0, 1), "a full bell");
    let before = nodes[0].core.stats.completions;
    nodes[0].poll(Time::boot_clock(), &mut Vec::new());
    assert_eq!(nodes[0].core.stats.completions - before, RINGS as u64, "of twice as many rings");
    poll_until(&mut nodes, |nodes| nodes[0].core.stats.completions - before == 2 * RINGS as u64);
    assert!(has_bell(&mut nodes[0], 1) && has_bell(&mut nodes[1], 0), "it outlives a flood");
    announce(&mut nodes, sleeper);
    write(&mut nodes, writer, &table, 9);
    wakes(&mut nodes, sleeper, &table, 9);
}

/// A ring counts for endpoints with its sender alone.
#[test]
fn a_ring_for_the_endpoint_of_another_node_is_ignored() {
    let Some(mut nodes) = nodes::<3>("others") else { return };
    let table = nodes[0].register(RegionKind::Polled, 64).expect("memory");
    let ends = [1, 2].map(|at| connect(&mut nodes, at, 1, std::slice::from_ref(&table)));
    poll_until(&mut nodes, |nodes| has_bell(&mut nodes[2], 0));
    let [[_, of_honest], [forger, of_forger]] = ends;
    let announced = |node: &mut VerbsFabric, id| {
        let endpoint = node.endpoints.get_mut(id).expect("an endpoint");
        !endpoint.announcement.is_due() && endpoint.sending.completed >= endpoint.announcement.end
    };
    poll_until(&mut nodes, |nodes| {
        nodes[0].arm();
        announced(&mut nodes[0], of_honest) && announced(&mut nodes[0], of_forger)
    });
    for (rings, slot, counts) in [(1, slot_of(of_honest), false), (2, u32::MAX, false), (3, slot_of(of_forger), true)] {
        let endpoint = nodes[2].endpoints.get_mut(forger).expect("an endpoint");
        let theirs = endpoint.up().cloned().expect("a connection");
        endpoint.stage = ConnectionStage::Up(SetUp { slot, ..theirs });
        nodes[2].core.bells.to_wake.push(forger);
        nodes[2].poll(Time::boot_clock(), &mut Vec::new());
        assert_eq!(nodes[2].core.stats.rung, rings);
        let before = nodes[0].core.stats.completions;
        poll_until(&mut nodes[..1], |nodes| nodes[0].core.stats.completions > before);
        let used =
            [of_honest, of_forger].map(|id| nodes[0].endpoints.get_mut(id).expect("an endpoint").announcement.used);
        assert_eq!(used, [false, counts], "ring {rings}, for slot {slot}");
    }
}

/// A bell ends with the last endpoint between its nodes, and comes back with another. Layers can't have one.
#[test]
fn a_bell_ends_with_the_last_endpoint() {
    let Some((mut nodes, [first, _], _)) = with_a_bell("last") else { return };
    let [second, _] = connect(&mut nodes, 1, 2, &[]);
    nodes[1].disconnect(first);
    until(&mut nodes, |_, completion| matches!(completion, Completion::Broken { .. }).then_some(()));
    assert!(has_bell(&mut nodes[0], 1) && has_bell(&mut nodes[1], 0), "an endpoint is left");
    nodes[1].disconnect(second);
    assert!(bell(&mut nodes[1], 0).is_none());
    until(&mut nodes, |_, completion| matches!(completion, Completion::Broken { .. }).then_some(()));
    assert!(bell(&mut nodes[0], 1).is_none());
    assert_eq!(nodes.each_ref().map(|node| node.endpoints.ids().len()), [0, 0]);
    connect(&mut nodes, 1, 3, &[]);
    poll_until(&mut nodes, |nodes| has_bell(&mut nodes[0], 1) && has_bell(&mut nodes[1], 0));
    nodes[1].connect(NodeId(0), BELL, &[], b"");
    until(&mut nodes, |_, completion| matches!(completion, Completion::Broken { .. }).then_some(()));
}

/// The time of a round in which each of two nodes wakes the other, with a bell and without. It prints figures, and is
/// run by hand: `tests/verbs-lab/fabric bell_tests::the_time_of_a_wake_up --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn the_time_of_a_wake_up() {
    let Some(mut nodes) = nodes::<2>("time") else { return };
    let tables = [0, 1].map(|node: usize| nodes[node].register(RegionKind::Polled, 64).expect("memory"));
    let tag = GroupTag { layer: 9, group: 1, epoch: 1 };
    let ends = [0, 1].map(|node: usize| nodes[node].connect(NodeId(1 - node as u32), tag, &tables[node..=node], b""));
    for kind in ["bell", "control plane"].repeat(8) {
        match kind {
            "bell" => {
                // The bell comes with another endpoint.
                let other = GroupTag { epoch: tag.epoch + 1 + nodes[0].stats().told, ..tag };
                (0..2).for_each(|at: usize| _ = nodes[at].connect(NodeId(1 - at as u32), other, &[], b""));
                poll_until(&mut nodes, |nodes| {
                    let is_up = |at: usize| nodes[at].endpoints.get_mut(ends[at]).is_some_and(|end| end.up().is_some());
                    (0..2).all(is_up) && has_bell(&mut nodes[0], 1) && has_bell(&mut nodes[1], 0)
                });
            }
            _ => fail_bell(&mut nodes, 0),
        }
        let before = nodes.each_ref().map(|node| (node.stats().rung, node.stats().told));
        let begun = tables[0].load(0);
        let [first, second] = &mut nodes;
        let mut times = thread::scope(|scope| {
            scope.spawn(|| rounds(second, ends[1], [&tables[1], &tables[0]], begun, false));
            rounds(first, ends[0], [&tables[0], &tables[1]], begun, true)
        });
        times.sort();
        let mean = times.iter().sum::<Duration>() / times.len() as u32;
        let after = nodes.each_ref().map(|node| (node.stats().rung, node.stats().told));
        let woken = [0, 1].map(|at: usize| (after[at].0 - before[at].0, after[at].1 - before[at].1));
        let (tenth, median) = (times[times.len() / 10], times[times.len() / 2]);
        eprintln!("two wake-ups by {kind}: a tenth within {tenth:?}, half within {median:?}, mean {mean:?}; {woken:?}");
    }
}

/// One node's part of some rounds: each writes the other's word, and sleeps until its own is written.
fn rounds(node: &mut VerbsFabric, on: EndpointId, tables: [&Region; 2], begun: u64, serves: bool) -> Vec<Duration> {
    let [own, theirs] = tables;
    let rounds = begun + 1..=begun + 200;
    let mut times = Vec::new();
    for round in rounds.clone() {
        let since = Instant::now();
        if !serves {
            sleep_until(node, || own.load(0) >= round);
        }
        let word = round.to_ne_bytes();
        let target = Target { region: theirs.key(), offset: 0 };
        node.post(on, Op::Write { source: Source::Inline(&word), target }, Token::UNSIGNALED).expect("a post");
        if serves {
            sleep_until(node, || own.load(0) >= round);
        }
        times.push(since.elapsed());
    }
    // The last write wakes its reader when it is complete here.
    if serves {
        let word = rounds.end().to_ne_bytes();
        let target = Target { region: theirs.key(), offset: 8 };
        node.post(on, Op::Write { source: Source::Inline(&word), target }, Token(1)).expect("a post");
        until(std::slice::from_mut(node), |_, c| matches!(c, Completion::Done { .. }).then_some(()));
    } else {
        sleep_until(node, || own.load(8) >= *rounds.end());
    }
    times
}

fn sleep_until(node: &mut VerbsFabric, done: impl Fn() -> bool) {
    let limit = Time::boot_clock() + PATIENCE;
    loop {
        node.arm();
        node.poll(Time::boot_clock(), &mut Vec::new());
        if done() {
            return node.disarm();
        }
        node.wait(limit);
        assert!(Time::boot_clock() < limit, "slept through a write");
    }
}
