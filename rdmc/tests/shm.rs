//! Transfers over real shared memory: several nodes in one process, each with a thread.

use std::thread;

use crate::member::{self, content};
use squall_fabric::{
    NodeId,
    shm::{ShmConfig, ShmFabric},
};
use squall_rdmc::{GroupConfig, GroupId, schedule::Algorithm};

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
                    thread::spawn(move || {
                        let mut fabric = ShmFabric::open(ShmConfig::new(&cluster, node)).expect("shared memory");
                        member::run(&mut fabric, config, &lens)
                    })
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
