//! Members appear in a view that is in force, or don't.

use std::{sync::Arc, time::Duration};

use squall_fabric::{BreakReason, Fabric, NodeId, Time};

use crate::{
    end::Cause,
    input::{Effect, Settings},
    stall::{Patience, Watched},
    tenure::{Phase, Tenure},
};

/// A member that was in order when the view was decided, and of which bad news came before it appeared in it, has this part of
/// the failure timeout left to appear.
const DOUBTED_FOR: u32 = 4;

/// Bad news of a member of the view that has not appeared in it.
#[derive(Clone, Debug)]
pub(crate) struct Doubt {
    member: usize,
    reason: BreakReason,
    since: Option<Time>,
}

impl Tenure {
    /// Takes note that an endpoint of the view before broke.
    pub(crate) fn doubt(&mut self, node: NodeId, reason: BreakReason) {
        // A new life of it has nothing to do with what became of the old one.
        let member = self.board.rank_of(node).filter(|_| !self.view.joined.contains(&node));
        self.doubts.extend(member.map(|member| Doubt { member, reason, since: None }));
    }

    /// When something is to be done about members that have not appeared.
    pub(crate) fn appear_by(&self, settings: &Settings) -> Time {
        let doubts = self.doubts.iter().map(|doubt| self.doubted_until(doubt, settings));
        let is_missing = (0..self.board.len()).any(|member| !self.is_coming(member));
        let since = self.began.filter(|_| is_missing).or(self.reached);
        doubts.chain(since.map(|since| since + settings.connect_timeout)).min().unwrap_or(Time::MAX)
    }

    fn doubted_until(&self, doubt: &Doubt, settings: &Settings) -> Time {
        let sure = doubt.reason == BreakReason::ProcessGone;
        doubt.since.filter(|_| !sure).map_or(Time::ZERO, |since| since + settings.failure_timeout / DOUBTED_FOR)
    }

    /// Goes on to work once all members and shards are connected, and suspects who does not appear.
    pub(crate) fn connect(&mut self, fabric: &mut impl Fabric, now: Time, settings: &Settings, out: &mut Vec<Effect>) {
        if self.board.is_connected() && self.shards_connected {
            tracing::info!(epoch = self.view.epoch.0, members = self.board.len(), "the view is connected");
            self.phase = Phase::Running;
            self.touched = true;
            self.disconnect_previous(fabric);
            out.push(Effect::Installed(Arc::clone(&self.view)));
            return;
        }
        let mut doubts = std::mem::take(&mut self.doubts);
        doubts.retain(|doubt| !self.board.was_reached(doubt.member));
        doubts.iter_mut().for_each(|doubt| _ = doubt.since.get_or_insert(now));
        let (over, left) = doubts.into_iter().partition(|doubt| now >= self.doubted_until(doubt, settings));
        self.doubts = left;
        for Doubt { member, reason, .. } in over {
            let node = self.board.node(member);
            self.suspect(node, Cause::Lost { node, reason }, out);
        }
        let waited = settings.connect_timeout;
        if self.began.is_some_and(|began| now >= began + waited) {
            for member in (0..self.board.len()).filter(|&member| !self.is_coming(member)).collect::<Vec<_>>() {
                let node = self.board.node(member);
                self.suspect(node, Cause::Missing { node, waited }, out);
            }
        }
        self.give_up_lingering(now, settings, out);
        if self.board.is_connected() && now >= *self.reached.get_or_insert(now) + waited && self.is_open() {
            self.board.ask();
            self.wedge(Cause::NotConnected { waited }, out);
        }
    }

    /// Gives up members that neither come from the view before nor say for what they wait there, as long as most have come.
    fn give_up_lingering(&mut self, now: Time, settings: &Settings, out: &mut Vec<Effect>) {
        let Patience { disk, application } = settings.patience;
        let limits = [settings.connect_timeout, disk, application].into_iter().filter(|&limit| limit < Duration::MAX);
        let limit = limits.max().unwrap_or(settings.connect_timeout);
        let rows = self.lingers().map(|watched| watched.rows).unwrap_or_default();
        let is_quiet = |node: NodeId| {
            let mut rows = rows.iter().filter(|(_, of, _)| *of == node).peekable();
            rows.peek().is_some() && rows.all(|(_, _, waits)| waits.is_none())
        };
        let quiet: Vec<usize> = (0..self.board.len()).filter(|&member| is_quiet(self.board.node(member))).collect();
        self.lingering.retain(|member, _| quiet.contains(member));
        quiet.iter().for_each(|&member| _ = self.lingering.entry(member).or_insert(now));
        let is_late = |&member: &usize| self.lingering.get(&member).is_some_and(|&since| now.since(since) >= limit);
        let late: Vec<usize> = quiet.into_iter().filter(is_late).collect();
        if 2 * late.len() > self.board.len() {
            return;
        }
        for member in late {
            let node = self.board.node(member);
            self.suspect(node, Cause::Lingers { node, waited: limit }, out);
        }
    }

    /// Members that have not come from the view before, and what each says to wait for there, as long as this view is not connected.
    pub(crate) fn lingers(&self) -> Option<Watched> {
        let previous = self.previous.as_ref().filter(|_| self.phase == Phase::Connecting)?;
        let mut rows = Vec::new();
        for member in (0..self.board.len()).filter(|&m| !self.board.was_reached(m) && self.is_coming(m)) {
            let node = self.board.node(member);
            let Some(rank) = previous.rank_of(node) else { continue };
            let shards = self.shards_before.iter().enumerate();
            rows.extend(shards.map(|(index, &shard)| (shard, node, previous.waits(rank, index))));
        }
        Some(Watched { members: self.board.len(), rows })
    }

    /// Whether a member is here, or on its way: it cleans up the view before, which takes as long as its application does.
    fn is_coming(&self, member: usize) -> bool {
        let before = self.previous.as_ref().and_then(|p| Some((p, p.rank_of(self.board.node(member))?)));
        self.board.was_reached(member) || before.is_some_and(|(previous, rank)| previous.has_decided(rank))
    }
}
