//! Simulated nodes that send heartbeats and make no progress, since their disks or their applications hang. The others
//! give them up in time, and take them back once they go on. A node that is only slow stays, and where most stand still
//! none is given up. Callers at a member that is given up get an answer, whatever hangs there.

use std::{pin::Pin, time::Duration};

use fastrand::Rng;
use squall::{
    Config, Group, Mode, NodeId, SubmitError,
    sim::{Cluster, Options, ViewLogKind},
};

use crate::sum::Sum;

const SEEDS: u64 = 20;

const FAILURE_TIMEOUT: Duration = Duration::from_millis(20);

/// The time within which callers go on. Members are given up after one failure timeout, which the others notice at
/// their next look; then a view must be decided on simulated disks.
const TIMEOUTS: Duration = Duration::from_millis(60);

type Call = Pin<Box<dyn Future<Output = ()>>>;

struct Run {
    seed: u64,
    rng: Rng,
    cluster: Cluster,
    groups: Vec<Group<Sum>>,
    /// The groups of a second kind, in which nothing hangs.
    healthy: Vec<Group<Sum>>,
    /// The number of acknowledged submits, each of which adds 1.
    acknowledged: u64,
}

impl Run {
    fn new(seed: u64, members: u32, mode: Mode) -> Run {
        let mut rng = Rng::with_seed(seed);
        let config = Config::builder("stalls", 1)
            .members(1..=members)
            .failure_timeout(FAILURE_TIMEOUT)
            .disk_timeout(FAILURE_TIMEOUT)
            .apply_timeout(FAILURE_TIMEOUT)
            .restart_wait(Duration::from_millis(50))
            .storage("simulated")
            .group("sum", |group| {
                group.mode(mode);
            })
            .group("tally", |group| {
                group.mode(Mode::Ordered);
            })
            .build()
            .expect("the configuration is valid");
        let options = Options { view_log: ViewLogKind::RaftOnDisks, ..Options::default() };
        let mut cluster = Cluster::new(config, options, rng.u64(..));
        let groups = cluster.group("sum", |_| Sum::default());
        let healthy = cluster.group("tally", |_| Sum::default());
        cluster.start().expect("the first view is formed");
        let mut run = Run { seed, rng, cluster, groups, healthy, acknowledged: 0 };
        for node in 1..=members {
            run.goes_on(NodeId(node));
        }
        run
    }

    fn pause(&mut self, most: Duration) {
        let nanos = self.rng.u64(0..=most.as_nanos() as u64);
        self.cluster.run_for(Duration::from_nanos(nanos));
    }

    /// Checks that a node's caller gets an acknowledgement within the time that callers have, whatever happens to views
    /// meanwhile.
    fn goes_on(&mut self, node: NodeId) {
        let before = self.cluster.now();
        let group = self.groups[node.0 as usize - 1].clone();
        loop {
            let limit = TIMEOUTS.saturating_sub(self.cluster.now().since(before));
            match self.cluster.wait(limit, group.submit(&1)) {
                Some(Ok(sum)) => {
                    self.acknowledged += 1;
                    assert!(sum >= self.acknowledged, "seed {}: {sum} of {}", self.seed, self.acknowledged);
                    return;
                }
                Some(Err(_)) => self.cluster.run_for(Duration::from_micros(100)),
                None => panic!("seed {}: {node} gets no acknowledgement within {TIMEOUTS:?}", self.seed),
            }
        }
    }

    /// Makes calls of each kind at a node, in both groups.
    fn calls(&self, node: NodeId) -> Vec<Call> {
        let index = node.0 as usize - 1;
        let calls = |group: &Group<Sum>| -> [Call; 3] {
            let (submit, read, peek) = (group.submit(&1), group.read(|sum| sum.0), group.peek(|sum| sum.0));
            [
                Box::pin(async { drop(submit.await) }),
                Box::pin(async { drop(read.await) }),
                Box::pin(async { drop(peek.await) }),
            ]
        };
        [&self.groups[index], &self.healthy[index]].into_iter().flat_map(calls).collect()
    }

    /// Checks that all calls get an answer, or an error, in time.
    fn are_told(&mut self, calls: Vec<Call>) {
        let before = self.cluster.now();
        for (number, call) in calls.into_iter().enumerate() {
            let limit = TIMEOUTS.saturating_sub(self.cluster.now().since(before));
            let told = self.cluster.wait(limit, call);
            assert!(told.is_some(), "seed {}: call {number} is not answered within {TIMEOUTS:?}", self.seed);
        }
    }

    /// Sends more messages than a log takes that is not written.
    fn fill_logs(&mut self, by: NodeId) {
        for _ in 0..1000 {
            self.groups[by.0 as usize - 1].try_send(&1).expect("there is room");
        }
    }

    fn epoch(&self, node: NodeId) -> u64 {
        self.cluster.view(node).map_or(0, |view| view.epoch.0)
    }

    /// Checks that all of these are members again, and complete, within two seconds, and that all that was acknowledged
    /// is there.
    fn is_whole_again(&mut self, nodes: &[NodeId]) {
        let is_whole = |cluster: &Cluster| {
            let complete =
                |&node: &NodeId| cluster.view(node).is_some_and(|view| view.shards[0].complete.len() == nodes.len());
            nodes.iter().all(complete)
        };
        let limit = Duration::from_secs(2);
        assert!(self.cluster.run_until(limit, is_whole), "seed {}: not all are members again", self.seed);
        for &node in nodes {
            let read = self.groups[node.0 as usize - 1].read(|sum| sum.0);
            let sum = self.cluster.wait(limit, read).and_then(Result::ok);
            assert!(sum >= Some(self.acknowledged), "seed {}: {node} reads {sum:?}", self.seed);
        }
    }
}

fn nodes(ids: impl IntoIterator<Item = u32>) -> Vec<NodeId> {
    ids.into_iter().map(NodeId).collect()
}

#[test]
fn callers_go_on_without_a_member_whose_disk_hangs_and_it_returns_when_it_works() {
    for seed in 0..SEEDS {
        let mut run = Run::new(seed, 3, Mode::Durable);
        let hung = NodeId(run.rng.u32(1..=3));
        run.cluster.hang_disk(hung, true);
        let others: Vec<NodeId> = nodes(1..=3).into_iter().filter(|&node| node != hung).collect();
        others.iter().for_each(|&node| run.goes_on(node));
        run.pause(Duration::from_millis(300));
        // The node may be a member, but no caller waits for it any more.
        let members = run.cluster.view(others[0]).map(|view| view.shards[0].complete.clone());
        assert_eq!(members.as_deref(), Some(&others[..]), "seed {seed}");
        others.iter().for_each(|&node| run.goes_on(node));
        run.cluster.hang_disk(hung, false);
        run.is_whole_again(&nodes(1..=3));
    }
}

#[test]
fn callers_go_on_without_a_member_whose_disk_hangs_while_another_crashes() {
    for seed in 0..SEEDS {
        let mut run = Run::new(seed, 5, Mode::Durable);
        let mut all = nodes(1..=5);
        run.rng.shuffle(&mut all);
        let (hung, crashed) = (all[0], all[1]);
        run.cluster.hang_disk(hung, true);
        run.pause(FAILURE_TIMEOUT);
        run.cluster.kill(crashed);
        all[2..].iter().for_each(|&node| run.goes_on(node));
        run.cluster.hang_disk(hung, false);
        let mut alive: Vec<NodeId> = all.into_iter().filter(|&node| node != crashed).collect();
        alive.sort_unstable();
        // In a view, the node that came last has the last rank.
        let limit = Duration::from_secs(2);
        let whole = |cluster: &Cluster| {
            alive.iter().all(|&node| cluster.view(node).is_some_and(|view| view.shards[0].complete.len() == 4))
        };
        assert!(run.cluster.run_until(limit, whole), "seed {seed}: not all are members again");
    }
}

#[test]
fn a_slow_disk_costs_nobody_his_place() {
    for seed in 0..SEEDS {
        let mut run = Run::new(seed, 3, Mode::Durable);
        run.cluster.slow_disk(NodeId(2), FAILURE_TIMEOUT / 2);
        for _ in 0..20 {
            run.goes_on(NodeId(1));
        }
        assert_eq!(run.epoch(NodeId(1)), 1, "seed {seed}: a member was given up");
    }
}

#[test]
fn where_all_disks_hang_nobody_is_given_up_and_all_goes_on_afterwards() {
    for seed in 0..SEEDS {
        let mut run = Run::new(seed, 3, Mode::Durable);
        for node in nodes(1..=3) {
            run.cluster.hang_disk(node, true);
            run.pause(Duration::from_millis(1));
        }
        // Each disk has a write to do that it does not do: an idle disk would count as one that works.
        let mut submits: Vec<_> = run.groups.iter().map(|group| group.submit(&1)).collect();
        run.cluster.run_for(FAILURE_TIMEOUT * 10);
        assert_eq!(run.epoch(NodeId(1)), 1, "seed {seed}: a member was given up");
        nodes(1..=3).into_iter().for_each(|node| run.cluster.hang_disk(node, false));
        for submit in submits.drain(..) {
            let answer = run.cluster.wait(TIMEOUTS, submit);
            assert!(matches!(answer, Some(Ok(_))), "seed {seed}: {answer:?}");
        }
        assert_eq!(run.epoch(NodeId(1)), 1, "seed {seed}");
    }
}

#[test]
fn callers_go_on_without_a_member_whose_application_hangs() {
    for seed in 0..SEEDS {
        for mode in [Mode::Ordered, Mode::Durable] {
            let mut run = Run::new(seed, 3, mode);
            let hung = NodeId(run.rng.u32(1..=3));
            run.cluster.hang_application(hung, true);
            let others: Vec<NodeId> = nodes(1..=3).into_iter().filter(|&node| node != hung).collect();
            others.iter().for_each(|&node| run.goes_on(node));
            run.cluster.run_for(FAILURE_TIMEOUT * 3);
            let members = run.cluster.view(others[0]).map(|view| view.nodes());
            assert_eq!(members.as_deref(), Some(&others[..]), "seed {seed}, {mode:?}");
            run.cluster.hang_application(hung, false);
            let limit = Duration::from_secs(2);
            let whole = |cluster: &Cluster| {
                nodes(1..=3).iter().all(|&node| cluster.view(node).is_some_and(|v| v.shards[0].complete.len() == 3))
            };
            assert!(run.cluster.run_until(limit, whole), "seed {seed}, {mode:?}: not all are members again");
        }
    }
}

#[test]
fn callers_at_a_member_whose_log_is_full_are_told_once_it_is_given_up() {
    for seed in 0..SEEDS {
        let mut run = Run::new(seed, 3, Mode::Durable);
        let hung = NodeId(run.rng.u32(1..=3));
        let others: Vec<NodeId> = nodes(1..=3).into_iter().filter(|&node| node != hung).collect();
        run.cluster.hang_disk(hung, true);
        run.fill_logs(others[0]);
        run.pause(FAILURE_TIMEOUT / 2);
        let calls = run.calls(hung);
        others.iter().for_each(|&node| run.goes_on(node));
        run.are_told(calls);
        let calls = run.calls(hung);
        run.are_told(calls);
        run.cluster.hang_disk(hung, false);
        run.is_whole_again(&nodes(1..=3));
    }
}

#[test]
fn callers_at_a_member_whose_application_hangs_are_told_once_it_is_given_up_and_have_their_deadlines_before() {
    for seed in 0..SEEDS {
        for mode in [Mode::Ordered, Mode::Durable] {
            let mut run = Run::new(seed, 3, mode);
            let hung = NodeId(run.rng.u32(1..=3));
            let others: Vec<NodeId> = nodes(1..=3).into_iter().filter(|&node| node != hung).collect();
            run.cluster.hang_shard(hung, 0, true);
            let submit = run.groups[hung.0 as usize - 1].submit(&1).deadline(Duration::from_millis(5));
            let late = run.cluster.wait(Duration::from_millis(7), submit);
            assert_eq!(late, Some(Err(SubmitError::Deadline)), "seed {seed}, {mode:?}");
            let calls = run.calls(hung);
            others.iter().for_each(|&node| run.goes_on(node));
            run.are_told(calls);
            let calls = run.calls(hung);
            run.are_told(calls);
            run.cluster.hang_shard(hung, 0, false);
            run.is_whole_again(&nodes(1..=3));
        }
    }
}

#[test]
fn callers_go_on_without_a_member_that_hangs_while_it_delivers_the_rest_of_a_view_and_its_own_are_told() {
    for seed in 0..SEEDS {
        for hangs_in_log in [false, true] {
            let mut run = Run::new(seed, 5, Mode::Durable);
            let mut all = nodes(1..=5);
            run.rng.shuffle(&mut all);
            let (hung, crashed) = (all[0], all[1]);
            match hangs_in_log {
                true => run.cluster.hang_disk(hung, true),
                false => run.cluster.hang_shard(hung, 0, true),
            }
            run.fill_logs(all[2]);
            run.pause(Duration::from_millis(5));
            let calls = run.calls(hung);
            run.cluster.kill(crashed);
            all[2..].iter().for_each(|&node| run.goes_on(node));
            run.are_told(calls);
            match hangs_in_log {
                true => run.cluster.hang_disk(hung, false),
                false => run.cluster.hang_shard(hung, 0, false),
            }
            let mut alive: Vec<NodeId> = all.into_iter().filter(|&node| node != crashed).collect();
            alive.sort_unstable();
            run.is_whole_again(&alive);
        }
    }
}
