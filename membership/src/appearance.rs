//! The appearance of members in a view that is in force.

use std::{collections::BTreeMap, time::Duration};

use squall_fabric::{BreakReason, NodeId, Time};

use crate::{end::Cause, input::Settings, membership_table::MembershipTable, stall::StallLimits, tables::Tables};

/// The part of the failure timeout (its divisor) within which a member must appear after bad news of it, if it was in
/// order when the view was decided.
const PENDING_FOR: u32 = 4;

/// Bad news of a member of the view that has not appeared in it.
#[derive(Clone, Debug)]
struct PendingSuspicion {
    member: usize,
    reason: BreakReason,
    since: Option<Time>,
}

impl PendingSuspicion {
    fn until(&self, settings: &Settings) -> Time {
        let sure = self.reason == BreakReason::ProcessGone;
        self.since.filter(|_| !sure).map_or(Time::ZERO, |since| since + settings.failure_timeout / PENDING_FOR)
    }
}

/// The progress of a view's members towards each other.
///
/// On a host that has no time for all of them, connecting many members takes much longer than a failure timeout, and
/// giving one up makes all begin anew. So no clock runs against missing members while endpoints come about: here, or at
/// any member whose row says so. Each endpoint comes about once, so this has an end.
#[derive(Debug, Default)]
pub(crate) struct Appearance {
    /// The number of the shards' endpoints that came about here.
    shards: u64,
    /// The most endpoints that have existed at this node at one time.
    here: u64,
    /// The number of endpoints of which this node knew at its last look, and the time at which that number grew last.
    known: u64,
    since: Option<Time>,
    suspicions: Vec<PendingSuspicion>,
    /// The time since which a member is late for this view and its row does not say for what it waits, by member.
    lingering: BTreeMap<usize, Time>,
}

impl Appearance {
    /// Counts an endpoint of a shard that has come about.
    pub(crate) fn endpoint(&mut self) {
        self.shards += 1;
    }

    /// The number of endpoints that have come about at this node, also of the view before: a host is busy with these,
    /// too.
    pub(crate) fn endpoints_here(&mut self, tables: Tables<'_>) -> u64 {
        self.here = self.here.max(self.shards + tables.reached());
        self.here
    }

    /// Starts the waiting time anew: what was seen before does not count.
    pub(crate) fn wait_anew(&mut self, now: Time) {
        self.since = Some(now);
    }

    /// Takes note that an endpoint of the view before broke.
    pub(crate) fn note_break(&mut self, table: &MembershipTable, node: NodeId, reason: BreakReason) {
        // A new life of the node has nothing to do with the end of the old one.
        let member = table.rank_of(node).filter(|_| !table.view().joined.contains(&node));
        self.suspicions.extend(member.map(|member| PendingSuspicion { member, reason, since: None }));
    }

    /// Whether a member has closed the view before, and nothing more is known of it.
    pub(crate) fn is_suspicion_pending(&self, member: usize) -> bool {
        self.suspicions.iter().any(|suspicion| suspicion.member == member && has_departed(&suspicion.reason))
    }

    /// The time at which this node must act on members that have not appeared.
    pub(crate) fn deadline(&self, tables: Tables<'_>, settings: &Settings) -> Time {
        let table = tables.table;
        let suspicions = self.suspicions.iter().map(|suspicion| suspicion.until(settings));
        let is_missing = (0..table.len()).any(|member| !tables.is_coming(member));
        let since = self.since.filter(|_| is_missing || table.is_connected());
        suspicions.chain(since.map(|since| since + patience(table, settings))).min().unwrap_or(Time::MAX)
    }

    /// Looks at the members that have not appeared. Returns the ones that are given up, each with the cause.
    pub(crate) fn look(&mut self, now: Time, tables: Tables<'_>, settings: &Settings) -> Vec<(NodeId, Cause)> {
        let table = tables.table;
        self.suspicions.retain(|suspicion| !table.was_reached(suspicion.member));
        self.suspicions.iter_mut().for_each(|suspicion| _ = suspicion.since.get_or_insert(now));
        let (over, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.suspicions).into_iter().partition(|suspicion| now >= suspicion.until(settings));
        self.suspicions = left;
        let lost = over.into_iter().map(|PendingSuspicion { member, reason, .. }| (table.node(member), reason));
        let mut gone: Vec<_> = lost.map(|(node, reason)| (node, Cause::Lost { node, reason })).collect();
        self.count(now, tables);
        if let Some(waited) = self.waited_in_vain(now, table, settings) {
            let missing = (0..table.len()).filter(|&member| !tables.is_coming(member));
            gone.extend(missing.map(|member| table.node(member)).map(|node| (node, Cause::Missing { node, waited })));
        }
        if gone.is_empty() {
            return self.late(now, tables, settings);
        }
        // The caller suspects these, which wedges the view: no member needs to be given up for being late to it.
        self.lingering.clear();
        gone
    }

    /// Takes note of endpoints that have come about.
    fn count(&mut self, now: Time, tables: Tables<'_>) {
        let known = self.endpoints_here(tables).saturating_add(tables.table.endpoints_elsewhere());
        if known > self.known || self.since.is_none() {
            (self.known, self.since) = (known, Some(now));
        }
    }

    /// The time for which no endpoint has come about, if that is too long.
    pub(crate) fn waited_in_vain(&self, now: Time, table: &MembershipTable, settings: &Settings) -> Option<Duration> {
        let patience = patience(table, settings);
        self.since.filter(|&since| now >= since + patience).map(|_| patience)
    }

    /// Members that neither come from the view before nor say for what they wait there, while no endpoint comes about
    /// and at most half of the members are late.
    fn late(&mut self, now: Time, tables: Tables<'_>, settings: &Settings) -> Vec<(NodeId, Cause)> {
        let table = tables.table;
        let StallLimits { disk, application } = settings.stall_limits;
        let limits = [settings.connect_timeout, disk, application].into_iter().filter(|&limit| limit < Duration::MAX);
        // The member has to come, and to be connected.
        let waited = limits.max().unwrap_or_default() + patience(table, settings);
        let rows = tables.lingers().map(|watched| watched.rows).unwrap_or_default();
        let is_quiet = |node: NodeId| {
            let mut rows = rows.iter().filter(|(_, of, _)| *of == node).peekable();
            rows.peek().is_some() && rows.all(|(_, _, waits)| waits.is_none())
        };
        let quiet: Vec<usize> = (0..table.len()).filter(|&member| is_quiet(table.node(member))).collect();
        self.lingering.retain(|member, _| quiet.contains(member));
        quiet.iter().for_each(|&member| _ = self.lingering.entry(member).or_insert(now));
        // A member that has cleaned up may be on its way to this node, like all others.
        let coming = self.since.unwrap_or(now);
        let late = self.lingering.iter().filter(|(_, since)| now.since(coming.max(**since)) >= waited);
        let late: Vec<NodeId> = late.map(|(&member, _)| table.node(member)).collect();
        if 2 * late.len() > table.len() {
            return Vec::new();
        }
        late.into_iter().map(|node| (node, Cause::Lingers { node, waited })).collect()
    }
}

/// The time for which no endpoint may come about until missing members are given up.
///
/// A node that has reached no other does not see what the others do, and is more likely cut off itself than all of
/// them. So it waits longer; the more members there are, the longer connecting them takes.
fn patience(table: &MembershipTable, settings: &Settings) -> Duration {
    let times = if table.reached() == 0 { table.len().max(2) as u32 } else { 2 };
    settings.connect_timeout * times / 2
}

/// Whether a break with this reason tells that the process has gone, or has gone on to another view.
pub(crate) fn has_departed(reason: &BreakReason) -> bool {
    matches!(reason, BreakReason::PeerClosed | BreakReason::ProcessGone)
}
