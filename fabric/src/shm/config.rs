//! The settings of a shared-memory fabric, and the errors of opening one.

use std::time::Duration;

use rustix::io::Errno;

use super::PROTOCOL;
use crate::{MIN_RECV_DEPTH, NodeId, local_name::DirectoryError};

/// The longest cluster name, in bytes.
pub const CLUSTER_BYTES: usize = 64;

/// The deepest queue that an endpoint may have.
pub const MAX_QUEUE_DEPTH: usize = 1 << 16;

/// The settings of a [`ShmFabric`](super::ShmFabric).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShmConfig {
    /// The cluster's name, 1 to [`CLUSTER_BYTES`] bytes. Nodes of different clusters never meet.
    pub cluster: String,
    /// This node's id, unique in its cluster.
    pub node: NodeId,
    /// The number of writes, reads and sends, and again the number of receives, that an endpoint may have outstanding:
    /// [`MIN_RECV_DEPTH`] to [`MAX_QUEUE_DEPTH`].
    pub queue_depth: usize,
    /// The number of bytes that one poll copies at most before it returns; the next goes on. It bounds the time of a
    /// poll, at some 10 GB/s.
    pub poll_bytes: usize,
    /// The time within which a connection's other end must say which node it is.
    pub handshake_timeout: Duration,
    /// The number of connections that may be in that state; one more closes the oldest.
    pub max_pending_peers: usize,
    /// The version of the protocol that is spoken, for tests.
    #[doc(hidden)]
    pub protocol: u32,
    /// The name that stands for the cluster in the names of sockets, for tests that let clusters meet.
    #[doc(hidden)]
    pub rendezvous: Option<String>,
}

impl ShmConfig {
    /// The defaults, for a node of a cluster.
    pub fn new(cluster: impl Into<String>, node: NodeId) -> ShmConfig {
        ShmConfig {
            cluster: cluster.into(),
            node,
            queue_depth: 1024,
            poll_bytes: 1 << 20,
            handshake_timeout: Duration::from_secs(1),
            max_pending_peers: 16,
            protocol: PROTOCOL,
            rendezvous: None,
        }
    }

    pub(super) fn check(&self) -> Result<(), ShmError> {
        let names = [Some(&self.cluster), self.rendezvous.as_ref()];
        if let Some(name) = names.into_iter().flatten().find(|name| name.is_empty() || name.len() > CLUSTER_BYTES) {
            return Err(ShmError::ClusterName { bytes: name.len() });
        }
        if !(MIN_RECV_DEPTH..=MAX_QUEUE_DEPTH).contains(&self.queue_depth) {
            return Err(ShmError::QueueDepth { depth: self.queue_depth });
        }
        Ok(())
    }

    /// The name that stands for the cluster in the names of sockets.
    pub(super) fn rendezvous(&self) -> &str {
        self.rendezvous.as_deref().unwrap_or(&self.cluster)
    }
}

/// The reason for which a shared-memory fabric could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// Another living process of this user has the id.
    #[error(
        "{node} of cluster {cluster:?} runs already on this host: stop that process, or give this node an id of its own"
    )]
    NodeRuns {
        /// The id.
        node: NodeId,
        /// The cluster.
        cluster: String,
    },
    /// The cluster's name is empty or too long.
    #[error("a cluster name of {bytes} bytes can't be used: take 1 to {CLUSTER_BYTES}")]
    ClusterName {
        /// The name's length.
        bytes: usize,
    },
    /// The directory of this user's sockets can't be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The queue depth is too small or too large.
    #[error("a queue depth of {depth} can't be had: take {MIN_RECV_DEPTH} to {MAX_QUEUE_DEPTH}")]
    QueueDepth {
        /// The depth that was asked for.
        depth: usize,
    },
    /// The system refused something that the fabric can't do without.
    #[error("the shared-memory fabric could not {attempt}: {cause}{}", super::memory::hint(*cause))]
    System {
        /// The attempt that failed.
        attempt: &'static str,
        /// The system's error.
        cause: Errno,
    },
}

impl ShmError {
    /// Makes an error of the system's, for `map_err`.
    pub(super) fn system(attempt: &'static str) -> impl FnOnce(Errno) -> ShmError {
        move |cause| ShmError::System { attempt, cause }
    }
}
