//! The steps of a node in a view, each by what its table and the clock say.

use std::{collections::BTreeSet, sync::Arc};

use squall_fabric::{Fabric, Time};

use super::{ActiveView, Phase};
use crate::{
    end::Cause,
    input::{Effect, Settings},
    planned_change,
    propose::Facts,
    tables::Tables,
    view::Member,
    view_log::{Final, Trims},
};

impl ActiveView {
    /// Looks at the table and the clock, and pushes the changes. Returns whether anything changed.
    pub(crate) fn step(
        &mut self,
        fabric: &mut impl Fabric,
        (now, wall): (Time, u64),
        settings: &Settings,
        candidates: &[Member],
        out: &mut Vec<Effect>,
    ) -> bool {
        let (changed, mut signal) = self.table.refresh();
        if changed {
            self.clocks.look(now, |member| self.table.clock(member));
        }
        signal |= std::mem::take(&mut self.touched);
        self.room.is_due |= changed || signal;
        if let Some(previous) = &mut self.previous {
            previous.refresh();
        }
        if signal && !self.closes && self.table.is_closing() {
            (self.closes, self.touched) = (true, true);
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            self.to_suspect.clone().into_iter().for_each(|node| self.suspect(node, Cause::Operator { node }, out));
        }
        // Not while the shards are only asked to wedge: they may have echoed in this step, after its clock was read.
        if self.is_frozen() {
            self.leases.ceased(now);
            self.proposer.begin(now);
        }
        if now >= self.next_beat {
            self.table.tell_clock(wall);
            self.beat(now, settings, out);
        }
        if signal && self.is_open() {
            self.look_whether_others_end(out);
            for node in planned_change::restarted(self.view(), candidates) {
                self.suspect(node, Cause::Restarted { node }, out);
            }
        }
        match self.phase {
            Phase::Connecting => self.connect(fabric, now, settings, out),
            Phase::Running if signal || self.wanted.is_some() => {
                self.look_whether_to_ask(now, settings, candidates, out);
            }
            Phase::Wedged if signal || now >= self.proposer.deadline() => {
                self.look_whether_counts_fall(out);
                self.decide(now, settings, candidates, out);
            }
            Phase::Waiting if now >= self.leases_over() => self.clean_up(out),
            _ => {}
        }
        self.table.push(fabric);
        if let Some(previous) = &mut self.previous {
            previous.push(fabric);
        }
        changed || signal
    }

    pub(crate) fn deadline(&self, settings: &Settings) -> Time {
        if self.touched {
            return Time::ZERO;
        }
        let due = match self.phase {
            Phase::Connecting => self.appearance.deadline(self.tables(), settings),
            Phase::Running => {
                self.wanted.map_or(Time::MAX, |since| planned_change::may_ask_at(&self.table, since, settings))
            }
            Phase::Wedged => self.proposer.deadline(),
            Phase::Waiting => self.leases_over(),
            Phase::CleaningUp | Phase::Over => Time::MAX,
        };
        due.min(self.next_beat)
    }

    /// Goes on to work once all members and shards are connected, and suspects members that do not appear.
    fn connect(&mut self, fabric: &mut impl Fabric, now: Time, settings: &Settings, out: &mut Vec<Effect>) {
        if self.table.is_connected() && self.shards_connected {
            tracing::info!(epoch = self.view().epoch.0, members = self.table.len(), "the view is connected");
            self.phase = Phase::Running;
            self.touched = true;
            self.disconnect_previous(fabric);
            out.push(Effect::Installed(Arc::clone(self.view())));
            return;
        }
        let tables = Tables { table: &self.table, previous: self.previous.as_ref() };
        for (node, cause) in self.appearance.look(now, tables, settings) {
            self.suspect(node, cause, out);
        }
        if let Some(waited) = self.appearance.waited_in_vain(now, &self.table, settings)
            && self.table.is_connected()
            && self.is_open()
        {
            self.table.ask();
            self.wedge(Cause::NotConnected { waited }, out);
        }
    }

    /// Asks for another view if a node can join, a shard is reopened, or this node's part in its shards has changed.
    fn look_whether_to_ask(&mut self, now: Time, settings: &Settings, candidates: &[Member], out: &mut Vec<Effect>) {
        if !planned_change::has_become_complete(&self.table) {
            if !planned_change::can_change(&self.table, candidates, &self.backs) {
                self.wanted = None;
                return;
            }
            let since = *self.wanted.get_or_insert(now);
            if now < planned_change::may_ask_at(&self.table, since, settings) {
                return;
            }
        }
        self.table.ask();
        self.wedge(Cause::Asked, out);
    }

    fn look_whether_counts_fall(&mut self, out: &mut Vec<Effect>) {
        let me = self.table.me();
        for member in (0..self.table.len()).filter(|&member| member != me) {
            if let Some(why) = self.table.falls_back(member) {
                let node = self.table.node(member);
                self.suspect(node, Cause::Faulty { node, why }, out);
            }
        }
    }

    /// Proposes the next view if it is this member's turn.
    fn decide(&mut self, now: Time, settings: &Settings, candidates: &[Member], out: &mut Vec<Effect>) {
        let facts = Facts { now, settings, table: &self.table, candidates, backs: &self.backs };
        if self.proposer.decide(&facts, out) {
            self.stall(out);
        }
    }

    fn beat(&mut self, now: Time, settings: &Settings, out: &mut Vec<Effect>) {
        self.next_beat = now + self.detector.interval();
        self.table.beat();
        if let Some(previous) = &mut self.previous {
            previous.beat();
        }
        let tables = Tables { table: &self.table, previous: self.previous.as_ref() };
        let endpoints = self.appearance.endpoints_here(tables);
        let mut silent = self.detector.look(now, |member| tables.signs_of_life(member));
        // No clock runs against a member that has never been heard.
        silent.retain(|&member| tables.was_heard(member));
        self.table.tell_endpoints(endpoints);
        if self.detector.has_stalled() {
            self.appearance.wait_anew(now);
            self.proposer.wait_anew(now);
        }
        for member in silent {
            let (node, timeout) = (self.table.node(member), settings.failure_timeout);
            self.suspect(node, Cause::Silent { node, timeout }, out);
        }
    }

    fn look_whether_others_end(&mut self, out: &mut Vec<Effect>) {
        let others = (0..self.table.len()).filter(|&member| member != self.table.me());
        if let Some(by) = others.clone().find(|&member| self.table.suspects(member, self.table.me())) {
            return self.wedge(Cause::GivenUp { by: self.table.node(by) }, out);
        }
        let ending = others.filter(|&member| self.table.ends(member));
        if let Some(by) = ending.min_by_key(|&member| self.table.accused_by(member).next().is_none()) {
            let accused = self.table.accused_by(by).map(|member| self.table.node(member)).collect();
            self.wedge(Cause::WedgedBy { node: self.table.node(by), accused }, out);
        }
    }

    /// The time from which on the members that the decision drops read no more.
    fn leases_over(&self) -> Time {
        self.committed().map_or(Time::ZERO, |next| self.readable_until(next))
    }

    /// Carries out the decision, now that no dropped member can read any more.
    fn clean_up(&mut self, out: &mut Vec<Effect>) {
        let Some(next) = &self.committed else { return };
        let (mut trims, mut counted) = (Trims::new(), BTreeSet::new());
        for (_, shard) in self.table.own_shards() {
            let Some(&trim) = next.trims.get(&shard) else { continue };
            trims.insert(shard, trim);
            let node = self.table.member().node;
            // A restart's trim may be that of a log which goes further than what this member has received.
            let has_it = |end: &Final| end.node == node && end.complete && end.count >= trim;
            if next.finals.get(&shard).is_some_and(|ends| ends.iter().any(has_it)) {
                counted.insert(shard);
            }
        }
        self.cleaning = trims.keys().map(|&shard| (shard, None)).collect();
        self.phase = if trims.is_empty() { Phase::Over } else { Phase::CleaningUp };
        self.touched = true;
        out.push(Effect::CleanUp { trims, counted });
    }
}
