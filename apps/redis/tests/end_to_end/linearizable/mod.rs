//! The operations of clients at all replicas, checked for linearizability.

mod model;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use porcupine_rs::Operation;
use redis_protocol::resp2::types::OwnedFrame;
use rustix::process::Signal;

use self::model::{Command, History, Key, Tried, is_linearizable, operation};
use crate::{
    machine::{one_at_a_time, skip, until},
    process::{Cluster, Replica},
    target::{Target, fresh_prefix},
    wire::Client,
};

const CLIENTS: usize = 12;

/// The number of keys in use at a time.
const KEYS: u64 = 3;

/// The number of operations on one key, about; the search through a long history may take for ever.
const PER_KEY: u64 = 40;

/// The state that the clients share.
struct Run {
    /// The origin of the only clock, which is monotonic and the same for all threads.
    begun: Instant,
    prefix: String,
    /// Operations called so far.
    called: AtomicU64,
    stop: AtomicBool,
}

impl Run {
    fn new() -> Run {
        Run {
            begun: Instant::now(),
            prefix: fresh_prefix("line"),
            called: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Waits until many more operations were called.
    fn until_more(&self) {
        let before = self.called.load(Ordering::Relaxed);
        until("the clients go on", || self.called.load(Ordering::Relaxed) > before + 500);
    }

    fn now(&self) -> i64 {
        i64::try_from(self.begun.elapsed().as_nanos()).expect("a test is short")
    }

    /// One of the keys in use, which change in the course of the run.
    fn key(&self) -> String {
        let called = self.called.fetch_add(1, Ordering::Relaxed);
        let generation = called / (KEYS * PER_KEY);
        format!("{}{generation}:{}", self.prefix, fastrand::u64(..KEYS))
    }
}

/// The operations of one client.
#[derive(Default)]
struct Done {
    histories: BTreeMap<String, History>,
    /// Operations that were answered.
    answered: usize,
    /// Operations without an answer, or with an error that leaves the outcome open.
    open: usize,
}

/// A client that calls commands until it is told to stop. If it gets no answer, it goes on at the next replica as
/// another client, since its last command may still take effect.
fn client(run: &Run, id: usize, addresses: &[SocketAddr]) -> Done {
    let mut done = Done::default();
    let (mut turn, mut connected, mut life) = (id, None, 0);
    for number in 0u64.. {
        while connected.is_none() && !run.stop.load(Ordering::Relaxed) {
            connected = Client::connect(addresses[turn % addresses.len()]).ok();
            turn += usize::from(connected.is_none());
        }
        let Some(client) = connected.as_mut().filter(|_| !run.stop.load(Ordering::Relaxed)) else { break };
        let key = run.key();
        // A value that no other operation has. Some are numbers, which `INCR` can change.
        let text = format!("{}{id:02}{number:06}", if fastrand::bool() { "v" } else { "1" });
        let command = match fastrand::u8(..16) {
            0..6 => Command::Get,
            6..9 => Command::Set(text),
            9..11 => Command::GetSet(text),
            11..13 => Command::Append(text),
            13..15 => Command::Incr,
            _ => Command::Del,
        };
        let call = run.now();
        let answer = client.call(&command.words(&key)).ok();
        let back = run.now();
        if answer.as_ref().is_some_and(is_refusal) {
            (connected, turn) = (None, turn + 1);
            continue;
        }
        let answer = answer.filter(is_definite);
        let is_open = answer.is_none();
        done.answered += usize::from(!is_open);
        done.open += usize::from(is_open);
        let tried = operation(id + CLIENTS * life, call, back, Tried { command, answer });
        done.histories.entry(key).or_default().push(tried);
        if is_open {
            (connected, turn, life) = (None, turn + 1, life + 1);
        }
    }
    done
}

/// Whether an answer says that nothing was done.
fn is_refusal(answer: &OwnedFrame) -> bool {
    matches!(answer, OwnedFrame::Error(text) if text.starts_with("CLUSTERDOWN"))
}

/// Whether an answer tells the outcome: errors of the group leave it open, and a command's own errors say that it did
/// nothing.
fn is_definite(answer: &OwnedFrame) -> bool {
    !matches!(answer, OwnedFrame::Error(text) if !text.starts_with("ERR value"))
}

/// Runs clients at all replicas until `meanwhile` returns, and checks their histories. Returns the operations of each
/// client.
fn check(target: &Target, meanwhile: impl FnOnce(&Run)) -> Vec<Done> {
    let run = Run::new();
    let done: Vec<Done> = thread::scope(|scope| {
        let run = &run;
        let clients: Vec<_> = (0..CLIENTS).map(|id| scope.spawn(move || client(run, id, target.addresses()))).collect();
        meanwhile(run);
        run.stop.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("the client ends")).collect()
    });
    let mut histories = BTreeMap::<&str, History>::new();
    for (key, history) in done.iter().flat_map(|done| &done.histories) {
        histories.entry(key).or_default().extend_from_slice(history);
    }
    let begun = Instant::now();
    for (key, history) in &histories {
        assert!(is_linearizable(history), "{key} is not linearizable:\n{}", show(history));
    }
    let answered: usize = done.iter().map(|done| done.answered).sum();
    let open: usize = done.iter().map(|done| done.open).sum();
    eprintln!("{answered} answered, {open} open, {} keys, checked in {:?}", histories.len(), begun.elapsed());
    done
}

/// A history in the order of calls, a line for each operation.
fn show(history: &History) -> String {
    let mut history: Vec<&Operation<Key>> = history.iter().collect();
    history.sort_by_key(|operation| operation.call_time);
    let line = |operation: &&Operation<Key>| {
        let Operation { call_time, return_time, op, .. } = operation;
        let client = operation.client_id.unwrap_or_default();
        format!("{call_time:>12} to {return_time:>19} client {client:2} {op:?}\n")
    };
    history.iter().map(line).collect()
}

#[test]
fn clients_of_all_replicas_see_one_order() {
    let _turn = one_at_a_time();
    let target = Target::start();
    let done = check(&target, |_| thread::sleep(Duration::from_secs(3)));
    assert!(done.iter().all(|done| done.open == 0), "an operation was not answered");
    assert!(done.iter().map(|done| done.answered).sum::<usize>() > 1000);
    target.until_all_hold_the_same();
    target.stop();
}

#[test]
fn clients_around_deaths_and_restarts_see_one_order() {
    around(|cluster, run| {
        // The lowest-ranked replica is among them, even after it has changed.
        for index in [2, 0, 1] {
            let before = cluster.replicas[index].pid();
            cluster.replicas[index].signal(Signal::KILL);
            until("it serves again", || cluster.replicas[index].pid() != before && is_full(cluster));
            run.until_more();
        }
    });
}

#[test]
fn clients_around_long_pauses_see_one_order() {
    around(|cluster, run| {
        for index in [2, 0] {
            cluster.replicas[index].signal(Signal::STOP);
            let other = &cluster.replicas[1];
            until("the others have given it up", || other.info("members").as_deref() == Some("2"));
            run.until_more();
            cluster.replicas[index].signal(Signal::CONT);
            until("it is back", || is_full(cluster));
            run.until_more();
        }
    });
}

/// Whether the views of all replicas have all of them as full members.
fn is_full(cluster: &Cluster) -> bool {
    let all = cluster.replicas.len();
    let sees_all = |replica: &Replica| replica.info("view_senders").is_some_and(|list| list.split(',').count() == all);
    cluster.replicas.iter().all(sees_all)
}

/// Runs clients while `befall` harms the replicas.
fn around(befall: impl Fn(&Cluster, &Run)) {
    let _turn = one_at_a_time();
    let target = Target::start();
    let Some(cluster) = &target.cluster else {
        return skip("the processes behind SQUALL_KV_ADDRESSES are not this test's to stop");
    };
    let done = check(&target, |run| {
        run.until_more();
        befall(cluster, run);
    });
    assert!(done.iter().all(|done| done.answered > 0), "every client had got somewhere");
    target.until_all_hold_the_same();
    target.stop();
}

mod the_check_itself {
    use super::*;

    /// A correct history: random commands, some at the same time.
    fn right(seed: u64) -> History {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut state = None;
        let mut history = History::new();
        for number in 0..30 {
            let value = format!("v{number}");
            let command = match random.u8(..5) {
                0..2 => Command::Get,
                2 => Command::Set(value),
                3 => Command::Append(value),
                _ => Command::Incr,
            };
            let (answer, after) = command.apply(&state);
            state = after;
            // It took effect at 10 × number; its call and its return lie around that.
            let effect = 10 * number;
            let times = (effect - random.i64(0..25), effect + random.i64(0..25));
            history.push(operation(number as usize % 4, times.0, times.1, Tried { command, answer: Some(answer) }));
        }
        history
    }

    fn at(number: i64, command: Command, answer: OwnedFrame) -> Operation<Key> {
        operation(0, number * 10, number * 10 + 5, Tried { command, answer: Some(answer) })
    }

    fn lost(number: i64, command: Command) -> Operation<Key> {
        operation(1, number * 10, 0, Tried { command, answer: None })
    }

    fn set(value: &str) -> Command {
        Command::Set(value.into())
    }

    fn ok() -> OwnedFrame {
        OwnedFrame::SimpleString("OK".into())
    }

    fn bulk(value: &str) -> OwnedFrame {
        OwnedFrame::BulkString(value.into())
    }

    #[test]
    fn what_is_right_passes_and_what_nobody_wrote_does_not() {
        for seed in 0..100 {
            let mut history = right(seed);
            assert!(is_linearizable(&history), "seed {seed}:\n{}", show(&history));
            let Some(get) = history.iter_mut().rev().find(|operation| matches!(operation.op.command, Command::Get))
            else {
                continue;
            };
            get.op.answer = Some(bulk("nobody's"));
            assert!(!is_linearizable(&history), "seed {seed}:\n{}", show(&history));
        }
    }

    #[test]
    fn a_stale_read_is_refused() {
        for seed in 0..100 {
            let mut history = right(seed);
            let end = history.iter().map(|operation| operation.return_time).max().expect("operations") / 10 + 1;
            history.push(at(end, set("old"), ok()));
            history.push(at(end + 1, set("new"), ok()));
            let mut stale = history.clone();
            history.push(at(end + 2, Command::Get, bulk("new")));
            assert!(is_linearizable(&history));
            stale.push(at(end + 2, Command::Get, bulk("old")));
            assert!(!is_linearizable(&stale));
        }
    }

    #[test]
    fn an_acknowledged_write_may_not_vanish_nor_an_increment_count_twice() {
        assert!(!is_linearizable(&vec![at(0, set("1"), ok()), at(1, Command::Get, OwnedFrame::Null)]));
        let counted = |seen| {
            vec![at(0, set("1"), ok()), at(1, Command::Incr, OwnedFrame::Integer(2)), at(2, Command::Get, bulk(seen))]
        };
        assert!(is_linearizable(&counted("2")));
        assert!(!is_linearizable(&counted("3")));
    }

    #[test]
    fn a_write_without_an_answer_may_show_at_once_later_or_never_but_only_once() {
        let reads = |answers: [&str; 3]| {
            let mut history = vec![at(0, set("before"), ok()), lost(1, set("maybe"))];
            history.extend((2..).zip(answers).map(|(number, answer)| at(number, Command::Get, bulk(answer))));
            history
        };
        assert!(is_linearizable(&reads(["maybe", "maybe", "maybe"])));
        assert!(is_linearizable(&reads(["before", "maybe", "maybe"])));
        assert!(is_linearizable(&reads(["before", "before", "before"])));
        assert!(!is_linearizable(&reads(["maybe", "before", "before"])));
        assert!(!is_linearizable(&reads(["maybe", "before", "maybe"])));
        let early = vec![at(0, set("before"), ok()), at(1, Command::Get, bulk("maybe")), lost(2, set("maybe"))];
        assert!(!is_linearizable(&early), "it was seen before it was sent");
    }
}
