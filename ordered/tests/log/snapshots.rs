//! Snapshots: whole or not there, and the newest good one is found.

use fastrand::Rng;
use squall_membership::{ClusterId, ShardId};
use squall_ordered::log::{
    End, Hlc, Position, SimStorage, Snapshot, SnapshotError, SnapshotWriter, Storage, remove_snapshots, snapshots,
};

use super::model::{Seed, open, options, position};
use crate::seeds::seeds;

const CLUSTER: ClusterId = ClusterId(7);
const SHARD: ShardId = ShardId(3);

fn end(position: Position) -> End {
    End { position, version: 8, time: Hlc(9) }
}

fn take(storage: &SimStorage, at: Position, contents: &[u8]) -> Result<(), SnapshotError> {
    let mut writer = SnapshotWriter::new(storage.clone(), CLUSTER, SHARD, end(at))?;
    for part in contents.chunks(1000) {
        writer.write(part)?;
    }
    writer.finish()
}

fn contents(snapshot: &Snapshot<SimStorage>) -> Vec<u8> {
    let mut bytes = vec![0; snapshot.len() as usize];
    snapshot.read_at(0, &mut bytes).expect("it is well");
    bytes
}

#[test]
fn a_crash_leaves_the_new_one_whole_or_the_one_before() {
    for seed in seeds(300) {
        let _seed = Seed(seed);
        let mut rng = Rng::with_seed(seed);
        let storage = SimStorage::new(seed);
        let states = [0, 1].map(|_| (0..rng.usize(..9000)).map(|_| rng.u8(..)).collect::<Vec<u8>>());
        take(&storage, position(2, 10), &states[0]).expect("the disk is well");
        storage.crash_at(storage.changes() + rng.u64(..20));
        let taken = take(&storage, position(2, 30), &states[1]);
        storage.restart();

        let (newest, refused) = Snapshot::newest(&storage, CLUSTER, SHARD).expect("it can be listed");
        let newest = newest.expect("one at least");
        assert!(refused.is_empty(), "{refused:?}");
        let which = usize::from(newest.at().position == position(2, 30));
        assert!(which == 1 || taken.is_err());
        assert_eq!(contents(&newest), states[which]);
        assert_eq!(newest.at(), end(newest.at().position));
    }
}

#[test]
fn a_damaged_one_is_passed_over_and_named() {
    let storage = SimStorage::new(1);
    take(&storage, position(2, 10), b"older").expect("the disk is well");
    take(&storage, position(12, 3), b"newer").expect("the disk is well");
    storage.flip("snapshot-12-3", 4098, 1);
    let (newest, refused) = Snapshot::newest(&storage, CLUSTER, SHARD).expect("it can be listed");
    assert_eq!(contents(&newest.expect("the older one")), b"older");
    let [SnapshotError::Damaged(path)] = &refused[..] else { panic!("{refused:?}") };
    assert!(path.ends_with("snapshot-12-3"));
}

#[test]
fn another_clusters_is_refused() {
    let storage = SimStorage::new(1);
    take(&storage, position(2, 10), b"state").expect("the disk is well");
    let error = Snapshot::open(storage, ClusterId(8), SHARD, position(2, 10)).expect_err("it is refused");
    assert!(matches!(error, SnapshotError::Other { .. }), "{error}");
}

#[test]
fn they_are_listed_in_order_and_old_ones_go() {
    let storage = SimStorage::new(1);
    for (epoch, seq) in [(2, 10), (10, 1), (2, 9)] {
        take(&storage, position(epoch, seq), b"state").expect("the disk is well");
    }
    let all = [position(2, 9), position(2, 10), position(10, 1)];
    assert_eq!(snapshots(&storage).expect("it can be listed"), all);
    remove_snapshots(&storage, position(2, 10)).expect("they can be removed");
    assert_eq!(snapshots(&storage).expect("it can be listed"), all[1..]);
}

#[test]
fn one_that_was_not_finished_is_gone_when_the_log_is_opened() {
    let storage = SimStorage::new(1);
    drop(SnapshotWriter::new(storage.clone(), CLUSTER, SHARD, end(position(1, 1))).expect("the disk is well"));
    open(&storage, options(8192, 1));
    assert!(storage.image().into_keys().all(|name| !name.ends_with(".new")));
}

#[test]
fn one_that_is_not_finished_leaves_nothing_and_a_glance_reads_no_contents() {
    let storage = SimStorage::new(1);
    let mut writer = SnapshotWriter::new(storage.clone(), CLUSTER, SHARD, end(position(2, 10))).expect("there is room");
    writer.write(&[7; 9000]).expect("there is room");
    assert!(storage.used() > 9000);
    drop(writer);
    assert_eq!(storage.used(), 0);

    take(&storage, position(2, 10), &[7; 9000]).expect("the disk is well");
    storage.flip("snapshot-2-10", 5000, 1);
    let glance = Snapshot::glance(storage.clone(), CLUSTER, SHARD, position(2, 10)).expect("its first block is well");
    assert_eq!(glance, (end(position(2, 10)), 9000));
    assert!(matches!(Snapshot::open(storage, CLUSTER, SHARD, position(2, 10)), Err(SnapshotError::Damaged(_))));
}

#[test]
fn a_disk_tells_how_much_it_has_left() {
    let storage = SimStorage::new(1);
    assert!(storage.free().expect("the disk is well") > 1 << 60);
    storage.limit(10_000);
    take(&storage, position(2, 10), b"some").expect("there is room");
    assert_eq!(storage.free().expect("the disk is well"), 10_000 - storage.used());
}
