//! States of the past are what was recorded when they were the present.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use fastrand::Rng;

use super::*;
use crate::durable::history::logged;

#[test]
fn the_state_at_every_version_and_time_is_as_it_was() {
    let (world, _) = World::new(1, keep_all());
    world.view(1);
    let mut states = vec![(Tape::default(), Hlc(0))];
    for number in 0..120 {
        if number % 50 == 49 {
            world.view(1 + number / 49);
        }
        world.deliver(number, 64);
        states.push((world.now(), world.log_writer.end().time));
        if number % 40 == 20 {
            world.settle();
            world.history.snapshot().expect("the disk is well");
        }
    }
    world.settle();
    assert_eq!(world.snapshots(), [0, 21, 61, 101]);
    for (version, (state, time)) in states.iter().enumerate() {
        let expected = Logged { version: version as u64, time: *time };
        if version > 0 {
            assert_eq!(world.at(Moment::Version(version as u64)).expect("it is there"), (state.clone(), expected));
        }
        let next = states.get(version + 1).map_or(u64::MAX, |(_, next)| next.0);
        for time in [time.0, next - 1] {
            let (found, at) = world.at(Moment::Time(Hlc(time))).expect("it is there");
            assert_eq!((found.applied, at.version), (state.applied, version as u64), "at {time}");
            assert!(version == 0 || found == *state, "at {time}");
        }
    }
}

#[test]
fn what_is_not_globally_persisted_is_not_past() {
    let (world, _) = World::new(1, keep_all());
    world.view(1);
    world.fill(0..10, 10);
    let globally_persisted = world.log_writer.end();
    world.deliver(10, 10);
    world.log_writer.ask(|_| ()).recv().expect("the disk is well");
    assert!(matches!(
        world.at(Moment::Version(11)),
        Err(HistoryError::NotYet { asked: 11, globally_persisted: 10, .. })
    ));
    let (_, at) = world.at(Moment::Time(Hlc(u64::MAX))).expect("it is there");
    assert_eq!(at, logged(globally_persisted));
}

#[test]
fn a_panic_of_the_service_is_told_and_harms_nobody() {
    let (world, _) = World::new(1, keep_all());
    world.view(1);
    world.fill(0..3, 10);
    let panics = |_: &Tape, _| panic!("as the test wants");
    let past = crate::durable::history::past::look("tape", &world.history, Moment::Version(2), Tape::default(), panics);
    assert!(matches!(past.wait(), Err(HistoryError::Panicked)));
    assert_eq!(world.at(Moment::Version(3)).expect("it is there").0, world.now());
}

#[test]
fn many_may_ask_at_once() {
    let (world, _) = World::new(1, keep_all());
    world.view(1);
    world.fill(0..200, 64);
    let asks: Vec<_> = (0..100)
        .map(|nth| {
            let moment = Moment::Version(2 * nth + 1);
            crate::durable::history::past::look("tape", &world.history, moment, Tape::default(), |tape: &Tape, _| {
                tape.applied
            })
        })
        .collect();
    for (nth, past) in asks.into_iter().enumerate() {
        assert_eq!(past.wait().expect("it is there"), 2 * nth as u64 + 1);
    }
}

/// Asks random questions while commands come, snapshots are taken and the log is trimmed, on a disk of this kind.
fn random_questions(disk: Disk, seed: u64, commands: u64) {
    let world = World::open(disk, Policy { snapshot_bytes: 40 << 10, retain: Some(60 << 10) });
    let recorded = Mutex::new(vec![(Tape::default(), Hlc(0))]);
    let (is_over, answered, trimmed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let asks = |seed: u64| {
        let mut rng = Rng::with_seed(seed);
        while !is_over.load(Ordering::Acquire) {
            let (version, expected, until) = {
                let recorded = recorded.lock().expect("no panic");
                let version = rng.usize(..recorded.len());
                let until = recorded.get(version + 1).map(|(_, time)| time.0);
                (version as u64, recorded[version].clone(), until)
            };
            let by_time = rng.bool().then_some(until).flatten().map(|until| rng.u64(expected.1.0..until));
            let moment = by_time.map_or(Moment::Version(version), |time| Moment::Time(Hlc(time)));
            match world.at(moment) {
                Ok((_, at)) if version == 0 => assert_eq!(at.version, 0),
                Ok((state, at)) => {
                    assert_eq!((at.version, at.time), (version, expected.1), "seed {seed}, {moment:?}");
                    assert_eq!(state, expected.0, "seed {seed}, {moment:?}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                Err(HistoryError::Trimmed { .. } | HistoryError::Before { .. }) => {
                    _ = trimmed.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => panic!("seed {seed}, {moment:?}: {error}"),
            }
        }
    };
    thread::scope(|scope| {
        let of_asks = [seed, !seed].map(|seed| scope.spawn(move || asks(seed)));
        world.view(1);
        let mut rng = Rng::with_seed(seed);
        let mut since = Vec::new();
        for number in 0..commands {
            if rng.u8(..) == 0 {
                world.view(2 + number);
            }
            world.deliver(number, rng.usize(..600));
            since.push((world.now(), world.log_writer.end().time));
            if rng.u8(..20) == 0 || number + 1 == commands {
                world.settle();
                recorded.lock().expect("no panic").append(&mut since);
            }
        }
        world.history.snapshot().expect("the disk is well");
        let first = world.history.trim(commands).expect("the disk is well");
        assert!(first > 1, "seed {seed}: nothing was trimmed");
        is_over.store(true, Ordering::Release);
        for asks in of_asks {
            asks.join().expect("no panic");
        }
    });
    let (answered, trimmed) = (answered.into_inner(), trimmed.into_inner());
    assert!(answered > 0, "seed {seed}: {answered} answered, {trimmed} trimmed");
    let (last, _) = world.at(Moment::Version(commands)).expect("it is there");
    assert_eq!(last, world.now());
}

#[test]
fn random_questions_while_all_goes_on() {
    for seed in 0..4 {
        random_questions(Disk::Simulated(SimStorage::new(seed)), seed, 1500);
    }
}

#[test]
fn random_questions_of_real_files() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let files = squall_ordered::log::Files::open(directory.path()).expect("it can be used");
    random_questions(Disk::Real(files), 77, 1500);
}
