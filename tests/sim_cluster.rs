//! Whole clusters from seeds: see `squall::sim::scenario` for what must hold.
//!
//! `SQUALL_SEED` runs one seed alone; `squall sim replay SEED` tells what happens in it.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use squall::{
    Applied, Config, NodeId, Read, Replicated,
    sim::{Cluster, Options, scenario},
};

/// How many seeds run here. The command `squall sim check --seeds N` runs as many as one likes.
const SEEDS: u64 = 1200;

fn seeds() -> Vec<u64> {
    match std::env::var("SQUALL_SEED") {
        Ok(seed) => vec![seed.parse().expect("SQUALL_SEED is a number")],
        Err(_) => (0..SEEDS).collect(),
    }
}

/// What went wrong, if anything; a failed assertion within the protocols counts.
fn failure(seed: u64) -> Option<String> {
    match std::panic::catch_unwind(|| scenario::run(seed)) {
        Ok(result) => result.err().map(|violation| violation.to_string()),
        Err(_) => Some(format!("seed {seed} panicked; the message stands above")),
    }
}

#[test]
fn every_scenario_keeps_order_and_promises() {
    let seeds = seeds();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failures: Vec<_> = std::thread::scope(|scope| {
        let share = |thread: usize| seeds.iter().copied().skip(thread).step_by(threads);
        let run = |thread| move || share(thread).filter_map(failure).collect::<Vec<_>>();
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(run(thread))).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("panics are caught")).collect()
    });
    let told: Vec<&String> = failures.iter().take(5).collect();
    assert!(failures.is_empty(), "{} of {} seeds failed; the first: {told:#?}", failures.len(), seeds.len());
}

#[test]
fn a_seed_replays_to_the_last_step() {
    for seed in 0..30 {
        let first = scenario::run(seed);
        let second = scenario::replay(seed, false, &mut |_, _| {});
        assert_eq!(first, second, "seed {seed}");
    }
}

/// Counts what it applied.
#[derive(Default)]
struct Count(u64);

impl Replicated for Count {
    type Command = ();
    type Reply = u64;

    fn apply(&mut self, _: &(), _: &Applied) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// What became of a cluster whose last member was cut off while it could read alone.
#[derive(Debug, Default)]
struct CutOff {
    /// Reads that it answered which had begun before a client was told of something that it lacks, and after.
    before: usize,
    after: usize,
    /// Whether a client was told of something that it lacks while it was still a member in its own eyes.
    dangerous: bool,
}

/// Three members, of which the last is cut off when everything it knows is delivered; a client at the first goes on, and one
/// at the last reads all the time.
fn cut_off(seed: u64, lease: Duration) -> CutOff {
    let config = Config::builder("cut", 1)
        .members([1, 2, 3])
        .failure_timeout(Duration::from_millis(20))
        .read_lease(lease)
        // The last one's turns are not waited for, so the others deliver what it lacks.
        .group("count", |group| _ = group.senders([1, 2]))
        .build()
        .expect("the configuration is valid");
    let mut cluster = Cluster::new(config, Options { view_log: true, ..Options::default() }, seed);
    let groups = cluster.group("count", |_| Count::default());
    cluster.start().expect("it starts");
    let (limit, last) = (Duration::from_millis(10), NodeId(3));
    for _ in 0..3 {
        cluster.wait(limit, groups[0].submit(&())).expect("in time").expect("nothing failed");
        cluster.wait(limit, groups[2].read(|count| count.0)).expect("in time").expect("nothing failed");
    }
    cluster.run_for(Duration::from_micros(seed * 37 % 500));
    for other in [1, 2] {
        cluster.net().cut(NodeId(other), last);
    }
    let mut found = CutOff::default();
    let mut context = Context::from_waker(Waker::noop());
    let mut submit = Some(groups[0].submit(&()));
    let mut told = false;
    let mut reads: Vec<(bool, Read<u64>)> = Vec::new();
    for _ in 0..2_000 {
        cluster.run_for(Duration::from_micros(20));
        if let Some(Poll::Ready(answer)) = submit.as_mut().map(|submit| Pin::new(submit).poll(&mut context)) {
            submit = None;
            told = answer == Ok(4);
        }
        found.dangerous |= told && cluster.end_reason(last).is_none();
        reads.retain_mut(|(told, read)| match Pin::new(read).poll(&mut context) {
            Poll::Ready(Ok(count)) => {
                assert_eq!(count, 3, "it was cut off before the fourth");
                *(if *told { &mut found.after } else { &mut found.before }) += 1;
                false
            }
            answer => answer.is_pending(),
        });
        reads.push((told, groups[2].read(|count| count.0)));
    }
    found
}

#[test]
fn who_was_cut_off_reads_nothing_stale_with_a_lease_or_without() {
    let (mut dangerous, mut by_lease) = (0, 0);
    for seed in 0..200 {
        for lease in [Duration::ZERO, Duration::from_millis(5), Duration::from_millis(20)] {
            let found = cut_off(seed, lease);
            assert_eq!(found.after, 0, "seed {seed}, lease {lease:?}: {found:?}");
            dangerous += usize::from(found.dangerous);
            by_lease += usize::from(!lease.is_zero() && found.before > 1);
        }
    }
    assert!(dangerous > 20, "only {dangerous} runs could go wrong");
    assert!(by_lease > 200, "only in {by_lease} runs did the lease answer anything");
}
