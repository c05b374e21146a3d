//! `squall recover --force` as an operator meets it: its words about shards that start empty, and about a node that it
//! does not force.

use std::{
    fs,
    process::{Command, Output},
    thread,
    time::Duration,
};

use squall::{
    Config, ConfigBuilder, Node, NodeId, Sharded,
    admin::{AdminClient, NodeCondition, ShardCondition, Target},
};

use crate::{
    process::{self, PATIENCE, until},
    sum::Sum,
};

fn cluster(test: &str) -> String {
    format!("recover-{test}-{}", std::process::id())
}

/// Starts three nodes with a group.
fn start_all(test: &str) -> Vec<(Node, Sharded<Sum>)> {
    let start = |id: u32| {
        let config = Config::builder(cluster(test), id).members(1..=3).voters(1..=3);
        let config: ConfigBuilder = config.failure_timeout(Duration::from_millis(500)).group("sums", |_| {});
        let mut node = Node::builder(config.build().expect("the configuration is valid"));
        let group = node.sharded("sums", |_| Sum::default());
        (node.start().expect("it starts"), group)
    };
    thread::scope(|scope| {
        let starting: Vec<_> = (1..=3).map(|id| scope.spawn(move || start(id))).collect();
        starting.into_iter().map(|node| node.join().expect("no panic")).collect()
    })
}

fn ask(test: &str, node: u32) -> AdminClient {
    process::ask(&cluster(test), node)
}

fn recover(cluster: &str, node: u32) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    let node = node.to_string();
    command.args(["recover", "--cluster", cluster, "--node", &node, "--force", "--yes", "--reason", "fire"]);
    command.output().expect("it can be started")
}

/// Ends all nodes in the same moment.
fn end(nodes: impl IntoIterator<Item = (Node, Sharded<Sum>)>) {
    thread::scope(|scope| nodes.into_iter().for_each(|(node, _)| drop(scope.spawn(|| node.shutdown()))));
}

#[test]
fn the_command_names_the_shards_that_start_empty_and_who_held_them() {
    let cluster = process::Cluster::new("recover-empty", "shm", 4).with_shards(4, 1);
    let mut nodes = cluster.start();
    let holders = cluster.wait_whole(1);
    let mut survivor = nodes.pop().expect("four");
    process::kill_all(nodes);
    cluster.wait_report(4, "it can't go on", |report| matches!(report.condition, NodeCondition::Stalled(_)));
    let output = recover(&cluster.name, 4);
    let (said, warned) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("node 4 goes on"), "{said}{warned}");
    for (shard, holders) in holders.iter().enumerate() {
        let holder = NodeId(holders[0]);
        let line = format!(
            "shard {shard} of \"sum\" starts empty: this node did not hold its state, which {holder} held last\n"
        );
        assert_eq!(said.contains(&line), holder != NodeId(4), "{said}");
        let before = format!(
            "node 4 does not hold shard {shard} of \"sum\", and it would start empty, or from an earlier place\n"
        );
        assert_eq!(warned.contains(&before), holder != NodeId(4), "before it is done: {warned}");
    }
    assert!(holders.contains(&vec![4]), "it holds one: {holders:?}");
    assert_eq!(survivor.add(1), Ok(1), "all of them take work");
    let forced = cluster.report(4).expect("it answers").forced;
    assert!(forced[0].contains("starts empty"), "it is recorded: {forced:?}");
}

#[test]
fn a_node_that_was_dropped_before_its_group_was_lost_is_refused_with_a_reason_and_a_remedy() {
    let mut started = start_all("dropped");
    let (dropped, _sums) = started.pop().expect("three");
    let (mut client, mut others) = (ask("dropped", 3), ask("dropped", 1));
    let refusal = client.recover("for fun").expect_err("it works").to_string();
    assert!(refusal.contains("it can go on: it is a member of epoch 1"), "{refusal}");
    // A node that is dropped again and again waits ever longer before it asks to join.
    until("it waits", || {
        // The request is refused while the node is no member.
        let _ = others.suspect(NodeId(3));
        let condition = client.status().expect("it answers").condition;
        matches!(condition, NodeCondition::Waiting { rejoins_in_ms } if rejoins_in_ms > 1500)
    });
    end(started);
    for _ in 0..3 {
        let output = recover(&cluster("dropped"), 3);
        let refusal = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "what it has is older than what the others had");
        assert!(refusal.contains("it is in no view: the others went on without it"), "{refusal}");
        assert!(refusal.contains("Force one that was left (node 1, node 2 decide)"), "{refusal}");
        assert!(refusal.contains("end this node, and start it together with new ones"), "{refusal}");
        thread::sleep(Duration::from_millis(700));
    }
    dropped.shutdown();
}

#[test]
fn a_node_that_was_started_again_goes_on_with_its_disk_when_the_others_are_lost() {
    let cluster = process::Cluster::durable("recover-disk", "shm", 3);
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].add(5), Ok(5));
    process::kill_all(nodes);
    [2, 3].iter().for_each(|&id| fs::remove_dir_all(cluster.directory(id)).expect("it was written"));
    let mut first = cluster.launch(1);
    let target = Target::on_host(&cluster.name, 1);
    until("it says for whom it waits, and what to do if they are lost", || {
        let status = AdminClient::connect(&target, PATIENCE).and_then(|mut admin| admin.status());
        match status.map(|report| report.condition) {
            Ok(NodeCondition::Stalled(why)) => {
                why.contains("waits for node 2, node 3") && why.contains("recover --force")
            }
            _ => false,
        }
    });
    let output = recover(&cluster.name, 1);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    first.ready();
    assert_eq!(first.add(1), Ok(6), "with what its disk has");
    let mut others = [2, 3].map(|id| cluster.launch(id));
    others.iter_mut().for_each(process::Process::ready);
    assert_eq!(others.iter_mut().map(process::Process::serves).collect::<Vec<_>>(), [6, 6]);
}

/// All processes of a group in memory end, and come back with their parts of the view log alone. The state is lost, and
/// the nodes say so.
#[test]
fn a_shard_in_memory_that_no_process_has_any_more_is_said_to_be_lost_and_begins_anew_by_force() {
    let directory = tempfile::tempdir().expect("there is room");
    let launch = |id: u32| {
        let config = Config::builder(cluster("lost"), id).members(1..=3).restart_wait(Duration::from_millis(200));
        let config: ConfigBuilder = config.storage(directory.path().join(id.to_string())).group("sums", |_| {});
        let mut node = Node::builder(config.build().expect("the configuration is valid"));
        let group = node.sharded("sums", |_| Sum::default());
        (node.start().expect("it starts"), group)
    };
    let launch_all = |ids: &[u32]| -> Vec<_> {
        thread::scope(|scope| {
            let starting: Vec<_> = ids.iter().map(|&id| scope.spawn(move || launch(id))).collect();
            starting.into_iter().map(|node| node.join().expect("no panic")).collect()
        })
    };
    let started = launch_all(&[1, 2, 3]);
    assert_eq!(started[0].1[0].submit(&5).wait(), Ok(5));
    end(started);
    let back = launch_all(&[1, 2, 3]);
    until("all are back, and none has the state", || {
        let report = ask("lost", 2).status().expect("it answers");
        let is_lost = matches!(report.shards[0].condition, ShardCondition::Suspended { all_back: true, .. });
        is_lost && report.members.len() == 3
    });
    assert!(back[0].1[0].submit(&1).deadline(Duration::from_secs(1)).wait().is_err());
    end(back);
    thread::scope(|scope| {
        let first = scope.spawn(|| launch(1));
        let target = Target::on_host(cluster("lost"), 1);
        until("it waits for the others", || {
            let status = AdminClient::connect(&target, PATIENCE).and_then(|mut admin| admin.status());
            matches!(status.map(|report| report.condition), Ok(NodeCondition::Stalled(_)))
        });
        let output = recover(&cluster("lost"), 1);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let first = first.join().expect("no panic");
        let others = launch_all(&[2, 3]);
        until("all take work", || others[1].1[0].submit(&1).deadline(PATIENCE).wait().is_ok_and(|sum| sum < 5));
        end(others.into_iter().chain([first]));
    });
}
