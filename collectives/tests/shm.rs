//! Operations over real shared memory: several ranks in one process, each with a thread.

use std::thread;

use squall_collectives::{Builtin, CollectiveError, Communicator, CommunicatorConfig, Operation};
use squall_fabric::{
    Fabric, GroupTag, NodeId, Time,
    shm::{ShmConfig, ShmFabric},
};
use squall_rdmc::block::Medium;

/// Steps of one rank between two polls of its fabric.
const STEPS_PER_POLL: usize = 256;

fn poll(fabric: &mut ShmFabric, communicator: &mut Communicator) {
    let mut completions = Vec::new();
    let now = Time::boot_clock();
    fabric.poll(now, &mut completions);
    for completion in &completions {
        communicator.on_completion(fabric, now, completion);
    }
}

fn wait<T>(
    fabric: &mut ShmFabric,
    communicator: &mut Communicator,
    operation: &Operation<T>,
) -> Result<(), CollectiveError> {
    let mut steps = 0;
    while !communicator.test(operation)? {
        communicator.step(fabric, Time::ZERO);
        steps += 1;
        if steps % STEPS_PER_POLL == 0 || communicator.needs_completions() {
            poll(fabric, communicator);
            // There may be more ranks than cores.
            thread::yield_now();
        }
    }
    Ok(())
}

/// Runs `body` on each of `n` ranks.
fn run(name: &str, n: u32, body: impl Fn(&mut ShmFabric, &mut Communicator) -> Result<(), CollectiveError> + Sync) {
    let cluster = format!("collectives-{name}-{}-{n}", std::process::id());
    let ranks = (0..n).map(NodeId).collect();
    let mut config = CommunicatorConfig::new(ranks, GroupTag { layer: 9, group: 0, epoch: 1 });
    config.medium = Medium::SharedMemory;
    thread::scope(|scope| {
        for node in 0..n {
            let (cluster, config, body) = (&cluster, config.clone(), &body);
            scope.spawn(move || {
                let mut fabric = ShmFabric::open(ShmConfig::new(cluster, NodeId(node))).expect("shared memory");
                let mut communicator = Communicator::create(&mut fabric, config).expect("a sound configuration");
                body(&mut fabric, &mut communicator).expect("no rank fails");
                while !communicator.close(&mut fabric) {
                    poll(&mut fabric, &mut communicator);
                    thread::yield_now();
                }
            });
        }
    });
}

#[test]
fn operations_are_right_over_shared_memory() {
    for n in [2, 3, 4] {
        run("right", n, |fabric, c| {
            let (me, n) = (c.rank(), c.ranks());
            for turn in 0..50 {
                for len in [1, 100, 50_000] {
                    let barrier = c.start_barrier(fabric)?;
                    wait(fabric, c, &barrier)?;
                    let vector: Vec<u64> = (0..len).map(|at| at * (me as u64 + 1) + turn).collect();
                    let sum = c.start_allreduce(fabric, &Builtin::Sum.into(), vector.clone())?;
                    wait(fabric, c, &sum)?;
                    let ranks: u64 = (1..=n as u64).sum();
                    let expected: Vec<u64> = (0..len).map(|at| at * ranks + turn * n as u64).collect();
                    assert!(c.finish(sum)? == expected, "{len} elements in turn {turn} at rank {me} of {n}");
                    let cast = c.start_broadcast(fabric, n - 1, vector)?;
                    wait(fabric, c, &cast)?;
                    let expected: Vec<u64> = (0..len).map(|at| at * n as u64 + turn).collect();
                    assert!(c.finish(cast)? == expected, "{len} elements in turn {turn} at rank {me} of {n}");
                }
            }
            Ok(())
        });
    }
}

#[test]
fn long_vectors_are_right_over_shared_memory() {
    for n in [2, 3, 4] {
        run("long", n, |fabric, c| {
            let (me, n) = (c.rank(), c.ranks());
            for turn in 0..8 {
                for len in [1 << 18, 300_001] {
                    let root = turn as usize % n;
                    let vector: Vec<u64> = (0..len).map(|at| at * (me as u64 + 1) + turn).collect();
                    let cast = c.start_broadcast(fabric, root, vector)?;
                    let barrier = c.start_barrier(fabric)?;
                    wait(fabric, c, &barrier)?;
                    wait(fabric, c, &cast)?;
                    let expected: Vec<u64> = (0..len).map(|at| at * (root as u64 + 1) + turn).collect();
                    assert!(c.finish(cast)? == expected, "{len} elements in turn {turn} at rank {me} of {n}");
                }
            }
            Ok(())
        });
    }
}
