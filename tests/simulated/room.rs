//! Simulated nodes whose disks fill up, or are nearly full. A member whose disk alone is full is given up as one whose
//! disk hangs, and comes back by itself once there is room. While most are short of room, no member takes messages, all
//! answer reads, and messages are taken again once there is room. Whatever was acknowledged stays.

use std::time::Duration;

use fastrand::Rng;
use squall::{
    Config, Group, Mode, NodeId, Outcome, SubmitError, Unavailable,
    sim::{Cluster, Options, ViewLogKind},
};

use crate::sum::Sum;

const SEEDS: u64 = 20;

const FAILURE_TIMEOUT: Duration = Duration::from_millis(20);

/// A time within which whatever does not wait for room is done.
const SOON: Duration = Duration::from_millis(200);

const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

struct Run {
    seed: u64,
    rng: Rng,
    cluster: Cluster,
    groups: Vec<Group<Sum>>,
    acknowledged: u64,
    /// The number of submits that may have been applied, though they were not acknowledged.
    unknown: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::with_seed(seed);
        let config = Config::builder("room", 1)
            .members(1..=3)
            .failure_timeout(FAILURE_TIMEOUT)
            .disk_timeout(FAILURE_TIMEOUT * 2)
            .restart_wait(Duration::from_millis(50))
            .storage("simulated")
            .group("sum", |group| {
                group.mode(Mode::Durable);
            })
            .build()
            .expect("the configuration is valid");
        // Some tens of messages fill a segment.
        let options = Options {
            view_log: ViewLogKind::RaftOnDisks,
            segment_bytes: 8192,
            batch_bytes: 2048,
            ..Options::default()
        };
        let mut cluster = Cluster::new(config, options, rng.u64(..));
        let groups = cluster.group("sum", |_| Sum::default());
        cluster.start().expect("the first view is formed");
        Run { seed, rng, cluster, groups, acknowledged: 0, unknown: 0 }
    }

    fn group(&self, node: NodeId) -> Group<Sum> {
        self.groups[node.0 as usize - 1].clone()
    }

    /// Submits at a node until one is acknowledged.
    fn goes_on(&mut self, node: NodeId) {
        let until = self.cluster.now() + Duration::from_secs(2);
        loop {
            assert!(self.cluster.now() < until, "seed {}: {node} takes nothing", self.seed);
            let submit = self.group(node).submit(&1);
            match self.cluster.wait(SOON, submit) {
                Some(Ok(sum)) => {
                    self.acknowledged += 1;
                    let most = self.acknowledged + self.unknown;
                    assert!((self.acknowledged..=most).contains(&sum), "seed {}: {sum} of {most}", self.seed);
                    return;
                }
                Some(Err(error)) if error.is_not_applied() => self.cluster.run_for(Duration::from_millis(1)),
                Some(Err(_)) | None => self.unknown += 1,
            }
        }
    }

    fn submit_many(&mut self, count: u32) {
        for _ in 0..count {
            let node = NODES[self.rng.usize(0..3)];
            self.goes_on(node);
        }
    }

    fn read(&mut self, node: NodeId) -> u64 {
        let read = self.group(node).read(|sum| sum.0);
        let sum = self.cluster.wait(SOON, read);
        let Some(Ok(sum)) = sum else { panic!("seed {}: {node} reads nothing: {sum:?}", self.seed) };
        sum
    }

    fn epoch(&self) -> u64 {
        self.cluster.view(NODES[0]).map_or(0, |view| view.epoch.0)
    }

    /// Waits until all are complete again, and checks that each has what was acknowledged.
    fn is_whole(&mut self) {
        let whole = |cluster: &Cluster| {
            NODES.iter().all(|&node| cluster.view(node).is_some_and(|view| view.shards[0].complete.len() == 3))
        };
        assert!(self.cluster.run_until(Duration::from_secs(3), whole), "seed {}: not all are complete", self.seed);
        for node in NODES {
            let sum = self.read(node);
            assert!((self.acknowledged..=self.acknowledged + self.unknown).contains(&sum), "seed {}: {sum}", self.seed);
        }
    }
}

fn refusal(error: &SubmitError) -> Option<&[NodeId]> {
    match error {
        SubmitError::Unavailable { why: Unavailable::ShortOfRoom { nodes }, outcome: Outcome::NotAccepted } => {
            Some(nodes)
        }
        _ => None,
    }
}

#[test]
fn while_most_are_short_of_room_all_read_and_none_takes_messages() {
    for seed in 0..SEEDS {
        let mut run = Run::new(seed);
        run.submit_many(5);
        let mut short = NODES;
        run.rng.shuffle(&mut short);
        run.cluster.set_short_of_room(short[0], true);
        run.cluster.run_for(FAILURE_TIMEOUT);
        // One of three: the others would go on without it.
        run.submit_many(5);
        run.cluster.set_short_of_room(short[1], true);
        run.cluster.run_for(FAILURE_TIMEOUT);
        let mut named = short[..2].to_vec();
        named.sort_unstable();
        for node in NODES {
            let submit = run.group(node).submit(&1);
            let refused = run.cluster.wait(SOON, submit).expect("it does not wait").expect_err("there is no room");
            assert_eq!(refusal(&refused), Some(named.as_slice()), "seed {seed}: {refused}");
            assert!(refused.to_string().contains("make room there"), "{refused}");
            assert!(run.group(node).try_send(&1).is_err_and(|error| refusal(&error).is_some()));
            assert_eq!(run.read(node), run.acknowledged, "seed {seed}");
        }
        assert_eq!(run.epoch(), 1, "seed {seed}: a member was given up");
        run.cluster.set_short_of_room(short[usize::from(run.rng.bool())], false);
        run.cluster.run_for(FAILURE_TIMEOUT);
        run.submit_many(5);
        run.is_whole();
        assert_eq!(run.epoch(), 1, "seed {seed}");
    }
}

#[test]
fn a_caller_that_waits_is_told_when_members_become_short_of_room_and_a_new_view_knows_it() {
    for seed in 0..SEEDS {
        let mut run = Run::new(seed);
        run.submit_many(1);
        for node in [NODES[0], NODES[1]] {
            run.cluster.set_short_of_room(node, true);
        }
        run.cluster.run_for(FAILURE_TIMEOUT);
        run.cluster.kill(NODES[2]);
        let two = |cluster: &Cluster| cluster.view(NODES[0]).is_some_and(|view| view.members.len() == 2);
        let until = run.cluster.now() + Duration::from_secs(2);
        // Also while the two have not told each other in the new view.
        let mut in_view = 0;
        while in_view < 1000 {
            assert!(run.cluster.now() < until, "seed {seed}");
            let is_taken = [NODES[0], NODES[1]].map(|node| run.group(node).try_send(&1).is_ok());
            assert_eq!(is_taken, [false; 2], "seed {seed}: a message is taken");
            in_view += u32::from(two(&run.cluster));
            run.cluster.run_for(Duration::from_micros(5));
        }
        let submit = run.group(NODES[1]).submit(&1);
        let refused = run.cluster.wait(SOON, submit).expect("it does not wait").expect_err("there is no room");
        assert_eq!(refusal(&refused), Some(&NODES[..2]), "seed {seed}: {refused}");
        assert_eq!(run.read(NODES[0]), run.acknowledged);
    }
}

#[test]
fn a_member_whose_disk_alone_is_full_is_given_up_and_comes_back_by_itself() {
    for seed in 0..SEEDS {
        let mut run = Run::new(seed);
        let full = NODES[run.rng.usize(0..3)];
        let others: Vec<NodeId> = NODES.into_iter().filter(|&node| node != full).collect();
        let more = run.rng.u64(0..5000);
        run.cluster.limit_disk(full, 0, Some(more));
        let groups: Vec<Group<Sum>> = others.iter().map(|&node| run.group(node)).collect();
        let submits: Vec<_> = (0..150).map(|number: usize| groups[number % 2].submit(&1)).collect();
        let waits = |cluster: &Cluster| cluster.waits_for_room(full, 0);
        assert!(run.cluster.run_until(Duration::from_secs(2), waits), "seed {seed}");
        for submit in submits {
            match run.cluster.wait(SOON, submit) {
                Some(Ok(_)) => run.acknowledged += 1,
                Some(Err(error)) if error.is_not_applied() => {}
                _ => run.unknown += 1,
            }
        }
        let gives_up = run.cluster.run_until(Duration::from_secs(2), |cluster| !waits(cluster));
        assert!(gives_up, "seed {seed}: outside the group it gives up what waits");
        run.cluster.run_for(FAILURE_TIMEOUT * 20);
        let complete = run.cluster.view(others[0]).map(|view| view.shards[0].complete.clone());
        assert_eq!(complete.as_deref(), Some(&others[..]), "seed {seed}");
        assert!(run.cluster.end_reason(full).is_none(), "seed {seed}: it has ended");
        run.goes_on(others[0]);
        run.cluster.limit_disk(full, 0, None);
        run.is_whole();
        run.goes_on(full);
    }
}

#[test]
fn where_all_disks_are_full_nobody_is_given_up_and_what_waits_is_acknowledged_once_there_is_room() {
    for seed in 0..SEEDS {
        let mut run = Run::new(seed);
        for node in NODES {
            let more = run.rng.u64(0..5000);
            run.cluster.limit_disk(node, 0, Some(more));
        }
        // Without a look at the file system nobody refuses them.
        let groups: Vec<Group<Sum>> = NODES.iter().map(|&node| run.group(node)).collect();
        let submits: Vec<_> = (0..300).map(|number: usize| groups[number % 3].submit(&1)).collect();
        run.cluster.run_for(FAILURE_TIMEOUT * 20);
        assert!(NODES.iter().all(|&node| run.cluster.waits_for_room(node, 0)), "seed {seed}");
        assert_eq!(run.epoch(), 1, "seed {seed}: a member was given up");
        assert!(NODES.iter().all(|&node| run.cluster.end_reason(node).is_none()), "seed {seed}");
        for node in NODES {
            run.cluster.limit_disk(node, 0, None);
        }
        for submit in submits {
            let acknowledged = run.cluster.wait(SOON, submit);
            assert!(matches!(acknowledged, Some(Ok(_))), "seed {seed}: {acknowledged:?}");
            run.acknowledged += 1;
        }
        run.is_whole();
        assert_eq!((run.epoch(), run.unknown), (1, 0), "seed {seed}");
    }
}

#[test]
fn a_loss_of_power_while_disks_are_full_loses_nothing_that_was_acknowledged() {
    for seed in 0..SEEDS {
        let mut run = Run::new(seed);
        let full = run.rng.usize(1..=3);
        for &node in &NODES[..full] {
            let more = run.rng.u64(0..9000);
            run.cluster.limit_disk(node, 0, Some(more));
        }
        let groups: Vec<Group<Sum>> = NODES.iter().map(|&node| run.group(node)).collect();
        let mut submits: Vec<_> = (0..200).map(|number: usize| Box::pin(groups[number % 3].submit(&1))).collect();
        let pause = Duration::from_micros(run.rng.u64(0..60_000));
        run.cluster.run_for(pause);
        for submit in &mut submits {
            match run.cluster.wait(Duration::ZERO, submit) {
                Some(Ok(_)) => run.acknowledged += 1,
                Some(Err(error)) if error.is_not_applied() => {}
                _ => run.unknown += 1,
            }
        }
        drop(submits);
        for node in NODES {
            run.cluster.crash(node);
            run.cluster.limit_disk(node, 0, None);
        }
        run.groups.clear();
        for node in NODES {
            let group = run.cluster.declare(node, "sum", Sum::default());
            run.groups.push(group);
            run.cluster.launch(node).expect("it starts from its disk");
        }
        run.is_whole();
        run.submit_many(3);
    }
}
