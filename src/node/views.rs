//! The views that a node installs, one after the other.

use std::{sync::Arc, time::Duration};

use squall_membership::{EndReason, View};

use super::watch::NodeWatch;

/// The views that a node installs, for any thread or task. It does not keep the node running.
///
/// The first is the view that the node has. A caller that takes its time misses views, and gets the last one.
#[derive(Debug)]
pub struct Views {
    watch: Arc<NodeWatch>,
    /// The number of the last view that was returned.
    seen: u64,
}

impl Views {
    pub(super) fn new(watch: Arc<NodeWatch>) -> Views {
        Views { watch, seen: 0 }
    }

    /// Waits for the next view. None once the node's part in its groups is over.
    ///
    /// Dropping the future loses no view.
    pub async fn next(&mut self) -> Option<Arc<View>> {
        let seen = self.seen;
        let found = self.watch.find(move |state| state.view_after(seen)).await;
        self.take(found).ok()
    }

    /// Blocks this thread until the next view is there, for `limit` at most. None if it is not.
    ///
    /// # Errors
    ///
    /// The reason for which the node's part in its groups is over, if it is.
    pub fn wait_next(&mut self, limit: Duration) -> Result<Option<Arc<View>>, EndReason> {
        let found = self.watch.wait(Some(limit), |state| state.view_after(self.seen));
        found.map(|found| self.take(found)).transpose()
    }

    fn take(&mut self, found: Result<(u64, Arc<View>), EndReason>) -> Result<Arc<View>, EndReason> {
        found.map(|(number, view)| {
            self.seen = number;
            view
        })
    }
}
