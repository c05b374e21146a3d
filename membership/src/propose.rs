//! The proposal of a wedged view's successor: the members whose turn it is, and the time of each turn.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use squall_fabric::{NodeId, Time};

use crate::{
    input::{Effect, Settings},
    lead::{Accusations, staying, staying_with},
    membership_table::MembershipTable,
    planned_change::may_go,
    reopen::reopening,
    return_report::ReturnReport,
    rules,
    view::{MAX_MEMBERS, Member, ShardId, ShardView},
    view_log::{Final, Finals, Proposal, Report},
};

/// The number of failure timeouts for which members that hold a shard's state, and may come back, are waited for. After
/// that the others go on without the state.
const LOSES_STATE_AFTER: u32 = 16;

/// The number of failure timeouts for which members that all leave wait for a decision, and the least such time: a view
/// log of which a majority is there decides in it. It may be that a node was taken in, with which the group goes on.
const LEAVES_AFTER: (u32, Duration) = (4, Duration::from_secs(3));

/// The time after which a node that leaves waits no longer for a decision.
pub(crate) fn leaves_after(settings: &Settings) -> Duration {
    let (timeouts, least) = LEAVES_AFTER;
    least.max(settings.failure_timeout * timeouts)
}

/// A member's progress towards a wedged view's successor.
#[derive(Debug, Default)]
pub(crate) struct Proposer {
    /// The time at which its own shards had reported their final counts.
    since: Option<Time>,
    /// The time since which it has waited for a decision without a pause.
    waits_since: Option<Time>,
    /// The time of the next look, if nothing changes. None: never.
    wake: Option<Time>,
    proposed: Option<(NextMembers, Time)>,
    /// The reports of other members, by rank.
    reports: BTreeMap<usize, BTreeMap<ShardId, Final>>,
    reported: Option<Time>,
    /// Whether another member has reported since, so that it needs this one's report.
    is_asked: bool,
    /// Whether this member has lost so many others that it would have to give up more than half of the view.
    is_alone: bool,
    stalled: bool,
}

/// The members of the next view.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NextMembers {
    stay: Vec<usize>,
    join: Vec<Member>,
}

/// The facts on which a proposal is based.
pub(crate) struct Facts<'a> {
    pub(crate) now: Time,
    pub(crate) settings: &'a Settings,
    pub(crate) table: &'a MembershipTable,
    pub(crate) candidates: &'a [Member],
    pub(crate) backs: &'a [ReturnReport],
}

impl Proposer {
    /// Notes that this member's final counts are known.
    pub(crate) fn begin(&mut self, now: Time) {
        if self.since.is_none() {
            (self.since, self.waits_since, self.wake) = (Some(now), Some(now), Some(now));
        }
    }

    /// Notes that this member is out of reach of more than half of the view.
    pub(crate) fn cut_off(&mut self) {
        self.is_alone = true;
    }

    /// Whether callers were told that nothing is decided for now.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Whether nothing was decided for so long that members which all leave wait no longer.
    pub(crate) fn waits_in_vain(&self, now: Time, settings: &Settings) -> bool {
        self.waits_since.is_some_and(|since| now >= since + leaves_after(settings))
    }

    /// Begins that wait anew: this node did not run for a while, and others may have decided meanwhile.
    pub(crate) fn wait_anew(&mut self, now: Time) {
        if self.since.is_some() {
            self.waits_since = Some(now);
        }
    }

    pub(crate) fn deadline(&self) -> Time {
        self.wake.unwrap_or(Time::MAX)
    }

    /// Notes that nothing can be decided for now. Returns whether that is new.
    pub(crate) fn stall(&mut self) -> bool {
        !std::mem::replace(&mut self.stalled, true)
    }

    /// Takes note of another member's report.
    pub(crate) fn on_report(&mut self, rank: usize, finals: BTreeMap<ShardId, Final>) {
        self.is_asked |= self.reports.insert(rank, finals).is_none();
    }

    /// Proposes the view that follows a wedged one, if it is this member's turn. Returns whether nothing can be decided
    /// for now.
    ///
    /// First in turn is the lowest rank of the members that stay when the table's accusations are settled. Then, after
    /// a back-off for each, come the others of these, and at last the members that would be dropped: any of them that
    /// still finds half of the view wedged. When that has led to nothing either, members report their final counts
    /// through the view log, and propose the members that have reported.
    pub(crate) fn decide(&mut self, facts: &Facts<'_>, out: &mut Vec<Effect>) -> bool {
        let Some(since) = self.since else { return false };
        let (now, timeout) = (facts.now, facts.settings.failure_timeout);
        self.report(since, facts, out);
        let accusations = facts.table.accusations();
        let place = facts.place_in_turn(&accusations);
        let turn = since + timeout * (place + 1) / 2;
        let by_reports = since + timeout * (place + 8) / 2;
        let led = facts.leads(&accusations).or_else(|| facts.remains(&accusations).filter(|_| now >= turn));
        let led = led.map(|stay| (facts.table.finals_of(&stay), stay));
        let reported = self.reporters(facts.table).filter(|_| now >= by_reports);
        let may_lose_state = now >= since + timeout * LOSES_STATE_AFTER;
        let plan = led.into_iter().chain(reported).find(|(finals, _)| may_lose_state || facts.keeps_state(finals));
        if let Some((finals, stay)) = plan {
            self.propose(facts, stay, finals, out);
        }
        // A member that is cut off itself has no member to wait for.
        let patient_until = if self.is_alone { since + timeout } else { by_reports };
        let again = self.proposed.as_ref().map(|(_, at)| *at + timeout);
        let times = [Some(turn), Some(patient_until), Some(by_reports), Some(self.report_at(since, timeout)), again];
        self.wake = times.into_iter().flatten().chain([now + timeout]).filter(|&time| time > now).min();
        now >= patient_until && self.proposed.is_none()
    }

    /// The members that have reported, with their final counts.
    fn reporters(&self, table: &MembershipTable) -> Option<(Finals, Vec<usize>)> {
        let me = table.me();
        let mut all: Vec<usize> = self.reports.keys().copied().chain([me]).collect();
        all.sort_unstable();
        let mut among = Accusations::none(table.len());
        for other in 0..table.len() {
            if !all.contains(&other) {
                among.accuse(me, other);
            }
            table.accused_by(other).filter(|_| all.contains(&other)).for_each(|whom| among.accuse(other, whom));
        }
        let half = |stay: &Vec<usize>| 2 * stay.len() >= table.len();
        let content = staying_with(&among, me);
        // If all accuse each other, the connections between them may have healed.
        let stay = Some(content).filter(half).or_else(|| Some(all).filter(half))?;
        let mut finals = Finals::new();
        let own = table.own_finals();
        for shard in &table.view().shards {
            let of = |&member: &usize| if member == me { Some(&own) } else { self.reports.get(&member) };
            // A report tells of its own sender.
            let own =
                |member: &usize| of(member)?.get(&shard.shard).copied().filter(|end| end.node == table.node(*member));
            let ends = stay.iter().filter_map(own);
            let in_order = |node: &NodeId| ends.clone().find(|end| end.node == *node);
            finals.insert(shard.shard, shard.members.iter().filter_map(in_order).collect());
        }
        Some((finals, stay))
    }

    /// The time of the next report.
    fn report_at(&self, since: Time, timeout: Duration) -> Time {
        self.reported.map_or(since + timeout * 3, |at| at + timeout * 2)
    }

    fn report(&mut self, since: Time, facts: &Facts<'_>, out: &mut Vec<Effect>) {
        let Facts { now, settings, table, .. } = facts;
        if *now < self.report_at(since, settings.failure_timeout) && !self.is_asked {
            return;
        }
        (self.reported, self.is_asked) = (Some(*now), false);
        let to = Arc::clone(table.view());
        let report = Report { epoch: to.epoch, member: table.member().clone(), finals: table.own_finals() };
        out.push(Effect::Report { to, report });
    }

    fn propose(&mut self, facts: &Facts<'_>, mut stay: Vec<usize>, mut finals: Finals, out: &mut Vec<Effect>) {
        let Facts { now, settings, table, .. } = *facts;
        // As many of the members that leave go now as half of the view can do without; the others go in the next views.
        for at in (0..stay.len()).rev() {
            if table.is_leaving(stay[at]) && 2 * (stay.len() - 1) >= table.len() && may_go(table, stay[at], &stay) {
                stay.remove(at);
            }
        }
        let nodes: Vec<NodeId> = stay.iter().map(|&member| table.node(member)).collect();
        let may_join = |candidate: &&Member| !nodes.contains(&candidate.node);
        let room = stay.len().min(MAX_MEMBERS - stay.len());
        let join: Vec<Member> = facts.candidates.iter().filter(may_join).take(room).cloned().collect();
        let plan = NextMembers { stay, join };
        let is_due = |(last, at): &(NextMembers, Time)| *last != plan || now >= *at + settings.failure_timeout;
        if self.proposed.as_ref().is_none_or(is_due) {
            // Those of members that do not stay tell what they hold.
            let gone: Vec<usize> = (0..table.len()).filter(|member| !plan.stay.contains(member)).collect();
            for (shard, ends) in table.finals_of(&gone) {
                finals.entry(shard).or_default().extend(ends);
            }
            let (view, by) = (table.view(), table.member().node);
            let stays = |member: &&Member| nodes.contains(&member.node);
            let members: Vec<Member> = view.members.iter().filter(stays).chain(&plan.join).cloned().collect();
            // A policy that is not quite a function of the members must not make views without end.
            let is_same = members == view.members && !view.preferred.is_empty();
            let asked = || settings.policy.preferred(&settings.layout, &members);
            let preferred = if is_same { view.preferred.clone() } else { asked() };
            let changes = (&nodes[..], &plan.join[..]);
            let proposal = reopening(view, &settings.layout, by, changes, &finals, facts.backs, preferred);
            tracing::info!(epoch = proposal.view.epoch.0, members = ?proposal.view.nodes(), trims = ?proposal.trims, "proposed");
            out.push(Effect::Propose(proposal));
            self.proposed = Some((plan, now));
        }
    }
}

/// The view in which this member goes on alone, and the shards that start anew in it.
pub(crate) fn alone(table: &MembershipTable, settings: &Settings) -> (Proposal, Vec<ShardId>) {
    let own = table.own_finals();
    let ends = |shard: &ShardView| (shard.shard, own.get(&shard.shard).copied().into_iter().collect());
    let finals = table.view().shards.iter().map(ends).collect();
    rules::alone(table.view(), &settings.layout, table.member().node, &finals)
}

impl Facts<'_> {
    /// This member's place in the order of turns. The members that stay by the table's accusations come first, in rank
    /// order. A member that would be dropped leads only if these don't manage, since it drops the members that accuse
    /// it. It does not wait for members that it accuses: these can't lead it.
    fn place_in_turn(&self, accusations: &Accusations) -> u32 {
        let (staying, me) = (staying(accusations), self.table.me());
        let stays = |member: usize| staying.contains(&member);
        let key = |member: usize| (!stays(member), member);
        let comes_before = |&member: &usize| key(member) < key(me) && !self.table.suspects(me, member);
        let before = (0..self.table.len()).filter(comes_before).count();
        let place = if stays(me) { before } else { before.max(me) };
        place as u32
    }

    /// The members that stay, if this member leads them and all of them are wedged.
    fn leads(&self, accusations: &Accusations) -> Option<Vec<usize>> {
        let staying = staying(accusations);
        (staying.first() == Some(&self.table.me())).then_some(staying).filter(|staying| self.may_follow(staying))
    }

    /// The members that are left to this one once its accusations, and those against it, are settled.
    fn remains(&self, accusations: &Accusations) -> Option<Vec<usize>> {
        Some(staying_with(accusations, self.table.me())).filter(|staying| self.may_follow(staying))
    }

    fn may_follow(&self, staying: &[usize]) -> bool {
        2 * staying.len() >= self.table.len() && staying.iter().all(|&member| self.table.is_wedged(member))
    }

    /// Whether a member that holds its state stays of each shard, if any member holds it.
    fn keeps_state(&self, finals: &Finals) -> bool {
        let is_held =
            |shard: &ShardView| finals.get(&shard.shard).is_some_and(|ends| ends.iter().any(|end| end.complete));
        self.table.view().shards.iter().all(|shard| shard.complete.is_empty() || is_held(shard))
    }
}
