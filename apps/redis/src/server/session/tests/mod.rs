mod puppet;
mod waiting;

use std::{
    cell::RefCell,
    rc::Rc,
    task::Waker,
    time::{Duration, Instant},
};

use proptest::{collection::vec, prelude::*};

use self::puppet::Puppet;
pub(super) use self::puppet::Strings;
use super::*;
use crate::{
    command,
    keyspace::Publish,
    server::{
        auth_delay::AuthDelays,
        wake::{Bell, Bells},
    },
};

const MAX_COMMAND_BYTES: usize = 1000;

pub(super) fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

pub(super) struct Bench {
    pub(super) session: Session<Puppet>,
    pub(super) puppet: Puppet,
    pub(super) hub: Arc<Hub>,
    pub(super) operations: Arc<Operations>,
}

pub(super) fn bench(strings: Strings) -> Bench {
    let puppet = Puppet(Rc::new(RefCell::new(strings)));
    let somewhere = "127.0.0.1:1".parse().expect("it is an address");
    let bell = Bell::new(&Arc::new(Bells::default()));
    let client = Arc::new(ConnectedClient::new(7, somewhere, somewhere, bell));
    let (hub, operations) = Default::default();
    let session = Session::new(puppet.clone(), &client, &hub, &operations, MAX_COMMAND_BYTES);
    Bench { session, puppet, hub, operations }
}

pub(super) fn with_room(room: usize) -> Bench {
    bench(Strings { room, ..Strings::default() })
}

impl Bench {
    pub(super) fn take(&mut self, line: &str) -> Taken {
        self.session.take(&mut words::join(line.split(' ')), &mut context())
    }

    /// Takes requests, none of which has to wait.
    pub(super) fn take_all(&mut self, lines: &[&str]) {
        for line in lines {
            assert_eq!(self.take(line), Taken::Yes, "{line}");
        }
    }

    /// The answers that are known by now.
    pub(super) fn answers(&mut self) -> Vec<String> {
        let next = || match self.session.poll_next(&mut context()) {
            Poll::Ready(SessionStep::Answer(answer)) => Some(crate::testing::show(&answer)),
            _ => None,
        };
        let answers = std::iter::from_fn(next).collect();
        self.session.count_answers();
        answers
    }

    /// The answers to requests, none of which has to wait.
    pub(super) fn ask(&mut self, lines: &[&str]) -> Vec<String> {
        self.take_all(lines);
        self.answers()
    }

    /// Lets time pass for timers.
    pub(super) fn pass(&self, time: Duration) {
        self.puppet.0.borrow_mut().passed += time;
    }

    pub(super) fn deliver(&self, writes: usize) {
        self.puppet.0.borrow_mut().delivered = writes;
    }

    pub(super) fn submitted(&self) -> usize {
        self.puppet.0.borrow().submitted.len()
    }
}

#[test]
fn writes_are_submitted_together_and_answered_in_turn() {
    let mut bench = with_room(10);
    assert!(bench.ask(&["incr a", "time", "incr a"]).is_empty());
    assert_eq!(bench.submitted(), 2);
    bench.deliver(1);
    assert_eq!(bench.answers(), [":1", "LOCAL"]);
    bench.deliver(2);
    assert_eq!(bench.answers(), [":2"]);
    assert!(bench.session.is_idle());
}

#[test]
fn a_short_read_behind_writes_takes_a_turn() {
    let mut bench = with_room(10);
    bench.take_all(&["incr a", "get a", "incr a", "get a"]);
    assert_eq!(bench.submitted(), 4);
    assert!(bench.puppet.0.borrow().looks.is_empty());
    bench.deliver(4);
    assert_eq!(bench.answers(), [":1", ":2", ":3", ":4"]);
}

#[test]
fn a_write_waits_for_earlier_looks() {
    let mut bench = with_room(10);
    bench.take_all(&["get a"]);
    assert_eq!(bench.take("incr a"), Taken::NotYet);
    assert_eq!(bench.puppet.0.borrow().looks, [1], "nothing is gained by waiting for more reads");
    assert_eq!(bench.take("get a"), Taken::NotYet);
    bench.puppet.0.borrow_mut().answers_looks = true;
    assert_eq!(bench.answers(), [":0"]);
    assert_eq!(bench.take("incr a"), Taken::Yes);
}

#[test]
fn a_write_follows_a_look_that_is_answered_at_once() {
    let mut bench = with_room(10);
    bench.puppet.0.borrow_mut().answers_looks = true;
    bench.take_all(&["get a", "get a", "incr a"]);
    bench.deliver(1);
    assert_eq!(bench.answers(), [":0", ":0", ":1"]);
}

#[test]
fn reads_in_a_row_are_one_look() {
    let mut bench = with_room(10);
    bench.take_all(&["get a", "get b", "time", "get c"]);
    bench.session.look(&mut context());
    assert_eq!(bench.take("get a"), Taken::NotYet, "the next look begins when this one is answered");
    bench.puppet.0.borrow_mut().answers_looks = true;
    assert_eq!(bench.answers(), [":0", ":0", "LOCAL", ":0"]);
    assert_eq!(bench.puppet.0.borrow().looks, [3]);
}

#[test]
fn nothing_overtakes_a_write_that_waits_for_room() {
    let mut bench = with_room(1);
    bench.take_all(&["incr a", "incr a"]);
    assert_eq!(bench.take("incr a"), Taken::NotYet);
    assert_eq!(bench.take("time"), Taken::NotYet);
    assert!(!bench.session.poll_stuck(&mut context()));
    bench.puppet.0.borrow_mut().room = 2;
    assert!(bench.session.poll_stuck(&mut context()));
    bench.take_all(&["time"]);
    bench.deliver(2);
    assert_eq!(bench.answers().len(), 3);
}

#[test]
fn what_concerns_the_session_waits_until_all_before_was_answered() {
    let mut bench = with_room(10);
    bench.take_all(&["incr a"]);
    for line in ["info", "hello 3", "subscribe c", "reset", "wait 1 0", "watch a"] {
        assert_eq!(bench.take(line), Taken::NotYet, "{line}");
    }
    bench.deliver(1);
    assert_eq!(bench.answers(), [":1"]);
    assert_eq!(bench.ask(&["info", "wait 1 0"][..1]), [":1"]);
    assert_eq!(bench.ask(&["wait 1 0"]), [":2"]);
    assert_eq!(bench.session.protocol(), Protocol::Resp2);
    assert_eq!(bench.ask(&["hello 3"]).len(), 1);
    assert_eq!(bench.session.protocol(), Protocol::Resp3);
}

#[test]
fn a_session_ends_after_what_it_owes() {
    let mut bench = with_room(10);
    bench.take_all(&["incr a", "quit"]);
    assert!(bench.session.is_closing());
    assert_eq!(bench.session.poll_next(&mut context()), Poll::Pending);
    bench.deliver(1);
    assert_eq!(bench.answers(), [":1", "OK"]);
    assert_eq!(bench.session.poll_next(&mut context()), Poll::Ready(SessionStep::Close));
}

#[test]
fn a_browser_is_cut_off() {
    let mut bench = with_room(10);
    bench.take_all(&["POST / HTTP/1.1"]);
    assert_eq!(bench.take("set hacked 1"), Taken::NotYet);
    assert_eq!(bench.session.poll_next(&mut context()), Poll::Ready(SessionStep::Close));
}

#[test]
fn a_transaction_is_one_command_and_the_servers_own_answers_take_their_places() {
    let mut bench = with_room(10);
    assert_eq!(bench.ask(&["multi", "incr a", "time", "get a"]), ["OK", "QUEUED", "QUEUED", "QUEUED"]);
    assert_eq!(bench.submitted(), 0);
    bench.take_all(&["exec"]);
    assert_eq!(bench.submitted(), 1);
    bench.deliver(1);
    assert_eq!(bench.answers(), ["[:0, LOCAL, :0]"]);
    assert_eq!(bench.ask(&["multi", "time", "exec"]), ["OK", "QUEUED", "[LOCAL]"]);
    assert_eq!(bench.ask(&["multi", "exec"]), ["OK", "[]"]);
    assert_eq!(bench.submitted(), 1, "the group need not be asked");
}

#[test]
fn a_transaction_with_a_request_that_was_refused_is_aborted() {
    let mut bench = with_room(10);
    for wrong in ["get", "what", "subscribe c"] {
        assert_eq!(bench.ask(&["multi", "incr a"]), ["OK", "QUEUED"]);
        assert!(bench.ask(&[wrong])[0].starts_with("-ERR "));
        let aborted = "-EXECABORT Transaction discarded because of previous errors.";
        assert_eq!(bench.ask(&["exec"]), [aborted], "{wrong}");
    }
    assert_eq!(bench.submitted(), 0);
}

#[test]
fn a_transaction_is_in_order() {
    let mut bench = with_room(10);
    assert_eq!(bench.ask(&["exec"]), ["-ERR EXEC without MULTI"]);
    assert_eq!(bench.ask(&["discard"]), ["-ERR DISCARD without MULTI"]);
    let nested = "-ERR MULTI calls can not be nested";
    assert_eq!(bench.ask(&["multi", "multi"]), ["OK", nested]);
    assert_eq!(bench.ask(&["watch a"]), ["-ERR WATCH inside MULTI is not allowed"]);
    assert_eq!(bench.ask(&["incr a", "discard"]), ["QUEUED", "OK"]);
    assert!(!bench.session.transaction.is_open());
}

#[test]
fn nothing_overtakes_what_the_server_adds_to_a_transaction() {
    let mut bench = with_room(10);
    bench.take_all(&["multi", "incr a", "client getname", "exec"]);
    assert_eq!(bench.answers(), ["OK", "QUEUED", "QUEUED"]);
    for line in ["client setname me", "incr a", "get a", "multi"] {
        assert_eq!(bench.take(line), Taken::NotYet, "{line}");
    }
    bench.deliver(1);
    assert_eq!(bench.answers(), ["[:0, nil]"]);
    assert_eq!(bench.ask(&["client setname me", "client getname"]), ["OK", "\"me\""]);
    bench.take_all(&["multi", "incr a", "exec", "time"]);
}

#[test]
fn an_exec_carries_the_versions_that_its_watch_saw() {
    let mut bench = with_room(10);
    bench.puppet.0.borrow_mut().versions.insert(b"a".to_vec(), 5);
    bench.take_all(&["watch a b"]);
    assert_eq!(bench.take("multi"), Taken::NotYet, "what follows may depend on it");
    assert_eq!(bench.answers(), ["OK"]);
    bench.puppet.0.borrow_mut().versions.insert(b"a".to_vec(), 6);
    bench.take_all(&["multi", "exec"]);
    let StoreCommand::Transaction { watched, .. } = bench.puppet.0.borrow().submitted[0].clone() else {
        panic!("it is a transaction");
    };
    let mut watched: Vec<_> = watched.into_iter().map(|watched| (watched.present, watched.version)).collect();
    watched.sort_unstable();
    assert_eq!(watched, [(false, 0), (true, 5)]);
}

#[test]
fn a_stranger_must_say_the_password_first() {
    let mut bench = bench(Strings { room: 10, password: Some("secret"), ..Strings::default() });
    assert!(!bench.session.is_trusted());
    let needed = "-NOAUTH Authentication required.";
    assert_eq!(bench.ask(&["get a", "incr a", "ping", "subscribe c"]), [needed; 4]);
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
    assert!(bench.ask(&["auth x"]).is_empty(), "the answer is held");
    assert_eq!(bench.take("get a"), Taken::NotYet, "and so is what follows");
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.answers(), [wrong]);
    assert!(bench.ask(&["auth other secret"]).is_empty());
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.answers(), [wrong]);
    assert!(bench.ask(&["hello 3"])[0].starts_with("-NOAUTH HELLO must be called"));
    assert!(bench.ask(&["hello 3 auth default x"]).is_empty());
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.answers(), [wrong]);
    assert_eq!(bench.session.protocol(), Protocol::Resp2);
    assert!(bench.ask(&["hello 3 auth default secret setname me"])[0].contains("\"id\": :7"), "at once");
    assert!(bench.session.is_trusted());
    assert_eq!(bench.ask(&["time"]), ["LOCAL"]);
    assert_eq!(bench.ask(&["reset"]), ["RESET"]);
    assert!(!bench.session.is_trusted());
    assert_eq!(bench.ask(&["auth secret"]), ["OK"]);
}

#[test]
fn a_right_password_waits_only_while_an_address_has_as_many_wrong_ones_as_are_held() {
    let delays = Arc::<AuthDelays>::default();
    let connect = || {
        let (auth_delays, passed) = (Arc::clone(&delays), Duration::from_secs(20));
        bench(Strings { room: 10, password: Some("secret"), auth_delays, passed, ..Strings::default() })
    };
    // Twenty seconds ago there were some.
    let from = connect().session.client.peer();
    (0..8).for_each(|_| {
        delays.fail(from, 0, Instant::now());
    });
    for _ in 0..32 {
        assert_eq!(connect().ask(&["auth secret"]), ["OK"]);
        // It gains nothing by hanging up.
        assert!(connect().ask(&["hello 2 auth default x"]).is_empty());
    }
    let mut honest = connect();
    assert_eq!(honest.take("auth secret"), Taken::NotYet);
    assert!(honest.ask(&["hello 3"])[0].starts_with("-NOAUTH"), "no other request waits");
    honest.pass(Duration::from_secs(8));
    assert_eq!(honest.ask(&["auth secret"]), ["OK"]);
}

#[test]
fn who_listens_in_resp2_may_ask_little_else() {
    let mut bench = with_room(10);
    let said = bench.ask(&["subscribe a b"]);
    assert_eq!(said, [r#">["subscribe", "a", :1]"#, r#">["subscribe", "b", :2]"#]);
    assert!(bench.ask(&["get a"])[0].starts_with("-ERR Can't execute 'get': only (P|S)SUBSCRIBE / "));
    assert_eq!(bench.ask(&["ping"]), [r#"["pong", ""]"#]);
    assert_eq!(bench.hub.publish(b"a", b"hi"), 1);
    let mut out = Vec::new();
    assert_eq!(bench.session.deliver_mail(1000, &mut out), Ok(true));
    assert_eq!(out, b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$2\r\nhi\r\n");
    assert_eq!(bench.ask(&["unsubscribe"]).len(), 2);
    assert_eq!(bench.ask(&["time"]), ["LOCAL"]);
    assert_eq!(bench.ask(&["punsubscribe"]), [r#">["punsubscribe", nil, :0]"#]);
}

#[test]
fn nobody_can_listen_to_a_group_that_has_ended() {
    let mut bench = with_room(10);
    bench.puppet.0.borrow_mut().has_ended = true;
    assert_eq!(bench.ask(&["subscribe a b"]), ["-CLUSTERDOWN it has ended"]);
    assert_eq!(bench.ask(&["time"]), ["LOCAL"]);
}

#[test]
fn who_is_sent_away_has_the_answers_to_what_was_asked_first() {
    let mut bench = with_room(10);
    bench.take_all(&["incr a"]);
    bench.session.client.leave();
    assert_eq!(bench.take("incr a"), Taken::NotYet);
    assert!(bench.answers().is_empty());
    bench.deliver(1);
    assert_eq!(bench.answers(), [":1"]);
    assert_eq!(bench.session.poll_next(&mut context()), Poll::Ready(SessionStep::Close));
}

#[test]
fn few_large_writes_are_under_way_at_once() {
    let mut bench = with_room(10);
    let large = format!("set a {}", "x".repeat(MAX_WRITE_BYTES / 2));
    bench.take_all(&[&large, &large]);
    assert_eq!(bench.take("incr a"), Taken::NotYet);
    bench.deliver(1);
    assert_eq!(bench.answers(), [":1"]);
    bench.take_all(&["incr a"]);
}

#[test]
fn large_answers_are_looked_up_a_few_at_a_time() {
    let mut bench = with_room(10);
    bench.puppet.0.borrow_mut().answers_looks = true;
    bench.puppet.0.borrow_mut().answer_bytes = MAX_OWED_BYTES;
    bench.take_all(&["get a", "get b", "get c"]);
    bench.session.look(&mut context());
    assert_eq!(bench.session.looked.len(), 1);
    assert!(!bench.session.is_open(), "its answer waits");
    assert_eq!(bench.answers().len(), 3);
    assert_eq!(bench.puppet.0.borrow().looks, [3, 2, 1]);
    assert_eq!(bench.session.owed_bytes, 0);
    bench.take_all(&["incr a"]);
}

/// A request for the server itself that is nearly valid.
fn local_request() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let local: Vec<_> =
        command::all().filter(|spec| matches!(spec.run, CommandFn::Local)).map(|spec| spec.name).collect();
    let words = [
        "", "a", "0", "-1", "3", "get", "id", "list", "kill", "type", "normal", "setname", "setinfo", "lib-name", "on",
        "skipme", "info", "docs", "getkeys", "filterby", "pattern", "channels", "numsub", "numpat", "auth", "default",
    ];
    let word = prop_oneof![
        4 => proptest::sample::select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..8),
    ];
    (proptest::sample::select(local), vec(word, 0..6)).prop_map(|(name, mut words)| {
        words.insert(0, name.as_bytes().to_vec());
        words
    })
}

proptest! {
    #[test]
    fn whatever_is_asked_is_answered_and_nothing_panics(requests in vec(local_request(), 1..20)) {
        let mut bench = with_room(100);
        bench.deliver(100);
        for words in &requests {
            if bench.session.take(&mut words::join(words), &mut context()) == Taken::Yes {
                // A shutdown has no answer.
                prop_assert!(!bench.answers().is_empty() || bench.session.is_closing(), "{words:?}");
            }
            if bench.session.is_closing() {
                break;
            }
            prop_assert!(bench.session.is_idle(), "{words:?}");
        }
    }
}
