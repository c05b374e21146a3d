//! The ways by which peers are reached.

#[cfg(feature = "verbs")]
use crate::endpoints::VERBS;
use crate::endpoints::{SHM, TCP};

/// The way by which a peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub enum Transport {
    /// Shared memory: its process is one of this user on this host.
    #[display("shared memory")]
    Shm,
    /// TCP.
    #[display("TCP")]
    Tcp,
    /// RDMA verbs.
    #[cfg(feature = "verbs")]
    #[display("RDMA verbs")]
    Verbs,
    /// Shared memory if both are processes of one user on one host that can share it; else RDMA verbs if both nodes
    /// have a device, else TCP. They find out when they first meet, over TCP. Both must have this route.
    #[display("the best of its transports")]
    Best,
}

impl Transport {
    /// The fabric's number in the ids of its endpoints.
    pub(super) fn space(self) -> Option<u8> {
        match self {
            Transport::Shm => Some(SHM),
            Transport::Tcp => Some(TCP),
            #[cfg(feature = "verbs")]
            Transport::Verbs => Some(VERBS),
            Transport::Best => None,
        }
    }
}
