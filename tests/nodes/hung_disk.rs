//! A durable group of five processes. One member's log hangs in the kernel, as on a disk that does not answer, while
//! another member is killed. The others go on without both, and the first comes back once its disk answers. In a group
//! of three the disks of two members hang that have just come back, and all lose power.
//!
//! Skipped, with a message, where `strace` is missing or may not attach to a process, unless `SQUALL_FORBID_SKIPS` is
//! set.
#![expect(clippy::print_stderr, reason = "it says why it was skipped, and how long callers waited")]

use std::{
    env,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use squall::admin::StatusReport;

use crate::process::{self, Cluster, FAILURE_TIMEOUT, PATIENCE, Process};

/// The time for which members wait for one whose disk stands still; for its application longer, as usual. A busy
/// machine's disk may take a while, too.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The time that a busy machine takes besides.
const BUSY: Duration = Duration::from_secs(5);

#[test]
#[ignore = "it is what the other tests start as processes"]
fn node() {
    let config = process::builder("sum").disk_timeout(TIMEOUT);
    process::node_of(config.build().expect("the configuration is valid"));
}

/// A tracer that lets each write and sync of a process's log hang until it is dropped.
struct HungDisk(Child);

impl HungDisk {
    /// Returns None where that is not possible, and may be skipped.
    fn of(node: &Process) -> Option<HungDisk> {
        let hung = HungDisk::attach(node);
        if hung.is_none() {
            assert!(env::var_os("SQUALL_FORBID_SKIPS").is_none(), "strace can't attach to a process");
            eprintln!("skipped: strace can't attach to a process");
        }
        hung
    }

    fn attach(node: &Process) -> Option<HungDisk> {
        let calls = "pwrite64,pwritev,pwritev2,fdatasync,fsync";
        let child = Command::new("strace")
            .args(["-qq", "-o", "/dev/null", "-e", &format!("trace={calls}")])
            .args(["-e", &format!("inject={calls}:delay_enter=600000000")])
            .args(["-p", &node.thread("squall-storage").to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut hung = HungDisk(child.ok()?);
        // The tracer ends at once if it may not attach.
        thread::sleep(Duration::from_millis(500));
        hung.0.try_wait().expect("it was started").is_none().then_some(hung)
    }
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        // Kills its children, too, with which it finds out at its start what the kernel can do. The kernel lets the
        // thread go on where it was.
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", self.0.id())]).status();
        let _ = self.0.wait();
    }
}

/// Checks that callers have gone on in time. The disk is given up after its timeout, the member that was killed sooner,
/// and each costs a view.
fn went_on(began: Instant) {
    let waited = began.elapsed();
    eprintln!("callers went on after {waited:?}");
    assert!(waited < TIMEOUT + 2 * FAILURE_TIMEOUT + BUSY, "{waited:?}");
}

/// Adds one to a shard at the first of these nodes that has it. Returns the number of requests without an answer.
fn add_somewhere(nodes: &mut [Process], shard: usize) -> u64 {
    let began = Instant::now();
    let mut failed = 0;
    loop {
        for node in &mut *nodes {
            match node.add_to(shard, 1) {
                Ok(_) => return failed,
                // A replica moves away, or its node has none.
                Err(why) => assert!(began.elapsed() < PATIENCE, "shard {shard}, node {}: {why}", node.id),
            }
            failed += 1;
        }
    }
}

#[test]
fn callers_go_on_while_one_disk_hangs_and_another_member_is_killed() {
    let cluster = Cluster::durable("hung", "tcp", 5).with_own_node();
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].add(1), Ok(1));
    let Some(hung) = HungDisk::of(&nodes[1]) else { return };
    let began = Instant::now();
    nodes.remove(4).kill();
    for (sum, at) in (2..).zip([0, 2, 3, 0]) {
        assert_eq!(nodes[at].add(1), Ok(sum), "no submit fails for it");
    }
    went_on(began);
    // It was given up, and is a member again, whose log is not there yet.
    let says = |report: &StatusReport| {
        report.waits.iter().any(|wait| wait.waits_for.starts_with("its disk") && wait.for_ms > Some(0))
    };
    cluster.wait_report(2, "it waits for its disk", says);
    drop(hung);
    nodes[1].wait_members(&[1, 2, 3, 4]);
    assert_eq!(nodes[1].serves(), 5);
}

/// Three replicas each, so that one at least is at neither of the two.
const SHARDS: usize = 5;

#[test]
fn callers_of_all_shards_go_on_while_one_disk_hangs_and_another_member_is_killed() {
    let cluster = Cluster::durable("hung-shards", "tcp", 5).with_own_node().with_shards(SHARDS as u32, 3);
    let mut nodes = cluster.start();
    let held = cluster.wait_whole(1);
    assert!(held.iter().any(|holders| holders.contains(&2) && holders.contains(&5)), "{held:?}");
    (0..SHARDS).for_each(|shard| _ = add_somewhere(&mut nodes[..], shard));
    let Some(hung) = HungDisk::of(&nodes[1]) else { return };
    let began = Instant::now();
    nodes.remove(4).kill();
    let stuck = nodes.remove(1);
    let failed = (0..SHARDS).map(|shard| add_somewhere(&mut nodes, shard)).collect::<Vec<_>>();
    went_on(began);
    drop(hung);
    nodes.push(stuck);
    nodes.push(cluster.launch(5));
    nodes.last_mut().expect("it was just launched").ready();
    for (shard, failed) in failed.into_iter().enumerate() {
        let sums = cluster.read_all(&mut nodes, shard);
        assert!(sums.iter().all(|sum| *sum == sums[0]), "shard {shard} is {sums:?}");
        assert!((2..=2 + failed).contains(&sums[0]), "shard {shard} is {sums:?}, and {failed} submits failed");
    }
}

/// Two members come back to one that has gone on alone. What they are sent stays in their memories, since their disks
/// hang. All lose power, and the two come back first: their logs do not count, and they wait for the third.
#[test]
fn who_comes_back_is_complete_only_once_its_disk_has_the_log() {
    let cluster = Cluster::durable("joiners", "tcp", 3).with_own_node();
    let mut nodes = cluster.start();
    (1..=5).for_each(|sum| assert_eq!(nodes[0].add(1), Ok(sum)));
    nodes.remove(1).kill();
    nodes[0].wait_members(&[1, 3]);
    cluster.admin(3).and_then(|mut admin| admin.leave(PATIENCE)).expect("it leaves");
    nodes.remove(1).kill();
    nodes[0].wait_members(&[1]);
    (6..=10).for_each(|sum| assert_eq!(nodes[0].add(1), Ok(sum)));
    // They become members only once their disks hang.
    nodes[0].signal("-STOP");
    nodes.extend([2, 3].map(|id| cluster.launch(id)));
    let Some(hung) = nodes[1..].iter().map(HungDisk::of).collect::<Option<Vec<_>>>() else { return };
    nodes[0].signal("-CONT");
    cluster.wait_report(1, "they are members", |report| report.members.len() == 3);
    thread::sleep(TIMEOUT / 2);
    // The writes that hang never come to the disks. A process that is traced ends only once its tracer has.
    nodes.iter().for_each(|node| node.send(Signal::KILL));
    drop(hung);
    process::kill_all(nodes);
    let mut nodes = [2, 3].map(|id| cluster.launch(id));
    nodes.iter_mut().for_each(Process::ready);
    for _ in 0..20 {
        nodes[0].read_of(0).expect_err("nothing is read");
        nodes[1].add(1).expect_err("nothing is accepted");
        thread::sleep(process::RESTART_WAIT / 10);
    }
    let mut nodes: Vec<_> = nodes.into_iter().chain([cluster.launch(1)]).collect();
    nodes[2].ready();
    assert_eq!(cluster.read_all(&mut nodes, 0), [10; 3], "all have what was acknowledged");
    assert_eq!(nodes[0].add(1), Ok(11));
}
