//! The assignment of shards to members: a function of the members, alike at all nodes.

use std::{
    cmp::{Ordering, Reverse},
    collections::BTreeMap,
};

use squall_fabric::NodeId;

use crate::{
    layout::{Layout, ShardLayout},
    ranks::Ranks,
    view::{Epoch, Member, Preferred, ShardId, ShardView, View},
};

/// A placement in the making. All numbers are integers and all ties are broken by rank, so that all nodes find the
/// same.
struct Placement<'a> {
    members: Ranks,
    racks: Vec<&'a str>,
    weights: Vec<usize>,
    /// The number of shards that each member is to hold, of the shards that not all members hold.
    loads: Vec<usize>,
    /// The number of shards whose state each member is to get from others.
    fetches: Vec<usize>,
    /// The number of shards that may move to a member at a time.
    moves_at_once: usize,
    shards: Vec<Shard>,
}

/// The part of the shards that a member holds: a number of shards for each unit of its weight.
#[derive(Clone, Copy, Debug)]
struct Share {
    load: usize,
    /// At least 1.
    weight: usize,
}

impl Ord for Share {
    fn cmp(&self, other: &Share) -> Ordering {
        (self.load * other.weight).cmp(&(other.load * self.weight))
    }
}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Share) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Share {
    fn eq(&self, other: &Share) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Share {}

#[derive(Default)]
struct Shard {
    /// The number of members that it is to have.
    replicas: usize,
    /// The members that it had.
    kept: Ranks,
    /// The members of the shard that hold its state, or were the last to hold it.
    holders: Ranks,
    /// Those of which the others can get it now.
    sources: Ranks,
    /// The members that it is to have.
    chosen: Ranks,
    /// The members that may be chosen, those first that go before the others: pinned ones, those that it prefers, those
    /// of its racks, others.
    tiers: [Ranks; 4],
}

impl Shard {
    /// The place of a member's tier. Members that may not be chosen have the last.
    fn tier(&self, rank: usize) -> usize {
        self.tiers.iter().position(|tier| tier.has(rank)).unwrap_or(self.tiers.len())
    }

    /// The members that may be chosen and are not.
    fn others(&self) -> Ranks {
        union(&self.tiers).without(self.chosen)
    }

    /// The members whose choice counts as a fetch: they lack a state that others have for them.
    fn fetching(&self) -> Ranks {
        if self.sources.is_empty() { Ranks::default() } else { self.chosen.without(self.holders) }
    }

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

fn union(tiers: &[Ranks]) -> Ranks {
    tiers.iter().fold(Ranks::default(), |all, tier| all.with(*tier))
}

impl Layout {
    /// The members of each shard, when `members` are those of the view: of all shards, in their order, each in the
    /// view's order.
    ///
    /// `before` is the view that it follows, in which those members are complete that hold a shard's state when it
    /// ends. `preferred` is the policy's. The result depends on nothing else, so all nodes find the same. It is of no
    /// use for a layout that [`check`](Layout::check) refuses, or for more members than the largest view has.
    ///
    /// In this order of importance:
    /// 1. A shard has as many members as the layout says, or all that may hold it if those are fewer. No member that
    ///    holds its state is dropped while the one that is to replace it does not hold it. If no member may hold it,
    ///    all may.
    /// 2. Members to which it is pinned hold it first, then those that it prefers, those of its racks, and others.
    /// 3. Members of a shard are of different racks, where that is possible. A rack without a name holds one member. A
    ///    rack with fewer members than others has more of the work, so racks are best of one size.
    /// 4. The members' numbers of shards are in proportion to their weights, not counting shards that all hold: no move
    ///    of one shard would bring them nearer.
    /// 5. A member that holds a shard keeps it. If one of n members goes, only the replicas that it held are placed
    ///    anew, and at most as many moved to even that out. If one comes, nothing moves but the n-th part, to that one.
    ///    (Between racks more may move.)
    ///
    /// A move takes two views: in the first both are members; in the second, once the new one is complete, the old one
    /// is not. One replica of a shard moves at a time. No shard moves to a member that is to get the states of
    /// `moves_at_once` shards already: it stays until these are complete. Replicas that a shard lacks are placed at
    /// once.
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
    pub fn assign(&self, members: &[Member], before: Option<&View>, preferred: &Preferred) -> Vec<Vec<NodeId>> {
        let mut placement = self.placement(members, before, preferred);
        placement.fill();
        placement.spread();
        placement.balance();
        let nodes = |shard: &Shard| shard.members().iter().map(|rank| members[rank].node).collect();
        placement.shards.iter().map(nodes).collect()
    }

    /// The members of each of a view's shards that hold it only until the others do.
    pub fn going(&self, view: &View) -> BTreeMap<ShardId, Vec<NodeId>> {
        let mut complete = view.clone();
        let held = complete.shards.iter_mut().filter(|shard| !shard.is_suspended());
        held.for_each(|shard| shard.complete.clone_from(&shard.members));
        let placement = self.placement(&view.members, Some(&complete), &view.preferred);
        let going = |shard: &Shard| -> Vec<NodeId> {
            shard.holders.without(shard.chosen).iter().map(|rank| view.members[rank].node).collect()
        };
        self.shards().map(|(id, _)| id).zip(placement.shards.iter().map(going)).collect()
    }

    /// The placement that follows a view, before any replica is added or moved: moves that are complete are ended.
    fn placement<'a>(&self, members: &'a [Member], before: Option<&View>, preferred: &Preferred) -> Placement<'a> {
        let all = Ranks::first(members.len());
        let ranks_of =
            |nodes: &[NodeId]| -> Ranks { all.iter().filter(|&rank| nodes.contains(&members[rank].node)).collect() };
        let shards = self.shards().map(|(id, shard)| {
            let tiers = self.tiers(shard, members, preferred.get(&id).map_or(&[], Vec::as_slice));
            let can_hold = union(&tiers).len();
            let replicas = shard.max_replicas().map_or(can_hold, |max| can_hold.min(max as usize));
            let Some(before) = before.and_then(|before| before.shard(id)) else {
                return Shard { replicas, tiers, ..Shard::default() };
            };
            let last_holders = ranks_of(&before.last_holders().iter().map(|holder| holder.node).collect::<Vec<_>>());
            let sources = ranks_of(&before.complete);
            let holders = sources.with(last_holders);
            let kept = ranks_of(&before.members).with(last_holders);
            // Where fewer may hold it, others stay that hold it, as long as it could not work without them.
            let least = sources.with(union(&tiers)).len().min(shard.min_replicas() as usize);
            Shard { replicas: replicas.max(least), kept, holders, sources, chosen: kept, tiers }
        });
        let mut placement = Placement {
            members: all,
            racks: members.iter().map(|member| member.rack.as_str()).collect(),
            // A member of weight 0 counts as the others of the shards that are pinned to it.
            weights: members.iter().map(|member| self.weight(member.node).max(1) as usize).collect(),
            loads: vec![0; members.len()],
            fetches: vec![0; members.len()],
            moves_at_once: self.moves_at_once as usize,
            shards: shards.collect(),
        };
        placement.count();
        placement.shed();
        placement
    }

    /// The members that may hold a shard, by tiers.
    fn tiers(&self, shard: ShardLayout<'_>, members: &[Member], preferred: &[NodeId]) -> [Ranks; 4] {
        let ranks = |may: &dyn Fn(&Member) -> bool| -> Ranks {
            Ranks::first(members.len()).iter().filter(|&rank| may(&members[rank])).collect()
        };
        let weighs = |node: NodeId| self.weight(node) > 0 || shard.max_replicas().is_none();
        let is_free = |member: &Member| !shard.group.reserved.contains(&member.node) && weighs(member.node);
        let free = ranks(&is_free);
        let tiers = match shard.own() {
            None => [Ranks::default(), Ranks::default(), free],
            Some(own) => {
                let pinned = ranks(&|member| own.pinned.contains(&member.node));
                let near = ranks(&|member| own.racks.contains(&member.rack)).and(free);
                [pinned, near, if own.only { Ranks::default() } else { free }]
            }
        };
        let alone = |tier| [Ranks::default(), Ranks::default(), tier];
        let in_racks = ranks(&|member| shard.own().is_some_and(|own| own.racks.contains(&member.rack)));
        let choices = [tiers, alone(in_racks), alone(free), alone(Ranks::first(members.len()))];
        let [pinned, near, others] = choices.into_iter().find(|tiers| !union(tiers).is_empty()).unwrap_or_default();
        // A policy chooses among those that the layout lets hold the shard.
        let preferred = ranks(&|member| preferred.contains(&member.node)).and(union(&[pinned, near, others]));
        [pinned, preferred, near, others]
    }
}

impl View {
    /// The first view of these members, by rank: all hold all state there is, which is none. The node that decides on
    /// the view sets its life.
    pub fn first(members: Vec<Member>, layout: &Layout, preferred: Preferred) -> View {
        let assigned = layout.assign(&members, None, &preferred);
        let shards = layout.shards().zip(assigned).map(|((shard, its), nodes)| {
            let senders = its.group.senders_of(&nodes);
            ShardView::whole(shard, nodes, senders)
        });
        let shards = shards.collect();
        let joined = members.iter().map(|member| member.node).collect();
        let (life, left) = Default::default();
        View { life, epoch: Epoch::FIRST, shards, joined, left, members, preferred }
    }
}

impl Placement<'_> {
    fn count(&mut self) {
        for index in 0..self.shards.len() {
            let chosen = std::mem::take(&mut self.shards[index].chosen);
            self.put(index, chosen);
        }
    }

    /// The share of a member that holds `more` shards than it is to hold.
    fn share(&self, rank: usize, more: usize) -> Share {
        Share { load: self.loads[rank] + more, weight: self.weights[rank] }
    }

    /// The number of members among some that share a rack with one. A rack without a name holds nothing else.
    fn neighbours(&self, of: usize, among: Ranks) -> usize {
        let shares = |other: &usize| *other != of && !self.racks[of].is_empty() && self.racks[*other] == self.racks[of];
        among.iter().filter(shares).count()
    }

    fn put(&mut self, shard: usize, chosen: Ranks) {
        let Placement { shards, loads, fetches, .. } = self;
        let shard = &mut shards[shard];
        shard.fetching().iter().for_each(|rank| fetches[rank] -= 1);
        let before = std::mem::replace(&mut shard.chosen, chosen);
        shard.fetching().iter().for_each(|rank| fetches[rank] += 1);
        if shard.replicas < self.members.len() {
            before.without(chosen).iter().for_each(|rank| loads[rank] -= 1);
            chosen.without(before).iter().for_each(|rank| loads[rank] += 1);
        }
    }

    /// Whether a replica may be placed elsewhere. One that is new is to be fetched in any case.
    fn may_move(&self, shard: &Shard, from: usize, to: usize) -> bool {
        shard.may_move(from) && (!shard.kept.has(from) || self.fetches[to] < self.moves_at_once)
    }

    /// Ends moves. Of a shard that has too many members, the one of the last tier goes, then the one whose rack is most
    /// crowded, then the one that holds most. Of several, one that holds the state goes, since the other was chosen to
    /// replace it.
    fn shed(&mut self) {
        for index in 0..self.shards.len() {
            while self.shards[index].chosen.len() > self.shards[index].replicas {
                let Shard { chosen, holders, .. } = self.shards[index];
                let tier = |m| self.shards[index].tier(m);
                let order =
                    |&m: &usize| (tier(m), self.neighbours(m, chosen), self.share(m, 0), holders.has(m), Reverse(m));
                let Some(goes) = chosen.iter().max_by_key(order) else { break };
                self.put(index, chosen.without(Ranks::one(goes)));
            }
        }
    }

    /// Adds members to shards that have too few.
    fn fill(&mut self) {
        for index in 0..self.shards.len() {
            while self.shards[index].chosen.len() < self.shards[index].replicas {
                let shard = &self.shards[index];
                let chosen = shard.chosen;
                let order = |&m: &usize| (shard.tier(m), self.neighbours(m, chosen), self.share(m, 1), m);
                let Some(comes) = shard.others().iter().min_by_key(order) else { break };
                self.put(index, chosen.with(Ranks::one(comes)));
            }
        }
    }

    /// Moves replicas to members of earlier tiers, and those that share a rack with others of their shard.
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
            let crowd = |rank| (shard.tier(rank) as isize, self.neighbours(rank, rest) as isize);
            let (before, after) = (crowd(from), crowd(to));
            (before.0 - after.0, before.1 - after.1)
        };
        let pairs = shard.chosen.iter().flat_map(|from| shard.others().iter().map(move |to| (from, to)));
        let better = pairs.filter(|pair| gain(pair) > (0, 0) && self.may_move(shard, pair.0, pair.1));
        better.min_by_key(|pair @ &(from, to)| {
            (Reverse(gain(pair)), self.share(to, 1), Reverse(self.share(from, 0)), to, from)
        })
    }

    /// Moves replicas from the members that hold most for their weights to those that hold least, as long as that
    /// brings them nearer; not where that would crowd a rack.
    fn balance(&mut self) {
        while let Some((index, from, to)) = self.better_balance() {
            self.replace(index, from, to);
        }
    }

    fn better_balance(&self) -> Option<(usize, usize, usize)> {
        let mut most: Vec<usize> = self.members.iter().collect();
        most.sort_by_key(|&rank| (Reverse(self.share(rank, 0)), rank));
        let pairs = most.iter().flat_map(|&from| most.iter().rev().map(move |&to| (from, to)));
        let mut unequal = pairs.filter(|&(from, to)| self.share(from, 0) > self.share(to, 1));
        unequal.find_map(|(from, to)| {
            let may_move = |shard: &Shard| {
                let rest = shard.chosen.without(Ranks::one(from));
                shard.chosen.has(from)
                    && shard.others().has(to)
                    && shard.tier(from) == shard.tier(to)
                    && self.may_move(shard, from, to)
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
