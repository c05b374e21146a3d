//! The appearance of members in a view that is in force.

use std::{sync::Arc, time::Duration};

use squall_fabric::{BreakReason, Fabric, NodeId, Time};

use crate::{
    active_view::{ActiveView, Phase, has_departed},
    end::Cause,
    input::{Effect, Settings},
    membership_table::MembershipTable,
    stall::{Patience, WatchedMembers},
};

/// The part of the failure timeout (its divisor) within which a member must appear after bad news of it, if it was in
/// order when the view was decided.
const PENDING_FOR: u32 = 4;

/// Bad news of a member of the view that has not appeared in it.
#[derive(Clone, Debug)]
pub(crate) struct PendingSuspicion {
    member: usize,
    reason: BreakReason,
    since: Option<Time>,
}

/// The progress of a view's members towards each other.
///
/// On a host that has no time for all of them, connecting many members takes much longer than a failure timeout, and
/// giving one up makes all begin anew. So no clock runs against missing members while endpoints come about: here, or at
/// any member whose row says so. Each endpoint comes about once, so this has an end.
#[derive(Debug, Default)]
pub(crate) struct Coming {
    /// The number of the shards' endpoints that came about here.
    shards: u64,
    /// The most endpoints that have existed at this node at one time.
    here: u64,
    /// The number of endpoints of which this node knew at its last look, and the time at which that number grew last.
    known: u64,
    since: Option<Time>,
}

impl Coming {
    /// Counts an endpoint of a shard that has come about.
    pub(crate) fn endpoint(&mut self) {
        self.shards += 1;
    }

    /// The number of endpoints that have come about at this node, also of the view before: a host is busy with these,
    /// too.
    pub(crate) fn endpoints_here(&mut self, table: &MembershipTable, previous: Option<&MembershipTable>) -> u64 {
        let now = self.shards + table.reached() + previous.map_or(0, MembershipTable::reached);
        self.here = self.here.max(now);
        self.here
    }

    /// Starts the waiting time anew: what was seen before does not count.
    pub(crate) fn wait_anew(&mut self, now: Time) {
        self.since = Some(now);
    }

    fn look(&mut self, now: Time, table: &MembershipTable, previous: Option<&MembershipTable>) {
        let known = self.endpoints_here(table, previous).saturating_add(table.endpoints_elsewhere());
        if known > self.known || self.since.is_none() {
            (self.known, self.since) = (known, Some(now));
        }
    }
}

impl ActiveView {
    /// Takes note that an endpoint of the view before broke.
    pub(crate) fn note_break(&mut self, node: NodeId, reason: BreakReason) {
        // A new life of the node has nothing to do with the end of the old one.
        let member = self.table.rank_of(node).filter(|_| !self.view.joined.contains(&node));
        self.suspicions.extend(member.map(|member| PendingSuspicion { member, reason, since: None }));
    }

    /// Whether a member has closed the view before, and nothing more is known of it.
    pub(crate) fn is_suspicion_pending(&self, member: usize) -> bool {
        self.suspicions.iter().any(|suspicion| suspicion.member == member && has_departed(&suspicion.reason))
    }

    /// The time at which this node must act on members that have not appeared.
    pub(crate) fn appear_by(&self, settings: &Settings) -> Time {
        let suspicions = self.suspicions.iter().map(|suspicion| self.pending_until(suspicion, settings));
        let is_missing = (0..self.table.len()).any(|member| !self.is_coming(member));
        let since = self.coming.since.filter(|_| is_missing || self.table.is_connected());
        suspicions.chain(since.map(|since| since + self.patience_with_missing(settings))).min().unwrap_or(Time::MAX)
    }

    /// The time for which no endpoint may come about until missing members are given up.
    ///
    /// A node that has reached no other does not see what the others do, and is more likely cut off itself than all of
    /// them. So it waits longer; the more members there are, the longer connecting them takes.
    fn patience_with_missing(&self, settings: &Settings) -> Duration {
        let times = if self.table.reached() == 0 { self.table.len().max(2) as u32 } else { 2 };
        settings.connect_timeout * times / 2
    }

    fn pending_until(&self, suspicion: &PendingSuspicion, settings: &Settings) -> Time {
        let sure = suspicion.reason == BreakReason::ProcessGone;
        suspicion.since.filter(|_| !sure).map_or(Time::ZERO, |since| since + settings.failure_timeout / PENDING_FOR)
    }

    /// Goes on to work once all members and shards are connected, and suspects members that do not appear.
    pub(crate) fn connect(&mut self, fabric: &mut impl Fabric, now: Time, settings: &Settings, out: &mut Vec<Effect>) {
        if self.table.is_connected() && self.shards_connected {
            tracing::info!(epoch = self.view.epoch.0, members = self.table.len(), "the view is connected");
            self.phase = Phase::Running;
            self.touched = true;
            self.disconnect_previous(fabric);
            out.push(Effect::Installed(Arc::clone(&self.view)));
            return;
        }
        let mut suspicions = std::mem::take(&mut self.suspicions);
        suspicions.retain(|suspicion| !self.table.was_reached(suspicion.member));
        suspicions.iter_mut().for_each(|suspicion| _ = suspicion.since.get_or_insert(now));
        let (over, left) = suspicions.into_iter().partition(|suspicion| now >= self.pending_until(suspicion, settings));
        self.suspicions = left;
        for PendingSuspicion { member, reason, .. } in over {
            let node = self.table.node(member);
            self.suspect(node, Cause::Lost { node, reason }, out);
        }
        self.coming.look(now, &self.table, self.previous.as_ref());
        let waited = self.patience_with_missing(settings);
        let is_over = self.coming.since.is_some_and(|since| now >= since + waited);
        if is_over {
            for member in (0..self.table.len()).filter(|&member| !self.is_coming(member)).collect::<Vec<_>>() {
                let node = self.table.node(member);
                self.suspect(node, Cause::Missing { node, waited }, out);
            }
        }
        self.give_up_lingering(now, settings, out);
        if is_over && self.table.is_connected() && self.is_open() {
            self.table.ask();
            self.wedge(Cause::NotConnected { waited }, out);
        }
    }

    /// Gives up members that neither come from the view before nor say for what they wait there, while no endpoint
    /// comes about and at most half of the members are late.
    fn give_up_lingering(&mut self, now: Time, settings: &Settings, out: &mut Vec<Effect>) {
        let Patience { disk, application } = settings.patience;
        let limits = [settings.connect_timeout, disk, application].into_iter().filter(|&limit| limit < Duration::MAX);
        // The member has to come, and to be connected.
        let limit = limits.max().unwrap_or_default() + self.patience_with_missing(settings);
        let rows = self.lingers().map(|watched| watched.rows).unwrap_or_default();
        let is_quiet = |node: NodeId| {
            let mut rows = rows.iter().filter(|(_, of, _)| *of == node).peekable();
            rows.peek().is_some() && rows.all(|(_, _, waits)| waits.is_none())
        };
        let quiet: Vec<usize> = (0..self.table.len()).filter(|&member| is_quiet(self.table.node(member))).collect();
        self.lingering.retain(|member, _| quiet.contains(member));
        quiet.iter().for_each(|&member| _ = self.lingering.entry(member).or_insert(now));
        // A member that has cleaned up may be on its way to this node, like all others.
        let coming = self.coming.since.unwrap_or(now);
        let is_late =
            |&member: &usize| self.lingering.get(&member).is_some_and(|&since| now.since(since.max(coming)) >= limit);
        let late: Vec<usize> = quiet.into_iter().filter(is_late).collect();
        if 2 * late.len() > self.table.len() {
            return;
        }
        for member in late {
            let node = self.table.node(member);
            self.suspect(node, Cause::Lingers { node, waited: limit }, out);
        }
    }

    /// Members that have not come from the view before, and the work for which each says to wait there. None once this
    /// view is connected.
    pub(crate) fn lingers(&self) -> Option<WatchedMembers> {
        let previous = self.previous.as_ref().filter(|_| self.phase == Phase::Connecting)?;
        let mut rows = Vec::new();
        for member in (0..self.table.len()).filter(|&m| !self.table.was_reached(m) && self.is_coming(m)) {
            let node = self.table.node(member);
            let Some(rank) = previous.rank_of(node) else { continue };
            let shards = self.shards_before.iter().enumerate();
            rows.extend(shards.map(|(index, &shard)| (shard, node, previous.waits(rank, index))));
        }
        Some(WatchedMembers { members: self.table.len(), rows })
    }

    /// Whether a member is here, or on its way: it cleans up the view before, which takes as long as its application
    /// does.
    fn is_coming(&self, member: usize) -> bool {
        let before = self.previous.as_ref().and_then(|p| Some((p, p.rank_of(self.table.node(member))?)));
        self.table.was_reached(member) || before.is_some_and(|(previous, rank)| previous.has_decided(rank))
    }
}
