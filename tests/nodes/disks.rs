//! Nodes whose disks are full, or nearly: real, small file systems of their own.

use std::{
    collections::VecDeque,
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use squall::{
    Consistency, Node, NodeId, QueryService, RoomLevel, Submit,
    admin::{NodeCondition, StatusReport},
    log_service::{Appended, Checked, LogClient, RecordLog},
};

use crate::process::{self, Cluster, PATIENCE, say};

const GROUP: &str = "log";

/// The file system has room for one segment of 64 MiB, and not for two.
const SMALL: &str = "size=100m";
const LARGE: &str = "size=400m";

/// A file system that has one segment, and too little room for two more.
const NEARLY_FULL: &str = "size=150m";

/// The number of records, which take more than a segment.
const RECORDS: u64 = 700;
const RECORD_BYTES: usize = 128 << 10;

/// The number of appends that are under way.
const WINDOW: usize = 4;

#[test]
#[ignore = "it is what the other tests start as processes"]
fn node() {
    let config = process::config(GROUP);
    let mut node = Node::builder(config.clone());
    let group = node.serve(GROUP, RecordLog::default(), RecordLog::options(&config, GROUP));
    let _node = node.start().expect("it becomes a member");
    say("ready").expect("the test listens");
    for line in io::stdin().lines() {
        let answer = match &*line.expect("the test speaks UTF-8") {
            "append" => append(|record| group.submit(record).deadline(PATIENCE)),
            "one" => {
                let appended = group.submit(&vec![7; 10]).deadline(PATIENCE).wait();
                format!("{:?}", appended.map(|appended| appended.version).map_err(|error| error.to_string()))
            }
            "count" => format!("{:?}", group.read(|log| log.answer(&()).records).wait()),
            line => panic!("{line:?}"),
        };
        if say(&answer).is_err() {
            return;
        }
    }
}

/// Appends records, each until it is acknowledged. Returns the number that were.
fn append(mut submit: impl FnMut(&Vec<u8>) -> Submit<Appended>) -> String {
    let record = vec![7; RECORD_BYTES];
    let (mut begun, mut acknowledged, mut under_way) = (0, 0, VecDeque::new());
    while begun < RECORDS || !under_way.is_empty() {
        if begun < RECORDS && under_way.len() < WINDOW {
            begun += 1;
            under_way.push_back(submit(&record));
            continue;
        }
        match under_way.pop_front().map(Submit::wait) {
            Some(Ok(_)) => acknowledged += 1,
            other => return format!("after {acknowledged} of {RECORDS}: {other:?}"),
        }
    }
    acknowledged.to_string()
}

/// The parts of a member's log up to a version, as it reports them.
fn check(log: &LogClient, member: u32, end: u64) -> Vec<Checked> {
    let mut log = log.at_member(NodeId(member));
    let mut parts: Vec<Checked> = Vec::new();
    let checked = |parts: &[Checked]| parts.last().map_or(0, |part| part.to);
    let deadline = Instant::now() + PATIENCE;
    while checked(&parts) < end {
        assert!(Instant::now() < deadline, "member {member} has {} of {end}", checked(&parts));
        let part = log.check(checked(&parts) + 1, end).expect("it can be read");
        // It may learn a little later than others which version is globally persisted.
        if part.to > checked(&parts) {
            parts.push(part);
        }
    }
    parts
}

/// A small file system that a node's process uses, and that remains when the process ends.
struct Tmpfs(PathBuf);

impl Tmpfs {
    /// None where this user may not mount: the test is skipped, unless skips are forbidden.
    fn mount(at: &Path, size: &str) -> Option<Tmpfs> {
        fs::create_dir_all(at).expect("it can be made");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", size, "squall-disks"]).arg(at).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Tmpfs(at.to_owned()));
        }
        assert!(env::var_os("SQUALL_FORBID_SKIPS").is_none(), "a tmpfs can't be mounted here");
        eprintln!("skipped: a tmpfs can't be mounted here, which takes root");
        None
    }

    fn resize(&self, size: &str) {
        let resized = Command::new("mount").args(["-o", &format!("remount,{size}")]).arg(&self.0).status();
        assert!(resized.expect("it was mounted").success());
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // No code would look at the result.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Whether a report shows all members of the group's shard with its whole state.
fn are_complete(report: &StatusReport, members: usize) -> bool {
    report.shards.iter().all(|shard| shard.rows.iter().filter(|row| row.complete).count() == members)
}

#[test]
fn a_node_whose_disk_is_full_is_given_up_and_comes_back_by_itself_when_there_is_space() {
    let cluster = Cluster::durable("full", "shm", 3).with_own_node();
    let Some(disk) = Tmpfs::mount(&cluster.directory(3), SMALL) else { return };
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].ask("append"), RECORDS.to_string(), "the others go on");
    cluster.wait_report(1, "node 3 is given up", |report| are_complete(report, 2));
    let third = cluster.wait_report(3, "it has no room", |report| {
        report.room.as_ref().is_some_and(|room| room.level == RoomLevel::Short)
    });
    assert!(!matches!(third.condition, NodeCondition::Ended(_)), "{third:#?}");
    assert_eq!(nodes[1].ask("one"), format!("Ok({})", RECORDS + 1));

    disk.resize(LARGE);
    cluster.wait_report(1, "all have the state", |report| are_complete(report, 3));
    assert_eq!(nodes[2].ask("one"), format!("Ok({})", RECORDS + 2));
    let log = LogClient::new(&cluster.clients(), GROUP);
    let end =
        log.at_member(NodeId(1)).read(Consistency::Linearizable, u64::MAX..).expect("it serves").globally_persisted;
    let (one, other) = (check(&log, 1, end), check(&log, 3, end));
    assert!(one.iter().all(|part| part.digest.is_some()), "{one:?}");
    assert_eq!(one, other, "it lacks something");
    drop(nodes);
}

#[test]
fn while_all_disks_are_nearly_full_the_group_reads_and_it_writes_again_when_there_is_space() {
    let cluster = Cluster::durable("nearly-full", "tcp", 3).with_own_node();
    let disks = [1, 2, 3].map(|id| Tmpfs::mount(&cluster.directory(id), LARGE));
    let [Some(one), Some(two), Some(three)] = disks else { return };
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].ask("one"), "Ok(1)");
    let short = |report: &StatusReport| report.members.iter().filter(|member| member.short_of_room).count();
    [&one, &two, &three].into_iter().for_each(|disk| disk.resize(NEARLY_FULL));
    for node in [1, 2, 3] {
        cluster.wait_report(node, "all are short of room", |report| short(report) == 3);
    }
    for node in &mut nodes {
        let refused = node.ask("one");
        assert!(
            refused.starts_with("Err") && refused.contains("too little room on the storage of node 1"),
            "{refused}"
        );
        assert_eq!(node.ask("count"), "Ok(1)");
    }
    // Two of three have room: the third alone may be given up, should it be full.
    [&one, &two].into_iter().for_each(|disk| disk.resize(LARGE));
    for node in [1, 2, 3] {
        cluster.wait_report(node, "two have room again", |report| short(report) == 1);
    }
    for (node, version) in nodes.iter_mut().zip(2..) {
        assert_eq!(node.ask("one"), format!("Ok({version})"));
    }
    assert_eq!(nodes[2].ask("count"), "Ok(4)");
    drop(nodes);
}
