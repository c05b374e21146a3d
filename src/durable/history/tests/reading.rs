//! Reading by version, and following.

use std::{
    thread,
    time::{Duration, Instant},
};

use squall_runtime::blocking;

use super::*;
use crate::durable::history::{Entry, EntryBody, Next};

/// A time longer than any of the tests takes.
const LONG: Duration = Duration::from_secs(30);

fn number(entry: &Entry<'_>) -> u64 {
    entry.command::<Note>().expect("it is a note").expect("it is a command").0.to_native()
}

#[test]
fn a_range_is_read_as_it_was_delivered() {
    let (world, _) = World::new(1, keep_all());
    world.view(1);
    world.fill(0..300, 100);
    for (first, last) in [(1, 300), (0, 300), (7, 7), (120, 250), (300, 300), (9, 8)] {
        let mut reader = world.reader(first, last).expect("it is there");
        for version in first.max(1)..=last {
            let entry = reader.next_entry().expect("the log is well").expect("there is more");
            assert_eq!((entry.version, number(&entry)), (version, version - 1));
            assert_eq!((entry.sender(), entry.epoch), (Some(ME), Epoch(1)));
        }
        assert!(reader.next_entry().expect("the log is well").is_none(), "{first}..={last}");
    }
}

#[test]
fn views_are_shown_before_the_first_command_of_theirs_to_who_asks() {
    let (world, _) = World::new(1, keep_all());
    world.view(1);
    world.fill(0..3, 10);
    world.view(2);
    world.view(3);
    world.fill(3..5, 10);
    let shown = |reader: LogReader| {
        let (mut reader, mut shown) = (reader, Vec::new());
        while let Some(entry) = reader.next_entry().expect("the log is well") {
            let view = matches!(entry.body, EntryBody::View(_));
            shown.push((entry.version, if view { entry.epoch.0 } else { 0 }));
        }
        shown
    };
    let all = world.reader(1, 5).expect("it is there");
    assert_eq!(shown(all), [1, 2, 3, 4, 5].map(|version| (version, 0)));
    let all = world.reader(1, 5).expect("it is there").with_views();
    assert_eq!(shown(all), [(0, 1), (1, 0), (2, 0), (3, 0), (3, 2), (3, 3), (4, 0), (5, 0)]);
    let some = world.reader(4, 4).expect("it is there").with_views();
    assert_eq!(shown(some), [(3, 2), (3, 3), (4, 0)]);
}

#[test]
fn a_follower_shows_nothing_before_it_is_globally_persisted_and_everything_then() {
    let (world, _) = World::new(1, keep_all());
    let mut follower = world.follower(1);
    assert!(follower.try_next().expect("the log is well").is_none(), "the log is empty");
    world.view(1);
    let mut seen = 0;
    for round in 0..60 {
        for number in 0..5 {
            world.deliver(round * 5 + number, 200);
        }
        world.log_writer.ask(|_| ()).recv().expect("the disk is well");
        assert!(follower.try_next().expect("the log is well").is_none(), "on this disk, and not on all");
        world.settle();
        while let Some(entry) = follower.try_next().expect("the log is well") {
            assert_eq!((entry.version, number(&entry)), (seen + 1, seen));
            seen += 1;
        }
        assert_eq!(seen, 5 * (round + 1));
    }
}

#[test]
fn one_that_waits_is_woken_by_what_becomes_globally_persisted_and_by_the_end() {
    let (world, _) = World::new(1, keep_all());
    world.view(1);
    let (mut plain, mut future) = (world.follower(1), world.follower(1));
    assert!(matches!(plain.wait(Duration::from_millis(1)), Ok(Next::Late)));
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            for version in 1..=100 {
                let next = plain.wait(LONG).expect("the log is well");
                assert!(matches!(next, Next::Entry(entry) if entry.version == version));
            }
            plain.wait(LONG).map(drop)
        });
        let polls = scope.spawn(|| {
            let until = Instant::now() + LONG;
            let mut seen = 0;
            loop {
                let mut next = std::pin::pin!(future.next());
                let next = blocking::block_on(Some(until), |context| next.as_mut().poll(context));
                match next.expect("it comes in time") {
                    Ok(entry) => assert_eq!(entry.version, seen + 1),
                    Err(error) => return (seen, error),
                }
                seen += 1;
            }
        });
        (0..10).for_each(|round| _ = world.fill(10 * round..10 * round + 10, 50));
        world.log_writer.fail("the test is over".to_owned());
        assert!(matches!(waits.join().expect("no panic"), Err(HistoryError::Ended { why }) if why.contains("over")));
        let (seen, error) = polls.join().expect("no panic");
        assert!(matches!(error, HistoryError::Ended { .. }));
        assert_eq!(seen, 100);
    });
}

#[test]
fn what_was_trimmed_is_named_also_to_who_is_overtaken() {
    let (world, _) = World::new(1, retain(0));
    world.view(1);
    world.fill(0..400, 200);
    let mut slow = world.follower(1);
    assert!(slow.try_next().expect("the log is well").is_some());
    world.history.snapshot().expect("the disk is well");
    world.fill(400..800, 200);
    world.history.snapshot().expect("the disk is well");
    let first = world.log_writer.begin().version + 1;
    assert!(first > 300, "it was trimmed up to {first}");
    let trimmed = |error: &HistoryError, asked: u64| match *error {
        HistoryError::Trimmed { asked: was, first: begins, .. } => assert_eq!((was, begins), (asked, first)),
        ref other => panic!("{other}"),
    };
    trimmed(&world.reader(first - 1, 800).expect_err("it was trimmed"), first - 1);
    let mut shown = 1;
    let error = loop {
        match slow.try_next() {
            Ok(Some(entry)) => shown = entry.version,
            Ok(None) => panic!("it can't be up to date"),
            Err(error) => break error,
        }
    };
    trimmed(&error, shown + 1);
    let mut reader = world.reader(first, 800).expect("it is there");
    assert_eq!(reader.next_entry().expect("the log is well").expect("there is one").version, first);
}

#[test]
fn damage_is_named_once_and_passed() {
    let (world, disk) = World::new(1, keep_all());
    world.view(1);
    world.fill(0..100, 200);
    let segment = disk.image().into_keys().filter(|name| name.starts_with("segment")).nth(1).expect("there are many");
    disk.flip(&segment, 5000, 3);
    let mut reader = world.reader(1, 100).expect("it is there");
    let (mut shown, mut damages) = (Vec::new(), 0);
    loop {
        match reader.next_entry() {
            Ok(Some(entry)) => shown.push(entry.version),
            Ok(None) => break,
            Err(HistoryError::Damaged(_)) => damages += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((damages, shown.len()), (1, 99), "{shown:?}");
}
