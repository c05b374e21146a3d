//! The watches that a client's application asks for.

use squall_fabric::Time;

use super::{
    core::ClientCore,
    effect::{ClientEffect, WatchId, WatchRequest},
};

impl ClientCore {
    /// Takes a new watch.
    pub(crate) fn watch(&mut self, now: Time, id: WatchId, watch: WatchRequest, out: &mut Vec<ClientEffect>) {
        self.watches.add(id, watch, self.is_up(), out);
        self.tick(now, out);
    }

    /// Ends a watch, whose application wants no more of it.
    pub(crate) fn unwatch(&mut self, id: WatchId, out: &mut Vec<ClientEffect>) {
        self.watches.remove(id, self.is_up(), out);
    }

    /// Notes that an application has taken changes of this cost.
    pub(crate) fn taken(&mut self, id: WatchId, cost: u64, out: &mut Vec<ClientEffect>) {
        self.watches.taken(id, cost, self.is_up(), out);
    }
}
