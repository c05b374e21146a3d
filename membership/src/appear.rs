//! Members appear in a view that is in force, or don't.

use std::sync::Arc;

use squall_fabric::{BreakReason, Fabric, NodeId, Time};

use crate::{
    end::Cause,
    input::{Effect, Settings},
    stall::Patience,
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

    /// Gives up members that don't come to an end of the view before, as long as most have come.
    fn give_up_lingering(&mut self, now: Time, settings: &Settings, out: &mut Vec<Effect>) {
        let Patience { disk, application } = settings.patience;
        let (began, limit) = (self.began.unwrap_or(now), settings.connect_timeout.max(disk).max(application));
        let lingers = |&member: &usize| !self.board.was_reached(member) && self.is_coming(member);
        let lingering: Vec<usize> = (0..self.board.len()).filter(lingers).collect();
        if now.since(began) < limit || 2 * lingering.len() > self.board.len() {
            return;
        }
        for member in lingering {
            let node = self.board.node(member);
            self.suspect(node, Cause::Lingers { node, waited: limit }, out);
        }
    }

    /// Whether a member is here, or on its way: it cleans up the view before, which takes as long as its application does.
    fn is_coming(&self, member: usize) -> bool {
        let before = self.previous.as_ref().and_then(|p| Some((p, p.rank_of(self.board.node(member))?)));
        self.board.was_reached(member) || before.is_some_and(|(previous, rank)| previous.has_decided(rank))
    }
}
