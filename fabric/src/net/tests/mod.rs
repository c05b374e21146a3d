//! Nodes of one process that meet over loopback sockets.

mod failures;
mod keys;
mod pairing;
mod services;
mod strangers;
mod users;

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    config::PROTOCOL,
    handshake::Handshake,
    pipe::{Pipe, PipeError},
    plane::{SET_UP_BYTES, TELL_BYTES},
    test_keys::{CLUSTER, Ca},
    tls::TlsError,
    verifier::Wanted,
    wire::{Greeting, Hello, HelloRest, LINK_FRAME_BYTES, LinkFrame, Nonce, Refusal, Service},
    *,
};
use crate::{BreakReason, EndpointId, GroupTag};

/// The time that a test waits for an event that must come.
const PATIENCE: Duration = Duration::from_secs(10);

/// A node and the events that it has heard.
struct Node {
    net: Net,
    control: Control,
    events: Events,
    rung: Arc<(Mutex<bool>, Condvar)>,
    heard: VecDeque<Event>,
    next_endpoint: u64,
    id: NodeId,
}

fn config(id: u32, listen: &[&str]) -> NetConfig {
    let mut config = NetConfig::new(CLUSTER, NodeId(id));
    config.listen = listen.iter().map(|&text| text.to_owned()).collect();
    config
}

fn secured(id: u32, listen: &[&str], ca: Option<&Ca>) -> NetConfig {
    let mut config = config(id, listen);
    if let Some(ca) = ca {
        config.security = Security::Tls(ca.identity(id));
    }
    config
}

impl Node {
    fn open(config: &NetConfig, plane: Plane) -> Node {
        let net = Net::open(config).unwrap_or_else(|error| panic!("{error}"));
        let rung = Arc::new((Mutex::new(false), Condvar::new()));
        let bell = Arc::clone(&rung);
        let (control, events) = net.plane(plane, move || {
            *bell.0.lock().unwrap() = true;
            bell.1.notify_one();
        });
        // Ids of nodes differ, so that a test notices one that is taken for the other.
        let next_endpoint = u64::from(config.node.0) * 1000;
        Node { net, control, events, rung, heard: VecDeque::new(), next_endpoint, id: config.node }
    }

    fn address(&self) -> String {
        self.net.local_addrs()[0].to_string()
    }

    fn knows(&self, other: &Node) {
        self.net.set_peer(other.id, vec![other.address()]);
    }

    fn connect(&mut self, peer: u32, tag: u32) -> EndpointId {
        self.next_endpoint += 1;
        let endpoint = EndpointId(self.next_endpoint);
        let set_up = format!("set-up {tag} of {}", self.id).into_bytes();
        let tag = GroupTag { layer: 0, group: tag, epoch: 0 };
        self.control.send([Command::Connect(Connect { endpoint, peer: NodeId(peer), tag, set_up })]);
        endpoint
    }

    fn close(&self, endpoint: EndpointId) {
        self.control.send([Command::Close { endpoint, reason: BreakReason::PeerClosed }]);
    }

    /// The next event, if one comes in time.
    fn event_within(&mut self, time: Duration) -> Option<Event> {
        let until = Instant::now() + time;
        loop {
            if let Some(event) = self.heard.pop_front() {
                return Some(event);
            }
            if self.events.are_pending() {
                self.events.begin();
                while let Some(event) = self.events.next().expect("the thread runs") {
                    self.heard.push_back(event);
                }
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let rung = self.rung.0.lock().unwrap();
            let (mut rung, _) = self.rung.1.wait_timeout_while(rung, left, |rung| !*rung).unwrap();
            *rung = false;
        }
    }

    fn event(&mut self) -> Event {
        self.event_within(PATIENCE)
            .unwrap_or_else(|| panic!("{} heard nothing; {:?}", self.id, self.net.monitor().stats()))
    }

    fn paired(&mut self, endpoint: EndpointId) -> Paired {
        match self.event() {
            Event::Paired(paired) if paired.endpoint == endpoint => *paired,
            Event::Broken { endpoint, reason } => panic!("{endpoint:?} of {} broke: {reason}", self.id),
            _ => panic!("{} heard something else", self.id),
        }
    }

    fn broken(&mut self, endpoint: EndpointId) -> BreakReason {
        match self.event() {
            Event::Broken { endpoint: broken, reason } if broken == endpoint => reason,
            _ => panic!("{} heard something else", self.id),
        }
    }

    fn told(&mut self, endpoint: EndpointId) -> Vec<u8> {
        match self.event() {
            Event::Told { endpoint: told, bytes, .. } if told == endpoint => bytes,
            _ => panic!("{} heard something else", self.id),
        }
    }

    /// Waits until a count is as it should be.
    fn counts(&self, what: &str, is: impl Fn(&NetStats) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is(&self.net.monitor().stats()) {
            assert!(Instant::now() < until, "{what}: {:?}", self.net.monitor().stats());
            std::thread::yield_now();
        }
    }
}

/// Two nodes that know each other.
fn two(plane: Plane, ca: Option<&Ca>) -> (Node, Node) {
    let a = Node::open(&secured(1, &["127.0.0.1:0"], ca), plane);
    let b = Node::open(&secured(2, &["127.0.0.1:0"], ca), plane);
    a.knows(&b);
    b.knows(&a);
    (a, b)
}

/// Connects two nodes under a tag.
fn join(a: &mut Node, b: &mut Node, tag: u32) -> ((EndpointId, Paired), (EndpointId, Paired)) {
    let (ea, eb) = (a.connect(b.id.0, tag), b.connect(a.id.0, tag));
    let (pa, pb) = (a.paired(ea), b.paired(eb));
    ((ea, pa), (eb, pb))
}

/// Two paired nodes, without and with TLS, each time anew.
fn with_and_without_tls(test: impl Fn(Option<&Ca>)) {
    test(None);
    test(Some(&Ca::new()));
}

/// The other end of a connection, which does only what a test says.
struct Bare {
    socket: TcpStream,
    pipe: Pipe,
}

impl Bare {
    fn dial(node: &Node) -> Bare {
        let socket = TcpStream::connect(node.net.local_addrs()[0]).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Bare { socket, pipe: Pipe::plain() }
    }

    /// Connects from another address of this host.
    fn dial_from(node: &Node, address: [u8; 4]) -> Bare {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from((address, 0))).unwrap();
        connect(&socket, &node.net.local_addrs()[0]).unwrap();
        let socket = TcpStream::from(socket);
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Bare { socket, pipe: Pipe::plain() }
    }

    fn dial_tls(node: &Node, identity: &Identity) -> Bare {
        Bare::dial(node).shaking(node, identity)
    }

    /// The same connection, whose next frame comes behind a TLS handshake.
    fn shaking(self, node: &Node, identity: &Identity) -> Bare {
        let Bare { socket, .. } = self;
        let mut out = Vec::new();
        let handshake = Handshake::dial(identity, Wanted::Member(node.id), &mut out).unwrap();
        Bare { socket, pipe: Pipe::shaking(handshake, out) }
    }

    fn send(&mut self, frame: &[u8]) {
        self.pipe.send(frame).unwrap();
        self.socket.write_all(&std::mem::take(&mut self.pipe.out)).unwrap();
    }

    /// The next frame; None at the end.
    fn frame(&mut self) -> Result<Option<Vec<u8>>, PipeError> {
        loop {
            // The socket may be closed by now.
            let _ = self.socket.write_all(&std::mem::take(&mut self.pipe.out));
            if let Some(frame) = self.pipe.next_frame(LINK_FRAME_BYTES)? {
                return Ok(Some(frame));
            }
            let mut buffer = [0; 4096];
            match self.socket.read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(len) => self.pipe.receive(&buffer[..len])?,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn greeting(&mut self) -> Greeting {
        let frame = self.frame().unwrap().expect("the node greets");
        Greeting::decode(&frame, 1).unwrap()
    }

    /// The next link frame that is no heartbeat; None at the end.
    fn link_frame(&mut self) -> Option<LinkFrame> {
        loop {
            match LinkFrame::decode(&self.frame().unwrap()?).unwrap() {
                LinkFrame::Beat => {}
                frame => return Some(frame),
            }
        }
    }

    fn challenge(&mut self) -> Nonce {
        let Greeting::Challenge { challenge, .. } = self.greeting() else { panic!("no challenge") };
        challenge
    }

    /// Says hello, after a change to it, and returns the answer.
    fn greet(&mut self, from: u32, to: u32, change: impl Fn(&mut Hello, &mut HelloRest)) -> Greeting {
        let challenge = self.challenge();
        let mut rest = HelloRest {
            to: Some(NodeId(to)),
            incarnation: 1,
            challenge,
            nonce: [7; 16],
            service: Service::Link { dialer_listens: true },
            cluster: CLUSTER.into(),
        };
        let mut hello = Hello { version: PROTOCOL, from: NodeId(from), rest: None };
        change(&mut hello, &mut rest);
        hello.rest = Some(rest);
        self.send(&Greeting::Hello(hello).encode());
        self.greeting()
    }

    /// A link of node 1, in its given life, with a node.
    fn link(node: &Node, incarnation: u64) -> Bare {
        let mut bare = Bare::dial(node);
        let answer = bare.greet(1, node.id.0, |_, rest| rest.incarnation = incarnation);
        assert!(matches!(answer, Greeting::Welcome { nonce, .. } if nonce == [7; 16]), "{answer:?}");
        bare
    }

    /// Takes the node's next offer, and connects the endpoint.
    fn accept_offer(&mut self, mine: u64) {
        let Some(LinkFrame::Offer { mine: yours, .. }) = self.link_frame() else { panic!("no offer") };
        self.send(&LinkFrame::Accept { mine, yours, set_up: vec![] }.encode());
        assert_eq!(self.link_frame(), Some(LinkFrame::Confirm { mine: yours, yours: mine }));
    }
}
