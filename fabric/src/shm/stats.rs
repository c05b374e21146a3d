//! The counters of a fabric.

/// Counts since a [`ShmFabric`](super::ShmFabric) was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShmStats {
    /// Writes that this node copied into a peer's memory itself.
    pub writes_pushed: u64,
    /// Their bytes.
    pub bytes_pushed: u64,
    /// Writes and sends that were handed to peers as descriptors, for them to carry out.
    pub descriptors: u64,
    /// The sends among them.
    pub sends: u64,
    /// Messages whose memory peers were given, in place of a send.
    pub shares: u64,
    /// Bytes that were copied here for the descriptors of peers.
    pub bytes_pulled: u64,
    /// Bytes that were read from peers' memory.
    pub bytes_read: u64,
    /// The number of times that polls looked at an endpoint. They do where the peer may have left something, or work is
    /// outstanding.
    pub endpoints_looked_at: u64,
    /// The number of times that a peer that slept was signaled.
    pub doorbells_rung: u64,
    /// The number of times that a peer that had work was awake, or signaled already.
    pub doorbells_skipped: u64,
    /// Connections that were closed since their other end was no node of the cluster.
    pub connections_refused: u64,
}
