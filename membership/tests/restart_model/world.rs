//! What the model is of: nodes with disks, and the view log.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use squall_fabric::NodeId;
use squall_membership::{
    Applied, ClusterId, End, Entry, Epoch, Held, Incarnation, Layout, Member, Proposal, Register, Seq, ShardId,
    ShardView, View,
};

pub(crate) const SHARD: ShardId = ShardId(0);

/// A view record in a log, and how much of that view's order follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Segment {
    pub(crate) epoch: u64,
    pub(crate) count: u64,
    /// Whether the node was complete when the view began.
    pub(crate) complete: bool,
}

/// How far a log goes, by epoch.
pub(crate) fn line(log: &[Segment], before: u64) -> Vec<(u64, u64)> {
    let ends = log.iter().filter(|segment| segment.epoch < before && segment.count > 0);
    ends.map(|segment| (segment.epoch, segment.count)).collect()
}

pub(crate) fn cut(log: &mut Vec<Segment>, end: End) {
    log.retain(|segment| segment.epoch <= end.epoch.0);
    if let Some(last) = log.last_mut().filter(|last| last.epoch == end.epoch.0) {
        last.count = last.count.min(end.seq.0);
    }
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct Node {
    pub(crate) is_up: bool,
    pub(crate) life: u64,
    /// The epoch of the view that it has installed; 0 if none.
    pub(crate) epoch: u64,
    pub(crate) delivered: u64,
    pub(crate) wedged: bool,
    /// It holds the state.
    pub(crate) complete: bool,
    /// The log as its process knows it.
    pub(crate) log: Vec<Segment>,
    pub(crate) disk: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct World {
    pub(crate) register: Register,
    pub(crate) history: Vec<Arc<Proposal>>,
    pub(crate) nodes: Vec<Node>,
    /// By epoch and node, how much of the order it has received, and how much it has told to be on its disk.
    pub(crate) received: Vec<Vec<u64>>,
    pub(crate) told: Vec<Vec<Option<u64>>>,
    /// By epoch, how much is acknowledged.
    pub(crate) acknowledged: Vec<u64>,
    pub(crate) crashes: usize,
}

/// Views follow from what is hashed here.
impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for next in &self.history {
            let members: Vec<_> = next.view.members.iter().map(|member| (member.node, member.incarnation)).collect();
            (members, &next.view.shards[0].complete, &next.trims, &next.ends).hash(state);
        }
        for back in self.register.backs() {
            (back.member.node, back.member.incarnation).hash(state);
            back.held.get(&SHARD).map(|held| (held.end, held.complete)).hash(state);
        }
        self.register.candidates().iter().for_each(|member| (member.node, member.incarnation).hash(state));
        (&self.nodes, &self.received, &self.told, &self.acknowledged, self.crashes).hash(state);
    }
}

impl World {
    pub(crate) fn new(members: usize, crashes: usize) -> World {
        let mut register = Register::default();
        let all = (0..members).map(|n| member(n, 1)).collect();
        register.apply(Entry::First { cluster: ClusterId(1), layout: layout(), members: all });
        let first = Arc::new(register.last().expect("it has begun").clone());
        let segment = Segment { epoch: 1, count: 0, complete: true };
        let node = Node {
            is_up: true,
            life: 1,
            epoch: 1,
            delivered: 0,
            wedged: false,
            complete: true,
            log: vec![segment],
            disk: vec![segment],
        };
        World {
            register,
            history: vec![first],
            nodes: vec![node; members],
            received: vec![vec![0; members]],
            told: vec![vec![None; members]],
            acknowledged: vec![0],
            crashes,
        }
    }

    pub(crate) fn apply(&mut self, entry: Entry) -> bool {
        match self.register.apply(entry) {
            Applied::View(next) => {
                self.history.push(Arc::new(next));
                self.received.push(vec![0; self.nodes.len()]);
                self.told.push(vec![None; self.nodes.len()]);
                self.acknowledged.push(0);
                true
            }
            applied => !matches!(applied, Applied::Refused(_)),
        }
    }

    pub(crate) fn last(&self) -> &Arc<Proposal> {
        self.history.last().expect("it has begun")
    }

    pub(crate) fn proposal(&self, epoch: u64) -> &Arc<Proposal> {
        &self.history[epoch as usize - 1]
    }

    pub(crate) fn shard(&self, epoch: u64) -> &ShardView {
        &self.proposal(epoch).view.shards[0]
    }

    pub(crate) fn has_received(&self, n: usize) -> u64 {
        self.received[self.nodes[n].epoch as usize - 1][n]
    }

    /// How much of its view's order all have received.
    pub(crate) fn stable(&self, n: usize) -> u64 {
        let epoch = self.nodes[n].epoch;
        let received = self.shard(epoch).members.iter().map(|&node| self.received[epoch as usize - 1][index(node)]);
        received.min().unwrap_or(0)
    }

    /// Whether a member of a view is in it, in that life.
    pub(crate) fn is_in(&self, n: usize, view: &View) -> bool {
        self.nodes[n].is_up && self.nodes[n].epoch == view.epoch.0
    }

    /// What was received and told in views that nobody is in any more makes no difference.
    pub(crate) fn forget(&mut self) {
        let epochs = self.nodes.iter().map(|node| node.epoch).filter(|&epoch| epoch > 0);
        let oldest = epochs.min().unwrap_or(u64::MAX).min(self.history.len() as u64);
        for epoch in 0..oldest as usize - 1 {
            self.received[epoch].fill(0);
            self.told[epoch].fill(None);
        }
    }

    /// What was delivered in the epochs before this one, as it was decided.
    pub(crate) fn line(&self, before: u64) -> Vec<(u64, u64)> {
        let mut line: Vec<(u64, u64)> = Vec::new();
        for next in self.history[1..].iter().filter(|next| next.view.epoch.0 <= before) {
            if let Some(end) = next.ends.get(&SHARD) {
                line.retain(|(epoch, _)| *epoch < end.epoch.0);
                line.push((end.epoch.0, end.seq.0));
            } else if let Some(trim) = next.trims.get(&SHARD) {
                line.push((next.view.epoch.0 - 1, trim.0));
            }
        }
        line.retain(|(_, count)| *count > 0);
        line
    }

    /// Everything that all complete members of a view have told to be on their disks is acknowledged.
    pub(crate) fn acknowledge(&mut self, epoch: u64) {
        let told = |node: &NodeId| self.told[epoch as usize - 1][index(*node)];
        let Some(all) = self.shard(epoch).complete.iter().map(told).collect::<Option<Vec<u64>>>() else { return };
        let Some(least) = all.into_iter().min() else { return };
        for (epoch, count) in self.line(epoch).into_iter().chain([(epoch, least)]) {
            let known = &mut self.acknowledged[epoch as usize - 1];
            *known = count.max(*known);
        }
    }
}

/// What a disk's log makes of itself.
pub(crate) fn held(disk: &[Segment]) -> Option<Held> {
    let last = disk.last()?;
    Some(Held { end: End { epoch: Epoch(last.epoch), seq: Seq(last.count) }, complete: last.complete })
}

pub(crate) fn id(n: usize) -> NodeId {
    NodeId(n as u32)
}

pub(crate) fn index(node: NodeId) -> usize {
    node.0 as usize
}

pub(crate) fn member(n: usize, life: u64) -> Member {
    Member::new(id(n), Incarnation(life))
}

/// One shard of all members.
pub(crate) fn layout() -> Layout {
    Layout::of_all(["g".to_string()])
}
