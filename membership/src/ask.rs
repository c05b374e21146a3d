//! Reasons to end a view in which nothing failed: members come, have become complete, or leave.

use squall_fabric::Time;

use crate::{
    active_view::ActiveView,
    end::Cause,
    input::{Effect, Settings},
    reopen::reopened,
    view::{MAX_MEMBERS, Member, ShardView},
};

impl ActiveView {
    /// Suspects members that ask to join as a later life.
    pub(crate) fn look_for_restarts(&mut self, candidates: &[Member], out: &mut Vec<Effect>) {
        for candidate in candidates {
            let node = candidate.node;
            let is_earlier = |member: &Member| member.node == node && member.incarnation < candidate.incarnation;
            if self.view.members.iter().any(is_earlier) {
                self.suspect(node, Cause::Restarted { node }, out);
            }
        }
    }

    /// Asks for another view if a node can join, a shard is reopened, or this node's part in its shards has changed.
    pub(crate) fn look_whether_to_ask(
        &mut self,
        now: Time,
        settings: &Settings,
        candidates: &[Member],
        out: &mut Vec<Effect>,
    ) {
        let node = self.member().node;
        // No member can give this node the state of a suspended shard.
        let lacks = |shard: &ShardView| !shard.is_complete(node) && !shard.complete.is_empty();
        let incomplete: Vec<usize> = self.shards().map(|(i, _)| i).filter(|&i| lacks(&self.view.shards[i])).collect();
        if !incomplete.is_empty() && incomplete.iter().all(|&index| self.table.is_complete(self.me, index)) {
            self.table.ask();
            return self.wedge(Cause::Asked, out);
        }
        let may_join = |candidate: &Member| self.view.rank_of(candidate.node).is_none();
        let can_join = candidates.iter().any(may_join) && self.table.len() < MAX_MEMBERS;
        if !can_join && !self.reopens() {
            self.wanted = None;
            return;
        }
        let since = *self.wanted.get_or_insert(now);
        if now >= self.may_ask_at(since, settings) {
            self.table.ask();
            self.wedge(Cause::Asked, out);
        }
    }

    /// Whether members have copies of suspended shards that can go on.
    fn reopens(&self) -> bool {
        !self.backs.is_empty() && !reopened(&self.view, &self.backs, |_| true).1.is_empty()
    }

    /// The time from which on this node may ask. The lowest rank asks at once; the others only if it does not, since it
    /// may not have heard of the node that asks to join.
    pub(crate) fn may_ask_at(&self, since: Time, settings: &Settings) -> Time {
        since + settings.failure_timeout * 2 * self.me as u32
    }

    /// Whether this node may leave: not while no other member holds the state of a shard that another one is to get.
    pub(crate) fn may_leave(&self) -> bool {
        let all: Vec<usize> = (0..self.table.len()).collect();
        self.may_go(self.me, &all)
    }

    /// Whether the members that stay can do without one of them. They can't if it alone holds the state of a shard that
    /// others of them are to get, or alone has that state on its disk.
    pub(crate) fn may_go(&self, member: usize, stay: &[usize]) -> bool {
        self.view.shards.iter().enumerate().all(|(index, shard)| {
            let mut others =
                stay.iter().filter(|&&m| m != member && shard.members.contains(&self.table.node(m))).peekable();
            let holds = shard.members.contains(&self.table.node(member)) && self.holds(member, index);
            let on_disk = self.is_on_disk(member, index);
            let can_take_over = |other| self.holds(other, index) && (!on_disk || self.is_on_disk(other, index));
            !holds || others.peek().is_none() || others.any(|&other| can_take_over(other))
        })
    }

    pub(crate) fn leave(&mut self, out: &mut Vec<Effect>) {
        if !self.is_decided() && !self.table.is_leaving(self.me) {
            self.table.leave();
            self.wedge(Cause::Leaving, out);
        }
    }
}
