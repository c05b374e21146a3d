//! Snapshots are taken and the log is trimmed as the policy says, and no more.

use std::{thread, time::Duration};

use super::*;
use crate::durable::history::Next;

#[test]
fn snapshots_come_by_themselves_and_the_log_goes() {
    let (world, disk) = World::new(1, Policy { snapshot_bytes: 32 << 10, retain: Some(64 << 10) });
    world.view(1);
    let mut number = 0;
    // A snapshot takes its time, on a thread of its own; each round waits for one.
    for _ in 0..12 {
        let before = world.history.status().expect("it is durable").snapshot;
        let due = world.log_writer.counts().bytes + (32 << 10);
        while world.history.status().expect("it is durable").snapshot == before {
            if world.log_writer.counts().bytes >= due {
                thread::yield_now();
                continue;
            }
            number += 1;
            world.fill(number..number + 1, 500);
        }
    }
    let status = world.history.status().expect("it is durable");
    assert!(status.first > 1 && status.snapshot.is_some_and(|snapshot| snapshot >= status.first), "{status:?}");
    // The retained part, two distances between snapshots, and whole segments at both ends.
    assert!(disk.used() <= (64 + 2 * 33 + 3 * 8) << 10, "{} used", disk.used());
    assert_eq!(status.last, world.log_writer.on_disk().version);
}

#[test]
fn a_snapshot_waits_until_its_version_is_globally_persisted() {
    let (world, disk) = World::new(1, keep_all());
    world.view(1);
    world.fill(0..5, 10);
    world.deliver(5, 10);
    thread::scope(|scope| {
        let takes = scope.spawn(|| world.history.snapshot());
        // The call is queued behind the job with which the snapshot has the log written.
        while world.log_writer.on_disk().version < 6 {
            thread::yield_now();
        }
        world.log_writer.ask(|_| ()).recv().expect("the disk is well");
        let of_six = || disk.image().keys().any(|name| name.starts_with("snapshot-1-"));
        assert!(!of_six() && !takes.is_finished());
        world.settle();
        assert_eq!(takes.join().expect("no panic").expect("the disk is well").version, 6);
        assert!(of_six());
    });
}

#[test]
fn a_snapshot_that_is_not_there_when_the_next_is_due_is_told() {
    let (world, _) = World::new(1, Policy { snapshot_bytes: 32 << 10, retain: None });
    let status = || world.history.status().expect("it is durable");
    world.view(1);
    // Nothing is globally persisted, so the first snapshot waits.
    for number in 1.. {
        if status().snapshot_late {
            break;
        }
        assert!(number < 1000, "it is not told");
        world.deliver(number, 500);
    }
    // The first is due earlier, since the log's own headers count: the more batches there are, the more of them.
    assert!(world.log_writer.counts().bytes > 48 << 10 && status().snapshot == Some(0), "{:?}", status());
    world.settle();
    while status().snapshot_late {
        thread::yield_now();
    }
    assert!(status().snapshot > Some(0));
}

#[test]
fn a_log_that_is_cut_meanwhile_gets_no_snapshot_of_what_was_cut_off() {
    let (world, _) = World::new(1, keep_all());
    world.view(1);
    world.fill(0..5, 10);
    let cut = world.log_writer.end().position;
    world.deliver(5, 10);
    thread::scope(|scope| {
        let takes = scope.spawn(|| world.history.snapshot());
        while world.log_writer.on_disk().version < 6 || world.live.captured() == 0 {
            thread::yield_now();
        }
        let view = world.log_writer.view();
        let end =
            world.log_writer.change_end(move |log| log.cut_to(cut).map(|_| view)).recv().expect("the disk is well");
        assert_eq!(end.version, 5);
        // Another history reaches that version, too.
        world.log_writer.set_globally_persisted(100);
        assert!(matches!(takes.join().expect("no panic"), Err(HistoryError::Overtaken)));
    });
    assert_eq!(world.snapshots(), [0]);
}

#[test]
fn a_disk_that_is_full_gets_no_snapshot_and_the_log_goes_on() {
    let (world, disk) = World::new(1, keep_all());
    world.view(1);
    world.live.replica().filling = 100 << 10;
    world.fill(0..10, 100);
    let used = disk.used();
    // There is room for the log's next segments, and for a part of the snapshot.
    disk.limit(used + 2 * SEGMENT_BYTES + (20 << 10));
    let error = world.history.snapshot().expect_err("there is no room");
    assert!(error.to_string().contains("for the log: make room"), "{error}");
    assert_eq!(world.snapshots(), [0]);
    assert!(disk.image().keys().all(|name| !name.ends_with(".new")), "what was written is gone");
    world.fill(10..40, 300);
    assert_eq!((world.log_writer.failure(), world.settle()), (None, 40));
    disk.limit(u64::MAX);
    assert_eq!(world.history.snapshot().expect("there is room").version, 40);
    assert_eq!(world.at(Moment::Version(40)).expect("it is there").0, world.now());
}

#[test]
fn what_is_trimmed_by_hand_can_be_done_without() {
    let (world, _) = World::new(1, keep_all());
    world.view(1);
    for round in 0..4 {
        world.fill(100 * round..100 * round + 100, 200);
        world.history.snapshot().expect("the disk is well");
    }
    assert_eq!(world.snapshots(), [0, 100, 200, 300, 400]);
    let first = world.history.trim(250).expect("the disk is well");
    assert!((2..=201).contains(&first), "{first}");
    assert_eq!(world.snapshots(), [200, 300, 400]);
    for version in [200, 250, 400] {
        assert_eq!(world.at(Moment::Version(version)).expect("it is there").0.applied, version);
    }
    assert!(matches!(world.at(Moment::Version(199)), Err(HistoryError::Trimmed { asked: 199, first: 200, .. })));
    // The two newest snapshots stay, and the log behind the older one.
    world.history.trim(u64::MAX).expect("the disk is well");
    assert_eq!(world.snapshots(), [300, 400]);
    assert_eq!(world.at(Moment::Version(301)).expect("it is there").0.applied, 301);
}

#[test]
fn a_snapshot_that_rots_is_passed_over_and_nothing_is_trimmed_for_it() {
    let (world, disk) = World::new(1, retain(0));
    world.view(1);
    world.fill(0..100, 200);
    world.history.snapshot().expect("the disk is well");
    let rots = disk.image().into_keys().filter(|name| name.starts_with("snapshot-1-")).max().expect("it was taken");
    disk.flip(&rots, 4096 + 70, 2);
    assert_eq!(world.at(Moment::Version(100)).expect("from the one before").0, world.now());
    world.fill(100..200, 200);
    world.history.snapshot().expect("the disk is well");
    assert_eq!((world.snapshots(), world.log_writer.begin()), (vec![0, 200], End::START));
    for version in [1, 99, 100, 101, 200] {
        assert_eq!(world.at(Moment::Version(version)).expect("it is there").0.applied, version);
    }
}

#[test]
fn no_snapshot_is_taken_where_the_state_is_not_complete_and_no_log_is_written() {
    let (world, _) = World::new(1, keep_all());
    world.view(1);
    world.fill(0..5, 10);
    let mut follower = world.follower(5);
    world.live.exchange.end(&squall_membership::EndReason::ShutDown);
    assert!(matches!(world.history.snapshot(), Err(HistoryError::Capture(why)) if why.contains("ended")));
    assert!(matches!(follower.wait(Duration::from_secs(30)), Ok(Next::Entry(entry)) if entry.version == 5));
    world.log_writer.fail("the disk is gone".to_owned());
    assert!(matches!(world.reader(1, 5), Err(HistoryError::Ended { why }) if why == "the disk is gone"));
    assert!(matches!(world.at(Moment::Version(3)), Err(HistoryError::Ended { .. })));
    let volatile = History::new("volatile", None);
    assert!(matches!(volatile.snapshot(), Err(HistoryError::NotDurable { .. })));
}
