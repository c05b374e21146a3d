use super::*;

fn dial<'a>(addresses: &'a [String], node: u32, security: &'a Security) -> ServiceDial<'a> {
    ServiceDial {
        addresses,
        peer: Some(NodeId(1)),
        cluster: CLUSTER,
        node: NodeId(node),
        security,
        service: ServiceId(5),
        connect_timeout: PATIENCE,
        timeout: PATIENCE,
    }
}

fn security(ca: Option<&Ca>, node: u32) -> Security {
    ca.map_or(Security::LoopbackOnly, |ca| Security::Tls(ca.identity(node)))
}

#[test]
fn a_service_takes_the_streams_of_whoever_asks_for_it() {
    with_and_without_tls(|ca| {
        let node = Node::open(&secured(1, &["127.0.0.1:0"], ca), Plane::Tcp);
        let streams = node.net.take_service(ServiceId(5));
        let security = security(ca, 9);
        let addresses = ["127.0.0.1:1".to_owned(), node.address()];
        for peer in [Some(NodeId(1)), None] {
            let mut client = dial_service(&ServiceDial { peer, ..dial(&addresses, 9, &security) }).unwrap();
            let mut server = streams.recv_timeout(PATIENCE).unwrap();
            assert_eq!((client.peer(), server.peer()), (NodeId(1), NodeId(9)));

            let large: Vec<u8> = (0..1_000_000u32).map(|i| i as u8).collect();
            let expected = large.clone();
            let echo = std::thread::spawn(move || {
                let mut all = Vec::new();
                server.read_to_end(&mut all).unwrap();
                server.write_all(&all).unwrap();
            });
            let (mut reader, mut writer) = {
                client.write_all(&large[..10]).unwrap();
                client.split()
            };
            writer.write_all(&large[10..]).unwrap();
            drop(writer);
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            assert!(all == expected);
            echo.join().unwrap();
        }
    });
}

#[test]
fn what_nobody_offers_is_refused_with_a_sentence() {
    with_and_without_tls(|ca| {
        let node = Node::open(&secured(1, &["127.0.0.1:0"], ca), Plane::Tcp);
        let (security, addresses) = (security(ca, 9), [node.address()]);
        let why = |dial: &ServiceDial<'_>| dial_service(dial).unwrap_err().to_string();
        assert!(why(&dial(&addresses, 9, &security)).contains("does not offer"));
        let _streams = node.net.take_service(ServiceId(5));
        if ca.is_none() {
            let other = ServiceDial { cluster: "another", ..dial(&addresses, 9, &security) };
            assert!(why(&other).contains("same cluster name"));
            let other = ServiceDial { peer: Some(NodeId(3)), ..dial(&addresses, 9, &security) };
            assert!(why(&other).contains("not the node that was called"));
        } else {
            let other = ServiceDial { peer: Some(NodeId(3)), ..dial(&addresses, 9, &security) };
            assert!(why(&other).contains("certificate was refused"), "{}", why(&other));
            let other = ServiceDial { node: NodeId(8), ..dial(&addresses, 9, &security) };
            assert!(matches!(dial_service(&other), Err(DialError::Config(NetError::OtherNode { .. }))));
        }
    });
}

#[test]
fn a_stream_that_is_cut_is_no_end() {
    let ca = Ca::new();
    let node = Node::open(&secured(1, &["127.0.0.1:0"], Some(&ca)), Plane::Tcp);
    let streams = node.net.take_service(ServiceId(5));
    let mut bare = Bare::dial_tls(&node, &ca.identity(9));
    let answer = bare.greet(9, 1, |_, rest| rest.service = Service::Application(5));
    assert!(matches!(answer, Greeting::Welcome { .. }), "{answer:?}");
    let mut stream = streams.recv_timeout(PATIENCE).unwrap();
    bare.send(b"half a");
    drop(bare);
    let mut text = Vec::new();
    let error = stream.read_to_end(&mut text).unwrap_err();
    assert_eq!((text.as_slice(), error.kind()), (&b"half a"[..], std::io::ErrorKind::UnexpectedEof));
}

#[test]
fn hanging_up_ends_a_read_that_waits() {
    let node = Node::open(&config(1, &["127.0.0.1:0"]), Plane::Tcp);
    let streams = node.net.take_service(ServiceId(5));
    let (security, addresses) = (Security::LoopbackOnly, [node.address()]);
    let (mut reader, writer) = dial_service(&dial(&addresses, 9, &security)).unwrap().split();
    let mut server = streams.recv_timeout(PATIENCE).unwrap();
    let waiting = std::thread::spawn(move || reader.read(&mut [0]).unwrap());
    writer.hang_up().now();
    assert_eq!(waiting.join().unwrap(), 0);
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_read_gives_up_after_its_time() {
    let node = Node::open(&config(1, &["127.0.0.1:0"]), Plane::Tcp);
    let streams = node.net.take_service(ServiceId(5));
    let (security, addresses) = (Security::LoopbackOnly, [node.address()]);
    let mut client = dial_service(&dial(&addresses, 9, &security)).unwrap();
    let mut server = streams.recv_timeout(PATIENCE).unwrap();
    client.set_timeout(Some(Duration::from_millis(20))).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    server.write_all(b"x").unwrap();
    client.set_timeout(None).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 1);
}

#[test]
fn who_has_no_protection_dials_no_other_host() {
    let (security, addresses) = (Security::LoopbackOnly, ["192.0.2.1:1".to_owned()]);
    let Err(DialError::Unreachable { causes, .. }) = dial_service(&dial(&addresses, 9, &security)) else {
        panic!("it was dialed")
    };
    assert!(causes[0].contains("security = \"none\""), "{causes:?}");
}

#[test]
fn ports_that_can_not_be_opened_say_why() {
    let open = |config: &NetConfig| Net::open(config).err().expect("it opened").to_string();
    let public = config(1, &["0.0.0.0:0"]);
    assert!(open(&public).contains("security = \"none\""));
    assert!(Net::open(&NetConfig { security: Security::None, ..public }).is_ok());
    let first = Net::open(&config(1, &["127.0.0.1:0"])).unwrap();
    let taken = first.local_addrs()[0].to_string();
    assert!(open(&config(2, &[&taken])).contains(&format!("{taken} is in use")));
    let foreign = NetConfig { security: Security::None, ..config(1, &["192.0.2.1:0"]) };
    assert!(open(&foreign).contains("not an address of this host"));
    assert!(open(&config(1, &["nonsense"])).contains("host:port"));
    assert!(open(&NetConfig { cluster: String::new(), ..config(1, &[]) }).contains("cluster name of 0 bytes"));
    for timeout in [Duration::ZERO, Duration::MAX] {
        assert!(open(&NetConfig { failure_timeout: timeout, ..config(1, &[]) }).contains("at least 20 ms, and a day"));
        assert!(
            open(&NetConfig { handshake_timeout: timeout, ..config(1, &[]) }).contains("at least 20 ms, and a day")
        );
    }
    let ca = Ca::new();
    let borrowed = NetConfig { security: Security::Tls(ca.identity(2)), ..config(1, &[]) };
    assert!(open(&borrowed).contains("the certificate names node 2, but this is node 1"));
    let elsewhere = NetConfig { cluster: "another".into(), security: Security::Tls(ca.identity(1)), ..config(1, &[]) };
    assert!(open(&elsewhere).contains("not for cluster \"another\""));
}

#[test]
fn one_client_with_many_streams_that_never_speak_locks_nobody_out() {
    let ca = Ca::new();
    let node = Node::open(&secured(1, &["127.0.0.1:0"], Some(&ca)), Plane::Tcp);
    let streams = node.net.take_service(ServiceId::LOG);
    let addresses = [node.address()];
    let logs = ClientRights { logs: true, ..ClientRights::default() };
    let client = |name: &str| Security::Tls(ca.identity_of(&Principal::Client(name.to_owned(), logs.clone())));
    let (greedy, web) = (client("greedy"), client("web"));
    let operator = Security::Tls(ca.identity_of(&Principal::Operator("alice".to_owned())));
    let open = |security: &Security| {
        let node = security.node().unwrap().0;
        let opened = dial_service(&ServiceDial { service: ServiceId::LOG, ..dial(&addresses, node, security) });
        opened.map(|stream| (stream, streams.recv_timeout(PATIENCE).unwrap()))
    };
    let mut held = Vec::new();
    let refused = loop {
        match open(&greedy) {
            Ok(stream) => held.push(stream),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, DialError::Busy { .. }), "{refused}");
    assert_eq!(held.len(), 144, "half of what is not for nodes and operators");
    node.counts("a stream too many", |stats| stats.refused.over_share == 1);
    let others = [&web, &operator, &security(Some(&ca), 9)].map(|security| open(security).unwrap());
    drop(others);
    held.truncate(10);
    open(&greedy).unwrap();
}
