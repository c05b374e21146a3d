//! Both replicas of a shard in memory are stopped for longer than the failure timeout. The others go on without the
//! shard; once the two are back, it goes on with all that it had.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::process::{self, Cluster, PATIENCE, Process};

#[test]
#[ignore = "it is what the other tests start as processes"]
fn node() {
    let config = process::builder("sum").group("sum", |group| _ = group.replicas(1, Some(2)));
    process::node_of(config.build().expect("the configuration is valid"));
}

fn both_replicas_are_stopped_and_the_shard_goes_on_from_their_memory(backend: &'static str) {
    let cluster = Cluster::new("replicas", backend, 5).with_own_node();
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].ask("view"), "[NodeId(1), NodeId(2)]");
    assert_eq!((nodes[0].add(1), nodes[1].add(2)), (Ok(1), Ok(3)));
    let (replicas, others) = nodes.split_at_mut(2);
    replicas.iter().for_each(|node| node.signal("-STOP"));
    let deadline = Instant::now() + PATIENCE;
    while !others[0].ask("read").contains("no member holds the group's state") {
        assert!(Instant::now() < deadline, "{}", others[0].ask("read"));
        thread::sleep(Duration::from_millis(5));
    }
    replicas.iter().for_each(|node| node.signal("-CONT"));
    assert_eq!(add(&mut nodes, 0), 3);
    assert_eq!(add(&mut nodes, 4), 7);
}

/// Adds to the sum at the first node that has it: of the two, one may come back so much later that another node takes
/// its place.
fn add(nodes: &mut [Process], number: u64) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for node in &mut *nodes {
            match node.add(number) {
                Ok(sum) => return sum,
                Err(error) => assert!(Instant::now() < deadline, "no node serves: {error}"),
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn over_shm() {
    both_replicas_are_stopped_and_the_shard_goes_on_from_their_memory("shm");
}

#[test]
fn over_tcp() {
    both_replicas_are_stopped_and_the_shard_goes_on_from_their_memory("tcp");
}
