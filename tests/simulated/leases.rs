//! Readers that lose the other members, and members that go on without them.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use squall::{
    Applied, Config, Group, NodeId, Read, Replicated,
    sim::{Cluster, Options, SimConfig},
};

/// The number of commands that it applied.
#[derive(Default)]
struct Count(u64);

impl Replicated for Count {
    type Command = ();
    type Reply = u64;

    fn apply(&mut self, _: &rkyv::Archived<()>, _: &Applied) -> u64 {
        self.0 += 1;
        self.0
    }
}

const FAILURE_TIMEOUT: Duration = Duration::from_millis(20);
const LAST: NodeId = NodeId(3);

/// Three members, which have all applied three messages, and of which the last has read just now. The others do not
/// wait for its turns, since it is no sender, so they deliver the messages that it lacks once they go on without it.
fn three(seed: u64, lease: Duration, net: SimConfig) -> (Cluster, Vec<Group<Count>>) {
    let config = Config::builder("leases", 1)
        .members([1, 2, 3])
        .failure_timeout(FAILURE_TIMEOUT)
        .read_lease(lease)
        .group("count", |group| _ = group.senders([1, 2]))
        .build()
        .expect("the configuration is valid");
    let mut cluster = Cluster::new(config, Options { net, ..Options::default() }, seed);
    let groups = cluster.group("count", |_| Count::default());
    cluster.start().expect("it starts");
    let limit = Duration::from_millis(10);
    for _ in 0..3 {
        cluster.wait(limit, groups[0].submit(&())).expect("in time").expect("nothing failed");
        cluster.wait(limit, groups[2].read(|count| count.0)).expect("in time").expect("nothing failed");
    }
    (cluster, groups)
}

/// The one message that the last member lacks.
struct Fourth(Option<squall::Submit<u64>>);

impl Fourth {
    /// Whether a client was told just now that the message is applied.
    fn is_told(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let Some(Poll::Ready(answer)) = self.0.as_mut().map(|submit| Pin::new(submit).poll(&mut context)) else {
            return false;
        };
        self.0 = None;
        answer == Ok(4)
    }
}

/// The value that a read shows, or None if it failed, once it is answered.
fn answer(read: &mut Read<u64>) -> Poll<Option<u64>> {
    Pin::new(read).poll(&mut Context::from_waker(Waker::noop())).map(Result::ok)
}

/// The findings about a reader.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// The reads that it answered which began before a client was told of the message that it lacks, and after.
    before: usize,
    after: usize,
    /// Whether a client was told while the reader was still a member in its own view.
    dangerous: bool,
}

/// Cuts off the last member, which notices it some time later, and reads all the while.
fn cut_off(seed: u64, lease: Duration) -> Found {
    let (mut cluster, groups) = three(seed, lease, SimConfig::fast());
    cluster.run_for(Duration::from_micros(seed * 37 % 500));
    for other in [1, 2] {
        cluster.net().cut(NodeId(other), LAST);
    }
    let mut found = Found::default();
    let mut fourth = Fourth(Some(groups[0].submit(&())));
    let mut told = false;
    let mut reads: Vec<(bool, Read<u64>)> = Vec::new();
    for _ in 0..2_000 {
        cluster.run_for(Duration::from_micros(20));
        told |= fourth.is_told();
        found.dangerous |= told && cluster.view(LAST).is_some_and(|view| view.rank_of(LAST).is_some());
        reads.retain_mut(|(told, read)| {
            let Poll::Ready(count) = answer(read) else { return true };
            assert!(count.is_none_or(|count| count == 3), "it was cut off before the fourth");
            *(if *told { &mut found.after } else { &mut found.before }) += usize::from(count.is_some());
            false
        });
        reads.push((told, groups[2].read(|count| count.0)));
    }
    found
}

#[test]
fn who_is_cut_off_reads_nothing_stale() {
    for lease in [Duration::ZERO, FAILURE_TIMEOUT] {
        let runs: Vec<_> = (0..200).map(|seed| cut_off(seed, lease)).collect();
        for (seed, found) in runs.iter().enumerate() {
            assert_eq!(found.after, 0, "seed {seed}, lease {lease:?}: {found:?}");
        }
        // With a lease as long as the timeout, the others mostly wait until it has noticed.
        let dangerous = runs.iter().filter(|found| found.dangerous).count();
        assert!(!lease.is_zero() || dangerous > 20, "only {dangerous} runs could go wrong");
        let by_lease = runs.iter().filter(|found| found.before > 1).count();
        assert!(lease.is_zero() || by_lease > 100, "only in {by_lease} runs did the lease answer anything");
    }
}

/// Drops the messages of the last member, which the others notice within a millisecond, and stops its engine just after
/// it has read its clock. Its application goes on to read; then the engine goes on.
fn stopped(seed: u64) -> Found {
    let net = SimConfig { failure_timeout: Duration::from_millis(1), ..SimConfig::fast() };
    let (mut cluster, groups) = three(seed, Duration::from_millis(15), net);
    for other in [1, 2] {
        cluster.net().cut_one_way(LAST, NodeId(other));
    }
    cluster.run_for(Duration::from_micros(seed * 37 % 900));
    cluster.pause(LAST);
    let mut fourth = Fourth(Some(groups[0].submit(&())));
    let mut found = Found::default();
    let mut waiting = Vec::new();
    for _ in 0..3_000 {
        cluster.run_for(Duration::from_micros(10));
        found.dangerous |= fourth.is_told();
        let mut read = groups[2].read(|count| count.0);
        match answer(&mut read) {
            Poll::Ready(Some(_)) if found.dangerous => found.after += 1,
            Poll::Ready(Some(_)) => found.before += 1,
            Poll::Pending if found.dangerous => waiting.push(read),
            _ => {}
        }
    }
    cluster.resume(LAST);
    cluster.run_for(Duration::from_millis(5));
    found.after += waiting.iter_mut().map(answer).filter(|answer| matches!(answer, Poll::Ready(Some(_)))).count();
    found
}

#[test]
fn a_reader_whose_engine_stands_still_reads_nothing_stale() {
    let runs: Vec<_> = (0..400).map(stopped).collect();
    for (seed, found) in runs.iter().enumerate() {
        assert_eq!(found.after, 0, "seed {seed}: {found:?}");
    }
    let by_lease = runs.iter().filter(|found| found.dangerous && found.before > 0).count();
    assert!(by_lease > 50, "only {by_lease} runs could go wrong");
}
