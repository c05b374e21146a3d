//! Shards of two replicas on several simulated nodes, with clients, their requests and their answers.

use std::{
    collections::BTreeSet,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use fastrand::Rng;
use squall::{
    Config, ConfigBuilder, Group, Mode, NodeId, Outcome, ReadError, ShardView, Sharded, SubmitError, View,
    config::ShardOptions,
    sim::{Cluster, NotStarted, Options, ViewLogKind},
};

use crate::numbers::Numbers;

/// The time within which all serve, once nothing goes wrong any more.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

type Answer<T> = Pin<Box<dyn Future<Output = T>>>;

/// A submit that has no answer yet.
struct Submitted {
    shard: usize,
    number: u64,
    answer: Answer<Result<(), SubmitError>>,
}

/// A read that has no answer yet, and the numbers that it must show.
struct Asked {
    node: NodeId,
    shard: usize,
    floor: BTreeSet<u64>,
    answer: Answer<Result<BTreeSet<u64>, ReadError>>,
}

/// The clients' knowledge of a shard's numbers.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The numbers that were acknowledged, or that are delivered as their clients were told.
    acknowledged: BTreeSet<u64>,
    /// The numbers that no member delivers, as their clients were told.
    refused: BTreeSet<u64>,
}

/// A cluster, and its clients.
pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) cluster: Cluster,
    pub(crate) shards: u32,
    /// The groups' handles, by node, from 1 on, and by shard.
    groups: Vec<Vec<Group<Numbers>>>,
    submitted: Vec<Submitted>,
    asked: Vec<Asked>,
    /// The clients' knowledge, by shard.
    known: Vec<Known>,
    numbers: u64,
}

impl World {
    /// Makes four to six members, and up to two more nodes that may join; in racks or not; with one or two replicas as
    /// the fewest; with or without pins, weights and a policy. In memory, all messages may be bulk messages.
    pub(crate) fn new(seed: u64, name: &str, mode: Mode) -> World {
        let mut rng = Rng::with_seed(seed);
        let (members, joiners, shards) = (rng.u32(4..=6), rng.u32(0..=2), rng.u32(2..=3));
        let fewest = if rng.u8(0..3) == 0 { 2 } else { 1 };
        let all_bulk = mode == Mode::Ordered && rng.u8(0..4) == 0;
        // These are drawn apart, so that a seed's other numbers do not depend on them.
        let mut places = Rng::with_seed(!seed);
        let is_placed = places.bool();
        let config = Config::builder(name, 1)
            .members(1..=members)
            .moves_at_once(if is_placed { places.u32(1..=2) } else { 4 })
            .failure_timeout(Duration::from_millis(20))
            .restart_wait(Duration::from_millis(50))
            .storage("simulated")
            .group("numbers", |group| {
                group.mode(mode).shards(shards).replicas(fewest, Some(2));
                if all_bulk {
                    group.bulk_threshold(0);
                }
                for shard in (0..shards).filter(|_| is_placed) {
                    let pinned: BTreeSet<NodeId> = (0..2).map(|_| NodeId(places.u32(1..=members))).collect();
                    let pinned = pinned.into_iter().collect();
                    group.shard(shard, ShardOptions { pinned, ..ShardOptions::default() });
                }
            });
        let weigh = |config: ConfigBuilder, id| config.weight(id, places.u32(1..=3));
        let config = (1..=members).filter(|_| is_placed).fold(config, weigh);
        let config = config.build().expect("the configuration is valid");
        let options = Options { view_log: ViewLogKind::RaftOnDisks, ..Options::default() };
        let mut cluster = Cluster::new(config, options, rng.u64(..));
        if places.bool() {
            // With other members, the shards prefer other nodes.
            let salt = places.u32(1..100);
            cluster.layout_policy(move |members, placements| {
                for shard in 0..shards {
                    let chosen = members.iter().map(|member| member.node.0 * salt).sum::<u32>() + shard;
                    placements.prefer("numbers", shard, [members[chosen as usize % members.len()].node]);
                }
            });
        }
        if rng.bool() {
            let racks = rng.u32(2..=3);
            (1..=members + joiners).for_each(|id| cluster.set_rack(NodeId(id), format!("rack-{}", id % racks)));
        }
        let groups = cluster.sharded("numbers", |_, _| Numbers::default());
        let handles = |group: &Sharded<Numbers>| (0..shards as usize).map(|n| group[n].clone()).collect();
        let mut groups: Vec<Vec<_>> = groups.iter().map(handles).collect();
        groups.resize_with((members + joiners) as usize, Vec::new);
        World {
            cluster,
            shards,
            groups,
            submitted: Vec::new(),
            asked: Vec::new(),
            known: vec![Known::default(); shards as usize],
            numbers: 0,
            rng,
        }
    }

    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        (1..=self.groups.len() as u32).map(NodeId).collect()
    }

    pub(crate) fn any_node(&mut self) -> NodeId {
        NodeId(self.rng.u32(1..=self.groups.len() as u32))
    }

    /// The members of a random shard.
    pub(crate) fn any_replicas(&mut self) -> Vec<NodeId> {
        let shard = self.rng.usize(0..self.shards as usize);
        self.shard(shard).map(|shard| shard.members).unwrap_or_default()
    }

    /// The latest view that a node has.
    pub(crate) fn view(&self) -> Option<View> {
        let views = self.nodes().into_iter().filter_map(|node| self.cluster.view(node).cloned());
        views.max_by_key(|view| view.epoch).map(|view| (*view).clone())
    }

    fn shard(&self, index: usize) -> Option<ShardView> {
        Some(self.view()?.shards[index].clone())
    }

    /// Starts a node that does not run.
    pub(crate) fn launch(&mut self, node: NodeId) -> Result<(), String> {
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
    pub(crate) fn end(&mut self, node: NodeId) {
        match self.rng.bool() {
            true => self.cluster.crash(node),
            false => self.cluster.kill(node),
        }
    }

    pub(crate) fn pause(&mut self, most_ms: u64) {
        let micros = self.rng.u64(0..=most_ms * 1000);
        self.cluster.run_for(Duration::from_micros(micros));
    }

    fn handle(&mut self) -> Option<(NodeId, usize)> {
        let (node, shard) = (self.any_node(), self.rng.usize(0..self.shards as usize));
        self.cluster.is_up(node).then_some((node, shard))
    }

    /// Submits a number at a random node to a random shard.
    fn submit(&mut self) {
        let Some((node, shard)) = self.handle() else { return };
        self.numbers += 1;
        let answer = Box::pin(self.groups[node.0 as usize - 1][shard].submit(&self.numbers));
        self.submitted.push(Submitted { shard, number: self.numbers, answer });
    }

    /// Reads a random shard's numbers at a random node.
    fn ask(&mut self) {
        let Some((node, shard)) = self.handle() else { return };
        let answer = Box::pin(self.groups[node.0 as usize - 1][shard].read(|numbers| numbers.0.clone()));
        let floor = self.known[shard].acknowledged.clone();
        self.asked.push(Asked { node, shard, floor, answer });
    }

    /// Lets clients send some requests, or none.
    pub(crate) fn ask_something(&mut self) {
        for _ in 0..self.rng.usize(0..=6) {
            self.submit();
        }
        for _ in 0..self.rng.usize(0..=2) {
            self.ask();
        }
    }

    /// Takes note of the answers that have come.
    pub(crate) fn answer(&mut self) -> Result<(), String> {
        let mut context = Context::from_waker(Waker::noop());
        let known = &mut self.known;
        self.submitted.retain_mut(|submitted| {
            let Poll::Ready(answer) = submitted.answer.as_mut().poll(&mut context) else { return true };
            let Known { acknowledged, refused } = &mut known[submitted.shard];
            match answer.err().map(outcome) {
                None | Some(Outcome::Delivered) => _ = acknowledged.insert(submitted.number),
                Some(Outcome::NotAccepted | Outcome::NotDelivered) => _ = refused.insert(submitted.number),
                Some(Outcome::Unknown { .. }) => {}
            }
            false
        });
        let mut answers = Vec::new();
        self.asked.retain_mut(|asked| {
            let Poll::Ready(answer) = asked.answer.as_mut().poll(&mut context) else { return true };
            answers.extend(answer.ok().map(|shown| (asked.node, asked.shard, std::mem::take(&mut asked.floor), shown)));
            false
        });
        answers.iter().try_for_each(|(node, shard, floor, shown)| self.compare(*node, *shard, floor, shown))
    }

    /// Checks that a node shows all numbers of a shard that were acknowledged before, and none that is not delivered.
    fn compare(&self, node: NodeId, shard: usize, floor: &BTreeSet<u64>, shown: &BTreeSet<u64>) -> Result<(), String> {
        if let Some(lost) = floor.iter().find(|number| !shown.contains(number)) {
            let (len, all) = (shown.len(), floor.len());
            return Err(format!("{node} shows {len} of {all} numbers of shard {shard}, and not {lost}"));
        }
        match shown.intersection(&self.known[shard].refused).next() {
            Some(refused) => Err(format!("{node} shows {refused} of shard {shard}, which no member delivers")),
            None => Ok(()),
        }
    }

    /// Checks that all holders of a shard show the numbers that they must.
    fn read(&mut self, index: usize, shard: &ShardView) -> Result<(), String> {
        let floor = self.known[index].acknowledged.clone();
        for &node in &shard.complete {
            let shown = self.read_at(node, index)?;
            self.compare(node, index, &floor, &shown)?;
        }
        Ok(())
    }

    /// Returns the numbers that a node shows of a shard, once it does: its view may end once more.
    fn read_at(&mut self, node: NodeId, index: usize) -> Result<BTreeSet<u64>, String> {
        let until = self.cluster.now() + PATIENCE;
        loop {
            let read = self.groups[node.0 as usize - 1][index].read(|numbers| numbers.0.clone());
            match self.cluster.wait(PATIENCE, read) {
                Some(Ok(shown)) => return Ok(shown),
                Some(Err(_)) if self.cluster.now() < until => self.cluster.run_for(Duration::from_millis(10)),
                Some(Err(error)) => return Err(format!("{node} reads nothing of shard {index}: {error}")),
                None => return Err(format!("{node} reads nothing of shard {index} in {PATIENCE:?}")),
            }
        }
    }

    /// Whether all nodes are members, and each shard has its replicas, but for those that `may_be_lost`.
    fn is_whole(&self, may_be_lost: &impl Fn(&ShardView) -> bool) -> bool {
        let Some(view) = self.view() else { return false };
        let has_it = |node: &NodeId| self.cluster.view(*node).is_some_and(|own| own.epoch == view.epoch);
        let is_held = |shard: &ShardView| match shard.complete.is_empty() {
            true => may_be_lost(shard),
            false => shard.complete == shard.members && shard.members.len() == 2,
        };
        view.members.len() == self.groups.len() && self.nodes().iter().all(has_it) && view.shards.iter().all(is_held)
    }

    /// Starts all nodes, with nothing going wrong any more, and checks that all serve, and show the numbers that they
    /// must.
    pub(crate) fn settle(&mut self, may_be_lost: impl Fn(&ShardView) -> bool) -> Result<(), String> {
        for node in self.nodes() {
            self.launch(node)?;
        }
        let mut waited = Duration::ZERO;
        while !self.is_whole(&may_be_lost) {
            let slice = Duration::from_millis(10);
            self.cluster.run_for(slice);
            self.answer()?;
            waited += slice;
            if waited > PATIENCE {
                let standing = |node| (node, self.cluster.view(node).map(|view| view.epoch.0));
                let nodes: Vec<_> = self.nodes().into_iter().map(standing).collect();
                return Err(format!("not all serve after {PATIENCE:?}: {nodes:?}, {:?}", self.view()));
            }
        }
        self.answer()?;
        for index in 0..self.shards as usize {
            let shard = self.shard(index).ok_or("there is no view")?;
            self.read(index, &shard)?;
        }
        Ok(())
    }
}

/// The known outcome of a message that failed.
fn outcome(error: SubmitError) -> Outcome {
    match error {
        SubmitError::Ended { outcome, .. }
        | SubmitError::Unavailable { outcome, .. }
        | SubmitError::ViewEnded { outcome, .. } => outcome,
        error if error.is_not_applied() => Outcome::NotAccepted,
        _ => Outcome::Unknown { held_by: Vec::new() },
    }
}
