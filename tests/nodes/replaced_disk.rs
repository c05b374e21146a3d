//! A durable shard that loses both its replicas, one of them with its disk. It waits for the other one, however often
//! the first comes back, and then has all that was acknowledged.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use crate::process::{self, Cluster, Process, holders};

/// The time within which a shard that is active at once is reported so: several failure timeouts.
const WATCHED: Duration = Duration::from_secs(3);

/// Watches a shard that is suspended, in the reports of two members.
fn stays_suspended(cluster: &Cluster, shard: usize, members: [u32; 2]) {
    for id in members {
        let is_member = |report: &squall::admin::StatusReport| {
            report.condition == squall::admin::NodeCondition::Member
                && members.iter().all(|id| report.members.iter().any(|member| member.node.0 == *id))
        };
        cluster.wait_report(id, "both are members", is_member);
    }
    let until = Instant::now() + WATCHED;
    while Instant::now() < until {
        for id in members {
            let report = cluster.report(id).expect("it runs");
            assert_eq!(holders(&report)[shard], None, "node {id} says that shard {shard} is active");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn waits_for_the_disk_that_is_left(backend: &'static str) {
    let cluster = Cluster::durable("replaced", backend, 5).with_shards(2, 2);
    let mut nodes = cluster.start();
    let held = cluster.wait_whole(1);
    let shard = held.iter().position(|holders| !holders.contains(&1)).expect("node 1 does not hold both");
    let [replaced, kept] = held[shard][..] else { panic!("{held:?}") };
    let mut both: Vec<_> = nodes.extract_if(.., |node| [replaced, kept].contains(&node.id)).collect();
    for sum in 1..=10 {
        assert_eq!(both[sum as usize % 2].add_to(shard, 1), Ok(sum));
    }
    process::kill_all(both);
    fs::remove_dir_all(cluster.directory(replaced)).expect("it was written");
    for _ in 0..3 {
        let mut again = cluster.launch(replaced);
        again.ready();
        stays_suspended(&cluster, shard, [1, replaced]);
        again.read_of(shard).expect_err("nothing is read");
        again.add_to(shard, 1).expect_err("nothing is accepted");
        again.kill();
    }
    for id in [replaced, kept] {
        nodes.push(cluster.launch(id));
    }
    nodes.iter_mut().skip(3).for_each(Process::ready);
    assert_eq!(cluster.read_all(&mut nodes, shard), [10, 10], "both replicas have all that was acknowledged");
    let added = nodes.iter_mut().find_map(|node| node.add_to(shard, 1).ok());
    assert_eq!(added, Some(11), "they serve");
}

#[test]
fn over_shm_a_shard_waits_for_the_disk_that_is_left() {
    waits_for_the_disk_that_is_left("shm");
}

#[test]
fn over_tcp_a_shard_waits_for_the_disk_that_is_left() {
    waits_for_the_disk_that_is_left("tcp");
}
