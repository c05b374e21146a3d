//! Threads that submit and read, against one that steps the node.

use std::{sync::atomic::AtomicBool, thread, time::Instant};

use super::*;
use crate::SubmitError;

/// Steps the node until told to stop, as an engine that never sleeps.
fn drive(mut solo: Solo<Ledger>, stop: &AtomicBool) -> Solo<Ledger> {
    while !stop.load(Ordering::Relaxed) {
        if !solo.step() {
            thread::yield_now();
        }
    }
    solo
}

#[test]
fn blocking_producers_share_a_tiny_ring_and_few_slots() {
    const PRODUCERS: usize = 4;
    const EACH: usize = 2000;
    let solo = Solo::new(|group| _ = group.ring_bytes(1024).max_waiting(2));
    let group = solo.group.clone();
    let stop = AtomicBool::new(false);
    let solo = thread::scope(|scope| {
        let driver = scope.spawn(|| drive(solo, &stop));
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|producer| {
                let group = &group;
                scope.spawn(move || {
                    let mut last = 0;
                    for i in 0..EACH {
                        if (producer + i).is_multiple_of(3) {
                            group.send(&Entry::Text("some forty bytes to fill the ring sooner".into())).wait().unwrap();
                        } else {
                            let sum = group.submit(&Entry::Add(1)).wait().unwrap();
                            assert!(sum > last, "replies of one thread come in its order");
                            last = sum;
                        }
                    }
                })
            })
            .collect();
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        let seen = group.read(|ledger| ledger.applied).wait().unwrap();
        assert_eq!(seen, PRODUCERS * EACH);
        stop.store(true, Ordering::Relaxed);
        driver.join().unwrap()
    });
    assert_eq!(solo.control.counts().applied, (PRODUCERS * EACH) as u64);
}

/// Views follow each other while threads submit, send, read and wait for room. Each message is applied once, in its
/// thread's order, and each read sees all messages that were acknowledged before.
#[test]
fn threads_work_on_while_views_change() {
    const PRODUCERS: u64 = 3;
    const EACH: u64 = 1500;
    const VIEWS: u64 = 40;
    let mut solo = Solo::new(|group| _ = group.ring_bytes(1024).max_waiting(4));
    let group = solo.group.clone();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let driver = scope.spawn(|| {
            let mut steps = 0u64;
            while !stop.load(Ordering::Relaxed) || solo.view.epoch.0 < VIEWS {
                steps += 1;
                if steps.is_multiple_of(200) && solo.view.epoch.0 < VIEWS {
                    let undelivered = solo.end_view();
                    // Threads meet a view that is over.
                    thread::yield_now();
                    solo.install_next(undelivered, |_| ());
                }
                if !solo.step() {
                    thread::yield_now();
                }
            }
            solo.settle();
            solo
        });
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|producer| {
                let group = &group;
                scope.spawn(move || {
                    for i in 0..EACH {
                        let text = Entry::Text(format!("{producer} {i}"));
                        if i.is_multiple_of(3) {
                            group.submit(&text).wait().unwrap();
                            let applied = group.read(move |ledger| ledger.applied).wait().unwrap();
                            assert!(applied as u64 > i);
                        } else {
                            group.send(&text).wait().unwrap();
                        }
                    }
                })
            })
            .collect();
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        group.read(|_| ()).wait().unwrap();
        stop.store(true, Ordering::Relaxed);
        let solo = driver.join().unwrap();
        let texts = solo.group.peek(|ledger| ledger.texts.clone()).wait().unwrap();
        for producer in 0..PRODUCERS {
            let prefix = format!("{producer} ");
            let own: Vec<_> = texts.iter().filter_map(|text| text.strip_prefix(&prefix)).collect();
            assert_eq!(own, (0..EACH).map(|i| i.to_string()).collect::<Vec<_>>());
        }
    });
}

/// The group ends at some moment, with or without knowledge of the undelivered messages, while threads submit, read and
/// wait for room. None of them waits for ever, and each message that got a reply was applied.
#[test]
fn nobody_is_forgotten_at_the_end() {
    for round in 0..200u64 {
        let solo = Solo::new(|group| _ = group.ring_bytes(1024).max_waiting(2));
        let group = solo.group.clone();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let driver = scope.spawn(|| drive(solo, &stop));
            let submitters: Vec<_> = (0..3).map(|_| scope.spawn(|| submit_until_the_end(&group))).collect();
            let reader = scope.spawn(|| while group.read(|ledger| ledger.sum).wait().is_ok() {});
            let sender = scope.spawn(|| while group.send(&Entry::Add(1)).wait().is_ok() {});
            let until = Instant::now() + Duration::from_micros(round * 7 % 500);
            while Instant::now() < until {
                thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
            let mut solo = driver.join().unwrap();
            if round % 2 == 0 {
                // As when the node's core could not finish in time: the ring is open, and nothing is known.
                solo.task.change(ShardChange::End { undelivered: Vec::new(), reason: EndReason::ShutDown });
            } else {
                solo.shard.wedge();
                solo.shard.close();
                let undelivered = loop {
                    match solo.shard.undelivered() {
                        Some(undelivered) => break undelivered,
                        None => thread::yield_now(),
                    }
                };
                solo.task.change(ShardChange::End {
                    undelivered: with_fate(undelivered, Fate::NotDelivered),
                    reason: EndReason::Panicked,
                });
            }
            let replies: u64 = submitters.into_iter().map(|submitter| submitter.join().unwrap()).sum();
            reader.join().unwrap();
            sender.join().unwrap();
            assert!(solo.control.counts().applied >= replies);
        });
    }
}

/// Returns the number of replies.
fn submit_until_the_end(group: &Group<Ledger>) -> u64 {
    let mut replies = 0;
    loop {
        match group.submit(&Entry::Add(1)).wait() {
            Ok(_) => replies += 1,
            Err(SubmitError::Ended { .. }) => return replies,
            Err(other) => panic!("{other}"),
        }
    }
}
