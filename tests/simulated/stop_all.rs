//! All members of a simulated durable group leave at once, in the midst of work and of trouble: crashes, pauses, cut
//! links and slow disks. Processes end once their node's part is over. All nodes end, in bounded time, except for a few
//! that can't know that no other node is left. When they are started again, the group goes on with all that was
//! acknowledged. And one member leaves alone, as all come back from a loss of power.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use fastrand::Rng;
use squall::{
    Config, EndReason, Group, Mode, NodeId, Outcome, SubmitError,
    sim::{Cluster, NotStarted, Options, ViewLogKind},
};

use crate::{numbers::Numbers, seeds};

/// The number of seeds that run here.
const SEEDS: u64 = 100;

const FAILURE_TIMEOUT: Duration = Duration::from_millis(20);

/// The time within which all nodes have ended, once nothing goes wrong any more; and within which all serve again.
const PATIENCE: Duration = Duration::from_secs(8);

/// The number of times that a node was left behind.
static LEFT_BEHIND: AtomicUsize = AtomicUsize::new(0);

/// A submit that has no answer yet.
struct Submitted {
    node: NodeId,
    number: u64,
    answer: Pin<Box<dyn Future<Output = Result<(), SubmitError>>>>,
}

struct Run {
    rng: Rng,
    cluster: Cluster,
    /// The groups by node, from 1 on.
    groups: Vec<Group<Numbers>>,
    waiting: Vec<Submitted>,
    acknowledged: BTreeSet<u64>,
    /// The numbers that are not delivered, as their clients were told.
    refused: BTreeSet<u64>,
    numbers: u64,
    /// The troubles under way, each with the time for which it still lasts.
    troubles: Vec<(Duration, Trouble)>,
    /// Whether nodes were stopped or cut off in this round.
    out_of_reach: bool,
    /// The nodes whose processes ended in this round once their part was over, and the reasons.
    exited: BTreeMap<NodeId, EndReason>,
}

enum Trouble {
    Pause(NodeId),
    Cut(NodeId, NodeId),
    Slow(NodeId),
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::with_seed(seed);
        let members = rng.u32(2..=5);
        let mut config = Config::builder("stop-all", 1)
            .members(1..=members)
            .failure_timeout(FAILURE_TIMEOUT)
            .restart_wait(Duration::from_millis(50))
            .storage("simulated")
            .group("numbers", |group| _ = group.mode(Mode::Durable));
        if rng.u8(0..3) == 0 {
            // The members that leave first may be most of the voters.
            let others = rng.choose_multiple(2..=members, if members > 2 { 2 } else { 0 });
            config = config.voters([1].into_iter().chain(others));
        }
        let config = config.build().expect("the configuration is valid");
        let options = Options { view_log: ViewLogKind::RaftOnDisks, ..Options::default() };
        let mut cluster = Cluster::new(config, options, rng.u64(..));
        let groups = cluster.group("numbers", |_| Numbers::default());
        Run {
            rng,
            cluster,
            groups,
            waiting: Vec::new(),
            acknowledged: BTreeSet::new(),
            refused: BTreeSet::new(),
            numbers: 0,
            troubles: Vec::new(),
            out_of_reach: false,
            exited: BTreeMap::new(),
        }
    }

    fn nodes(&self) -> Vec<NodeId> {
        (1..=self.groups.len() as u32).map(NodeId).collect()
    }

    fn any(&mut self) -> NodeId {
        NodeId(self.rng.u32(1..=self.groups.len() as u32))
    }

    fn launch(&mut self, node: NodeId) -> Result<(), String> {
        self.groups[node.0 as usize - 1] = self.cluster.declare(node, "numbers", Numbers::default());
        match self.cluster.launch(node) {
            Ok(()) => Ok(()),
            Err(NotStarted::Disk { why, .. }) => Err(format!("{node} did not start: {why}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Lets time pass, while submits and troubles come and go.
    fn pass(&mut self, most: Duration, submits: bool) {
        let mut left = most.mul_f64(self.rng.f64());
        while !left.is_zero() {
            let slice = Duration::from_micros(self.rng.u64(1..=1000)).min(left);
            left -= slice;
            self.cluster.run_for(slice);
            for (ends_in, _) in &mut self.troubles {
                *ends_in = ends_in.saturating_sub(slice);
            }
            self.troubles
                .extract_if(.., |(ends_in, _)| ends_in.is_zero())
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|(_, trouble)| end(&mut self.cluster, &trouble));
            if submits && self.rng.bool() {
                self.submit();
            }
            self.answer();
            self.exit();
        }
    }

    /// Ends processes whose part is over, sooner or later.
    fn exit(&mut self) {
        for node in self.nodes() {
            let over = self.cluster.end_reason(node).cloned();
            if let Some(reason) = over.filter(|_| self.rng.u8(0..8) == 0) {
                self.cluster.kill(node);
                self.exited.insert(node, reason);
            }
        }
    }

    fn submit(&mut self) {
        let node = self.any();
        if self.cluster.is_up(node) && self.waiting.len() < 200 {
            self.numbers += 1;
            let answer = Box::pin(self.groups[node.0 as usize - 1].submit(&self.numbers));
            self.waiting.push(Submitted { node, number: self.numbers, answer });
        }
    }

    fn answer(&mut self) {
        let Run { waiting, acknowledged, refused, .. } = self;
        waiting.retain_mut(|submitted| match submitted.answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => true,
            Poll::Ready(Ok(())) => {
                acknowledged.insert(submitted.number);
                false
            }
            Poll::Ready(Err(error)) => {
                let outcome = match &error {
                    SubmitError::Unavailable { outcome, .. } | SubmitError::Ended { outcome, .. } => Some(outcome),
                    _ => None,
                };
                match outcome {
                    Some(Outcome::Delivered) => _ = acknowledged.insert(submitted.number),
                    _ if error.is_not_applied() => _ = refused.insert(submitted.number),
                    _ => {}
                }
                false
            }
        });
    }

    /// Begins some trouble, or none.
    fn trouble(&mut self) {
        let (node, other) = (self.any(), self.any());
        let lasts = Duration::from_micros(self.rng.u64(0..=60_000));
        match self.rng.u8(0..12) {
            0 => self.cluster.crash(node),
            1 => self.cluster.kill(node),
            2 if self.cluster.is_up(node) => {
                self.cluster.pause(node);
                self.out_of_reach = true;
                self.troubles.push((lasts, Trouble::Pause(node)));
            }
            3 | 4 if node != other => {
                self.cluster.net().cut_one_way(node, other);
                self.out_of_reach = true;
                self.troubles.push((lasts, Trouble::Cut(node, other)));
            }
            5 => {
                let pace = [500, 5_000, 50_000][self.rng.usize(0..3)];
                self.cluster.slow_disk(node, Duration::from_micros(pace));
                self.troubles.push((lasts, Trouble::Slow(node)));
            }
            6 => {
                let change = self.rng.u64(0..40);
                self.cluster.crash_in_write(node, 0, change);
            }
            _ => {}
        }
    }

    /// Asks all nodes to leave, one soon after the other, or asks one to end the group.
    fn all_leave(&mut self) {
        let mut nodes = self.nodes();
        self.rng.shuffle(&mut nodes);
        let most = [0, 1, 10, 60][self.rng.usize(0..4)];
        let ends_all = self.rng.u8(0..3) == 0;
        let trouble = self.rng.u8(0..4) > 0;
        for node in nodes {
            match ends_all {
                true if self.rng.u8(0..3) == 0 => self.cluster.shutdown_group(node),
                true => {}
                false => self.cluster.leave(node),
            }
            if trouble && self.rng.bool() {
                self.trouble();
            }
            self.pass(Duration::from_millis(most), true);
        }
        // A supervisor asks each node, also one that came back meanwhile, and one that could not be reached.
        self.nodes().into_iter().for_each(|node| self.cluster.leave(node));
    }

    fn all_have_ended(&self) -> bool {
        let mut nodes = self.nodes().into_iter().filter(|&node| self.cluster.is_up(node));
        nodes.all(|node| self.cluster.end_reason(node).is_some())
    }

    /// Whether so many nodes have crashed without saying that they leave that nothing can be decided.
    fn is_stranded(&self) -> bool {
        let up: Vec<NodeId> = self.nodes().into_iter().filter(|&node| self.cluster.is_up(node)).collect();
        let members = up.iter().filter_map(|&node| self.cluster.view(node)).map(|view| view.members.len()).max();
        up.len() + self.exited.len() < self.groups.len()
            && (members.is_none_or(|members| 2 * up.len() <= members) || !self.cluster.has_quorum())
    }

    /// Whether one node alone is left, where some were out of reach. It can't know that the others have ended: they may
    /// have done so while it was cut off. Or one was taken in, and asked to leave before it learned of that, so that it
    /// never came.
    fn is_one_left_behind(&self) -> bool {
        let has_ended = |node: &NodeId| !self.cluster.is_up(*node) || self.cluster.end_reason(*node).is_some();
        self.out_of_reach && self.nodes().iter().filter(|node| !has_ended(node)).count() == 1
    }

    fn wait_until_all_have_ended(&mut self) -> Result<(), String> {
        let mut waited = Duration::ZERO;
        while !self.all_have_ended() {
            let slice = Duration::from_millis(1);
            self.pass(slice, false);
            waited += slice;
            if waited > PATIENCE && self.is_stranded() {
                return Ok(());
            }
            if waited > PATIENCE && self.is_one_left_behind() {
                LEFT_BEHIND.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            if waited > PATIENCE {
                let standing = |node: NodeId| {
                    let (epoch, end) =
                        (self.cluster.view(node).map(|view| view.epoch.0), self.cluster.end_reason(node));
                    format!("{node}: up {}, view {epoch:?}, {end:?}", self.cluster.is_up(node))
                };
                let all: Vec<String> = self.nodes().into_iter().map(standing).collect();
                return Err(format!("not all have ended after {PATIENCE:?}: {all:#?}"));
            }
        }
        for node in self.nodes() {
            let reason = self.cluster.end_reason(node).or(self.exited.get(&node));
            if !matches!(reason, None | Some(EndReason::Left)) {
                return Err(format!("{node} has ended: {reason:?}"));
            }
        }
        Ok(())
    }

    /// Ends every process, and starts it again.
    fn come_back(&mut self) -> Result<(), String> {
        for (_, trouble) in std::mem::take(&mut self.troubles) {
            end(&mut self.cluster, &trouble);
        }
        let mut nodes = self.nodes();
        for &node in &nodes {
            match self.rng.bool() {
                true => self.cluster.crash(node),
                false => self.cluster.kill(node),
            }
            self.cluster.slow_disk(node, Duration::from_micros(50));
        }
        self.cluster.fallen();
        self.answer();
        if let Some(submitted) = self.waiting.first() {
            return Err(format!("{} was given {}, and there is no answer", submitted.node, submitted.number));
        }
        self.rng.shuffle(&mut nodes);
        for &node in &nodes {
            while let Err(why) = self.launch(node) {
                // A write that was to fail has come.
                if !self.cluster.fallen().contains(&node) {
                    return Err(why);
                }
            }
            self.pass(Duration::from_millis(20), false);
            self.relaunch_fallen()?;
        }
        let mut waited = Duration::ZERO;
        nodes.sort_unstable();
        while !self.is_whole(&nodes) {
            let slice = Duration::from_millis(5);
            self.cluster.run_for(slice);
            self.relaunch_fallen()?;
            waited += slice;
            if waited > PATIENCE {
                let view = |node| (node, self.cluster.view(node).map(|view| (view.epoch.0, view.shards.clone())));
                let views: Vec<_> = nodes.iter().map(|&node| view(node)).collect();
                return Err(format!("not all serve after {PATIENCE:?}: {views:#?}"));
            }
        }
        self.read_all(&nodes)
    }

    /// Lets all nodes lose power in the midst of work, with logs of different ends, and come back. One of them is asked
    /// to leave as soon as its process runs. The others go on without it, and with all that it had.
    ///
    /// Of two nodes the other one can't go on, if the first has left before it said that it is back.
    fn one_leaves_as_all_come_back(&mut self) -> Result<(), String> {
        if self.groups.len() == 2 {
            return Ok(());
        }
        self.cluster.start().map_err(|error| error.to_string())?;
        for node in self.nodes() {
            let pace = [50, 1_000, 10_000][self.rng.usize(0..3)];
            self.cluster.slow_disk(node, Duration::from_micros(pace));
        }
        self.pass(Duration::from_millis(30), true);
        let (mut nodes, leaver) = (self.nodes(), self.any());
        for &node in &nodes {
            self.cluster.crash(node);
            self.cluster.slow_disk(node, Duration::from_micros(50));
        }
        self.cluster.fallen();
        self.answer();
        self.rng.shuffle(&mut nodes);
        let mut asked = false;
        for &node in &nodes {
            self.launch(node)?;
            self.pass(Duration::from_millis(20), false);
            if !asked && self.cluster.is_up(leaver) && self.rng.bool() {
                self.cluster.leave(leaver);
                asked = true;
            }
        }
        self.cluster.leave(leaver);
        let others: Vec<NodeId> = self.nodes().into_iter().filter(|&node| node != leaver).collect();
        let mut waited = Duration::ZERO;
        while !self.is_whole(&others) {
            let slice = Duration::from_millis(5);
            self.pass(slice, false);
            waited += slice;
            if waited > PATIENCE {
                let view = |&node| (node, self.cluster.view(node).map(|view| (view.epoch.0, view.shards.clone())));
                let views: Vec<_> = others.iter().map(view).collect();
                return Err(format!("{leaver} has left, and the others do not go on after {PATIENCE:?}: {views:#?}"));
            }
        }
        self.read_all(&others)
    }

    fn relaunch_fallen(&mut self) -> Result<(), String> {
        for node in self.cluster.fallen() {
            while let Err(why) = self.launch(node) {
                if !self.cluster.fallen().contains(&node) {
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    /// Whether these nodes are the members, and all of them hold the state.
    fn is_whole(&self, nodes: &[NodeId]) -> bool {
        let has_all = |node: &NodeId| {
            self.cluster
                .view(*node)
                .is_some_and(|view| view.members.len() == nodes.len() && view.shards[0].complete.len() == nodes.len())
        };
        nodes.iter().all(has_all)
    }

    fn read_all(&mut self, nodes: &[NodeId]) -> Result<(), String> {
        for &node in nodes {
            let read = self.groups[node.0 as usize - 1].read(|numbers| numbers.0.clone());
            let shown = match self.cluster.wait(PATIENCE, read) {
                Some(Ok(shown)) => shown,
                other => return Err(format!("{node} reads nothing: {:?}", other.map(|read| read.map(drop)))),
            };
            if let Some(lost) = self.acknowledged.difference(&shown).next() {
                return Err(format!("{node} shows {} numbers, and not {lost}, which was acknowledged", shown.len()));
            }
            if let Some(there) = self.refused.intersection(&shown).next() {
                return Err(format!("{node} shows {there}, of which it was said that it is not delivered"));
            }
        }
        Ok(())
    }

    fn play(&mut self) -> Result<(), String> {
        self.cluster.start().map_err(|error| error.to_string())?;
        for _ in 0..self.rng.usize(1..=3) {
            self.out_of_reach = false;
            self.exited.clear();
            self.pass(Duration::from_millis(20), true);
            if self.rng.u8(0..4) == 0 {
                self.trouble();
                self.pass(Duration::from_millis(60), true);
            }
            self.all_leave();
            self.wait_until_all_have_ended()?;
            self.come_back()?;
        }
        Ok(())
    }
}

fn end(cluster: &mut Cluster, trouble: &Trouble) {
    match *trouble {
        Trouble::Pause(node) => cluster.resume(node),
        Trouble::Cut(node, other) => cluster.net().heal(node, other),
        Trouble::Slow(node) => cluster.slow_disk(node, Duration::from_micros(50)),
    }
}

#[test]
fn all_end_who_leave_at_once_and_nothing_acknowledged_is_lost() {
    let seeds = seeds::seeds(SEEDS);
    seeds::run_all(seeds.clone(), |seed| Run::new(seed).play());
    let (seeds, left) = (seeds.count(), LEFT_BEHIND.load(Ordering::Relaxed));
    // A seed that runs alone shows it.
    let most = if seeds == 1 { 0 } else { seeds.div_ceil(25) };
    assert!(left <= most, "a node is left behind in {left} of {seeds} seeds, and at most {most} can be expected");
}

#[test]
fn who_leaves_as_it_comes_back_leaves_what_it_has_to_the_others() {
    seeds::run_all(seeds::seeds(2 * SEEDS), |seed| Run::new(seed).one_leaves_as_all_come_back());
}
