//! A node whose disk has no room, with its replica, stepped by hand.

use std::io;

use squall_ordered::log::SimStorage;

use super::{
    place,
    tests::{Node, history},
};
use crate::capture::{exchange::ReplicaStatus, state::RestoreError};

/// A node that has delivered messages for which its disk has no room, and that disk.
fn full(status: ReplicaStatus) -> (Node, SimStorage) {
    let disk = SimStorage::new(1);
    let node = history(&disk);
    node.exchange.set_replica_status(status);
    disk.limit(disk.used());
    let is_full = (40..150).any(|place| {
        node.messages(2, place..place + 1);
        node.log_writer.no_room().is_some()
    });
    assert!(is_full && node.log_writer.on_disk() != node.log_writer.end());
    (node, disk)
}

/// The group may be unable to go on before it has reported.
#[test]
fn a_node_that_is_not_complete_reports_what_is_on_its_disk_and_gives_up_what_has_no_room() {
    for status in [ReplicaStatus::Outside, ReplicaStatus::Incomplete { fetch: 1 }] {
        reports_what_is_on_its_disk(status);
    }
}

fn reports_what_is_on_its_disk(status: ReplicaStatus) {
    let (node, disk) = full(status);
    let (peer, on_disk) = (history(&SimStorage::new(2)), node.log_writer.on_disk());
    peer.messages(2, 40..150);
    let held = node.installer().held().expect("it does not wait");
    assert_eq!((held.end, held.complete), (place(on_disk.position), true));
    assert_eq!((node.log_writer.end(), node.log_writer.on_disk()), (on_disk, on_disk));
    let trail = node.trail().0;
    assert_eq!(trail, peer.trail().0[..trail.len()]);
    assert_eq!(trail.last().map(|(version, _)| *version), Some(on_disk.version));
    assert!(!node.log_writer.is_stale() && node.log_writer.no_room().is_none());
    assert_eq!(node.installer().held(), Some(held), "nothing is on its way");

    node.exchange.set_replica_status(ReplicaStatus::Incomplete { fetch: 1 });
    let error = node.join(&peer).expect_err("there is no room");
    assert!(matches!(&error, RestoreError::Failed(why) if why.kind() == io::ErrorKind::StorageFull), "{error}");
    assert_eq!(node.log_writer.failure(), None);
    disk.limit(u64::MAX);
    node.join(&peer).expect("there is room");
    assert_eq!((node.trail(), node.log_writer.end()), (peer.trail(), peer.log_writer.end()));
}

/// Its delivering thread goes on behind them.
#[test]
fn a_member_keeps_what_waits_for_room() {
    let (node, disk) = full(ReplicaStatus::Complete);
    let end = node.log_writer.end();
    assert_eq!(node.installer().held(), None, "a simulated node can't wait");
    assert_eq!(node.log_writer.end(), end);
    disk.limit(u64::MAX);
    assert_eq!(node.installer().held().map(|held| held.end), Some(place(end.position)));
}

/// Another member may give what begins a segment of its own.
#[test]
fn a_node_whose_last_segment_has_room_left_needs_room_for_another() {
    let disk = SimStorage::new(1);
    let (node, peer) = (history(&disk), history(&SimStorage::new(2)));
    node.exchange.set_replica_status(ReplicaStatus::Incomplete { fetch: 1 });
    disk.limit(disk.used());
    let prepared = node.log_writer.run_at_once(|log| log.prepare()).expect("the log is well");
    prepared.expect("the last segment is enough for records");
    let error = node.join(&peer).expect_err("there is no room");
    assert!(matches!(&error, RestoreError::Failed(why) if why.kind() == io::ErrorKind::StorageFull), "{error}");
    assert_eq!(node.log_writer.failure(), None);
    disk.limit(u64::MAX);
    node.join(&peer).expect("there is room");
}
