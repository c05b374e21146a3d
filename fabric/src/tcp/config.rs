//! The settings of a TCP fabric, and the errors of opening one.

use rustix::io::Errno;

use crate::net::{NetConfig, NetError};

/// The deepest queue that an endpoint may have.
pub const MAX_QUEUE_DEPTH: usize = 1 << 16;

/// The smallest buffer for bytes from sockets, in bytes: with TLS, a record and a part of another.
const MIN_STAGING_BYTES: usize = 64 << 10;

/// The least number of bytes that a poll may move before it returns.
const MIN_POLL_BYTES: usize = 64 << 10;

/// The settings of a [`TcpFabric`](super::TcpFabric).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TcpConfig {
    /// The node's port, and its protection.
    pub net: NetConfig,
    /// The number of writes, reads and sends, and again the number of receives, that an endpoint may have outstanding:
    /// 1 to [`MAX_QUEUE_DEPTH`]. (Answers to the peer's reads come on top.)
    pub queue_depth: usize,
    /// The number of bytes that one poll receives at most, and again gives to one socket, before it returns; the next
    /// goes on. It bounds the time of a poll, at some GB/s.
    pub poll_bytes: usize,
    /// The size of the buffer that one call receives into, in bytes. The fabric has one for all sockets.
    pub staging_bytes: usize,
    /// The size of the system's buffer for bytes that one socket sends; none lets the system adapt it.
    pub send_buffer_bytes: Option<usize>,
    /// The size of the system's buffer for bytes that one socket receives; none lets the system adapt it.
    pub receive_buffer_bytes: Option<usize>,
}

impl TcpConfig {
    /// The defaults, for a node's port.
    pub fn new(net: NetConfig) -> TcpConfig {
        TcpConfig {
            net,
            queue_depth: 1024,
            poll_bytes: 1 << 20,
            staging_bytes: 256 << 10,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
        }
    }

    /// Refuses settings that can't be had, and brings the rest within bounds.
    pub(super) fn check(mut self) -> Result<TcpConfig, TcpError> {
        if self.queue_depth == 0 || self.queue_depth > MAX_QUEUE_DEPTH {
            return Err(TcpError::QueueDepth { depth: self.queue_depth });
        }
        self.staging_bytes = self.staging_bytes.max(MIN_STAGING_BYTES);
        self.poll_bytes = self.poll_bytes.max(MIN_POLL_BYTES);
        Ok(self)
    }
}

/// The reason for which a TCP fabric could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TcpError {
    /// The queue depth is zero or too large.
    #[error("a queue depth of {depth} can't be had: take 1 to {MAX_QUEUE_DEPTH}")]
    QueueDepth {
        /// The depth that was asked for.
        depth: usize,
    },
    /// The node's port could not be opened.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The system refused something that the fabric can't do without.
    #[error("the TCP fabric could not {attempt}: {cause}{}", super::hint(*cause))]
    System {
        /// The attempt that failed.
        attempt: &'static str,
        /// The system's error.
        cause: Errno,
    },
}

impl TcpError {
    /// Makes an error of the system's, for `map_err`.
    pub(super) fn system(attempt: &'static str) -> impl FnOnce(Errno) -> TcpError {
        move |cause| TcpError::System { attempt, cause }
    }
}
