//! A durable group's past, with real nodes and files: reading it anywhere, following it, earlier states, restarts.

use std::{path::Path, thread, time::Duration};

use squall::{Config, EntryBody, Group, HistoryError, Logged, Mode, Next, Node};

use crate::sum::Sum;

/// A time longer than any step takes.
const LONG: Duration = Duration::from_secs(60);

fn config(directory: &Path, id: u32) -> Config {
    // The name of a temporary directory begins with a dot, that of a cluster does not.
    let name = directory.file_name().and_then(|name| name.to_str()).expect("it is a word").trim_start_matches('.');
    let config = Config::builder(name, id).members(1..=3).storage(directory.join(id.to_string()));
    let config = config.group("sum", |group| {
        group.mode(Mode::Durable).snapshot_bytes(64 << 10);
    });
    config.build().expect("the configuration is valid")
}

fn start(directory: &Path) -> Vec<(Node, Group<Sum>)> {
    let start = |id| {
        let mut node = Node::builder(config(directory, id));
        let group = node.group("sum", Sum::default());
        (node.start().expect("the view is formed"), group)
    };
    thread::scope(|scope| {
        let starting: Vec<_> = (1..=3).map(|id| scope.spawn(move || start(id))).collect();
        starting.into_iter().map(|node| node.join().expect("it starts")).collect()
    })
}

/// Submits numbers one after the other, and returns the sums.
fn add(group: &Group<Sum>, numbers: std::ops::Range<u64>) -> Vec<u64> {
    let submits: Vec<_> = numbers.map(|number| group.submit(&number)).collect();
    submits.into_iter().map(|submit| submit.deadline(LONG).wait().expect("it is delivered")).collect()
}

/// The versions and commands in the log, once all that were acknowledged at some node are there.
fn log(group: &Group<Sum>, to: u64) -> Vec<(u64, u64)> {
    let mut follower = group.follow(1).expect("it is durable");
    let mut entries = Vec::new();
    while entries.len() < to as usize {
        match follower.wait(LONG).expect("the log is well") {
            Next::Entry(entry) => {
                let number = entry.command::<u64>().expect("it is a number").expect("it is a command");
                entries.push((entry.version, number.to_native()));
            }
            Next::Late => panic!("{} of {to} in {LONG:?}", entries.len()),
        }
    }
    entries
}

#[test]
fn what_was_acknowledged_can_be_read_everywhere_and_again_after_a_restart_of_all() {
    let directory = tempfile::tempdir().unwrap();
    let nodes = start(directory.path());
    let sums = add(&nodes[0].1, 0..500);
    let logs: Vec<_> = nodes.iter().map(|(_, group)| log(group, 500)).collect();
    let expected: Vec<_> = (0..500).map(|number| (number + 1, number)).collect();
    assert!(logs.iter().all(|log| *log == expected), "each once, in order, at every node");

    let group = &nodes[1].1;
    let mut range = group.log(100..=102).expect("it is durable").with_views();
    for version in 100..=102 {
        let entry = range.next_entry().expect("the log is well").expect("it is there");
        assert!(matches!(entry.body, EntryBody::Command { .. }) && entry.version == version);
    }
    assert!(range.next_entry().expect("the log is well").is_none());
    // The range holds the directory, which the node is to have again.
    drop(range);
    let (then, at) = group.at_version(250, Sum::default(), |sum, at| (sum.0, at)).wait().expect("it is there");
    assert_eq!((then, at.version), (sums[249], 250));
    let by_time = group.at_time(at.time, Sum::default(), |sum, at| (sum.0, at)).wait().expect("it is there");
    assert_eq!(by_time, (then, at));
    assert_eq!(group.version_at(at.time).expect("it is there"), at);
    let Logged { version, .. } = group.snapshot_now().expect("the disk is well");
    assert_eq!(version, 500);
    let status = nodes[1].0.status().expect("it runs");
    let log_status = status.groups[0].log.as_ref().expect("it is durable");
    assert_eq!(
        (log_status.first, log_status.last, log_status.globally_persisted, log_status.snapshot),
        (1, 500, 500, Some(500))
    );
    assert!(status.groups[0].members.iter().all(|member| member.persisted == 500));
    // All at once, so that no node goes on without the others.
    thread::scope(|scope| nodes.into_iter().for_each(|(node, _)| _ = scope.spawn(move || node.shutdown())));

    let nodes = start(directory.path());
    let more = add(&nodes[2].1, 500..520);
    for (_, group) in &nodes {
        assert_eq!(log(group, 520).len(), 520);
        let at = |version| group.at_version(version, Sum::default(), |sum, _| sum.0).wait().expect("it is there");
        assert_eq!((at(1), at(250), at(500), at(520)), (sums[0], sums[249], sums[499], more[19]));
        let beyond = group.at_version(521, Sum::default(), |_, _| ()).wait();
        assert!(matches!(beyond, Err(HistoryError::NotYet { asked: 521, globally_persisted: 520, .. })));
    }
}

#[test]
fn who_follows_is_not_disturbed_by_members_that_go() {
    let directory = tempfile::tempdir().unwrap();
    let mut nodes = start(directory.path());
    let (leaver, _) = nodes.pop().expect("there are three");
    let follows = nodes[1].1.clone();
    thread::scope(|scope| {
        let followed = scope.spawn(move || {
            let mut follower = follows.follow(1).expect("it is durable").with_views();
            let (mut versions, mut views) = (0, Vec::new());
            while versions < 400 {
                match follower.wait(LONG).expect("the log is well") {
                    Next::Entry(entry) => match entry.body {
                        EntryBody::View(view) => views.push(view.members.len()),
                        _ => {
                            versions += 1;
                            assert_eq!(entry.version, versions);
                        }
                    },
                    Next::Late => panic!("{versions} in {LONG:?}"),
                }
            }
            views
        });
        add(&nodes[0].1, 0..200);
        assert!(leaver.leave(LONG), "it is let go");
        add(&nodes[0].1, 200..400);
        assert_eq!(followed.join().expect("no panic"), [3, 2]);
    });
    let group = nodes[1].1.clone();
    let mut follower = group.follow(401).expect("it is durable");
    drop(nodes);
    assert!(matches!(follower.wait(LONG), Err(HistoryError::Ended { .. })));
}
