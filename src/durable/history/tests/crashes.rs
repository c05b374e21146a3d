//! A crash at any change to the disk, while snapshots are taken and the log is trimmed, costs nothing that was globally
//! persisted.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Takes snapshots and trims, and records the states up to the crash of the disk.
fn work(world: &World, recorded: &mut Vec<Tape>) -> u64 {
    let mut globally_persisted = world.log_writer.globally_persisted();
    for round in 0..6 {
        for number in 0..20 {
            if catch_unwind(AssertUnwindSafe(|| world.deliver(20 * round + number, 300))).is_err() {
                return globally_persisted;
            }
            recorded.push(world.now());
        }
        let Ok(end) = world.log_writer.ask(|log| log.persisted()).recv() else { return globally_persisted };
        world.log_writer.set_globally_persisted(end.version);
        globally_persisted = end.version;
        // It fails once the disk has crashed.
        let _ = world.history.snapshot();
    }
    globally_persisted
}

#[test]
fn a_crash_at_any_change_leaves_all_that_was_globally_persisted() {
    let policy = retain(12 << 10);
    let (world, disk) = World::new(1, policy);
    world.view(1);
    world.settle();
    let before = disk.changes();
    let mut recorded = vec![Tape::default()];
    assert_eq!(work(&world, &mut recorded), 120);
    let trimmed = world.log_writer.begin().version;
    assert!(trimmed > 20, "trimmed up to {trimmed}");
    let changes = disk.changes() - before;
    drop(world);
    for change in 0..changes {
        let (world, disk) = World::new(change, policy);
        world.view(1);
        world.settle();
        disk.crash_at(disk.changes() + change);
        let mut recorded = vec![world.now()];
        let globally_persisted = work(&world, &mut recorded);
        drop(world);
        disk.restart();

        let world = World::open(Disk::Simulated(disk.clone()), policy);
        let end = world.opened.version;
        assert!(
            end >= globally_persisted,
            "crash at change {change}: {globally_persisted} was globally persisted, {end} is there"
        );
        assert_eq!(world.now(), recorded[end as usize], "crash at change {change}");
        world.log_writer.set_globally_persisted(end);
        let first = world.log_writer.begin().version + 1;
        // Every state that a reader may ask for is there from one version on, and reported as missing before.
        let mut is_there = false;
        for version in 1..=end {
            match world.at(Moment::Version(version)) {
                Ok((state, _)) => {
                    is_there = true;
                    assert_eq!(state, recorded[version as usize], "crash at change {change}, version {version}");
                }
                Err(HistoryError::Trimmed { .. }) if !is_there => {}
                Err(error) => panic!("crash at change {change}, version {version}: {error}"),
            }
        }
        assert!(is_there || end == 0, "crash at change {change}: nothing from {first} to {end}");
        // The group continues.
        world.deliver(7, 10);
        world.settle();
        world.history.snapshot().unwrap_or_else(|error| panic!("crash at change {change}: {error}"));
    }
}
