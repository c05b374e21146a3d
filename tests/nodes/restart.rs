//! Durable groups whose nodes all die, at any moment and in any combination, and come back with their disks. The group
//! goes on by itself, and nothing that was acknowledged is lost.

use std::{
    error::Error,
    fs, io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rkyv::Archived;
use squall::{Applied, Config, Mode, Node, NodeId, Replicated, Schema, Snapshot, StartError, admin::NodeCondition};
use squall_fabric::Fingerprint;
use squall_membership::{ClusterId, ShardId};
use squall_ordered::{
    Payload,
    log::{Files, Hlc, Log, Options},
};

use crate::{
    process::{self, Cluster, PATIENCE, Process, RESTART_WAIT},
    sum::Sum,
};

/// Starts nodes in this order, none waiting for the others, until all are ready.
fn launch(cluster: &Cluster, ids: &[u32]) -> Vec<Process> {
    let mut nodes: Vec<_> = ids.iter().map(|&id| cluster.launch(id)).collect();
    nodes.iter_mut().for_each(Process::ready);
    nodes.sort_by_key(|node| node.id);
    nodes
}

fn all_serve(nodes: &mut [Process], sum: u64, members: &[u32]) {
    for node in nodes {
        assert_eq!(node.serves(), sum, "at node {}", node.id);
        node.wait_members(members);
    }
}

#[test]
fn all_are_killed_and_come_back_in_any_order() {
    let cluster = Cluster::durable("all", "shm", 3);
    let mut nodes = cluster.start();
    let mut sum = 0;
    for order in [[3, 2, 1], [2, 1, 3]] {
        for node in &mut nodes {
            sum += 1;
            assert_eq!(node.add(1), Ok(sum));
        }
        process::kill_all(nodes);
        nodes = launch(&cluster, &order);
        all_serve(&mut nodes, sum, &[1, 2, 3]);
    }
}

#[test]
fn two_of_three_are_rebooted_while_the_third_runs() {
    let cluster = Cluster::durable("reboot", "tcp", 3);
    let mut nodes = cluster.start();
    for (sum, node) in (1..).zip(&mut nodes) {
        assert_eq!(node.add(1), Ok(sum));
    }
    let third = nodes.pop().expect("there are three");
    process::kill_all(nodes);
    let mut nodes = launch(&cluster, &[1, 2]);
    nodes.push(third);
    all_serve(&mut nodes, 3, &[1, 2, 3]);
}

#[test]
fn who_has_lost_its_disk_joins_empty() {
    let cluster = Cluster::durable("wiped", "shm", 3);
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].add(7), Ok(7));
    process::kill_all(nodes);
    fs::remove_dir_all(cluster.directory(2)).expect("it was written");
    let mut nodes = launch(&cluster, &[1, 2, 3]);
    all_serve(&mut nodes, 7, &[1, 2, 3]);
}

/// A node's condition, as it reports it to operators.
fn condition(cluster: &Cluster, id: u32) -> NodeCondition {
    cluster.wait_report(id, "it answers", |_| true).condition
}

fn waits_for(cluster: &Cluster, id: u32, who: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match condition(cluster, id) {
            NodeCondition::Stalled(why) if why.contains(&format!("waits for {who} to come back")) => return,
            other => assert!(Instant::now() < deadline, "node {id} does not wait for {who}: {other:?}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn who_comes_back_says_for_whom_it_waits_and_more_than_half_go_on() {
    let cluster = Cluster::durable("waits", "shm", 3);
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].add(5), Ok(5));
    process::kill_all(nodes);
    let mut first = cluster.launch(1);
    waits_for(&cluster, 1, "node 2, node 3");
    let mut second = cluster.launch(2);
    let began = Instant::now();
    waits_for(&cluster, 2, "node 3");
    first.ready();
    second.ready();
    assert!(began.elapsed() >= RESTART_WAIT, "the third may still come");
    all_serve(&mut [first, second], 5, &[1, 2]);
}

/// Appends a message to the log of a node that does not run, as if it had been on its disk alone when all died.
fn append_alone(cluster: &Cluster, id: u32, number: u64) -> Result<(), Box<dyn Error>> {
    let files = Files::open(cluster.directory(id).join("logs/sum"))?;
    let name = Fingerprint::default().text(&cluster.name).value();
    let options = Options::new(ClusterId(name), ShardId(0));
    let mut log = Log::open(files, options, &mut fastrand::Rng::new())?.log;
    let mut appender = log.appender();
    let end = appender.end();
    appender.append(end.position, Hlc(end.time.0 + 1), NodeId(id), Payload::kept(&number.to_le_bytes()))?;
    log.commit(&mut appender.take_batch().ok_or("nothing was appended")?)?;
    Ok(())
}

#[test]
fn the_longest_log_wins_a_restart() -> Result<(), Box<dyn Error>> {
    let cluster = Cluster::durable("longest", "shm", 3);
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].add(1), Ok(1));
    process::kill_all(nodes);
    append_alone(&cluster, 3, 1000)?;
    let mut nodes = launch(&cluster, &[1, 2, 3]);
    all_serve(&mut nodes, 1001, &[1, 2, 3]);
    Ok(())
}

#[test]
fn what_a_late_comer_alone_had_is_cut() -> Result<(), Box<dyn Error>> {
    let cluster = Cluster::durable("late", "shm", 3);
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].add(1), Ok(1));
    process::kill_all(nodes);
    append_alone(&cluster, 3, 1000)?;
    let mut nodes = launch(&cluster, &[1, 2]);
    assert_eq!(nodes[0].serves(), 1);
    assert_eq!(nodes[0].add(10), Ok(11));
    nodes.extend(launch(&cluster, &[3]));
    all_serve(&mut nodes, 11, &[1, 2, 3]);
    // It does not come back from the disk either.
    process::kill_all(nodes);
    let mut nodes = launch(&cluster, &[3, 1, 2]);
    all_serve(&mut nodes, 11, &[1, 2, 3]);
    Ok(())
}

/// Starts a cluster of one node, with a directory, and adds to its sum.
fn alone(test: &str, storage: &Path, number: u64) -> Result<u64, StartError> {
    alone_with(Sum::default(), test, storage, number)
}

/// Starts a cluster of one node with this replica, and adds to its sum.
fn alone_with<R>(replica: R, test: &str, storage: &Path, number: u64) -> Result<u64, StartError>
where
    R: Replicated<Command = u64, Reply = u64>,
{
    let config = Config::builder(format!("restart-{test}-{}", std::process::id()), 1).members([1]).storage(storage);
    let config = config.group("sum", |group| _ = group.mode(Mode::Durable)).build().expect("it is valid");
    let mut node = Node::builder(config);
    let group = node.group("sum", replica);
    let node = node.start()?;
    let sum = group.submit(&number).wait().expect("it has room");
    node.shutdown();
    Ok(sum)
}

#[test]
fn one_node_alone_goes_on_where_it_was() {
    let scratch = tempfile::tempdir().unwrap();
    for sum in 1..=3 {
        assert_eq!(alone("alone", scratch.path(), 1).unwrap(), sum);
    }
}

/// A sum with a declared version.
struct Declared<const VERSION: u32>(Sum);

impl<const VERSION: u32> Replicated for Declared<VERSION> {
    type Command = u64;
    type Reply = u64;

    const SCHEMA: Schema = Schema::new("sum", VERSION);

    fn apply(&mut self, add: &Archived<u64>, at: &Applied) -> u64 {
        self.0.apply(add, at)
    }

    fn snapshot(&self) -> Snapshot {
        self.0.snapshot()
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        self.0.restore(from)
    }
}

#[test]
fn a_log_of_another_schema_is_refused_and_both_are_named() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path();
    assert_eq!(alone("schema", path, 1).unwrap(), 1);
    assert_eq!(alone_with(Declared::<1>(Sum::default()), "schema", path, 1).unwrap(), 2, "it was undeclared before");
    let others = [
        alone("schema", path, 1).map_err(|error| (error, "\"undeclared, ")),
        alone_with(Declared::<2>(Sum::default()), "schema", path, 1).map_err(|error| (error, "\"sum version 2, ")),
    ];
    for other in others {
        let (error, named) = other.expect_err("it is another schema");
        let said = error.to_string();
        assert!(said.contains("of the schema \"sum version 1, ") && said.contains(named), "{said}");
    }
    assert_eq!(alone_with(Declared::<1>(Sum::default()), "schema", path, 1).unwrap(), 3, "nothing was changed");
}

#[test]
fn a_disk_that_is_not_the_node_s_own_is_refused_with_a_sentence() {
    let scratch = tempfile::tempdir().unwrap();
    let (mine, other) = (scratch.path().join("mine"), scratch.path().join("other"));
    alone("mine", &mine, 1).unwrap();
    alone("other", &other, 1).unwrap();
    let refused = |test, storage: &Path| alone(test, storage, 1).unwrap_err().to_string();
    let cluster = refused("other", &mine);
    assert!(cluster.contains("is of cluster") && cluster.contains("a directory of its own"), "{cluster}");
    let of_logs = |from: &Path| from.join("logs");
    fs::rename(of_logs(&mine), scratch.path().join("logs")).unwrap();
    fs::rename(of_logs(&other), of_logs(&mine)).unwrap();
    let log = refused("mine", &mine);
    assert!(log.contains("logs/sum") && log.contains("cluster"), "{log}");
    fs::remove_dir_all(of_logs(&mine)).unwrap();
    fs::rename(scratch.path().join("logs"), of_logs(&mine)).unwrap();
    fs::remove_file(mine.join("view-log.redb")).unwrap();
    let stray = refused("mine", &mine);
    assert!(stray.contains("put back the view log"), "{stray}");
}
