//! The assignment of shards to members: a function of the members, alike at all nodes.

use std::cmp::Reverse;

use squall_fabric::NodeId;

use crate::{
    layout::Layout,
    ranks::Ranks,
    view::{ClusterId, Epoch, Member, ShardView, View},
};

/// A placement in the making. All numbers are integers and all ties are broken by rank, so that all nodes find the
/// same.
struct Placement<'a> {
    members: Ranks,
    racks: Vec<&'a str>,
    /// The number of shards that each member is to hold, of the shards that not all members hold.
    loads: Vec<usize>,
    shards: Vec<Shard>,
}

#[derive(Default)]
struct Shard {
    /// The number of members that it is to have.
    replicas: usize,
    /// The members that it had.
    kept: Ranks,
    /// The members of the shard that hold its state, or were the last to hold it.
    holders: Ranks,
    /// The members that it is to have.
    chosen: Ranks,
}

impl Shard {
    /// Whether a replica may be placed elsewhere: it is new, or all chosen members hold the state.
    fn may_move(&self, from: usize) -> bool {
        !self.kept.has(from) || self.chosen.without(self.holders).is_empty()
    }

    /// The chosen members, and, as long as not all of them hold the state, the members that do.
    fn members(&self) -> Ranks {
        let lacks = !self.chosen.without(self.holders).is_empty();
        if lacks { self.chosen.with(self.holders) } else { self.chosen }
    }
}

impl Layout {
    /// The members of each shard, when `members` are those of the view: of all shards, in their order, each in the
    /// view's order.
    ///
    /// `before` is the view that it follows, in which those members are complete that hold a shard's state when it
    /// ends. The result depends on nothing else, so all nodes find the same. It is of no use for a layout that
    /// [`check`](Layout::check) refuses, or for more members than the largest view has.
    ///
    /// In this order of importance:
    /// 1. A shard has as many members as the layout says, or all there are if those are fewer. No member that holds its
    ///    state is dropped while the one that is to replace it does not hold it.
    /// 2. Members of a shard are of different racks, where that is possible. A rack without a name holds one member. A
    ///    rack with fewer members than others has more of the work, so racks are best of one size.
    /// 3. No member holds more than one shard more than another, not counting shards that all hold.
    /// 4. A member that holds a shard keeps it. If one of n members goes, only the replicas that it held are placed
    ///    anew, and at most as many moved to even that out. If one comes, nothing moves but the n-th part, to that one.
    ///    (Between racks more may move.)
    ///
    /// A move takes two views: in the first both are members; in the second, once the new one is complete, the old one
    /// is not. One replica of a shard moves at a time.
    ///
    /// | shards × replicas | members, racks | follows | result |
    /// |---|---|---|---|
    /// | 2 × all | 1 2 3 | | 1 2 3, 1 2 3 |
    /// | 2 × 2 | 1 2 3 4 | | 1 2, 3 4 |
    /// | 2 × 2 | 1a 2a 3b 4b | | 1 3, 2 4 |
    /// | 3 × 2 | 1 2 3 | | 1 2, 1 3, 2 3 |
    /// | 3 × 2 | 1 2 3 4 | 1 2, 1 3, 2 3 | 1 2 4, 1 3, 2 3 |
    /// | 3 × 2 | 1 2 3 4 | 1 2 4, 1 3, 2 3, all complete | 2 4, 1 3, 2 3 |
    /// | 3 × 2 | 1 2 | 1 2, 1 3, 2 3 | 1 2, 1 2, 1 2 |
    /// | 2 × 1 | 1 2 3 | 1, 3 | 1, 3 |
    pub fn assign(&self, members: &[Member], before: Option<&View>) -> Vec<Vec<NodeId>> {
        let all = Ranks::first(members.len());
        let ranks_of =
            |nodes: &[NodeId]| -> Ranks { all.iter().filter(|&rank| nodes.contains(&members[rank].node)).collect() };
        let shards = self.shards().map(|(shard, group)| {
            let replicas = group.max_replicas.map_or(all.len(), |max| all.len().min(max as usize));
            let Some(before) = before.and_then(|before| before.shard(shard)) else {
                return Shard { replicas, ..Shard::default() };
            };
            let last_holders = ranks_of(&before.last_holders().iter().map(|holder| holder.node).collect::<Vec<_>>());
            let holders = ranks_of(&before.complete).with(last_holders);
            let kept = ranks_of(&before.members).with(last_holders);
            Shard { replicas, kept, holders, chosen: kept }
        });
        let racks = members.iter().map(|member| member.rack.as_str()).collect();
        let mut placement = Placement { members: all, racks, loads: vec![0; members.len()], shards: shards.collect() };
        placement.count();
        placement.shed();
        placement.fill();
        placement.spread();
        placement.balance();
        let nodes = |shard: &Shard| shard.members().iter().map(|rank| members[rank].node).collect();
        placement.shards.iter().map(nodes).collect()
    }
}

impl View {
    /// The first view of these members, by rank: all hold all state there is, which is none. The node that decides on
    /// the view sets its life.
    pub fn first(members: Vec<Member>, layout: &Layout) -> View {
        let assigned = layout.assign(&members, None);
        let shards = layout.shards().zip(assigned).map(|((shard, group), nodes)| {
            let senders = group.senders_of(&nodes);
            ShardView::whole(shard, nodes, senders)
        });
        let shards = shards.collect();
        let joined = members.iter().map(|member| member.node).collect();
        View { life: ClusterId::default(), epoch: Epoch::FIRST, shards, joined, left: Vec::new(), members }
    }
}

impl Placement<'_> {
    fn count(&mut self) {
        for shard in self.shards.iter().filter(|shard| shard.replicas < self.members.len()) {
            shard.chosen.iter().for_each(|rank| self.loads[rank] += 1);
        }
    }

    /// The number of members among some that share a rack with one. A rack without a name holds nothing else.
    fn neighbours(&self, of: usize, among: Ranks) -> usize {
        let shares = |other: &usize| *other != of && !self.racks[of].is_empty() && self.racks[*other] == self.racks[of];
        among.iter().filter(shares).count()
    }

    fn put(&mut self, shard: usize, chosen: Ranks) {
        let before = std::mem::replace(&mut self.shards[shard].chosen, chosen);
        if self.shards[shard].replicas < self.members.len() {
            before.without(chosen).iter().for_each(|rank| self.loads[rank] -= 1);
            chosen.without(before).iter().for_each(|rank| self.loads[rank] += 1);
        }
    }

    /// Ends moves. Of a shard that has too many members, the one goes whose rack is most crowded, then the one that
    /// holds most. Of several, one that holds the state goes, since the other was chosen to replace it.
    fn shed(&mut self) {
        for index in 0..self.shards.len() {
            while self.shards[index].chosen.len() > self.shards[index].replicas {
                let Shard { chosen, holders, .. } = self.shards[index];
                let order = |&m: &usize| (self.neighbours(m, chosen), self.loads[m], holders.has(m), Reverse(m));
                let Some(goes) = chosen.iter().max_by_key(order) else { break };
                self.put(index, chosen.without(Ranks::one(goes)));
            }
        }
    }

    /// Adds members to shards that have too few.
    fn fill(&mut self) {
        for index in 0..self.shards.len() {
            while self.shards[index].chosen.len() < self.shards[index].replicas {
                let Shard { chosen, .. } = self.shards[index];
                let others = self.members.without(chosen).iter();
                let Some(comes) = others.min_by_key(|&rank| (self.neighbours(rank, chosen), self.loads[rank], rank))
                else {
                    break;
                };
                self.put(index, chosen.with(Ranks::one(comes)));
            }
        }
    }

    /// Moves replicas that share a rack with others of their shard.
    fn spread(&mut self) {
        for index in 0..self.shards.len() {
            while let Some((from, to)) = self.better_spread(index) {
                self.replace(index, from, to);
            }
        }
    }

    fn better_spread(&self, index: usize) -> Option<(usize, usize)> {
        let shard = &self.shards[index];
        let gain = |&(from, to): &(usize, usize)| {
            let rest = shard.chosen.without(Ranks::one(from));
            self.neighbours(from, rest) as isize - self.neighbours(to, rest) as isize
        };
        let movable = shard.chosen.iter().filter(|&from| shard.may_move(from));
        let pairs = movable.flat_map(|from| self.members.without(shard.chosen).iter().map(move |to| (from, to)));
        let better = pairs.filter(|pair| gain(pair) > 0);
        better.min_by_key(|pair @ (from, to)| (-gain(pair), self.loads[*to], Reverse(self.loads[*from]), *to, *from))
    }

    /// Moves replicas from the members that hold most to those that hold least, until they differ by one at most; not
    /// where that would crowd a rack.
    fn balance(&mut self) {
        while let Some((index, from, to)) = self.better_balance() {
            self.replace(index, from, to);
        }
    }

    fn better_balance(&self) -> Option<(usize, usize, usize)> {
        let mut most: Vec<usize> = self.members.iter().collect();
        most.sort_by_key(|&rank| (Reverse(self.loads[rank]), rank));
        let pairs = most.iter().flat_map(|&from| most.iter().rev().map(move |&to| (from, to)));
        let mut unequal = pairs.filter(|&(from, to)| self.loads[from] >= self.loads[to] + 2);
        unequal.find_map(|(from, to)| {
            let may_move = |shard: &Shard| {
                let rest = shard.chosen.without(Ranks::one(from));
                shard.chosen.has(from)
                    && !shard.chosen.has(to)
                    && shard.may_move(from)
                    && self.neighbours(to, rest) <= self.neighbours(from, rest)
            };
            self.shards.iter().position(may_move).map(|index| (index, from, to))
        })
    }

    fn replace(&mut self, shard: usize, from: usize, to: usize) {
        let chosen = self.shards[shard].chosen.without(Ranks::one(from)).with(Ranks::one(to));
        self.put(shard, chosen);
    }
}
