//! A node among peers that break the rules: each breach ends its endpoint or link with a reason, and nothing else.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    io::Errno,
};

use super::{
    ShmConfig, ShmFabric,
    doorbell::Doorbell,
    memory::{self, Access},
    ring::{self, Descriptor, Kind, Origin},
    socket::{self, Packet},
    wire::{FRAME_BYTES, Frame, Hello, HelloRest, RefuseWhy, SetUp},
};
use crate::{
    BreakReason, Completion, EndpointId, Fabric, GroupTag, NodeId, Op, Region, RegionKey, RegionKind, RemoteRegion,
    Slice, Source, Time, Token,
};

pub(super) const TAG: GroupTag = GroupTag { layer: 1, group: 2, epoch: 3 };
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A true node 2, and a false node 1 that has passed its greeting.
pub(super) struct World {
    pub(super) node: ShmFabric,
    seen: Vec<Completion>,
    pub(super) socket: OwnedFd,
    pub(super) bell: Doorbell,
    /// The eventfd by which the node is signaled.
    pub(super) given: OwnedFd,
    cluster: String,
}

fn cluster(test: &str) -> String {
    format!("hostile-{}-{test}", std::process::id())
}

fn hello(cluster: &str) -> Hello {
    let rest = HelloRest { to: NodeId(2), incarnation: 7, cluster: cluster.to_owned() };
    Hello { version: super::PROTOCOL, from: NodeId(1), rest: Some(rest) }
}

/// Polls until the callback gives something.
#[track_caller]
fn wait<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain");
        std::thread::yield_now();
    }
}

/// The next packet, or none at the end of the stream.
#[track_caller]
pub(super) fn recv(socket: &OwnedFd) -> Option<(Frame, Vec<OwnedFd>)> {
    let mut buffer = [0; FRAME_BYTES];
    wait(|| match socket::recv(socket, &mut buffer) {
        Packet::Bytes(len, fds) => Some(Some((Frame::decode(&buffer[..len], super::PROTOCOL).unwrap(), fds))),
        Packet::None => None,
        _ => Some(None),
    })
}

impl World {
    pub(super) fn new(test: &str) -> World {
        let cluster = cluster(test);
        let node = ShmFabric::open(ShmConfig::new(cluster.as_str(), NodeId(2))).unwrap();
        let bell = Doorbell::new().unwrap();
        let socket = socket::dial(&cluster, NodeId(2)).unwrap();
        let fds = [bell.watch_fd.as_fd(), bell.eventfd.as_fd()];
        socket::send(&socket, &Frame::Hello(hello(&cluster)).encode(), &fds).unwrap();
        let Some((Frame::Welcome(_), fds)) = recv(&socket) else { panic!("no welcome") };
        let [_watch, given] = <[OwnedFd; 2]>::try_from(fds).unwrap();
        World { node, seen: Vec::new(), socket, bell, given, cluster }
    }

    fn send(&self, frame: &Frame, fds: &[BorrowedFd<'_>]) {
        socket::send(&self.socket, &frame.encode(), fds).unwrap();
    }

    /// Lets the node connect, and takes its offer.
    fn offered(&mut self, expose: &[Region]) -> EndpointId {
        let end = self.node.connect(NodeId(1), TAG, expose, b"");
        self.poll();
        loop {
            match recv(&self.socket) {
                Some((Frame::Expose { .. }, _)) => {}
                Some((Frame::Offer(_), _)) => return end,
                other => panic!("{other:?}"),
            }
        }
    }

    fn accept(&self, end: EndpointId, ring_slots: u64, ring: BorrowedFd<'_>) {
        let set_up = SetUp { endpoint: 1, tag: TAG, ring_slots, hello: Vec::new() };
        self.send(&Frame::Accept { set_up, yours: end.0 }, &[ring]);
    }

    /// A connected endpoint, and this side's ring.
    pub(super) fn connected(&mut self, expose: &[Region]) -> (EndpointId, ring::Sender) {
        let end = self.offered(expose);
        let (ring, handle) = ring::Sender::create(16).unwrap();
        self.accept(end, ring.slots(), handle.as_fd());
        assert!(matches!(recv(&self.socket), Some((Frame::Confirm { .. }, _))));
        wait(|| {
            self.poll();
            self.seen.iter().any(|c| matches!(c, Completion::Connected { .. })).then_some(())
        });
        (end, ring)
    }

    /// Hands a descriptor to the node.
    pub(super) fn push(&self, ring: &mut ring::Sender, descriptor: &Descriptor, inline: &[u8]) {
        ring.push(descriptor, inline);
        self.bell.tell(NodeId(2));
    }

    pub(super) fn poll(&mut self) {
        self.node.poll(Time::boot_clock(), &mut self.seen);
    }

    #[track_caller]
    pub(super) fn broken(&mut self) -> BreakReason {
        wait(|| {
            self.poll();
            self.seen.iter().find_map(|completion| match completion {
                Completion::Broken { reason, .. } => Some(reason.clone()),
                _ => None,
            })
        })
    }

    #[track_caller]
    fn failed_with(&mut self, text: &str) {
        match self.broken() {
            BreakReason::Failed(sentence) => {
                assert!(sentence.contains(text) && sentence.contains("node 1"), "{sentence:?} instead of {text:?}");
            }
            other => panic!("{other:?} instead of {text:?}"),
        }
    }

    /// Checks that the node still talks to others.
    pub(super) fn check_undisturbed(mut self) {
        let mut other = ShmFabric::open(ShmConfig::new(self.cluster.as_str(), NodeId(3))).unwrap();
        self.seen.clear();
        self.node.connect(NodeId(3), TAG, &[], b"");
        other.connect(NodeId(2), TAG, &[], b"");
        wait(|| {
            self.poll();
            other.poll(Time::boot_clock(), &mut Vec::new());
            self.seen.iter().any(|c| matches!(c, Completion::Connected { .. })).then_some(())
        });
    }
}

fn unsealed(bytes: u64) -> OwnedFd {
    let fd = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fd
}

#[test]
fn memory_that_could_shrink_is_refused() {
    // As a ring.
    let mut world = World::new("unsealed-ring");
    let end = world.offered(&[]);
    world.accept(end, 64, unsealed(1 << 20).as_fd());
    world.failed_with("size is not sealed");
    assert!(matches!(recv(&world.socket), Some((Frame::Close { reason: BreakReason::Failed(_), .. }, _))));
    world.check_undisturbed();

    // As a region.
    let mut world = World::new("unsealed-region");
    let end = world.offered(&[]);
    let region = RemoteRegion { key: RegionKey(1), kind: RegionKind::Polled, bytes: 4096 };
    world.send(&Frame::Expose { endpoint: 1, regions: vec![region] }, &[unsealed(4096).as_fd()]);
    let (ring, handle) = ring::Sender::create(16).unwrap();
    world.accept(end, ring.slots(), handle.as_fd());
    world.failed_with("size is not sealed");
    world.check_undisturbed();

    // As a source.
    let mut world = World::new("unsealed-source");
    let region = world.node.register(RegionKind::Bulk, 4096).unwrap();
    let (_, mut ring) = world.connected(std::slice::from_ref(&region));
    let source = RemoteRegion { key: RegionKey(1), kind: RegionKind::Bulk, bytes: 4096 };
    let from = Origin::Region { key: source.key, offset: 0 };
    world.push(
        &mut ring,
        &Descriptor { kind: Kind::Write { to: region.key(), offset: 0, imm: None }, from, len: 1000 },
        &[],
    );
    world.poll();
    assert_eq!(world.seen.len(), 1, "a descriptor whose source is not there yet waits for it");
    world.send(&Frame::Source(source), &[unsealed(4096).as_fd()]);
    world.failed_with("size is not sealed");
    world.check_undisturbed();
}

#[test]
fn memory_that_is_smaller_than_announced_is_refused() {
    let mut world = World::new("small");
    let end = world.offered(&[]);
    let (fd, _mapping) = memory::create("small", 4096, Access::ReadWrite).unwrap();
    let region = RemoteRegion { key: RegionKey(1), kind: RegionKind::Polled, bytes: 1 << 30 };
    world.send(&Frame::Expose { endpoint: 1, regions: vec![region] }, &[fd.as_fd()]);
    let (ring, handle) = ring::Sender::create(16).unwrap();
    world.accept(end, ring.slots(), handle.as_fd());
    world.failed_with("announced 1073741824 bytes of memory and handed over 4096");
    world.check_undisturbed();
}

#[test]
fn a_share_of_memory_that_could_change_is_refused() {
    const BYTES: u64 = 8192;
    let (writable, _mapping) = memory::create("writable", BYTES as usize, Access::ReadOnly).unwrap();
    let resizable = unsealed(BYTES);
    fcntl_add_seals(&resizable, SealFlags::WRITE).unwrap();
    let sealed = unsealed(BYTES);
    fcntl_add_seals(&sealed, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let cases = [
        ("can still be written", &writable, BYTES, BYTES),
        ("size is not sealed", &resizable, BYTES, BYTES),
        ("announced 8193 bytes of memory and handed over 8192", &sealed, BYTES + 1, BYTES + 1),
        ("announced 0 bytes", &sealed, 0, 0),
        ("of another size than it said", &sealed, BYTES, BYTES - 1),
    ];
    for (index, (text, fd, announced, described)) in cases.into_iter().enumerate() {
        let mut world = World::new(&format!("share-{index}"));
        let into = world.node.register(RegionKind::Bulk, 64).unwrap();
        let (end, mut ring) = world.connected(&[]);
        world.node.post(end, Op::Recv { into: Slice { region: &into, offset: 0, len: 8 } }, Token(1)).unwrap();
        let from = Origin::Region { key: RegionKey(1), offset: 0 };
        world.push(&mut ring, &Descriptor { kind: Kind::Share { imm: None }, from, len: described }, &[]);
        world.poll();
        assert_eq!(world.seen.len(), 1, "a share whose memory is not there yet waits for it");
        world.send(&Frame::Share { key: RegionKey(1), bytes: announced }, &[fd.as_fd()]);
        world.failed_with(text);
        assert!(world.node.take_shared(end, Token(1)).is_none(), "{text}");
        world.check_undisturbed();
    }
}

#[test]
fn shares_of_receives_with_one_token_are_taken_in_order() {
    let mut world = World::new("one-token");
    let into = world.node.register(RegionKind::Bulk, 64).unwrap();
    let (end, mut ring) = world.connected(&[]);
    let second = world.node.connect(NodeId(1), GroupTag { epoch: 4, ..TAG }, &[], b"");
    world.poll();
    assert!(matches!(recv(&world.socket), Some((Frame::Offer(_), _))));
    for bytes in 1..=3 {
        world.node.post(end, Op::Recv { into: Slice { region: &into, offset: 0, len: 8 } }, Token(1)).unwrap();
        let sealed = unsealed(4096);
        fcntl_add_seals(&sealed, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW).unwrap();
        world.send(&Frame::Share { key: RegionKey(bytes), bytes }, &[sealed.as_fd()]);
        let from = Origin::Region { key: RegionKey(bytes), offset: 0 };
        world.push(&mut ring, &Descriptor { kind: Kind::Share { imm: None }, from, len: bytes }, &[]);
    }
    // The node's answer to this shows that it has seen all before: one poll then brings all three.
    let (other_ring, handle) = ring::Sender::create(16).unwrap();
    let set_up = SetUp { endpoint: 2, tag: TAG, ring_slots: other_ring.slots(), hello: Vec::new() };
    world.send(&Frame::Accept { set_up, yours: second.0 }, &[handle.as_fd()]);
    assert!(matches!(recv(&world.socket), Some((Frame::Confirm { .. }, _))));
    wait(|| {
        world.poll();
        (world.seen.len() > 1).then_some(())
    });
    let taken: Vec<usize> =
        std::iter::from_fn(|| world.node.take_shared(end, Token(1))).map(|copy| copy.len()).collect();
    assert_eq!(taken, [1, 2, 3]);
}

#[test]
fn memory_is_lent_before_it_is_taken_back_even_if_its_endpoint_breaks_at_once() {
    let mut world = World::new("lend-and-break");
    let (end, mut ring) = world.connected(&[]);
    let region = world.node.register(RegionKind::Bulk, 4096).unwrap();
    let key = region.key();
    let source = Source::Region(Slice { region: &region, offset: 0, len: 4096 });
    world.node.post(end, Op::Send { source, imm: None }, Token(1)).unwrap();
    drop(region);
    world.push(&mut ring, &Descriptor { kind: Kind::Send { imm: None }, from: Origin::Inline, len: 0 }, &[]);
    assert_eq!(world.broken(), BreakReason::ReceiverNotReady);
    assert!(matches!(recv(&world.socket), Some((Frame::Source(lent), _)) if lent.key == key));
    let rest = [recv(&world.socket), recv(&world.socket)].map(|packet| packet.map(|(frame, _)| frame));
    assert!(rest.contains(&Some(Frame::Forget(key))), "{rest:?}");
}

#[test]
fn sealed_memory_can_not_be_mapped_writable_by_who_is_handed_it() {
    let mut world = World::new("sealed");
    let region = world.node.register(RegionKind::Bulk, 4096).unwrap();
    let memory = world.node.seal(region).unwrap();
    let (end, _ring) = world.connected(&[]);
    world.node.share(end, &memory, None, Token(1)).unwrap();
    let Some((Frame::Share { bytes: 4096, .. }, fds)) = recv(&world.socket) else { panic!("nothing shared") };
    let error = memory::map_foreign(fds[0].as_fd(), 4096, Access::ReadWrite).unwrap_err();
    assert!(matches!(error, memory::ForeignError::System { cause: Errno::PERM, .. }), "{error:?}");
}

#[test]
fn a_ring_that_makes_no_sense_breaks_its_endpoint() {
    let mut world = World::new("corrupt");
    let end = world.offered(&[]);
    let (fd, mapping) = memory::create("ring", 8192, Access::ReadWrite).unwrap();
    world.accept(end, 64, fd.as_fd());
    // SAFETY: the mapping's first word is the tail, which only this test writes.
    let tail = unsafe { std::sync::atomic::AtomicU64::from_ptr(mapping.base().as_ptr().cast()) };
    tail.store(1 << 40, std::sync::atomic::Ordering::Release);
    world.failed_with("descriptor ring is corrupt");
    world.check_undisturbed();
}

#[test]
fn descriptors_that_reach_too_far_break_their_endpoint_and_harm_nothing() {
    let source = RemoteRegion { key: RegionKey(5), kind: RegionKind::Bulk, bytes: 4096 };
    let (fd, mapping) = memory::create("source", 4096, Access::ReadWrite).unwrap();
    // SAFETY: the mapping holds 4096 bytes, and nothing else uses it yet.
    unsafe { mapping.base().as_ptr().write_bytes(0xff, 4096) };
    let region_source = |offset| Origin::Region { key: source.key, offset };
    let cases: [(&str, bool, u64, Origin, u64); 8] = [
        ("a wrong key", false, 0, Origin::Inline, 8),
        ("beyond the target", true, 4092, Origin::Inline, 8),
        ("far beyond the target", true, u64::MAX - 3, Origin::Inline, 8),
        ("more than the target holds", true, 0, region_source(0), 5000),
        ("beyond the source", true, 0, region_source(4000), 1000),
        ("far beyond the source", true, 0, region_source(u64::MAX - 8), 1000),
        ("more than there is memory", true, 0, region_source(0), u64::MAX),
        ("not aligned in polled memory", true, 4, Origin::Inline, 8),
    ];
    for (index, (what, right_key, offset, from, len)) in cases.into_iter().enumerate() {
        let mut world = World::new(&format!("access-{index}"));
        let kind = if what.contains("polled") { RegionKind::Polled } else { RegionKind::Bulk };
        let region = world.node.register(kind, 4096).unwrap();
        let (_, mut ring) = world.connected(std::slice::from_ref(&region));
        world.send(&Frame::Source(source), &[fd.as_fd()]);
        let to = if right_key { region.key() } else { RegionKey(region.key().0 ^ 1) };
        let inline = [0xff; 8];
        let inline: &[u8] = if from == Origin::Inline { &inline } else { &[] };
        world.push(&mut ring, &Descriptor { kind: Kind::Write { to, offset, imm: None }, from, len }, inline);
        assert_eq!(world.broken(), BreakReason::Access, "{what}");
        let mut bytes = vec![0; 4096];
        region.read(0, &mut bytes);
        assert!(bytes.iter().all(|&b| b == 0), "{what}");
        assert!(matches!(recv(&world.socket), Some((Frame::Close { reason: BreakReason::Access, .. }, _))), "{what}");
    }
}

#[test]
fn a_message_longer_than_its_receive_breaks_the_endpoint_and_harms_nothing() {
    let mut world = World::new("long-message");
    let into = world.node.register(RegionKind::Bulk, 64).unwrap();
    let (end, mut ring) = world.connected(&[]);
    world.node.post(end, Op::Recv { into: Slice { region: &into, offset: 0, len: 8 } }, Token(1)).unwrap();
    world.push(&mut ring, &Descriptor { kind: Kind::Send { imm: None }, from: Origin::Inline, len: 9 }, &[1; 9]);
    assert_eq!(world.broken(), BreakReason::ReceiverNotReady);
    let mut bytes = [0; 64];
    into.read(0, &mut bytes);
    assert_eq!(bytes, [0; 64]);
}

#[test]
fn memory_that_is_handed_over_twice_ends_the_link() {
    let mut world = World::new("twice");
    world.connected(&[]);
    let source = RemoteRegion { key: RegionKey(1), kind: RegionKind::Bulk, bytes: 4096 };
    let (fd, _mapping) = memory::create("source", 4096, Access::ReadWrite).unwrap();
    for _ in 0..2 {
        world.send(&Frame::Source(source), &[fd.as_fd()]);
    }
    world.failed_with("under a key that it uses");
    world.check_undisturbed();
}

#[test]
fn memory_that_is_handed_over_and_taken_back_without_end_ends_the_link() {
    let mut world = World::new("flood");
    world.connected(&[]);
    let source = RemoteRegion { key: RegionKey(1), kind: RegionKind::Bulk, bytes: 4096 };
    let (fd, _mapping) = memory::create("source", 4096, Access::ReadWrite).unwrap();
    // The node does not poll meanwhile, so nothing is taken.
    let error = wait(|| {
        let packets = [(Frame::Source(source), Some(fd.as_fd())), (Frame::Forget(source.key), None)];
        packets.into_iter().find_map(|(frame, fd)| {
            loop {
                match socket::send(&world.socket, &frame.encode(), fd.as_slice()) {
                    Ok(()) => return None,
                    Err(Errno::AGAIN) => std::thread::yield_now(),
                    Err(error) => return Some(error),
                }
            }
        })
    });
    assert!(matches!(error, Errno::PIPE | Errno::CONNRESET), "{error}");
    world.failed_with("faster than this node can look");
    world.check_undisturbed();
}

/// After closing, the sender uses its buffer again, and the packet that says so may come later.
#[test]
fn what_is_pulled_after_its_sender_has_closed_is_not_reported() {
    let mut world = World::new("withdrawn");
    let into = world.node.register(RegionKind::Bulk, 4096).unwrap();
    let (end, mut ring) = world.connected(&[]);
    world.node.post(end, Op::Recv { into: Slice { region: &into, offset: 0, len: 4096 } }, Token(1)).unwrap();
    let source = RemoteRegion { key: RegionKey(1), kind: RegionKind::Bulk, bytes: 4096 };
    let (fd, _mapping) = memory::create("source", 4096, Access::ReadWrite).unwrap();
    world.send(&Frame::Source(source), &[fd.as_fd()]);
    let from = Origin::Region { key: source.key, offset: 0 };
    world.push(&mut ring, &Descriptor { kind: Kind::Send { imm: None }, from, len: 4096 }, &[]);
    ring.withdraw();
    world.send(&Frame::Close { mine: 1, reason: BreakReason::PeerClosed }, &[]);
    assert_eq!(world.broken(), BreakReason::PeerClosed);
    assert!(!world.seen.iter().any(|seen| matches!(seen, Completion::Received { .. })), "{:?}", world.seen);
}

#[test]
fn a_packet_that_no_node_sends_ends_the_link() {
    let frames = [
        Frame::Welcome(hello("x")),
        Frame::Confirm { mine: 1, yours: 1 },
        Frame::Offer(SetUp { endpoint: 1, tag: TAG, ring_slots: 64, hello: Vec::new() }),
        Frame::Source(RemoteRegion { key: RegionKey(1), kind: RegionKind::Bulk, bytes: 1 }),
        Frame::Share { key: RegionKey(1), bytes: 1 },
        Frame::Expose {
            endpoint: 1,
            regions: vec![RemoteRegion { key: RegionKey(1), kind: RegionKind::Bulk, bytes: 1 }],
        },
    ];
    let mut packets: Vec<Vec<u8>> = frames.iter().map(Frame::encode).collect();
    packets.push(b"rubbish".to_vec());
    packets.push(vec![9; FRAME_BYTES + 1]);
    for (index, packet) in packets.iter().enumerate() {
        let mut world = World::new(&format!("packet-{index}"));
        world.connected(&[]);
        socket::send(&world.socket, packet, &[]).unwrap();
        world.failed_with("");
        assert!(matches!(recv(&world.socket), Some((Frame::Goodbye, _))));
        assert!(recv(&world.socket).is_none());
        world.check_undisturbed();
    }
}

/// Others would go on at once without a process that is taken for dead, while it may still read.
#[test]
fn who_closes_its_socket_without_a_word_is_not_taken_for_dead() {
    let mut world = World::new("silent");
    world.connected(&[]);
    let closed = socket::dial(&world.cluster, NodeId(2)).unwrap();
    drop(std::mem::replace(&mut world.socket, closed));
    assert_eq!(world.broken(), BreakReason::PeerClosed, "its process lives");
    world.check_undisturbed();
}

#[test]
fn an_impostor_of_a_connected_node_is_turned_away() {
    let mut world = World::new("impostor");
    world.connected(&[]);
    let impostor = socket::dial(&world.cluster, NodeId(2)).unwrap();
    let fds = [world.bell.watch_fd.as_fd(), world.bell.eventfd.as_fd()];
    socket::send(&impostor, &Frame::Hello(hello(&world.cluster)).encode(), &fds).unwrap();
    assert!(matches!(recv(&impostor), Some((Frame::Refuse { why: RefuseWhy::Busy, .. }, _))));
    world.poll();
    assert_eq!(world.seen.len(), 1, "the true one keeps its connection");
}
