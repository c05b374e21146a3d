//! Transfers over real shared memory: several nodes in one process, each with a thread.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use squall_fabric::{
    Fabric, NodeId, Time, Wait,
    shm::{ShmConfig, ShmFabric},
};
use squall_rdmc::{Buffer, Event, Group, GroupConfig, GroupId, schedule::Algorithm};

const DEADLINE: Duration = Duration::from_secs(60);

fn content(message: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + message * 7 + (at >> 12)) as u8).collect()
}

/// Runs one member until its group is destroyed. Returns what it received.
fn member(cluster: &str, config: GroupConfig, node: NodeId, lens: &[usize]) -> Vec<Vec<u8>> {
    let mut fabric = ShmFabric::open(ShmConfig::new(cluster, node)).expect("shared memory");
    let mut group = Group::create(&mut fabric, config.clone()).expect("a sound configuration");
    if config.members[0] == node {
        for (message, &len) in lens.iter().enumerate() {
            let mut buffer = Buffer::register(&mut fabric, len.max(1)).expect("memory");
            buffer[..len].copy_from_slice(&content(message, len));
            group.send(Arc::new(buffer), len).expect("the root may");
        }
        group.destroy().expect("the root may");
    }
    let began = Instant::now();
    let (mut received, mut completions, mut events) = (Vec::new(), Vec::new(), Vec::new());
    while began.elapsed() < DEADLINE {
        fabric.poll(Time::boot_clock(), &mut completions);
        let mut busy = !completions.is_empty();
        completions.drain(..).for_each(|completion| group.on_completion(&mut fabric, &completion));
        busy |= group.step(&mut fabric, &mut events);
        for event in events.drain(..) {
            match event {
                Event::Incoming { message, max_bytes, .. } => {
                    let buffer = Buffer::register(&mut fabric, max_bytes.max(1)).expect("memory");
                    group.accept(message, buffer).expect("it waits for memory");
                }
                Event::Received { buffer, len, .. } => received.push(buffer[..len].to_vec()),
                Event::Destroyed => return received,
                Event::Failed(failure) => panic!("{node}: {failure:?}"),
                Event::Connected | Event::Released { .. } => {}
            }
        }
        if !busy {
            fabric.arm();
            fabric.wait(Time::boot_clock() + Duration::from_millis(1));
        }
    }
    panic!("{node}: not destroyed in time; {:?}", group.progress());
}

#[test]
fn all_schedules_bring_all_bytes_over_shared_memory() {
    let algorithms = [
        Algorithm::Sequential,
        Algorithm::Interleaved,
        Algorithm::Chain,
        Algorithm::BinomialTree,
        Algorithm::BinomialPipeline,
    ];
    let lens = [3_000_001, 0, 70_000, 1 << 20];
    for (at, algorithm) in algorithms.into_iter().enumerate() {
        for n in [2, 3, 6] {
            let cluster = format!("rdmc-{}-{at}-{n}", std::process::id());
            let members = (0..n).map(NodeId).collect::<Vec<_>>();
            let config = GroupConfig {
                algorithm: algorithm.clone(),
                block_bytes: 64 << 10,
                ..GroupConfig::new(GroupId { group: 1, instance: 1 }, members.clone())
            };
            let threads: Vec<_> = members
                .into_iter()
                .map(|node| {
                    let (cluster, config) = (cluster.clone(), config.clone());
                    thread::spawn(move || member(&cluster, config, node, &lens))
                })
                .collect();
            for (rank, thread) in threads.into_iter().enumerate() {
                let received = thread.join().expect("the member does not panic");
                let expected = if rank == 0 { 0 } else { lens.len() };
                assert_eq!(received.len(), expected, "{} at rank {rank} of {n}", config.algorithm.name());
                for (message, bytes) in received.iter().enumerate() {
                    assert!(*bytes == content(message, lens[message]), "message {message} at rank {rank} of {n}");
                }
            }
        }
    }
}
