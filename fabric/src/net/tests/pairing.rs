use std::net::TcpListener;

use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};

use super::{super::socket::dial, *};

/// Sends bytes over a data connection, and returns the bytes that came out.
fn carry(from: &mut DataStream, to: &mut DataStream, bytes: &[u8]) -> Vec<u8> {
    let mut sent = Vec::new();
    match &mut from.tls {
        Some(session) => session.seal(bytes, &mut sent).unwrap(),
        None => sent.extend_from_slice(bytes),
    }
    from.socket.set_nonblocking(false).unwrap();
    to.socket.set_nonblocking(false).unwrap();
    from.socket.write_all(&sent).unwrap();
    let mut came = std::mem::take(&mut to.early);
    let early = came.len();
    came.resize(early.max(sent.len()), 0);
    to.socket.read_exact(&mut came[early..]).unwrap();
    let mut plain = Vec::new();
    match &mut to.tls {
        Some(session) => {
            let used = session.open(&mut came, &mut |bytes| plain.extend_from_slice(bytes)).unwrap();
            assert_eq!(used, came.len());
        }
        None => plain = came,
    }
    plain
}

#[test]
fn endpoints_of_a_tag_meet_and_get_a_connection_of_their_own() {
    with_and_without_tls(|ca| {
        let (mut a, mut b) = two(Plane::Tcp, ca);
        for (tag, a_first) in [(1, true), (2, false), (3, true)] {
            let (ea, eb);
            if a_first {
                ea = a.connect(2, tag);
                eb = b.connect(1, tag);
            } else {
                eb = b.connect(1, tag);
                ea = a.connect(2, tag);
            }
            let (pa, pb) = (a.paired(ea), b.paired(eb));
            assert_eq!(pa.set_up, format!("set-up {tag} of node 2").as_bytes());
            assert_eq!(pb.set_up, format!("set-up {tag} of node 1").as_bytes());
            let (mut sa, mut sb) = (pa.stream.unwrap(), pb.stream.unwrap());
            assert_eq!((sa.tls.is_some(), sb.tls.is_some()), (ca.is_some(), ca.is_some()));
            assert_eq!(carry(&mut sa, &mut sb, b"to b"), b"to b");
            assert_eq!(carry(&mut sb, &mut sa, b"to a"), b"to a");
        }
        assert_eq!((a.net.monitor().stats().links_up, b.net.monitor().stats().links_up), (1, 1));
        assert_eq!(b.net.monitor().stats().refused.total() + a.net.monitor().stats().refused.total(), 0);
    });
}

#[test]
fn verbs_endpoints_get_the_set_ups_alone() {
    with_and_without_tls(|ca| {
        let (mut a, mut b) = two(Plane::Verbs, ca);
        let ((_, pa), (_, pb)) = join(&mut a, &mut b, 1);
        assert!(pa.stream.is_none() && pb.stream.is_none());
    });
}

#[test]
fn many_endpoints_meet_at_once() {
    let (mut a, mut b) = two(Plane::Tcp, None);
    let mut left: Vec<EndpointId> = Vec::new();
    for tag in 0..100 {
        left.push(a.connect(2, tag));
        left.push(b.connect(1, tag));
    }
    for _ in 0..100 {
        for node in [&mut a, &mut b] {
            let Event::Paired(paired) = node.event() else { panic!("one did not meet") };
            left.retain(|endpoint| *endpoint != paired.endpoint);
        }
    }
    assert!(left.is_empty());
}

#[test]
fn three_nodes_meet_over_either_family() {
    for listen in ["127.0.0.1:0", "[::1]:0", "localhost:0"] {
        let mut nodes: Vec<Node> = (1..=3).map(|id| Node::open(&config(id, &[listen]), Plane::Tcp)).collect();
        for a in &nodes {
            for b in &nodes {
                let port = b.net.local_addrs()[0].port();
                let name = if listen == "localhost:0" { format!("localhost:{port}") } else { b.address() };
                a.net.set_peer(b.id, vec![name]);
            }
        }
        let mut expected = Vec::new();
        for (a, node) in nodes.iter_mut().enumerate() {
            let own = node.id;
            for peer in (1..=3).filter(|peer| NodeId(*peer) != own) {
                expected.push((a, node.connect(peer, 1)));
            }
        }
        for (a, _) in expected.clone() {
            let Event::Paired(paired) = nodes[a].event() else { panic!("{listen}: one did not meet") };
            expected.retain(|(node, endpoint)| (*node, *endpoint) != (a, paired.endpoint));
        }
        assert!(expected.is_empty(), "{listen}");
    }
}

#[test]
fn a_node_that_listens_nowhere_dials_whoever_it_is() {
    with_and_without_tls(|ca| {
        for (listener, silent) in [(1, 2), (2, 1)] {
            let mut a = Node::open(&secured(listener, &["127.0.0.1:0"], ca), Plane::Tcp);
            let mut b = Node::open(&secured(silent, &[], ca), Plane::Tcp);
            b.knows(&a);
            join(&mut a, &mut b, 1);
        }
    });
}

#[test]
fn an_address_where_nobody_answers_does_not_delay_the_others() {
    let refuses = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let drops = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&drops, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&drops, 0).unwrap();
    let drops_at = SocketAddr::try_from(getsockname(&drops).unwrap()).unwrap();
    // Once its queue is full, the system drops further connections, as a firewall does.
    let _filling: Vec<_> = (0..4).map(|_| dial(drops_at).unwrap()).collect();
    let dead = [refuses, mute.local_addr().unwrap().to_string(), drops_at.to_string()];
    let mut a = Node::open(&config(1, &["127.0.0.1:0"]), Plane::Tcp);
    let mut b = Node::open(&config(2, &["127.0.0.1:0"]), Plane::Tcp);
    a.net.set_peer(NodeId(2), dead.into_iter().chain([b.address()]).collect());
    let start = Instant::now();
    join(&mut a, &mut b, 1);
    assert!(start.elapsed() < config(1, &[]).handshake_timeout, "it waited for the dead addresses");
}

#[test]
fn addresses_may_come_later_and_change() {
    let mut a = Node::open(&config(1, &["127.0.0.1:0"]), Plane::Tcp);
    let mut b = Node::open(&config(2, &["127.0.0.1:0"]), Plane::Tcp);
    let (ea, eb) = (a.connect(2, 1), b.connect(1, 1));
    assert!(a.event_within(Duration::from_millis(20)).is_none());
    a.net.set_peer(NodeId(2), vec!["localhost:1".into(), "no.such.name.invalid:1".into()]);
    a.knows(&b);
    a.paired(ea);
    b.paired(eb);
}

#[test]
fn a_tag_that_is_in_use_is_refused_until_it_is_closed() {
    let (mut a, mut b) = two(Plane::Verbs, None);
    let ((ea, _), (eb, _)) = join(&mut a, &mut b, 1);
    let again = a.connect(2, 1);
    assert_eq!(a.broken(again), BreakReason::TagInUse);
    a.close(ea);
    assert_eq!(b.broken(eb), BreakReason::PeerClosed);
    join(&mut a, &mut b, 1);
}

#[test]
fn an_endpoint_to_oneself_is_refused() {
    let (mut a, _b) = two(Plane::Verbs, None);
    let endpoint = a.connect(1, 1);
    assert!(matches!(a.broken(endpoint), BreakReason::Refused(_)));
}

#[test]
fn what_is_told_comes_in_order_and_before_the_end() {
    with_and_without_tls(|ca| {
        let (mut a, mut b) = two(Plane::Verbs, ca);
        let ((ea, _), (eb, _)) = join(&mut a, &mut b, 1);
        let tell = |n: u16| Command::Tell { endpoint: ea, bytes: n.to_le_bytes().repeat(TELL_BYTES / 2) };
        a.control.send((0..200).map(tell));
        a.control.send([Command::Close { endpoint: ea, reason: BreakReason::Failed("a reason".into()) }]);
        for n in 0..200u16 {
            assert_eq!(b.told(eb), n.to_le_bytes().repeat(TELL_BYTES / 2));
        }
        assert_eq!(b.broken(eb), BreakReason::Failed("a reason".into()));
    });
}

#[test]
fn a_large_set_up_gets_through() {
    with_and_without_tls(|ca| {
        let (mut a, mut b) = two(Plane::Verbs, ca);
        let tag = GroupTag { layer: 0, group: 1, epoch: 0 };
        let (ea, eb) = (EndpointId(1), EndpointId(2));
        let set_up = |byte| vec![byte; SET_UP_BYTES];
        a.control.send([Command::Connect(Connect { endpoint: ea, peer: NodeId(2), tag, set_up: set_up(1) })]);
        b.control.send([Command::Connect(Connect { endpoint: eb, peer: NodeId(1), tag, set_up: set_up(2) })]);
        assert!(a.paired(ea).set_up == set_up(2) && b.paired(eb).set_up == set_up(1));
    });
}

/// Endpoints are closed and connected at random, and those that are left meet.
#[test]
fn endpoints_that_come_and_go_meet_those_that_stay() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut a, mut b) = two(Plane::Tcp, None);
        let mut last = [None, None];
        for _ in 0..20 {
            let side = rng.usize(..2);
            let (node, peer) = if side == 0 { (&mut a, 2) } else { (&mut b, 1) };
            if let Some(endpoint) = last[side].take() {
                node.close(endpoint);
            }
            last[side] = Some(node.connect(peer, 7));
        }
        // A side whose counterpart was closed after they had met connects again.
        let mut met = [false, false];
        let until = Instant::now() + PATIENCE;
        while met != [true, true] {
            assert!(Instant::now() < until, "seed {seed}: they did not meet");
            for side in 0..2 {
                let (node, peer) = if side == 0 { (&mut a, 2) } else { (&mut b, 1) };
                let current = *last[side].get_or_insert_with(|| node.connect(peer, 7));
                match node.event_within(Duration::from_millis(10)) {
                    Some(Event::Paired(paired)) if paired.endpoint == current => met[side] = true,
                    Some(Event::Broken { endpoint, reason }) if endpoint == current => {
                        assert_eq!(reason, BreakReason::PeerClosed, "seed {seed}");
                        (last[side], met[side]) = (None, false);
                    }
                    _ => {}
                }
            }
        }
    }
}
