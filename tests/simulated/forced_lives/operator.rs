//! Faults that take a group its majority, the operator that forces a survivor, and the operator that helps in the end.

use std::{sync::Arc, time::Duration};

use squall::{NodeId, View};

use super::{
    books::Forced,
    world::{PATIENCE, World},
};

const MS: Duration = Duration::from_millis(1);

/// The number of times that the operator starts again nodes that can't go on, at most.
const ROUNDS: usize = 4;

impl World {
    pub(crate) fn run(&mut self) -> Result<(), String> {
        self.cluster.start().map_err(|error| error.to_string())?;
        self.play(self.schedule)?;
        self.end_trouble()?;
        self.settle()?;
        self.check()?;
        if self.durable {
            self.lose_power();
            for node in self.in_some_order() {
                self.launch(node)?;
                self.pause(20 * MS)?;
            }
            self.settle()?;
            self.check()?;
        }
        Ok(())
    }

    pub(crate) fn chance(&mut self) -> Result<(), String> {
        self.work(2..=30, 20 * MS)?;
        self.lose_majority_and_force()?;
        self.trouble()?;
        if self.rng.bool() && self.durable {
            self.end_trouble()?;
            self.wait_for_members()?;
            self.lose_majority_and_force()?;
            self.trouble()?;
        }
        Ok(())
    }

    /// Waits until the last life has members enough to lose most of them, or for some time.
    fn wait_for_members(&mut self) -> Result<(), String> {
        let until = self.cluster.now() + PATIENCE;
        while self.cluster.now() < until && self.view().is_none_or(|view| view.members.len() < 3) {
            self.pass(10 * MS)?;
        }
        Ok(())
    }

    /// Lets clients be busy for some rounds.
    pub(crate) fn work(&mut self, rounds: std::ops::RangeInclusive<usize>, most: Duration) -> Result<(), String> {
        for _ in 0..self.rng.usize(rounds) {
            self.load();
            let most = [MS, most][self.rng.usize(0..2)];
            self.pause(most)?;
        }
        Ok(())
    }

    fn load(&mut self) {
        for _ in 0..self.rng.usize(0..=6) {
            self.submit();
        }
        if self.rng.bool() {
            self.read();
        }
    }

    pub(crate) fn in_some_order(&mut self) -> Vec<NodeId> {
        let mut nodes = self.nodes();
        self.rng.shuffle(&mut nodes);
        nodes
    }

    pub(crate) fn cut_off(&mut self, node: NodeId, cut: bool) {
        self.tell(|| format!("{node} is {}", if cut { "cut off" } else { "within reach" }));
        for other in self.nodes().into_iter().filter(|&other| other != node) {
            match cut {
                true => self.cluster.net().cut(node, other),
                false => self.cluster.net().heal(node, other),
            }
        }
    }

    /// Takes all other members from one, in several ways, and forces that one; sometimes another one, too.
    fn lose_majority_and_force(&mut self) -> Result<(), String> {
        let members: Vec<NodeId> = self.view().map(|view| view.nodes()).unwrap_or_default();
        let members: Vec<NodeId> = members.into_iter().filter(|&node| self.cluster.view(node).is_some()).collect();
        if members.len() < 3 {
            self.tell(|| format!("too few are members: {members:?}"));
            return Ok(());
        }
        let survivor = members[self.rng.usize(0..members.len())];
        if self.durable && self.rng.u8(0..3) == 0 {
            // The survivor lags behind the others, which go on without it. In memory, their work would be lost with
            // them, and the shard suspended.
            self.cut_off(survivor, true);
            self.pass(60 * MS)?;
            self.work(2..=20, 10 * MS)?;
        }
        let last = self.last_survivor(&members, survivor);
        for &node in members.iter().filter(|&&node| node != survivor && Some(node) != last) {
            self.lose(node);
            self.pause(5 * MS)?;
        }
        if last.is_none() || self.rng.bool() {
            self.cut_off(survivor, true);
        }
        self.pause(30 * MS)?;
        if self.rng.u8(0..4) == 0 {
            self.cut_off(survivor, false);
        }
        if self.durable && self.rng.u8(0..3) == 0 {
            self.end(survivor);
            self.launch(survivor)?;
        }
        self.force(survivor)?;
        let rival = last.filter(|_| self.rng.u8(0..3) == 0);
        if let Some(rival) = rival {
            self.force(rival)?;
        }
        let until = self.cluster.now() + 1200 * MS;
        while self.cluster.now() < until {
            self.pause(100 * MS)?;
            self.disturb_force(survivor)?;
        }
        self.tell(|| format!("{survivor} was forced: {:?}", self.cluster.recovered(survivor)));
        Ok(())
    }

    /// Chooses a second survivor, which is too few with the first one, or none.
    fn last_survivor(&mut self, members: &[NodeId], survivor: NodeId) -> Option<NodeId> {
        let others: Vec<NodeId> = members.iter().copied().filter(|&node| node != survivor).collect();
        (members.len() > 4 && self.rng.bool()).then(|| others[self.rng.usize(0..others.len())])
    }

    fn lose(&mut self, node: NodeId) {
        match self.rng.u8(0..6) {
            0 => {
                self.tell(|| format!("{node} is stopped"));
                self.cluster.pause(node);
                self.paused.insert(node);
            }
            1 => self.cut_off(node, true),
            _ => self.end(node),
        }
    }

    /// Forces a node once it stands still. It may learn meanwhile of the life that follows.
    pub(crate) fn force(&mut self, node: NodeId) -> Result<(), String> {
        let began = self.cluster.now();
        let mut refusal = String::new();
        while self.cluster.now().since(began) < PATIENCE {
            let Some(parent) = self.cluster.life(node) else { return Ok(()) };
            match self.cluster.recover(node, "the others are lost") {
                Ok(anew) => {
                    self.tell(|| format!("{node} is forced from {parent:x}, anew: {anew:?}"));
                    self.forces.push(Forced { node, parent, anew });
                    return Ok(());
                }
                // The node knows that it was dropped before.
                Err(why) if why.contains("it was no member of the last view") => return Ok(()),
                Err(why) => refusal = why,
            }
            self.pass(5 * MS)?;
            if self.nodes().into_iter().any(|other| other != node && self.reaches(node, other)) {
                // The others may go on with it.
                return Ok(());
            }
        }
        Err(format!("{node} is not forced in {PATIENCE:?}: {refusal}"))
    }

    /// Whether a message of a node can reach another one, and be answered.
    fn reaches(&mut self, node: NodeId, other: NodeId) -> bool {
        let is_cut = self.cluster.net().is_cut(node, other);
        self.cluster.is_up(other) && !self.paused.contains(&other) && !is_cut
    }

    /// Makes something happen while a node asks whether it may be forced.
    fn disturb_force(&mut self, survivor: NodeId) -> Result<(), String> {
        let node = self.any();
        match self.rng.u8(0..12) {
            0 | 1 if node != survivor => self.launch(node)?,
            2 => self.cut_off(node, false),
            3 => self.go_on(node),
            4 if self.durable && self.rng.u8(0..4) == 0 => {
                self.end(survivor);
                self.pause(50 * MS)?;
                self.launch(survivor)?;
            }
            _ => {}
        }
        self.load();
        Ok(())
    }

    fn go_on(&mut self, node: NodeId) {
        if self.paused.remove(&node) {
            self.tell(|| format!("{node} goes on"));
            self.cluster.resume(node);
        }
    }

    /// Makes things go wrong, and well again, while clients are busy.
    fn trouble(&mut self) -> Result<(), String> {
        for _ in 0..self.rng.usize(20..=80) {
            self.load();
            let most = [MS, 10 * MS, 60 * MS][self.rng.usize(0..3)];
            self.pause(most)?;
            let node = self.any();
            match self.rng.u8(0..20) {
                0 if self.may_end() => self.end(node),
                1 if self.durable => self.lose_power(),
                2 | 3 if self.durable => self.lose_power_soon()?,
                4 if self.durable => {
                    let pace = [0, 50, 5_000, 100_000][self.rng.usize(0..4)];
                    self.cluster.slow_disk(node, Duration::from_micros(pace));
                }
                5 => self.cut_off(node, false),
                6 => self.go_on(node),
                7..=10 => self.launch(node)?,
                11 => {
                    for node in self.in_some_order() {
                        self.launch(node)?;
                        self.pause(10 * MS)?;
                    }
                }
                12 if self.may_wipe(node) => {
                    self.tell(|| format!("{node} gets another disk"));
                    self.cluster.wipe(node);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a node may end. In memory, a node must not end if it could be the last that has the state.
    fn may_end(&self) -> bool {
        let is_safe = |view: Arc<View>| {
            let has_it = |other: &NodeId| self.cluster.view(*other).is_some_and(|own| own.epoch == view.epoch);
            view.shards[0].complete.iter().filter(|&other| has_it(other)).count() > 2
        };
        self.durable || self.view().is_some_and(is_safe)
    }

    /// Whether a node's disk may be wiped, since the last life does not need it.
    fn may_wipe(&self, node: NodeId) -> bool {
        self.lives() > 1
            && !self.cluster.is_up(node)
            && self.view().is_some_and(|view| view.life.0 == self.books.newest() && view.rank_of(node).is_none())
    }

    /// Lets all lose power in the moment in which writes are acknowledged, or not.
    fn lose_power_soon(&mut self) -> Result<(), String> {
        for node in self.nodes() {
            let pace = [50, 1_000, 20_000][self.rng.usize(0..3)];
            self.cluster.slow_disk(node, Duration::from_micros(pace));
        }
        for _ in 0..self.rng.usize(1..=5) {
            self.load();
            self.pause(2 * MS)?;
        }
        self.lose_power();
        Ok(())
    }

    fn end_trouble(&mut self) -> Result<(), String> {
        for node in self.in_some_order() {
            self.cluster.slow_disk(node, Duration::from_micros(50));
            self.cut_off(node, false);
            self.go_on(node);
        }
        for node in self.in_some_order() {
            self.launch(node)?;
        }
        Ok(())
    }

    /// Waits until the group is whole. An operator starts again nodes that have ended, and ends nodes of earlier lives.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS {
            let until = self.cluster.now() + PATIENCE;
            while self.cluster.now() < until {
                if self.is_whole() {
                    return Ok(());
                }
                self.pass(10 * MS)?;
            }
            if !self.help()? {
                break;
            }
        }
        Err(format!("the group is not whole: {}", self.standings()))
    }

    /// Starts again the nodes that say that they can't become members by themselves. In memory, most of a view's
    /// members may be dead once more; then the one that is left is forced again. Returns whether there were any.
    fn help(&mut self) -> Result<bool, String> {
        let (mut ended, mut stale) = (Vec::new(), Vec::new());
        for node in self.nodes() {
            if let Some(reason) = self.cluster.end_reason(node) {
                ended.push((node, reason.to_string()));
            } else if self.cluster.view(node).is_some_and(|view| view.life.0 < self.books.newest()) {
                stale.push(node);
            }
        }
        self.tell(|| format!("the operator helps {ended:?}, {stale:?}"));
        for (node, reason) in &ended {
            let is_clear = ["start it again", "start this node again"].iter().any(|words| reason.contains(words));
            if !is_clear {
                return Err(format!("{node} has ended, and does not say what to do: {reason}"));
            }
            self.end(*node);
            if reason.contains("with an empty directory") {
                self.cluster.wipe(*node);
            }
        }
        for &node in &stale {
            if self.cluster.is_stalled(node) && self.cluster.other_life(node).is_none() {
                return Err(format!("{node} stands still in an ended life, and does not say so: {}", self.standings()));
            }
            self.end(node);
        }
        let mut any = !ended.is_empty() || !stale.is_empty();
        if !any && !self.durable {
            let stuck = |&node: &NodeId| self.cluster.view(node).is_some() && self.cluster.is_stalled(node);
            if let Some(stuck) = self.nodes().into_iter().find(stuck) {
                self.force(stuck)?;
                any = true;
            }
        }
        for node in ended.into_iter().map(|(node, _)| node).chain(stale) {
            self.launch(node)?;
        }
        Ok(any)
    }

    pub(crate) fn standings(&self) -> String {
        let one = |node: NodeId| {
            let view = self.cluster.view(node);
            let view = view.map(|view| (format!("{:x}", view.life.0), view.epoch.0, view.nodes()));
            let end = self.cluster.end_reason(node).map(ToString::to_string);
            format!("{node} (view: {view:?}, end: {end:?}, other life: {:?})", self.cluster.other_life(node))
        };
        let nodes: Vec<String> = self.nodes().into_iter().map(one).collect();
        format!("{}; {:?}", nodes.join(", "), self.view().map(|view| view.shards.clone()))
    }

    /// Checks that every complete member shows all that was acknowledged.
    fn check(&mut self) -> Result<(), String> {
        self.pass(20 * MS)?;
        self.refused.clear();
        let view = self.view().ok_or("there is no view")?;
        for (index, shard) in view.shards.iter().enumerate() {
            shard.complete.iter().for_each(|&node| self.read_at(node, index));
        }
        let until = self.cluster.now() + PATIENCE;
        while !self.has_answers() {
            if self.cluster.now() > until {
                return Err(format!("a read has no answer: {}", self.standings()));
            }
            self.pass(10 * MS)?;
        }
        self.refused.pop().map_or(Ok(()), Err)
    }
}
