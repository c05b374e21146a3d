//! Local completion (G4): outstanding work is reported in the order of posts, and leaves room.

use super::{config::Sabotage, queue::Event, world::World};
use crate::{Completion, EndpointId, Time, Token};

impl World {
    /// Sets the time at which posted work of `e` is complete locally.
    pub(super) fn set_ready(&mut self, e: EndpointId, seq: u64, at: Time) {
        let Some(side) = self.side(e) else { return };
        if let Some(index) = seq.checked_sub(side.pending_base)
            && let Some(pending) = side.pending.get_mut(index as usize)
            && pending.ready_at.is_none()
        {
            pending.ready_at = Some(at);
            self.schedule_done(e);
        }
    }

    /// Makes sure that an event looks at the first outstanding work when it is complete, if a signaled post, room or a
    /// graph depends on it.
    pub(super) fn schedule_done(&mut self, e: EndpointId) {
        let now = self.now;
        let Some(side) = self.side(e) else { return };
        if side.done_scheduled || side.signaled == 0 && !side.send_was_full && !side.graph_waits {
            return;
        }
        if let Some(at) = side.pending.front().and_then(|first| first.ready_at) {
            side.done_scheduled = true;
            self.queue.at(at.max(now), Event::Done(e));
        }
    }

    /// Reports work that is complete, in the order of posts, and the room that it leaves.
    pub(super) fn settle(&mut self, e: EndpointId) {
        let now = self.now;
        let swap = self.sabotaged(Sabotage::DoneOutOfOrder);
        let signal_all = self.sabotaged(Sabotage::SignalAll);
        let no_room = self.sabotaged(Sabotage::NoRoom);
        loop {
            let Some(side) = self.side(e) else { return };
            let ix = side.node;
            if side.pending.front().and_then(|first| first.ready_at).is_none_or(|at| at > now) {
                return;
            }
            if swap && side.pending.len() > 1 {
                let second = side.pending[1].token;
                side.pending[1].token = std::mem::replace(&mut side.pending[0].token, second);
            }
            let Some(done) = side.pending.pop_front() else { return };
            side.pending_base += 1;
            let room = std::mem::take(&mut side.send_was_full) && !no_room;
            self.graphs_may_go_on(e);
            let Some(side) = self.side(e) else { return };
            let signaled = done.token != Token::UNSIGNALED || signal_all;
            side.signaled -= usize::from(signaled);
            if signaled {
                self.report(ix, Completion::Done { endpoint: e, token: done.token, result: Ok(()) });
            }
            if room {
                self.report(ix, Completion::Room { endpoint: e });
            }
        }
    }
}
