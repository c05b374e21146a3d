//! Nodes in this process, over shared memory, and clients that talk to them.

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rkyv::Archived;
use squall_fabric::NodeId;
use squall_services::{Caller, ControlStream, DialTarget, Service};

use super::ServeOptions;
use crate::{
    Applied, Config, Mode, Node, Replicated, ServedGroup, Snapshot, StartError,
    clients::{
        admin::{AdminClient, Target},
        client::{Client, ClientConfig, ClientError},
        query::QueryService,
        wire::{self, Consistency, ToClient, ToNode, VERSION},
    },
};

/// A service that adds, and replies with the sum.
pub(super) struct Counter(pub(super) i64);

impl Replicated for Counter {
    type Command = i64;
    type Reply = i64;

    fn apply(&mut self, add: &Archived<i64>, _at: &Applied) -> i64 {
        self.0 += add.to_native();
        self.0
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of_bytes(self.0.to_le_bytes())
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        self.0 = i64::from_le_bytes(bytes);
        Ok(())
    }
}

impl QueryService for Counter {
    type Query = ();
    type Answer = i64;

    fn answer(&self, _query: &()) -> i64 {
        self.0
    }
}

pub(super) fn cluster(test: &str) -> String {
    format!("serve-{test}-{}", std::process::id())
}

/// Starts `members` nodes that serve a counter.
fn start(test: &str, members: u32, options: ServeOptions) -> Vec<(Node, ServedGroup<Counter>)> {
    let start = |id| {
        let config = Config::builder(cluster(test), id).members(1..=members).build().unwrap();
        let mut node = Node::builder(config);
        let counter = node.serve("counter", Counter(0), options);
        (node.start().expect("the view is formed"), counter)
    };
    thread::scope(|scope| {
        let starting: Vec<_> = (1..=members).map(|id| scope.spawn(move || start(id))).collect();
        starting.into_iter().map(|node| node.join().expect("it starts")).collect()
    })
}

fn client(test: &str, members: impl IntoIterator<Item = u32>) -> Client<Counter> {
    let config = ClientConfig::on_host(cluster(test), members.into_iter().map(NodeId));
    Client::connect(&config.with_timeout(Duration::from_secs(60)), "counter").unwrap()
}

pub(super) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Opens a stream to node 1, over which the test acts as the client.
pub(super) fn dial(test: &str) -> ControlStream {
    let to = DialTarget { node: Some(NodeId(1)), addresses: Vec::new() };
    let caller = Caller::on_host(cluster(test), NodeId(99));
    caller.dial(&to, Service::Clients, Duration::from_secs(20)).unwrap()
}

#[test]
fn commands_of_clients_and_members_are_applied_in_one_order() {
    let nodes = start("mix", 3, ServeOptions::default());
    let mut replies: Vec<i64> = thread::scope(|scope| {
        let clients = (1..=3).map(|id| {
            scope.spawn(move || {
                let client = client("mix", [id]);
                let calls: Vec<_> = (0..200).map(|_| client.submit(&1)).collect();
                calls.into_iter().map(|call| call.wait().unwrap()).collect::<Vec<_>>()
            })
        });
        let members = nodes.iter().map(|(_, counter)| {
            scope.spawn(move || (0..100).map(|_| counter.submit(&1).wait().unwrap()).collect::<Vec<_>>())
        });
        let all: Vec<_> = clients.chain(members).collect();
        all.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    replies.sort_unstable();
    assert_eq!(replies, (1..=900).collect::<Vec<_>>());
    assert_eq!(client("mix", [2]).query(&()).wait(), Ok(900));
    let target = Target::on_host(cluster("mix"), 2);
    let report = AdminClient::connect(&target, Duration::from_secs(60)).unwrap().status().unwrap();
    let calls = report.clients.map(|clients| clients.calls);
    assert!(calls.is_some_and(|calls| calls >= 201), "200 commands and a query: {calls:?}");
    let traffic = report.shards[0].traffic;
    assert!(traffic.delivered >= 900 && traffic.submitted >= 300, "{traffic:?}");
}

#[test]
fn a_client_whose_member_fails_goes_on_at_another_and_nothing_is_applied_twice() {
    let mut nodes = start("move", 3, ServeOptions::default());
    let client = client("move", [1, 2, 3]);
    let done = AtomicBool::new(false);
    let mut replies = Vec::new();
    thread::scope(|scope| {
        let submit = scope.spawn(|| {
            let mut replies = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let calls: Vec<_> = (0..16).map(|_| client.submit(&1)).collect();
                replies.extend(calls.into_iter().map(|call| call.wait().unwrap()));
            }
            replies
        });
        // The first two members stop serving in turn, so the client must move on until it reaches the last.
        for (node, counter) in &mut nodes[..2] {
            let before = counter.peek(|counter| counter.0).wait().unwrap();
            until("the client is served", || counter.peek(|counter| counter.0).wait().unwrap() > before + 100);
            node.stop_serving();
        }
        let (_, last) = &nodes[2];
        let before = last.peek(|counter| counter.0).wait().unwrap();
        until("the client has moved on", || last.peek(|counter| counter.0).wait().unwrap() > before + 100);
        done.store(true, Ordering::Relaxed);
        replies = submit.join().unwrap();
    });
    let distinct: BTreeSet<i64> = replies.iter().copied().collect();
    assert_eq!(distinct.len(), replies.len(), "two commands got one reply");
    assert_eq!(client.query(&()).wait(), Ok(replies.len() as i64));
}

#[test]
fn a_session_ends_when_its_client_is_silent_and_not_while_it_is_there() {
    let options = ServeOptions { session_timeout: Duration::from_millis(1500), ..ServeOptions::default() };
    let nodes = start("idle", 1, options);
    let (_, counter) = &nodes[0];
    let sessions = || counter.peek(|counter| counter.sessions().len()).wait().unwrap();
    let there = client("idle", [1]);
    there.submit(&1).wait().unwrap();
    let mut gone = dial("idle");
    for message in [ToNode::Hello { version: VERSION, group: "counter".to_owned() }, ToNode::Open { key: 5 }] {
        wire::write(&mut gone.writer, &message).unwrap();
    }
    let hear = |stream: &mut ControlStream| wire::read::<ToClient>(&mut stream.reader, 1000).unwrap();
    assert!(matches!(hear(&mut gone), ToClient::Holders(_)));
    assert!(matches!(hear(&mut gone), ToClient::Welcome { .. }));
    let ToClient::Opened { session, .. } = hear(&mut gone) else { panic!("no session") };
    drop(gone);
    assert_eq!(sessions(), 2);
    until("the silent session ends", || sessions() == 1);
    // The other session has been as idle, apart from its signs of life.
    assert!(counter.peek(move |counter| counter.sessions().acts().all(|(id, _)| id != session)).wait().unwrap());
    assert_eq!(there.submit(&1).wait(), Ok(2));
    drop(there);
    until("a client that leaves closes its session", || sessions() == 0);
}

#[test]
fn members_answer_each_other() {
    let nodes = start("ask", 2, ServeOptions::default());
    let (_, counter) = &nodes[0];
    counter.submit(&7).wait().unwrap();
    let limit = Duration::from_secs(30);
    for member in [1, 2].map(NodeId) {
        assert_eq!(counter.ask(member, Consistency::Linearizable, &(), limit).wait(), Ok(7), "{member}");
    }
    let asked = counter.ask(NodeId(9), Consistency::Local, &(), limit).wait();
    assert!(matches!(&asked, Err(ClientError::Query(why)) if why.contains('9')), "{asked:?}");
}

#[test]
fn without_anybody_a_call_ends_by_its_deadline_and_says_what_is_known() {
    let client = client("nobody", [1, 2]).within(Duration::from_millis(200));
    let error = client.submit(&1).wait().unwrap_err();
    assert!(matches!(&error, ClientError::Deadline { sent: false, .. }), "{error}");
    assert!(error.is_not_applied());
}

#[test]
fn when_the_group_ends_calls_end_too_and_say_why() {
    let nodes = start("end", 2, ServeOptions::default());
    let client = client("end", [1, 2]);
    client.submit(&1).wait().unwrap();
    drop(nodes);
    let error = client.within(Duration::from_millis(500)).submit(&1).wait().unwrap_err();
    assert!(matches!(&error, ClientError::Deadline { .. }), "{error}");
}

#[test]
fn bytes_of_strangers_disturb_nobody() {
    let nodes = start("hostile", 1, ServeOptions::default());
    let client = client("hostile", [1]);
    for seed in 0..50 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut stream = dial("hostile");
        if random.bool() {
            wire::write(&mut stream.writer, &ToNode::Hello { version: VERSION, group: "counter".to_owned() }).unwrap();
        }
        let mut bytes = vec![0; random.usize(..300)];
        random.fill(&mut bytes);
        if random.bool() {
            // The length is one that the node accepts, so that it looks at the bytes behind it.
            let len = bytes.len().saturating_sub(4) as u32;
            bytes.iter_mut().zip(len.to_le_bytes()).for_each(|(byte, of)| *byte = of);
        }
        // The node may have hung up already.
        let _ = stream.writer.write_all(&bytes);
        drop(stream);
        assert_eq!(client.submit(&1).wait(), Ok(seed as i64 + 1), "seed {seed}");
    }
    drop(nodes);
}

#[test]
fn an_unordered_group_serves_no_clients() {
    let config = Config::builder(cluster("unordered"), 1).members([1]).group("counter", |group| {
        group.mode(Mode::Unordered);
    });
    let mut node = Node::builder(config.build().unwrap());
    node.serve("counter", Counter(0), ServeOptions::default());
    assert!(matches!(node.start(), Err(StartError::ServesUnordered(_))));
}

#[test]
fn another_group_or_version_is_refused_with_a_reason() {
    let _nodes = start("refuse", 1, ServeOptions::default());
    for (version, group, reason) in [(VERSION, "other", "serves no group"), (VERSION + 1, "counter", "version")] {
        let mut stream = dial("refuse");
        wire::write(&mut stream.writer, &ToNode::Hello { version, group: group.to_owned() }).unwrap();
        match wire::read::<ToClient>(&mut stream.reader, 1000).unwrap() {
            ToClient::Away { why, .. } => assert!(why.contains(reason), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}
