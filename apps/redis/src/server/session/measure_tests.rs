//! A session's requests as operators see them and hold them up.

use std::time::Duration;

use super::{
    tests::{Bench, Strings, bench, context, with_room},
    *,
};
use crate::testing::show;

impl Bench {
    /// Lets time pass, until the next batch of requests.
    fn wait(&mut self, ms: u64) {
        self.puppet.0.borrow_mut().uptime += Duration::from_millis(ms);
        self.session.begin_batch();
    }

    /// The counts of a command, as `INFO` shows them.
    fn counts(&self, name: &str) -> String {
        let mut lines = self.operations.statistics.command_lines();
        let line = lines.find(|(known, _)| known.strip_prefix("cmdstat_") == Some(name));
        line.map(|(_, line)| line).unwrap_or_default()
    }

    /// The answers to requests, each of which waits for the one before to be answered.
    fn ask_each(&mut self, lines: &[&str]) -> Vec<String> {
        let mut ask = |line: &&str| {
            self.session.begin_batch();
            self.take_all(&[line]);
            self.session.look(&mut context());
            self.answers()
        };
        lines.iter().flat_map(&mut ask).collect()
    }

    /// The requests that a monitor was shown since it was asked last.
    fn seen(&mut self) -> String {
        let mut out = Vec::new();
        self.session.deliver_mail(10_000, &mut out).expect("it reads");
        String::from_utf8(out).expect("it is text")
    }

    fn slow(&self) -> String {
        show(&self.operations.slow_log.answer(&[b"slowlog", b"get"]).into())
    }
}

/// The words of the requests in a monitor's lines.
fn words_of(seen: &str) -> String {
    let lines = seen.lines().map(|line| line.split_once("] ").map_or("", |(_, words)| words).replace('"', ""));
    lines.collect::<Vec<_>>().join("; ")
}

#[test]
fn each_request_is_counted_with_the_time_until_its_answer() {
    let mut bench = with_room(10);
    bench.take_all(&["incr a", "get a", "time"]);
    bench.wait(3);
    bench.deliver(1);
    assert_eq!(bench.answers(), [":1"]);
    bench.wait(4);
    bench.deliver(2);
    assert_eq!(bench.answers(), [":2", "LOCAL"]);
    assert_eq!(bench.counts("incr"), "calls=1,usec=3000,usec_per_call=3000.00,rejected_calls=0,failed_calls=0");
    assert_eq!(bench.counts("get"), "calls=1,usec=7000,usec_per_call=7000.00,rejected_calls=0,failed_calls=0");
    assert_eq!(bench.counts("time"), bench.counts("get"));
    // A request that must wait is counted once, from when it is taken.
    bench.take_all(&["get b"]);
    assert_eq!([bench.take("incr a"), bench.take("incr a")], [Taken::NotYet; 2]);
    bench.puppet.0.borrow_mut().answers_looks = true;
    assert_eq!(bench.answers().len(), 1);
    bench.wait(1);
    bench.deliver(3);
    assert_eq!(bench.ask(&["incr a"]), [":3"]);
    assert!(bench.counts("incr").starts_with("calls=2,usec=3000,"), "{}", bench.counts("incr"));
}

#[test]
fn refusals_and_failures_are_counted_apart() {
    let mut bench = bench(Strings { room: 10, password: Some("secret"), ..Strings::default() });
    bench.ask_each(&["get a", "nosuch", "auth wrong"]);
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.answers().len(), 1);
    bench.ask_each(&["auth secret", "get", "exec"]);
    assert_eq!(bench.counts("get"), "calls=0,usec=0,usec_per_call=0.00,rejected_calls=2,failed_calls=0");
    assert!(bench.counts("auth").contains("calls=2,") && bench.counts("auth").ends_with("failed_calls=1"));
    assert!(bench.counts("exec").ends_with("rejected_calls=0,failed_calls=1"));
    let errors = bench.operations.statistics.errors();
    assert_eq!(
        errors.into_iter().collect::<Vec<_>>(),
        [("ERR".to_owned(), 3), ("NOAUTH".to_owned(), 1), ("WRONGPASS".to_owned(), 1)]
    );
}

#[test]
fn the_requests_of_a_transaction_are_counted_once_it_is_answered() {
    let mut bench = with_room(10);
    bench.ask(&["multi", "incr a", "time", "incr b", "discard"]);
    assert_eq!(bench.counts("incr"), "");
    bench.ask(&["multi", "incr a", "time", "incr b"]);
    bench.take_all(&["exec"]);
    bench.wait(30);
    bench.deliver(1);
    assert_eq!(bench.answers(), ["[:0, LOCAL, :0]"]);
    assert!(bench.counts("incr").starts_with("calls=2,usec=20000,"), "an equal share each");
    assert!(bench.counts("time").starts_with("calls=1,usec=10000,"));
    assert!(bench.counts("exec").starts_with("calls=1,usec=30000,"));
}

#[test]
fn slow_requests_are_logged_without_their_passwords() {
    let mut bench = with_room(10);
    bench.operations.slow_log.set_slower_than_us(5000);
    bench.ask(&["time", "client setname me"]);
    bench.take_all(&["set k v", "get k"]);
    bench.wait(5);
    bench.deliver(2);
    assert_eq!(bench.answers().len(), 2);
    let entry = |id, words| format!(r#"[:{id}, :0, :5000, [{words}], "127.0.0.1:1", "me"]"#);
    assert_eq!(bench.slow(), format!("[{}, {}]", entry(1, r#""get", "k""#), entry(0, r#""set", "k", "v""#)));
    bench.operations.slow_log.set_slower_than_us(0);
    bench.ask_each(&["hello 3 auth default secret", "auth secret", "subscribe c d"]);
    let shown = bench.slow();
    assert!(shown.contains(r#"["hello", "3", "auth", "(redacted)", "(redacted)"]"#) && !shown.contains("secret"));
    assert_eq!(shown.matches("subscribe").count(), 1, "it has two answers");
    assert_eq!(bench.session.pending.bytes(), 0, "nothing is kept of what was answered");
}

#[test]
fn of_the_same_requests_of_a_slow_pipeline_one_is_logged() {
    let mut bench = with_room(10);
    bench.operations.slow_log.set_slower_than_us(5000);
    bench.take_all(&["incr a", "incr b", "set k v", "flushall", "incr c"]);
    bench.wait(5);
    bench.deliver(5);
    assert_eq!(bench.answers().len(), 5);
    let logged: Vec<_> = bench.slow().split('[').filter_map(|part| part.split('"').nth(1).map(str::to_owned)).collect();
    assert_eq!(logged, ["incr", "flushall", "set", "incr"]);
}

#[test]
fn the_clock_is_read_for_a_pipeline_and_not_for_each_request() {
    let mut bench = with_room(100);
    bench.operations.slow_log.set_slower_than_us(5000);
    bench.operations.latency.set_threshold_ms(5);
    let lines: Vec<_> = ["incr a", "get a", "time", "set k v", "append k v"].into_iter().cycle().take(100).collect();
    bench.take_all(&lines);
    bench.wait(5);
    bench.deliver(100);
    bench.puppet.0.borrow_mut().clock_reads = 0;
    assert_eq!(bench.answers().len(), 100);
    assert_eq!(bench.puppet.0.borrow().clock_reads, 2, "the time that passed, and the time since 1970");
    for name in ["incr", "get", "time", "set", "append"] {
        assert!(bench.counts(name).starts_with("calls=20,usec=100000,"), "{name}: {}", bench.counts(name));
    }
    assert_eq!(bench.slow().matches("5000").count(), 10, "as many as the log holds");
    assert!(bench.slow().starts_with("[[:99, "));
}

#[test]
fn more_commands_than_are_kept_apart_are_counted_all_the_same() {
    let mut bench = with_room(100);
    let names = ["incr", "decr", "strlen", "get", "exists", "ttl", "pttl", "type", "llen", "scard", "hlen", "zcard"];
    for _ in 0..3 {
        let lines: Vec<_> = names.iter().map(|name| format!("{name} a")).collect();
        bench.take_all(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    }
    bench.deliver(100);
    assert_eq!(bench.answers().len(), 36);
    for name in names {
        assert!(bench.counts(name).starts_with("calls=3,"), "{name}: {}", bench.counts(name));
    }
}

#[test]
fn a_long_event_is_noted_by_its_kind() {
    let mut bench = with_room(10);
    bench.operations.latency.set_threshold_ms(10);
    bench.take_all(&["incr a"]);
    bench.wait(9);
    bench.deliver(1);
    assert_eq!(bench.answers().len(), 1);
    bench.take_all(&["incr a", "flushall"]);
    bench.wait(10);
    bench.deliver(3);
    assert_eq!(bench.answers().len(), 2);
    let latest = bench.operations.latency.answer(&[b"latency", b"latest"], &bench.operations.statistics);
    assert_eq!(show(&latest.into()), r#"[["command", :0, :10, :10], ["fast-command", :0, :10, :10]]"#);
}

#[test]
fn what_many_slow_requests_keep_for_the_log_is_bounded() {
    let mut bench = with_room(1000);
    bench.operations.slow_log.set_slower_than_us(0);
    let long = format!("mset{}", format!(" {}", "x".repeat(128)).repeat(40));
    let taken = (0..1000).take_while(|_| bench.take(&long) == Taken::Yes).count();
    assert!((100..300).contains(&taken) && bench.session.bytes() < MAX_OWED_BYTES + 5000, "{taken}");
    bench.deliver(1000);
    assert_eq!((bench.answers().len(), bench.session.pending.bytes()), (taken, 0));
}

#[test]
fn a_monitor_sees_what_others_ask_but_no_password() {
    let mut bench = with_room(10);
    assert_eq!(bench.ask(&["monitor"]), ["OK"]);
    bench.puppet.0.borrow_mut().answers_looks = true;
    bench.ask_each(&["get a", "nosuch", "get", "hello 3 auth default secret", "config get x", "echo hi"]);
    let seen = bench.seen();
    assert!(seen.starts_with("+0.001001 [0 127.0.0.1:1] "), "{seen}");
    assert_eq!(words_of(&seen), "get a; hello 3 auth (redacted) (redacted); echo hi");
    assert!(bench.ask(&["multi", "monitor"])[1].starts_with("-ERR Command not allowed inside a transaction"));
    bench.ask_each(&["discard", "reset", "get a"]);
    assert!(!bench.hub.is_monitored());
    assert_eq!(bench.session.deliver_mail(10_000, &mut Vec::new()), Ok(false));
}

#[test]
fn a_monitor_sees_the_requests_of_a_transaction_once_they_were_carried_out() {
    let mut bench = with_room(10);
    bench.ask(&["monitor"]);
    bench.take_all(&["multi", "incr a", "exec"]);
    assert_eq!(words_of(&bench.seen()), "multi");
    assert_eq!(bench.take("incr b"), Taken::NotYet, "it is shown behind them");
    bench.deliver(2);
    assert_eq!(bench.answers(), ["OK", "QUEUED", "[:0]"]);
    assert_eq!(words_of(&bench.seen()), "incr a; exec");
    assert_eq!(bench.ask(&["multi", "time", "incr a", "config get x", "get b", "exec"]).len(), 6);
    assert_eq!(words_of(&bench.seen()), "multi; time; incr a; get b; exec");
    // A transaction of the server alone, one that was given up, one that was refused, and one with a changed key.
    bench.ask_each(&["multi", "time", "exec", "multi", "incr a", "discard", "multi", "incr a", "get", "exec"]);
    assert_eq!(words_of(&bench.seen()), "multi; time; exec; multi; discard; multi; exec");
    bench.puppet.0.borrow_mut().has_changed = true;
    bench.deliver(3);
    assert_eq!(bench.ask(&["multi", "incr a", "exec"]), ["OK", "QUEUED", "nil[]"]);
    assert_eq!(words_of(&bench.seen()), "multi; exec");
}

#[test]
fn the_lines_of_a_transaction_under_way_count_as_memory_of_its_client() {
    let mut bench = with_room(10);
    bench.ask(&["monitor"]);
    bench.session.transaction = Transaction::new(1 << 20);
    let long = format!("echo {}", "x".repeat(1000));
    bench.take_all(&["multi", &long, "incr a"]);
    assert_eq!(bench.answers().len(), 3);
    let before = bench.session.bytes();
    bench.take_all(&["exec"]);
    let lines = bench.session.bytes();
    assert!((1000..3000).contains(&lines) && before > 1000, "{lines}, before that {before}");
    bench.deliver(1);
    assert_eq!(bench.answers().len(), 1);
    assert_eq!(bench.session.bytes(), 0);
}

#[test]
fn a_transaction_that_is_longer_than_a_monitor_may_lag_ends_the_monitor_alone() {
    let mut bench = with_room(10);
    let mut monitor = Subscriptions::new(&bench.hub, 8, bench.session.client.bell());
    monitor.monitor();
    bench.session.transaction = Transaction::new(1 << 30);
    bench.ask(&["multi"]);
    let line = format!("echo {}", "x".repeat(20 << 20));
    bench.ask(&[&line, &line, "exec"]);
    assert!(monitor.deliver(Protocol::Resp2, 10_000, &mut Vec::new()).is_err());
}

#[test]
fn a_request_that_is_longer_than_a_monitor_may_lag_ends_the_monitor_alone() {
    let mut bench = with_room(10);
    bench.ask(&["monitor"]);
    bench.deliver(1);
    let huge = "x".repeat(33 << 20);
    assert_eq!(bench.take(&format!("echo {huge}")), Taken::Yes);
    assert!(bench.session.deliver_mail(10_000, &mut Vec::new()).is_err());
    assert_eq!(bench.hub.cut_off(), 1);
}

#[test]
fn a_pause_holds_writes_or_all_and_its_end_lets_them_go_on() {
    let mut bench = with_room(10);
    bench.puppet.0.borrow_mut().answers_looks = true;
    bench.ask(&["multi", "incr a"]);
    let pause = |line: &str| {
        let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        let answer = bench.operations.pause.answer(&words).expect("it concerns pauses");
        assert_eq!(answer, Ok(Reply::OK));
    };
    pause("client pause 100000 write");
    for line in ["incr a", "exec", "publish c x"] {
        assert_eq!(bench.take(line), Taken::Paused { is_write: true }, "{line}");
    }
    assert!(bench.session.is_paused(true) && !bench.session.is_paused(false));
    assert_eq!(bench.ask_each(&["discard", "get a", "time"]).len(), 3);
    assert_eq!(bench.ask(&["multi", "get a"]), ["OK", "QUEUED"]);
    assert_eq!(bench.ask(&["discard"]), ["OK"]);
    bench.operations.pause.end();
    bench.deliver(1);
    assert_eq!(bench.ask(&["incr a"]), [":1"]);
    let all = [&b"client"[..], b"pause", b"100000"];
    assert_eq!(bench.operations.pause.answer(&all), Some(Ok(Reply::OK)));
    for line in ["get a", "time", "client list", "multi"] {
        assert_eq!(bench.take(line), Taken::Paused { is_write: false }, "{line}");
    }
    assert_eq!(bench.take("CLIENT UNPAUSE"), Taken::Yes, "or nobody could end it");
    assert!(bench.counts("time").starts_with("calls=1,"), "what waits is not counted twice");
}

const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.";

#[test]
fn beyond_the_limit_of_memory_what_needs_some_is_refused_and_the_rest_goes_on() {
    let mut bench = with_room(20);
    bench.puppet.0.borrow_mut().answers_looks = true;
    bench.operations.memory.set_max(1);
    assert_eq!(bench.ask(&["set a 1", "incr a", "lpush l x", "zadd z 1 a"]), [OOM; 4]);
    bench.deliver(20);
    let went_on = bench.ask(&["get a", "del a", "expire a 1", "lpop l", "rename a b", "flushall", "publish c x"]);
    assert!(went_on.len() == 7 && went_on.iter().all(|answer| answer.starts_with(':')), "{went_on:?}");
    assert!(bench.counts("set").ends_with("rejected_calls=1,failed_calls=0"));
    bench.operations.memory.set_max(0);
    assert_eq!(bench.ask(&["set a 1"]), [":7"]);
    // As a front end's replica says.
    bench.puppet.0.borrow_mut().is_out_of_memory = true;
    assert_eq!(bench.ask(&["set a 1", "del a"]), [OOM, ":8"]);
}

#[test]
fn a_transaction_beyond_the_limit_of_memory_is_refused_as_a_whole() {
    let mut bench = with_room(10);
    bench.puppet.0.borrow_mut().answers_looks = true;
    bench.ask(&["multi", "del a", "set a 1"]);
    bench.operations.memory.set_max(1);
    let aborted = format!("-EXECABORT Transaction discarded because of: {}", &OOM[1..]);
    assert_eq!(bench.ask(&["exec", "exec"]), [&*aborted, "-ERR EXEC without MULTI"]);
    // Even what would only be queued needs memory until then.
    assert_eq!(bench.ask(&["multi", "get a"]), ["OK", OOM]);
    assert!(bench.ask(&["exec"])[0].starts_with("-EXECABORT Transaction discarded because of previous errors"));
    bench.operations.memory.set_max(0);
    bench.ask(&["multi", "del a", "get a"]);
    bench.operations.memory.set_max(1);
    bench.deliver(1);
    assert_eq!(bench.ask(&["exec"]), ["[:0, :0]"], "nothing in it needs memory");
    assert_eq!(bench.submitted(), 1);
}

#[test]
fn a_shutdown_ends_the_session_without_an_answer_unless_it_is_refused() {
    let mut bench = with_room(10);
    assert_eq!(
        bench.ask_each(&["shutdown what", "shutdown abort"]),
        ["-ERR syntax error", "-ERR No shutdown in progress."]
    );
    assert!(bench.ask(&["multi", "shutdown"])[1].starts_with("-ERR Command not allowed inside a transaction"));
    bench.ask(&["discard"]);
    bench.take_all(&["incr a"]);
    assert_eq!(bench.take("shutdown"), Taken::NotYet, "what was asked before is answered first");
    bench.deliver(1);
    assert_eq!(bench.answers(), [":1"]);
    bench.take_all(&["SHUTDOWN nosave"]);
    assert_eq!(bench.session.poll_next(&mut context()), Poll::Ready(SessionStep::Close));
}
