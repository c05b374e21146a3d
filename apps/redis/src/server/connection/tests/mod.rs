//! Tests of one property: however requests are cut, and whenever the replica answers, a client sees the same as if it
//! asked one request at a time.

mod endless;

use std::{cell::RefCell, collections::VecDeque, future::ready, rc::Rc, time::Duration};

use proptest::{collection::vec, prelude::*};
use tokio::{
    io::{DuplexStream, duplex, split},
    net::{TcpListener, TcpStream},
    runtime::Builder,
    task::{LocalSet, spawn_local, yield_now},
    time::{Sleep, sleep, timeout},
};

use super::*;
use crate::{
    command::Spec,
    message::{StoreCommand, WatchedKey},
    server::{
        clients::Clients,
        describe,
        operations::Operations,
        session::{Look, ServerReport, Write},
        subscriptions::Hub,
        wake::{Bell, Bells},
    },
    testing::Shell,
};

const MAX_COMMAND_BYTES: usize = 300;

/// Long enough for a busy machine; a longer wait means that the task was not woken.
const PATIENCE: Duration = Duration::from_secs(20);

/// A replica that takes its time: in [`Stage::step`] chance decides the next event.
#[derive(Clone)]
struct Actor(Rc<RefCell<Stage>>);

struct Stage {
    shell: Shell,
    rng: fastrand::Rng,
    /// The number of commands that find room. If it is unlimited, they are answered at once.
    room: usize,
    under_way: VecDeque<(StoreCommand, Slot<Reply>)>,
    looks: VecDeque<Ask>,
    /// The tasks that wait for room.
    waiting: Vec<Waker>,
    has_ended: bool,
}

type Slot<T> = Rc<RefCell<(Option<Result<T, Error>>, Option<Waker>)>>;

enum Ask {
    Look(Look, Slot<Look>),
    Watch(Vec<Vec<u8>>, u64, Slot<Vec<WatchedKey>>),
}

fn ended() -> Error {
    Error::fixed("CLUSTERDOWN it has ended")
}

fn fill<T>(slot: &Slot<T>, result: Result<T, Error>) {
    let mut slot = slot.borrow_mut();
    slot.0 = Some(result);
    if let Some(waker) = slot.1.take() {
        waker.wake();
    }
}

impl Stage {
    fn is_instant(&self) -> bool {
        self.room == usize::MAX
    }

    fn deliver(&mut self) {
        let Some((command, slot)) = self.under_way.pop_front() else { return };
        fill(&slot, if self.has_ended { Err(ended()) } else { Ok(self.shell.apply(&command)) });
        self.waiting.drain(..).for_each(Waker::wake);
    }

    fn answer(&mut self) {
        let ended = self.has_ended.then(ended);
        match self.looks.pop_front() {
            Some(Ask::Look(mut look, slot)) => {
                look.answer(&self.shell.store);
                fill(&slot, ended.map_or(Ok(look), Err));
            }
            Some(Ask::Watch(keys, clock_ms, slot)) => {
                let watched = keys.iter().map(|key| self.shell.store.watch(key, clock_ms)).collect();
                fill(&slot, ended.map_or(Ok(watched), Err));
            }
            None => {}
        }
    }

    fn step(&mut self) {
        match self.rng.u8(..4) {
            0 => self.deliver(),
            1 => self.answer(),
            _ => {}
        }
    }

    fn ask<T>(&mut self, ask: impl FnOnce(Slot<T>) -> Ask) -> Asked<T> {
        let slot = Slot::default();
        self.looks.push_back(ask(Rc::clone(&slot)));
        if self.is_instant() || self.rng.bool() {
            // As under a lease.
            while !self.looks.is_empty() {
                self.answer();
            }
        }
        Asked(slot)
    }
}

struct Asked<T>(Slot<T>);

impl<T> Future for Asked<T> {
    type Output = Result<T, Error>;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.0.borrow_mut();
        slot.1 = Some(context.waker().clone());
        slot.0.take().map_or(Poll::Pending, Poll::Ready)
    }
}

struct Writing {
    actor: Actor,
    command: Option<StoreCommand>,
    answer: Asked<Reply>,
}

impl Writing {
    fn hand_over(&mut self) {
        let mut stage = self.actor.0.borrow_mut();
        if stage.under_way.len() < stage.room
            && let Some(command) = self.command.take()
        {
            stage.under_way.push_back((command, Rc::clone(&self.answer.0)));
            if stage.is_instant() {
                stage.deliver();
            }
        }
    }
}

impl Future for Writing {
    type Output = Result<Reply, Error>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.hand_over();
        if !self.is_accepted() {
            self.actor.0.borrow_mut().waiting.push(context.waker().clone());
        }
        Pin::new(&mut self.answer).poll(context)
    }
}

impl Write for Writing {
    fn is_accepted(&self) -> bool {
        self.command.is_none()
    }
}

impl Replica for Actor {
    type Write = Writing;
    type Look = Asked<Look>;
    type Watch = Asked<Vec<WatchedKey>>;
    type Info = std::future::Ready<Reply>;
    type Timer = Pin<Box<Sleep>>;
    fn now_ms(&self) -> u64 {
        self.0.borrow().shell.now_ms
    }
    fn now_us(&self) -> u64 {
        1000 * self.now_ms()
    }
    fn uptime(&self) -> Duration {
        Duration::from_millis(self.now_ms())
    }

    fn timer(&self, after: Duration) -> Pin<Box<Sleep>> {
        Box::pin(sleep(after))
    }
    fn write(&self, command: &StoreCommand) -> Writing {
        let mut writing =
            Writing { actor: self.clone(), command: Some(command.clone()), answer: Asked(Slot::default()) };
        writing.hand_over();
        writing
    }
    fn look(&self, look: Look) -> Asked<Look> {
        self.0.borrow_mut().ask(|slot| Ask::Look(look, slot))
    }
    fn watch(&self, keys: Vec<Vec<u8>>, clock_ms: u64) -> Self::Watch {
        self.0.borrow_mut().ask(|slot| Ask::Watch(keys, clock_ms, slot))
    }
    fn info(&self, _: ServerReport) -> Self::Info {
        ready(Reply::Verbatim("info".to_owned()))
    }
    fn local(&self, client: &ConnectedClient, spec: &Spec, words: &[&[u8]]) -> Reply {
        match spec.name {
            "client" => Clients::default().answer(client, words).into(),
            "command" => describe::answer(words).into(),
            _ => Reply::array_of_bytes(words),
        }
    }
    fn has_no_messages(&self) -> Option<Error> {
        self.0.borrow().has_ended.then(ended)
    }
    fn others(&self) -> usize {
        2
    }
    fn wants_password(&self) -> bool {
        false
    }
    fn auth_wait(&self, _: &ConnectedClient, _: bool) -> Option<Duration> {
        None
    }
    fn admits(&self, _: &ConnectedClient, _: u32, _: &[u8], _: &[u8]) -> Result<(), Duration> {
        Ok(())
    }
}

fn actor(seed: u64, room: usize) -> Actor {
    let (under_way, looks) = Default::default();
    let rng = fastrand::Rng::with_seed(seed);
    let stage = Stage { shell: Shell::new(), rng, room, under_way, looks, waiting: Vec::new(), has_ended: false };
    Actor(Rc::new(RefCell::new(stage)))
}

fn encode_request(line: &str) -> Vec<u8> {
    let words: Vec<_> = line.split(' ').collect();
    let bulks = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), bulks.collect::<String>()).into_bytes()
}

/// Sends pieces, with pauses between them, and then ends the stream. Returns all bytes that come back.
async fn converse(actor: Actor, pieces: Vec<Vec<u8>>, pipe_bytes: usize) -> Vec<u8> {
    let bells = Arc::<Bells>::default();
    let ringing = spawn_local(Arc::clone(&bells).run());
    let (here, there) = duplex(pipe_bytes);
    let serving = spawn_local(serve_one(there, actor.clone(), bells));
    let acting = spawn_local(async move {
        loop {
            actor.0.borrow_mut().step();
            yield_now().await;
        }
    });
    let (mut input, mut output) = split(here);
    let sending = spawn_local(async move {
        for piece in pieces {
            // The connection may be closed by now.
            let _ = output.write_all(&piece).await;
            yield_now().await;
        }
        let _ = output.shutdown().await;
    });
    let mut answers = Vec::new();
    let read = timeout(PATIENCE, input.read_to_end(&mut answers)).await;
    assert!(read.is_ok(), "nothing comes any more after {:?}", answers.escape_ascii().to_string());
    sending.await.expect("it does not panic");
    serving.await.expect("it does not panic");
    acting.abort();
    ringing.abort();
    answers
}

impl ClientStream for DuplexStream {
    fn has_ended(&self) -> bool {
        false
    }
}

async fn serve_one(stream: DuplexStream, actor: Actor, bells: Arc<Bells>) {
    serve_with(stream, actor, &bells, &Arc::default()).await;
}

/// Serves a connection until it ends. Returns the number of bytes that were read for it.
async fn serve_with(stream: impl ClientStream, actor: Actor, bells: &Arc<Bells>, operations: &Arc<Operations>) -> u64 {
    let somewhere = "127.0.0.1:1".parse().expect("it is an address");
    let client = Arc::new(ConnectedClient::new(7, somewhere, somewhere, Bell::new(bells)));
    let session = Session::new(actor, &client, &Arc::<Hub>::default(), operations, MAX_COMMAND_BYTES);
    let (counts, budget) = <(Counts, Budget)>::default();
    serve(stream, session, &client, &counts, &budget, MAX_COMMAND_BYTES).await.expect("the pipe does not break");
    assert_eq!(budget.used(), 0, "all is given back");
    counts.received.bytes.get()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, future)
}

/// The answers to requests that are asked one after the other, of a replica that answers at once.
fn one_by_one(requests: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let actor = actor(0, usize::MAX);
    let somewhere = "127.0.0.1:1".parse().expect("it is an address");
    let client = Arc::new(ConnectedClient::new(7, somewhere, somewhere, Bell::new(&Arc::default())));
    let mut session = Session::new(actor, &client, &Arc::<Hub>::default(), &Arc::default(), MAX_COMMAND_BYTES);
    let mut buffer = RequestBuffer::new(2 * MAX_COMMAND_BYTES);
    let mut context = Context::from_waker(Waker::noop());
    let mut all = Vec::new();
    for request in requests {
        buffer.space(request.len()).extend_from_slice(request);
        let mut out = Vec::new();
        while !session.is_closing() {
            match buffer.next() {
                Ok(Some(Incoming::Request(request))) => {
                    assert_eq!(session.take(request, &mut context), Taken::Yes);
                }
                Ok(Some(Incoming::TooLarge { bytes })) => session.refuse(too_large(bytes, MAX_COMMAND_BYTES)),
                Ok(None) => break,
                Err(error) => session.end(Some(Reply::Error(Error::new(error.to_string())))),
            }
            session.look(&mut context);
            while let Poll::Ready(SessionStep::Answer(answer)) = session.poll_next(&mut context) {
                encode(&answer, session.protocol(), &mut out);
            }
            assert!(session.is_idle());
        }
        all.push(out);
    }
    all
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let writes =
        ["set a 1", "incr a", "append a xy", "del a b", "rpush l 1", "lpop l", "getset b 5", "incr l", "mset a 1 b 2"];
    let reads =
        ["get a", "get b", "mget a b", "llen l", "exists a", "lrange l 0 -1", "getrange a 0 5", "keys *", "get l"];
    let own = ["ping", "echo hi", "time", "wait 1 0", "info", "client getname", "client setname me", "command count"];
    let session = [
        "multi",
        "multi",
        "exec",
        "exec",
        "discard",
        "watch a",
        "watch l b",
        "unwatch",
        "hello 2",
        "hello 3",
        "reset",
        "subscribe c",
        "unsubscribe c",
        "psubscribe c*",
        "punsubscribe",
        "auth x y",
    ];
    let wrong = ["get", "what is this", "set a", "hello 4", "subscribe", "exec now", "client what"];
    let any = |lines: &[&'static str]| proptest::sample::select(lines.to_vec()).prop_map(encode_request);
    let waits = ["blpop l 0", "blmove l b left right 1"];
    let transaction = vec(prop_oneof![any(&writes), any(&reads), any(&own), any(&waits)], 0..4)
        .prop_map(|queued| [encode_request("multi"), queued.concat(), encode_request("exec")].concat());
    prop_oneof![
        30 => any(&writes),
        30 => any(&reads),
        10 => any(&own),
        15 => any(&session),
        5 => transaction,
        5 => any(&wrong),
        2 => (1..800usize).prop_map(|bytes| encode_request(&format!("set a {}", "x".repeat(bytes)))),
        2 => proptest::sample::select(vec!["\r\n", "PING\r\n", "incr a\n", "*0\r\n", "get \"a\"\r\n"])
            .prop_map(|line| line.as_bytes().to_vec()),
        1 => proptest::sample::select(vec!["quit\r\n", "client kill 127.0.0.1:1\r\n", "*x\r\n", "POST / HTTP/1.1\r\nHost: x\r\n"])
            .prop_map(|line| line.as_bytes().to_vec()),
    ]
}

fn cut(stream: &[u8], rng: &mut fastrand::Rng) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        let most = if rng.bool() { 8 } else { 500 };
        let (piece, more) = rest.split_at(rng.usize(1..=most.min(rest.len())));
        pieces.push(piece.to_vec());
        rest = more;
    }
    pieces
}

proptest! {
    #[test]
    fn a_pipeline_is_answered_as_requests_one_by_one_are(requests in vec(request(), 1..60), seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let pieces = cut(&requests.concat(), &mut rng);
        let (room, pipe_bytes) = (rng.usize(1..6), [30, 300, 100_000][rng.usize(..3)]);
        let answers = run(converse(actor(seed, room), pieces, pipe_bytes));
        let expected = one_by_one(&requests).concat();
        prop_assert_eq!(answers.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn every_request_is_answered_where_the_group_ends_on_the_way(
        lines in vec(proptest::sample::select(vec!["incr a", "get a", "lrange l 0 -1", "watch a", "ping", "mget a b"]), 1..40),
        seed: u64,
        steps in 0..100usize,
    ) {
        let requests: Vec<_> = lines.iter().map(|line| encode_request(line)).collect();
        let mut rng = fastrand::Rng::with_seed(seed);
        let pieces = cut(&requests.concat(), &mut rng);
        let actor = actor(seed, rng.usize(1..6));
        let answers = run(async {
            let ending = actor.clone();
            spawn_local(async move {
                for _ in 0..steps {
                    yield_now().await;
                }
                ending.0.borrow_mut().has_ended = true;
            });
            converse(actor, pieces, 1000).await
        });
        let answers = String::from_utf8(answers).expect("it is text");
        let down = answers.matches("-CLUSTERDOWN").count();
        let expected = one_by_one(&requests);
        let pings = lines.iter().filter(|line| **line == "ping").count();
        prop_assert!(down <= lines.len() - pings);
        // The answers before the end of the group are right, and afterwards there is one error for each request.
        let mut rest = answers.as_str();
        for (line, expected) in lines.iter().zip(expected) {
            let expected = String::from_utf8(expected).expect("it is text");
            let error = "-CLUSTERDOWN it has ended\r\n";
            let next = rest.strip_prefix(&expected).or_else(|| rest.strip_prefix(error));
            prop_assert!(next.is_some(), "{line}: {rest:?}");
            rest = next.expect("it was just seen");
        }
        prop_assert_eq!(rest, "");
    }
}

#[test]
fn a_client_that_goes_while_its_request_waits_is_noticed_whatever_it_sent_behind() {
    for behind in [0, 1, 10_000] {
        let requests = ["incr a", "blpop none 0"].into_iter().chain(std::iter::repeat_n("ping", behind));
        let pieces = requests.map(encode_request).collect();
        assert_eq!(run(converse(actor(1, 5), pieces, 1000)), b":1\r\n", "{behind} requests behind");
    }
}

#[test]
fn a_pipeline_beyond_all_limits_is_answered_in_turn() {
    let lines = ["incr a", "ping", "get a", "lrange l 0 -1"].iter().cycle().take(6000);
    let requests: Vec<_> = lines.map(|line| encode_request(line)).collect();
    let answers = run(converse(actor(1, 600), vec![requests.concat()], 10_000));
    assert_eq!(answers, one_by_one(&requests).concat());
}

/// Serves a client that sends requests and is gone, over TCP, until the connection is closed.
async fn serve_one_that_goes(requests: Vec<u8>, actor: Actor, operations: &Arc<Operations>) {
    let bells = Arc::<Bells>::default();
    let ringing = spawn_local(Arc::clone(&bells).run());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("some port is free");
    let mut client = TcpStream::connect(listener.local_addr().expect("it listens")).await.expect("it listens");
    let (stream, _) = listener.accept().await.expect("a connection");
    let sending = spawn_local(async move {
        client.write_all(&requests).await.expect("it is read, or kept by the system");
        client.shutdown().await.expect("it is connected");
        client
    });
    let served = timeout(PATIENCE, serve_with(stream, actor, &bells, operations)).await;
    assert!(served.is_ok(), "its end is not noticed");
    drop(sending.await.expect("it does not panic"));
    ringing.abort();
}

/// The bytes of requests, more than are read ahead, but no more than the system keeps besides.
fn many_requests(ahead: usize) -> Vec<u8> {
    let one = encode_request("incr a");
    one.repeat((ahead + (32 << 10)) / one.len())
}

#[test]
fn a_client_that_goes_is_noticed_behind_more_than_is_read() {
    let actor = actor(1, usize::MAX);
    let requests = [encode_request("blpop none 0"), many_requests(MAX_BYTES_AHEAD)].concat();
    run(serve_one_that_goes(requests, actor.clone(), &Arc::default()));
    assert_eq!(actor.0.borrow_mut().shell.ask("exists a"), ":0");
}

#[test]
fn what_a_client_asked_during_a_pause_is_not_done_once_it_has_gone() {
    for behind in [Vec::new(), encode_request("incr a"), many_requests(MAX_PAUSED_BYTES)] {
        let operations = Arc::<Operations>::default();
        let pause = [&b"client"[..], b"pause", b"1000000", b"write"];
        assert_eq!(operations.pause.answer(&pause), Some(Ok(Reply::OK)));
        let actor = actor(1, usize::MAX);
        let requests = [encode_request("get a"), encode_request("incr a"), behind].concat();
        run(serve_one_that_goes(requests, actor.clone(), &operations));
        operations.pause.end();
        assert_eq!(actor.0.borrow_mut().shell.ask("exists a"), ":0");
    }
}
