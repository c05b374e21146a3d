//! The proposal of a wedged view's successor: the members whose turn it is, and the time of each turn.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use squall_fabric::{NodeId, Time};

use crate::{
    active_view::{ActiveView, Phase},
    input::{Effect, Settings},
    lead::{Accusations, staying, staying_with},
    reopen::reopening,
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
#[derive(Debug)]
pub(crate) struct Proposer {
    /// The time at which its own shards had reported their final counts.
    since: Option<Time>,
    /// The time since which it has waited for a decision without a pause.
    waits_since: Option<Time>,
    /// The time of the next look, if nothing changes.
    wake: Time,
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

impl Default for Proposer {
    fn default() -> Proposer {
        Proposer {
            since: None,
            waits_since: None,
            wake: Time::MAX,
            proposed: None,
            reports: BTreeMap::new(),
            reported: None,
            is_asked: false,
            is_alone: false,
            stalled: false,
        }
    }
}

impl Proposer {
    /// Notes that this member's final counts are known.
    pub(crate) fn begin(&mut self, now: Time) {
        if self.since.is_none() {
            (self.since, self.waits_since, self.wake) = (Some(now), Some(now), now);
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
        self.wake
    }
}

impl ActiveView {
    /// Proposes the next view if it is this member's turn.
    ///
    /// First in turn is the lowest rank of the members that stay when the table's accusations are settled. Then, after
    /// a back-off for each, come the others of these, and at last the members that would be dropped: any of them that
    /// still finds half of the view wedged. When that has led to nothing either, members report their final counts
    /// through the view log, and propose the members that have reported.
    pub(crate) fn decide(&mut self, now: Time, settings: &Settings, candidates: &[Member], out: &mut Vec<Effect>) {
        let Some(since) = self.proposer.since.filter(|_| self.phase == Phase::Wedged) else { return };
        let timeout = settings.failure_timeout;
        self.report(since, now, settings, out);
        let accusations = self.table.accusations();
        let place = self.place_in_turn(&accusations);
        let turn = since + timeout * (place + 1) / 2;
        let by_reports = since + timeout * (place + 8) / 2;
        let led = self.leads(&accusations).or_else(|| self.remains(&accusations).filter(|_| now >= turn));
        let led = led.map(|stay| (self.finals_of_rows(&stay), stay));
        let reported = self.reporters().filter(|_| now >= by_reports);
        let may_lose_state = now >= since + timeout * LOSES_STATE_AFTER;
        let plan = led.into_iter().chain(reported).find(|(finals, _)| may_lose_state || self.keeps_state(finals));
        if let Some((finals, stay)) = plan {
            self.propose(now, settings, candidates, stay, &finals, out);
        }
        // A member that is cut off itself has no member to wait for.
        let patient_until = if self.proposer.is_alone { since + timeout } else { by_reports };
        if now >= patient_until && self.proposer.proposed.is_none() {
            self.stall(out);
        }
        let again = self.proposer.proposed.as_ref().map(|(_, at)| *at + timeout);
        let report = self.proposer.reported.map_or(since + timeout * 3, |at| at + timeout * 2);
        let times = [Some(turn), Some(patient_until), Some(by_reports), Some(report), again, Some(now + timeout)];
        self.proposer.wake = times.into_iter().flatten().filter(|&time| time > now).min().unwrap_or(Time::MAX);
    }

    /// Tells callers that nothing is decided for now.
    pub(crate) fn stall(&mut self, out: &mut Vec<Effect>) {
        if self.phase == Phase::Wedged && !std::mem::replace(&mut self.proposer.stalled, true) {
            self.touched = true;
            let cause = self.cause.as_ref().map_or_else(String::new, |cause| format!(" ({cause})"));
            out.push(Effect::Stalled(format!(
                "too few members can be reached to decide what follows {}{cause}",
                self.view.epoch
            )));
        }
    }

    /// Takes note of another member's report. The report tells, if nothing else did, that the view is over.
    pub(crate) fn on_report(&mut self, report: &Report, out: &mut Vec<Effect>) {
        let rank = self.view.members.iter().position(|member| *member == report.member);
        let Some(rank) = rank.filter(|&rank| report.epoch == self.view.epoch && rank != self.me) else { return };
        let node = report.member.node;
        self.wedge(crate::end::Cause::WedgedBy { node, accused: Vec::new() }, out);
        self.proposer.is_asked |= self.proposer.reports.insert(rank, report.finals.clone()).is_none();
    }

    /// This member's place in the order of turns. The members that stay by the table's accusations come first, in rank
    /// order. A member that would be dropped leads only if these don't manage, since it drops the members that accuse
    /// it. It does not wait for members that it accuses: these can't lead it.
    fn place_in_turn(&self, accusations: &Accusations) -> u32 {
        let staying = staying(accusations);
        let stays = |member: usize| staying.contains(&member);
        let key = |member: usize| (!stays(member), member);
        let comes_before = |&member: &usize| key(member) < key(self.me) && !self.table.suspects(self.me, member);
        let before = (0..self.table.len()).filter(comes_before).count();
        let place = if stays(self.me) { before } else { before.max(self.me) };
        place as u32
    }

    /// The members that stay, if this member leads them and all of them are wedged.
    fn leads(&self, accusations: &Accusations) -> Option<Vec<usize>> {
        let staying = staying(accusations);
        (staying.first() == Some(&self.me)).then_some(staying).filter(|staying| self.may_follow(staying))
    }

    /// The members that are left to this one once its accusations, and those against it, are settled.
    fn remains(&self, accusations: &Accusations) -> Option<Vec<usize>> {
        Some(staying_with(accusations, self.me)).filter(|staying| self.may_follow(staying))
    }

    fn may_follow(&self, staying: &[usize]) -> bool {
        2 * staying.len() >= self.table.len() && staying.iter().all(|&member| self.table.is_wedged(member))
    }

    /// The members that have reported, with their final counts.
    fn reporters(&self) -> Option<(Finals, Vec<usize>)> {
        let mut all: Vec<usize> = self.proposer.reports.keys().copied().chain([self.me]).collect();
        all.sort_unstable();
        let mut among = Accusations::none(self.table.len());
        for other in 0..self.table.len() {
            if !all.contains(&other) {
                among.accuse(self.me, other);
            }
            self.table.accused_by(other).filter(|_| all.contains(&other)).for_each(|whom| among.accuse(other, whom));
        }
        let half = |stay: &Vec<usize>| 2 * stay.len() >= self.table.len();
        let content = staying_with(&among, self.me);
        // If all accuse each other, the connections between them may have healed.
        let stay = Some(content).filter(half).or_else(|| Some(all).filter(half))?;
        let mut finals = Finals::new();
        let own = self.own_finals();
        for shard in &self.view.shards {
            let of = |&member: &usize| if member == self.me { Some(&own) } else { self.proposer.reports.get(&member) };
            let ends = stay.iter().filter_map(|member| of(member)?.get(&shard.shard).copied());
            let in_order = |node: &NodeId| ends.clone().find(|end| end.node == *node);
            finals.insert(shard.shard, shard.members.iter().filter_map(in_order).collect());
        }
        Some((finals, stay))
    }

    /// Whether a member that holds its state stays of each shard, if any member holds it.
    fn keeps_state(&self, finals: &Finals) -> bool {
        let is_held =
            |shard: &ShardView| finals.get(&shard.shard).is_some_and(|ends| ends.iter().any(|end| end.complete));
        self.view.shards.iter().all(|shard| shard.complete.is_empty() || is_held(shard))
    }

    fn finals_of_rows(&self, stay: &[usize]) -> Finals {
        let mut finals = Finals::new();
        for (index, shard) in self.view.shards.iter().enumerate() {
            let members = shard.members.iter().filter_map(|&node| self.table.rank_of(node));
            let end = |member: usize| Final {
                node: self.table.node(member),
                count: self.table.frozen(member, index),
                complete: self.holds(member, index),
                on_disk: self.is_on_disk(member, index),
            };
            finals.insert(shard.shard, members.filter(|member| stay.contains(member)).map(end).collect());
        }
        finals
    }

    /// Adds the final counts of members that do not stay, which tell what they hold.
    fn with_holders(&self, mut finals: Finals, stay: &[usize]) -> Finals {
        let gone: Vec<usize> = (0..self.table.len()).filter(|member| !stay.contains(member)).collect();
        for (shard, ends) in self.finals_of_rows(&gone) {
            finals.entry(shard).or_default().extend(ends);
        }
        finals
    }

    fn own_finals(&self) -> BTreeMap<ShardId, Final> {
        let node = self.member().node;
        let end = |(index, shard): (usize, ShardId)| {
            let (complete, on_disk) = (self.holds(self.me, index), self.is_on_disk(self.me, index));
            Some((shard, Final { node, count: *self.frozen.get(&shard)?, complete, on_disk }))
        };
        self.shards().filter_map(end).collect()
    }

    /// See [`Membership::forced`](crate::Membership::forced).
    pub(crate) fn forced(&self, settings: &Settings) -> Option<(Proposal, Vec<ShardId>)> {
        if self.phase != Phase::Wedged || !self.is_frozen() {
            return None;
        }
        let own = self.own_finals();
        let ends = |shard: &ShardView| (shard.shard, own.get(&shard.shard).copied().into_iter().collect());
        let finals = self.view.shards.iter().map(ends).collect();
        Some(rules::alone(&self.view, &settings.layout, self.member().node, &finals))
    }

    fn report(&mut self, since: Time, now: Time, settings: &Settings, out: &mut Vec<Effect>) {
        let timeout = settings.failure_timeout;
        let due = self.proposer.reported.map_or(since + timeout * 3, |at| at + timeout * 2);
        if now < due && !self.proposer.is_asked {
            return;
        }
        (self.proposer.reported, self.proposer.is_asked) = (Some(now), false);
        let report = Report { epoch: self.view.epoch, member: self.member().clone(), finals: self.own_finals() };
        out.push(Effect::Report { to: Arc::clone(&self.view), report });
    }

    fn propose(
        &mut self,
        now: Time,
        settings: &Settings,
        candidates: &[Member],
        mut stay: Vec<usize>,
        finals: &Finals,
        out: &mut Vec<Effect>,
    ) {
        // As many of the members that leave go now as half of the view can do without; the others go in the next views.
        for at in (0..stay.len()).rev() {
            if self.table.is_leaving(stay[at])
                && 2 * (stay.len() - 1) >= self.table.len()
                && self.may_go(stay[at], &stay)
            {
                stay.remove(at);
            }
        }
        let nodes: Vec<NodeId> = stay.iter().map(|&member| self.table.node(member)).collect();
        let may_join = |candidate: &&Member| !nodes.contains(&candidate.node);
        let room = stay.len().min(MAX_MEMBERS - stay.len());
        let join: Vec<Member> = candidates.iter().filter(may_join).take(room).cloned().collect();
        let plan = NextMembers { stay, join };
        let is_due = |(last, at): &(NextMembers, Time)| *last != plan || now >= *at + settings.failure_timeout;
        if self.proposer.proposed.as_ref().is_none_or(is_due) {
            let by = self.member().node;
            let finals = self.with_holders(finals.clone(), &plan.stay);
            let proposal = reopening(&self.view, &settings.layout, by, &nodes, &plan.join, &finals, &self.backs);
            tracing::info!(epoch = proposal.view.epoch.0, members = ?proposal.view.nodes(), trims = ?proposal.trims, "proposed");
            out.push(Effect::Propose(proposal));
            self.proposer.proposed = Some((plan, now));
        }
    }
}
