//! What clients at all replicas do at once is as if done one after the other.

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
    machine::{one_at_a_time, skip, within},
    process::Replica,
    target::{Target, fresh_prefix},
    wire::Client,
};

const CLIENTS: usize = 12;

/// Keys in use at a time.
const KEYS: u64 = 3;

/// Operations on one key, about; the search through a long history may take for ever.
const PER_KEY: u64 = 40;

/// What the clients share.
struct Run {
    /// The only clock. It is monotonic, and the same for all threads.
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

    fn now(&self) -> i64 {
        i64::try_from(self.begun.elapsed().as_nanos()).expect("a test is short")
    }

    /// One of the keys in use, which change as time goes on.
    fn key(&self) -> String {
        let called = self.called.fetch_add(1, Ordering::Relaxed);
        let generation = called / (KEYS * PER_KEY);
        format!("{}{generation}:{}", self.prefix, fastrand::u64(..KEYS))
    }
}

/// What one client did.
#[derive(Default)]
struct Done {
    histories: BTreeMap<String, History>,
    /// Operations that were answered.
    answered: usize,
    /// Whether its last operation was not, or with an error that leaves open what happened.
    lost: bool,
}

/// One client: calls commands until it is told to stop, or gets no answer.
fn client(run: &Run, id: usize, address: SocketAddr) -> Done {
    let mut client = Client::connect(address).expect("the replica listens");
    let mut done = Done::default();
    for number in 0u64.. {
        if run.stop.load(Ordering::Relaxed) {
            break;
        }
        let key = run.key();
        // Values of no other operation: some are numbers, which can be counted on.
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
        let answer = client.call(&command.words(&key)).ok().filter(is_definite);
        let back = run.now();
        done.lost = answer.is_none();
        done.answered += usize::from(!done.lost);
        done.histories.entry(key).or_default().push(operation(id, call, back, Tried { command, answer }));
        if done.lost {
            break;
        }
    }
    done
}

/// Errors of the group say that nobody knows; those of a command, that it did nothing.
fn is_definite(answer: &OwnedFrame) -> bool {
    !matches!(answer, OwnedFrame::Error(text) if !text.starts_with("ERR value"))
}

/// Runs clients at all replicas until `meanwhile` returns, and checks what they saw. Returns what each of them did.
fn check(target: &Target, meanwhile: impl FnOnce(&Run, &AtomicU64)) -> Vec<Done> {
    let run = Run::new();
    let ended = AtomicU64::new(0);
    let done: Vec<Done> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|id| {
                let (run, ended, address) = (&run, &ended, target.address(id));
                scope.spawn(move || {
                    let done = client(run, id, address);
                    ended.fetch_add(1, Ordering::Relaxed);
                    done
                })
            })
            .collect();
        meanwhile(&run, &ended);
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
    let open = done.iter().filter(|done| done.lost).count();
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
    let done = check(&target, |_, _| thread::sleep(Duration::from_secs(3)));
    assert!(done.iter().all(|done| !done.lost), "an operation was not answered");
    assert!(done.iter().map(|done| done.answered).sum::<usize>() > 1000);
    target.until_all_hold_the_same();
    target.stop();
}

#[test]
fn what_was_answered_around_a_replicas_death_is_in_one_order() {
    around(|replica| replica.signal(Signal::KILL), |_| {});
}

#[test]
fn what_was_answered_around_a_replicas_long_pause_is_in_one_order() {
    around(|replica| replica.signal(Signal::STOP), |replica| replica.signal(Signal::CONT));
}

/// Runs clients while something befalls the third replica; `afterwards` once the others' clients have seen it or had time to.
fn around(befall: impl Fn(&Replica), afterwards: impl Fn(&Replica)) {
    let _turn = one_at_a_time();
    let target = Target::start();
    let Some(cluster) = &target.cluster else {
        return skip("the processes behind SQUALL_KV_ADDRESSES are not this test's to stop");
    };
    let done = check(&target, |run, ended| {
        thread::sleep(Duration::from_secs(1));
        assert_eq!(ended.load(Ordering::Relaxed), 0, "a client gave up before anything happened");
        befall(&cluster.replicas[2]);
        let have_ended = |count| move || ended.load(Ordering::Relaxed) >= count;
        // The failure timeout is one second.
        within(Duration::from_secs(4), have_ended(CLIENTS as u64 * 2 / 3));
        afterwards(&cluster.replicas[2]);
        // Those whose replica was paused go on for a moment if they may.
        within(Duration::from_secs(2), have_ended(CLIENTS as u64));
        run.stop.store(true, Ordering::Relaxed);
    });
    assert!(done.iter().all(|done| done.answered > 0), "every client had got somewhere");
    assert!(done.iter().any(|done| done.lost), "nothing was lost, so the test shows nothing");
    target.stop();
}

mod the_check_itself {
    use super::*;

    /// A history that is right: commands at random, some at the same time.
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
            // It took effect at 10 × number, its call and its return lie around that.
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
