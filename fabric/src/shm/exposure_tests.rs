//! A process reaches the memory that it was handed, in the way that it was handed, and no other.

use std::os::fd::AsFd;

use rustix::io::Errno;

use super::{
    hostile_tests::{TAG, World, recv},
    memory::{self, Access},
    ring::{Descriptor, Kind, Origin},
    wire::Frame,
};
use crate::{BreakReason, Fabric, NodeId, RegionKind};

#[test]
fn bulk_and_lent_memory_can_not_be_mapped_writable_by_who_is_handed_it() {
    let world = &mut World::new("bulk");
    let regions = [RegionKind::Bulk, RegionKind::Lent].map(|kind| world.node.register(kind, 4096).unwrap());
    world.node.connect(NodeId(1), TAG, &regions, b"");
    world.poll();
    let Some((Frame::Expose { .. }, fds)) = recv(&world.socket) else { panic!("nothing exposed") };
    assert_eq!(fds.len(), regions.len());
    for fd in &fds {
        let map = |access| memory::map_foreign(fd.as_fd(), 4096, access);
        assert!(map(Access::ReadOnly).is_ok());
        let error = map(Access::ReadWrite).unwrap_err();
        assert!(matches!(error, memory::ForeignError::System { cause: Errno::PERM, .. }), "{error:?}");
        assert_eq!(rustix::io::pwrite(fd, &[1], 0), Err(Errno::PERM));
    }
}

#[test]
fn who_hands_over_a_write_of_lent_memory_loses_its_endpoint() {
    let mut world = World::new("lent");
    let lent = world.node.register(RegionKind::Lent, 4096).unwrap();
    let (_, mut ring) = world.connected(std::slice::from_ref(&lent));
    let kind = Kind::Write { to: lent.key(), offset: 0, imm: None };
    world.push(&mut ring, &Descriptor { kind, from: Origin::Inline, len: 8 }, &[1; 8]);
    assert_eq!(world.broken(), BreakReason::Access);
    let mut bytes = [0xee; 8];
    lent.read(0, &mut bytes);
    assert_eq!(bytes, [0; 8]);
    world.check_undisturbed();
}

#[test]
fn memory_of_one_peer_holds_nothing_that_was_exposed_to_another() {
    let world = &mut World::new("apart");
    let regions = [1, 3].map(|_| world.node.register(RegionKind::Polled, 64).unwrap());
    world.node.connect(NodeId(1), TAG, &regions[..1], b"");
    world.node.connect(NodeId(3), TAG, &regions[1..], b"");
    world.poll();
    let Some((Frame::Expose { .. }, fds)) = recv(&world.socket) else { panic!("nothing exposed") };
    let bytes = rustix::fs::fstat(&fds[0]).unwrap().st_size as usize;
    let mapping = memory::map_foreign(fds[0].as_fd(), bytes as u64, Access::ReadWrite).unwrap();
    // SAFETY: the mapping holds the whole file, which is read by words only.
    unsafe { mapping.base().as_ptr().write_bytes(0xff, bytes) };
    assert_eq!((fds.len(), regions.map(|region| region.load(56))), (1, [u64::MAX, 0]));
}
