//! Real nodes, as a program has them that embeds them.

use std::{fs, net::TcpListener, pin::pin, time::Instant};

use super::*;
use crate::{
    ConfigBuilder, Node, Starting, WeakGroup,
    admin::{NodeCondition, WaitReport},
    config::Backend,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn named(test: &str, id: u32) -> ConfigBuilder {
    Config::builder(format!("program-{test}-{}", std::process::id()), id).formation_timeout(PATIENCE)
}

fn begin(config: ConfigBuilder) -> (Starting, Group<Ledger>) {
    let mut node = Node::builder(config.build().unwrap());
    let group = node.group("ledger", Ledger::default());
    (node.begin().expect("it can start"), group)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let until = Instant::now() + PATIENCE;
    squall_runtime::blocking::block_on(Some(until), |context| future.as_mut().poll(context)).expect("it is in time")
}

/// The threads of this process whose names say that they are node `id`'s.
fn threads_of(id: u32) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names
        .filter(|name| [format!("squall-{id}"), format!("squall-calls-{id}")].contains(&name.trim().to_owned()))
        .count()
}

fn a_start_is_cancelled_and_begun_again(backend: Backend) {
    let ids = if backend == Backend::Shm { [81, 82] } else { [91, 92] };
    let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port is free"));
    let addresses = held.map(|held| held.local_addr().expect("it has one").to_string());
    let storage = tempfile::tempdir().unwrap();
    let config = |place: usize| {
        let config = named("cancel", ids[place]).backend(backend).storage(storage.path().join(place.to_string()));
        let config = match backend {
            Backend::Shm => config.members(ids),
            _ => ids.into_iter().zip(&addresses).fold(config, |config, (id, at)| config.addresses(id, [at])),
        };
        config.group("ledger", |group| _ = group.mode(Mode::Durable))
    };
    let (mut starting, group) = begin(config(0));
    assert!(poll(&mut starting).is_pending());
    until("it says for which member it waits", || {
        let status = starting.status();
        let missing = |waits: &[WaitReport]| waits.iter().any(|wait| wait.nodes == [NodeId(ids[1])]);
        status.condition == NodeCondition::Forming && missing(&status.waits)
    });
    assert_eq!(threads_of(ids[0]), 2);
    starting.cancel();
    // A thread that was joined is listed for a moment more.
    until("its threads are gone", || threads_of(ids[0]) == 0);
    assert!(matches!(group.try_send(&Entry::Add(1)), Err(crate::SubmitError::Ended { .. })));

    let (first, group) = begin(config(0));
    let (second, _) = begin(config(1));
    let nodes = [block_on(first).expect("it starts"), second.wait().expect("it starts")];
    assert_eq!(group.submit(&Entry::Add(1)).wait(), Ok(1));
    drop(nodes);
}

#[test]
fn over_shm_a_start_is_cancelled_and_begun_again() {
    a_start_is_cancelled_and_begun_again(Backend::Shm);
}

#[test]
fn over_tcp_a_start_is_cancelled_and_begun_again() {
    a_start_is_cancelled_and_begun_again(Backend::Tcp);
}

#[test]
fn a_program_awaits_views_a_leave_and_the_end() {
    let starting = [1, 2].map(|id| begin(named("await", id).backend(Backend::Shm).members([1, 2])).0);
    let [stayer, leaver] = starting.map(|starting| block_on(starting).expect("it starts"));
    let (mut views, mut blocking) = (stayer.views(), stayer.views());
    assert_eq!(block_on(views.next()).map(|view| view.nodes()), Some(vec![NodeId(1), NodeId(2)]));
    assert!(blocking.wait_next(PATIENCE).unwrap().is_some());
    assert_eq!(blocking.wait_next(Duration::ZERO), Ok(None));
    let (mut next, mut ended) = (Box::pin(views.next()), Box::pin(stayer.ended()));
    assert!(poll(&mut next).is_pending() && poll(&mut ended).is_pending());

    assert_eq!(block_on(leaver.begin_leave()), EndReason::Left);
    assert_eq!(block_on(next).map(|view| view.nodes()), Some(vec![NodeId(1)]));
    assert_eq!(blocking.wait_next(PATIENCE).unwrap().map(|view| view.nodes()), Some(vec![NodeId(1)]));
    assert_eq!(block_on(leaver.ended()), EndReason::Left);
    stayer.shutdown();
    assert_eq!(block_on(ended), EndReason::ShutDown);
    assert_eq!(block_on(views.next()), None);
    assert_eq!(blocking.wait_next(PATIENCE), Err(EndReason::ShutDown));
}

/// Halves each number that it is sent, until nothing is left.
struct Halver {
    own: WeakGroup<Halver>,
    applied: u64,
    /// A sign that the service lives.
    _lives: Arc<()>,
}

impl Replicated for Halver {
    type Command = u64;
    type Reply = u64;

    fn apply(&mut self, number: &Archived<u64>, _: &Applied) -> u64 {
        self.applied += 1;
        let half = number.to_native() / 2;
        if half > 0 {
            self.own.upgrade().expect("the group lives").try_send(&half).expect("there is room");
        }
        self.applied
    }
}

#[test]
fn a_service_uses_its_own_group_and_goes_with_it() {
    let lives = Arc::new(());
    let mut node = Node::builder(named("own", 1).backend(Backend::Shm).members([1]).build().unwrap());
    let halver = |own: WeakGroup<Halver>| {
        assert!(own.upgrade().is_none(), "its service is not made yet");
        Halver { own, applied: 0, _lives: Arc::clone(&lives) }
    };
    let group = node.group_with("halver", halver);
    let node = node.start().expect("it starts");
    assert_eq!(group.submit(&8).wait(), Ok(1));
    until("all halves are applied", || group.read(|halver| halver.applied).wait() == Ok(4));
    node.shutdown();
    assert_eq!(group.peek(|halver| halver.applied).wait(), Ok(4));
    drop(group);
    assert_eq!(Arc::strong_count(&lives), 1, "the service is still there");
}
