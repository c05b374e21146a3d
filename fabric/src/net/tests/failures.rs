use super::*;

/// A node of a plane without data connections, and a bare link of node 1 with it over which an endpoint is connected.
fn half_bare(change: impl Fn(&mut NetConfig)) -> (Node, EndpointId, Bare) {
    let mut config = config(2, &["127.0.0.1:0"]);
    change(&mut config);
    let mut node = Node::open(&config, Plane::Verbs);
    let endpoint = node.connect(1, 1);
    let mut bare = Bare::link(&node, 1);
    bare.accept_offer(10);
    node.paired(endpoint);
    (node, endpoint, bare)
}

#[test]
fn a_connection_that_ends_without_a_word_is_lost() {
    let (mut node, endpoint, bare) = half_bare(|_| {});
    drop(bare);
    assert!(matches!(node.broken(endpoint), BreakReason::Lost(_)));
    assert_eq!(node.net.monitor().stats().links_down, 1);
}

#[test]
fn a_node_that_leaves_says_goodbye() {
    with_and_without_tls(|ca| {
        let (mut a, mut b) = two(Plane::Verbs, ca);
        let (_, (eb, _)) = join(&mut a, &mut b, 1);
        drop(a);
        assert_eq!(b.broken(eb), BreakReason::PeerClosed);
    });
}

#[test]
fn a_silent_peer_is_given_up_in_time_and_is_told() {
    let timeout = Duration::from_millis(300);
    let (mut node, endpoint, mut bare) = half_bare(|config| config.failure_timeout = timeout);
    let silent_since = Instant::now();
    bare.send(&LinkFrame::Beat.encode());
    assert_eq!(node.broken(endpoint), BreakReason::Unreachable);
    assert!(silent_since.elapsed() >= timeout / 2, "it lost patience after {:?}", silent_since.elapsed());
    assert_eq!(bare.link_frame(), Some(LinkFrame::GivenUp));
    assert_eq!(bare.link_frame(), None);
}

#[test]
fn a_peer_that_only_sends_heartbeats_is_not_given_up() {
    let timeout = Duration::from_millis(200);
    let (mut node, endpoint, mut bare) = half_bare(|config| config.failure_timeout = timeout);
    for _ in 0..20 {
        bare.send(&LinkFrame::Beat.encode());
        assert!(node.event_within(timeout / 8).is_none());
    }
    node.close(endpoint);
    assert_eq!(bare.link_frame(), Some(LinkFrame::Close { mine: endpoint.0, reason: BreakReason::PeerClosed }));
}

#[test]
fn a_node_that_was_given_up_learns_of_it() {
    let (mut node, endpoint, mut bare) = half_bare(|_| {});
    bare.send(&LinkFrame::GivenUp.encode());
    assert_eq!(node.broken(endpoint), BreakReason::GivenUp);
}

#[test]
fn after_a_link_has_ended_another_comes_about() {
    let (mut node, endpoint, bare) = half_bare(|_| {});
    drop(bare);
    node.broken(endpoint);
    let endpoint = node.connect(1, 2);
    let mut bare = Bare::link(&node, 1);
    bare.accept_offer(11);
    node.paired(endpoint);
}

#[test]
fn endpoints_that_wait_survive_the_end_of_a_link() {
    let (mut node, endpoint, mut bare) = half_bare(|_| {});
    let waiting = node.connect(1, 2);
    assert!(matches!(bare.link_frame(), Some(LinkFrame::Offer { .. })));
    drop(bare);
    node.broken(endpoint);
    let mut bare = Bare::link(&node, 1);
    bare.accept_offer(11);
    node.paired(waiting);
}

#[test]
fn a_new_process_takes_the_place_of_the_old_one() {
    let (mut node, endpoint, mut old) = half_bare(|_| {});
    let mut new = Bare::link(&node, 2);
    let BreakReason::Lost(text) = node.broken(endpoint) else { panic!("it broke otherwise") };
    assert!(text.contains("another process of node 1"), "{text}");
    assert_eq!(old.link_frame(), None);
    let endpoint = node.connect(1, 2);
    new.accept_offer(11);
    node.paired(endpoint);
}

#[test]
fn a_second_link_of_the_same_process_has_to_wait() {
    let (mut node, endpoint, old) = half_bare(|_| {});
    let answer = Bare::dial(&node).greet(1, 2, |_, _| {});
    assert!(matches!(answer, Greeting::Refuse { why: Refusal::Busy, .. }), "{answer:?}");
    assert!(node.event_within(Duration::from_millis(20)).is_none());
    drop(old);
    node.broken(endpoint);
    Bare::link(&node, 1);
}

#[test]
fn data_for_an_endpoint_that_was_closed_are_refused() {
    let mut node = Node::open(&config(2, &["127.0.0.1:0"]), Plane::Tcp);
    let endpoint = node.connect(1, 1);
    let mut bare = Bare::dial(&node);
    let mut link = [0; 16];
    let challenge = bare.challenge();
    link.copy_from_slice(&challenge);
    let rest = HelloRest {
        to: Some(NodeId(2)),
        incarnation: 1,
        challenge,
        nonce: [7; 16],
        service: Service::Link { dialer_listens: true },
        cluster: CLUSTER.into(),
    };
    bare.send(&Greeting::Hello(Hello { version: PROTOCOL, from: NodeId(1), rest: Some(rest) }).encode());
    assert!(matches!(bare.greeting(), Greeting::Welcome { .. }));
    bare.accept_offer(10);

    let data =
        |link, mine, yours| Bare::dial(&node).greet(1, 2, |_, rest| rest.service = Service::Data { link, mine, yours });
    for (link, mine, yours) in [([0; 16], 10, endpoint.0), (link, 11, endpoint.0), (link, 10, endpoint.0 + 1)] {
        let answer = data(link, mine, yours);
        assert!(matches!(answer, Greeting::Refuse { why: Refusal::NoEndpoint, .. }), "{answer:?}");
    }
    assert!(matches!(data(link, 10, endpoint.0), Greeting::Welcome { .. }));
    let again = data(link, 10, endpoint.0);
    assert!(matches!(again, Greeting::Refuse { why: Refusal::NoEndpoint, .. }), "data come once: {again:?}");
    node.paired(endpoint);
}

#[test]
fn who_dials_a_node_of_another_cluster_or_version_is_told() {
    let change_cluster = |config: &mut NetConfig| config.cluster = "another".into();
    let change_version = |config: &mut NetConfig| config.protocol = 9;
    type Change<'a> = &'a dyn Fn(&mut NetConfig);
    for (change, word) in [(&change_cluster as Change<'_>, "same cluster name"), (&change_version, "same release")] {
        let mut other = config(2, &["127.0.0.1:0"]);
        change(&mut other);
        let mut b = Node::open(&other, Plane::Tcp);
        let mut a = Node::open(&config(1, &[]), Plane::Tcp);
        a.knows(&b);
        b.connect(1, 1);
        let endpoint = a.connect(2, 1);
        let BreakReason::Refused(text) = a.broken(endpoint) else { panic!("it broke otherwise") };
        assert!(text.contains(word), "{text}");
        let strangers = b.net.monitor().stats().refused;
        assert_eq!((strangers.other_cluster + strangers.other_version, strangers.total()), (1, 1));
        assert!(b.event_within(Duration::from_millis(20)).is_none(), "any process could have said that");
    }
}

#[test]
fn with_tls_both_sides_are_told_of_another_version() {
    let ca = Ca::new();
    let mut other = secured(2, &["127.0.0.1:0"], Some(&ca));
    other.protocol = 9;
    let mut b = Node::open(&other, Plane::Tcp);
    let mut a = Node::open(&secured(1, &[], Some(&ca)), Plane::Tcp);
    a.knows(&b);
    let (eb, ea) = (b.connect(1, 1), a.connect(2, 1));
    for reason in [a.broken(ea), b.broken(eb)] {
        let BreakReason::Refused(text) = &reason else { panic!("{reason}") };
        assert!(text.contains("same release"), "{text}");
    }
}

#[test]
fn a_wrong_address_is_said_to_be_one() {
    let b = Node::open(&config(3, &["127.0.0.1:0"]), Plane::Tcp);
    let mut a = Node::open(&config(1, &["127.0.0.1:0"]), Plane::Tcp);
    a.net.set_peer(NodeId(2), vec![b.address()]);
    let endpoint = a.connect(2, 1);
    let BreakReason::Refused(text) = a.broken(endpoint) else { panic!("it broke otherwise") };
    assert!(text.contains("another node than node 2 listens at 127.0.0.1"), "{text}");
}

#[test]
fn a_link_whose_peer_sends_nonsense_ends() {
    for nonsense in [
        vec![0; 8],
        vec![255; 8],
        LinkFrame::Confirm { mine: 1, yours: 2001 }.encode(),
        LinkFrame::Accept { mine: 1, yours: 2001, set_up: vec![] }.encode(),
        LinkFrame::Tell { yours: 2001, bytes: vec![] }.encode()[..4].to_vec(),
        [LinkFrame::Beat.encode(), vec![1, 0, 0, 0, 99]].concat(),
    ] {
        let (mut node, endpoint, mut bare) = half_bare(|_| {});
        bare.socket.write_all(&nonsense).unwrap();
        if nonsense.len() > 4 {
            let reason = node.broken(endpoint);
            assert!(matches!(reason, BreakReason::Failed(_)), "{nonsense:?}: {reason}");
        }
    }
}

#[test]
fn a_chatty_peer_does_not_grow_what_waits_here() {
    let (mut node, endpoint, mut bare) = half_bare(|_| {});
    let frame = LinkFrame::Tell { yours: endpoint.0, bytes: vec![0; 8] }.encode();
    let many = frame.repeat(10_000);
    // The node may have ended the link in the middle.
    let _ = bare.socket.write_all(&many);
    node.counts("the link ends", |stats| stats.links_down == 1);
    let mut told = 0;
    loop {
        match node.event() {
            Event::Told { .. } => told += 1,
            Event::Broken { reason, .. } => break assert!(matches!(reason, BreakReason::Failed(_)), "{reason}"),
            Event::Paired(_) => panic!("no node connects"),
        }
    }
    assert!(told < 10_000);
}
