//! The failure of a group: how a member comes to know it, and tells the others.
//!
//! A member that sees an endpoint break tells the root, and the root tells all. Each notice also says from whom its
//! sender heard of the failure, if it saw none itself: by a notice, or because a peer closed an endpoint. So a failure
//! that no member saw can be traced to the one that made it up.

use squall_fabric::Fabric;

use super::{Group, GroupPhase};
use crate::{
    control::Suspect,
    engine::Engine,
    events::{Event, Failure, Hearsay, Interrupted},
    link::BlockLink,
    schedule::Rank,
};

impl Group {
    /// Reads the notices of the others.
    pub(super) fn hear(&mut self, fabric: &mut impl Fabric) -> bool {
        // Once all are done, a member that leaves harms no other.
        if self.is_ended() || self.state == GroupPhase::Closed {
            return false;
        }
        for at in 0..self.lines.len() {
            let rank = self.lines[at].rank;
            if let Some(suspect) = self.control.failed(rank)
                && (self.state != GroupPhase::Failing || suspect != Suspect::Unknown)
            {
                self.fail(fabric, suspect, Some(rank), format!("{} says so", self.node(rank)));
                return true;
            }
            if self.own.done && self.control.is_closed() {
                self.state = GroupPhase::Destroyed;
                self.events.push(Event::Destroyed);
                self.disconnect(fabric);
                return true;
            }
        }
        false
    }

    /// Starts the end after a failure: nothing more is sent or received. The application hears of it once the failed
    /// member is known. `told_by` is the member from which this one heard of it; none if it saw it itself.
    pub(super) fn fail(&mut self, fabric: &mut impl Fabric, suspect: Suspect, told_by: Option<Rank>, reason: String) {
        if self.is_ended() || self.state == GroupPhase::Closed {
            return;
        }
        self.own.failed = Some(suspect);
        if self.state == GroupPhase::Running {
            tracing::debug!(group = ?self.config.id, ?suspect, ?told_by, reason, "a group fails");
            self.state = GroupPhase::Telling;
            self.own.told_by = told_by;
            self.events.retain(|event| !matches!(event, Event::Incoming { .. }));
        }
        let has_answer = self.me == Rank::ROOT || self.control.failed(Rank::ROOT).is_some();
        if self.state == GroupPhase::Telling && (has_answer || suspect != Suspect::Unknown) {
            self.state = GroupPhase::Failing;
            // From here on nothing lands in memory that the application gets back.
            let links = self.engine.iter().flat_map(|engine| engine.links().iter().flat_map(BlockLink::endpoints));
            for endpoint in links.collect::<Vec<_>>() {
                fabric.disconnect(endpoint);
            }
        }
        if let Suspect::Rank(rank) = suspect {
            let interrupted = self.exchange.take().map(|exchange| exchange.what);
            self.end_as_failed(Some(rank), reason, interrupted);
        }
    }

    pub(super) fn end_as_failed(&mut self, suspect: Option<Rank>, reason: String, resuming: Option<Interrupted>) {
        self.state = GroupPhase::Failed;
        let moved = self.engine.as_mut().map(Engine::interrupted).unwrap_or_default();
        let interrupted = resuming.into_iter().chain(moved).collect();
        let suspect = suspect.map(|rank| self.node(rank));
        self.events.push(Event::Failed(Failure { suspect, reason, interrupted }));
    }

    /// The failure of the group, if this member has only heard of it. That may be so before [`Event::Failed`], which
    /// waits for the name of the failed member. The answer may change as more is heard.
    pub fn hearsay(&self) -> Option<Hearsay> {
        let told_by = self.own.told_by?;
        let (teller, turn) = match self.me {
            // A member may pause for nearly a turn without being noticed.
            Rank::ROOT => (told_by, 3),
            // Another receiver closed an endpoint before the root had told any member that it may.
            me if told_by != Rank::ROOT && self.control.told_by(Rank::ROOT) == Some(me) => (told_by, 1),
            _ => (Rank::ROOT, 4),
        };
        Some(Hearsay { teller: self.node(teller), turn })
    }
}
