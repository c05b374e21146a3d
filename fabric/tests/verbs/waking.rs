//! A thread that sleeps is woken by any work for it.

use std::{thread, time::Duration};

use squall_fabric::{
    Completion, EndpointId, Fabric, Op, Region, RegionKey, RegionKind, Slice, Source, Target, Time, Token, Wait,
    verbs::VerbsFabric,
};

use crate::world::{PATIENCE, connect, is_there, two};

const ROUNDS: u64 = 300;

/// Sleeps until `done`, which looks at completions and at memory after each poll.
fn sleep_until(fabric: &mut VerbsFabric, what: &str, mut done: impl FnMut(&[Completion]) -> bool) {
    let limit = Time::boot_clock() + PATIENCE;
    let mut completions = Vec::new();
    loop {
        fabric.arm();
        completions.clear();
        fabric.poll(Time::boot_clock(), &mut completions);
        if done(&completions) {
            return fabric.disarm();
        }
        fabric.wait(limit);
        assert!(Time::boot_clock() < limit, "slept through {what}");
    }
}

/// One player writes a word of the other's memory and sleeps until the answer is there.
fn play(fabric: &mut VerbsFabric, e: EndpointId, table: &Region, theirs: RegionKey, serves: bool, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for round in 1..=ROUNDS {
        if !serves {
            sleep_until(fabric, "a word", |_| table.load(0) == round);
        }
        // The other node is about to sleep, sleeps, or has slept for long.
        for _ in 0..rng.usize(..400) {
            thread::yield_now();
        }
        let word = round.to_ne_bytes();
        let op = Op::Write { source: Source::Inline(&word), target: Target { region: theirs, offset: 0 } };
        fabric.post(e, op, Token::UNSIGNALED).expect("a post");
        fabric.poll(Time::boot_clock(), &mut Vec::new());
        if serves {
            sleep_until(fabric, "the answer", |_| table.load(0) == round);
        }
    }
    // The peer is told of the last write when its completion comes in.
    let limit = Time::boot_clock() + Duration::from_secs(1);
    while Time::boot_clock() < limit {
        fabric.poll(Time::boot_clock(), &mut Vec::new());
        thread::yield_now();
    }
}

#[test]
fn a_word_in_polled_memory_wakes() {
    if !is_there() {
        return;
    }
    let mut fabrics = two();
    let tables = [0, 1].map(|node: usize| fabrics[node].register(RegionKind::Polled, 64).expect("memory"));
    let expose = [std::slice::from_ref(&tables[0]), std::slice::from_ref(&tables[1])];
    let [(a, to_second), (b, to_first)] = connect(&mut fabrics, expose);
    let [mut first, mut second] = fabrics;
    thread::scope(|scope| {
        scope.spawn(|| play(&mut first, a, &tables[0], to_second[0].key, true, 1));
        scope.spawn(|| play(&mut second, b, &tables[1], to_first[0].key, false, 2));
    });
    for fabric in [first, second] {
        let stats = fabric.stats();
        assert!(stats.announced > 0 && stats.rung > 0, "no thread slept: {stats:?}");
        assert!(stats.rung + stats.told <= ROUNDS + 1, "woken more often than written: {stats:?}");
    }
}

#[test]
fn a_message_wakes() {
    if !is_there() {
        return;
    }
    let mut fabrics = two();
    let inbox = fabrics[1].register(RegionKind::Bulk, 64).expect("memory");
    let [(a, _), (b, _)] = connect(&mut fabrics, [&[], &[]]);
    let [mut first, mut second] = fabrics;
    for round in 0..ROUNDS {
        let into = Slice { region: &inbox, offset: 0, len: 64 };
        second.post(b, Op::Recv { into }, Token(round)).expect("a receive");
        thread::scope(|scope| {
            scope.spawn(|| {
                sleep_until(&mut second, "a message", |completions| {
                    completions.iter().any(|c| matches!(c, Completion::Received { token: Token(t), .. } if *t == round))
                });
            });
            let op = Op::Send { source: Source::Inline(b"message"), imm: None };
            first.post(a, op, Token(round)).expect("a send");
            sleep_until(&mut first, "a completion", |completions| {
                completions.iter().any(|c| matches!(c, Completion::Done { result: Ok(()), .. }))
            });
        });
    }
}

#[test]
fn a_waker_wakes() {
    if !is_there() {
        return;
    }
    let [mut fabric, _other] = two();
    let waker = fabric.waker();
    for _ in 0..ROUNDS {
        fabric.arm();
        thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            let limit = Time::boot_clock() + PATIENCE;
            fabric.wait(limit);
            assert!(Time::boot_clock() < limit, "slept through a call of the waker");
        });
    }
}

#[test]
fn the_end_of_a_peer_wakes() {
    if !is_there() {
        return;
    }
    let mut fabrics = two();
    let table = fabrics[1].register(RegionKind::Polled, 64).expect("memory");
    connect(&mut fabrics, [&[], std::slice::from_ref(&table)]);
    let [first, mut second] = fabrics;
    thread::scope(|scope| {
        scope.spawn(move || drop(first));
        sleep_until(&mut second, "the end of a peer", |completions| {
            completions.iter().any(|c| matches!(c, Completion::Broken { .. }))
        });
    });
}
