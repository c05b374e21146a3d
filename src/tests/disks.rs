//! Real nodes, one of whose disks fails to sync.

use std::{path::PathBuf, sync::atomic::AtomicBool, thread, time::Instant};

use tempfile::TempDir;

use super::*;
use crate::{Node, calls::error::SubmitError, durable::disk::faults};

const PATIENCE: Duration = Duration::from_secs(60);

/// Replies with the place of each message in the log.
struct Versions;

impl Replicated for Versions {
    type Command = ();
    type Reply = u64;

    fn apply(&mut self, _: &Archived<()>, at: &Applied) -> u64 {
        at.version.expect("the group is durable")
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of_bytes([])
    }

    fn restore(&mut self, _: &mut dyn io::Read) -> io::Result<()> {
        Ok(())
    }
}

/// A directory for three nodes.
struct Scratch(TempDir);

impl Scratch {
    fn of(&self, id: u32) -> PathBuf {
        self.0.path().join(id.to_string())
    }

    fn start(&self, id: u32) -> (Node, Group<Versions>) {
        let name = format!("disks-{}", std::process::id());
        let config = Config::builder(name, id).members([1, 2, 3]).storage(self.of(id));
        let config = config.group("log", |group| _ = group.mode(Mode::Durable)).build().unwrap();
        let mut node = Node::builder(config);
        let group = node.group("log", Versions);
        (node.start().expect("it becomes a member"), group)
    }
}

/// Appends until it is told to stop, or the group ends. Returns the versions that were acknowledged.
fn append(group: &Group<Versions>, stop: &AtomicBool, acknowledged: &AtomicU64) -> Vec<u64> {
    let mut versions = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match group.submit(&()).deadline(PATIENCE).wait() {
            Ok(version) => versions.push(version),
            Err(SubmitError::Ended { .. }) => break,
            Err(_) => {}
        }
        acknowledged.store(versions.len() as u64, Ordering::Relaxed);
    }
    versions
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The globally persisted messages in a node's log: the sender of each version.
fn senders((node, group): &(Node, Group<Versions>), upto: u64) -> Vec<(u64, Option<NodeId>)> {
    // One that has just come back knows what is globally persisted before it has it.
    until("it is on its disk, and known to be globally persisted", || {
        let log = node.status().and_then(|status| status.groups.into_iter().next()?.log);
        log.is_some_and(|log| log.globally_persisted.min(log.last) >= upto)
    });
    let mut log = group.log(..=upto).unwrap();
    let mut senders = Vec::new();
    while let Some(entry) = log.next_entry().unwrap() {
        senders.push((entry.version, entry.sender()));
    }
    senders
}

#[test]
fn a_node_whose_disk_fails_to_sync_leaves_and_what_it_acknowledged_stays() {
    let scratch = Scratch(tempfile::tempdir().unwrap());
    let mut nodes: Vec<_> = thread::scope(|scope| {
        let scratch = &scratch;
        let starting: Vec<_> = (1..=3).map(|id| scope.spawn(move || scratch.start(id))).collect();
        starting.into_iter().map(|node| node.join().unwrap()).collect()
    });
    let (stop, counts) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 3]);
    let count = |place: usize| counts[place].load(Ordering::Relaxed);
    let acknowledged: Vec<Vec<u64>> = thread::scope(|scope| {
        let appending =
            nodes.iter().zip(&counts).map(|((_, group), count)| scope.spawn(|| append(group, &stop, count)));
        let appending: Vec<_> = appending.collect();
        until("all append", || (0..3).all(|place| count(place) > 20));
        faults::fail_syncs(&scratch.of(3));
        let reason = nodes[2].0.wait_ended();
        assert!(matches!(&reason, EndReason::Storage(why) if why.contains("a test makes this sync fail")), "{reason}");
        until("the others have dropped it", || {
            let view = nodes[0].0.view();
            view.nodes().len() == 2 && !view.nodes().contains(&NodeId(3))
        });
        let before = [count(0), count(1)];
        until("the others go on", || count(0) > before[0] + 20 && count(1) > before[1] + 20);
        stop.store(true, Ordering::Relaxed);
        appending.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let last = *acknowledged.iter().flatten().max().unwrap();
    let all = senders(&nodes[0], last);
    assert_eq!(all, senders(&nodes[1], last));
    for (sender, versions) in (1..).map(NodeId).zip(&acknowledged) {
        let lost = versions.iter().find(|&&version| !all.contains(&(version, Some(sender))));
        assert_eq!(lost, None, "of {} versions acknowledged to {sender}", versions.len());
    }
    // With a disk that works again, the node has all of it.
    nodes.pop();
    faults::heal(&scratch.of(3));
    assert_eq!(senders(&scratch.start(3), last), all);
}
