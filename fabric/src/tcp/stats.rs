//! The counters of a fabric.

/// Counts since a [`TcpFabric`](super::TcpFabric) was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpStats {
    /// Frames for peers: one for each write, send and read, two for a write with an announcing word, and one for each
    /// answer.
    pub frames_sent: u64,
    /// Frames of peers.
    pub frames_received: u64,
    /// Bytes that peers wrote, sent and answered to reads, into bulk memory, and that are in place.
    pub bulk_received: u64,
    /// Bytes that sockets took, headers and encryption included.
    pub bytes_sent: u64,
    /// Bytes that came from sockets.
    pub bytes_received: u64,
    /// The received bytes that came straight into a region.
    pub bytes_in_place: u64,
    /// System calls that gave bytes to a socket, or were refused.
    pub send_calls: u64,
    /// System calls that asked a socket for bytes.
    pub receive_calls: u64,
    /// The number of times that the system was asked for the sockets that are ready, at each poll.
    pub ready_calls: u64,
}
