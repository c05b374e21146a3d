use super::*;

/// A pair that is up, to which strangers come; `is_undisturbed` says whether the pair has noticed.
struct Town {
    a: Node,
    b: Node,
    ends: (EndpointId, EndpointId),
}

impl Town {
    fn new(ca: Option<&Ca>, change: impl Fn(&mut NetConfig)) -> Town {
        let mut b = secured(2, &["127.0.0.1:0"], ca);
        change(&mut b);
        let mut b = Node::open(&b, Plane::Verbs);
        let mut a = Node::open(&secured(1, &[], ca), Plane::Verbs);
        a.knows(&b);
        let ((ea, _), (eb, _)) = join(&mut a, &mut b, 1);
        Town { a, b, ends: (ea, eb) }
    }

    /// Checks that a node still hears the other's words, and that endpoints can still meet.
    fn is_undisturbed(&mut self) {
        self.a.control.send([Command::Tell { endpoint: self.ends.0, bytes: vec![1, 2, 3] }]);
        assert_eq!(self.b.told(self.ends.1), [1, 2, 3]);
        join(&mut self.a, &mut self.b, 2);
        assert_eq!(self.b.net.monitor().stats().links_down, 0);
    }

    fn strangers(&self, what: &str, is: impl Fn(&RefusalStats) -> u64, count: u64) {
        self.b.counts(what, |stats| is(&stats.refused) == count && stats.refused.total() == count);
    }
}

#[test]
fn random_bytes_disturb_nobody() {
    with_and_without_tls(|ca| {
        let mut town = Town::new(ca, |_| {});
        let mut rng = fastrand::Rng::with_seed(1);
        for count in 1..=20 {
            let mut bare = Bare::dial(&town.b);
            let mut bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(1000).collect();
            // A length that neither TLS nor a greeting may have.
            bytes[..5].copy_from_slice(&[255; 5]);
            let _ = bare.socket.write_all(&bytes);
            let kind = |stats: &RefusalStats| stats.tls + stats.malformed;
            town.strangers("random bytes", kind, count);
        }
        town.is_undisturbed();
    });
}

#[test]
fn who_leaves_in_the_middle_is_counted() {
    with_and_without_tls(|ca| {
        let mut town = Town::new(ca, |_| {});
        let half: &[u8] = if ca.is_some() { &[22, 3, 1, 0] } else { &[100, 0, 0, 0, 2] };
        for (count, bytes) in [&[], &half[..2], half].into_iter().enumerate() {
            let mut bare = Bare::dial(&town.b);
            bare.socket.write_all(bytes).unwrap();
            drop(bare);
            town.strangers("half a handshake", |stats| stats.left, count as u64 + 1);
        }
        town.is_undisturbed();
    });
}

#[test]
fn who_is_slow_has_to_go() {
    with_and_without_tls(|ca| {
        let timeout = Duration::from_millis(100);
        let mut town = Town::new(ca, |config| config.handshake_timeout = timeout);
        let mut bare = Bare::dial(&town.b);
        let start = Instant::now();
        // A byte now and then does not help.
        let start_of_a_hello = if ca.is_some() { [22, 3, 1, 0, 200] } else { [200, 0, 0, 0, 2] };
        for byte in start_of_a_hello.into_iter().chain(std::iter::repeat(1)) {
            if town.b.net.monitor().stats().refused.too_slow == 1 {
                break;
            }
            assert!(start.elapsed() < PATIENCE);
            let _ = bare.socket.write_all(&[byte]);
            assert!(town.b.event_within(timeout / 10).is_none());
        }
        assert!(start.elapsed() >= timeout);
        town.is_undisturbed();
    });
}

#[test]
fn so_many_strangers_are_heard_and_no_more() {
    let mut town = Town::new(None, |config| config.max_pending_peers = 3);
    let mut crowd: Vec<Bare> = Vec::new();
    for _ in 0..10 {
        let mut bare = Bare::dial(&town.b);
        bare.challenge();
        crowd.push(bare);
    }
    town.strangers("too many", |stats| stats.too_many, 7);
    for (index, bare) in crowd.iter_mut().enumerate() {
        if index < 7 {
            assert_eq!(bare.frame(), Ok(None), "the oldest have to go");
        }
    }
    town.is_undisturbed();
}

#[test]
fn a_crowd_from_one_address_leaves_others_their_places() {
    let mut town = Town::new(None, |config| config.max_pending_peers = 3);
    let mut patient = Bare::dial_from(&town.b, [127, 0, 0, 2]);
    let _crowd: Vec<Bare> = std::iter::repeat_with(|| {
        let mut bare = Bare::dial(&town.b);
        bare.challenge();
        bare
    })
    .take(10)
    .collect();
    town.strangers("too many", |stats| stats.too_many, 8);
    let answer = patient.greet(1, 99, |_, _| {});
    assert!(matches!(answer, Greeting::Refuse { why: Refusal::Node, .. }), "{answer:?}");
    town.is_undisturbed();
}

/// Whether a node takes part in a TLS handshake that begins at an address of this host.
fn shakes(node: &Node, address: [u8; 4], identity: &Identity) -> bool {
    let mut bare = Bare::dial_from(node, address).shaking(node, identity);
    matches!(bare.frame(), Ok(Some(_)))
}

/// Whether a node answers the first message of a TLS handshake.
fn answers(node: &Node, address: [u8; 4], identity: &Identity) -> bool {
    let mut bare = Bare::dial_from(node, address).shaking(node, identity);
    let _ = bare.socket.write_all(&bare.pipe.out);
    matches!(bare.socket.read(&mut [0]), Ok(1))
}

/// Begins handshakes at these addresses, as fast as it goes, while a test does something.
fn flood(node: &Node, hosts: std::ops::RangeInclusive<u8>, test: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for host in hosts {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let mut bare = Bare::dial_from(node, [127, 0, 0, host]);
                    let _ = bare.socket.write_all(&[255; 5]);
                    // More at a time than the listener has room for would make callers wait for a second.
                    while matches!(bare.socket.read(&mut [0; 64]), Ok(1..)) {}
                }
            });
        }
        let test = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
        is_over.store(true, Ordering::Relaxed);
        test.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn a_flood_of_strangers_keeps_out_no_address_from_which_members_or_clients_came() {
    let ca = Ca::new();
    let configured = [127, 0, 0, 12];
    let mut town = Town::new(Some(&ca), |config| {
        config.peers = [(NodeId(3), vec!["127.0.0.12:1".to_owned()])].into();
    });
    // The member has dialed from the first address.
    let (member, web) = (ca.identity(1), ca.identity_of(&Principal::Client("web".to_owned(), ClientRights::default())));
    assert!(shakes(&town.b, [127, 0, 0, 11], &web));
    let start = Instant::now();
    flood(&town.b, 2..=9, || {
        while answers(&town.b, [127, 0, 0, 10], &web) {
            assert!(start.elapsed() < PATIENCE, "{:?}", town.b.net.monitor().stats());
        }
        for _ in 0..20 {
            for address in [[127, 0, 0, 1], configured] {
                assert!(shakes(&town.b, address, &member), "{:?}", town.b.net.monitor().stats());
            }
            assert!(shakes(&town.b, [127, 0, 0, 11], &web), "{:?}", town.b.net.monitor().stats());
        }
    });
    town.is_undisturbed();
}

#[test]
fn a_flood_from_one_known_address_keeps_out_no_other_one() {
    let ca = Ca::new();
    let mut town = Town::new(Some(&ca), |config| {
        config.peers = [(NodeId(3), vec!["127.0.0.2:1".to_owned()])].into();
    });
    let member = ca.identity(1);
    flood(&town.b, 2..=2, || {
        town.b.counts("the flood is refused", |stats| stats.refused.over_rate > 0);
        for _ in 0..20 {
            assert!(shakes(&town.b, [127, 0, 0, 1], &member), "{:?}", town.b.net.monitor().stats());
        }
    });
    town.is_undisturbed();
}

#[test]
fn connections_that_never_say_a_byte_cost_no_handshakes() {
    let ca = Ca::new();
    let mut town = Town::new(Some(&ca), |_| {});
    for count in 1..=600 {
        drop(Bare::dial_from(&town.b, [127, 0, 0, 2]));
        town.strangers("it left", |stats| stats.left, count);
    }
    town.is_undisturbed();
}

#[test]
fn a_huge_length_is_refused_before_anything_follows() {
    let mut town = Town::new(None, |_| {});
    let mut bare = Bare::dial(&town.b);
    bare.socket.write_all(&u32::MAX.to_le_bytes()).unwrap();
    town.strangers("a huge length", |stats| stats.malformed, 1);
    town.is_undisturbed();
}

#[test]
fn a_greeting_that_was_recorded_is_no_greeting() {
    let mut town = Town::new(None, |_| {});
    let mut bare = Bare::dial(&town.b);
    let challenge = bare.challenge();
    let rest = HelloRest {
        to: Some(NodeId(2)),
        incarnation: 5,
        challenge: challenge.map(|byte| !byte),
        nonce: [7; 16],
        service: Service::Link { dialer_listens: true },
        cluster: CLUSTER.into(),
    };
    bare.send(&Greeting::Hello(Hello { version: PROTOCOL, from: NodeId(1), rest: Some(rest) }).encode());
    assert_eq!(bare.frame(), Ok(None));
    town.strangers("a replayed greeting", |stats| stats.replayed, 1);
    town.is_undisturbed();
}

#[test]
fn certificates_of_strangers_are_refused() {
    let ca = Ca::new();
    let mut town = Town::new(Some(&ca), |_| {});
    // The stranger has its own CA in the place of the cluster's: it would trust the node, but is not trusted.
    let other = Ca::new();
    let (certificate, key) = other.issue(&[certificate_name(CLUSTER, NodeId(1))], [2000, 4000]);
    let trusting = Identity::from_pem(&(ca.pem() + &other.pem()), &certificate, &key).unwrap();
    for (count, identity) in [trusting, ca.expired(1)].into_iter().enumerate() {
        let error = Bare::dial_tls(&town.b, &identity).frame();
        assert!(matches!(error, Err(PipeError::Tls(TlsError::OwnCertificate(_)))), "{error:?}");
        town.strangers("a bad certificate", |stats| stats.certificate, count as u64 + 1);
    }
    town.is_undisturbed();
}

#[test]
fn a_node_can_not_pass_for_another() {
    let ca = Ca::new();
    let mut town = Town::new(Some(&ca), |_| {});
    let mut bare = Bare::dial_tls(&town.b, &ca.identity(3));
    let challenge = bare.challenge();
    let rest = HelloRest {
        to: Some(NodeId(2)),
        incarnation: 5,
        challenge,
        nonce: [7; 16],
        service: Service::Link { dialer_listens: false },
        cluster: CLUSTER.into(),
    };
    bare.send(&Greeting::Hello(Hello { version: PROTOCOL, from: NodeId(1), rest: Some(rest) }).encode());
    assert_eq!(bare.frame(), Ok(None));
    town.strangers("a false name", |stats| stats.certificate, 1);
    town.is_undisturbed();
}

#[test]
fn a_false_node_in_the_place_of_a_peer_is_passed_by() {
    let (ca, other) = (Ca::new(), Ca::new());
    let mut b = Node::open(&secured(2, &["127.0.0.1:0"], Some(&ca)), Plane::Tcp);
    let mut a = Node::open(&secured(1, &["127.0.0.1:0"], Some(&ca)), Plane::Tcp);
    let false_b = Node::open(&secured(2, &["127.0.0.1:0"], Some(&other)), Plane::Tcp);
    let expired = {
        let mut config = config(2, &["127.0.0.1:0"]);
        config.security = Security::Tls(ca.expired(2));
        Node::open(&config, Plane::Tcp)
    };
    let plain = Node::open(&config(2, &["127.0.0.1:0"]), Plane::Tcp);
    let addresses = [&false_b, &expired, &plain, &b].map(Node::address).to_vec();
    a.net.set_peer(NodeId(2), addresses);
    join(&mut a, &mut b, 1);
}

#[test]
fn a_peer_that_refuses_this_nodes_certificate_is_believed() {
    let ca = Ca::new();
    let b = Node::open(&secured(2, &["127.0.0.1:0"], Some(&ca)), Plane::Tcp);
    let mut config = config(1, &[]);
    config.security = Security::Tls(ca.expired(1));
    let mut a = Node::open(&config, Plane::Tcp);
    a.knows(&b);
    let endpoint = a.connect(2, 1);
    let BreakReason::Refused(text) = a.broken(endpoint) else { panic!("it broke otherwise") };
    assert!(text.contains("refuses this node's certificate"), "{text}");
}
