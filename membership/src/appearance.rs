//! The appearance of members in a view that is in force.

use std::{collections::BTreeMap, time::Duration};

use squall_fabric::{BreakReason, NodeId, Time};

use crate::{end::Cause, input::Settings, membership_table::MembershipTable, stall::StallLimits, tables::Tables};

/// The part of the failure timeout (its divisor) within which a member must appear after bad news of it, if it was in
/// order when the view was decided.
const PENDING_FOR: u32 = 4;

/// The number of limits of its disk and its application, taken together, for which a member may clean up the view
/// before. It may say for ever that it gets on with it.
const LINGERS_FOR: u32 = 8;

/// The least time for which rows of others that tell of new endpoints keep this node waiting, from its last own one.
const BELIEVED_FOR: Duration = Duration::from_secs(10);

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
/// any member whose row says so. Each endpoint comes about once, so this has an end. Rows may say anything: they count
/// for a connect timeout for each member, and at least [`BELIEVED_FOR`], from the last endpoint here.
#[derive(Debug, Default)]
pub(crate) struct Appearance {
    /// The number of the shards' endpoints that came about here.
    shards: u64,
    /// The most endpoints that have existed at this node at one time.
    here: u64,
    /// The numbers of endpoints that this node and the rows of the others knew of at the last look.
    known: (u64, u64),
    /// The time at which the first number grew last.
    grown_here: Option<Time>,
    /// The time at which a number grew last that counts.
    since: Option<Time>,
    suspicions: Vec<PendingSuspicion>,
    /// The members that are late for this view.
    lingering: BTreeMap<usize, Lingering>,
}

/// A member that cleans up the view before.
#[derive(Clone, Copy, Debug)]
struct Lingering {
    since: Time,
    /// The time since which its row does not say for what it waits.
    quiet: Option<Time>,
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
        (self.since, self.grown_here) = (Some(now), Some(now));
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
        self.count(now, tables, settings);
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
    fn count(&mut self, now: Time, tables: Tables<'_>, settings: &Settings) {
        let (here, elsewhere) = (self.endpoints_here(tables), tables.table.endpoints_elsewhere());
        if here > self.known.0 || self.since.is_none() {
            self.wait_anew(now);
        }
        let believed = (settings.connect_timeout * tables.table.len() as u32).max(BELIEVED_FOR);
        if elsewhere > self.known.1 && self.grown_here.is_none_or(|at| now < at + believed) {
            self.since = Some(now);
        }
        self.known = (here, elsewhere);
    }

    /// The time for which no endpoint has come about, if that is too long.
    pub(crate) fn waited_in_vain(&self, now: Time, table: &MembershipTable, settings: &Settings) -> Option<Duration> {
        let patience = patience(table, settings);
        self.since.filter(|&since| now >= since + patience).map(|_| patience)
    }

    /// Members that neither come from the view before nor say for what they wait there, while no endpoint comes about
    /// and at most half of the members are late; or that have said so for too long.
    fn late(&mut self, now: Time, tables: Tables<'_>, settings: &Settings) -> Vec<(NodeId, Cause)> {
        let table = tables.table;
        let StallLimits { disk, application } = settings.stall_limits;
        let limits = [settings.connect_timeout, disk, application].into_iter().filter(|&limit| limit < Duration::MAX);
        // The member has to come, and to be connected.
        let waited = limits.max().unwrap_or_default() + patience(table, settings);
        let longest = disk.checked_add(application).and_then(|both| both.checked_mul(LINGERS_FOR));
        let longest = longest.map_or(Duration::MAX, |longest| longest.max(waited));
        let rows = tables.lingers().map(|watched| watched.rows).unwrap_or_default();
        let lingers = |member: usize| rows.iter().filter(move |(_, of, _)| *of == table.node(member)).peekable();
        self.lingering.retain(|&member, _| lingers(member).peek().is_some());
        for member in (0..table.len()).filter(|&member| lingers(member).peek().is_some()) {
            let seen = self.lingering.entry(member).or_insert(Lingering { since: now, quiet: None });
            let is_quiet = lingers(member).all(|(_, _, waits)| waits.is_none());
            seen.quiet = is_quiet.then(|| seen.quiet.unwrap_or(now));
        }
        // A member that has cleaned up may be on its way to this node, like all others.
        let coming = self.since.unwrap_or(now);
        let late_by = |seen: &Lingering| {
            let is_silent = seen.quiet.is_some_and(|since| now.since(coming.max(since)) >= waited);
            // A pause of this node's, or an endpoint here, begins the time anew.
            let since = self.grown_here.unwrap_or(now).max(seen.since);
            let is_endless = seen.quiet.is_none() && now.since(since) >= longest;
            is_silent.then_some(waited).or(is_endless.then_some(longest))
        };
        let late = self.lingering.iter().filter_map(|(&member, seen)| Some((table.node(member), late_by(seen)?)));
        let late: Vec<(NodeId, Duration)> = late.collect();
        if 2 * late.len() > table.len() {
            return Vec::new();
        }
        late.into_iter().map(|(node, waited)| (node, Cause::Lingers { node, waited })).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Epoch,
        membership_table_tests::{Connected, view},
        rejoin_backoff::tests::settings as any_settings,
        stall::{Waits, WaitsFor},
    };

    const SECOND: Duration = Duration::from_secs(1);

    fn settings() -> Settings {
        let stall_limits = StallLimits { disk: SECOND, application: 2 * SECOND };
        Settings { connect_timeout: SECOND, stall_limits, ..any_settings() }
    }

    /// Looks from the first node each tenth of a second, after the others have acted, until it gives some up. Returns
    /// the time and these.
    fn given_up(
        tables: &mut Connected,
        mut previous: Option<&mut Connected>,
        mut act: impl FnMut(&mut Connected, Option<&mut Connected>),
    ) -> (Duration, Vec<NodeId>) {
        let mut appearance = Appearance::default();
        for tenth in 0..1000 {
            act(tables, previous.as_deref_mut());
            tables.run();
            previous.iter_mut().for_each(|previous| previous.run());
            let both = Tables { table: &tables.tables[0], previous: previous.as_ref().map(|view| &view.tables[0]) };
            let passed = SECOND / 10 * tenth;
            let gone = appearance.look(Time::ZERO + passed, both, &settings());
            if !gone.is_empty() {
                return (passed, gone.into_iter().map(|(node, _)| node).collect());
            }
        }
        panic!("nobody is given up");
    }

    #[test]
    fn a_row_that_tells_of_new_endpoints_for_ever_is_not_believed_for_ever() {
        let nodes = [1, 2, 3].map(NodeId);
        let view = view(Epoch::FIRST, &nodes);
        let quiet = given_up(&mut Connected::new(&view, 2), None, |_, _| {});
        assert_eq!(quiet, (SECOND, vec![nodes[2]]), "the one that does not come");
        let mut told = 0;
        let (passed, gone) = given_up(&mut Connected::new(&view, 2), None, |view, _| {
            told += 1;
            view.tables[1].tell_endpoints(told);
        });
        assert_eq!(gone, [nodes[2]]);
        assert!((BELIEVED_FOR..=BELIEVED_FOR + SECOND).contains(&passed), "{passed:?}");
    }

    #[test]
    fn a_member_is_waited_for_while_endpoints_come_about_here() {
        let nodes = [1, 2].map(NodeId);
        let (before, after) = (view(Epoch::FIRST, &nodes), view(Epoch(Epoch::FIRST.0 + 1), &nodes));
        let (mut previous, tables) = (Connected::new(&before, 2), Connected::new(&after, 1));
        previous.tables[1].decide();
        previous.run();
        let both = Tables { table: &tables.tables[0], previous: Some(&previous.tables[0]) };
        let mut appearance = Appearance::default();
        for tenth in 0..1000 {
            appearance.endpoint();
            let gone = appearance.look(Time::ZERO + SECOND / 10 * tenth, both, &settings());
            assert!(gone.is_empty(), "after {tenth} tenths of a second: {gone:?}");
        }
    }

    #[test]
    fn a_member_that_says_for_ever_that_it_cleans_up_is_given_up() {
        let nodes = [1, 2].map(NodeId);
        let (before, after) = (view(Epoch::FIRST, &nodes), view(Epoch(Epoch::FIRST.0 + 1), &nodes));
        let (mut previous, mut tables) = (Connected::new(&before, 2), Connected::new(&after, 1));
        previous.tables[1].decide();
        let mut at = 0;
        let (passed, gone) = given_up(&mut tables, Some(&mut previous), |_, previous| {
            at += 1;
            let waits = Waits { waits_for: WaitsFor::Application, at };
            previous.expect("a view before").tables[1].set_waits(0, Some(waits));
        });
        assert_eq!((passed, gone), (3 * SECOND * LINGERS_FOR, vec![nodes[1]]));
    }
}
