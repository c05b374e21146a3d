//! Tests of the driver, with scripted controllers.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
};

use squall_fabric::shm::{ShmConfig, ShmFabric};

use super::*;
use crate::Settlement;

const PATIENCE: Duration = Duration::from_secs(20);

/// The directives of a controller, and the calls that it gets.
#[derive(Default)]
struct Lines {
    directives: VecDeque<Directive>,
    suspects: Vec<usize>,
    polls: usize,
}

#[derive(Clone, Default)]
struct Script(Arc<Mutex<Lines>>);

impl Script {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().expect("no test panics while it holds it")
    }

    /// Makes a rank settle that these ranks have failed, with nothing delivered.
    fn settle(&self, epoch: u64, failed: &[usize]) {
        let settlement = Settlement { epoch, failed: failed.to_vec(), failure_timestamp: 0 };
        self.lines().directives.push_back(Directive::Settle(settlement));
    }
}

impl Controller for Script {
    fn suspect(&mut self, _: u64, rank: usize) {
        self.lines().suspects.push(rank);
    }

    fn report(&mut self, _: u64, _: u64) {}

    fn poll(&mut self, _: Time) -> Option<Directive> {
        let mut lines = self.lines();
        lines.polls += 1;
        lines.directives.pop_front()
    }
}

type Scripted = Pipe<ShmFabric, Script>;

/// A rank of a group of `ranks`, all in this process.
fn pipe(test: &str, rank: usize, ranks: u32, change: impl FnOnce(&mut OnePipeConfig)) -> (Scripted, Script) {
    let nodes: Vec<NodeId> = (1..=ranks).map(NodeId).collect();
    let cluster = format!("driver-{test}-{}", std::process::id());
    let fabric = ShmFabric::open(ShmConfig::new(&cluster, nodes[rank])).expect("shared memory");
    let mut config = OnePipeConfig::new(nodes, tag(0, 1));
    // An idle rank has nothing to do.
    config.activity = Duration::ZERO;
    change(&mut config);
    let script = Script::default();
    let pipe = Pipe::create(fabric, config, HostClock::default(), script.clone(), Spin::Never, 1);
    (pipe.expect("a sound group"), script)
}

/// The first two ranks of three, connected with each other. The third never comes.
fn two_of_three(test: &str) -> [(Scripted, Script); 2] {
    let mut two = [0, 1].map(|rank| pipe(test, rank, 3, |_| {}));
    until("they meet", &mut two, |[(a, _), (b, _)]| a.pipe.is_reached(1) && b.pipe.is_reached(0));
    two
}

fn until<const N: usize>(
    what: &str,
    pipes: &mut [(Scripted, Script); N],
    so: impl Fn(&[(Scripted, Script); N]) -> bool,
) {
    let limit = Time::boot_clock() + PATIENCE;
    while !so(pipes) {
        assert!(Time::boot_clock() < limit, "{what}: not in time");
        pipes.iter_mut().for_each(|(pipe, _)| pipe.push());
    }
}

#[test]
fn nothing_is_handed_over_that_was_settled_after_an_event() {
    let mut pipes = two_of_three("later-epoch");
    pipes.iter().for_each(|(_, script)| script.settle(2, &[2]));
    until("both settle", &mut pipes, |pipes| pipes.iter().all(|(pipe, _)| pipe.pipe.epoch() == 2));
    let message = Message { to: 0, bytes: b"of the epoch that has begun" };
    pipes[1].0.scatter(Mode::BestEffort, &[message], PATIENCE).expect("there is room");
    let sent = Time::boot_clock().as_nanos();
    until("its turn has come", &mut pipes, |[(pipe, _), _]| pipe.pipe.barrier(Mode::BestEffort) > sent);
    let pipe = &mut pipes[0].0;
    assert_eq!(pipe.receive(Mode::BestEffort, 9, PATIENCE, |delivery| panic!("{:?}", delivery.bytes)), 0);
    assert_eq!(pipe.next_event(), Some(PipeEvent::Removed { rank: 2, failure_timestamp: 0 }));
    assert_eq!(pipe.receive(Mode::BestEffort, 9, PATIENCE, |_| {}), 1);
}

#[test]
fn messages_of_both_modes_are_waited_for_together() {
    let mut pipes = [0, 1].map(|rank| pipe("both", rank, 2, |_| {}));
    until("they meet", &mut pipes, |pipes| pipes.iter().all(|(pipe, _)| pipe.pipe.is_connected()));
    for mode in [Mode::BestEffort, Mode::Reliable] {
        pipes[1].0.scatter(mode, &[Message { to: 0, bytes: b"for rank 0" }], PATIENCE).expect("there is room");
        pipes[1].0.push();
    }
    let [(mut first, _), (mut second, _)] = pipes;
    let is_over = Arc::new(AtomicBool::new(false));
    let other = Arc::clone(&is_over);
    let second = std::thread::spawn(move || {
        while !other.load(Ordering::Relaxed) {
            second.receive_any(9, Duration::from_millis(1), |delivery| panic!("{:?}", delivery.bytes));
        }
    });
    let mut modes = Vec::new();
    while modes.len() < 2 {
        assert!(first.receive_any(9, PATIENCE, |delivery| modes.push(delivery.mode)) > 0, "only {modes:?} came");
    }
    is_over.store(true, Ordering::Relaxed);
    second.join().expect("nothing comes to it");
    modes.sort_unstable();
    assert_eq!(modes, Mode::ALL);
}

#[test]
fn who_is_dropped_while_it_forms_hears_that_and_not_who_was_missing() {
    let [(first, script), (second, _)] = two_of_three("dropped");
    second.close();
    let mut first = [(first, script)];
    until("it has lost the other", &mut first, |[(pipe, _)]| !pipe.pipe.is_reached(1));
    let [(mut first, script)] = first;
    script.settle(2, &[0]);
    let began = Time::boot_clock();
    assert_eq!(first.form(PATIENCE), Err(FormError::Ended));
    assert!(Time::boot_clock() < began + PATIENCE / 2, "it slept though it had heard");
    assert!(matches!(first.next_event(), Some(PipeEvent::Broken { rank: 1, .. })), "which came before");
}

#[test]
fn who_forms_a_group_sleeps_whatever_there_is_for_who_receives() {
    let [(first, script), (second, _)] = two_of_three("asleep");
    second.close();
    let mut first = [(first, script)];
    until("it has lost the other", &mut first, |[(pipe, _)]| !pipe.pipe.is_reached(1));
    let [(mut first, script)] = first;
    first.waker().wake();
    let before = script.lines().polls;
    let limit = Duration::from_millis(100);
    assert_eq!(first.form(limit), Err(FormError::Missing { missing: vec![NodeId(2), NodeId(3)], limit }));
    let polls = script.lines().polls - before;
    assert!(polls < 100, "it looked {polls} times");
    assert!(first.has_event() && first.was_woken());
}

#[test]
fn a_configuration_that_differs_is_named_and_nobody_is_suspected_for_it() {
    let (first, first_script) = pipe("refused", 0, 2, |config| config.ring_bytes = 4096);
    let (second, second_script) = pipe("refused", 1, 2, |config| config.ring_bytes = 8192);
    let form = |mut pipe: Scripted| std::thread::spawn(move || (pipe.form(PATIENCE), pipe));
    let formed = [form(first), form(second)].map(|forms| forms.join().expect("it does not panic"));
    for ((result, mut pipe), (other, script)) in formed.into_iter().zip([(2, first_script), (1, second_script)]) {
        assert!(
            matches!(&result, Err(FormError::Refused { node, why }) if node.0 == other && why.contains("configuration")),
            "{result:?}"
        );
        pipe.push();
        assert!(script.lines().suspects.is_empty());
    }
}
