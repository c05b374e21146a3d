//! Counters.

/// Counts since a [`VerbsFabric`](super::VerbsFabric) was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerbsStats {
    /// Requests that were handed to the device.
    pub requests: u64,
    /// The number of times that requests were handed over, each time one or more.
    pub posts: u64,
    /// Completions that the device reported.
    pub completions: u64,
    /// Requests with captured bytes that were too long for the device to carry, and were fetched from memory.
    pub bounced: u64,
    /// Announcements to peers that this node is about to sleep.
    pub announced: u64,
    /// Peers that were woken by a ring of their bell, because their polled memory was written and they sleep.
    pub rung: u64,
    /// Peers that were woken over the control plane in place of a ring.
    pub told: u64,
}
