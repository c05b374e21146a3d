//! The rules that hold after every run.

use std::collections::{BTreeMap, BTreeSet};

use squall_onepipe::Mode;

use super::{Log, NAMELESS, Received, Sent, World};

/// Checks all rules. The group is quiet, and all that could be delivered was.
pub(crate) fn all(world: &World) {
    let survivors: BTreeSet<usize> = world.survivors().into_iter().collect();
    for mode in Mode::ALL {
        order(&world.logs, mode);
        stamps(world, mode);
        for (&from, &to) in survivors.iter().flat_map(|from| survivors.iter().map(move |to| (from, to))) {
            nameless(&world.logs, mode, from, to);
        }
        for (sender, log) in world.logs.iter().enumerate() {
            for id in 0..log.sent.len() as u64 {
                if log.sent[id as usize].mode == mode && !log.sent[id as usize].is_empty {
                    scattering(world, &survivors, sender, id);
                }
            }
        }
    }
    for &rank in &survivors {
        let removed: BTreeSet<usize> = world.logs[rank].removed.iter().copied().collect();
        assert_eq!(removed, world.court.removed, "rank {rank} knows the removed ranks");
        assert!(!world.logs[rank].has_ended);
        assert_eq!(world.logs[rank].removed.len(), removed.len(), "rank {rank} was told once");
    }
}

/// Every receiver delivers in the order of (timestamp, sender), and nothing twice.
pub(crate) fn order(logs: &[Log], mode: Mode) {
    for (rank, log) in logs.iter().enumerate() {
        let places = log.received[mode as usize].iter().map(|received| (received.stamp, received.sender));
        let places: Vec<(u64, usize)> = places.collect();
        if let Some(pair) = places.windows(2).find(|pair| pair[0] >= pair[1]) {
            panic!("rank {rank} delivers {pair:?} in this order, {mode:?}");
        }
    }
}

/// A scattering has one timestamp at all receivers, not before it was sent, and different from those of its sender's
/// others. So any two receivers deliver the messages that both receive in the same order.
fn stamps(world: &World, mode: Mode) {
    let (logs, removed) = (&world.logs, &world.court.removed);
    let mut stamps: BTreeMap<(usize, u64), u64> = BTreeMap::new();
    let mut used: BTreeMap<(usize, u64), u64> = BTreeMap::new();
    let all = logs.iter().enumerate();
    let all = all.flat_map(|(rank, log)| log.received[mode as usize].iter().map(move |received| (rank, received)));
    for (rank, &Received { stamp, sender, id }) in all.filter(|(_, received)| received.id != NAMELESS) {
        let known = *stamps.entry((sender, id)).or_insert(stamp);
        assert_eq!(known, stamp, "scattering {id} of rank {sender} has two timestamps");
        let of = *used.entry((sender, stamp)).or_insert(id);
        assert_eq!(of, id, "two scatterings of rank {sender} have the timestamp {stamp}");
        let sent = &logs[sender].sent[id as usize];
        assert!(stamp >= sent.clock, "scattering {id} of rank {sender} is stamped before it was sent");
        // So a rank that knows of a delivery, by whatever means, sends later messages. With best effort, ranks that are
        // removed and don't know it hold up nobody, and may still deliver what one of them sends.
        let is_among_removed = mode == Mode::BestEffort && removed.contains(&sender) && removed.contains(&rank);
        assert!(
            is_among_removed || Some(stamp) > sent.above,
            "{id} of rank {sender}, {sent:?}, comes before what was delivered: {stamp}"
        );
    }
}

/// Of empty messages, as many are delivered as there should be.
fn nameless(logs: &[Log], mode: Mode, from: usize, to: usize) {
    let is_due = |sent: &&Sent| {
        let is_back =
            if mode == Mode::Reliable { !sent.given_back.is_empty() } else { sent.given_back.contains(&None) };
        sent.mode == mode && sent.is_empty && sent.to.contains(&to) && !is_back
    };
    let received = &logs[to].received[mode as usize];
    let delivered = received.iter().filter(|received| (received.sender, received.id) == (from, NAMELESS)).count();
    let due = logs[from].sent.iter().filter(is_due).count();
    assert_eq!(delivered, due, "empty messages from {from} to {to}, {mode:?}");
}

/// A scattering is delivered by the ranks that should deliver it.
fn scattering(world: &World, survivors: &BTreeSet<usize>, sender: usize, id: u64) {
    let sent = &world.logs[sender].sent[id as usize];
    let has = |&rank: &usize| {
        let received = &world.logs[rank].received[sent.mode as usize];
        received.iter().any(|received| (received.sender, received.id) == (sender, id))
    };
    let delivered: BTreeSet<usize> = (0..world.ranks.len()).filter(has).collect();
    let to: BTreeSet<usize> = sent.to.iter().copied().collect();
    let correct: BTreeSet<usize> = to.intersection(survivors).copied().collect();
    let got: BTreeSet<usize> = correct.intersection(&delivered).copied().collect();
    let what =
        format!("scattering {id} of rank {sender}, {sent:?}, delivered by {delivered:?}, left are {survivors:?}");
    assert!(delivered.is_subset(&to), "delivered by others: {what}");
    let was_sent = !sent.given_back.contains(&None);
    if !was_sent {
        assert!(delivered.is_empty() && sent.given_back.len() == 1, "it was given back unsent: {what}");
    }
    if !sent.given_back.is_empty() {
        assert!(correct.len() < to.len(), "it was given back, though no rank failed: {what}");
    }
    match sent.mode {
        Mode::BestEffort if survivors.contains(&sender) && was_sent => {
            assert_eq!(got, correct, "lost between survivors: {what}");
        }
        Mode::BestEffort => {}
        Mode::Reliable if survivors.contains(&sender) => {
            assert!(sent.given_back.len() <= 1, "given back twice: {what}");
            match sent.given_back.is_empty() {
                true => assert_eq!(got, correct, "lost: {what}"),
                false => assert!(delivered.is_empty(), "given back, but delivered: {what}"),
            }
        }
        Mode::Reliable => assert!(got.is_empty() || got == correct, "delivered by some only: {what}"),
    }
}
