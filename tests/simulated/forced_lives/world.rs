//! A simulated cluster, its clients, and the answers that they get.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use fastrand::Rng;
use squall::{
    Config, Group, Mode, NodeId, ReadError, SubmitError, View,
    sim::{Cluster, Options, ViewLogKind},
};

use super::{
    books::{Books, Forced, Numbers},
    schedules::{Schedule, VOTER},
};

/// The longest time between two looks for answers and views.
const SLICE: Duration = Duration::from_millis(2);

/// The time within which the group is whole, once nothing goes wrong any more, or its nodes give the reason why not.
pub(crate) const PATIENCE: Duration = Duration::from_secs(8);

/// A request that has no answer yet.
struct Waiting<T, E> {
    node: NodeId,
    shard: usize,
    answer: Pin<Box<dyn Future<Output = Result<T, E>>>>,
    /// The number that was submitted; of a read, the numbers that it must show.
    about: Vec<u64>,
    /// The life of the group in which its node was then.
    life: u64,
}

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) schedule: Schedule,
    pub(crate) cluster: Cluster,
    pub(crate) durable: bool,
    pub(crate) shards: u32,
    /// The groups' handles, by node, from 1 on, and by shard.
    groups: Vec<Vec<Group<Numbers>>>,
    submits: Vec<Waiting<u64, SubmitError>>,
    reads: Vec<Waiting<Vec<u64>, ReadError>>,
    pub(crate) books: Books,
    /// The forces of which no view was seen yet.
    pub(crate) forces: Vec<Forced>,
    /// By node, the view that it had when it was last looked at.
    views: BTreeMap<NodeId, Arc<View>>,
    /// By node, and by epoch, the life of which its view was.
    epochs: BTreeMap<NodeId, BTreeMap<u64, u64>>,
    pub(crate) paused: BTreeSet<NodeId>,
    /// Reads that were refused, and the reasons.
    pub(crate) refused: Vec<String>,
    numbers: u64,
    tells: bool,
}

impl World {
    pub(crate) fn new(seed: u64, tells: bool) -> World {
        let mut rng = Rng::with_seed(seed);
        let schedule = Schedule::of(seed);
        let (members, durable, shards) = match schedule {
            Schedule::Chance => {
                let (members, durable) = (rng.u32(3..=6), rng.u8(0..4) > 0);
                (members, durable, if durable && rng.bool() { rng.u32(2..=3) } else { 1 })
            }
            Schedule::MoreVersions => (4, true, rng.u32(2..=3)),
            Schedule::SamePlaces => (rng.u32(3..=5), true, 1),
            Schedule::LaterEpochs => (4, true, 1),
            Schedule::LoneVoter => (3, true, 1),
        };
        let config = Config::builder("forced-lives", 1).members(1..=members);
        let config = if schedule == Schedule::LoneVoter { config.voters([VOTER.0]) } else { config };
        let config = config
            .failure_timeout(Duration::from_millis(20))
            .restart_wait(Duration::from_millis(50))
            .read_lease(Duration::from_millis(if rng.bool() { 0 } else { 10 }))
            .storage("simulated")
            .group("numbers", |group| {
                group.mode(if durable { Mode::Durable } else { Mode::Ordered });
                if shards > 1 {
                    group.shards(shards).replicas(1, Some(2));
                }
            })
            .build()
            .expect("the configuration is valid");
        let options = Options { view_log: ViewLogKind::RaftOnDisks, ..Options::default() };
        let mut cluster = Cluster::new(config, options, rng.u64(..));
        let groups = cluster.sharded("numbers", |_, _| Numbers::default());
        let handles = |group: &squall::Sharded<Numbers>| (0..shards as usize).map(|n| group[n].clone()).collect();
        World {
            schedule,
            cluster,
            durable,
            shards,
            groups: groups.iter().map(handles).collect(),
            submits: Vec::new(),
            reads: Vec::new(),
            books: Books::new(shards as usize),
            forces: Vec::new(),
            views: BTreeMap::new(),
            epochs: BTreeMap::new(),
            paused: BTreeSet::new(),
            refused: Vec::new(),
            numbers: 0,
            tells,
            rng,
        }
    }

    /// The number of lives that the group had.
    pub(crate) fn lives(&self) -> usize {
        self.books.len()
    }

    pub(crate) fn tell(&self, line: impl FnOnce() -> String) {
        if self.tells {
            eprintln!("{:?} {}", self.cluster.now(), line());
        }
    }

    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        (1..=self.groups.len() as u32).map(NodeId).collect()
    }

    /// A random node.
    pub(crate) fn any(&mut self) -> NodeId {
        NodeId(self.rng.u32(1..=self.groups.len() as u32))
    }

    /// The latest view of the latest life that a node has.
    pub(crate) fn view(&self) -> Option<Arc<View>> {
        let views = self.nodes().into_iter().filter_map(|node| self.cluster.view(node).cloned());
        views.max_by_key(|view| (view.life, view.epoch))
    }

    pub(crate) fn launch(&mut self, node: NodeId) -> Result<(), String> {
        if self.cluster.is_up(node) {
            return Ok(());
        }
        let declare = |cluster: &mut Cluster| cluster.declare(node, "numbers", Numbers::default());
        self.groups[node.0 as usize - 1] = (0..self.shards).map(|_| declare(&mut self.cluster)).collect();
        self.tell(|| format!("{node} is started"));
        self.cluster.launch(node).map_err(|error| error.to_string())
    }

    /// Ends a node's process, with or without its power.
    pub(crate) fn end(&mut self, node: NodeId) {
        self.tell(|| format!("{node} ends"));
        self.paused.remove(&node);
        match self.rng.bool() {
            true => self.cluster.crash(node),
            false => self.cluster.kill(node),
        }
        self.forget(node);
    }

    /// Makes all nodes lose power.
    pub(crate) fn lose_power(&mut self) {
        self.tell(|| "all lose power".to_owned());
        self.paused.clear();
        for node in self.nodes() {
            self.cluster.crash(node);
            self.forget(node);
        }
    }

    fn forget(&mut self, node: NodeId) {
        self.views.remove(&node);
        self.epochs.remove(&node);
        self.submits.retain(|waiting| waiting.node != node);
        self.reads.retain(|waiting| waiting.node != node);
    }

    /// Lets a random time pass, up to `most`.
    pub(crate) fn pause(&mut self, most: Duration) -> Result<(), String> {
        let nanos = self.rng.u64(0..=most.as_nanos() as u64);
        self.pass(Duration::from_nanos(nanos))
    }

    /// Lets this time pass, and takes note of answers and views.
    pub(crate) fn pass(&mut self, time: Duration) -> Result<(), String> {
        let until = self.cluster.now() + time;
        while self.cluster.now() < until {
            let slice = until.since(self.cluster.now()).min(SLICE);
            self.cluster.run_for(slice);
            self.look();
            self.hear_submits();
            self.hear_reads()?;
            let nodes = self.nodes().into_iter();
            self.views = nodes.filter_map(|node| Some((node, self.cluster.view(node)?.clone()))).collect();
        }
        Ok(())
    }

    /// Takes note of views.
    fn look(&mut self) {
        for node in self.nodes() {
            let Some(view) = self.cluster.view(node).cloned() else { continue };
            let (life, epoch) = (view.life.0, view.epoch.0);
            if !self.books.knows(life) {
                let own = self.forces.iter().position(|forced| forced.node == node);
                let only = || (self.forces.len() == 1).then_some(0);
                let forced = own.or_else(only).map(|at| self.forces.remove(at));
                self.tell(|| format!("{node} is in a new life, {life:x}: {forced:?}"));
                self.books.begin(life, forced.as_ref());
            }
            if self.epochs.entry(node).or_default().insert(epoch, life) != Some(life) {
                self.tell(|| {
                    let shard = |shard: &squall::ShardView| (shard.members.clone(), shard.complete.clone());
                    let shards: Vec<_> = view.shards.iter().map(shard).collect();
                    format!("{node} installs {epoch} of {life:x}: {:?}, {shards:?}", view.nodes())
                });
            }
        }
    }

    /// The life of the group in which a node is, if it was in it when it was last looked at.
    fn life(&self, node: NodeId) -> Option<u64> {
        let (now, before) = (self.cluster.view(node)?.life, self.views.get(&node)?.life);
        (now == before).then_some(now.0)
    }

    /// Submits a number at a random node to a random shard.
    pub(crate) fn submit(&mut self) {
        let (node, shard) = (self.any(), self.rng.usize(0..self.shards as usize));
        self.submit_at(node, shard);
    }

    pub(crate) fn submit_at(&mut self, node: NodeId, shard: usize) {
        let Some(life) = self.life(node) else { return };
        self.numbers += 1;
        let answer = Box::pin(self.groups[node.0 as usize - 1][shard].submit(&self.numbers));
        self.submits.push(Waiting { node, shard, answer, about: vec![self.numbers], life });
    }

    /// Reads a random shard at a random node.
    pub(crate) fn read(&mut self) {
        let (node, shard) = (self.any(), self.rng.usize(0..self.shards as usize));
        self.read_at(node, shard);
    }

    pub(crate) fn read_at(&mut self, node: NodeId, shard: usize) {
        let Some(life) = self.life(node) else { return };
        let about = self.books.must_show(life, shard);
        let answer = Box::pin(self.groups[node.0 as usize - 1][shard].read(|numbers| numbers.list.clone()));
        self.reads.push(Waiting { node, shard, answer, about, life });
    }

    /// Whether no read waits.
    pub(crate) fn has_answers(&self) -> bool {
        self.reads.is_empty()
    }

    fn hear_submits(&mut self) {
        let mut waiting = std::mem::take(&mut self.submits);
        waiting.retain_mut(|submit| {
            let Poll::Ready(answer) = submit.answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
                return true;
            };
            let (node, shard, number) = (submit.node, submit.shard, submit.about[0]);
            if let Ok(epoch) = answer {
                let life = self.epochs.get(&node).and_then(|epochs| epochs.get(&epoch)).copied();
                let views = self.views.get(&node).into_iter().chain(self.cluster.view(node));
                let complete = |view: &Arc<View>| {
                    let shard = &view.shards[shard];
                    shard.complete.iter().copied().collect::<BTreeSet<_>>()
                };
                let holders = views.map(complete).reduce(|a, b| &a & &b).unwrap_or_default();
                if let Some(life) = life {
                    self.tell(|| format!("{number} of {shard} is acknowledged at {node} in {epoch} of {life:x}"));
                    self.books.acknowledge(life, shard, number, holders);
                }
            }
            false
        });
        self.submits.append(&mut waiting);
    }

    fn hear_reads(&mut self) -> Result<(), String> {
        let mut waiting = std::mem::take(&mut self.reads);
        let mut wrong = Ok(());
        waiting.retain_mut(|read| {
            let Poll::Ready(answer) = read.answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
                return true;
            };
            let Waiting { node, shard, about, life, .. } = read;
            match answer {
                // A read that was asked in one life and answered in another belongs to neither.
                Ok(list) if self.life(*node) == Some(*life) && wrong.is_ok() => {
                    let shown = self.books.show(*life, *shard, about, list);
                    wrong = shown.map_err(|what| format!("{node}, shard {shard}, in life {life:x}: {what}"));
                }
                Ok(_) => {}
                Err(error) => self.refused.push(format!("{node} reads nothing of shard {shard}: {error}")),
            }
            false
        });
        self.reads.append(&mut waiting);
        wrong
    }

    /// Whether all nodes are members of one life, and as many nodes as possible hold each shard.
    pub(crate) fn is_whole(&self) -> bool {
        let Some(view) = self.view() else { return false };
        let has_it = |node: &NodeId| {
            self.cluster.view(*node).is_some_and(|own| (own.life, own.epoch) == (view.life, view.epoch))
        };
        let most = if self.shards > 1 { 2 } else { self.groups.len() };
        let is_held = |shard: &squall::ShardView| shard.complete == shard.members && shard.members.len() == most;
        view.members.len() == self.groups.len() && self.nodes().iter().all(has_it) && view.shards.iter().all(is_held)
    }
}
