//! How a TCP fabric is opened, and why it may not be.

use rustix::io::Errno;

use crate::net::{NetConfig, NetError};

/// The deepest queue that an endpoint may have.
pub const MAX_QUEUE_DEPTH: usize = 1 << 16;

/// The smallest buffer for what comes from sockets, in bytes: with TLS, a record and a part of another.
const MIN_STAGING_BYTES: usize = 64 << 10;

/// A poll moves at least so much.
const MIN_POLL_BYTES: usize = 64 << 10;

/// The settings of a [`TcpFabric`](super::TcpFabric).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TcpConfig {
    /// The node's port, and what protects it.
    pub net: NetConfig,
    /// How many writes, reads and sends, and again how many receives, an endpoint may have outstanding: 1 to
    /// [`MAX_QUEUE_DEPTH`]. (Answers to the peer's reads come on top.)
    pub queue_depth: usize,
    /// How many bytes one poll receives at most, and again gives to one socket, before it returns; the next goes on. It
    /// bounds how long a poll takes, at some GB/s.
    pub poll_bytes: usize,
    /// The size of the buffer that one call receives into, in bytes. The fabric has one for all sockets.
    pub staging_bytes: usize,
    /// The system's buffer for what one socket sends, in bytes; none lets the system adapt it.
    pub send_buffer_bytes: Option<usize>,
    /// The system's buffer for what one socket receives, in bytes; none lets the system adapt it.
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

    /// Checks what can't be had, and brings the rest within bounds.
    pub(super) fn check(mut self) -> Result<TcpConfig, TcpError> {
        if self.queue_depth == 0 || self.queue_depth > MAX_QUEUE_DEPTH {
            return Err(TcpError::QueueDepth { depth: self.queue_depth });
        }
        self.staging_bytes = self.staging_bytes.max(MIN_STAGING_BYTES);
        self.poll_bytes = self.poll_bytes.max(MIN_POLL_BYTES);
        Ok(self)
    }
}

/// Why a TCP fabric could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TcpError {
    /// The queue depth is zero or too large.
    #[error("a queue depth of {depth} can't be had: take 1 to {MAX_QUEUE_DEPTH}")]
    QueueDepth {
        /// What was asked for.
        depth: usize,
    },
    /// The node's port could not be opened.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The system refused something that the fabric can't do without.
    #[error("the TCP fabric could not {attempt}: {cause}{}", super::hint(*cause))]
    System {
        /// What was attempted.
        attempt: &'static str,
        /// What the system said.
        cause: Errno,
    },
}

impl TcpError {
    /// For `map_err`.
    pub(super) fn system(attempt: &'static str) -> impl FnOnce(Errno) -> TcpError {
        move |cause| TcpError::System { attempt, cause }
    }
}
