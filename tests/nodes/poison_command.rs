//! `squall log skip`, on the logs of processes whose service panics with a command.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Output,
};

use rkyv::Archived;
use squall::{Applied, Node, Replicated, Snapshot};

use crate::{
    process::{self, Cluster, PATIENCE, Process, said, squall_log},
    sum::Sum,
};

const POISON: u64 = 13;

/// A [`Sum`] that panics with one number.
#[derive(Debug, Default)]
struct Fragile(Sum);

impl Replicated for Fragile {
    type Command = u64;
    type Reply = u64;

    fn apply(&mut self, add: &Archived<u64>, at: &Applied) -> u64 {
        assert_ne!(*add, POISON, "as the test wants it");
        self.0.apply(add, at)
    }

    fn snapshot(&self) -> Snapshot {
        Replicated::snapshot(&self.0)
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        Replicated::restore(&mut self.0, from)
    }
}

#[test]
#[ignore = "it is what the other tests start as processes"]
fn node() {
    let mut node = Node::builder(process::config("sum"));
    let group = node.group("sum", Fragile::default());
    let node = match node.start() {
        Ok(node) => node,
        Err(error) => return process::say(&format!("error: {error}")).expect("the test listens"),
    };
    process::say("ready").expect("the test listens");
    for line in io::stdin().lines() {
        let line = line.expect("the test speaks UTF-8");
        let answer = match line.split(' ').collect::<Vec<_>>()[..] {
            // The number is for its only shard.
            ["add", number, "0"] => {
                let number = number.parse().expect("a number");
                let sum = group.submit(&number).deadline(PATIENCE).wait();
                sum.map_or_else(|error| format!("error: {error}"), |sum| sum.to_string())
            }
            _ => format!("{}", node.wait_ended()),
        };
        if process::say(&answer).is_err() {
            return;
        }
    }
}

fn skip(log: &Path, version: u64) -> Output {
    squall_log(&["skip", "--version", &version.to_string(), "--reason", "thirteen"], &[log])
}

/// The version that a sentence names.
fn version(why: &str) -> u64 {
    let behind = why.split("applied version ").nth(1).and_then(|rest| rest.split(' ').next());
    behind.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{why:?} names no version"))
}

#[test]
fn an_operator_lets_a_group_go_on_without_a_command_that_its_service_panics_with() {
    let cluster = Cluster::durable("poison", "shm", 3).with_own_node();
    let log = |id: u32| -> PathBuf { cluster.directory(id).join("logs/sum") };
    let mut nodes = cluster.start();
    for nth in 0..9 {
        nodes[nth % 3].add(1).expect("all are there");
    }
    let answer = nodes[1].add(POISON).expect_err("the service panics");
    assert!(answer.contains("squall log skip"), "{answer}");
    let ends = nodes.iter_mut().map(|node| node.ask("end")).collect::<Vec<_>>();
    let version = version(&ends[0]);
    for (id, end) in (1..).zip(&ends) {
        assert!(end.contains(&format!("{}", log(id).display())) && end.contains("submitted by node 2"), "{end}");
    }
    drop(nodes);
    let again = cluster.launch(1).ask("end");
    assert!(again.contains(&format!("applied version {version} ")), "{again}");

    let none = skip(&log(1), version + 1000);
    assert!(!none.status.success() && said(&none).contains("and no version"), "{none:?}");
    let silent = squall_log(&["skip", "--version", &version.to_string()], &[&log(1)]);
    assert!(silent.status.code() == Some(2) && said(&silent).contains("--reason"), "{silent:?}");
    let blank = squall_log(&["skip", "--version", &version.to_string(), "--reason", "  "], &[&log(1)]);
    assert!(!blank.status.success() && said(&blank).contains("the reason has 0 bytes"), "{blank:?}");
    let elsewhere = skip(&cluster.directory(1), version);
    assert!(elsewhere.status.code() == Some(2) && said(&elsewhere).contains("holds no log"), "{elsewhere:?}");
    for id in [1, 2] {
        let skipped = skip(&log(id), version);
        assert!(skipped.status.success() && said(&skipped).contains("is applied no more"), "{skipped:?}");
    }
    let twice = skip(&log(1), version);
    assert!(!twice.status.success() && said(&twice).contains("skipped already: thirteen"), "{twice:?}");
    let read = squall_log(&["read", "--json"], &[&log(1)]);
    assert!(read.status.success(), "{read:?}");
    let verified = squall_log(&["verify"], &[&log(1)]);
    assert!(verified.status.success(), "{verified:?}");

    let mut nodes: Vec<Process> = [1, 2].into_iter().map(|id| cluster.launch(id)).collect();
    nodes.iter_mut().for_each(Process::ready);
    nodes.iter_mut().for_each(|node| assert_eq!(node.serves(), 9));
    let used = skip(&log(1), version);
    assert!(!used.status.success() && said(&used).contains("in use"), "{used:?}");
    let other = cluster.launch(3).ask("end");
    assert!(other.contains(&format!("applied version {version} ")), "{other}");

    fs::remove_dir_all(cluster.directory(3)).expect("its node has ended");
    nodes.push(cluster.launch(3));
    nodes[2].ready();
    nodes.iter_mut().for_each(|node| assert_eq!(node.serves(), 9));
    nodes[2].add(1).expect("it serves");
    process::kill_all(nodes);
    let mut nodes = cluster.start();
    nodes.iter_mut().for_each(|node| assert_eq!(node.serves(), 10));
}
