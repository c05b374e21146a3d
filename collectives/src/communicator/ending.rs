//! The end of a communicator: because a rank has failed, or in good order.

use squall_fabric::{BreakReason, Fabric, Time};

use super::{Communicator, Ended};
use crate::{channel::post_word, lane::LaneStatus, layout::FAREWELL};

impl Communicator {
    pub(super) fn lose(&mut self, fabric: &mut impl Fabric, now: Time, rank: usize, reason: &BreakReason) {
        self.links[rank] = None;
        self.lost[rank] = true;
        self.untold.retain(|&peer| peer != rank);
        // Another rank may have named the cause, and that counts.
        self.look_for_failure(fabric, now);
        let is_done = self.regions[rank].load(FAREWELL) != 0;
        if self.ended.is_some() || is_done || self.needs_nobody() {
            return;
        }
        if *reason == BreakReason::PeerClosed {
            self.suspect(now, rank);
        } else {
            self.fail(fabric, rank);
        }
    }

    pub(super) fn suspect(&mut self, now: Time, rank: usize) {
        // A caller that steps all the time may save clock reads, and give a time that is past.
        self.suspect.get_or_insert((rank, self.heard.max(now) + self.config.grace));
    }

    /// Whether the other ranks may go: this rank is closing, and all that it has started is done.
    pub(super) fn needs_nobody(&self) -> bool {
        self.farewells.is_some() && self.is_idle()
    }

    #[inline]
    pub(super) fn look_for_failure(&mut self, fabric: &mut impl Fabric, now: Time) {
        if self.ended.is_some() {
            return self.tell(fabric);
        }
        let word = self.abort.load(0);
        if word != 0 && word <= self.ranks() as u64 {
            self.fail(fabric, word as usize - 1);
        } else if let Some((rank, until)) = self.suspect
            && now >= until
        {
            self.fail(fabric, rank);
        }
    }

    /// Ends the communicator because a rank has failed, for callers that have other means to see it.
    ///
    /// All other ranks hear of it. The first failure counts; a rank that does not exist can't fail. Where two ranks
    /// fail at the same time, others may hear of them in different order, and name different ones.
    pub fn fail(&mut self, fabric: &mut impl Fabric, rank: usize) {
        if self.ended.is_none() && rank < self.ranks() {
            self.end(Ended::Failed(rank));
            self.untold = (0..self.ranks()).filter(|&peer| self.links[peer].is_some()).collect();
            self.tell(fabric);
        }
    }

    /// Names the failed rank to all that can be reached.
    pub(super) fn tell(&mut self, fabric: &mut impl Fabric) {
        if let Some(Ended::Failed(rank)) = self.ended {
            let links = &self.links;
            self.untold.retain(|&peer| {
                links[peer].is_some_and(|link| !post_word(fabric, &link, link.abort(), rank as u64 + 1))
            });
        }
    }

    fn end(&mut self, ended: Ended) {
        self.ended = Some(ended);
        self.suspect = None;
        for lane in &mut self.lanes {
            if lane.status == LaneStatus::UnderWay {
                lane.status = LaneStatus::Ended;
            }
        }
    }

    /// Leaves in good order: returns true once no other rank needs this one.
    ///
    /// Call it again, with [steps](Communicator::step) between, until then; the communicator is then
    /// [disconnected](Communicator::disconnect). It says farewell to the others when the last operation is over, and
    /// waits for theirs, or for them to go. No operation can be started from the first call on.
    pub fn close(&mut self, fabric: &mut impl Fabric) -> bool {
        if self.ended == Some(Ended::Disconnected) {
            return true;
        }
        let is_idle = self.is_idle();
        let said = self.farewells.get_or_insert_with(|| vec![false; self.links.len()]);
        if !is_idle {
            return false;
        }
        let mut done = self.untold.is_empty();
        for (rank, said) in said.iter_mut().enumerate() {
            if let Some(link) = &self.links[rank] {
                *said = *said || post_word(fabric, link, link.target(FAREWELL), 1);
                // What was posted last is lost if this side closes first, so a failure's name needs an answer too.
                let waits = self.ended != Some(Ended::Failed(rank)) && self.regions[rank].load(FAREWELL) == 0;
                done = done && *said && !waits;
            } else if self.ended.is_none() && rank != self.me && !self.lost[rank] {
                done = false;
            }
        }
        if done {
            self.disconnect(fabric);
        }
        done
    }

    fn is_idle(&self) -> bool {
        self.lanes.iter().all(|lane| lane.status != LaneStatus::UnderWay)
            && (self.ended.is_some() || self.bulk.as_ref().is_none_or(|bulk| bulk.is_idle()))
    }

    /// Closes all connections, and gives back the memory of long broadcasts. Operations under way end with
    /// [`CollectiveError::Disconnected`](crate::CollectiveError::Disconnected) here; the other ranks see this one fail,
    /// unless it was [closed](Communicator::close) before.
    pub fn disconnect(&mut self, fabric: &mut impl Fabric) {
        if self.ended.is_none() {
            self.end(Ended::Disconnected);
        }
        self.links.fill(None);
        self.mesh.disconnect(fabric);
        if let Some(bulk) = self.bulk.take() {
            bulk.disconnect(fabric);
        }
    }
}
