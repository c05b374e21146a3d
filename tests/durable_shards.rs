//! Durable shards of two replicas on four to six simulated nodes, whose disks stand still, are replaced, and lose power: nothing
//! acknowledged is lost while a disk has it, and a shard goes on when its last holders are back.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

mod numbers;

use std::{
    collections::BTreeSet,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use fastrand::Rng;
use numbers::Numbers;
use squall::{
    Config, Group, Mode, NodeId, ShardView, SubmitError, View,
    sim::{Cluster, Decider, NotStarted, Options},
};

/// The number of seeds that run here.
const SEEDS: u64 = 40;

/// Once nothing goes wrong any more, all serve within this time.
const PATIENCE: Duration = Duration::from_secs(5);

/// A submit that has no answer yet.
struct Submitted {
    shard: usize,
    number: u64,
    answer: Pin<Box<dyn Future<Output = Result<(), SubmitError>>>>,
}

struct Run {
    rng: Rng,
    cluster: Cluster,
    shards: u32,
    /// By node, from 1 on, its handles.
    groups: Vec<Vec<Group<Numbers>>>,
    waiting: Vec<Submitted>,
    /// By shard.
    acknowledged: Vec<BTreeSet<u64>>,
    numbers: u64,
    /// The one node whose disk may be replaced, and whether it was.
    victim: NodeId,
    wiped: bool,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::with_seed(seed);
        let (members, shards) = (rng.u32(4..=6), rng.u32(2..=3));
        let config = Config::builder("durable-shards", 1)
            .members(1..=members)
            .failure_timeout(Duration::from_millis(20))
            .restart_wait(Duration::from_millis(50))
            .storage("simulated")
            .group("numbers", |group| {
                group.mode(Mode::Durable).shards(shards).replicas(1, Some(2));
            })
            .build()
            .expect("the configuration is valid");
        let options = Options { view_log: Decider::RaftOnDisks, ..Options::default() };
        let mut cluster = Cluster::new(config, options, rng.u64(..));
        let groups = cluster.sharded("numbers", |_, _| Numbers::default());
        let handles = |group: &squall::Sharded<Numbers>| (0..shards as usize).map(|n| group[n].clone()).collect();
        Run {
            victim: NodeId(rng.u32(1..=members)),
            cluster,
            shards,
            groups: groups.iter().map(handles).collect(),
            waiting: Vec::new(),
            acknowledged: vec![BTreeSet::new(); shards as usize],
            numbers: 0,
            wiped: false,
            rng,
        }
    }

    fn nodes(&self) -> Vec<NodeId> {
        (1..=self.groups.len() as u32).map(NodeId).collect()
    }

    /// The latest view that a node has.
    fn view(&self) -> Option<View> {
        let views = self.nodes().into_iter().filter_map(|node| self.cluster.view(node).cloned());
        views.max_by_key(|view| view.epoch).map(|view| (*view).clone())
    }

    fn shard(&self, index: usize) -> Option<ShardView> {
        Some(self.view()?.shards[index].clone())
    }

    fn launch(&mut self, node: NodeId) -> Result<(), String> {
        if self.cluster.is_up(node) {
            return Ok(());
        }
        let declare = |cluster: &mut Cluster| cluster.declare(node, "numbers", Numbers::default());
        self.groups[node.0 as usize - 1] = (0..self.shards).map(|_| declare(&mut self.cluster)).collect();
        match self.cluster.launch(node) {
            Ok(()) => Ok(()),
            Err(NotStarted::Disk { why, .. }) => Err(format!("{node} did not start: {why}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Ends a node's process, with or without its power.
    fn end(&mut self, node: NodeId) {
        match self.rng.bool() {
            true => self.cluster.crash(node),
            false => self.cluster.kill(node),
        }
    }

    /// Something goes wrong, or well again.
    fn inject(&mut self) -> Result<(), String> {
        let node = NodeId(self.rng.u32(1..=self.groups.len() as u32));
        match self.rng.u8(0..16) {
            0 => self.end(node),
            1 | 2 => {
                let shard = self.rng.usize(0..self.shards as usize);
                let holders = self.shard(shard).map(|shard| shard.members);
                for node in holders.unwrap_or_default() {
                    self.end(node);
                    self.pause(3);
                }
            }
            3 => self.nodes().into_iter().for_each(|node| self.cluster.crash(node)),
            4 | 5 => {
                let pace = [0, 50, 5_000, 100_000][self.rng.usize(0..4)];
                self.cluster.slow_disk(node, Duration::from_micros(pace));
            }
            6 if self.may_wipe() => {
                self.cluster.wipe(self.victim);
                self.wiped = true;
                // Its process is started more than once with the new disk.
                for _ in 0..self.rng.usize(0..3) {
                    self.launch(self.victim)?;
                    self.pause(100);
                    self.end(self.victim);
                }
            }
            7..=11 => self.launch(node)?,
            12 => {
                for node in self.nodes() {
                    self.launch(node)?;
                    self.pause(10);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the others go on without the victim, so that they need its disk for nothing but its shards.
    fn may_wipe(&self) -> bool {
        let goes_on = |view: View| view.members.len() >= 3 && view.rank_of(self.victim).is_none();
        !self.cluster.is_up(self.victim) && self.view().is_some_and(goes_on)
    }

    fn pause(&mut self, most_ms: u64) {
        let micros = self.rng.u64(0..=most_ms * 1000);
        self.cluster.run_for(Duration::from_micros(micros));
    }

    /// Some node is given a number for some shard.
    fn submit(&mut self) {
        let (node, shard) = (self.rng.usize(0..self.groups.len()), self.rng.usize(0..self.shards as usize));
        if !self.cluster.is_up(NodeId(node as u32 + 1)) {
            return;
        }
        self.numbers += 1;
        let answer = Box::pin(self.groups[node][shard].submit(&self.numbers));
        self.waiting.push(Submitted { shard, number: self.numbers, answer });
    }

    /// Takes note of what is acknowledged.
    fn answer(&mut self) {
        let acknowledged = &mut self.acknowledged;
        self.waiting.retain_mut(|submitted| {
            let answer = submitted.answer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if answer == Poll::Ready(Ok(())) {
                acknowledged[submitted.shard].insert(submitted.number);
            }
            answer.is_pending()
        });
    }

    /// What a shard shows has all that was acknowledged before.
    fn read(&mut self, index: usize, shard: &ShardView) -> Result<(), String> {
        let before = self.acknowledged[index].clone();
        for &node in &shard.complete {
            let read = self.groups[node.0 as usize - 1][index].read(|numbers| numbers.0.clone());
            let shown = match self.cluster.wait(PATIENCE, read) {
                Some(Ok(shown)) => shown,
                Some(Err(error)) => return Err(format!("{node} reads nothing of {}: {error}", shard.shard)),
                None => return Err(format!("{node} reads nothing of {} in {PATIENCE:?}", shard.shard)),
            };
            if let Some(lost) = before.iter().find(|number| !shown.contains(number)) {
                let (len, all) = (shown.len(), before.len());
                return Err(format!("{node} shows {len} of {} of {all} numbers, and not {lost}", shard.shard));
            }
        }
        Ok(())
    }

    /// Whether all nodes are members, and the shards held that must be.
    fn is_whole(&self) -> bool {
        let Some(view) = self.view() else { return false };
        let has_it = |node: &NodeId| self.cluster.view(*node).is_some_and(|own| own.epoch == view.epoch);
        let is_held = |shard: &ShardView| match shard.complete.is_empty() {
            true => self.may_be_lost(shard),
            false => shard.complete == shard.members && shard.members.len() == 2,
        };
        view.members.len() == self.groups.len() && self.nodes().iter().all(has_it) && view.shards.iter().all(is_held)
    }

    /// Whether a shard's only copy may have been on the disk that was replaced.
    fn may_be_lost(&self, shard: &ShardView) -> bool {
        let squall::ShardState::Suspended { last_holders, .. } = &shard.state else { return false };
        self.wiped && last_holders.iter().any(|holder| holder.node == self.victim)
    }

    fn play(&mut self) -> Result<(), String> {
        self.cluster.start().map_err(|error| error.to_string())?;
        for _ in 0..self.rng.usize(20..=120) {
            let most = [1, 10, 60][self.rng.usize(0..3)];
            self.pause(most);
            self.inject()?;
            for _ in 0..self.rng.usize(0..=6) {
                self.submit();
            }
            self.answer();
        }
        self.nodes().into_iter().for_each(|node| self.cluster.slow_disk(node, Duration::from_micros(50)));
        for node in self.nodes() {
            self.launch(node)?;
        }
        let mut waited = Duration::ZERO;
        while !self.is_whole() {
            let slice = Duration::from_millis(10);
            self.cluster.run_for(slice);
            self.answer();
            waited += slice;
            if waited > PATIENCE {
                let standing = |node| (node, self.cluster.view(node).map(|view| view.epoch.0));
                let nodes: Vec<_> = self.nodes().into_iter().map(standing).collect();
                return Err(format!("not all serve after {PATIENCE:?}: {nodes:?}, {:?}", self.view()));
            }
        }
        self.answer();
        for index in 0..self.shards as usize {
            let shard = self.shard(index).ok_or("there is no view")?;
            self.read(index, &shard)?;
        }
        Ok(())
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_every_shard_goes_on() {
    numbers::run_all(&numbers::seeds(SEEDS), |seed| Run::new(seed).play());
}
