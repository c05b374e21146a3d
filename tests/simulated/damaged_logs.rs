//! Logs that are damaged while their nodes are stopped, by chance: one, two or three simulated members, of which some
//! come late. Nothing acknowledged is lost while a disk has it, nothing wrong is shown, and a group that can't go on
//! says so.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

use std::{collections::BTreeSet, time::Duration};

use fastrand::Rng;
use squall::{
    Group, NodeId, ShardState, ShardView,
    sim::{Cluster, NotStarted},
};

use crate::{
    padded::{self, Numbers, Submits},
    seeds,
};

/// The number of seeds that run here.
const SEEDS: u64 = 200;

/// The time within which all nodes serve, once all that can start have started, or never.
const PATIENCE: Duration = Duration::from_secs(3);

/// The time within which a log notes its acknowledged mark.
const QUIET: Duration = Duration::from_millis(200);

struct Trial {
    rng: Rng,
    cluster: Cluster,
    groups: Vec<Group<Numbers>>,
    submits: Submits,
    numbers: u64,
    /// Whether the logs are at rest when they are damaged.
    quiet: bool,
    /// Whether one of them does not note all that was acknowledged.
    lags: bool,
    /// Whether a log does not open at all.
    is_lost: bool,
    /// The damages that were done to disks.
    damage: Vec<(NodeId, String)>,
}

impl Trial {
    fn new(seed: u64) -> Trial {
        let mut rng = Rng::with_seed(seed);
        let members = rng.u32(1..=3);
        let snapshots = [64 << 10, 256 << 10, 1 << 30][rng.usize(0..3)];
        let segment_bytes = [32 << 10, 128 << 10][rng.usize(0..2)];
        let (cluster, groups) = padded::cluster("damaged-logs", members, snapshots, segment_bytes, rng.u64(..));
        Trial {
            rng,
            cluster,
            groups,
            submits: Submits::default(),
            numbers: 0,
            quiet: true,
            lags: false,
            is_lost: false,
            damage: Vec::new(),
        }
    }

    fn nodes(&self) -> Vec<NodeId> {
        (1..=self.groups.len() as u32).map(NodeId).collect()
    }

    fn launch(&mut self, node: NodeId) -> Result<(), String> {
        self.groups[node.0 as usize - 1] = self.cluster.declare(node, "numbers", Numbers::default());
        match self.cluster.launch(node) {
            Ok(()) => Ok(()),
            Err(NotStarted::Disk { why, .. }) => Err(format!("{node} did not start: {why}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Submits numbers to the members for a while. If `kills`, some members are killed and started again meanwhile.
    fn work(&mut self, kills: bool) -> Result<(), String> {
        for _ in 0..self.rng.usize(1..=40) {
            for _ in 0..self.rng.usize(0..=12) {
                let node = self.rng.usize(0..self.groups.len());
                if self.cluster.is_up(NodeId(node as u32 + 1)) {
                    self.numbers += 1;
                    self.submits.submit(&self.groups[node], self.numbers, self.rng.usize(0..1500));
                }
            }
            if kills && self.rng.u8(0..12) == 0 {
                let node = NodeId(self.rng.u32(1..=self.groups.len() as u32));
                match self.cluster.is_up(node) {
                    true => self.cluster.kill(node),
                    false => self.launch(node)?,
                }
            }
            let micros = self.rng.u64(0..=8_000);
            self.cluster.run_for(Duration::from_micros(micros));
            self.submits.answer();
        }
        Ok(())
    }

    /// Has more numbers acknowledged, of which one member's log does not note that. The others' logs will.
    fn lag(&mut self) -> Result<(), String> {
        self.work(false)?;
        self.cluster.run_for(Duration::from_millis(1));
        let node = NodeId(self.rng.u32(1..=self.groups.len() as u32));
        self.cluster.hang_disk(node, true);
        Ok(())
    }

    /// Damages a disk: the `only` one that is damaged, or one of several.
    fn hurt(&mut self, node: NodeId, only: bool) {
        // Zeros in place of the last records, and of the marks that acknowledged them, are the same as a log's end. If
        // no log has noted the mark, only longer logs tell what was lost. All majorities have one if one log is hurt.
        let what = match self.rng.u8(if self.quiet || only { 0 } else { 2 }..3) {
            0 | 1 => {
                // The last record, or bytes close to it, or many.
                let most = [16, 2_000, 20_000][self.rng.usize(0..if self.quiet { 3 } else { 2 })];
                let bytes = self.rng.u64(1..=most);
                self.cluster.zero_end(node, 0, bytes)
            }
            _ => self.cluster.rot(node, 0),
        };
        self.damage.extend(what.map(|what| (node, what)));
    }

    /// Returns the shard, if all nodes have the same last view and all of them hold the shard's state.
    fn holders(&self) -> Option<ShardView> {
        let views: Vec<_> = self.nodes().into_iter().filter_map(|node| self.cluster.view(node).cloned()).collect();
        let last = views.iter().max_by_key(|view| view.epoch)?;
        let all = views.len() == self.groups.len() && views.iter().all(|view| view.epoch == last.epoch);
        let shard = last.shards[0].clone();
        (all && shard.complete.len() == self.groups.len()).then_some(shard)
    }

    fn play(&mut self) -> Result<(), String> {
        self.cluster.start().map_err(|error| error.to_string())?;
        self.work(true)?;
        for node in self.nodes() {
            if !self.cluster.is_up(node) {
                self.launch(node)?;
            }
        }
        self.cluster.run_until(PATIENCE, |_| false);
        self.submits.answer();
        if self.holders().is_none() {
            return Err("the group is not whole before anything is damaged".to_owned());
        }
        self.quiet = self.rng.bool();
        match self.quiet {
            true => {
                self.lags = self.groups.len() > 1 && self.rng.u8(0..4) > 0;
                if self.lags {
                    self.lag()?;
                }
                self.cluster.run_for(QUIET);
                self.submits.answer();
            }
            false => self.work(false)?,
        }
        self.nodes().into_iter().for_each(|node| self.cluster.kill(node));
        self.nodes().into_iter().for_each(|node| self.cluster.hang_disk(node, false));
        let mut nodes = self.nodes();
        self.rng.shuffle(&mut nodes);
        let hurt = if self.lags && self.rng.bool() { nodes.len() } else { self.rng.usize(0..=nodes.len()) };
        for &node in &nodes[..hurt] {
            (0..self.rng.usize(1..=2)).for_each(|_| self.hurt(node, hurt == 1));
        }
        // The damaged nodes start first, or in any order.
        if self.rng.bool() {
            self.rng.shuffle(&mut nodes);
        }
        for node in nodes {
            self.start(node, false)?;
            let millis = [0, 5, 300][self.rng.usize(0..3)];
            self.cluster.run_for(Duration::from_millis(millis));
        }
        if self.is_lost {
            return Ok(());
        }
        if hurt < self.groups.len() {
            return self.is_whole();
        }
        // No disk is good, so an operator may be needed; but nothing is lost in silence.
        self.cluster.run_for(PATIENCE);
        if let Some(shard) = self.holders() {
            // One of more than half of the logs at least knows what was acknowledged, if they were at rest.
            return if self.quiet { self.is_whole() } else { self.shows(&shard).map(|_| ()) };
        }
        self.says_so()?;
        self.nodes().into_iter().for_each(|node| self.cluster.kill(node));
        let mut is_good = false;
        for node in self.nodes() {
            // A log that does not open was cut when its node was started.
            let repaired = self.cluster.repair_log(node, 0).map_err(|error| format!("{node}: {error}"))?;
            is_good |= repaired.left.is_empty() && repaired.missing.is_none() && !repaired.doubtful;
        }
        self.restart(false)?;
        if is_good && self.holders().is_some() {
            return self.is_whole();
        }
        self.nodes().into_iter().for_each(|node| self.cluster.kill(node));
        self.restart(true)?;
        match self.holders() {
            Some(shard) => self.shows(&shard).map(|_| ()),
            None => Err(format!("it does not go on though its losses are accepted: {}", self.standing())),
        }
    }

    fn standing(&self) -> String {
        let shard = |node| self.cluster.view(node).map(|view| view.shards[0].clone());
        let standing = |node| (node, shard(node), self.cluster.end_reason(node));
        format!("{:?}", self.nodes().into_iter().map(standing).collect::<Vec<_>>())
    }

    /// Starts all nodes. If `accepts_loss`, an operator cuts their logs before.
    fn restart(&mut self, accepts_loss: bool) -> Result<(), String> {
        for node in self.nodes() {
            if accepts_loss {
                self.cluster.cut_log(node, 0, true).map_err(|error| format!("{node}: {error}"))?;
            }
            self.start(node, accepts_loss)?;
        }
        self.cluster.run_for(PATIENCE);
        Ok(())
    }

    /// Starts a node. If its log does not open, an operator cuts it, as the error says.
    fn start(&mut self, node: NodeId, accepts_loss: bool) -> Result<(), String> {
        let Err(why) = self.launch(node) else { return Ok(()) };
        if !why.contains("cut the log") {
            return Err(why);
        }
        if why.contains("start: log:") {
            // Without the manifest, only another directory helps.
            self.is_lost = true;
            return Ok(());
        }
        self.cluster.cut_log(node, 0, accepts_loss).map_err(|error| format!("{why}, and then: {error}"))?;
        self.launch(node)
    }

    /// Checks that the group goes on with all that was acknowledged.
    fn is_whole(&mut self) -> Result<(), String> {
        let mut waited = Duration::ZERO;
        let shard = loop {
            match self.holders() {
                Some(shard) => break shard,
                None if waited > PATIENCE => {
                    return Err(format!("not all serve after {PATIENCE:?}: {}", self.standing()));
                }
                None => {}
            }
            let slice = Duration::from_millis(10);
            self.cluster.run_for(slice);
            waited += slice;
        };
        let shown = self.shows(&shard)?;
        match self.submits.acknowledged.iter().find(|number| !shown.contains(number)) {
            Some(lost) => {
                Err(format!("{lost} of {} is lost, and {} are shown", self.submits.acknowledged.len(), shown.len()))
            }
            None => Ok(()),
        }
    }

    /// Returns the numbers that the shard's members show. Checks that they are the same, and that each was submitted.
    fn shows(&mut self, shard: &ShardView) -> Result<BTreeSet<u64>, String> {
        let mut all = Vec::new();
        for node in &shard.complete {
            let read = self.groups[node.0 as usize - 1].read(|numbers| numbers.given.clone());
            match self.cluster.wait(PATIENCE, read) {
                Some(Ok(shown)) => all.push(shown),
                other => return Err(format!("{node} answers no read: {:?}", other.map(|read| read.err()))),
            }
        }
        let first = all.first().cloned().unwrap_or_default();
        let shown: BTreeSet<u64> = first.iter().copied().collect();
        if all.iter().any(|other| *other != first) || shown.len() != first.len() {
            return Err(format!("members differ: {all:?}"));
        }
        match shown.iter().find(|&&number| number == 0 || number > self.numbers) {
            Some(wrong) => Err(format!("{wrong} is shown, which no client submitted")),
            None => Ok(shown),
        }
    }

    /// Checks that each node has a view in which the shard is suspended, or has ended with a reason.
    fn says_so(&self) -> Result<(), String> {
        let says = |node: NodeId| {
            let shard = self.cluster.view(node).map(|view| view.shards[0].state.clone());
            matches!(shard, Some(ShardState::Suspended { .. })) || self.cluster.end_reason(node).is_some()
        };
        match self.nodes().into_iter().find(|&node| !says(node)) {
            Some(node) => Err(format!("{node} neither serves nor says why: {:?}", self.cluster.view(node))),
            None => Ok(()),
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_that_a_disk_still_has() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| {
        let mut trial = Trial::new(seed);
        trial.play().map_err(|what| format!("{what}; damaged: {:?}", trial.damage))
    });
}
