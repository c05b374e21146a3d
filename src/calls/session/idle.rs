//! The detection of sessions that have been idle for too long on one node's clock.

use std::{collections::BTreeMap, time::Duration};

use squall_fabric::Time;

use super::SessionId;

/// The memory that the lowest-ranked sender of a group has of its sessions.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    /// The count of acts of each session, and the time since which that count stands still.
    seen: BTreeMap<SessionId, (u64, Time)>,
}

impl Idle {
    /// Looks at the sessions as they are now. Returns the sessions that have not acted for `timeout`, each with the
    /// number of acts seen. A session that was returned is not returned again before another `timeout` has passed.
    ///
    /// Time before the first look does not count: a node that has just become the lowest-ranked sender ends nothing.
    pub(crate) fn look(
        &mut self,
        now: Time,
        timeout: Duration,
        sessions: impl IntoIterator<Item = (SessionId, u64)>,
    ) -> Vec<(SessionId, u64)> {
        let mut idle = Vec::new();
        let mut seen = BTreeMap::new();
        for (id, acts) in sessions {
            let since = match self.seen.get(&id) {
                Some(&(before, since)) if before == acts => since,
                _ => now,
            };
            let since = if now.since(since) >= timeout {
                idle.push((id, acts));
                now
            } else {
                since
            };
            seen.insert(id, (acts, since));
        }
        self.seen = seen;
        idle
    }
}
