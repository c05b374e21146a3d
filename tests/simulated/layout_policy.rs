//! Shards that lie where the program's policy says, in the first view and in later ones.

use std::time::Duration;

use squall::{
    Config, NodeId,
    sim::{Cluster, Options, ViewLogKind},
};

use crate::numbers::Numbers;

const PATIENCE: Duration = Duration::from_secs(5);

/// The members of each shard, as a node sees them.
fn places(cluster: &Cluster, node: u32) -> Vec<Vec<u32>> {
    let view = cluster.view(NodeId(node)).expect("it is in a view");
    view.shards.iter().map(|shard| shard.members.iter().map(|node| node.0).collect()).collect()
}

#[test]
fn shards_lie_at_the_highest_nodes_of_each_view() {
    for view_log in [ViewLogKind::Scripted, ViewLogKind::RaftOnDisks] {
        let config = Config::builder("policy", 1)
            .members(1..=4)
            .failure_timeout(Duration::from_millis(20))
            .storage("simulated")
            .group("numbers", |group| _ = group.shards(2).replicas(1, Some(2)));
        let options = Options { view_log, ..Options::default() };
        let mut cluster = Cluster::new(config.build().expect("it is valid"), options, 7);
        cluster.layout_policy(|members, placements| {
            let mut nodes: Vec<NodeId> = members.iter().map(|member| member.node).collect();
            nodes.sort();
            // A node and a shard that there are not are left out of account.
            placements.prefer("numbers", 0, nodes.iter().rev().take(2).copied().chain([NodeId(9)]));
            placements.prefer("numbers", 7, nodes);
        });
        drop(cluster.sharded("numbers", |_, _| Numbers::default()));
        cluster.start().expect("it starts");
        assert_eq!(places(&cluster, 1)[0], [3, 4]);
        cluster.crash(NodeId(4));
        let moved = cluster.run_until(PATIENCE, |cluster| places(cluster, 1)[0] == [2, 3]);
        assert!(moved, "{:?}", places(&cluster, 1));
    }
}
