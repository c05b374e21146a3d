//! The model's state: nodes with disks, and the view log.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use squall_fabric::NodeId;
use squall_membership::{
    Applied, ClusterId, Entry, Epoch, Final, Finals, Former, HeldCopy, Incarnation, Layout, Member, OrderEnd, Proposal,
    Seq, ShardId, ShardState, ShardView, Skipped, View, ViewLogState, VoterId, successor,
};

use super::steps::Group;

pub(crate) const SHARD: ShardId = ShardId(0);

/// A view record in a log, and the number of places of that view's order that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Segment {
    pub(crate) epoch: u64,
    pub(crate) count: u64,
}

/// The places that a log has, by epoch before one.
pub(crate) fn line(log: &[Segment], before: u64) -> Vec<(u64, u64)> {
    let ends = log.iter().filter(|segment| segment.epoch < before && segment.count > 0);
    ends.map(|segment| (segment.epoch, segment.count)).collect()
}

/// The common beginning of two logs.
pub(crate) fn common(log: &[Segment], other: &[Segment]) -> Vec<Segment> {
    let mut common = Vec::new();
    for (&Segment { epoch, count }, other) in log.iter().zip(other) {
        if epoch != other.epoch {
            break;
        }
        common.push(Segment { epoch, count: count.min(other.count) });
        if count != other.count {
            break;
        }
    }
    common
}

pub(crate) fn cut(log: &mut Vec<Segment>, end: OrderEnd) {
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
    /// Whether its replica has the state.
    pub(crate) whole: bool,
    /// Whether its disk has the state, too, so that it counts.
    pub(crate) complete: bool,
    /// The number of its disk, which may have taken another's place.
    pub(crate) voter: u64,
    /// The log as its process knows it.
    pub(crate) log: Vec<Segment>,
    pub(crate) disk: Vec<Segment>,
    /// Whether the log on its disk was begun anew, and it has not been complete since.
    pub(crate) anew: bool,
    /// The end of its copy in memory, of a suspended shard, in a group without disks: the place up to which it had
    /// received when it was dropped.
    pub(crate) kept: Option<OrderEnd>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct World {
    pub(crate) log_state: ViewLogState,
    pub(crate) history: Vec<Arc<Proposal>>,
    pub(crate) nodes: Vec<Node>,
    /// By epoch and node, the number of places of the order that it has received, and that it has told to be on its
    /// disk.
    pub(crate) received: Vec<Vec<u64>>,
    pub(crate) told: Vec<Vec<Option<u64>>>,
    /// By epoch, the number of places that are acknowledged.
    pub(crate) acknowledged: Vec<u64>,
    pub(crate) crashes: usize,
    /// The number of disks that are still to be replaced.
    pub(crate) wipes: usize,
    /// Whether the group has no disks: then deliveries are acknowledged.
    pub(crate) in_memory: bool,
}

/// Views follow from the hashed values.
impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for next in &self.history {
            let life = |member: &Member| (member.node, member.incarnation, member.voter);
            let members: Vec<_> = next.view.members.iter().map(life).collect();
            let shard = &next.view.shards[0];
            (members, &shard.complete, &shard.since, &next.trims, &next.ends).hash(state);
            let former =
                |one: &Former| (one.holder.node, one.holder.voter, one.holder.since, one.last, one.began, one.counts);
            shard.former.iter().for_each(|one| former(one).hash(state));
            if let ShardState::Suspended { last_holders, .. } = &shard.state {
                last_holders.iter().for_each(|holder| (holder.node, holder.voter, holder.since).hash(state));
            }
        }
        for back in self.log_state.returns() {
            (back.member.node, back.member.incarnation, back.goes_on).hash(state);
            back.held.get(&SHARD).map(|held| (held.end, held.complete, held.version)).hash(state);
        }
        self.log_state.candidates().iter().for_each(|member| (member.node, member.incarnation).hash(state));
        (&self.nodes, &self.received, &self.told, &self.acknowledged, self.crashes, self.wipes).hash(state);
    }
}

impl World {
    /// All are members; the last ones have joined, one in each view, and have not got the state.
    pub(crate) fn new(group: &Group) -> World {
        let &Group { members, joiners, crashes, wipes, in_memory, .. } = group;
        let mut log_state = ViewLogState::default();
        let founders = members - joiners;
        let all = (0..founders).map(|n| member(n, 1, 1)).collect();
        log_state.apply(Entry::First {
            cluster: ClusterId(1),
            layout: layout(),
            members: all,
            preferred: Default::default(),
        });
        let first = Arc::new(log_state.last().expect("it has begun").clone());
        let node = |n: usize| {
            let (epoch, is_founder) = (1 + joiners as u64, n < founders);
            let written = if is_founder { epoch } else { 0 };
            let log: Vec<_> = (1..=written).map(|epoch| Segment { epoch, count: 0 }).collect();
            Node {
                is_up: true,
                life: 1,
                epoch,
                delivered: 0,
                wedged: false,
                whole: is_founder,
                complete: is_founder,
                voter: 1,
                disk: if in_memory { Vec::new() } else { log.clone() },
                log,
                anew: false,
                kept: None,
            }
        };
        let mut world = World {
            log_state,
            history: vec![first],
            nodes: (0..members).map(node).collect(),
            received: vec![vec![0; members]],
            told: vec![vec![None; members]],
            acknowledged: vec![0],
            crashes,
            wipes,
            in_memory,
        };
        for n in founders..members {
            let (me, last) = (member(n, 1, 1), world.last().clone());
            world.apply(Entry::Candidate(me.clone()));
            let complete = |node: &NodeId| last.view.shards[0].is_complete(*node);
            let nodes = last.view.nodes();
            let end =
                |&node: &NodeId| Final { node, count: Seq(0), complete: complete(&node), on_disk: complete(&node) };
            let finals: Finals = [(SHARD, nodes.iter().map(end).collect())].into();
            let next = successor(&last.view, &layout(), nodes[0], &nodes, &[me], &finals);
            assert!(world.apply(Entry::Successor(next)), "it may join");
        }
        world
    }

    pub(crate) fn apply(&mut self, entry: Entry) -> bool {
        match self.log_state.apply(entry) {
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

    /// A node, as it is now.
    pub(crate) fn me(&self, n: usize) -> Member {
        member(n, self.nodes[n].life, self.nodes[n].voter)
    }

    pub(crate) fn has_received(&self, n: usize) -> u64 {
        self.received[self.nodes[n].epoch as usize - 1][n]
    }

    /// The number of places of its view's order that all have received.
    pub(crate) fn stable(&self, n: usize) -> u64 {
        let epoch = self.nodes[n].epoch;
        let received = self.shard(epoch).members.iter().map(|&node| self.received[epoch as usize - 1][index(node)]);
        received.min().unwrap_or(0)
    }

    /// Whether a member of a view is in it, in that life.
    pub(crate) fn is_in(&self, n: usize, view: &View) -> bool {
        self.nodes[n].is_up && self.nodes[n].epoch == view.epoch.0
    }

    /// Forgets receipts and reports of views in which no node is any more: they make no difference.
    pub(crate) fn forget(&mut self) {
        let epochs = self.nodes.iter().map(|node| node.epoch).filter(|&epoch| epoch > 0);
        let oldest = epochs.min().unwrap_or(u64::MAX).min(self.history.len() as u64);
        for epoch in 0..oldest as usize - 1 {
            self.received[epoch].fill(0);
            self.told[epoch].fill(None);
        }
    }

    /// The places that were delivered in the epochs before this one, as they were decided.
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

    /// Acknowledges everything that all complete members of a view have told to be on their disks.
    pub(crate) fn acknowledge(&mut self, epoch: u64) {
        let told = |node: &NodeId| self.told[epoch as usize - 1][index(*node)];
        let Some(all) = self.shard(epoch).complete.iter().map(told).collect::<Option<Vec<u64>>>() else { return };
        let Some(least) = all.into_iter().min() else { return };
        self.acknowledge_up_to(epoch, least);
    }

    /// Acknowledges this many places of an epoch's order, and all before it.
    pub(crate) fn acknowledge_up_to(&mut self, epoch: u64, least: u64) {
        for (epoch, count) in self.line(epoch).into_iter().chain([(epoch, least)]) {
            let known = &mut self.acknowledged[epoch as usize - 1];
            *known = count.max(*known);
        }
    }
}

/// A node's report of its disk's log.
pub(crate) fn held(node: &Node) -> HeldCopy {
    let end =
        node.disk.last().map_or(OrderEnd::START, |last| OrderEnd { epoch: Epoch(last.epoch), seq: Seq(last.count) });
    HeldCopy {
        end,
        complete: !node.anew,
        version: Some(0),
        acknowledged: 0,
        trusted: false,
        skipped: Skipped::default(),
    }
}

pub(crate) fn id(n: usize) -> NodeId {
    NodeId(n as u32)
}

pub(crate) fn index(node: NodeId) -> usize {
    node.0 as usize
}

pub(crate) fn member(n: usize, life: u64, voter: u64) -> Member {
    Member { voter: VoterId(voter), ..Member::new(id(n), Incarnation(life)) }
}

/// One shard of all members.
pub(crate) fn layout() -> Layout {
    Layout::of_all(["g".to_string()])
}
