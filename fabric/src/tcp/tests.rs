//! The data plane alone, over connections that the tests make: they play the control plane's part.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use super::{
    TcpConfig,
    data::Data,
    frame::{HEADER_BYTES, Header, Kind},
    set_up,
};
use crate::{
    BreakReason, Completion, EndpointId, GroupTag, NodeId, Op, Region, RegionKey, RegionKind, Slice, Source, Target,
    Token,
    net::{Command, DataStream, Event, NetConfig, Paired},
    shm::doorbell::Doorbell,
};

const TAG: GroupTag = GroupTag { layer: 1, group: 2, epoch: 3 };
const PATIENCE: Duration = Duration::from_secs(20);

fn config(node: u32) -> TcpConfig {
    let mut config = TcpConfig::new(NetConfig::new("test", NodeId(node)));
    config.net.failure_timeout = Duration::from_millis(200);
    config
}

/// A node without a control plane.
struct Node {
    data: Data,
    seen: Vec<Completion>,
    commands: Vec<Command>,
}

impl Node {
    fn new(config: TcpConfig) -> Node {
        let bell = Doorbell::new().unwrap();
        let data = Data::new(config.check().unwrap(), &bell.eventfd).unwrap();
        Node { data, seen: Vec::new(), commands: Vec::new() }
    }

    fn poll(&mut self) {
        self.data.poll(&mut self.seen);
        self.commands.append(&mut self.data.commands);
    }

    fn on_event(&mut self, event: Event) {
        self.data.on_event(event, &mut self.seen);
    }

    fn closed(&self) -> Option<&BreakReason> {
        self.commands.iter().find_map(|command| match command {
            Command::Close { reason, .. } => Some(reason),
            _ => None,
        })
    }

    fn broken(&self) -> Option<&BreakReason> {
        self.seen.iter().find_map(|completion| match completion {
            Completion::Broken { reason, .. } => Some(reason),
            _ => None,
        })
    }

    fn done(&self, token: u64) -> bool {
        self.seen.iter().any(|c| matches!(c, Completion::Done { token: t, result: Ok(()), .. } if t.0 == token))
    }

    #[track_caller]
    fn until(&mut self, what: &str, holds: impl Fn(&Node) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < deadline, "waited in vain for {what}; seen: {:?}", self.seen);
            self.poll();
            std::thread::yield_now();
        }
    }
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (dialed, listener.accept().unwrap().0)
}

fn stream(socket: TcpStream) -> Option<DataStream> {
    Some(DataStream { socket, tls: None, early: Vec::new() })
}

/// A node with an endpoint, whose peer is the test itself, with the socket.
fn against_bytes(config: TcpConfig, expose: &[Region]) -> (Node, EndpointId, TcpStream) {
    let depth = config.queue_depth;
    let mut node = Node::new(config);
    let endpoint = node.data.connect(NodeId(9), TAG, expose, b"");
    node.poll();
    let (ours, theirs) = sockets();
    let set_up = set_up::encode(depth, b"", expose);
    node.on_event(Event::Paired(Box::new(Paired { endpoint, set_up, stream: stream(ours) })));
    (node, endpoint, theirs)
}

/// Two nodes, each with an endpoint to the other.
fn pair(configs: [TcpConfig; 2], expose: [&[Region]; 2]) -> ([Node; 2], [EndpointId; 2]) {
    let mut nodes = configs.map(Node::new);
    let ends = [0, 1].map(|i| nodes[i].data.connect(NodeId(2 - i as u32), TAG, expose[i], b"hello"));
    nodes.iter_mut().for_each(Node::poll);
    let set_ups = [0, 1].map(|i| match nodes[i].commands.pop() {
        Some(Command::Connect(connect)) => connect.set_up,
        _ => panic!("a connect was not announced"),
    });
    let (a, b) = sockets();
    let [set_up_a, set_up_b] = set_ups;
    nodes[0].on_event(Event::Paired(Box::new(Paired { endpoint: ends[0], set_up: set_up_b, stream: stream(a) })));
    nodes[1].on_event(Event::Paired(Box::new(Paired { endpoint: ends[1], set_up: set_up_a, stream: stream(b) })));
    (nodes, ends)
}

#[track_caller]
fn until(nodes: &mut [Node; 2], what: &str, holds: impl Fn(&[Node; 2]) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds(nodes) {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        nodes.iter_mut().for_each(Node::poll);
        std::thread::yield_now();
    }
}

fn region(kind: RegionKind, key: u64, bytes: usize) -> Region {
    Region::heap(kind, RegionKey(key), bytes)
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

fn whole(region: &Region) -> Slice<'_> {
    Slice { region, offset: 0, len: region.len() }
}

fn at(key: u64, offset: usize) -> Target {
    Target { region: RegionKey(key), offset }
}

#[test]
fn long_writes_and_reads_of_all_kinds_pass_through_small_buffers() {
    const BYTES: usize = 5 << 20;
    for (from, to) in [
        (RegionKind::Bulk, RegionKind::Bulk),
        (RegionKind::Polled, RegionKind::Polled),
        (RegionKind::Bulk, RegionKind::Polled),
        (RegionKind::Polled, RegionKind::Bulk),
    ] {
        let mut configs = [config(1), config(2)];
        for config in &mut configs {
            config.send_buffer_bytes = Some(4096);
            config.receive_buffer_bytes = Some(64 << 10);
        }
        let theirs = region(to, 7, BYTES + 8);
        let (mut nodes, ends) = pair(configs, [&[], std::slice::from_ref(&theirs)]);
        let mine = region(from, 1, BYTES);
        let pattern: Vec<u8> = (0..BYTES).map(|i| (i * 7 + i / 251) as u8).collect();
        mine.write(0, &pattern);
        let back = region(from, 2, BYTES);
        let write = Op::Write { source: Source::Region(whole(&mine)), target: at(7, 8) };
        nodes[0].data.post(ends[0], write, Token(1)).unwrap();
        nodes[0].data.post(ends[0], Op::Read { from: at(7, 8), into: whole(&back) }, Token(2)).unwrap();
        until(&mut nodes, "a read", |nodes| nodes[0].done(2));
        assert!(bytes_of(&theirs)[8..] == pattern, "{from:?} to {to:?}: what was written");
        assert!(bytes_of(&back) == pattern, "{from:?} to {to:?}: what was read");
    }
}

#[test]
fn small_posts_leave_together_and_arrive_together() {
    const POSTS: usize = 500;
    let table = region(RegionKind::Polled, 7, 8 * POSTS);
    let (mut nodes, ends) = pair([config(1), config(2)], [&[], std::slice::from_ref(&table)]);
    nodes.iter_mut().for_each(Node::poll);
    for i in 0..POSTS {
        let write = Op::Write { source: Source::Inline(&[1; 8]), target: at(7, 8 * i) };
        nodes[0].data.post(ends[0], write, Token::UNSIGNALED).unwrap();
    }
    assert_eq!(nodes[0].data.core.stats.send_calls, 0, "a post sends nothing");
    nodes[0].poll();
    assert_eq!(nodes[0].data.core.stats.send_calls, 1);
    until(&mut nodes, "the last write", |_| table.load(8 * POSTS - 8) != 0);
    assert!(nodes[1].data.core.stats.receive_calls <= 2, "{:?}", nodes[1].data.core.stats);
    assert_eq!(nodes[1].data.core.stats.frames_received, POSTS as u64);
}

/// Bytes that a peer may send, and the reason that the node gives for breaking the endpoint.
fn hostile() -> Vec<(&'static str, Vec<u8>, BreakReason)> {
    let frame = |kind, len| Header { kind, len }.encode().to_vec();
    let failed = |text: &str| BreakReason::Failed(format!("the peer breaks the rules: {text}"));
    let unknown = "it sent a frame that no node sends";
    let mut reserved = frame(Kind::Send, 0);
    reserved[2] = 1;
    vec![
        ("an unknown kind", vec![0xff; HEADER_BYTES], failed(unknown)),
        ("zeros", vec![0; HEADER_BYTES], failed(unknown)),
        ("reserved bytes", reserved, failed(unknown)),
        ("a key that was not given", frame(Kind::Write(at(8, 0)), 8), BreakReason::Access),
        ("a place outside", frame(Kind::Write(at(7, 64)), 8), BreakReason::Access),
        ("a place that wraps around", frame(Kind::Write(at(7, usize::MAX - 7)), 16), BreakReason::Access),
        ("a huge length", frame(Kind::Write(at(7, 0)), usize::MAX), BreakReason::Access),
        ("a part of a word", frame(Kind::Write(at(7, 0)), 4), BreakReason::Access),
        ("a place within a word", frame(Kind::Write(at(7, 4)), 8), BreakReason::Access),
        ("a read outside", frame(Kind::Read(at(7, 0)), 72), BreakReason::Access),
        ("a read of another key", frame(Kind::Read(at(1, 0)), 8), BreakReason::Access),
        ("a message too long", frame(Kind::Send, 17), BreakReason::ReceiverNotReady),
        ("an immediate outside", frame(Kind::WriteWithImm(at(7, 64), 1), 8), BreakReason::Access),
        ("an answer", frame(Kind::Answer, 8), failed("it answered a read that was not asked for")),
        (
            "too many reads",
            frame(Kind::Read(at(7, 0)), 64).repeat(40),
            failed("it has more reads outstanding than its queue holds"),
        ),
    ]
}

#[test]
fn a_peer_that_breaks_the_rules_breaks_its_endpoint_and_nothing_else() {
    for (what, bytes, reason) in hostile() {
        for cut in [1, 13, HEADER_BYTES, bytes.len()] {
            let table = region(RegionKind::Polled, 7, 64);
            let inbox = region(RegionKind::Bulk, 1, 16);
            table.write(0, &[0xaa; 64]);
            let mut config = config(1);
            config.queue_depth = 16;
            let (mut node, endpoint, mut peer) = against_bytes(config, std::slice::from_ref(&table));
            node.data.post(endpoint, Op::Recv { into: whole(&inbox) }, Token(5)).unwrap();
            let (first, rest) = bytes.split_at(cut.min(bytes.len()));
            peer.set_nodelay(true).unwrap();
            peer.write_all(first).unwrap();
            node.poll();
            // The socket may have been closed already.
            let _ = peer.write_all(rest).and_then(|()| peer.write_all(&[0xcc; 64]));
            node.until(what, |node| node.broken().is_some());
            assert_eq!(node.broken(), Some(&reason), "{what}");
            assert_eq!(node.closed(), Some(&reason), "{what}: the peer is told");
            assert_eq!(bytes_of(&table), [0xaa; 64], "{what}: memory was changed");
            assert_eq!(bytes_of(&inbox), [0; 16], "{what}: a receive was filled");
            assert!(node.seen.contains(&Completion::Done { endpoint, token: Token(5), result: Err(crate::Flushed) }));
        }
    }
}

#[test]
fn a_stream_that_ends_is_explained_by_the_control_plane_or_is_lost() {
    for in_the_middle in [false, true] {
        let table = region(RegionKind::Polled, 7, 64);
        let (mut node, endpoint, mut peer) = against_bytes(config(1), std::slice::from_ref(&table));
        if in_the_middle {
            peer.write_all(&[1; 7]).unwrap();
        }
        drop(peer);
        let began = Instant::now();
        if in_the_middle {
            node.until("the loss", |node| node.broken().is_some());
            let Some(BreakReason::Lost(why)) = node.broken() else { panic!("broken as {:?}", node.broken()) };
            assert!(why.ends_with("in the middle of a message"), "{why}");
            assert!(began.elapsed() < config(1).net.failure_timeout);
            assert!(matches!(node.closed(), Some(BreakReason::Lost(_))), "the peer is told");
        } else {
            node.poll();
            assert_eq!(node.broken(), None);
            node.on_event(Event::Broken { endpoint, reason: BreakReason::GivenUp });
            assert_eq!(node.broken(), Some(&BreakReason::GivenUp));
        }
    }
}

#[test]
fn what_came_before_a_break_is_taken_in() {
    const BYTES: usize = 500_000;
    let table = region(RegionKind::Bulk, 7, BYTES);
    let (mut node, endpoint, mut peer) = against_bytes(config(1), std::slice::from_ref(&table));
    let mut bytes = Header { kind: Kind::Write(at(7, 0)), len: BYTES }.encode().to_vec();
    bytes.resize(HEADER_BYTES + BYTES, 3);
    // The bytes fit into the system's buffers, since no thread reads meanwhile.
    peer.write_all(&bytes).unwrap();
    node.on_event(Event::Broken { endpoint, reason: BreakReason::PeerClosed });
    node.poll();
    drop(peer);
    node.until("the end", |node| node.broken().is_some());
    assert!(bytes_of(&table).iter().all(|byte| *byte == 3));
    assert_eq!(node.broken(), Some(&BreakReason::PeerClosed));
}

#[test]
fn what_came_before_a_send_failed_is_taken_in() {
    let table = region(RegionKind::Polled, 7, 64);
    let (mut node, endpoint, mut peer) = against_bytes(config(1), std::slice::from_ref(&table));
    node.poll();
    let send = Op::Send { source: Source::Inline(&[1; 8]), imm: None };
    node.data.post(endpoint, send, Token(1)).unwrap();
    node.poll();
    let mut bytes = Header { kind: Kind::Write(at(7, 0)), len: 8 }.encode().to_vec();
    bytes.resize(HEADER_BYTES + 8, 3);
    peer.write_all(&bytes).unwrap();
    // It closes with bytes unread, which resets the connection.
    drop(peer);
    node.data.post(endpoint, send, Token(2)).unwrap();
    node.data.send();
    node.on_event(Event::Broken { endpoint, reason: BreakReason::PeerClosed });
    assert_eq!(table.load(0), 0x0303_0303_0303_0303);
    assert_eq!(node.broken(), Some(&BreakReason::PeerClosed));
}

#[test]
fn a_peer_may_read_again_as_soon_as_it_has_its_answer() {
    const BYTES: usize = 1 << 20;
    let mut config = config(1);
    config.queue_depth = 1;
    config.poll_bytes = 0;
    let table = region(RegionKind::Bulk, 7, BYTES);
    let (mut node, _, mut peer) = against_bytes(config, std::slice::from_ref(&table));
    let read = Header { kind: Kind::Read(at(7, 0)), len: BYTES }.encode();
    peer.write_all(&read).unwrap();
    node.poll();
    peer.set_nonblocking(true).unwrap();
    let (mut came, mut buffer) = (0, vec![0; BYTES]);
    let deadline = Instant::now() + PATIENCE;
    while came < HEADER_BYTES + BYTES {
        assert!(Instant::now() < deadline, "waited in vain for the answer; {came} bytes came");
        // A poll comes so far when the peer reads and writes.
        node.data.look();
        node.data.send();
        came += peer.read(&mut buffer).unwrap_or(0);
    }
    peer.write_all(&read).unwrap();
    node.until("the second request", |node| node.data.core.stats.frames_received == 2 || node.broken().is_some());
    assert_eq!(node.broken(), None);
}

/// Frames of all kinds have the same effect in whatever pieces they come.
#[test]
fn a_stream_may_come_in_any_pieces() {
    let polled_bytes = 80_000;
    let bulk_bytes = 50_001;
    let pattern: Vec<u8> = (0..polled_bytes).map(|i| (i * 31 + 5) as u8).collect();
    let frame = |kind, bytes: &[u8]| [&Header { kind, len: bytes.len() }.encode()[..], bytes].concat();
    let stream = [
        frame(Kind::Write(at(7, 8)), &pattern),
        frame(Kind::Write(at(8, 3)), &pattern[..bulk_bytes]),
        frame(Kind::Send, &pattern[..1001]),
        frame(Kind::SendWithImm(9), &[]),
        frame(Kind::WriteWithImm(at(7, 0), 10), &[6; 8]),
        frame(Kind::Write(at(99, 0)), &[]),
    ]
    .concat();
    let seed = std::env::var("SQUALL_SEED").ok().map_or_else(|| fastrand::u64(..), |seed| seed.parse().unwrap());
    let mut rng = fastrand::Rng::with_seed(seed);
    for round in 0..40 {
        let exposed = [region(RegionKind::Polled, 7, 8 + polled_bytes), region(RegionKind::Bulk, 8, 3 + bulk_bytes)];
        let inbox = region(if round % 2 == 0 { RegionKind::Polled } else { RegionKind::Bulk }, 1, 1008);
        let (mut node, endpoint, mut peer) = against_bytes(config(1), &exposed);
        for token in 1..=3 {
            node.data.post(endpoint, Op::Recv { into: whole(&inbox) }, Token(token)).unwrap();
        }
        let mut rest = &stream[..];
        let most = [200, 1000, 20_000, 200_000][round % 4];
        while !rest.is_empty() {
            let (now, then) = rest.split_at(rng.usize(1..=most).min(rest.len()));
            peer.write_all(now).unwrap();
            if rng.bool() || now.len() > 1000 {
                node.poll();
            }
            rest = then;
        }
        node.until("all of it", |node| node.data.core.stats.frames_received == 6);
        let context = format!("round {round} (again with SQUALL_SEED={seed})");
        assert!(bytes_of(&exposed[0])[8..] == pattern, "{context}: polled");
        assert_eq!(bytes_of(&exposed[0])[..8], [6; 8], "{context}");
        assert!(bytes_of(&exposed[1])[3..] == pattern[..bulk_bytes], "{context}: bulk");
        assert!(bytes_of(&inbox)[..1001] == pattern[..1001], "{context}: the message");
        let bulk = bulk_bytes + if inbox.kind() == RegionKind::Bulk { 1001 } else { 0 };
        assert_eq!(node.data.core.stats.bulk_received, bulk as u64, "{context}");
        let received = |token, bytes, imm| Completion::Received { endpoint, token: Token(token), bytes, imm };
        let expected = [received(1, 1001, None), received(2, 0, Some(9)), received(3, 0, Some(10))];
        assert_eq!(node.seen[1..], expected, "{context}");
    }
}

#[test]
fn a_peer_that_does_not_read_is_not_given_up() {
    let table = region(RegionKind::Bulk, 7, 64 << 20);
    let (mut node, endpoint, peer) = against_bytes(config(1), std::slice::from_ref(&table));
    let write = Op::Write { source: Source::Region(whole(&table)), target: at(7, 0) };
    node.data.post(endpoint, write, Token(1)).unwrap();
    let until = Instant::now() + 4 * config(1).net.failure_timeout;
    while Instant::now() < until {
        node.poll();
        std::thread::yield_now();
    }
    assert_eq!(node.broken(), None);
    drop(peer);
}

#[test]
fn the_tags_of_nodes_that_ended_are_free() {
    let mut node = Node::new(config(1));
    let mut ends = BTreeMap::new();
    for round in 0..3 {
        let endpoint = node.data.connect(NodeId(2), TAG, &[], b"");
        assert_eq!(ends.insert(endpoint, round), None);
        node.poll();
        assert_eq!(node.broken(), None);
        node.data.disconnect(endpoint);
    }
}
