//! Simulated nodes that beat and make no progress, since their disks or their applications hang: the others give them up in time, and
//! take them back once they go on. Who is only slow stays, and where most stand still nobody is given up.

use std::{io, time::Duration};

use fastrand::Rng;
use rkyv::Archived;
use squall::{
    Applied, Config, Group, Mode, NodeId, Replicated, Snapshot,
    sim::{Cluster, Decider, Options},
};

const SEEDS: u64 = 20;

const FAILURE_TIMEOUT: Duration = Duration::from_millis(20);

/// Within this time callers go on: members are given up after one failure timeout, which the others notice when they look, and then a
/// view must be decided on simulated disks.
const TIMEOUTS: Duration = Duration::from_millis(60);

#[derive(Debug, Default)]
struct Sum(u64);

impl Replicated for Sum {
    type Command = u64;
    type Reply = u64;

    fn apply(&mut self, number: &Archived<u64>, _at: &Applied) -> u64 {
        self.0 += number.to_native();
        self.0
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of_bytes(self.0.to_le_bytes().to_vec())
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        self.0 = u64::from_le_bytes(bytes);
        Ok(())
    }
}

struct Run {
    seed: u64,
    rng: Rng,
    cluster: Cluster,
    groups: Vec<Group<Sum>>,
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
            .build()
            .expect("the configuration is valid");
        let options = Options { view_log: Decider::RaftOnDisks, ..Options::default() };
        let mut cluster = Cluster::new(config, options, rng.u64(..));
        let groups = cluster.group("sum", |_| Sum::default());
        cluster.start().expect("the first view is formed");
        let mut run = Run { seed, rng, cluster, groups, acknowledged: 0 };
        for node in 1..=members {
            run.goes_on(NodeId(node));
        }
        run
    }

    fn pause(&mut self, most: Duration) {
        let nanos = self.rng.u64(0..=most.as_nanos() as u64);
        self.cluster.run_for(Duration::from_nanos(nanos));
    }

    /// A node's caller gets an acknowledgement, whatever becomes of views meanwhile, within the time that callers have.
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

    fn epoch(&self, node: NodeId) -> u64 {
        self.cluster.view(node).map_or(0, |view| view.epoch.0)
    }

    /// All of these are members again, and complete, within two seconds; and all that was acknowledged is there.
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
        // It may be a member, but nobody waits for it any more.
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
        // In a view, who came last has the last rank.
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
        assert_eq!(run.epoch(NodeId(1)), 1, "seed {seed}: somebody was given up");
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
        // Each disk has something to do that it does not do: one that is idle counts as well.
        let mut submits: Vec<_> = run.groups.iter().map(|group| group.submit(&1)).collect();
        run.cluster.run_for(FAILURE_TIMEOUT * 10);
        assert_eq!(run.epoch(NodeId(1)), 1, "seed {seed}: somebody was given up");
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
