//! A node's limit of watches, over all groups and connections.
//!
//! Each watch takes memory, and time for each round of changes. They are [shared](squall_fabric::share) among the
//! clients as other things are.

use std::sync::Arc;

use squall_fabric::{
    share::{Holder, Shares},
    sync::Lock,
};

/// The number of watches that a node serves at a time. One client has 3/8 of them at most, members may have all.
const MAX_NODE_WATCHES: usize = 1 << 16;

/// The watches of a node, by those who have them.
#[derive(Debug)]
pub(super) struct WatchLimit(Lock<Shares>);

/// A permit for one watch. The node gets it back when it is dropped.
#[derive(Debug)]
pub(super) struct WatchPermit {
    limit: Arc<WatchLimit>,
    holder: Holder,
}

impl WatchLimit {
    pub(super) fn new() -> Arc<WatchLimit> {
        Arc::new(WatchLimit(Lock::new(Shares::new(MAX_NODE_WATCHES))))
    }

    /// Admits one more watch of a holder, if there is room and its share permits it.
    pub(super) fn admit(self: &Arc<Self>, holder: &Holder) -> Option<WatchPermit> {
        let is_admitted = self.0.lock().take(holder, 1);
        is_admitted.then(|| WatchPermit { limit: Arc::clone(self), holder: holder.clone() })
    }
}

impl Drop for WatchPermit {
    fn drop(&mut self) {
        self.limit.0.lock().give_back(&self.holder, 1);
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_many_watches_leaves_room_for_those_of_others() {
        let limit = WatchLimit::new();
        let admit_all = |holder: &Holder| std::iter::from_fn(|| limit.admit(holder)).collect::<Vec<_>>();
        let [greedy, web] = ["greedy", "web"].map(|name| Holder::Client(name.into()));
        let held = admit_all(&greedy);
        assert_eq!(held.len(), MAX_NODE_WATCHES * 3 / 8);
        assert!(limit.admit(&web).is_some() && limit.admit(&Holder::Trusted).is_some());
        drop(held);
        assert_eq!(admit_all(&Holder::Trusted).len(), MAX_NODE_WATCHES);
        assert_eq!(limit.0.lock().total(), 0);
    }
}
