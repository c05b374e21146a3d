//! Clients whose requests and unread answers exceed a node's limit.

use std::{
    collections::BTreeMap,
    io::Read as _,
    os::unix::net::UnixStream,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use squall_fabric::{NodeId, Time};
use squall_membership::{ClusterId, Epoch, Incarnation, Member, ShardId, ShardView, View};
use squall_runtime::BackoffProfile;
use squall_services::ControlStream;

use super::{
    Clients, ServeOptions, ServedEntry, Server,
    backend::{Backend, Query, QueryResult, Then},
    budget::Permit,
    outbox::Outbox,
};
use crate::{
    calls::{
        error::SubmitError,
        read::{Job, Read},
        session::{SessionId, Trailer},
        submit::Sending,
    },
    clients::{
        asked_members::AskedMembers,
        changes::ChangePlace,
        query::JsonForm,
        wire::{self, Consistency, ToClient, ToNode, VERSION},
    },
};

const SHARD: ShardId = ShardId(0);

/// The limit of each half, requests and unread bytes.
const HALF: usize = 512 << 10;

/// The size of a request.
const COMMAND: usize = 200 << 10;

/// The size of an answer.
const ANSWER: usize = 16 << 10;

/// A group that accepts nothing until the test permits it, and answers queries at once.
#[derive(Default)]
struct Slow {
    /// The number of requests that it holds, and whether they may pass.
    inside: Mutex<(usize, bool)>,
    changed: Condvar,
    passed: AtomicUsize,
    /// Requests for the sessions' counts, which it does not answer.
    asked: Mutex<Vec<Job<()>>>,
}

impl Slow {
    fn open(&self) {
        self.inside.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

impl Backend for Arc<Slow> {
    fn sending(&self, _: &[u8], _: Trailer) -> Sending {
        unreachable!("a connection's thread waits")
    }

    fn send(&self, command: &[u8], _: Trailer) -> Result<(), SubmitError> {
        let mut inside = self.inside.lock().unwrap();
        inside.0 += command.len();
        assert!(inside.0 <= HALF, "{} bytes of requests at a time", inside.0);
        let mut inside = self.changed.wait_while(inside, |(_, open)| !*open).unwrap();
        inside.0 -= command.len();
        self.passed.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn try_send(&self, _: Trailer) -> Result<(), SubmitError> {
        Ok(())
    }

    fn query(&self, query: Query) {
        query.outbox.answer(query.number, Ok(vec![0; ANSWER]));
    }

    fn answers(&self, _: SessionId, _: u64, outbox: Arc<Outbox>, _: Permit) {
        outbox.end_ask();
    }

    fn query_at_place(&self, _: Vec<u8>, _: Then<(QueryResult, ChangePlace)>) {
        unreachable!("no client watches")
    }

    fn json(&self) -> Option<JsonForm> {
        let (grown, same) = (|json: &[u8]| Ok(vec![0; 8 * json.len()]), |bytes: &[u8]| Ok(bytes.to_vec()));
        Some(JsonForm { command: grown, query: grown, reply: same, answer: same })
    }

    fn acts(&self) -> Read<Vec<(SessionId, u64)>> {
        let (read, job) = Read::new(BackoffProfile::NONE, |(): &()| Vec::new());
        self.asked.lock().unwrap().push(job);
        read
    }
}

fn server() -> (Arc<Server>, Arc<Slow>) {
    let slow = Arc::new(Slow::default());
    let (clients, asks) = (Arc::new(Clients::default()), Arc::new(AskedMembers::new("store", (0, 1))));
    let backend = Box::new(Arc::clone(&slow));
    let entry = ServedEntry::new("slow".to_owned(), (0, 1), backend, clients, ServeOptions::default(), asks);
    let server = Server::new(NodeId(1), [(SHARD, entry)], 2 * HALF);
    let node = vec![NodeId(1)];
    server.install(&View {
        life: ClusterId(1),
        epoch: Epoch::FIRST,
        members: vec![Member::new(NodeId(1), Incarnation(1))],
        shards: vec![ShardView::whole(SHARD, node.clone(), node.clone())],
        joined: node,
        left: Vec::new(),
        preferred: BTreeMap::new(),
    });
    (Arc::new(server), slow)
}

/// A client's stream, whose other end is served.
fn connect(server: &Arc<Server>) -> UnixStream {
    connect_to(server, "slow")
}

fn connect_to(server: &Arc<Server>, group: &str) -> UnixStream {
    let (here, there) = UnixStream::pair().unwrap();
    let server = Arc::clone(server);
    thread::spawn(move || server.serve(ControlStream::local(NodeId(99), there)));
    say(&here, &ToNode::Hello { version: VERSION, group: group.to_owned() });
    here
}

fn say(mut stream: &UnixStream, message: &ToNode) {
    wire::write(&mut stream, message).unwrap();
}

fn hear_welcome(mut stream: &UnixStream) {
    assert!(matches!(wire::read::<ToClient>(&mut stream, ANSWER).unwrap(), ToClient::Holders(_)));
    assert!(matches!(wire::read::<ToClient>(&mut stream, ANSWER).unwrap(), ToClient::Welcome { .. }));
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::yield_now();
    }
}

#[test]
fn requests_of_many_clients_wait_instead_of_taking_more_than_they_may() {
    let (server, slow) = server();
    let session = SessionId { number: 1, key: 2 };
    let all = 20;
    thread::scope(|scope| {
        for _ in 0..all {
            let stream = connect(&server);
            let request = ToNode::Request { session, number: 0, acknowledged: 0, command: vec![0; COMMAND] };
            scope.spawn(move || {
                say(&stream, &request);
                // Reads until the connection ends.
                let _ = (&stream).read_to_end(&mut Vec::new());
            });
        }
        until("two are with the group, and all others wait", || {
            slow.inside.lock().unwrap().0 == 2 * COMMAND && server.budget.held().1 == all - 2
        });
        assert!(server.budget.held().0 <= HALF);
        slow.open();
        until("all have passed", || slow.passed.load(Ordering::SeqCst) == all);
        until("nothing is held", || server.budget.held().0 == 0);
        server.stop();
    });
}

#[test]
fn who_leaves_most_unread_is_hung_up_on_and_others_are_served() {
    let (server, _) = server();
    let (greedy, modest) = (connect(&server), connect(&server));
    let ask = |stream: &UnixStream, number| {
        say(stream, &ToNode::Query { number, consistency: Consistency::Local, query: Vec::new() });
    };
    // All answers are to be left unread. Bytes in the stream's buffers do not count.
    let mut asked = 0;
    until("it is hung up on", || {
        let query = ToNode::Query { number: asked, consistency: Consistency::Local, query: Vec::new() };
        asked += 1;
        let open = server.budget.connected().into_iter().filter(|outbox| !outbox.is_closed());
        let unread: usize = open.map(|outbox: Arc<Outbox>| outbox.unread()).sum();
        assert!(unread <= HALF + ANSWER + 1024, "{unread} bytes");
        wire::write(&mut &greedy, &query).is_err()
    });
    let mut from = &modest;
    hear_welcome(from);
    for number in 0..100 {
        ask(&modest, number);
        let told = wire::read::<ToClient>(&mut from, ANSWER).unwrap();
        assert_eq!(told, ToClient::Told { number, answer: Ok(vec![0; ANSWER]) });
    }
    until("nothing is held", || server.budget.held().2 == 0);
    server.stop();
}

#[test]
fn a_query_counts_for_what_its_json_has_become() {
    let (server, slow) = server();
    let (busy, asks) = (connect(&server), connect_to(&server, "slow/0/json"));
    let (session, mut from) = (SessionId { number: 1, key: 2 }, &asks);
    hear_welcome(from);
    let query = ToNode::Query { number: 7, consistency: Consistency::Local, query: vec![0; HALF / 9] };
    let mut told = || {
        say(&asks, &query);
        let ToClient::Told { number: 7, answer } = wire::read::<ToClient>(&mut from, ANSWER).unwrap() else {
            panic!("no answer")
        };
        answer.map(|bytes| bytes.len())
    };
    assert_eq!(told(), Ok(ANSWER));
    say(&busy, &ToNode::Request { session, number: 0, acknowledged: 0, command: vec![0; COMMAND] });
    until("it is with the group", || slow.inside.lock().unwrap().0 == COMMAND);
    assert!(told().is_err_and(|why| why.contains("ask again")));
    slow.open();
    until("nothing is held", || server.budget.held().0 == 0);
    assert_eq!(told(), Ok(ANSWER));
    server.stop();
}

#[test]
fn a_node_that_does_not_serve_the_group_names_its_members_whatever_the_codec() {
    let (server, _) = server();
    let first = |stream: &UnixStream| wire::read::<ToClient>(&mut &*stream, ANSWER).unwrap();
    assert!(matches!(first(&connect_to(&server, "slow/0/cbor")), ToClient::Denied { only_commands: false, .. }));
    server.send_away("it leaves");
    assert!(matches!(first(&connect_to(&server, "slow/0/cbor")), ToClient::Away { .. }));
    server.stop();
}

#[test]
fn a_group_that_hangs_keeps_nobody_from_hanging_up_on_clients_that_have_gone() {
    let (server, slow) = server();
    let silent = connect(&server);
    hear_welcome(&silent);
    let (mut watches, now) = (BTreeMap::new(), Time::boot_clock());
    server.look_for_gone(&mut watches, now);
    server.look_for_gone(&mut watches, now + Duration::from_secs(40));
    until("it is hung up on", || wire::read::<ToClient>(&mut &silent, ANSWER).is_err());
    assert_eq!(slow.asked.lock().unwrap().len(), 1, "a group is asked once, until it answers");
    server.stop();
}

#[test]
fn a_server_that_nobody_has_lets_go_of_its_groups() {
    let (server, slow) = server();
    server.start().unwrap();
    drop(server);
    until("its thread has ended", || Arc::strong_count(&slow) == 1);
}
