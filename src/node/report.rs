//! The report of an engine's node on its cluster, for operators.

use std::collections::BTreeMap;

use crossbeam::channel::Sender;
use squall_fabric::{NodeId, Time, Wait};
use squall_membership::{Member, Proposal, Rank, ShardId, ShardState, ShardView, Stall, View};

use super::{
    engine::{Engine, Forced},
    group_slot::GroupSlot,
    returning::waits_for,
};
use crate::{
    calls::{clock::Now, error::list},
    clients::admin::{
        CandidateReport, ClientsReport, EmptiedShard, MemberReport, NodeCondition, RowReport, ShardCondition,
        ShardReport, StallReport, StatusReport,
    },
    fabric::NodeFabric,
};

impl<F: NodeFabric + Wait> Engine<F> {
    /// Adds the engine's knowledge to a report about the view log.
    pub(super) fn report(&self, mut report: StatusReport, now: Time) -> StatusReport {
        let membership = self.core.membership();
        report.condition = self.condition(report.node, now);
        report.waits.extend(self.waits(now));
        report.up_ms = Some(now.since(self.activity.started).as_millis() as u64);
        report.views_installed = self.watch.views();
        report.configured.clone_from(&self.configured);
        report.clients = self.watch.clients().map(|clients| {
            let [calls_per_second] = self.activity.calls.per_second();
            ClientsReport { connected: clients.connected() as u64, calls: clients.calls(), calls_per_second }
        });
        report.candidates = membership.candidates().iter().map(candidate).collect();
        let Some(view) = self.core.view() else { return report };
        report.epoch = Some(view.epoch.0);
        report.leader = membership.leader();
        report.members = view.members.iter().enumerate().map(|(rank, member)| self.member(member, rank, now)).collect();
        (report.joined, report.left) = (view.joined.clone(), view.left.clone());
        report.clock = self.core.bound().warning(Now::Boot.wall(), now);
        let is_of_group = |shard: &&ShardView| self.groups.contains_key(&shard.shard);
        let going = membership.going();
        report.shards = view.shards.iter().filter(is_of_group).map(|shard| self.shard(shard, view, &going)).collect();
        report.stalls = self.core.stalls(now).into_iter().map(|stall| self.stall(stall, now)).collect();
        report
    }

    fn stall(&self, stall: Stall, now: Time) -> StallReport {
        let group = self.group_name(stall.shard);
        let for_ms = now.since(stall.since).as_millis() as u64;
        StallReport { node: stall.node, shard: stall.shard.0, group, waits_for: stall.waits_for, for_ms }
    }

    fn condition(&self, me: NodeId, now: Time) -> NodeCondition {
        if let Some(reason) = self.watch.end_reason() {
            return NodeCondition::Ended(reason.to_string());
        }
        let log = self.monitor.status();
        // A member whose view needs no decision goes on.
        if let Some(why) = log.stuck.filter(|_| self.stalled.is_some() || self.core.view().is_none()) {
            return NodeCondition::Stalled(why);
        }
        if let Some(why) = &self.stalled {
            let elsewhere = log.other_life.map_or_else(String::new, |node| {
                format!(
                    "; an operator forced the group to begin anew at {node}, from an earlier view than this node's: to give up \
                     what it has delivered since, and join, start it again"
                )
            });
            return NodeCondition::Stalled(format!("{why}{elsewhere}"));
        }
        if let Some(at) = self.core.membership().rejoins_at() {
            return NodeCondition::Waiting { rejoins_in_ms: at.since(now).as_millis() as u64 };
        }
        if self.core.view().is_none() && !log.waits_for.is_empty() {
            return NodeCondition::Stalled(waits_for(&log.waits_for));
        }
        let is_wedged = |view: &View| view.rank_of(me).is_some_and(|rank| self.core.membership().is_wedged(rank));
        match self.core.view() {
            Some(view) if is_wedged(view) => NodeCondition::Wedged,
            Some(_) => NodeCondition::Member,
            None if self.configured.contains(&me) && log.cluster.is_none() => NodeCondition::Forming,
            None => NodeCondition::Joining,
        }
    }

    fn member(&self, member: &Member, rank: usize, now: Time) -> MemberReport {
        let evidence = self.core.membership().evidence(Rank(rank as u32));
        let is_other = member.node != self.monitor.me().node;
        let (transport, unshared) = if is_other { self.core.transport(member.node) } else { (None, None) };
        MemberReport {
            node: member.node,
            incarnation: member.incarnation.0,
            addresses: member.addresses.clone(),
            rack: member.rack.clone(),
            transport,
            unshared,
            heartbeat_age_ms: evidence
                .filter(|_| is_other)
                .map(|evidence| now.since(evidence.heartbeat).as_millis() as u64),
            clock_ahead_ms: self.core.bound().ahead_ms(member.node, Now::Boot.wall(), now),
            suspected: evidence.is_some_and(|evidence| evidence.suspected),
            wedged: evidence.is_some_and(|evidence| evidence.wedged),
            leaving: evidence.is_some_and(|evidence| evidence.leaving),
            short_of_room: evidence.is_some_and(|evidence| evidence.short_of_room),
        }
    }

    fn shard(&self, shard: &ShardView, view: &View, going: &BTreeMap<ShardId, Vec<NodeId>>) -> ShardReport {
        let goes = |node: &NodeId| going.get(&shard.shard).is_some_and(|going| going.contains(node));
        let slot = self.groups.get(&shard.shard);
        let log = slot.and_then(|group| group.control.history().status());
        let row = |&node: &NodeId| {
            let row = self.core.row(shard.shard, node).unwrap_or_default();
            RowReport {
                node,
                sender: shard.sender_rank_of(node).is_some(),
                complete: shard.is_complete(node),
                goes: goes(&node),
                sent: row.sent,
                received: row.received,
                delivered: row.delivered,
                persisted: log.is_some().then_some(row.persisted),
                lag: 0,
            }
        };
        let group = slot.map_or_else(String::new, |group| group.control.name().to_owned());
        let fetching = slot.and_then(GroupSlot::fetching);
        let condition = match &shard.state {
            ShardState::Active => ShardCondition::Active,
            ShardState::Inadequate => ShardCondition::Inadequate,
            ShardState::Suspended { acknowledged, .. } => {
                let (last_holders, all_back) = (shard.waits_for(), shard.are_all_back(&view.members));
                ShardCondition::Suspended { last_holders, acknowledged: *acknowledged, all_back }
            }
        };
        let rows = shard.members.iter().map(row).collect();
        let traffic = slot.map(GroupSlot::traffic).unwrap_or_default();
        ShardReport { shard: shard.shard.0, group, condition, traffic, fetching, log, rows }.with_lags()
    }

    /// Goes on alone, if this node can't go on otherwise. The answer comes later: the view that it will be, and the
    /// shards that start empty in it.
    pub(super) fn recover(&self, reason: String, reply: Sender<Result<Forced, String>>) {
        match self.forced(reason) {
            // The caller that asked may have gone.
            Err(why) => _ = reply.send(Err(why)),
            Ok((proposal, emptied, reason)) => {
                let epoch = proposal.view.epoch;
                self.monitor.force(proposal, reason, move |done| {
                    let _ = reply.send(done.map(|()| (epoch, emptied)).map_err(|why| why.to_string()));
                });
            }
        }
    }

    /// The reason for which this node is not forced to go on while it does not stand still, and the advice what to do
    /// instead.
    fn not_forced(&self) -> String {
        let log = self.monitor.status();
        let me = self.monitor.me().node;
        let mut others: Vec<NodeId> = log.voters.iter().map(|(node, _)| *node).filter(|node| *node != me).collect();
        others.sort_unstable();
        let (others, epoch) = (list(&others), log.epoch.map_or_else(String::new, |epoch| format!(" with {epoch}")));
        match self.core.view() {
            None => format!(
                "it is in no view: the others went on without it{epoch}, and it asks to join them. Force one that was left ({others} \
                 decide), once `squall status` says of it that it can't go on. If all of these are lost for ever, so is what they \
                 held: end this node, and start it together with new ones"
            ),
            Some(view) if view.rank_of(me).is_some_and(|rank| self.core.membership().is_wedged(rank)) => format!(
                "it waits for the nodes that decide ({others}), which may still answer: try again once `squall status` says that it \
                 can't go on, which takes a few seconds"
            ),
            Some(view) => format!(
                "it can go on: it is a member of {}, and the others have not been lost to it. Only a node of which `squall status` \
                 says that it can't go on may be forced to",
                view.epoch
            ),
        }
    }

    /// The reason for which this node is not forced to go on with the contents of its disk.
    fn not_forced_from_disk(&self, last: Option<&Proposal>) -> String {
        match last {
            Some(last) if last.view.rank_of(self.monitor.me().node).is_none() => self.not_forced(),
            _ => "it was started again, and its disk has nothing of the last view that it knows of: start the nodes for which it waits, \
                  or force one that was a member of that view"
                .into(),
        }
    }

    /// The view that an operator forces, the shards that start empty, and the reason for the record.
    fn forced(&self, mut reason: String) -> Result<(Proposal, Vec<EmptiedShard>, String), String> {
        let (log, membership) = (self.monitor.status(), self.core.membership());
        let is_stuck = self.stalled.is_some() || self.core.view().is_none() && !log.waits_for.is_empty();
        let (proposal, anew) = match self.core.view() {
            _ if !is_stuck => return Err(self.not_forced()),
            Some(_) => {
                membership.forced().ok_or("what follows its view is decided meanwhile: nothing is to be forced")?
            }
            None => membership
                .forced_from_disk(log.outside.as_ref())
                .ok_or_else(|| self.not_forced_from_disk(log.outside.as_ref()))?,
        };
        if let Some(shard) = anew.iter().find(|shard| self.is_stale(**shard)) {
            let (number, group) = (shard.0, self.group_name(*shard));
            return Err(format!(
                "its replica of shard {number} of {group:?} is not what its log says: end this node, repair the log or cut it \
                 (`squall log repair --help`, `squall log cut --help`) if it is damaged, start the node again, and force it then"
            ));
        }
        let emptied: Vec<EmptiedShard> =
            anew.into_iter().map(|shard| self.emptied(shard, log.outside.as_ref())).collect();
        for shard in &emptied {
            tracing::warn!("{shard}");
            reason = format!("{reason}; {shard}");
        }
        Ok((proposal, emptied, reason))
    }

    /// A shard that starts without the part of it that this node does not hold. `last` is the last view, if this node
    /// is in none.
    fn emptied(&self, shard: ShardId, last: Option<&Proposal>) -> EmptiedShard {
        let view = self.core.view().or(last.map(|last| &last.view));
        let held_by = view.and_then(|view| view.shard(shard)).map(|view| match &view.state {
            ShardState::Suspended { .. } => view.waits_for(),
            ShardState::Active | ShardState::Inadequate => view.complete.clone(),
        });
        let group = self.groups.get(&shard);
        let version =
            group.and_then(|group| group.control.log_writer()).map_or(0, |log_writer| log_writer.end().version);
        EmptiedShard { shard: shard.0, group: self.group_name(shard), version, held_by: held_by.unwrap_or_default() }
    }

    pub(super) fn group_name(&self, shard: ShardId) -> String {
        self.groups.get(&shard).map(|group| group.control.name().to_owned()).unwrap_or_default()
    }

    /// Whether a durable shard's replica is not the state at its log's end, so that nothing can go on from it.
    fn is_stale(&self, shard: ShardId) -> bool {
        let group = self.groups.get(&shard);
        group.and_then(|group| group.control.log_writer()).is_some_and(|log_writer| log_writer.is_stale())
    }
}

fn candidate(member: &Member) -> CandidateReport {
    CandidateReport { node: member.node, incarnation: member.incarnation.0, addresses: member.addresses.clone() }
}
